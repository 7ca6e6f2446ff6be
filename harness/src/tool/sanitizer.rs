//! `memcheck`, `racecheck`, `initcheck`, `synccheck`: the four checkers of NVIDIA's compute-sanitizer (the successor
//! of cuda-memcheck). Each instruments the kernels as they are loaded, and checks what every thread does.
//!
//! ```text
//! ========= COMPUTE-SANITIZER
//! ========= Invalid __global__ write of size 4 bytes
//! =========     at pack_rows+0x1e0 in pack_rows.cu:7
//! =========     by thread (0,0,0) in block (112,0,0)
//! =========     Access to 0x7f1ff2000000 is out of bounds
//! =========     and is 67,566,042,625 bytes after the nearest allocation at 0x7f1036c00000 of size 512 bytes
//! =========     Saved host backtrace up to driver entry point at kernel launch time
//! =========         Host Frame: cudaLaunchKernel [0x745b7] in libcudart.so.13
//! =========         Host Frame: __call__ in _utils.py:411
//! =========         Host Frame: __call__ in pack.py:40
//! =========         Host Frame: main in pack.py:62
//! =========
//! ========= Program hit cudaErrorAssert (error 710) due to "device-side assert triggered" on CUDA API call to cudaFree.
//! =========
//! ========= Target application returned an error
//! ========= ERROR SUMMARY: 5890 errors
//! ========= ERROR SUMMARY: 5870 errors were not printed. Use --print-limit option to adjust the number of printed errors
//! ```
//!
//! How it is read:
//! - A record that names device code is a report. The same error of many threads is one report with their number.
//! - The host backtrace was saved at the launch, so its frames are the launch's also in async mode.
//! - Frames come innermost first; C++ frames first, Python frames last. A Python frame has no folder: it is the
//!   program's own if its base name is that of a file of the program's in the command line. A library file of the
//!   same name would be taken for it.
//! - `Warp assert` happens in `__assertfail`, which is no kernel, so such a record names none.
//! - Errors of API calls are what follows from the fault, and warnings of racecheck are no errors: context.
//! - "Target application returned an error" is about the program's exit status: context.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::{Activity, Collect, Command, Target, Tool, common, text};
use crate::capture::Capture;
use crate::case::{Device, Mode};
use crate::finding::{DeviceLine, Evidence, Finding, FindingKind, Kernel, Location, NativeFrame, PythonFrame};
use crate::host::Need;

const LOG: &str = "sanitizer.log";
/// A record of a `PyTorch` kernel has about 15 KB of C++ frames.
const LOG_CAP: usize = 1 << 20;
/// Errors that it prints before it only counts.
const PRINT_LIMIT: &str = "10";
/// Different errors that are told apart, and frames that are kept of each.
const KEPT: usize = 64;

/// Kernels of NVIDIA's libraries (cuBLAS, cuDNN, CUTLASS), by what their names have in common. Nobody can change
/// them, and a matrix product under racecheck does not end in minutes.
const LIBRARY_KERNELS: &str =
    "regex=nvjet|xmma|cutlass|cublas|cudnn|gemm|gemv|splitK|fprop|dgrad|wgrad|nchwToNhwc|nhwcToNchw";

/// One of the checkers.
pub(super) struct Sanitizer {
    id: &'static str,
    summary: &'static str,
    /// Each tensor gets an allocation of its own. Inside a block of the caching allocator every access is valid,
    /// and memory that was used before counts as initialised.
    caching_off: bool,
    /// Leave out the kernels of [`LIBRARY_KERNELS`].
    skip_libraries: bool,
}

/// Invalid and misaligned accesses, device exceptions.
pub(super) static MEMCHECK: Sanitizer = Sanitizer {
    id: "memcheck",
    summary: "invalid memory accesses and device exceptions (compute-sanitizer, caching allocator off)",
    caching_off: true,
    skip_libraries: false,
};

