//! Lines out of a byte stream, in flat memory, and the small total tools on bytes that every parser uses.
//!
//! A line ends at `\n`, at `\r\n`, or at a lone `\r`: a progress bar rewrites its line with `\r`, and what is printed
//! next must not be glued to a hundred thousand states of the bar. A line longer than [`MAX_PIECE`] comes in pieces
//! that overlap by [`OVERLAP`] bytes, so that a pattern shorter than that is whole in at least one piece.
//!
//! Nothing depends on how the reader cuts its data: the window is always filled before it is looked at.

use std::collections::VecDeque;
use std::io::{self, BufRead, ErrorKind};

use memchr::{memchr, memchr2, memmem};

use super::Span;

/// The longest piece of a line that a recogniser sees at once.
pub(crate) const MAX_PIECE: usize = 64 * 1024;
/// How much of a long line's previous piece is shown again with the next one.
pub(crate) const OVERLAP: usize = 2 * 1024;
const WINDOW: usize = 4 * MAX_PIECE;

/// A line without its terminator, or one piece of a long line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) span: Span,
    /// How many leading bytes were part of the previous piece of the same line; 0 in a line's first piece.
    pub(crate) overlap: usize,
}

/// Calls `each` with every line of `reader`, in order, and returns the length of the stream.
pub(crate) fn for_each(mut reader: impl BufRead, mut each: impl FnMut(Piece<'_>)) -> io::Result<u64> {
    let mut window = vec![0_u8; WINDOW];
    let mut filled = 0;
    let mut offset = 0_u64;
    let mut overlap = 0;
    let mut after_return = false;
    // A bare return over an empty line prints nothing, so it is no line, unless it is the first half of `\n\r\n`.
    let (mut after_newline, mut maybe_blank) = (true, false);
    loop {
        let mut ended = false;
        while filled < window.len() {
            match reader.read(window.get_mut(filled..).unwrap_or_default()) {
                Ok(0) => {
                    ended = true;
                    break;
                }
                Ok(n) => filled += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let mut pos = 0;
        while pos < filled {
            let rest = window.between(pos, filled);
            let start = offset + pos as u64;
            if after_return && overlap == 0 {
                after_return = false;
                if rest.first() == Some(&b'\n') {
                    if maybe_blank {
                        each(Piece { bytes: b"", span: Span::of(start - 1, 0), overlap });
                    }
                    after_newline = true;
                    pos += 1;
                    continue;
                }
            }
            let fresh = rest.between(overlap, MAX_PIECE + 1);
            if let Some(at) = memchr2(b'\n', b'\r', fresh) {
                let length = overlap + at;
                after_return = fresh.get(at) == Some(&b'\r');
                maybe_blank = after_return && length == 0 && after_newline;
                after_newline = !after_return;
                if length > 0 || !after_return {
                    each(Piece { bytes: rest.before(length), span: Span::of(start, length), overlap });
                }
                pos += length + 1;
                overlap = 0;
            } else if rest.len() > MAX_PIECE {
                each(Piece { bytes: rest.before(MAX_PIECE), span: Span::of(start, MAX_PIECE), overlap });
                pos += MAX_PIECE - OVERLAP;
                overlap = OVERLAP;
            } else if ended {
                if rest.len() > overlap {
                    each(Piece { bytes: rest, span: Span::of(start, rest.len()), overlap });
                }
                pos = filled;
            } else {
                break;
            }
        }
        if ended {
            return Ok(offset + pos as u64);
        }
        window.copy_within(pos..filled, 0);
        filled -= pos;
        offset += pos as u64;
    }
}

/// Slicing that clamps instead of panicking: the parsers are total by construction.
pub(crate) trait Cut {
    /// Everything before index `end`.
    fn before(&self, end: usize) -> &[u8];
    /// Everything from index `start`.
    fn after(&self, start: usize) -> &[u8];
    /// From `start` up to `end`.
    fn between(&self, start: usize, end: usize) -> &[u8];
}

impl Cut for [u8] {
    fn before(&self, end: usize) -> &[u8] {
        self.get(..end.min(self.len())).unwrap_or_default()
    }

    fn after(&self, start: usize) -> &[u8] {
        self.get(start..).unwrap_or_default()
    }

    fn between(&self, start: usize, end: usize) -> &[u8] {
        self.get(start..end.min(self.len())).unwrap_or_default()
    }
}

/// The part of `text` before the first `needle`, and the part after it.
pub(crate) fn split_once<'a>(text: &'a [u8], needle: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = memmem::find(text, needle)?;
    Some((text.before(at), text.after(at + needle.len())))
}

/// As [`split_once`], at the last `needle`.
pub(crate) fn rsplit_once<'a>(text: &'a [u8], needle: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = memmem::rfind(text, needle)?;
    Some((text.before(at), text.after(at + needle.len())))
}

/// The decimal digits at the start of `text` as a number (saturated), and the rest.
pub(crate) fn leading_number(text: &[u8]) -> Option<(u32, &[u8])> {
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    (digits > 0).then(|| {
        let value =
            text.before(digits).iter().fold(0_u32, |n, b| n.saturating_mul(10).saturating_add(u32::from(b - b'0')));
        (value, text.after(digits))
    })
}

/// The whole of `text` as a decimal number.
pub(crate) fn number(text: &[u8]) -> Option<u32> {
    leading_number(text).and_then(|(value, rest)| rest.is_empty().then_some(value))
}

/// How many spaces `text` begins with.
pub(crate) fn indent(text: &[u8]) -> usize {
    text.iter().take_while(|b| **b == b' ').count()
}

/// `text` as a string of at most `cap` bytes and a marker; bytes that are no UTF-8 become U+FFFD.
pub(crate) fn lossy(text: &[u8], cap: usize) -> String {
    let mut out = String::from_utf8_lossy(text.before(cap)).into_owned();
    if text.len() > cap {
        // The cut may have split a character.
        while out.ends_with(char::REPLACEMENT_CHARACTER) {
            out.pop();
        }
        out.push('…');
    }
    out
}

/// Copies `text` without its ANSI escape sequences (ECMA-48 CSI and OSC) into `out`.
pub(crate) fn strip_ansi(text: &[u8], out: &mut Vec<u8>) {
    out.clear();
    let mut rest = text;
    while let Some(at) = memchr(0x1b, rest) {
        out.extend_from_slice(rest.before(at));
        let body = rest.after(at + 2);
        rest = match rest.get(at + 1) {
            Some(b'[') => {
                let parameters = body.iter().take_while(|b| matches!(b, 0x20..=0x3f)).count();
                body.after(parameters + 1)
            }
            Some(b']') => match body.iter().position(|b| matches!(b, 0x07 | 0x1b)) {
                Some(end) if body.get(end) == Some(&0x1b) => body.after(end + 2),
                Some(end) => body.after(end + 1),
                None => body,
            },
            _ => body,
        };
    }
    out.extend_from_slice(rest);
}

/// The label that a launcher put before a line: how many bytes it takes, and the label in it.
///
/// - `[rank0]: `: `PyTorch`'s own exception hook in a distributed job (`torch/distributed/c10d_logger.py`);
/// - `[default1]:`, `[trainer0]:`: torchrun's `--tee`, role and rank
///   (`torch/distributed/elastic/multiprocessing/tail_log.py`); both may stand on one line;
/// - `(RayWorker pid=5304) `, `(RayWorker pid=5304, ip=10.0.0.1) `: Ray's driver log.
pub(crate) fn label(line: &[u8]) -> usize {
    let mut taken = 0;
    loop {
        let next = match line.get(taken) {
            // glog writes the rank before each entry but not before the entry's further lines: no label of the stream.
            Some(b'[') if glog_rank(line.after(taken)).is_some() => 0,
            Some(b'[') => bracket_label(line.after(taken)),
            Some(b'(') => ray_label(line.after(taken)),
            _ => 0,
        };
        if next == 0 {
            return taken;
        }
        taken += next;
    }
}

/// The rank in a log entry of `PyTorch`'s C++ side: `[rank1]:[E1130 12:00:00…`.
pub(crate) fn glog_rank(line: &[u8]) -> Option<&[u8]> {
    let (rank, rest) = split_once(line.before(64), b"]:[")?;
    let rank = rank.strip_prefix(b"[").filter(|rank| rank.starts_with(b"rank"))?;
    is_glog(rest).then_some(rank)
}

/// `W1130 12:00:00…`
pub(crate) fn is_glog(text: &[u8]) -> bool {
    matches!(text.first(), Some(b'I' | b'W' | b'E' | b'F' | b'D'))
        && text.between(1, 5).iter().all(u8::is_ascii_digit)
        && text.get(5) == Some(&b' ')
        && text.get(6).is_some_and(u8::is_ascii_digit)
}

fn bracket_label(text: &[u8]) -> usize {
    let name = text.after(1);
    let length =
        name.iter().take(64).take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.')).count();
    let (name, rest) = (name.before(length), name.after(length));
    let labelled = name.first().is_some_and(u8::is_ascii_alphabetic)
        && name.last().is_some_and(u8::is_ascii_digit)
        && rest.starts_with(b"]:");
    if !labelled {
        return 0;
    }
    // PyTorch's hook prints a space after its label, torchrun prints none.
    let space = usize::from(name.starts_with(b"rank") && rest.get(2) == Some(&b' '));
    length + 3 + space
}

fn ray_label(text: &[u8]) -> usize {
    let Some(end) = memchr(b')', text.before(160)) else { return 0 };
    let labelled = split_once(text.before(end), b" pid=").is_some_and(|(name, rest)| {
        name.len() > 1 && leading_number(rest).is_some_and(|(_, rest)| rest.is_empty() || rest.starts_with(b", ip="))
    });
    if labelled { end + 1 + usize::from(text.get(end + 1) == Some(&b' ')) } else { 0 }
}

/// The label's text without its brackets: `rank0`, `default0/rank0`, `RayWorker pid=5304`.
pub(crate) fn label_text(label: &[u8]) -> String {
    let text = String::from_utf8_lossy(label);
    let parts: Vec<&str> = text
        .split(['[', ']', '(', ')'])
        .map(|part| part.trim_matches([':', ' ']))
        .filter(|part| !part.is_empty())
        .collect();
    parts.join("/")
}

/// Text that keeps its first and last bytes when it grows past its cap.
#[derive(Debug, Default)]
pub(crate) struct Capped {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

impl Capped {
    /// Half of the 16 KiB that a message may have.
    const HALF: usize = 8 * 1024;

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let (head, rest) = bytes.split_at(bytes.len().min(Self::HALF - self.head.len()));
        self.head.extend_from_slice(head);
        let rest = rest.after(rest.len().saturating_sub(Self::HALF));
        let excess = (self.tail.len() + rest.len()).saturating_sub(Self::HALF);
        self.tail.drain(..excess.min(self.tail.len()));
        self.tail.extend(rest);
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn ends_with(&self, end: &[u8]) -> bool {
        let length = self.head.len() + self.tail.len();
        length >= end.len() && self.head.iter().chain(&self.tail).skip(length - end.len()).eq(end)
    }

    pub(crate) fn into_string(mut self) -> String {
        let omitted = self.total - (self.head.len() + self.tail.len()) as u64;
        if omitted == 0 {
            self.head.extend(self.tail);
            return String::from_utf8_lossy(&self.head).into_owned();
        }
        let tail: Vec<u8> = self.tail.into();
        format!(
            "{}\n[… {omitted} bytes omitted …]\n{}",
            String::from_utf8_lossy(&self.head),
            String::from_utf8_lossy(&tail)
        )
    }
}
