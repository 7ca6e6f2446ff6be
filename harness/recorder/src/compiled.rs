//! The user's lines behind a kernel that `torch.compile` generated.
//!
//! The Python side of the recorder (`shim/`) notes, while Inductor compiles, which lines each kernel was fused from: a line
//! of `kernels.<pid>.jsonl` each, with the generated file and the lines in it that launch the kernel.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use serde::Deserialize;

use crate::format::Frame;

/// What is read of a line.
#[derive(Deserialize)]
struct Kernel {
    #[serde(rename = "kernel")]
    name: String,
    generated: String,
    #[serde(default)]
    lines: Vec<u32>,
    #[serde(default)]
    sources: Vec<Source>,
}

#[derive(Deserialize)]
struct Source {
    file: String,
    line: u32,
    #[serde(default)]
    function: String,
}

/// The lines that the kernel `symbol`, launched from `frames`, was made from; the likeliest to index out of bounds first.
/// Empty where nothing is known.
pub(crate) fn sources(folder: &Path, symbol: &str, frames: &[Frame]) -> Vec<Frame> {
    let Ok(file) = File::open(folder.join(format!("kernels.{}.jsonl", std::process::id()))) else { return Vec::new() };
    let lines = BufReader::new(file).lines().map_while(Result::ok);
    best(lines.filter_map(|line| serde_json::from_str(&line).ok()), symbol, frames)
}

fn best(kernels: impl Iterator<Item = Kernel>, symbol: &str, frames: &[Frame]) -> Vec<Frame> {
    let mut best: (u8, Vec<Source>) = (0, Vec::new());
    for kernel in kernels {
        let named = kernel.name == symbol;
        let frame = frames.iter().find(|frame| frame.file == kernel.generated);
        let launched = frame.is_some_and(|frame| kernel.lines.contains(&frame.line));
        // Two graphs may have a kernel of the same name: the file decides. A launch that is no generated kernel (a matrix
        // product) has only its line there.
        let fit = match (named, frame.is_some(), launched) {
            (true, true, _) => 3,
            (false, true, true) => 2,
            (true, false, _) => 1,
            _ => 0,
        };
        // Of equals the later: a graph that was compiled again.
        if fit > 0 && fit >= best.0 && !kernel.sources.is_empty() {
            best = (fit, kernel.sources);
        }
    }
    let frame = |source: Source| Frame { file: source.file, line: source.line, function: source.function, user: true };
    best.1.into_iter().map(frame).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(file: &str, line: u32) -> Frame {
        Frame { file: file.into(), line, function: "call".into(), user: false }
    }

    fn lines(text: &str, symbol: &str, frames: &[Frame]) -> Vec<u32> {
        let kernels = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        best(kernels, symbol, frames).iter().map(|frame| frame.line).collect()
    }

    const NOTED: &str = r#"
{"kernel":"triton_poi_fused_index_0","generated":"/t/ca.py","lines":[],"sources":[{"file":"m.py","line":14,"function":"route","op":"index"},{"file":"m.py","line":13}]}
{"kernel":"triton_poi_fused_index_0","generated":"/t/cb.py","lines":[7],"sources":[{"file":"m.py","line":30,"function":"other"}]}
{"kernel":"extern_kernels.mm","generated":"/t/cb.py","lines":[9],"sources":[{"file":"m.py","line":31,"function":"other"}]}
not json
{"kernel":"triton_poi_fused_index_0","generated":"/t/cc.py","sources":[]}"#;

    #[test]
    fn the_file_decides_between_kernels_of_one_name() {
        assert_eq!(lines(NOTED, "triton_poi_fused_index_0", &[frame("/t/ca.py", 99)]), [14, 13]);
        assert_eq!(lines(NOTED, "triton_poi_fused_index_0", &[frame("/t/cb.py", 7)]), [30]);
        assert_eq!(lines(NOTED, "triton_poi_fused_index_0", &[]), [30]);
    }

    #[test]
    fn a_launch_that_is_no_generated_kernel_has_its_line() {
        assert_eq!(lines(NOTED, "nvjet_sm90", &[frame("/t/cb.py", 9)]), [31]);
        assert!(lines(NOTED, "nvjet_sm90", &[frame("/t/cb.py", 8)]).is_empty());
        assert!(lines("", "nvjet_sm90", &[]).is_empty());
    }
}
