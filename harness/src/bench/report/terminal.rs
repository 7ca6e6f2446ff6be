//! For people, at a terminal.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use comfy_table::{Cell, Color, ContentArrangement, Table, presets};

use super::{Bench, CLAIMS, HEADINGS, about, cells, claim_rows, conditions, remarks};

const BOLD: Style = Style::new().bold();
const NOTICE: Style = AnsiColor::Yellow.on_default();

/// Tables, conditions and claims, within `width` columns.
pub fn render(bench: &Bench, width: usize) -> String {
    let width = width.max(40);
    let mut out = String::new();
    for program in &bench.programs {
        let _ = writeln!(out, "{BOLD}{}{BOLD:#}", about(program, bench.device));
        table(&mut out, &HEADINGS, program.rows.iter().map(|row| cells(program, row).to_vec()), width);
        out.push('\n');
    }
    paragraph(&mut out, Style::new(), &conditions(bench), width);
    for remark in remarks(bench) {
        paragraph(&mut out, NOTICE, &remark, width);
    }
    let _ = writeln!(out, "\n{BOLD}What people say about cost{BOLD:#}");
    table(&mut out, &CLAIMS, claim_rows(bench).into_iter().map(|row| row.to_vec()), width);
    out
}

fn table(out: &mut String, headings: &[&str], rows: impl Iterator<Item = Vec<String>>, width: usize) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).enforce_styling();
    table.set_width(u16::try_from(width - 2).unwrap_or(u16::MAX));
    table.set_header(headings.iter().map(|h| Cell::new(h).fg(Color::DarkGrey)));
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    for line in table.lines() {
        let _ = writeln!(out, "  {}", line.trim_end());
    }
}

fn paragraph(out: &mut String, style: Style, text: &str, width: usize) {
    for line in textwrap::wrap(text, width) {
        let _ = writeln!(out, "{style}{line}{style:#}");
    }
}
