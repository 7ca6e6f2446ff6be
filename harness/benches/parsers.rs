//! How fast a long log is read, and that memory stays flat: `cargo bench --bench parsers`.
//!
//! Writes a log of 100 MB to a temporary file, nine tenths of it ordinary training output, the rest tracebacks, device
//! assertions and C++ stacks, then one of nothing but failures, and one of a single 100 MB line; scans each 5 times.

#![allow(clippy::print_stdout, reason = "a benchmark reports on standard output")]

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufReader, Write as _};
use std::time::Instant;
use std::{fs, io};

use faultlab::parse::{Scan, scan};

const SIZE: usize = 100_000_000;
const ROUNDS: usize = 5;

fn main() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let mixed = folder.path().join("mixed.log");
    write_mixed(&mut File::create(&mixed)?)?;
    let failures = folder.path().join("failures.log");
    write_failures(&mut File::create(&failures)?)?;
    let plain = folder.path().join("plain.log");
    write_plain(&mut File::create(&plain)?)?;
    let line = folder.path().join("line.log");
    write_line(&mut File::create(&line)?)?;
    println!("peak memory before: {}", peak());
    for (name, path) in [("no finding", &plain), ("mixed log", &mixed), ("tracebacks", &failures), ("one line", &line)]
    {
        for _ in 0..ROUNDS {
            let started = Instant::now();
            let found = scan(BufReader::new(File::open(path)?))?;
            let seconds = started.elapsed().as_secs_f64();
            println!("{name:<12} {:>6.0} MB/s   {}", found.bytes as f64 / 1e6 / seconds, summary(&found));
        }
        println!("peak memory after {name}: {}", peak());
    }
    Ok(())
}

fn summary(found: &Scan) -> String {
    format!(
        "{} tracebacks, {} kinds of assertions ({} lines), {} errors, {} C++ stacks",
        found.tracebacks.total(),
        found.assertions.len(),
        found.assertions.iter().map(|assertion| assertion.count).sum::<u64>(),
        found.errors.total(),
        found.native_stacks.total(),
    )
}

fn ordinary(n: usize, text: &mut String) {
    let _ = writeln!(
        text,
        "2024-05-01 10:{:02}:{:02} INFO train: epoch {} step {n} loss {:.4} lr 3.0e-04 grad_norm {:.3} tokens/s {}",
        n / 60 % 60,
        n % 60,
        n / 1000,
        1.0 / (1.0 + n as f64),
        (n % 17) as f64 / 3.0,
        120_000 + n % 977,
    );
}

fn write_plain(file: &mut File) -> io::Result<()> {
    let (mut n, mut written) = (0, 0);
    while written < SIZE {
        let mut text = String::new();
        for _ in 0..1000 {
            ordinary(n, &mut text);
            n += 1;
        }
        file.write_all(text.as_bytes())?;
        written += text.len();
    }
    Ok(())
}

fn write_mixed(file: &mut File) -> io::Result<()> {
    let (mut n, mut written) = (0, 0);
    while written < SIZE {
        let mut text = String::new();
        failure(n, 1000, &mut text);
        let wanted = text.len() * 10;
        while text.len() < wanted {
            ordinary(n, &mut text);
            n += 1;
        }
        file.write_all(text.as_bytes())?;
        written += text.len();
    }
    Ok(())
}

/// Failure after failure, nothing between: a traceback of 40 frames and a C++ stack of 40, with two assertion lines.
fn write_failures(file: &mut File) -> io::Result<()> {
    let (mut n, mut written) = (0, 0);
    while written < SIZE {
        let mut text = String::new();
        failure(n, 2, &mut text);
        file.write_all(text.as_bytes())?;
        written += text.len();
        n += 1;
    }
    Ok(())
}

/// A failure as a job of one rank prints it: assertion lines, a deep traceback, a C++ stack.
fn failure(n: usize, assertions: usize, text: &mut String) {
    for thread in 0..assertions {
        let _ = writeln!(
            text,
            "/pytorch/aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: [{},0,0], \
             thread: [{},0,0] Assertion `t >= 0 && t < n_classes` failed.",
            n % 64,
            thread % 32
        );
    }
    text.push_str("Traceback (most recent call last):\n");
    for depth in 1..40 {
        let _ = writeln!(
            text,
            "  File \"/venv/lib/python3.12/site-packages/torch/nn/modules/module.py\", line {}, in _call_impl\n    \
             return forward_call(*args, **kwargs)\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
            1000 + depth
        );
    }
    text.push_str(
        "torch.AcceleratorError: CUDA error: device-side assert triggered\n\
         CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n\
         For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n\
         Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n\n\
         Exception raised from memcpy_and_sync at /pytorch/c10/cuda/CUDAFunctions.h:107 (most recent call first):\n",
    );
    for frame in 0..40 {
        let _ = writeln!(
            text,
            "frame #{frame}: c10::cuda::c10_cuda_check_implementation(int, char const*, char const*, unsigned int, bool) + 0x118 \
             (0x7f617a80c118 in /venv/lib/python3.12/site-packages/torch/lib/libc10_cuda.so)"
        );
    }
    text.push('\n');
}

fn write_line(file: &mut File) -> io::Result<()> {
    let part = "tensor([0.1234, 0.5678, 0.9012]), ".repeat(1000);
    let mut written = 0;
    while written < SIZE {
        file.write_all(part.as_bytes())?;
        written += part.len();
    }
    Ok(())
}

/// The process's largest resident set so far, where the system tells.
fn peak() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("VmHWM:")).map_or("unknown".into(), |size| size.trim().to_owned())
}
