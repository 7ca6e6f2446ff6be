//! Python tracebacks as `CPython` 3.8 to 3.14 prints them, and what stands around them.
//!
//! ```text
//! Traceback (most recent call last):
//!   File "/job/main.py", line 4, in <module>
//!     print(area(2, 3))
//!           ^^^^^^^^^^
//! ZeroDivisionError: division by zero
//! ```
//!
//! Formats: `CPython`'s Lib/traceback.py (chains, groups, marks, repeated lines, notes), Python/pythonrun.c (a script's
//! own syntax error has no header), Lib/multiprocessing/process.py, Lib/threading.py and Python/errors.c (the headings
//! `Process X:`, `Exception in thread X:`, `Exception ignored in: X`), Lib/concurrent/futures/process.py,
//! torch/_utils.py and torch/multiprocessing/spawn.py (messages that carry another process's traceback),
//! Python/traceback.c (faulthandler), `torch/csrc/autograd/python_anomaly_mode.cpp`.
//!
//! # Where a message ends
//!
//! An exception's message may have any number of lines, notes included, and nothing marks its end. It ends
//!
//! - at a header, a separator of a chain, or the margin of an exception group: they are structure;
//! - at a line that another writer began: a labelled line in an unlabelled stream, a device assertion, a log line (a time,
//!   a level, glog's `W1130 12:…`), a warning, a progress bar, compute-sanitizer's `=========`, the shell's `Killed`, one
//!   of the headings above;
//! - after the sentence that ends the message of every CUDA error ([`torch::is_last_of_epilogue`]); a C++ stack after it
//!   belongs to the traceback's span, not to the message;
//! - after 3 blank lines in a row, 512 lines, or the first line end past 64 KiB: from there on it is the program's output.
//!
//! Single blank lines belong to the message if more of it follows. Of a long message 16 KiB are kept, the middle is cut.
//! Ordinary output printed right after an exception that was caught and printed cannot be told from a message line.

use std::collections::VecDeque;

use memchr::memmem;
use serde::{Deserialize, Serialize};

use super::lines::{Capped, Cut, glog_rank, indent, is_glog, leading_number, lossy, rsplit_once, split_once};
use super::{Bounded, Scan, Span, Text, torch};

const NAME: usize = 1024;
const SOURCE: usize = 1024;
const MESSAGE_LINES: u32 = 512;
const MESSAGE_BYTES: u64 = 64 * 1024;
const BLANKS: u32 = 3;
/// Foreign lines that an unfinished traceback survives.
const STRAYS: u32 = 64;
const OPEN: usize = 16;
const LEVELS: usize = 32;
const CHAIN: usize = 32;
const CHILDREN: usize = 64;
const THREADS: usize = 64;

/// One frame of a Python stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// The file, as printed.
    pub file: String,
    /// The line in it; 0 where faulthandler printed `???`.
    pub line: u32,
    /// The function; empty for the place of a syntax error.
    pub function: String,
    /// The source under it. `CPython` 3.13 prints several lines for a long expression; they are joined by `\n`.
    pub source: Option<String>,
    /// The columns of the `^^^^` or `~~^^` under the first marked source line, in characters from the source's start.
    pub mark: Option<(u32, u32)>,
    /// How many more times in a row the frame stood there (`[Previous line repeated 4 more times]`).
    pub repeated: u32,
    /// The frame's lines.
    pub span: Span,
}

/// How an exception relates to the one printed before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Relation {
    /// It is the first.
    #[default]
    First,
    /// `raise … from …`: "The above exception was the direct cause of the following exception".
    DirectCause,
    /// "During handling of the above exception, another exception occurred".
    DuringHandling,
}

/// One exception with its stack.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PyException {
    /// How it relates to the one before it in its chain.
    pub relation: Relation,
    /// Its type, as printed; empty if the stream ended before it.
    pub type_name: String,
    /// Its message with its notes, at most 16 KiB.
    pub message: String,
    /// The stack, outermost frame first.
    pub frames: Vec<Frame>,
    /// How many frames after the first [`PyException::FIRST_FRAMES`] were left out.
    pub omitted_frames: u32,
    /// The members of an exception group; each is a chain, and its last exception is the member.
    pub children: Vec<Vec<PyException>>,
    /// How many members were left out, by `CPython` or here.
    pub omitted_children: u32,
    /// The chain of a traceback that the message carries: what a worker process raised, its last exception last.
    pub embedded: Vec<PyException>,
    /// From the header to the end of the message.
    pub span: Span,
}

impl PyException {
    /// How many outer frames are kept of a long stack.
    pub const FIRST_FRAMES: usize = 64;
    /// How many inner frames are kept of a long stack.
    pub const LAST_FRAMES: usize = 192;

    /// The exception behind this one: of a rethrown worker's exception the one that the worker raised.
    pub fn origin(&self) -> &Self {
        self.embedded.last().map_or(self, Self::origin)
    }

    /// The frame that raised it, or called what raised it in C.
    pub fn innermost(&self) -> Option<&Frame> {
        self.frames.last()
    }
}

/// What stood above a traceback.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Heading {
    /// multiprocessing: `Process SpawnProcess-1:`.
    Process {
        /// The process's name.
        name: String,
    },
    /// torch.multiprocessing: `-- Process 1 terminated with the following error:`.
    SpawnedProcess {
        /// Its index among those spawned.
        index: u32,
    },
    /// `Exception in thread Thread-1 (work):`.
    Thread {
        /// The thread's name.
        name: String,
    },
    /// `Exception ignored in: <function C.__del__ at 0x…>`: it did not end the program.
    Ignored {
        /// Where it was ignored.
        object: String,
    },
}

/// A traceback with all that was chained to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traceback {
    /// The process: the launcher's label (`rank0`), the name from the heading (`SpawnProcess-1`, `process 1`), or both.
    pub process: Option<String>,
    /// The line above it, where it is one of the known headings.
    pub heading: Option<Heading>,
    /// The exceptions as printed: the last is what was raised.
    pub chain: Vec<PyException>,
    /// How many exceptions in the middle of a long chain were left out, in members and embedded tracebacks too.
    pub omitted_exceptions: u32,
    /// Another traceback was being printed to the same stream at the same time. No frame was lost, but a frame or a
    /// message may be the other's.
    pub interleaved: bool,
    /// Header and exception line were both seen, of all that was announced.
    pub complete: bool,
    /// From the heading to the end of the last message and the C++ stack under it.
    pub span: Span,
}

impl Traceback {
    /// What was raised in the end.
    pub fn raised(&self) -> Option<&PyException> {
        self.chain.last()
    }
}

/// Where anomaly mode says that a failing backward node was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardTrace {
    /// The launcher's label.
    pub process: Option<String>,
    /// The node: `NllLossBackward0`.
    pub node: String,
    /// It is not the failing node, but the one whose backward made it (double backward).
    pub induced: bool,
    /// The forward call's stack, outermost first; empty where anomaly mode was off in forward.
    pub frames: Vec<Frame>,
    /// How many frames after the first [`PyException::FIRST_FRAMES`] were left out.
    pub omitted_frames: u32,
    /// Its lines.
    pub span: Span,
}

