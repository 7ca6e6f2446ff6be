//! The docker backend: a container for each case, which may do next to nothing: no network, no capabilities, a root
//! file system that is read-only, the scenario's folder read-only, limits on memory, processes and what it may write.
//!
//! The container's first process is `docker_init.py`; see there. It needs only the Python that the image has anyway,
//! so an image needs nothing of faultlab's. faultlab orders the case through its standard input, and its standard
//! output carries everything back in frames.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use bollard::models::{ContainerCreateBody, HostConfig, Mount, MountType};
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, CreateContainerOptions, ListContainersOptionsBuilder, RemoveContainerOptionsBuilder,
    StartContainerOptions,
};
use futures_util::StreamExt as _;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::io::AsyncWriteExt as _;

use super::docker_gpu::{Access, LIBRARIES, Ways};
use super::supervise::Account;
use super::{BackendError, Job, Seen, after_text, prepare, probe, settled};
use crate::capture::{CappedStream, Capture};
use crate::case::Device;
use crate::host::Host;

/// The first process of a container.
const INIT: &str = include_str!("docker_init.py");

/// Where a case's things are in its container.
const SCENARIO: &str = "/scenario";
const WORK: &str = "/work";

/// What a case may write, in bytes: it counts as memory.
const WORK_SIZE: u64 = 1 << 30;
const TMP_SIZE: u64 = 256 << 20;

/// No case needs more processes and threads, on however many cores.
const PIDS: i64 = 1024;

/// Memory of a case: this much, or three quarters of the machine's.
const MEMORY: i64 = 32 << 30;

/// Whoever this is, it is not root, and owns nothing.
const NOBODY: u32 = 65534;

/// How long a command that reads what a case left may take.
const AFTER_LIMIT: Duration = Duration::from_mins(3);

/// The time that starting, killing and collecting may take beside the deadlines, on a loaded machine.
const SLACK: Duration = Duration::from_mins(2);

/// The time to ask an image what it has: Python may be slow to start on a cold disk.
const ASK_LIMIT: Duration = Duration::from_mins(1);

const MANAGED: (&str, &str) = ("managed-by", "faultlab");
const RUN: &str = "faultlab.run";
const CASE: &str = "faultlab.case";
const OWNER: &str = "faultlab.owner";

/// Why containers cannot be used.
#[derive(Debug, Error)]
pub enum DockerError {
    /// No engine.
    #[error("no container engine: {0}")]
    Engine(#[from] bollard::errors::Error),
    /// No such image.
    #[error("there is no image {0} here: `faultlab images build` makes faultlab's own, `docker pull` fetches others")]
    NoImage(String),
    /// No way to give a container a GPU.
    #[error(
        "no way to give a container a GPU: there is no CDI specification, no runtime `nvidia`, and no device nodes \
         with driver libraries; `--device cpu` runs on the CPU"
    )]
    NoGpu,
    /// The image is of no use.
    #[error("image {image} cannot be used: {why}")]
    Image {
        /// Which.
        image: String,
        /// Why.
        why: String,
    },
}

/// See the module.
pub struct Docker {
    engine: bollard::Docker,
    image: String,
    /// The image's content, whatever becomes of its name during a run.
    image_id: String,
    env: BTreeMap<String, String>,
    host: Host,
    /// The interpreter that the first process runs in.
    python: String,
    gpu: Option<Access>,
    memory: i64,
    run: String,
    owner: Owner,
}

impl std::fmt::Debug for Docker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Docker").field("image", &self.image).field("run", &self.run).finish_non_exhaustive()
    }
}

