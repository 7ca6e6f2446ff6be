//! Line tables of code objects: from the place in the bytecode to the line.
//!
//! The formats are those of CPython's `Objects/lnotab_notes.txt` (3.10) and `Objects/locations.md` (3.11 and later; now
//! `InternalDocs/code_objects.md`). Both readers take any bytes.

/// The format of a line table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineTable {
    /// PEP 626, as 3.10 has it: pairs of a length in bytes and a difference of lines.
    Pairs,
    /// Locations, 3.11 and later: an entry of one or more bytes for one to eight instructions.
    Locations,
}

/// The line of the instruction at this byte offset, as `PyCode_Addr2Line` gives it: `first_line` before the first
/// instruction; `None` where the compiler gave none, and behind the end.
pub fn line(format: LineTable, table: &[u8], first_line: i32, offset: i32) -> Option<u32> {
    let Ok(offset) = usize::try_from(offset) else { return u32::try_from(first_line).ok() };
    let (_, line) = lines(format, table, first_line).find(|(end, _)| offset < *end)?;
    line
}

/// All lines of a table: the offset in bytes where each ends (the next one begins there), and the line, if there is one.
pub fn lines(format: LineTable, table: &[u8], first_line: i32) -> impl Iterator<Item = (usize, Option<u32>)> {
    let (mut line, mut end) = (first_line, 0_usize);
    let mut rest = table;
    std::iter::from_fn(move || {
        let (entry, next) = match format {
            LineTable::Pairs => pair(rest)?,
            LineTable::Locations => location(rest)?,
        };
        rest = next;
        end = end.saturating_add(entry.bytes);
        line = line.wrapping_add(entry.difference.unwrap_or(0));
        Some((end, entry.difference.and_then(|_| u32::try_from(line).ok())))
    })
}

/// A range of bytecode.
struct Entry {
    /// Its length.
    bytes: usize,
    /// How much further down its line is than the one before; `None` where it has no line.
    difference: Option<i32>,
}

/// 3.10: a length, and a signed difference; -128 is a range without a line.
fn pair(table: &[u8]) -> Option<(Entry, &[u8])> {
    let ([bytes, difference], rest) = table.split_first_chunk()?;
    let difference = difference.cast_signed();
    let difference = (difference != i8::MIN).then_some(i32::from(difference));
    Some((Entry { bytes: usize::from(*bytes), difference }, rest))
}

/// 3.11 and later: the first byte of an entry has its high bit set, then 4 bits of code and 3 of length.
fn location(table: &[u8]) -> Option<(Entry, &[u8])> {
    const WORD: usize = 2;
    let (head, tail) = table.split_first()?;
    let payload = tail.iter().position(|b| b & 0x80 != 0).unwrap_or(tail.len());
    let (payload, rest) = tail.split_at(payload);
    let difference = match head >> 3 & 0xf {
        // The same line, with columns.
        0..=10 => Some(0),
        11 => Some(1),
        12 => Some(2),
        // A difference of any size, without and with columns.
        13 | 14 => Some(signed_varint(payload)),
        _ => None,
    };
    Some((Entry { bytes: WORD * (usize::from(head & 7) + 1), difference }, rest))
}

/// 6 bits a byte, the lowest first; bit 6 says that more follow; the lowest bit of the whole is the sign.
fn signed_varint(bytes: &[u8]) -> i32 {
    let mut value = 0_u32;
    for (n, byte) in bytes.iter().enumerate().take(6) {
        value |= u32::from(byte & 0x3f) << (6 * n);
        if byte & 0x40 == 0 {
            break;
        }
    }
    let magnitude = (value >> 1).cast_signed();
    if value & 1 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pairs() {
        // The example of lnotab_notes.txt.
        let table = [6, 1, 2, 1, 4, 4, 2, 0x80, 2, 4];
        let lines: Vec<_> = (-2..18).step_by(2).map(|at| line(LineTable::Pairs, &table, 0, at)).collect();
        let expected = [Some(0), Some(1), Some(1), Some(1), Some(2), Some(6), Some(6), None, Some(10), None].map(|l| l);
        assert_eq!(lines, expected);
    }

    #[test]
    fn locations() {
        // RESUME on the first line; a short entry; one line further; two with a long entry of -3; none; no columns, +64.
        let table = [0x80, 0, 0, 0x88, 0, 0x80 | 11 << 3, 1, 2, 0x80 | 14 << 3 | 1, 0x07, 0, 1, 1, 0xf8, 0xe8, 0x40, 2];
        let lines: Vec<_> = (-2..16).step_by(2).map(|at| line(LineTable::Locations, &table, 10, at)).collect();
        assert_eq!(lines, [Some(10), Some(10), Some(10), Some(11), Some(8), Some(8), None, Some(72), None]);
    }

    proptest! {
        #[test]
        fn any_bytes(table: Vec<u8>, first in any::<i32>(), offset in any::<i32>()) {
            for format in [LineTable::Pairs, LineTable::Locations] {
                let _ = line(format, &table, first, offset);
                let _ = line(format, &table, first, offset & 0x3f);
            }
        }
    }
}