/// One thread of a faulthandler report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FatalThread {
    /// Its identifier, `0x…`.
    pub id: String,
    /// Its name (`CPython` 3.14 prints it).
    pub name: Option<String>,
    /// It is the thread that died.
    pub current: bool,
    /// Its stack, outermost first: faulthandler's order, reversed. The innermost 256 are kept.
    pub frames: Vec<Frame>,
    /// How many outer frames were left out, here or (then at least one) by faulthandler.
    pub omitted_frames: u32,
}

/// The interpreter's death, or a stack dump that faulthandler made for another reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FatalError {
    /// The launcher's label.
    pub process: Option<String>,
    /// `Aborted`, `Segmentation fault`, …; none for a bare dump.
    pub reason: Option<String>,
    /// The threads, as printed.
    pub threads: Vec<FatalThread>,
    /// How many threads were left out.
    pub omitted_threads: u32,
    /// Its lines.
    pub span: Span,
}

/// What the other recognisers say of a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    /// It is part of a C++ stack or of c10's assertion report.
    pub(crate) native: bool,
    /// It holds a device assertion.
    pub(crate) asserted: bool,
}

// ---------------------------------------------------------------------------------------------- reading single lines

struct RawFrame<'a> {
    indent: usize,
    file: &'a [u8],
    line: u32,
    function: &'a [u8],
}

/// `File "…", line 3, in f`; `line 3 in f` as faulthandler writes it; `line 3` for a syntax error.
fn frame_line(text: &[u8]) -> Option<RawFrame<'_>> {
    let indent = indent(text);
    let (file, rest) = rsplit_once(text.after(indent).strip_prefix(b"File \"")?, b"\", line ")?;
    let (line, rest) = match rest.strip_prefix(b"???") {
        Some(rest) => (0, rest),
        None => leading_number(rest)?,
    };
    let function = match rest.strip_prefix(b", in ").or_else(|| rest.strip_prefix(b" in ")) {
        Some(function) => function,
        None if rest.trim_ascii().is_empty() => b"",
        None => return None,
    };
    Some(RawFrame { indent, file, line, function: function.trim_ascii_end() })
}

/// True for a line of `^`, `~` and spaces.
fn is_mark(text: &[u8]) -> bool {
    let text = text.trim_ascii();
    !text.is_empty() && text.iter().all(|b| matches!(b, b'^' | b'~' | b' '))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum HeaderKind {
    Plain,
    Group,
    /// `Original Traceback …`: the message of the exception above it goes on.
    Original,
    /// The logging module's `Stack (most recent call last):`, which is no exception.
    Stack,
}

/// A header at the end of a line, and how many bytes stand before it.
fn header(text: &[u8]) -> Option<(usize, HeaderKind)> {
    let before = text.trim_ascii_end().strip_suffix(b"(most recent call last):")?;
    let forms: [(&[u8], HeaderKind); 4] = [
        (b"Exception Group Traceback ", HeaderKind::Group),
        (b"Original Traceback ", HeaderKind::Original),
        (b"Traceback ", HeaderKind::Plain),
        (b"Stack ", HeaderKind::Stack),
    ];
    forms.into_iter().find_map(|(form, kind)| before.strip_suffix(form).map(|before| (before.len(), kind)))
}

fn separator(text: &[u8]) -> Option<Relation> {
    match text.trim_ascii() {
        b"The above exception was the direct cause of the following exception:" => Some(Relation::DirectCause),
        b"During handling of the above exception, another exception occurred:" => Some(Relation::DuringHandling),
        _ => None,
    }
}

struct ExceptionLine<'a> {
    type_name: &'a [u8],
    message: &'a [u8],
    /// The type is named as exceptions are; otherwise the line may be anybody's `loss: 0.3`.
    strong: bool,
}

/// `some.module.Type: message`, or the type alone.
fn exception_line(text: &[u8]) -> Option<ExceptionLine<'_>> {
    let word = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'<' | b'>' | 0x80..);
    let length = text.iter().take(NAME).take_while(|b| word(b)).count();
    let (type_name, rest) = (text.before(length), text.after(length));
    if length == 0 || type_name.first().is_some_and(|b| b.is_ascii_digit() || matches!(b, b'.' | b'<' | b'>')) {
        return None;
    }
    let strong = is_strong(type_name);
    match rest.strip_prefix(b":") {
        Some(b"") => Some(ExceptionLine { type_name, message: b"", strong }),
        Some(message) => {
            let message = message.strip_prefix(b" ")?;
            Some(ExceptionLine { type_name, message, strong })
        }
        // The program's own class is printed without its module, and may be named anything: `Quiet`.
        None if rest.trim_ascii().is_empty() && (strong || type_name.first().is_some_and(u8::is_ascii_uppercase)) => {
            Some(ExceptionLine { type_name, message: b"", strong })
        }
        None => None,
    }
}

fn is_strong(type_name: &[u8]) -> bool {
    const ENDINGS: [&[u8]; 16] = [
        b"Error",
        b"Exception",
        b"Warning",
        b"Interrupt",
        b"Exit",
        b"Iteration",
        b"Group",
        b"Exceeded",
        b"Timeout",
        b"Failure",
        b"Failed",
        b"Expired",
        b"Empty",
        b"Full",
        b"Traceback",
        b"Abort",
    ];
    let last = memchr::memrchr(b'.', type_name).map_or(type_name, |dot| type_name.after(dot + 1));
    let dotted = last.len() < type_name.len() && !last.is_empty();
    let capital = last.first().is_some_and(u8::is_ascii_uppercase);
    ENDINGS.iter().any(|ending| last.ends_with(ending)) || (dotted && capital) || (dotted && last == b"error")
}

fn heading(text: &[u8]) -> Option<Heading> {
    let text = text.trim_ascii_end();
    if let Some(rest) = text.strip_prefix(b"-- Process ") {
        let (index, rest) = leading_number(rest)?;
        return (rest == b" terminated with the following error:").then_some(Heading::SpawnedProcess { index });
    }
    if let Some(rest) = text.strip_prefix(b"Process ") {
        let name = rest.strip_suffix(b":")?;
        let plausible = !name.is_empty() && name.len() < 128 && !name.contains(&b' ');
        return plausible.then(|| Heading::Process { name: lossy(name, NAME) });
    }
    if let Some(rest) = text.strip_prefix(b"Exception in thread ") {
        return Some(Heading::Thread { name: lossy(rest.strip_suffix(b":")?, NAME) });
    }
    let rest = text.strip_prefix(b"Exception ignored ")?;
    let object = rest.strip_prefix(b"in: ").unwrap_or_else(|| rest.strip_suffix(b":").unwrap_or(rest));
    Some(Heading::Ignored { object: lossy(object, NAME) })
}

