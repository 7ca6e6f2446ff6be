//! One run that has every outcome, ties, and a tool that never ran.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::*;
use crate::capture::{Exit, Provenance, Stream};
use crate::case::{Device, Judgement, NamedKernel};
use crate::finding::{DeviceLine, Kernel, Location, NativeFrame, PythonFrame};
use crate::host::Stack;
use crate::report::{Layout, ReportFormat};
use crate::results::{SCHEMA_VERSION, Settings};
use crate::testing;

fn process(elapsed_s: f64, host: u64, gpu: Option<u64>) -> ProcessView {
    ProcessView {
        argv: Vec::new(),
        env: BTreeMap::new(),
        exit: Exit::Code(1),
        elapsed_s,
        peak_rss_bytes: Some(host),
        peak_gpu_bytes: gpu,
        stdout: Stream::default(),
        stderr: Stream::default(),
        left_behind: Vec::new(),
        provenance: Provenance {
            faultlab: "0.0.0".into(),
            date: Timestamp::UNIX_EPOCH,
            backend: "local".into(),
            stack: Stack::default(),
        },
    }
}

fn judged(verdict: Verdict, kernel: Option<bool>) -> Outcome {
    Outcome::Judged(Judgement {
        verdict,
        named: None,
        kernel: kernel.map(|right| NamedKernel { name: "k".into(), right: Some(right) }),
        decided_by: Some(0),
        reason: String::new(),
    })
}

fn at(line: u32) -> Location {
    let file = "train.py".to_string();
    let frame = PythonFrame { own: Some(file.clone()), file, line, function: "f".into(), source: None };
    Location { python: vec![frame], ..Location::default() }
}

fn case(id: (&str, Subject, &str, Mode), outcome: Outcome, cost: Option<(f64, u64, Option<u64>)>) -> CaseResult {
    let (scenario, subject, tool, mode) = id;
    CaseResult {
        case: CaseId { scenario: scenario.into(), subject, tool: tool.into(), mode },
        outcome,
        expected: None,
        findings: Vec::new(),
        activity: None,
        process: cost.map(|(time, host, gpu)| process(time, host, gpu)),
    }
}

fn report(location: Location) -> Finding {
    testing::finding(FindingKind::Report, None, "", location)
}

fn empty() -> Run {
    let scenario = |id: &str| {
        let mut view = ScenarioView::from(&testing::scenario());
        view.id = id.into();
        view
    };
    Run {
        schema_version: SCHEMA_VERSION,
        faultlab: "0.0.0".into(),
        started: Timestamp::UNIX_EPOCH,
        settings: Settings {
            backend: "local".into(),
            image: None,
            backend_reason: "asked for".into(),
            device: Device::Cuda,
            stack: Stack::default(),
            recorded: None,
            timeout_s: 120.0,
            output_cap: 0,
            jobs: 4,
        },
        scenarios: ["labels", "stream", "write"].map(scenario).to_vec(),
        cases: Vec::new(),
        unfinished: Vec::new(),
    }
}

