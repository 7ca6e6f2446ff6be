//! `nsys`: Nsight Systems. It records API calls, kernels and NVTX ranges; the report is exported to `SQLite`, and a script
//! (`scripts/nsys_read.py`) says what its end looks like, in `nsys.jsonl`:
//!
//! ```text
//! {"kind": "report", "version": "2025.3.2.0", "calls": 1099, "kernels": 0, "ranges": 0, "dropped": "Number of incomplete CUPTI events dropped: 50"}
//! {"kind": "fault", "api": "cudaStreamSynchronize", "code": 700, "name": "cudaErrorIllegalAddress", "start": 11183226112, "nvtx": [], "unfinished": 12, "launches": [{"api": "cudaLaunchKernel", "start": 11182473123, "nvtx": []}, …]}
//! ```
//!
//! - The first API call that returned an error after which a context is dead is the report. It is the call that noticed:
//!   in async mode later than the fault, in sync mode the launch itself. Other return values are context.
//! - The name of a kernel stands in its record on the GPU, and the records of kernels that had not finished (and, up to
//!   the flush interval, of some that had) die with the context. So for the faulting launch there is an API call and
//!   its NVTX ranges, and no name: the report names a kernel never, and a module only where all unfinished launches lie
//!   in the same NVTX range.
//! - Launches have no stream without their kernel's record, so "unfinished" counts those after the last successful
//!   synchronisation of any stream.
//! - A Python line would need backtraces, which need CPU sampling (perf events).

use std::fmt::Write as _;

use serde::Deserialize;

use super::{Activity, After, Command, Target, Tool, WorkFile, common, text};
use crate::capture::Capture;
use crate::finding::{Evidence, Finding, FindingKind, Location};
use crate::host::Need;

const RUN: &str = "nsys_run.sh";
const READ: &str = "nsys_read.py";
const LOG: &str = "nsys.jsonl";

/// Findings that are kept; the script writes some dozens of lines.
const MOST: usize = 1000;

/// See the module.
pub(super) struct Nsys;

impl Tool for Nsys {
    fn id(&self) -> &'static str {
        "nsys"
    }

    fn summary(&self) -> &'static str {
        "the failing API call, the last kernels and launches and their NVTX ranges (Nsight Systems)"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Gpu, Need::Nsys]
    }

    fn command(&self, target: &Target) -> Command {
        let mut command = common::python_command(target);
        let nsys = target.program_path("nsys");
        let mut argv: Vec<String> = vec!["sh".into(), RUN.into(), nsys.clone()];
        argv.append(&mut command.argv);
        command.argv = argv;
        command.files.push(WorkFile { name: RUN, text: include_str!("scripts/nsys_run.sh") });
        command.files.push(WorkFile { name: READ, text: include_str!("scripts/nsys_read.py") });
        let argv = vec![target.python.clone(), READ.into(), nsys];
        command.after.push(After { output: LOG, argv, only_if: None });
        command
    }

    fn parse(&self, capture: &Capture) -> Vec<Finding> {
        let said = records(capture).filter_map(|(record, at)| record.finding(at));
        let mut findings: Vec<Finding> = said.take(MOST).collect();
        findings.extend(common::context(capture));
        findings
    }

    fn activity(&self, capture: &Capture, findings: &[Finding]) -> Activity {
        if let Some((trouble, _)) = records(capture).find(|(record, _)| record.kind == "trouble") {
            return Activity::Unproven(trouble.message);
        }
        match records(capture).find(|(record, _)| record.kind == "report").map(|(record, _)| record) {
            None => Activity::Unproven(format!("there is no report of nsys in {LOG}")),
            Some(Record { calls: 0, .. }) => Activity::Unproven("nsys recorded no CUDA API call".into()),
            Some(Record { calls, kernels, .. }) => {
                Activity::Proven(format!("nsys recorded {calls} CUDA API calls and {kernels} kernels"))
                    .and(common::mode_activity(capture, findings))
            }
        }
    }
}

/// A line of the log. Of each kind only some fields are there.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Record {
    kind: String,
    message: String,
    calls: u64,
    kernels: u64,
    dropped: Option<String>,
    name: String,
    api: Option<String>,
    code: i64,
    stream: Option<i64>,
    nvtx: Vec<String>,
    unfinished: u64,
    launches: Vec<Launch>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Launch {
    api: String,
    nvtx: Vec<String>,
}