impl Docker {
    /// Looks at the image, and clears away what runs left that are over. `machine` is what runs the engine; `memory` is a
    /// case's limit in bytes, if not the usual one.
    pub async fn open(
        machine: &Host,
        image: &str,
        python: &str,
        device: Device,
        memory: Option<u64>,
    ) -> Result<Self, DockerError> {
        let engine = bollard::Docker::connect_with_local_defaults()?;
        let info = engine.info().await?;
        let found = match engine.inspect_image(image).await {
            Err(bollard::errors::Error::DockerResponseServerError { status_code: 404, .. }) => {
                return Err(DockerError::NoImage(image.into()));
            }
            other => other?,
        };
        let gpu = match device {
            Device::Cpu => None,
            Device::Cuda => {
                let runtime = info.runtimes.is_some_and(|runtimes| runtimes.contains_key("nvidia"));
                Some(Ways::look(runtime).choose().ok_or(DockerError::NoGpu)?)
            }
        };
        let pairs = found.config.and_then(|config| config.env).unwrap_or_default();
        let mut env: BTreeMap<String, String> =
            pairs.iter().filter_map(|pair| pair.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect();
        // A user without a home writes to the root otherwise.
        env.entry("HOME".into()).or_insert_with(|| "/tmp".into());
        if matches!(gpu, Some(Access::Nodes { .. })) {
            let before = env.remove("LD_LIBRARY_PATH").filter(|paths| !paths.is_empty());
            let paths = before.map_or_else(|| LIBRARIES.to_string(), |paths| format!("{LIBRARIES}:{paths}"));
            env.insert("LD_LIBRARY_PATH".into(), paths);
        }
        let owner = Owner::this();
        let mut docker = Self {
            engine,
            image: image.into(),
            image_id: found.id.unwrap_or_else(|| image.into()),
            env,
            host: machine.clone(),
            python: python.into(),
            gpu,
            memory: memory
                .and_then(|bytes| i64::try_from(bytes).ok())
                .unwrap_or_else(|| info.mem_total.map_or(MEMORY, |total| MEMORY.min(total / 4 * 3))),
            run: format!("{}-{}", Timestamp::now().strftime("%Y%m%dT%H%M%S%.3fZ"), owner.pid),
            owner,
        };
        docker.sweep(false).await;
        let answer = docker.ask().await.map_err(|why| DockerError::Image { image: image.into(), why })?;
        docker.host =
            probe::image_host(machine, &answer).map_err(|why| DockerError::Image { image: image.into(), why })?;
        Ok(docker)
    }

    /// What a container of the image has.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The image, by the name that was asked for.
    pub fn image(&self) -> &str {
        &self.image
    }

    /// The image's content.
    pub fn image_id(&self) -> &str {
        &self.image_id
    }

    /// Has the image say what it has.
    async fn ask(&self) -> Result<String, String> {
        let argv = probe::ask_image(&self.python);
        let order = Order {
            env: &self.env,
            work: WORK,
            gpu: false,
            files: Vec::new(),
            commands: vec![OrderCommand { argv: &argv, deadline_s: ASK_LIMIT.as_secs_f64(), only_if: None }],
            watch_env: BTreeSet::new(),
            collect: Vec::new(),
        };
        let mut told = Told::new(1 << 20, &[]);
        let body = self.body("probe", None, &[]);
        let limit = ASK_LIMIT + SLACK;
        self.contained(body, &order, &mut told, limit).await.map_err(|e| e.to_string())?;
        let Some(TheRun { account, stdout, stderr }) = told.runs.remove(&0) else {
            return Err("it did not say what is in it".into());
        };
        let stderr = String::from_utf8_lossy(&stderr.finish().0).trim().to_string();
        match account.account {
            Account { not_started: Some(why), .. } => Err(why),
            account if account.exit == crate::capture::Exit::Code(0) => {
                Ok(String::from_utf8_lossy(&stdout.finish().0).into_owned())
            }
            account => Err(format!("asked what it has, its Python ended with {}: {stderr}", account.exit)),
        }
    }

    /// Runs a case to its end, its deadline, or the user's stop.
    pub(super) async fn capture(&self, job: &Job<'_>) -> Result<Capture, BackendError> {
        let prepared = prepare(job, &self.host, &self.env, Path::new(SCENARIO), Path::new(WORK))?;
        let command = &prepared.command;
        let after = command.after.iter().map(|after| OrderCommand {
            argv: &after.argv,
            deadline_s: AFTER_LIMIT.as_secs_f64(),
            only_if: after.only_if,
        });
        let first = OrderCommand { argv: &command.argv, deadline_s: job.deadline.as_secs_f64(), only_if: None };
        let order = Order {
            env: &prepared.env,
            work: WORK,
            gpu: job.device == Device::Cuda,
            files: command.files.iter().map(|file| (file.name, file.text)).collect(),
            commands: std::iter::once(first).chain(after).collect(),
            watch_env: prepared.recorded_env.keys().map(String::as_str).collect(),
            collect: command.collect.iter().map(|collect| collect.name).collect(),
        };
        let caps: Vec<usize> = command.collect.iter().map(|collect| collect.cap).collect();
        let mut told = Told::new(job.output_cap, &caps);
        let body = self.body(&job.case.folder(), Some(&job.scenario.folder), job.tool.capabilities());
        let limit = job.deadline + AFTER_LIMIT * u32::try_from(command.after.len()).unwrap_or(1) + SLACK;
        let date = Timestamp::now();
        let mut stop = job.stop.clone();
        let stopped = async { stop.wait_for(|stop| *stop).await.is_ok() };
        tokio::select! {
            done = self.contained(body, &order, &mut told, limit) => done?,
            // The first process ends with its input; the sweep at the end of the run makes sure.
            true = stopped => return Err(BackendError::Stopped),
        }
        drop(order);
        let mut files = BTreeMap::new();
        for (index, after) in command.after.iter().enumerate() {
            if let Some(TheRun { account, stdout, stderr }) = told.runs.remove(&(index + 1)) {
                files.insert(after.output.to_string(), after_text(&after.argv[0], &account.account, stdout, stderr));
            }
        }
        for (index, collect) in command.collect.iter().enumerate() {
            if let Some(kept) = told.files.remove(&index) {
                files.insert(collect.file_name().to_string(), kept.finish().0);
            }
        }
        let Some(TheRun { account, stdout, stderr }) = told.runs.remove(&0) else {
            return Err(BackendError::Infra("the container gave no account of the case".into()));
        };
        if account.oom_kills > 0 {
            return Err(BackendError::Infra(format!(
                "the kernel killed a process of the case, which had used up the container's memory: the limit is {} MiB",
                self.memory >> 20
            )));
        }
        let account = settled(account.account)?;
        let seen = Seen { backend: "docker", date, account, peak_gpu_bytes: None, stdout, stderr, files };
        Ok(prepared.capture(job, seen))
    }

    /// A container to be.
    fn body(&self, case: &str, scenario: Option<&Path>, capabilities: &[&str]) -> ContainerCreateBody {
        let owner = scenario.and_then(|folder| std::fs::metadata(folder).ok()).map(|m| (m.uid(), m.gid()));
        // Whoever owns the scenario can read it.
        let (uid, gid) = owner.filter(|(uid, _)| *uid != 0).unwrap_or((NOBODY, NOBODY));
        let tmpfs = |size: u64| format!("rw,exec,nosuid,nodev,size={size},mode=1777");
        let mut host_config = HostConfig {
            mounts: scenario.map(|folder| {
                vec![Mount {
                    target: Some(SCENARIO.into()),
                    source: Some(folder.display().to_string()),
                    typ: Some(MountType::BIND),
                    read_only: Some(true),
                    ..Mount::default()
                }]
            }),
            tmpfs: Some([(WORK.to_string(), tmpfs(WORK_SIZE)), ("/tmp".to_string(), tmpfs(TMP_SIZE))].into()),
            network_mode: Some("none".into()),
            readonly_rootfs: Some(true),
            cap_drop: Some(vec!["ALL".into()]),
            cap_add: Some(capabilities.iter().map(|c| (*c).to_string()).collect()),
            security_opt: Some(vec!["no-new-privileges".into()]),
            pids_limit: Some(PIDS),
            memory: Some(self.memory),
            // No swap on top of it.
            memory_swap: Some(self.memory),
            // `docker_init.py` is the init.
            init: Some(false),
            auto_remove: Some(true),
            log_config: Some(bollard::models::HostConfigLogConfig {
                // The engine would write a second copy of what a flood prints, without a limit.
                typ: Some("none".into()),
                config: None,
            }),
            ..HostConfig::default()
        };
        if let (Some(gpu), true) = (&self.gpu, scenario.is_some()) {
            gpu.put_into(&mut host_config);
        }
        let labels = [
            (MANAGED.0, MANAGED.1.to_string()),
            (RUN, self.run.clone()),
            (CASE, case.to_string()),
            (OWNER, self.owner.to_string()),
        ];
        ContainerCreateBody {
            image: Some(self.image_id.clone()),
            entrypoint: Some([&self.python, "-I", "-S", "-c", INIT].map(String::from).into()),
            cmd: Some(Vec::new()),
            user: Some(format!("{uid}:{gid}")),
            working_dir: Some("/".into()),
            labels: Some(labels.into_iter().map(|(k, v)| (k.to_string(), v)).collect()),
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            open_stdin: Some(true),
            // Its input closes when faultlab is gone, of whatever cause.
            stdin_once: Some(true),
            host_config: Some(host_config),
            ..ContainerCreateBody::default()
        }
    }

    /// Makes a container, has it do what is ordered, and removes it.
    async fn contained(
        &self,
        body: ContainerCreateBody,
        order: &Order<'_>,
        told: &mut Told,
        limit: Duration,
    ) -> Result<(), BackendError> {
        let infra = |what: &'static str| move |e| BackendError::Infra(format!("failed to {what}: {e}"));
        let id = self
            .engine
            .create_container(None::<CreateContainerOptions>, body)
            .await
            .map_err(infra("create a container"))?
            .id;
        let result = tokio::time::timeout(limit, self.talk(&id, order, told)).await.unwrap_or_else(|_| {
            Err(BackendError::Infra(format!("the container did not end its case within {} s", limit.as_secs())))
        });
        self.remove(&id).await;
        result
    }

    async fn talk(&self, id: &str, order: &Order<'_>, told: &mut Told) -> Result<(), BackendError> {
        let infra = |what: &str, why: &dyn std::fmt::Display| BackendError::Infra(format!("failed to {what}: {why}"));
        let options =
            AttachContainerOptionsBuilder::default().stdin(true).stdout(true).stderr(true).stream(true).build();
        let mut attached =
            self.engine.attach_container(id, Some(options)).await.map_err(|e| infra("attach to the container", &e))?;
        self.engine
            .start_container(id, None::<StartContainerOptions>)
            .await
            .map_err(|e| infra("start the container", &e))?;
        let mut line = serde_json::to_vec(order).map_err(|e| infra("write the order", &e))?;
        line.push(b'\n');
        attached.input.write_all(&line).await.map_err(|e| infra("order the container", &e))?;
        attached.input.flush().await.map_err(|e| infra("order the container", &e))?;
        let mut frames = Frames::default();
        let mut trouble = CappedStream::new(4096);
        while let Some(output) = attached.output.next().await {
            match output.map_err(|e| infra("read from the container", &e))? {
                bollard::container::LogOutput::StdErr { message } => trouble.push(&message),
                other => frames.push(&other.into_bytes()),
            }
            while let Some((kind, bytes)) = frames.next() {
                if told.hear(kind, &bytes).map_err(BackendError::Infra)? {
                    return Ok(());
                }
            }
        }
        let trouble = String::from_utf8_lossy(&trouble.finish().0).trim().to_string();
        let trouble = if trouble.is_empty() { String::new() } else { format!(": {trouble}") };
        Err(BackendError::Infra(format!(
            "the container ended before its case did: it was killed from outside, or the engine stopped{trouble}"
        )))
    }

    async fn remove(&self, id: &str) {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        // It may be gone already, or going; what is left is the sweep's.
        let _ = self.engine.remove_container(id, Some(options)).await;
    }

    /// Removes the containers of runs that are over, and with `own` those of this run. Only what carries faultlab's
    /// labels is touched.
    pub(super) async fn sweep(&self, own: bool) {
        let filters = HashMap::from([("label", vec![format!("{}={}", MANAGED.0, MANAGED.1)])]);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        for container in self.engine.list_containers(Some(options)).await.unwrap_or_default() {
            let (Some(id), Some(labels)) = (container.id, container.labels) else { continue };
            let Some(run) = labels.get(RUN) else { continue };
            let running = container.state == Some(bollard::models::ContainerSummaryStateEnum::RUNNING);
            let over = if *run == self.run {
                own
            } else {
                let owner = labels.get(OWNER).and_then(|text| Owner::read(text));
                owner.is_some_and(|owner| owner.is_over(&self.owner, running, Owner::started))
            };
            if over {
                self.remove(&id).await;
            }
        }
    }
}

/// The process that a container belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    /// Boot and process namespace: a process id means nothing elsewhere.
    place: String,
    pid: u32,
    /// When it started: ids come again.
    started: u64,
}

