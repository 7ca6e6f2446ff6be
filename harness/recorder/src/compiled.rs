//! The user's lines behind a kernel that `torch.compile` generated.
//!
//! The Python side of the recorder (`shim/`) notes, while Inductor compiles, which lines each kernel was fused from: a line
//! of `kernels.<pid>.jsonl` each, with the generated file and the lines in it that launch the kernel. The recorder joins what
//! its own process compiled; who reads the reports of several processes joins what a worker compiled for them.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use serde::Deserialize;

use crate::format::Frame;

/// A generated kernel: what is read of a line of the file.
#[derive(Debug, Deserialize)]
pub struct Kernel {
    /// Its name in the generated file; for Triton also its symbol.
    #[serde(rename = "kernel")]
    name: String,
    #[serde(default)]
    generated: String,
    /// Lines of the generated file that launch it.
    #[serde(default)]
    lines: Vec<u32>,
    /// The user's lines that it was made from, the likeliest to index out of bounds first.
    #[serde(default)]
    sources: Vec<Source>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Source {
    file: String,
    line: u32,
    #[serde(default)]
    function: String,
}

impl Kernel {
    /// Reads a line of the file; `None` for what says nothing.
    pub fn read(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line).ok().filter(|kernel: &Self| !kernel.sources.is_empty())
    }
}

/// The name of the file that a process writes.
fn file_name(process: u32) -> String {
    format!("kernels.{process}.jsonl")
}

/// Whether a file of this name holds kernels.
pub fn is_kernel_file(name: &str) -> bool {
    name.strip_prefix("kernels.").is_some_and(|rest| rest.strip_suffix(".jsonl").is_some())
}

/// [`sources`] by what this process compiled.
pub(crate) fn own_sources(folder: &Path, symbol: &str, frames: &[Frame]) -> Vec<Frame> {
    let Ok(file) = File::open(folder.join(file_name(std::process::id()))) else { return Vec::new() };
    let lines = BufReader::new(file).split(b'\n').map_while(Result::ok);
    let kernels: Vec<Kernel> = lines.filter_map(|line| Kernel::read(&line)).collect();
    sources(&kernels, &[symbol], frames)
}

/// The lines that a kernel of one of these names, launched from `frames`, was made from; the likeliest to index out of bounds
/// first. Empty where nothing is certain.
pub fn sources(kernels: &[Kernel], names: &[&str], frames: &[Frame]) -> Vec<Frame> {
    let is_it = |kernel: &&Kernel| names.contains(&kernel.name.as_str());
    let caller = |kernel: &Kernel| frames.iter().find(|frame| frame.file == kernel.generated);
    // The generated file is on the stack of the launch: there the name is unique, or the line that launches where it is no
    // generated kernel (a matrix product). Of equals the later: a graph that was compiled again.
    let here = || kernels.iter().rev().filter(|kernel| caller(kernel).is_some());
    let launched = |kernel: &&Kernel| caller(kernel).is_some_and(|frame| kernel.lines.contains(&frame.line));
    // Elsewhere the same name may mean another kernel in each file.
    let elsewhere = || {
        let mut all = kernels.iter().filter(is_it);
        let first = all.next()?;
        all.all(|kernel| kernel.sources == first.sources).then_some(first)
    };
    let found = here().find(is_it).or_else(|| here().find(launched)).or_else(elsewhere);
    let frame = |s: &Source| Frame { file: s.file.clone(), line: s.line, function: s.function.clone(), user: true };
    found.map(|kernel| kernel.sources.iter().map(frame).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(file: &str, line: u32) -> Frame {
        Frame { file: file.into(), line, function: "call".into(), user: false }
    }

    fn lines(text: &str, symbol: &str, frames: &[Frame]) -> Vec<u32> {
        let kernels: Vec<Kernel> = text.lines().filter_map(|line| Kernel::read(line.as_bytes())).collect();
        sources(&kernels, &[symbol], frames).iter().map(|frame| frame.line).collect()
    }

    const NOTED: &str = r#"
{"kernel":"triton_poi_fused_index_0","generated":"/t/ca.py","lines":[],"sources":[{"file":"m.py","line":14,"function":"route","op":"index"},{"file":"m.py","line":13}]}
{"kernel":"triton_poi_fused_index_0","generated":"/t/cb.py","lines":[7],"sources":[{"file":"m.py","line":30,"function":"other"}]}
{"kernel":"extern_kernels.mm","generated":"/t/cb.py","lines":[9],"sources":[{"file":"m.py","line":31,"function":"other"}]}
{"kernel":"twice","generated":"/t/cb.py","sources":[{"file":"m.py","line":40}]}
not json
{"kernel":"twice","generated":"/t/cd.py","sources":[{"file":"m.py","line":40}]}
{"kernel":"triton_poi_fused_index_0","generated":"/t/cc.py","sources":[]}"#;

    #[test]
    fn the_file_decides_between_kernels_of_one_name() {
        assert_eq!(lines(NOTED, "triton_poi_fused_index_0", &[frame("/t/ca.py", 99)]), [14, 13]);
        assert_eq!(lines(NOTED, "triton_poi_fused_index_0", &[frame("/t/cb.py", 7)]), [30]);
    }

    #[test]
    fn without_the_file_only_what_is_certain() {
        assert!(lines(NOTED, "triton_poi_fused_index_0", &[]).is_empty());
        assert_eq!(lines(NOTED, "twice", &[]), [40]);
    }

    #[test]
    fn a_launch_that_is_no_generated_kernel_has_its_line() {
        assert_eq!(lines(NOTED, "nvjet_sm90", &[frame("/t/cb.py", 9)]), [31]);
        assert!(lines(NOTED, "nvjet_sm90", &[frame("/t/cb.py", 8)]).is_empty());
        assert!(lines("", "nvjet_sm90", &[]).is_empty());
    }
}
