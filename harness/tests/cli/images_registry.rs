//! `faultlab images push` and `pull`, with a real registry and two engines.

#![expect(clippy::disallowed_methods, reason = "a test starts a registry, and asks the engine through its own client")]

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::engine::SecondEngine;
use crate::fixture::{Cli, registry_program, require, wait_for};
use crate::images::{Images, docker, docker_free, has_image};

/// Who may use the registry, where it asks.
const USER: &str = "tester";
const PASSWORD: &str = "correct-horse";
/// `tester:correct-horse` in base64, as Docker's configuration has it.
const AUTH: &str = "dGVzdGVyOmNvcnJlY3QtaG9yc2U=";
/// bcrypt of the password, as htpasswd writes it.
const HTPASSWD: &str = "tester:$2b$04$Y6ZW1JNcRtudo1FKa83gyOiPWjqUacKwYH7XylusUh103bVyme0oe\n";

/// A registry on this machine's loopback, which engines reach without TLS.
struct Registry {
    process: Child,
    address: String,
    _folder: TempDir,
}

impl Registry {
    fn port(&self) -> u16 {
        let port = self.address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        port.expect("an address has a port")
    }

    /// `asks` is whether it wants to know who asks.
    fn start(asks: bool) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
        let address = free.to_string();
        std::fs::write(path("htpasswd"), HTPASSWD).expect("a file");
        let auth = format!("auth: {{ htpasswd: {{ realm: test, path: {} }} }}\n", path("htpasswd"));
        let settings = format!(
            "version: 0.1\nlog: {{ level: error }}\nstorage: {{ filesystem: {{ rootdirectory: {} }} }}\nhttp: {{ addr: '{address}' }}\n{}",
            path("data"),
            if asks { &auth } else { "" }
        );
        std::fs::write(path("config.yml"), settings).expect("a file");
        let process = Command::new(registry_program())
            .args(["serve", &path("config.yml")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the registry starts");
        wait_for("the registry to answer", || TcpStream::connect(&address).is_ok());
        Self { process, address, _folder: folder }
    }

    /// A name in it.
    fn name(&self, name: &str) -> String {
        format!("{}/team/{name}", self.address)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The digest that a registry has for a tag, asked without faultlab.
fn digest_of(name: &str) -> String {
    let inspected = docker(&["inspect", "--format", "{{index .RepoDigests 0}}", name]);
    String::from_utf8(inspected).expect("text").trim().to_string()
}

#[test]
fn container_image_is_pushed_once_and_pulled_by_its_digest() {
    if !require("docker") || !require("registry") {
        return;
    }
    let registry = Registry::start(false);
    let images = Images::new("push");
    let variant = images.variant.clone();
    let to = registry.name("one");
    let early = images.cli.run(&["images", "push", &variant, "--to", &to]).expect(2);
    assert!(early.stderr.contains("is not built"), "{}", early.stderr);
    let missing = images.cli.run(&["images", "pull", &variant]).expect(2);
    assert!(missing.stderr.contains("images/images.lock does not name"), "{}", missing.stderr);

    let tag = Images::tag(&images.build(&[]).expect(0));
    let pushed = images.cli.run(&["images", "push", &variant, "--to", &to, "--lock"]).expect(0);
    let reference = pushed.text().trim().to_string();
    assert!(reference.starts_with(&format!("{to}@sha256:")) && reference.len() == to.len() + 72, "{reference}");
    let lock = String::from_utf8(images.cli.read("images/images.lock")).expect("text");
    assert!(lock.ends_with(&format!("{variant}: {reference}\n")), "{lock}");
    let hash = tag.rsplit(':').next().expect("a hash");
    assert!(!has_image(&format!("{to}:{hash}")), "the name that the registry got is left here");

    // Where the image is gone, it comes back under its name, by variant and by digest.
    for what in [variant.as_str(), &reference] {
        images.cli.run(&["images", "clean", &variant]).expect(0);
        assert!(!has_image(&tag) && !has_image(&reference));
        let pulled = images.cli.run(&["images", "pull", what]).expect(0);
        assert!(pulled.text().contains(&tag) && pulled.text().contains(&reference), "{}", pulled.text());
        assert!(pulled.stderr.contains(&images.base), "what it was built on is said: {}", pulled.stderr);
        assert!(has_image(&tag));
    }
    assert_eq!(digest_of(&tag), reference);
    assert!(images.build(&[]).expect(0).text().contains("is there"));

    // On another base: what the lock names comes first, then what was built here, then what has the same recipe.
    let old_base = docker(&["inspect", "--format", "{{.Id}}", &images.base]);
    images.make_base();
    let built = |more: &[&str]| Images::tag(&images.build(more).expect(0));
    assert_eq!(built(&[]), tag);
    let lock = images.cli.read("images/images.lock");
    images.cli.write("images/images.lock", "");
    assert_eq!(built(&[]), tag);
    let own = built(&["--no-cache"]);
    assert_ne!(own, tag);
    assert_eq!(built(&[]), own);
    images.cli.write("images/images.lock", lock);
    assert_eq!(built(&[]), tag);
    let pushed = images.cli.run(&["images", "push", &variant, "--to", &to]).expect(0);
    assert!(pushed.stderr.contains(&own) && !pushed.text().contains(&reference), "what was built here is pushed");

    // By name alone nothing is pulled, and what was made from other files gets no name.
    let by_name = images.cli.run(&["images", "pull", &format!("{to}:{hash}")]).expect(2);
    assert!(by_name.stderr.contains("has no digest"), "{}", by_name.stderr);
    images.cli.run(&["images", "clean", &variant]).expect(0);
    images.dockerfile("RUN echo made > /made # otherwise\n");
    let foreign = images.cli.run(&["images", "pull", &variant]).expect(1);
    assert!(
        foreign.stderr.contains("built from other files") && foreign.stderr.contains("no name"),
        "{}",
        foreign.stderr
    );
    assert!(!has_image(&tag) && !has_image(&reference), "what has no use is removed again");

    // Something that is no image of ours.
    let other = registry.name("other");
    docker(&["tag", &images.base, &other]);
    docker(&["push", "--quiet", &other]);
    let reference = digest_of(&other);
    docker(&["rmi", &other]);
    let foreign = images.cli.run(&["images", "pull", &reference]).expect(1);
    assert!(foreign.stderr.contains("of no variant"), "{}", foreign.stderr);
    // It has lost its name to the new one; it may have gone with what was built on it.
    let _ = docker_free("docker", &["rmi", String::from_utf8_lossy(&old_base).trim()]);
}

#[test]
fn container_image_is_pulled_by_an_engine_that_has_no_base() {
    if !require("docker") || !require("registry") {
        return;
    }
    let Some(engine) = SecondEngine::start(None) else { return };
    let registry = Registry::start(false);
    let _door = engine.door(registry.port());
    let images = Images::new("second");
    let variant = images.variant.clone();
    // A second variant on top, which another engine builds on the pulled one.
    let above = format!("{variant}-up");
    images.cli.write(
        &format!("images/{above}/image.yaml"),
        format!("id: {above}\ntitle: t\nbase: {variant}\nverify: [{{ run: [cat, /made], prints: ^more$ }}]\n"),
    );
    images.cli.write(
        &format!("images/{above}/Dockerfile"),
        format!(
            "ARG BASE\nFROM ${{BASE}}\nLABEL managed-by=faultlab faultlab.variant={above}\nRUN echo more >> /made\n"
        ),
    );
    let tag = Images::tag(&images.build(&[]).expect(0));
    images.cli.run(&["images", "push", &variant, "--to", &registry.name("two"), "--lock"]).expect(0);

    let host = engine.docker_host();
    let there = |args: &[&str]| -> crate::fixture::Ran {
        images.cli.command(args).env("DOCKER_HOST", &host).output().expect("the binary starts").into()
    };
    let without = there(&["images", "build", &variant]).expect(3);
    assert!(without.stderr.contains("no base image"), "{}", without.stderr);
    assert!(there(&["images", "pull", &variant]).expect(0).text().contains(&tag));
    let listed = there(&["images", "list"]).expect(0);
    assert!(listed.text().lines().any(|line| line.contains(&tag) && line.contains("yes")), "{}", listed.text());
    assert!(there(&["images", "build", &variant]).expect(0).text().contains("is there"));
    assert!(there(&["images", "verify", &variant]).expect(0).text().contains("made"));
    let built = there(&["images", "build", &above]).expect(0);
    assert!(built.text().contains("built in") && engine.docker(&["images", &Images::tag(&built)]).contains(&above));
}

#[test]
fn container_registry_credentials_are_used_and_never_shown() {
    if !require("docker") || !require("registry") {
        return;
    }
    let registry = Registry::start(true);
    let images = Images::new("auth");
    let variant = images.variant.clone();
    images.build(&[]).expect(0);
    let to = registry.name("three");
    let push = |docker_config: &str| -> crate::fixture::Ran {
        let mut command = images.cli.command(&["images", "push", &variant, "--to", &to]);
        command.env("DOCKER_CONFIG", images.cli.path(docker_config)).output().expect("the binary starts").into()
    };
    let auths = |auth: &str| format!("{{\"auths\": {{ \"{}\": {{ \"auth\": \"{auth}\" }} }} }}", registry.address);
    images.cli.write("none/config.json", "{}");
    images.cli.write("wrong/config.json", auths("dGVzdGVyOndyb25nLWhvcnNl"));
    images.cli.write("right/config.json", auths(AUTH));
    let without = push("none").expect(3);
    assert!(without.stderr.contains("failed to push"), "{}", without.stderr);
    let wrong = push("wrong").expect(3);
    let right = push("right").expect(0);
    let reference = right.text().trim().to_string();
    assert!(reference.starts_with(&to), "{reference}");

    // The same for a pull, and for the digest of a base.
    images.cli.run(&["images", "clean", &variant]).expect(0);
    let cli: &Cli = &images.cli;
    let ask = |args: &[&str], docker_config: &str| -> crate::fixture::Ran {
        let mut command = cli.command(args);
        command.env("DOCKER_CONFIG", cli.path(docker_config)).output().expect("the binary starts").into()
    };
    let refused = ask(&["images", "pull", &reference], "none").expect(3);
    let pulled = ask(&["images", "pull", &reference], "right").expect(0);
    let (name, digest) = reference.split_once('@').expect("a digest");
    let hash = Images::tag(&pulled).rsplit(':').next().expect("a hash").to_string();
    let yaml = |base: &str| {
        format!("id: {variant}\ntitle: t\nbase: {base} # mine\nverify: [{{ run: [cat, /made], prints: ^made$ }}]\n")
    };
    let file = format!("images/{variant}/image.yaml");
    cli.write(&file, yaml(&format!("{name}:{hash}")));
    let check = ask(&["images", "lock", &variant, "--check"], "none").expect(3);
    let locked = ask(&["images", "lock", &variant], "right").expect(0);
    assert_eq!(String::from_utf8(cli.read(&file)).expect("text"), yaml(&format!("{name}:{hash}@{digest}")));
    ask(&["images", "lock", &variant, "--check", "--update"], "right").expect(0);

    for ran in [without, wrong, right, refused, pulled, check, locked] {
        for secret in [PASSWORD, AUTH, "wrong-horse", USER] {
            assert!(!ran.text().contains(secret) && !ran.stderr.contains(secret), "{}{}", ran.text(), ran.stderr);
        }
    }
    let _ = docker_free("docker", &["rmi", &reference]);
}