/// True for a line with which a log, a shell or a tool begins something of its own: no message goes on with it.
fn is_foreign(text: &[u8]) -> bool {
    const BEGINNINGS: [&[u8]; 8] = [
        b"=========",
        b"terminate called ",
        b"Fatal Python error: ",
        b"Aborted (core dumped)",
        b"Segmentation fault",
        b"Killed",
        b"wandb: ",
        b"*** ",
    ];
    if BEGINNINGS.iter().any(|beginning| text.starts_with(beginning)) || memmem::find(text, b"%|").is_some() {
        return true;
    }
    if !matches!(heading(text), None | Some(Heading::SpawnedProcess { .. })) {
        return true;
    }
    let open = text.strip_prefix(b"[").or_else(|| text.strip_prefix(b"(")).unwrap_or(text);
    if is_glog(open) || glog_rank(text).is_some() || is_time(open) || is_level(open, text.len() > open.len()) {
        return true;
    }
    // `/path/file.py:12: UserWarning: …`
    split_once(text.before(512), b".py:").is_some_and(|(path, rest)| {
        !path.contains(&b' ')
            && leading_number(rest).and_then(|(_, rest)| rest.strip_prefix(b": ")).is_some_and(|rest| {
                let name = rest.iter().take_while(|b| b.is_ascii_alphanumeric()).count();
                rest.before(name).ends_with(b"Warning")
            })
    })
}

/// `2024-05-01 10:00`, `10:00:01`, `05/01 10:00`.
fn is_time(text: &[u8]) -> bool {
    let shape = |pattern: &[u8]| {
        text.len() >= pattern.len()
            && pattern.iter().zip(text).all(|(want, have)| match want {
                b'0' => have.is_ascii_digit(),
                b' ' => matches!(have, b' ' | b'T' | b'_'),
                b'-' => matches!(have, b'-' | b'/'),
                _ => want == have,
            })
    };
    shape(b"0000-00-00 00:00") || shape(b"00:00:00") || shape(b"00-00 00:00") || shape(b"00-00-0000 00:00")
}

/// `INFO:root:…`, `[WARNING] …`, `ERROR 05-01 …`.
fn is_level(text: &[u8], bracketed: bool) -> bool {
    const LEVELS: [&[u8]; 7] = [b"INFO", b"WARNING", b"WARN", b"ERROR", b"DEBUG", b"CRITICAL", b"FATAL"];
    LEVELS.iter().any(|level| {
        text.strip_prefix(*level).is_some_and(|rest| match rest.first() {
            Some(b':' | b']' | b'|') => true,
            Some(b' ') => bracketed || rest.get(1).is_some_and(|b| b.is_ascii_digit() || *b == b' ' || *b == b'['),
            _ => false,
        })
    })
}

// --------------------------------------------------------------------------------------------------- stacks in the make

/// The frames of one stack, its middle dropped when it is long.
#[derive(Debug, Default)]
struct Stack {
    first: Vec<Frame>,
    last: VecDeque<Frame>,
    omitted: u32,
    indent: usize,
    source_lines: u32,
}

impl Stack {
    fn total(&self) -> usize {
        self.first.len() + self.last.len() + self.omitted as usize
    }

    fn push(&mut self, raw: &RawFrame<'_>, span: Span) {
        self.indent = raw.indent;
        self.source_lines = 0;
        let frame = Frame {
            file: lossy(raw.file, NAME),
            line: raw.line,
            function: lossy(raw.function, NAME),
            source: None,
            mark: None,
            repeated: 0,
            span,
        };
        if self.first.len() < PyException::FIRST_FRAMES {
            self.first.push(frame);
            return;
        }
        if self.last.len() == PyException::LAST_FRAMES {
            self.last.pop_front();
            self.omitted += 1;
        }
        self.last.push_back(frame);
    }

    fn current(&mut self) -> Option<&mut Frame> {
        self.last.back_mut().or(self.first.last_mut())
    }

    fn newest(&self) -> Option<&Frame> {
        self.last.back().or(self.first.last())
    }

    /// Takes a line under a frame: source, marks, or `[Previous line repeated …]`.
    fn under(&mut self, text: &[u8], span: Span) {
        let column = self.indent + 2;
        let text = text.after(indent(text).min(column)).trim_ascii_end();
        let lines = &mut self.source_lines;
        let Some(frame) = self.last.back_mut().or(self.first.last_mut()) else { return };
        frame.span.end = span.end;
        match &mut frame.source {
            Some(source) if is_mark(text) => {
                let start = indent(text);
                let width = source.lines().next_back().map_or(0, |line| line.chars().count());
                // Marks wider than the source are another frame's, in a stream that two processes write to. A character
                // may be two columns wide; one column past the end marks a missing one.
                if frame.mark.is_none() && text.len() <= 2 * width + 1 {
                    frame.mark = u32::try_from(start).ok().zip(u32::try_from(text.len()).ok());
                }
            }
            Some(source) => {
                *lines += 1;
                if source.len() + text.len() < SOURCE {
                    source.push('\n');
                    source.push_str(&String::from_utf8_lossy(text));
                }
            }
            None => frame.source = Some(lossy(text, SOURCE)),
        }
    }

    fn repeat(&mut self, text: &[u8], span: Span) -> bool {
        let Some(times) = repetition(text) else { return false };
        let Some(frame) = self.current() else { return false };
        frame.repeated = times;
        frame.span.end = span.end;
        true
    }

    fn finish(self) -> (Vec<Frame>, u32) {
        let mut frames = self.first;
        frames.extend(self.last);
        (frames, self.omitted)
    }
}

/// `[Previous line repeated 4 more times]`
fn repetition(text: &[u8]) -> Option<u32> {
    let (times, rest) = leading_number(text.trim_ascii().strip_prefix(b"[Previous line repeated ")?)?;
    rest.starts_with(b" more time").then_some(times)
}

/// How many members `CPython` left out of a group: `and 5 more exceptions`, `... (max_group_depth is 10)`.
fn left_out(text: &[u8]) -> Option<u32> {
    if text.starts_with(b"... (max_group_depth is ") {
        return Some(1);
    }
    let (members, rest) = leading_number(text.strip_prefix(b"and ")?)?;
    rest.starts_with(b" more exception").then_some(members)
}

/// An exception in the make.
#[derive(Debug, Default)]
struct Builder {
    relation: Relation,
    stack: Stack,
    type_name: Option<String>,
    weak: bool,
    message: Capped,
    message_lines: u32,
    blanks: u32,
    children: Vec<Vec<PyException>>,
    omitted_children: u32,
    embedded: Vec<PyException>,
    stack_only: bool,
    span: Span,
}

impl Builder {
    fn new(relation: Relation, span: Span) -> Self {
        Self { relation, span, ..Self::default() }
    }

    /// The column of the header and the exception line: two before the frames.
    fn base(&self) -> usize {
        self.stack.indent.saturating_sub(2)
    }