impl Record {
    fn finding(self, evidence: Evidence) -> Option<Finding> {
        let api = self.api.as_deref().unwrap_or("an unknown call");
        let within = |nvtx: &[String]| match nvtx {
            [] => String::new(),
            ranges => format!(" within NVTX {}", ranges.join(" > ")),
        };
        let mut location = Location::default();
        let (kind, message) = match self.kind.as_str() {
            "fault" => {
                location.module = self.common_range();
                let mut message = format!("{api} returned {} ({})", self.code, self.name);
                message.push_str(&within(&self.nvtx));
                if let Some(first) = self.launches.first() {
                    let _ = write!(
                        message,
                        "; {} launches since the last successful synchronisation have no kernel record, the first by {}{}",
                        self.unfinished,
                        first.api,
                        within(&first.nvtx)
                    );
                }
                (FindingKind::Report, message)
            }
            "kernel" => {
                let stream = self.stream.map(|s| format!(" on stream {s}")).unwrap_or_default();
                (
                    FindingKind::Context,
                    format!("finished: {}{stream}, launched by {api}{}", self.name, within(&self.nvtx)),
                )
            }
            "call" => (FindingKind::Context, format!("{api} returned {}", self.code)),
            "report" => (FindingKind::Context, self.dropped.clone()?),
            _ => return None,
        };
        Some(Finding { kind, error_type: None, message, location, evidence })
    }

    /// The innermost NVTX range of the unfinished launches, if it is the same for all and all are listed.
    fn common_range(&self) -> Option<String> {
        let first = self.launches.first()?;
        let same = self.launches.iter().all(|launch| launch.nvtx == first.nvtx);
        let all = self.launches.len() as u64 == self.unfinished;
        first.nvtx.last().filter(|_| same && all).cloned()
    }
}

/// The records of the log. A line that is none (a warning of Python's) is passed over.
fn records(capture: &Capture) -> impl Iterator<Item = (Record, Evidence)> {
    let bytes = capture.files.get(LOG).map(Vec::as_slice).unwrap_or_default();
    text::lines(bytes).filter_map(|(line, start)| {
        let record = serde_json::from_slice::<Record>(line).ok()?;
        Some((record, Evidence { stream: LOG.into(), start, end: start + line.len() as u64 }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use proptest::prelude::*;

    const ILLEGAL: &str = r#"{"kind": "report", "version": "2025.3.2.0", "calls": 1099, "kernels": 0, "ranges": 0, "dropped": "Number of incomplete CUPTI events dropped: 50"}
{"kind": "fault", "api": "cudaStreamSynchronize", "code": 700, "name": "cudaErrorIllegalAddress", "start": 11183226112, "nvtx": [], "unfinished": 2, "launches": [{"api": "cudaLaunchKernelExC", "start": 11182805141, "nvtx": []}, {"api": "cuLaunchKernel", "start": 11183076058, "nvtx": []}]}
"#;
    const EMBED: &str = r#"{"kind": "report", "version": "2025.3.2.0", "calls": 915, "kernels": 0, "ranges": 0, "dropped": "Number of incomplete CUPTI events dropped: 7"}
"#;

    fn capture(log: &str) -> Capture {
        let mut capture = testing::capture("/p", b"");
        capture.files.insert(LOG.into(), log.as_bytes().to_vec());
        capture
    }

    #[test]
    fn the_call_that_noticed_is_the_report() {
        let capture = capture(ILLEGAL);
        let findings = Nsys.parse(&capture);
        let reports: Vec<_> = findings.iter().filter(|f| f.kind == FindingKind::Report).collect();
        assert_eq!(reports.len(), 1);
        assert_eq!(
            reports[0].message,
            "cudaStreamSynchronize returned 700 (cudaErrorIllegalAddress); 2 launches since the last successful \
             synchronisation have no kernel record, the first by cudaLaunchKernelExC"
        );
        assert!(!reports[0].location.names_a_place());
        let activity = Nsys.activity(&capture, &findings);
        assert!(matches!(activity, Activity::Proven(_)), "{activity:?}");
    }

    #[test]
    fn one_range_around_all_unfinished_launches_is_named() {
        let log = ILLEGAL.replace(r#", "nvtx": []}"#, r#", "nvtx": ["step 2", "pack"]}"#);
        let findings = Nsys.parse(&capture(&log));
        assert_eq!(findings.iter().find_map(|f| f.location.module.as_deref()), Some("pack"));
    }

    #[test]
    fn silence_and_missing_evidence() {
        let findings = Nsys.parse(&capture(EMBED));
        assert!(findings.iter().all(|f| !f.kind.is_claim()));
        assert!(matches!(Nsys.activity(&capture(EMBED), &findings), Activity::Proven(_)));
        for log in [
            "",
            r#"{"kind": "trouble", "message": "no importer"}"#,
            r#"{"kind": "report", "calls": 0}"#,
            "Traceback (most recent call last):\n",
        ] {
            assert!(matches!(Nsys.activity(&capture(log), &[]), Activity::Unproven(_)), "{log}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..400), cut in 0usize..700) {
            let mut capture = capture("");
            let mut log = ILLEGAL.as_bytes()[..cut.min(ILLEGAL.len())].to_vec();
            log.extend(bytes);
            capture.files.insert(LOG.into(), log);
            let findings = Nsys.parse(&capture);
            Nsys.activity(&capture, &findings);
        }
    }
}