/// FAULT is line 7, ROOT line 3.
fn fixture() -> Run {
    use Mode::{Async, Sync};
    use Subject::{Program, Twin};
    let exact = |line| Verdict::Exact(line);
    let reason = || "why".to_string();
    let mut guard = case(
        ("labels", Program, "guard", Async),
        judged(exact(TruthLine::Root), None),
        Some((6.0, 3 << 20, Some(5 << 20))),
    );
    guard.findings =
        vec![report(Location { values: vec!["labels[3] = 10".into()], module: Some("head".into()), ..at(3) })];
    let mut native = case(
        ("labels", Program, "native", Sync),
        judged(exact(TruthLine::Fault), Some(true)),
        Some((8.0, 2 << 20, None)),
    );
    let native_frame = NativeFrame { symbol: "f".into(), module: None, source: None };
    native.findings = vec![
        testing::finding(FindingKind::Exception, None, "", at(7)),
        testing::finding(
            FindingKind::NativeStack,
            None,
            "",
            Location { native: vec![native_frame], ..Location::default() },
        ),
    ];
    let mut memcheck = case(
        ("write", Program, "memcheck", Async),
        judged(Verdict::KernelOnly, Some(true)),
        Some((90.0, 4 << 20, Some(8 << 20))),
    );
    let kernel = Kernel { name: "k".into(), block: None, thread: None, threads: None };
    let device = DeviceLine { file: "k.cu".into(), line: 4, expression: None };
    memcheck.findings = vec![report(Location { kernel: Some(kernel), device: Some(device), ..Location::default() })];
    // A value beside a wrong line is not counted.
    let mut wrong = case(("stream", Program, "guard", Async), judged(Verdict::WrongPlace, None), None);
    wrong.findings = vec![report(Location { values: vec!["x = 1".into()], ..at(9) })];

    let base = Some((4.0, 2 << 20, Some(4 << 20)));
    let mut run = empty();
    run.cases = vec![
        case(("labels", Program, "bare", Async), judged(Verdict::WrongPlace, Some(true)), base),
        case(
            ("labels", Program, "bare", Sync),
            judged(exact(TruthLine::Fault), Some(true)),
            Some((5.0, 2 << 20, None)),
        ),
        native,
        // Killed early: this time is no cost.
        case(("labels", Program, "native", Async), Outcome::ToolInactive { reason: reason() }, Some((0.1, 1, None))),
        guard,
        case(("labels", Program, "guard", Sync), Outcome::Skipped { reason: reason() }, None),
        case(("labels", Program, "memcheck", Async), Outcome::TimedOut { after_s: 120.0 }, Some((120.0, 1, None))),
        case(("labels", Program, "absent", Async), Outcome::Skipped { reason: reason() }, None),
        case(("labels", Twin, "bare", Async), judged(Verdict::CleanAsExpected, None), Some((10.0, 2 << 20, None))),
        case(("labels", Twin, "guard", Async), judged(Verdict::FalseAlarm, None), Some((11.0, 2 << 20, None))),
        case(("stream", Program, "bare", Async), judged(Verdict::Undetected, None), base),
        case(("stream", Program, "bare", Sync), Outcome::FaultMasked { reason: reason() }, Some((4.4, 2 << 20, None))),
        wrong,
        case(("stream", Program, "memcheck", Async), Outcome::ParseFailed { reason: reason() }, None),
        case(("write", Program, "bare", Async), judged(Verdict::Enclosing, None), base),
        memcheck,
        case(("write", Program, "native", Async), Outcome::ToolFailed { reason: reason() }, None),
        case(("write", Program, "guard", Async), Outcome::Infra { reason: reason() }, None),
    ];
    run.unfinished = vec![CaseId { scenario: "write".into(), subject: Program, tool: "bare".into(), mode: Sync }];
    run
}

#[test]
fn every_case_is_counted_once() {
    let run = fixture();
    let board = Scoreboard::of(&run);
    let mut planned = 0;
    for Row { counts, .. } in &board.rows {
        let counted: usize = COLUMNS.iter().map(|(_, count)| count(counts)).sum();
        assert_eq!(counted + counts.clean, counts.planned, "{counts:?}");
        planned += counts.planned;
    }
    assert_eq!(planned, run.cases.len() + run.unfinished.len());
}

#[test]
fn the_best_in_async_come_first_then_the_cheapest() {
    let board = Scoreboard::of(&fixture());
    let order: Vec<(&str, Mode)> = board.rows.iter().map(|r| (r.tool.as_str(), r.mode)).collect();
    // guard alone is exact in async; bare and memcheck are not and have costs; native and absent have none, and
    // native is exact in sync.
    let expected = [
        ("guard", Mode::Async),
        ("guard", Mode::Sync),
        ("bare", Mode::Async),
        ("bare", Mode::Sync),
        ("memcheck", Mode::Async),
        ("native", Mode::Async),
        ("native", Mode::Sync),
        ("absent", Mode::Async),
    ];
    assert_eq!(order, expected);
}

#[test]
fn equal_tools_stay_in_the_order_of_the_plan() {
    let mut run = empty();
    for tool in ["z", "a", "m"] {
        let outcome = judged(Verdict::WrongPlace, None);
        run.cases.push(case(("labels", Subject::Program, tool, Mode::Async), outcome, None));
    }
    let order: Vec<String> = Scoreboard::of(&run).rows.into_iter().map(|r| r.tool).collect();
    assert_eq!(order, ["z", "a", "m"]);
}

#[test]
fn at_a_terminal() {
    let board = ReportFormat::Scoreboard.render(&fixture(), Layout { width: 120 });
    insta::assert_snapshot!(anstream::adapter::strip_str(&board).to_string());
}

#[test]
fn in_markdown() {
    insta::assert_snapshot!(markdown(&Scoreboard::of(&fixture())));
}

#[test]
fn nothing_to_show() {
    let board = ReportFormat::Scoreboard.render(&empty(), Layout::default());
    assert_eq!(anstream::adapter::strip_str(&board).to_string(), "Scoreboard\n  no cases\n");
}

#[test]
fn a_narrow_terminal_is_wide_enough() {
    let board = ReportFormat::Scoreboard.render(&fixture(), Layout { width: 40 });
    assert!(board.contains("guard"), "{board}");
}
