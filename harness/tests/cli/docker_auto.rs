//! `--backend auto` where this machine lacks what the cases need.

use std::fs;

use serde_json::json;

use crate::containers::{HERE, IMAGE, ready};
use crate::fixture::{Cli, faulty};

/// A checkout whose image `cpu` holds Python and nothing else, seen from a machine that has no Python.
fn without_python() -> Cli {
    let cli = HERE.cli();
    cli.write("bin/.keep", "");
    let (path, cache) = (cli.path("bin").display().to_string(), cli.path("cache").display().to_string());
    let own = std::process::id();
    cli.write(
        "images/cpu/image.yaml",
        format!("id: cpu\ntitle: Of a test\nbase: {IMAGE}\nverify: [{{ run: [/usr/bin/python3, --version], prints: Python }}]\n"),
    );
    cli.write(
        "images/cpu/Dockerfile",
        format!("# {own}\nARG BASE\nFROM ${{BASE}}\nLABEL managed-by=faultlab faultlab.variant=cpu\n"),
    );
    cli.scenario("auto", &faulty(""));
    cli.env("PATH", &path).env("XDG_CACHE_HOME", &cache)
}

#[test]
fn auto_takes_an_image_where_no_case_can_run_here() {
    if !ready() {
        return;
    }
    let cli = without_python();
    // Before the image is built there is nothing that could run: said, and no success.
    let ran = cli.run_cpu(&["auto"]).expect(3);
    assert!(
        ran.stderr.contains(
            "backend local: --device cpu runs on this machine; it can run none of these cases, nor containers: "
        ),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("the image cpu is not built: `faultlab images build cpu` builds it"), "{}", ran.stderr);
    fs::remove_dir_all(cli.path("run")).expect("a folder");

    let built = cli.run(&["images", "build", "cpu"]).expect(0);
    let text = built.text();
    let tag = text.split_whitespace().find(|word| word.starts_with("faultlab/cpu:")).expect("a name");
    let ran = cli.run_cpu(&["auto"]).expect(0);
    let result = cli.result("run", "auto/bare.async");
    // What stays when the test fails is an image of 100 MB.
    HERE.docker(&["rmi", tag]);
    assert!(
        ran.stderr
            .contains("backend docker: this machine can run none of these cases (no Python: python3 was not found"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains(&format!("; image cpu can: {tag} (sha256:")), "{}", ran.stderr);
    assert_eq!(result["process"]["provenance"]["backend"], json!("docker"));
    assert_eq!(result["outcome"]["verdict"], json!({ "exact": "fault" }), "{result:#}");
}

#[test]
fn auto_stays_here_where_cases_can_run_and_an_image_that_is_named_is_taken() {
    if !ready() {
        return;
    }
    let cli = HERE.cli();
    cli.scenario("auto-here", &faulty(""));
    let ran = cli.run_cpu(&["auto-here"]).expect(0);
    assert!(ran.stderr.contains("backend local: --device cpu runs on this machine\n"), "{}", ran.stderr);
    fs::remove_dir_all(cli.path("run")).expect("a folder");
    let ran = cli.run_cpu(&["auto-here", "--image", IMAGE]).expect(0);
    assert!(ran.stderr.contains("backend docker: asked for, with image faultlab-test:python"), "{}", ran.stderr);
    fs::remove_dir_all(cli.path("run")).expect("a folder");
    let cli = cli.env("DOCKER_HOST", "tcp://192.0.2.1:2375");
    let ran = cli.run_cpu(&["auto-here", "--image", IMAGE]).expect(2);
    assert!(
        ran.stderr.contains("DOCKER_HOST is tcp://192.0.2.1:2375: containers mount this machine's files"),
        "{}",
        ran.stderr
    );
}