/// Data races in shared memory.
pub(super) static RACECHECK: Sanitizer = Sanitizer {
    id: "racecheck",
    summary: "data races in shared memory (compute-sanitizer, without the kernels of cuBLAS and cuDNN)",
    caching_off: false,
    skip_libraries: true,
};

/// Reads of global memory that nobody wrote. What a kernel wrote that was left out would count as never written, so
/// none is left out.
pub(super) static INITCHECK: Sanitizer = Sanitizer {
    id: "initcheck",
    summary: "reads of uninitialised memory (compute-sanitizer, caching allocator off)",
    caching_off: true,
    skip_libraries: false,
};

/// Barriers that not all threads reach.
pub(super) static SYNCCHECK: Sanitizer = Sanitizer {
    id: "synccheck",
    summary: "invalid use of barriers (compute-sanitizer)",
    caching_off: false,
    skip_libraries: false,
};

impl Tool for Sanitizer {
    fn id(&self) -> &'static str {
        self.id
    }

    fn summary(&self) -> &'static str {
        self.summary
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Gpu, Need::ComputeSanitizer]
    }

    fn command(&self, target: &Target) -> Command {
        let mut command = common::python_command(target);
        let mut argv = vec![target.program_path("compute-sanitizer")];
        argv.extend(["--tool", self.id, "--log-file", LOG, "--print-limit", PRINT_LIMIT].map(String::from));
        if self.skip_libraries {
            argv.extend(["--kernel-name-exclude", LIBRARY_KERNELS].map(String::from));
        }
        if target.mode == Mode::Sync && target.device == Device::Cuda {
            // Beside CUDA_LAUNCH_BLOCKING: the checker's own form.
            argv.push("--force-blocking-launches".into());
        }
        argv.append(&mut command.argv);
        command.argv = argv;
        if self.caching_off {
            command.env.insert("PYTORCH_NO_CUDA_MEMORY_CACHING".into(), "1".into());
        }
        command.collect.push(Collect { name: LOG, cap: LOG_CAP });
        command
    }

    fn parse(&self, capture: &Capture) -> Vec<Finding> {
        let log = capture.files.get(LOG).map(Vec::as_slice).unwrap_or_default();
        let mut findings = read(log, &own_files(capture)).findings;
        findings.extend(common::context(capture));
        findings
    }

    fn activity(&self, capture: &Capture, findings: &[Finding]) -> Activity {
        let Some(log) = capture.files.get(LOG) else {
            return Activity::Unproven(format!("compute-sanitizer wrote no {LOG}"));
        };
        let log = read(log, &[]);
        if let Some(trouble) = log.trouble {
            return Activity::Unproven(format!("compute-sanitizer says: {trouble}"));
        }
        let Some(summary) = log.summary.filter(|_| log.banner) else {
            return Activity::Unproven("compute-sanitizer printed no banner and summary".into());
        };
        if self.caching_off && !capture.had_env("PYTORCH_NO_CUDA_MEMORY_CACHING", "1") {
            return Activity::Unproven("PYTORCH_NO_CUDA_MEMORY_CACHING=1 was not in the process's environment".into());
        }
        Activity::Proven(format!("its banner and \"{summary}\"")).and(common::mode_activity(capture, findings))
    }
}

/// The program's files that the command line names, relative to its folder.
fn own_files(capture: &Capture) -> Vec<String> {
    capture.meta.argv.iter().filter_map(|arg| common::own(&capture.meta.program_root, arg)).collect()
}

/// A log, read.
#[derive(Default)]
struct Log {
    banner: bool,
    /// The first summary line.
    summary: Option<String>,
    /// It could not do its work.
    trouble: Option<String>,
    findings: Vec<Finding>,
}

