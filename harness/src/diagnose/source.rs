//! The user's source: the lines around a place, and where the names on it got their values. Pure: the text comes from a
//! function.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;

use super::model::{Origin, SourceLine};

/// Reads a file of the user's; `None` where that cannot be done.
pub type ReadSource<'a> = dyn Fn(&str) -> Option<String> + Sync + 'a;

/// Lines before and after the marked one.
const AROUND: usize = 2;
/// A longer line is cut.
const WIDTH: usize = 200;
/// Lines of one statement that are looked at.
const STATEMENT: usize = 12;
/// Lines that are listed for a name.
const EACH: usize = 3;
/// Names that are looked for.
const NAMES: usize = 6;

/// Five lines of a file, the third of them marked.
pub fn frame(text: &str, line: u32) -> Vec<SourceLine> {
    let Some(at) = usize::try_from(line).ok().and_then(|line| line.checked_sub(1)) else { return Vec::new() };
    let lines: Vec<&str> = text.lines().collect();
    if at >= lines.len() {
        return Vec::new();
    }
    let start = at.saturating_sub(AROUND);
    let shown = lines.iter().enumerate().skip(start).take(at + AROUND + 1 - start);
    shown
        .map(|(n, text)| SourceLine {
            line: u32::try_from(n + 1).unwrap_or(u32::MAX),
            text: cut(text.trim_end()),
            marked: n == at,
        })
        .collect()
}

/// The text of one line.
pub fn line_of(text: &str, line: u32) -> Option<String> {
    let at = usize::try_from(line).ok()?.checked_sub(1)?;
    text.lines().nth(at).map(|line| cut(line.trim()))
}

fn cut(text: &str) -> String {
    if text.chars().count() <= WIDTH { text.to_string() } else { text.chars().take(WIDTH - 1).chain(['…']).collect() }
}

/// The lines of this file that give a value to a name which is used on `line`: assignments, also of elements, calls
/// of methods that write in place, loops. It is what the text shows, not what was executed: the ones before the line
/// come first, the nearest first.
pub fn origins(file: &str, text: &str, line: u32) -> Vec<Origin> {
    let Some(at) = usize::try_from(line).ok().and_then(|line| line.checked_sub(1)) else { return Vec::new() };
    let lines: Vec<&str> = text.lines().collect();
    let statement = statement(&lines, at);
    let mut found = Vec::new();
    for name in names(&statement).into_iter().take(NAMES) {
        let Some(writes) = writes(&name) else { continue };
        let mut places: Vec<usize> = (0..lines.len())
            .filter(|n| *n != at && !is_import(lines[*n]) && writes.is_match(code(lines[*n])))
            .collect();
        places.sort_by_key(|n| (*n > at, n.abs_diff(at)));
        found.extend(places.into_iter().take(EACH).map(|n| Origin {
            name: name.clone(),
            file: file.into(),
            line: u32::try_from(n + 1).unwrap_or(u32::MAX),
            text: cut(lines[n].trim()),
        }));
    }
    found
}

/// The text of the statement that has this line: until its brackets are closed.
fn statement(lines: &[&str], at: usize) -> String {
    let mut text = String::new();
    let mut depth = 0i32;
    for line in lines.iter().skip(at).take(STATEMENT) {
        let line = code(line);
        for c in line.chars() {
            match c {
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => depth -= 1,
                _ => {}
            }
        }
        text.push_str(line);
        text.push(' ');
        if depth <= 0 {
            break;
        }
    }
    text
}

/// A module is no value.
fn is_import(line: &str) -> bool {
    line.trim_start().starts_with("import ") || line.trim_start().starts_with("from ")
}

/// A line without its comment. A `#` in a string ends it too early, which loses a name and invents none.
fn code(line: &str) -> &str {
    line.split('#').next().unwrap_or(line)
}

