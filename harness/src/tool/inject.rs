//! Tools that live inside the user's interpreter, started without editing the program: `inject/sitecustomize.py`
//! runs before it, waits for `import torch`, and then calls the tool's `activate(torch)`.

use serde::Deserialize;

use super::{Activity, Collect, Command, WorkFile, common, text};
use crate::capture::Capture;
use crate::finding::{Evidence, Finding, FindingKind, Location, PythonFrame};

const RUNTIME: &str = include_str!("inject/sitecustomize.py");
/// The variable that names the folder of both files.
pub(super) const FOLDER: &str = "FAULTLAB_INJECT";
const ACTIVE: &str = "active.jsonl";
const REPORTS: &str = "reports.jsonl";

/// Bytes of `reports.jsonl` that are kept.
const REPORTS_CAP: usize = 256 << 10;

/// Reports that are read: more than a file of that size holds, so that a longer one costs no more memory.
const MOST: usize = 4096;

/// Puts a Python tool on a command. `source` is the text of a module that has `activate(torch)`; it may import
/// `faultlab_inject` for `report`, `frames` and `traceback_frames`.
pub(super) fn inject(command: &mut Command, work: &str, source: &'static str) {
    command.files.push(WorkFile { name: "inject/sitecustomize.py", text: RUNTIME });
    command.files.push(WorkFile { name: "inject/faultlab_tool.py", text: source });
    command.prepend.insert("PYTHONPATH".into(), vec![format!("{work}/inject")]);
    command.env.insert(FOLDER.into(), work.into());
    collect(command);
}

/// Takes both files into the capture.
pub(super) fn collect(command: &mut Command) {
    command.collect.push(Collect { name: ACTIVE, cap: 16 << 10 });
    command.collect.push(Collect { name: REPORTS, cap: REPORTS_CAP });
}

/// What the layered tools (`guard`, `isolate`, `checkpoints`) share in the interpreter.
pub(super) const LAYERS: WorkFile =
    WorkFile { name: "inject/faultlab_layers.py", text: include_str!("inject/layers.py") };

/// All that a tool which speaks for itself has said, and what the program printed as its context.
pub(super) fn spoken(capture: &Capture) -> Vec<Finding> {
    let mut findings = reports(capture);
    findings.extend(common::context(capture));
    findings
}

#[derive(Deserialize)]
struct Active {
    pid: u64,
    detail: Option<String>,
}

#[derive(Deserialize)]
struct Report {
    message: String,
    #[serde(default)]
    python: Vec<ReportFrame>,
    #[serde(default)]
    values: Vec<String>,
    error_type: Option<String>,
    module: Option<String>,
    #[serde(default)]
    note: bool,
}

#[derive(Deserialize)]
struct ReportFrame {
    file: String,
    line: u32,
    function: String,
}

/// What the tool reported. A line that is no report (cut, or written by something else) is passed over.
pub(super) fn reports(capture: &Capture) -> Vec<Finding> {
    lines(capture, REPORTS)
        .filter_map(|(line, start)| {
            let report: Report = serde_json::from_slice(line).ok()?;
            let frame = |f: ReportFrame| PythonFrame {
                own: common::own(&capture.meta.program_root, &f.file),
                file: f.file,
                line: f.line,
                function: f.function,
                source: None,
            };
            Some(Finding {
                kind: if report.note { FindingKind::Context } else { FindingKind::Report },
                error_type: report.error_type,
                message: report.message,
                location: Location {
                    python: report.python.into_iter().map(frame).collect(),
                    values: report.values,
                    module: report.module,
                    ..Location::default()
                },
                evidence: Evidence { stream: REPORTS.into(), start, end: start + line.len() as u64 },
            })
        })
        .take(MOST)
        .collect()
}

/// What the tool wrote about itself, in the order of writing: all that its module returned from `activate`, and what it
/// added later.
pub(super) fn details(capture: &Capture) -> Vec<String> {
    lines(capture, ACTIVE).filter_map(|(line, _)| serde_json::from_slice::<Active>(line).ok()?.detail).collect()
}

/// The first of [`details`] that has this text.
pub(super) fn detail_with(capture: &Capture, text: &str) -> Option<String> {
    details(capture).into_iter().find(|d| d.contains(text))
}

/// Is one of [`details`] the proof? Otherwise says what is missing, with the last that it wrote.
pub(super) fn proof(capture: &Capture, is_proof: impl Fn(&str) -> bool, missing: &str) -> Activity {
    let details = details(capture);
    match (details.iter().find(|detail| is_proof(detail)), details.last()) {
        (Some(proof), _) => Activity::Proven(proof.clone()),
        (None, Some(last)) => Activity::Unproven(format!("{missing} ({last})")),
        (None, None) => Activity::Unproven("it did not start in the program's interpreter".into()),
    }
}

/// Did the tool start in at least one process?
pub(super) fn activity(capture: &Capture) -> Activity {
    activity_of(capture, "")
}

/// Did it start, and say of itself what this tool says? `banner`: how its detail begins.
pub(super) fn activity_of(capture: &Capture, banner: &str) -> Activity {
    let started: Vec<Active> = lines(capture, ACTIVE)
        .filter_map(|(line, _)| serde_json::from_slice::<Active>(line).ok())
        .filter(|active| active.detail.as_deref().unwrap_or_default().starts_with(banner))
        .collect();
    match started.as_slice() {
        [] => {
            Activity::Unproven("the tool did not start in the program's interpreter (was torch ever imported?)".into())
        }
        [first, rest @ ..] => {
            let detail = first.detail.as_ref().map(|d| format!(": {d}")).unwrap_or_default();
            let more = if rest.is_empty() { String::new() } else { format!(" and in {} more", rest.len()) };
            Activity::Proven(format!("it started in process {}{more}{detail}", first.pid))
        }
    }
}

/// The lines of a collected file with their offsets.
fn lines<'a>(capture: &'a Capture, file: &str) -> impl Iterator<Item = (&'a [u8], u64)> {
    text::lines(capture.files.get(file).map(Vec::as_slice).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_report_becomes_a_finding_with_its_own_frames() {
        let mut capture = testing::capture("/p", b"");
        let text = br#"junk
{"pid": 7, "message": "label 10 is not below 10", "python": [{"file": "/p/train.py", "line": 7, "function": "step"}, {"file": "/lib/torch/x.py", "line": 1, "function": "f"}], "values": ["labels[17] = 10"], "error_type": null, "module": null, "note": false}
"#;
        capture.files.insert(REPORTS.into(), text.to_vec());
        let found = reports(&capture);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].location.innermost_own(), Some(("train.py", 7)));
        assert_eq!(found[0].location.values, ["labels[17] = 10"]);
        let at = &found[0].evidence;
        assert_eq!(text[usize::try_from(at.start).unwrap()], b'{');
        assert!(matches!(activity(&capture), Activity::Unproven(_)));
    }
}
