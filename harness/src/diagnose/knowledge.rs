//! What is known after each run, and how a run adds to it. Pure.

use std::fmt::Write as _;

use faultlab_recorder::format::{self, Fault};

use super::classify::{classify, first_line};
use super::escalate::StepId;
use super::locate::{self, kernel_of, narrowed, place_of};
use super::model::{Assertion, Confidence, Kernel, Launched, Outcome, Place, Surfaced, short};
use super::observe::{Observed, user_frame};
use crate::capture::Exit;
use crate::finding::{Finding, FindingKind};
use crate::tool::{self, Activity};

/// Why the recorder had no CUPTI, or not to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithoutCupti {
    /// It gave it up for another tool.
    GaveWay,
    /// Another tool had it.
    Busy,
    /// It is not there, or failed.
    Unusable,
}

impl WithoutCupti {
    /// What the recorder's notices say of it; giving way comes first, because that is of a program that has a profiler.
    fn of(observed: &Observed) -> Option<Self> {
        let said = |codes: &[&str]| {
            observed.recorded.iter().flat_map(|p| &p.notices).any(|notice| codes.contains(&notice.code.as_str()))
        };
        let all = [
            (Self::GaveWay, &["gave-way"][..]),
            (Self::Busy, &["cupti-busy"]),
            (Self::Unusable, &["no-cupti", "cupti-failed"]),
        ];
        all.into_iter().find(|(_, codes)| said(codes)).map(|(why, _)| why)
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Knowledge {
    /// What happened in the first run.
    pub outcome: Outcome,
    /// How sure the place is.
    pub confidence: Confidence,
    /// The lines that can be meant.
    pub places: Vec<Place>,
    /// The kernel, where it is known without a line.
    pub kernel: Option<Kernel>,
    /// Where the error came to light.
    pub surfaced: Option<Surfaced>,
    /// The device's own assertion.
    pub assertion: Option<Assertion>,
    /// Offending values.
    pub values: Vec<String>,
    /// The launches around the culprit.
    pub around: Vec<Launched>,
    /// The reasoning.
    pub evidence: Vec<String>,
    /// Beside the verdict.
    pub notices: Vec<String>,
    /// Steps in which the command did not fail.
    pub vanished: Vec<StepId>,
    /// Did the recorder see launches in the first run?
    pub recorder_was_on: bool,
    /// Did it lack CUPTI there, in one process at least?
    pub without_cupti: Option<WithoutCupti>,
    /// Did it see launches in the run by `LD_PRELOAD`?
    pub preload_was_on: bool,
    /// Seconds of the first run.
    pub first_s: f64,
    /// The fault as the recorder told it.
    fault: Option<Fault>,
}

/// A later run.
pub struct Seen<'a> {
    /// As it was seen from outside.
    pub observed: &'a Observed,
    /// What its tool said.
    pub findings: &'a [Finding],
    /// Whether its tool was on.
    pub activity: &'a Activity,
    /// Finds a file of the user's by its bare name.
    pub find: &'a dyn Fn(&str) -> Option<String>,
}

/// What a run showed, for its line of the transcript.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// In a sentence.
    pub outcome: String,
    /// The line that it named.
    pub named: Option<String>,
}

impl Knowledge {
    /// From the first run.
    pub fn first(observed: &Observed) -> Self {
        let outcome = classify(observed);
        let mut known = Self {
            confidence: if outcome == Outcome::Clean { Confidence::None } else { Confidence::Unlocated },
            outcome,
            places: Vec::new(),
            kernel: None,
            surfaced: None,
            assertion: observed.assertions().first().map(|a| locate::assertion(a)),
            values: Vec::new(),
            around: Vec::new(),
            evidence: Vec::new(),
            notices: notices(observed),
            vanished: Vec::new(),
            recorder_was_on: observed.recorder_was_on(),
            without_cupti: WithoutCupti::of(observed),
            preload_was_on: false,
            first_s: observed.elapsed_s,
            fault: None,
        };
        let fault = observed.faults().first().map(|(_, fault)| (*fault).clone());
        known.surfaced = locate::surfaced(observed, fault.as_ref());
        match known.outcome.clone() {
            Outcome::DeviceFault { .. } => match &fault {
                Some(fault) => known.take_fault(fault, StepId::Recorder),
                None if known.recorder_was_on && known.without_cupti == Some(WithoutCupti::GaveWay) => known
                    .evidence
                    .push("The launch recorder gave way to a profiler in the first run, before any fault.".into()),
                None if known.recorder_was_on => {
                    known.evidence.push("The launch recorder was on and reported no fault of its own.".into());
                }
                None => known.evidence.push("No launch recorder was on in the first run.".into()),
            },
            Outcome::HostError { .. } | Outcome::OutOfMemory { .. } => known.take_host_error(observed),
            Outcome::Hang { .. } => known.take_hang(observed, StepId::Recorder),
            Outcome::Killed { .. } => known.take_crash(observed),
            _ => {}
        }
        known.mark_innocent();
        known
    }

