//! Small total readers of the text that tools print.

/// Bytes of a line that are looked at; a kernel's C++ signature is long, a runaway line is longer.
const LINE_CAP: usize = 8 << 10;

/// The lines of a text with their offsets, without terminators. Nothing is copied.
pub(super) fn lines(bytes: &[u8]) -> impl Iterator<Item = (&[u8], u64)> {
    let mut start = 0u64;
    bytes.split(|b| *b == b'\n').map(move |line| {
        let at = start;
        start += line.len() as u64 + 1;
        (line.strip_suffix(b"\r").unwrap_or(line), at)
    })
}

/// A line as a string; bytes that are no UTF-8 become U+FFFD, and what is beyond the cap is left out.
pub(super) fn string(line: &[u8]) -> String {
    String::from_utf8_lossy(line.get(..LINE_CAP).unwrap_or(line)).into_owned()
}

/// The index behind `name`: `thread (17,0,0)`.
pub(super) fn index(text: &str, name: &str) -> Option<[u32; 3]> {
    let rest = text.split(&format!("{name} (")).nth(1)?;
    let mut parts = rest.split_once(')')?.0.split(',').map(|n| n.trim().parse().ok());
    let index = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(index)
}

/// `(17,0,0)`, as CUDA's tools print it.
pub(super) fn shown([x, y, z]: [u32; 3]) -> String {
    format!("({x},{y},{z})")
}

/// `FILE:LINE`
pub(super) fn file_line(text: &str) -> Option<(&str, u32)> {
    let (file, line) = text.trim().rsplit_once(':')?;
    Some((file, line.parse().ok()?)).filter(|(file, line)| !file.is_empty() && *line > 0)
}

/// The number behind `name`: `ERROR SUMMARY: 5890 errors`.
pub(super) fn number_after(text: &str, name: &str) -> Option<u64> {
    let rest = text.split_once(name)?.1.trim_start();
    rest.get(..rest.bytes().take_while(u8::is_ascii_digit).count())?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        assert_eq!(index("by thread (17,0,0) in block (112,0,1)", "thread"), Some([17, 0, 0]));
        assert_eq!(index("by thread (17,0,0) in block (112,0,1)", "block"), Some([112, 0, 1]));
        assert_eq!(index("thread (17,0)", "thread"), None);
        assert_eq!(file_line("/a/pack_rows.cu:7"), Some(("/a/pack_rows.cu", 7)));
        assert_eq!(file_line(":7"), None);
        assert_eq!(number_after("ERROR SUMMARY: 5890 errors", "SUMMARY:"), Some(5890));
        let lines: Vec<_> = lines(b"a\r\n\nb").collect();
        assert_eq!(lines, [(&b"a"[..], 0), (b"", 3), (b"b", 4)]);
    }
}
