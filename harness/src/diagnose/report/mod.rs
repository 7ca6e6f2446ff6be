//! Reports of a diagnosis: each format is one file over the one model.

mod json;
mod markdown;
mod terminal;

use super::model::{Diagnosis, Kernel, Place, Surfaced};
use crate::report::Named;

/// A format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For people, at a terminal.
    Terminal,
    /// For issues and chats.
    Markdown,
    /// The model itself.
    Json,
}

impl Named for Format {
    const ALL: &'static [Self] = &[Self::Terminal, Self::Markdown, Self::Json];

    fn name(self) -> &'static str {
        match self {
            Self::Terminal => "terminal",
            Self::Markdown => "markdown",
            Self::Json => "json",
        }
    }
}

impl Format {
    /// The report's text; styling escapes are part of a terminal report only.
    pub fn render(self, diagnosis: &Diagnosis, width: usize) -> String {
        match self {
            Self::Terminal => terminal::render(diagnosis, width),
            Self::Markdown => markdown::render(diagnosis),
            Self::Json => json::render(diagnosis),
        }
    }
}

/// `grid 4x1x1, block 32x1x1, device 0, stream 2, launch 108`: what of it is known.
fn kernel_facts(kernel: &Kernel) -> String {
    let dims = |[x, y, z]: [u32; 3]| format!("{x}x{y}x{z}");
    let facts = [
        kernel.grid.map(|grid| format!("grid {}", dims(grid))),
        kernel.block.map(|block| format!("block {}", dims(block))),
        kernel.device.map(|device| format!("device {device}")),
        kernel.stream.map(|stream| format!("stream {stream}")),
        kernel.launch.map(|launch| format!("launch {launch}")),
    ];
    facts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Where it surfaced, in a sentence. The line that is meant is shown already.
fn surfaced_words(d: &Diagnosis, surfaced: &Surfaced) -> String {
    let meant = |p: &Place| Some(&p.file) == surfaced.file.as_ref() && Some(p.line) == surfaced.line;
    if d.places.iter().any(meant) {
        return format!("{}, at the same line", surfaced.what);
    }
    match (&surfaced.file, surfaced.line) {
        (Some(file), Some(line)) => {
            let innocent = if surfaced.innocent { "; that line is innocent, it only noticed" } else { "" };
            format!("{} at {file}:{line}{innocent}", surfaced.what)
        }
        _ => surfaced.what.clone(),
    }
}

/// The text of the line where it surfaced, where that is another than the one that is meant.
fn surfaced_text<'a>(d: &Diagnosis, surfaced: &'a Surfaced) -> Option<&'a String> {
    let meant = d.places.iter().any(|p| Some(&p.file) == surfaced.file.as_ref() && Some(p.line) == surfaced.line);
    surfaced.text.as_ref().filter(|_| !meant)
}

