//! What a diagnosis says: one model for all formats. `--format json` is this, and so is `report.json` of a bundle.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::capture::Exit;

/// Rises when the JSON changes in a way that older readers cannot read.
pub const SCHEMA_VERSION: u32 = 1;

/// What became of a command, and which line did it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Diagnosis {
    /// See [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// faultlab's version.
    pub faultlab: String,
    /// The command, or the process that was looked at.
    pub command: Vec<String>,
    /// Its working directory.
    pub cwd: String,
    /// When the first run began.
    pub started: Timestamp,
    /// Wall-clock seconds of all runs together.
    pub seconds: f64,
    /// What happened.
    pub outcome: Outcome,
    /// The verdict in a sentence.
    pub headline: String,
    /// How sure the place is.
    pub confidence: Confidence,
    /// The lines that can be meant, the likeliest first. One, where the confidence is `exact`.
    pub places: Vec<Place>,
    /// The kernel, where it is known.
    pub kernel: Option<Kernel>,
    /// Where the error came to light; that line is innocent unless it is also among `places`.
    pub surfaced: Option<Surfaced>,
    /// The device's own assertion.
    pub assertion: Option<Assertion>,
    /// Offending values, in words: `target[17] = 10`.
    pub values: Vec<String>,
    /// Where the names on the line got their values, as the text of the file shows.
    pub origins: Vec<Origin>,
    /// The last launches around the culprit, in order.
    pub around: Vec<Launched>,
    /// What the verdict rests on, a sentence each.
    pub evidence: Vec<String>,
    /// What to try next.
    pub next: Vec<String>,
    /// What was run, in order, and what was left out and why.
    pub steps: Vec<Step>,
    /// What the user should know beside the verdict.
    pub notices: Vec<String>,
    /// Facts about the machine.
    pub host: HostFacts,
}

/// What happened to the command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Outcome {
    /// It ended with status 0, and nothing was reported.
    Clean,
    /// A kernel, a graph, a copy or a fill failed on the device.
    DeviceFault {
        /// The error's name, such as `cudaErrorAssert` or `CUDA_ERROR_ASSERT`.
        name: Option<String>,
        /// Its text.
        text: String,
    },
    /// A value that is not finite.
    NotFinite {
        /// What said so.
        text: String,
    },
    /// The device's memory did not suffice.
    OutOfMemory {
        /// The error's text.
        text: String,
    },
    /// An error of the host, raised where it happened.
    HostError {
        /// The exception's type.
        type_name: String,
        /// Its message.
        message: String,
    },
    /// Nothing went on.
    Hang {
        /// How that was seen.
        why: String,
    },
    /// A signal ended it.
    Killed {
        /// The signal's name.
        signal: String,
    },
    /// It ended with another status than 0, without a traceback.
    Failed {
        /// The status.
        code: i32,
    },
}

impl Outcome {
    /// The name in JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::DeviceFault { .. } => "device-fault",
            Self::NotFinite { .. } => "not-finite",
            Self::OutOfMemory { .. } => "out-of-memory",
            Self::HostError { .. } => "host-error",
            Self::Hang { .. } => "hang",
            Self::Killed { .. } => "killed",
            Self::Failed { .. } => "failed",
        }
    }
}

/// How sure a place is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// It is this one.
    Exact,
    /// It is one of these.
    Candidates,
    /// It is not known.
    Unlocated,
    /// There is nothing to locate.
    None,
}

impl Confidence {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Candidates => "candidates",
            Self::Unlocated => "unlocated",
            Self::None => "none",
        }
    }
}

/// A line that can be meant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// As the interpreter or the debug information has it.
    pub file: String,
    /// From 1.
    pub line: u32,
    /// The function.
    pub function: String,
    /// What this line did: `launched the kernel that faulted`.
    pub role: String,
    /// Which tool named it.
    pub named_by: String,
    /// The kernel.
    pub kernel: Option<Kernel>,
    /// The source around the line; empty where it could not be read.
    pub source: Vec<SourceLine>,
    /// Lines that belong to the same launch: where it was captured, its forward line, its callers.
    pub related: Vec<Related>,
}

