//! `finite`: the NaN mode of the launch recorder's Python side (`harness/recorder/shim/faultlab_nan.py`), at its level `ops`.
//!
//! A dispatch mode asks the device about the result of every operator, of the backward pass too: one reduction that writes
//! one number into a buffer, on the tensor's own stream. Nothing waits; what has arrived is judged in the order of the
//! program. The first value that is not finite is reported, with the operator that made it of finite inputs, and for one of
//! the backward pass with the line of its forward operator.
//!
//! What it writes (`nan.<pid>.jsonl`, joined to one `nan.jsonl`), shortened:
//!
//! ```text
//! {"type": "start", "pid": 6, "level": "ops", "torch": "2.6.0+debian"}
//! {"type": "nan", "what": "operator", "state": "nan", "op": "aten.div.Tensor", "node": "SqrtBackward0", "made": true,
//!  "frames": [{"file": "<SCENARIOS>/nan-backward/train_pairs.py", "line": 48, "function": "train", "user": true}, …],
//!  "forward": [{"file": "<SCENARIOS>/nan-backward/train_pairs.py", "line": 32, "function": "distance", "user": true}, …],
//!  "text": "the result of aten.div.Tensor, float32[32], in the backward pass (SqrtBackward0); its inputs were finite: it was made here"}
//! {"type": "exit", "pid": 6, "checks": 428, "skipped": 0, "nonfinite": 61, "arrived": true}
//! ```
//!
//! Infinities without a NaN can be meant (a mask, a bound): they are context, told at the end.

use serde::Deserialize;

use super::{Activity, Command, Target, Tool, common, recorder};
use crate::capture::Capture;
use crate::finding::{Evidence, Finding, FindingKind, Location, PythonFrame};
use crate::host::Need;
use crate::recorder_env::FOLDER;

/// How a message ends where the operator made the value of finite ones. Else it is only where it was first seen.
pub const MADE_HERE: &str = "it was made here";

const REPORT: &str = "nan.jsonl";

/// Records that are read: every process writes a handful.
const MOST: usize = 4096;

/// See the module.
pub(super) struct Finite;

impl Tool for Finite {
    fn id(&self) -> &'static str {
        "finite"
    }

    fn summary(&self) -> &'static str {
        "the operator that made the first value that is not finite, checked on the device without waiting (NaN mode)"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Torch]
    }

    fn command(&self, target: &Target) -> Command {
        let mut command = common::python_command(target);
        recorder::python_side(&mut command, target);
        command.env.insert(FOLDER.into(), target.work.clone());
        command.env.insert("FAULTLAB_RECORDER_NAN".into(), "ops".into());
        command.after.push(recorder::joined("nan", REPORT));
        command
    }

    fn parse(&self, capture: &Capture) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (record, evidence) in records(capture) {
            match record {
                Record::Nan(mut seen) => {
                    let kind = FindingKind::Report;
                    match seen.root.take() {
                        // What made the infinity, or another module, comes first.
                        Some(root) => {
                            findings.push(root.finding(kind, capture, &evidence));
                            findings.push(seen.finding(FindingKind::Context, capture, &evidence));
                        }
                        None => findings.push(seen.finding(kind, capture, &evidence)),
                    }
                }
                Record::Inf(seen) => findings.push(seen.finding(FindingKind::Context, capture, &evidence)),
                Record::Start { .. } | Record::Exit { .. } => {}
            }
        }
        findings.extend(common::context(capture));
        findings
    }

    fn activity(&self, capture: &Capture, findings: &[Finding]) -> Activity {
        let (mut started, mut checked, mut found) = (false, 0u64, false);
        for (record, _) in records(capture) {
            match record {
                Record::Start { level } => started |= level == "ops",
                Record::Exit { checks } => checked = checked.saturating_add(checks),
                Record::Nan(_) | Record::Inf(_) => found = true,
            }
        }
        let own = if !started {
            Activity::Unproven(format!("no process checked operators: {REPORT} has no start of that level"))
        } else if checked > 0 {
            Activity::Proven(format!("{checked} results were checked on the device"))
        } else if found {
            Activity::Proven("a value that is not finite was seen".into())
        } else {
            Activity::Unproven("the check was on, and no result was checked to the program's end".into())
        };
        own.and(common::mode_activity(capture, findings))
    }
}

/// A line of the report; others are passed over.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Record {
    Start { level: String },
    Nan(Box<Seen>),
    Inf(Box<Seen>),
    Exit { checks: u64 },
}

/// A value that is not finite.
#[derive(Deserialize)]
struct Seen {
    text: String,
    #[serde(default)]
    frames: Vec<Frame>,
    /// Of an operator of the backward pass: the frames of its forward operator.
    #[serde(default)]
    forward: Vec<Frame>,
    node: Option<String>,
    module: Option<String>,
    root: Option<Box<Seen>>,
}

