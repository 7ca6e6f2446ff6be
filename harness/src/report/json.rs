//! The model itself, as it stands in `run.json`.

use crate::results::Run;

/// Pretty-printed, with a line end.
pub(super) fn render(run: &Run) -> String {
    // Every part of a run can be written as JSON: it has string keys and finite numbers only.
    let mut text = serde_json::to_string_pretty(run).unwrap_or_default();
    text.push('\n');
    text
}
