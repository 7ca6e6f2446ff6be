//! `gdb`: the C++ and the Python stack of the host at each throw of a C++ exception. Of the throws the last one before
//! the program failed counts: libraries also throw and catch for reasons of their own.
//!
//! A script in gdb's own Python (`scripts/gdb_throw.py`) breaks on `__cxa_throw` and writes `gdb.jsonl`:
//!
//! ```text
//! {"kind": "started", "gdb": "13.1", "py_bt": true}
//! {"kind": "throw", "thread": 1, "raised": {"symbol": "at::meta::structured_addmm::meta(…)", "source": "/usr/src/pytorch/aten/src/ATen/native/LinearAlgebra.cpp:191", "text": "ADDMM_META();", "variables": [{"name": "mat1", "type": "const at::Tensor &", "value": "Tensor[64, 800]"}, …]}, "native": [{"symbol": "__cxa_throw", "module": "/lib/x86_64-linux-gnu/libstdc++.so.6", "source": null}, {"symbol": "c10::detail::torchCheckFail(char const*, char const*, unsigned int, …)", "module": "<PACKAGES>/torch/lib/libc10.so", "source": null}, {"symbol": "at::meta::structured_addmm::meta(…)", …}, …], "python": [{"file": "<SCENARIOS>/shape-mismatch/train_digits.py", "line": 53, "function": "<module>"}, …], "python_by": "py-bt", "exception": "c10::Error", "count": 1}
//! {"kind": "ended", "code": 1, "throws": 1}
//! ```
//!
//! `raised` is the first frame that is not of the machinery that carries a throw out. Its line and its variables are
//! known where PyTorch was built with debug information (the image `debug`); the line's text, where its source is there.
//!
//! The Python stack comes from libpython's support for gdb (`py-bt`) where that is installed. Distributions optimise their
//! interpreter so far that it finds no frame, so the debug build of the same interpreter runs the program where it lies
//! beside it (Debian's `python3-dbg`; the images `gdb` and `debug` have it). Else the stack comes from a call of
//! `_Py_DumpTraceback` in the stopped program. gdb 13 cannot call functions on processors with AMX registers
//! ("Couldn't write extended state status"); then the traceback that the program itself prints stands for it, and
//! counts.
//!
//! A throw whose innermost line of the program is not that of the exception which ended the program was caught: context.
//!
//! It is a host debugger: of a fault on the GPU it shows the call that reported it, which in async mode is as
//! misleading as the traceback.

use serde::Deserialize;

use super::{Activity, Collect, Command, Target, Tool, WorkFile, common, text};
use std::fmt::Write as _;

use crate::capture::{Capture, Exit};
use crate::finding::{Evidence, Finding, FindingKind, Location, NativeFrame, PythonFrame};
use crate::host::{DEBUG_PYTHON, Need};

const SCRIPT: &str = "gdb_throw.py";
const LOG: &str = "gdb.jsonl";
const LOG_CAP: usize = 1 << 20;

/// See the module.
pub(super) struct Gdb;