impl Place {
    /// `train.py:43`, without the folder.
    pub fn short(&self) -> String {
        short(&self.file, self.line)
    }
}

/// `train.py:43`, without the folder.
pub fn short(file: &str, line: u32) -> String {
    format!("{}:{line}", file.rsplit('/').next().unwrap_or(file))
}

/// A kernel, or another launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// Its name, demangled, or the call of a launch that is no kernel.
    pub name: String,
    /// Blocks of the grid; absent where unknown.
    pub grid: Option<[u32; 3]>,
    /// Threads of a block; absent where unknown.
    pub block: Option<[u32; 3]>,
    /// Device ordinal; absent where unknown.
    pub device: Option<i32>,
    /// Stream, by order of first use; absent where unknown.
    pub stream: Option<u32>,
    /// Its number among the launches of the process; absent where unknown.
    pub launch: Option<u64>,
}

/// A line of source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SourceLine {
    /// From 1.
    pub line: u32,
    /// Its text.
    pub text: String,
    /// It is the line that is meant.
    pub marked: bool,
}

/// Another line of the same launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Related {
    /// What it is: `captured at`, `called from`.
    pub role: String,
    /// File.
    pub file: String,
    /// Line.
    pub line: u32,
    /// Function.
    pub function: String,
    /// Its text, where it could be read.
    pub text: Option<String>,
}

/// Where an error came to light.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Surfaced {
    /// The exception's type and first line, or the driver call.
    pub what: String,
    /// File of the user's innermost frame.
    pub file: Option<String>,
    /// Its line.
    pub line: Option<u32>,
    /// Its text.
    pub text: Option<String>,
    /// The line did nothing wrong: it was only the next to wait for the device.
    pub innocent: bool,
}

/// A device-side assertion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Assertion {
    /// Source file of device code.
    pub file: String,
    /// Its line.
    pub line: u32,
    /// The device function.
    pub function: Option<String>,
    /// The expression that was false.
    pub expression: String,
    /// How many threads printed it.
    pub threads: u64,
    /// The block of the first.
    pub block: [u32; 3],
    /// The thread of the first.
    pub thread: [u32; 3],
}

/// A line that gives a name its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// The name.
    pub name: String,
    /// File.
    pub file: String,
    /// Line.
    pub line: u32,
    /// Its text.
    pub text: String,
}

/// A launch in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Launched {
    /// Its number in the process.
    pub launch: u64,
    /// The kernel.
    pub kernel: String,
    /// `completed`, `running`, `waiting`.
    pub state: String,
    /// Stream.
    pub stream: u32,
    /// The user's line: `train.py:43`.
    pub place: Option<String>,
    /// It is a culprit.
    pub culprit: bool,
}

/// A run of the command, or one that was left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Its name: `recorder`, `coredump`, …
    pub id: String,
    /// Why it was chosen, said before it started.
    pub why: String,
    /// What came of it, or why it was left out.
    pub outcome: String,
    /// It was left out.
    pub skipped: bool,
    /// Seconds.
    pub seconds: f64,
    /// How the command ended.
    pub exit: Option<Exit>,
    /// The evidence that the step's tool was on; `None` where there was none.
    pub active: Option<String>,
    /// The line that it named: `train.py:43`.
    pub named: Option<String>,
}

/// Facts about the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostFacts {
    /// Operating system and kernel.
    pub os: Option<String>,
    /// The GPUs' names.
    pub gpus: Vec<String>,
    /// The kernel driver.
    pub driver: Option<String>,
    /// The newest CUDA that the driver speaks.
    pub cuda: Option<String>,
    /// PyTorch, in the interpreter of the command.
    pub torch: Option<String>,
    /// Python, in the command.
    pub python: Option<String>,
}
