//! Kernels that `torch.compile` generated, joined to the lines of the user's function: what the recorder's Python side
//! wrote into `kernels.<pid>.jsonl`, a line for each kernel. A launch that the recorder joined itself stays as it is. Pure.

use std::collections::BTreeMap;

use faultlab_recorder::format::{Frame, Launch};
use serde::Deserialize;

use super::observe::Process;

/// One kernel of a generated file.
#[derive(Debug, Deserialize)]
struct Generated {
    /// Its name there, for Triton also its symbol.
    #[serde(rename = "kernel")]
    name: String,
    /// The generated file.
    #[serde(rename = "generated")]
    file: Option<String>,
    /// Lines of it that launch the kernel.
    #[serde(default)]
    lines: Vec<u32>,
    /// The lines of the user's that it was made from, the likeliest to fault first.
    sources: Vec<Source>,
}

/// A line of the user's.
#[derive(Debug, Deserialize)]
struct Source {
    file: String,
    line: u32,
    #[serde(default)]
    function: String,
}

/// Is this the name of such a file?
pub fn is_kernel_file(name: &str) -> bool {
    name.strip_prefix("kernels.").is_some_and(|rest| rest.strip_suffix(".jsonl").is_some())
}

/// Joins every launch that was reported. A kernel that a worker compiled is in the worker's file, so all are looked at.
pub fn join(processes: &mut [Process], files: &BTreeMap<String, Vec<u8>>) {
    let texts = files.iter().filter(|(name, _)| is_kernel_file(name)).map(|(_, bytes)| bytes);
    let lines = texts.flat_map(|bytes| bytes.split(|b| *b == b'\n'));
    let known: Vec<Generated> = lines
        .filter_map(|line| serde_json::from_slice(line).ok())
        .filter(|g: &Generated| !g.sources.is_empty())
        .collect();
    if known.is_empty() {
        return;
    }
    for process in processes {
        for fault in &mut process.faults {
            fault.culprits.iter_mut().chain(&mut fault.around).for_each(|launch| join_launch(launch, &known));
        }
        for hang in &mut process.hangs {
            hang.running.iter_mut().for_each(|launch| join_launch(launch, &known));
        }
    }
}

fn join_launch(launch: &mut Launch, known: &[Generated]) {
    if let Some(node) = &mut launch.node {
        join_launch(&mut node.captured, known);
    }
    if !launch.source.is_empty() {
        return;
    }
    let named = |g: &&Generated| g.name == launch.kernel || g.name == launch.symbol;
    let frame_in = |g: &Generated| launch.frames.iter().find(|f| g.file.as_deref() == Some(f.file.as_str()));
    // The generated file is on the stack of the launch: there the name, else the line that launches, is unique.
    let here = known.iter().filter(|g| frame_in(g).is_some());
    let by_name = here.clone().find(named);
    let by_line = || here.clone().find(|g| frame_in(g).is_some_and(|frame| g.lines.contains(&frame.line)));
    // Elsewhere the same name may mean another kernel in each file.
    let elsewhere = || {
        let mut all = known.iter().filter(named);
        let first = all.next()?;
        let key = |g: &Generated| g.sources.iter().map(|s| (s.file.clone(), s.line)).collect::<Vec<_>>();
        all.all(|g| key(g) == key(first)).then_some(first)
    };
    let Some(found) = by_name.or_else(by_line).or_else(elsewhere) else { return };
    launch.source = found
        .sources
        .iter()
        .map(|s| Frame { file: s.file.clone(), line: s.line, function: s.function.clone(), user: true })
        .collect();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::testing::{fault, frame, launch};

    const KERNELS: &str = r#"{"kernel": "triton_poi_fused_0", "generated": "/t/a.py", "lines": [88], "sources": [{"file": "/j/t.py", "line": 14, "function": "route", "op": "aten.index"}, {"file": "/j/t.py", "line": 13, "function": "route"}], "from": "compile"}
{"kernel": "triton_poi_fused_0", "generated": "/t/b.py", "lines": [9], "sources": [{"file": "/j/u.py", "line": 2, "function": "f"}], "from": "compile"}
{"kernel": "extern_kernels.mm", "generated": "/t/b.py", "lines": [12], "sources": [{"file": "/j/u.py", "line": 5, "function": "f"}], "from": "line-map"}
{"kernel": "alone", "generated": "/t/c.py", "lines": [], "sources": [{"file": "/j/u.py", "line": 7}]}
not json
"#;

    #[track_caller]
    fn check(kernel: &str, generated: Option<(&str, u32)>, expected: &[u32]) {
        let mut one = launch(1, kernel, &[("/j/t.py", 24)]);
        if let Some((file, line)) = generated {
            one.frames.insert(0, frame(file, line, false));
        }
        let mut processes = [Process { faults: vec![fault(vec![one])], ..Process::default() }];
        join(&mut processes, &[("kernels.7.jsonl".to_string(), KERNELS.as_bytes().to_vec())].into());
        let lines: Vec<u32> = processes[0].faults[0].culprits[0].source.iter().map(|f| f.line).collect();
        assert_eq!(lines, expected, "{kernel} {generated:?}");
    }

    #[test]
    fn a_generated_kernel_is_joined_where_it_is_certain() {
        check("triton_poi_fused_0", Some(("/t/a.py", 88)), &[14, 13]);
        check("triton_poi_fused_0", Some(("/t/b.py", 9)), &[2]);
        check("nvjet_tst_128x8", Some(("/t/b.py", 12)), &[5]);
        check("alone", None, &[7]);
        check("triton_poi_fused_0", None, &[]);
        check("nll_loss", Some(("/t/b.py", 99)), &[]);
    }
}
