//! `isolate`: the module layer. Hooks on every `nn.Module`, autograd node and optimizer, put there without editing the
//! program: the first module whose output is not finite, the first backward node whose gradient is not finite (with
//! the forward line that made the node), the module in which an error is raised, a shape that breaks a declaration.
//!
//! A report of it (`reports.jsonl`, shortened):
//!
//! ```text
//! {"message": "SqrtBackward0 is the first backward node whose gradient is not finite: output 0, from nan to nan",
//!  "python": [{"file": "<SCENARIOS>/nan-backward/train_pairs.py", "line": 61, "function": "<module>"}, …,
//!             {"file": "<SCENARIOS>/nan-backward/train_pairs.py", "line": 32, "function": "distance"}, …],
//!  "values": ["gradient 0 of SqrtBackward0: min nan, max nan"]}
//! ```
//!
//! In async mode flags stay on the device; it waits before and after each outermost forward, each backward and each
//! optimizer step. So an asynchronous error is bracketed by the module call in which it happened, without launch
//! blocking. One that surfaces outside of modules is only noted.

use super::{Activity, Command, Target, Tool, common, inject};
use crate::capture::Capture;
use crate::finding::Finding;
use crate::host::Need;

/// See the module.
pub(super) struct Isolate;

impl Tool for Isolate {
    fn id(&self) -> &'static str {
        "isolate"
    }

    fn summary(&self) -> &'static str {
        "the first module or backward node whose result is not finite, or that raises"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Torch]
    }

    fn command(&self, target: &Target) -> Command {
        let mut command = common::python_command(target);
        inject::inject(&mut command, &target.work, include_str!("inject/isolate.py"));
        command.files.push(inject::LAYERS);
        command
    }

    fn parse(&self, capture: &Capture) -> Vec<Finding> {
        inject::spoken(capture)
    }

    fn activity(&self, capture: &Capture, findings: &[Finding]) -> Activity {
        inject::activity_of(capture, "watches every module").and(common::mode_activity(capture, findings))
    }
}
#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const BACKWARD: &[u8] = br#"{"pid": 28034, "message": "SqrtBackward0 is the first backward node whose gradient is not finite: output 0, from nan to nan", "python": [{"file": "/p/train_pairs.py", "line": 61, "function": "<module>"}, {"file": "/p/train_pairs.py", "line": 57, "function": "main"}, {"file": "/p/train_pairs.py", "line": 44, "function": "train"}, {"file": "/p/train_pairs.py", "line": 36, "function": "contrastive_loss"}, {"file": "/p/train_pairs.py", "line": 32, "function": "distance"}], "values": ["gradient 0 of SqrtBackward0: min nan, max nan"], "error_type": null, "module": null, "note": false}
{"pid": 28034, "message": "the optimizer step made parameter 0 of group 0 not finite: from nan to nan", "python": [{"file": "/p/train_pairs.py", "line": 49, "function": "train"}], "values": [], "error_type": null, "module": null, "note": true}
"#;

    const SHAPE: &[u8] = br#"{"pid": 28034, "message": "RuntimeError was raised in module hidden: mat1 and mat2 shapes cannot be multiplied (64x800 and 1568x128)", "python": [{"file": "/p/train_digits.py", "line": 53, "function": "<module>"}, {"file": "/p/train_digits.py", "line": 48, "function": "main"}, {"file": "/p/train_digits.py", "line": 35, "function": "train_step"}, {"file": "/lib/python3/site-packages/torch/nn/modules/module.py", "line": 1779, "function": "_wrapped_call_impl"}, {"file": "/p/train_digits.py", "line": 20, "function": "forward"}, {"file": "/lib/python3/site-packages/torch/nn/modules/linear.py", "line": 134, "function": "forward"}], "values": [], "error_type": "RuntimeError", "module": "hidden", "note": false}
"#;

    #[test]
    fn real_reports_name_the_line_and_the_program_is_context() {
        testing::check_reports(&Isolate, BACKWARD, "train_pairs.py", 32);
        testing::check_reports(&Isolate, SHAPE, "train_digits.py", 20);
    }

    #[test]
    fn without_its_own_word_it_was_not_on() {
        testing::check_word(&Isolate, "watches every module, backward and optimizer; 0 shapes declared");
    }
}
