//! The local backend: processes of this machine, each case under a supervisor of its own.

#![expect(clippy::disallowed_methods, reason = "this is the place that starts processes")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::sync::{OnceCell, watch};

use super::gpu_memory::Sampler;
use super::supervise::{self, Account, Order};
use super::{BackendError, Job, Prepared, Seen, after_cap, after_text, prepare, settled};
use crate::capture::{CappedStream, Capture};
use crate::case::Device;
use crate::host::Host;
use crate::tool::{self, WorkFile};

/// How long a stream may stay open once the supervisor is gone. Longer: something that could not be killed
/// holds it.
const DRAIN: Duration = Duration::from_secs(5);

/// How long a command that reads what a case left may take.
const AFTER_LIMIT: Duration = Duration::from_mins(3);

/// See the module.
#[derive(Debug)]
pub struct Local {
    supervisor: PathBuf,
    host: Host,
    env: BTreeMap<String, String>,
    /// Started with the first case on a GPU; empty where there is no `nvidia-smi`.
    gpu_memory: OnceCell<Option<Sampler>>,
}

impl Local {
    /// `supervisor` is a program that answers `__supervise` as this crate's binary does; `env` is the machine's
    /// environment.
    pub fn new(supervisor: PathBuf, host: Host, env: BTreeMap<String, String>) -> Self {
        Self { supervisor, host, env, gpu_memory: OnceCell::new() }
    }

    /// The machine.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The one sampler of GPU memory, where it can tell anything about a case on this device.
    async fn gpu_memory(&self, device: Device) -> Option<&Sampler> {
        let program = self.host.programs.iter().find(|program| program.name == "nvidia-smi");
        let path = program.and_then(|program| program.path.as_deref())?;
        if device == Device::Cpu || self.host.gpus.is_err() {
            return None;
        }
        self.gpu_memory.get_or_init(|| Sampler::start(&self.supervisor, path, &self.env)).await.as_ref()
    }

    /// Runs a case to its end, its deadline, or the user's stop.
    pub(super) async fn capture(&self, job: &Job<'_>) -> Result<Capture, BackendError> {
        let prepared = prepare(job, &self.host, &self.env, &job.scenario.folder, &job.work)?;
        let Prepared { command, env, recorded_env, .. } = &prepared;
        for file in &command.files {
            bring(&job.work, file).map_err(|e| BackendError::Infra(format!("failed to write {}: {e}", file.name)))?;
        }
        let order = Order {
            argv: command.argv.clone(),
            cwd: job.work.clone(),
            deadline_s: job.deadline.as_secs_f64(),
            watch_env: recorded_env.keys().cloned().collect(),
            ask: false,
            account: job.work.with_extension("account"),
        };
        let date = Timestamp::now();
        let bounds = self.bounds(job).await;
        let Supervised { account, peak_gpu_bytes, stdout, stderr } = supervised(&order, env, &bounds).await?;
        let account = settled(account)?;
        let files = files(command, env, &job.work, &bounds).await?;
        let seen = Seen { backend: "local", date, account, peak_gpu_bytes, stdout, stderr, files };
        Ok(prepared.capture(job, seen))
    }

    async fn bounds<'a>(&'a self, job: &Job<'_>) -> Bounds<'a> {
        Bounds {
            supervisor: &self.supervisor,
            gpu_memory: self.gpu_memory(job.device).await,
            output_cap: job.output_cap,
            stop: job.stop.clone(),
            echo: false,
        }
    }
}

/// What a supervised process runs within.
pub(super) struct Bounds<'a> {
    /// See [`Local::new`].
    pub(super) supervisor: &'a Path,
    pub(super) gpu_memory: Option<&'a Sampler>,
    /// Bytes of each stream to keep.
    pub(super) output_cap: usize,
    /// Becomes true when the process is to be stopped.
    pub(super) stop: watch::Receiver<bool>,
    /// Also write what it prints to faultlab's standard error, as it comes.
    pub(super) echo: bool,
}

/// Runs the commands that read what the first one left, and takes the tool's files from its folder.
pub(super) async fn files(
    command: &tool::Command,
    env: &BTreeMap<String, String>,
    work: &Path,
    bounds: &Bounds<'_>,
) -> Result<BTreeMap<String, Vec<u8>>, BackendError> {
    let mut files = BTreeMap::new();
    for after in &command.after {
        if after.only_if.is_some_and(|name| !work.join(name).exists()) {
            continue;
        }
        let order = Order {
            argv: after.argv.clone(),
            cwd: work.into(),
            deadline_s: AFTER_LIMIT.as_secs_f64(),
            watch_env: BTreeSet::new(),
            ask: false,
            account: work.with_extension("account"),
        };
        let output_cap = after_cap(bounds.output_cap);
        let quiet = Bounds { echo: false, stop: bounds.stop.clone(), output_cap, ..*bounds };
        let Supervised { account, stdout, stderr, .. } = supervised(&order, env, &quiet).await?;
        if account.stopped {
            return Err(BackendError::Stopped);
        }
        let text = after_text(&after.argv[0], &account, stdout, stderr);
        files.insert(after.output.to_string(), text);
    }
    for collect in &command.collect {
        let mut kept = CappedStream::new(collect.cap);
        // A file that the tool did not write is no error: its parser sees that it is not there.
        let Ok(mut file) = std::fs::File::open(work.join(collect.name)) else { continue };
        let mut chunk = vec![0; 64 * 1024];
        while let Ok(n @ 1..) = file.read(&mut chunk) {
            kept.push(&chunk[..n]);
        }
        files.insert(collect.file_name().to_string(), kept.finish().0);
    }
    Ok(files)
}

