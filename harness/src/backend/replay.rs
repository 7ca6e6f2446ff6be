//! The replay backend: captures that `faultlab record` wrote on a GPU, read back.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use thiserror::Error;

use super::BackendError;
use crate::capture::{Capture, CaptureError};
use crate::case::{CaseId, Subject};
use crate::host::Stack;
use crate::scenario::Scenario;

/// See the module.
#[derive(Debug)]
pub struct Replay {
    folder: PathBuf,
    stack: Stack,
    recorded: (Timestamp, Timestamp),
}

/// Why nothing can be replayed.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// There are no captures.
    #[error("there are no captures below {0}: `faultlab record --all` on a machine with a GPU writes them")]
    Empty(String),
    /// Not of this stack.
    #[error("there are no captures of the stack `{wanted}`; there are: {there}")]
    NoSuchStack {
        /// The slug that was asked for.
        wanted: String,
        /// The slugs that exist.
        there: String,
    },
    /// A capture could not be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
}

/// The stacks that captures exist of: folder names below `captures`, sorted.
pub fn stacks(captures: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(captures)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

impl Replay {
    /// Opens the captures of a stack; without a wish, of the one with a GPU that was recorded last: what a replay stands
    /// in for is a GPU.
    pub fn open(captures: &Path, wanted: Option<&str>) -> Result<Self, ReplayError> {
        let names = stacks(captures);
        if let Some(wanted) = wanted
            && !names.iter().any(|name| name == wanted)
        {
            return Err(ReplayError::NoSuchStack { wanted: wanted.into(), there: names.join(", ") });
        }
        let mut newest: Option<Self> = None;
        for name in names.iter().filter(|name| wanted.is_none_or(|w| w == name.as_str())) {
            let folder = captures.join(name);
            let mut provenances = Vec::new();
            for capture in capture_folders(&folder) {
                provenances.push(Capture::read(&capture)?.meta.provenance);
            }
            let dates = provenances.iter().map(|p| p.date);
            let (Some(first), Some(last)) = (dates.clone().min(), dates.max()) else { continue };
            let stack = provenances.swap_remove(0).stack;
            let rank = |stack: &Stack, last: Timestamp| (stack.gpu.is_some(), last);
            if newest.as_ref().is_none_or(|n| rank(&n.stack, n.recorded.1) < rank(&stack, last)) {
                newest = Some(Self { folder, stack, recorded: (first, last) });
            }
        }
        newest.ok_or_else(|| ReplayError::Empty(captures.display().to_string()))
    }

    /// What the captures were recorded on.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// When the first and the last of them were recorded.
    pub fn recorded(&self) -> (Timestamp, Timestamp) {
        self.recorded
    }

    /// Reads a case's capture. A program that has changed since makes it stale: its lines mean nothing then.
    pub(crate) fn read(&self, scenario: &Scenario, case: &CaseId) -> Result<Capture, BackendError> {
        let folder = self.folder.join(case.folder());
        if !folder.is_dir() {
            let mend = format!("`faultlab record {}` on a machine with a GPU writes it", case.scenario);
            return Err(BackendError::NotRecorded(format!("there is no capture of this case; {mend}")));
        }
        let capture = Capture::read(&folder).map_err(|e| BackendError::Infra(e.to_string()))?;
        let program = match case.subject {
            Subject::Program => &scenario.program,
            Subject::Twin => &scenario.twin,
        };
        if capture.meta.program_sha256 != program.sha256() {
            return Err(BackendError::Infra(format!(
                "{} has changed since it was recorded on {}: `faultlab record {}` on a machine with a GPU",
                program.file,
                capture.meta.provenance.date.strftime("%Y-%m-%d"),
                case.scenario
            )));
        }
        Ok(capture)
    }
}

/// `<scenario>/<tool>.<mode>[.twin]`, two levels below a stack.
fn capture_folders(stack: &Path) -> Vec<PathBuf> {
    let below = |path: &Path| -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> =
            std::fs::read_dir(path).into_iter().flatten().flatten().map(|e| e.path()).collect();
        paths.sort();
        paths
    };
    below(stack).iter().flat_map(|scenario| below(scenario)).filter(|path| path.is_dir()).collect()
}
