//! What cuda-gdb prints where a kernel stopped: of a live program and of a core dump the same.

use std::fmt::Write as _;

use super::text;
use crate::finding::{DeviceLine, Evidence, Finding, FindingKind, Kernel, Location, NativeFrame};
use crate::parse::python::undumped;

/// A stop in device code.
///
/// ```text
/// [Switching focus to CUDA kernel 0, grid 36, block (112,0,0), thread (32,0,0), device 0, sm 12, warp 1, lane 0]
/// CUDA Exception: Warp Illegal Address
/// The exception was triggered at PC 0x7ffd037a51e0  pack_rows  (pack_rows.cu:7)
/// #0  0x00007ffd037a51e0 in pack_rows<<<(128,1,1),(256,1,1)>>> () at /tmp/pack_rows.cu:7
/// ```
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Stop {
    /// `Warp Illegal Address`, `Warp Assert`
    pub(super) exception: Option<String>,
    /// The kernel, with its C++ signature.
    pub(super) kernel: Option<String>,
    /// The grid's number: the driver's count of launches, more or less.
    pub(super) grid: Option<u64>,
    /// The block and the thread that it stopped at.
    pub(super) block: Option<[u32; 3]>,
    pub(super) thread: Option<[u32; 3]>,
    /// Grid and block dimensions: `<<<(128,1,1),(256,1,1)>>>`
    launch: Option<String>,
    line: Option<(String, u32)>,
    /// The kernels that were running: `info cuda kernels`.
    running: Vec<Running>,
    /// The line is of the exception's own PC, not of where the warp was when it stopped.
    precise: bool,
    start: u64,
    end: u64,
}

/// The stop that a text describes; the last one, if there are several.
pub(super) fn stop(bytes: &[u8]) -> Option<Stop> {
    let mut stop = Stop::default();
    let mut any = false;
    for (line, start) in text::lines(bytes) {
        let said = text::string(line);
        let said = said.trim();
        if !stop.read(said) {
            continue;
        }
        if !any {
            (any, stop.start) = (true, start);
        }
        stop.end = start + line.len() as u64;
    }
    // A fault that is laid to no warp leaves no focus. With one kernel running it is that one.
    if let (None, [only]) = (&stop.kernel, stop.running.as_slice()) {
        (stop.kernel, stop.launch) = (Some(only.kernel.clone()), Some(only.launch.clone()));
    }
    (stop.kernel.is_some() || stop.exception.is_some()).then_some(stop)
}

impl Stop {
    /// Takes what a line says; `false` if it says nothing of a stop.
    fn read(&mut self, said: &str) -> bool {
        if said.contains(" focus ") && said.contains("CUDA kernel") && said.starts_with('[') {
            self.grid = text::number_after(said, "grid ");
            (self.block, self.thread) = (text::index(said, "block"), text::index(said, "thread"));
        } else if let Some(exception) = said.strip_prefix("CUDA Exception: ") {
            self.exception = Some(exception.into());
        } else if said == "Assertion failed." {
            self.exception.get_or_insert_with(|| "Assertion failed".into());
        } else if let Some((_, exception)) = said.split_once("received signal CUDA_EXCEPTION_") {
            // `CUDA_EXCEPTION_12, Warp Assert.`
            let exception = exception.split_once(", ").map_or(exception, |(_, name)| name);
            self.exception = Some(exception.trim_end_matches('.').into());
        } else if let Some(at) = said.strip_prefix("The exception was triggered at PC ") {
            // `0x7ffd037a51e0  pack_rows  (pack_rows.cu:7)`
            let place = at.rsplit_once('(').and_then(|(_, place)| text::file_line(place.trim_end_matches(')')));
            if let Some((file, line)) = place {
                (self.line, self.precise) = (Some((file.into(), line)), true);
            }
        } else if let Some((frame, launch)) = said.split_once("<<<").filter(|_| self.block.is_some() && is_frame(said))
        {
            // The kernel's frame; a `__device__` function that it called stands before it.
            let name = frame.split_once(" in ").map_or_else(
                || frame.trim_start_matches(|c: char| c == '#' || c.is_ascii_digit()).trim(),
                |(_, name)| name,
            );
            self.kernel = Some(name.trim().into());
            self.launch = launch.split_once(">>>").map(|(dims, _)| format!("<<<{dims}>>>"));
            self.frame_line(said);
        } else if said.starts_with("#0 ") && self.block.is_some() && self.kernel.is_none() {
            self.frame_line(said);
        } else if let Some(kernel) = running(said).filter(|_| self.running.len() < 64) {
            self.running.push(kernel);
        } else {
            return false;
        }
        true
    }

