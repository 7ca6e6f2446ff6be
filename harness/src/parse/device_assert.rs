//! Assertions that failed inside a kernel: the lines that the CUDA runtime prints, and c10's own report.
//!
//! The runtime prints one line a thread (CUDA C++ Programming Guide, "Assertion"):
//!
//! ```text
//! /pytorch/aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [7,0,0] Assertion `t >= 0 && t < n_classes` failed.
//! ```
//!
//! The function may be a whole C++ signature with colons of its own, `unknown` (Triton's `device_assert`, as Inductor
//! emits it for bounds checks, also with the file `unknown:0`), or missing (Windows builds). A kernel with ten thousand
//! bad threads prints ten thousand lines, so equal ones are counted in one [`DeviceAssertion`].
//!
//! Where `PyTorch` was compiled with `TORCH_USE_CUDA_DSA`, c10 adds a report to the exception's message
//! (c10/cuda/CUDADeviceAssertionHost.cpp, `c10_retrieve_device_side_assertion_info`):
//!
//! ```text
//! 1 CUDA device-side assertion failures were found on GPU #0!
//! Assertion failure 0
//!   GPU assertion failure message = index out of range
//!   File containing assertion = /job/op.cu:12
//!   Device function containing assertion = gather_kernel
//!   Thread ID that failed assertion = [7,0,0]
//!   Block ID that failed assertion = [0,0,0]
//!   File containing kernel launch = /job/op.cu:40
//!   Function containing kernel launch = gather
//!   Name of kernel launched that led to failure = gather_kernel
//!   Device that launched kernel = 0
//!   Stream kernel was launched on = 0
//!   Backtrace of kernel launch site = Launch stacktracing disabled.
//! ```

use std::sync::LazyLock;

use memchr::memmem::{self, Finder};
use serde::{Deserialize, Serialize};

use super::lines::{Cut, leading_number, lossy, number, rsplit_once};
use super::{Bounded, Span};

const SAMPLES: usize = 8;
const GROUPS: usize = 256;
const TEXT: usize = 2048;

static ASSERTION: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"Assertion `"));

/// A block's or a thread's place in its grid: `[x, y, z]`.
pub type Index = [u32; 3];

/// One thread at which an assertion failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// The block in the grid.
    pub block: Index,
    /// The thread in the block.
    pub thread: Index,
}

/// All the failures of one assertion in one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceAssertion {
    /// The label of the process that printed it, where a launcher labels lines.
    pub process: Option<String>,
    /// The source file, as the compiler knew it; `unknown` where Triton kept none.
    pub file: String,
    /// The line in it.
    pub line: u32,
    /// The device function, often a full C++ signature; none where the runtime printed none.
    pub function: Option<String>,
    /// What stands between the quotes: an expression, or Triton's message.
    pub expression: String,
    /// How many threads reported it.
    pub count: u64,
    /// The thread that was printed first.
    pub first: Site,
    /// The smallest index of each dimension.
    pub min: Site,
    /// The largest index of each dimension.
    pub max: Site,
    /// The first few threads, as printed.
    pub samples: Vec<Site>,
    /// Where the first of these lines is.
    pub span: Span,
}

/// The assertions of a stream, grouped.
#[derive(Debug, Default)]
pub(crate) struct Assertions {
    groups: Vec<DeviceAssertion>,
    omitted: u64,
    recent: usize,
    /// Where the last match ended: the overlap of two pieces of a long line must not count twice.
    seen: u64,
}

/// One failure as it stands in a line.
struct Failure<'a> {
    file: &'a [u8],
    line: u32,
    function: Option<&'a [u8]>,
    expression: &'a [u8],
    site: Site,
    start: usize,
    end: usize,
}

impl Assertions {
    /// Takes every assertion in `text`, which starts at `offset` in the stream; true if there was one.
    pub(crate) fn feed(&mut self, text: &[u8], offset: u64, process: Option<&str>) -> bool {
        let mut found = false;
        let mut from = 0;
        while let Some(at) = ASSERTION.find(text.after(from)) {
            let failure = failure(text, from, from + at);
            from += at + 1;
            let Some(failure) = failure else { continue };
            from = failure.end;
            found = true;
            let span = Span { start: offset + failure.start as u64, end: offset + failure.end as u64 };
            if span.end > self.seen {
                self.seen = span.end;
                self.add(&failure, span, process);
            }
        }
        found
    }