    /// What the first run showed.
    pub fn shown(&self) -> Shown {
        let what = match &self.outcome {
            Outcome::Clean => "it ended well".to_string(),
            Outcome::DeviceFault { text, .. } => format!("a device fault: {text}"),
            Outcome::NotFinite { text } => format!("a value that is not finite: {text}"),
            Outcome::OutOfMemory { .. } => "the device's memory did not suffice".into(),
            Outcome::HostError { type_name, .. } => format!("an error of the host: {type_name}"),
            Outcome::Hang { why } => format!("it hangs: {why}"),
            Outcome::Killed { signal } => format!("{signal} ended it"),
            Outcome::Failed { code } => format!("it ended with status {code} and printed no traceback"),
        };
        Shown { outcome: format!("{what}{}", self.place_words()), named: self.named() }
    }

    fn named(&self) -> Option<String> {
        self.places.first().map(Place::short)
    }

    fn place_words(&self) -> String {
        match (self.confidence, self.places.as_slice()) {
            (Confidence::Exact, [place, ..]) => format!("; located at {}", place.short()),
            (Confidence::Candidates, places @ [_, ..]) => {
                let all: Vec<String> = places.iter().map(Place::short).collect();
                format!("; {} launches or lines can be meant: {}", all.len(), all.join(", "))
            }
            (Confidence::None, _) => String::new(),
            _ => match &self.kernel {
                Some(kernel) => format!("; the kernel is {}, its line is not known", kernel.name),
                None => "; not located".into(),
            },
        }
    }

    /// A later run adds to it.
    pub fn absorb(&mut self, step: StepId, seen: &Seen<'_>) -> Shown {
        let before = (self.confidence, self.places.clone(), self.kernel.clone(), self.values.clone());
        let vanished = classify(seen.observed) == Outcome::Clean && self.outcome != Outcome::Clean;
        if vanished && step != StepId::Memcheck {
            self.vanished.push(step);
        }
        if self.assertion.is_none() {
            self.assertion = seen.observed.assertions().first().map(|a| locate::assertion(a));
        }
        match step {
            StepId::Recorder => {}
            StepId::Preload => self.take_preload(seen.observed),
            StepId::Every => {
                if let Some((_, fault)) = seen.observed.faults().first() {
                    self.take_fault(fault, step);
                }
            }
            StepId::Coredump => self.take_kernel(seen),
            StepId::Blocking => self.take_blocking(seen),
            StepId::Memcheck => self.take_memcheck(seen),
            StepId::Finite => self.take_finite(seen),
            StepId::Guard => self.take_guard(seen),
            StepId::Anomaly => self.take_anomaly(seen),
            StepId::Isolate => self.take_isolate(seen),
            StepId::Faulthandler => self.take_crash(seen.observed),
        }
        self.mark_innocent();
        let after = (self.confidence, self.places.clone(), self.kernel.clone(), self.values.clone());
        let outcome = if let (Activity::Unproven(why), true) = (seen.activity, before == after) {
            format!("nothing, because its tool was not on: {why}")
        } else if before.3 != after.3 && before.1 == after.1 {
            format!("the values: {}", self.values.join(", "))
        } else if before != after {
            format!("it {}", self.place_words().trim_start_matches("; ")).replace("it located", "located")
        } else if vanished {
            "the command did not fail in this run".into()
        } else {
            "nothing new".into()
        };
        Shown { outcome, named: if before.1 == after.1 { None } else { self.named() } }
    }

    fn take_fault(&mut self, fault: &Fault, step: StepId) {
        let mut culprits: Vec<&format::Launch> = fault.culprits.iter().collect();
        let mut evidence = fault.evidence.clone();
        let device_function = self.assertion.as_ref().and_then(|a| a.function.clone());
        if let Some(function) = device_function.filter(|_| culprits.len() > 1) {
            let left = narrowed(&fault.culprits, &function);
            if left.len() < culprits.len() {
                evidence.push(format!(
                    "The device's assertion names {}, which {} of the {} candidates ran.",
                    locate::kernel_base(&function),
                    left.len(),
                    culprits.len()
                ));
                culprits = left;
            }
        }
        let mut places: Vec<Place> = Vec::new();
        for launch in &culprits {
            if let Some(place) = place_of(launch, step.id())
                && !places.iter().any(|p| (&p.file, p.line) == (&place.file, place.line))
            {
                places.push(place);
            }
        }
        if self.fault.is_some() && places.is_empty() {
            return;
        }
        self.confidence = match (fault.confidence, culprits.len(), places.len()) {
            (format::Confidence::Unlocated, ..) | (_, _, 0) => Confidence::Unlocated,
            (_, _, 1) => Confidence::Exact,
            _ => Confidence::Candidates,
        };
        if culprits.iter().any(|launch| launch.source.len() > 1) {
            evidence.push(
                "The kernel was generated from several lines of the compiled function; the likeliest to fault is named first."
                    .into(),
            );
        }
        if culprits.len() > 1 && places.len() == 1 {
            evidence.push(format!("All {} candidates were launched from the same line.", culprits.len()));
        }
        self.kernel = culprits.first().map(|launch| kernel_of(launch));
        self.around = locate::around(fault);
        self.places = places;
        self.evidence = evidence.iter().map(|text| sentence(text)).collect();
        self.fault = Some(fault.clone());
    }

