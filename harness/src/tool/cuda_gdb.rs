//! `cuda-gdb`: the program under NVIDIA's debugger, which stops in the kernel at the first exception.
//!
//! ```text
//! CUDA Exception: Warp Illegal Address
//! The exception was triggered at PC 0x7ffd037a51e0  pack_rows  (pack_rows.cu:7)
//!
//! Thread 1 "python3" received signal CUDA_EXCEPTION_14, Warp Illegal Address.
//! [Switching focus to CUDA kernel 0, grid 36, block (112,0,0), thread (32,0,0), device 0, sm 12, warp 1, lane 0]
//! 0x00007ffd037a51e0 in pack_rows<<<(128,1,1),(256,1,1)>>> () at <WORK>/pack_rows.cu:7
//! ```
//!
//! Its own noise is harmless and said nothing of: `warning: Cuda Driver error detected: Returning 201
//! (CUDA_ERROR_INVALID_CONTEXT) …` some dozen times, threads that come and go.
//!
//! - Async: when the exception is seen the host is elsewhere. Its C++ stack is shown as context; its Python stack is
//!   not asked for.
//! - Sync (`CUDA_LAUNCH_BLOCKING=1` and `set cuda launch_blocking on`): the debugger has the main thread dump its
//!   Python stack (`_Py_DumpTraceback`). If that thread's C++ stack stands in a launch (`…LaunchKernel…`), the Python
//!   stack is the launch's, and part of the report; else, as for a kernel that the autograd thread launched, context.

use super::{Activity, Command, Target, Tool, WorkFile, common, debugger, text};
use crate::capture::Capture;
use crate::case::Mode;
use crate::finding::{Evidence, Finding, FindingKind, Location, NativeFrame, PythonFrame};
use crate::host::Need;

const HOST: &[u8] = b"faultlab: host thread 1";
const STACK: &[u8] = b"Stack (most recent call first):";

/// See the module.
pub(super) struct CudaGdb;

impl Tool for CudaGdb {
    fn id(&self) -> &'static str {
        "cuda-gdb"
    }

    fn summary(&self) -> &'static str {
        "the kernel, block, thread and device line at which cuda-gdb stops; in sync mode the launch's Python stack too"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Gpu, Need::CudaGdb]
    }

    fn command(&self, target: &Target) -> Command {
        let mut command = common::python_command(target);
        let mut argv: Vec<String> = vec![target.program_path("cuda-gdb"), "-batch".into(), "-nx".into()];
        let mut words = |words: &[&str]| argv.extend(words.iter().map(ToString::to_string));
        if target.mode == Mode::Sync {
            // Not in the script: a version that does not know one of these says so and goes on.
            words(&["-ex", "set cuda launch_blocking on", "-ex", "set direct-call-timeout 20"]);
        }
        words(&["-x", "cuda_gdb.gdb"]);
        command.files.push(WorkFile { name: "cuda_gdb.gdb", text: include_str!("scripts/cuda_gdb.gdb") });
        if target.mode == Mode::Sync {
            words(&["-x", "cuda_gdb_python.gdb"]);
            let text = include_str!("scripts/cuda_gdb_python.gdb");
            command.files.push(WorkFile { name: "cuda_gdb_python.gdb", text });
        }
        words(&["-ex", "kill", "-ex", "quit 1", "--args"]);
        argv.append(&mut command.argv);
        command.argv = argv;
        // No questions to symbol servers.
        command.env.insert("DEBUGINFOD_URLS".into(), String::new());
        command
    }

    fn parse(&self, capture: &Capture) -> Vec<Finding> {
        let said = Said::read(capture);
        let mut findings = Vec::new();
        let in_launch = said.host.iter().any(|frame| frame.symbol.contains("LaunchKernel"));
        let sync = capture.meta.case.mode == Mode::Sync;
        let python = said.python;
        let mut report = said.stop.and_then(|stop| stop.finding("stdout"));
        match (&mut report, &python) {
            (Some(report), Some((frames, _))) if sync && in_launch => report.location.python.clone_from(frames),
            (_, Some((frames, evidence))) => findings.push(Finding {
                kind: FindingKind::Context,
                error_type: None,
                message: "the main thread's Python stack at the stop; it is in no launch".into(),
                location: Location { python: frames.clone(), ..Location::default() },
                evidence: evidence.clone(),
            }),
            _ => {}
        }
        if let Some(evidence) = said.host_at {
            findings.push(Finding {
                kind: FindingKind::NativeStack,
                error_type: None,
                message: "the main thread's C++ stack at the stop".into(),
                location: Location { native: said.host, ..Location::default() },
                evidence,
            });
        }
        findings.extend(report);
        findings.extend(common::context(capture));
        findings
    }

    fn activity(&self, capture: &Capture, findings: &[Finding]) -> Activity {
        let said = Said::read(capture);
        let evidence = match (said.stop, said.ended) {
            (Some(debugger::Stop { kernel: Some(_), .. }), _) => "it stopped in a kernel",
            (_, Some(true)) => "it followed the program to its end",
            (_, Some(false)) => "it stopped the program on the host",
            (_, None) => {
                return Activity::Unproven("cuda-gdb said neither where it stopped nor that it ended".into());
            }
        };
        Activity::Proven(evidence.into()).and(common::mode_activity(capture, findings))
    }
}

