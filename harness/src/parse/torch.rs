//! What `PyTorch`'s C++ side says: CUDA error texts with their epilogue, C++ stacks, `std::terminate`.
//!
//! Error texts (c10/cuda/CUDAException.cpp and CUDAMiscFunctions.cpp; `ATen`'s cuBLAS and cuDNN check macros in
//! aten/src/ATen/cuda/Exceptions.h; Triton's launcher; aten/src/ATen/cuda/CUDAContextLight and c10's driver checks):
//!
//! ```text
//! CUDA error: device-side assert triggered
//! Search for `cudaErrorAssert' in https://docs.nvidia.com/… for more information.        (2.9 and later)
//! CUDA kernel errors might be asynchronously reported at some other API call, …          (not when blocking)
//! For debugging consider passing CUDA_LAUNCH_BLOCKING=1
//! Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
//! ```
//!
//! Since 2.10 or so, errors that cannot be asynchronous carry `For more detailed error information, run with
//! CUDA_LOG_FILE=stderr` in place of the two middle lines, whether blocking or not: see
//! [`TorchError::launch_blocking`].
//!
//! C++ stacks: `Exception raised from F at FILE:LINE (most recent call first):` (c10/util/Exception.cpp), then either
//! `frame #0: SYMBOL + 0x80 (0x7f… in /path/libc10.so)` (c10/util/Backtrace.cpp; on failure the raw line of
//! `backtrace_symbols`), or, with `TORCH_SHOW_CPP_STACKTRACES=1`, `C++ CapturedTraceback:` and
//! `#4 SYMBOL from FILE:LINE` (torch/csrc/Module.cpp, the stack-trace fetcher).

use memchr::memmem;
use serde::{Deserialize, Serialize};

use super::lines::{Cut, leading_number, lossy, number, rsplit_once, split_once};
use super::{Bounded, Span};

const TEXT: usize = 2048;
const FRAMES: usize = 192;

/// Which interface reported the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The CUDA runtime: `CUDA error: …`, and before 1.5 `cuda runtime error (59) : …`.
    Runtime,
    /// The driver: `CUDA driver error: …`.
    Driver,
    /// A status of cuBLAS, cuDNN or a sibling.
    Library,
    /// Triton's launcher: `Triton Error [CUDA]: …`.
    Triton,
    /// The caching allocator: `CUDA out of memory. …`.
    OutOfMemory,
}

/// A CUDA error as `PyTorch` words it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "each is the presence of one sentence of the epilogue")]
pub struct TorchError {
    /// Who reported it.
    pub kind: ErrorKind,
    /// The error's text: `device-side assert triggered`; for a library the whole line.
    pub text: String,
    /// Its symbolic name: `cudaErrorAssert` from the epilogue, `CUBLAS_STATUS_EXECUTION_FAILED` from the line.
    pub name: Option<String>,
    /// The call that a library's status came from, as quoted: ``when calling `…` ``.
    pub call: Option<String>,
    /// The note that the stack may be wrong because errors are asynchronous.
    pub async_note: bool,
    /// The hint to set `CUDA_LAUNCH_BLOCKING=1`.
    pub blocking_hint: bool,
    /// The hint to compile with `TORCH_USE_CUDA_DSA`, or what stands there when it was.
    pub dsa_note: bool,
    /// The hint to set `CUDA_LOG_FILE`: the error is of a kind that is not asynchronous.
    pub log_file_note: bool,
    /// The label of the process that printed it.
    pub process: Option<String>,
    /// The error's lines, epilogue included.
    pub span: Span,
}

impl TorchError {
    /// What the text itself proves about `CUDA_LAUNCH_BLOCKING`.
    ///
    /// `Some(false)`: `PyTorch` printed its note on asynchronous errors. `Some(true)`: the epilogue is there without the
    /// note, and the error is of a kind for which every version prints it. `None`: the text does not tell.
    pub fn launch_blocking(&self) -> Option<bool> {
        /// The kinds that c10's `get_cuda_async_error_suffix` treats as asynchronous.
        const ASYNCHRONOUS: [&str; 5] = [
            "cudaErrorAssert",
            "cudaErrorIllegalAddress",
            "cudaErrorIllegalInstruction",
            "cudaErrorLaunchFailure",
            "cudaErrorMisalignedAddress",
        ];
        const TEXTS: [&str; 5] = [
            "device-side assert triggered",
            "an illegal memory access was encountered",
            "an illegal instruction was encountered",
            "unspecified launch failure",
            "misaligned address",
        ];
        if self.async_note {
            return Some(false);
        }
        let kind = match &self.name {
            Some(name) => ASYNCHRONOUS.contains(&name.as_str()),
            None => TEXTS.contains(&self.text.as_str()),
        };
        (self.kind == ErrorKind::Runtime && self.dsa_note && kind && !self.log_file_note).then_some(true)
    }
}

