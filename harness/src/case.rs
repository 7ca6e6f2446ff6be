//! The coordinates of a case and what can become of it.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scenario::Place;

/// How the program is run.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// As users run it: the host runs ahead of the device.
    Async,
    /// Each launch is waited for (`CUDA_LAUNCH_BLOCKING=1`, or the tool's own blocking form).
    Sync,
}

impl Mode {
    /// The name in files and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Async => "async",
            Self::Sync => "sync",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Which of a scenario's two programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// The faulty one.
    Program,
    /// The fixed one.
    Twin,
}

/// Where the tensors live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Device {
    /// An NVIDIA GPU.
    Cuda,
    /// The CPU: asked for, never fallen into.
    Cpu,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Cuda => "cuda",
            Self::Cpu => "cpu",
        })
    }
}

/// One program under one tool in one mode.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CaseId {
    /// The scenario's id.
    pub scenario: String,
    /// The faulty program or its twin.
    pub subject: Subject,
    /// The tool's id.
    pub tool: String,
    /// Async or sync.
    pub mode: Mode,
}

impl CaseId {
    /// `label-oob/bare.async`, or `label-oob/bare.async.twin`: the case's folder in a run and in golden.
    pub fn folder(&self) -> String {
        let twin = match self.subject {
            Subject::Program => "",
            Subject::Twin => ".twin",
        };
        format!("{}/{}.{}{twin}", self.scenario, self.tool, self.mode)
    }
}

impl fmt::Display for CaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.scenario, self.tool, self.mode)?;
        match self.subject {
            Subject::Program => Ok(()),
            Subject::Twin => f.write_str(" (twin)"),
        }
    }
}

/// Which truth a tool named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TruthLine {
    /// The line whose kernel faults.
    Fault,
    /// The line that made the bad value.
    Root,
}

/// How near a tool came to the truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It named the line.
    Exact(TruthLine),
    /// It named an outer frame of the true call chain.
    Enclosing,
    /// It named the kernel, and no line of the program.
    KernelOnly,
    /// It named a line that is not the truth.
    WrongPlace,
    /// The fault happened and the tool said nothing.
    Undetected,
    /// It complained of the fixed program.
    FalseAlarm,
    /// It stayed silent on the fixed program.
    CleanAsExpected,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Exact(TruthLine::Fault) => "exact (fault)",
            Self::Exact(TruthLine::Root) => "exact (root)",
            Self::Enclosing => "enclosing",
            Self::KernelOnly => "kernel only",
            Self::WrongPlace => "wrong place",
            Self::Undetected => "undetected",
            Self::FalseAlarm => "false alarm",
            Self::CleanAsExpected => "clean, as expected",
        })
    }
}

/// A verdict and what it rests on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Judgement {
    /// How near the tool came.
    pub verdict: Verdict,
    /// The line of the program that the tool named.
    pub named: Option<Place>,
    /// The kernel that the tool named.
    pub kernel: Option<NamedKernel>,
    /// Index into the case's findings: the one that decided.
    pub decided_by: Option<usize>,
    /// In words.
    pub reason: String,
}

/// A kernel that a tool named, held against the truth.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NamedKernel {
    /// Its name, as the tool wrote it.
    pub name: String,
    /// Does it match the scenario's kernel pattern? `None` where the scenario has none.
    pub right: Option<bool>,
}

/// What became of a case. Never collapsed to pass or fail before the report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Outcome {
    /// The tool ran, was active, and was judged.
    Judged(Judgement),
    /// Not run.
    Skipped {
        /// Why, and how to get what is missing.
        reason: String,
    },
    /// The mode or the tool made the fault vanish.
    FaultMasked {
        /// What was seen instead.
        reason: String,
    },
    /// No evidence that the tool was on.
    ToolInactive {
        /// Which evidence is missing.
        reason: String,
    },
    /// The tool, or the program under it, failed in a way that is not the scenario's.
    ToolFailed {
        /// What was seen.
        reason: String,
    },
    /// Output was there, and nothing in it was understood.
    ParseFailed {
        /// What was seen.
        reason: String,
    },
    /// The deadline came first.
    TimedOut {
        /// The deadline, in seconds.
        after_s: f64,
    },
    /// The harness or the machine failed: nothing is known about the tool.
    Infra {
        /// What failed.
        reason: String,
    },
}

