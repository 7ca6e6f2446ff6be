//! Changes single values of a YAML file, and no other byte of it: comments, order and notation stay.
//!
//! The parser that also reads the file says where a value stands.

use std::io::{self, Write as _};
use std::ops::Range;
use std::path::Path;

use granit_parser::{Event, Parser, ScalarStyle};

use super::ImageError;

/// A change of one value, which is known by the keys that lead to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Edit {
    /// The whole value: a scalar, also an empty one
    Set { path: Vec<String>, value: String },
    /// One word of it becomes another
    Word { path: Vec<String>, from: String, to: String },
    /// A new key of the outermost mapping, behind another one
    Add { behind: String, key: String, value: String },
}

/// A scalar that is the value of a key.
struct Node {
    path: Vec<String>,
    /// Where its key ends
    key_end: usize,
    at: Range<usize>,
    style: ScalarStyle,
}

/// Applies changes to a text. The error is a sentence.
pub(super) fn apply(text: &str, edits: &[Edit]) -> Result<String, String> {
    let nodes = nodes(text)?;
    let mut pieces: Vec<(Range<usize>, String)> = Vec::new();
    for edit in edits {
        pieces.push(piece(text, &nodes, edit)?);
    }
    pieces.sort_by_key(|(at, _)| at.start);
    if pieces.windows(2).any(|pair| pair[0].0.end > pair[1].0.start) {
        return Err("two changes of the same value".into());
    }
    let mut text = text.to_string();
    for (at, new) in pieces.into_iter().rev() {
        text.replace_range(at, &new);
    }
    Ok(text)
}

/// What is replaced by what.
fn piece(text: &str, nodes: &[Node], edit: &Edit) -> Result<(Range<usize>, String), String> {
    let node = |path: &[String]| {
        nodes.iter().find(|node| node.path == path).ok_or_else(|| format!("there is no value at {}", path.join(".")))
    };
    match edit {
        Edit::Set { path, value } => {
            let node = node(path)?;
            if node.at.is_empty() {
                // `key:` without a value: it goes behind the colon.
                let colon = text[node.key_end..].find(|c: char| !c.is_whitespace()).map(|at| node.key_end + at);
                return match colon.filter(|at| text[*at..].starts_with(':')) {
                    Some(colon) => Ok((colon + 1..colon + 1, format!(" {}", scalar(value, ScalarStyle::Plain)))),
                    None => Err(format!("{} has no colon: write `null` for its value", path.join("."))),
                };
            }
            Ok((node.at.clone(), scalar(value, node.style)))
        }
        Edit::Word { path, from, to } => {
            let node = node(path)?;
            let value = &text[node.at.clone()];
            let is_word = |c: char| c.is_ascii_alphanumeric() || "+-.:~=_".contains(c);
            let whole = |at: usize| !value[..at].ends_with(is_word) && !value[at + from.len()..].starts_with(is_word);
            match value.match_indices(from.as_str()).map(|(at, _)| at).find(|at| whole(*at)) {
                Some(at) => Ok((node.at.start + at..node.at.start + at + from.len(), to.clone())),
                None => Err(format!("{} does not hold the word `{from}`", path.join("."))),
            }
        }
        Edit::Add { behind, key, value } => {
            let node = node(std::slice::from_ref(behind))?;
            let end = text[node.at.end..].find('\n').map_or(text.len(), |at| node.at.end + at);
            let start = text[..node.key_end].rfind('\n').map_or(0, |at| at + 1);
            if !text[start..].starts_with(behind.as_str()) {
                return Err(format!("`{behind}` does not begin its line: `{key}: {value}` cannot be put behind it"));
            }
            // Before the end of the line, of whichever kind it is.
            let (end, newline) = if text[..end].ends_with('\r') { (end - 1, "\r\n") } else { (end, "\n") };
            Ok((end..end, format!("{newline}{key}: {}", scalar(value, ScalarStyle::Plain))))
        }
    }
}

/// A value as it is written: quoted as the old one, or where a plain one could be read as something else than text.
fn scalar(value: &str, style: ScalarStyle) -> String {
    let numeric = |b: u8| b.is_ascii_digit() || b"+.:_eExXoO".contains(&b);
    let date = value.len() >= 10 && value.bytes().take(10).all(|b| b.is_ascii_digit() || b == b'-');
    let text = !value.bytes().all(numeric) && value.parse::<f64>().is_err() && !date && !value.ends_with(':');
    match style {
        ScalarStyle::SingleQuoted => format!("'{value}'"),
        ScalarStyle::DoubleQuoted => format!("\"{value}\""),
        _ if text => value.into(),
        _ => format!("'{value}'"),
    }
}

