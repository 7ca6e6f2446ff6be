//! The model itself.

use crate::diagnose::model::Diagnosis;

/// Pretty-printed, with a line end.
pub(super) fn render(diagnosis: &Diagnosis) -> String {
    // It has string keys and finite numbers only.
    let mut text = serde_json::to_string_pretty(diagnosis).unwrap_or_default();
    text.push('\n');
    text
}
