//! What a program printed, read back: Python tracebacks, device assertions, `PyTorch`'s errors and C++ stacks.
//!
//! [`scan`] reads a stream once. It is total (any bytes), streaming (memory does not grow with the stream or with its
//! longest line) and bounded (of each kind the first and the last items are kept and the rest counted). Every item
//! has the [`Span`] of its lines, so that a report can show the evidence.
//!
//! Lines that a launcher labelled (`[rank0]: `, `[default1]:`, `(RayWorker pid=7) `) are taken apart by label first:
//! each label is a stream of its own, and processes whose lines alternate do not disturb each other.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::io::{self, BufRead};
use std::sync::LazyLock;

use memchr::memchr;
use regex::bytes::Regex;
use serde::{Deserialize, Serialize};

pub mod device_assert;
mod lines;
pub mod python;
pub mod torch;

pub use device_assert::{DeviceAssertion, DsaFailure, KernelLaunch, Site};
pub use python::{FatalError, FatalThread, ForwardTrace, Frame, Heading, PyException, Relation, Traceback};
pub use torch::{ErrorKind, NativeFrame, NativeSource, NativeStack, RaisedFrom, Termination, TorchError};

use lines::{Cut, Piece};

/// A byte range of the stream: `start` inclusive, `end` exclusive, without the last line's terminator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Span {
    /// The first byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
}

impl Span {
    fn of(start: u64, length: usize) -> Self {
        Self { start, end: start + length as u64 }
    }

    /// True if `other` lies within this range.
    pub fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }
}

/// The first and the last of many items, and how many stood between.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounded<T> {
    first: Vec<T>,
    last: VecDeque<T>,
    omitted: u64,
}

impl<T> Default for Bounded<T> {
    fn default() -> Self {
        Self { first: Vec::new(), last: VecDeque::new(), omitted: 0 }
    }
}

impl<T> Bounded<T> {
    /// How many items each end keeps.
    pub const KEPT: usize = 64;

    fn push(&mut self, item: T) {
        if self.first.len() < Self::KEPT {
            self.first.push(item);
            return;
        }
        if self.last.len() == Self::KEPT {
            self.last.pop_front();
            self.omitted += 1;
        }
        self.last.push_back(item);
    }

    /// The items that were kept, in the order of the stream.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.first.iter().chain(&self.last)
    }

    /// The last item.
    pub fn last(&self) -> Option<&T> {
        self.last.back().or(self.first.last())
    }

    /// How many items were kept.
    pub fn len(&self) -> usize {
        self.first.len() + self.last.len()
    }

    /// True if there was none.
    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// How many items between the first and the last were dropped.
    pub fn omitted(&self) -> u64 {
        self.omitted
    }

    /// How many items there were.
    pub fn total(&self) -> u64 {
        self.len() as u64 + self.omitted
    }

    /// Items arrive as they end; readers want them as they begin.
    fn sort_by_start(&mut self, span: impl Fn(&T) -> Span) {
        let kept = self.first.len();
        let mut all: Vec<T> = self.first.drain(..).chain(self.last.drain(..)).collect();
        all.sort_by_key(|item| span(item).start);
        self.last = all.split_off(kept.min(all.len())).into();
        self.first = all;
    }
}

impl<T> IntoIterator for Bounded<T> {
    type Item = T;
    type IntoIter = std::iter::Chain<std::vec::IntoIter<T>, std::collections::vec_deque::IntoIter<T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.last)
    }
}

/// Everything that was recognised in a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Scan {
    /// Python tracebacks.
    pub tracebacks: Bounded<Traceback>,
    /// Anomaly mode's tracebacks of forward calls.
    pub forward_traces: Bounded<ForwardTrace>,
    /// Deaths of the interpreter, with faulthandler's stacks.
    pub fatal_errors: Bounded<FatalError>,
    /// Failed device assertions, one entry an assertion and process.
    pub assertions: Vec<DeviceAssertion>,
    /// Failures of assertions for which no entry was left.
    pub omitted_assertions: u64,
    /// Entries of c10's device-side-assertion report.
    pub dsa_failures: Bounded<DsaFailure>,
    /// CUDA error texts with their epilogue, in tracebacks, `what()` or anywhere else.
    pub errors: Bounded<TorchError>,
    /// C++ stacks.
    pub native_stacks: Bounded<NativeStack>,
    /// `terminate called …`.
    pub terminations: Bounded<Termination>,
    /// The length of the stream.
    pub bytes: u64,
}

/// Reads `reader` to its end.
///
/// The only error is the reader's own.
pub fn scan(reader: impl BufRead) -> io::Result<Scan> {
    let mut scanner = Scanner::default();
    let bytes = lines::for_each(reader, |piece| scanner.piece(&piece))?;
    Ok(Scan { bytes, ..scanner.finish() })
}

/// [`scan`] over bytes in memory.
pub fn scan_bytes(bytes: &[u8]) -> Scan {
    // Reading from a slice cannot fail.
    scan(bytes).unwrap_or_default()
}

/// One of these stands on the first line of everything that is recognised. While nothing is open, a line without any
/// costs one search.
static INTERESTING: LazyLock<Option<Regex>> = LazyLock::new(|| {
    const LITERALS: [&str; 23] = [
        "(most recent call ",
        "\", line ",
        "Assertion `",
        "CUDA error: ",
        "CUDA driver error: ",
        "CUDA out of memory",
        "cuda runtime error (",
        "Triton Error [CUDA]",
        "cuDNN error: ",
        "CUBLAS_STATUS_",
        "CUDNN_STATUS_",
        "Error",
        "Exception",
        "_RemoteTraceback",
        "Fatal Python error: ",
        "terminate called ",
        "frame #",
        "terminated with the following error",
        "the above exception, another exception",
        "exception was the direct cause",
        "CapturedTraceback:",
        "device-side assertion fail",
        "call that induced the previous calculation",
    ];
    let escaped: Vec<String> = LITERALS.iter().map(|literal| regex::escape(literal)).collect();
    Regex::new(&escaped.join("|")).ok()
});