    fn name(&mut self, line: &ExceptionLine<'_>) {
        self.type_name = Some(lossy(line.type_name, NAME));
        self.weak = !line.strong;
        self.message.push(line.message);
        self.blanks = 0;
    }

    fn unname(&mut self) {
        self.type_name = None;
        self.message = Capped::default();
    }

    fn say(&mut self, text: &[u8]) {
        for _ in 0..=std::mem::take(&mut self.blanks) {
            self.message.push(b"\n");
        }
        self.message.push(text.after(indent(text).min(self.base())));
        self.message_lines += 1;
    }

    fn is_full(&self) -> bool {
        self.message_lines >= MESSAGE_LINES || self.message.total() > MESSAGE_BYTES
    }

    fn finish(self) -> PyException {
        let (frames, omitted_frames) = self.stack.finish();
        let mut message = self.message.into_string();
        message.truncate(message.trim_end().len());
        if !self.embedded.is_empty() {
            // concurrent.futures quotes the traceback that stands in `embedded`.
            message.truncate(message.trim_end_matches(['"', '\n']).len());
        }
        PyException {
            relation: self.relation,
            type_name: self.type_name.unwrap_or_default(),
            message,
            frames,
            omitted_frames,
            children: self.children,
            omitted_children: self.omitted_children,
            embedded: self.embedded,
            span: self.span,
        }
    }
}

// ----------------------------------------------------------------------------------------------- tracebacks in the make

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// A separator or a member's number was read: a header, or for a member an exception line, comes next.
    Expect(Relation),
    Frames,
    Message,
    /// The message has ended; a separator, a group's next margin or a C++ stack may follow.
    Tail,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LevelKind {
    Root,
    /// A member of a group.
    Child,
    /// The traceback in an exception's message.
    Embedded,
}

/// One chain in the make. Levels nest: a group's member, a message's traceback.
#[derive(Debug)]
struct Level {
    kind: LevelKind,
    /// The column of the group margin's `|`; 0 for none.
    margin: usize,
    phase: Phase,
    chain: Vec<PyException>,
    current: Option<Builder>,
    omitted: u32,
}

impl Level {
    fn new(kind: LevelKind, margin: usize, phase: Phase) -> Self {
        Self { kind, margin, phase, chain: Vec::new(), current: None, omitted: 0 }
    }

    fn begin(&mut self, relation: Relation, header: HeaderKind, span: Span) {
        self.settle();
        let mut builder = Builder::new(relation, span);
        builder.stack_only = header == HeaderKind::Stack;
        self.current = Some(builder);
        self.phase = Phase::Frames;
    }

    /// Moves the current exception to the chain.
    fn settle(&mut self) {
        if let Some(builder) = self.current.take() {
            if self.chain.len() == CHAIN {
                self.chain.remove(CHAIN / 2);
                self.omitted += 1;
            }
            self.chain.push(builder.finish());
        }
    }

    fn end(&self) -> u64 {
        let current = self.current.as_ref().map(|builder| builder.span.end);
        current.or_else(|| self.chain.last().map(|exception| exception.span.end)).unwrap_or_default()
    }
}

/// What a line is to a traceback, after its margin.
#[derive(Clone, Copy)]
enum Margin {
    None,
    /// `    | …`
    Bar,
    /// `    +---------------- 2 ----------------`, or `+-+------- 1 -------` where a level opens; the last may be `...`.
    Member {
        opens: bool,
    },
    /// `    +------------------------------------`
    Close,
}

/// A line as one open traceback sees it.
#[derive(Clone, Copy)]
struct View<'a> {
    level: usize,
    margin: Margin,
    text: &'a [u8],
}

/// How much a traceback wants a line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    None,
    /// It could be more of the message.
    Text,
    /// It fits, but so do other lines.
    Weak,
    Strong,
}

#[derive(Debug)]
struct Open {
    process: Option<String>,
    heading: Option<Heading>,
    /// Never empty; the first is the root.
    levels: Vec<Level>,
    /// What a logger put before the header; it puts the same before every line.
    prefix: Vec<u8>,
    headless: bool,
    interleaved: bool,
    closed: bool,
    strays: u32,
    omitted: u32,
    /// The number of the line of the newest frame or source, to tell which came first.
    touched: u64,
    span: Span,
}

impl Open {
    fn new(process: Option<&str>, root: Level, span: Span) -> Self {
        Self {
            process: process.map(str::to_owned),
            heading: None,
            levels: vec![root],
            prefix: Vec::new(),
            headless: false,
            interleaved: false,
            closed: false,
            strays: 0,
            omitted: 0,
            touched: 0,
            span,
        }
    }

    fn top(&self) -> Option<&Level> {
        self.levels.last()
    }

    fn phase(&self) -> Phase {
        self.top().map_or(Phase::Tail, |level| level.phase)
    }

    fn stack(&self) -> Option<&Stack> {
        self.top()?.current.as_ref().map(|builder| &builder.stack)
    }

