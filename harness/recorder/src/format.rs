//! The recorder's report: one JSON object a line, each with a `type`.
//!
//! The file is `recorder.<pid>.jsonl` in the folder that `FAULTLAB_RECORDER_DIR` names. A reader skips types and keys
//! that it does not know.

use serde::{Deserialize, Serialize};

/// The version of this format, in the `start` record.
pub const VERSION: u32 = 1;

/// One line of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Record {
    /// The library was loaded.
    Start(Start),
    /// The first launch of the process was seen: the recorder is on.
    Active(Active),
    /// Something that the user should know: the recorder gave way, a version is unknown.
    Notice(Notice),
    /// A device fault, located as well as it could be.
    Fault(Fault),
    /// Nothing finished for a while, or a signal asked: what is running now.
    Hang(Hang),
    /// The process ends.
    Exit(Exit),
}

/// How the recorder was loaded and what it will do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// [`VERSION`].
    pub version: u32,
    /// Process.
    pub pid: u32,
    /// Its number among the processes of its job, as torchrun (`RANK`), Slurm (`SLURM_PROCID`) or MPI
    /// (`OMPI_COMM_WORLD_RANK`, `PMI_RANK`) gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Its command line.
    pub argv: Vec<String>,
    /// `cupti`, or why nothing is recorded.
    pub backend: String,
    /// CUDA driver API version as the driver gives it: 13000 is 13.0.
    pub driver_version: i32,
    /// CUPTI's API version; 0 where it was not loaded.
    pub cupti_version: u32,
    /// CPython's version, and how frames are read; empty in a program without Python.
    pub python: String,
    /// The marker policy: `adaptive`, `every` or `off`.
    pub markers: String,
    /// Launches that are remembered.
    pub ring: usize,
}

/// Proof that launches are seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Active {
    /// Ordinal of the device of the first launch; -1 where the driver did not tell.
    pub device: i32,
    /// Whether completion markers work there, or the reason why not.
    pub markers: String,
}

/// A word to the user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// A short, stable name.
    pub code: String,
    /// A sentence.
    pub message: String,
}

/// How sure the location is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// One launch can have faulted.
    Exact,
    /// Several can; `culprits` has the likeliest first.
    Candidates,
    /// None is known: the fault came before recording, or its launch is no longer remembered.
    Unlocated,
}

/// A device fault.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// When it was noticed: seconds since the Unix epoch; 0 where it is not known.
    #[serde(default)]
    pub time: f64,
    /// The driver's error code (`CUresult`).
    pub code: i32,
    /// Its name: `CUDA_ERROR_ASSERT`.
    pub name: String,
    /// Where the error came to light.
    pub surfaced: Surfaced,
    /// How sure.
    pub confidence: Confidence,
    /// The launches that can have faulted, the likeliest first.
    pub culprits: Vec<Launch>,
    /// The reasoning, a sentence each.
    pub evidence: Vec<String>,
    /// The last launches around the first culprit, in order.
    pub around: Vec<Launch>,
    /// Where a core dump is armed: launches of which the driver said that they were done, one for each kernel, size and line,
    /// the latest first. While it writes a dump it says so of what faulted, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub done: Vec<Launch>,
}

/// Nothing finished for a while.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hang {
    /// When it was noticed: seconds since the Unix epoch; 0 where it is not known.
    #[serde(default)]
    pub time: f64,
    /// Why now: `deadline` or `signal`.
    pub why: String,
    /// Seconds since something last finished.
    pub seconds: f64,
    /// The launches that are running, or next to run, one a stream; where no markers tell which, all that can be, the
    /// likeliest first.
    pub running: Vec<Launch>,
    /// No markers tell which of `running` it is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub guessed: bool,
    /// Where the host waits: innermost frames of the Python main thread, where they could be read.
    pub host: Vec<Frame>,
}

/// Where an error came to light.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Surfaced {
    /// The driver call that returned the error, or `watcher`, `exit`, `abort`.
    pub call: String,
    /// Python frames of the calling thread, innermost first.
    pub frames: Vec<Frame>,
}

