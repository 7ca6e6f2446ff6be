//! The command line. Only this module reads the environment and picks exit codes.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | every verdict is as expected |
//! | 1 | a verdict, or a snapshot, differs from what was expected |
//! | 2 | usage or scenario error |
//! | 3 | infrastructure: the harness or the machine failed, the run was interrupted, or nothing could run |

mod args;
mod args_diagnose;
mod attach;
mod bench;
mod choose;
mod diagnose;
mod images;
mod output;
mod progress;
mod record;
mod record_env;
mod run;
mod test;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser as _;
use miette::{GraphicalReportHandler, GraphicalTheme};
use thiserror::Error;

use crate::assets::{Assets, AssetsError};
use crate::backend::{DockerError, ReplayError, probe, supervise};
use crate::diagnose::model::Diagnosis;
use crate::golden::GoldenError;
use crate::host::{Host, Need};
use crate::recorder_env::PRELOAD_LIBRARY;
use crate::results::{Run, Standing};
use crate::run::RunError;
use crate::run_dir::RunDirError;
use crate::scenario::{self, Scenario, ScenarioError};
use args::{Args, Command, DoctorArgs, DoctorFormat, ListArgs, ReportArgs, ShowArgs};
use output::Terminal;

/// How faultlab ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Met,
    Differs,
    Usage,
    Infra,
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        Self::from(match status {
            Status::Met => 0u8,
            Status::Differs => 1,
            Status::Usage => 2,
            Status::Infra => 3,
        })
    }
}

impl Status {
    fn of(run: &Run) -> Self {
        match run.standing() {
            Standing::Met => Self::Met,
            Standing::Differs => Self::Differs,
            // Nothing ran at all: that must not look like success to a CI job.
            Standing::Infra | Standing::Skipped => Self::Infra,
        }
    }
}

/// Everything that can end a command early.
#[derive(Debug, Error)]
enum CliError {
    #[error("{0}")]
    Usage(String),
    #[error("{} complaint(s) about scenarios", .0.len())]
    Scenarios(Vec<ScenarioError>),
    #[error(transparent)]
    Assets(#[from] AssetsError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error(transparent)]
    Docker(#[from] DockerError),
    #[error(transparent)]
    Golden(#[from] GoldenError),
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("failed to write {what}: {why}")]
    Write { what: String, why: String },
    #[error("{0}")]
    Infra(String),
    #[error("stopped at once, at the second signal: running cases are being killed")]
    Aborted,
}

impl CliError {
    fn status(&self) -> Status {
        match self {
            Self::Usage(_)
            | Self::Scenarios(_)
            | Self::Assets(AssetsError::NotACheckout(_))
            | Self::Golden(GoldenError::Scenarios(_))
            | Self::Replay(ReplayError::NoSuchStack { .. })
            | Self::RunDir(RunDirError::NotARun(_) | RunDirError::Occupied(_) | RunDirError::NotAFolder(..)) => {
                Status::Usage
            }
            _ => Status::Infra,
        }
    }
}

/// Parses, runs, reports, and says how it ended.
pub fn main() -> ExitCode {
    // These two are faultlab's own children. They come before everything else: their output is not faultlab's.
    let first = std::env::args().nth(1);
    if first.as_deref() == Some(supervise::SUBCOMMAND) {
        return match supervise::supervise() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => Status::Infra.into(),
        };
    }
    let terminal = Terminal::detect();
    if first.as_deref() == Some(probe::GPU_SUBCOMMAND) {
        let text = serde_json::to_string(&probe::gpu_answer()).unwrap_or_default();
        return done(&terminal, terminal.print(&text).map(|()| Status::Met));
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(e) => {
            // clap prints help to standard output and errors to standard error, and knows the exit codes 0 and 2.
            let _ = e.print();
            return if e.use_stderr() { Status::Usage.into() } else { Status::Met.into() };
        }
    };
    let terminal = terminal.coloured(args.color);
    let result = dispatch(args, &terminal);
    done(&terminal, result)
}

fn done(terminal: &Terminal, result: Result<Status, CliError>) -> ExitCode {
    match result {
        Ok(status) => status.into(),
        Err(e) => {
            match &e {
                CliError::Scenarios(errors) | CliError::Golden(GoldenError::Scenarios(errors)) => {
                    terminal.say(&complaints(errors, terminal.width()));
                }
                other => terminal.say(&format!("error: {other}")),
            }
            e.status().into()
        }
    }
}

/// Complaints as they are shown: one after the other, each with its place.
pub fn complaints(errors: &[ScenarioError], width: usize) -> String {
    let theme = GraphicalTheme::unicode_nocolor();
    let handler = GraphicalReportHandler::new_themed(theme).with_width(width).with_links(false);
    let mut text = String::new();
    for error in errors {
        if !text.is_empty() {
            text.push('\n');
        }
        // Writing to a string cannot fail.
        let _ = handler.render_report(&mut text, error);
    }
    text
}

fn dispatch(args: Args, terminal: &Terminal) -> Result<Status, CliError> {
    let here =
        std::env::current_dir().map_err(|e| CliError::Infra(format!("failed to find the current folder: {e}")))?;
    let assets = || Assets::find(args.root.as_deref(), &here);
    match args.command {
        Command::List(list) => list_scenarios(&assets()?, &list, terminal),
        Command::Show(show) => show_scenario(&assets()?, &show, terminal),
        Command::Doctor(doctor) => block_on(examine(&assets()?, &doctor, terminal)),
        Command::Run(args) => block_on(run::run(&assets()?, args, terminal)),
        Command::Report(args) => report(&args, terminal),
        Command::Test(args) => test::test(&assets()?, &args, terminal),
        Command::Record(args) => block_on(record::record(&assets()?, args, terminal)),
        Command::Attach(args) => block_on(attach::attach(args, terminal)),
        Command::Bench(args) => block_on(bench::run(args, terminal)),
        Command::Images { command } => block_on(images::images(&assets()?, command, terminal)),
        Command::Diagnose(args) => block_on(diagnose::run(args, &here, terminal)),
        Command::RecordEnv(args) => record_env::run(&args, &here, terminal),
        Command::Schema(args) => {
            let schema = if args.diagnosis { schemars::schema_for!(Diagnosis) } else { schemars::schema_for!(Run) };
            let text = serde_json::to_string_pretty(&schema).map_err(|e| CliError::Infra(e.to_string()))?;
            terminal.print(&text)?;
            Ok(Status::Met)
        }
    }
}

fn block_on<T>(future: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| CliError::Infra(format!("failed to start the runtime: {e}")))?;
    let result = runtime.block_on(future);
    // After a second Ctrl-C nothing is waited for: each supervisor clears its tree when its input closes.
    runtime.shutdown_background();
    result
}

