//! [`Cli`]: a temporary checkout, and the binary run in it.

#![expect(clippy::disallowed_methods, reason = "a test starts the program under test")]

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use regex::Regex;
use tempfile::TempDir;

/// Longer than anything takes on a loaded machine: what is waited for longer than this never comes.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// A folder with `scenarios/` and `golden/captures/`, and the binary run in it without the user's environment.
pub(crate) struct Cli {
    folder: TempDir,
    env: Vec<(String, String)>,
}

/// What a run of the binary came to.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Ran {
    /// Standard output as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Ends the test unless the exit code is this one.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.text(), self.stderr);
        self
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Cli {
    /// A checkout without scenarios.
    pub(crate) fn new() -> Self {
        let cli = Self::bare();
        for folder in ["scenarios", "golden/captures"] {
            fs::create_dir_all(cli.path(folder)).expect("a folder");
        }
        cli
    }

    /// A folder that is no checkout.
    pub(crate) fn bare() -> Self {
        let folder = tempfile::Builder::new().prefix("faultlab-cli-").tempdir().expect("a temporary folder");
        Self { folder, env: Vec::new() }
    }

    /// A copy of the repository's scenarios, captures and snapshots.
    pub(crate) fn copy_of_the_repository() -> Self {
        let cli = Self::bare();
        for folder in ["scenarios", "golden"] {
            copy(&repository().join(folder), &cli.path(folder));
        }
        cli
    }

    /// Sets a variable for everything that is run from now on.
    pub(crate) fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.into(), value.into()));
        self
    }

    /// A path below the folder.
    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.folder.path().join(relative)
    }

    /// Writes a file, and the folders above it.
    pub(crate) fn write(&self, relative: &str, contents: impl AsRef<[u8]>) {
        let path = self.path(relative);
        fs::create_dir_all(path.parent().expect("a file has a folder")).expect("a folder");
        fs::write(path, contents).expect("a file");
    }

    /// Reads a file.
    #[track_caller]
    pub(crate) fn read(&self, relative: &str) -> Vec<u8> {
        fs::read(self.path(relative)).unwrap_or_else(|e| panic!("{relative}: {e}"))
    }

    /// A scenario that runs on the CPU without torch. `program` is Python with its markers; its twin does nothing. In
    /// the program, `HERE` is this fixture's folder.
    pub(crate) fn scenario(&self, id: &str, program: &str) {
        self.write(&format!("scenarios/{id}/scenario.yaml"), SCENARIO.replace("demo", id));
        let head = format!("HERE = {:?}\n", self.path("").display().to_string());
        self.write(&format!("scenarios/{id}/train.py"), head + program);
        self.write(&format!("scenarios/{id}/train_fixed.py"), "pass\n");
    }

    /// The binary, not yet started.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_faultlab"));
        command.args(args).current_dir(self.folder.path()).env_clear();
        for key in ["PATH", "HOME"] {
            if let Some(value) = std::env::var_os(key) {
                command.env(key, value);
            }
        }
        command.env(MARKER, self.marker()).envs(self.env.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs the binary to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        self.command(args).output().expect("the binary starts").into()
    }

    /// Runs programs on the CPU: `bare`, async, without twins, and more arguments.
    pub(crate) fn run_cpu(&self, args: &[&str]) -> Ran {
        self.run(&[RUN_CPU, args].concat())
    }

    /// Starts the same.
    pub(crate) fn start_cpu(&self, args: &[&str]) -> Child {
        self.start(&[RUN_CPU, args].concat())
    }

    /// Starts faultlab and does not wait for it.
    pub(crate) fn start(&self, args: &[&str]) -> Child {
        self.command(args).spawn().expect("the binary starts")
    }

    /// Text that is the same on every machine: without this folder's path and without durations.
    pub(crate) fn filter(&self, text: &str) -> String {
        static DURATION: LazyLock<Regex> =
            LazyLock::new(|| Regex::new(r"\b\d+(?:\.\d+)? (?:s|ms)\b").expect("a pattern"));
        let text = text.replace(&self.folder.path().display().to_string(), "<FOLDER>");
        DURATION.replace_all(&text, "<TIME>").into_owned()
    }

    /// What stands in the environment of every process that this fixture has started, and in that of no other.
    fn marker(&self) -> String {
        self.folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Every process that is left of those that this fixture has started, by command line.
    pub(crate) fn survivors(&self) -> Vec<String> {
        let marker = self.marker();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let read = |name: &str| {
                String::from_utf8_lossy(&fs::read(entry.path().join(name)).unwrap_or_default()).replace('\0', " ")
            };
            let is_process = entry.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit());
            if is_process && (read("environ").contains(&marker) || read("cmdline").contains(&marker)) {
                found.push(format!("{} {}", entry.file_name().to_string_lossy(), read("cmdline")));
            }
        }
        found
    }

    /// Ends the test if anything is left once it has had the time to go.
    #[track_caller]
    pub(crate) fn nothing_survives(&self) {
        let mut left = self.survivors();
        let until = Instant::now() + PATIENCE;
        while !left.is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
            left = self.survivors();
        }
        assert_eq!(left, Vec::<String>::new(), "processes are left");
    }

    /// A case's `result.json`, as JSON.
    #[track_caller]
    pub(crate) fn result(&self, run: &str, case: &str) -> serde_json::Value {
        serde_json::from_slice(&self.read(&format!("{run}/cases/{case}/result.json"))).expect("JSON")
    }
}

