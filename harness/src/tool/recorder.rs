//! `recorder`: faultlab's own launch recorder (`harness/recorder`), which the CUDA driver loads into the program. It names
//! the launch that faulted, with the Python line that made it, while the program stays asynchronous.
//!
//! What it writes, shortened (`faultlab_recorder::format` is the definition); the files of all processes become one,
//! `recorder.jsonl`:
//!
//! ```text
//! {"type":"start","version":1,"pid":71,"backend":"cupti","markers":"adaptive",…}
//! {"type":"active","device":0,"markers":"on"}
//! {"type":"fault","code":710,"name":"CUDA_ERROR_ASSERT","confidence":"exact","culprits":[{"seq":412,"kernel":"at::native::…","frames":[{"file":"/p/train.py","line":43,…}],…}],…}
//! {"type":"exit","launches":431,"markers":120,…}
//! ```
//!
//! - The place of a fault is the line that its launch stands for: for a kernel that `torch.compile` generated the line of
//!   the user's function, for a launch of autograd's own thread the forward line of its node, else the innermost frame. Of a
//!   CUDA graph it is the line that replayed it; the line that captured the node is said beside it.
//! - Of several launches that can have faulted, the kernel's name decides where the assertion's text in standard error has
//!   it. Where nothing decides, the likeliest is the claim and the others are context: a claim is never a list of guesses.
//! - A hang is a claim like a fault. What ran on other streams at that moment is context.
//! - Evidence of activity is the recorder's own: it was loaded with CUPTI, saw a launch, could set its markers, set some,
//!   and wrote to the end. One that gave way to a profiler is inactive.
//!
//! The Python side of the recorder ([`SHIM`]) goes before `PYTHONPATH`. In a container the library is this machine's, mounted; an
//! image whose C library is too old cannot load it, and is said to have no recorder.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::LazyLock;

use faultlab_recorder::format::{self, Confidence, Fault, Frame, Hang, Launch, Record};

use super::{Activity, After, Command, Target, Tool, WorkFile, common, text};
use crate::capture::Capture;
use crate::case::{Device, Mode};
use crate::finding::{DeviceLine, Evidence, Finding, FindingKind, Kernel, Location, NativeFrame, PythonFrame};
use crate::host::Need;
use crate::parse::{self, DeviceAssertion};
use crate::recorder_env::{Markers, RecorderSettings, recorder_env, shim_files};

const REPORT: &str = "recorder.jsonl";

/// Joins the files of all processes; without any it makes an empty one.
const COLLECT: &str = "for f in recorder.*.jsonl; do [ -e \"$f\" ] && cat \"$f\"; done; true";

/// Seconds without anything finishing that are a hang: beyond a long kernel, within the patience of a watchdog.
const HANG_S: f64 = 5.0;

/// The recorder's Python side, as files of the working directory below `shim/`.
static SHIM: LazyLock<Vec<WorkFile>> = LazyLock::new(|| {
    let text = |bytes: &'static [u8]| std::str::from_utf8(bytes).ok();
    let file = |(path, bytes): (&'static Path, &'static [u8])| {
        let name: &'static str = Box::leak(format!("shim/{}", path.display()).into_boxed_str());
        Some(WorkFile { name, text: text(bytes)? })
    };
    shim_files().filter_map(file).collect()
});

/// Findings of each sort: every process may report, and every launch of a process may be a candidate.
const MOST: usize = 16;

/// See the module.
pub(super) struct Recorder;

impl Tool for Recorder {
    fn id(&self) -> &'static str {
        "recorder"
    }

    fn summary(&self) -> &'static str {
        "the launch that faulted and its Python line, while the program stays asynchronous (faultlab's launch recorder)"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Gpu, Need::Recorder]
    }

    fn objection(&self, _: Mode, device: Device) -> Option<&'static str> {
        (device == Device::Cpu).then_some("it records CUDA launches, and on the CPU there are none")
    }

    fn command(&self, target: &Target) -> Command {
        let mut command = common::python_command(target);
        let library = target.program_path(Need::Recorder.name());
        let (work, shim) = (Path::new(&target.work), Path::new(&target.work).join("shim"));
        let env = recorder_env(&RecorderSettings {
            library: Path::new(&library),
            shim: (!SHIM.is_empty()).then_some(shim.as_path()),
            reports: Some(work),
            markers: Markers::Adaptive,
            hang_s: Some(HANG_S),
            // Its words are in the file; standard error stays the program's.
            stderr: false,
            nan: false,
        });
        command.env.extend(env.set);
        command.prepend.extend(env.prepend);
        command.files.extend_from_slice(&SHIM);
        let argv = ["sh", "-c", COLLECT].map(String::from).into();
        command.after.push(After { output: REPORT, argv, only_if: None });
        command
    }

    fn parse(&self, capture: &Capture) -> Vec<Finding> {
        let mut said = Said { capture, stderr: None, findings: Vec::new(), claims: 0 };
        let mut last_hang = None;
        for (record, evidence) in records(capture) {
            match record {
                Record::Fault(fault) => said.fault(&fault, &evidence),
                // A later one knows more of the same hang.
                Record::Hang(hang) => last_hang = Some((hang, evidence)),
                Record::Notice(notice) => said.context(notice.message, &evidence, Location::default()),
                Record::Start(_) | Record::Active(_) | Record::Exit(_) => {}
            }
        }
        if let Some((hang, evidence)) = last_hang {
            said.hang(&hang, &evidence);
        }
        let mut findings = said.findings;
        findings.extend(common::context(capture));
        findings
    }

    fn activity(&self, capture: &Capture, findings: &[Finding]) -> Activity {
        let mut seen = Seen::default();
        records(capture).for_each(|(record, _)| seen.add(record));
        seen.activity().and(common::mode_activity(capture, findings))
    }
}