/// The machine's environment. What is not Unicode is no setting of ours.
fn environment() -> BTreeMap<String, String> {
    std::env::vars_os().filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?))).collect()
}

fn this_program() -> Result<PathBuf, CliError> {
    let path = std::env::current_exe().map_err(|e| CliError::Infra(format!("failed to find this program: {e}")))?;
    // It is started anew to look at the machine and to watch over each case.
    if path.is_file() {
        Ok(path)
    } else {
        let path = path.display().to_string();
        let path = path.strip_suffix(" (deleted)").unwrap_or(&path);
        Err(CliError::Infra(format!("{path} was replaced or removed while it ran: start it again")))
    }
}

/// The recorder's library, where the user names one. Cases run in other working directories.
fn named_library() -> Option<PathBuf> {
    let named = environment().remove(probe::RECORDER_VARIABLE).filter(|path| !path.is_empty())?;
    Some(std::path::absolute(&named).unwrap_or_else(|_| named.into()))
}

/// This machine, as an interpreter sees it. The launch recorder's library lies beside this program, unless the user says
/// otherwise.
async fn probed(program: &Path, python: &str) -> Host {
    let mut host = probe::probe(program, python).await;
    if let Some(path) = named_library() {
        let beside = path.with_file_name(PRELOAD_LIBRARY);
        for recorder in [probe::recorder(Need::Recorder, &path), probe::recorder(Need::RecorderPreload, &beside)] {
            host.programs.retain(|program| program.name != recorder.name);
            host.programs.push(recorder);
        }
    }
    host
}