    fn view<'a>(&self, text: &'a [u8]) -> View<'a> {
        let text = if same_but_digits(text, &self.prefix) { text.after(self.prefix.len()) } else { text };
        let top = self.levels.len().saturating_sub(1);
        let column = indent(text);
        let level = self.levels.iter().rposition(|level| level.margin > 0 && level.margin == column);
        let (Some(level), Some(mark)) = (level, text.get(column)) else {
            return View { level: top, margin: Margin::None, text };
        };
        let rest = text.after(column + 1);
        match mark {
            b'|' => View { level, margin: Margin::Bar, text: rest.strip_prefix(b" ").unwrap_or(rest) },
            b'+' if rest.starts_with(b"-") => {
                let (opens, rest) = match rest.strip_prefix(b"-+") {
                    Some(rest) => (true, rest),
                    None => (false, rest),
                };
                let close = rest.trim_ascii_end().iter().all(|b| *b == b'-');
                View { level, margin: if close { Margin::Close } else { Margin::Member { opens } }, text: b"" }
            }
            _ => View { level: top, margin: Margin::None, text },
        }
    }

    fn claim(&self, view: View<'_>) -> Claim {
        let Some(level) = self.levels.get(view.level) else { return Claim::None };
        if !matches!(view.margin, Margin::None | Margin::Bar) {
            return Claim::Strong;
        }
        let text = view.text;
        let base = level.current.as_ref().map_or(0, Builder::base);
        let exception = || {
            let named = if indent(text) == base { exception_line(text.after(base)) } else { None };
            named.map_or(Claim::None, |line| if line.strong { Claim::Strong } else { Claim::Weak })
        };
        match level.phase {
            Phase::Message | Phase::Tail if separator(text).is_some() => Claim::Strong,
            Phase::Expect(_) if level.kind == LevelKind::Child && left_out(text).is_some() => Claim::Strong,
            Phase::Expect(_) if level.kind == LevelKind::Child => exception(),
            Phase::Expect(_) | Phase::Tail => Claim::None,
            Phase::Frames => {
                let Some(builder) = &level.current else { return Claim::None };
                let frames = builder.stack.total() > 0;
                if frame_line(text).is_some()
                    || frames && (repetition(text).is_some() || indent(text) >= builder.stack.indent + 2)
                {
                    Claim::Strong
                } else if builder.stack_only {
                    Claim::None
                } else {
                    exception()
                }
            }
            Phase::Message => {
                let Some(builder) = &level.current else { return Claim::None };
                if builder.weak && builder.message_lines == 0 && resumes(builder, text) {
                    return Claim::Weak;
                }
                if is_foreign(text) && !matches!(view.margin, Margin::Bar) { Claim::None } else { Claim::Text }
            }
        }
    }

    /// Ends the levels above `level`.
    fn close_above(&mut self, level: usize) {
        while self.levels.len() > level + 1 {
            self.pop();
        }
    }

    fn pop(&mut self) {
        if self.levels.len() < 2 {
            return;
        }
        let Some(mut level) = self.levels.pop() else { return };
        let end = level.end();
        level.settle();
        self.omitted += level.omitted;
        let Some(parent) = self.levels.last_mut().and_then(|parent| parent.current.as_mut()) else { return };
        parent.span.end = parent.span.end.max(end);
        match level.kind {
            LevelKind::Embedded => parent.embedded.extend(level.chain),
            _ if level.chain.is_empty() => {}
            _ if parent.children.len() < CHILDREN => parent.children.push(level.chain),
            _ => parent.omitted_children += 1,
        }
    }

    /// Takes a line that it claimed; true if the line quotes program source.
    fn take(&mut self, view: View<'_>, text: &Text<'_>) -> bool {
        self.span.end = text.span.end;
        self.strays = 0;
        match view.margin {
            Margin::None | Margin::Bar => {}
            Margin::Member { opens } => {
                self.close_above(view.level);
                self.member(view.level, opens);
                return false;
            }
            Margin::Close => {
                self.close_above(view.level);
                if self.top().is_some_and(|level| level.kind == LevelKind::Child) {
                    self.pop();
                }
                if let Some(level) = self.levels.last_mut() {
                    level.phase = Phase::Tail;
                }
                return false;
            }
        }
        self.close_above(view.level);
        if let (Some(relation), Phase::Message | Phase::Tail) = (separator(view.text), self.phase()) {
            self.separate(relation);
            return false;
        }
        if view.text.trim_ascii() == b"\"\"\"" && self.top().is_some_and(|level| level.kind == LevelKind::Embedded) {
            self.pop();
        }
        if let (Some(members), Phase::Expect(_)) = (left_out(view.text), self.phase()) {
            self.pop();
            if let Some(group) = self.levels.last_mut().and_then(|level| level.current.as_mut()) {
                group.omitted_children += members;
            }
            return false;
        }
        let Some(level) = self.levels.last_mut() else { return false };
        if level.current.is_none() && matches!(level.phase, Phase::Expect(_)) {
            level.current = Some(Builder::new(Relation::First, text.span));
        }
        let phase = level.phase;
        let Some(builder) = &mut level.current else { return false };
        builder.span.end = text.span.end;
        if phase == Phase::Message && !(builder.weak && resumes(builder, view.text)) {
            builder.say(view.text);
            if torch::is_last_of_epilogue(view.text.trim_ascii_start()) || builder.is_full() {
                level.phase = Phase::Tail;
            }
            return false;
        }
        if let Some(raw) = frame_line(view.text) {
            builder.unname();
            level.phase = Phase::Frames;
            builder.stack.push(&raw, text.span);
            self.touched = text.number;
            return true;
        }
        let base = builder.base();
        if builder.stack.repeat(view.text, text.span) {
            return true;
        }
        if builder.stack.total() > 0 && indent(view.text) >= builder.stack.indent + 2 {
            builder.stack.under(view.text, text.span);
            self.touched = text.number;
            return true;
        }
        if let Some(line) = exception_line(view.text.after(base)) {
            builder.name(&line);
            level.phase = Phase::Message;
        }
        false
    }

    /// Opens a group's next member.
    fn member(&mut self, level: usize, opens: bool) {
        let margin = if opens {
            self.levels.get(level).map_or(0, |level| level.margin + 2)
        } else {
            let margin = self.levels.get(level).map_or(0, |level| level.margin);
            self.pop();
            margin
        };
        if let Some(group) = self.levels.last_mut() {
            group.phase = Phase::Tail;
        }
        if self.levels.len() < LEVELS {
            self.levels.push(Level::new(LevelKind::Child, margin, Phase::Expect(Relation::First)));
        }
    }

    fn separate(&mut self, relation: Relation) {
        // The message of a rethrown exception ends with the embedded text's own newline: two blank lines say that the
        // separator belongs to the outer chain.
        let outer = self.top().is_some_and(|level| {
            level.kind == LevelKind::Embedded && level.current.as_ref().is_some_and(|builder| builder.blanks >= 2)
        });
        if outer {
            self.pop();
        }
        if let Some(level) = self.levels.last_mut() {
            level.settle();
            level.phase = Phase::Expect(relation);
        }
    }

    fn blank(&mut self) {
        let Some(level) = self.levels.last_mut() else { return };
        let Some(builder) = &mut level.current else { return };
        builder.blanks += 1;
        if builder.blanks >= BLANKS && matches!(level.phase, Phase::Message | Phase::Tail) {
            self.closed = true;
        }
    }

    /// True if a header that comes next belongs to the message, as a worker's traceback does.
    fn embeds(&self, header: HeaderKind) -> bool {
        let Some(level) = self.top() else { return false };
        let Some(builder) = &level.current else { return false };
        level.phase == Phase::Message
            && self.levels.len() < LEVELS
            && builder.blanks == 0
            && (header == HeaderKind::Original
                || builder.message.ends_with(b"\"\"\"")
                || builder.message.ends_with(b" terminated with the following error:"))
    }

    fn finish(mut self, out: &mut Bounded<Traceback>) {
        let announced = matches!(self.phase(), Phase::Expect(_) | Phase::Frames);
        self.close_above(0);
        let Some(mut root) = self.levels.pop() else { return };
        if root.current.as_ref().is_some_and(|builder| builder.stack_only) {
            return;
        }
        root.settle();
        let named = root.chain.last().is_some_and(|exception| !exception.type_name.is_empty());
        let nothing = root.chain.iter().all(|exception| exception.type_name.is_empty() && exception.frames.is_empty());
        if nothing && self.headless {
            return;
        }
        let name = match &self.heading {
            Some(Heading::Process { name }) => Some(name.clone()),
            Some(Heading::SpawnedProcess { index }) => Some(format!("process {index}")),
            _ => None,
        };
        let process = match (self.process, name) {
            (Some(label), Some(name)) => Some(format!("{label}/{name}")),
            (label, name) => label.or(name),
        };
        out.push(Traceback {
            process,
            heading: self.heading,
            chain: root.chain,
            omitted_exceptions: self.omitted + root.omitted,
            interleaved: self.interleaved,
            complete: named && !announced && !self.headless,
            span: self.span,
        });
    }
}