/// What cuda-gdb said.
#[derive(Default)]
struct Said {
    stop: Option<debugger::Stop>,
    /// The program ran to its end (`true`), or was stopped (`false`).
    ended: Option<bool>,
    /// The main thread's frames, innermost first.
    host: Vec<NativeFrame>,
    host_at: Option<Evidence>,
    /// Its Python frames, outermost first.
    python: Option<(Vec<PythonFrame>, Evidence)>,
}

impl Said {
    fn read(capture: &Capture) -> Self {
        let mut said = Self::default();
        let mut device_end = capture.stdout.len();
        let mut span: Option<(u64, u64)> = None;
        for (line, start) in text::lines(&capture.stdout) {
            if line == HOST {
                device_end = usize::try_from(start).unwrap_or(device_end);
                span = Some((start, start + line.len() as u64));
            } else if (line.starts_with(b"[Inferior 1 (process ") && contains(line, b"exited"))
                || line.starts_with(b"Program terminated with signal ")
            {
                said.ended = Some(true);
            } else if line == b"faultlab: stopped" {
                said.ended = Some(false);
            } else if let Some((_, end)) = &mut span
                && said.host.len() < 64
                && let Some(frame) = debugger::host_frame(&text::string(line))
            {
                *end = start + line.len() as u64;
                // `thread 1` prints its innermost frame, and so does `bt`.
                if line.starts_with(b"#0") {
                    said.host.clear();
                }
                said.host.push(frame);
            }
        }
        said.stop = debugger::stop(capture.stdout.get(..device_end).unwrap_or_default());
        let evidence = |stream: &str, (start, end)| Evidence { stream: stream.into(), start, end };
        said.host_at = span.filter(|_| !said.host.is_empty()).map(|span| evidence("stdout", span));
        said.python = python_stack(capture).map(|(frames, span)| (frames, evidence("stderr", span)));
        said
    }
}

/// The last stack that `_Py_DumpTraceback` wrote, outermost frame first.
fn python_stack(capture: &Capture) -> Option<(Vec<PythonFrame>, (u64, u64))> {
    let mut frames = Vec::new();
    let mut span = None;
    let mut inside = false;
    for (line, start) in text::lines(&capture.stderr) {
        if line == STACK {
            frames.clear();
            (inside, span) = (true, Some((start, start + line.len() as u64)));
        } else if inside {
            let said = text::string(line);
            let frame = debugger::python_frame(&said).filter(|_| frames.len() < 200);
            inside = frame.is_some();
            if let Some((file, line_number, function)) = frame {
                frames.push(PythonFrame {
                    own: common::own(&capture.meta.program_root, &file),
                    file,
                    line: line_number,
                    function,
                    source: None,
                });
                span = span.map(|(first, _)| (first, start + line.len() as u64));
            }
        }
    }
    frames.reverse();
    span.filter(|_| !frames.is_empty()).map(|span| (frames, span))
}

fn contains(line: &[u8], needle: &[u8]) -> bool {
    memchr::memmem::find(line, needle).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Device;
    use crate::testing;
    use proptest::prelude::*;

    const LABEL: &str = "\
[Thread debugging using libthread_db enabled]
warning: Cuda Driver error detected: Returning 201 (CUDA_ERROR_INVALID_CONTEXT) from cuCtxGetDevice_v2
step 2 loss 2.3025

Assertion failed.

Thread 1 \"python3\" received signal CUDA_EXCEPTION_12, Warp Assert.
[Switching focus to CUDA kernel 0, grid 204, block (0,0,0), thread (17,0,0), device 0, sm 124, warp 2, lane 17]
0x00007ffd037e0c80 in void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*, float*, float const*, long const*, float const*, bool, long, long, long, long)<<<(1,1,1),(512,1,1)>>> ()
faultlab: stopped
#0  0x00007ffd037e0c80 in void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*, float*, float const*, long const*, float const*, bool, long, long, long, long)<<<(1,1,1),(512,1,1)>>> ()
  Kernel Parent Dev Grid Status                             SMs Mask GridDim  BlockDim Invocation
";
    const ILLEGAL: &str = "\
CUDA Exception: Warp Illegal Address
The exception was triggered at PC 0x7ffd037a51e0  pack_rows  (pack_rows.cu:7)