enum Frame {
    /// The key whose value comes next, and where it ends
    Mapping(Option<(String, usize)>),
    Sequence,
}

/// All scalars that are reached through mappings alone.
fn nodes(text: &str) -> Result<Vec<Node>, String> {
    let mut nodes = Vec::new();
    let mut frames: Vec<Frame> = Vec::new();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|e| e.to_string())?;
        let at = span.byte_range().ok_or("the parser does not say where a value stands")?;
        match event {
            Event::Scalar(value, style, ..) => match frames.last_mut() {
                Some(Frame::Mapping(key @ None)) => *key = Some((value.into_owned(), at.end)),
                Some(Frame::Mapping(Some(_))) => {
                    if let Some(path) = path(&frames) {
                        let key_end = match frames.last() {
                            Some(Frame::Mapping(Some((_, end)))) => *end,
                            _ => at.start,
                        };
                        nodes.push(Node { path, key_end, at, style });
                    }
                    value_done(&mut frames);
                }
                Some(Frame::Sequence) | None => {}
            },
            Event::MappingStart(..) | Event::SequenceStart(..) => {
                if matches!(frames.last(), Some(Frame::Mapping(None))) {
                    return Err("a key that is no plain word".into());
                }
                let mapping = matches!(event, Event::MappingStart(..));
                frames.push(if mapping { Frame::Mapping(None) } else { Frame::Sequence });
            }
            Event::MappingEnd | Event::SequenceEnd => {
                frames.pop();
                value_done(&mut frames);
            }
            Event::Alias(_) => value_done(&mut frames),
            _ => {}
        }
    }
    Ok(nodes)
}

fn value_done(frames: &mut [Frame]) {
    if let Some(Frame::Mapping(key)) = frames.last_mut() {
        *key = None;
    }
}

/// The keys that lead here, unless a sequence lies on the way.
fn path(frames: &[Frame]) -> Option<Vec<String>> {
    let key = |frame: &Frame| match frame {
        Frame::Mapping(Some((key, _))) => Some(key.clone()),
        _ => None,
    };
    frames.iter().map(key).collect()
}

