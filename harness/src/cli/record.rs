//! `faultlab record`: a live run on a GPU, or on the CPU in an image, whose captures become golden ones.

use jiff::Timestamp;

use super::args::DeviceChoice;
use super::args::RecordArgs;
use super::choose::{Chosen, containers, local};
use super::output::{self, Terminal};
use super::run::{planned, supervised};
use super::{CliError, Status, environment, scenarios};
use crate::assets::Assets;
use crate::backend::Backend;
use crate::capture::Capture;
use crate::case::{Device, Outcome};
use crate::golden;
use crate::host::Host;
use crate::report::{Output, ReportFormat};
use crate::results::{CaseResult, Standing};
use crate::run::Request;
use crate::run_dir::RunDir;

pub(super) async fn record(assets: &Assets, args: RecordArgs, terminal: &Terminal) -> Result<Status, CliError> {
    let scenarios = scenarios(&assets.scenarios, &args.cases.ids, args.cases.all)?;
    let device = match args.device {
        DeviceChoice::Cpu => Device::Cpu,
        DeviceChoice::Auto | DeviceChoice::Cuda => Device::Cuda,
    };
    let chosen = match &args.image {
        Some(image) => containers(assets, &args.live, image, device, None).await?,
        None => Chosen {
            backend: Backend::Local(Box::new(local(&args.live).await?)),
            reason: "captures are recorded on this machine".into(),
        },
    };
    let host = chosen.backend.host().ok_or_else(|| CliError::Infra("a replay is no recording".into()))?.clone();
    if let (Device::Cuda, Err(missing)) = (device, &host.gpus) {
        return Err(CliError::Infra(format!("captures are recorded on a GPU, unless with --device cpu: {missing}")));
    }
    let into = args.into.clone().unwrap_or_else(|| assets.captures.clone());
    let temporary = tempfile::Builder::new().prefix("faultlab-record-").tempdir();
    let temporary = temporary.map_err(|e| CliError::Infra(format!("failed to make a temporary folder: {e}")))?;
    let dir = RunDir::create(&temporary.path().join("run"))?;
    let plan = planned(&scenarios, &args.cases, device, Some(&host))?;
    let mut places = places(&host);
    places.push((dir.path().display().to_string(), "<RUN>"));
    places.push((assets.scenarios.display().to_string(), "<SCENARIOS>"));
    let settings = chosen.settings(device, args.live.timeout, args.output_cap, args.live.jobs);
    let request = Request {
        scenarios,
        plan,
        backend: chosen.backend,
        settings,
        dir: dir.clone(),
        done: Vec::new(),
        started: Timestamp::now(),
    };
    let run = supervised(request, terminal, true).await?;
    let (mut stored, mut dropped) = (0, Vec::new());
    for result in run.cases.iter().filter(|c| c.process.is_some()) {
        if !is_recording(result) {
            dropped.push(format!("{} ({})", result.case, result.outcome.label()));
            continue;
        }
        let capture = Capture::read(&dir.case(&result.case)).map_err(golden::GoldenError::from)?;
        golden::store(capture, &into, &places)?;
        stored += 1;
    }
    output::write_reports(&run, &[Output { format: ReportFormat::Terminal, path: None }], terminal)?;
    terminal.say(&format!("{stored} captures stored below {}; `faultlab test` compares their reports", into.display()));
    if !dropped.is_empty() {
        terminal.say(&format!("not stored, record them again: {}", dropped.join(", ")));
    }
    Ok(Status::of(&run))
}

/// What a deadline cut off, or what failed in a way that is not the scenario's, says more of the machine's load than of
/// the tool; it is stored only where the scenario claims just that.
fn is_recording(result: &CaseResult) -> bool {
    match result.outcome {
        Outcome::TimedOut { .. } | Outcome::ToolFailed { .. } => {
            result.expected.is_some() && result.standing() == Standing::Met
        }
        Outcome::Infra { .. } | Outcome::Skipped { .. } => false,
        Outcome::Judged(_)
        | Outcome::FaultMasked { .. }
        | Outcome::ToolInactive { .. }
        | Outcome::ParseFailed { .. } => true,
    }
}

/// Path prefixes of this machine and what stands for them in a committed capture.
fn places(host: &Host) -> Vec<(String, &'static str)> {
    let mut places = Vec::new();
    if let Ok(python) = &host.python {
        let folders = &python.folders;
        places.extend(folders.packages.iter().map(|p| (p.clone(), "<PACKAGES>")));
        places.push((folders.stdlib.clone(), "<STDLIB>"));
        places.push((folders.prefix.clone(), "<PREFIX>"));
        places.push((folders.base_prefix.clone(), "<BASE>"));
    }
    // Where a user keeps diagnostic programs; those of the system's own folders are the same everywhere.
    let folders = host.programs.iter().filter_map(|p| std::path::Path::new(p.path.as_ref()?).parent());
    let elsewhere = folders.filter(|folder| !folder.starts_with("/usr"));
    places.extend(elsewhere.map(|folder| (folder.display().to_string(), "<PROGRAMS>")));
    let env = environment();
    for path in env.get("PYTHONPATH").into_iter().flat_map(|paths| paths.split(':')).filter(|path| !path.is_empty()) {
        places.push((path.to_string(), "<PYTHONPATH>"));
    }
    if let Some(home) = env.get("HOME") {
        places.push((home.clone(), "<HOME>"));
    }
    // `/usr` stands for itself on every machine.
    places.retain(|(path, _)| path.len() > "/usr".len());
    places
}
