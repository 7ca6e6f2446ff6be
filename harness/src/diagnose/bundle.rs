//! `--bundle`: one archive to attach to a bug report. It stands alone: the reports, each run's capture, and a text that
//! says what is what.
//!
//! Of the environment it has what [`crate::tool::RECORDED`] allows and what faultlab itself set. Values of variables that are
//! named like secrets, words of the command line that follow such an option, and texts that look like well-known tokens
//! are replaced wherever they stand, in what the program printed too.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::sync::LazyLock;

use flate2::Compression;
use flate2::write::GzEncoder;
use regex::bytes::Regex;

use super::model::Diagnosis;
use super::report::Format;
use super::run::Kept;

/// The archive's form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `.tar.gz`, `.tgz`
    Gzip,
    /// `.tar`
    Plain,
}

impl Form {
    /// By the file's name.
    pub fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_string_lossy().to_lowercase();
        let ends = |end: &str| name.ends_with(end);
        match () {
            () if ends(".tar.gz") || ends(".tgz") => Some(Self::Gzip),
            () if ends(".tar") => Some(Self::Plain),
            () => None,
        }
    }
}

const README: &str = "\
A diagnosis by `faultlab diagnose`.

report.md       the verdict, for people
report.json     the same, for machines
report.txt      the same, as a terminal shows it
runs/NN-ID/     each run of the command, in order:
  capture.json  what was run, how it ended, which versions it ran on; of the environment only what matters
  stdout, stderr
  files/        what the tool of that run wrote; recorder.PID.jsonl is the launch recorder's report

Values of variables that are named like secrets (TOKEN, KEY, SECRET, PASSWORD and the like), words of the command line
that follow an option of such a name, and texts that look like access tokens are replaced by <secret …>. Look through it
all the same before you publish it: it has what the program printed, and lines of its source.
";

/// Columns of `report.txt`.
const WIDTH: usize = 120;

/// Writes the archive.
pub fn write(path: &Path, form: Form, diagnosis: &Diagnosis, runs: &[Kept], secrets: &Secrets) -> io::Result<()> {
    let file = io::BufWriter::new(std::fs::File::create(path)?);
    let parts = parts(diagnosis, runs, secrets);
    let time = u64::try_from(diagnosis.started.as_second()).unwrap_or_default();
    match form {
        Form::Plain => archive(file, &parts, time)?.flush(),
        Form::Gzip => archive(GzEncoder::new(file, Compression::default()), &parts, time)?.finish()?.flush(),
    }
}

/// Name and bytes of each file.
fn parts(diagnosis: &Diagnosis, runs: &[Kept], secrets: &Secrets) -> Vec<(String, Vec<u8>)> {
    let mut parts = vec![("README.txt".to_string(), README.as_bytes().to_vec())];
    for (name, format) in
        [("report.md", Format::Markdown), ("report.json", Format::Json), ("report.txt", Format::Terminal)]
    {
        let text = anstream::adapter::strip_str(&format.render(diagnosis, WIDTH)).to_string();
        parts.push((name.into(), text.into_bytes()));
    }
    for (n, run) in runs.iter().enumerate() {
        let folder = format!("runs/{:02}-{}", n + 1, run.id);
        let meta = serde_json::to_vec_pretty(&run.capture.meta).unwrap_or_default();
        parts.push((format!("{folder}/capture.json"), meta));
        parts.push((format!("{folder}/stdout"), run.capture.stdout.clone()));
        parts.push((format!("{folder}/stderr"), run.capture.stderr.clone()));
        for (name, bytes) in &run.capture.files {
            parts.push((format!("{folder}/files/{name}"), bytes.clone()));
        }
    }
    for (_, bytes) in &mut parts {
        *bytes = secrets.removed_from(bytes);
    }
    parts
}

fn archive<W: Write>(out: W, parts: &[(String, Vec<u8>)], time: u64) -> io::Result<W> {
    let mut tar = tar::Builder::new(out);
    for (name, bytes) in parts {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(time);
        tar.append_data(&mut header, format!("faultlab-diagnosis/{name}"), bytes.as_slice())?;
    }
    tar.into_inner()
}