impl Outcome {
    /// One or two words for a table.
    pub fn label(&self) -> String {
        match self {
            Self::Judged(j) => j.verdict.to_string(),
            Self::Skipped { .. } => "skipped".into(),
            Self::FaultMasked { .. } => "fault masked".into(),
            Self::ToolInactive { .. } => "tool inactive".into(),
            Self::ToolFailed { .. } => "tool failed".into(),
            Self::ParseFailed { .. } => "not understood".into(),
            Self::TimedOut { .. } => "timed out".into(),
            Self::Infra { .. } => "infrastructure".into(),
        }
    }

    /// The sentence behind the label, where there is one.
    pub fn reason(&self) -> Option<String> {
        match self {
            Self::Judged(j) => Some(j.reason.clone()),
            Self::Skipped { reason }
            | Self::FaultMasked { reason }
            | Self::ToolInactive { reason }
            | Self::ToolFailed { reason }
            | Self::ParseFailed { reason }
            | Self::Infra { reason } => Some(reason.clone()),
            Self::TimedOut { after_s } => Some(format!("killed at its deadline of {after_s} s")),
        }
    }

    /// The judgement, if it came to one.
    pub fn judgement(&self) -> Option<&Judgement> {
        match self {
            Self::Judged(j) => Some(j),
            _ => None,
        }
    }
}

/// What a scenario claims that a tool will say of the faulty program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Claim {
    /// Names the fault or the root line.
    Exact,
    /// Names an outer frame of the true call chain.
    Enclosing,
    /// Names the kernel alone.
    KernelOnly,
    /// Names another line.
    WrongPlace,
    /// Says nothing.
    Undetected,
    /// Makes the fault vanish.
    FaultMasked,
    /// Runs into the deadline: the fault is a hang.
    TimedOut,
    /// Is not on, whatever was set: a stock build lacks what it needs.
    ToolInactive,
    /// Stays silent: the claim about every twin.
    CleanAsExpected,
}

impl Claim {
    /// Is this outcome what was claimed?
    pub fn is_met_by(self, outcome: &Outcome) -> bool {
        match (self, outcome) {
            (Self::FaultMasked, Outcome::FaultMasked { .. })
            | (Self::TimedOut, Outcome::TimedOut { .. })
            | (Self::ToolInactive, Outcome::ToolInactive { .. }) => true,
            (claim, Outcome::Judged(j)) => matches!(
                (claim, j.verdict),
                (Self::Exact, Verdict::Exact(_))
                    | (Self::Enclosing, Verdict::Enclosing)
                    | (Self::KernelOnly, Verdict::KernelOnly)
                    | (Self::WrongPlace, Verdict::WrongPlace)
                    | (Self::Undetected, Verdict::Undetected)
                    | (Self::CleanAsExpected, Verdict::CleanAsExpected)
            ),
            _ => false,
        }
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Exact => "exact",
            Self::Enclosing => "enclosing",
            Self::KernelOnly => "kernel only",
            Self::WrongPlace => "wrong place",
            Self::Undetected => "undetected",
            Self::FaultMasked => "fault masked",
            Self::TimedOut => "timed out",
            Self::ToolInactive => "tool inactive",
            Self::CleanAsExpected => "clean, as expected",
        })
    }
}

/// `i/n`: the i-th of n equal parts of the plan, for runners side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Partition {
    /// 1-based.
    pub index: usize,
    /// How many parts.
    pub count: usize,
}

impl FromStr for Partition {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let parsed = s.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match parsed {
            Some((index, count)) if (1..=count).contains(&index) => Ok(Self { index, count }),
            _ => Err(format!("`{s}` is not a partition: write i/n with 1 <= i <= n, such as 2/4")),
        }
    }
}
