//! `bare`: the program alone. Sync mode is `CUDA_LAUNCH_BLOCKING=1`.
//!
//! What it prints is what everybody sees first: the device assertion's own lines (from the CUDA runtime, where
//! an `assert` failed), the Python traceback of the call in which the error surfaced, and PyTorch's epilogue:
//!
//! ```text
//! /pytorch/aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [7,0,0] Assertion `t >= 0 && t < n_classes` failed.
//! Traceback (most recent call last):
//!   File "train.py", line 52, in <module>
//!     print("step", step, loss.item())
//!                         ^^^^^^^^^^^
//! torch.AcceleratorError: CUDA error: device-side assert triggered
//! CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
//! ```

use super::common;
use super::{Activity, Command, Target, Tool};
use crate::capture::Capture;
use crate::finding::Finding;
use crate::host::Need;

/// See the module.
pub(super) struct Bare;

impl Tool for Bare {
    fn id(&self) -> &'static str {
        "bare"
    }

    fn summary(&self) -> &'static str {
        "the program alone; sync is CUDA_LAUNCH_BLOCKING=1"
    }

    fn needs(&self) -> &'static [Need] {
        &[]
    }

    fn command(&self, target: &Target) -> Command {
        common::python_command(target)
    }

    fn parse(&self, capture: &Capture) -> Vec<Finding> {
        common::findings(capture)
    }

    fn activity(&self, capture: &Capture, findings: &[Finding]) -> Activity {
        common::mode_activity(capture, findings)
    }
}