    /// ` at FILE:LINE` at a frame's end; the innermost frame's counts.
    fn frame_line(&mut self, said: &str) {
        if let Some((file, line)) = said.rsplit_once(" at ").and_then(|(_, place)| text::file_line(place)) {
            match &mut self.line {
                // The same line, now with its folder.
                Some((short, at)) if *at == line && file.ends_with(short.as_str()) => *short = file.into(),
                Some(_) => {}
                None => self.line = Some((file.into(), line)),
            }
        }
    }

    /// Dimensions of the grid and of a block.
    pub(super) fn size(&self) -> Option<([u32; 3], [u32; 3])> {
        let (grid, block) = self.launch.as_ref()?.trim_matches(['<', '>']).split_once("),(")?;
        Some((dimensions(grid)?, dimensions(block)?))
    }

    /// As a report; `None` where no kernel is named.
    pub(super) fn finding(self, stream: &str) -> Option<Finding> {
        let name = self.kernel?;
        let exception = self.exception.unwrap_or_else(|| "stopped".into());
        let mut message = format!("{exception} in {name}");
        if let Some(grid) = self.grid {
            let _ = write!(message, ", grid {grid}");
        }
        if let Some(launch) = self.launch {
            let _ = write!(message, " {launch}");
        }
        if let (Some(block), Some(thread)) = (self.block, self.thread) {
            let _ = write!(message, ", block {}, thread {}", text::shown(block), text::shown(thread));
        }
        if self.line.is_some() && !self.precise {
            message.push_str(" (the line is where the warp stood)");
        }
        Some(Finding {
            kind: FindingKind::Report,
            error_type: None,
            message,
            location: Location {
                kernel: Some(Kernel { name, block: self.block, thread: self.thread, threads: None }),
                device: self.line.map(|(file, line)| DeviceLine { file, line, expression: None }),
                ..Location::default()
            },
            evidence: Evidence { stream: stream.into(), start: self.start, end: self.end },
        })
    }
}

/// `(128,1,1)`, with or without the parentheses.
fn dimensions(text: &str) -> Option<[u32; 3]> {
    let mut numbers = text.trim_matches(['(', ')']).split(',').map(|number| number.trim().parse().ok());
    let three = [numbers.next()??, numbers.next()??, numbers.next()??];
    numbers.next().is_none().then_some(three)
}

/// A kernel that was running.
#[derive(Debug, PartialEq, Eq)]
struct Running {
    kernel: String,
    /// `<<<(128,1,1),(256,1,1)>>>`
    launch: String,
}

/// A row of `info cuda kernels`: `*  0  -  0  36 Active 0x0000… (128,1,1) (256,1,1) pack_rows()`.
fn running(said: &str) -> Option<Running> {
    let (_, rest) = said.split_once(" Active 0x")?;
    let (_, rest) = rest.split_once(" (")?;
    let (grid, rest) = rest.split_once(") (")?;
    let (block, name) = rest.split_once(") ")?;
    let name = name.trim();
    let name = name.strip_suffix("()").unwrap_or(name);
    (!name.is_empty()).then(|| Running { kernel: name.into(), launch: format!("<<<({grid}),({block})>>>") })
}

/// `#0  0x00007f… in …`, or of the place where it stopped without the number.
fn is_frame(said: &str) -> bool {
    said.starts_with('#') || said.starts_with("0x")
}

/// A host frame of a backtrace: `#1  0x00007ffff6b07720 in f(int) () from /lib/libc10.so`, `#3  f (n=1) at a.cc:12`.
pub(super) fn host_frame(said: &str) -> Option<NativeFrame> {
    let rest = said.strip_prefix('#')?.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
    if rest.contains("<<<") {
        return None;
    }
    let rest = match rest.split_once(" in ") {
        Some((address, rest)) if address.starts_with("0x") => rest,
        _ => rest,
    };
    let (rest, module) = match rest.rsplit_once(" from ") {
        Some((rest, module)) => (rest, Some(module.to_string())),
        None => (rest, None),
    };
    let (rest, source) = match rest.rsplit_once(" at ") {
        Some((rest, source)) if text::file_line(source).is_some() => (rest, Some(source.to_string())),
        _ => (rest, None),
    };
    // The arguments' values: empty parentheses where there is no debug information.
    let symbol = rest.rsplit_once(" (").map_or(rest, |(symbol, _)| symbol).trim();
    (!symbol.is_empty()).then(|| NativeFrame { symbol: symbol.into(), module, source })
}

