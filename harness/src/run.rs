//! The whole flow:
//!
//! ```text
//! scenario.yaml -> Scenario -> plan -> case | skip
//!   -> backend: tool.command(target) -> Capture
//!   -> tool.parse(capture) -> findings -> judge(findings, truth) -> outcome -> CaseResult -> Run
//! ```

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::backend::{Backend, BackendError, Job, Replay};
use crate::capture::Capture;
use crate::case::{CaseId, Claim, Device, Outcome, Subject};
use crate::judge::{self, judge};
use crate::plan::Planned;
use crate::results::{CaseResult, ProcessView, Run, SCHEMA_VERSION, ScenarioView, Settings};
use crate::run_dir::{RunDir, RunDirError};
use crate::scenario::Scenario;
use crate::tool::{self, Activity, Tool};

/// What to run, where, and what to keep.
pub struct Request {
    /// The scenarios of the plan.
    pub scenarios: Vec<Scenario>,
    /// The plan.
    pub plan: Vec<Planned>,
    /// Where.
    pub backend: Backend,
    /// How.
    pub settings: Settings,
    /// Where results go.
    pub dir: RunDir,
    /// Cases that an earlier run has already brought to an end.
    pub done: Vec<CaseResult>,
    /// When the (first) run began.
    pub started: Timestamp,
}