/// The records of the report. A line that is none (cut off by a kill, or of a later format) is passed over.
fn records(capture: &Capture) -> impl Iterator<Item = (Record, Evidence)> {
    let bytes = capture.files.get(REPORT).map(Vec::as_slice).unwrap_or_default();
    text::lines(bytes).filter_map(|(line, start)| {
        let record = serde_json::from_slice::<Record>(line).ok()?;
        Some((record, Evidence { stream: REPORT.into(), start, end: start + line.len() as u64 }))
    })
}

/// What the records prove. Processes that never launched anything (workers) prove and disprove nothing.
#[derive(Default)]
struct Seen {
    backend: Option<String>,
    /// What was said of the markers when the first launch was seen.
    markers: Option<String>,
    launches: u64,
    markers_set: u64,
    /// What it held in the end.
    bytes: u64,
    /// It wrote to the end, or to the event that is the end.
    ended: bool,
    gave_way: Option<String>,
}

impl Seen {
    fn add(&mut self, record: Record) {
        match record {
            // One process that is recorded is enough.
            Record::Start(start) if self.backend.as_deref() != Some("cupti") => self.backend = Some(start.backend),
            Record::Active(active) if self.markers.as_deref() != Some("on") => self.markers = Some(active.markers),
            Record::Notice(notice) if matches!(notice.code.as_str(), "gave-way" | "panicked") => {
                self.gave_way.get_or_insert(notice.message);
            }
            Record::Exit(exit) => {
                self.ended = true;
                self.launches = self.launches.saturating_add(exit.launches);
                self.markers_set = self.markers_set.saturating_add(exit.markers);
                self.bytes = self.bytes.saturating_add(exit.bytes);
            }
            Record::Fault(_) | Record::Hang(_) => self.ended = true,
            Record::Start(_) | Record::Active(_) | Record::Notice(_) => {}
        }
    }

    fn activity(self) -> Activity {
        let Self { backend, markers, launches, markers_set, bytes, ended, gave_way } = self;
        let Some(backend) = backend else {
            return Activity::Unproven(format!("the driver did not load the recorder: there is no record in {REPORT}"));
        };
        if backend != "cupti" {
            return Activity::Unproven(format!("the recorder was loaded and is off: {backend}"));
        }
        if let Some(why) = gave_way {
            return Activity::Unproven(why);
        }
        match markers.as_deref() {
            None => Activity::Unproven("the recorder was loaded and saw no launch".into()),
            Some("on") if !ended => {
                Activity::Unproven("the recorder's report breaks off before the program's end".into())
            }
            Some("on") if launches > 0 && markers_set == 0 => {
                Activity::Unproven(format!("the recorder saw {launches} launches and set no marker"))
            }
            Some("on") if launches > 0 => Activity::Proven(format!(
                "the recorder saw {launches} launches, set {markers_set} markers and held {bytes} bytes in the end"
            )),
            Some("on") => Activity::Proven("the recorder saw launches, with markers on".into()),
            Some(why) => Activity::Unproven(format!("the recorder could set no markers: {why}")),
        }
    }
}

/// The findings so far.
struct Said<'a> {
    capture: &'a Capture,
    /// The assertions of standard error: read once, and only if there is a fault.
    stderr: Option<Vec<DeviceAssertion>>,
    findings: Vec<Finding>,
    claims: usize,
}

