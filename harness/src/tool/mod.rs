//! The diagnostic tools. A tool is one file here and one line in [`ALL`].

mod anomaly;
mod bare;
mod breakpoint;
mod checkpoints;
mod common;
mod coredump;
mod cpp_log;
mod cpp_stacktraces;
mod cpu_rerun;
mod csan;
mod cuda_gdb;
mod cuda_log;
// Used by `coredump` and `cuda-gdb`.
mod debugger;
mod deterministic;
mod dsa;
mod finite;
pub(crate) mod gdb;
mod guard;
// Used by every tool that lives in the user's interpreter.
mod inject;
mod isolate;
mod nsys;
mod op_log;
mod profiler;
mod recorder;
mod sanitizer;
mod sync_debug;
// Used by every tool that reads lines.
mod text;

use std::collections::BTreeMap;

pub use self::finite::MADE_HERE;
pub(crate) use self::recorder::LIKELIEST;
use crate::capture::Capture;
use crate::case::{Device, Mode};
use crate::finding::Finding;
use crate::host::Need;

/// Every tool, in the order of reports.
pub static ALL: &[&dyn Tool] = &[
    // Environment.
    &bare::Bare,
    &cpp_stacktraces::CppStacktraces,
    &cpp_log::CppLog,
    &cuda_log::CudaLog,
    &dsa::Dsa,
    // Python level.
    &anomaly::Anomaly,
    &csan::Csan,
    &sync_debug::SyncDebug,
    &deterministic::Deterministic,
    &op_log::OpLog,
    &finite::Finite,
    &profiler::Profiler,
    &cpu_rerun::CpuRerun,
    // Layers of the user's program.
    &guard::Guard::Full,
    &guard::Guard::Sampled,
    &isolate::Isolate,
    &checkpoints::Checkpoints,
    &breakpoint::Breakpoint,
    // CUDA.
    &recorder::Recorder,
    &sanitizer::MEMCHECK,
    &sanitizer::RACECHECK,
    &sanitizer::INITCHECK,
    &sanitizer::SYNCCHECK,
    &coredump::Coredump,
    &recorder::RecorderDump,
    &cuda_gdb::CudaGdb,
    &gdb::Gdb,
    &nsys::Nsys,
];

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

    /// A file beside the program without which it has nothing to do.
    fn wants_file(&self) -> Option<&'static str> {
        None
    }

    /// Why this combination makes no sense; it is stated, and not run.
    fn objection(&self, mode: Mode, device: Device) -> Option<&'static str> {
        let _ = (mode, device);
        None
    }

    /// Where the tensors live under this tool, when the user asked for `asked`.
    fn device(&self, asked: Device) -> Device {
        asked
    }

    /// Linux capabilities that it needs in a container, which has none otherwise.
    fn capabilities(&self) -> &'static [&'static str] {
        &[]
    }

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
    /// The process's working directory, absolute: the place for a tool's own files.
    pub work: String,
    /// Where the programs of the needs are, by name: see [`Target::program_path`].
    pub programs: BTreeMap<String, String>,
}

impl Target {
    /// A diagnostic program's path, or its bare name where it was not found (a replay needs none).
    pub fn program_path(&self, name: &str) -> String {
        self.programs.get(name).cloned().unwrap_or_else(|| name.to_string())
    }
}

/// A command: nothing has been started yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Command {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Added to the environment.
    pub env: BTreeMap<String, String>,
    /// Put before the machine's value of a search path, separated by colons: `PYTHONPATH`.
    pub prepend: BTreeMap<String, Vec<String>>,
    /// Written into the working directory first.
    pub files: Vec<WorkFile>,
    /// Run afterwards, in the working directory, whatever became of the command: readers of what it left.
    pub after: Vec<After>,
    /// Taken from the working directory into the capture, in the end.
    pub collect: Vec<Collect>,
}

/// A file that a tool brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkFile {
    /// Relative to the working directory.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

/// A command that reads what the first one left. Its standard output and error become the file `output` of the
/// capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct After {
    /// The file's name in the capture.
    pub output: &'static str,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Only if this file is there (relative to the working directory).
    pub only_if: Option<&'static str>,
}

/// A file that the tool writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Collect {
    /// Relative to the working directory; the capture has it under its last component.
    pub name: &'static str,
    /// Bytes to keep; more is cut in the middle.
    pub cap: usize,
}

/// The evidence that a tool was on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Activity {
    /// What shows it.
    Proven(String),
    /// What is missing.
    Unproven(String),
}

impl Collect {
    /// The name in the capture.
    pub fn file_name(&self) -> &'static str {
        self.name.rsplit('/').next().unwrap_or(self.name)
    }
}

impl Activity {
    /// Both must be proven; the first that is not says so.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Proven(a), Self::Proven(b)) => Self::Proven(format!("{a}; {b}")),
            (Self::Unproven(why), _) | (_, Self::Unproven(why)) => Self::Unproven(why),
        }
    }
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
    "FAULTLAB_RECORDER_CUPTI",
    "FAULTLAB_RECORDER_DIR",
    "FAULTLAB_RECORDER_HANG",
    "FAULTLAB_RECORDER_MARKERS",
    "FAULTLAB_RECORDER_NAN",
    "FAULTLAB_RECORDER_RING",
    "FAULTLAB_RECORDER_SIGNAL",
    "FAULTLAB_RECORDER_STDERR",
    "LD_PRELOAD",
    "PYTHONFAULTHANDLER",
    "PYTHONMALLOC",
    "PYTHONSTARTUP",
    "PYTORCH_CUDA_DSA_STACKTRACING",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "PYTORCH_USE_CUDA_DSA",
    "TORCH_CPP_LOG_LEVEL",
    "TORCH_CUDA_SANITIZER",
    "TORCH_DISABLE_ADDR2LINE",
    "TORCH_LOGS",
    "TORCH_SHOW_CPP_STACKTRACES",
    "TORCH_SHOW_CPP_STACKTRACES_WITH_LINENO",
    "TORCH_USE_CUDA_DSA",
];

