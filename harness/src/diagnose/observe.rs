//! One run of the command, read: the recorder's records, the tracebacks, the device's assertions, PyTorch's errors.
//! Pure and total.

use std::collections::BTreeMap;

use faultlab_recorder::format::{Active, Exit as ExitRecord, Fault, Frame, Hang, Notice, Record, Start};

use super::compiled;
use crate::capture::{Capture, Exit};
use crate::parse::{self, DeviceAssertion, Heading, PyException, Scan, TorchError, Traceback};
use crate::tool;

/// What the recorder wrote about one process.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Process {
    /// Its id; 0 where the file's name has none.
    pub pid: u32,
    /// The library was loaded.
    pub start: Option<Start>,
    /// Launches were seen.
    pub active: Option<Active>,
    /// What it had to say beside.
    pub notices: Vec<Notice>,
    /// Faults, in order.
    pub faults: Vec<Fault>,
    /// Hangs, in order.
    pub hangs: Vec<Hang>,
    /// Its last word.
    pub exit: Option<ExitRecord>,
    /// Lines that are no record: cut off, or of a later format.
    pub unread: u32,
}

/// Reads one `recorder.<pid>.jsonl`.
pub fn process(name: &str, bytes: &[u8]) -> Process {
    let pid = name.split('.').find_map(|part| part.parse().ok()).unwrap_or_default();
    let mut process = Process { pid, ..Process::default() };
    for line in bytes.split(|b| *b == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
        match serde_json::from_slice::<Record>(line) {
            Ok(Record::Start(start)) => process.start = Some(start),
            Ok(Record::Active(active)) => process.active = Some(active),
            Ok(Record::Notice(notice)) => process.notices.push(notice),
            Ok(Record::Fault(fault)) => process.faults.push(fault),
            Ok(Record::Hang(hang)) => process.hangs.push(hang),
            Ok(Record::Exit(exit)) => process.exit = Some(exit),
            Err(_) => process.unread += 1,
        }
    }
    process
}

/// Reads all of them, in the order of their process ids.
pub fn processes(files: &BTreeMap<String, Vec<u8>>) -> Vec<Process> {
    let mut read: Vec<Process> =
        files.iter().filter(|(name, _)| is_record_file(name)).map(|(name, bytes)| process(name, bytes)).collect();
    read.sort_by_key(|process| process.pid);
    read
}

/// `recorder.1234.jsonl`
pub fn is_record_file(name: &str) -> bool {
    name.strip_prefix("recorder.").is_some_and(|rest| rest.strip_suffix(".jsonl").is_some())
}

/// The process whose stacks are in a file of this name: `stacks.71.txt`.
pub fn is_stacks_file(name: &str) -> Option<u32> {
    name.strip_prefix("stacks.")?.strip_suffix(".txt")?.parse().ok()
}

/// What a process said it was doing, shortly before it was killed at its deadline.
#[derive(Debug, Clone)]
pub struct Stacks {
    /// The process.
    pub pid: u32,
    /// Its main thread, innermost frame first.
    pub main: Vec<Frame>,
    /// Its other threads that have run Python.
    pub others: Vec<Vec<Frame>>,
}

impl Stacks {
    /// Reads what faulthandler wrote; `None` where that is no stack.
    fn read(pid: u32, text: &[u8]) -> Option<Self> {
        let mut dumps = parse::scan_bytes(text).fatal_errors.into_iter();
        let mut threads = dumps.next_back()?.threads;
        // The main thread handles signals, and it is the oldest: the last of the list.
        let main = threads.iter().position(|thread| thread.current).or(threads.len().checked_sub(1))?;
        let frames = |thread: parse::FatalThread| -> Vec<Frame> {
            let innermost_first = thread.frames.into_iter().rev();
            innermost_first
                .map(|f| Frame { user: is_user_file(&f.file), file: f.file, line: f.line, function: f.function })
                .collect()
        };
        let main = frames(threads.remove(main));
        Some(Self { pid, main, others: threads.into_iter().map(frames).collect() })
    }
}

