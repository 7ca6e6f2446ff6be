//! The docker backend: a container for each case, which may do next to nothing: no network, no capabilities, a root
//! file system that is read-only, the scenario's folder read-only, limits on memory, processes and what it may write.
//!
//! The container's first process is `docker_init.py`; see there. It needs only the Python that the image has anyway,
//! so an image needs nothing of faultlab's. faultlab orders the case through its standard input, and its standard
//! output carries everything back in frames.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::models::{ContainerCreateBody, HostConfig, Mount, MountType, ResourcesUlimits};
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, CreateContainerOptions, InspectContainerOptions, ListContainersOptionsBuilder,
    RemoveContainerOptionsBuilder, StartContainerOptions,
};
use futures_util::StreamExt as _;
use jiff::Timestamp;
use nix::sys::resource::{Resource, getrlimit};
use thiserror::Error;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::OnceCell;

use super::docker_engine::{Engine, Failed, Patience};
use super::docker_frames::{Frames, Order, OrderCommand, TheRun, Told};
use super::docker_gpu::{Access, LIBRARIES, Ways};
use super::docker_owner::Owner;
use super::gpu_memory::Sampler;
use super::supervise::Account;
use super::{BackendError, Job, Seen, after_text, prepare, probe, settled};
use crate::capture::{CappedStream, Capture};
use crate::case::Device;
use crate::host::{Host, Need};

/// The first process of a container.
const INIT: &str = include_str!("docker_init.py");

/// Where a case's things are in its container.
const SCENARIO: &str = "/scenario";
const WORK: &str = "/work";

/// Where the launch recorder's library is in the containers of those tools that need it.
const RECORDER_FOLDER: &str = "/opt/faultlab";

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

/// A container that is just ending is asked so often to go, with so much time between.
const REMOVE_TRIES: u32 = 10;
const REMOVE_AGAIN: Duration = Duration::from_millis(200);

const MANAGED: (&str, &str) = ("managed-by", "faultlab");
const RUN: &str = "faultlab.run";
const CASE: &str = "faultlab.case";
const OWNER: &str = "faultlab.owner";

/// Why containers cannot be used.
#[derive(Debug, Error)]
pub enum DockerError {
    /// No engine.
    #[error(
        "no container engine: {0}; start one, or name its socket by DOCKER_HOST=unix://PATH (Podman's: `podman system \
         service --time=0 unix://PATH`)"
    )]
    Engine(String),
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
    engine: Engine,
    image: String,
    /// The image's content, whatever becomes of its name during a run.
    image_id: String,
    env: BTreeMap<String, String>,
    host: Host,
    /// The interpreter that the first process runs in.
    python: String,
    gpu: Option<Access>,
    /// The launch recorder's libraries: what needs it, where it is on this machine, and where in a container.
    recorders: Vec<(Need, PathBuf, String)>,
    memory: i64,
    run: String,
    owner: Owner,
    sampling: Sampling,
    /// Started with the first case on a GPU; empty where there is no `nvidia-smi`.
    gpu_memory: OnceCell<Option<Sampler>>,
}

/// What containers are wanted.
#[derive(Debug)]
pub struct Containers<'a> {
    /// What runs the engine.
    pub machine: &'a Host,
    /// The image, by a name that the engine knows.
    pub image: &'a str,
    /// The interpreter in the image.
    pub python: &'a str,
    /// Where the tensors live.
    pub device: Device,
    /// A case's limit, bytes, if not the usual one.
    pub memory: Option<u64>,
    /// A program that answers `__supervise` as this crate's binary does.
    pub supervisor: PathBuf,
    /// The machine's environment.
    pub env: BTreeMap<String, String>,
}

/// What it takes to watch the GPU's memory from outside the containers.
struct Sampling {
    supervisor: PathBuf,
    /// Its path on the machine.
    nvidia_smi: Option<String>,
    env: BTreeMap<String, String>,
}

impl std::fmt::Debug for Docker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Docker").field("image", &self.image).field("run", &self.run).finish_non_exhaustive()
    }
}

