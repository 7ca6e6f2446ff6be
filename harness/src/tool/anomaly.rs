//! `anomaly`: PyTorch's anomaly mode (`torch.autograd.set_detect_anomaly(True)`), turned on without editing the
//! program.
//!
//! Each backward node keeps the traceback of its forward call, and each gradient is checked for NaN, which also
//! synchronises. Where a node fails, a warning shows the forward line first:
//!
//! ```text
//! …/torch/autograd/graph.py:824: UserWarning: Error detected in SqrtBackward0. Traceback of forward call that caused the error:
//!   File "train_pairs.py", line 61, in <module>
//!     main()
//!   File "train_pairs.py", line 32, in distance
//!     return gap.pow(2).sum(dim=1).sqrt()
//!  (Triggered internally at /pytorch/torch/csrc/autograd/python_anomaly_mode.cpp:127.)
//! Traceback (most recent call last):
//! …
//! RuntimeError: Function 'SqrtBackward0' returned nan values in its 0th output.
//! ```
//!
//! The forward line counts as the tool's claim, and so does the line at which the exception was raised.

use super::{Activity, Command, Target, Tool, common, inject};
use crate::capture::Capture;
use crate::finding::Finding;
use crate::host::Need;

/// See the module.
pub(super) struct Anomaly;

impl Tool for Anomaly {
    fn id(&self) -> &'static str {
        "anomaly"
    }

    fn summary(&self) -> &'static str {
        "the forward line of a failing backward node (torch.autograd.set_detect_anomaly)"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Torch]
    }

    fn command(&self, target: &Target) -> Command {
        let mut command = common::python_command(target);
        inject::inject(&mut command, &target.work, include_str!("inject/anomaly.py"));
        command
    }

    fn parse(&self, capture: &Capture) -> Vec<Finding> {
        common::findings(capture)
    }

    fn activity(&self, capture: &Capture, findings: &[Finding]) -> Activity {
        inject::activity(capture).and(common::mode_activity(capture, findings))
    }
}
