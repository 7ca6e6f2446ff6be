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
