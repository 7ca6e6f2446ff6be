//! `sync-debug`: `torch.cuda.set_sync_debug_mode("warn")`, turned on without editing the program.
//!
//! It warns at each operation that makes the host wait for the GPU:
//!
//! ```text
//! train.py:47: UserWarning: called a synchronizing CUDA operation (Triggered internally at /pytorch/c10/cuda/CUDAFunctions.cpp:…)
//!   return loss.item()
//! ```
//!
//! These are the lines at which an earlier error *can* surface, and in a healthy program they are there as well. So it
//! answers another question than the fault's, and each line is context, not a claim. It does not see
//! `torch.cuda.synchronize()`, and not every wait of every operation.

use super::{Activity, Command, Target, Tool, common, inject};
use crate::capture::Capture;
use crate::case::{Device, Mode};
use crate::finding::Finding;
use crate::host::Need;

/// See the module.
pub(super) struct SyncDebug;

impl Tool for SyncDebug {
    fn id(&self) -> &'static str {
        "sync-debug"
    }

    fn summary(&self) -> &'static str {
        "the lines at which the host waits for the GPU (torch.cuda.set_sync_debug_mode)"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Torch]
    }

    fn objection(&self, mode: Mode, device: Device) -> Option<&'static str> {
        match (mode, device) {
            (_, Device::Cpu) => Some("on the CPU nothing waits for a GPU"),
            (Mode::Sync, _) => Some("with CUDA_LAUNCH_BLOCKING=1 the host waits at every launch, whatever it names"),
            (Mode::Async, Device::Cuda) => None,
        }
    }

    fn command(&self, target: &Target) -> Command {
        let mut command = common::python_command(target);
        inject::inject(&mut command, &target.work, include_str!("inject/sync_debug.py"));
        command
    }

    fn parse(&self, capture: &Capture) -> Vec<Finding> {
        let mut findings = common::context(capture);
        findings.extend(inject::reports(capture));
        findings
    }

    fn activity(&self, capture: &Capture, findings: &[Finding]) -> Activity {
        let on = match inject::detail_with(capture, "sync debug mode is 1") {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const NOTE: &[u8] = br#"{"pid": 7, "message": "the host waits for the GPU here", "python": [{"file": "/p/train.py", "line": 47, "function": "train_step"}], "values": [], "error_type": null, "module": null, "note": true}
"#;

    #[test]
    fn a_wait_is_context() {
        let mut capture = testing::capture("/p", b"");
        capture.files.insert("reports.jsonl".into(), NOTE.to_vec());
        let found = SyncDebug.parse(&capture);
        assert_eq!(found[0].location.innermost_own(), Some(("train.py", 47)));
        assert!(!found[0].kind.is_claim());
    }

    #[test]
    fn a_mode_that_is_only_asked_for_is_not_on() {
        let mut capture = testing::capture("/p", b"");
        assert!(matches!(SyncDebug.activity(&capture, &[]), Activity::Unproven(_)));
        let waiting = b"{\"pid\": 1, \"detail\": \"waiting for CUDA to be initialised\"}\n".to_vec();
        capture.files.insert("active.jsonl".into(), waiting.clone());
        assert!(matches!(SyncDebug.activity(&capture, &[]), Activity::Unproven(_)));
        let set = b"{\"pid\": 1, \"detail\": \"torch.cuda's sync debug mode is 1\"}\n".to_vec();
        capture.files.insert("active.jsonl".into(), [waiting, set].concat());
        assert!(matches!(SyncDebug.activity(&capture, &[]), Activity::Proven(_)));
    }
}
