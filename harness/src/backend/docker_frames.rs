//! What faultlab and the first process of a container (`docker_init.py`) say to each other: an order as a line of JSON, and
//! frames that come back.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::after_cap;
use super::supervise::Account;
use crate::capture::CappedStream;

/// One line of JSON for `docker_init.py`.
#[derive(Serialize)]
pub(super) struct Order<'a> {
    pub(super) env: &'a BTreeMap<String, String>,
    pub(super) work: &'a str,
    pub(super) gpu: bool,
    pub(super) files: Vec<(&'a str, &'a str)>,
    pub(super) commands: Vec<OrderCommand<'a>>,
    pub(super) watch_env: BTreeSet<&'a str>,
    pub(super) collect: Vec<&'a str>,
}

#[derive(Serialize)]
pub(super) struct OrderCommand<'a> {
    pub(super) argv: &'a [String],
    pub(super) deadline_s: f64,
    pub(super) only_if: Option<&'a str>,
}

/// Cuts a stream into frames.
#[derive(Default)]
pub(super) struct Frames(Vec<u8>);

impl Frames {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        let (head, rest) = self.0.split_at_checked(5)?;
        let length = u32::from_be_bytes(head[1..].try_into().ok()?) as usize;
        let frame = (head[0], rest.get(..length)?.to_vec());
        self.0.drain(..5 + length);
        Some(frame)
    }
}

#[derive(Deserialize)]
pub(super) struct ContainedAccount {
    #[serde(flatten)]
    pub(super) account: Account,
    #[serde(default)]
    pub(super) oom_kills: u64,
}

pub(super) struct TheRun {
    pub(super) account: ContainedAccount,
    pub(super) stdout: CappedStream,
    pub(super) stderr: CappedStream,
}

/// What a container has said so far.
pub(super) struct Told {
    cap: usize,
    file_caps: Vec<usize>,
    now: usize,
    pub(super) stdout: CappedStream,
    pub(super) stderr: CappedStream,
    /// By the index of the command.
    pub(super) runs: BTreeMap<usize, TheRun>,
    /// By the index of the file.
    pub(super) files: BTreeMap<usize, CappedStream>,
    /// What its processes held at most, where that could be seen.
    pub(super) peak_gpu_bytes: Option<u64>,
}

impl Told {
    pub(super) fn new(cap: usize, file_caps: &[usize]) -> Self {
        Self {
            cap,
            file_caps: file_caps.to_vec(),
            now: 0,
            stdout: CappedStream::new(cap),
            stderr: CappedStream::new(cap),
            runs: BTreeMap::new(),
            files: BTreeMap::new(),
            peak_gpu_bytes: None,
        }
    }

    /// Takes a frame. True: that was all.
    pub(super) fn hear(&mut self, kind: u8, bytes: &[u8]) -> Result<bool, String> {
        let broken = |e: serde_json::Error| format!("the container's first process spoke nonsense: {e}");
        match kind {
            b'S' | b'N' => self.now = serde_json::from_slice(bytes).map_err(broken)?,
            b'o' => self.stdout.push(bytes),
            b'e' => self.stderr.push(bytes),
            b'A' => {
                let account = serde_json::from_slice(bytes).map_err(broken)?;
                let next = || CappedStream::new(after_cap(self.cap));
                let stdout = std::mem::replace(&mut self.stdout, next());
                let stderr = std::mem::replace(&mut self.stderr, next());
                self.runs.insert(self.now, TheRun { account, stdout, stderr });
            }
            b'F' => {
                let cap = self.file_caps.get(self.now).copied().unwrap_or_default();
                self.files.entry(self.now).or_insert_with(|| CappedStream::new(cap)).push(bytes);
            }
            b'G' => {
                return Err("the container was promised a GPU and has none: no device node is in it; look at how the \
                            engine hands out GPUs, or ask for `--device cpu`"
                    .into());
            }
            b'X' => return Err(format!("the container's first process failed: {}", String::from_utf8_lossy(bytes))),
            b'Z' => return Ok(true),
            other => return Err(format!("the container's first process spoke nonsense: a frame of kind {other}")),
        }
        // A file of no bytes is there all the same.
        if kind == b'N' {
            let cap = self.file_caps.get(self.now).copied().unwrap_or_default();
            self.files.insert(self.now, CappedStream::new(cap));
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_arrive_in_any_pieces() {
        let bytes = b"o\0\0\0\x03abcZ\0\0\0\0e\0\0\0\x01";
        for size in 1..bytes.len() {
            let (mut frames, mut found) = (Frames::default(), Vec::new());
            for piece in bytes.chunks(size) {
                frames.push(piece);
                while let Some(frame) = frames.next() {
                    found.push(frame);
                }
            }
            assert_eq!(found, [(b'o', b"abc".to_vec()), (b'Z', Vec::new())]);
        }
    }

    #[test]
    fn every_command_and_file_keeps_its_own_bytes() -> Result<(), String> {
        let account =
            br#"{"not_started": null, "exit": {"code": 3}, "stopped": false, "elapsed_s": 0.5, "peak_rss_bytes": 7,
            "left_behind": [], "unkillable": [], "env_seen": {"A": "b"}, "oom_kills": 2}"#;
        let mut told = Told::new(100, &[100, 100]);
        let frames: [(u8, &[u8]); 13] = [
            (b'S', b"0"),
            (b'o', b"out"),
            (b'e', b"err"),
            (b'o', b"put"),
            (b'A', account),
            // The second command was not wanted.
            (b'S', b"2"),
            (b'o', &[b'.'; 500]),
            (b'A', account),
            (b'N', b"0"),
            (b'N', b"1"),
            (b'F', b"fi"),
            (b'F', b"le"),
            (b'Z', b""),
        ];
        for (n, (kind, bytes)) in frames.into_iter().enumerate() {
            assert_eq!(told.hear(kind, bytes)?, n == 12);
        }
        let mut text = |index| {
            let run = told.runs.remove(&index).map(|run| (run.stdout.finish().0, run.stderr.finish().0, run.account));
            run.map(|(out, err, account)| (out, err, account.account.exit, account.oom_kills))
        };
        let exit = crate::capture::Exit::Code(3);
        assert_eq!(text(0), Some((b"output".to_vec(), b"err".to_vec(), exit.clone(), 2)));
        assert_eq!(text(1), None);
        assert_eq!(text(2), Some((vec![b'.'; 500], Vec::new(), exit, 2)), "only the case's own streams are cut");
        let files: Vec<_> = told.files.into_iter().map(|(index, file)| (index, file.finish().0)).collect();
        assert_eq!(files, [(0, Vec::new()), (1, b"file".to_vec())]);
        assert!(Told::new(100, &[]).hear(b'S', b"nonsense").is_err() && Told::new(100, &[]).hear(b'?', b"").is_err());
        Ok(())
    }

    #[test]
    fn a_promised_gpu_that_is_not_there_is_said_loudly() {
        let told = Told::new(100, &[]).hear(b'G', b"");
        assert!(told.is_err_and(|why| why.contains("promised a GPU and has none")));
    }
}