    fn take_host_error(&mut self, observed: &Observed) {
        let role = "raised the error";
        if let Some(place) = locate::exception_place(observed, role, "traceback") {
            self.places = vec![place];
            self.confidence = Confidence::Exact;
        }
        self.evidence.push(match (self.recorder_stayed_on(), &self.outcome) {
            (_, Outcome::OutOfMemory { .. }) => {
                "An allocation that fails is reported by the call that asked for it, so the traceback is right; who holds \
                 the memory is another question."
                    .into()
            }
            (true, _) => "The error was raised on the host, and the launch recorder saw no launch fail before it: the \
                          traceback is right as it stands."
                .into(),
            (false, _) => "The error was raised on the host: the traceback is right as it stands.".into(),
        });
    }

    /// Did the recorder see the first run to its end?
    pub fn recorder_stayed_on(&self) -> bool {
        self.recorder_was_on && self.without_cupti.is_none()
    }

    /// The first run once more, with the recorder to its end.
    fn take_preload(&mut self, observed: &Observed) {
        self.preload_was_on = observed.recorder_was_on();
        match (&self.outcome, observed.faults().first()) {
            (Outcome::Hang { .. }, _) => self.take_hang(observed, StepId::Preload),
            (_, Some((_, fault))) => self.take_fault(fault, StepId::Preload),
            (_, None) if self.preload_was_on => {
                self.evidence.push("The launch recorder by LD_PRELOAD was on and reported no fault of its own.".into());
            }
            _ => {}
        }
    }

    fn take_hang(&mut self, observed: &Observed, step: StepId) {
        let Some((_, hang)) = observed.hang() else { return self.take_stacks(observed) };
        let mut places: Vec<Place> = Vec::new();
        for launch in &hang.running {
            if let Some(mut place) = place_of(launch, step.id()) {
                if place.role == "launched the kernel that faulted" {
                    place.role = "launched the kernel that does not end".into();
                }
                if !places.iter().any(|p| (&p.file, p.line) == (&place.file, place.line)) {
                    places.push(place);
                }
            }
        }
        self.kernel = hang.running.first().map(kernel_of);
        self.confidence = match places.len() {
            0 => Confidence::Unlocated,
            1 => Confidence::Exact,
            _ => Confidence::Candidates,
        };
        if hang.running.is_empty() {
            self.evidence.push("No launch was running on a device: the host waits for something else.".into());
        } else if hang.guessed {
            self.evidence.push(format!(
                "Nothing ended for {:.0} s, and no markers tell which of {} launches runs: the likeliest is {}.",
                hang.seconds,
                hang.running.len(),
                hang.running.first().map(|launch| kernel_of(launch).name).unwrap_or_default(),
            ));
        } else {
            self.evidence.push(format!(
                "The recorder's markers say that {} began, or was next, and did not end for {:.0} s.",
                hang.running.first().map(|launch| kernel_of(launch).name).unwrap_or_default(),
                hang.seconds
            ));
        }
        if let Some(host) = user_frame(&hang.host) {
            self.surfaced = Some(Surfaced {
                what: "the host waits".into(),
                file: Some(host.file.clone()),
                line: Some(host.line),
                text: None,
                innocent: false,
            });
            if hang.running.is_empty() {
                let mut place = host_place(host);
                place.named_by = step.id().into();
                place.role = "is where the host waits".into();
                self.confidence = Confidence::Exact;
                places = vec![place];
            }
        }
        self.places = places;
    }

    /// No process reported a hang of a device: what each was doing when the time was up.
    fn take_stacks(&mut self, observed: &Observed) {
        /// More threads of one process are not told.
        const TOLD: usize = 4;
        let at = |frame: &format::Frame| format!("{}:{}", frame.file, frame.line);
        for stacks in &observed.stacks {
            let (name, Some(own)) = (observed.process_name(stacks.pid), user_frame(&stacks.main)) else { continue };
            let inside = stacks.main.first().filter(|innermost| *innermost != own);
            let inside = inside.map(|f| format!(", in {} ({})", f.function, at(f))).unwrap_or_default();
            self.evidence.push(format!(
                "Before it was killed, {name} was asked for its stacks by a signal: its main thread was at {}{inside}.",
                at(own)
            ));
            let others = stacks.others.iter().filter_map(|thread| user_frame(thread));
            for other in others.take(TOLD) {
                self.evidence.push(format!("Another thread of {name} was at {}, in {}.", at(other), other.function));
            }
            if self.places.iter().any(|place| (&place.file, place.line) == (&own.file, own.line)) {
                continue;
            }
            let mut place = host_place(own);
            place.role = "was being executed".into();
            place.named_by = "faulthandler".into();
            self.places.push(place);
        }
        self.confidence = match self.places.len() {
            0 => Confidence::Unlocated,
            1 => Confidence::Exact,
            _ => Confidence::Candidates,
        };
    }

    /// A signal: faulthandler's stack of the thread that died.
    fn take_crash(&mut self, observed: &Observed) {
        let fatal = observed.stderr.fatal_errors.iter().next_back();
        let thread = fatal.and_then(|f| f.threads.iter().find(|t| t.current).or(f.threads.first()));
        let frame = thread.and_then(|t| t.frames.iter().rev().find(|f| super::observe::is_user_file(&f.file)));
        let Some(frame) = frame else { return };
        let mut place = host_place(&format::Frame {
            file: frame.file.clone(),
            line: frame.line,
            function: frame.function.clone(),
            user: true,
        });
        place.role = "was executed when the process died".into();
        place.named_by = "faulthandler".into();
        self.places = vec![place];
        self.confidence = Confidence::Exact;
        self.evidence.push("Python's faulthandler printed the stack of the thread that died.".into());
    }

