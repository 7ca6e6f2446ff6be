//! What most tools share: running the program with Python, and reading the text that it prints.

use std::collections::{BTreeMap, HashMap};

use super::{Activity, Command, Target};
use crate::capture::{Capture, Exit};
use crate::case::{Device, Mode};
use crate::finding::{DeviceLine, Evidence, Finding, FindingKind, Kernel, Location, NativeFrame, PythonFrame};
use crate::parse::{self, DeviceAssertion, ForwardTrace, Heading, NativeStack, PyException, Scan, Span, Traceback};

const BLOCKING: &str = "CUDA_LAUNCH_BLOCKING";

/// `python program args`, and in sync mode with each launch waited for.
pub(super) fn python_command(target: &Target) -> Command {
    let mut argv = vec![target.python.clone(), target.program.clone()];
    argv.extend(target.args.iter().cloned());
    let mut env = BTreeMap::new();
    if target.mode == Mode::Sync && target.device == Device::Cuda {
        env.insert(BLOCKING.to_string(), "1".to_string());
    }
    Command { argv, env, ..Command::default() }
}

/// Was the mode really in force? PyTorch itself says so at each CUDA error: only without launch blocking does it
/// warn that the error may belong to an earlier call.
pub(super) fn mode_activity(capture: &Capture, findings: &[Finding]) -> Activity {
    let meta = &capture.meta;
    if meta.device == Device::Cpu {
        return Activity::Proven("on the CPU every operation is synchronous".into());
    }
    let blocking = capture.had_env(BLOCKING, "1");
    let said =
        parse::scan_bytes(&capture.stderr).errors.iter().filter_map(parse::TorchError::launch_blocking).next_back();
    match (meta.case.mode, blocking, said) {
        (Mode::Async, true, _) => {
            Activity::Unproven(format!("{BLOCKING}=1 was in the process's environment: this was not async"))
        }
        (Mode::Sync, false, _) => Activity::Unproven(format!("{BLOCKING}=1 was not in the process's environment")),
        (Mode::Sync, true, Some(false)) => {
            Activity::Unproven("PyTorch's message says that launches were not blocking".into())
        }
        (Mode::Sync, true, Some(true)) => {
            Activity::Proven(format!("{BLOCKING}=1 in the process's environment, and PyTorch's message confirms it"))
        }
        (Mode::Sync, true, None) => Activity::Proven(format!("{BLOCKING}=1 in the process's environment")),
        (Mode::Async, false, _) if findings.is_empty() => Activity::Proven(format!("{BLOCKING} was not set")),
        (Mode::Async, false, _) => {
            Activity::Proven(format!("{BLOCKING} was not set, and what the program printed was read"))
        }
    }
}

/// Everything that the program's own output says.
pub(super) fn findings(capture: &Capture) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (stream, bytes) in [("stdout", &capture.stdout), ("stderr", &capture.stderr)] {
        let reader = Reader { stream, root: &capture.meta.program_root };
        let died = stream == "stderr" && capture.meta.exit != Exit::Code(0);
        findings.extend(reader.findings(&parse::scan_bytes(bytes), died));
    }
    findings
}

/// The path relative to the program's folder, if the file is below it.
pub(super) fn own(root: &str, file: &str) -> Option<String> {
    file.strip_prefix(root).and_then(|rest| rest.strip_prefix('/')).map(String::from)
}

/// What the program's own output says, for a tool that speaks for itself: shown, never scored.
pub(super) fn context(capture: &Capture) -> Vec<Finding> {
    let mut findings = findings(capture);
    for finding in &mut findings {
        finding.kind = match finding.kind {
            FindingKind::Exception => FindingKind::Ended,
            FindingKind::DeviceAssertion | FindingKind::ForwardTrace => FindingKind::Context,
            kind => kind,
        };
    }
    findings
}

/// A line as text, however long it is.
pub(super) fn text(line: &[u8]) -> String {
    const CAP: usize = 2048;
    String::from_utf8_lossy(line.get(..CAP).unwrap_or(line)).trim_end().to_string()
}

/// Turns what a parser read from one stream into findings.
struct Reader<'a> {
    stream: &'a str,
    root: &'a str,
}

