//! gdb on a process that somebody else started.

#![expect(clippy::disallowed_methods, reason = "this is a place that starts processes")]

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use thiserror::Error;
use tokio::process::Command;

use crate::tool::gdb;

/// The file that gdb's script writes.
const LOG: &str = "gdb.jsonl";

/// Lines of gdb's own output that an error shows.
const TAIL: usize = 5;

/// Why there is nothing to say of a process.
#[derive(Debug, Error)]
pub enum AttachError {
    /// No such process.
    #[error("there is no process {0}")]
    NoProcess(u32),
    /// gdb could not be started.
    #[error("failed to start {gdb}: {source}; `faultlab doctor` says how to get it")]
    Start {
        /// The program
        gdb: String,
        /// The system's error
        source: std::io::Error,
    },
    /// The folder cannot be written.
    #[error("failed to write {path}: {source}")]
    Write {
        /// The file or folder
        path: String,
        /// The system's error
        source: std::io::Error,
    },
    /// It took too long. The kernel lets the process go on once gdb is gone.
    #[error("gdb did not come to an end within {0} s; --timeout gives it longer")]
    Late(f64),
    /// gdb ended without having attached.
    #[error("gdb could not look at process {pid}:{said}\n  {mend}")]
    Refused {
        /// The process
        pid: u32,
        /// gdb's last lines
        said: String,
        /// What helps
        mend: &'static str,
    },
}

/// Has gdb say what a process is doing: `gdb.jsonl`. The script, that file and gdb's own output are kept in `folder`.
/// The process is stopped meanwhile, and goes on afterwards.
pub async fn look(gdb_program: &str, pid: u32, folder: &Path, limit: Duration) -> Result<Vec<u8>, AttachError> {
    if !Path::new("/proc").join(pid.to_string()).exists() {
        return Err(AttachError::NoProcess(pid));
    }
    let write = |path: &Path| {
        let path = path.display().to_string();
        move |source| AttachError::Write { path, source }
    };
    std::fs::create_dir_all(folder).map_err(write(folder))?;
    let script = gdb::script();
    let path = folder.join(script.name);
    std::fs::write(&path, script.text).map_err(write(&path))?;
    // The script appends: an earlier look's record is not this one's.
    let log = folder.join(LOG);
    let _ = std::fs::remove_file(&log);
    let child = Command::new(gdb_program)
        .args(["-batch", "-nx", "-p", &pid.to_string(), "-x", script.name])
        .current_dir(folder)
        .env("DEBUGINFOD_URLS", "")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|source| AttachError::Start { gdb: gdb_program.into(), source })?;
    let output = tokio::time::timeout(limit, child.wait_with_output())
        .await
        .map_err(|_| AttachError::Late(limit.as_secs_f64()))?
        .map_err(|source| AttachError::Start { gdb: gdb_program.into(), source })?;
    for (name, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
        let path = folder.join(name);
        std::fs::write(&path, bytes).map_err(write(&path))?;
    }
    let found = std::fs::read(&log).unwrap_or_default();
    if gdb::attached(&found).is_some_and(|found| found.complete && !found.threads.is_empty()) {
        return Ok(found);
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let mend = if said.contains("Operation not permitted") {
        "attaching takes root, the capability SYS_PTRACE (`docker run --cap-add SYS_PTRACE`), or the same user and `sysctl kernel.yama.ptrace_scope=0`"
    } else {
        "its whole output is in the folder that --out names"
    };
    let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    let tail = &lines[lines.len().saturating_sub(TAIL)..];
    let said = if tail.is_empty() { " it said nothing".into() } else { format!("\n  | {}", tail.join("\n  | ")) };
    Err(AttachError::Refused { pid, said, mend })
}
