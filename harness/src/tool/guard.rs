//! `guard`: the data layer. A `TorchDispatchMode` in the user's interpreter checks what an operation is given before
//! its kernel is launched: labels, indices, probabilities, and the finiteness of what goes into matrix products and
//! convolutions. `guard-sampled` looks at every 100th element only.
//!
//! It works below `torch.nn.functional`, so that functions, methods and modules are all seen. A report of it
//! (`reports.jsonl`, shortened):
//!
//! ```text
//! {"message": "nll_loss_forward: 1 of 64 values of `target` outside [0, 10): target[17] = 10",
//!  "python": [{"file": "<SCENARIOS>/label-oob/train.py", "line": 68, "function": "<module>"}, …,
//!             {"file": "<SCENARIOS>/label-oob/train.py", "line": 44, "function": "train_step"}, …],
//!  "values": ["target[17] = 10"]}
//! ```
//!
//! A fault ends the CUDA context, so bounds must be known before the launch: each such check waits for the device, in
//! async mode too. Finiteness is not fatal: its flags stay on the device until the program itself waits.

use super::{Activity, Command, Target, Tool, common, inject};
use crate::capture::Capture;
use crate::finding::Finding;
use crate::host::Need;

const SAMPLE: &str = "FAULTLAB_GUARD_SAMPLE";

/// See the module.
pub(super) enum Guard {
    /// Every element.
    Full,
    /// Every 100th.
    Sampled,
}

impl Tool for Guard {
    fn id(&self) -> &'static str {
        match self {
            Self::Full => "guard",
            Self::Sampled => "guard-sampled",
        }
    }

    fn summary(&self) -> &'static str {
        match self {
            Self::Full => "labels, indices, probabilities and finiteness, checked before the launch",
            Self::Sampled => "guard on every 100th element",
        }
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Torch]
    }

    fn command(&self, target: &Target) -> Command {
        let mut command = common::python_command(target);
        inject::inject(&mut command, &target.work, include_str!("inject/guard.py"));
        command.files.push(inject::LAYERS);
        if matches!(self, Self::Sampled) {
            command.env.insert(SAMPLE.into(), "100".into());
        }
        command
    }

    fn parse(&self, capture: &Capture) -> Vec<Finding> {
        inject::spoken(capture)
    }

    fn activity(&self, capture: &Capture, findings: &[Finding]) -> Activity {
        let banner = match self {
            Self::Full => "checks every element",
            Self::Sampled => "checks every 100th element",
        };
        inject::activity_of(capture, banner).and(common::mode_activity(capture, findings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn the_rate_is_part_of_the_proof() {
        let mut capture = testing::capture("/p", b"");
        let line = br#"{"pid": 7, "torch": "2.11.0+cu130", "detail": "checks every element"}"#;
        capture.files.insert("active.jsonl".into(), line.to_vec());
        assert!(matches!(Guard::Full.activity(&capture, &[]), Activity::Proven(_)));
        assert!(matches!(Guard::Sampled.activity(&capture, &[]), Activity::Unproven(_)));
    }
}