/// A frame line goes on with the stack although an exception line seemed to have ended it.
fn resumes(builder: &Builder, text: &[u8]) -> bool {
    builder.message_lines == 0
        && builder.blanks == 0
        && frame_line(text).is_some_and(|raw| raw.indent == builder.stack.indent && builder.stack.total() > 0)
}

/// True if `text` begins with `prefix`, where a digit stands for any digit: a logger's time goes on.
fn same_but_digits(text: &[u8], prefix: &[u8]) -> bool {
    !prefix.is_empty()
        && text.len() >= prefix.len()
        && prefix.iter().zip(text).all(|(want, have)| want == have || want.is_ascii_digit() && have.is_ascii_digit())
}

// ------------------------------------------------------------------------------------------- anomaly mode, faulthandler

#[derive(Debug)]
struct Forward {
    node: String,
    induced: bool,
    stack: Stack,
    span: Span,
    process: Option<String>,
}

impl Forward {
    /// The node and whether it is an inducing one, and whether a stack follows.
    fn start(text: &[u8]) -> Option<(&[u8], bool, bool)> {
        if let Some((node, _)) = split_once(text, b". Traceback of forward call that caused the error:") {
            return Some((rsplit_once(node, b"Error detected in ")?.1, false, true));
        }
        if let Some((node, _)) = split_once(text, b". Traceback of forward call that induced the previous calculation:")
        {
            return Some((rsplit_once(node, b"Previous calculation was induced by ")?.1, true, true));
        }
        let (node, _) = split_once(text, b". No forward pass information available.")?;
        Some((rsplit_once(node, b"Error detected in ")?.1, false, false))
    }

    /// None: the line is not part of it. Some(true): it was the last.
    fn feed(&mut self, text: &Text<'_>) -> Option<bool> {
        let bytes = text.bytes;
        let frames = self.stack.total() > 0;
        let mut last = false;
        if bytes.trim_ascii().is_empty() {
            return Some(false);
        } else if let Some(raw) = frame_line(bytes) {
            self.stack.push(&raw, text.span);
        } else if frames && self.stack.repeat(bytes, text.span) {
        } else if frames && indent(bytes) >= self.stack.indent + 2 {
            self.stack.under(bytes, text.span);
        } else if bytes.trim_ascii_start().starts_with(b"(Triggered internally at ") {
            last = true;
        } else {
            return None;
        }
        self.span.end = text.span.end;
        Some(last)
    }

    fn finish(self, out: &mut Bounded<ForwardTrace>) {
        let (frames, omitted_frames) = self.stack.finish();
        out.push(ForwardTrace {
            process: self.process,
            node: self.node,
            induced: self.induced,
            frames,
            omitted_frames,
            span: self.span,
        });
    }
}

/// A name as `_Py_DumpASCII` wrote it (faulthandler, `_Py_DumpTraceback`): `\xHH`, `\uHHHH` or `\UHHHHHHHH` for every character
/// that is not printable ASCII. A backslash that was in the name stands there as it was; one before such digits is taken for
/// theirs.
pub(crate) fn undumped(name: &str) -> String {
    let mut parts = name.split('\\');
    let mut text = String::from(parts.next().unwrap_or_default());
    for part in parts {
        let digits = match part.as_bytes().first() {
            Some(b'x') => 2,
            Some(b'u') => 4,
            Some(b'U') => 8,
            _ => 0,
        };
        let escaped = part.get(1..=digits).filter(|d| digits > 0 && d.bytes().all(|b| b.is_ascii_hexdigit()));
        if let Some(character) = escaped.and_then(|d| u32::from_str_radix(d, 16).ok()).and_then(char::from_u32) {
            text.push(character);
            text.push_str(&part[1 + digits..]);
        } else {
            text.push('\\');
            text.push_str(part);
        }
    }
    text
}

#[derive(Debug)]
struct Fatal {
    error: FatalError,
}

impl Fatal {
    /// `Current thread 0x00007f… [name] (most recent call first):`
    fn thread(text: &[u8]) -> Option<FatalThread> {
        let text = text.trim_ascii().strip_suffix(b" (most recent call first):")?;
        let (current, text) = match text.strip_prefix(b"Current thread ") {
            Some(text) => (true, text),
            None => (false, text.strip_prefix(b"Thread ")?),
        };
        if !text.starts_with(b"0x") {
            return None;
        }
        let (id, name) = split_once(text, b" [").map_or((text, None), |(id, name)| (id, name.strip_suffix(b"]")));
        Some(FatalThread {
            id: lossy(id, 64),
            name: name.map(|name| lossy(name, NAME)),
            current,
            frames: Vec::new(),
            omitted_frames: 0,
        })
    }

    fn add(&mut self, thread: FatalThread) {
        if self.error.threads.len() < THREADS {
            self.error.threads.push(thread);
        } else {
            self.error.omitted_threads += 1;
        }
    }

    fn feed(&mut self, text: &Text<'_>) -> bool {
        const BETWEEN: [&[u8]; 4] = [
            b"Python runtime state: ",
            b"Extension modules: ",
            b"Current thread's C stack trace",
            b"Enable tracemalloc",
        ];
        let bytes = text.bytes;
        if bytes.trim_ascii().is_empty() {
            return true;
        }
        if let Some(thread) = Self::thread(bytes) {
            self.add(thread);
        } else if bytes.starts_with(b"  ") {
            if self.error.omitted_threads == 0
                && let Some(thread) = self.error.threads.last_mut()
            {
                if bytes.trim_ascii() == b"..." {
                    thread.omitted_frames += 1;
                } else if let Some(raw) = frame_line(bytes) {
                    if thread.frames.len() < PyException::FIRST_FRAMES + PyException::LAST_FRAMES {
                        let mut stack = Stack::default();
                        stack.push(&raw, text.span);
                        for frame in &mut stack.first {
                            frame.file = undumped(&frame.file);
                            frame.function = undumped(&frame.function);
                        }
                        thread.frames.append(&mut stack.first);
                    } else {
                        thread.omitted_frames += 1;
                    }
                }
            }
        } else if !BETWEEN.iter().any(|between| bytes.starts_with(between)) {
            return false;
        }
        self.error.span.end = text.span.end;
        true
    }

    fn finish(mut self, out: &mut Bounded<FatalError>) {
        for thread in &mut self.error.threads {
            thread.frames.reverse();
        }
        out.push(self.error);
    }
}

// ---------------------------------------------------------------------------------------------------------- the machine

/// An exception line outside a traceback: the cause of the next one may have none.
#[derive(Debug)]
struct Orphan {
    exception: PyException,
    number: u64,
}

/// The Python side of one process's output.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    /// Oldest first. More than one only where writers share a stream without labels.
    open: Vec<Open>,
    heading: Option<(Heading, Span, u64)>,
    orphan: Option<Orphan>,
    forward: Option<Forward>,
    fatal: Option<Fatal>,
}

