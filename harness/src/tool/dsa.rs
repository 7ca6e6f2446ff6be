//! `dsa`: c10's device-side assertions (`TORCH_USE_CUDA_DSA`).
//!
//! PyTorch's own epilogue recommends it, but it is a macro of the build: with a stock wheel the variable of that name
//! changes nothing, and `PYTORCH_USE_CUDA_DSA`, the switch that a build with the macro looks at, does not either. So
//! the outcome with a stock wheel is `ToolInactive`: the text `Compile with TORCH_USE_CUDA_DSA …` is in the library
//! only where the support is not. Where it is compiled in, the error carries a report:
//!
//! ```text
//! Looking for device-side assertion failure information...
//! 1 CUDA device-side assertion failures were found on GPU #0!
//! Assertion failure 0
//!   GPU assertion failure message = index < rows
//!   File containing assertion = /src/rows.cu:24
//!   Device function containing assertion = take_rows
//!   Thread ID that failed assertion = [17,0,0]
//!   Block ID that failed assertion = [0,0,0]
//!   File containing kernel launch = /src/rows.cu:71
//!   Function containing kernel launch = take
//!   Name of kernel launched that led to failure = take_rows
//!   Device that launched kernel = 0
//!   Stream kernel was launched on = 0
//!   Backtrace of kernel launch site = Launch stacktracing disabled.
//! ```
//!
//! `docs/tools/dsa/` has a custom operator that shows this with a stock wheel.

use super::{Activity, Command, Target, Tool, common, inject};
use crate::capture::Capture;
use crate::case::{Device, Mode};
use crate::finding::{DeviceLine, Evidence, Finding, FindingKind, Kernel, Location, NativeFrame};
use crate::host::Need;
use crate::parse::{self, DsaFailure};

/// The name that everybody is told to set, then the one that a build with support looks at.
const VARIABLES: [&str; 2] = ["TORCH_USE_CUDA_DSA", "PYTORCH_USE_CUDA_DSA"];

/// See the module.
pub(super) struct Dsa;

impl Tool for Dsa {
    fn id(&self) -> &'static str {
        "dsa"
    }

    fn summary(&self) -> &'static str {
        "c10's device-side assertions (TORCH_USE_CUDA_DSA, a flag of the build)"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Torch]
    }

    fn objection(&self, _: Mode, device: Device) -> Option<&'static str> {
        (device == Device::Cpu).then_some("device-side assertions are those of CUDA kernels")
    }

    fn command(&self, target: &Target) -> Command {
        let mut command = common::python_command(target);
        for variable in VARIABLES {
            command.env.insert(variable.into(), "1".into());
        }
        inject::inject(&mut command, &target.work, include_str!("inject/dsa.py"));
        command
    }

    fn parse(&self, capture: &Capture) -> Vec<Finding> {
        let mut findings = common::findings(capture);
        for (stream, bytes) in [("stdout", &capture.stdout), ("stderr", &capture.stderr)] {
            findings.extend(parse::scan_bytes(bytes).dsa_failures.iter().map(|f| report(f, stream)));
        }
        findings
    }

    fn activity(&self, capture: &Capture, findings: &[Finding]) -> Activity {
        if let Some(missing) = VARIABLES.iter().find(|v| !capture.had_env(v, "1")) {
            return Activity::Unproven(format!("{missing}=1 was not in the process's environment"));
        }
        let on = if findings.iter().any(|f| f.kind == FindingKind::Report) {
            Activity::Proven("the error carries c10's report of device-side assertions".into())
        } else {
            match inject::detail_with(capture, "assertions are compiled in") {
                Some(detail) => Activity::Proven(detail),
                None => Activity::Unproven(format!(
                    "the variables change nothing: {}",
                    inject::details(capture).pop().unwrap_or_else(|| "no support was seen".into())
                )),
            }
        };
        on.and(common::mode_activity(capture, findings))
    }
}

