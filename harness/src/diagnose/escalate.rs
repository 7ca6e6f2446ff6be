//! Which run comes next: from cheap to dear, by what happened. Pure.

use super::knowledge::{Knowledge, WithoutCupti};
use super::model::{Confidence, Outcome};
use crate::case::Mode;
use crate::recorder_env::{Entry, Markers};
use crate::tool::{self, Tool};

/// A way to run the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepId {
    /// Asynchronous, with the launch recorder: always first.
    Recorder,
    /// The same by `LD_PRELOAD`, without CUPTI.
    Preload,
    /// The recorder with a marker after each launch.
    Every,
    /// With the GPU's core dump armed.
    Coredump,
    /// With `CUDA_LAUNCH_BLOCKING=1`.
    Blocking,
    /// Under compute-sanitizer's memcheck.
    Memcheck,
    /// With the result of every operator checked on the device.
    Finite,
    /// With what operations are given checked before the launch.
    Guard,
    /// With PyTorch's anomaly mode.
    Anomaly,
    /// With hooks on every module and backward node.
    Isolate,
    /// With Python's faulthandler, which prints the stack of a thread that a signal kills.
    Faulthandler,
}

impl StepId {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Recorder,
        Self::Preload,
        Self::Every,
        Self::Coredump,
        Self::Blocking,
        Self::Memcheck,
        Self::Finite,
        Self::Guard,
        Self::Anomaly,
        Self::Isolate,
        Self::Faulthandler,
    ];

    /// The name in reports.
    pub fn id(self) -> &'static str {
        match self {
            Self::Recorder => "recorder",
            Self::Preload => "recorder-preload",
            Self::Every => "recorder-every",
            Self::Coredump => "coredump",
            Self::Blocking => "launch-blocking",
            Self::Memcheck => "memcheck",
            Self::Finite => "finite",
            Self::Guard => "guard",
            Self::Anomaly => "anomaly",
            Self::Isolate => "isolate",
            Self::Faulthandler => "faulthandler",
        }
    }

    /// The tool that is put on the command: the first of these that can run.
    pub fn tools(self) -> impl Iterator<Item = &'static dyn Tool> {
        let ids: &[&str] = match self {
            Self::Recorder | Self::Preload | Self::Every | Self::Blocking | Self::Faulthandler => &["bare"],
            // The first one has a log of the launches beside the dump, and so the line.
            Self::Coredump => &["recorder-dump", "coredump"],
            Self::Memcheck => &["memcheck"],
            Self::Finite => &["finite"],
            Self::Guard => &["guard"],
            Self::Anomaly => &["anomaly"],
            Self::Isolate => &["isolate"],
        };
        ids.iter().filter_map(|id| tool::find(id))
    }

    /// How the tool is run.
    pub fn mode(self) -> Mode {
        if self == Self::Blocking { Mode::Sync } else { Mode::Async }
    }

    /// The recorder's markers, where it is on. A second subscriber of the driver's profiling interface would keep the core
    /// dump from being written, and what is measured elsewhere needs no launch log.
    pub fn markers(self) -> Option<Markers> {
        match self {
            Self::Recorder | Self::Preload => Some(Markers::Adaptive),
            Self::Every => Some(Markers::Every),
            _ => None,
        }
    }

    /// How the recorder, where it is on, comes into the process.
    pub fn entry(self, known: &Knowledge) -> Entry {
        match self {
            Self::Preload => Entry::Preload,
            // Where CUPTI cannot be had, it cannot be had again.
            Self::Every if known.preload_was_on => Entry::Preload,
            _ => Entry::Injection,
        }
    }

    /// Seconds that it takes, by those of the first run: the least, and what is to be expected. Rough figures, to keep
    /// within a budget: most of a short run is the start of Python, which no tool slows down.
    pub fn cost(self, first_s: f64) -> (f64, f64) {
        let (least, times, more) = match self {
            Self::Recorder | Self::Preload | Self::Faulthandler => (1.0, 1.0, 0.0),
            Self::Every => (1.0, 1.1, 0.0),
            Self::Coredump => (1.0, 1.1, 10.0),
            Self::Blocking => (1.0, 2.1, 0.0),
            Self::Memcheck => (2.0, 20.0, 10.0),
            Self::Finite | Self::Guard | Self::Isolate => (1.0, 2.5, 1.0),
            Self::Anomaly => (1.0, 3.0, 1.0),
        };
        (least * first_s, times * first_s + more)
    }

    /// Seconds after which a run is killed: it must not use up what the runs after it need.
    pub fn deadline_s(self, first_s: f64, left_s: f64) -> f64 {
        /// A debugger or a sanitizer takes so long to load.
        const LEAST: f64 = 30.0;
        (3.0 * self.cost(first_s).1).max(LEAST).min(left_s)
    }
}

/// A run that is to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// Which.
    pub step: StepId,
    /// Why, in a sentence that is shown before it starts.
    pub why: String,
    /// Not for the line, which is known, but for the values on it: given up where it would take long.
    pub values_only: bool,
}

