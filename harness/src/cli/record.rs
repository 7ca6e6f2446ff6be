//! `faultlab record`: a live run on a GPU, whose captures become golden ones.

use jiff::Timestamp;

use super::args::RecordArgs;
use super::output::{self, Terminal};
use super::run::{local, planned, supervised};
use super::{CliError, Status, environment, scenarios};
use crate::assets::Assets;
use crate::backend::Backend;
use crate::capture::Capture;
use crate::case::Device;
use crate::golden;
use crate::host::Host;
use crate::report::{Output, ReportFormat};
use crate::results::{Settings, Standing};
use crate::run::Request;
use crate::run_dir::RunDir;

pub(super) async fn record(assets: &Assets, args: RecordArgs, terminal: &Terminal) -> Result<Status, CliError> {
    let scenarios = scenarios(&assets.scenarios, &args.cases.ids, args.cases.all)?;
    let local = local(&args.live).await?;
    if let Err(missing) = &local.host().gpus {
        return Err(CliError::Infra(format!("captures are recorded on a GPU: {missing}")));
    }
    let into = args.into.clone().unwrap_or_else(|| assets.captures.clone());
    let temporary = tempfile::Builder::new().prefix("faultlab-record-").tempdir();
    let temporary = temporary.map_err(|e| CliError::Infra(format!("failed to make a temporary folder: {e}")))?;
    let dir = RunDir::create(&temporary.path().join("run"))?;
    let plan = planned(&scenarios, &args.cases, Device::Cuda, Some(local.host()))?;
    let mut places = places(local.host());
    places.push((dir.path().display().to_string(), "<RUN>"));
    places.push((assets.scenarios.display().to_string(), "<SCENARIOS>"));
    let settings = Settings {
        backend: "local".into(),
        backend_reason: "captures are recorded on this machine".into(),
        device: Device::Cuda,
        stack: local.host().stack(Device::Cuda),
        recorded: None,
        timeout_s: args.live.timeout,
        output_cap: args.output_cap,
        jobs: args.live.jobs.into(),
    };
    let request = Request {
        scenarios,
        plan,
        backend: Backend::Local(Box::new(local)),
        settings,
        dir: dir.clone(),
        done: Vec::new(),
        started: Timestamp::now(),
    };
    let run = supervised(request, terminal, true).await?;
    let mut stored = 0;
    for result in run.cases.iter().filter(|c| c.process.is_some()) {
        // What infrastructure lost is no recording of the case.
        if result.standing() == Standing::Infra {
            continue;
        }
        let capture = Capture::read(&dir.case(&result.case)).map_err(golden::GoldenError::from)?;
        golden::store(capture, &into, &places)?;
        stored += 1;
    }
    output::write_reports(&run, &[Output { format: ReportFormat::Terminal, path: None }], terminal)?;
    terminal.say(&format!("{stored} captures stored below {}; `faultlab test` compares their reports", into.display()));
    Ok(Status::of(&run))
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
    let env = environment();
    if let Some(home) = env.get("HOME") {
        places.push((home.clone(), "<HOME>"));
    }
    // `/usr` stands for itself on every machine.
    places.retain(|(path, _)| path.len() > "/usr".len());
    places
}