impl Owner {
    fn this() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let space = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let space: String = space.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
        let pid = std::process::id();
        Self { place: format!("{}.{space}", boot.trim()), pid, started: Self::started(pid).unwrap_or_default() }
    }

    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let place = parts.next()?.to_string();
        Some(Self { place, pid: parts.next()?.parse().ok()?, started: parts.next()?.parse().ok()? })
    }

    /// When a process started, if it is there: field 22 of `stat`.
    fn started(pid: u32) -> Option<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
    }

    /// Is this owner gone, as far as `me` can tell? Of one elsewhere only what no longer runs is taken for left.
    fn is_over(&self, me: &Self, running: bool, started: impl Fn(u32) -> Option<u64>) -> bool {
        if self.place == me.place { started(self.pid) != Some(self.started) } else { !running }
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}", self.place, self.pid, self.started)
    }
}

/// One line of JSON for `docker_init.py`.
#[derive(Serialize)]
struct Order<'a> {
    env: &'a BTreeMap<String, String>,
    work: &'a str,
    gpu: bool,
    files: Vec<(&'a str, &'a str)>,
    commands: Vec<OrderCommand<'a>>,
    watch_env: BTreeSet<&'a str>,
    collect: Vec<&'a str>,
}

#[derive(Serialize)]
struct OrderCommand<'a> {
    argv: &'a [String],
    deadline_s: f64,
    only_if: Option<&'a str>,
}

