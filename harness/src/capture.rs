//! What one process printed and left, with where it came from. A capture is stored as it came.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::Path;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::case::{CaseId, Device};
use crate::host::Stack;

/// Rises when `capture.json` changes in a way that older readers cannot read.
pub const SCHEMA_VERSION: u32 = 1;

const META: &str = "capture.json";
const FILES: &str = "files";

/// A process, as it was seen from outside.
#[derive(Debug, Clone, PartialEq)]
pub struct Capture {
    /// All but the bytes.
    pub meta: Meta,
    /// Standard output, cut in the middle where it passed the cap.
    pub stdout: Vec<u8>,
    /// Standard error, likewise.
    pub stderr: Vec<u8>,
    /// Files that the tool wrote, by name.
    pub files: BTreeMap<String, Vec<u8>>,
}

/// All of a capture but its bytes: `capture.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Meta {
    /// See [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Which case.
    pub case: CaseId,
    /// Where the tensors live.
    pub device: Device,
    /// The command.
    pub argv: Vec<String>,
    /// What faultlab set in the environment, and what of the rest matters; never secrets.
    pub env: BTreeMap<String, String>,
    /// The same keys, read back from the running process: proof of what it really had.
    pub env_seen: BTreeMap<String, String>,
    /// How it ended.
    pub exit: Exit,
    /// Wall-clock seconds.
    pub elapsed_s: f64,
    /// Largest resident size of one process of the tree, in bytes.
    pub peak_rss_bytes: Option<u64>,
    /// Largest GPU memory that the tree held at one time, in bytes, as nvidia-smi showed it; `None` where it could not
    /// be seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_gpu_bytes: Option<u64>,
    /// Standard output's size and cut.
    pub stdout: Stream,
    /// Standard error's size and cut.
    pub stderr: Stream,
    /// Processes that were still there when the program itself had ended; they were killed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_behind: Vec<String>,
    /// The folder that holds the program's own files.
    pub program_root: String,
    /// SHA-256 of the program's text.
    pub program_sha256: String,
    /// Where and when.
    pub provenance: Provenance,
}

/// Where and when a capture was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// faultlab's version.
    pub faultlab: String,
    /// When the process started.
    pub date: Timestamp,
    /// Which backend ran it.
    pub backend: String,
    /// On what.
    pub stack: Stack,
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Exit {
    /// It exited with this status.
    Code(i32),
    /// A signal ended it.
    Signal(String),
    /// Its deadline came first, and the whole tree was killed.
    Deadline,
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit {code}"),
            Self::Signal(name) => f.pad(name),
            Self::Deadline => f.pad("deadline"),
        }
    }
}

/// A stream's size, and what was cut out of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// Bytes that the process wrote.
    pub bytes: u64,
    /// Bytes left out in the middle; the place is marked in the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<u64>,
}