Thread 1 \"python3\" received signal CUDA_EXCEPTION_14, Warp Illegal Address.
[Switching focus to CUDA kernel 0, grid 36, block (112,0,0), thread (32,0,0), device 0, sm 12, warp 1, lane 0]
0x00007ffd037a51e0 in pack_rows<<<(128,1,1),(256,1,1)>>> () at <WORK>/pack_rows.cu:7
faultlab: stopped
";
    const HOST_IN_LAUNCH: &str = "\
faultlab: host thread 1
[Switching to thread 1 (Thread 0x7ffff7e7e140 (LWP 1300))]#0  0x00007ffff7cea3ab in ?? () from /lib/x86_64-linux-gnu/libcuda.so.1
#0  0x00007ffff7cea3ab in ?? () from /lib/x86_64-linux-gnu/libcuda.so.1
#1  0x00007fffe6174b08 in cudaLaunchKernel () from <PACKAGES>/nvidia/cu13/lib/libcudart.so.13
";
    const PYTHON: &str = "\
Stack (most recent call first):
  File \"<PACKAGES>/torch/nn/functional.py\", line 3504 in cross_entropy
  File \"/p/train.py\", line 43 in train_step
  File \"/p/train.py\", line 63 in <module>
";
    const CLEAN: &str = "batch 3: 12097 rows\n[Inferior 1 (process 1300) exited normally]\n";

    fn capture(mode: Mode, stdout: &str, stderr: &str) -> Capture {
        let mut capture = testing::capture("/p", stderr.as_bytes());
        capture.stdout = stdout.as_bytes().to_vec();
        capture.meta.case.mode = mode;
        if mode == Mode::Sync {
            capture.meta.env_seen.insert("CUDA_LAUNCH_BLOCKING".into(), "1".into());
        }
        capture
    }

    fn report(capture: &Capture) -> Finding {
        let reports: Vec<_> = CudaGdb.parse(capture).into_iter().filter(|f| f.kind == FindingKind::Report).collect();
        assert_eq!(reports.len(), 1);
        assert!(matches!(CudaGdb.activity(capture, &reports), Activity::Proven(_)));
        reports[0].clone()
    }

    #[test]
    fn async_names_the_kernel_alone() {
        let found = report(&capture(Mode::Async, &format!("{LABEL}{HOST_IN_LAUNCH}"), PYTHON));
        assert!(found.message.starts_with("Warp Assert in void at::native::(anonymous namespace)::nll_loss"));
        assert!(found.location.python.is_empty());
        let found = report(&capture(Mode::Async, ILLEGAL, ""));
        assert_eq!(found.location.device.map(|d| d.line), Some(7));
    }

    #[test]
    fn sync_adds_the_launch_where_the_thread_stands_in_one() {
        let found = report(&capture(Mode::Sync, &format!("{LABEL}{HOST_IN_LAUNCH}"), PYTHON));
        assert_eq!(found.location.innermost_own(), Some(("train.py", 43)));
        let elsewhere = HOST_IN_LAUNCH.replace("cudaLaunchKernel", "pthread_cond_wait");
        let found = report(&capture(Mode::Sync, &format!("{LABEL}{elsewhere}"), PYTHON));
        assert!(found.location.python.is_empty());
    }

    #[test]
    fn silence_and_missing_evidence() {
        let clean = capture(Mode::Async, CLEAN, "");
        assert!(CudaGdb.parse(&clean).is_empty());
        assert!(matches!(CudaGdb.activity(&clean, &[]), Activity::Proven(_)));
        let nothing = capture(Mode::Async, "batch 3: 12097 rows\n", "");
        assert!(matches!(CudaGdb.activity(&nothing, &[]), Activity::Unproven(_)));
        let mut not_sync = capture(Mode::Sync, CLEAN, "");
        not_sync.meta.env_seen.clear();
        assert!(matches!(CudaGdb.activity(&not_sync, &[]), Activity::Unproven(_)));
    }

    #[test]
    fn the_python_stack_is_asked_for_in_sync_mode_only() {
        let argv = |mode| {
            let target = Target {
                python: "python3".into(),
                program: "/p/x.py".into(),
                args: Vec::new(),
                device: Device::Cuda,
                mode,
                work: "/w".into(),
                programs: std::collections::BTreeMap::default(),
            };
            CudaGdb.command(&target).argv.join(" ")
        };
        assert!(argv(Mode::Sync).contains("launch_blocking on") && argv(Mode::Sync).contains("cuda_gdb_python.gdb"));
        assert_eq!(argv(Mode::Async), "cuda-gdb -batch -nx -x cuda_gdb.gdb -ex kill -ex quit 1 --args python3 /p/x.py");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..400), cut in 0usize..1500) {
            let mut all = format!("{LABEL}{HOST_IN_LAUNCH}").into_bytes();
            all.truncate(cut);
            all.extend(&bytes);
            let mut capture = capture(Mode::Sync, "", "");
            capture.stdout = all;
            capture.stderr = bytes;
            let findings = CudaGdb.parse(&capture);
            CudaGdb.activity(&capture, &findings);
        }
    }
}