/// The first CUDA error in a text, such as an exception's message. Its span is relative to the text.
pub fn error_in(text: &str) -> Option<TorchError> {
    let mut collector = ErrorCollector::default();
    let mut found = Bounded::default();
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        let bytes = line.trim_end_matches(['\n', '\r']).as_bytes();
        collector.feed(bytes, Span::of(offset, bytes.len()), None, false, &mut found);
        offset += line.len() as u64;
        if !found.is_empty() {
            break;
        }
    }
    collector.finish(&mut found);
    found.into_iter().next()
}

/// The first line of an error, if `line` holds one.
fn error_start(line: &[u8]) -> Option<TorchError> {
    const STARTS: [(&[u8], ErrorKind); 8] = [
        (b"CUDA error: ", ErrorKind::Runtime),
        (b"CUDA driver error: ", ErrorKind::Driver),
        (b"Triton Error [CUDA]: ", ErrorKind::Triton),
        (b"CUDA out of memory", ErrorKind::OutOfMemory),
        (b"cuda runtime error (", ErrorKind::Runtime),
        (b"cuDNN error: ", ErrorKind::Library),
        (b"CUBLAS_STATUS_", ErrorKind::Library),
        (b"CUDNN_STATUS_", ErrorKind::Library),
    ];
    let (at, needle, mut kind) = STARTS
        .iter()
        .filter_map(|(needle, kind)| memmem::find(line, needle).map(|at| (at, *needle, *kind)))
        .min_by_key(|(at, ..)| *at)?;
    let from_needle = line.after(at);
    let after = from_needle.after(needle.len());
    let name = status(from_needle);
    if name.is_some() {
        kind = ErrorKind::Library;
    }
    let text = match (kind, needle) {
        (ErrorKind::OutOfMemory, _) | (_, b"CUBLAS_STATUS_" | b"CUDNN_STATUS_") => from_needle,
        (_, b"cuda runtime error (") => split_once(after, b") : ").map_or(after, |(_, text)| text),
        _ => after,
    };
    let call = name.as_ref().and_then(|_| {
        let (_, quoted) = split_once(from_needle, b"when calling `")?;
        Some(rsplit_once(quoted, b"`").map_or(quoted, |(call, _)| call))
    });
    Some(TorchError {
        kind,
        text: lossy(text.trim_ascii(), TEXT),
        name,
        call: call.map(|call| lossy(call, TEXT)),
        async_note: false,
        blocking_hint: false,
        dsa_note: false,
        log_file_note: false,
        process: None,
        span: Span::default(),
    })
}

/// `CUBLAS_STATUS_…`, `CUDNN_STATUS_…`, `CUSPARSE_STATUS_…`: the first such word.
fn status(text: &[u8]) -> Option<String> {
    let word = |b: &u8| b.is_ascii_uppercase() || b.is_ascii_digit() || *b == b'_';
    let at = memmem::find(text, b"_STATUS_")?;
    let start = at - text.before(at).iter().rev().take_while(|b| word(b)).count();
    let length = text.after(start).iter().take_while(|b| word(b)).count();
    (start < at).then(|| lossy(text.between(start, start + length), 128))
}

/// Collects an error's line and the epilogue under it.
#[derive(Debug, Default)]
pub(crate) struct ErrorCollector {
    current: Option<TorchError>,
}

impl ErrorCollector {
    pub(crate) fn is_idle(&self) -> bool {
        self.current.is_none()
    }

    /// `quoted`: the line is program source in a traceback, so an error text in it is nobody's error.
    pub(crate) fn feed(
        &mut self,
        line: &[u8],
        span: Span,
        process: Option<&str>,
        quoted: bool,
        out: &mut Bounded<TorchError>,
    ) {
        if let Some(error) = &mut self.current {
            if Self::epilogue(error, line) {
                error.span.end = span.end;
                return;
            }
            self.finish(out);
        }
        if quoted {
            return;
        }
        self.current = error_start(line).map(|error| TorchError { process: process.map(str::to_owned), span, ..error });
    }

