//! The programs that are timed, and the line that each prints.

use serde::Deserialize;

use crate::case::Device;

/// A training loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    /// The name on the command line.
    pub name: &'static str,
    /// The file that is run.
    pub file: &'static str,
    /// Its text.
    pub source: &'static str,
    /// In a few words, for reports.
    pub about: &'static str,
    /// What is different on the CPU, in a few words.
    pub on_cpu: Option<&'static str>,
    /// Iterations in a window on a GPU: about a second.
    iters_cuda: u32,
    /// The same on the CPU.
    iters_cpu: u32,
}

/// All of them.
pub const ALL: [Program; 3] = [
    Program {
        name: "mlp",
        file: "mlp.py",
        source: include_str!("mlp.py"),
        about: "launch-bound: 20 linear layers of width 128, batch 32, AdamW",
        on_cpu: None,
        iters_cuda: 200,
        iters_cpu: 50,
    },
    Program {
        name: "transformer",
        file: "transformer.py",
        source: include_str!("transformer.py"),
        about: "GPU-bound: 12 transformer layers of width 1024, bf16 autocast, AdamW",
        on_cpu: Some("on the CPU a toy: 2 layers of width 64"),
        iters_cuda: 25,
        iters_cpu: 10,
    },
    Program {
        name: "graph-replay",
        file: "graph_replay.py",
        source: include_str!("graph_replay.py"),
        about: "replay-bound: a training step of 12 linear layers of width 512, batch 256, SGD, as one CUDA graph",
        on_cpu: Some("on the CPU a toy, without a graph: 4 layers of width 64"),
        iters_cuda: 1500,
        iters_cpu: 20,
    },
];

/// What both import: file name and text.
pub const SHARED: (&str, &str) = ("timing.py", include_str!("timing.py"));

impl Program {
    /// Iterations in a window, where the user does not say.
    pub fn iters(&self, device: Device) -> u32 {
        match device {
            Device::Cuda => self.iters_cuda,
            Device::Cpu => self.iters_cpu,
        }
    }
}

/// What a program printed of itself.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Line {
    /// Its name.
    pub program: String,
    /// Where its tensors were.
    pub device: Device,
    /// Milliseconds an iteration, by window.
    pub ms: Vec<f64>,
    /// Its own largest resident size.
    pub host_bytes: Option<u64>,
    /// The most that PyTorch's allocator had reserved on the GPU.
    pub gpu_reserved_bytes: Option<u64>,
}

/// The last such line of an output, whatever a tool wrote around it.
pub fn read(stdout: &[u8]) -> Option<Line> {
    let mark: &[u8] = b"{\"faultlab_bench\"";
    stdout.split(|b| *b == b'\n').rev().find_map(|line| {
        let start = memchr::memmem::find(line, mark)?;
        // A debugger may have written behind it on the same line.
        let line: Line = serde_json::Deserializer::from_slice(&line[start..]).into_iter().next()?.ok()?;
        (!line.ms.is_empty() && line.ms.iter().all(|ms| ms.is_finite() && *ms > 0.0)).then_some(line)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_line_is_found_among_others() {
        let text = b"========= COMPUTE-SANITIZER\n[noise] {\"faultlab_bench\": 1, \"program\": \"mlp\", \"device\": \"cuda\", \"iters\": 2, \"ms\": [5.5, 5.25], \"host_bytes\": 7, \"gpu_reserved_bytes\": null, \"loss\": 2.3}[Inferior 1 exited]\n========= ERROR SUMMARY: 0 errors\n";
        let line = read(text).unwrap();
        assert_eq!((line.program.as_str(), line.device, line.host_bytes), ("mlp", Device::Cuda, Some(7)));
        assert_eq!((line.ms, line.gpu_reserved_bytes), (vec![5.5, 5.25], None));
    }

    #[test]
    fn what_is_no_measurement_is_none() {
        for text in [
            "",
            "{\"faultlab_bench\": 1",
            "{\"faultlab_bench\": 1, \"program\": \"mlp\", \"device\": \"cuda\", \"ms\": []}",
            "{\"faultlab_bench\": 1, \"program\": \"mlp\", \"device\": \"cuda\", \"ms\": [0.0]}",
            "{\"faultlab_bench\": 1, \"program\": \"mlp\", \"device\": \"tpu\", \"ms\": [1.0]}",
        ] {
            assert_eq!(read(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            read(&bytes);
            read(&[b"{\"faultlab_bench\"".as_slice(), &bytes].concat());
        }
    }
}
