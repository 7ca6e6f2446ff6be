//! `cpp-stacktraces`: `TORCH_SHOW_CPP_STACKTRACES=1`, PyTorch appends the C++ stack to each error that it raises.
//!
//! It is the stack of the call that *reported* the error, so in async mode it is as misleading as the traceback:
//!
//! ```text
//! torch.AcceleratorError: CUDA error: device-side assert triggered
//! …
//! Exception raised from c10_cuda_check_implementation at /pytorch/c10/cuda/CUDAException.cpp:44 (most recent call first):
//! C++ CapturedTraceback:
//! #4 std::_Function_handler<std::shared_ptr<c10::LazyValue<std::string> const> (), …>::_M_invoke(…) from Logging.cpp:0
//! #5 c10::Error::Error(c10::SourceLocation, std::string) from ??:0
//! ```

use super::common;
use super::{Activity, Command, Target, Tool};
use crate::capture::Capture;
use crate::finding::{Finding, FindingKind};
use crate::host::Need;

const VARIABLE: &str = "TORCH_SHOW_CPP_STACKTRACES";

/// See the module.
pub(super) struct CppStacktraces;

impl Tool for CppStacktraces {
    fn id(&self) -> &'static str {
        "cpp-stacktraces"
    }

    fn summary(&self) -> &'static str {
        "PyTorch's C++ stack under each of its errors (TORCH_SHOW_CPP_STACKTRACES=1)"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Torch]
    }

    fn command(&self, target: &Target) -> Command {
        let mut command = common::python_command(target);
        command.env.insert(VARIABLE.into(), "1".into());
        command
    }

    fn parse(&self, capture: &Capture) -> Vec<Finding> {
        common::findings(capture)
    }

    fn activity(&self, capture: &Capture, findings: &[Finding]) -> Activity {
        if !capture.had_env(VARIABLE, "1") {
            return Activity::Unproven(format!("{VARIABLE}=1 was not in the process's environment"));
        }
        let raised_by_torch = findings.iter().any(|f| f.kind == FindingKind::Exception && comes_from_cpp(f));
        let stack = findings.iter().find(|f| f.kind == FindingKind::NativeStack);
        match (common::mode_activity(capture, findings), stack) {
            (Activity::Proven(mode), Some(stack)) => {
                Activity::Proven(format!("{} C++ frames under the error; {mode}", stack.location.native.len()))
            }
            (Activity::Proven(_), None) if raised_by_torch => {
                Activity::Unproven("PyTorch raised an error, and no C++ frames are under it".into())
            }
            (Activity::Proven(mode), None) => Activity::Proven(format!(
                "{VARIABLE}=1 was in the process's environment; no error of PyTorch's was raised; {mode}"
            )),
            (unproven, _) => unproven,
        }
    }
}

/// PyTorch's C++ code throws these types; a Python `raise` of the same type has no C++ stack to show.
fn comes_from_cpp(finding: &Finding) -> bool {
    let torchs = finding.error_type.as_deref().is_some_and(|t| t == "RuntimeError" || t.starts_with("torch."));
    let innermost = finding.location.python.last().and_then(|f| f.source.as_deref()).unwrap_or_default();
    torchs && !innermost.trim_start().starts_with("raise ")
}
