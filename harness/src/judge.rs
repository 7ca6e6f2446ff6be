//! Holds what a tool said against the truth. Pure: it sees findings, never text of a capture.
//!
//! 1. A case without evidence of its tool is `ToolInactive`, whatever it found.
//! 2. On the twin, silence is `CleanAsExpected` and any claim a `FalseAlarm`.
//! 3. On the program, an exception that is not the scenario's error says nothing about the tool: `ToolFailed`.
//! 4. Each finding that claims a line of the program is scored by its innermost frame in the program's own files;
//!    the best score counts. Without such a line the kernel's name counts. A tool that reports a place of its own is
//!    judged by its reports alone, not by the traceback that the program prints in any case.
//! 5. No finding at all: the fault did not happen (`FaultMasked`), or it is of the silent sort (`Undetected`).

use crate::capture::Exit;
use crate::case::{Device, Judgement, NamedKernel, Outcome, Subject, TruthLine, Verdict};
use crate::finding::{Finding, FindingKind};
use crate::scenario::{Place, Scenario, Truth};
use crate::tool::Activity;

/// What is judged.
#[derive(Debug)]
pub struct Evidence<'a> {
    /// The scenario.
    pub scenario: &'a Scenario,
    /// The program or its twin.
    pub subject: Subject,
    /// Where it ran.
    pub device: Device,
    /// How it ended.
    pub exit: &'a Exit,
    /// What the tool said.
    pub findings: &'a [Finding],
    /// Whether the tool was on.
    pub activity: &'a Activity,
    /// The deadline, in seconds.
    pub deadline_s: f64,
}

/// The outcome of a case that ran.
pub fn judge(evidence: &Evidence<'_>) -> Outcome {
    let Evidence { scenario, subject, device, exit, findings, activity, deadline_s } = *evidence;
    if let Some(f) = findings.iter().find(|f| is_missing_module(f)) {
        return Outcome::Infra { reason: format!("the program could not be run: {}", one_line(&f.message)) };
    }
    if *exit == Exit::Deadline {
        return Outcome::TimedOut { after_s: deadline_s };
    }
    if let Activity::Unproven(reason) = activity {
        return Outcome::ToolInactive { reason: reason.clone() };
    }
    match subject {
        Subject::Twin => judge_twin(exit, findings),
        Subject::Program => judge_program(scenario, device, exit, findings),
    }
}

fn judge_twin(exit: &Exit, findings: &[Finding]) -> Outcome {
    let claim = findings.iter().position(|f| f.kind.is_claim());
    match (claim, exit) {
        (Some(at), _) => Outcome::Judged(Judgement {
            verdict: Verdict::FalseAlarm,
            named: findings[at].location.innermost_own().map(place),
            kernel: findings[at].location.kernel.as_ref().map(|k| NamedKernel { name: k.name.clone(), right: None }),
            decided_by: Some(at),
            reason: format!("on the fixed program it says: {}", one_line(&findings[at].message)),
        }),
        (None, Exit::Code(0)) => Outcome::Judged(Judgement {
            verdict: Verdict::CleanAsExpected,
            named: None,
            kernel: None,
            decided_by: None,
            reason: "exit 0, and nothing was said".into(),
        }),
        (None, exit) => {
            Outcome::ToolFailed { reason: format!("the fixed program ended with {exit}, and no error was read") }
        }
    }
}

