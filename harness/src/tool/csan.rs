//! `csan`: `TORCH_CUDA_SANITIZER=1`, PyTorch's own check for data races between streams.
//!
//! It follows on the host which stream touched which tensor, and which events order them, so it sees a race that did
//! not happen this time, and it sees it at the Python line that started the second access. It knows nothing of indices
//! or values. It raises at the first race:
//!
//! ```text
//! ============================
//! CSAN detected a possible data race on tensor with data pointer 140348535865344
//! Access by stream 534357936 during kernel:
//! aten::embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, …) -> Tensor
//! reading from argument(s) weight
//! With stack trace:
//!   File "rank.py", line 35, in start
//!     self.vectors = F.embedding(ids, self.table)
//!
//! Previous access by stream 0 during kernel:
//! aten::randn(SymInt[] size, *, …) -> Tensor
//! writing to the output
//! With stack trace:
//!   File "rank.py", line 54, in main
//!     prefetcher = Prefetcher(torch.randn(ROWS, DIM, device=device))
//!
//! Tensor was allocated with stack trace:
//! …
//! torch.cuda._sanitizer.CUDASanitizerErrors: detected 1 errors
//! ```

use super::{Activity, Command, Target, Tool, common, inject, text};
use crate::capture::Capture;
use crate::case::{Device, Mode};
use crate::finding::{Evidence, Finding, FindingKind, Location, PythonFrame};
use crate::host::Need;

const VARIABLE: &str = "TORCH_CUDA_SANITIZER";

/// Races that are read, and frames of each.
const RACES: usize = 64;
const FRAMES: usize = 200;

/// See the module.
pub(super) struct Csan;

impl Tool for Csan {
    fn id(&self) -> &'static str {
        "csan"
    }

    fn summary(&self) -> &'static str {
        "data races between CUDA streams (TORCH_CUDA_SANITIZER=1)"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Torch]
    }

    fn objection(&self, mode: Mode, device: Device) -> Option<&'static str> {
        match (mode, device) {
            (_, Device::Cpu) => Some("it watches CUDA streams, and on the CPU there are none"),
            (Mode::Sync, _) => Some(
                "it goes by the order that events and streams guarantee, which CUDA_LAUNCH_BLOCKING=1 does not change",
            ),
            (Mode::Async, Device::Cuda) => None,
        }
    }

    fn command(&self, target: &Target) -> Command {
        let mut command = common::python_command(target);
        command.env.insert(VARIABLE.into(), "1".into());
        // Only to see that it is on.
        inject::inject(&mut command, &target.work, include_str!("inject/csan.py"));
        command
    }

    fn parse(&self, capture: &Capture) -> Vec<Finding> {
        let mut findings = common::context(capture);
        findings.extend(races(&capture.stderr, &capture.meta.program_root));
        findings
    }

    fn activity(&self, capture: &Capture, findings: &[Finding]) -> Activity {
        if !capture.had_env(VARIABLE, "1") {
            return Activity::Unproven(format!("{VARIABLE}=1 was not in the process's environment"));
        }
        let on = match inject::detail_with(capture, "torch.cuda._sanitizer is on") {
            Some(detail) => Activity::Proven(format!("{detail}, seen in the running process")),
            None if findings.iter().any(|f| f.kind == FindingKind::Report) => {
                Activity::Proven("it reported a race".into())
            }
            None => Activity::Unproven(
                inject::details(capture).pop().unwrap_or_else(|| "the sanitizer was not seen to be on".into()),
            ),
        };
        on.and(common::mode_activity(capture, findings))
    }
}

/// One access of a race.
#[derive(Default)]
struct Access {
    stream: String,
    operation: String,
    how: String,
    frames: Vec<PythonFrame>,
}

impl Access {
    /// `aten::embedding` of the schema.
    fn name(&self) -> &str {
        self.operation.split('(').next().unwrap_or_default()
    }

    fn words(&self) -> String {
        format!("{} on stream {}, {}", self.name(), self.stream, self.how)
    }
}

/// Which part of a race's text is being read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Second,
    First,
    Rest,
}