/// Cuts a stream into frames.
#[derive(Default)]
struct Frames(Vec<u8>);

impl Frames {
    fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        let (head, rest) = self.0.split_at_checked(5)?;
        let length = u32::from_be_bytes(head[1..].try_into().ok()?) as usize;
        let frame = (head[0], rest.get(..length)?.to_vec());
        self.0.drain(..5 + length);
        Some(frame)
    }
}

#[derive(Deserialize)]
struct ContainedAccount {
    #[serde(flatten)]
    account: Account,
    #[serde(default)]
    oom_kills: u64,
}

struct TheRun {
    account: ContainedAccount,
    stdout: CappedStream,
    stderr: CappedStream,
}

/// What a container has said so far.
struct Told {
    cap: usize,
    file_caps: Vec<usize>,
    now: usize,
    stdout: CappedStream,
    stderr: CappedStream,
    /// By the index of the command.
    runs: BTreeMap<usize, TheRun>,
    /// By the index of the file.
    files: BTreeMap<usize, CappedStream>,
}

impl Told {
    fn new(cap: usize, file_caps: &[usize]) -> Self {
        Self {
            cap,
            file_caps: file_caps.to_vec(),
            now: 0,
            stdout: CappedStream::new(cap),
            stderr: CappedStream::new(cap),
            runs: BTreeMap::new(),
            files: BTreeMap::new(),
        }
    }

