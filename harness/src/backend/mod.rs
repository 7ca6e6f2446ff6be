//! Where cases run. Only this module starts the processes of scenarios, tools and probes.

mod docker;
mod gpu_memory;
mod local;
pub mod probe;
mod replay;
pub mod supervise;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::watch;

pub use local::Local;
pub use replay::{Replay, ReplayError, stacks};

use crate::capture::Capture;
use crate::case::{CaseId, Device};
use crate::host::{Host, Stack};
use crate::scenario::Scenario;
use crate::tool::{Command, Tool};

/// A place where cases run.
#[derive(Debug)]
pub enum Backend {
    /// This machine, without a container.
    Local(Box<Local>),
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
            Self::Replay(_) => "replay",
        }
    }

    /// What the plan may count on; a replay needs nothing of the machine.
    pub fn host(&self) -> Option<&Host> {
        match self {
            Self::Local(local) => Some(local.host()),
            Self::Replay(_) => None,
        }
    }

    /// Runs a case to its end.
    pub async fn capture(&self, job: &Job<'_>) -> Result<Capture, BackendError> {
        match self {
            Self::Local(local) => local.capture(job).await,
            Self::Replay(replay) => replay.read(job.scenario, &job.case),
        }
    }
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
