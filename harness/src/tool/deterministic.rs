//! `deterministic`: `torch.use_deterministic_algorithms(True, warn_only=True)`, with uninitialised memory filled and
//! `CUBLAS_WORKSPACE_CONFIG=:4096:8`, turned on without editing the program.
//!
//! It makes a fault that comes and goes come each time: memory that was never written is NaN (or the largest integer)
//! and not what was there by chance, and sums have one order. It names an operation that has no deterministic form:
//!
//! ```text
//! pool.py:14: UserWarning: adaptive_avg_pool2d_backward_cuda does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True, warn_only=True)'. …
//! ```
//!
//! Those lines are context: they are why two runs differ, not where a kernel faults. What counts is the program's own
//! error. It masks faults of its own: an operation may take another kernel, one that checks or one that does not.

use super::{Activity, Command, Target, Tool, common, inject, text};
use crate::capture::Capture;
use crate::finding::{Evidence, Finding, FindingKind, Location, PythonFrame};
use crate::host::Need;

/// Without it cuBLAS chooses its workspace, and with it the order of its sums, by what is free.
const WORKSPACE: (&str, &str) = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8");

/// Warnings that are shown.
const SHOWN: usize = 32;

/// See the module.
pub(super) struct Deterministic;

impl Tool for Deterministic {
    fn id(&self) -> &'static str {
        "deterministic"
    }

    fn summary(&self) -> &'static str {
        "deterministic algorithms and filled memory (torch.use_deterministic_algorithms)"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Torch]
    }

    fn command(&self, target: &Target) -> Command {
        let mut command = common::python_command(target);
        command.env.insert(WORKSPACE.0.into(), WORKSPACE.1.into());
        inject::inject(&mut command, &target.work, include_str!("inject/deterministic.py"));
        command
    }

    fn parse(&self, capture: &Capture) -> Vec<Finding> {
        let mut findings = common::findings(capture);
        findings.extend(
            text::lines(&capture.stderr)
                .filter_map(|(line, start)| warning(line, start, &capture.meta.program_root))
                .take(SHOWN),
        );
        findings
    }

    fn activity(&self, capture: &Capture, findings: &[Finding]) -> Activity {
        if !capture.had_env(WORKSPACE.0, WORKSPACE.1) {
            return Activity::Unproven(format!("{} was not in the process's environment", WORKSPACE.0));
        }
        let on = match inject::detail_with(capture, "deterministic algorithms: True, memory filled: True") {
            Some(detail) => Activity::Proven(format!("read back from the running process: {detail}")),
            None => Activity::Unproven(
                inject::details(capture)
                    .pop()
                    .unwrap_or_else(|| "it did not start in the program's interpreter".into()),
            ),
        };
        on.and(common::mode_activity(capture, findings))
    }
}

/// `pool.py:14: UserWarning: … does not have a deterministic implementation, …`
fn warning(line: &[u8], start: u64, root: &str) -> Option<Finding> {
    let text = common::text(line);
    let (place, words) = text.split_once(": UserWarning: ")?;
    let (operation, _) = words.split_once(" does not have a deterministic implementation")?;
    let (file, number) = place.rsplit_once(':')?;
    Some(Finding {
        kind: FindingKind::Context,
        error_type: None,
        message: format!("{operation} has no deterministic implementation"),
        location: Location {
            python: vec![PythonFrame {
                own: common::own(root, file),
                file: file.to_string(),
                line: number.parse().ok()?,
                function: String::new(),
                source: None,
            }],
            module: Some(operation.to_string()),
            ..Location::default()
        },
        evidence: Evidence { stream: "stderr".into(), start, end: start + line.len() as u64 },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const WARNING: &[u8] = b"/p/pool.py:14: UserWarning: adaptive_avg_pool2d_backward_cuda does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True, warn_only=True)'. You can file an issue.
  loss.backward()
";

    const SHAPE: &[u8] = b"Traceback (most recent call last):
  File \"/p/train_digits.py\", line 41, in forward
    x = self.hidden(x)
RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x800 and 1568x128)
";

    #[test]
    fn the_programs_error_counts_and_a_warning_does_not() {
        let both = [WARNING, SHAPE].concat();
        let found = Deterministic.parse(&testing::capture("/p", &both));
        let warning = found.iter().find(|f| f.kind == FindingKind::Context).unwrap();
        assert_eq!(warning.location.innermost_own(), Some(("pool.py", 14)));
        assert_eq!(warning.location.module.as_deref(), Some("adaptive_avg_pool2d_backward_cuda"));
        let error = found.iter().find(|f| f.kind == FindingKind::Exception).unwrap();
        assert_eq!(error.location.innermost_own(), Some(("train_digits.py", 41)));
        assert!(Deterministic.parse(&testing::capture("/p", WARNING)).iter().all(|f| !f.kind.is_claim()));
    }

    #[test]
    fn it_must_have_been_read_back() {
        let mut capture = testing::capture("/p", b"");
        let line = b"{\"pid\": 1, \"detail\": \"deterministic algorithms: True, memory filled: True\"}\n".to_vec();
        capture.files.insert("active.jsonl".into(), line);
        assert!(matches!(Deterministic.activity(&capture, &[]), Activity::Unproven(_)));
        capture.meta.env_seen.insert(WORKSPACE.0.into(), WORKSPACE.1.into());
        assert!(matches!(Deterministic.activity(&capture, &[]), Activity::Proven(_)));
        capture.files.clear();
        assert!(matches!(Deterministic.activity(&capture, &[]), Activity::Unproven(_)));
    }
}