impl Said<'_> {
    fn fault(&mut self, fault: &Fault, evidence: &Evidence) {
        if self.claims == MOST {
            return;
        }
        self.claims += 1;
        let assertions = self.stderr.take().unwrap_or_else(|| parse::scan_bytes(&self.capture.stderr).assertions);
        let decided = decide(fault, &assertions, &self.capture.stderr);
        let mut message = format!("{} ({}): ", fault.name, fault.code);
        let Some((launch, rest)) = decided.culprits.split_first() else {
            message.push_str("a launch faulted, and which one is not known");
            self.add(FindingKind::Report, Some(&fault.name), message, evidence, Location::default());
            self.stderr = Some(assertions);
            self.surfaced(fault, evidence);
            return;
        };
        let _ = write!(message, "{} faulted", described(launch));
        if !rest.is_empty() {
            let _ = write!(message, "; it is the likeliest of {} that can have", decided.culprits.len());
        }
        if let Some(why) = &decided.why {
            let _ = write!(message, "; {why}");
        }
        let mut place = self.place(launch);
        if let (Some(kernel), Some(assertion)) = (&mut place.kernel, decided.assertion) {
            kernel.block = Some(assertion.first.block);
            kernel.thread = Some(assertion.first.thread);
            kernel.threads = Some(assertion.count);
        }
        place.device = decided.assertion.map(|a| DeviceLine {
            file: a.file.clone(),
            line: a.line,
            expression: Some(a.expression.clone()),
        });
        self.add(FindingKind::Report, Some(&fault.name), message, evidence, place);
        self.beside(launch, evidence);
        for launch in rest.iter().take(MOST) {
            let place = self.place(launch);
            self.context(format!("{} can have faulted too", described(launch)), evidence, place);
        }
        for sentence in fault.evidence.iter().take(MOST) {
            self.context(sentence.clone(), evidence, Location::default());
        }
        self.stderr = Some(assertions);
        self.surfaced(fault, evidence);
    }

    fn hang(&mut self, hang: &Hang, evidence: &Evidence) {
        let why = match hang.why.as_str() {
            "signal" => "a signal asked what is running",
            _ => "a hang",
        };
        let head = format!("{why}: nothing has finished for {:.0} s", hang.seconds);
        // Under a fault it is one more circumstance.
        let claim = if self.claims == 0 { FindingKind::Report } else { FindingKind::Context };
        let mut order: Vec<&Launch> = hang.running.iter().collect();
        order.sort_by_key(|launch| launch.state != "running");
        match order.split_first() {
            None => self.context(format!("{head}, and no launch is running"), evidence, Location::default()),
            Some((launch, rest)) => {
                let place = self.place(launch);
                self.add(claim, Some("hang"), format!("{head}; running: {}", described(launch)), evidence, place);
                self.beside(launch, evidence);
                for launch in rest.iter().take(MOST) {
                    let place = self.place(launch);
                    self.context(format!("{} is {} on its stream", described(launch), launch.state), evidence, place);
                }
            }
        }
        if !hang.host.is_empty() {
            let location = Location { python: self.frames(&hang.host), ..Location::default() };
            self.context("where the host is".into(), evidence, location);
        }
    }

    /// The other lines that belong to a launch.
    fn beside(&mut self, launch: &Launch, evidence: &Evidence) {
        if let Some(node) = &launch.node {
            let place = self.place(&node.captured);
            self.context(
                format!("where node {} of {} of the graph was captured", node.index, node.of),
                evidence,
                place,
            );
        }
        if launch.forward.is_some() && !launch.frames.is_empty() {
            let location = Location { python: self.frames(&launch.frames), ..Location::default() };
            self.context("where the backward pass was running".into(), evidence, location);
        }
        if launch.source.len() > 1 {
            let location = Location { python: self.frames(&launch.source), ..Location::default() };
            self.context("all lines that the generated kernel was fused from".into(), evidence, location);
        }
    }

    fn surfaced(&mut self, fault: &Fault, evidence: &Evidence) {
        let location = Location { python: self.frames(&fault.surfaced.frames), ..Location::default() };
        self.context(format!("the error surfaced in {}", fault.surfaced.call), evidence, location);
    }

    fn context(&mut self, message: String, evidence: &Evidence, location: Location) {
        if self.findings.iter().filter(|f| f.kind == FindingKind::Context).count() < 4 * MOST {
            self.add(FindingKind::Context, None, message, evidence, location);
        }
    }

    fn add(
        &mut self,
        kind: FindingKind,
        error: Option<&str>,
        message: String,
        evidence: &Evidence,
        location: Location,
    ) {
        let error_type = error.map(String::from);
        self.findings.push(Finding { kind, error_type, message, location, evidence: evidence.clone() });
    }

    /// Where a launch is, by the rules of the module. Frames come outermost first, as in a traceback.
    fn place(&self, launch: &Launch) -> Location {
        let mut python = self.frames(&launch.frames);
        let has_own = |frames: &[PythonFrame]| frames.iter().any(|frame| frame.own.is_some());
        if let Some(forward) = &launch.forward
            && (!has_own(&python) || format::is_engine(&launch.frames))
        {
            let forward = self.frames(&forward.frames);
            if has_own(&forward) {
                python = forward;
            }
        }
        // A function of the generated code called the kernel; the line inside the user's function is inner to its call.
        let sources: Vec<PythonFrame> = launch.source.iter().filter_map(|frame| self.frame(frame)).collect();
        python.extend(sources.iter().find(|frame| frame.own.is_some()).or(sources.first()).cloned());
        let inner = launch.node.as_ref().map_or(launch, |node| &node.captured);
        let kernel = (inner.kind == "kernel" && !inner.kernel.is_empty()).then(|| Kernel {
            name: inner.kernel.clone(),
            block: None,
            thread: None,
            threads: None,
        });
        let native = |frame: &format::NativeFrame| NativeFrame {
            symbol: frame.function.clone(),
            module: None,
            source: frame.file.as_ref().map(|file| format!("{file}:{}", frame.line.unwrap_or_default())),
        };
        Location {
            python,
            native: launch.native.iter().map(native).collect(),
            kernel,
            module: launch.forward.as_ref().map(|forward| forward.node.clone()),
            ..Location::default()
        }
    }

    fn frames(&self, innermost_first: &[Frame]) -> Vec<PythonFrame> {
        innermost_first.iter().rev().filter_map(|frame| self.frame(frame)).collect()
    }

    /// A frame without a line is no place.
    fn frame(&self, frame: &Frame) -> Option<PythonFrame> {
        (frame.line > 0).then(|| PythonFrame {
            own: common::own(&self.capture.meta.program_root, &frame.file),
            file: frame.file.clone(),
            line: frame.line,
            function: frame.function.clone(),
            source: None,
        })
    }
}