    /// Takes a frame. True: that was all.
    fn hear(&mut self, kind: u8, bytes: &[u8]) -> Result<bool, String> {
        let broken = |e: serde_json::Error| format!("the container's first process spoke nonsense: {e}");
        match kind {
            b'S' | b'N' => self.now = serde_json::from_slice(bytes).map_err(broken)?,
            b'o' => self.stdout.push(bytes),
            b'e' => self.stderr.push(bytes),
            b'A' => {
                let account = serde_json::from_slice(bytes).map_err(broken)?;
                let stdout = std::mem::replace(&mut self.stdout, CappedStream::new(self.cap));
                let stderr = std::mem::replace(&mut self.stderr, CappedStream::new(self.cap));
                self.runs.insert(self.now, TheRun { account, stdout, stderr });
            }
            b'F' => {
                let cap = self.file_caps.get(self.now).copied().unwrap_or_default();
                self.files.entry(self.now).or_insert_with(|| CappedStream::new(cap)).push(bytes);
            }
            b'G' => {
                return Err("the container was promised a GPU and has none: no device node is in it; look at how the \
                            engine hands out GPUs, or ask for `--device cpu`"
                    .into());
            }
            b'X' => return Err(format!("the container's first process failed: {}", String::from_utf8_lossy(bytes))),
            b'Z' => return Ok(true),
            other => return Err(format!("the container's first process spoke nonsense: a frame of kind {other}")),
        }
        // A file of no bytes is there all the same.
        if kind == b'N' {
            let cap = self.file_caps.get(self.now).copied().unwrap_or_default();
            self.files.insert(self.now, CappedStream::new(cap));
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_arrive_in_any_pieces() {
        let bytes = b"o\0\0\0\x03abcZ\0\0\0\0e\0\0\0\x01";
        for size in 1..bytes.len() {
            let (mut frames, mut found) = (Frames::default(), Vec::new());
            for piece in bytes.chunks(size) {
                frames.push(piece);
                while let Some(frame) = frames.next() {
                    found.push(frame);
                }
            }
            assert_eq!(found, [(b'o', b"abc".to_vec()), (b'Z', Vec::new())]);
        }
    }

    #[test]
    fn every_command_and_file_keeps_its_own_bytes() -> Result<(), String> {
        let account =
            br#"{"not_started": null, "exit": {"code": 3}, "stopped": false, "elapsed_s": 0.5, "peak_rss_bytes": 7,
            "left_behind": [], "unkillable": [], "env_seen": {"A": "b"}, "oom_kills": 2}"#;
        let mut told = Told::new(100, &[100, 100]);
        let frames: [(u8, &[u8]); 13] = [
            (b'S', b"0"),
            (b'o', b"out"),
            (b'e', b"err"),
            (b'o', b"put"),
            (b'A', account),
            // The second command was not wanted.
            (b'S', b"2"),
            (b'o', b"after"),
            (b'A', account),
            (b'N', b"0"),
            (b'N', b"1"),
            (b'F', b"fi"),
            (b'F', b"le"),
            (b'Z', b""),
        ];
        for (n, (kind, bytes)) in frames.into_iter().enumerate() {
            assert_eq!(told.hear(kind, bytes)?, n == 12);
        }
        let mut text = |index| {
            let run = told.runs.remove(&index).map(|run| (run.stdout.finish().0, run.stderr.finish().0, run.account));
            run.map(|(out, err, account)| (out, err, account.account.exit, account.oom_kills))
        };
        let exit = crate::capture::Exit::Code(3);
        assert_eq!(text(0), Some((b"output".to_vec(), b"err".to_vec(), exit.clone(), 2)));
        assert_eq!(text(1), None);
        assert_eq!(text(2), Some((b"after".to_vec(), Vec::new(), exit, 2)));
        let files: Vec<_> = told.files.into_iter().map(|(index, file)| (index, file.finish().0)).collect();
        assert_eq!(files, [(0, Vec::new()), (1, b"file".to_vec())]);
        assert!(Told::new(100, &[]).hear(b'S', b"nonsense").is_err() && Told::new(100, &[]).hear(b'?', b"").is_err());
        Ok(())
    }

    #[test]
    fn a_promised_gpu_that_is_not_there_is_said_loudly() {
        let told = Told::new(100, &[]).hear(b'G', b"");
        assert!(told.is_err_and(|why| why.contains("promised a GPU and has none")));
    }

    #[test]
    fn only_a_run_that_is_over_is_cleared_away() {
        let me = Owner::this();
        assert_eq!(Owner::read(&me.to_string()), Some(me.clone()));
        assert_eq!(Owner::started(me.pid), Some(me.started));
        let other = |place: &str, started| Owner { place: place.into(), pid: 7, started };
        let lives = |_| Some(70);
        assert!(!other(&me.place, 70).is_over(&me, true, lives));
        // Its id has come again, or is gone.
        assert!(other(&me.place, 69).is_over(&me, true, lives));
        assert!(other(&me.place, 70).is_over(&me, true, |_| None));
        // Elsewhere.
        assert!(!other("elsewhere", 70).is_over(&me, true, |_| None));
        assert!(other("elsewhere", 70).is_over(&me, false, |_| None));
    }
}
