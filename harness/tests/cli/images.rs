//! `faultlab images` on the real engine, with a tiny base that is made of this machine's shell.

#![expect(clippy::disallowed_methods, reason = "tests ask the engine through its own client")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::engine::SecondEngine;
use crate::fixture::{Cli, Ran, repository, require, wait_for};

/// What every test of this file finds in the CA bundle, and must find nowhere else.
const MARK: &str = "faultlab-test-certificate-5d1c";

/// A checkout with one variant, and a base of its own. Both are gone afterwards.
pub(crate) struct Images {
    pub(crate) cli: Cli,
    pub(crate) variant: String,
    pub(crate) base: String,
    /// The engine, as `DOCKER_HOST` names it; empty is the machine's own
    host: String,
}

impl Images {
    /// `name` keeps tests that run side by side apart.
    pub(crate) fn new(name: &str) -> Self {
        Self::on(name, "")
    }

    /// The same on another engine.
    fn on(name: &str, host: &str) -> Self {
        let own = format!("{name}-{}", std::process::id());
        let cli = Cli::new();
        let cache = cli.path("cache").display().to_string();
        let images = Self {
            cli: if host.is_empty() { cli } else { cli.env("DOCKER_HOST", host) }.env("XDG_CACHE_HOME", &cache),
            variant: format!("test-{own}"),
            base: format!("test-base:{own}"),
            host: host.into(),
        };
        images.make_base();
        images.yaml(&images.base, "[{ run: [cat, /made], prints: ^made$ }]");
        images.dockerfile("RUN echo a line of output; echo made > /made\n");
        images
    }

    /// A shell, `cat`, `rm`, `sleep` and their libraries.
    pub(crate) fn make_base(&self) {
        let root = self.cli.path("root");
        let mut files: BTreeSet<PathBuf> = BTreeSet::new();
        for program in ["/bin/bash", "/bin/cat", "/bin/rm", "/bin/sleep"] {
            files.insert(program.into());
            let listed = docker_free("ldd", &[program]);
            let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
            files.extend(listed.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from));
        }
        for file in files {
            let to = root.join(file.strip_prefix("/").expect("an absolute path"));
            std::fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
            std::fs::copy(&file, &to).expect("a copy");
        }
        std::fs::copy("/bin/bash", root.join("bin/sh")).expect("a copy");
        std::fs::create_dir_all(root.join("tmp")).expect("a folder");
        let tar = self.cli.path("base.tar").display().to_string();
        let packed = docker_free("tar", &["-cf", &tar, "-C", &root.display().to_string(), "."]);
        assert!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));
        self.docker(&["import", &tar, &self.base]);
    }

    /// This fixture's engine, by its client; it must succeed.
    #[track_caller]
    fn docker(&self, args: &[&str]) -> String {
        let mut command = Command::new("docker");
        if !self.host.is_empty() {
            command.env("DOCKER_HOST", &self.host);
        }
        let output = command.args(args).stdin(Stdio::null()).output().expect("it starts");
        assert!(output.status.success(), "docker {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text").trim().to_string()
    }

    /// Containers of this variant, ended ones too: those of its steps and of its commands.
    pub(crate) fn containers(&self) -> String {
        let label = format!("label=faultlab.variant={}", self.variant);
        self.docker(&["ps", "--all", "--quiet", "--filter", &label])
    }

    /// Images of this variant that have a name.
    fn names(&self) -> String {
        self.docker(&["images", "--quiet", &format!("faultlab/{}", self.variant)])
    }

    pub(crate) fn yaml(&self, base: &str, verify: &str) {
        let variant = &self.variant;
        self.cli.write(
            &format!("images/{variant}/image.yaml"),
            format!("id: {variant}\ntitle: An image of a test\nbase: {base}\nverify: {verify}\n"),
        );
    }

    pub(crate) fn dockerfile(&self, steps: &str) {
        let text = format!(
            "# A comment.\nARG BASE\nFROM ${{BASE}}\nLABEL managed-by=faultlab faultlab.variant={}\n{steps}",
            self.variant
        );
        self.cli.write(&format!("images/{}/Dockerfile", self.variant), text);
    }

    pub(crate) fn build(&self, more: &[&str]) -> Ran {
        self.cli.run(&[&["images", "build", &self.variant], more].concat())
    }

    /// The name that a build printed.
    pub(crate) fn tag(ran: &Ran) -> String {
        ran.text().split_whitespace().find(|word| word.starts_with("faultlab/")).expect("a name").to_string()
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        let _ = self.cli.run(&["images", "clean", &self.variant]);
        // Another engine goes with all that it has.
        if self.host.is_empty() {
            let _ = Command::new("docker").args(["rmi", &self.base]).output();
        }
    }
}