/// A record: a line that begins it, and the lines that are indented under it.
#[derive(Default)]
struct Record {
    head: String,
    /// Where in device code: `pack_rows+0x1e0 in pack_rows.cu:7`.
    at: Option<String>,
    thread: Option<[u32; 3]>,
    block: Option<[u32; 3]>,
    /// What was accessed, and the other lines that are no frames.
    notes: Vec<String>,
    /// Innermost first.
    device: Vec<String>,
    native: Vec<NativeFrame>,
    /// Innermost first: function, file, line.
    python: Vec<(String, String, u32)>,
    start: u64,
    end: u64,
}

fn read(bytes: &[u8], own: &[String]) -> Log {
    let mut log = Log::default();
    // Which finding has said the same already.
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut record: Option<Record> = None;
    for (line, start) in text::lines(bytes) {
        let Some(body) = line.strip_prefix(b"=========") else { continue };
        let end = start + line.len() as u64;
        let body = text::string(body);
        let indent = body.len() - body.trim_start().len();
        let said = body.trim();
        match &mut record {
            Some(record) if indent > 1 && !said.is_empty() => {
                record.add(said);
                record.end = end;
            }
            _ => {
                if let Some(done) = record.take() {
                    log.add(done, own, &mut seen);
                }
                if !said.is_empty() {
                    record = Some(Record { head: said.into(), start, end, ..Record::default() });
                }
            }
        }
    }
    if let Some(done) = record {
        log.add(done, own, &mut seen);
    }
    let total = log.summary.as_deref().and_then(|s| text::number_after(s, "ERROR SUMMARY:"));
    let first = log.findings.iter_mut().find(|f| f.kind == FindingKind::Report);
    if let (Some(total), Some(first)) = (total.filter(|n| *n > 1), first) {
        let _ = write!(first.message, "; {total} errors in all");
    }
    log
}

impl Record {
    fn add(&mut self, said: &str) {
        if let Some(frame) = said.strip_prefix("Host Frame:") {
            self.host_frame(frame.trim());
        } else if let Some(frame) = said.strip_prefix("Device Frame:") {
            push(&mut self.device, frame.trim().to_string());
        } else if let Some(at) = said.strip_prefix("at ").filter(|_| self.at.is_none()) {
            self.at = Some(at.into());
        } else if said.starts_with("by thread") {
            (self.thread, self.block) = (text::index(said, "thread"), text::index(said, "block"));
        } else if !said.starts_with("Saved host backtrace") {
            push(&mut self.notes, said.into());
        }
    }

    /// `SYMBOL [0x745b7] in libcudart.so.13`, or of Python `main in pack.py:62`.
    fn host_frame(&mut self, frame: &str) {
        let (left, module) = frame.rsplit_once(" in ").unwrap_or((frame, ""));
        if let Some((file, line)) = text::file_line(module).filter(|(file, _)| file.strip_suffix(".py").is_some()) {
            push(&mut self.python, (left.trim().into(), file.into(), line));
            return;
        }
        // The first frame without a symbol begins with its address.
        let symbol = left.rsplit_once('[').map_or(left, |(symbol, _)| symbol).trim();
        let symbol = if symbol.is_empty() { "??" } else { symbol };
        let module = (!module.is_empty()).then(|| module.to_string());
        push(&mut self.native, NativeFrame { symbol: symbol.into(), module, source: None });
    }

    /// Where the race or the access is: of racecheck the line that begins the record has it.
    fn place(&self) -> Option<&str> {
        self.at.as_deref().or_else(|| self.head.split_once(" access at ").map(|(_, at)| at))
    }