/// `launch #412 (nll_loss…, grid (1,1,1), block (32,1,1), stream 0)`, and what sort of launch it is where it is no plain one.
fn described(launch: &Launch) -> String {
    let inner = launch.node.as_ref().map_or(launch, |node| &node.captured);
    let mut text = format!("launch #{} ({}", launch.seq, shortened(&inner.kernel));
    if inner.grid != [0; 3] {
        let _ = write!(text, ", grid {}, block {}", text::shown(inner.grid), text::shown(inner.block));
    }
    let _ = write!(text, ", stream {})", launch.stream);
    if let Some(node) = &launch.node {
        let _ = write!(text, " in node {} of {} of a CUDA graph", node.index, node.of);
    }
    if let Some(forward) = &launch.forward {
        let _ = write!(text, " of {}, whose forward line is given,", forward.node);
    }
    if !launch.source.is_empty() {
        text.push_str(" of generated code");
    }
    text
}

/// A kernel's name without its template arguments, which can be thousands of characters.
fn shortened(kernel: &str) -> &str {
    match kernel.find('<') {
        Some(at) if at > 0 => &kernel[..at],
        _ => kernel,
    }
}

/// The culprits that are left, and what decided.
struct Decided<'a> {
    culprits: Vec<&'a Launch>,
    why: Option<String>,
    /// The assertion of the first culprit's kernel.
    assertion: Option<&'a DeviceAssertion>,
}

/// Joins a fault with what standard error says of its kernel.
fn decide<'a>(fault: &'a Fault, assertions: &'a [DeviceAssertion], stderr: &[u8]) -> Decided<'a> {
    let all: Vec<&Launch> = match fault.confidence {
        Confidence::Exact => fault.culprits.iter().take(1).collect(),
        Confidence::Candidates | Confidence::Unlocated => fault.culprits.iter().collect(),
    };
    let matching = assertions.iter().find_map(|assertion| {
        let left: Vec<&Launch> = all.iter().copied().filter(|launch| asserts(kernel_of(launch), assertion)).collect();
        (!left.is_empty()).then_some((assertion, left))
    });
    if let Some((assertion, left)) = matching {
        // Of candidates that share the kernel, the name tells nothing.
        return match left.as_slice() {
            [_] if all.len() > 1 => {
                let why =
                    format!("the assertion in standard error names its kernel, of {} that can have faulted", all.len());
                Decided { culprits: left, why: Some(why), assertion: Some(assertion) }
            }
            _ => {
                // Those whose kernel asserted first; the order is kept otherwise.
                let others = all.iter().copied().filter(|launch| !asserts(kernel_of(launch), assertion));
                let culprits = left.iter().copied().chain(others).collect();
                Decided { culprits, why: None, assertion: Some(assertion) }
            }
        };
    }
    if all.len() > 1 {
        let named: Vec<&Launch> = all.iter().copied().filter(|launch| is_named(kernel_of(launch), stderr)).collect();
        if let [_] = named.as_slice() {
            let why = format!("standard error names its kernel, of {} that can have faulted", all.len());
            return Decided { culprits: named, why: Some(why), assertion: None };
        }
    }
    // The only assertion there is belongs to the only launch there is.
    let assertion = match (assertions, all.len()) {
        ([only], 1) if fault.name == "CUDA_ERROR_ASSERT" => Some(only),
        _ => None,
    };
    Decided { culprits: all, why: None, assertion }
}