const RUN_CPU: &[&str] = &["run", "--device", "cpu", "--tool", "bare", "--mode", "async", "--no-twins", "--out", "run"];

/// The variable that marks every process of a fixture.
const MARKER: &str = "FAULTLAB_TEST_MARKER";

/// The scenario that most tests run: it raises a `RuntimeError`.
pub(crate) const SCENARIO: &str = r"id: demo
title: A value that is not there
story: |
  It stops at its first step.
class: shape
needs: []
program: train.py
twin: train_fixed.py
truth:
  error: { type: RuntimeError, text: bad value }
cpu:
  error: { type: RuntimeError, text: bad value }
  expect: { bare: exact }
expect:
  bare: { async: exact, sync: exact }
hints:
  - Look at the value.
fix: |
  Make the value good.
";

/// The program of a scenario: `before` and then the fault.
pub(crate) fn faulty(before: &str) -> String {
    format!("import os, sys, time\n{before}\nvalue = -1  # ROOT\nraise RuntimeError('bad value')  # FAULT\n")
}

/// The repository's root.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository")
}

/// Waits for what must come; says what did not.
#[track_caller]
pub(crate) fn wait_for(what: &str, mut come: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !come() {
        assert!(Instant::now() < until, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Is `need` here? If not, says so; ends the test if `FAULTLAB_REQUIRE` demands it.
#[track_caller]
#[expect(clippy::print_stderr, reason = "a test that did not run must say so")]
pub(crate) fn require(need: &str) -> bool {
    let found = match need {
        "python" => Command::new("python3").arg("--version").output().is_ok_and(|o| o.status.success()),
        "gdb" => Command::new("gdb").arg("--version").output().is_ok_and(|o| o.status.success()),
        "docker" => Command::new("docker").arg("info").output().is_ok_and(|o| o.status.success()),
        // Its service needs the engine's client too, and root.
        "podman" => {
            fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
                && ["podman", "docker"].iter().all(|p| Command::new(p).arg("--version").output().is_ok())
        }
        // Built by `faultlab images build`.
        "gdb-image" => {
            let filters = ["--filter", "label=faultlab.variant=gdb", "--filter", "reference=faultlab/gdb"];
            let listed = Command::new("docker").args(["images", "--quiet"]).args(filters).output();
            listed.is_ok_and(|o| o.status.success() && !o.stdout.is_empty())
        }
        // A `dockerd` beside the machine's own takes root.
        "second-engine" => {
            fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
                && ["docker", "dockerd"].iter().all(|p| Command::new(p).arg("--version").output().is_ok())
        }
        "registry" => Command::new(registry_program()).arg("--version").output().is_ok_and(|o| o.status.success()),
        other => panic!("there is no check for {other}"),
    };
    if !found {
        let demanded = std::env::var("FAULTLAB_REQUIRE").unwrap_or_default();
        // Where there must be an engine, there must be a registry to try it with: ci/docker-registry brings one.
        let names = |n: &str| n == need || (n, need) == ("docker", "registry");
        assert!(!demanded.split(',').any(names), "FAULTLAB_REQUIRE demands {need}, and it is not here");
        eprintln!("not run: {need} is not here");
    }
    found
}

/// Debian's docker-registry: the one that `FAULTLAB_REGISTRY` names, or that is installed.
pub(crate) fn registry_program() -> String {
    std::env::var("FAULTLAB_REGISTRY").unwrap_or_else(|_| "docker-registry".into())
}

/// What the `docker` command prints.
pub(crate) fn docker(args: &[&str]) -> String {
    let output = Command::new("docker").args(args).output().expect("docker starts");
    assert!(output.status.success(), "docker {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder").flatten() {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(&from, &to).expect("a copy");
        }
    }
}