fn judge_program(scenario: &Scenario, device: Device, exit: &Exit, findings: &[Finding]) -> Outcome {
    let expected_error = scenario.error(device);
    let foreign = findings.iter().find(|f| {
        matches!(f.kind, FindingKind::Exception | FindingKind::Ended)
            && expected_error.is_none_or(|e| !e.matches(f.error_type.as_deref().unwrap_or_default(), &f.message))
    });
    let ours = findings.iter().any(|f| {
        let ended = matches!(f.kind, FindingKind::Exception | FindingKind::Ended);
        if ended {
            expected_error.is_some_and(|e| e.matches(f.error_type.as_deref().unwrap_or_default(), &f.message))
        } else {
            f.kind.is_claim()
        }
    });
    match foreign {
        // One process of several may die of something else once the first has died of the fault.
        Some(f) if !ours => {
            return Outcome::ToolFailed {
                reason: format!(
                    "it ended in an error that is not this scenario's: {}: {}",
                    f.error_type.as_deref().unwrap_or("error"),
                    one_line(&f.message)
                ),
            };
        }
        _ => {}
    }
    let reports = findings.iter().any(|f| f.kind == FindingKind::Report && f.location.names_a_place());
    let scored = |f: &Finding| if reports { f.kind == FindingKind::Report } else { f.kind.is_claim() };
    let kernel = named_kernel(findings.iter().filter(|f| scored(f)), &scenario.truth);
    let best = findings
        .iter()
        .enumerate()
        .filter(|(_, f)| scored(f))
        .filter_map(|(at, f)| Some((at, place(f.location.innermost_own()?))))
        .map(|(at, named)| (score(&named, &scenario.truth), at, named))
        .max_by_key(|(verdict, at, _)| (rank(*verdict), std::cmp::Reverse(*at)));
    if let Some((verdict, at, named)) = best {
        let reason = describe(verdict, &named, &scenario.truth);
        return Outcome::Judged(Judgement { verdict, named: Some(named), kernel, decided_by: Some(at), reason });
    }
    if let Some(kernel) = kernel {
        let at = findings.iter().position(|f| scored(f) && f.location.kernel.is_some());
        let verdict = if kernel.right == Some(false) { Verdict::WrongPlace } else { Verdict::KernelOnly };
        let reason = format!("it names the kernel {} and no line of the program", kernel.name);
        return Outcome::Judged(Judgement { verdict, named: None, kernel: Some(kernel), decided_by: at, reason });
    }
    let asserted = findings.iter().any(|f| f.kind == FindingKind::DeviceAssertion);
    match exit {
        // A program can end before it meets the error; that the device printed an assertion shows that the fault was there.
        Exit::Code(0) if expected_error.is_some() && !asserted => {
            Outcome::FaultMasked { reason: "the program ran to its end: exit 0, and nothing was said".into() }
        }
        Exit::Code(0) if !asserted => Outcome::Judged(Judgement {
            verdict: Verdict::Undetected,
            named: None,
            kernel: None,
            decided_by: None,
            reason: "exit 0 with wrong results, and nothing was said".into(),
        }),
        exit if findings.is_empty() => {
            Outcome::ParseFailed { reason: format!("it ended with {exit}, and nothing that it printed was understood") }
        }
        exit => Outcome::Judged(Judgement {
            verdict: Verdict::Undetected,
            named: None,
            kernel: None,
            decided_by: None,
            reason: format!("it ended with {exit}, and what it said names neither a line of the program nor a kernel"),
        }),
    }
}

fn is_missing_module(f: &Finding) -> bool {
    matches!(f.kind, FindingKind::Exception | FindingKind::Ended)
        && matches!(f.error_type.as_deref(), Some("ModuleNotFoundError" | "ImportError"))
}

fn place((file, line): (&str, u32)) -> Place {
    Place { file: file.to_string(), line }
}

fn score(named: &Place, truth: &Truth) -> Verdict {
    if *named == truth.fault {
        Verdict::Exact(TruthLine::Fault)
    } else if *named == truth.root {
        Verdict::Exact(TruthLine::Root)
    } else if truth.callers.contains(named) {
        Verdict::Enclosing
    } else {
        Verdict::WrongPlace
    }
}

fn rank(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Exact(TruthLine::Fault) => 4,
        Verdict::Exact(TruthLine::Root) => 3,
        Verdict::Enclosing => 2,
        _ => 1,
    }
}

/// The first kernel that is the right one, else the first at all.
fn named_kernel<'a>(findings: impl Iterator<Item = &'a Finding>, truth: &Truth) -> Option<NamedKernel> {
    let named = |name: &String| NamedKernel {
        name: name.clone(),
        right: truth.kernel.as_ref().map(|pattern| pattern.found_in(name)),
    };
    let mut kernels = findings.filter_map(|f| f.location.kernel.as_ref()).map(|k| named(&k.name));
    let first = kernels.next()?;
    if first.right == Some(true) {
        return Some(first);
    }
    kernels.find(|k| k.right == Some(true)).or(Some(first))
}

fn describe(verdict: Verdict, named: &Place, truth: &Truth) -> String {
    match verdict {
        Verdict::Exact(TruthLine::Fault) => format!("it names {named}, the line whose operation faults"),
        Verdict::Exact(TruthLine::Root) => format!("it names {named}, the line that made the bad value"),
        Verdict::Enclosing => format!("it names {named}, which calls the faulting line {}", truth.fault),
        _ => format!("it names {named}; the fault is at {}", truth.fault),
    }
}