/// What must not leave the machine.
#[derive(Debug, Default)]
pub struct Secrets {
    /// Value and what stands in its place, the longest value first.
    values: Vec<(Vec<u8>, String)>,
}

/// A shorter value would be found everywhere.
const SHORTEST: usize = 6;

impl Secrets {
    /// From the environment and the command line.
    pub fn of(env: &BTreeMap<String, String>, argv: &[String]) -> Self {
        let mut values: Vec<(Vec<u8>, String)> = Vec::new();
        let mut add = |name: &str, value: &str| {
            let value = value.trim();
            if value.len() >= SHORTEST && !is_harmless(value) {
                values.push((value.as_bytes().to_vec(), format!("<secret {name}>")));
                // JSON writes some characters in another way.
                let escaped = serde_json::to_string(value).unwrap_or_default();
                let escaped = escaped.trim_matches('"');
                if escaped != value {
                    values.push((escaped.as_bytes().to_vec(), format!("<secret {name}>")));
                }
            }
        };
        for (name, value) in env.iter().filter(|(name, _)| is_secret_name(name)) {
            add(name, value);
        }
        let mut expected: Option<&str> = None;
        for word in argv {
            let option = word.trim_start_matches('-');
            match (option.split_once('='), expected.take()) {
                (Some((name, value)), _) if is_secret_name(name) => add(name, value),
                (_, Some(name)) if !word.starts_with('-') => add(name, word),
                _ if word.starts_with('-') && is_secret_name(option) => expected = Some(option),
                _ => {}
            }
        }
        values.sort_by_key(|(value, _)| std::cmp::Reverse(value.len()));
        Self { values }
    }

    /// The text without them.
    pub fn removed_from(&self, text: &[u8]) -> Vec<u8> {
        let mut text = text.to_vec();
        for (value, mark) in &self.values {
            text = replaced(&text, value, mark.as_bytes());
        }
        for pattern in SHAPES.iter() {
            if pattern.is_match(&text) {
                text = pattern.replace_all(&text, &b"${before}<secret>${after}"[..]).into_owned();
            }
        }
        text
    }
}

/// Access tokens as their makers document them, and passwords in addresses.
static SHAPES: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    [
        // Hugging Face, GitHub, GitLab, OpenAI and others, Slack, AWS, Google, PyPI.
        r"\b(?P<before>)(?:hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{22,}|glpat-[\w-]{20,}|sk-[\w-]{20,}|xox[abprs]-[\w-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{35}|pypi-[\w-]{50,})",
        r"(?P<before>://[^/\s:@]*:)[^/\s@]+(?P<after>@)",
        r"(?i)(?P<before>\bauthorization:\s*(?:bearer|basic|token)\s+)[\w.~+/=-]{8,}",
        r"(?s)(?P<before>)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----",
    ]
    .iter()
    .filter_map(|pattern| Regex::new(pattern).ok())
    .collect()
});

/// Is a variable or an option of this name meant to hold a secret?
fn is_secret_name(name: &str) -> bool {
    const WORDS: [&str; 14] = [
        "TOKEN",
        "KEY",
        "APIKEY",
        "SECRET",
        "PASSWORD",
        "PASSWD",
        "PASSPHRASE",
        "PASS",
        "PWD",
        "CREDENTIAL",
        "CREDENTIALS",
        "AUTH",
        "COOKIE",
        "DSN",
    ];
    // `PWD` and `OLDPWD` are folders.
    if matches!(name, "PWD" | "OLDPWD") {
        return false;
    }
    let name = name.to_uppercase();
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    words.any(|word| {
        WORDS.contains(&word) || ["TOKEN", "SECRET", "PASSWORD", "APIKEY"].iter().any(|w| word.ends_with(w))
    })
}

/// Values that stand everywhere and that nobody keeps secret.
fn is_harmless(value: &str) -> bool {
    ["true", "false", "disabled", "enabled", "default"].contains(&value.to_lowercase().as_str())
}