fn races(stderr: &[u8], root: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut lines = text::lines(stderr).peekable();
    while let Some((line, start)) = lines.next() {
        if !line.starts_with(b"CSAN detected a possible data race on tensor") {
            continue;
        }
        if findings.len() >= 2 * RACES {
            break;
        }
        let mut accesses = [Access::default(), Access::default()];
        let (mut part, mut end) = (Part::Second, start + line.len() as u64);
        while let Some((line, at)) =
            lines.next_if(|(line, _)| !line.starts_with(b"====") && !line.starts_with(b"Trace"))
        {
            if !line.is_empty() {
                end = at + line.len() as u64;
            }
            let text = common::text(line);
            if text.starts_with("Previous access by") {
                part = Part::First;
            } else if text.starts_with("Tensor was allocated") || text.starts_with("Trace for tensor") {
                part = Part::Rest;
            }
            let [second, first] = &mut accesses;
            let access = match part {
                Part::Second => second,
                Part::First => first,
                Part::Rest => continue,
            };
            if let Some(rest) = text.split_once("ccess by stream ").map(|(_, rest)| rest) {
                access.stream = rest.split(' ').next().unwrap_or_default().to_string();
            } else if text.starts_with("reading") || text.starts_with("writing") {
                access.how = text;
            } else if let Some(frame) = frame(&text, root) {
                // The sanitizer's own frames stand at the end.
                if !frame.file.ends_with("torch/cuda/_sanitizer.py") && access.frames.len() < FRAMES {
                    access.frames.push(frame);
                }
            } else if text.starts_with("    ") {
                if let Some(frame) = access.frames.last_mut().filter(|f| f.source.is_none()) {
                    frame.source = Some(text.trim().to_string());
                }
            } else if access.operation.is_empty() && text.contains("::") {
                access.operation = text;
            }
        }
        let [second, first] = accesses;
        findings.push(Finding {
            kind: FindingKind::Report,
            error_type: Some("CUDASanitizerErrors".into()),
            message: format!("possible data race: {}, is not ordered after {}", second.words(), first.words()),
            location: Location {
                module: Some(second.name().to_string()).filter(|m| !m.is_empty()),
                python: second.frames,
                ..Location::default()
            },
            evidence: Evidence { stream: "stderr".into(), start, end },
        });
        findings.push(Finding {
            kind: FindingKind::Context,
            error_type: None,
            message: format!("the earlier access: {}", first.words()),
            location: Location { python: first.frames, ..Location::default() },
            evidence: Evidence { stream: "stderr".into(), start, end },
        });
    }
    findings
}

/// `  File "rank.py", line 35, in start`
fn frame(text: &str, root: &str) -> Option<PythonFrame> {
    let (file, rest) = text.strip_prefix("  File \"")?.split_once("\", line ")?;
    let (line, function) = rest.split_once(", in ")?;
    Some(PythonFrame {
        file: file.to_string(),
        own: common::own(root, file),
        line: line.parse().ok()?,
        function: function.to_string(),
        source: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    /// Captured on an H200, before the scenario waited for its table.
    const STREAM: &str = include_str!("samples/csan_side_stream.txt");
    /// The same, `label-oob`: no race, and the program's own error.
    const LABEL: &str = include_str!("samples/csan_label_oob.txt");

    fn capture(stderr: &str) -> Capture {
        let mut capture = testing::capture("<SCENARIOS>/side-stream", stderr.as_bytes());
        capture.meta.env_seen.insert(VARIABLE.into(), "1".into());
        capture
    }

    #[test]
    fn a_race_names_both_accesses() {
        let found = Csan.parse(&capture(STREAM));
        let reports: Vec<_> = found.iter().filter(|f| f.kind == FindingKind::Report).collect();
        assert_eq!(reports.len(), 1);
        let race = reports[0];
        assert_eq!(race.location.innermost_own(), Some(("rank.py", 35)));
        assert_eq!(race.location.module.as_deref(), Some("aten::embedding"));
        assert!(race.message.contains("aten::randn on stream 0, writing to the output"), "{}", race.message);
        let earlier = found.iter().find(|f| f.message.starts_with("the earlier access")).unwrap();
        assert_eq!(earlier.location.innermost_own(), Some(("rank.py", 54)));
        let at = &race.evidence;
        let read = &STREAM[usize::try_from(at.start).unwrap()..usize::try_from(at.end).unwrap()];
        assert!(read.starts_with("CSAN") && !read.contains("Traceback"));
        // What ended the program is the sanitizer's exception: no claim of its own.
        assert!(found.iter().any(|f| f.kind == FindingKind::Ended));
    }

    #[test]
    fn an_error_that_is_no_race_is_not_its_claim() {
        assert!(Csan.parse(&capture(LABEL)).iter().all(|f| f.kind != FindingKind::Report && !f.kind.is_claim()));
    }

    #[test]
    fn it_must_be_seen_on() {
        let mut capture = capture(LABEL);
        assert!(matches!(Csan.activity(&capture, &[]), Activity::Unproven(_)));
        for (word, on) in [("off", false), ("on", true)] {
            let line = format!("{{\"pid\": 1, \"detail\": \"torch.cuda._sanitizer is {word}\"}}");
            capture.files.insert("active.jsonl".into(), line.into_bytes());
            assert_eq!(matches!(Csan.activity(&capture, &[]), Activity::Proven(_)), on);
        }
        capture.meta.env_seen.clear();
        assert!(matches!(Csan.activity(&capture, &[]), Activity::Unproven(_)));
    }
}
