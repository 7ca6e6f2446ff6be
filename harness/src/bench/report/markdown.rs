//! For documents and issues.

use std::fmt::Write as _;

use super::{Bench, CLAIMS, HEADINGS, about, cells, claim_rows, conditions, remarks};

/// Tables, conditions and claims.
pub fn render(bench: &Bench) -> String {
    let mut out = format!("# What the tools cost\n\n{}\n", conditions(bench));
    for program in &bench.programs {
        let _ = write!(out, "\n## {}\n\n", about(program, bench.device));
        table(&mut out, &HEADINGS, program.rows.iter().map(|row| cells(program, row).to_vec()));
    }
    for remark in remarks(bench) {
        let _ = writeln!(out, "\n- {}", plain(&remark));
    }
    out.push_str("\n## What people say about cost\n\n");
    table(&mut out, &CLAIMS, claim_rows(bench).into_iter().map(|row| row.to_vec()));
    out
}

fn table(out: &mut String, headings: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let _ = writeln!(out, "| {} |\n|{}", headings.join(" | "), "---|".repeat(headings.len()));
    for row in rows {
        let row: Vec<String> = row.iter().map(|cell| plain(cell)).collect();
        let _ = writeln!(out, "| {} |", row.join(" | "));
    }
}

/// A tool's words must neither end a cell nor be markup.
fn plain(text: &str) -> String {
    text.chars().fold(String::new(), |mut plain, c| {
        if matches!(c, '|' | '<' | '>' | '`' | '*' | '_' | '[' | ']' | '\\') {
            plain.push('\\');
        }
        plain.push(if c.is_control() { ' ' } else { c });
        plain
    })
}