fn planned(step: StepId, why: &str) -> Planned {
    Planned { step, why: why.into(), values_only: false }
}

/// The recorder once more, if it was CUPTI that it lacked.
fn by_preload(known: &Knowledge) -> Option<Planned> {
    let why = match known.without_cupti? {
        WithoutCupti::GaveWay => "the recorder gave CUPTI up for a profiler",
        WithoutCupti::Busy => "another tool had CUPTI before the recorder",
        WithoutCupti::Unusable => "the recorder could not use CUPTI",
    };
    Some(planned(StepId::Preload, &format!("{why}: again with the recorder by LD_PRELOAD, which needs none")))
}

/// All that may follow the first run, in order. The next ones are dropped as soon as the place is known.
pub fn plan(known: &Knowledge) -> Vec<Planned> {
    match &known.outcome {
        Outcome::DeviceFault { .. } if known.confidence == Confidence::Exact => {
            let wants_values = known.assertion.is_some() && known.values.is_empty();
            let why = "the line is known; guard checks what operations are given, and can tell the values";
            let guard = Planned { values_only: true, ..planned(StepId::Guard, why) };
            wants_values.then_some(guard).into_iter().collect()
        }
        Outcome::DeviceFault { .. } => {
            let mut steps = Vec::new();
            steps.extend(by_preload(known));
            let can_be_on = known.preload_was_on || known.recorder_stayed_on();
            if can_be_on && !known.launch_is_known() {
                let why = if known.confidence == Confidence::Candidates {
                    "several launches can have faulted: again with a marker after each launch"
                } else {
                    "the recorder could not tell the launch: again with a marker after each"
                };
                steps.push(planned(StepId::Every, why));
            }
            if !known.launch_is_known() {
                steps.push(planned(
                    StepId::Coredump,
                    "the GPU's core dump tells the kernel, the block and the thread, and a log of the launches who launched it",
                ));
            }
            steps.push(planned(
                StepId::Blocking,
                "CUDA_LAUNCH_BLOCKING=1 waits for each launch, so the error is raised where it is made; about 2 times slower",
            ));
            steps.push(planned(
                StepId::Memcheck,
                "compute-sanitizer checks each access of each thread; 10 to 100 times slower",
            ));
            steps
        }
        Outcome::NotFinite { .. } => vec![
            planned(
                StepId::Finite,
                "a value that is not finite is no error to the device, so no launch recorder sees it: the result of every \
                 operator is checked on the device, without waiting",
            ),
            planned(StepId::Guard, "guard looks at what operations are given"),
            planned(
                StepId::Anomaly,
                "anomaly mode names the forward line of the first backward node that makes NaN; about 3 times slower",
            ),
            planned(StepId::Isolate, "hooks find the first module or backward node whose result is not finite"),
        ],
        Outcome::Hang { .. } => by_preload(known).into_iter().collect(),
        Outcome::HostError { message, .. } if !known.recorder_was_on && message.contains("CUDA") => vec![planned(
            StepId::Blocking,
            "the message is CUDA's and no recorder was on: a run that waits for each launch shows whether the line stays",
        )],
        Outcome::Killed { signal } if CRASHES.contains(&signal.as_str()) => vec![planned(
            StepId::Faulthandler,
            "native code died: Python's faulthandler prints the Python stack of the thread that a signal kills",
        )],
        _ => Vec::new(),
    }
}

/// Signals of a program that is at fault itself.
const CRASHES: &[&str] = &["SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL"];

/// Is there nothing left to look for?
pub fn is_settled(known: &Knowledge, step: &Planned) -> bool {
    !step.values_only && known.confidence == Confidence::Exact
}

/// Seconds that a run for the values alone may take: somebody waits for the line that is already known.
pub const VALUES_LIMIT_S: f64 = 90.0;