    /// A logger may have put its prefix before each line of a message, so a sentence may stand anywhere in it.
    fn epilogue(error: &mut TorchError, line: &[u8]) -> bool {
        let has = |sentence: &[u8]| memmem::find(line, sentence).is_some();
        if let Some((name, _)) = split_once(line, b"Search for `").and_then(|(_, rest)| split_once(rest, b"'")) {
            error.name = Some(lossy(name, 128));
        } else if has(b"CUDA kernel errors might be asynchronously reported") {
            error.async_note = true;
            // Some log writers drop the newline after this sentence.
            error.blocking_hint |= has(b"CUDA_LAUNCH_BLOCKING=1");
        } else if has(b"For debugging consider passing CUDA_LAUNCH_BLOCKING") {
            error.blocking_hint = true;
        } else if has(b"For more detailed error information, run with CUDA_LOG_FILE") {
            error.log_file_note = true;
        } else if LAST.iter().any(|last| has(last)) || has(b"Looking for device-side assertion failure information") {
            error.dsa_note = true;
        } else {
            return has(b"GPU device may be out of range");
        }
        true
    }

    pub(crate) fn finish(&mut self, out: &mut Bounded<TorchError>) {
        if let Some(error) = self.current.take() {
            out.push(error);
        }
    }
}

const LAST: [&[u8]; 4] = [
    b"Compile with `TORCH_USE_CUDA_DSA`",
    b"Device-side assertion tracking was not enabled",
    b"Device-side assertions disabled because",
    b"Device-side assertions were explicitly omitted",
];

/// True for the sentence with which c10 ends the message of every CUDA error: nothing of the message follows but a
/// C++ stack.
pub(crate) fn is_last_of_epilogue(line: &[u8]) -> bool {
    LAST.iter().any(|last| line.starts_with(last))
}

/// A place in native source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NativeSource {
    /// The file, as the compiler knew it.
    pub file: String,
    /// The line in it.
    pub line: u32,
}

/// One frame of a C++ stack; the innermost has the lowest index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NativeFrame {
    /// Its number, as printed.
    pub index: u32,
    /// The demangled function; none where the symbol is unknown.
    pub symbol: Option<String>,
    /// The distance of the return address from the function's start; from that of the module where the symbol is unknown.
    pub offset: Option<u64>,
    /// The return address.
    pub address: Option<u64>,
    /// The library or executable.
    pub module: Option<String>,
    /// Where debug information names one.
    pub source: Option<NativeSource>,
}

/// Where a C++ exception was constructed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaisedFrom {
    /// The function.
    pub function: String,
    /// The place of its check.
    pub source: NativeSource,
}

/// A C++ stack.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NativeStack {
    /// From the heading, where there is one.
    pub raised_from: Option<RaisedFrom>,
    /// The frames, innermost first, as printed.
    pub frames: Vec<NativeFrame>,
    /// How many outer frames were left out.
    pub omitted_frames: u32,
    /// The label of the process that printed it.
    pub process: Option<String>,
    /// The stack's lines.
    pub span: Span,
}

/// Collects C++ stacks.
#[derive(Debug, Default)]
pub(crate) struct NativeCollector {
    current: Option<NativeStack>,
    captured: bool,
}

impl NativeCollector {
    pub(crate) fn is_idle(&self) -> bool {
        self.current.is_none()
    }

    /// True if the line is part of a stack.
    pub(crate) fn feed(
        &mut self,
        line: &[u8],
        span: Span,
        process: Option<&str>,
        out: &mut Bounded<NativeStack>,
    ) -> bool {
        let text = line.trim_ascii();
        let open = |raised_from| NativeStack {
            raised_from,
            process: process.map(str::to_owned),
            span,
            ..NativeStack::default()
        };
        if let Some(raised) = raised_from(text) {
            self.finish(out);
            self.current = Some(open(Some(raised)));
        } else if text == b"C++ CapturedTraceback:" {
            // It stands under the heading that was just read, or alone.
            if self.current.as_ref().is_none_or(|stack| !stack.frames.is_empty()) {
                self.finish(out);
            }
            self.captured = true;
            self.current.get_or_insert_with(|| open(None));
        } else if let Some(frame) = backtrace_frame(text) {
            if frame.index == 0 && self.current.as_ref().is_some_and(|stack| !stack.frames.is_empty()) {
                self.finish(out);
            }
            push_frame(self.current.get_or_insert_with(|| open(None)), frame);
        } else if let (true, Some(stack), Some(frame)) = (self.captured, &mut self.current, captured_frame(text)) {
            push_frame(stack, frame);
        } else if self.current.is_none() || text != b"<omitting python frames>" {
            self.finish(out);
            return false;
        }
        if let Some(stack) = &mut self.current {
            stack.span.end = span.end;
        }
        true
    }

    pub(crate) fn finish(&mut self, out: &mut Bounded<NativeStack>) {
        self.captured = false;
        if let Some(stack) = self.current.take() {
            out.push(stack);
        }
    }
}

fn push_frame(stack: &mut NativeStack, frame: NativeFrame) {
    if stack.frames.len() < FRAMES {
        stack.frames.push(frame);
    } else {
        stack.omitted_frames += 1;
    }
}

