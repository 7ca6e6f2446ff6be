//! What the recorder's records say, as findings.

use std::fmt::Write as _;

use faultlab_recorder::format::{self, Fault, Frame, Hang, Launch};

use super::LIKELIEST;
use super::decide::{Clues, decide, inner};
use crate::capture::Capture;
use crate::finding::{DeviceLine, Evidence, Finding, FindingKind, Kernel, Location, NativeFrame, PythonFrame};
use crate::parse::{self, DeviceAssertion};
use crate::tool::debugger::Stop;
use crate::tool::{common, text};

/// Findings of each sort: every process may report, and every launch of a process may be a candidate.
const MOST: usize = 16;

/// The findings so far.
pub(super) struct Said<'a> {
    capture: &'a Capture,
    /// What a GPU core dump says.
    dump: Option<Stop>,
    /// The assertions of standard error: read once, and only if there is a fault.
    stderr: Option<Vec<DeviceAssertion>>,
    pub(super) findings: Vec<Finding>,
    claims: usize,
}

impl<'a> Said<'a> {
    pub(super) fn new(capture: &'a Capture, dump: Option<Stop>) -> Self {
        Self { capture, dump, stderr: None, findings: Vec::new(), claims: 0 }
    }

    pub(super) fn fault(&mut self, fault: &Fault, evidence: &Evidence) {
        if self.claims == MOST {
            return;
        }
        self.claims += 1;
        let assertions = self.stderr.take().unwrap_or_else(|| parse::scan_bytes(&self.capture.stderr).assertions);
        let dump = self.dump.take();
        let clues = Clues { assertions: &assertions, stderr: &self.capture.stderr, dump: dump.as_ref() };
        let decided = decide(fault, &clues);
        let mut message = format!("{} ({}): ", fault.name, fault.code);
        let Some((launch, rest)) = decided.culprits.split_first() else {
            message.push_str("a launch faulted, and which one is not known");
            self.add(FindingKind::Report, Some(&fault.name), message, evidence, Location::default());
            (self.stderr, self.dump) = (Some(assertions), dump);
            self.surfaced(fault, evidence);
            return;
        };
        let _ = write!(message, "{} faulted", described(launch));
        if !rest.is_empty() {
            let _ = write!(message, "; it is {LIKELIEST} {} that can have", decided.culprits.len());
        }
        if let Some(why) = &decided.why {
            let _ = write!(message, "; {why}");
        }
        if let Some(kernel) = dump.as_ref().and_then(|dump| dump.kernel.as_deref()).filter(|_| !decided.dumped) {
            let _ = write!(message, "; the core dump names {}, which none of them launched", shortened(kernel));
        }
        let mut place = self.place(launch);
        if let (Some(kernel), Some(dump)) = (&mut place.kernel, dump.as_ref().filter(|_| decided.dumped)) {
            (kernel.block, kernel.thread) = (dump.block, dump.thread);
        }
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
        (self.stderr, self.dump) = (Some(assertions), dump);
        self.surfaced(fault, evidence);
    }

    pub(super) fn hang(&mut self, hang: &Hang, evidence: &Evidence) {
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
                let mut message = format!("{head}; running: {}", described(launch));
                if hang.guessed && !rest.is_empty() {
                    let _ = write!(message, ", {LIKELIEST} {} that can be", hang.running.len());
                }
                self.add(claim, Some("hang"), message, evidence, place);
                self.beside(launch, evidence);
                for launch in rest.iter().take(MOST) {
                    let place = self.place(launch);
                    let message = if hang.guessed {
                        format!("{} can be running too", described(launch))
                    } else {
                        format!("{} is {} on its stream", described(launch), launch.state)
                    };
                    self.context(message, evidence, place);
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
            let which = if node.index == 0 { "it".into() } else { format!("node {} of {}", node.index, node.of) };
            self.context(format!("where {which} of the graph was captured"), evidence, place);
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

    pub(super) fn context(&mut self, message: String, evidence: &Evidence, location: Location) {
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
        let inner = inner(launch);
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
    let inner = inner(launch);
    let mut text = format!("launch #{} ({}", launch.seq, shortened(&inner.kernel));
    if inner.grid != [0; 3] {
        let _ = write!(text, ", grid {}, block {}", text::shown(inner.grid), text::shown(inner.block));
    }
    let _ = write!(text, ", stream {})", launch.stream);
    match &launch.node {
        Some(node) if node.index == 0 => {
            let _ = write!(text, " in one of {} nodes of a CUDA graph", node.of);
        }
        Some(node) => {
            let _ = write!(text, " in node {} of {} of a CUDA graph", node.index, node.of);
        }
        None => {}
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