/// Writes a file whole or not at all. It keeps its permissions.
pub(super) fn write_whole(path: &Path, text: &str) -> Result<(), ImageError> {
    let write = || -> io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(text.as_bytes())?;
        let permissions = match std::fs::metadata(path) {
            Ok(old) => old.permissions(),
            Err(_) => std::os::unix::fs::PermissionsExt::from_mode(0o644),
        };
        file.as_file().set_permissions(permissions)?;
        file.persist(path).map(drop).map_err(|e| e.error)
    };
    write().map_err(|source| ImageError::Io { path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn set(path: &[&str], value: &str) -> Edit {
        Edit::Set { path: path.iter().map(ToString::to_string).collect(), value: value.into() }
    }

    #[test]
    fn only_the_value_changes() {
        let text = "# head\nid: a   # why\nbase: debian:trixie # the base\nargs:\n  # inside\n  P: >-\n    cmake=1 patch\n    patch-extra\n\
                    packages:\n  gdb: '1'\n  strace: # later\n  lld: ~\n  { } : x\n";
        assert!(apply(text, &[]).is_err(), "a key that is a mapping");
        let text = text.replace("  { } : x\n", "");
        let edits = [
            set(&["base"], "debian:trixie@sha256:00"),
            set(&["packages", "gdb"], "16.3-1"),
            set(&["packages", "strace"], "6.13-1"),
            set(&["packages", "lld"], "1:19.0-63+b1"),
            Edit::Word { path: vec!["args".into(), "P".into()], from: "patch".into(), to: "patch=2.8-2".into() },
            Edit::Add { behind: "base".into(), key: "snapshot".into(), value: "20260101T000000Z".into() },
        ];
        assert_eq!(
            apply(&text, &edits).unwrap(),
            "# head\nid: a   # why\nbase: debian:trixie@sha256:00 # the base\nsnapshot: 20260101T000000Z\nargs:\n  # inside\n  P: >-\n    cmake=1 patch=2.8-2\n    patch-extra\n\
             packages:\n  gdb: '16.3-1'\n  strace: 6.13-1 # later\n  lld: 1:19.0-63+b1\n"
        );
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        let text = "base: x\nlist: [a]\nflow: { key, other: 1 }\n";
        for edit in [
            set(&["none"], "1"),
            set(&["list"], "1"),
            set(&["flow", "key"], "1"),
            Edit::Word { path: vec!["base".into()], from: "y".into(), to: "z".into() },
            Edit::Add { behind: "none".into(), key: "k".into(), value: "v".into() },
        ] {
            assert!(apply(text, std::slice::from_ref(&edit)).is_err(), "{edit:?}");
        }
        assert!(
            apply("{ base: x }", &[Edit::Add { behind: "base".into(), key: "k".into(), value: "v".into() }]).is_err()
        );
        assert!(apply(text, &[set(&["base"], "1"), set(&["base"], "2")]).is_err());
    }

    #[test]
    fn a_file_keeps_its_permissions() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        write_whole(&path, "1").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        write_whole(&path, "2").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "2");
    }

    /// A value as people write it, and the comment behind it.
    fn written() -> impl Strategy<Value = (String, String)> {
        let value = prop_oneof![
            Just(String::new()),
            Just(" null".into()),
            Just(" ~".into()),
            "[0-9]{1,2}\\.[0-9]{1,2}-[0-9]".prop_map(|v| format!(" {v}")),
            "[0-9]:[0-9]{1,3}".prop_map(|v| format!(" '{v}'")),
            "[0-9]{1,3}".prop_map(|v| format!("   \"{v}\"")),
        ];
        (value, prop_oneof![Just(String::new()), "  # [a-z:'\" ]{0,12}"])
    }

    fn version() -> impl Strategy<Value = String> {
        "([0-9]:)?[0-9][0-9a-z+~.]{0,8}(-[0-9]{1,2}(\\+b[0-9])?)?"
    }

    #[derive(serde::Deserialize)]
    struct Read {
        packages: BTreeMap<String, Option<String>>,
    }

    proptest! {
        /// Any file of this form, any versions: what is read afterwards is what was set, and all else stays as it was.
        #[test]
        fn what_is_set_is_read_and_all_else_stays(
            rows in prop::collection::btree_map("[a-z][a-z0-9.+-]{0,6}", (written(), version(), any::<bool>()), 1..8),
            flow in any::<bool>(),
            gaps in prop::collection::vec(prop_oneof![Just(""), Just("\n"), Just("  # a: comment\n")], 8),
        ) {
            let rows: Vec<_> = rows.into_iter().filter(|(name, _)| !["y", "n", "null", "true", "false"].contains(&name.as_str())).collect();
            prop_assume!(!rows.is_empty());
            let body: String = if flow {
                let cells = rows.iter().map(|(name, ((value, _), ..))| format!("{name}:{}", if value.is_empty() { " null" } else { value }));
                format!("packages: {{ {} }}\n", cells.collect::<Vec<_>>().join(", "))
            } else {
                let lines = rows.iter().zip(&gaps).map(|((name, ((value, comment), ..)), gap)| format!("{gap}  {name}:{value}{comment}\n"));
                format!("packages:\n{}", lines.collect::<String>())
            };
            let text = format!("# head\nbase: x  # why\n{body}last: [1, 2] # end\n");
            let chosen: BTreeMap<&str, &str> = rows.iter().filter(|(_, (_, _, set))| *set).map(|(n, (_, v, _))| (n.as_str(), v.as_str())).collect();
            let edits: Vec<Edit> = chosen.iter().map(|(name, version)| set(&["packages", name], version)).collect();
            let edited = apply(&text, &edits).unwrap();

            let before: Read = serde_yaml::from_str(&text).unwrap();
            let after: Read = serde_yaml::from_str(&edited).unwrap();
            for (name, old) in &before.packages {
                let wanted = chosen.get(name.as_str()).map(ToString::to_string).or_else(|| old.clone());
                prop_assert_eq!(&after.packages[name], &wanted, "{}", edited);
            }
            prop_assert_eq!(before.packages.len(), after.packages.len());
            prop_assert_eq!(text.lines().count(), edited.lines().count());
            for (old, new) in text.lines().zip(edited.lines()) {
                let touched = flow && old.starts_with("packages") || chosen.keys().any(|name| old.trim_start().starts_with(&format!("{name}:")));
                prop_assert!(touched || old == new, "{old:?} {new:?}");
                let comment = |line: &str| line.split_once(" #").map(|(_, comment)| comment.to_string());
                prop_assert_eq!(comment(old), comment(new));
            }
        }
    }
}
