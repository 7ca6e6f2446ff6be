//! `faultlab attach`: what a running program is doing.

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;

use super::args::AttachArgs;
use super::output::Terminal;
use super::{CliError, Status};
use crate::backend::attach::{AttachError, look};
use crate::report;
use crate::tool::gdb;

impl From<AttachError> for CliError {
    fn from(error: AttachError) -> Self {
        match error {
            AttachError::NoProcess(_) => Self::Usage(error.to_string()),
            other => Self::Infra(other.to_string()),
        }
    }
}

pub(super) async fn attach(args: AttachArgs, terminal: &Terminal) -> Result<Status, CliError> {
    let folder = args.out.unwrap_or_else(|| {
        let name = format!("{}-attach-{}", Timestamp::now().strftime("%Y%m%dT%H%M%S%.3fZ"), args.pid);
        PathBuf::from("faultlab-runs").join(name)
    });
    // Relative paths on its command line are relative to this. Both are gone with the process.
    let proc = PathBuf::from("/proc").join(args.pid.to_string());
    let works_in = std::fs::read_link(proc.join("cwd")).unwrap_or_default();
    let command = std::fs::read(proc.join("cmdline")).unwrap_or_default();
    let command: Vec<String> = command
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    let log = look(&args.gdb, args.pid, &folder, Duration::from_secs_f64(args.timeout)).await?;
    let found = gdb::attached(&log).ok_or_else(|| CliError::Infra("gdb's script wrote nothing".into()))?;
    let source = |file: &str| std::fs::read_to_string(works_in.join(file)).ok();
    let title = format!("process {}: {}", args.pid, command.join(" "));
    terminal.print(report::attached(&title, &found, &source, terminal.width()).trim_end())?;
    terminal.say(&format!("gdb's script and what it wrote: {}", folder.display()));
    Ok(Status::Met)
}