/// The first line of a message, for a sentence.
fn one_line(message: &str) -> &str {
    message.lines().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{Kernel, Location, PythonFrame};
    use crate::testing;

    /// An exception whose traceback has these lines of the program, outermost first.
    fn exception(error_type: &str, message: &str, lines: &[u32]) -> Finding {
        let python = lines
            .iter()
            .map(|line| PythonFrame {
                file: "/p/train.py".into(),
                own: Some("train.py".into()),
                line: *line,
                function: "f".into(),
                source: None,
            })
            .collect();
        testing::finding(FindingKind::Exception, Some(error_type), message, Location { python, ..Location::default() })
    }

    fn kernel(name: &str) -> Finding {
        let kernel = Kernel { name: name.into(), block: None, thread: None, threads: None };
        testing::finding(
            FindingKind::DeviceAssertion,
            None,
            "assert",
            Location { kernel: Some(kernel), ..Location::default() },
        )
    }

    fn check(subject: Subject, exit: &Exit, findings: &[Finding]) -> Outcome {
        // FAULT is line 7, ROOT line 3, CALLER line 10; kernel `nll_loss`; error `torch.AcceleratorError: …assert…`.
        let scenario = testing::scenario();
        judge(&Evidence {
            scenario: &scenario,
            subject,
            device: Device::Cuda,
            exit,
            findings,
            activity: &Activity::Proven("seen".into()),
            deadline_s: 60.0,
        })
    }

    fn label(findings: &[Finding]) -> String {
        check(Subject::Program, &Exit::Code(1), findings).label()
    }

    const TYPE: &str = "torch.AcceleratorError";
    const TEXT: &str = "CUDA error: device-side assert triggered";

    #[test]
    fn the_innermost_own_frame_is_scored() {
        assert_eq!(label(&[exception(TYPE, TEXT, &[10, 7])]), "exact (fault)");
        assert_eq!(label(&[exception(TYPE, TEXT, &[10, 3])]), "exact (root)");
        assert_eq!(label(&[exception(TYPE, TEXT, &[10])]), "enclosing");
        assert_eq!(label(&[exception(TYPE, TEXT, &[7, 12])]), "wrong place");
    }

    #[test]
    fn the_best_claim_counts_and_context_does_not() {
        let mut earlier = exception(TYPE, TEXT, &[7]);
        earlier.kind = FindingKind::Context;
        assert_eq!(label(&[earlier.clone(), exception(TYPE, TEXT, &[12])]), "wrong place");
        earlier.kind = FindingKind::ForwardTrace;
        assert_eq!(label(&[exception(TYPE, TEXT, &[12]), earlier]), "exact (fault)");
    }

    #[test]
    fn a_kernel_counts_where_no_line_is_named() {
        assert_eq!(label(&[kernel("nll_loss_forward")]), "kernel only");
        assert_eq!(label(&[kernel("gemm")]), "wrong place");
        let outcome =
            check(Subject::Program, &Exit::Code(1), &[kernel("nll_loss_forward"), exception(TYPE, TEXT, &[12])]);
        let judgement = outcome.judgement().map(|j| (j.verdict, j.kernel.as_ref().and_then(|k| k.right)));
        assert_eq!(judgement, Some((Verdict::WrongPlace, Some(true))));
    }

    #[test]
    fn an_assertion_that_no_call_met_is_no_masked_fault() {
        let lambda = testing::finding(FindingKind::DeviceAssertion, None, "assert", Location::default());
        assert_eq!(check(Subject::Program, &Exit::Code(0), &[lambda]).label(), "undetected");
    }

    #[test]
    fn what_is_not_the_scenarios_error_says_nothing_about_the_tool() {
        assert_eq!(label(&[exception("KeyError", "'x'", &[7])]), "tool failed");
        assert_eq!(label(&[exception("ModuleNotFoundError", "No module named 'torch'", &[1])]), "infrastructure");
        assert_eq!(label(&[exception("KeyError", "'x'", &[2]), exception(TYPE, TEXT, &[7])]), "exact (fault)");
    }

    #[test]
    fn silence() {
        assert_eq!(check(Subject::Program, &Exit::Code(0), &[]).label(), "fault masked");
        assert_eq!(check(Subject::Program, &Exit::Signal("SIGSEGV".into()), &[]).label(), "not understood");
        assert_eq!(check(Subject::Program, &Exit::Deadline, &[]).label(), "timed out");
        assert_eq!(check(Subject::Twin, &Exit::Code(0), &[]).label(), "clean, as expected");
        assert_eq!(check(Subject::Twin, &Exit::Code(1), &[]).label(), "tool failed");
        assert_eq!(check(Subject::Twin, &Exit::Code(1), &[exception(TYPE, TEXT, &[7])]).label(), "false alarm");
    }

    #[test]
    fn an_inactive_tool_gets_no_verdict() {
        let scenario = testing::scenario();
        let outcome = judge(&Evidence {
            scenario: &scenario,
            subject: Subject::Program,
            device: Device::Cuda,
            exit: &Exit::Code(1),
            findings: &[exception(TYPE, TEXT, &[7])],
            activity: &Activity::Unproven("not on".into()),
            deadline_s: 60.0,
        });
        assert_eq!(outcome, Outcome::ToolInactive { reason: "not on".into() });
    }
}