    fn finding(self, kind: FindingKind, own: &[String]) -> Finding {
        let place = self.place().map(str::to_string);
        let (code, source) = match place.as_deref().and_then(|p| p.rsplit_once(" in ")) {
            Some((code, source)) if text::file_line(source).is_some() => (Some(code), text::file_line(source)),
            _ => (place.as_deref(), None),
        };
        let is_kernel = |name: &&str| !name.starts_with("__assert") && !name.starts_with("0x");
        // The frame in which it happened, else the first one around it that is no helper of `assert`.
        let name = code
            .map(without_offset)
            .into_iter()
            .chain(self.device.iter().map(|frame| without_offset(frame)))
            .find(|name| is_kernel(name))
            .map(String::from);
        let mut message = self.head;
        if let Some(at) = place.as_deref().filter(|at| !message.contains(*at)) {
            message.push_str(" at ");
            message.push_str(at);
        }
        if let (Some(thread), Some(block)) = (self.thread, self.block) {
            let _ = write!(message, ", thread {} of block {}", text::shown(thread), text::shown(block));
        }
        let kernel = name.map(|name| Kernel { name, block: self.block, thread: self.thread, threads: Some(1) });
        let device = source.map(|(file, line)| DeviceLine { file: file.into(), line, expression: None });
        let python = self.python.into_iter().rev().map(|(function, file, line)| PythonFrame {
            own: own.iter().find(|own| own.rsplit('/').next() == Some(file.as_str())).cloned(),
            file,
            line,
            function,
            source: None,
        });
        let values = if self.notes.is_empty() { Vec::new() } else { vec![self.notes.join(" ")] };
        Finding {
            kind,
            error_type: None,
            message,
            location: Location {
                python: python.collect(),
                native: self.native,
                kernel,
                device,
                values,
                ..Location::default()
            },
            evidence: Evidence { stream: LOG.into(), start: self.start, end: self.end },
        }
    }
}

impl Log {
    fn add(&mut self, record: Record, own: &[String], seen: &mut HashMap<String, usize>) {
        let head = record.head.as_str();
        if head == "COMPUTE-SANITIZER" {
            self.banner = true;
        } else if head.contains(" SUMMARY:") {
            self.summary.get_or_insert_with(|| head.into());
        } else if ["Internal Sanitizer Error", "Error: Target application terminated before", "Error: No attachable"]
            .iter()
            .any(|trouble| head.starts_with(trouble))
        {
            self.trouble.get_or_insert_with(|| head.into());
        } else {
            let harmless = head.starts_with("Warning") || head.starts_with("Info") || head.starts_with("Program hit");
            let kind = if record.place().is_some() && !harmless { FindingKind::Report } else { FindingKind::Context };
            let key = format!("{head}\n{:?}\n{:?}", record.at, record.python);
            match seen.get(&key).copied() {
                Some(at) => {
                    if let Some(kernel) = self.findings.get_mut(at).and_then(|f| f.location.kernel.as_mut()) {
                        kernel.threads = kernel.threads.map(|n| n + 1);
                    }
                }
                None if self.findings.len() < KEPT => {
                    seen.insert(key, self.findings.len());
                    self.findings.push(record.finding(kind, own));
                }
                None => {}
            }
        }
    }
}

fn push<T>(kept: &mut Vec<T>, item: T) {
    if kept.len() < KEPT {
        kept.push(item);
    }
}

