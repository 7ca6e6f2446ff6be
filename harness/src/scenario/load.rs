//! Reads `scenario.yaml`. Every complaint names the file, the line, the key and the mend.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use miette::{Diagnostic, NamedSource, SourceSpan};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_yaml::{Location, Spanned};
use thiserror::Error;

use super::markers::{self, Found, Marker};
use super::{CpuBehaviour, ErrorPattern, Expectation, FaultClass, Pattern, Place, Program, Scenario, Truth};
use crate::case::{Claim, Mode};
use crate::host::Need;
use crate::tool;

/// The file's name in each scenario's folder.
const FILE: &str = "scenario.yaml";

/// `scenario.yaml` as it is written. Unknown keys are errors.
///
/// ```yaml
/// id: label-oob                 # the folder's name
/// title: A class label equal to the number of classes
/// story: |                      # the symptom as an engineer meets it
///   …
/// class: device-assert          # see FaultClass
/// needs: [gpu, torch]           # see host::Need
/// program: train.py             # with one `# FAULT` and one `# ROOT` marker, and any number of `# CALLER`
/// args: []
/// twin: train_fixed.py          # the fixed program, without markers
/// truth:
///   kernel: nll_loss_forward    # regular expression on the faulting kernel's name; left out where no kernel faults
///   error:                      # left out where the program goes on, with wrong results
///     type: torch\.AcceleratorError        # regular expression: the whole type name
///     text: device-side assert triggered   # regular expression: occurs in the message
/// cpu:                          # left out where the program does nothing on the CPU
///   error: { type: IndexError, text: out of bounds }
///   expect: { bare: exact }
/// expect:                       # per tool and mode; every twin is expected to be clean
///   bare: { async: wrong-place, sync: exact }
/// hints: [ …, …, … ]            # from vague to nearly the answer
/// fix: |
///   …
/// ```
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioFile {
    id: Spanned<String>,
    title: Spanned<String>,
    story: Spanned<String>,
    class: FaultClass,
    needs: Vec<Spanned<String>>,
    program: Spanned<String>,
    #[serde(default)]
    args: Vec<String>,
    twin: Spanned<String>,
    truth: TruthFile,
    cpu: Option<CpuFile>,
    expect: Table<ByMode>,
    #[serde(default)]
    hints: Vec<String>,
    fix: Spanned<String>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct TruthFile {
    kernel: Option<Spanned<String>>,
    error: Option<ErrorFile>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ErrorFile {
    r#type: Spanned<String>,
    text: Spanned<String>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct CpuFile {
    error: Option<ErrorFile>,
    expect: Table<Spanned<Claim>>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ByMode {
    r#async: Option<Spanned<Claim>>,
    sync: Option<Spanned<Claim>>,
}

/// A mapping in the file's order, each key with its place.
#[derive(Debug)]
struct Table<T>(Vec<(Spanned<String>, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Table<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Rows<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Rows<T> {
            type Value = Table<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping with tool ids as keys")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut rows = Vec::new();
                while let Some(row) = map.next_entry()? {
                    rows.push(row);
                }
                Ok(Table(rows))
            }
        }
        deserializer.deserialize_map(Rows(std::marker::PhantomData))
    }
}

/// A complaint about one place of a scenario.
#[derive(Debug, Error, Diagnostic)]
#[error("{message}")]
pub struct ScenarioError {
    message: String,
    #[help]
    mend: String,
    #[source_code]
    source_code: NamedSource<String>,
    #[label("{label}")]
    span: Option<SourceSpan>,
    label: String,
}

/// The text that complaints point into.
struct Text<'a> {
    name: &'a str,
    text: &'a str,
}

impl Text<'_> {
    fn error(
        &self,
        span: Option<SourceSpan>,
        message: impl Into<String>,
        label: &str,
        mend: impl Into<String>,
    ) -> ScenarioError {
        ScenarioError {
            message: printable(&message.into()),
            mend: printable(&mend.into()),
            source_code: NamedSource::new(self.name, without_controls(self.text)),
            span,
            label: label.to_string(),
        }
    }

    /// The byte range of a YAML location. Syntax errors carry only line and column.
    fn span(&self, at: Location) -> Option<SourceSpan> {
        let span = at.span();
        let (offset, len) = if let (Some(offset), Some(len)) = (span.byte_offset(), span.byte_len()) {
            (usize::try_from(offset).ok()?, usize::try_from(len).ok()?)
        } else {
            let line = usize::try_from(at.line()).ok()?.checked_sub(1)?;
            let column = usize::try_from(at.column()).ok()?.checked_sub(1)?;
            let before: usize = self.text.split_inclusive('\n').take(line).map(str::len).sum();
            let in_line: usize = self.text.get(before..)?.chars().take(column).map(char::len_utf8).sum();
            (before + in_line, 1)
        };
        (offset <= self.text.len()).then(|| (offset, len.min(self.text.len() - offset)).into())
    }

    /// The part of a span that is on its first line: more of it is seldom what is wrong.
    fn first_line(&self, span: SourceSpan) -> SourceSpan {
        let covered = self.text.get(span.offset()..span.offset() + span.len()).unwrap_or_default();
        (span.offset(), covered.lines().next().unwrap_or_default().len()).into()
    }

    /// Complains of the first byte that belongs to no UTF-8 text.
    fn not_utf8(name: &str, bytes: &[u8], bad: &std::str::Utf8Error) -> ScenarioError {
        let text = String::from_utf8_lossy(bytes);
        let byte = bytes.get(bad.valid_up_to()).copied().unwrap_or_default();
        // Up to there the lossy text is the file; there it has a replacement character.
        let span = (bad.valid_up_to(), char::REPLACEMENT_CHARACTER.len_utf8()).into();
        let message = format!("{name} is not UTF-8 text: it has a byte {byte:#04x}");
        Text { name, text: &text }.error(Some(span), message, "this byte", "save the file as UTF-8")
    }
}

/// A complaint quotes what it complains of, which may be anything.
fn printable(text: &str) -> String {
    text.chars().fold(String::new(), |mut out, c| {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
        out
    })
}

/// A text of the same length that is safe to show at a terminal.
fn without_controls(text: &str) -> String {
    let shown = |c: char| match c {
        '\n' | '\r' | '\t' => c,
        c if c.is_control() && c.len_utf8() == 1 => '?',
        c if c.is_control() => '·',
        c => c,
    };
    text.chars().map(shown).collect()
}

/// The ids of all scenarios below a folder: its sub-folders that hold a `scenario.yaml`, sorted.
pub fn ids(root: &Path) -> std::io::Result<Vec<String>> {
    let mut ids = Vec::new();
    for entry in std::fs::read_dir(root)? {
        let entry = entry?;
        if entry.path().join(FILE).is_file() {
            ids.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    ids.sort();
    Ok(ids)
}

/// Reads every scenario below `root`; all complaints about all of them come together.
pub fn load_all(root: &Path) -> Result<Vec<Scenario>, Vec<ScenarioError>> {
    let ids = ids(root).map_err(|e| vec![unreadable(&root.display().to_string(), &e)])?;
    let mut scenarios = Vec::new();
    let mut errors = Vec::new();
    for id in ids {
        match load(root, &id) {
            Ok(scenario) => scenarios.push(scenario),
            Err(more) => errors.extend(more),
        }
    }
    if errors.is_empty() { Ok(scenarios) } else { Err(errors) }
}

fn unreadable(path: &str, error: &std::io::Error) -> ScenarioError {
    Text { name: path, text: "" }.error(
        None,
        format!("failed to read {path}: {error}"),
        "",
        "it must be there, and you must be allowed to read it",
    )
}

/// Reads the scenario `root/id`.
pub fn load(root: &Path, id: &str) -> Result<Scenario, Vec<ScenarioError>> {
    let folder = root.join(id);
    let path = folder.join(FILE);
    // The scenario's folder as the user would write it: complaints must not depend on where the checkout is.
    let name = format!("scenarios/{id}/{FILE}");
    let bytes = std::fs::read(&path).map_err(|e| vec![unreadable(&name, &e)])?;
    let text = std::str::from_utf8(&bytes).map_err(|e| vec![Text::not_utf8(&name, &bytes, &e)])?;
    let text = Text { name: &name, text };
    if let Some(error) = control_character(&text).or_else(|| second_document(&text)) {
        return Err(vec![error]);
    }
    let file: ScenarioFile = serde_yaml::from_str(text.text).map_err(|e| vec![yaml_error(&text, &e)])?;
    Check { text, folder, id, errors: Vec::new() }.scenario(file)
}

/// The files of a folder. One that cannot be read has none: its program is complained of.
fn file_names(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|e| e.path().is_file()).filter_map(|e| e.file_name().into_string().ok()).collect()
}

/// YAML readers stop at these with words about their own grammar.
fn control_character(text: &Text<'_>) -> Option<ScenarioError> {
    let (at, c) = text.text.char_indices().find(|(_, c)| c.is_control() && !matches!(c, '\n' | '\r' | '\t'))?;
    let message = format!("a control character (U+{:04X})", u32::from(c));
    Some(text.error(Some((at, c.len_utf8()).into()), message, "here", "remove it: a scenario is plain text"))
}

/// A `---` behind the first line of content would silently end the scenario.
fn second_document(text: &Text<'_>) -> Option<ScenarioError> {
    let (mut offset, mut content) = (0, false);
    for line in text.text.split_inclusive('\n') {
        let marker = line.trim_end() == "---" || line.starts_with("--- ");
        if marker && content {
            let mend = "remove the line: a scenario is one document";
            return Some(text.error(Some((offset, 3).into()), "a second YAML document begins here", "here", mend));
        }
        content |= marker || !(line.trim().is_empty() || line.starts_with(['#', '%']));
        offset += line.len();
    }
    None
}

/// Said where nothing better is known.
const EXAMPLE: &str = "`faultlab show label-oob --yaml` prints a complete scenario";

/// A complaint of the YAML reader, in this file's terms.
fn yaml_error(text: &Text<'_>, error: &serde_yaml::Error) -> ScenarioError {
    use serde_yaml::Error as E;
    let error = error.without_snippet();
    let whole = error.location().and_then(|at| text.span(at));
    let span = whole.map(|span| text.first_line(span));
    match error {
        E::SerdeUnknownField { field, expected, .. } => {
            text.error(span, format!("unknown key `{field}`"), "not a key of this mapping", suggest(field, expected))
        }
        // A value that goes on in the next line is one that was never closed.
        E::SerdeUnknownVariant { .. } if span != whole => text.error(
            span,
            "this value does not end where it should",
            "it goes on in the next line",
            "is a closing `}`, `]` or quote missing here?",
        ),
        E::SerdeUnknownVariant { variant, expected, .. } => text.error(
            span,
            format!("unknown value `{variant}`"),
            "not one of the possible values",
            suggest(variant, expected),
        ),
        E::SerdeMissingField { field, .. } => text.error(
            span,
            format!("the key `{field}` is missing"),
            "it belongs beside this",
            format!("add `{field}: …` ({}); {EXAMPLE}", meaning(field)),
        ),
        E::DuplicateMappingKey { key, .. } => {
            let key = key.as_deref().unwrap_or("?");
            text.error(span, format!("the key `{key}` is there twice"), "the second one", "remove one of the two")
        }
        E::Eof { .. } => text.error(None, format!("there is no scenario in {}", text.name), "", EXAMPLE),
        E::Unexpected { expected: "mapping start", .. } => text.error(
            span,
            "a mapping is wanted here",
            "not a mapping",
            format!("write `key: value`, one a line and indented below its own key; {EXAMPLE}"),
        ),
        E::Unexpected { expected: "sequence start", .. } => {
            text.error(span, "a list is wanted here", "not a list", "write `[a, b]`, or `[]` for none")
        }
        E::Unexpected { expected: "string scalar", .. } => {
            text.error(span, "a text is wanted here", "not a text", EXAMPLE)
        }
        E::NullIntoString { .. } => text.error(span, "a text is wanted here", "nothing is here", EXAMPLE),
        other => {
            let message = other.to_string();
            let message = message.split(" at line ").next().unwrap_or_default();
            let mend = if message.starts_with("tab") { "indent with spaces" } else { EXAMPLE };
            text.error(span, format!("not a scenario: {message}"), "here", mend)
        }
    }
}

/// What a key that must be there is for.
fn meaning(key: &str) -> &'static str {
    match key {
        "id" => "the folder's name",
        "title" => "one line that says what is wrong",
        "story" => "the symptom as an engineer meets it",
        "class" => "what kind of fault it is",
        "needs" => "what the machine must have; `[]` for nothing",
        "program" => "the faulty program's file",
        "twin" => "the fixed program's file",
        "truth" => "the kernel that faults and the error that it ends in; `{}` where there is neither",
        "expect" => "what each tool is expected to say",
        "fix" => "what to change and why",
        "type" => "a pattern for the error's whole type name",
        "text" => "a pattern that occurs in the error's message",
        _ => "it must be there",
    }
}

/// "did you mean …" where a name is near, and all possible names in any case.
fn suggest(given: &str, possible: &[&str]) -> String {
    let near = possible
        .iter()
        .map(|name| (strsim::jaro_winkler(given, name), name))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let all = possible.join(", ");
    match near {
        Some((_, name)) => format!("did you mean `{name}`? possible: {all}"),
        None => format!("possible: {all}"),
    }
}

/// Turns the file into a scenario, collecting complaints rather than stopping at the first.
struct Check<'a> {
    text: Text<'a>,
    folder: PathBuf,
    id: &'a str,
    errors: Vec<ScenarioError>,
}

