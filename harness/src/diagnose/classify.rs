//! What happened, from one run. Pure.

use super::model::Outcome;
use super::observe::Observed;
use crate::capture::Exit;
use crate::parse::torch::{ErrorKind, TorchError};

/// Errors that a kernel leaves behind and that come to light in a later call, by their names in CUDA's runtime and in
/// its driver.
const ASYNCHRONOUS: &[&str] = &[
    "cudaErrorAssert",
    "cudaErrorIllegalAddress",
    "cudaErrorIllegalInstruction",
    "cudaErrorInvalidAddressSpace",
    "cudaErrorInvalidPc",
    "cudaErrorHardwareStackError",
    "cudaErrorLaunchFailure",
    "cudaErrorLaunchTimeout",
    "cudaErrorMisalignedAddress",
    "cudaErrorECCUncorrectable",
    "cudaErrorContained",
    "cudaErrorTensorMemoryLeak",
];

/// Their texts.
const ASYNCHRONOUS_TEXTS: &[&str] = &[
    "device-side assert triggered",
    "an illegal memory access was encountered",
    "an illegal instruction was encountered",
    "operation not supported on global/shared address space",
    "invalid program counter",
    "hardware stack error",
    "unspecified launch failure",
    "the launch timed out and was terminated",
    "misaligned address",
    "uncorrectable ECC error encountered",
    "Invalid access of peer GPU memory over nvlink or a hardware error",
    "uncorrectable NVLink error",
];

/// Is this an error of a kernel that ran earlier?
pub fn is_asynchronous(error: &TorchError) -> bool {
    error.name.as_deref().is_some_and(|name| ASYNCHRONOUS.contains(&name))
        || ASYNCHRONOUS_TEXTS.iter().any(|text| error.text.contains(text))
}

/// What happened.
pub fn classify(observed: &Observed) -> Outcome {
    if let Some((_, fault)) = observed.faults().first() {
        let text = observed.torch_error().map_or_else(|| words_of(&fault.name), |error| error.text);
        return Outcome::DeviceFault { name: Some(fault.name.clone()), text };
    }
    if let Some(outcome) = from_error(observed) {
        return outcome;
    }
    if !observed.assertions().is_empty() {
        return Outcome::DeviceFault {
            name: Some("cudaErrorAssert".into()),
            text: "device-side assert triggered".into(),
        };
    }
    match &observed.exit {
        Exit::Deadline => Outcome::Hang { why: hang_words(observed) },
        Exit::Signal(signal) => Outcome::Killed { signal: signal.clone() },
        Exit::Code(0) => match &observed.not_finite {
            Some(line) => Outcome::NotFinite { text: line.clone() },
            None => Outcome::Clean,
        },
        Exit::Code(code) => match observed.ended_by() {
            Some(exception) if speaks_of_not_finite(observed) => {
                Outcome::NotFinite { text: first_line(&format!("{}: {}", exception.type_name, exception.message)) }
            }
            Some(exception) if exception.type_name.ends_with("MemoryError") => Outcome::HostError {
                type_name: exception.type_name.clone(),
                message: "the host's memory did not suffice".into(),
            },
            Some(exception) => {
                Outcome::HostError { type_name: exception.type_name.clone(), message: exception.message.clone() }
            }
            // 128 + n is how a shell, and many launchers, tell that a child died of signal n.
            None => match code - 128 {
                n @ 1..=64 => match nix::sys::signal::Signal::try_from(n) {
                    Ok(signal) => Outcome::Killed { signal: signal.as_str().into() },
                    Err(_) => Outcome::Failed { code: *code },
                },
                _ => Outcome::Failed { code: *code },
            },
        },
    }
}

/// From what PyTorch says of CUDA.
fn from_error(observed: &Observed) -> Option<Outcome> {
    let error = observed.torch_error()?;
    let memory = error.kind == ErrorKind::OutOfMemory
        || matches!(error.name.as_deref(), Some("cudaErrorMemoryAllocation" | "CUBLAS_STATUS_ALLOC_FAILED"))
        || error.text == "out of memory";
    if memory {
        return Some(Outcome::OutOfMemory { text: first_line(&error.text) });
    }
    // A library's status seldom is the library's own: mostly a kernel before it has failed.
    if is_asynchronous(&error) || error.kind == ErrorKind::Library {
        return Some(Outcome::DeviceFault { name: error.name.clone(), text: first_line(&error.text) });
    }
    None
}

