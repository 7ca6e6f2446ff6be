//! `op-log`: a log of the operations that pass PyTorch's dispatcher, each with the Python line that called it, kept by
//! a `TorchDispatchMode` in the user's interpreter.
//!
//! The last operation of a log is where the error surfaced, and in async mode that is not where it was made. So the
//! log claims a line only where the two are the same: an error that the operation itself raised on the host (a shape, an
//! index on the CPU), or any under `CUDA_LAUNCH_BLOCKING=1`. For a CUDA error in async mode it lists, as context and
//! without a claim, the operations that were started since the host last waited with success: the fault is in one of
//! them. Its lines in `reports.jsonl`, here sync and async (`label-oob`):
//!
//! ```text
//! aten.nll_loss_forward.default(float32[8192, 10], int64[8192]) raised the error: CUDA error: device-side assert triggered
//!
//! aten._local_scalar_dense.default is where the error surfaced
//! 55 operations of 6 lines were started since the host last waited with success; the fault is in one of them, …
//! started and not waited for: aten.sum.dim_IntList, aten.mm.default, aten.threshold_backward.default, …
//! ```
//!
//! `torch.utils._debug_mode.DebugMode` (torch 2.9) prints the same operations without a limit and at several times the
//! cost, so it is not used.

use super::{Activity, Command, Target, Tool, common, inject};
use crate::capture::Capture;
use crate::finding::Finding;
use crate::host::Need;

/// See the module.
pub(super) struct OpLog;

impl Tool for OpLog {
    fn id(&self) -> &'static str {
        "op-log"
    }

    fn summary(&self) -> &'static str {
        "the last operations with their Python lines (a TorchDispatchMode)"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Torch]
    }

    fn command(&self, target: &Target) -> Command {
        let mut command = common::python_command(target);
        inject::inject(&mut command, &target.work, include_str!("inject/op_log.py"));
        command
    }

    fn parse(&self, capture: &Capture) -> Vec<Finding> {
        let mut findings = common::context(capture);
        findings.extend(inject::reports(capture));
        findings
    }

    fn activity(&self, capture: &Capture, findings: &[Finding]) -> Activity {
        let logged = |d: &str| d.ends_with(" operations were logged") && !d.starts_with("0 ");
        inject::proof(capture, logged, "no operation was logged").and(common::mode_activity(capture, findings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::FindingKind;
    use crate::testing;

    const ASYNC: &[u8] = include_bytes!("samples/op_log_async.jsonl");
    const SHAPE: &[u8] = include_bytes!("samples/op_log_shape.jsonl");

    fn parse(reports: &[u8]) -> Vec<Finding> {
        let mut capture = testing::capture("/p", b"");
        capture.files.insert("reports.jsonl".into(), reports.to_vec());
        OpLog.parse(&capture)
    }

    #[test]
    fn an_operations_own_error_is_a_claim() {
        let found = parse(SHAPE);
        assert_eq!(found[0].kind, FindingKind::Report);
        assert_eq!(found[0].location.module.as_deref(), Some("aten.addmm.default"));
        assert!(found[0].location.innermost_own().is_some());
    }

    #[test]
    fn candidates_are_context() {
        let found = parse(ASYNC);
        assert!(found.len() > 2);
        assert!(found.iter().all(|f| !f.kind.is_claim()));
    }

    #[test]
    fn it_must_have_logged() {
        let mut capture = testing::capture("/p", b"");
        for (detail, on) in [
            ("a TorchDispatchMode is on the stack", false),
            ("0 operations were logged", false),
            ("120 operations were logged", true),
        ] {
            let line = format!("{{\"pid\": 1, \"detail\": \"{detail}\"}}\n");
            capture.files.insert("active.jsonl".into(), line.into_bytes());
            assert_eq!(matches!(OpLog.activity(&capture, &[]), Activity::Proven(_)), on);
        }
    }
}