    /// The kernel of a core dump decides between candidates of the recorder.
    fn take_kernel(&mut self, seen: &Seen<'_>) {
        // Without a dump the log of the launches knows less than the recorder with its markers.
        if !seen.observed.core_dump {
            return;
        }
        let found = claims(seen).find_map(|report| Some((report, report.location.kernel.clone()?)));
        let Some((report, kernel)) = found else { return };
        let mut said = format!("The GPU's core dump names the kernel {}", locate::kernel_base(&kernel.name));
        if let (Some(block), Some(thread)) = (kernel.block, kernel.thread) {
            let _ = write!(said, ", block {block:?}, thread {thread:?}");
        }
        self.evidence.push(said + ".");
        let culprits = self.fault.as_ref().map(|f| f.culprits.clone()).unwrap_or_default();
        let role = "launched the kernel that the core dump names";
        if let Some(place) = locate::finding_place(report, role, StepId::Coredump.id(), seen.find) {
            // A log of this run's launches was joined with the dump.
            self.evidence.push(sentence(&report.message));
            let likeliest = report.message.contains(tool::LIKELIEST);
            let known = self.places.iter().find(|p| (&p.file, p.line) == (&place.file, place.line)).cloned();
            if !likeliest || self.places.is_empty() {
                self.confidence = if likeliest { Confidence::Candidates } else { Confidence::Exact };
                self.places = vec![known.unwrap_or(place)];
            }
        } else if culprits.len() > 1
            && let [only] = narrowed(&culprits, &kernel.name).as_slice()
            && let Some(place) = place_of(only, StepId::Coredump.id())
        {
            self.confidence = Confidence::Exact;
            self.places = vec![place];
            self.evidence.push("Only one of the candidates launched it.".into());
        }
        if self.kernel.is_none() {
            let block = None;
            self.kernel =
                Some(Kernel { name: kernel.name, grid: None, block, device: None, stream: None, launch: None });
        }
    }

    fn take_blocking(&mut self, seen: &Seen<'_>) {
        if matches!(seen.activity, Activity::Unproven(_)) {
            return;
        }
        let same = std::mem::discriminant(&classify(seen.observed)) == std::mem::discriminant(&self.outcome);
        let role = "is the call that fails when each launch is waited for";
        let Some(mut place) = locate::exception_place(seen.observed, role, StepId::Blocking.id()).filter(|_| same)
        else {
            return;
        };
        if let Some(candidate) = self.places.iter().find(|p| (&p.file, p.line) == (&place.file, place.line)) {
            place = candidate.clone();
            self.evidence.push(format!(
                "With CUDA_LAUNCH_BLOCKING=1 the error is raised at {}, which is one of the candidates.",
                place.short()
            ));
        } else if self.confidence == Confidence::Candidates {
            // The recorder saw which launches did not complete; a run that waits may fail elsewhere.
            self.evidence.push(format!(
                "With CUDA_LAUNCH_BLOCKING=1 the error is raised at {}, which is none of the candidates.",
                place.short()
            ));
            return;
        } else {
            self.evidence.push(format!(
                "With CUDA_LAUNCH_BLOCKING=1 each launch is waited for, and the error is raised at {}.",
                place.short()
            ));
        }
        self.places = vec![place];
        self.confidence = Confidence::Exact;
    }

    fn take_memcheck(&mut self, seen: &Seen<'_>) {
        let Some(report) = claims(seen).find(|f| f.kind == FindingKind::Report) else { return };
        self.evidence.push(format!("memcheck: {}.", first_line(&report.message).trim_end_matches('.')));
        self.values.extend(report.location.values.iter().cloned());
        if self.kernel.is_none()
            && let Some(kernel) = &report.location.kernel
        {
            let (name, block) = (kernel.name.clone(), None);
            self.kernel = Some(Kernel { name, grid: None, block, device: None, stream: None, launch: None });
        }
        let role = "launched the kernel in which memcheck found the error";
        if let Some(place) = locate::finding_place(report, role, StepId::Memcheck.id(), seen.find) {
            self.places = vec![place];
            self.confidence = Confidence::Exact;
        }
    }

    fn take_guard(&mut self, seen: &Seen<'_>) {
        let Some(report) = claims(seen).find(|f| f.kind == FindingKind::Report) else { return };
        let not_finite = report.message.contains("is not finite");
        let role = if not_finite {
            "is the first product or convolution that is given a value that is not finite"
        } else {
            "gives an operation values that it does not allow"
        };
        let place = locate::finding_place(report, role, StepId::Guard.id(), seen.find);
        let Some(place) = place else { return };
        let agrees = self.places.iter().any(|p| (&p.file, p.line) == (&place.file, place.line));
        if self.confidence == Confidence::Exact && !agrees {
            // The place stands on better evidence; another line with bad values may be the reason all the same.
            self.evidence.push(format!("guard, at {}: {}.", place.short(), report.message));
            return;
        }
        self.evidence.push(format!("guard, before the launch: {}.", report.message));
        self.values.extend(report.location.values.iter().cloned());
        if !agrees {
            self.places = vec![place];
            self.confidence = if not_finite { Confidence::Candidates } else { Confidence::Exact };
        }
    }