/// A run, as it was seen.
#[derive(Debug, Clone)]
pub struct Observed {
    /// How it ended.
    pub exit: Exit,
    /// Wall-clock seconds.
    pub elapsed_s: f64,
    /// Largest resident size of one process, in bytes.
    pub peak_rss_bytes: Option<u64>,
    /// What the recorder wrote.
    pub recorded: Vec<Process>,
    /// What it printed as errors.
    pub stderr: Scan,
    /// What else it printed.
    pub stdout: Scan,
    /// A GPU core dump was written, and read.
    pub core_dump: bool,
    /// What its processes were doing when its time was up.
    pub stacks: Vec<Stacks>,
    /// A printed line that says of a loss or a gradient that it is not finite.
    pub not_finite: Option<String>,
}

impl Observed {
    /// Reads a run.
    pub fn new(exit: Exit, elapsed_s: f64, stdout: &[u8], stderr: &[u8], recorded: Vec<Process>) -> Self {
        Self {
            exit,
            elapsed_s,
            peak_rss_bytes: None,
            recorded,
            core_dump: false,
            stacks: Vec::new(),
            not_finite: not_finite_line(stderr).or_else(|| not_finite_line(stdout)),
            stderr: parse::scan_bytes(stderr),
            stdout: parse::scan_bytes(stdout),
        }
    }

    /// Reads a capture.
    pub fn of(capture: &Capture) -> Self {
        let mut recorded = processes(&capture.files);
        compiled::join(&mut recorded, &capture.files);
        let meta = &capture.meta;
        let observed = Self::new(meta.exit.clone(), meta.elapsed_s, &capture.stdout, &capture.stderr, recorded);
        let core_dump = capture.files.contains_key(tool::CORE_DUMP);
        let texts = capture.files.iter().filter_map(|(name, text)| Some((is_stacks_file(name)?, text)));
        let mut stacks: Vec<Stacks> = texts.filter_map(|(pid, text)| Stacks::read(pid, text)).collect();
        stacks.sort_by_key(|stacks| stacks.pid);
        Self { peak_rss_bytes: meta.peak_rss_bytes, core_dump, stacks, ..observed }
    }

    /// A process by its id and, in a job of several, its rank: `process 71 (rank 3)`.
    pub fn process_name(&self, pid: u32) -> String {
        let start = self.recorded.iter().find(|process| process.pid == pid).and_then(|process| process.start.as_ref());
        match start.and_then(|start| start.rank) {
            Some(rank) => format!("process {pid} (rank {rank})"),
            None => format!("process {pid}"),
        }
    }

    /// Did the recorder see launches in any process?
    pub fn recorder_was_on(&self) -> bool {
        self.recorded.iter().any(|process| process.active.is_some())
    }

    /// The faults of all processes: the best located first, of these the earliest, as the others may be its consequence.
    pub fn faults(&self) -> Vec<(u32, &Fault)> {
        let mut faults: Vec<(u32, &Fault)> =
            self.recorded.iter().flat_map(|p| p.faults.iter().map(|fault| (p.pid, fault))).collect();
        faults.sort_by(|(a, first), (b, second)| {
            rank(first).cmp(&rank(second)).then(first.time.total_cmp(&second.time)).then(a.cmp(b))
        });
        faults
    }

    /// A hang in which something runs on a device.
    pub fn hang(&self) -> Option<(u32, &Hang)> {
        let hangs = || self.recorded.iter().flat_map(|p| p.hangs.iter().map(|hang| (p.pid, hang)));
        hangs().find(|(_, hang)| !hang.running.is_empty()).or_else(|| hangs().next())
    }

    /// The device assertions that were printed, most threads first; it is the stream of the device's own words.
    pub fn assertions(&self) -> Vec<&DeviceAssertion> {
        let mut all: Vec<&DeviceAssertion> = self.stderr.assertions.iter().chain(&self.stdout.assertions).collect();
        all.sort_by_key(|assertion| std::cmp::Reverse(assertion.count));
        all
    }