pub(crate) fn docker_free(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).stdin(Stdio::null()).output().expect("it starts")
}

/// The engine's client; it must succeed.
#[track_caller]
pub(crate) fn docker(args: &[&str]) -> Vec<u8> {
    let output = docker_free("docker", args);
    assert!(output.status.success(), "docker {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

pub(crate) fn has_image(name: &str) -> bool {
    docker_free("docker", &["image", "inspect", name]).status.success()
}

/// Is there the stand-in base of ci/make-base? `FAULTLAB_REQUIRE=images` demands it.
pub(crate) fn debian_base() -> bool {
    let here = has_image("faultlab-base:trixie");
    let demanded = std::env::var("FAULTLAB_REQUIRE").unwrap_or_default();
    assert!(here || demanded.split(',').all(|n| n != "images"), "no base image");
    here
}

pub(crate) fn contains(bytes: &[u8], text: &str) -> bool {
    memchr::memmem::find(bytes, text.as_bytes()).is_some()
}

#[test]
fn container_image_is_built_once_and_anew_when_an_input_changes() {
    if !require("docker") {
        return;
    }
    let images = Images::new("once");
    let first = images.build(&["--verbose"]).expect(0);
    assert!(first.stderr.contains("step 4/") && first.stderr.contains("| a line of output"), "{}", first.stderr);
    let tag = Images::tag(&first);
    let labels = String::from_utf8(docker(&["inspect", "--format", "{{json .Config.Labels}}", &tag])).expect("text");
    assert!(labels.contains(r#""managed-by":"faultlab""#) && labels.contains(&images.variant), "{labels}");

    let started = Instant::now();
    let again = images.build(&[]).expect(0);
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!((Images::tag(&again), again.text().contains("is there")), (tag.clone(), true));
    let anew = images.build(&["--no-cache"]).expect(0);
    assert_eq!((Images::tag(&anew), anew.text().contains("built in")), (tag.clone(), true));
    // Where packages come from is not what they are.
    let mirror = images.build(&["--apt-mirror", "http://127.0.0.1:9/debian"]).expect(0);
    assert_eq!(Images::tag(&mirror), tag);

    images.dockerfile("RUN echo made > /made # changed\n");
    let listed = images.cli.run(&["images", "list"]).expect(0);
    assert!(listed.text().contains("no") && !listed.text().contains(&tag), "{}", listed.text());
    assert!(
        listed.text().contains("not locked") && listed.stderr.contains("the base has no digest"),
        "{}",
        listed.text()
    );
    let changed = images.build(&[]).expect(0);
    assert_ne!(Images::tag(&changed), tag);
    let inventory = images.cli.run(&["images", "inspect", &images.variant]).expect(0);
    let inventory: serde_json::Value = serde_json::from_slice(&inventory.stdout).expect("JSON");
    assert_eq!(inventory["tag"], Images::tag(&changed));
    images.cli.run(&["images", "verify", &images.variant]).expect(0);

    // Another base of the same name: what was built on the old one is not taken for it.
    let old_base = images.docker(&["inspect", "--format", "{{.Id}}", &images.base]);
    images.make_base();
    let rebased = images.build(&[]).expect(0);
    assert!(rebased.text().contains("built in") && Images::tag(&rebased) != Images::tag(&changed));
    images.cli.run(&["images", "clean", &images.variant]).expect(0);
    let _ = docker_free("docker", &["rmi", &old_base]);
}

#[test]
fn container_image_of_a_stage_has_no_name_and_is_nobodys() {
    if !require("docker") {
        return;
    }
    let images = Images::new("stage");
    let variant = &images.variant;
    let steps = format!(
        "FROM ${{BASE}} AS first\nRUN echo made > /made\nFROM first\nLABEL managed-by=faultlab faultlab.variant={variant}\n"
    );
    images.cli.write(&format!("images/{variant}/Dockerfile"), format!("ARG BASE\n{steps}"));
    let stage = images.build(&["--stage", "first"]).expect(0);
    assert!(stage.text().contains("stage first") && images.names().is_empty(), "{}", stage.text());
    // It has the recipe's label all the same.
    let left = images.docker(&[
        "images",
        "--all",
        "--quiet",
        "--filter",
        "label=faultlab.recipe",
        "--filter",
        "dangling=true",
    ]);
    assert!(!left.is_empty(), "the stage is no image of this engine: {}", images.docker(&["images", "--all"]));
    let listed = images.cli.run(&["images", "list", "--format", "json"]).expect(0);
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&listed.stdout).expect("JSON");
    let row = rows.iter().find(|row| row["variant"] == **variant).expect("the variant");
    assert_eq!(row["built"], false, "{row}");
    let built = images.build(&[]).expect(0);
    assert!(built.text().contains("built in"), "{}", built.text());
    images.cli.run(&["images", "clean", variant]).expect(0);
}

#[test]
fn container_image_whose_step_fails_names_the_step_and_shows_its_last_lines() {
    if !require("docker") {
        return;
    }
    let images = Images::new("fails");
    images.dockerfile("RUN echo before\nRUN for i in 1 2 3; do echo line $i; done; \\\n    exit 7\n");
    let ran = images.build(&[]).expect(3);
    for part in [&format!("images/{}/Dockerfile:6: step 5/", images.variant), "exit 7", "| line 3", "code: 7"] {
        assert!(ran.stderr.contains(part), "{part} is missing:\n{}", ran.stderr);
    }
    assert!(!ran.stderr.contains("| before"), "{}", ran.stderr);

    // An image that does not answer gets no name.
    images.dockerfile("RUN echo other > /made\n");
    let ran = images.build(&[]).expect(3);
    assert!(ran.stderr.contains("cat /made") && ran.stderr.contains("| other"), "{}", ran.stderr);
    assert!(
        !docker_free("docker", &["images", "-q", &format!("faultlab/{}", images.variant)])
            .stdout
            .iter()
            .any(u8::is_ascii_hexdigit)
    );

    images.yaml("no-such-base:here", "[{ run: [cat, /made], prints: ^made$ }]");
    let ran = images.build(&[]).expect(3);
    assert!(ran.stderr.contains("no-such-base:here") && ran.stderr.contains("ci/make-base"), "{}", ran.stderr);
    images.build(&["--base", &images.base]).expect(3);
}

#[test]
fn container_images_that_others_made_survive_a_clean() {
    if !require("docker") {
        return;
    }
    let images = Images::new("clean");
    let tag = Images::tag(&images.build(&[]).expect(0));
    // One with a name like ours and no label, and one that was built on ours and so inherits its labels.
    let alike = format!("faultlab/{}:mine", images.variant);
    let inherits = format!("inherits-{}:mine", images.variant);
    docker(&["tag", &images.base, &alike]);
    let container = String::from_utf8(docker(&["create", &tag, "cat"])).expect("text");
    docker(&["commit", container.trim(), &inherits]);

    let said = images.cli.run(&["images", "clean", "--dry-run", &images.variant]).expect(0);
    assert!(said.text().contains(&tag) && has_image(&tag), "{}", said.text());
    // A container still needs it: the engine keeps it, and that is said.
    let kept = images.cli.run(&["images", "clean", &images.variant]);
    docker(&["rm", container.trim()]);
    if has_image(&tag) {
        assert!(kept.stderr.contains("kept"), "{}", kept.stderr);
        images.cli.run(&["images", "clean", &images.variant]).expect(0);
    }
    let survived = [&tag, &alike, &inherits, &images.base].map(|name| has_image(name));
    docker(&["rmi", &alike, &inherits]);
    assert_eq!(survived, [false, true, true, true]);
}

#[test]
fn container_image_has_nothing_of_the_ca_bundle() {
    if !require("docker") {
        return;
    }
    let images = Images::new("ca");
    images.cli.write("ca.pem", format!("-----BEGIN CERTIFICATE-----\n{MARK}\n-----END CERTIFICATE-----\n"));
    images.dockerfile(
        r#"ARG FAULTLAB_CA_URL
RUN address=${FAULTLAB_CA_URL#http://127.0.0.1:}; exec 3<>/dev/tcp/127.0.0.1/${address%/*} || exit 1; \
    printf 'GET /ca.pem HTTP/1.0\r\n\r\n' >&3; cat <&3 > /tmp/ca.pem; \
    while read -r line; do case "$line" in faultlab-test-*) echo seen; found=1;; esac; done < /tmp/ca.pem; \
    rm /tmp/ca.pem; [ "$found" = 1 ] && echo made > /made
"#,
    );
    let bundle = images.cli.path("ca.pem").display().to_string();
    let ran = images.build(&["--verbose", "--ca-bundle", &bundle]).expect(0);
    assert!(ran.stderr.contains("| seen"), "{}", ran.stderr);
    nothing_of_it(&Images::tag(&ran));

    // The same search finds a bundle that a step leaves, also where a later one removes it.
    let dockerfile =
        String::from_utf8(images.cli.read(&format!("images/{}/Dockerfile", images.variant))).expect("text");
    let leaves = dockerfile.replace("rm /tmp/ca.pem; ", "") + "RUN rm /tmp/ca.pem\n";
    images.cli.write(&format!("images/{}/Dockerfile", images.variant), leaves);
    let ran = images.build(&["--ca-bundle", &bundle]).expect(0);
    assert!(contains(&docker(&["save", &Images::tag(&ran)]), MARK));
}

#[test]
fn container_image_packages_are_installed_with_the_ca_bundle_and_without_a_trace() {
    if !require("docker") || !debian_base() {
        return;
    }
    let images = Images::new("apt");
    images.cli.write("ca.pem", format!("-----BEGIN CERTIFICATE-----\n{MARK}\n-----END CERTIFICATE-----\n"));
    let script = std::fs::read(repository().join("images/shared/install-packages")).expect("the script");
    images.cli.write("images/shared/install-packages", script);
    images.yaml("faultlab-base:trixie", "[{ run: [cat, /made], prints: ^install }]");
    // An apt-get that installs nothing, and fails unless apt would use the bundle and the mirror.
    images.cli.write(
        &format!("images/{}/apt-get", images.variant),
        format!(
            "#!/bin/sh\nset -e\neval \"$(apt-config shell CA Acquire::https::CAInfo LIST Dir::Etc::SourceList)\"\n\
             grep -q {} \"$CA\"\ngrep -q '^deb https://mirror.invalid/20260101T000000Z trixie main$' \"$LIST\"\n\
             echo \"${{2}}\" >> /made\n",
            MARK.replace("-5d1c", "")
        ),
    );
    images.dockerfile(
        "COPY apt-get /usr/local/sbin/apt-get\nCOPY shared/install-packages /usr/local/sbin/install-packages\n\
         ARG FAULTLAB_APT_MIRROR\nARG FAULTLAB_APT_SNAPSHOT\nARG FAULTLAB_CA_URL\nRUN install-packages nothing\n",
    );
    let bundle = images.cli.path("ca.pem").display().to_string();
    let mirror = ["--apt-mirror", "https://mirror.invalid", "--apt-snapshot", "20260101T000000Z"];
    let ran = images.build(&[&["--ca-bundle", &bundle], &mirror[..]].concat()).expect(0);
    nothing_of_it(&Images::tag(&ran));
}

/// No layer, no configuration and no history has a byte of the bundle.
#[track_caller]
fn nothing_of_it(image: &str) {
    let saved = docker(&["save", image]);
    assert!(contains(&saved, "faultlab"), "the image is not what was saved");
    assert!(!contains(&saved, MARK), "a layer or the configuration has the bundle");
    assert!(!contains(&docker(&["history", "--no-trunc", image]), MARK), "the history has the bundle");
    assert!(!contains(&docker(&["inspect", image]), MARK), "the configuration has the bundle");
}

#[test]
fn container_image_yaml_mistakes_are_named_with_their_place() {
    if !require("docker") {
        return;
    }
    let cli = Cli::new();
    cli.write("images/tiny/image.yaml", "id: tiny\ntitle: t\nbase: x\nverfy: []\n");
    let ran = cli.run(&["images", "list"]).expect(2);
    assert!(ran.stderr.contains("images/tiny/image.yaml:") && ran.stderr.contains("verfy"), "{}", ran.stderr);
    let ran = cli.run(&["images", "build", "large"]).expect(2);
    assert!(ran.stderr.contains("there are: tiny"), "{}", ran.stderr);
    assert!(Path::new(&cli.path("images")).is_dir());
}

#[test]
fn container_image_build_that_is_stopped_leaves_no_container_and_no_name() {
    if !require("docker") {
        return;
    }
    let images = Images::new("stopped");
    // In a step, and in a command that the whole image must answer; by Ctrl-C, and as a CI system does it.
    for (dockerfile, verify, signal) in [
        ("RUN echo begun && sleep 600\n", "[{ run: [cat, /made], prints: ^made$ }]", Signal::SIGINT),
        ("RUN echo made > /made\n", "[{ run: [sleep, '600'], prints: ^made$ }]", Signal::SIGTERM),
    ] {
        images.dockerfile(dockerfile);
        images.yaml(&images.base, verify);
        let child = images.cli.command(&["images", "build", &images.variant, "--verbose"]).spawn().expect("it starts");
        let sleeping = || {
            let ids = images.containers();
            ids.lines().any(|id| {
                let top = docker_free("docker", &["top", id]);
                String::from_utf8_lossy(&top.stdout).contains("sleep 600")
            })
        };
        wait_for("the build to sleep", sleeping);
        kill(Pid::from_raw(i32::try_from(child.id()).expect("a process id")), signal).expect("a signal");
        let ran = Ran::from(child.wait_with_output().expect("it ends")).expect(3);
        assert!(ran.stderr.contains("stopped"), "{}", ran.stderr);
        wait_for("the containers to go", || images.containers().is_empty());
        assert_eq!(images.names(), "");
    }
    // And the next build has nothing to stumble over.
    images.yaml(&images.base, "[{ run: [cat, /made], prints: ^made$ }]");
    images.build(&[]).expect(0);
}

#[test]
fn container_image_build_on_a_full_disk_names_the_step_and_leaves_nothing() {
    let Some(engine) = SecondEngine::start(Some(96)) else { return };
    let images = Images::on("full", &engine.docker_host());
    let before = engine.docker(&["images", "--all", "--quiet"]);
    images.dockerfile("RUN echo first > /first\nRUN cat /dev/zero > /much\n");
    let ran = images.build(&[]).expect(3);
    let step = format!("images/{}/Dockerfile:6: step 5/", images.variant);
    let data = engine.data().display().to_string();
    for part in [step.as_str(), "No space left on device", "the disk is full", &data, "images clean"] {
        assert!(ran.stderr.contains(part), "{part} is missing:\n{}", ran.stderr);
    }
    assert_eq!(engine.docker(&["ps", "--all", "--quiet"]), "");
    assert_eq!(engine.docker(&["images", "--all", "--quiet"]), before, "layers are left");
    // What it took is free again: a smaller image fits.
    images.dockerfile("RUN echo made > /made\n");
    images.build(&[]).expect(0);
}

#[test]
fn container_image_is_listed_as_a_bill_of_materials() {
    if !require("docker") {
        return;
    }
    let images = Images::new("bill");
    let tag = Images::tag(&images.build(&[]).expect(0));
    let inspect = ["images", "inspect", &images.variant, "--format", "cyclonedx"];
    let ran = images.cli.run(&inspect).expect(0);
    assert_eq!(ran.stdout, images.cli.run(&inspect).expect(0).stdout, "the same image gives the same bytes");
    let bill: serde_json::Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    let id = images.docker(&["inspect", "--format", "{{.Id}}", &tag]);
    let base = images.docker(&["inspect", "--format", "{{.Id}}", &images.base]);
    assert_eq!(bill["specVersion"], "1.6");
    assert_eq!(
        format!("sha256:{}", bill["metadata"]["component"]["hashes"][0]["content"].as_str().expect("a hash")),
        id
    );
    assert_eq!(bill["components"][0]["name"], images.base, "{bill:#}");
    assert_eq!(format!("sha256:{}", bill["components"][0]["hashes"][0]["content"].as_str().expect("a hash")), base);
}
