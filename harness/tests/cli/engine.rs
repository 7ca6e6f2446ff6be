//! [`SecondEngine`]: a container engine of a test's own, which it may fill, stop and kill.

#![expect(clippy::disallowed_methods, reason = "a test starts the engine, and asks it through its own client")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::fixture::{require, wait_for};

/// A `dockerd` beside the machine's own: with its own data, state, socket and containerd, without a bridge and without
/// rules for packets. Everything of it is gone when it is dropped. It has no images.
pub(crate) struct SecondEngine {
    folder: TempDir,
    /// A file system of its own for the data
    mounted: bool,
    process: Option<Child>,
}

impl SecondEngine {
    /// Starts one whose data may take `mebibytes` (in memory), or what the machine has. Where the test cannot (it takes
    /// root and a `dockerd`), it says so; `FAULTLAB_REQUIRE=second-engine` makes that an error.
    #[track_caller]
    pub(crate) fn start(mebibytes: Option<u32>) -> Option<Self> {
        if !require("second-engine") {
            return None;
        }
        let folder = tempfile::Builder::new().prefix("faultlab-engine-").tempdir().expect("a temporary folder");
        let mut engine = Self { folder, mounted: false, process: None };
        let data = engine.path("data");
        fs::create_dir(&data).expect("a folder");
        if let Some(mebibytes) = mebibytes {
            let size = format!("size={mebibytes}m");
            let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "faultlab-test"]).arg(&data).output();
            let mounted = mounted.expect("mount starts");
            assert!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
            engine.mounted = true;
        }
        // In place of the machine's own settings, which may contradict these.
        fs::write(engine.path("daemon.json"), "{}").expect("a file");
        engine.start_again();
        Some(engine)
    }

    /// Starts it on the data that it left, once it has been stopped or killed.
    #[track_caller]
    pub(crate) fn start_again(&mut self) {
        assert!(self.process.is_none(), "it runs");
        let log = fs::File::options().create(true).append(true).open(self.path("log")).expect("a file");
        // containerd's namespace: where a containerd of the system runs, dockerd uses that one.
        let namespace = self.folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        // In a network of its own: an engine without a bridge removes the one that is there, the machine's own engine's.
        let child = Command::new("unshare")
            .args([
                "--net",
                "dockerd",
                "--bridge=none",
                "--iptables=false",
                "--ip6tables=false",
                "--storage-driver=vfs",
            ])
            .arg("--config-file")
            .arg(self.path("daemon.json"))
            .arg("--data-root")
            .arg(self.path("data"))
            .arg("--exec-root")
            .arg(self.path("exec"))
            .arg("--pidfile")
            .arg(self.path("pid"))
            .args(["--host", &self.docker_host()])
            .args(["--containerd-namespace", &namespace])
            .args(["--containerd-plugins-namespace", &format!("{namespace}-plugins")])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log)
            .spawn()
            .expect("dockerd starts");
        self.process = Some(child);
        wait_for("the second engine to answer", || self.try_docker(&["version"]).status.success() || self.ended());
        assert!(!self.ended(), "the second engine ended:\n{}", self.log());
    }

    /// What `DOCKER_HOST` must be for a client to reach it.
    pub(crate) fn docker_host(&self) -> String {
        format!("unix://{}", self.path("docker.sock").display())
    }

    /// Where its data is.
    pub(crate) fn data(&self) -> PathBuf {
        self.path("data")
    }

    /// What it wrote into its log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Asks it with the engine's own client; that must succeed.
    #[track_caller]
    pub(crate) fn docker(&self, args: &[&str]) -> String {
        let output = self.try_docker(args);
        assert!(output.status.success(), "docker {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text").trim().to_string()
    }

    /// The same, whatever comes of it.
    pub(crate) fn try_docker(&self, args: &[&str]) -> Output {
        let mut command = Command::new("docker");
        command.env("DOCKER_HOST", self.docker_host()).args(args).stdin(Stdio::null());
        command.output().expect("docker starts")
    }

    /// Lets it reach a port of this machine's loopback (a registry): its network is its own.
    #[track_caller]
    pub(crate) fn door(&self, port: u16) -> Door {
        let engine = self.process.as_ref().expect("it runs");
        let mut process = Command::new("python3")
            .args(["-c", include_str!("door.py"), &engine.id().to_string(), &port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 starts");
        let mut said = String::new();
        let stdout = process.stdout.as_mut().expect("it is a pipe");
        BufReader::new(stdout).read_line(&mut said).expect("text");
        assert_eq!(said.trim(), "open");
        Door(process)
    }

    /// Stops it as an administrator does: containers end first.
    pub(crate) fn stop(&mut self) {
        self.end(Signal::SIGTERM);
    }

    /// Kills it: nothing that it has begun is tidied up, and containers go on.
    pub(crate) fn kill(&mut self) {
        self.end(Signal::SIGKILL);
    }

    /// Sends it a signal, such as `SIGSTOP`: it is there and answers nobody.
    pub(crate) fn signal(&self, signal: Signal) {
        let child = self.process.as_ref().expect("it runs");
        kill(Pid::from_raw(i32::try_from(child.id()).expect("a process id")), signal).expect("a signal");
    }

    fn end(&mut self, signal: Signal) {
        if self.process.is_some() {
            self.signal(signal);
            wait_for("the second engine to end", || self.ended());
            self.process = None;
            // Its containerd dies with it. As long as nobody has collected that, dockerd takes it for a living one.
            let _ = fs::remove_file(self.path("exec/containerd/containerd.pid"));
        }
    }

    fn ended(&mut self) -> bool {
        self.process.as_mut().is_none_or(|child| child.try_wait().is_ok_and(|status| status.is_some()))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The processes that have this engine's folder on their command line (dockerd, its containerd, containers' shims),
    /// and all that those started.
    fn processes(&self) -> Vec<i32> {
        let folder = self.folder.path().display().to_string();
        let mut all: Vec<(i32, i32, bool)> = Vec::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse() else { continue };
            let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            // `pid (name) state parent …`
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
            all.push((pid, parent.unwrap_or_default(), String::from_utf8_lossy(&command).contains(&folder)));
        }
        let mut ours: Vec<i32> = all.iter().filter(|(_, _, named)| *named).map(|(pid, ..)| *pid).collect();
        let mut at = 0;
        while at < ours.len() {
            let children = all.iter().filter(|(pid, parent, _)| *parent == ours[at] && !ours.contains(pid));
            let children: Vec<i32> = children.map(|(pid, ..)| *pid).collect();
            ours.extend(children);
            at += 1;
        }
        let own = i32::try_from(std::process::id()).unwrap_or_default();
        ours.retain(|pid| *pid != own);
        ours
    }
}

