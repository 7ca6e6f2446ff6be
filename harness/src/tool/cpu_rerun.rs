//! `cpu-rerun`: the same program on the CPU, with no GPU visible to it.
//!
//! There every operation ends before the next line runs, and the CPU's kernels check what CUDA's only assert, so the
//! traceback names the line and the message often the value:
//!
//! ```text
//!   File "train.py", line 44, in train_step
//!     loss = criterion(model(features), labels)
//! IndexError: Target 10 is out of bounds.
//! ```
//!
//! It needs a program that runs on the CPU, in a time that one can wait for; code for CUDA alone does not.

use super::{Activity, Command, Target, Tool, common, inject};
use crate::capture::Capture;
use crate::case::{Device, Mode};
use crate::finding::Finding;
use crate::host::Need;

const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// See the module.
pub(super) struct CpuRerun;

impl Tool for CpuRerun {
    fn id(&self) -> &'static str {
        "cpu-rerun"
    }

    fn summary(&self) -> &'static str {
        "the same program on the CPU"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Torch]
    }

    fn objection(&self, mode: Mode, _: Device) -> Option<&'static str> {
        (mode == Mode::Sync).then_some("on the CPU every operation is synchronous: there is only one mode")
    }

    fn device(&self, _: Device) -> Device {
        Device::Cpu
    }

    fn command(&self, target: &Target) -> Command {
        // Whoever builds the target: it is the CPU.
        let mut command = common::python_command(&Target { device: Device::Cpu, ..target.clone() });
        command.env.insert(VISIBLE.into(), String::new());
        inject::inject(&mut command, &target.work, include_str!("inject/cpu_rerun.py"));
        command
    }

    fn parse(&self, capture: &Capture) -> Vec<Finding> {
        common::findings(capture)
    }

    fn activity(&self, capture: &Capture, _: &[Finding]) -> Activity {
        if !capture.had_env(VISIBLE, "") {
            return Activity::Unproven(format!("{VISIBLE} was not empty in the process's environment"));
        }
        match inject::detail_with(capture, "torch.cuda.is_available() is False") {
            Some(detail) => Activity::Proven(format!("seen in the running process: {detail}")),
            None => Activity::Unproven(
                inject::details(capture).pop().unwrap_or_else(|| "torch was not asked whether it has a GPU".into()),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const LABEL: &[u8] = b"Traceback (most recent call last):
  File \"/p/train.py\", line 63, in <module>
    main()  # CALLER
  File \"/p/train.py\", line 44, in train_step
    loss = criterion(model(features), labels)  # FAULT
  File \"/packages/torch/nn/functional.py\", line 3458, in cross_entropy
    return torch._C._nn.cross_entropy_loss(
IndexError: Target 10 is out of bounds.
";
    const EMBEDDING: &[u8] = b"Traceback (most recent call last):
  File \"/p/score.py\", line 50, in forward
    x = self.embed(ids)
  File \"/packages/torch/nn/functional.py\", line 2567, in embedding
    return torch.embedding(weight, input, padding_idx, scale_grad_by_freq, sparse)
IndexError: index out of range in self
";

    #[test]
    fn the_traceback_is_the_claim() {
        for (text, place) in [(LABEL, ("train.py", 44)), (EMBEDDING, ("score.py", 50))] {
            let found = CpuRerun.parse(&testing::capture("/p", text));
            assert_eq!(found.len(), 1);
            assert!(found[0].kind.is_claim());
            assert_eq!(found[0].location.innermost_own(), Some(place));
        }
    }

    #[test]
    fn a_gpu_must_not_have_been_seen() {
        let mut capture = testing::capture("/p", LABEL);
        let active = |available: &str| {
            format!("{{\"pid\": 1, \"detail\": \"torch.cuda.is_available() is {available}\"}}\n").into_bytes()
        };
        capture.files.insert("active.jsonl".into(), active("False"));
        assert!(matches!(CpuRerun.activity(&capture, &[]), Activity::Unproven(_)));
        capture.meta.env_seen.insert(VISIBLE.into(), String::new());
        assert!(matches!(CpuRerun.activity(&capture, &[]), Activity::Proven(_)));
        capture.files.insert("active.jsonl".into(), active("True"));
        assert!(matches!(CpuRerun.activity(&capture, &[]), Activity::Unproven(_)));
    }
}