/// The file in which a capture has what cuda-gdb said of a GPU core dump.
pub(crate) const CORE_DUMP: &str = coredump::Coredump::READ;

/// Variables of the machine that a capture records beside those that a tool sets: they decide which GPU, which
/// libraries and which settings a program gets, and none holds a secret.
pub const RECORDED: &[&str] = &[
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_CACHE_DISABLE",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "FAULTLAB_NSYS_CAPTURE_RANGE",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
];

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;
    use crate::backend::stacks;
    use crate::capture::Capture;

    /// Every golden capture with its tool.
    fn captures() -> Vec<(&'static dyn Tool, Capture)> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/captures");
        let below = |path: &Path| -> Vec<_> {
            std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
        };
        let folders = stacks(&root).into_iter().flat_map(|stack| below(&root.join(stack))).flat_map(|s| below(&s));
        folders
            .map(|folder| Capture::read(&folder).expect("a golden capture can be read"))
            .filter_map(|capture| Some((find(&capture.meta.case.tool)?, capture)))
            .collect()
    }

    fn proven(tool: &dyn Tool, capture: &Capture) -> bool {
        let findings = tool.parse(capture);
        matches!(tool.activity(capture, &findings), Activity::Proven(_))
    }

    /// A wrong variable name, a missing library, a log that was not written: whatever breaks a tool takes its evidence
    /// away, and then there must be no verdict.
    #[test]
    fn no_tool_is_believed_without_its_evidence() {
        let mut seen = std::collections::BTreeSet::new();
        for (tool, mut capture) in captures() {
            let id = capture.meta.case.clone();
            // A stock build of PyTorch has no device-side assertions: that is what the captures show.
            assert_eq!(proven(tool, &capture), tool.id() != "dsa", "{id}");
            // The plain asynchronous program is under no tool: there is nothing to prove.
            if tool.id() == "bare" && id.mode == Mode::Async {
                continue;
            }
            capture.meta.env_seen.clear();
            capture.files.clear();
            capture.stdout.clear();
            capture.stderr.clear();
            assert!(!proven(tool, &capture), "{id} is believed without any evidence");
            seen.insert(tool.id());
        }
        let all: std::collections::BTreeSet<_> = ALL.iter().map(|t| t.id()).collect();
        assert_eq!(seen, all, "every tool has golden captures");
    }

    /// What the environment of the process really had decides, not what was asked for.
    #[test]
    fn a_variable_that_did_not_arrive_is_noticed() {
        let mut checked = 0;
        for (tool, mut capture) in captures() {
            let id = capture.meta.case.clone();
            let blocking = tool.command(&target()).env.contains_key("CUDA_LAUNCH_BLOCKING");
            if id.mode == Mode::Sync && capture.meta.device == Device::Cuda && blocking && tool.id() != "dsa" {
                let seen = &capture.meta.env_seen;
                capture.meta.env_seen = seen.iter().map(|(key, value)| (format!("{key}_"), value.clone())).collect();
                assert!(!proven(tool, &capture), "{id} is taken for sync");
                checked += 1;
            }
        }
        assert!(checked > 100, "{checked}");
    }

    proptest! {
        /// Whatever a tool prints or writes, it is read to the end, and what was read is judged.
        #[test]
        fn any_bytes_are_read(
            which in any::<prop::sample::Index>(),
            junk in proptest::collection::vec(any::<u8>(), 0..300),
            at in any::<prop::sample::Index>(),
            cut in 0usize..2000,
        ) {
            static GOLDEN: LazyLock<Vec<(&'static dyn Tool, Capture)>> = LazyLock::new(captures);
            let (tool, golden) = which.get(&GOLDEN);
            let mut capture = golden.clone();
            let damage = |bytes: &mut Vec<u8>| {
                let start = at.index(bytes.len() + 1);
                let end = (start + cut).min(bytes.len());
                bytes.splice(start..end, junk.iter().copied());
            };
            damage(&mut capture.stdout);
            damage(&mut capture.stderr);
            capture.files.values_mut().for_each(damage);
            for (stream, findings) in [("damaged", tool.parse(&capture)), ("golden", tool.parse(golden))] {
                for finding in &findings {
                    let bytes = if stream == "golden" { golden } else { &capture }.stream(&finding.evidence.stream);
                    let length = bytes.map_or(0, <[u8]>::len) as u64;
                    let at = &finding.evidence;
                    prop_assert!(at.start <= at.end && at.end <= length, "{}: {at:?} of {length}", golden.meta.case);
                }
            }
            let _ = tool.activity(&capture, &tool.parse(&capture));
            // And nothing but junk.
            capture.stdout.clone_from(&junk);
            capture.stderr.clone_from(&junk);
            capture.files.values_mut().for_each(|bytes| bytes.clone_from(&junk));
            let _ = tool.activity(&capture, &tool.parse(&capture));
        }
    }

    fn target() -> Target {
        Target {
            python: "python3".into(),
            program: "/p/train.py".into(),
            args: Vec::new(),
            device: Device::Cuda,
            mode: Mode::Sync,
            work: "/w".into(),
            programs: BTreeMap::new(),
        }
    }
}