/// Runs a command below a supervisor of its own, to its end, its deadline, or the stop.
pub(super) async fn supervised(
    order: &Order,
    env: &BTreeMap<String, String>,
    bounds: &Bounds<'_>,
) -> Result<Supervised, BackendError> {
    let infra = |what: &str, e: std::io::Error| BackendError::Infra(format!("failed to {what}: {e}"));
    let mut supervisor = Command::new(bounds.supervisor)
        .arg(supervise::SUBCOMMAND)
        .env_clear()
        .envs(env)
        .env(supervise::MARK, &order.account)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C goes to faultlab alone, which closes the input: the tree is then cleared in order.
        .process_group(0)
        .spawn()
        .map_err(|e| infra("start the supervisor", e))?;
    let watch = bounds.gpu_memory.and_then(|sampler| sampler.watch(supervisor.id()));
    let mut input = supervisor.stdin.take();
    let mut line = serde_json::to_vec(order).map_err(|e| infra("write the order", e.into()))?;
    line.push(b'\n');
    if let Some(input) = &mut input {
        input.write_all(&line).await.map_err(|e| infra("order the supervisor", e))?;
    }
    let stdout = tokio::spawn(drain(supervisor.stdout.take(), bounds.output_cap, bounds.echo));
    let stderr = tokio::spawn(drain(supervisor.stderr.take(), bounds.output_cap, bounds.echo));
    let mut stop = bounds.stop.clone();
    let ended = tokio::select! {
        status = supervisor.wait() => Some(status),
        () = async { let _ = stop.wait_for(|stop| *stop).await; } => None,
    };
    drop(input);
    let status = match ended {
        Some(status) => status,
        // Its input is closed: it clears the tree away and ends.
        None => supervisor.wait().await,
    };
    let status = status.map_err(|e| infra("wait for the supervisor", e))?;
    let text = std::fs::read(&order.account);
    let _ = std::fs::remove_file(&order.account);
    let account = text.ok().and_then(|text| serde_json::from_slice::<Account>(&text).ok());
    let Some(account) = account else {
        let mark = order.account.display().to_string();
        let left = tokio::task::spawn_blocking(move || supervise::sweep(&mark)).await.unwrap_or_default();
        let left = if left.is_empty() { String::new() } else { format!("; still there: {}", left.join(", ")) };
        return Err(BackendError::Infra(format!("the supervisor gave no account ({status}){left}")));
    };
    let streams = tokio::time::timeout(DRAIN, async { (stdout.await, stderr.await) }).await;
    match streams {
        Ok((Ok(stdout), Ok(stderr))) => {
            Ok(Supervised { account, peak_gpu_bytes: watch.and_then(|w| w.peak()), stdout, stderr })
        }
        Ok(_) => Err(BackendError::Infra("reading the output failed".into())),
        Err(_) => Err(BackendError::Infra("the output stayed open after the last process had ended".into())),
    }
}

/// Writes a file that a tool brings.
pub(super) fn bring(work: &Path, file: &WorkFile) -> std::io::Result<()> {
    let path = work.join(file.name);
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, file.text)
}

/// What came of a supervised process.
pub(super) struct Supervised {
    pub(super) account: Account,
    pub(super) peak_gpu_bytes: Option<u64>,
    pub(super) stdout: CappedStream,
    pub(super) stderr: CappedStream,
}

/// Reads a stream to its end, in memory that does not grow past the cap.
async fn drain(stream: Option<impl AsyncRead + Unpin>, cap: usize, echo: bool) -> CappedStream {
    let mut kept = CappedStream::new(cap);
    if let Some(mut stream) = stream {
        let mut chunk = vec![0; 64 * 1024];
        while let Ok(n @ 1..) = stream.read(&mut chunk).await {
            kept.push(&chunk[..n]);
            if echo {
                // A terminal that is gone takes nothing from the capture.
                let mut terminal = tokio::io::stderr();
                let _ = terminal.write_all(&chunk[..n]).await;
                let _ = terminal.flush().await;
            }
        }
    }
    kept
}
