//! `checkpoints`: waits for the device after each line of the program's own files, and reports the first line whose
//! wait fails, with its call chain. Lines come from `sys.monitoring` (Python 3.12) or `sys.settrace`.
//!
//! A report of it (`reports.jsonl`, shortened):
//!
//! ```text
//! {"message": "the device failed in this line, or in what it started; all before had completed (6 waits): CUDA error: device-side assert triggered",
//!  "python": [{"file": "<SCENARIOS>/p/train.py", "line": 14, "function": "<module>"},
//!             {"file": "<SCENARIOS>/p/train.py", "line": 7, "function": "step"}], "error_type": "AcceleratorError"}
//! ```
//!
//! It is its own blocking form, so launch blocking beside it makes no sense. One pass, at the finest step: a coarse
//! pass first would need a second run, because the context dies with the fault (`isolate` is the coarse step).

use super::{Activity, Command, Target, Tool, common, inject};
use crate::capture::Capture;
use crate::case::{Device, Mode};
use crate::finding::Finding;
use crate::host::Need;

/// See the module.
pub(super) struct Checkpoints;

impl Tool for Checkpoints {
    fn id(&self) -> &'static str {
        "checkpoints"
    }

    fn summary(&self) -> &'static str {
        "waits for the device after each line of the program: the first that fails"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Torch]
    }

    fn objection(&self, mode: Mode, device: Device) -> Option<&'static str> {
        match (device, mode) {
            (Device::Cpu, _) => Some("on the CPU nothing is asynchronous, so there is nothing to wait for"),
            (Device::Cuda, Mode::Sync) => {
                Some("with CUDA_LAUNCH_BLOCKING=1 every launch has been waited for before its line ends")
            }
            (Device::Cuda, Mode::Async) => None,
        }
    }

    fn command(&self, target: &Target) -> Command {
        let mut command = common::python_command(target);
        inject::inject(&mut command, &target.work, include_str!("inject/checkpoints.py"));
        command.files.push(inject::LAYERS);
        command
    }

    fn parse(&self, capture: &Capture) -> Vec<Finding> {
        inject::spoken(capture)
    }

    fn activity(&self, capture: &Capture, findings: &[Finding]) -> Activity {
        inject::activity_of(capture, "waits after each line").and(common::mode_activity(capture, findings))
    }
}
#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const DEVICE: &[u8] = br#"{"pid": 28034, "message": "the device failed in this line, or in what it started; all before had completed (79 waits): CUDA error: device-side assert triggered", "python": [{"file": "/p/p.py", "line": 24, "function": "<module>"}, {"file": "/p/p.py", "line": 20, "function": "outer"}, {"file": "/p/p.py", "line": 13, "function": "step"}, {"file": "/p/p.py", "line": 9, "function": "inner"}], "values": [], "error_type": "AcceleratorError", "module": null, "note": false}
"#;

    const HOST: &[u8] = br#"{"pid": 28034, "message": "raised on the host, at its own line; all before had completed: RuntimeError: shapes do not fit", "python": [{"file": "/p/p.py", "line": 27, "function": "<module>"}, {"file": "/lib/python3/site-packages/torch/__init__.py", "line": 21, "function": "refuse"}], "values": [], "error_type": "RuntimeError", "module": null, "note": false}
"#;

    #[test]
    fn real_reports_name_the_line_and_the_program_is_context() {
        testing::check_reports(&Checkpoints, DEVICE, "p.py", 9);
        testing::check_reports(&Checkpoints, HOST, "p.py", 27);
    }

    #[test]
    fn without_its_own_word_it_was_not_on() {
        testing::check_word(&Checkpoints, "waits after each line of the program, by sys.monitoring");
    }

    #[test]
    fn only_async_on_the_gpu_makes_sense() {
        assert!(Checkpoints.objection(Mode::Async, Device::Cuda).is_none());
        assert!(Checkpoints.objection(Mode::Sync, Device::Cuda).is_some());
        assert!(Checkpoints.objection(Mode::Async, Device::Cpu).is_some());
    }
}
