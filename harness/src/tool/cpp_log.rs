//! `cpp-log`: `TORCH_CPP_LOG_LEVEL=INFO`, the log of PyTorch's C++ code.
//!
//! Little of PyTorch logs at this level: the process groups and the stores of `torch.distributed`, some of the JIT. A
//! program on one GPU prints not one line more, and so none about the fault. With a store of `torch.distributed`:
//!
//! ```text
//! [I1130 20:47:08.579281599 socket.cpp:955] [c10d] The client socket has connected to [::ffff:127.0.0.1]:37645 on SocketImpl(fd=13, …).
//! [I1130 20:47:08.766323822 TCPStoreLibUvBackend.cpp:1331] [c10d] uv_loop cleanup finished.
//! ```
//!
//! A log that is silent proves nothing, so the level is read back from c10's own variable in the running process.

use std::collections::VecDeque;

use super::{Activity, Command, Target, Tool, common, inject, text};
use crate::capture::Capture;
use crate::finding::{Evidence, Finding, FindingKind, Location, NativeFrame};
use crate::host::Need;

const VARIABLE: &str = "TORCH_CPP_LOG_LEVEL";

/// Of many lines the last are shown: they are nearest to the error.
const SHOWN: usize = 32;

/// See the module.
pub(super) struct CppLog;

impl Tool for CppLog {
    fn id(&self) -> &'static str {
        "cpp-log"
    }

    fn summary(&self) -> &'static str {
        "the log of PyTorch's C++ code (TORCH_CPP_LOG_LEVEL=INFO)"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Torch]
    }

    fn command(&self, target: &Target) -> Command {
        let mut command = common::python_command(target);
        command.env.insert(VARIABLE.into(), "INFO".into());
        inject::inject(&mut command, &target.work, include_str!("inject/cpp_log.py"));
        command
    }

    fn parse(&self, capture: &Capture) -> Vec<Finding> {
        let mut findings = common::findings(capture);
        findings.extend(logged(&capture.stderr));
        findings.sort_by(|a, b| (&a.evidence.stream, a.evidence.start).cmp(&(&b.evidence.stream, b.evidence.start)));
        findings
    }

    fn activity(&self, capture: &Capture, findings: &[Finding]) -> Activity {
        if !capture.had_env(VARIABLE, "INFO") {
            return Activity::Unproven(format!("{VARIABLE}=INFO was not in the process's environment"));
        }
        let on = match inject::detail_with(capture, "c10's log level is INFO") {
            Some(detail) => Activity::Proven(format!("read back from the running process: {detail}")),
            None => match logged(&capture.stderr).next() {
                Some(line) => Activity::Proven(format!("it logged: {}", line.message)),
                None => Activity::Unproven(
                    inject::details(capture).pop().unwrap_or_else(|| "c10's log level was not read back".into()),
                ),
            },
        };
        on.and(common::mode_activity(capture, findings))
    }
}

/// The log's lines, as context: none of them claims to know the fault.
fn logged(stderr: &[u8]) -> impl Iterator<Item = Finding> {
    let mut last = VecDeque::new();
    for (line, start) in text::lines(stderr) {
        if let Some(place) = place(line) {
            if last.len() == SHOWN {
                last.pop_front();
            }
            last.push_back((line, start, place));
        }
    }
    last.into_iter().map(|(line, start, place)| Finding {
        kind: FindingKind::Context,
        error_type: None,
        message: common::text(line),
        location: Location {
            native: vec![NativeFrame { symbol: "??".into(), module: None, source: Some(common::text(place)) }],
            ..Location::default()
        },
        evidence: Evidence { stream: "stderr".into(), start, end: start + line.len() as u64 },
    })
}

/// `socket.cpp:955` of `[I1130 20:47:08.579281599 socket.cpp:955] …`, which may have `[rank0]:` before it.
fn place(line: &[u8]) -> Option<&[u8]> {
    let line = match line.strip_prefix(b"[rank") {
        Some(rest) => rest.get(rest.iter().position(|b| *b == b':')? + 1..)?,
        None => line,
    };
    let (level, rest) = line.strip_prefix(b"[")?.split_first()?;
    if !b"VIWEF".contains(level) || !rest.first()?.is_ascii_digit() {
        return None;
    }
    let head = rest.get(..rest.iter().position(|b| *b == b']')?)?;
    let place = head.rsplit(|b| *b == b' ').next()?;
    let colon = place.iter().rposition(|b| *b == b':')?;
    let digits = place.get(colon + 1..)?;
    (!digits.is_empty() && digits.iter().all(u8::is_ascii_digit)).then_some(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const LOG: &[u8] = b"[I1130 20:47:08.579281599 socket.cpp:955] [c10d] The client socket has connected.\n\
[rank1]:[W1130 20:47:08.766323822 TCPStoreLibUvBackend.cpp:1331] [c10d] uv_loop cleanup finished.\n\
[Info] not a line of the log\n";

    /// Captured on an H200: nothing is logged at all.
    const LABEL: &[u8] = b"/pytorch/aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [17,0,0] Assertion `t >= 0 && t < n_classes` failed.
Traceback (most recent call last):
  File \"/p/train.py\", line 63, in <module>
    main()  # CALLER
  File \"/p/train.py\", line 47, in train_step
    return loss.item()
           ^^^^^^^^^^^
torch.AcceleratorError: CUDA error: device-side assert triggered
";

    #[test]
    fn lines_of_the_log_are_context() {
        let found = CppLog.parse(&testing::capture("/p", LOG));
        let places: Vec<_> = found.iter().map(|f| f.location.native[0].source.clone().unwrap()).collect();
        assert_eq!(places, ["socket.cpp:955", "TCPStoreLibUvBackend.cpp:1331"]);
        assert!(found.iter().all(|f| !f.kind.is_claim()));
    }

    #[test]
    fn the_programs_own_error_is_what_counts() {
        let found = CppLog.parse(&testing::capture("/p", LABEL));
        let error = found.iter().find(|f| f.kind == FindingKind::Exception).unwrap();
        assert_eq!(error.location.innermost_own(), Some(("train.py", 47)));
    }

    #[test]
    fn only_the_level_or_a_line_of_the_log_proves_it() {
        let mut capture = testing::capture("/p", LABEL);
        assert!(matches!(CppLog.activity(&capture, &[]), Activity::Unproven(_)));
        capture.meta.env_seen.insert(VARIABLE.into(), "INFO".into());
        assert!(matches!(CppLog.activity(&capture, &[]), Activity::Unproven(_)));
        let mut proven = |level: &str| {
            let line = format!("{{\"pid\": 1, \"detail\": \"c10's log level is {level}\"}}\n");
            capture.files.insert("active.jsonl".into(), line.into_bytes());
            matches!(CppLog.activity(&capture, &[]), Activity::Proven(_))
        };
        assert!(!proven("WARNING"));
        assert!(proven("INFO"));
    }
}
