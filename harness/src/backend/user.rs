//! The user's own command, as `faultlab diagnose` runs it: in the user's folder, below a supervisor like any case.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use tokio::sync::watch;

use super::BackendError;
use super::local::{Bounds, Supervised, bring, files, supervised};
use super::supervise::Order;
use crate::capture::{Exit, Stream};
use crate::tool;

/// A command to run.
pub struct UserCommand<'a> {
    /// A program that answers `__supervise` as this crate's binary does.
    pub supervisor: &'a Path,
    /// What to run, and what its tool brings and leaves.
    pub command: &'a tool::Command,
    /// All of its environment.
    pub env: &'a BTreeMap<String, String>,
    /// Its working directory: the user's.
    pub cwd: &'a Path,
    /// The tool's own folder; it exists.
    pub work: &'a Path,
    /// Kill the whole tree after this long.
    pub deadline: Duration,
    /// Bytes of each stream to keep.
    pub output_cap: usize,
    /// Also write what it prints to faultlab's standard error, as it comes.
    pub echo: bool,
    /// Variables to read back from the running process.
    pub watch_env: BTreeSet<String>,
    /// Becomes true when it is to be stopped.
    pub stop: watch::Receiver<bool>,
}

/// How it went.
#[derive(Debug, Clone)]
pub struct Ended {
    /// How the command ended; [`Exit::Deadline`] also where it was stopped.
    pub exit: Exit,
    /// It was stopped through `stop`.
    pub stopped: bool,
    /// Wall-clock seconds.
    pub elapsed_s: f64,
    /// Largest resident size of one process of the tree, in bytes.
    pub peak_rss_bytes: Option<u64>,
    /// What the running process had in its environment, of `watch_env`.
    pub env_seen: BTreeMap<String, String>,
    /// Command lines of processes that outlived the command, and were killed.
    pub left_behind: Vec<String>,
    /// Standard output, and what was cut out of it.
    pub stdout: (Vec<u8>, Stream),
    /// Standard error, likewise.
    pub stderr: (Vec<u8>, Stream),
    /// The tool's files.
    pub files: BTreeMap<String, Vec<u8>>,
}

/// Why there is nothing to look at.
#[derive(Debug, thiserror::Error)]
pub enum UserCommandError {
    /// The command itself could not be started.
    #[error("{0}")]
    NotStarted(String),
    /// The machine or faultlab failed.
    #[error("{0}")]
    Infra(String),
}

/// Runs the command to its end, its deadline, or the stop; nothing of its tree is left afterwards. Its standard input is
/// `/dev/null`: a command that is run several times cannot share one input.
pub async fn run(user: &UserCommand<'_>) -> Result<Ended, UserCommandError> {
    let infra = |e: BackendError| UserCommandError::Infra(e.to_string());
    for file in &user.command.files {
        bring(user.work, file).map_err(|e| UserCommandError::Infra(format!("failed to write {}: {e}", file.name)))?;
    }
    let order = Order {
        argv: user.command.argv.clone(),
        cwd: user.cwd.into(),
        deadline_s: user.deadline.as_secs_f64(),
        watch_env: user.watch_env.clone(),
        ask: true,
        account: user.work.with_extension("account"),
    };
    let bounds = Bounds {
        supervisor: user.supervisor,
        gpu_memory: None,
        output_cap: user.output_cap,
        stop: user.stop.clone(),
        echo: user.echo,
    };
    let Supervised { account, stdout, stderr, .. } = supervised(&order, user.env, &bounds).await.map_err(infra)?;
    if let Some(why) = account.not_started {
        return Err(UserCommandError::NotStarted(why));
    }
    if !account.unkillable.is_empty() {
        let left = account.unkillable.join(", ");
        return Err(UserCommandError::Infra(format!("processes could not be killed: {left}")));
    }
    // A command that was stopped still leaves what it wrote; only readers of dumps are not started any more.
    let quick = tool::Command { after: Vec::new(), ..user.command.clone() };
    let command = if account.stopped { &quick } else { user.command };
    let files = files(command, user.env, user.work, &bounds).await.map_err(infra)?;
    Ok(Ended {
        exit: account.exit,
        stopped: account.stopped,
        elapsed_s: account.elapsed_s,
        peak_rss_bytes: account.peak_rss_bytes,
        env_seen: account.env_seen,
        left_behind: account.left_behind,
        stdout: stdout.finish(),
        stderr: stderr.finish(),
        files,
    })
}