/// What an observer is told.
#[derive(Debug)]
pub enum Event<'a> {
    /// A case starts.
    Started(&'a CaseId),
    /// A case has come to an end.
    Finished(&'a CaseResult),
}

/// Why a run as a whole failed.
#[derive(Debug, Error)]
pub enum RunError {
    /// Its folder failed.
    #[error(transparent)]
    Dir(#[from] RunDirError),
    /// A part of faultlab failed.
    #[error("a case's task failed: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Runs the plan, `settings.jobs` cases side by side. When `stop` becomes true, running cases are killed and the
/// rest stays unfinished; the run that comes back, and its folder, say so.
pub async fn run(
    request: Request,
    stop: watch::Receiver<bool>,
    mut observe: impl FnMut(Event<'_>),
) -> Result<Run, RunError> {
    let Request { scenarios, plan, backend, settings, dir, done, started } = request;
    let order: Vec<CaseId> = plan.iter().map(|p| p.case.clone()).collect();
    let mut run = Run {
        schema_version: SCHEMA_VERSION,
        faultlab: env!("CARGO_PKG_VERSION").into(),
        started,
        settings,
        scenarios: scenarios.iter().map(ScenarioView::from).collect(),
        cases: Vec::new(),
        unfinished: order.clone(),
    };
    dir.write_run(&run)?;

    let shared = Arc::new(Shared { scenarios, backend, dir: dir.clone(), settings: run.settings.clone(), stop });
    let mut results: HashMap<CaseId, CaseResult> = done.into_iter().map(|r| (r.case.clone(), r)).collect();
    let mut waiting = plan.into_iter().filter(|p| !results.contains_key(&p.case)).collect::<VecDeque<_>>();
    let mut running = JoinSet::new();
    loop {
        while running.len() < shared.settings.jobs.max(1) && !*shared.stop.borrow() {
            let Some(planned) = waiting.pop_front() else { break };
            observe(Event::Started(&planned.case));
            let shared = Arc::clone(&shared);
            running.spawn(async move { run_case(&shared, planned).await });
        }
        let Some(ended) = running.join_next().await else { break };
        if let Some(result) = ended?? {
            observe(Event::Finished(&result));
            results.insert(result.case.clone(), result);
        }
    }

    shared.backend.clear().await;
    run.unfinished = order.iter().filter(|case| !results.contains_key(case)).cloned().collect();
    run.cases = order.iter().filter_map(|case| results.remove(case)).collect();
    dir.write_run(&run)?;
    Ok(run)
}

/// What every case of a run needs.
struct Shared {
    scenarios: Vec<Scenario>,
    backend: Backend,
    dir: RunDir,
    settings: Settings,
    stop: watch::Receiver<bool>,
}

/// Brings one case to its end and stores it; `None` if the user stopped it.
async fn run_case(shared: &Shared, planned: Planned) -> Result<Option<CaseResult>, RunError> {
    let Planned { case, skip } = planned;
    let scenario = shared.scenarios.iter().find(|s| s.id == case.scenario);
    let (Some(scenario), Some(tool)) = (scenario, tool::find(&case.tool)) else {
        return Ok(None);
    };
    let device = shared.settings.device;
    if let Some(reason) = skip {
        let result = without_process(scenario, &case, device, Outcome::Skipped { reason });
        shared.dir.write_case(&result, None)?;
        return Ok(Some(result));
    }
    let job = Job {
        work: shared.dir.work(&case)?,
        case,
        scenario,
        tool,
        device: tool.device(device),
        stack: shared.settings.stack.clone(),
        deadline: Duration::from_secs_f64(shared.settings.timeout_s),
        output_cap: shared.settings.output_cap,
        stop: shared.stop.clone(),
    };
    let captured = shared.backend.capture(&job).await;
    shared.dir.remove_work(&job.case);
    let (result, capture) = match captured {
        Ok(capture) => (judged(scenario, tool, &capture, &shared.settings), Some(capture)),
        Err(BackendError::Stopped) => return Ok(None),
        Err(BackendError::NotRecorded(reason)) => {
            (without_process(scenario, &job.case, device, Outcome::Skipped { reason }), None)
        }
        Err(BackendError::Infra(reason)) => {
            (without_process(scenario, &job.case, device, Outcome::Infra { reason }), None)
        }
    };
    // A replay's captures stay where they are.
    let capture = capture.filter(|_| !matches!(shared.backend, Backend::Replay(_)));
    shared.dir.write_case(&result, capture.as_ref())?;
    Ok(Some(result))
}

/// Capture to result: pure.
pub fn judged(scenario: &Scenario, tool: &dyn Tool, capture: &Capture, settings: &Settings) -> CaseResult {
    let meta = &capture.meta;
    let findings = tool.parse(capture);
    let activity = tool.activity(capture, &findings);
    let outcome = judge(&judge::Evidence {
        scenario,
        subject: meta.case.subject,
        device: meta.device,
        exit: &meta.exit,
        findings: &findings,
        activity: &activity,
        deadline_s: settings.timeout_s,
    });
    CaseResult {
        process: Some(ProcessView {
            argv: meta.argv.clone(),
            env: meta.env.clone(),
            exit: meta.exit.clone(),
            elapsed_s: meta.elapsed_s,
            peak_rss_bytes: meta.peak_rss_bytes,
            peak_gpu_bytes: meta.peak_gpu_bytes,
            stdout: meta.stdout.clone(),
            stderr: meta.stderr.clone(),
            left_behind: meta.left_behind.clone(),
            provenance: meta.provenance.clone(),
        }),
        activity: match activity {
            Activity::Proven(evidence) => Some(evidence),
            Activity::Unproven(_) => None,
        },
        findings,
        ..without_process(scenario, &meta.case, settings.device, outcome)
    }
}

fn without_process(scenario: &Scenario, case: &CaseId, device: Device, outcome: Outcome) -> CaseResult {
    let claim = scenario.expected(&case.tool, case.mode, device);
    let expected = match (case.subject, claim) {
        (Subject::Program, claim) => claim,
        // A tool that is not on cannot call the twin clean either.
        (Subject::Twin, Some(Claim::ToolInactive)) => claim,
        (Subject::Twin, _) => Some(Claim::CleanAsExpected),
    };
    CaseResult { case: case.clone(), outcome, expected, findings: Vec::new(), activity: None, process: None }
}

/// A recorded case, judged without a run's folder; `None` where it was not recorded.
pub(crate) fn replayed(
    replay: &Replay,
    scenario: &Scenario,
    tool: &'static dyn Tool,
    case: &CaseId,
    settings: &Settings,
) -> Option<CaseResult> {
    match replay.read(scenario, case) {
        Ok(capture) => Some(judged(scenario, tool, &capture, settings)),
        Err(BackendError::NotRecorded(_)) => None,
        Err(e) => Some(without_process(scenario, case, settings.device, Outcome::Infra { reason: e.to_string() })),
    }
}