impl Tool for Gdb {
    fn id(&self) -> &'static str {
        "gdb"
    }

    fn summary(&self) -> &'static str {
        "the host's C++ and Python stack at the last C++ throw"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Torch, Need::Gdb]
    }

    fn capabilities(&self) -> &'static [&'static str] {
        &["SYS_PTRACE"]
    }

    fn command(&self, target: &Target) -> Command {
        let debug = target.programs.get(DEBUG_PYTHON);
        let target = &Target { python: debug.unwrap_or(&target.python).clone(), ..target.clone() };
        let mut command = common::python_command(target);
        let mut argv = vec![target.program_path("gdb")];
        argv.extend(["-batch", "-nx", "-x", SCRIPT, "--args"].map(String::from));
        argv.append(&mut command.argv);
        command.argv = argv;
        // No questions to symbol servers.
        command.env.insert("DEBUGINFOD_URLS".into(), String::new());
        command.files.push(script());
        command.collect.push(Collect { name: LOG, cap: LOG_CAP });
        // What gdb was told, beside what it said: a capture can be made again by hand.
        command.collect.push(Collect { name: SCRIPT, cap: LOG_CAP });
        command
    }

    fn parse(&self, capture: &Capture) -> Vec<Finding> {
        // Of a program that ended well every throw was caught.
        if capture.meta.exit == Exit::Code(0) {
            return common::context(capture);
        }
        let log = Log::read(capture);
        let printed = common::findings(capture);
        let root = &capture.meta.program_root;
        let finding = |kind, (throw, evidence): (Record, Evidence)| throw.finding(kind, root, evidence);
        // The exception that ended the program stands at the same line, or the program printed none (an abort).
        let ends: Vec<_> = printed.iter().filter(|f| f.kind == FindingKind::Exception).collect();
        let at_the_end = |report: &Finding| {
            let place = report.location.innermost_own();
            ends.is_empty() || ends.iter().any(|end| end.location.innermost_own() == place)
        };
        let report = log.last_with_python.map(|throw| finding(FindingKind::Report, throw)).filter(at_the_end);
        match (report, log.last.map(|throw| finding(FindingKind::Report, throw))) {
            (Some(report), _) => std::iter::once(report).chain(common::context(capture)).collect(),
            (None, Some(last)) if last.location.python.is_empty() => std::iter::once(last).chain(printed).collect(),
            (None, Some(caught)) => {
                let caught = Finding { kind: FindingKind::Context, ..caught };
                std::iter::once(caught).chain(common::context(capture)).collect()
            }
            (None, None) => common::context(capture),
        }
    }

    fn activity(&self, capture: &Capture, findings: &[Finding]) -> Activity {
        let log = Log::read(capture);
        match (log.started, log.throws) {
            (None, _) => Activity::Unproven(format!("gdb's script wrote no {LOG}: has this gdb its own Python?")),
            (Some(_), None) => Activity::Unproven("gdb's script did not come to its end".into()),
            (Some(version), Some(throws)) => {
                Activity::Proven(format!("gdb {version} followed the program to its end and saw {throws} C++ throws"))
                    .and(common::mode_activity(capture, findings))
            }
        }
    }
}

/// The script, for whoever starts gdb without a case.
pub(crate) fn script() -> WorkFile {
    WorkFile { name: SCRIPT, text: include_str!("scripts/gdb_throw.py") }
}

/// What a running program was found to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attached {
    /// gdb's version.
    pub(crate) gdb: String,
    /// The script came to its end.
    pub(crate) complete: bool,
    /// Its threads, the main one first.
    pub(crate) threads: Vec<Thread>,
}

/// A thread of a running program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Thread {
    /// gdb's number.
    pub(crate) number: u32,
    /// The system's name for it.
    pub(crate) name: String,
    /// Where it is. No frame is one of the program's own: which are, is for the reader to say.
    pub(crate) location: Location,
}

/// Reads what [`script`] writes about a program that it was attached to; `None` where it was not.
pub(crate) fn attached(log: &[u8]) -> Option<Attached> {
    let mut found: Option<Attached> = None;
    for (line, _) in text::lines(log) {
        let Ok(record) = serde_json::from_slice::<Record>(line) else { continue };
        match (record.kind.as_str(), &mut found) {
            ("started", _) => found = Some(Attached { gdb: record.gdb, complete: false, threads: Vec::new() }),
            ("attached", Some(found)) => {
                let (number, name) = (record.thread.unwrap_or_default(), record.name.clone().unwrap_or_default());
                found.threads.push(Thread { number, name, location: record.location("") });
            }
            ("ended", Some(found)) => found.complete = true,
            _ => {}
        }
    }
    let mut found = found?;
    found.threads.reverse();
    Some(found)
}

