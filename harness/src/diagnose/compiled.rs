//! Kernels that `torch.compile` generated, joined to the lines of the user's function by the rules of the recorder. A launch
//! that the recorder joined itself stays as it is. Pure.

use std::collections::BTreeMap;

use faultlab_recorder::compiled::{Kernel, is_kernel_file, sources};
use faultlab_recorder::format::Launch;

use super::observe::Process;

/// Joins every launch that was reported. A kernel that a worker compiled is in the worker's file, so all are looked at.
pub fn join(processes: &mut [Process], files: &BTreeMap<String, Vec<u8>>) {
    let texts = files.iter().filter(|(name, _)| is_kernel_file(name)).map(|(_, bytes)| bytes);
    let known: Vec<Kernel> = texts.flat_map(|bytes| bytes.split(|b| *b == b'\n')).filter_map(Kernel::read).collect();
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

fn join_launch(launch: &mut Launch, known: &[Kernel]) {
    if let Some(node) = &mut launch.node {
        join_launch(&mut node.captured, known);
    }
    if launch.source.is_empty() {
        launch.source = sources(known, &[&launch.kernel, &launch.symbol], &launch.frames);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::testing::{fault, frame, launch};

    const KERNELS: &str = r#"{"kernel": "triton_poi_fused_0", "generated": "/t/a.py", "lines": [88], "sources": [{"file": "/j/t.py", "line": 14, "function": "route"}], "from": "compile"}
"#;

    #[test]
    fn what_a_worker_compiled_is_joined_unless_the_recorder_did() {
        let one = |source: &[u32]| {
            let mut one = launch(1, "triton_poi_fused_0", &[("/j/t.py", 24)]);
            one.frames.insert(0, frame("/t/a.py", 88, false));
            one.source = source.iter().map(|line| frame("/j/t.py", *line, true)).collect();
            one
        };
        let joined = |launch: Launch, file: &str| -> Vec<u32> {
            let mut processes = [Process { faults: vec![fault(vec![launch])], ..Process::default() }];
            join(&mut processes, &[(file.to_string(), KERNELS.as_bytes().to_vec())].into());
            processes[0].faults[0].culprits[0].source.iter().map(|f| f.line).collect()
        };
        assert_eq!(joined(one(&[]), "kernels.7.jsonl"), [14]);
        assert_eq!(joined(one(&[9]), "kernels.7.jsonl"), [9]);
        assert!(joined(one(&[]), "recorder.7.jsonl").is_empty());
    }
}