impl Docker {
    /// Looks at the image, and clears away what runs left that are over.
    pub async fn open(wanted: Containers<'_>) -> Result<Self, DockerError> {
        let Containers { machine, image, python, device, memory, supervisor, env: machine_env } = wanted;
        let engine = Engine::connect()?;
        let engine_failed = |failed: Failed| DockerError::Engine(failed.at_the_start());
        let info = engine.ask(Patience::Little, engine.api.info()).await.map_err(engine_failed)?;
        let found = match engine.ask(Patience::Little, engine.api.inspect_image(image)).await {
            Err(failed) if failed.not_found() => return Err(DockerError::NoImage(image.into())),
            other => other.map_err(engine_failed)?,
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
        let program = |name: &str| machine.programs.iter().find(|program| program.name == name)?.path.clone();
        let mut docker = Self {
            engine,
            image: image.into(),
            image_id: found.id.unwrap_or_else(|| image.into()),
            env,
            host: machine.clone(),
            python: python.into(),
            gpu,
            recorders: probe::RECORDERS
                .into_iter()
                .filter_map(|(need, library)| {
                    Some((need, program(need.name())?.into(), format!("{RECORDER_FOLDER}/{library}")))
                })
                .collect(),
            memory: memory
                .and_then(|bytes| i64::try_from(bytes).ok())
                .unwrap_or_else(|| info.mem_total.map_or(MEMORY, |total| MEMORY.min(total / 4 * 3))),
            run: format!("{}-{}", Timestamp::now().strftime("%Y%m%dT%H%M%S%.3fZ"), owner.pid),
            owner,
            sampling: Sampling { supervisor, nvidia_smi: program("nvidia-smi"), env: machine_env },
            gpu_memory: OnceCell::new(),
        };
        docker.sweep(false).await;
        let answer = docker.ask().await.map_err(|why| DockerError::Image { image: image.into(), why })?;
        docker.host = probe::image_host(machine, &answer, &docker.libraries())
            .map_err(|why| DockerError::Image { image: image.into(), why })?;
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
        let argv = probe::ask_image(&self.python, &self.libraries());
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
        let body = self.body("probe", self.mounts(None, |_| true), &[]);
        let limit = ASK_LIMIT + SLACK;
        self.contained(body, &order, &mut told, limit, None).await.map_err(|e| e.to_string())?;
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
            gpu: self.gpu.is_some() && job.device == Device::Cuda,
            files: command.files.iter().map(|file| (file.name, file.text)).collect(),
            commands: std::iter::once(first).chain(after).collect(),
            watch_env: prepared.recorded_env.keys().map(String::as_str).collect(),
            collect: command.collect.iter().map(|collect| collect.name).collect(),
        };
        let caps: Vec<usize> = command.collect.iter().map(|collect| collect.cap).collect();
        let mut told = Told::new(job.output_cap, &caps);
        let mut body = self.body(
            &job.case.folder(),
            self.mounts(Some(&job.scenario.folder), |need| job.tool.needs().contains(&need)),
            job.tool.capabilities(),
        );
        body.user = Some(user(&job.scenario.folder));
        if let (Some(gpu), Some(config)) = (&self.gpu, &mut body.host_config) {
            gpu.put_into(config);
        }
        let sampler = self.sampler(job.device).await;
        let limit = job.deadline + AFTER_LIMIT * u32::try_from(command.after.len()).unwrap_or(1) + SLACK;
        let date = Timestamp::now();
        let mut stop = job.stop.clone();
        let stopped = async { stop.wait_for(|stop| *stop).await.is_ok() };
        tokio::select! {
            done = self.contained(body, &order, &mut told, limit, sampler) => done?,
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
        let seen =
            Seen { backend: "docker", date, account, peak_gpu_bytes: told.peak_gpu_bytes, stdout, stderr, files };
        Ok(prepared.capture(job, seen))
    }

    /// The one sampler of GPU memory, where it can tell anything about a case on this device.
    async fn sampler(&self, device: Device) -> Option<&Sampler> {
        let Sampling { supervisor, nvidia_smi, env } = &self.sampling;
        let nvidia_smi = nvidia_smi.as_deref().filter(|_| device == Device::Cuda && self.host.gpus.is_ok())?;
        self.gpu_memory.get_or_init(|| Sampler::start(supervisor, nvidia_smi, env)).await.as_ref()
    }

    /// Where each of the launch recorder's libraries is in a container, by the name of the need.
    fn libraries(&self) -> BTreeMap<&'static str, String> {
        self.recorders.iter().map(|(need, _, inside)| (need.name(), inside.clone())).collect()
    }

