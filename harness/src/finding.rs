//! What a tool said, in one shape for all tools.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One thing that a tool said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// What sort of statement it is.
    pub kind: FindingKind,
    /// The type of the error, where it has one: `torch.AcceleratorError`.
    pub error_type: Option<String>,
    /// In the tool's own words.
    pub message: String,
    /// Where; each facet only if the tool knows it.
    pub location: Location,
    /// Where in the capture this was read.
    pub evidence: Evidence,
}

/// The sort of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FindingKind {
    /// The exception that ended the program (or one of its processes).
    Exception,
    /// A statement of the tool's own, apart from the program's output. Where a tool makes one that names a place,
    /// nothing else is scored.
    Report,
    /// The exception that ended the program, under a tool that speaks for itself: shown, never scored.
    Ended,
    /// What surrounds it, such as an earlier exception of a chain: shown, never scored.
    Context,
    /// The text that a failed device-side `assert` prints.
    DeviceAssertion,
    /// C++ frames.
    NativeStack,
    /// The forward line of a backward node (PyTorch's anomaly mode).
    ForwardTrace,
}

impl FindingKind {
    /// Does the tool claim that its place is where the fault is?
    pub fn is_claim(self) -> bool {
        matches!(self, Self::Exception | Self::Report | Self::DeviceAssertion | Self::ForwardTrace)
    }
}

/// The facets of a place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Location {
    /// Outermost first, as a traceback prints them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub python: Vec<PythonFrame>,
    /// Innermost first, as a C++ stack is printed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub native: Vec<NativeFrame>,
    /// The kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<Kernel>,
    /// A line of device code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceLine>,
    /// The module or operation, by its dotted name: `encoder.layers.3.attn`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// Offending values, in words: `labels[17] = 10`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

impl Location {
    /// Does it say anything about where?
    pub fn names_a_place(&self) -> bool {
        self.innermost_own().is_some() || self.kernel.is_some() || self.device.is_some()
    }

    /// The innermost frame in the program's own files: what a reader of the traceback takes for the culprit.
    pub fn innermost_own(&self) -> Option<(&str, u32)> {
        self.python.iter().rev().find_map(|f| Some((f.own.as_deref()?, f.line)))
    }
}

/// A frame of a Python traceback.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PythonFrame {
    /// As printed.
    pub file: String,
    /// The path relative to the scenario's folder, where it is one of the program's own files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<String>,
    /// 1-based.
    pub line: u32,
    /// The function's name, `<module>` at top level.
    pub function: String,
    /// The source line, where it was printed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// A frame of a C++ stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NativeFrame {
    /// The symbol, demangled if the tool did so.
    pub symbol: String,
    /// The shared library.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// `file:line`, where debug information exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// A kernel, and which of its threads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Kernel {
    /// Its name as the tool wrote it.
    pub name: String,
    /// Block index (x, y, z).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<[u32; 3]>,
    /// Thread index in the block (x, y, z).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<[u32; 3]>,
    /// How many threads said the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u64>,
}

/// A line of device code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceLine {
    /// As printed.
    pub file: String,
    /// 1-based.
    pub line: u32,
    /// The assertion's expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expression: Option<String>,
}

/// A byte range of a stream of the capture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// `stdout`, `stderr`, or the name of a file of the capture.
    pub stream: String,
    /// First byte.
    pub start: u64,
    /// Behind the last byte.
    pub end: u64,
}
