//! The local backend: processes of this machine, each case under a supervisor of its own.

#![expect(clippy::disallowed_methods, reason = "this is the place that starts processes")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

use super::supervise::{self, Account, Order};
use super::{BackendError, Job, case_env};
use crate::capture::{CappedStream, Capture, Meta, Provenance, SCHEMA_VERSION, Stream};
use crate::case::Subject;
use crate::host::Host;
use crate::tool::{RECORDED, Target};

/// How long a stream may stay open once the supervisor is gone. Longer: something that could not be killed
/// holds it.
const DRAIN: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub struct Local {
    supervisor: PathBuf,
    host: Host,
    env: BTreeMap<String, String>,
}

impl Local {
    /// `supervisor` is a program that answers `__supervise` as this crate's binary does; `env` is the machine's
    /// environment.
    pub fn new(supervisor: PathBuf, host: Host, env: BTreeMap<String, String>) -> Self {
        Self { supervisor, host, env }
    }

    /// The machine.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Runs a case to its end, its deadline, or the user's stop.
    pub(super) async fn capture(&self, job: &Job<'_>) -> Result<Capture, BackendError> {
        let python = self.host.python.as_ref().map_err(|m| BackendError::Infra(format!("no Python: {m}")))?;
        let program = match job.case.subject {
            Subject::Program => &job.scenario.program,
            Subject::Twin => &job.scenario.twin,
        };
        let target = Target {
            python: python.executable.clone(),
            program: program.path(&job.scenario.folder).display().to_string(),
            args: job.scenario.args.clone(),
            device: job.device,
            mode: job.case.mode,
        };
        let command = job.tool.command(&target);
        let env = case_env(&self.env, &command.env, job.device);
        let recorded = |key: &str| command.env.contains_key(key) || RECORDED.contains(&key);
        let recorded_env: BTreeMap<_, _> =
            env.iter().filter(|(key, _)| recorded(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
        let order = Order {
            argv: command.argv.clone(),
            cwd: job.work.clone(),
            deadline_s: job.deadline.as_secs_f64(),
            watch_env: recorded_env.keys().cloned().collect(),
            account: job.work.with_extension("account"),
        };
        let date = Timestamp::now();
        let Supervised { account, stdout, stderr } = self.supervised(&order, &env, job).await?;
        if let Some(why) = account.not_started {
            return Err(BackendError::Infra(why));
        }
        if account.stopped {
            return Err(BackendError::Stopped);
        }
        if !account.unkillable.is_empty() {
            return Err(BackendError::Infra(format!(
                "processes could not be killed: {}",
                account.unkillable.join(", ")
            )));
        }
        let (stdout, stdout_info): (Vec<u8>, Stream) = stdout.finish();
        let (stderr, stderr_info) = stderr.finish();
        Ok(Capture {
            meta: Meta {
                schema_version: SCHEMA_VERSION,
                case: job.case.clone(),
                device: job.device,
                argv: command.argv,
                env: recorded_env,
                env_seen: account.env_seen,
                exit: account.exit,
                elapsed_s: account.elapsed_s,
                peak_rss_bytes: account.peak_rss_bytes,
                stdout: stdout_info,
                stderr: stderr_info,
                left_behind: account.left_behind,
                program_root: job.scenario.folder.display().to_string(),
                program_sha256: program.sha256(),
                provenance: Provenance {
                    faultlab: env!("CARGO_PKG_VERSION").into(),
                    date,
                    backend: "local".into(),
                    stack: self.host.stack(job.device),
                },
            },
            stdout,
            stderr,
            files: BTreeMap::new(),
        })
    }

    async fn supervised(
        &self,
        order: &Order,
        env: &BTreeMap<String, String>,
        job: &Job<'_>,
    ) -> Result<Supervised, BackendError> {
        let infra = |what: &str, e: std::io::Error| BackendError::Infra(format!("failed to {what}: {e}"));
        let mut supervisor = Command::new(&self.supervisor)
            .arg(supervise::SUBCOMMAND)
            .env_clear()
            .envs(env)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C goes to faultlab alone, which closes the input: the tree is then cleared in order.
            .process_group(0)
            .spawn()
            .map_err(|e| infra("start the supervisor", e))?;
        let mut input = supervisor.stdin.take();
        let mut line = serde_json::to_vec(order).map_err(|e| infra("write the order", e.into()))?;
        line.push(b'\n');
        if let Some(input) = &mut input {
            input.write_all(&line).await.map_err(|e| infra("order the supervisor", e))?;
        }
        let stdout = tokio::spawn(drain(supervisor.stdout.take(), job.output_cap));
        let stderr = tokio::spawn(drain(supervisor.stderr.take(), job.output_cap));
        let mut stop = job.stop.clone();
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
        let account: Account = match text.map(|text| serde_json::from_slice(&text)) {
            Ok(Ok(account)) => account,
            _ => return Err(BackendError::Infra(format!("the supervisor gave no account ({status})"))),
        };
        let streams = tokio::time::timeout(DRAIN, async { (stdout.await, stderr.await) }).await;
        match streams {
            Ok((Ok(stdout), Ok(stderr))) => Ok(Supervised { account, stdout, stderr }),
            Ok(_) => Err(BackendError::Infra("reading the output failed".into())),
            Err(_) => Err(BackendError::Infra("the output stayed open after the last process had ended".into())),
        }
    }
}

struct Supervised {
    account: Account,
    stdout: CappedStream,
    stderr: CappedStream,
}

/// Reads a stream to its end, in memory that does not grow past the cap.
async fn drain(stream: Option<impl AsyncRead + Unpin>, cap: usize) -> CappedStream {
    let mut kept = CappedStream::new(cap);
    if let Some(mut stream) = stream {
        let mut chunk = vec![0; 64 * 1024];
        while let Ok(n @ 1..) = stream.read(&mut chunk).await {
            kept.push(&chunk[..n]);
        }
    }
    kept
}
