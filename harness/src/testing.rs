//! Small values for unit tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use jiff::Timestamp;

use crate::capture::{Capture, Exit, Meta, Provenance, SCHEMA_VERSION, Stream};
use crate::case::{CaseId, Claim, Device, Mode, Subject};
use crate::finding::{Evidence, Finding, FindingKind, Location};
use crate::host::{Need, Stack};
use crate::scenario::{ErrorPattern, Expectation, FaultClass, Pattern, Place, Program, Scenario, Truth};
use crate::tool::{Activity, Tool};

/// A finding read from all of standard error.
pub(crate) fn finding(kind: FindingKind, error_type: Option<&str>, message: &str, location: Location) -> Finding {
    Finding {
        kind,
        error_type: error_type.map(String::from),
        message: message.into(),
        location,
        evidence: Evidence { stream: "stderr".into(), start: 0, end: 1 },
    }
}

fn pattern(text: &str) -> Pattern {
    Pattern::search(text).expect("a valid pattern")
}

/// FAULT is line 7, ROOT line 3, CALLER line 10.
pub(crate) fn scenario() -> Scenario {
    let place = |line| Place { file: "train.py".into(), line };
    let program = |file: &str| Program {
        file: file.into(),
        source: (1..=12).map(|n| format!("line_{n}()")).collect::<Vec<_>>().join("\n"),
    };
    Scenario {
        id: "test".into(),
        title: "A scenario for tests".into(),
        story: "It fails.".into(),
        class: FaultClass::DeviceAssert,
        needs: vec![Need::Gpu],
        folder: PathBuf::from("/p"),
        program: program("train.py"),
        twin: program("train_fixed.py"),
        files: BTreeSet::new(),
        args: Vec::new(),
        truth: Truth {
            fault: place(7),
            root: place(3),
            callers: vec![place(10)],
            kernel: Some(pattern("nll_loss")),
            error: Some(ErrorPattern {
                type_name: pattern(r"torch\.AcceleratorError"),
                text: pattern("device-side assert"),
            }),
        },
        cpu: None,
        expect: vec![
            Expectation { tool: "bare".into(), mode: Mode::Async, claim: Claim::WrongPlace },
            Expectation { tool: "bare".into(), mode: Mode::Sync, claim: Claim::Exact },
        ],
        hints: vec!["Look again.".into()],
        fix: "Mend it.".into(),
    }
}

/// A capture of `bare`, async, with this program root and standard error.
pub(crate) fn capture(program_root: &str, stderr: &[u8]) -> Capture {
    Capture {
        meta: Meta {
            schema_version: SCHEMA_VERSION,
            case: CaseId { scenario: "test".into(), subject: Subject::Program, tool: "bare".into(), mode: Mode::Async },
            device: Device::Cuda,
            argv: vec!["python3".into(), format!("{program_root}/train.py")],
            env: BTreeMap::new(),
            env_seen: BTreeMap::new(),
            exit: Exit::Code(1),
            elapsed_s: 1.0,
            peak_rss_bytes: None,
            peak_gpu_bytes: None,
            stdout: Stream::default(),
            stderr: Stream { bytes: stderr.len() as u64, cut: None },
            left_behind: Vec::new(),
            program_root: program_root.into(),
            program_sha256: String::new(),
            provenance: Provenance {
                faultlab: "0.0.0".into(),
                date: Timestamp::UNIX_EPOCH,
                backend: "local".into(),
                stack: Stack::default(),
            },
        },
        stdout: Vec::new(),
        stderr: stderr.to_vec(),
        files: BTreeMap::new(),
    }
}

/// A tool that speaks through `reports.jsonl`: what it says names this place and is scored, what the program says is not.
pub(crate) fn check_reports(tool: &dyn Tool, reports: &[u8], file: &str, line: u32) {
    let ended = b"Traceback (most recent call last):\n  File \"/p/x.py\", line 9, in f\nKeyError: 1\n";
    let mut capture = capture("/p", ended);
    capture.files.insert("reports.jsonl".into(), reports.to_vec());
    let findings = tool.parse(&capture);
    assert_eq!(findings[0].kind, FindingKind::Report);
    assert_eq!(findings[0].location.innermost_own(), Some((file, line)));
    assert_eq!(findings[0].evidence.stream, "reports.jsonl");
    assert_eq!(findings.last().map(|f| f.kind), Some(FindingKind::Ended));
    assert!(findings[1..].iter().all(|f| !f.kind.is_claim()), "{findings:?}");
}

/// A tool that says in `active.jsonl` that it is on: in these words, and not in those of another.
pub(crate) fn check_word(tool: &dyn Tool, word: &str) {
    let mut capture = capture("/p", b"");
    assert!(matches!(tool.activity(&capture, &[]), Activity::Unproven(_)));
    let mut say = |detail: &str| {
        let line = format!(r#"{{"pid": 7, "detail": "{detail}"}}"#);
        capture.files.insert("active.jsonl".into(), line.into_bytes());
        tool.activity(&capture, &[])
    };
    assert!(matches!(say(word), Activity::Proven(_)));
    assert!(matches!(say("another tool"), Activity::Unproven(_)));
}