/// A launch: a kernel, a graph, a copy or a fill.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    /// Ordinal in the process, from 1.
    pub seq: u64,
    /// `kernel`, `graph`, `memcpy`, `memset`.
    pub kind: String,
    /// Demangled kernel name; the driver call for what is no kernel.
    pub kernel: String,
    /// The symbol as the driver has it.
    pub symbol: String,
    /// Blocks; zeros for what is no kernel.
    pub grid: [u32; 3],
    /// Threads a block.
    pub block: [u32; 3],
    /// Device ordinal; -1 where unknown.
    pub device: i32,
    /// The stream: its ordinal in the process, in order of first use, from 0.
    pub stream: u32,
    /// Thread id of the launching thread.
    pub thread: i32,
    /// `completed`, `running` (may have begun), `waiting` (cannot have begun).
    pub state: String,
    /// Python frames of the launching thread, innermost first: the innermost few, then those of the user's own files.
    pub frames: Vec<Frame>,
    /// Native frames, where the process has no Python: symbol, and file and line where debug information tells.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub native: Vec<NativeFrame>,
    /// In a list of culprits: how many launches of this kernel by this line it stands for, this one included.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub count: u32,
    /// Where no markers are set, the ordinals of these launches among the kernels of the process, from 1: a core dump counts
    /// kernels too, and some that no call of the program's launches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nth_kernel: Vec<u64>,
    /// The forward launch that the autograd node of this backward launch belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward: Option<Box<Forward>>,
    /// For a graph: the node inside, and the launch that captured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Box<Node>>,
    /// For a generated kernel: the lines of the user's function that it was fused from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source: Vec<Frame>,
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's interface")]
fn is_one(count: &u32) -> bool {
    *count == 1
}

/// A frame of Python.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// As the code object has it.
    pub file: String,
    /// From 1; 0 where the line table does not tell.
    pub line: u32,
    /// Qualified name where the version has it.
    pub function: String,
    /// Whether it is the user's own: not the standard library, not an installed package, not generated.
    pub user: bool,
}

/// A native frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NativeFrame {
    /// Demangled, or the address in hexadecimal.
    pub function: String,
    /// Source file, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Line, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

/// The forward side of a backward launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forward {
    /// The autograd node: `NllLossBackward0`.
    pub node: String,
    /// Its sequence number.
    pub sequence: u64,
    /// Python frames of the forward launch, innermost first.
    pub frames: Vec<Frame>,
    /// The forward kernel.
    pub kernel: String,
}

/// A node of a CUDA graph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Place in the capture, from 1.
    pub index: u32,
    /// Launches that the capture has.
    pub of: u32,
    /// The launch as it was captured.
    pub captured: Launch,
    /// The lines of other nodes that can have faulted: markers inside a graph are few, because they cost it time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suspects: Vec<Frame>,
    /// The other nodes themselves, one for each kernel, size and line, where no markers were set: a core dump then tells
    /// which it was.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Launch>,
}

/// The process ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Exit {
    /// Launches seen.
    pub launches: u64,
    /// Markers set.
    pub markers: u64,
    /// Launches that fell out of the ring.
    pub evicted: u64,
    /// Streams seen.
    pub streams: u32,
    /// Bytes that the recorder holds.
    pub bytes: u64,
    /// Whether a fault was reported.
    pub faulted: bool,
}

/// Whether the innermost frame is autograd's engine: then the frames tell where `backward()` was called, not what ran.
pub fn is_engine(frames: &[Frame]) -> bool {
    frames.first().is_some_and(|frame| frame.function.ends_with("_engine_run_backward"))
}

impl Launch {
    /// The line that this launch stands for: that of the user's function which a generated kernel was fused from; for a
    /// backward launch without Python of its own, the forward line; else the innermost frame in the user's own files.
    pub fn place(&self) -> Option<&Frame> {
        // `<string>` may be the user's (`python -c`), or a launcher that Triton typed for itself: a file is the better word.
        let own = |frames: &'_ [Frame]| {
            let file = frames.iter().position(|frame| frame.user && !frame.file.starts_with('<'));
            file.or_else(|| frames.iter().position(|frame| frame.user))
        };
        if let Some(frame) = self.source.first() {
            return Some(frame);
        }
        if let Some(forward) = &self.forward
            && (own(&self.frames).is_none() || is_engine(&self.frames))
            && let Some(at) = own(&forward.frames)
        {
            return forward.frames.get(at);
        }
        self.frames.get(own(&self.frames)?)
    }
}
