//! `profiler`: `torch.profiler` with Python stacks around the whole program, turned on without editing it.
//!
//! When the program ends in an error it says which kernels have an end on record, and which operations and launches
//! were started last, with the innermost line outside PyTorch. Its lines in `reports.jsonl`:
//!
//! ```text
//! the CUDA context is dead (CUDA error: device-side assert triggered): activities that were not yet delivered are lost
//! started 1 from the end: aten::_local_scalar_dense
//! started 2 from the end: aten::item
//! ```
//!
//! The last thing started is the fault only where each launch is waited for, so it is a claim in sync mode after a CUDA
//! error, and context otherwise. An operator (`a @ b`) is no Python call and has no line, only its function.

use super::{Activity, Command, Target, Tool, common, inject};
use crate::capture::Capture;
use crate::finding::Finding;
use crate::host::Need;

/// See the module.
pub(super) struct Profiler;

impl Tool for Profiler {
    fn id(&self) -> &'static str {
        "profiler"
    }

    fn summary(&self) -> &'static str {
        "the last kernels and operations on record (torch.profiler with stacks)"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Torch]
    }

    fn command(&self, target: &Target) -> Command {
        let mut command = common::python_command(target);
        inject::inject(&mut command, &target.work, include_str!("inject/profiler.py"));
        command
    }

    fn parse(&self, capture: &Capture) -> Vec<Finding> {
        let mut findings = common::context(capture);
        findings.extend(inject::reports(capture));
        findings
    }

    fn activity(&self, capture: &Capture, findings: &[Finding]) -> Activity {
        let recorded = |d: &str| d.ends_with(" on record") && !d.starts_with("0 operations, 0 launches");
        inject::proof(capture, recorded, "it left no profile").and(common::mode_activity(capture, findings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::FindingKind;
    use crate::testing;

    const CPU: &[u8] = include_bytes!("samples/profiler_cpu.jsonl");

    #[test]
    fn what_started_last_is_context_unless_the_module_says_that_it_was_waited_for() {
        let mut capture = testing::capture("/p", b"");
        capture.files.insert("reports.jsonl".into(), CPU.to_vec());
        let found = Profiler.parse(&capture);
        assert!(found.len() > 5);
        assert!(found.iter().all(|f| f.kind == FindingKind::Context));
        assert!(found[0].location.innermost_own().is_some());
    }

    #[test]
    fn it_must_have_left_a_profile() {
        let mut capture = testing::capture("/p", b"");
        for (detail, on) in [
            ("the profiler runs, with CUDA activities", false),
            ("0 operations, 0 launches and 0 GPU activities on record", false),
            ("40 operations, 12 launches and 11 GPU activities on record", true),
        ] {
            let line = format!("{{\"pid\": 1, \"detail\": \"{detail}\"}}\n");
            capture.files.insert("active.jsonl".into(), line.into_bytes());
            assert_eq!(matches!(Profiler.activity(&capture, &[]), Activity::Proven(_)), on);
        }
    }
}
