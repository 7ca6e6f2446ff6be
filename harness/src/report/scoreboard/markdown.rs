//! The scoreboard as a section of the Markdown report.

use std::fmt::Write as _;

use super::{COLUMNS, Facet, Scoreboard, alone, legend, percent, times};

/// A section with its heading.
pub(in crate::report) fn render(board: &Scoreboard) -> String {
    let mut out = String::from("## Scoreboard\n\n| tool | mode | exact |");
    for (heading, _) in COLUMNS {
        let _ = write!(out, " {heading} |");
    }
    out.push_str(" support | time | host memory | GPU memory |\n|---|---|");
    out.push_str(&"---:|".repeat(COLUMNS.len() + 5));
    out.push('\n');
    for row in &board.rows {
        let _ = write!(out, "| {} | {} | {} |", row.tool, row.mode, percent(row.exact_rate()));
        for (_, count) in COLUMNS {
            let _ = write!(out, " {} |", count(&row.counts));
        }
        let (time, host, gpu) = (times(row.time), times(row.host_memory), times(row.gpu_memory));
        let _ = writeln!(out, " {} | {time} | {host} | {gpu} |", percent(row.support()));
    }
    for line in legend(board) {
        let _ = writeln!(out, "\n{line}");
    }
    if board.facets.is_empty() {
        return out;
    }
    out.push_str("\n### What each tool names\n\n| tool | scenarios |");
    for facet in Facet::ALL {
        let _ = write!(out, " {} |", facet.name());
    }
    out.push_str(" no other tool names |\n|---|");
    out.push_str(&"---:|".repeat(Facet::ALL.len() + 1));
    out.push_str("---|\n");
    for facets in &board.facets {
        let _ = write!(out, "| {} | {} |", facets.tool, facets.scenarios);
        for given in facets.given {
            let _ = write!(out, " {given} |");
        }
        let alone = alone(facets);
        let _ = writeln!(out, " {} |", if alone.is_empty() { "-" } else { &alone });
    }
    out
}