/// Seconds as they are read best.
fn seconds(s: f64) -> String {
    if s < 100.0 { format!("{s:.1} s") } else { format!("{s:.0} s") }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::capture::Exit;
    use crate::diagnose::model::*;
    use crate::report::Output;

    /// A diagnosis with everything in it.
    pub(crate) fn full() -> Diagnosis {
        let kernel = Kernel {
            name: "nll_loss_forward_reduce_cuda_kernel_2d".into(),
            grid: Some([1, 1, 1]),
            block: Some([32, 1, 1]),
            device: Some(0),
            stream: Some(0),
            launch: Some(108),
        };
        let source =
            crate::diagnose::source::frame("a\nb\nlabels = raw - 1\nloss = f(net(x), labels)\nloss.backward()\n", 4);
        Diagnosis {
            schema_version: SCHEMA_VERSION,
            faultlab: "0.1.0".into(),
            command: vec!["python".into(), "train.py".into(), "--name".into(), "a b".into()],
            cwd: "/j".into(),
            started: jiff::Timestamp::UNIX_EPOCH,
            seconds: 8.25,
            outcome: Outcome::DeviceFault {
                name: Some("CUDA_ERROR_ASSERT".into()),
                text: "device-side assert triggered".into(),
            },
            headline: "device-side assert triggered: train.py:4 launched the kernel that faulted".into(),
            confidence: Confidence::Exact,
            places: vec![Place {
                file: "/j/train.py".into(),
                line: 4,
                function: "step".into(),
                role: "launched the kernel that faulted".into(),
                named_by: "recorder".into(),
                kernel: Some(kernel.clone()),
                source,
                related: vec![Related {
                    role: "called from".into(),
                    file: "/j/train.py".into(),
                    line: 58,
                    function: "main".into(),
                    text: Some("step(net)".into()),
                }],
            }],
            kernel: Some(kernel),
            surfaced: Some(Surfaced {
                what: "torch.AcceleratorError: CUDA error: device-side assert triggered".into(),
                file: Some("/j/train.py".into()),
                line: Some(20),
                text: Some("print(loss.item())".into()),
                innocent: true,
            }),
            assertion: Some(Assertion {
                file: "/pytorch/Loss.cu".into(),
                line: 245,
                function: Some("nll_loss_forward_reduce_cuda_kernel_2d".into()),
                expression: "t >= 0 && t < n_classes".into(),
                threads: 1,
                block: [0, 0, 0],
                thread: [7, 0, 0],
            }),
            values: vec!["target[17] = 10".into()],
            origins: vec![Origin {
                name: "labels".into(),
                file: "/j/train.py".into(),
                line: 3,
                text: "labels = raw - 1".into(),
            }],
            around: vec![Launched {
                launch: 108,
                kernel: "nll_loss_forward_reduce_cuda_kernel_2d".into(),
                state: "running".into(),
                stream: 0,
                place: Some("train.py:4".into()),
                culprit: true,
            }],
            evidence: vec!["Its marker is the first that is missing.".into()],
            next: vec!["Check the labels with `labels.max()`.".into()],
            steps: vec![Step {
                id: "recorder".into(),
                why: "as you run it, with the launch recorder".into(),
                outcome: "a device fault; located at train.py:4".into(),
                skipped: false,
                seconds: 8.25,
                exit: Some(Exit::Code(1)),
                active: Some("the recorder saw launches in process 7".into()),
                named: Some("train.py:4".into()),
            }],
            notices: vec!["A notice.".into()],
            host: HostFacts { gpus: vec!["NVIDIA H200".into()], ..HostFacts::default() },
        }
    }

    #[test]
    fn every_format_has_everything_that_matters() {
        for format in Format::ALL {
            let text = anstream::adapter::strip_str(&format.render(&full(), 100)).to_string();
            for wanted in [
                "train.py",
                "labels = raw - 1",
                "nll_loss_forward",
                "target[17] = 10",
                "exact",
                "n_classes",
                "innocent",
                "Check the labels",
                "first that is missing",
                "NVIDIA H200",
                "A notice.",
            ] {
                assert!(text.contains(wanted), "{} lacks {wanted}:\n{text}", format.name());
            }
        }
    }

    #[test]
    fn text_of_the_program_cannot_drive_the_terminal() {
        let mut diagnosis = full();
        diagnosis.headline = "a\u{1b}[2Jb\u{7}".into();
        diagnosis.values = vec!["\u{1b}]0;title\u{7}".into()];
        let text = anstream::adapter::strip_str(&Format::Terminal.render(&diagnosis, 100)).to_string();
        assert!(text.contains("a\u{fffd}[2Jb\u{fffd}"), "{text:?}");
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    }

    #[test]
    fn formats_are_read() {
        assert_eq!("json:x.json".parse(), Ok(Output { format: Format::Json, path: Some("x.json".into()) }));
        assert!("html".parse::<Output<Format>>().is_err_and(|e| e.contains("possible: terminal, markdown, json")));
    }
}
