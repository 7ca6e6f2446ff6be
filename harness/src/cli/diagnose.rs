//! `faultlab diagnose`: the user's own command.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::args_diagnose::DiagnoseArgs;
use super::output::{Terminal, writable};
use super::run::stoppable;
use super::{CliError, Status, environment, named_library, this_program};
use crate::backend::probe::RECORDER_VARIABLE;
use crate::diagnose::attach::{AttachRequest, attach};
use crate::diagnose::bundle::{self, Form, Secrets};
use crate::diagnose::model::{Diagnosis, Outcome, Step};
use crate::diagnose::report::Format;
use crate::diagnose::run::{DiagnoseError, Event, Kept, Request, diagnose};
use crate::recorder_env::{LIBRARY, PRELOAD_LIBRARY, library_beside, preload_library, shim_files};
use crate::report::{Output, obstacle};

/// Bytes of each stream of a run that are kept.
const OUTPUT_CAP: usize = 4 << 20;

impl From<DiagnoseError> for CliError {
    fn from(error: DiagnoseError) -> Self {
        match error {
            // The command is what the user typed.
            DiagnoseError::NotStarted(why) => Self::Usage(why),
            DiagnoseError::Infra(why) => Self::Infra(why),
            DiagnoseError::Stopped => Self::Infra("stopped by the user".into()),
        }
    }
}

pub(super) async fn run(args: DiagnoseArgs, cwd: &Path, terminal: &Terminal) -> Result<Status, CliError> {
    let bundle = bundle_form(args.bundle.as_deref())?;
    writable(&args.format)?;
    let folder = tempfile::Builder::new().prefix("faultlab-diagnose-").tempdir();
    let folder = folder.map_err(|e| CliError::Infra(format!("failed to make a temporary folder: {e}")))?;
    let program = this_program()?;
    if let Some(pid) = args.attach {
        let (env, folder) = (environment(), folder.path().into());
        let request = AttachRequest { pid, env, program, folder };
        let diagnosis = stoppable(terminal, |stop| async {
            let observe = |event: Event<'_>| say(terminal, &event);
            attach(&request, stop, observe).await.map_err(CliError::from)
        })
        .await?;
        write_reports(&diagnosis, &args.format, terminal)?;
        if let Some((path, form)) = bundle {
            write_bundle(&path, form, &diagnosis, &[], &request.env, terminal)?;
        }
        return Ok(Status::Differs);
    }
    let preload = match &args.recorder {
        // As the first one was named, so the other one lies beside it.
        Some(named) => preload_library(cwd.join(named).with_file_name(PRELOAD_LIBRARY), std::env::consts::ARCH),
        None => preload_of(&program),
    };
    let request = Request {
        argv: args.command,
        cwd: cwd.into(),
        env: environment(),
        recorder: match args.recorder {
            Some(path) if path.is_file() => Ok(cwd.join(path)),
            Some(path) => return Err(CliError::Usage(format!("--recorder {}: that is no file", path.display()))),
            None => recorder_library(&program),
        },
        preload,
        shim: Some(write_shim(&folder.path().join("shim"))?),
        program,
        budget: Duration::from_secs_f64(args.budget),
        timeout: args.timeout.map(Duration::from_secs_f64),
        hang_s: args.hang,
        quick: args.quick,
        facts: bundle.is_some(),
        echo_all: args.verbose,
        output_cap: OUTPUT_CAP,
        folder: folder.path().into(),
    };
    let diagnosed = stoppable(terminal, |stop| async {
        let observe = |event: Event<'_>| say(terminal, &event);
        diagnose(&request, stop, observe).await.map_err(CliError::from)
    })
    .await?;
    write_reports(&diagnosed.diagnosis, &args.format, terminal)?;
    if let Some((path, form)) = bundle {
        write_bundle(&path, form, &diagnosed.diagnosis, &diagnosed.captures, &request.env, terminal)?;
    }
    Ok(match diagnosed.diagnosis.outcome {
        Outcome::Clean => Status::Met,
        _ => Status::Differs,
    })
}