impl Reader<'_> {
    /// `died`: the last traceback of each process is what ended it. All others were caught and printed, or belong
    /// to a chain: shown, not scored.
    fn findings(&self, scan: &Scan, died: bool) -> Vec<Finding> {
        let mut last_of: HashMap<Option<&str>, Span> = HashMap::new();
        for traceback in scan.tracebacks.iter().filter(|t| !is_ignored(t)) {
            last_of.insert(traceback.process.as_deref(), traceback.span);
        }
        let mut findings = Vec::new();
        findings.extend(scan.assertions.iter().map(|a| self.assertion(a)));
        for traceback in scan.tracebacks.iter() {
            let ended_it = died && last_of.get(&traceback.process.as_deref()) == Some(&traceback.span);
            let raised = traceback.chain.len().saturating_sub(1);
            for (at, exception) in traceback.chain.iter().enumerate() {
                let kind = if ended_it && at == raised { FindingKind::Exception } else { FindingKind::Context };
                findings.push(self.exception(kind, exception));
            }
        }
        findings.extend(scan.forward_traces.iter().map(|t| self.forward(t)));
        findings.extend(scan.native_stacks.iter().map(|s| self.native(s)));
        findings.sort_by_key(|f| f.evidence.start);
        findings
    }

    fn evidence(&self, span: Span) -> Evidence {
        Evidence { stream: self.stream.into(), start: span.start, end: span.end }
    }

    fn frames(&self, frames: &[parse::Frame]) -> Vec<PythonFrame> {
        frames
            .iter()
            .map(|f| PythonFrame {
                own: own(self.root, &f.file),
                file: f.file.clone(),
                line: f.line,
                function: f.function.clone(),
                source: f.source.clone(),
            })
            .collect()
    }

    fn exception(&self, kind: FindingKind, exception: &PyException) -> Finding {
        Finding {
            kind,
            error_type: Some(exception.type_name.clone()),
            message: exception.message.clone(),
            location: Location { python: self.frames(&exception.frames), ..Location::default() },
            evidence: self.evidence(exception.span),
        }
    }

    fn forward(&self, trace: &ForwardTrace) -> Finding {
        Finding {
            kind: FindingKind::ForwardTrace,
            error_type: None,
            message: format!("forward call of {}", trace.node),
            location: Location { python: self.frames(&trace.frames), ..Location::default() },
            evidence: self.evidence(trace.span),
        }
    }

    fn assertion(&self, a: &DeviceAssertion) -> Finding {
        let kernel = a.function.as_ref().filter(|name| names_something(name)).map(|name| Kernel {
            name: name.clone(),
            block: Some(a.first.block),
            thread: Some(a.first.thread),
            threads: Some(a.count),
        });
        let first = if kernel.is_some() {
            String::new()
        } else {
            format!(", first in block {:?}, thread {:?}", a.first.block, a.first.thread)
        };
        Finding {
            kind: FindingKind::DeviceAssertion,
            error_type: None,
            message: format!("Assertion `{}` failed in {} of the device's threads{first}", a.expression, a.count),
            location: Location {
                kernel,
                device: Some(DeviceLine { file: a.file.clone(), line: a.line, expression: Some(a.expression.clone()) }),
                ..Location::default()
            },
            evidence: self.evidence(a.span),
        }
    }

    fn native(&self, stack: &NativeStack) -> Finding {
        let raised = stack.raised_from.as_ref();
        Finding {
            kind: FindingKind::NativeStack,
            error_type: None,
            message: raised.map_or_else(
                || "C++ stack".to_string(),
                |r| format!("raised from {} at {}:{}", r.function, r.source.file, r.source.line),
            ),
            location: Location {
                native: stack
                    .frames
                    .iter()
                    .map(|f| NativeFrame {
                        symbol: f.symbol.clone().unwrap_or_else(|| "??".into()),
                        module: f.module.clone(),
                        source: f.source.as_ref().map(|s| format!("{}:{}", s.file, s.line)),
                    })
                    .collect(),
                ..Location::default()
            },
            evidence: self.evidence(stack.span),
        }
    }
}

/// Whether an assertion's function tells which kernel it is: the body of a lambda, as most element-wise and indexing
/// kernels of `PyTorch` have, is `operator()` in all of them, and Triton keeps no name.
fn names_something(function: &str) -> bool {
    !matches!(function, "operator()" | "unknown") && !function.ends_with("::operator()")
}

/// "Exception ignored in …": printed by the interpreter for an error that ended nothing.
fn is_ignored(traceback: &Traceback) -> bool {
    matches!(traceback.heading, Some(Heading::Ignored { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lambda_names_no_kernel() {
        for function in ["operator()", "at::native::index_kernel::operator()", "unknown"] {
            assert!(!names_something(function), "{function}");
        }
        assert!(names_something("nll_loss_forward_reduce_cuda_kernel_2d"));
    }
}