fn is_interesting(line: &[u8]) -> bool {
    INTERESTING.as_ref().is_none_or(|regex| regex.is_match(line)) || line.starts_with(b"Process ")
}

/// A line, or a piece of one, as the recognisers see it: no colours, no label.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a> {
    bytes: &'a [u8],
    /// What was not in the previous piece of the same line.
    fresh: &'a [u8],
    span: Span,
    /// This is not the line's first piece.
    continued: bool,
    /// The number of the line in the stream.
    number: u64,
    process: Option<&'a str>,
}

/// The open items of one process.
#[derive(Debug, Default)]
struct Lane {
    label: Option<String>,
    python: python::Machine,
    errors: torch::ErrorCollector,
    native: torch::NativeCollector,
    terminations: torch::TerminationCollector,
    dsa: device_assert::DsaReport,
}

impl Lane {
    fn is_idle(&self) -> bool {
        self.python.is_idle()
            && self.errors.is_idle()
            && self.native.is_idle()
            && self.terminations.is_idle()
            && self.dsa.is_idle()
    }

    fn finish(&mut self, out: &mut Scan) {
        self.python.finish(out);
        self.errors.finish(&mut out.errors);
        self.native.finish(&mut out.native_stacks);
        self.terminations.finish(&mut out.terminations);
        self.dsa.finish(&mut out.dsa_failures);
    }
}

#[derive(Debug, Default)]
struct Scanner {
    lanes: HashMap<Vec<u8>, Lane>,
    /// The label of the line that is being read, for the later pieces of a long line.
    label: Vec<u8>,
    assertions: device_assert::Assertions,
    plain: Vec<u8>,
    plain_fresh: Vec<u8>,
    number: u64,
    out: Scan,
}

impl Scanner {
    /// More labels than any job has ranks; a log that holds more is not labelled but merely looks so.
    const LANES: usize = 4096;

    fn piece(&mut self, piece: &Piece<'_>) {
        let continued = piece.overlap > 0;
        let (mut bytes, mut fresh) = (piece.bytes, piece.bytes.after(piece.overlap));
        if memchr(0x1b, bytes).is_some() {
            lines::strip_ansi(bytes, &mut self.plain);
            bytes = &self.plain;
            fresh = bytes;
            if continued {
                lines::strip_ansi(piece.bytes.after(piece.overlap), &mut self.plain_fresh);
                fresh = &self.plain_fresh;
            }
        }
        if !continued {
            self.number += 1;
            let length = lines::label(bytes);
            self.label.clear();
            self.label.extend_from_slice(bytes.before(length));
            bytes = bytes.after(length);
            fresh = bytes;
        }
        let open = self.lanes.get(self.label.as_slice()).is_some_and(|lane| !lane.is_idle());
        if !self.label.is_empty()
            && !continued
            && let Some(lane) = self.lanes.get_mut(b"".as_slice())
        {
            // Somebody else wrote: an unlabelled message has ended.
            lane.python.interrupt(&mut self.out);
        }
        if !open && !is_interesting(bytes) {
            return;
        }
        if !self.lanes.contains_key(self.label.as_slice()) {
            if self.lanes.len() >= Self::LANES {
                finish_lanes(&mut self.lanes, &mut self.out);
            }
            let label = (!self.label.is_empty()).then(|| lines::label_text(&self.label));
            self.lanes.insert(self.label.clone(), Lane { label, ..Lane::default() });
        }
        let Some(Lane { label, python, errors, native, terminations, dsa }) = self.lanes.get_mut(self.label.as_slice())
        else {
            return;
        };
        let rank = lines::glog_rank(bytes).map(|rank| lines::lossy(rank, 64));
        let (process, span, out) = (label.as_deref().or(rank.as_deref()), piece.span, &mut self.out);
        let offset = span.end - (bytes.len() as u64).min(span.end - span.start);
        let asserted = self.assertions.feed(bytes, offset, process);
        let text = Text { bytes, fresh, span, continued, number: self.number, process };
        if continued {
            python.feed(&text, python::Context { native: false, asserted }, out);
            return;
        }
        let native = native.feed(bytes, span, process, &mut out.native_stacks);
        let reported = dsa.feed(bytes, span, process, &mut out.dsa_failures);
        let quoted = python.feed(&text, python::Context { native: native || reported, asserted }, out);
        errors.feed(bytes, span, process, quoted || native, &mut out.errors);
        terminations.feed(bytes, span, process, &mut out.terminations);
    }

    fn finish(mut self) -> Scan {
        finish_lanes(&mut self.lanes, &mut self.out);
        let mut out = self.out;
        (out.assertions, out.omitted_assertions) = self.assertions.finish();
        out.tracebacks.sort_by_start(|item| item.span);
        out.forward_traces.sort_by_start(|item| item.span);
        out.fatal_errors.sort_by_start(|item| item.span);
        out.dsa_failures.sort_by_start(|item| item.span);
        out.errors.sort_by_start(|item| item.span);
        out.native_stacks.sort_by_start(|item| item.span);
        out.terminations.sort_by_start(|item| item.span);
        out
    }
}

fn finish_lanes(lanes: &mut HashMap<Vec<u8>, Lane>, out: &mut Scan) {
    let mut ended: Vec<(Vec<u8>, Lane)> = lanes.drain().collect();
    // A map's order must not show in the result.
    ended.sort_by(|(a, _), (b, _)| a.cmp(b));
    for (_, mut lane) in ended {
        lane.finish(out);
    }
}