/// A capture could not be read or written.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// Reading or writing failed.
    #[error("failed to {what} {path}: {source}")]
    Io {
        /// read or write
        what: &'static str,
        /// The file.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// `capture.json` is not one.
    #[error("{path} is not a capture's description: {source}")]
    Json {
        /// The file.
        path: String,
        /// What is wrong, with its line.
        source: serde_json::Error,
    },
    /// Written by a newer faultlab.
    #[error("{path} has schema version {found}, this faultlab reads up to {SCHEMA_VERSION}: upgrade faultlab")]
    Newer {
        /// The file.
        path: String,
        /// Its version.
        found: u32,
    },
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CaptureError {
    let path = path.display().to_string();
    move |source| CaptureError::Io { what, path, source }
}

impl Capture {
    /// Reads the folder that [`Capture::write`] wrote.
    pub fn read(folder: &Path) -> Result<Self, CaptureError> {
        let meta_path = folder.join(META);
        let text = std::fs::read(&meta_path).map_err(io_error("read", &meta_path))?;
        let json = |source| CaptureError::Json { path: meta_path.display().to_string(), source };
        let version: Version = serde_json::from_slice(&text).map_err(json)?;
        if version.schema_version > SCHEMA_VERSION {
            return Err(CaptureError::Newer { path: meta_path.display().to_string(), found: version.schema_version });
        }
        let meta = serde_json::from_slice(&text).map_err(json)?;
        let read = |name: &str| {
            let path = folder.join(name);
            std::fs::read(&path).map_err(io_error("read", &path))
        };
        let mut files = BTreeMap::new();
        let files_path = folder.join(FILES);
        if files_path.is_dir() {
            for entry in std::fs::read_dir(&files_path).map_err(io_error("read", &files_path))? {
                let path = entry.map_err(io_error("read", &files_path))?.path();
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                files.insert(name, std::fs::read(&path).map_err(io_error("read", &path))?);
            }
        }
        Ok(Self { meta, stdout: read("stdout")?, stderr: read("stderr")?, files })
    }

    /// Writes a folder: `capture.json`, `stdout`, `stderr`, `files/`.
    pub fn write(&self, folder: &Path) -> Result<(), CaptureError> {
        std::fs::create_dir_all(folder).map_err(io_error("write", folder))?;
        let write = |path: &Path, bytes: &[u8]| std::fs::write(path, bytes).map_err(io_error("write", path));
        write(&folder.join("stdout"), &self.stdout)?;
        write(&folder.join("stderr"), &self.stderr)?;
        if !self.files.is_empty() {
            let files = folder.join(FILES);
            std::fs::create_dir_all(&files).map_err(io_error("write", &files))?;
            for (name, bytes) in &self.files {
                write(&files.join(name), bytes)?;
            }
        }
        let path = folder.join(META);
        let mut json = serde_json::to_string_pretty(&self.meta)
            .map_err(|source| CaptureError::Json { path: path.display().to_string(), source })?;
        json.push('\n');
        write(&path, json.as_bytes())
    }

    /// A stream or file by the name that evidence uses.
    pub fn stream(&self, name: &str) -> Option<&[u8]> {
        match name {
            "stdout" => Some(&self.stdout),
            "stderr" => Some(&self.stderr),
            file => self.files.get(file).map(Vec::as_slice),
        }
    }

    /// Did the process really have this in its environment?
    pub fn had_env(&self, key: &str, value: &str) -> bool {
        self.meta.env_seen.get(key).is_some_and(|v| v == value)
    }

    /// Replaces host-specific path prefixes in all texts, for a capture that is committed.
    ///
    /// `places` are (path prefix, placeholder), and a longer prefix goes first. Files that are not UTF-8 text
    /// stay as they are.
    pub fn replace_paths(&mut self, places: &[(String, &'static str)]) {
        let mut places: Vec<_> = places.iter().filter(|(path, _)| path.len() > 1).collect();
        places.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
        let replace = |text: &mut String| {
            for (path, placeholder) in &places {
                if text.contains(path.as_str()) {
                    *text = text.replace(path.as_str(), placeholder);
                }
            }
        };
        let replace_bytes = |bytes: &mut Vec<u8>| {
            if let Ok(text) = std::str::from_utf8(bytes) {
                let mut text = text.to_string();
                replace(&mut text);
                *bytes = text.into_bytes();
            }
        };
        replace_bytes(&mut self.stdout);
        replace_bytes(&mut self.stderr);
        self.files.values_mut().for_each(replace_bytes);
        self.meta.argv.iter_mut().for_each(replace);
        self.meta.env.values_mut().for_each(replace);
        self.meta.env_seen.values_mut().for_each(replace);
        self.meta.left_behind.iter_mut().for_each(replace);
        replace(&mut self.meta.program_root);
    }
}

#[derive(Deserialize)]
struct Version {
    schema_version: u32,
}

/// SHA-256 in lower-case hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// Keeps the first and the last part of a stream of any length, in memory that does not grow past the cap.
#[derive(Debug)]
pub struct CappedStream {
    cap: usize,
    head: Vec<u8>,
    tail: std::collections::VecDeque<u8>,
    total: u64,
}

impl CappedStream {
    /// Keeps at most `cap` bytes: one quarter of them from the start (how it was set up), the rest from the end
    /// (how it died).
    pub fn new(cap: usize) -> Self {
        Self { cap, head: Vec::new(), tail: std::collections::VecDeque::new(), total: 0 }
    }

    /// Takes the next bytes.
    pub fn push(&mut self, mut bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let head_cap = self.cap / 4;
        if self.head.len() < head_cap {
            let take = bytes.len().min(head_cap - self.head.len());
            self.head.extend_from_slice(&bytes[..take]);
            bytes = &bytes[take..];
        }
        let tail_cap = self.cap - head_cap;
        let start = bytes.len().saturating_sub(tail_cap);
        let bytes = &bytes[start..];
        let surplus = (self.tail.len() + bytes.len()).saturating_sub(tail_cap);
        self.tail.drain(..surplus);
        self.tail.extend(bytes);
    }

    /// The bytes, with a mark of its own line where some were cut out, and what to say of them.
    pub fn finish(self) -> (Vec<u8>, Stream) {
        let mut bytes = self.head;
        let kept = (bytes.len() + self.tail.len()) as u64;
        let cut = self.total - kept;
        let mut tail: &[u8] = &self.tail.into_iter().collect::<Vec<u8>>();
        if cut > 0 {
            // Cut at line ends, so that no half line is taken for a whole one.
            let head_end = bytes.iter().rposition(|b| *b == b'\n').map_or(bytes.len(), |at| at + 1);
            let mut dropped = cut + (bytes.len() - head_end) as u64;
            bytes.truncate(head_end);
            if let Some(at) = tail.iter().position(|b| *b == b'\n') {
                dropped += at as u64 + 1;
                tail = &tail[at + 1..];
            }
            bytes.extend_from_slice(format!("[faultlab: {dropped} bytes cut here]\n").as_bytes());
            bytes.extend_from_slice(tail);
            return (bytes, Stream { bytes: self.total, cut: Some(dropped) });
        }
        bytes.extend_from_slice(tail);
        (bytes, Stream { bytes: self.total, cut: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_capped_stream_keeps_both_ends(
            chunks in proptest::collection::vec("[a-z\n]{0,40}", 0..20),
            cap in 8usize..200,
        ) {
            let all = chunks.concat().into_bytes();
            let mut stream = CappedStream::new(cap);
            for chunk in &chunks {
                stream.push(chunk.as_bytes());
            }
            let (kept, info) = stream.finish();
            prop_assert_eq!(info.bytes, all.len() as u64);
            match info.cut {
                None => prop_assert_eq!(kept, all),
                Some(cut) => {
                    prop_assert!(all.len() > cap);
                    let mark = format!("[faultlab: {cut} bytes cut here]\n");
                    let text = String::from_utf8(kept).unwrap_or_default();
                    let (head, tail) = text.split_once(&mark).ok_or_else(|| TestCaseError::fail("no mark"))?;
                    prop_assert!(all.starts_with(head.as_bytes()));
                    prop_assert!(all.ends_with(tail.as_bytes()));
                    prop_assert_eq!(head.len() + tail.len() + usize::try_from(cut).unwrap_or(0), all.len());
                }
            }
        }
    }

    #[test]
    fn longer_paths_are_replaced_first() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let mut capture = crate::testing::capture("a", b"/opt/py/lib/site/x.py and /opt/py/bin/python\n");
        capture.replace_paths(&[
            ("/opt/py".into(), "<PREFIX>"),
            ("/opt/py/lib/site".into(), "<SITE>"),
            ("/".into(), "<ROOT>"),
        ]);
        capture.write(folder.path())?;
        let back = Capture::read(folder.path())?;
        assert_eq!(back, capture);
        assert_eq!(String::from_utf8(back.stderr)?, "<SITE>/x.py and <PREFIX>/bin/python\n");
        Ok(())
    }
}
