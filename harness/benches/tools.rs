//! How fast each tool reads a large capture of its own kind, and that memory stays flat: `cargo bench --bench tools`.
//!
//! The capture is the golden one of the tool with the most text. What the tool wrote and what the program printed are repeated,
//! in their proportion, until they have 100 MB (`-- --megabytes N` for less). Prints megabytes a second and how much memory
//! the parser took on top of the capture; more than [`FLAT`] is a failure.

#![allow(clippy::print_stdout, reason = "a benchmark reports on standard output")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use std::{fs, io};

use faultlab::backend::stacks;
use faultlab::capture::Capture;
use faultlab::tool;

/// Bytes that findings, and the reader's own state, may take however long the capture is.
const FLAT: u64 = 32 << 20;

fn main() -> io::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().collect();
    let asked = arguments.iter().position(|a| a == "--megabytes").and_then(|at| arguments.get(at + 1)?.parse().ok());
    let size: usize = asked.unwrap_or(100) * 1_000_000;
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/captures");
    let mut grown = Vec::new();
    println!("{:<16} {:>8} {:>10} {:>10}   findings", "tool", "MB", "MB/s", "memory");
    for tool in tool::ALL {
        let folder = golden_of(&golden, tool.id())
            .ok_or_else(|| io::Error::other(format!("there is no golden capture of {}", tool.id())))?;
        let mut capture = Capture::read(&folder).map_err(io::Error::other)?;
        let bytes = enlarge(&mut capture, size);
        reset_peak()?;
        let before = peak()?;
        let started = Instant::now();
        let findings = tool.parse(&capture);
        let seconds = started.elapsed().as_secs_f64();
        let growth = peak()?.saturating_sub(before);
        println!(
            "{:<16} {:>8.1} {:>10.0} {:>7.1} MB   {}",
            tool.id(),
            bytes as f64 / 1e6,
            bytes as f64 / 1e6 / seconds,
            growth as f64 / 1e6,
            findings.len()
        );
        if growth > FLAT {
            grown.push(tool.id());
        }
    }
    if grown.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    println!("memory grew with the capture: {}", grown.join(", "));
    Ok(ExitCode::FAILURE)
}

/// The capture of this tool with the most text of its own.
fn golden_of(root: &Path, tool: &str) -> Option<PathBuf> {
    let below = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let scenarios = stacks(root).into_iter().flat_map(|stack| below(root.join(stack)));
    let folders = scenarios.map(|scenario| scenario.join(format!("{tool}.async"))).filter(|folder| folder.is_dir());
    let text = |folder: &PathBuf| -> u64 {
        let files = below(folder.join("files")).chain([folder.join("stderr")]);
        files.filter_map(|file| Some(fs::metadata(file).ok()?.len())).sum()
    };
    folders.max_by_key(text)
}

/// Repeats all text; how many bytes the capture has then.
fn enlarge(capture: &mut Capture, size: usize) -> usize {
    let all = |capture: &Capture| {
        capture.stdout.len() + capture.stderr.len() + capture.files.values().map(Vec::len).sum::<usize>()
    };
    let times = size / all(capture).max(1);
    for text in [&mut capture.stdout, &mut capture.stderr].into_iter().chain(capture.files.values_mut()) {
        repeat(text, times);
    }
    all(capture)
}

fn repeat(text: &mut Vec<u8>, times: usize) {
    if text.last().is_some_and(|last| *last != b'\n') {
        text.push(b'\n');
    }
    *text = text.repeat(times.max(1));
}

/// Makes the largest resident size so far the present one (proc(5), `clear_refs`).
fn reset_peak() -> io::Result<()> {
    fs::write("/proc/self/clear_refs", "5")
}

/// The largest resident size since then, in bytes.
fn peak() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|text| text.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kilobytes.map(|kb| kb << 10).ok_or_else(|| io::Error::other("no VmHWM in /proc/self/status"))
}