/// A line of the log. Of each kind only some fields are there.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Record {
    kind: String,
    gdb: String,
    thread: Option<u32>,
    name: Option<String>,
    raised: Option<Raised>,
    exception: Option<String>,
    signal: Option<String>,
    native: Vec<Native>,
    python: Vec<Python>,
    throws: u64,
}

impl Record {
    fn location(self, root: &str) -> Location {
        let frames = self.python.into_iter().map(|f| PythonFrame {
            own: common::own(root, &f.file),
            file: f.file,
            line: f.line,
            function: f.function,
            source: None,
        });
        let native =
            self.native.into_iter().map(|f| NativeFrame { symbol: f.symbol, module: f.module, source: f.source });
        let variables = self.raised.into_iter().flat_map(|raised| raised.variables);
        Location {
            python: frames.collect(),
            native: native.collect(),
            values: variables.map(|v| format!("{} = {}", v.name, v.value)).collect(),
            ..Location::default()
        }
    }

    fn finding(self, kind: FindingKind, root: &str, evidence: Evidence) -> Finding {
        let mut message = match (&self.exception, &self.signal) {
            (_, Some(signal)) => format!("stopped by {signal}"),
            (Some(exception), None) => format!("the last C++ exception thrown is a {exception}"),
            (None, None) => "the last C++ exception thrown".into(),
        };
        if let Some(Raised { source: Some(source), text, .. }) = &self.raised {
            let _ = write!(message, ", raised at {source}");
            if let Some(text) = text {
                let _ = write!(message, ": {text}");
            }
        }
        Finding { kind, error_type: self.exception.clone(), message, location: self.location(root), evidence }
    }
}

/// The frame that raised.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Raised {
    source: Option<String>,
    text: Option<String>,
    variables: Vec<Variable>,
}

#[derive(Clone, Deserialize)]
struct Variable {
    name: String,
    value: String,
}

#[derive(Clone, Deserialize)]
struct Native {
    symbol: String,
    module: Option<String>,
    source: Option<String>,
}

#[derive(Clone, Deserialize)]
struct Python {
    file: String,
    line: u32,
    function: String,
}

#[derive(Default)]
struct Log {
    /// gdb's version.
    started: Option<String>,
    /// The last throw, or the signal that ended the program.
    last: Option<(Record, Evidence)>,
    /// The last one of a thread that ran Python: neither of autograd's threads nor of the interpreter's end.
    last_with_python: Option<(Record, Evidence)>,
    /// How many throws there were; known at the end.
    throws: Option<u64>,
}

