//! A scenario: a program that faults, its fixed twin, the truth about the fault, and what each tool is
//! expected to say of it.
//!
//! The file format is described on [`ScenarioFile`]; [`load`] reads one folder, [`load_all`] a folder of them.

mod load;
mod markers;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use regex::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use load::{ScenarioError, ScenarioFile, ids, load, load_all};

use crate::case::{Claim, Device, Mode};
use crate::host::Need;

/// A scenario as the rest of the harness sees it: checked, with its truth lines found.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The folder's name, and the name on the command line.
    pub id: String,
    /// One line.
    pub title: String,
    /// The symptom as an engineer meets it.
    pub story: String,
    /// What kind of fault this is.
    pub class: FaultClass,
    /// What the machine must have.
    pub needs: Vec<Need>,
    /// The folder, absolute.
    pub folder: PathBuf,
    /// The faulty program.
    pub program: Program,
    /// The fixed program, on which every tool must stay silent.
    pub twin: Program,
    /// The names of all files of the folder: what a tool may want beside the program.
    pub files: BTreeSet<String>,
    /// Arguments for both programs.
    pub args: Vec<String>,
    /// What is known to be true.
    pub truth: Truth,
    /// How the program behaves on the CPU, where it does anything there.
    pub cpu: Option<CpuBehaviour>,
    /// The claims, in the order of the file.
    pub expect: Vec<Expectation>,
    /// From vague to nearly the answer.
    pub hints: Vec<String>,
    /// What to change and why.
    pub fix: String,
}

impl Scenario {
    /// What the scenario claims a tool will say; `None` where it claims nothing.
    pub fn expected(&self, tool: &str, mode: Mode, device: Device) -> Option<Claim> {
        let table = match device {
            Device::Cuda => &self.expect,
            Device::Cpu => &self.cpu.as_ref()?.expect,
        };
        table.iter().find(|e| e.tool == tool && e.mode == mode).map(|e| e.claim)
    }

    /// The error that the fault ends in on a device; `None` where it ends in none.
    pub fn error(&self, device: Device) -> Option<&ErrorPattern> {
        match device {
            Device::Cuda => self.truth.error.as_ref(),
            Device::Cpu => self.cpu.as_ref()?.error.as_ref(),
        }
    }
}

/// One of the two programs of a scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// File name, relative to the scenario's folder.
    pub file: String,
    /// The whole text.
    pub source: String,
}

impl Program {
    /// SHA-256 of the text, in lower-case hexadecimal: a capture of another text is stale.
    pub fn sha256(&self) -> String {
        crate::capture::sha256_hex(self.source.as_bytes())
    }

    /// Where the file is.
    pub fn path(&self, folder: &Path) -> PathBuf {
        folder.join(&self.file)
    }
}

/// What is known to be true about the fault.
#[derive(Debug, Clone)]
pub struct Truth {
    /// The line whose kernel or operation faults (`# FAULT`).
    pub fault: Place,
    /// The line that made the bad value, size or order (`# ROOT`).
    pub root: Place,
    /// Outer frames of the true call chain (`# CALLER`).
    pub callers: Vec<Place>,
    /// Which kernel faults; `None` where no kernel does.
    pub kernel: Option<Pattern>,
    /// What the fault ends in; `None` where the program goes on, with wrong results.
    pub error: Option<ErrorPattern>,
}

/// A line of one of the program's own files.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Place {
    /// Relative to the scenario's folder.
    pub file: String,
    /// 1-based.
    pub line: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A regular expression with the text that it was written as.
#[derive(Debug, Clone)]
pub struct Pattern(Regex);

impl Pattern {
    /// Compiles a search pattern.
    pub fn search(text: &str) -> Result<Self, regex::Error> {
        Regex::new(text).map(Self)
    }

    /// Does the pattern occur in `text`?
    pub fn found_in(&self, text: &str) -> bool {
        self.0.is_match(text)
    }

    /// Does the pattern match `text` from its first to its last character?
    pub fn is_all_of(&self, text: &str) -> bool {
        self.0.find_iter(text).any(|m| m.start() == 0 && m.end() == text.len())
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

/// What an error must look like to be this scenario's.
#[derive(Debug, Clone)]
pub struct ErrorPattern {
    /// Matches the whole name of the exception's type.
    pub type_name: Pattern,
    /// Occurs in its message.
    pub text: Pattern,
}

impl ErrorPattern {
    /// Is an exception of this type and message the scenario's?
    pub fn matches(&self, type_name: &str, message: &str) -> bool {
        self.type_name.is_all_of(type_name) && self.text.found_in(message)
    }
}

/// How the program behaves without a GPU.
#[derive(Debug, Clone)]
pub struct CpuBehaviour {
    /// The error it ends in there.
    pub error: Option<ErrorPattern>,
    /// What each tool says there; async and sync are one.
    pub expect: Vec<Expectation>,
}

/// A claim of the scenario: this tool, in this mode, gets this far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expectation {
    /// The tool's id.
    pub tool: String,
    /// The mode.
    pub mode: Mode,
    /// What it is expected to say.
    pub claim: Claim,
}

/// What kind of fault a scenario is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FaultClass {
    /// An `assert` in a kernel failed (CUDA error 710).
    DeviceAssert,
    /// A kernel touched memory that is not mapped (700, 717).
    IllegalAddress,
    /// A kernel used an address that its access size does not allow (716).
    MisalignedAddress,
    /// A NaN or an infinity was made.
    NonFinite,
    /// Sizes do not fit; raised on the host.
    Shape,
    /// Work on two streams, or on host and device, in the wrong order.
    Ordering,
    /// Memory was used after it was given away.
    Lifetime,
    /// No memory is left.
    OutOfMemory,
    /// A kernel never ends.
    Hang,
}

impl FaultClass {
    /// The name that `scenario.yaml` uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::DeviceAssert => "device-assert",
            Self::IllegalAddress => "illegal-address",
            Self::MisalignedAddress => "misaligned-address",
            Self::NonFinite => "non-finite",
            Self::Shape => "shape",
            Self::Ordering => "ordering",
            Self::Lifetime => "lifetime",
            Self::OutOfMemory => "out-of-memory",
            Self::Hang => "hang",
        }
    }
}