    fn add(&mut self, failure: &Failure<'_>, span: Span, process: Option<&str>) {
        let file = String::from_utf8_lossy(failure.file.before(TEXT));
        let function = failure.function.map(|f| String::from_utf8_lossy(f.before(TEXT)));
        let expression = String::from_utf8_lossy(failure.expression.before(TEXT));
        let equal = |group: &DeviceAssertion| {
            group.line == failure.line
                && group.expression == expression
                && group.file == file
                && group.function.as_deref() == function.as_deref()
                && group.process.as_deref() == process
        };
        // Failures of one assertion come in a row, thousands at a time.
        let index = if self.groups.get(self.recent).is_some_and(equal) {
            Some(self.recent)
        } else {
            self.groups.iter().position(equal)
        };
        let Some(group) = index.and_then(|index| self.groups.get_mut(index)) else {
            if self.groups.len() == GROUPS {
                self.omitted += 1;
                return;
            }
            self.recent = self.groups.len();
            self.groups.push(DeviceAssertion {
                process: process.map(str::to_owned),
                file: file.into_owned(),
                line: failure.line,
                function: function.map(std::borrow::Cow::into_owned),
                expression: expression.into_owned(),
                count: 1,
                first: failure.site,
                min: failure.site,
                max: failure.site,
                samples: vec![failure.site],
                span,
            });
            return;
        };
        self.recent = index.unwrap_or_default();
        group.count += 1;
        group.min = Site {
            block: each(group.min.block, failure.site.block, u32::min),
            thread: each(group.min.thread, failure.site.thread, u32::min),
        };
        group.max = Site {
            block: each(group.max.block, failure.site.block, u32::max),
            thread: each(group.max.thread, failure.site.thread, u32::max),
        };
        if group.samples.len() < SAMPLES && !group.samples.contains(&failure.site) {
            group.samples.push(failure.site);
        }
    }

    /// The groups in order of their first line, and how many failures found no room in them.
    pub(crate) fn finish(self) -> (Vec<DeviceAssertion>, u64) {
        (self.groups, self.omitted)
    }
}

fn each(a: Index, b: Index, pick: fn(u32, u32) -> u32) -> Index {
    let ([ax, ay, az], [bx, by, bz]) = (a, b);
    [pick(ax, bx), pick(ay, by), pick(az, bz)]
}

/// The failure whose ``Assertion ` `` stands at `at`; nothing before `from` belongs to it.
fn failure(text: &[u8], from: usize, at: usize) -> Option<Failure<'_>> {
    let before = text.between(from, at);
    let block_at = memmem::rfind(before, b"block: [")?;
    let (block, rest) = index(before.after(block_at + 7))?;
    let (thread, rest) = index(rest.strip_prefix(b", thread: ")?)?;
    if rest != b" " {
        return None;
    }
    let head = before.before(block_at);
    let (start, file_end, line, function) = place(head)?;
    let expression_at = at + b"Assertion `".len();
    let tail = text.after(expression_at);
    let (length, close) = match memmem::find(tail, b"` failed") {
        Some(length) => (length, b"` failed".len()),
        None => (tail.len(), 0),
    };
    let end = expression_at + length + close;
    let end = end + usize::from(close > 0 && text.get(end) == Some(&b'.'));
    Some(Failure {
        file: head.between(start, file_end),
        line,
        function,
        expression: tail.before(length),
        site: Site { block, thread },
        start: from + start,
        end,
    })
}

/// `[1,2,3]` at the start of `text`, and the rest.
fn index(text: &[u8]) -> Option<(Index, &[u8])> {
    let (x, rest) = leading_number(text.strip_prefix(b"[")?)?;
    let (y, rest) = leading_number(rest.strip_prefix(b",")?)?;
    let (z, rest) = leading_number(rest.strip_prefix(b",")?)?;
    Some(([x, y, z], rest.strip_prefix(b"]")?))
}

/// Splits `JUNK FILE:LINE: FUNCTION: ` into the file's start and end, the line and the function.
///
/// The junk is whatever stood on the line before the runtime wrote to it, such as a progress bar. A file name may hold
/// spaces only where there is no junk.
fn place(head: &[u8]) -> Option<(usize, usize, u32, Option<&[u8]>)> {
    let mut colon = head.len();
    loop {
        // `FILE:LINE: `, the last one: a signature holds `::`, never `:12: `.
        colon = memchr::memrchr(b':', head.before(colon))?;
        let Some((line, rest)) = leading_number(head.after(colon + 1)) else { continue };
        let Some(function) = rest.strip_prefix(b": ") else { continue };
        let name = head.before(colon);
        let whole = matches!(name.first(), Some(b'/' | b'.')) || !name.contains(&b' ') || name.get(1..3) == Some(b":/");
        let mut start = if whole { 0 } else { memchr::memrchr(b' ', name).map_or(0, |space| space + 1) };
        // `…, 1.2it/s]/pytorch/aten/…`
        if let Some(bracket) = memmem::rfind(name.after(start), b"]/") {
            start += bracket + 1;
        }
        if start == colon {
            return None;
        }
        let function = function.strip_suffix(b": ").unwrap_or(function).trim_ascii();
        return Some((start, colon, line, (!function.is_empty()).then_some(function)));
    }
}

/// Where a kernel was launched, as c10's registry recorded it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct KernelLaunch {
    /// The host source file.
    pub file: String,
    /// The line in it.
    pub line: u32,
    /// The host function.
    pub function: String,
    /// The kernel's name.
    pub kernel: String,
    /// The device's ordinal.
    pub device: Option<u32>,
    /// The stream's id.
    pub stream: Option<i64>,
    /// False where the registry had no room left or kept no backtrace; otherwise the frames are the next native stack.
    pub backtrace: bool,
}

