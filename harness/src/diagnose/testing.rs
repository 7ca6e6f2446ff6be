//! Small values for unit tests.

use faultlab_recorder::format::{Confidence, Fault, Frame, Launch, Surfaced};

/// A frame.
pub(crate) fn frame(file: &str, line: u32, user: bool) -> Frame {
    Frame { file: file.into(), line, function: "step".into(), user }
}

/// A kernel that was launched from these lines of the user's, innermost first.
pub(crate) fn launch(seq: u64, kernel: &str, lines: &[(&str, u32)]) -> Launch {
    Launch {
        seq,
        count: 1,
        kind: "kernel".into(),
        kernel: kernel.into(),
        symbol: kernel.into(),
        grid: [1, 1, 1],
        block: [32, 1, 1],
        device: 0,
        stream: 0,
        thread: 1,
        state: "running".into(),
        frames: lines.iter().map(|(file, line)| frame(file, *line, true)).collect(),
        native: Vec::new(),
        nth_kernel: Vec::new(),
        forward: None,
        node: None,
        source: Vec::new(),
    }
}

/// An assertion that failed on the device, in one of these launches.
pub(crate) fn fault(culprits: Vec<Launch>) -> Fault {
    let confidence = match culprits.len() {
        0 => Confidence::Unlocated,
        1 => Confidence::Exact,
        _ => Confidence::Candidates,
    };
    Fault {
        time: 0.0,
        done: Vec::new(),
        code: 710,
        name: "CUDA_ERROR_ASSERT".into(),
        surfaced: Surfaced { call: "cuStreamSynchronize".into(), frames: vec![frame("/j/train.py", 20, true)] },
        confidence,
        around: culprits.clone(),
        culprits,
        evidence: vec!["Its marker is the first that is missing.".into()],
    }
}