    /// The exception that ended the program, or the process of it that failed first.
    pub fn ended_by(&self) -> Option<&PyException> {
        if self.exit == Exit::Code(0) {
            return None;
        }
        raised(&self.stderr).or_else(|| raised(&self.stdout))
    }

    /// The CUDA error that ended the program: in the exception's message, else the last that was printed.
    pub fn torch_error(&self) -> Option<TorchError> {
        if let Some(exception) = self.ended_by()
            && let Some(error) = parse::torch::error_in(&format!("{}: {}", exception.type_name, exception.message))
        {
            return Some(error);
        }
        let printed = (self.exit != Exit::Code(0) && self.ended_by().is_none()).then_some(());
        printed.and_then(|()| self.stderr.errors.last().or(self.stdout.errors.last()).cloned())
    }

    /// The user's innermost frame of the exception that ended the program.
    pub fn surfaced(&self) -> Option<(&PyException, Option<&parse::Frame>)> {
        let exception = self.ended_by()?;
        Some((exception, exception.frames.iter().rev().find(|f| is_user_file(&f.file))))
    }
}

fn rank(fault: &Fault) -> u8 {
    use faultlab_recorder::format::Confidence::{Candidates, Exact, Unlocated};
    match fault.confidence {
        Exact => 0,
        Candidates => 1,
        Unlocated => 2,
    }
}

/// Launchers raise errors of their own when a child fails, and the other ranks lose their connection: what counts is
/// what the child raised.
fn is_secondary(exception: &PyException) -> bool {
    const TYPES: [&str; 5] =
        ["ChildFailedError", "ProcessRaisedException", "ProcessExitedException", "SignalException", "DistBackendError"];
    let name = exception.type_name.rsplit('.').next().unwrap_or_default();
    TYPES.contains(&name) || exception.message.contains("Connection closed by peer")
}

fn raised(scan: &Scan) -> Option<&PyException> {
    let ignored = |t: &&Traceback| !matches!(t.heading, Some(Heading::Ignored { .. }));
    let candidates: Vec<&Traceback> = scan.tracebacks.iter().filter(ignored).collect();
    // The last of each process is what ended it.
    let mut last_of: Vec<&Traceback> = Vec::new();
    for traceback in candidates {
        last_of.retain(|t| t.process != traceback.process);
        last_of.push(traceback);
    }
    let raised: Vec<&PyException> = last_of.iter().filter_map(|t| t.raised()).map(PyException::origin).collect();
    raised.iter().copied().find(|e| !is_secondary(e)).or_else(|| raised.last().copied())
}

/// Is this a file of the user's: not of the standard library, not of an installed package, not generated? The
/// recorder answers the same for its frames; this is for frames that were printed.
pub fn is_user_file(file: &str) -> bool {
    const FOREIGN: [&str; 8] = [
        "/site-packages/",
        "/dist-packages/",
        "/lib/python",
        "/lib64/python",
        "/torchinductor_",
        "/.triton/",
        "/faultlab-diagnose-",
        "/Frameworks/Python.framework/",
    ];
    !file.is_empty() && !file.starts_with('<') && !FOREIGN.iter().any(|part| file.contains(part))
}

/// The user's innermost frame of the recorder's, which come innermost first. `<string>` may be the user's (`python -c`),
/// or code that a library typed for itself: a file is the better word.
pub fn user_frame(frames: &[Frame]) -> Option<&Frame> {
    let mut own = frames.iter().filter(|frame| frame.user && frame.line > 0);
    own.clone().find(|frame| !frame.file.starts_with('<')).or_else(|| own.next())
}

