//! The docker backend on Podman's Docker-compatible socket.

#![expect(clippy::disallowed_methods, reason = "a test starts the engine")]

use std::fs;
use std::process::{Child, Command, Stdio};

use serde_json::json;
use tempfile::TempDir;

use crate::containers::{At, finish, ready, run, said, start};
use crate::fixture::{faulty, require, wait_for};

/// A `podman system service` with its own storage and state, which a test may fill. All of it is gone when it is dropped.
struct Podman {
    folder: TempDir,
    service: Child,
}

impl Podman {
    /// Starts one; where there is no `podman` it says so. `FAULTLAB_REQUIRE=podman` makes that an error.
    #[track_caller]
    fn start() -> Option<(Self, At)> {
        if !ready() || !require("podman") {
            return None;
        }
        let folder = tempfile::Builder::new().prefix("faultlab-podman-").tempdir().expect("a temporary folder");
        let socket = format!("unix://{}", folder.path().join("podman.sock").display());
        let log = fs::File::create(folder.path().join("log")).expect("a file");
        let service = Self::command(&folder)
            .args(["system", "service", "--time=0", &socket])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log)
            .spawn()
            .expect("podman starts");
        let podman = Self { folder, service };
        let at = At(Some(socket));
        wait_for("podman to answer", || at.try_docker(&["version"]).status.success());
        at.import();
        Some((podman, at))
    }

    fn command(folder: &TempDir) -> Command {
        let mut command = Command::new("podman");
        // Where conmon leaves a file when a container has used up its memory.
        command.current_dir(folder.path());
        // Without the machine's own storage and settings; `vfs` works on every file system.
        command.arg("--root").arg(folder.path().join("root")).arg("--runroot").arg(folder.path().join("run"));
        command.args(["--storage-driver", "vfs", "--cgroup-manager", "cgroupfs"]);
        // crun refuses machines that mix the two versions of control groups.
        if Command::new("runc").arg("--version").output().is_ok() {
            command.args(["--runtime", "runc"]);
        }
        command
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let _ = self.service.kill();
        let _ = self.service.wait();
        let _ = Self::command(&self.folder).args(["rm", "--all", "--force", "--time", "0"]).output();
        let _ = Self::command(&self.folder).args(["rmi", "--all", "--force"]).output();
    }
}

#[test]
fn cases_run_on_podman_as_on_docker() {
    let Some((_podman, at)) = Podman::start() else { return };
    let cli = at.cli();
    let ran = cli.run(&["doctor"]).expect(0);
    assert!(ran.text().contains("Podman "), "{}", ran.text());

    let look = "import json\n\
        def tried(what):\n    try:\n        what()\n    except OSError as error:\n        return error.errno\n    return 0\n\
        lines = open('/proc/self/status').read().splitlines()\n\
        print(json.dumps({'env': sorted(os.environ), 'at': os.getcwd(),\n\
        'caps': [l.split()[1] for l in lines if l.startswith(('CapEff', 'CapBnd'))],\n\
        'root': tried(lambda: open('/file', 'w')), 'scenario': tried(lambda: open('/scenario/new', 'w')),\n\
        'links': sorted(os.listdir('/sys/class/net')) if os.path.isdir('/sys/class/net') else ['lo'],\n\
        'uid': os.getuid(), 'work': os.statvfs('/work').f_blocks * os.statvfs('/work').f_frsize >> 20}))";
    cli.scenario("pod-look", &faulty(look));
    cli.scenario("pod-memory", &faulty("eaten = []\nwhile True:\n    eaten.append(b'x' * (16 << 20))"));
    cli.scenario("pod-late", &faulty("os.fork()\nprint('here', flush=True)\ntime.sleep(1000)"));
    cli.scenario(
        "pod-flood",
        &faulty("for n in range(300000):\n    print(n)\nsys.stdout.flush()\nos.kill(os.getpid(), 11)"),
    );
    let cases = ["pod-look", "pod-memory", "pod-late", "pod-flood", "--memory", "256", "--timeout", "10"];
    run(&cli, &cases).expect(3);
    let result = |scenario: &str| cli.result("run", &format!("{scenario}/bare.async"));
    assert_eq!(result("pod-look")["outcome"]["verdict"], json!({ "exact": "fault" }), "{:#}", result("pod-look"));
    let seen = said(&cli, "pod-look");
    assert_eq!(seen["env"], json!(["CUDA_VISIBLE_DEVICES", "HOME", "PATH", "PYTHONDONTWRITEBYTECODE"]));
    assert_eq!((&seen["at"], &seen["root"], &seen["scenario"]), (&json!("/work"), &json!(30), &json!(30)), "{seen:#}");
    assert_eq!((&seen["links"], &seen["work"]), (&json!(["lo"]), &json!(1024)), "{seen:#}");
    assert_eq!(seen["caps"], json!(["0000000000000000", "0000000000000000"]));
    assert_ne!(seen["uid"], json!(0));
    let reason = result("pod-memory")["outcome"]["reason"].as_str().unwrap_or_default().to_string();
    assert!(reason.contains("had used up the container's memory: the limit is 256 MiB"), "{reason}");
    assert_eq!(result("pod-late")["outcome"], json!({ "kind": "timed-out", "after_s": 10.0 }));
    assert_eq!(cli.read("run/cases/pod-late/bare.async/stdout"), b"here\nhere\n");
    assert_eq!(result("pod-flood")["process"]["exit"], json!({ "signal": "SIGSEGV" }));
    assert_eq!(result("pod-flood")["process"]["stdout"]["bytes"], json!(1_988_890));
    assert_eq!(at.all(), "", "no container is left");
    cli.nothing_survives();
}

#[test]
fn on_podman_too_a_container_goes_with_faultlab_and_a_lost_case_is_resumed() {
    let Some((mut podman, at)) = Podman::start() else { return };
    let cli = at.cli();
    cli.scenario("pod-kill", &faulty("if not os.path.exists('/scenario/again'):\n    time.sleep(1000)"));
    let mut child = start(&cli, &["pod-kill"]);
    at.running("pod-kill");
    child.kill().expect("a signal");
    child.wait().expect("faultlab ends");
    at.gone("pod-kill");

    // Killed from outside; then the service itself goes.
    let again = cli.command(&["run", "--resume", "run"]).spawn().expect("faultlab starts");
    at.docker(&["kill", &at.running("pod-kill")]);
    finish(again).expect(3);
    let reason = |cli: &crate::fixture::Cli| {
        cli.result("run", "pod-kill/bare.async")["outcome"]["reason"].as_str().unwrap_or_default().to_string()
    };
    assert!(reason(&cli).starts_with("the container ended before its case did"), "{}", reason(&cli));
    at.gone("pod-kill");
    let again = cli.command(&["run", "--resume", "run"]).spawn().expect("faultlab starts");
    at.running("pod-kill");
    podman.service.kill().expect("a signal");
    podman.service.wait().expect("it ends");
    finish(again).expect(3);
    assert!(reason(&cli).starts_with("the container engine stopped during the run"), "{}", reason(&cli));
    cli.nothing_survives();
}