/// Why a step does not fit into what is left of the budget.
pub fn over_budget(step: &Planned, first_s: f64, left_s: f64) -> Option<String> {
    let (least, expected) = step.step.cost(first_s);
    if step.values_only && expected > VALUES_LIMIT_S {
        return Some(format!("it would take about {expected:.0} s, for the values alone"));
    }
    (least > left_s).then(|| {
        format!("it takes {least:.0} s at the least, and {:.0} s of the budget are left (--budget)", left_s.max(0.0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::Exit;
    use crate::diagnose::observe::{Observed, Process};
    use crate::diagnose::testing::{fault, launch};

    fn known(exit: Exit, stderr: &str, culprits: Option<u64>) -> Knowledge {
        let recorded = culprits.map(|count| {
            let all =
                (0..count).map(|n| launch(n + 1, "k", &[("/j/train.py", 4 + u32::try_from(n).unwrap())])).collect();
            Process { pid: 7, faults: vec![fault(all)], active: Some(active()), ..Process::default() }
        });
        let observed = Observed::new(exit, 10.0, b"", stderr.as_bytes(), recorded.into_iter().collect());
        Knowledge::first(&observed)
    }

    fn active() -> faultlab_recorder::format::Active {
        faultlab_recorder::format::Active { device: 0, markers: "on".into() }
    }

    fn steps(known: &Knowledge) -> Vec<&'static str> {
        plan(known).iter().map(|p| p.step.id()).collect()
    }

    const ASSERTION: &str = "/a/b.cu:2: f: block: [0,0,0], thread: [7,0,0] Assertion `i < n` failed.\n";

    #[test]
    fn from_cheap_to_dear_by_what_happened() {
        let failed = || Exit::Code(1);
        assert!(steps(&known(Exit::Code(0), "", None)).is_empty());
        assert_eq!(steps(&known(failed(), "", Some(2))), ["recorder-every", "coredump", "launch-blocking", "memcheck"]);
        assert_eq!(steps(&known(failed(), "", Some(0))), ["recorder-every", "coredump", "launch-blocking", "memcheck"]);
        assert_eq!(steps(&known(failed(), ASSERTION, None)), ["coredump", "launch-blocking", "memcheck"]);
        assert!(steps(&known(failed(), "", Some(1))).is_empty());
        let mut no_line = known(failed(), "", Some(1));
        (no_line.confidence, no_line.places) = (Confidence::Unlocated, Vec::new());
        assert_eq!(steps(&no_line), ["launch-blocking", "memcheck"]);
        assert_eq!(steps(&known(failed(), ASSERTION, Some(1))), ["guard"]);
        assert_eq!(steps(&known(Exit::Code(0), "loss nan", None)), ["finite", "guard", "anomaly", "isolate"]);
        assert!(steps(&known(Exit::Signal("SIGKILL".into()), "", None)).is_empty());
        assert_eq!(steps(&known(Exit::Signal("SIGSEGV".into()), "", None)), ["faulthandler"]);
    }

    /// A first run whose recorder said `code` to it; `on`: it had seen launches before.
    fn without_cupti(exit: Exit, stderr: &str, code: &str, on: bool) -> Knowledge {
        let notice = faultlab_recorder::format::Notice { code: code.into(), message: format!("{code}, it says") };
        let process = Process { pid: 7, notices: vec![notice], active: on.then(active), ..Process::default() };
        Knowledge::first(&Observed::new(exit, 10.0, b"", stderr.as_bytes(), vec![process]))
    }

    #[test]
    fn a_recorder_that_had_no_cupti_comes_by_preload_first() {
        let failed = || Exit::Code(1);
        for (code, on, says) in [
            ("gave-way", true, "for a profiler"),
            ("gave-way", false, "for a profiler"),
            ("cupti-busy", false, "another tool"),
            ("no-cupti", false, "could not use CUPTI"),
            ("cupti-failed", false, "could not use CUPTI"),
        ] {
            let known = without_cupti(failed(), ASSERTION, code, on);
            let planned = plan(&known);
            assert!(planned[0].why.contains(says) && planned[0].why.contains("LD_PRELOAD"), "{}", planned[0].why);
            // A marker after each launch by CUPTI would come to the same end.
            assert_eq!(steps(&known), ["recorder-preload", "coredump", "launch-blocking", "memcheck"], "{code}");
            assert_eq!(StepId::Every.entry(&known), Entry::Injection);
        }
        assert_eq!(StepId::Preload.entry(&known(failed(), "", None)), Entry::Preload);
        let mut preloaded = without_cupti(failed(), ASSERTION, "gave-way", true);
        preloaded.preload_was_on = true;
        assert_eq!(
            steps(&preloaded),
            ["recorder-preload", "recorder-every", "coredump", "launch-blocking", "memcheck"]
        );
        assert_eq!(StepId::Every.entry(&preloaded), Entry::Preload);
        assert_eq!(steps(&without_cupti(Exit::Deadline, "", "gave-way", true)), ["recorder-preload"]);
        // What else it says is no reason, and a program that ended well has none.
        assert_eq!(steps(&without_cupti(failed(), ASSERTION, "setting", false))[0], "coredump");
        assert!(steps(&without_cupti(Exit::Deadline, "", "setting", true)).is_empty());
        assert!(steps(&without_cupti(Exit::Code(0), "", "gave-way", true)).is_empty());
    }

    #[test]
    fn a_budget_is_kept() {
        let step = planned(StepId::Memcheck, "");
        assert!(over_budget(&step, 5.0, 10.0).is_none());
        assert!(over_budget(&step, 10.0, 19.0).is_some_and(|why| why.contains("20 s")));
        assert!((StepId::Guard.deadline_s(10.0, 600.0) - 78.0).abs() < 1e-9);
        assert!((StepId::Guard.deadline_s(1.0, 600.0) - 30.0).abs() < 1e-9);
        assert!((StepId::Guard.deadline_s(10.0, 40.0) - 40.0).abs() < 1e-9);
        let values = Planned { values_only: true, ..planned(StepId::Guard, "") };
        assert!(over_budget(&values, 100.0, 1e6).is_some());
    }
}