impl Machine {
    pub(crate) fn is_idle(&self) -> bool {
        self.open.is_empty()
            && self.forward.is_none()
            && self.fatal.is_none()
            // The exception line without a traceback stands right under this heading.
            && !matches!(self.heading, Some((Heading::Ignored { .. }, ..)))
    }

    /// Another writer took over: messages have ended.
    pub(crate) fn interrupt(&mut self, out: &mut Scan) {
        if self.open.is_empty() {
            return;
        }
        for open in &mut self.open {
            open.closed |= matches!(open.phase(), Phase::Message | Phase::Tail);
        }
        self.sweep(out);
    }

    /// Takes a line; true if it quotes program source or names a frame.
    pub(crate) fn feed(&mut self, text: &Text<'_>, context: Context, out: &mut Scan) -> bool {
        if text.continued {
            self.feed_continued(text, context, out);
            return false;
        }
        if let Some(forward) = &mut self.forward {
            let fed = forward.feed(text);
            if fed != Some(false)
                && let Some(forward) = self.forward.take()
            {
                forward.finish(&mut out.forward_traces);
            }
            if fed.is_some() {
                return true;
            }
        }
        if let Some(fatal) = &mut self.fatal {
            if fatal.feed(text) {
                return true;
            }
            if let Some(fatal) = self.fatal.take() {
                fatal.finish(&mut out.fatal_errors);
            }
        }
        if self.start_other(text, out) {
            return false;
        }
        if context.asserted {
            self.interrupt(out);
            return false;
        }
        if context.native {
            if let Some(open) = self.open.iter_mut().rfind(|open| matches!(open.phase(), Phase::Message | Phase::Tail))
            {
                open.span.end = text.span.end;
                if let Some(level) = open.levels.last_mut() {
                    level.phase = Phase::Tail;
                }
            }
            return false;
        }
        if text.bytes.trim_ascii().is_empty() {
            for open in &mut self.open {
                open.blank();
            }
            self.sweep(out);
            return false;
        }
        if self.header(text, out) {
            return false;
        }
        let taken = self.offer(text);
        self.sweep(out);
        taken.unwrap_or_else(|| self.start(text, out))
    }

    /// Later pieces of a long line: more of a message, or a header that was printed after it without a newline.
    fn feed_continued(&mut self, text: &Text<'_>, context: Context, out: &mut Scan) {
        if context.asserted {
            self.interrupt(out);
        } else if header(text.bytes).is_some_and(|(_, kind)| kind != HeaderKind::Original) {
            self.header(&Text { continued: false, ..*text }, out);
        } else if let Some(open) = self.open.iter_mut().rfind(|open| open.phase() == Phase::Message) {
            open.span.end = text.span.end;
            if let Some(builder) = open.levels.last_mut().and_then(|level| level.current.as_mut()) {
                builder.message.push(text.fresh);
                builder.span.end = text.span.end;
            }
        }
    }

    /// Starts anomaly mode's or faulthandler's text.
    fn start_other(&mut self, text: &Text<'_>, out: &mut Scan) -> bool {
        let process = text.process.map(str::to_owned);
        if let Some((node, induced, follows)) = Forward::start(text.bytes) {
            self.interrupt(out);
            let forward =
                Forward { node: lossy(node, NAME), induced, stack: Stack::default(), span: text.span, process };
            if follows {
                self.forward = Some(forward);
            } else {
                forward.finish(&mut out.forward_traces);
            }
            return true;
        }
        let reason = split_once(text.bytes, b"Fatal Python error: ").map(|(_, reason)| lossy(reason, NAME));
        let thread = Fatal::thread(text.bytes);
        if reason.is_none() && thread.is_none() {
            return false;
        }
        self.interrupt(out);
        let threads = thread.into_iter().collect();
        self.fatal =
            Some(Fatal { error: FatalError { process, reason, threads, omitted_threads: 0, span: text.span } });
        true
    }

    /// Takes a header: of the traceback that expects one, of one in a message, or of a new traceback.
    fn header(&mut self, text: &Text<'_>, out: &mut Scan) -> bool {
        let Some((before, kind)) = header(text.bytes) else { return false };
        for open in self.open.iter_mut().rev() {
            let view = open.view(text.bytes);
            let Some((before, kind)) = header(view.text) else { continue };
            let Some(level) = open.levels.get(view.level) else { continue };
            let own = view.text.before(before).trim_ascii();
            if !own.is_empty() && own != b"+" {
                continue;
            }
            if let Phase::Expect(relation) = level.phase {
                open.close_above(view.level);
                if let Some(level) = open.levels.last_mut() {
                    if level.kind != LevelKind::Child {
                        level.margin = if own == b"+" { indent(view.text) } else { 0 };
                    }
                    level.begin(relation, kind, text.span);
                }
                open.span.end = text.span.end;
                open.strays = 0;
                return true;
            }
            open.close_above(view.level);
            if open.embeds(kind) {
                open.span.end = text.span.end;
                let margin = if own == b"+" { indent(view.text) } else { open.top().map_or(0, |level| level.margin) };
                let mut level = Level::new(LevelKind::Embedded, margin, Phase::Frames);
                level.begin(Relation::First, kind, text.span);
                open.levels.push(level);
                return true;
            }
        }
        for open in &mut self.open {
            open.closed |= open.phase() != Phase::Frames;
        }
        self.sweep(out);
        if self.open.len() == OPEN {
            self.open.remove(0).finish(&mut out.tracebacks);
        }
        let contested = !self.open.is_empty() && kind != HeaderKind::Stack;
        if contested {
            for open in &mut self.open {
                open.interleaved = true;
            }
        }
        let head = text.bytes.before(before);
        let margin = if head.trim_ascii() == b"+" { indent(head) } else { 0 };
        let mut open = self.root(text, kind, margin);
        open.interleaved = contested;
        // At most what a logger puts before a line.
        if margin == 0 && !head.trim_ascii().is_empty() && head.len() <= 256 {
            open.prefix = head.to_vec();
        }
        if let Some((heading, span, number)) = self.heading.take()
            && text.number.saturating_sub(number) <= 4
        {
            open.heading = Some(heading);
            open.span.start = span.start;
        }
        self.open.push(open);
        true
    }

    fn root(&mut self, text: &Text<'_>, kind: HeaderKind, margin: usize) -> Open {
        let mut root = Level::new(LevelKind::Root, margin, Phase::Frames);
        // concurrent.futures: the worker's traceback stands in quotes under `_RemoteTraceback: `, which has no header.
        let remote = self.orphan.take_if(|orphan| {
            text.number.saturating_sub(orphan.number) == 2 && orphan.exception.type_name.ends_with("RemoteTraceback")
        });
        let Some(Orphan { exception, .. }) = remote else {
            root.begin(Relation::First, kind, text.span);
            return Open::new(text.process, root, text.span);
        };
        let span = Span { start: exception.span.start, end: text.span.end };
        let mut builder = Builder::new(Relation::First, span);
        builder.type_name = Some(exception.type_name);
        builder.message.push(b"\n\"\"\"");
        root.current = Some(builder);
        root.phase = Phase::Message;
        let mut open = Open::new(text.process, root, span);
        let mut level = Level::new(LevelKind::Embedded, margin, Phase::Frames);
        level.begin(Relation::First, kind, text.span);
        open.levels.push(level);
        open
    }

