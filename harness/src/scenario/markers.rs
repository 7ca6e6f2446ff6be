//! Truth lines are marked in the program, not counted by hand: `# FAULT`, `# ROOT`, `# CALLER` in a trailing
//! comment (`// FAULT` in CUDA C++). One line may carry several.

/// What a marker says of its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Marker {
    /// The line whose kernel or operation faults.
    Fault,
    /// The line that made the bad value.
    Root,
    /// An outer frame of the true call chain.
    Caller,
}

impl Marker {
    /// The word in the comment.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Fault => "FAULT",
            Self::Root => "ROOT",
            Self::Caller => "CALLER",
        }
    }
}

/// A marker with where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) marker: Marker,
    /// 1-based.
    pub(crate) line: u32,
    /// Byte range of the marker's word in the text.
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// All markers of a program, in the order of the text.
pub(crate) fn find(source: &str) -> Vec<Found> {
    let mut found = Vec::new();
    let mut offset = 0;
    for (number, line) in (1u32..).zip(source.split_inclusive('\n')) {
        for marker in [Marker::Fault, Marker::Root, Marker::Caller] {
            for (start, _) in line.match_indices(marker.word()) {
                let end = start + marker.word().len();
                let opens = line[..start].trim_end_matches(' ');
                let ends_word = !line[end..].starts_with(|c: char| c.is_alphanumeric() || c == '_');
                if (opens.ends_with('#') || opens.ends_with("//")) && ends_word {
                    found.push(Found { marker, line: number, start: offset + start, end: offset + end });
                }
            }
        }
        offset += line.len();
    }
    found.sort_by_key(|f| f.start);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, expected: &[(Marker, u32)]) {
        let found: Vec<_> = find(source).iter().map(|f| (f.marker, f.line)).collect();
        assert_eq!(found, expected, "{source}");
        for f in find(source) {
            assert_eq!(&source[f.start..f.end], f.marker.word());
        }
    }

    #[test]
    fn markers_are_words_of_a_comment() {
        check("a\nb  # FAULT\n", &[(Marker::Fault, 2)]);
        check("x = 1  # ROOT: the remap\ny  #FAULT", &[(Marker::Root, 1), (Marker::Fault, 2)]);
        check("f()  # FAULT # ROOT\n", &[(Marker::Fault, 1), (Marker::Root, 1)]);
        check("k<<<1,1>>>(p);  // FAULT\n", &[(Marker::Fault, 1)]);
        check("# DEFAULTS and ROOTS\nFAULT = 1\n", &[]);
        check("é  # CALLER\r\n", &[(Marker::Caller, 1)]);
    }
}