/// The named scenarios in the order given, or all of them.
fn scenarios(root: &Path, ids: &[String], all: bool) -> Result<Vec<Scenario>, CliError> {
    if all {
        return scenario::load_all(root).map_err(CliError::Scenarios);
    }
    if ids.is_empty() {
        return Err(CliError::Usage("name a scenario, or say --all; `faultlab list` shows them".into()));
    }
    let known = scenario::ids(root).map_err(|e| CliError::Infra(format!("failed to read {}: {e}", root.display())))?;
    let mut scenarios: Vec<Scenario> = Vec::new();
    let mut errors = Vec::new();
    for id in ids {
        if !known.contains(id) {
            let folder = root.join(id);
            let why = if !id.contains('/') && folder.is_dir() {
                format!("{} has no scenario.yaml", folder.display())
            } else {
                format!("there is no scenario `{id}`")
            };
            return Err(CliError::Usage(format!("{why}; there are: {}", known.join(", "))));
        }
        if scenarios.iter().any(|s| s.id == *id) {
            continue;
        }
        match scenario::load(root, id) {
            Ok(scenario) => scenarios.push(scenario),
            Err(more) => errors.extend(more),
        }
    }
    if errors.is_empty() { Ok(scenarios) } else { Err(CliError::Scenarios(errors)) }
}

fn list_scenarios(assets: &Assets, args: &ListArgs, terminal: &Terminal) -> Result<Status, CliError> {
    let scenarios = scenarios(&assets.scenarios, &[], true)?;
    let width = scenarios.iter().map(|s| s.id.len()).max().unwrap_or(0);
    for s in &scenarios {
        terminal.print(&format!("{:width$}  {:<16}  {}", s.id, s.class.name(), s.title))?;
    }
    if args.tools {
        terminal.print("")?;
        for tool in crate::tool::ALL {
            terminal.print(&format!("{:width$}  {}", tool.id(), tool.summary()))?;
        }
    }
    Ok(Status::Met)
}

fn show_scenario(assets: &Assets, args: &ShowArgs, terminal: &Terminal) -> Result<Status, CliError> {
    let scenarios = scenarios(&assets.scenarios, std::slice::from_ref(&args.id), false)?;
    for s in &scenarios {
        if args.yaml {
            let path = s.folder.join("scenario.yaml");
            let text = std::fs::read_to_string(&path)
                .map_err(|e| CliError::Infra(format!("failed to read {}: {e}", path.display())))?;
            terminal.print(text.trim_end())?;
            continue;
        }
        let expected: Vec<String> =
            s.expect.iter().map(|e| format!("  {:<16} {:<6} {}", e.tool, e.mode, e.claim)).collect();
        terminal.print(&format!(
            "{}: {}\n\n{}\nProgram: {}\nFixed program: {}\n\nWhat each tool is expected to say of it\n{}\n\n`faultlab run {}` shows it; the truth is in the report.",
            s.id,
            s.title,
            s.story,
            assets.shown(&s.program.path(&s.folder)),
            assets.shown(&s.twin.path(&s.folder)),
            expected.join("\n"),
            s.id
        ))?;
    }
    Ok(Status::Met)
}

async fn examine(assets: &Assets, args: &DoctorArgs, terminal: &Terminal) -> Result<Status, CliError> {
    let machine = probed(&this_program()?, &args.python).await;
    let captures =
        crate::backend::Replay::open(&assets.captures, None).map(|r| r.stack().to_string()).map_err(|e| e.to_string());
    let inside;
    let diagnosis = match &args.image {
        None => crate::doctor::Diagnosis::new(&machine, captures),
        Some(image) => {
            inside = choose::inside(assets, machine, &args.python, image).await?;
            crate::doctor::Diagnosis::of_image(&inside.host, inside.image)
        }
    };
    match args.format {
        DoctorFormat::Terminal => terminal.print(diagnosis.text().trim_end())?,
        DoctorFormat::Json => {
            let text = serde_json::to_string_pretty(&diagnosis).map_err(|e| CliError::Infra(e.to_string()))?;
            terminal.print(&text)?;
        }
    }
    Ok(Status::Met)
}

fn report(args: &ReportArgs, terminal: &Terminal) -> Result<Status, CliError> {
    let run = crate::run_dir::RunDir::open(&args.run)?.read_run()?;
    if let Some(beside) = &args.beside {
        let other = crate::run_dir::RunDir::open(beside)?.read_run()?;
        terminal.print(crate::report::beside(&[&run, &other]).trim_end())?;
        return Ok(Status::Met);
    }
    output::write_reports(&run, &args.format, terminal)?;
    Ok(Status::of(&run))
}