/// `pack_rows+0x1e0` without its offset.
fn without_offset(code: &str) -> &str {
    code.rsplit_once("+0x").map_or(code, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use proptest::prelude::*;

    fn capture(program: &str, log: &str) -> Capture {
        let mut capture = testing::capture("/p", b"");
        capture.meta.argv = vec!["compute-sanitizer".into(), "python3".into(), format!("/p/{program}")];
        capture.meta.env_seen.insert("PYTORCH_NO_CUDA_MEMORY_CACHING".into(), "1".into());
        capture.files.insert(LOG.into(), log.as_bytes().to_vec());
        capture
    }

    const ILLEGAL: &str = "\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at pack_rows+0x1e0 in pack_rows.cu:7
=========     by thread (0,0,0) in block (112,0,0)
=========     Access to 0x7f1ff2000000 is out of bounds
=========     and is 67,566,042,625 bytes after the nearest allocation at 0x7f1036c00000 of size 512 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: __call__ in _utils.py:411
=========         Host Frame: __call__ in pack.py:40
=========         Host Frame: main in pack.py:62
========= \n========= Invalid __global__ write of size 4 bytes
=========     at pack_rows+0x1e0 in pack_rows.cu:7
=========     by thread (1,0,0) in block (112,0,0)
=========     Access to 0x7f1ff2000004 is out of bounds
=========     and is 67,566,042,629 bytes after the nearest allocation at 0x7f1036c00000 of size 512 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: __call__ in _utils.py:411
=========         Host Frame: __call__ in pack.py:40
=========         Host Frame: main in pack.py:62
========= \n========= Error: process didn't terminate successfully
========= Target application returned an error
========= ERROR SUMMARY: 5890 errors
========= ERROR SUMMARY: 5870 errors were not printed. Use --print-limit option to adjust the number of printed errors
";

    const LABEL: &str = "\
========= COMPUTE-SANITIZER
========= Warp assert
=========     at __assertfail+0x19a0
=========     by thread (17,0,0) in block (0,0,0)
=========         Device Frame: __assertfail+0x1930
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame:  [0x1376c] in libcudart.so.13
=========         Host Frame: cudaLaunchKernel [0x745b7] in libcudart.so.13
=========         Host Frame: at::native::(anonymous namespace)::nll_loss_forward_out_cuda_template(at::Tensor const&, at::Tensor const&)::{lambda()#3}::operator()() const [clone .isra.0] [0x220faab] in libtorch_cuda.so
=========         Host Frame: cross_entropy in functional.py:3504
=========         Host Frame: train_step in train.py:43
=========         Host Frame: main in train.py:58
========= \n========= Program hit cudaErrorAssert (error 710) due to \"device-side assert triggered\" on CUDA API call to cudaFree.
========= \n========= Error: process didn't terminate successfully
========= Target application returned an error
========= ERROR SUMMARY: 3 errors
";

    const CLEAN: &str = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n";

    #[test]
    fn an_invalid_write_of_many_threads_is_one_report() {
        let capture = capture("pack.py", ILLEGAL);
        let findings = MEMCHECK.parse(&capture);
        let reports: Vec<_> = findings.iter().filter(|f| f.kind == FindingKind::Report).collect();
        assert_eq!(reports.len(), 1);
        let place = &reports[0].location;
        assert_eq!(place.innermost_own(), Some(("pack.py", 40)));
        assert_eq!(place.python.first().map(|f| f.line), Some(62));
        let kernel = place.kernel.as_ref().unwrap();
        assert_eq!((kernel.name.as_str(), kernel.threads), ("pack_rows", Some(2)));
        assert_eq!((kernel.block, kernel.thread), (Some([112, 0, 0]), Some([0, 0, 0])));
        assert_eq!(place.device.as_ref().map(|d| (d.file.as_str(), d.line)), Some(("pack_rows.cu", 7)));
        assert!(place.values[0].contains("67,566,042,625 bytes after the nearest allocation"));
        assert!(reports[0].message.ends_with("; 5890 errors in all"));
        let at = &reports[0].evidence;
        let (start, end) = (usize::try_from(at.start).unwrap(), usize::try_from(at.end).unwrap());
        assert!(ILLEGAL[start..end].starts_with("========= Invalid") && ILLEGAL[start..end].ends_with("pack.py:62"));
        assert!(matches!(MEMCHECK.activity(&capture, &findings), Activity::Proven(_)));
    }

    #[test]
    fn a_device_assertion_names_the_launch_but_no_kernel() {
        let findings = MEMCHECK.parse(&capture("train.py", LABEL));
        let reports: Vec<_> = findings.iter().filter(|f| f.kind == FindingKind::Report).collect();
        assert_eq!(reports.len(), 1);
        assert_eq!(reports[0].location.innermost_own(), Some(("train.py", 43)));
        assert_eq!(reports[0].location.kernel, None);
        assert_eq!(
            reports[0].message,
            "Warp assert at __assertfail+0x19a0, thread (17,0,0) of block (0,0,0); 3 errors in all"
        );
        let native = &reports[0].location.native;
        assert_eq!((native[0].symbol.as_str(), native[1].symbol.as_str()), ("??", "cudaLaunchKernel"));
        assert!(native[2].symbol.ends_with("[clone .isra.0]"));
        assert!(findings.iter().any(|f| f.kind == FindingKind::Context && f.message.contains("cudaErrorAssert")));
    }

    #[test]
    fn races_and_what_is_only_a_warning() {
        let log = "========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at sum(float *)+0x150 in sum.cu:17
=========     and Read access at sum(float *)+0x1d0 in sum.cu:23 [124 hazards]
========= \n========= Warning: Race reported between Read access at f+0x10 in f.cu:1
=========     and Write access at f+0x20 in f.cu:2 [1 hazards]
========= \n========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
";
        let capture = capture("x.py", log);
        let findings = RACECHECK.parse(&capture);
        assert_eq!(findings.iter().filter(|f| f.kind == FindingKind::Report).count(), 1);
        let place = &findings[0].location;
        assert_eq!(place.kernel.as_ref().map(|k| k.name.as_str()), Some("sum(float *)"));
        assert_eq!(place.device.as_ref().map(|d| d.line), Some(17));
        assert!(matches!(RACECHECK.activity(&capture, &findings), Activity::Proven(_)));
    }

    #[test]
    fn silence_and_missing_evidence() {
        let mut clean = capture("x.py", CLEAN);
        assert!(SYNCCHECK.parse(&clean).is_empty());
        assert!(matches!(MEMCHECK.activity(&clean, &[]), Activity::Proven(_)));
        clean.meta.env_seen.clear();
        assert!(matches!(MEMCHECK.activity(&clean, &[]), Activity::Unproven(_)));
        for log in [
            "========= COMPUTE-SANITIZER\n",
            "========= ERROR SUMMARY: 0 errors\n",
            "========= COMPUTE-SANITIZER\n========= Error: No attachable process found. The application may not use CUDA.\n\
             ========= ERROR SUMMARY: 0 errors\n",
        ] {
            assert!(matches!(SYNCCHECK.activity(&capture("x.py", log), &[]), Activity::Unproven(_)), "{log}");
        }
        let mut absent = clean;
        absent.files.clear();
        assert!(matches!(SYNCCHECK.activity(&absent, &[]), Activity::Unproven(_)));
    }

    #[test]
    fn the_command_has_the_tools_own_blocking_form() {
        let target = |mode| Target {
            python: "python3".into(),
            program: "/p/x.py".into(),
            args: vec!["--n".into()],
            device: Device::Cuda,
            mode,
            work: "/w".into(),
            programs: std::collections::BTreeMap::default(),
        };
        let argv = INITCHECK.command(&target(Mode::Sync)).argv.join(" ");
        assert!(argv.starts_with("compute-sanitizer --tool initcheck --log-file sanitizer.log"));
        assert!(argv.ends_with("--force-blocking-launches python3 /p/x.py --n"));
        assert!(!INITCHECK.command(&target(Mode::Async)).argv.join(" ").contains("blocking"));
    }

    #[test]
    fn a_large_log_is_read() {
        let mut log = b"========= COMPUTE-SANITIZER\n".to_vec();
        let record = ILLEGAL.as_bytes();
        while log.len() < 20 << 20 {
            log.extend_from_slice(record);
        }
        log.resize(log.len() + (4 << 20), b'=');
        let read = read(&log, &[]);
        assert!(read.findings.len() < 8 && read.banner);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..400), cut in 0usize..2000) {
            let mut capture = capture("pack.py", "");
            let mut log = ILLEGAL.as_bytes()[..cut.min(ILLEGAL.len())].to_vec();
            log.extend(bytes);
            capture.files.insert(LOG.into(), log);
            let findings = MEMCHECK.parse(&capture);
            MEMCHECK.activity(&capture, &findings);
        }
    }
}
