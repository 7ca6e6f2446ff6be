//! The diagnostic tools. A tool is one file here and one line in [`ALL`].

mod bare;
mod common;
mod cpp_stacktraces;

use std::collections::BTreeMap;

use crate::capture::Capture;
use crate::case::{Device, Mode};
use crate::finding::Finding;
use crate::host::Need;

/// Every tool, in the order of reports.
pub static ALL: &[&dyn Tool] = &[&bare::Bare, &cpp_stacktraces::CppStacktraces];

/// The tool of this id.
pub fn find(id: &str) -> Option<&'static dyn Tool> {
    ALL.iter().copied().find(|t| t.id() == id)
}

/// A diagnostic tool: how it is put on a program, and how its words are read. Everything here is pure.
pub trait Tool: Sync {
    /// The name on the command line.
    fn id(&self) -> &'static str;

    /// One line.
    fn summary(&self) -> &'static str;

    /// What it asks of the machine beside what the scenario asks.
    fn needs(&self) -> &'static [Need];

    /// The command that runs the program under the tool.
    fn command(&self, target: &Target) -> Command;

    /// Reads what it said. Total: any bytes give findings or none, never a panic.
    fn parse(&self, capture: &Capture) -> Vec<Finding>;

    /// Was it really on?
    fn activity(&self, capture: &Capture, findings: &[Finding]) -> Activity;
}

/// What a tool is put on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The interpreter.
    pub python: String,
    /// The program, absolute.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Where the tensors live.
    pub device: Device,
    /// Async or sync.
    pub mode: Mode,
}

/// A command: nothing has been started yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Added to the environment.
    pub env: BTreeMap<String, String>,
}

/// The evidence that a tool was on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Activity {
    /// What shows it.
    Proven(String),
    /// What is missing.
    Unproven(String),
}

/// Variables that change what a failing program says or does. They never reach a case from outside: what a case
/// runs with is what its tool sets.
pub const SCRUBBED: &[&str] = &[
    "CUDA_COREDUMP_FILE",
    "CUDA_COREDUMP_GENERATION_FLAGS",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION",
    "CUDA_ENABLE_LIGHTWEIGHT_COREDUMP",
    "CUDA_INJECTION64_PATH",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_LOG_FILE",
    "LD_PRELOAD",
    "PYTHONFAULTHANDLER",
    "PYTHONMALLOC",
    "PYTHONSTARTUP",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "TORCH_CPP_LOG_LEVEL",
    "TORCH_CUDA_SANITIZER",
    "TORCH_DISABLE_ADDR2LINE",
    "TORCH_LOGS",
    "TORCH_SHOW_CPP_STACKTRACES",
    "TORCH_SHOW_CPP_STACKTRACES_WITH_LINENO",
    "TORCH_USE_CUDA_DSA",
];

/// Variables of the machine that a capture records beside those that a tool sets: they decide which GPU, which
/// libraries and which settings a program gets, and none holds a secret.
pub const RECORDED: &[&str] = &[
    "CUDA_CACHE_DISABLE",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
];