/// One entry of c10's device-side-assertion report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DsaFailure {
    /// The label of the process that printed it.
    pub process: Option<String>,
    /// The GPU on which it failed.
    pub gpu: Option<u32>,
    /// Its number in the report.
    pub index: u32,
    /// The assertion's message.
    pub message: String,
    /// The device source file.
    pub file: String,
    /// The line in it.
    pub line: u32,
    /// The device function.
    pub function: String,
    /// The thread and block that failed.
    pub site: Option<Site>,
    /// Where the kernel was launched; none where the registry's ring had wrapped around.
    pub launch: Option<KernelLaunch>,
    /// The lines of the entry.
    pub span: Span,
}

/// Collects c10's report, one entry at a time.
#[derive(Debug, Default)]
pub(crate) struct DsaReport {
    gpu: Option<u32>,
    entry: Option<DsaFailure>,
    thread: Option<Index>,
}

impl DsaReport {
    pub(crate) fn is_idle(&self) -> bool {
        self.entry.is_none()
    }

    /// True if the line was part of a report.
    pub(crate) fn feed(
        &mut self,
        text: &[u8],
        span: Span,
        process: Option<&str>,
        out: &mut Bounded<DsaFailure>,
    ) -> bool {
        if let Some((_, gpu)) = rsplit_once(text, b"CUDA device-side assertion failures were found on GPU #") {
            self.finish(out);
            self.gpu = leading_number(gpu).map(|(gpu, _)| gpu);
            return true;
        }
        if let Some(index) = text.strip_prefix(b"Assertion failure ").and_then(number) {
            self.finish(out);
            self.entry = Some(DsaFailure {
                process: process.map(str::to_owned),
                gpu: self.gpu,
                index,
                message: String::new(),
                file: String::new(),
                line: 0,
                function: String::new(),
                site: None,
                launch: None,
                span,
            });
            return true;
        }
        let Some(entry) = &mut self.entry else { return false };
        let taken = text.starts_with(b"  ") && Self::property(entry, &mut self.thread, text.trim_ascii());
        if taken {
            entry.span.end = span.end;
        } else {
            self.finish(out);
        }
        taken
    }

    fn property(entry: &mut DsaFailure, thread: &mut Option<Index>, text: &[u8]) -> bool {
        // Written by c10 without a value: the launch is not known.
        if text.starts_with(b"CPU launch site info: Unavailable") {
            return true;
        }
        let (key, value) = match memmem::find(text, b" =") {
            Some(at) => (text.before(at), text.after(at + 2).trim_ascii()),
            None => return false,
        };
        let string = || lossy(value, TEXT);
        let mut launch = entry.launch.take().unwrap_or_default();
        let mut launched = launch != KernelLaunch::default();
        let mut on_launch = |set: &mut dyn FnMut(&mut KernelLaunch)| {
            set(&mut launch);
            launched = true;
        };
        let known = match key {
            b"GPU assertion failure message" | b"GPU assertion failed message" => {
                entry.message = string();
                true
            }
            b"File containing assertion" => {
                (entry.file, entry.line) = file_and_line(value);
                true
            }
            b"Line number containing assertion" => {
                entry.line = number(value).unwrap_or_default();
                true
            }
            b"Device function containing assertion" => {
                entry.function = string();
                true
            }
            b"Thread ID that failed assertion" => {
                *thread = index(value).map(|(thread, _)| thread);
                true
            }
            b"Block ID that failed assertion" => {
                entry.site = index(value).zip(thread.take()).map(|((block, _), thread)| Site { block, thread });
                true
            }
            b"File containing kernel launch" => {
                on_launch(&mut |launch| (launch.file, launch.line) = file_and_line(value));
                true
            }
            b"Line number containing kernel launch" => {
                on_launch(&mut |launch| launch.line = number(value).unwrap_or_default());
                true
            }
            b"Function containing kernel launch" => {
                on_launch(&mut |launch| launch.function = string());
                true
            }
            b"Name of kernel launched that led to failure" => {
                on_launch(&mut |launch| launch.kernel = string());
                true
            }
            b"Device that launched kernel" => {
                on_launch(&mut |launch| launch.device = number(value));
                true
            }
            b"Stream kernel was launched on" => {
                on_launch(&mut |launch| launch.stream = std::str::from_utf8(value).ok().and_then(|s| s.parse().ok()));
                true
            }
            b"Backtrace of kernel launch site" => {
                on_launch(&mut |launch| launch.backtrace = value.is_empty());
                true
            }
            _ => false,
        };
        if launched {
            entry.launch = Some(launch);
        }
        known
    }

    pub(crate) fn finish(&mut self, out: &mut Bounded<DsaFailure>) {
        self.thread = None;
        if let Some(entry) = self.entry.take() {
            out.push(entry);
        }
    }
}

/// `FILE:LINE`, or a file alone.
fn file_and_line(value: &[u8]) -> (String, u32) {
    match rsplit_once(value, b":").and_then(|(file, line)| Some((file, number(line)?))) {
        Some((file, line)) => (lossy(file, TEXT), line),
        None => (lossy(value, TEXT), 0),
    }
}