/// The kernel: of a graph the node's, where it is known.
fn kernel_of(launch: &Launch) -> &str {
    &launch.node.as_ref().map_or(launch, |node| &node.captured).kernel
}

/// Can this assertion have failed in this kernel? By the function's name; where that is a lambda's, by the name of the source
/// file (`ScatterGatherKernel.cu`); where it is Python's, by the kernel being no C++ one.
fn asserts(kernel: &str, assertion: &DeviceAssertion) -> bool {
    if Path::new(&assertion.file).extension().is_some_and(|e| e == "py") {
        return !kernel.is_empty() && kernel.bytes().all(is_word);
    }
    match assertion.function.as_deref().map(function_name) {
        Some(name) if !name.is_empty() && name != "unknown" && !name.starts_with("operator") => has_word(kernel, name),
        _ => {
            let words = snake(&assertion.file);
            words.len() > 2 && has_part(kernel, &words)
        }
    }
}

/// The bare name in a C++ signature: `void at::native::gather<int>(long)` is `gather`.
fn function_name(signature: &str) -> &str {
    let head = signature.split(['(', '<']).next().unwrap_or_default();
    let head = head.rsplit("::").next().unwrap_or_default();
    head.split_whitespace().next_back().unwrap_or_default()
}

/// `/pytorch/…/ScatterGatherKernel.cu` is `scatter_gather`.
fn snake(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or_default();
    let stem = name.split('.').next().unwrap_or_default();
    let stem = stem.strip_suffix("Kernels").or(stem.strip_suffix("Kernel")).unwrap_or(stem);
    let mut words = String::new();
    for c in stem.chars() {
        if c.is_uppercase() && words.ends_with(|p: char| p.is_lowercase() || p.is_ascii_digit()) {
            words.push('_');
        }
        words.extend(c.to_lowercase());
    }
    words
}

/// Is the base name of the kernel in the text, outside the lines that the recorder itself wrote? Names of one word say
/// too little.
fn is_named(kernel: &str, stderr: &[u8]) -> bool {
    let name = function_name(kernel);
    name.contains('_')
        && memchr::memmem::find_iter(stderr, name).any(|at| {
            let line = stderr[..at].rsplit(|b| *b == b'\n').next().unwrap_or_default();
            bounded(stderr, at, name.len(), is_word) && !line.starts_with(b"faultlab: ")
        })
}

fn is_word(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric()
}

/// Does `word` stand in `text` as an identifier of its own?
fn has_word(text: &str, word: &str) -> bool {
    memchr::memmem::find_iter(text.as_bytes(), word).any(|at| bounded(text.as_bytes(), at, word.len(), is_word))
}

/// Does it stand there as one or more words of an identifier: `scatter_gather` in `_scatter_gather_elementwise_kernel`?
fn has_part(text: &str, part: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric();
    memchr::memmem::find_iter(text.as_bytes(), part).any(|at| bounded(text.as_bytes(), at, part.len(), letter))
}