/// `Exception raised from FUNCTION at FILE:LINE (most recent call first):`, anywhere in a line.
fn raised_from(line: &[u8]) -> Option<RaisedFrom> {
    let (_, rest) = split_once(line.strip_suffix(b"(most recent call first):")?, b"Exception raised from ")?;
    let (function, place) = rsplit_once(rest.trim_ascii_end(), b" at ")?;
    let (file, line) = rsplit_once(place, b":")?;
    Some(RaisedFrom {
        function: lossy(function, TEXT),
        source: NativeSource { file: lossy(file, TEXT), line: number(line)? },
    })
}

/// `frame #3: SYMBOL + 0x118 (0x7f00 in /path/lib.so)`.
fn backtrace_frame(line: &[u8]) -> Option<NativeFrame> {
    let (index, rest) = leading_number(line.strip_prefix(b"frame #")?)?;
    let body = rest.strip_prefix(b":")?.trim_ascii();
    let located = rsplit_once(body, b" (0x").and_then(|(symbol, place)| {
        let (address, module) = split_once(place.strip_suffix(b")")?, b" in ")?;
        Some((symbol, radix(address, 16)?, module))
    });
    let (symbol, address, module) = match located {
        Some((symbol, address, module)) => (symbol, Some(address), Some(lossy(module, TEXT))),
        None => (body, None, None),
    };
    let (symbol, offset) = match rsplit_once(symbol, b" + ").map(|(symbol, offset)| (symbol, offset_of(offset))) {
        Some((symbol, Some(offset))) => (symbol, Some(offset)),
        _ => (symbol, None),
    };
    Some(NativeFrame { index, symbol: known(symbol), offset, address, module, source: None })
}

/// `#4 SYMBOL from FILE:LINE`; FILE may also be the library, with line 0.
fn captured_frame(line: &[u8]) -> Option<NativeFrame> {
    let (index, rest) = leading_number(line.strip_prefix(b"#")?)?;
    let (symbol, place) = rsplit_once(rest.strip_prefix(b" ")?, b" from ")?;
    let (file, line) = rsplit_once(place, b":")?;
    let (line, file) = (number(line)?, lossy(file, TEXT));
    let base = file.rsplit('/').next().unwrap_or_default();
    let library = line == 0 && (base.split('.').skip(1).any(|part| part == "so") || file.contains("/bin/"));
    let (module, source) = match file.as_str() {
        "" | "??" => (None, None),
        _ if library => (Some(file), None),
        _ => (None, Some(NativeSource { file, line })),
    };
    Some(NativeFrame { index, symbol: known(symbol), offset: None, address: None, module, source })
}

fn known(symbol: &[u8]) -> Option<String> {
    (!matches!(symbol, b"" | b"??" | b"<unknown function>")).then(|| lossy(symbol, TEXT))
}

fn offset_of(text: &[u8]) -> Option<u64> {
    match text.strip_prefix(b"0x") {
        Some(digits) => radix(digits, 16),
        None => radix(text, 10),
    }
}

fn radix(digits: &[u8], radix: u32) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}

/// libstdc++'s last words: `terminate called …`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Termination {
    /// The exception's type; none for `terminate called without an active exception`.
    pub type_name: Option<String>,
    /// The first line of `what()`.
    pub what: Option<String>,
    /// The label of the process that printed it.
    pub process: Option<String>,
    /// Its lines.
    pub span: Span,
}

/// Collects [`Termination`]s.
#[derive(Debug, Default)]
pub(crate) struct TerminationCollector {
    current: Option<Termination>,
}

impl TerminationCollector {
    pub(crate) fn is_idle(&self) -> bool {
        self.current.is_none()
    }

    pub(crate) fn feed(&mut self, line: &[u8], span: Span, process: Option<&str>, out: &mut Bounded<Termination>) {
        if let Some((_, rest)) = split_once(line, b"terminate called ") {
            let type_name = match rest.strip_prefix(b"after throwing an instance of '") {
                Some(rest) => split_once(rest, b"'").map(|(name, _)| lossy(name, TEXT)),
                None if rest.starts_with(b"without an active exception") || rest.starts_with(b"recursively") => None,
                None => return,
            };
            self.finish(out);
            self.current = Some(Termination { type_name, what: None, process: process.map(str::to_owned), span });
            return;
        }
        if let Some(current) = &mut self.current {
            if let Some(what) = line.trim_ascii_start().strip_prefix(b"what():") {
                current.what = Some(lossy(what.trim_ascii(), TEXT));
                current.span.end = span.end;
            }
            self.finish(out);
        }
    }

    pub(crate) fn finish(&mut self, out: &mut Bounded<Termination>) {
        if let Some(termination) = self.current.take() {
            out.push(termination);
        }
    }
}