fn report(failure: &DsaFailure, stream: &str) -> Finding {
    let launch = failure.launch.as_ref();
    let name = launch.map(|l| &l.kernel).filter(|k| !k.is_empty()).unwrap_or(&failure.function);
    Finding {
        kind: FindingKind::Report,
        error_type: None,
        message: format!("Assertion `{}` failed on the device", failure.message),
        location: Location {
            kernel: Some(Kernel {
                name: name.clone(),
                block: failure.site.as_ref().map(|s| s.block),
                thread: failure.site.as_ref().map(|s| s.thread),
                threads: None,
            }),
            device: Some(DeviceLine {
                file: failure.file.clone(),
                line: failure.line,
                expression: Some(failure.message.clone()),
            }),
            native: launch
                .map(|l| NativeFrame {
                    symbol: l.function.clone(),
                    module: None,
                    source: Some(format!("{}:{}", l.file, l.line)),
                })
                .into_iter()
                .collect(),
            ..Location::default()
        },
        evidence: Evidence { stream: stream.into(), start: failure.span.start, end: failure.span.end },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const REPORT: &[u8] = b"Traceback (most recent call last):
  File \"/p/train.py\", line 47, in train_step
    return loss.item()
torch.AcceleratorError: CUDA error: device-side assert triggered
Looking for device-side assertion failure information...
1 CUDA device-side assertion failures were found on GPU #0!
Assertion failure 0
  GPU assertion failure message = index < rows
  File containing assertion = /src/rows.cu:24
  Device function containing assertion = take_rows
  Thread ID that failed assertion = [17,0,0]
  Block ID that failed assertion = [3,0,0]
  File containing kernel launch = /src/rows.cu:71
  Function containing kernel launch = take
  Name of kernel launched that led to failure = take_rows
  Device that launched kernel = 0
  Stream kernel was launched on = 0
  Backtrace of kernel launch site = Launch stacktracing disabled.
";

    /// Captured on an H200 with a stock wheel.
    const STOCK: &[u8] = b"Traceback (most recent call last):
  File \"/p/pack.py\", line 64, in main
    print(f\"batch {batch}: {len(packed)} rows, mean {pooled.mean().item():+.5f}\", flush=True)
torch.AcceleratorError: CUDA error: an illegal memory access was encountered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
";

    fn capture(stderr: &[u8]) -> Capture {
        let mut capture = testing::capture("/p", stderr);
        for variable in VARIABLES {
            capture.meta.env_seen.insert(variable.into(), "1".into());
        }
        capture
    }

    #[test]
    fn the_report_names_kernel_thread_line_and_launch() {
        let capture = capture(REPORT);
        let findings = Dsa.parse(&capture);
        let report = findings.iter().find(|f| f.kind == FindingKind::Report).unwrap();
        let kernel = report.location.kernel.as_ref().unwrap();
        assert_eq!(
            (kernel.name.as_str(), kernel.block, kernel.thread),
            ("take_rows", Some([3, 0, 0]), Some([17, 0, 0]))
        );
        assert_eq!(report.location.device.as_ref().map(|d| d.line), Some(24));
        assert_eq!(report.location.native[0].source.as_deref(), Some("/src/rows.cu:71"));
        assert!(matches!(Dsa.activity(&capture, &findings), Activity::Proven(_)));
    }

    #[test]
    fn a_stock_wheel_is_no_tool() {
        let mut capture = capture(STOCK);
        capture.files.insert(
            "active.jsonl".into(),
            b"{\"pid\": 1, \"detail\": \"device-side assertions are not compiled in\"}".to_vec(),
        );
        let findings = Dsa.parse(&capture);
        assert!(findings.iter().all(|f| f.kind != FindingKind::Report));
        assert!(matches!(Dsa.activity(&capture, &findings), Activity::Unproven(_)));
        let with = b"{\"pid\": 1, \"detail\": \"device-side assertions are compiled in\"}".to_vec();
        capture.files.insert("active.jsonl".into(), with);
        assert!(matches!(Dsa.activity(&capture, &findings), Activity::Proven(_)));
        capture.meta.env_seen.clear();
        assert!(matches!(Dsa.activity(&capture, &findings), Activity::Unproven(_)));
    }
}