/// A Python frame of `_Py_DumpTraceback`: `  File "train.py", line 20 in forward`.
pub(super) fn python_frame(said: &str) -> Option<(String, u32, String)> {
    let (file, rest) = said.trim().strip_prefix("File \"")?.split_once("\", line ")?;
    let (line, function) = rest.split_once(" in ")?;
    Some((undumped(file), line.trim_end_matches(',').parse().ok()?, undumped(function.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_stop_in_a_kernel_with_line_information() {
        let text = b"\
batch 1: 12737 rows, mean +0.00001

CUDA Exception: Warp Illegal Address
The exception was triggered at PC 0x7ffd037a51e0  pack_rows  (pack_rows.cu:7)

Thread 1 \"python3\" received signal CUDA_EXCEPTION_14, Warp Illegal Address.
[Switching focus to CUDA kernel 0, grid 36, block (112,0,0), thread (32,0,0), device 0, sm 12, warp 1, lane 0]
0x00007ffd037a51e0 in pack_rows<<<(128,1,1),(256,1,1)>>> () at <WORK>/pack_rows.cu:7
#0  0x00007ffd037a51e0 in pack_rows<<<(128,1,1),(256,1,1)>>> () at <WORK>/pack_rows.cu:7
";
        let finding = stop(text).and_then(|s| s.finding("stdout")).unwrap();
        assert_eq!(
            finding.message,
            "Warp Illegal Address in pack_rows, grid 36 <<<(128,1,1),(256,1,1)>>>, block (112,0,0), thread (32,0,0)"
        );
        let device = finding.location.device.unwrap();
        assert_eq!((device.file.as_str(), device.line), ("<WORK>/pack_rows.cu", 7));
        let start = usize::try_from(finding.evidence.start).unwrap();
        assert!(text[start..].starts_with(b"CUDA Exception"));
    }

    #[test]
    fn a_stop_at_an_assertion() {
        let text = b"\
Opening GPU coredump: core.cuda
[Current focus set to CUDA kernel 0, grid 1, block (36,0,0), thread (0,0,0), device 0, sm 8, warp 0, lane 0]

Assertion failed.
#0  0x00007fb7117a0280 in void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)<<<(64,1,1),(32,1,1)>>> ()
";
        let stop = stop(text).unwrap();
        assert_eq!(stop.grid, Some(1));
        let finding = stop.finding("x").unwrap();
        let kernel = finding.location.kernel.unwrap();
        assert_eq!(
            kernel.name,
            "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)"
        );
        assert_eq!((kernel.block, kernel.thread), (Some([36, 0, 0]), Some([0, 0, 0])));
        assert_eq!(finding.location.device, None);
    }

    #[test]
    fn without_a_focus_the_only_running_kernel_is_named() {
        let row = "   0      -   0   36 Active 0x000003c0 (128,1,1) (256,1,1) at::native::f<16, long>() \n";
        let one = format!("Opening GPU coredump: core.cuda\nCUDA Exception: Device Illegal Address\n{row}");
        let finding = stop(one.as_bytes()).and_then(|s| s.finding("x")).unwrap();
        assert_eq!(finding.message, "Device Illegal Address in at::native::f<16, long> <<<(128,1,1),(256,1,1)>>>");
        assert_eq!(stop(one.as_bytes()).unwrap().size(), Some(([128, 1, 1], [256, 1, 1])));
        let two = format!("{one}{row}");
        assert!(stop(two.as_bytes()).unwrap().finding("x").is_none());
        // What a program prints is no stop.
        assert_eq!(stop(b"#0 in pack<<<1>>> at x.cu:7\n"), None);
    }

    #[test]
    fn host_and_python_frames() {
        let frame = host_frame(
            "#2  0x00007fff5af45a05 in at::meta::structured_addmm::meta(at::Tensor const&, c10::Scalar const&) () from <PACKAGES>/torch/lib/libtorch_cpu.so",
        )
        .unwrap();
        assert_eq!(frame.symbol, "at::meta::structured_addmm::meta(at::Tensor const&, c10::Scalar const&)");
        assert_eq!(frame.module.as_deref(), Some("<PACKAGES>/torch/lib/libtorch_cpu.so"));
        assert_eq!(host_frame("#12 0x000000000058216f in ?? ()").map(|f| f.symbol).as_deref(), Some("??"));
        assert_eq!(
            python_frame("  File \"<SCENARIOS>/x/train.py\", line 20 in forward"),
            Some(("<SCENARIOS>/x/train.py".into(), 20, "forward".into()))
        );
        assert_eq!(python_frame("  File \"x.py\", line 3, in f").map(|f| f.1), Some(3));
        assert_eq!(
            python_frame("  File \"/j/\\u5927/tr\\xfc.py\", line 3 in gr\\xf6\\xdfe"),
            Some(("/j/大/trü.py".into(), 3, "größe".into()))
        );
        assert_eq!(stop(b"No CUDA kernels.\n[Inferior 1 (process 1300) exited normally]\n"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(lines in proptest::collection::vec("(#0|#1 |\\[.* focus CUDA kernel|CUDA Exception: |The exception was triggered at PC |)[ -~]{0,60}", 0..8)) {
            let text = lines.join("\n");
            if let Some(stop) = stop(text.as_bytes()) {
                stop.finding("x");
            }
            for line in &lines {
                host_frame(line);
                python_frame(line);
            }
        }
    }
}