/// `loss nan`, `step 3: loss = inf`, `grad_norm: NaN`: a value that a program printed itself.
fn not_finite_line(bytes: &[u8]) -> Option<String> {
    use std::sync::LazyLock;

    use regex::bytes::Regex;
    static PATTERN: LazyLock<Option<Regex>> = LazyLock::new(|| {
        Regex::new(r"(?i)\b(?:\w*loss|grad\w*|\w*norm|perplexity|ppl)\b[ \t]*[:=,]?[ \t]*(?:is[ \t]+)?(?:tensor\()?[-+]?(?:nan|inf)\b").ok()
    });
    let found = PATTERN.as_ref()?.find(bytes)?;
    let start = bytes.get(..found.start())?.iter().rposition(|b| matches!(b, b'\n' | b'\r')).map_or(0, |at| at + 1);
    let rest = bytes.get(start..)?;
    let end = rest.iter().position(|b| matches!(b, b'\n' | b'\r')).unwrap_or(rest.len());
    let line = String::from_utf8_lossy(rest.get(..end.min(400))?);
    // The source line of a traceback shows code, not a value.
    let code = ["raise ", "assert ", "print(", "if ", "#"].iter().any(|start| line.trim_start().starts_with(start));
    (!code).then(|| line.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(exit: Exit, stderr: &str) -> Observed {
        Observed::new(exit, 1.0, b"", stderr.as_bytes(), Vec::new())
    }

    #[test]
    fn records_are_read_and_the_rest_is_counted() {
        let text = br#"{"type":"start","version":1,"pid":7,"argv":["python"],"backend":"cupti","driver_version":13000,"cupti_version":26,"python":"3.12.3","markers":"adaptive","ring":1024}
{"type":"later","x":1}
{"type":"notice","code":"cupti-taken","message":"another client is there"}
{"type":"active","device":0,"mark
"#;
        let read = processes(&[("recorder.7.jsonl".to_string(), text.to_vec()), ("x.log".into(), vec![1])].into());
        assert_eq!(read.len(), 1);
        assert_eq!((read[0].pid, read[0].unread, read[0].notices.len()), (7, 2, 1));
        assert_eq!(read[0].start.as_ref().map(|s| s.python.as_str()), Some("3.12.3"));
    }

    #[test]
    fn a_childs_error_counts_and_not_its_launchers() {
        let text = "\
[rank1]: Traceback (most recent call last):
[rank1]:   File \"/job/train.py\", line 7, in <module>
[rank1]:     rows[ids]
[rank1]: IndexError: list index out of range
Traceback (most recent call last):
  File \"/v/bin/torchrun\", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED
";
        let observed = observed(Exit::Code(1), text);
        assert_eq!(observed.ended_by().map(|e| e.type_name.as_str()), Some("IndexError"));
        assert_eq!(observed.surfaced().and_then(|(_, frame)| frame).map(|f| f.line), Some(7));
    }

    #[test]
    fn a_caught_error_of_a_program_that_ended_well_ended_nothing() {
        let text = "Traceback (most recent call last):\n  File \"/a.py\", line 1, in <module>\nKeyError: 1\n";
        assert_eq!(observed(Exit::Code(0), text).ended_by(), None);
        assert!(observed(Exit::Code(1), text).ended_by().is_some());
    }

    #[test]
    fn printed_values_that_are_not_finite() {
        for line in ["step 3 loss nan", "loss: inf", "grad_norm = NaN", "train_loss=nan lr=1e-3", "loss is nan"] {
            assert_eq!(observed(Exit::Code(0), line).not_finite.as_deref(), Some(line), "{line}");
        }
        for line in ["loss 0.31", "lossless information", "nanosecond loss", "loss info", "    raise X('loss nan')"] {
            assert_eq!(observed(Exit::Code(0), line).not_finite, None, "{line}");
        }
    }

    #[test]
    fn whose_file_it_is() {
        assert!(is_user_file("train.py") && is_user_file("/home/u/job/model.py"));
        for file in ["/v/lib/python3.12/site-packages/torch/x.py", "<string>", "/tmp/torchinductor_u/ab/c.py", ""] {
            assert!(!is_user_file(file), "{file}");
        }
    }
}
