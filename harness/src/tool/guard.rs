//! `guard`: the data layer. A `TorchDispatchMode` in the user's interpreter checks what an operation is given before
//! its kernel is launched: labels, indices, probabilities, and the finiteness of what goes into matrix products and
//! convolutions. `guard-sampled` looks at every 100th element only.
//!
//! It works below `torch.nn.functional`, so that functions, methods and modules are all seen. A report of it
//! (`reports.jsonl`, shortened):
//!
//! ```text
//! {"message": "nll_loss_forward: 1 of 64 values of `target` outside [0, 10) or -100 (ignored): target[17] = 10",
//!  "python": [{"file": "<SCENARIOS>/label-oob/train.py", "line": 63, "function": "<module>"}, …,
//!             {"file": "<SCENARIOS>/label-oob/train.py", "line": 43, "function": "train_step"}, …],
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

    const LABEL: &[u8] = br#"{"pid": 28034, "message": "nll_loss_forward: 1 of 64 values of `target` outside [0, 10) or -100 (ignored): target[17] = 10", "python": [{"file": "/p/train.py", "line": 63, "function": "<module>"}, {"file": "/p/train.py", "line": 58, "function": "main"}, {"file": "/p/train.py", "line": 43, "function": "train_step"}, {"file": "/lib/python3/site-packages/torch/nn/modules/module.py", "line": 1779, "function": "_wrapped_call_impl"}], "values": ["target[17] = 10"], "error_type": null, "module": null, "note": false}
"#;

    const EMBEDDING: &[u8] = br#"{"pid": 28034, "message": "embedding: 4 of 64 values of `indices` outside [0, 17): indices[0, 4] = 17, indices[1, 5] = 17, indices[2, 4] = 17, indices[3, 4] = 17", "python": [{"file": "/p/score.py", "line": 60, "function": "<module>"}, {"file": "/p/score.py", "line": 54, "function": "main"}, {"file": "/p/score.py", "line": 46, "function": "score"}, {"file": "/lib/python3/site-packages/torch/nn/modules/module.py", "line": 1779, "function": "_wrapped_call_impl"}, {"file": "/p/score.py", "line": 36, "function": "forward"}, {"file": "/lib/python3/site-packages/torch/nn/functional.py", "line": 2567, "function": "embedding"}], "values": ["indices[0, 4] = 17", "indices[1, 5] = 17"], "error_type": null, "module": null, "note": false}
"#;

    #[test]
    fn real_reports_name_the_line_and_the_program_is_context() {
        testing::check_reports(&Guard::Full, LABEL, "train.py", 43);
        testing::check_reports(&Guard::Full, EMBEDDING, "score.py", 36);
    }

    #[test]
    fn without_its_own_word_it_was_not_on() {
        testing::check_word(&Guard::Full, "checks every element");
    }

    #[test]
    fn the_rate_is_part_of_the_proof() {
        let mut capture = testing::capture("/p", b"");
        capture.files.insert("active.jsonl".into(), br#"{"pid": 7, "detail": "checks every element"}"#.to_vec());
        assert!(matches!(Guard::Full.activity(&capture, &[]), Activity::Proven(_)));
        assert!(matches!(Guard::Sampled.activity(&capture, &[]), Activity::Unproven(_)));
    }
}