fn write_bundle(
    path: &Path,
    form: Form,
    diagnosis: &Diagnosis,
    runs: &[Kept],
    env: &BTreeMap<String, String>,
    terminal: &Terminal,
) -> Result<(), CliError> {
    let secrets = Secrets::of(env, &diagnosis.command);
    bundle::write(path, form, diagnosis, runs, &secrets)
        .map_err(|e| CliError::Write { what: path.display().to_string(), why: e.to_string() })?;
    terminal.say(&format!("faultlab: {} has the reports and each run's output", path.display()));
    Ok(())
}

/// A name that no archive has is an error before anything runs.
fn bundle_form(path: Option<&Path>) -> Result<Option<(PathBuf, Form)>, CliError> {
    let Some(path) = path else { return Ok(None) };
    match Form::of(path) {
        Some(form) => match obstacle(path) {
            Some(why) => Err(CliError::Usage(format!("--bundle {why}"))),
            None => Ok(Some((path.into(), form))),
        },
        None => Err(CliError::Usage(format!("--bundle {}: the name must end with .tar.gz or .tar", path.display()))),
    }
}

/// The recorder's library: the one that the user names, or the one beside this program.
pub(super) fn recorder_library(program: &Path) -> Result<PathBuf, String> {
    let path = named_library().unwrap_or_else(|| library_beside(program, LIBRARY));
    let missing = || {
        format!(
            "{} is not there: `cargo build --package faultlab-recorder` makes it, and {RECORDER_VARIABLE} names it where it \
             does not lie beside faultlab",
            path.display()
        )
    };
    if path.is_file() { Ok(path) } else { Err(missing()) }
}

/// The one for `LD_PRELOAD` lies beside it.
pub(super) fn preload_of(program: &Path) -> Result<PathBuf, String> {
    let named = named_library().map(|path| path.with_file_name(PRELOAD_LIBRARY));
    preload_library(named.unwrap_or_else(|| library_beside(program, PRELOAD_LIBRARY)), std::env::consts::ARCH)
}

/// Writes the recorder's Python side.
pub(super) fn write_shim(folder: &Path) -> Result<PathBuf, CliError> {
    let failed = |path: &Path, e: std::io::Error| CliError::Infra(format!("failed to write {}: {e}", path.display()));
    std::fs::create_dir_all(folder).map_err(|e| failed(folder, e))?;
    for (name, text) in shim_files() {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|e| failed(&path, e))?;
    }
    Ok(folder.into())
}

fn say(terminal: &Terminal, event: &Event<'_>) {
    match event {
        Event::Notice(text) => terminal.say(&format!("faultlab: {text}")),
        Event::Starting { number, step, why } => {
            terminal.say(&format!("faultlab: run {number}, {}: {why}", step.id()));
        }
        Event::Done(Step { id, outcome, skipped: true, .. }) => {
            terminal.say(&format!("faultlab: {id} is left out: {outcome}"));
        }
        Event::Done(step) => {
            terminal.say(&format!("faultlab: {} ({:.1} s): {}", step.id, step.seconds, step.outcome));
        }
    }
}

fn write_reports(diagnosis: &Diagnosis, outputs: &[Output<Format>], terminal: &Terminal) -> Result<(), CliError> {
    for output in outputs {
        match &output.path {
            None => {
                let text = output.format.render(diagnosis, terminal.width());
                terminal.print(text.strip_suffix('\n').unwrap_or(&text))?;
            }
            Some(path) => write_file(path, output.format, diagnosis)?,
        }
    }
    Ok(())
}

/// A file gets a fixed width and no colours: it is the same wherever it is written.
fn write_file(path: &Path, format: Format, diagnosis: &Diagnosis) -> Result<(), CliError> {
    let width = crate::report::Layout::default().width;
    let text = anstream::adapter::strip_str(&format.render(diagnosis, width)).to_string();
    std::fs::write(path, text).map_err(|e| CliError::Write { what: path.display().to_string(), why: e.to_string() })
}
