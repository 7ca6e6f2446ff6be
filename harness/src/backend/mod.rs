//! Where cases run. Only this module starts the processes of scenarios, tools and probes.

pub mod attach;
mod docker;
mod docker_engine;
mod docker_frames;
mod docker_gpu;
mod docker_owner;
mod docker_run;
mod gpu_memory;
mod local;
pub mod probe;
mod replay;
pub mod supervise;
pub mod user;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use thiserror::Error;
use tokio::sync::watch;

pub use docker_run::{Containers, Docker, DockerError};
pub use local::Local;
pub use replay::{Replay, ReplayError, stacks};

use crate::capture::{CappedStream, Capture, Exit, Meta, Provenance, SCHEMA_VERSION};
use crate::case::{CaseId, Device, Subject};
use crate::host::{Host, Stack};
use crate::scenario::Scenario;
use crate::tool::{Command, RECORDED, Target, Tool};
use supervise::Account;

/// A place where cases run.
#[derive(Debug)]
pub enum Backend {
    /// This machine, without a container.
    Local(Box<Local>),
    /// A container for each case.
    Docker(Box<Docker>),
    /// Recorded captures.
    Replay(Replay),
}

/// A case, ready to run.
pub struct Job<'a> {
    /// Which.
    pub case: CaseId,
    /// Its scenario.
    pub scenario: &'a Scenario,
    /// Its tool.
    pub tool: &'static dyn Tool,
    /// Where the tensors live.
    pub device: Device,
    /// What the run is made on.
    pub stack: Stack,
    /// Kill the whole tree after this long.
    pub deadline: Duration,
    /// Bytes of each stream to keep.
    pub output_cap: usize,
    /// An empty folder, the process's working directory.
    pub work: PathBuf,
    /// Becomes true when the user wants to stop.
    pub stop: watch::Receiver<bool>,
}

impl Job<'_> {
    fn program(&self) -> &crate::scenario::Program {
        match self.case.subject {
            Subject::Program => &self.scenario.program,
            Subject::Twin => &self.scenario.twin,
        }
    }
}

/// Why a case gave no capture.
#[derive(Debug, Error)]
pub enum BackendError {
    /// There is no recording of it.
    #[error("{0}")]
    NotRecorded(String),
    /// The user stopped the run.
    #[error("stopped by the user")]
    Stopped,
    /// The machine or the harness failed.
    #[error("{0}")]
    Infra(String),
}

impl Backend {
    /// The name on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Local(_) => "local",
            Self::Docker(_) => "docker",
            Self::Replay(_) => "replay",
        }
    }

    /// What the plan may count on; a replay needs nothing of the machine.
    pub fn host(&self) -> Option<&Host> {
        match self {
            Self::Local(local) => Some(local.host()),
            Self::Docker(docker) => Some(docker.host()),
            Self::Replay(_) => None,
        }
    }

    /// Clears away what a run may have left.
    pub async fn clear(&self) {
        if let Self::Docker(docker) = self {
            docker.sweep(true).await;
        }
    }

    /// Runs a case to its end.
    pub async fn capture(&self, job: &Job<'_>) -> Result<Capture, BackendError> {
        match self {
            Self::Local(local) => local.capture(job).await,
            Self::Docker(docker) => docker.capture(job).await,
            Self::Replay(replay) => replay.read(job.scenario, &job.case),
        }
    }
}

/// What is known of a case before anything starts.
struct Prepared {
    command: Command,
    /// All of its environment.
    env: BTreeMap<String, String>,
    /// The part that is recorded.
    recorded_env: BTreeMap<String, String>,
    program_root: String,
}

/// What came of a case.
struct Seen {
    backend: &'static str,
    date: Timestamp,
    account: Account,
    peak_gpu_bytes: Option<u64>,
    stdout: CappedStream,
    stderr: CappedStream,
    files: BTreeMap<String, Vec<u8>>,
}