/// Does the error that ended the program, or the line that raised it, speak of values that are not finite?
fn speaks_of_not_finite(observed: &Observed) -> bool {
    let Some(exception) = observed.ended_by() else { return false };
    if exception.type_name.ends_with("FloatingPointError") {
        return true;
    }
    let message = exception.message.to_lowercase();
    let word = |w: &str| message.split(|c: char| !c.is_alphanumeric()).any(|part| part == w);
    if word("nan") || word("nans") || word("inf") || message.contains("not finite") || message.contains("non-finite") {
        return true;
    }
    let raised = exception.innermost().and_then(|frame| frame.source.as_deref()).unwrap_or_default();
    exception.type_name.ends_with("AssertionError") && (raised.contains("isfinite") || raised.contains("isnan"))
}

fn hang_words(observed: &Observed) -> String {
    match observed.hang() {
        Some((_, hang)) if !hang.running.is_empty() => {
            format!("nothing finished on the device for {:.0} s", hang.seconds)
        }
        _ => format!("it did not end within {:.0} s", observed.elapsed_s),
    }
}

/// The words of a driver error's name.
fn words_of(name: &str) -> String {
    match name {
        "CUDA_ERROR_ASSERT" => "device-side assert triggered".into(),
        "CUDA_ERROR_ILLEGAL_ADDRESS" => "an illegal memory access was encountered".into(),
        "CUDA_ERROR_MISALIGNED_ADDRESS" => "misaligned address".into(),
        "CUDA_ERROR_LAUNCH_FAILED" => "unspecified launch failure".into(),
        other => other.trim_start_matches("CUDA_ERROR_").replace('_', " ").to_lowercase(),
    }
}

/// The first line of a text.
pub(super) fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(exit: Exit, stderr: &str) -> Outcome {
        classify(&Observed::new(exit, 2.0, b"", stderr.as_bytes(), Vec::new()))
    }

    fn python(source: &str, error: &str) -> String {
        format!(
            "Traceback (most recent call last):\n  File \"/job/train.py\", line 7, in <module>\n    {source}\n{error}\n"
        )
    }

    #[track_caller]
    fn check(exit: Exit, stderr: &str, name: &str) {
        assert_eq!(outcome(exit, stderr).name(), name, "{stderr}");
    }

    #[test]
    fn what_ended_a_program() {
        let failed = || Exit::Code(1);
        check(Exit::Code(0), "", "clean");
        check(Exit::Code(0), "loss nan\n", "not-finite");
        check(failed(), "", "failed");
        check(Exit::Code(139), "", "killed");
        check(Exit::Code(255), "", "failed");
        check(Exit::Deadline, "", "hang");
        check(Exit::Signal("SIGKILL".into()), "", "killed");
        check(failed(), &python("a[3]", "IndexError: list index out of range"), "host-error");
        check(failed(), &python("f()", "RuntimeError: weights became NaN"), "not-finite");
        check(failed(), &python("f()", "RuntimeError: information about nanoseconds"), "host-error");
        check(failed(), &python("assert torch.isfinite(loss)", "AssertionError"), "not-finite");
        check(failed(), &python("assert ok", "AssertionError"), "host-error");
        check(
            failed(),
            &python("y.backward()", "RuntimeError: Function 'SqrtBackward0' returned nan values in its 0th output."),
            "not-finite",
        );
    }

    #[test]
    fn what_cuda_said() {
        let error = |text: &str| python("loss.item()", &format!("torch.AcceleratorError: CUDA error: {text}"));
        let failed = || Exit::Code(1);
        check(
            failed(),
            &error("device-side assert triggered\nSearch for `cudaErrorAssert' in x for more"),
            "device-fault",
        );
        check(failed(), &error("an illegal memory access was encountered"), "device-fault");
        check(failed(), &error("invalid device ordinal"), "host-error");
        check(failed(), &error("out of memory"), "out-of-memory");
        check(
            failed(),
            &python("x", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB."),
            "out-of-memory",
        );
        check(
            failed(),
            &python("x", "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(x)`"),
            "device-fault",
        );
        check(
            failed(),
            &python("x", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            "out-of-memory",
        );
        check(failed(), &python("x", "RuntimeError: Triton Error [CUDA]: misaligned address"), "device-fault");
        let abort =
            "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: misaligned address\n";
        check(Exit::Signal("SIGABRT".into()), abort, "device-fault");
    }

    /// An `except` swallowed it, and the program went on to its end.
    #[test]
    fn a_device_assertion_is_a_fault_whatever_the_exit_code_says() {
        let line =
            "/a/Loss.cu:245: nll_loss: block: [0,0,0], thread: [7,0,0] Assertion `t >= 0 && t < n_classes` failed.\n";
        check(Exit::Code(0), line, "device-fault");
        check(Exit::Code(1), line, "device-fault");
    }
}