    /// Offers a line to the open tracebacks. `Some(quoted)` if one took it.
    fn offer(&mut self, text: &Text<'_>) -> Option<bool> {
        let claims: Vec<Claim> = self.open.iter().map(|open| open.claim(open.view(text.bytes))).collect();
        let best = claims.iter().copied().max().filter(|claim| *claim != Claim::None);
        let Some(best) = best else {
            for open in &mut self.open {
                match open.phase() {
                    Phase::Message | Phase::Tail => open.closed = true,
                    Phase::Frames | Phase::Expect(_) => {
                        open.strays += 1;
                        let stack = open.top().and_then(|level| level.current.as_ref()).is_some_and(|b| b.stack_only);
                        open.closed |= open.strays > STRAYS || stack;
                    }
                }
            }
            return None;
        };
        let claimants: Vec<usize> =
            claims.iter().enumerate().filter(|(_, claim)| **claim == best).map(|(index, _)| index).collect();
        let index = match claimants.as_slice() {
            [only] => *only,
            several => self.referee(several, text.bytes),
        };
        let open = self.open.get_mut(index)?;
        let view = open.view(text.bytes);
        Some(open.take(view, text))
    }

    /// Which of several unfinished tracebacks gets a line that each could have printed. A guess: they are all marked
    /// [`Traceback::interleaved`].
    fn referee(&self, claimants: &[usize], text: &[u8]) -> usize {
        let candidates = || claimants.iter().filter_map(|index| self.open.get(*index).map(|open| (*index, open)));
        let first = claimants.first().copied().unwrap_or_default();
        let frames = |open: &Open| open.stack().map_or(0, Stack::total);
        if let Some(raw) = frame_line(text) {
            // Processes of one program die with the same stack: who is where another one already was?
            let follows = candidates()
                .filter(|(index, open)| {
                    let depth = frames(open);
                    self.open.iter().enumerate().filter(|(other, _)| other != index).any(|(_, other)| {
                        other.stack().and_then(|stack| stack.first.get(depth)).is_some_and(|frame| {
                            frame.line == raw.line
                                && frame.file.as_bytes() == raw.file
                                && frame.function.as_bytes() == raw.function
                        })
                    })
                })
                .min_by_key(|(_, open)| frames(open));
            return follows
                .or_else(|| candidates().min_by_key(|(_, open)| frames(open)))
                .map_or(first, |(index, _)| index);
        }
        let newest = |open: &Open, test: fn(&Frame) -> bool| open.stack().and_then(Stack::newest).is_some_and(test);
        if is_mark(text) {
            return candidates()
                .filter(|(_, open)| newest(open, |frame| frame.source.is_some() && frame.mark.is_none()))
                .max_by_key(|(_, open)| open.touched)
                .map_or(first, |(index, _)| index);
        }
        if indent(text) >= 4 {
            return candidates()
                .filter(|(_, open)| newest(open, |frame| frame.source.is_none()))
                .min_by_key(|(_, open)| open.touched)
                .or_else(|| candidates().max_by_key(|(_, open)| open.touched))
                .map_or(first, |(index, _)| index);
        }
        if exception_line(text.trim_ascii_start()).is_some() || separator(text).is_some() {
            // Writers take turns: the one that was silent longest.
            return candidates()
                .filter(|(_, open)| frames(open) > 0)
                .min_by_key(|(_, open)| open.touched)
                .map_or(first, |(index, _)| index);
        }
        claimants.last().copied().unwrap_or_default()
    }

    /// A line that no open traceback took.
    fn start(&mut self, text: &Text<'_>, out: &mut Scan) -> bool {
        let bytes = text.bytes;
        let ignored = self.heading.as_ref().is_some_and(|(heading, _, number)| {
            matches!(heading, Heading::Ignored { .. }) && text.number == number + 1
        });
        if let Some(heading) = heading(bytes) {
            self.heading = Some((heading, text.span, text.number));
            return false;
        }
        let line = exception_line(bytes).filter(|line| line.strong);
        if ignored {
            let heading = self.heading.take();
            if let (Some(line), Some((heading, span, _))) = (&line, heading) {
                let mut root = Level::new(LevelKind::Root, 0, Phase::Message);
                let mut builder = Builder::new(Relation::First, text.span);
                builder.name(line);
                root.current = Some(builder);
                let mut open = Open::new(text.process, root, Span { start: span.start, end: text.span.end });
                open.heading = Some(heading);
                self.open.push(open);
                return false;
            }
        }
        if let Some(line) = line {
            let exception = PyException {
                type_name: lossy(line.type_name, NAME),
                message: lossy(line.message, SOURCE),
                span: text.span,
                ..PyException::default()
            };
            self.orphan = Some(Orphan { exception, number: text.number });
            return false;
        }
        if let Some(relation) = separator(bytes) {
            let mut root = Level::new(LevelKind::Root, 0, Phase::Expect(relation));
            let orphan = self.orphan.take().filter(|orphan| text.number.saturating_sub(orphan.number) <= 8);
            let start = orphan.as_ref().map_or(text.span.start, |orphan| orphan.exception.span.start);
            root.chain.extend(orphan.map(|orphan| orphan.exception));
            self.push(Open::new(text.process, root, Span { start, end: text.span.end }), out);
            return false;
        }
        let Some(raw) = frame_line(bytes) else { return false };
        // A frame whose header was lost, or the place of a syntax error in the script itself.
        let mut root = Level::new(LevelKind::Root, 0, Phase::Frames);
        root.begin(Relation::First, HeaderKind::Plain, text.span);
        if let Some(builder) = &mut root.current {
            builder.stack.push(&raw, text.span);
        }
        let mut open = Open::new(text.process, root, text.span);
        open.headless = !raw.function.is_empty();
        open.touched = text.number;
        self.push(open, out);
        true
    }

    fn push(&mut self, open: Open, out: &mut Scan) {
        if self.open.len() == OPEN {
            self.open.remove(0).finish(&mut out.tracebacks);
        }
        self.open.push(open);
    }

    /// Hands over what has ended.
    fn sweep(&mut self, out: &mut Scan) {
        if self.open.iter().any(|open| open.closed) {
            for open in self.open.extract_if(.., |open| open.closed) {
                open.finish(&mut out.tracebacks);
            }
        }
    }

    pub(crate) fn finish(&mut self, out: &mut Scan) {
        for open in self.open.drain(..) {
            open.finish(&mut out.tracebacks);
        }
        if let Some(forward) = self.forward.take() {
            forward.finish(&mut out.forward_traces);
        }
        if let Some(fatal) = self.fatal.take() {
            fatal.finish(&mut out.fatal_errors);
        }
    }
}