/// Puts the tool on the program, which lies in `folder` and works in `work` where it runs.
fn prepare(
    job: &Job<'_>,
    host: &Host,
    machine: &BTreeMap<String, String>,
    folder: &Path,
    work: &Path,
) -> Result<Prepared, BackendError> {
    let python = host.python.as_ref().map_err(|m| BackendError::Infra(format!("no Python: {m}")))?;
    let target = Target {
        python: python.executable.clone(),
        program: job.program().path(folder).display().to_string(),
        args: job.scenario.args.clone(),
        device: job.device,
        mode: job.case.mode,
        work: work.display().to_string(),
        programs: host
            .programs
            .iter()
            .filter_map(|program| Some((program.name.clone(), program.path.clone()?)))
            .collect(),
    };
    let command = job.tool.command(&target);
    let env = case_env(machine, &command, job.device);
    let recorded =
        |key: &str| command.env.contains_key(key) || command.prepend.contains_key(key) || RECORDED.contains(&key);
    let recorded_env = env.iter().filter(|(key, _)| recorded(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
    Ok(Prepared { command, env, recorded_env, program_root: folder.display().to_string() })
}

impl Prepared {
    fn capture(self, job: &Job<'_>, seen: Seen) -> Capture {
        let Seen { backend, date, account, peak_gpu_bytes, stdout, stderr, files } = seen;
        let (stdout, stdout_info) = stdout.finish();
        let (stderr, stderr_info) = stderr.finish();
        Capture {
            meta: Meta {
                schema_version: SCHEMA_VERSION,
                case: job.case.clone(),
                device: job.device,
                argv: self.command.argv,
                env: self.recorded_env,
                env_seen: account.env_seen,
                exit: account.exit,
                elapsed_s: account.elapsed_s,
                peak_rss_bytes: account.peak_rss_bytes,
                peak_gpu_bytes,
                stdout: stdout_info,
                stderr: stderr_info,
                left_behind: account.left_behind,
                program_root: self.program_root,
                program_sha256: job.program().sha256(),
                provenance: Provenance {
                    faultlab: env!("CARGO_PKG_VERSION").into(),
                    date,
                    backend: backend.into(),
                    // The machine's, also for a tool that leaves its GPU alone.
                    stack: job.stack.clone(),
                },
            },
            stdout,
            stderr,
            files,
        }
    }
}

/// The account of a case that was started, ran on its own terms and is gone.
fn settled(account: Account) -> Result<Account, BackendError> {
    if let Some(why) = account.not_started {
        return Err(BackendError::Infra(why));
    }
    if account.stopped {
        return Err(BackendError::Stopped);
    }
    if !account.unkillable.is_empty() {
        return Err(BackendError::Infra(format!("processes could not be killed: {}", account.unkillable.join(", "))));
    }
    Ok(account)
}

/// Bytes of a stream to keep of such a command, where the case's own are cut at `output_cap`: tools write records there, and
/// one that is cut in its middle is none.
fn after_cap(output_cap: usize) -> usize {
    output_cap.max(1 << 20)
}

/// What a command that reads what a case left has to say.
fn after_text(program: &str, account: &Account, stdout: CappedStream, stderr: CappedStream) -> Vec<u8> {
    let mut text = stdout.finish().0;
    text.extend(stderr.finish().0);
    if let Some(why) = &account.not_started {
        text.extend_from_slice(format!("[faultlab: {why}]\n").as_bytes());
    } else if account.exit != Exit::Code(0) {
        text.extend_from_slice(format!("[faultlab: {program} ended with {}]\n", account.exit).as_bytes());
    }
    text
}

/// The environment of a case: the machine's, without what would change the case, with what the tool sets.
pub(crate) fn case_env(machine: &BTreeMap<String, String>, tool: &Command, device: Device) -> BTreeMap<String, String> {
    let mut env = machine.clone();
    env.retain(|key, _| !crate::tool::SCRUBBED.contains(&key.as_str()));
    // A scenario's folder stays as it is in the repository.
    env.insert("PYTHONDONTWRITEBYTECODE".into(), "1".into());
    if device == Device::Cpu {
        env.insert("CUDA_VISIBLE_DEVICES".into(), String::new());
    }
    for (key, paths) in &tool.prepend {
        let machine = env.get(key).filter(|value| !value.is_empty());
        let paths: Vec<&str> = paths.iter().chain(machine).map(String::as_str).collect();
        env.insert(key.clone(), paths.join(":"));
    }
    env.extend(tool.env.clone());
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_debug_variables_do_not_reach_a_case() {
        let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_string(), (*v).to_string())).collect();
        let machine: BTreeMap<String, String> =
            map(&[("CUDA_LAUNCH_BLOCKING", "1"), ("PATH", "/bin"), ("TORCH_LOGS", "+all")]);
        let tool = Command {
            env: map(&[("X", "1")]),
            prepend: [("P".to_string(), vec!["/a".to_string()]), ("PATH".to_string(), vec!["/b".to_string()])].into(),
            ..Command::default()
        };
        let env = case_env(&machine, &tool, Device::Cpu);
        let expected = map(&[
            ("CUDA_VISIBLE_DEVICES", ""),
            ("P", "/a"),
            ("PATH", "/b:/bin"),
            ("PYTHONDONTWRITEBYTECODE", "1"),
            ("X", "1"),
        ]);
        assert_eq!(env, expected);
    }
}