/// Is there no such byte on either side?
fn bounded(text: &[u8], at: usize, length: usize, inside: impl Fn(u8) -> bool) -> bool {
    let before = at.checked_sub(1).and_then(|at| text.get(at));
    !before.is_some_and(|b| inside(*b)) && !text.get(at + length).is_some_and(|b| inside(*b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    const LOSS: &str =
        "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>";
    const ASSERTED: &str = "/pytorch/aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [17,0,0] Assertion `t >= 0 && t < n_classes` failed.\n";

    fn frame(file: &str, line: u32) -> Value {
        json!({"file": file, "line": line, "function": "f", "user": file.starts_with("/p/")})
    }

    fn launch(seq: u64, kernel: &str, lines: &[u32]) -> Value {
        let mut frames = vec![frame("/lib/torch/nn/functional.py", 3462)];
        frames.extend(lines.iter().map(|line| frame("/p/train.py", *line)));
        json!({
            "seq": seq, "kind": "kernel", "kernel": kernel, "symbol": "_Z1k", "grid": [1, 1, 1], "block": [32, 1, 1],
            "device": 0, "stream": 0, "thread": 7, "state": "running", "frames": frames,
        })
    }

    fn with(mut launch: Value, more: Value) -> Value {
        if let (Value::Object(launch), Value::Object(more)) = (&mut launch, more) {
            launch.extend(more);
        }
        launch
    }

    fn fault(confidence: &str, culprits: &[Value]) -> String {
        json!({
            "type": "fault", "code": 710, "name": "CUDA_ERROR_ASSERT", "confidence": confidence, "culprits": culprits,
            "surfaced": {"call": "cuStreamSynchronize", "frames": [frame("/p/train.py", 47)]},
            "evidence": ["launch #41 completed, launch #42 did not"], "around": [],
        })
        .to_string()
    }

    const START: &str = r#"{"type":"start","version":1,"pid":7,"argv":["python","train.py"],"backend":"cupti","driver_version":13000,"cupti_version":130000,"python":"3.12.3","markers":"adaptive","ring":65536}"#;
    const ACTIVE: &str = r#"{"type":"active","device":0,"markers":"on"}"#;
    const EXIT: &str =
        r#"{"type":"exit","launches":431,"markers":120,"evicted":0,"streams":2,"bytes":9000,"faulted":false}"#;

    fn capture(lines: &[&str], stderr: &str) -> Capture {
        let mut capture = testing::capture("/p", stderr.as_bytes());
        let text = lines.join("\n") + "\n";
        capture.files.insert(REPORT.into(), text.into_bytes());
        capture
    }

    /// The claims, and all findings.
    fn found(lines: &[&str], stderr: &str) -> (Vec<Finding>, Vec<Finding>) {
        let all = Recorder.parse(&capture(lines, stderr));
        (all.iter().filter(|f| f.kind.is_claim()).cloned().collect(), all)
    }

    fn lines_of(findings: &[Finding]) -> Vec<Option<u32>> {
        findings.iter().map(|f| f.location.innermost_own().map(|(_, line)| line)).collect()
    }

    #[test]
    fn a_fault_names_line_kernel_and_what_the_assertion_tells() {
        let fault = fault("exact", &[launch(42, LOSS, &[43, 61])]);
        let (claims, all) = found(&[START, ACTIVE, &fault], ASSERTED);
        assert_eq!(lines_of(&claims), [Some(43)]);
        let place = &claims[0].location;
        assert_eq!(place.python.first().map(|f| f.line), Some(61), "outermost first");
        assert_eq!(place.device.as_ref().map(|d| d.line), Some(245));
        assert_eq!(place.kernel.as_ref().and_then(|k| k.thread), Some([17, 0, 0]));
        let surfaced: Vec<_> = all.iter().filter(|f| f.message.contains("surfaced")).cloned().collect();
        assert_eq!(lines_of(&surfaced), [Some(47)]);
        assert_eq!(surfaced[0].kind, FindingKind::Context);
    }

    #[test]
    fn the_assertion_decides_between_candidates() {
        let spin = launch(8, "at::cuda::spin_kernel", &[30]);
        let fault = fault("candidates", &[spin.clone(), launch(10, LOSS, &[43])]);
        let (claims, all) = found(&[&fault], ASSERTED);
        assert_eq!(lines_of(&claims), [Some(43)]);
        assert!(claims[0].message.contains("names its kernel"), "{}", claims[0].message);
        assert!(!all.iter().any(|f| f.message.contains("too")));
        // Two launches of the kernel that asserted: the name decides nothing, and both are said.
        let fault = super::tests::fault("candidates", &[spin, launch(10, LOSS, &[43]), launch(11, LOSS, &[44])]);
        let (claims, all) = found(&[&fault], ASSERTED);
        assert_eq!(lines_of(&claims), [Some(43)]);
        assert!(claims[0].message.contains("likeliest of 3"), "{}", claims[0].message);
        assert_eq!(all.iter().filter(|f| f.message.ends_with("can have faulted too")).count(), 2);
    }

    #[test]
    fn where_nothing_decides_the_likeliest_is_the_claim_and_says_so() {
        let gather = launch(10, "at::native::vectorized_gather_kernel<16, long>", &[43]);
        let fault = fault("candidates", &[gather, launch(8, "at::cuda::spin_kernel", &[30])]);
        let (claims, all) = found(&[&fault], "");
        assert_eq!(lines_of(&claims), [Some(43)]);
        assert!(claims[0].message.contains("likeliest of 2"), "{}", claims[0].message);
        assert!(
            all.iter().any(|f| f.kind == FindingKind::Context && f.location.innermost_own().map(|p| p.1) == Some(30))
        );
        // A name in standard error decides, but not in the recorder's own words.
        assert!(!found(&[&fault], "faultlab: kernel spin_kernel\n").0[0].message.contains("names its kernel"));
        assert_eq!(lines_of(&found(&[&fault], "trap in spin_kernel at 0x1\n").0), [Some(30)]);
    }

    #[test]
    fn a_backward_launch_is_its_forward_line() {
        let forward = json!({"forward": {
            "node": "GatherBackward0", "sequence": 9, "kernel": "gather", "frames": [frame("/p/train.py", 21)],
        }});
        let engine = json!([
            {"file": "/lib/torch/autograd/graph.py", "line": 869, "function": "_engine_run_backward", "user": false},
            frame("/p/train.py", 45),
        ]);
        for frames in [json!([]), engine] {
            let launch = with(with(launch(42, "scatter", &[]), forward.clone()), json!({"frames": frames}));
            let (claims, _) = found(&[&fault("exact", &[launch])], "");
            assert_eq!(lines_of(&claims), [Some(21)]);
            assert_eq!(claims[0].location.module.as_deref(), Some("GatherBackward0"));
        }
        // A backward written in Python has a line of its own.
        let own = with(launch(42, "scatter", &[33]), forward);
        assert_eq!(lines_of(&found(&[&fault("exact", &[own])], "").0), [Some(33)]);
    }

    #[test]
    fn a_generated_kernel_is_the_line_it_was_made_from() {
        let source = json!({"source": [frame("/p/train.py", 14), frame("/p/train.py", 13)]});
        let launch = with(launch(42, "triton_poi_fused_index_0", &[24]), source);
        let stderr = "/tmp/torchinductor_root/ab/cab.py:25: unknown: block: [0,0,0], thread: [9,0,0] Assertion `index out of bounds: 0 <= tmp4 < 8` failed.\n";
        let (claims, _) = found(&[&fault("candidates", &[super::tests::launch(41, LOSS, &[5]), launch])], stderr);
        assert_eq!(lines_of(&claims), [Some(14)]);
        assert!(claims[0].message.contains("generated code"), "{}", claims[0].message);
    }

    #[test]
    fn a_graph_is_its_replay_with_the_captured_line_beside_it() {
        let node = json!({"kind": "graph", "kernel": "cuGraphLaunch", "node": {
            "index": 3, "of": 7, "captured": launch(0, "at::native::indexSelectSmallIndex<float>", &[13]),
        }});
        let graph = with(launch(42, "", &[31]), node);
        let (claims, all) = found(&[&fault("exact", &[graph])], "");
        assert_eq!(lines_of(&claims), [Some(31)]);
        assert!(claims[0].message.contains("node 3 of 7"), "{}", claims[0].message);
        assert!(claims[0].location.kernel.as_ref().is_some_and(|k| k.name.contains("indexSelect")));
        let captured: Vec<_> = all.iter().filter(|f| f.message.contains("captured")).cloned().collect();
        assert_eq!(lines_of(&captured), [Some(13)]);
    }

    #[test]
    fn the_last_hang_is_a_claim() {
        let hang = |seconds: f64, running: &[Value]| {
            json!({"type": "hang", "why": "deadline", "seconds": seconds, "running": running, "host": [frame("/p/train.py", 50)]})
                .to_string()
        };
        let waiting = with(launch(9, "mul", &[24]), json!({"state": "waiting"}));
        let (early, late) = (hang(5.0, &[]), hang(10.0, &[waiting, launch(8, "spin", &[23])]));
        let (claims, all) = found(&[START, ACTIVE, &early, &late], "");
        assert_eq!(lines_of(&claims), [Some(23)]);
        assert!(claims[0].message.starts_with("a hang: nothing has finished for 10 s"), "{}", claims[0].message);
        assert!(all.iter().any(|f| f.message == "where the host is"));
        // Nothing runs: the host is elsewhere, and the device is not accused.
        assert!(found(&[START, ACTIVE, &early], "").0.is_empty());
    }

    #[test]
    fn a_fault_without_its_launch_claims_no_place() {
        let (claims, _) = found(&[&fault("unlocated", &[])], "");
        assert_eq!(claims.len(), 1);
        assert!(!claims[0].location.names_a_place());
    }

    #[test]
    fn a_healthy_program_is_silent() {
        assert!(found(&[START, ACTIVE, EXIT], "").1.is_empty());
    }

    #[test]
    fn only_the_recorders_own_records_prove_it() {
        let fault = fault("exact", &[launch(42, LOSS, &[43])]);
        let proven = |lines: &[&str]| {
            let capture = capture(lines, "");
            matches!(Recorder.activity(&capture, &Recorder.parse(&capture)), Activity::Proven(_))
        };
        assert!(proven(&[START, ACTIVE, EXIT]));
        assert!(proven(&[START, ACTIVE, &fault]));
        // A worker that launched nothing ends beside the program, before or after it.
        let idle = r#"{"type":"exit","launches":0,"markers":0,"evicted":0,"streams":0,"bytes":0,"faulted":false}"#;
        assert!(proven(&[START, idle, START, ACTIVE, EXIT]));
        let busy = START.replace("\"cupti\"", "\"cupti-busy\"");
        let no_markers = ACTIVE.replace("\"on\"", "\"cuStreamWriteValue32 is not there\"");
        let none_set = EXIT.replace("\"markers\":120", "\"markers\":0");
        let gave_way = r#"{"type":"notice","code":"gave-way","message":"a profiler needs CUPTI"}"#;
        for lines in [
            &[][..],
            &[START],
            &[START, idle],
            &[&busy],
            &[START, ACTIVE],
            &[START, &no_markers, EXIT],
            &[START, ACTIVE, &none_set],
            &[START, ACTIVE, gave_way, EXIT],
            &["[faultlab: sh ended with exit 2]"],
        ] {
            assert!(!proven(lines), "{lines:?}");
        }
        assert!(matches!(Recorder.activity(&testing::capture("/p", b""), &[]), Activity::Unproven(_)));
    }

    #[test]
    fn the_driver_is_told_to_load_the_library() {
        let target = Target {
            python: "python3".into(),
            program: "/p/train.py".into(),
            args: Vec::new(),
            device: Device::Cuda,
            mode: Mode::Async,
            work: "/w".into(),
            programs: [("recorder".to_string(), "/opt/libfaultlab_recorder.so".to_string())].into(),
        };
        let command = Recorder.command(&target);
        assert_eq!(command.env["CUDA_INJECTION64_PATH"], "/opt/libfaultlab_recorder.so");
        assert_eq!(command.env["FAULTLAB_RECORDER_DIR"], "/w");
        assert_eq!(command.env["FAULTLAB_RECORDER_MARKERS"], "adaptive");
        assert!(!command.env.contains_key("CUDA_LAUNCH_BLOCKING"));
        assert_eq!(command.after[0].output, REPORT);
        assert_eq!(Recorder.objection(Mode::Sync, Device::Cuda), None);
        assert!(Recorder.objection(Mode::Async, Device::Cpu).is_some());
    }

    #[test]
    fn an_assertion_is_of_a_kernel() {
        let assertion = |file: &str, function: Option<&str>| {
            let text = format!(
                "{file}:7: {}: block: [0,0,0], thread: [1,0,0] Assertion `x` failed.\n",
                function.unwrap_or("operator()")
            );
            parse::scan_bytes(text.as_bytes()).assertions.remove(0)
        };
        let scatter = "at::native::_scatter_gather_elementwise_kernel<128, 8, at::native::_cuda_scatter_gather_internal_kernel<true>>";
        let lambda = assertion("/pytorch/aten/src/ATen/native/cuda/ScatterGatherKernel.cu", None);
        assert!(asserts(scatter, &lambda));
        assert!(!asserts(LOSS, &lambda));
        assert!(!asserts("at::native::index_elementwise_kernel<128, 4>", &lambda));
        assert!(asserts(
            LOSS,
            &assertion("Loss.cu", Some("void at::nll_loss_forward_reduce_cuda_kernel_2d<float>(long)"))
        ));
        assert!(!asserts("gather_rows_2", &assertion("x.cu", Some("gather_rows"))));
        assert_eq!(snake("/a/IndexKernel.cu"), "index");
        assert_eq!(function_name("void at::native::gather<int>(long)"), "gather");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..400), cut in 0usize..3000, keep in any::<bool>()) {
            let node = json!({"node": {"index": 3, "of": 7, "captured": launch(0, LOSS, &[13])}});
            let fault = fault("candidates", &[with(launch(42, "k", &[31]), node), launch(43, LOSS, &[0])]);
            let text = [START, ACTIVE, &fault, EXIT].join("\n");
            let mut log = text.as_bytes()[..cut.min(text.len())].to_vec();
            log.extend(&bytes);
            if keep {
                log.extend(b"\n");
                log.extend(text.as_bytes());
            }
            let mut capture = capture(&[], ASSERTED);
            capture.stderr.extend(&bytes);
            let length = log.len() as u64;
            capture.files.insert(REPORT.into(), log);
            let findings = Recorder.parse(&capture);
            for finding in findings.iter().filter(|f| f.evidence.stream == REPORT) {
                prop_assert!(finding.evidence.start <= finding.evidence.end && finding.evidence.end <= length);
            }
            let _ = Recorder.activity(&capture, &findings);
        }
    }
}