/// See [`SecondEngine::door`]; it closes when this is dropped.
pub(crate) struct Door(Child);

impl Drop for Door {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for SecondEngine {
    fn drop(&mut self) {
        // A stopped process hears nothing else.
        if let Some(child) = &mut self.process {
            let pid = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
            let _ = kill(pid, Signal::SIGCONT).and_then(|()| kill(pid, Signal::SIGTERM));
            for _ in 0..1000 {
                if child.try_wait().is_ok_and(|status| status.is_some()) {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
        for pid in self.processes() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        if let Some(mut child) = self.process.take() {
            let _ = child.wait();
        }
        // What dockerd mounted lies below: the last mount goes first.
        let folder = self.folder.path().display().to_string();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let targets = mounts.lines().rev().filter_map(|line| line.split(' ').nth(1));
        for target in targets.filter(|target| target.starts_with(&folder)) {
            let _ = Command::new("umount").args(["--lazy", target]).output();
        }
    }
}

#[test]
fn a_second_engine_leaves_nothing() {
    let Some(mut engine) = SecondEngine::start(Some(64)) else { return };
    let folder = engine.folder.path().to_path_buf();
    assert_eq!(engine.docker(&["images", "--quiet"]), "");
    assert!(engine.mounted && engine.data().join("vfs").is_dir(), "{}", engine.log());
    engine.kill();
    assert!(!engine.try_docker(&["version"]).status.success());
    engine.start_again();
    engine.stop();
    engine.start_again();
    engine.signal(Signal::SIGSTOP);
    drop(engine);
    assert!(!folder.exists());
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    assert!(!mounts.contains(&folder.display().to_string()), "{mounts}");
}