    /// What a container sees of this machine's files: nothing that it can write.
    fn mounts(&self, scenario: Option<&Path>, needed: impl Fn(Need) -> bool) -> Vec<Mount> {
        let libraries = self.recorders.iter().filter(|(need, ..)| needed(*need));
        let mounted = scenario.map(|folder| (folder, SCENARIO.to_string()));
        mounted
            .into_iter()
            .chain(libraries.map(|(_, library, inside)| (library.as_path(), inside.clone())))
            .map(|(source, target)| Mount {
                target: Some(target),
                source: Some(source.display().to_string()),
                typ: Some(MountType::BIND),
                read_only: Some(true),
                ..Mount::default()
            })
            .collect()
    }

    /// A container to be.
    fn body(&self, case: &str, mounts: Vec<Mount>, capabilities: &[&str]) -> ContainerCreateBody {
        let tmpfs = |size: u64| format!("rw,exec,nosuid,nodev,size={size},mode=1777");
        let host_config = HostConfig {
            mounts: Some(mounts),
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
            ulimits: Some(own_limits()),
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
            user: Some(format!("{NOBODY}:{NOBODY}")),
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
        sampler: Option<&Sampler>,
    ) -> Result<(), BackendError> {
        // One that hangs would make the container when nobody waits for it any more.
        self.engine.health().await.map_err(|failed| BackendError::Infra(failed.to_string()))?;
        let create = self.engine.api.create_container(None::<CreateContainerOptions>, body);
        let id = self.engine.ask(Patience::Much, create).await.map_err(|failed| self.not_created(&failed))?.id;
        let result = tokio::select! {
            result = tokio::time::timeout(limit, self.talk(&id, order, told, sampler)) => result.unwrap_or_else(|_| {
                Err(BackendError::Infra(format!("the container did not end its case within {} s", limit.as_secs())))
            }),
            // One that hangs removes nothing either; the container ends as soon as it sees that its input is closed.
            failed = self.engine.watch() => return Err(BackendError::Infra(failed.to_string())),
        };
        self.remove(&id).await;
        result
    }

    fn not_created(&self, failed: &Failed) -> BackendError {
        BackendError::Infra(if failed.not_found() {
            format!(
                "the image {} ({}) is no longer there: it was removed during the run; build or pull it again, then \
                 `faultlab run --resume` runs what this run lost",
                self.image, self.image_id
            )
        } else {
            format!("failed to create a container: {failed}")
        })
    }

    async fn talk(
        &self,
        id: &str,
        order: &Order<'_>,
        told: &mut Told,
        sampler: Option<&Sampler>,
    ) -> Result<(), BackendError> {
        let infra = |what: &str, why: &dyn std::fmt::Display| BackendError::Infra(format!("failed to {what}: {why}"));
        let options =
            AttachContainerOptionsBuilder::default().stdin(true).stdout(true).stderr(true).stream(true).build();
        let attach = self.engine.api.attach_container(id, Some(options));
        let mut attached =
            self.engine.ask(Patience::Much, attach).await.map_err(|e| infra("attach to the container", &e))?;
        let start = self.engine.api.start_container(id, None::<StartContainerOptions>);
        self.engine.ask(Patience::Much, start).await.map_err(|e| infra("start the container", &e))?;
        let watch = match sampler {
            Some(sampler) => sampler.watch(self.first_process(id).await),
            None => None,
        };
        let mut line = serde_json::to_vec(order).map_err(|e| infra("write the order", &e))?;
        line.push(b'\n');
        let ordered = async {
            attached.input.write_all(&line).await?;
            attached.input.flush().await
        };
        if let Err(error) = ordered.await {
            return Err(self.cut_off(&error.to_string()).await);
        }
        let mut frames = Frames::default();
        let mut trouble = CappedStream::new(4096);
        while let Some(output) = attached.output.next().await {
            match output {
                Ok(bollard::container::LogOutput::StdErr { message }) => trouble.push(&message),
                Ok(other) => frames.push(&other.into_bytes()),
                Err(error) => return Err(self.cut_off(&error.to_string()).await),
            }
            while let Some((kind, bytes)) = frames.next() {
                if told.hear(kind, &bytes).map_err(BackendError::Infra)? {
                    told.peak_gpu_bytes = watch.as_ref().and_then(super::gpu_memory::Watch::peak);
                    return Ok(());
                }
            }
        }
        Err(self.cut_off(String::from_utf8_lossy(&trouble.finish().0).trim()).await)
    }

    /// Why a container that had not said its last word is silent.
    async fn cut_off(&self, trouble: &str) -> BackendError {
        let trouble = if trouble.is_empty() { String::new() } else { format!(": {trouble}") };
        BackendError::Infra(match self.engine.health().await {
            Ok(()) => format!(
                "the container ended before its case did: it was killed from outside, or the engine was \
                 restarted{trouble}; `faultlab run --resume` runs the case again"
            ),
            Err(failed) => failed.to_string(),
        })
    }

    /// The number that a container's first process has outside: the driver knows processes by those.
    async fn first_process(&self, id: &str) -> Option<u32> {
        let inspect = self.engine.api.inspect_container(id, None::<InspectContainerOptions>);
        let pid = self.engine.ask(Patience::Little, inspect).await.ok()?.state?.pid?;
        u32::try_from(pid).ok().filter(|pid| *pid > 0)
    }

    async fn remove(&self, id: &str) {
        for _ in 0..REMOVE_TRIES {
            let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
            match self.engine.ask(Patience::Little, self.engine.api.remove_container(id, Some(options))).await {
                // One that is just ending can be neither stopped nor removed (Podman: 500, Docker: 409).
                Err(failed @ Failed::Refused(_)) if !failed.not_found() => tokio::time::sleep(REMOVE_AGAIN).await,
                // It is gone; or the engine is, and what it left is the next run's to sweep.
                _ => return,
            }
        }
    }

    /// Removes the containers of runs that are over, and with `own` those of this run. Only what carries faultlab's
    /// labels is touched.
    pub(super) async fn sweep(&self, own: bool) {
        if self.engine.health().await.is_err() {
            return;
        }
        let filters = HashMap::from([("label", vec![format!("{}={}", MANAGED.0, MANAGED.1)])]);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let listed = self.engine.ask(Patience::Little, self.engine.api.list_containers(Some(options))).await;
        for container in listed.unwrap_or_default() {
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

/// The user of a case: whoever owns the scenario can read it, unless that is root.
fn user(scenario: &Path) -> String {
    let owner = std::fs::metadata(scenario).ok().map(|m| (m.uid(), m.gid()));
    let (uid, gid) = owner.filter(|(uid, _)| *uid != 0).unwrap_or((NOBODY, NOBODY));
    format!("{uid}:{gid}")
}

/// A case may open as many files, and its user have as many processes, as faultlab itself: as on the local backend. An
/// engine's own default can be more than it may give, and then no container starts (Podman with crun: "setrlimit
/// `RLIMIT_NOFILE`: Operation not permitted").
fn own_limits() -> Vec<ResourcesUlimits> {
    // Podman's service limits itself to as many processes as old kernels have numbers for. How many a case has is
    // limited by its control group in any case.
    let limits = [("nofile", Resource::RLIMIT_NOFILE, u64::MAX), ("nproc", Resource::RLIMIT_NPROC, 1 << 15)];
    // The API's number for "no limit" is -1.
    let number = |limit: u64| i64::try_from(limit).unwrap_or(-1);
    limits
        .into_iter()
        .filter_map(|(name, resource, most)| {
            let (soft, hard) = getrlimit(resource).ok()?;
            let [soft, hard] = [soft, hard].map(|limit| Some(number(limit.min(most))));
            Some(ResourcesUlimits { name: Some(name.into()), soft, hard })
        })
        .collect()
}