/// Innermost first.
#[derive(Deserialize)]
struct Frame {
    file: String,
    line: u32,
    function: String,
}

impl Seen {
    fn finding(self, kind: FindingKind, capture: &Capture, evidence: &Evidence) -> Finding {
        let frames = if self.forward.is_empty() { self.frames } else { self.forward };
        let python = frames.into_iter().rev().map(|frame| PythonFrame {
            own: common::own(&capture.meta.program_root, &frame.file),
            file: frame.file,
            line: frame.line,
            function: frame.function,
            source: None,
        });
        Finding {
            kind,
            error_type: None,
            message: self.text,
            location: Location { python: python.collect(), module: self.node.or(self.module), ..Location::default() },
            evidence: evidence.clone(),
        }
    }
}

fn records(capture: &Capture) -> impl Iterator<Item = (Record, Evidence)> {
    recorder::records_of(capture, REPORT).take(MOST)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing;

    /// From a real run of scenario `nan-backward`.
    const BACKWARD: &str = r#"{"type": "start", "pid": 6, "level": "ops", "torch": "2.6.0+debian"}
{"type": "nan", "pid": 6, "what": "operator", "state": "nan", "seq": 357, "made": true, "inputs": "finite", "frames": [{"file": "/p/train_pairs.py", "line": 48, "function": "train", "user": true}, {"file": "/p/train_pairs.py", "line": 57, "function": "main", "user": true}], "op": "aten.div.Tensor", "node": "SqrtBackward0", "forward": [{"file": "/p/train_pairs.py", "line": 32, "function": "distance", "user": true}, {"file": "/p/train_pairs.py", "line": 36, "function": "contrastive_loss", "user": true}], "text": "the result of aten.div.Tensor, float32[32], in the backward pass (SqrtBackward0); its inputs were finite: it was made here"}
{"type": "exit", "pid": 6, "checks": 428, "skipped": 0, "nonfinite": 61, "arrived": true}
"#;

    fn capture(report: &str) -> Capture {
        let mut capture = testing::capture("/p", b"");
        capture.files.insert(REPORT.into(), report.as_bytes().to_vec());
        capture
    }

    fn proven(report: &str) -> bool {
        let capture = capture(report);
        matches!(Finite.activity(&capture, &Finite.parse(&capture)), Activity::Proven(_))
    }

    #[test]
    fn an_operator_of_the_backward_pass_is_its_forward_line() {
        let findings = Finite.parse(&capture(BACKWARD));
        assert_eq!(findings[0].kind, FindingKind::Report);
        assert_eq!(findings[0].location.innermost_own().map(|(_, line)| line), Some(32));
        assert_eq!(findings[0].location.module.as_deref(), Some("SqrtBackward0"));
        assert!(findings[0].message.ends_with(MADE_HERE));
    }

    #[test]
    fn what_came_first_is_the_claim() {
        let report = r#"{"type": "nan", "text": "later", "frames": [{"file": "/p/a.py", "line": 9, "function": "f"}], "root": {"text": "an infinity", "frames": [{"file": "/p/a.py", "line": 4, "function": "f"}]}}"#;
        let findings = Finite.parse(&capture(report));
        let told: Vec<_> = findings.iter().map(|f| (f.kind, f.location.innermost_own().map(|(_, l)| l))).collect();
        assert_eq!(told, [(FindingKind::Report, Some(4)), (FindingKind::Context, Some(9))]);
        let inf = report.replace("\"nan\"", "\"inf\"");
        assert!(!Finite.parse(&capture(&inf)).iter().any(|f| f.kind.is_claim()), "an infinity can be meant");
    }

    #[test]
    fn results_must_have_been_checked() {
        assert!(proven(BACKWARD));
        assert!(!proven(""));
        assert!(!proven(&BACKWARD.replace("\"ops\"", "\"1\"")));
        let start = BACKWARD.lines().next().unwrap_or_default();
        assert!(!proven(start), "killed before anything was checked");
        assert!(!proven(&format!("{start}\n{}", r#"{"type": "exit", "pid": 6, "checks": 0}"#)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..300), cut in 0usize..1200) {
            let mut report = BACKWARD.as_bytes()[..cut.min(BACKWARD.len())].to_vec();
            report.extend(bytes);
            let mut capture = testing::capture("/p", b"");
            let length = report.len() as u64;
            capture.files.insert(REPORT.into(), report);
            let findings = Finite.parse(&capture);
            for finding in findings.iter().filter(|f| f.evidence.stream == REPORT) {
                prop_assert!(finding.evidence.start <= finding.evidence.end && finding.evidence.end <= length);
            }
            let _ = Finite.activity(&capture, &findings);
        }
    }
}
