//! A run's folder. It is readable at every moment: `run.json` says what was planned, and each case that has come
//! to an end has its `result.json`, renamed into place, so that `kill -9` loses no finished case.
//!
//! ```text
//! run.json
//! cases/<scenario>/<tool>.<mode>[.twin]/  result.json, capture.json, stdout, stderr, files/
//! ```

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::capture::{Capture, CaptureError};
use crate::case::CaseId;
use crate::results::{CaseResult, Run, SCHEMA_VERSION};

const RUN: &str = "run.json";
const RESULT: &str = "result.json";

/// The folder of a run.
#[derive(Debug, Clone)]
pub struct RunDir(PathBuf);

/// A run's folder could not be read or written.
#[derive(Debug, Error)]
pub enum RunDirError {
    /// Reading or writing failed.
    #[error("failed to {what} {path}: {source}")]
    Io {
        /// read, write or create
        what: &'static str,
        /// The file.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("{path} is not a file that faultlab wrote: {source}")]
    Json {
        /// The file.
        path: String,
        /// What is wrong, with its line.
        source: serde_json::Error,
    },
    /// Not a run.
    #[error("{0} is not the folder of a run: it has no run.json")]
    NotARun(String),
    /// There is one already.
    #[error("{0} already holds a run: go on with it by `--resume {0}`, or choose another --out")]
    Occupied(String),
    /// A file, or something below one.
    #[error("--out {0}: {1} is no folder; name one, or a path where nothing is yet")]
    NotAFolder(String, String),
    /// Written by another version.
    #[error("{path} has schema version {found}, this faultlab reads {SCHEMA_VERSION}")]
    OtherVersion {
        /// The file.
        path: String,
        /// Its version.
        found: u64,
    },
    /// A capture could not be written.
    #[error(transparent)]
    Capture(#[from] CaptureError),
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RunDirError {
    let path = path.display().to_string();
    move |source| RunDirError::Io { what, path, source }
}

impl RunDir {
    /// A new folder, or an empty one.
    pub fn create(path: &Path) -> Result<Self, RunDirError> {
        if path.join(RUN).exists() {
            return Err(RunDirError::Occupied(path.display().to_string()));
        }
        if let Some(file) = path.ancestors().find(|at| at.exists()).filter(|at| !at.is_dir()) {
            return Err(RunDirError::NotAFolder(path.display().to_string(), file.display().to_string()));
        }
        std::fs::create_dir_all(path).map_err(io_error("create", path))?;
        // Cases run in other working directories.
        Ok(Self(std::path::absolute(path).map_err(io_error("create", path))?))
    }

    /// The folder of an earlier run.
    pub fn open(path: &Path) -> Result<Self, RunDirError> {
        if !path.join(RUN).is_file() {
            return Err(RunDirError::NotARun(path.display().to_string()));
        }
        Ok(Self(std::path::absolute(path).map_err(io_error("read", path))?))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A case's folder.
    pub fn case(&self, case: &CaseId) -> PathBuf {
        self.0.join("cases").join(case.folder())
    }

    /// An empty working directory for a case; what an interrupted run left there is removed.
    pub fn work(&self, case: &CaseId) -> Result<PathBuf, RunDirError> {
        let folder = self.case(case);
        if folder.exists() {
            std::fs::remove_dir_all(&folder).map_err(io_error("clear", &folder))?;
        }
        let work = folder.join("work");
        std::fs::create_dir_all(&work).map_err(io_error("create", &work))?;
        Ok(work)
    }

    /// Removes a case's working directory.
    pub fn remove_work(&self, case: &CaseId) {
        // What cannot be removed does no harm beyond its bytes.
        let _ = std::fs::remove_dir_all(self.case(case).join("work"));
    }

    /// Stores a case that has come to an end: its capture, where one was made here, then its result.
    pub fn write_case(&self, result: &CaseResult, capture: Option<&Capture>) -> Result<(), RunDirError> {
        let folder = self.case(&result.case);
        std::fs::create_dir_all(&folder).map_err(io_error("create", &folder))?;
        if let Some(capture) = capture {
            capture.write(&folder)?;
        }
        write_json(&folder.join(RESULT), result)
    }

    /// Stores the run.
    pub fn write_run(&self, run: &Run) -> Result<(), RunDirError> {
        write_json(&self.0.join(RUN), run)
    }

    /// Reads the run, with every case that has come to an end since `run.json` was written.
    pub fn read_run(&self) -> Result<Run, RunDirError> {
        let path = self.0.join(RUN);
        let any: serde_json::Value = read_json(&path)?;
        let found = any.get("schema_version").and_then(serde_json::Value::as_u64).unwrap_or(0);
        if found != u64::from(SCHEMA_VERSION) {
            return Err(RunDirError::OtherVersion { path: path.display().to_string(), found });
        }
        let mut run: Run = read_json(&path)?;
        let mut unfinished = Vec::new();
        for case in std::mem::take(&mut run.unfinished) {
            let path = self.case(&case).join(RESULT);
            if path.is_file() {
                run.cases.push(read_json(&path)?);
            } else {
                unfinished.push(case);
            }
        }
        run.unfinished = unfinished;
        Ok(run)
    }
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, RunDirError> {
    let text = std::fs::read(path).map_err(io_error("read", path))?;
    serde_json::from_slice(&text).map_err(|source| RunDirError::Json { path: path.display().to_string(), source })
}

/// Written beside and renamed: a reader sees the old file or the new one, never a part.
fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), RunDirError> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|source| RunDirError::Json { path: path.display().to_string(), source })?;
    text.push('\n');
    let part = path.with_extension("part");
    std::fs::write(&part, text).map_err(io_error("write", &part))?;
    std::fs::rename(&part, path).map_err(io_error("write", path))
}
