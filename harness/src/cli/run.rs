//! `faultlab run`: plans, runs, reports.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::args::{CaseArgs, DeviceChoice, RunArgs};
use super::choose::{choose, docker, local};
use super::output::{self, Terminal};
use super::progress::Progress;
use super::{CliError, Status, probed, scenarios, this_program};
use crate::assets::Assets;
use crate::backend::{Backend, Replay};
use crate::case::Device;
use crate::host::Host;
use crate::plan::{Planned, Selection, plan};
use crate::results::{CaseResult, Run};
use crate::run::{self, Request};
use crate::run_dir::RunDir;
use crate::scenario::Scenario;
use crate::tool::{self, Tool};

pub(super) async fn run(assets: &Assets, args: RunArgs, terminal: &Terminal) -> Result<Status, CliError> {
    output::writable(&args.format)?;
    let request = match &args.resume {
        Some(dir) => resumed(assets, dir, &args).await?,
        None => fresh(assets, &args).await?,
    };
    let (path, replay) = (request.dir.path().to_path_buf(), matches!(request.backend, Backend::Replay(_)));
    terminal.say(&format!("backend {}: {}", request.settings.backend, request.settings.backend_reason));
    let run = supervised(request, terminal, !replay).await?;
    let written = output::write_reports(&run, &args.format, terminal);
    terminal.say(&format!("run folder: {}", path.display()));
    written?;
    if !run.unfinished.is_empty() {
        terminal.say(&format!("interrupted: `faultlab run --resume {}` goes on with it", path.display()));
    }
    Ok(Status::of(&run))
}

/// Runs a request to its end, or to the user's stop.
pub(super) async fn supervised(request: Request, terminal: &Terminal, show_progress: bool) -> Result<Run, CliError> {
    let mut progress = Progress::new(terminal, request.plan.len() - request.done.len());
    let result = stoppable(terminal, |stopped| async {
        let running = run::run(request, stopped, |event| {
            if show_progress {
                progress.observe(&event);
            }
        });
        running.await.map_err(CliError::from)
    })
    .await;
    progress.finish();
    result
}

/// Does some work that the user can stop: the first signal tells the work, the second leaves at once.
pub(super) async fn stoppable<T, F: Future<Output = Result<T, CliError>>>(
    terminal: &Terminal,
    work: impl FnOnce(watch::Receiver<bool>) -> F,
) -> Result<T, CliError> {
    let (stop, stopped) = watch::channel(false);
    let mut interrupt =
        signal(SignalKind::interrupt()).map_err(|e| CliError::Infra(format!("failed to listen for Ctrl-C: {e}")))?;
    let mut terminate =
        signal(SignalKind::terminate()).map_err(|e| CliError::Infra(format!("failed to listen for SIGTERM: {e}")))?;
    let aborted = async {
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        terminal.say("stopping: running cases are being killed (once more to leave at once)");
        let _ = stop.send(true);
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
    };
    tokio::select! {
        result = work(stopped) => result,
        () = aborted => Err(CliError::Aborted),
    }
}

async fn fresh(assets: &Assets, args: &RunArgs) -> Result<Request, CliError> {
    let scenarios = scenarios(&assets.scenarios, &args.cases.ids, args.cases.all)?;
    let device = match args.device {
        DeviceChoice::Cpu => Device::Cpu,
        DeviceChoice::Auto | DeviceChoice::Cuda => Device::Cuda,
    };
    let chosen = choose(assets, args, &scenarios, device).await?;
    let settings = chosen.settings(device, args.live.timeout, args.output_cap, args.live.jobs);
    let dir = RunDir::create(&args.out.clone().unwrap_or_else(default_folder))?;
    let plan = planned(&scenarios, &args.cases, device, chosen.backend.host())?;
    Ok(Request { scenarios, plan, backend: chosen.backend, settings, dir, done: Vec::new(), started: Timestamp::now() })
}

/// Goes on with an interrupted run, on the backend and with the settings that it was begun with. Cases that
/// infrastructure lost are run again.
async fn resumed(assets: &Assets, dir: &Path, args: &RunArgs) -> Result<Request, CliError> {
    let dir = RunDir::open(dir)?;
    let run = dir.read_run()?;
    let (done, lost): (Vec<CaseResult>, Vec<CaseResult>) =
        run.cases.into_iter().partition(|c| c.standing() != crate::results::Standing::Infra);
    let ids: Vec<String> = run.scenarios.iter().map(|s| s.id.clone()).collect();
    let scenarios = scenarios(&assets.scenarios, &ids, false)?;
    for (then, now) in run.scenarios.iter().zip(&scenarios) {
        if then.program.source != now.program.source {
            return Err(CliError::Usage(format!(
                "{} has changed since this run was begun: begin a new run",
                now.program.file
            )));
        }
    }
    let backend = match run.settings.backend.as_str() {
        "replay" => Backend::Replay(Replay::open(&assets.captures, Some(&run.settings.stack.slug()))?),
        "docker" => {
            let image = run.settings.image.as_deref().unwrap_or_default();
            let machine = probed(&this_program()?, &args.live.python).await;
            Backend::Docker(Box::new(docker(&machine, &args.live, image, run.settings.device, args.memory).await?))
        }
        _ => Backend::Local(Box::new(local(&args.live).await?)),
    };
    let again = run.unfinished.into_iter().chain(lost.into_iter().map(|c| c.case));
    let mut plan: Vec<Planned> = again.map(|case| Planned { case, skip: None }).collect();
    if let Some(host) = backend.host() {
        let now = host.stack(run.settings.device);
        if now != run.settings.stack {
            return Err(CliError::Usage(format!(
                "this run was begun on {}; this machine has {now}: begin a new run",
                run.settings.stack
            )));
        }
        for planned in &mut plan {
            planned.skip = scenarios
                .iter()
                .find(|s| s.id == planned.case.scenario)
                .zip(tool::find(&planned.case.tool))
                .and_then(|(s, t)| crate::plan::obstacle(s, t, planned.case.mode, run.settings.device, Some(host)));
        }
    }
    plan.extend(done.iter().map(|c| Planned { case: c.case.clone(), skip: None }));
    crate::plan::sort(&mut plan, &ids);
    Ok(Request { scenarios, plan, backend, settings: run.settings, dir, done, started: run.started })
}

/// A new folder's name: the time, to the millisecond.
fn default_folder() -> PathBuf {
    Path::new("faultlab-runs").join(Timestamp::now().strftime("%Y%m%dT%H%M%S%.3fZ").to_string())
}

pub(super) fn planned(
    scenarios: &[Scenario],
    cases: &CaseArgs,
    device: Device,
    host: Option<&Host>,
) -> Result<Vec<Planned>, CliError> {
    let selection = Selection {
        tools: tools(&cases.tool)?,
        modes: cases.mode.modes(),
        device,
        twins: !cases.no_twins,
        partition: cases.partition,
    };
    Ok(plan(scenarios, &selection, host))
}

fn tools(ids: &[String]) -> Result<Vec<&'static dyn Tool>, CliError> {
    let mut tools: Vec<&'static dyn Tool> = Vec::new();
    for id in ids {
        if id == "all" {
            return Ok(tool::ALL.to_vec());
        }
        match tool::find(id) {
            Some(tool) if tools.iter().all(|t| t.id() != id) => tools.push(tool),
            Some(_) => {}
            None => {
                let known: Vec<&str> = tool::ALL.iter().map(|t| t.id()).collect();
                return Err(CliError::Usage(format!("there is no tool `{id}`; there are: {}", known.join(", "))));
            }
        }
    }
    Ok(tools)
}