/// The names whose values are used, in order: not those that stand behind a dot, nor what the statement itself assigns.
/// One that is called may be a module: `emb(ids)` depends on how large `emb` was made.
fn names(statement: &str) -> Vec<String> {
    static NAME: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r#"'[^']*'|"[^"]*"|(\.\s*)?\b([A-Za-z_]\w*)\b\s*(\(|==|=|\.)?"#).ok());
    const WORDS: [&str; 32] = [
        "and", "as", "assert", "async", "await", "def", "del", "device", "dim", "elif", "else", "except", "False",
        "for", "from", "if", "import", "in", "is", "lambda", "None", "not", "or", "return", "self", "super", "torch",
        "True", "while", "with", "yield", "F",
    ];
    let Some(pattern) = NAME.as_ref() else { return Vec::new() };
    let mut seen = BTreeSet::new();
    let mut names = Vec::new();
    for found in pattern.captures_iter(statement) {
        let Some(name) = found.get(2) else { continue };
        let behind_dot = found.get(1).is_some();
        let after = found.get(3).map_or("", |m| m.as_str());
        if behind_dot || after == "=" || WORDS.contains(&name.as_str()) {
            continue;
        }
        if seen.insert(name.as_str()) {
            names.push(name.as_str().to_string());
        }
    }
    names
}

/// What gives a value to `name`.
fn writes(name: &str) -> Option<Regex> {
    let name = regex::escape(name);
    Regex::new(&format!(
        r"^\s*(?:[\w.\[\], *()]*,\s*)?\b{name}\b(?:\[[^=]*\])?(?:\s*,[\w\s.,\[\]*()]*)?\s*(?::[^=]+)?(?:[-+*/|&@%]|//|<<|>>)?=[^=]|\bfor\b[^:]*\b{name}\b[^:]*\bin\b|\b{name}\b(?:\[[^\]]*\])?\.\w+_\(|\bas\s+{name}\b"
    ))
    .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM: &str = "\
import torch as raw
raw = torch.tensor([1, 2, 0])
net = make(8)
x = torch.randn(12, 8)
labels = raw - 1
labels[3] = 9
loss = F.cross_entropy(net(x), labels)
loss.backward()
labels.add_(1)
for x, y in pairs:
    pass
";

    #[test]
    fn a_frame_is_five_lines_and_fewer_at_the_ends() {
        let shown = |line| {
            let frame = frame(PROGRAM, line);
            (frame.first().map_or(0, |l| l.line), frame.len(), frame.iter().position(|l| l.marked))
        };
        assert_eq!(shown(7), (5, 5, Some(2)));
        assert_eq!(shown(1), (1, 3, Some(0)));
        assert_eq!(shown(11), (9, 3, Some(2)));
        assert_eq!(shown(12), (0, 0, None));
        assert_eq!(shown(0), (0, 0, None));
    }

    #[test]
    fn where_names_get_their_values() {
        let found = origins("t.py", PROGRAM, 7);
        let lines = |name: &str| -> Vec<u32> { found.iter().filter(|o| o.name == name).map(|o| o.line).collect() };
        assert_eq!(lines("labels"), [6, 5, 9]);
        assert_eq!(lines("x"), [4, 10]);
        assert_eq!(lines("net"), [3]);
        assert!(lines("loss").is_empty() && lines("F").is_empty());
        assert!(origins("t.py", PROGRAM, 99).is_empty());
    }

    #[test]
    fn a_statement_goes_on_until_its_brackets_close() {
        let text = "ids = read()\nh = emb(\n    ids,  # (the ids\n    'ids',\n)\nids = 2\n";
        let found = origins("t.py", text, 2);
        assert_eq!(found.iter().map(|o| (o.name.as_str(), o.line)).collect::<Vec<_>>(), [("ids", 1), ("ids", 6)]);
        assert_eq!(found[0].text, "ids = read()");
    }

    #[test]
    fn the_name_of_an_argument_is_no_name_of_a_value() {
        assert_eq!(names("y = launch('k', word=bad, n=50_000, ok=a == b)"), ["launch", "bad", "a", "b"]);
    }

    #[test]
    fn what_looks_like_a_write_and_is_none() {
        let pattern = writes("slot").unwrap();
        for line in
            ["slot = 1", "slot[4:] = SLOTS * 50", "a, slot = f()", "slot, a = f()", "slot += 1", "slot: int = 3"]
        {
            assert!(pattern.is_match(line), "{line}");
        }
        for line in ["slot == 1", "f(slot=1)", "slots = 1", "print(slot)", "if slot[1] == 2:", "x = slot"] {
            assert!(!pattern.is_match(line), "{line}");
        }
    }
}
