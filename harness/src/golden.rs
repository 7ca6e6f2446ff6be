//! Golden captures to reports, and reports against their snapshots. No GPU is needed.
//!
//! The snapshots are insta's files: `cargo insta review` knows them through the test in `golden/golden.rs`.

use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::backend::{Replay, ReplayError, stacks};
use crate::capture::{Capture, CaptureError};
use crate::case::{CaseId, Device, Mode, Subject};
use crate::report::{Layout, ReportFormat, beside};
use crate::results::{Run, SCHEMA_VERSION, ScenarioView, Settings};
use crate::run::replayed;
use crate::scenario::{self, Scenario, ScenarioError};
use crate::tool;

/// The folder of reports about several stacks.
const SIDE_BY_SIDE: &str = "side-by-side";

/// A report that has a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Golden {
    /// The stack that the captures were recorded on, or `side-by-side`: a folder below `snapshots`.
    pub stack: String,
    /// `label-oob.terminal`
    pub name: String,
    /// The report.
    pub text: String,
}

impl Golden {
    /// The snapshot's file.
    pub fn file(&self, snapshots: &Path) -> PathBuf {
        snapshots.join(&self.stack).join(format!("{}.snap", self.name))
    }
}

/// Why there are no reports.
#[derive(Debug, Error)]
pub enum GoldenError {
    /// A scenario is broken.
    #[error("{} broken scenario(s)", .0.len())]
    Scenarios(Vec<ScenarioError>),
    /// The captures are.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// One capture is.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// A snapshot could not be read or written.
    #[error("failed to {what} {path}: {why}")]
    Snapshot {
        /// read or write
        what: &'static str,
        /// The file.
        path: String,
        /// The error.
        why: String,
    },
}

/// The reports of all captures: per stack and scenario one for people and the model itself, per stack one of each
/// format for exchange.
pub fn reports(scenarios: &Path, captures: &Path) -> Result<Vec<Golden>, GoldenError> {
    let scenarios = scenario::load_all(scenarios).map_err(GoldenError::Scenarios)?;
    let mut reports = Vec::new();
    let mut on_cpu = Vec::new();
    for stack in stacks(captures) {
        let run = whole_stack(&scenarios, captures, &stack)?;
        let mut add = |name: String, run: &Run, format: ReportFormat| {
            let text = anstream::adapter::strip_str(&format.render(run, Layout::default())).to_string();
            reports.push(Golden { stack: stack.clone(), name: format!("{name}.{format}"), text });
        };
        for scenario in &run.scenarios {
            let part = Run {
                scenarios: vec![scenario.clone()],
                cases: run.cases.iter().filter(|c| c.case.scenario == scenario.id).cloned().collect(),
                ..run.clone()
            };
            add(scenario.id.clone(), &part, ReportFormat::Terminal);
            add(scenario.id.clone(), &part, ReportFormat::Json);
        }
        add("all".into(), &run, ReportFormat::Markdown);
        add("all".into(), &run, ReportFormat::Junit);
        if run.settings.device == Device::Cpu {
            on_cpu.push(run);
        }
    }
    // What one stack's debugger knows and the other's does not is only seen side by side.
    if on_cpu.len() > 1 {
        let text = beside(&on_cpu.iter().collect::<Vec<_>>());
        reports.push(Golden { stack: SIDE_BY_SIDE.into(), name: "cpu.markdown".into(), text });
    }
    Ok(reports)
}