    fn take_finite(&mut self, seen: &Seen<'_>) {
        let Some(report) = claims(seen).find(|f| f.kind == FindingKind::Report) else { return };
        // Of inputs that were not finite, or of a tensor that came from elsewhere, it tells only where it was first seen.
        let made = report.message.ends_with(tool::MADE_HERE);
        let role = if made {
            "made the first value that is not finite"
        } else {
            "is where a value that is not finite is first seen"
        };
        let Some(place) = locate::finding_place(report, role, StepId::Finite.id(), seen.find) else { return };
        self.evidence.push(format!("The first value that is not finite is {}.", report.message));
        if made {
            self.settle_not_finite(place);
        } else if self.confidence != Confidence::Exact {
            self.places = vec![place];
            self.confidence = Confidence::Candidates;
        }
    }

    fn take_anomaly(&mut self, seen: &Seen<'_>) {
        let forward = seen.findings.iter().find(|f| f.kind == FindingKind::ForwardTrace);
        let Some(forward) = forward else { return };
        let role = "is the forward call whose backward makes the first value that is not finite";
        let Some(place) = locate::finding_place(forward, role, StepId::Anomaly.id(), seen.find) else { return };
        let node = forward.message.trim_start_matches("forward call of ");
        self.evidence
            .push(format!("Anomaly mode: {node} made NaN in backward; its forward call is {}.", place.short()));
        self.settle_not_finite(place);
    }

    fn take_isolate(&mut self, seen: &Seen<'_>) {
        let Some(report) = claims(seen).find(|f| f.kind == FindingKind::Report) else { return };
        let role = "ran the first module or backward node whose result is not finite";
        let Some(place) = locate::finding_place(report, role, StepId::Isolate.id(), seen.find) else { return };
        self.evidence.push(format!("isolate: {}.", report.message));
        self.values.extend(report.location.values.iter().cloned());
        self.settle_not_finite(place);
    }

    /// What made the value is nearer to the reason than what was given it.
    fn settle_not_finite(&mut self, place: Place) {
        self.places.retain(|p| (&p.file, p.line) != (&place.file, place.line));
        self.places = vec![place];
        self.confidence = Confidence::Exact;
    }

    /// The line where the error came to light did nothing wrong, unless it is the one that is meant.
    fn mark_innocent(&mut self) {
        let located = matches!(self.confidence, Confidence::Exact | Confidence::Candidates);
        let device =
            matches!(self.outcome, Outcome::DeviceFault { .. } | Outcome::NotFinite { .. } | Outcome::Hang { .. });
        let Some(surfaced) = &mut self.surfaced else { return };
        let meant =
            self.places.iter().any(|p| Some(&p.file) == surfaced.file.as_ref() && Some(p.line) == surfaced.line);
        surfaced.innocent = located && device && !meant && surfaced.line.is_some();
    }

    /// Is the launch known for certain? Then a run that looks for it again tells nothing new, even where no line of the
    /// user's belongs to it.
    pub fn launch_is_known(&self) -> bool {
        self.fault.as_ref().is_some_and(|fault| fault.confidence == format::Confidence::Exact)
    }

    /// The verdict in a sentence.
    pub fn headline(&self) -> String {
        let first = self.places.first();
        let at = first.map_or_else(|| "a line that is not known".into(), |p| short(&p.file, p.line));
        let many = self.confidence == Confidence::Candidates;
        match &self.outcome {
            Outcome::Clean => "The command ended well: there is nothing to diagnose.".into(),
            Outcome::DeviceFault { text, .. } => match (first, &self.kernel) {
                (Some(place), _) if !many => format!("{text}: {at} {}", place.role),
                (Some(_), _) => format!("{text}: one of {} lines, most likely {at}", self.places.len()),
                (None, Some(kernel)) => {
                    format!("{text}: in the kernel {}; its line is not known", locate::kernel_base(&kernel.name))
                }
                (None, None) => format!("{text}: the line could not be located"),
            },
            Outcome::NotFinite { text } => match first {
                Some(place) => format!("a value that is not finite: {at} {}", place.role),
                None => format!("a value that is not finite, whose line could not be located: {text}"),
            },
            Outcome::OutOfMemory { .. } => format!("out of memory on the device: {at} asked for more than was left"),
            Outcome::HostError { type_name, message } => {
                let message = first_line(message);
                let colon = if message.is_empty() { "" } else { ": " };
                format!("an error of the host, at {at}: {type_name}{colon}{message}")
            }
            Outcome::Hang { why } => match first {
                Some(place) => format!("it hangs ({why}): {at} {}", place.role),
                None => format!("it hangs ({why}); where could not be located"),
            },
            Outcome::Killed { signal } => match first {
                Some(_) => format!("{signal} ended it while {at} was executed"),
                None => format!("{signal} ended it"),
            },
            Outcome::Failed { code } => {
                format!("it ended with status {code} and printed no traceback: nothing is known of a line")
            }
        }
    }

    /// Steps in which it did not fail, in a sentence.
    pub fn vanished_words(&self) -> Option<String> {
        let steps: Vec<&str> = self.vanished.iter().map(|step| step.id()).collect();
        (!steps.is_empty()).then(|| {
            format!(
                "It does not fail in every run: not in {}. The fault depends on timing, on memory that is used again, or \
                 on chance.",
                steps.join(", ")
            )
        })
    }
}

