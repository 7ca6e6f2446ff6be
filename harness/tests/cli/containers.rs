//! [`At`]: an engine, and what tests of containers ask it. [`IMAGE`] holds this machine's Python and nothing else; it is
//! made once for an engine and kept.

#![expect(clippy::disallowed_methods, reason = "a test asks the engine through its own client")]

use std::process::{Child, Command, Output, Stdio};
use std::sync::Once;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::fixture::{Cli, Ran, require, wait_for};

pub(crate) const IMAGE: &str = "faultlab-test:python";

/// What runs cases in it.
pub(crate) const DOCKER: &[&str] = &["--backend", "docker", "--image", IMAGE];

/// An engine, by what `DOCKER_HOST` must be; `None` is the machine's own.
#[derive(Clone)]
pub(crate) struct At(pub(crate) Option<String>);

impl At {
    /// The engine's own client, not yet started.
    fn client(&self, args: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command.args(args).stdin(Stdio::null()).envs(self.0.iter().map(|host| ("DOCKER_HOST", host)));
        command
    }

    /// Asks it; that must succeed.
    #[track_caller]
    pub(crate) fn docker(&self, args: &[&str]) -> String {
        let output = self.try_docker(args);
        assert!(output.status.success(), "docker {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text").trim().to_string()
    }

    /// The same, whatever comes of it.
    pub(crate) fn try_docker(&self, args: &[&str]) -> Output {
        self.client(args).output().expect("docker starts")
    }

    /// Gives it the image.
    #[track_caller]
    pub(crate) fn import(&self) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/docker_image.py");
        let mut tar = Command::new("python3").arg(script).stdout(Stdio::piped()).spawn().expect("python3 starts");
        let made = self
            .client(&[
                "import",
                "--change",
                "ENV PATH=/usr/bin",
                "--change",
                "LABEL managed-by=faultlab-test",
                "-",
                IMAGE,
            ])
            .stdin(tar.stdout.take().expect("a pipe"))
            .output()
            .expect("docker answers");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        assert!(tar.wait().is_ok_and(|status| status.success()));
    }

    /// The binary, told of this engine. Its temporary files lie in the fixture's folder.
    pub(crate) fn cli(&self) -> Cli {
        let cli = Cli::new();
        cli.write("tmp/.keep", "");
        let tmp = cli.path("tmp").display().to_string();
        let cli = cli.env("TMPDIR", &tmp);
        match &self.0 {
            Some(host) => cli.env("DOCKER_HOST", host),
            None => cli,
        }
    }

    /// The containers of a scenario's case, ended ones too.
    pub(crate) fn containers(&self, scenario: &str) -> Vec<String> {
        let label = format!("label=faultlab.case={scenario}/bare.async");
        self.docker(&["ps", "--all", "--quiet", "--filter", &label]).lines().map(String::from).collect()
    }

    /// Waits until a case runs its program: the container's first process has a child.
    pub(crate) fn running(&self, scenario: &str) -> String {
        let mut id = String::new();
        wait_for("the case to run", || {
            id = self.containers(scenario).pop().unwrap_or_default();
            let first = self.try_docker(&["inspect", "--format", "{{.State.Pid}}", &id]).stdout;
            let first = String::from_utf8_lossy(&first).trim().to_string();
            let children = std::fs::read_to_string(format!("/proc/{first}/task/{first}/children"));
            let program = |pid: &str| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            children.unwrap_or_default().split_whitespace().any(|pid| program(pid).ends_with(b"/scenario/train.py\0"))
        });
        id
    }

    #[track_caller]
    pub(crate) fn gone(&self, scenario: &str) {
        wait_for("the container to go", || self.containers(scenario).is_empty());
    }

    /// Every container that carries faultlab's label.
    pub(crate) fn all(&self) -> String {
        self.docker(&["ps", "--all", "--quiet", "--filter", "label=managed-by=faultlab"])
    }
}

/// The machine's own engine.
pub(crate) const HERE: At = At(None);

/// Is there an engine and a Python? Then there is the image too.
#[track_caller]
pub(crate) fn ready() -> bool {
    static MADE: Once = Once::new();
    if !require("docker") || !require("python") {
        return false;
    }
    MADE.call_once(|| {
        if HERE.docker(&["images", "--quiet", IMAGE]).is_empty() {
            HERE.import();
        }
    });
    true
}

pub(crate) fn run(cli: &Cli, args: &[&str]) -> Ran {
    cli.run_cpu(&[DOCKER, args].concat())
}

pub(crate) fn start(cli: &Cli, args: &[&str]) -> Child {
    cli.start_cpu(&[DOCKER, args].concat())
}

pub(crate) fn finish(child: Child) -> Ran {
    child.wait_with_output().expect("faultlab ends").into()
}

pub(crate) fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(child.id()).expect("a process id")), signal).expect("a signal");
}

/// What a program found out, which it printed as JSON.
#[track_caller]
pub(crate) fn said(cli: &Cli, scenario: &str) -> Value {
    serde_json::from_slice(&cli.read(&format!("run/cases/{scenario}/bare.async/stdout"))).expect("JSON")
}