/// Every capture of a stack, as one run. The run's own date is that of the first capture: nothing in it depends on
/// when or where it is made.
fn whole_stack(scenarios: &[Scenario], captures: &Path, stack: &str) -> Result<Run, GoldenError> {
    let replay = Replay::open(captures, Some(stack))?;
    let recorded = replay.recorded();
    let settings = Settings {
        backend: "replay".into(),
        image: None,
        backend_reason: "golden captures".into(),
        device: if replay.stack().gpu.is_some() { Device::Cuda } else { Device::Cpu },
        stack: replay.stack().clone(),
        recorded: Some(recorded),
        timeout_s: 120.0,
        output_cap: 0,
        jobs: 1,
    };
    let mut run = Run {
        schema_version: SCHEMA_VERSION,
        faultlab: env!("CARGO_PKG_VERSION").into(),
        started: recorded.0,
        settings,
        scenarios: Vec::new(),
        cases: Vec::new(),
        unfinished: Vec::new(),
    };
    for scenario in scenarios {
        let before = run.cases.len();
        for subject in [Subject::Program, Subject::Twin] {
            for tool in tool::ALL {
                for mode in [Mode::Async, Mode::Sync] {
                    let case = CaseId { scenario: scenario.id.clone(), subject, tool: tool.id().into(), mode };
                    // What was not recorded on this stack is not part of its reports.
                    run.cases.extend(replayed(&replay, scenario, *tool, &case, &run.settings));
                }
            }
        }
        if run.cases.len() > before {
            run.scenarios.push(ScenarioView::from(scenario));
        }
    }
    Ok(run)
}

/// How a report stands against its snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Comparison {
    /// Equal.
    Same,
    /// There is none yet.
    New,
    /// Not equal: what the snapshot has.
    Differs(String),
}

/// Compares a report with its snapshot.
pub fn compare(golden: &Golden, snapshots: &Path) -> Result<Comparison, GoldenError> {
    let path = golden.file(snapshots);
    if !path.exists() {
        return Ok(Comparison::New);
    }
    let failed = |why: String| GoldenError::Snapshot { what: "read", path: path.display().to_string(), why };
    let snapshot = insta::Snapshot::from_file(&path).map_err(|e| failed(e.to_string()))?;
    let text = snapshot.as_text().ok_or_else(|| failed("it is not a text snapshot".into()))?.to_string();
    // insta keeps neither trailing line ends nor the first one.
    Ok(if text.trim() == golden.text.trim() { Comparison::Same } else { Comparison::Differs(text) })
}

/// Makes a report its own snapshot. A file that waits for `cargo insta review` is settled by it.
pub fn bless(golden: &Golden, snapshots: &Path) -> Result<(), GoldenError> {
    let path = golden.file(snapshots);
    let failed = |why: std::io::Error| GoldenError::Snapshot {
        what: "write",
        path: path.display().to_string(),
        why: why.to_string(),
    };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    // As insta itself names the test that is declared outside its package.
    let text = format!("---\nsource: harness/../golden/golden.rs\n---\n{}\n", golden.text.trim_end());
    std::fs::write(&path, text).map_err(failed)?;
    let _ = std::fs::remove_file(path.with_extension("snap.new"));
    Ok(())
}

/// Snapshot files that no report belongs to any more.
pub fn orphans(reports: &[Golden], snapshots: &Path) -> Vec<PathBuf> {
    let known: Vec<PathBuf> = reports.iter().map(|g| g.file(snapshots)).collect();
    let mut orphans = Vec::new();
    for stack in std::fs::read_dir(snapshots).into_iter().flatten().flatten() {
        for file in std::fs::read_dir(stack.path()).into_iter().flatten().flatten() {
            let path = file.path();
            if path.extension().is_some_and(|e| e == "snap") && !known.contains(&path) {
                orphans.push(path);
            }
        }
    }
    orphans.sort();
    orphans
}

/// Stores a live capture among the golden ones: host-specific paths become placeholders.
pub fn store(mut capture: Capture, captures: &Path, places: &[(String, &'static str)]) -> Result<(), GoldenError> {
    capture.replace_paths(places);
    let folder = captures.join(capture.meta.provenance.stack.slug()).join(capture.meta.case.folder());
    // A file of an earlier recording must not stay beside the new ones.
    if folder.exists() {
        let failed = |e: std::io::Error| GoldenError::Snapshot {
            what: "write",
            path: folder.display().to_string(),
            why: e.to_string(),
        };
        std::fs::remove_dir_all(&folder).map_err(failed)?;
    }
    Ok(capture.write(&folder)?)
}