impl Log {
    fn read(capture: &Capture) -> Self {
        let mut log = Self::default();
        let bytes = capture.files.get(LOG).map(Vec::as_slice).unwrap_or_default();
        for (line, start) in text::lines(bytes) {
            // A line that is no record (cut, or written by something else) is passed over.
            let Ok(record) = serde_json::from_slice::<Record>(line) else { continue };
            match record.kind.as_str() {
                "started" => log.started = Some(record.gdb),
                "throw" | "signal" | "attached" => {
                    let end = start + line.len() as u64;
                    let throw = (record, Evidence { stream: LOG.into(), start, end });
                    if !throw.0.python.is_empty() {
                        log.last_with_python = Some(throw.clone());
                    }
                    log.last = Some(throw);
                }
                "ended" => log.throws = Some(record.throws),
                _ => {}
            }
        }
        log
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use proptest::prelude::*;

    const SHAPE: &str = r#"{"kind": "started", "gdb": "13.1", "py_bt": true}
{"kind": "throw", "thread": 1, "native": [{"symbol": "__cxa_throw", "module": "/lib/x86_64-linux-gnu/libstdc++.so.6", "source": null}], "python": [], "python_by": null, "exception": "std::out_of_range", "count": 1}
{"kind": "throw", "thread": 1, "native": [{"symbol": "__cxa_throw", "module": "/lib/x86_64-linux-gnu/libstdc++.so.6", "source": null}, {"symbol": "c10::detail::torchCheckFail(char const*, char const*, unsigned int, std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > const&)", "module": "<PACKAGES>/torch/lib/libc10.so", "source": null}, {"symbol": "at::meta::structured_addmm::meta(at::Tensor const&, at::Tensor const&, at::Tensor const&, c10::Scalar const&, c10::Scalar const&)", "module": "<PACKAGES>/torch/lib/libtorch_cpu.so", "source": null}], "python": [{"file": "/p/train_digits.py", "line": 53, "function": "<module>"}, {"file": "/p/train_digits.py", "line": 48, "function": "main"}, {"file": "/p/train_digits.py", "line": 20, "function": "forward"}, {"file": "<PACKAGES>/torch/nn/modules/linear.py", "line": 134, "function": "forward"}], "python_by": "py-bt", "exception": "c10::Error", "count": 2}
{"kind": "ended", "code": 1, "throws": 2}
"#;
    const LABEL: &str = r#"{"kind": "started", "gdb": "13.1", "py_bt": false}
{"kind": "throw", "thread": 1, "native": [{"symbol": "__cxa_throw", "module": "/lib/x86_64-linux-gnu/libstdc++.so.6", "source": null}, {"symbol": "void at::native::(anonymous namespace)::nll_loss_out_frame<float, long>(at::Tensor const&, at::Tensor const&, at::Tensor const&, at::Tensor const&, at::Tensor const&, long, long) [clone .cold]", "module": "<PACKAGES>/torch/lib/libtorch_cpu.so", "source": null}], "python": [], "python_by": null, "exception": "c10::IndexError", "count": 1}
{"kind": "ended", "code": 1, "throws": 1}
"#;
    const TRACEBACK: &[u8] = b"\
Traceback (most recent call last):
  File \"/p/train.py\", line 43, in train_step
    loss = criterion(logits, labels)
IndexError: Target 10 is out of bounds.
";

    fn capture(log: &str, stderr: &[u8]) -> Capture {
        let mut capture = testing::capture("/p", stderr);
        capture.files.insert(LOG.into(), log.as_bytes().to_vec());
        capture
    }

    #[test]
    fn the_last_throw_is_the_report() {
        let capture = capture(SHAPE, b"");
        let findings = Gdb.parse(&capture);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].location.innermost_own(), Some(("train_digits.py", 20)));
        assert_eq!(findings[0].location.native.len(), 3);
        assert_eq!(findings[0].message, "the last C++ exception thrown is a c10::Error");
        assert!(matches!(Gdb.activity(&capture, &findings), Activity::Proven(_)));
        let start = usize::try_from(findings[0].evidence.start).unwrap();
        assert!(SHAPE[start..].starts_with("{\"kind\": \"throw\"") && SHAPE[start..].contains("\"count\": 2"));
    }

    #[test]
    fn without_a_python_stack_the_programs_own_traceback_counts() {
        let findings = Gdb.parse(&capture(LABEL, TRACEBACK));
        assert!(findings.iter().any(|f| f.kind == FindingKind::Exception));
        let findings = Gdb.parse(&capture(SHAPE, TRACEBACK));
        assert!(findings.iter().all(|f| f.kind != FindingKind::Exception));
        // It ended at line 43 of another file: the throw was caught.
        assert!(findings.iter().all(|f| !f.kind.is_claim()));
    }

    #[test]
    fn the_line_that_raised_and_its_variables_are_said() {
        let raised = r#""exception": "c10::IndexError", "raised": {"symbol": "f", "source": "/src/LossNLL.cpp:242", "text": "TORCH_CHECK_INDEX(", "variables": [{"name": "cur_target", "type": "int64_t", "value": "10"}, {"name": "grad", "type": "const at::Tensor &", "value": "Tensor[64, 10]"}]}"#;
        let log = SHAPE.replace("\"exception\": \"c10::Error\"", raised);
        let finding = &Gdb.parse(&capture(&log, b""))[0];
        let message =
            "the last C++ exception thrown is a c10::IndexError, raised at /src/LossNLL.cpp:242: TORCH_CHECK_INDEX(";
        assert_eq!(finding.message, message);
        assert_eq!(finding.location.values, ["cur_target = 10", "grad = Tensor[64, 10]"]);
    }

    #[test]
    fn every_thread_of_a_running_program_is_read_the_main_one_first() {
        let thread = |number: u32, python: &str| {
            format!(
                r#"{{"kind": "attached", "thread": {number}, "name": "python3", "native": [{{"symbol": "read", "module": "/lib/libc.so.6", "source": null}}], "python": [{python}], "python_by": null}}"#
            )
        };
        let frame = r#"{"file": "/p/hang.py", "line": 7, "function": "wait"}"#;
        let log = format!(
            "{{\"kind\": \"started\", \"gdb\": \"16.3\"}}\n{}\n{}\n{{\"kind\": \"ended\", \"throws\": 0}}\n",
            thread(2, ""),
            thread(1, frame)
        );
        let found = attached(log.as_bytes()).unwrap();
        assert!(found.complete);
        assert_eq!(found.threads.iter().map(|t| t.number).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(found.threads[0].location.python[0].line, 7);
        assert_eq!(found.threads[1].location.native[0].symbol, "read");
        assert_eq!(attached(b"Could not attach to process.\n"), None);
    }

    /// gdb 16.3 in the image `gdb`, attached to the first worker of `docs/tools/gdb/collective.py`.
    #[test]
    fn a_blocked_collective_is_read_from_real_output() {
        let found = attached(include_bytes!("samples/gdb_attached_collective.jsonl")).unwrap();
        assert_eq!((found.gdb.as_str(), found.complete, found.threads.len()), ("16.3", true, 4));
        let main = &found.threads[0];
        assert_eq!((main.number, main.name.as_str()), (1, "python3-dbg"));
        let own: Vec<_> = main.location.python.iter().filter(|f| f.file == "/prog/collective.py").collect();
        assert_eq!(own.iter().map(|f| (f.line, f.function.as_str())).collect::<Vec<_>>(), [(16, "train")]);
        assert_eq!(main.location.python.last().map(|f| f.function.as_str()), Some("all_reduce"));
        let waits = main.location.native.iter().position(|f| f.symbol.starts_with("c10d::Work::wait("));
        assert_eq!(waits, Some(4));
        assert!(found.threads[1..].iter().all(|thread| thread.location.python.is_empty()));
    }

    #[test]
    fn a_throw_of_the_interpreters_end_is_not_the_last_word() {
        let (log, ended) = SHAPE.split_once("{\"kind\": \"ended\"").unwrap();
        let late = LABEL.lines().nth(1).unwrap();
        let findings = Gdb.parse(&capture(&format!("{log}{late}\n{{\"kind\": \"ended\"{ended}"), b""));
        assert_eq!(findings[0].location.innermost_own(), Some(("train_digits.py", 20)));
    }

    #[test]
    fn silence_and_missing_evidence() {
        let mut clean = capture(SHAPE, b"");
        clean.meta.exit = Exit::Code(0);
        assert!(Gdb.parse(&clean).is_empty());
        assert!(matches!(Gdb.activity(&clean, &[]), Activity::Proven(_)));
        let (begun, _) = SHAPE.split_once("{\"kind\": \"ended\"").unwrap();
        assert!(matches!(Gdb.activity(&capture(begun, b""), &[]), Activity::Unproven(_)));
        clean.files.clear();
        assert!(matches!(Gdb.activity(&clean, &[]), Activity::Unproven(_)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..400), cut in 0usize..2000) {
            let mut capture = capture("", &bytes);
            let mut log = SHAPE.as_bytes()[..cut.min(SHAPE.len())].to_vec();
            log.extend(bytes);
            capture.files.insert(LOG.into(), log);
            let findings = Gdb.parse(&capture);
            Gdb.activity(&capture, &findings);
            attached(capture.files.get(LOG).unwrap());
        }
    }
}