fn host_place(frame: &format::Frame) -> Place {
    Place {
        file: frame.file.clone(),
        line: frame.line,
        function: frame.function.clone(),
        role: String::new(),
        named_by: StepId::Recorder.id().into(),
        kernel: None,
        source: Vec::new(),
        related: Vec::new(),
    }
}

/// With a capital and a full stop.
fn sentence(text: &str) -> String {
    let mut rest = text.trim().chars();
    let first = rest.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    let text = format!("{first}{}", rest.as_str());
    if text.ends_with(['.', '!', '?']) { text } else { text + "." }
}

fn claims<'a>(seen: &Seen<'a>) -> impl Iterator<Item = &'a Finding> {
    seen.findings.iter().filter(|f| f.kind.is_claim())
}

/// What the recorder had to say beside faults, each once; and processes other than the first that faulted.
fn notices(observed: &Observed) -> Vec<String> {
    /// What a recorder that works has for a backend.
    const ON: [&str; 2] = ["cupti", "interposed"];
    let mut all: Vec<String> = Vec::new();
    for notice in observed.recorded.iter().flat_map(|p| &p.notices) {
        if !all.contains(&notice.message) {
            all.push(notice.message.clone());
        }
    }
    for process in &observed.recorded {
        if let Some(start) = process.start.as_ref().filter(|start| !ON.contains(&start.backend.as_str())) {
            let text =
                format!("The launch recorder was loaded into process {} and is off: {}", process.pid, start.backend);
            if !all.contains(&text) {
                all.push(text);
            }
        }
    }
    let faults = observed.faults();
    for (pid, fault) in faults.iter().skip(1) {
        let line = fault.culprits.first().and_then(|l| place_of(l, "").as_ref().map(Place::short));
        let (first, earliest) = faults[0];
        let later = fault.time - earliest.time;
        let when = if earliest.time > 0.0 && later >= 0.0 {
            format!(", {later:.1} s after {}", observed.process_name(first))
        } else {
            String::new()
        };
        all.push(sentence(&format!(
            "{} reported {} too{}{when}",
            observed.process_name(*pid),
            fault.name,
            line.map(|line| format!(", at {line}")).unwrap_or_default()
        )));
    }
    if observed.exit == Exit::Code(0) && !faults.is_empty() {
        all.push("The command ended with status 0 all the same: an `except` or a child process hid the error.".into());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::observe::Process;
    use crate::diagnose::testing::{fault, launch};
    use crate::finding::{Kernel as FoundKernel, Location};
    use crate::testing::finding;

    const SURFACED: &str = "\
Traceback (most recent call last):
  File \"/j/train.py\", line 20, in <module>
    print(loss.item())
torch.AcceleratorError: CUDA error: device-side assert triggered
";

    fn observed(stderr: &str, faults: Vec<Fault>) -> Observed {
        let process = Process { pid: 7, faults, ..Process::default() };
        Observed::new(Exit::Code(1), 3.0, b"", stderr.as_bytes(), vec![process])
    }

    fn proven() -> Activity {
        Activity::Proven("x".into())
    }

    fn absorb(known: &mut Knowledge, step: StepId, stderr: &str, findings: &[Finding]) -> Shown {
        let observed = Observed { core_dump: step == StepId::Coredump, ..observed(stderr, Vec::new()) };
        known.absorb(step, &Seen { observed: &observed, findings, activity: &proven(), find: &|_| None })
    }

    fn two() -> Vec<format::Launch> {
        vec![launch(8, "spin", &[("/j/train.py", 17)]), launch(9, "gather<int>", &[("/j/train.py", 18)])]
    }

    #[test]
    fn an_exact_fault_and_an_innocent_surface() {
        let known =
            Knowledge::first(&observed(SURFACED, vec![fault(vec![launch(9, "gather", &[("/j/train.py", 18)])])]));
        assert_eq!((known.confidence, known.places.len()), (Confidence::Exact, 1));
        let surfaced = known.surfaced.as_ref().expect("a surface");
        assert_eq!((surfaced.line, surfaced.innocent), (Some(20), true));
        assert_eq!(known.headline(), "device-side assert triggered: train.py:18 launched the kernel that faulted");
    }

    /// The other ranks' faults are mostly consequences of the first one.
    #[test]
    fn of_two_processes_the_one_that_faulted_first_is_named() {
        let at = |pid, rank, time, line| {
            let start = format::Start {
                version: format::VERSION,
                pid,
                rank,
                argv: Vec::new(),
                backend: "cupti".into(),
                driver_version: 13000,
                cupti_version: 130_000,
                python: String::new(),
                markers: "adaptive".into(),
                ring: 1024,
            };
            let fault = Fault { time, ..fault(vec![launch(9, "gather", &[("/j/train.py", line)])]) };
            Process { pid, start: Some(start), faults: vec![fault], ..Process::default() }
        };
        let processes = |times: [f64; 2]| vec![at(7, Some(0), times[0], 30), at(8, Some(1), times[1], 18)];
        let known =
            |times| Knowledge::first(&Observed::new(Exit::Code(1), 3.0, b"", SURFACED.as_bytes(), processes(times)));
        let second = known([1002.5, 1000.0]);
        assert_eq!((second.places.len(), second.places[0].line), (1, 18));
        let told = "Process 7 (rank 0) reported CUDA_ERROR_ASSERT too, at train.py:30, 2.5 s after process 8 (rank 1).";
        assert!(second.notices.iter().any(|notice| notice == told), "{:?}", second.notices);
        // Reports of before there were times: the lower process id.
        let unknown = known([0.0, 0.0]);
        assert_eq!(unknown.places[0].line, 30);
        assert!(unknown.notices.iter().any(|notice| notice.ends_with("too, at train.py:18.")), "{:?}", unknown.notices);
    }

    #[test]
    fn the_assertion_decides_between_candidates() {
        let known = Knowledge::first(&observed(SURFACED, vec![fault(two())]));
        assert_eq!((known.confidence, known.places.len()), (Confidence::Candidates, 2));
        let line = "/a.cu:3: gather: block: [0,0,0], thread: [7,0,0] Assertion `i < n` failed.\n";
        let known = Knowledge::first(&observed(&format!("{line}{SURFACED}"), vec![fault(two())]));
        assert_eq!((known.confidence, known.places[0].line), (Confidence::Exact, 18));
        assert!(known.evidence.last().is_some_and(|e| e.contains("names gather")), "{:?}", known.evidence);
    }

    #[test]
    fn the_core_dump_decides_between_candidates() {
        let mut known = Knowledge::first(&observed(SURFACED, vec![fault(two())]));
        let kernel = FoundKernel { name: "gather".into(), block: Some([1, 0, 0]), thread: None, threads: None };
        let report =
            finding(FindingKind::Report, None, "Warp Assert", Location { kernel: Some(kernel), ..Location::default() });
        let shown = absorb(&mut known, StepId::Coredump, SURFACED, &[report]);
        assert_eq!((known.confidence, shown.named.as_deref()), (Confidence::Exact, Some("train.py:18")));
    }

    /// The core dump's run has its own log of launches: it locates what the first run could not.
    #[test]
    fn the_core_dump_with_a_launch_log_locates() {
        let at = |message: &str| {
            let kernel = FoundKernel { name: "gather".into(), block: Some([1, 0, 0]), thread: None, threads: None };
            let frame = crate::finding::PythonFrame {
                file: "/j/train.py".into(),
                own: None,
                line: 31,
                function: "step".into(),
                source: None,
            };
            let place = Location { kernel: Some(kernel), python: vec![frame], ..Location::default() };
            finding(FindingKind::Report, Some("CUDA_ERROR_ASSERT"), message, place)
        };
        let sure = at("CUDA_ERROR_LAUNCH_FAILED (719): launch #9 (gather) faulted; the core dump names its kernel");
        let one_of =
            at("CUDA_ERROR_LAUNCH_FAILED (719): launch #9 (gather) faulted; it is the likeliest of 3 that can have");
        let unlocated = || Knowledge::first(&observed(SURFACED, Vec::new()));
        let mut known = unlocated();
        let shown = absorb(&mut known, StepId::Coredump, SURFACED, std::slice::from_ref(&sure));
        assert_eq!((known.confidence, shown.named.as_deref()), (Confidence::Exact, Some("train.py:31")));
        assert_eq!(known.places[0].role, "launched the kernel that the core dump names");
        let mut known = unlocated();
        absorb(&mut known, StepId::Coredump, SURFACED, std::slice::from_ref(&one_of));
        assert_eq!((known.confidence, known.places[0].line), (Confidence::Candidates, 31));
        // What the markers narrowed down stands against a guess.
        let mut known = Knowledge::first(&observed(SURFACED, vec![fault(two())]));
        let before = known.places.clone();
        absorb(&mut known, StepId::Coredump, SURFACED, &[one_of]);
        assert_eq!((known.confidence, &known.places), (Confidence::Candidates, &before));
        absorb(&mut known, StepId::Coredump, SURFACED, std::slice::from_ref(&sure));
        assert_eq!((known.confidence, known.places[0].line), (Confidence::Exact, 31));
        // No dump was written: nothing is said in its name.
        let mut known = unlocated();
        let without = observed(SURFACED, Vec::new());
        let seen = Seen { observed: &without, findings: &[sure], activity: &proven(), find: &|_| None };
        known.absorb(StepId::Coredump, &seen);
        assert!(known.places.is_empty() && known.kernel.is_none(), "{:?}", known.evidence);
        assert!(!known.evidence.iter().any(|e| e.contains("core dump")), "{:?}", known.evidence);
    }

    /// A first run in which the recorder gave way.
    fn gave_way(exit: Exit) -> Knowledge {
        let notice = format::Notice { code: "gave-way".into(), message: "the recorder gave way".into() };
        let active = Some(format::Active { device: 0, markers: "on".into() });
        let process = Process { pid: 7, notices: vec![notice], active, ..Process::default() };
        Knowledge::first(&Observed::new(exit, 3.0, b"", SURFACED.as_bytes(), vec![process]))
    }

    /// What the run by `LD_PRELOAD` adds to it.
    fn preload(known: &mut Knowledge, exit: Exit, process: Process) -> Shown {
        let active = Some(format::Active { device: 0, markers: "on".into() });
        let process = Process { pid: 8, active, ..process };
        let observed = Observed::new(exit, 3.0, b"", SURFACED.as_bytes(), vec![process]);
        known
            .absorb(StepId::Preload, &Seen { observed: &observed, findings: &[], activity: &proven(), find: &|_| None })
    }

    #[test]
    fn the_recorder_by_preload_locates_what_it_had_given_up() {
        let first = gave_way(Exit::Code(1));
        assert_eq!(
            (first.confidence, first.notices.as_slice()),
            (Confidence::Unlocated, &["the recorder gave way".to_string()][..])
        );
        assert!(first.evidence[0].contains("gave way"), "{:?}", first.evidence);
        let mut known = first.clone();
        let process =
            Process { faults: vec![fault(vec![launch(9, "gather", &[("/j/train.py", 18)])])], ..Process::default() };
        let shown = preload(&mut known, Exit::Code(1), process);
        assert_eq!((known.confidence, shown.named.as_deref()), (Confidence::Exact, Some("train.py:18")));
        assert_eq!((known.places[0].named_by.as_str(), known.preload_was_on), ("recorder-preload", true));
        // It saw launches and no fault: that is said, and nothing is located.
        let mut known = first;
        preload(&mut known, Exit::Code(1), Process::default());
        assert_eq!((known.confidence, known.preload_was_on), (Confidence::Unlocated, true));
        assert!(known.evidence.last().is_some_and(|e| e.contains("reported no fault")), "{:?}", known.evidence);
    }

    #[test]
    fn a_hang_is_located_by_preload_too() {
        let mut known = gave_way(Exit::Deadline);
        known.outcome = Outcome::Hang { why: "--timeout".into() };
        let hang = format::Hang {
            time: 0.0,
            why: "deadline".into(),
            seconds: 60.0,
            running: vec![launch(9, "spin", &[("/j/train.py", 12)])],
            guessed: false,
            host: Vec::new(),
        };
        let shown = preload(&mut known, Exit::Deadline, Process { hangs: vec![hang], ..Process::default() });
        assert_eq!((known.confidence, shown.named.as_deref()), (Confidence::Exact, Some("train.py:12")));
        assert_eq!(known.places[0].role, "launched the kernel that does not end");
    }

    #[test]
    fn a_hang_without_markers_is_no_certainty() {
        let mut known = gave_way(Exit::Deadline);
        known.outcome = Outcome::Hang { why: "--timeout".into() };
        let running = vec![launch(9, "spin", &[("/j/train.py", 12)]), launch(8, "fill", &[("/j/train.py", 11)])];
        let hang =
            format::Hang { time: 0.0, why: "deadline".into(), seconds: 60.0, running, guessed: true, host: Vec::new() };
        preload(&mut known, Exit::Deadline, Process { hangs: vec![hang], ..Process::default() });
        assert_eq!((known.confidence, known.places.len()), (Confidence::Candidates, 2));
        assert!(known.evidence.last().is_some_and(|e| e.contains("no markers tell")), "{:?}", known.evidence);
    }

    #[test]
    fn a_recorder_without_cupti_is_not_called_off() {
        let process = |backend: &str| {
            let start = serde_json::json!({
                "version": 1, "pid": 7, "argv": [], "backend": backend, "driver_version": 0, "cupti_version": 0,
                "python": "", "markers": "adaptive", "ring": 1024,
            });
            let start = serde_json::from_value(start).expect("a start");
            Observed::new(Exit::Code(0), 1.0, b"", b"", vec![Process { start: Some(start), ..Process::default() }])
        };
        for (backend, said) in [("cupti", 0), ("interposed", 0), ("cupti-busy", 1)] {
            assert_eq!(notices(&process(backend)).len(), said, "{backend}");
        }
    }

    #[test]
    fn launch_blocking_names_the_call_and_another_error_does_not() {
        let mut known = Knowledge::first(&observed(SURFACED, Vec::new()));
        assert_eq!(known.confidence, Confidence::Unlocated);
        let other = SURFACED.replace("torch.AcceleratorError: CUDA error: device-side assert triggered", "KeyError: 3");
        assert_eq!(absorb(&mut known, StepId::Blocking, &other, &[]).named, None);
        let shown = absorb(&mut known, StepId::Blocking, &SURFACED.replace("20", "18"), &[]);
        assert_eq!((shown.named.as_deref(), known.confidence), (Some("train.py:18"), Confidence::Exact));
    }

    #[test]
    fn a_run_that_does_not_fail_is_told() {
        let mut known = Knowledge::first(&observed(SURFACED, Vec::new()));
        let clean = Observed::new(Exit::Code(0), 3.0, b"", b"", Vec::new());
        let activity = proven();
        let seen = Seen { observed: &clean, findings: &[], activity: &activity, find: &|_| None };
        let shown = known.absorb(StepId::Blocking, &seen);
        assert_eq!(shown.outcome, "the command did not fail in this run");
        assert!(known.vanished_words().is_some_and(|words| words.contains("launch-blocking")));
    }

    #[test]
    fn the_traceback_of_a_host_error_stands() {
        let text = "Traceback (most recent call last):\n  File \"/j/t.py\", line 3, in f\n    a[9]\nIndexError: out of range\n";
        let known = Knowledge::first(&observed(text, Vec::new()));
        assert_eq!((known.confidence, known.places[0].line), (Confidence::Exact, 3));
        assert!(known.surfaced.as_ref().is_some_and(|s| !s.innocent));
        assert_eq!(known.headline(), "an error of the host, at t.py:3: IndexError: out of range");
    }
}
