//! The one model that every report is made from: what was run, and what became of it.
//!
//! Its JSON form is `run.json` in a run's folder and `--format json`; `docs/run.schema.json` is its schema.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::capture::{Exit, Provenance, Stream};
use crate::case::{CaseId, Claim, Device, Outcome, Subject, Verdict};
use crate::finding::Finding;
use crate::host::Stack;
use crate::scenario::{FaultClass, Place, Program, Scenario};

/// Rises when a reader of the JSON would have to change.
pub const SCHEMA_VERSION: u32 = 1;

/// A run: cases and what became of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// See [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// faultlab's version.
    pub faultlab: String,
    /// When it began.
    pub started: Timestamp,
    /// How it was run.
    pub settings: Settings,
    /// The scenarios of its cases.
    pub scenarios: Vec<ScenarioView>,
    /// Every case that came to an end, in the order of the plan.
    pub cases: Vec<CaseResult>,
    /// Cases that were planned and did not come to an end: the run was interrupted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unfinished: Vec<CaseId>,
}

/// How a run was run: what `--resume` goes on with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// `docker`, `local` or `replay`.
    pub backend: String,
    /// The image of the containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Why this one.
    pub backend_reason: String,
    /// Where the tensors live.
    pub device: Device,
    /// The machine, or for a replay the machine of the captures.
    pub stack: Stack,
    /// For a replay, when its captures were recorded (first and last).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<(Timestamp, Timestamp)>,
    /// Seconds that a case may take.
    pub timeout_s: f64,
    /// Bytes of each stream that are kept.
    pub output_cap: usize,
    /// Cases side by side.
    pub jobs: usize,
}

/// What a report needs of a scenario.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScenarioView {
    /// Its id.
    pub id: String,
    /// One line.
    pub title: String,
    /// The symptom.
    pub story: String,
    /// What kind of fault.
    pub class: FaultClass,
    /// What to change and why.
    pub fix: String,
    /// The line whose kernel faults.
    pub fault: Place,
    /// The line that made the bad value.
    pub root: Place,
    /// The faulty program, for code frames.
    pub program: ProgramView,
}

/// A program's text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProgramView {
    /// Relative to the scenario's folder.
    pub file: String,
    /// The whole text.
    pub source: String,
}

impl From<&Scenario> for ScenarioView {
    fn from(scenario: &Scenario) -> Self {
        let Program { file, source } = scenario.program.clone();
        Self {
            id: scenario.id.clone(),
            title: scenario.title.clone(),
            story: scenario.story.clone(),
            class: scenario.class,
            fix: scenario.fix.clone(),
            fault: scenario.truth.fault.clone(),
            root: scenario.truth.root.clone(),
            program: ProgramView { file, source },
        }
    }
}

/// What became of a case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CaseResult {
    /// Which case.
    pub case: CaseId,
    /// What became of it.
    pub outcome: Outcome,
    /// What the scenario claims; `None` where it claims nothing.
    pub expected: Option<Claim>,
    /// What the tool said.
    pub findings: Vec<Finding>,
    /// What shows that the tool was on.
    pub activity: Option<String>,
    /// The process; `None` where none ran.
    pub process: Option<ProcessView>,
}

/// What a report needs of a process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProcessView {
    /// The command.
    pub argv: Vec<String>,
    /// What faultlab set in its environment, and what of the rest matters.
    pub env: std::collections::BTreeMap<String, String>,
    /// How it ended.
    pub exit: Exit,
    /// Wall-clock seconds.
    pub elapsed_s: f64,
    /// Largest resident size of one process of the tree, in bytes.
    pub peak_rss_bytes: Option<u64>,
    /// Largest GPU memory that the tree held at one time, in bytes; `None` where it could not be seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_gpu_bytes: Option<u64>,
    /// Standard output's size and cut.
    pub stdout: Stream,
    /// Standard error's size and cut.
    pub stderr: Stream,
    /// Processes that were still there when the program had ended; they were killed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_behind: Vec<String>,
    /// Where and when.
    pub provenance: Provenance,
}

/// How a case stands against its scenario's claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// As claimed, or nothing was claimed.
    Met,
    /// Not as claimed.
    Differs,
    /// Nothing is known: the harness or the machine failed.
    Infra,
    /// Not run, with a reason.
    Skipped,
}

impl CaseResult {
    /// Against the claim.
    pub fn standing(&self) -> Standing {
        match (&self.outcome, self.expected) {
            (Outcome::Infra { .. }, _) => Standing::Infra,
            (Outcome::Skipped { .. }, _) => Standing::Skipped,
            (outcome, Some(claim)) if claim.is_met_by(outcome) => Standing::Met,
            (Outcome::Judged(j), None) if j.verdict != Verdict::FalseAlarm => Standing::Met,
            (Outcome::FaultMasked { .. }, None) => Standing::Met,
            _ => Standing::Differs,
        }
    }
}

impl Run {
    /// The worst standing of any case decides. An interrupted run is an infrastructure failure.
    pub fn standing(&self) -> Standing {
        let has = |standing| self.cases.iter().any(|c| c.standing() == standing);
        if has(Standing::Infra) || !self.unfinished.is_empty() {
            Standing::Infra
        } else if has(Standing::Differs) {
            Standing::Differs
        } else if !self.cases.is_empty() && self.cases.iter().all(|c| c.standing() == Standing::Skipped) {
            Standing::Skipped
        } else {
            Standing::Met
        }
    }

    /// A scenario's cases, in the order of the plan.
    pub fn cases_of<'a>(&'a self, scenario: &'a str, subject: Subject) -> impl Iterator<Item = &'a CaseResult> {
        self.cases.iter().filter(move |c| c.case.scenario == scenario && c.case.subject == subject)
    }

    /// Is this a replay of recorded captures?
    pub fn is_replay(&self) -> bool {
        self.settings.recorded.is_some()
    }
}