impl Check<'_> {
    fn complain<T>(&mut self, at: &Spanned<T>, message: impl Into<String>, label: &str, mend: impl Into<String>) {
        let span = self.text.span(at.referenced);
        self.errors.push(self.text.error(span, message, label, mend));
    }

    fn scenario(mut self, file: ScenarioFile) -> Result<Scenario, Vec<ScenarioError>> {
        if file.id.value != self.id {
            let mend = format!("write `id: {}`, or rename the folder", self.id);
            self.complain(&file.id, "the id is not the folder's name", "differs from the folder", mend);
        }
        for (key, value) in [("title", &file.title), ("story", &file.story), ("fix", &file.fix)] {
            if value.value.trim().is_empty() {
                self.complain(
                    value,
                    format!("`{key}` is empty"),
                    "nothing here",
                    format!("say it in words: `{key}` is shown to people"),
                );
            }
        }
        let needs = self.needs(&file.needs);
        let program = self.program("program", &file.program);
        let twin = self.program("twin", &file.twin);
        let kernel = file.truth.kernel.as_ref().and_then(|k| self.pattern("truth.kernel", k));
        let error = file.truth.error.as_ref().and_then(|e| self.error_pattern("truth.error", e));
        let places = program.as_ref().and_then(|p| self.truth_lines(&file.program, p));
        if let Some(twin) = &twin {
            if program.as_ref().is_some_and(|p| p.file == twin.file) {
                self.complain(
                    &file.twin,
                    "the twin is the program itself",
                    "the same file",
                    "the twin is the fixed program, in a file of its own",
                );
            } else {
                self.twin_is_bare(&file.twin, twin);
            }
        }
        let mut expect = Vec::new();
        for (tool, claims) in file.expect.0 {
            self.known_tool(&tool);
            for (mode, claim) in [(Mode::Async, claims.r#async), (Mode::Sync, claims.sync)] {
                if let Some(claim) = claim.and_then(|claim| self.claim(&claim)) {
                    expect.push(Expectation { tool: tool.value.clone(), mode, claim });
                }
            }
        }
        let cpu = file.cpu.map(|cpu| {
            let error = cpu.error.as_ref().and_then(|e| self.error_pattern("cpu.error", e));
            let mut expect = Vec::new();
            for (tool, claim) in cpu.expect.0 {
                self.known_tool(&tool);
                let Some(claim) = self.claim(&claim) else { continue };
                for mode in [Mode::Async, Mode::Sync] {
                    expect.push(Expectation { tool: tool.value.clone(), mode, claim });
                }
            }
            CpuBehaviour { error, expect }
        });
        let (Some(program), Some(twin), Some((fault, root, callers)), true) =
            (program, twin, places, self.errors.is_empty())
        else {
            return Err(self.errors);
        };
        Ok(Scenario {
            id: file.id.value,
            title: file.title.value.trim().to_string(),
            story: file.story.value,
            class: file.class,
            needs,
            files: file_names(&self.folder),
            folder: std::path::absolute(&self.folder).unwrap_or(self.folder),
            program,
            twin,
            args: file.args,
            truth: Truth { fault, root, callers, kernel, error },
            cpu,
            expect,
            hints: file.hints,
            fix: file.fix.value,
        })
    }

    fn needs(&mut self, needs: &[Spanned<String>]) -> Vec<Need> {
        let names: Vec<&str> = Need::ALL.iter().map(|n| n.name()).collect();
        let mut found = Vec::new();
        for need in needs {
            match Need::ALL.iter().find(|n| n.name() == need.value) {
                Some(n) => found.push(*n),
                None => self.complain(
                    need,
                    format!("unknown need `{}`", need.value),
                    "not a need",
                    suggest(&need.value, &names),
                ),
            }
        }
        found
    }

    fn known_tool(&mut self, id: &Spanned<String>) {
        let names: Vec<&str> = tool::ALL.iter().map(|t| t.id()).collect();
        if !names.contains(&id.value.as_str()) {
            self.complain(id, format!("unknown tool `{}`", id.value), "not a tool", suggest(&id.value, &names));
        }
    }

    /// Of the faulty program a tool can say anything but that it is clean.
    fn claim(&mut self, claim: &Spanned<Claim>) -> Option<Claim> {
        if claim.value != Claim::CleanAsExpected {
            return Some(claim.value);
        }
        let mend =
            "every twin is expected to be clean without saying so; for a tool that says nothing, write `undetected`";
        self.complain(claim, "`clean-as-expected` is no claim about the faulty program", "this claim", mend);
        None
    }

    fn pattern(&mut self, key: &str, text: &Spanned<String>) -> Option<Pattern> {
        match Pattern::search(&text.value) {
            Ok(pattern) => Some(pattern),
            Err(e) => {
                let why = e.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_string();
                let mend = "escape literal characters such as ( [ . with a backslash";
                self.complain(text, format!("`{key}` is not a regular expression: {why}"), "this pattern", mend);
                None
            }
        }
    }

    fn error_pattern(&mut self, key: &str, error: &ErrorFile) -> Option<ErrorPattern> {
        let type_name = self.pattern(&format!("{key}.type"), &error.r#type);
        let text = self.pattern(&format!("{key}.text"), &error.text);
        Some(ErrorPattern { type_name: type_name?, text: text? })
    }

    /// Reads a file of the scenario's own folder, and of no other.
    fn program(&mut self, key: &str, name: &Spanned<String>) -> Option<Program> {
        let relative = Path::new(&name.value);
        if name.value.trim().is_empty() {
            self.complain(name, format!("`{key}` is empty"), "nothing here", "write the name of a file of this folder");
            return None;
        }
        if !relative.components().all(|c| matches!(c, Component::Normal(_))) {
            self.complain(
                name,
                format!("`{key}` leaves the scenario's folder"),
                "not a file of this folder",
                "write the name of a file beside scenario.yaml: no `/` or `.` at the start, no `..`",
            );
            return None;
        }
        let path = self.folder.join(relative);
        let (Ok(real), Ok(folder)) = (path.canonicalize(), self.folder.canonicalize()) else {
            if path.is_symlink() {
                let message = format!("the {key} `{}` is a link to nothing", name.value);
                self.complain(name, message, "a dangling link", "put the file itself there");
                return None;
            }
            let here = self.files();
            let here: Vec<&str> = here.iter().map(String::as_str).collect();
            let message = format!("the {key} `{}` does not exist", name.value);
            self.complain(name, message, "no such file", suggest(&name.value, &here));
            return None;
        };
        if !real.starts_with(folder) {
            self.complain(
                name,
                format!("`{key}` leaves the scenario's folder through a link"),
                "a link to elsewhere",
                "copy the file into the folder",
            );
            return None;
        }
        // Reading a pipe would wait for ever.
        if !real.is_file() {
            let message = format!("the {key} `{}` is not a file", name.value);
            self.complain(name, message, "a folder, or something else", "name the program's file");
            return None;
        }
        let bytes = match std::fs::read(&real) {
            Ok(bytes) => bytes,
            Err(e) => {
                let message = format!("failed to read the {key} `{}`: {e}", name.value);
                self.complain(name, message, "this file", "you must be allowed to read it");
                return None;
            }
        };
        match String::from_utf8(bytes) {
            Ok(source) => Some(Program { file: name.value.clone(), source }),
            Err(e) => {
                let shown = format!("scenarios/{}/{}", self.id, name.value);
                self.errors.push(Text::not_utf8(&shown, e.as_bytes(), &e.utf8_error()));
                None
            }
        }
    }

    fn files(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(&self.folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .filter(|name| name != FILE)
            .collect();
        names.sort();
        names
    }

    /// Exactly one `# FAULT`, exactly one `# ROOT`.
    fn truth_lines(&mut self, key: &Spanned<String>, program: &Program) -> Option<(Place, Place, Vec<Place>)> {
        let found = markers::find(&program.source);
        let mut one = |marker: Marker| -> Option<Place> {
            let all: Vec<&Found> = found.iter().filter(|f| f.marker == marker).collect();
            match all.as_slice() {
                [only] => Some(Place { file: program.file.clone(), line: only.line }),
                [] => {
                    let mend = format!("end the line in question with the comment `# {}`", marker.word());
                    self.complain(
                        key,
                        format!("{} has no `# {}` marker", program.file, marker.word()),
                        "this program",
                        mend,
                    );
                    None
                }
                [_, second, ..] => {
                    let lines: Vec<String> = all.iter().map(|f| f.line.to_string()).collect();
                    let name = format!("scenarios/{}/{}", self.id, program.file);
                    let text = Text { name: &name, text: &program.source };
                    self.errors.push(text.error(
                        Some((second.start, second.end - second.start).into()),
                        format!(
                            "{} has {} `# {}` markers, on lines {}",
                            program.file,
                            all.len(),
                            marker.word(),
                            lines.join(", ")
                        ),
                        "the second one",
                        "keep one: the truth is one line",
                    ));
                    None
                }
            }
        };
        let (fault, root) = (one(Marker::Fault), one(Marker::Root));
        let callers = found
            .iter()
            .filter(|f| f.marker == Marker::Caller)
            .map(|f| Place { file: program.file.clone(), line: f.line })
            .collect();
        Some((fault?, root?, callers))
    }

    fn twin_is_bare(&mut self, key: &Spanned<String>, twin: &Program) {
        if let Some(found) = markers::find(&twin.source).first() {
            let message =
                format!("the twin {} has a `# {}` marker on line {}", twin.file, found.marker.word(), found.line);
            self.complain(key, message, "this file", "remove the marker: nothing faults in the twin");
        }
    }
}