fn replaced(text: &[u8], value: &[u8], mark: &[u8]) -> Vec<u8> {
    let finder = memchr::memmem::Finder::new(value);
    let mut out = Vec::with_capacity(text.len());
    let mut from = 0;
    for at in finder.find_iter(text) {
        out.extend_from_slice(text.get(from..at).unwrap_or_default());
        out.extend_from_slice(mark);
        from = at + value.len();
    }
    out.extend_from_slice(text.get(from..).unwrap_or_default());
    out
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_string(), (*v).to_string())).collect()
    }

    #[test]
    fn secrets_by_name() {
        for name in
            ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "DB_PASSWORD", "api-key", "NETRC_AUTH", "MYTOKEN"]
        {
            assert!(is_secret_name(name), "{name}");
        }
        for name in ["PATH", "PWD", "HOME", "KEYBOARD", "TOKENIZERS_PARALLELISM", "MONKEY", "AUTHOR"] {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn secrets_are_replaced_wherever_they_stand() {
        let argv: Vec<String> = ["train.py", "--api-key", "from-the-words", "--token=of-an-option", "--lr", "0.123456"]
            .map(String::from)
            .into();
        let secrets = Secrets::of(&env(&[("HF_TOKEN", "abc\"defgh"), ("A_KEY", "1"), ("USE_AUTH", "true")]), &argv);
        let clean = |text: &str| String::from_utf8(secrets.removed_from(text.as_bytes())).unwrap();
        assert_eq!(clean("x abc\"defgh y 1 true"), "x <secret HF_TOKEN> y 1 true");
        assert_eq!(clean(r#"{"v": "abc\"defgh"}"#), r#"{"v": "<secret HF_TOKEN>"}"#);
        assert_eq!(clean("from-the-words of-an-option 0.123456"), "<secret api-key> <secret token> 0.123456");
    }

    #[test]
    fn tokens_are_known_by_their_shape() {
        let secrets = Secrets::default();
        let clean = |text: &str| String::from_utf8(secrets.removed_from(text.as_bytes())).unwrap();
        let token = format!("hf_{}", "a1B2".repeat(9));
        assert_eq!(clean(&format!("loading with {token}.")), "loading with <secret>.");
        assert_eq!(
            clean("postgres://me:pass-word@db/x and http://a:80/b@c"),
            "postgres://me:<secret>@db/x and http://a:80/b@c"
        );
        assert_eq!(clean("Authorization: Bearer abcdefgh.ijk"), "Authorization: Bearer <secret>");
        assert_eq!(clean("task-sk-1 half_1"), "task-sk-1 half_1");
    }

    #[test]
    fn an_archive_stands_alone_and_holds_no_secret() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("b.tar.gz");
        let capture = crate::testing::capture("/p", b"login with hunter2-hunter2 failed\n");
        let runs = [Kept { id: "recorder".into(), capture }];
        let mut diagnosis = crate::diagnose::report::tests::full();
        diagnosis.command.push("hunter2-hunter2".into());
        let secrets = Secrets::of(&env(&[("DB_PASSWORD", "hunter2-hunter2")]), &[]);
        write(&path, Form::Gzip, &diagnosis, &runs, &secrets).unwrap();
        let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(std::fs::File::open(&path).unwrap()));
        let mut texts = BTreeMap::new();
        for entry in tar.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            assert!(!text.contains("hunter2"), "{name}");
            texts.insert(name, text);
        }
        let names: Vec<&str> = texts.keys().filter_map(|name| name.strip_prefix("faultlab-diagnosis/")).collect();
        assert_eq!(
            names,
            [
                "README.txt",
                "report.json",
                "report.md",
                "report.txt",
                "runs/01-recorder/capture.json",
                "runs/01-recorder/stderr",
                "runs/01-recorder/stdout"
            ]
        );
        assert!(texts["faultlab-diagnosis/runs/01-recorder/stderr"].contains("<secret DB_PASSWORD>"));
        let back: Diagnosis = serde_json::from_str(&texts["faultlab-diagnosis/report.json"]).unwrap();
        assert_eq!(back.places, diagnosis.places);
    }

    #[test]
    fn forms() {
        assert_eq!(Form::of(Path::new("/a/b.tar.gz")), Some(Form::Gzip));
        assert_eq!(Form::of(Path::new("b.TGZ")), Some(Form::Gzip));
        assert_eq!(Form::of(Path::new("b.tar")), Some(Form::Plain));
        assert_eq!(Form::of(Path::new("b.zip")), None);
    }
}
