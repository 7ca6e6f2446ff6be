//! The scoreboard for people, at a terminal: behind the report of a larger run, and by itself as
//! `--format scoreboard`. A column in which nothing would stand is left out, and named below the table; where there is
//! no room, the cases that were not judged stand in one column.

use std::fmt::Write as _;

use anstyle::Style;
use comfy_table::{Cell, CellAlignment, Color, ContentArrangement, Table, presets};
use unicode_width::UnicodeWidthStr as _;

use super::{COLUMNS, Column, Counts, Facet, Row, Scoreboard, alone, legend, percent, times};
use crate::report::Layout;

const BOLD: Style = Style::new().bold();

/// A heading, the table, and what each tool names.
pub(in crate::report) fn render(board: &Scoreboard, layout: Layout) -> String {
    let width = layout.width.max(40);
    let mut out = format!("{BOLD}Scoreboard{BOLD:#}\n");
    if board.rows.is_empty() {
        out.push_str("  no cases\n");
        return out;
    }
    let counted = |(_, count): &Column| board.rows.iter().any(|row| count(&row.counts) > 0);
    let (shown, empty): (Vec<Column>, Vec<Column>) = COLUMNS.into_iter().partition(counted);
    let full = scores(board, &shown);
    let short = || {
        let judged = shown.iter().copied().filter(|(heading, _)| !NOT_JUDGED.contains(heading));
        scores(board, &judged.chain([("not judged", not_judged as fn(&Counts) -> usize)]).collect::<Vec<_>>())
    };
    let rest = shown.iter().filter(|(heading, _)| NOT_JUDGED.contains(heading)).count();
    lines(&mut out, if natural_width(&full) + 2 > width && rest > 1 { short() } else { full }, width);
    if !empty.is_empty() {
        let names: Vec<&str> = empty.iter().map(|(heading, _)| *heading).collect();
        paragraph(&mut out, &format!("No case: {}.", names.join(", ")), width);
    }
    for line in legend(board) {
        paragraph(&mut out, &line, width);
    }
    if board.facets.is_empty() {
        return out;
    }
    let _ = writeln!(out, "\n{BOLD}Scenarios on which a tool names{BOLD:#}");
    let headings = ["tool", "scenarios"].into_iter().chain(Facet::ALL.iter().map(|f| f.name()));
    let rows = board.facets.iter().map(|facets| {
        let counts = std::iter::once(facets.scenarios).chain(facets.given);
        std::iter::once(Cell::new(&facets.tool)).chain(counts.map(number)).collect()
    });
    lines(&mut out, table(headings, rows), width);
    let unique: Vec<_> = board.facets.iter().filter(|f| !f.alone.is_empty()).collect();
    if !unique.is_empty() {
        let _ = writeln!(out, "\n{BOLD}What no other tool of this run names{BOLD:#}");
        for facets in unique {
            paragraph(&mut out, &format!("{}: {}", facets.tool, alone(facets)), width);
        }
    }
    out
}

/// Headings of cases that came to no judgement.
const NOT_JUDGED: [&str; 5] = ["inactive", "failed", "timed out", "skipped", "unfinished"];

fn not_judged(counts: &Counts) -> usize {
    COLUMNS.iter().filter(|(heading, _)| NOT_JUDGED.contains(heading)).map(|(_, count)| count(counts)).sum()
}

fn scores(board: &Scoreboard, columns: &[Column]) -> Table {
    let headings = ["tool", "mode", "exact"].into_iter().chain(columns.iter().map(|(heading, _)| *heading));
    table(headings.chain(["support", "time", "host mem", "GPU mem"]), board.rows.iter().map(|row| cells(row, columns)))
}

fn cells(row: &Row, shown: &[Column]) -> Vec<Cell> {
    let mut cells = vec![Cell::new(&row.tool), Cell::new(row.mode), right(percent(row.exact_rate()))];
    cells.extend(shown.iter().map(|(_, count)| number(count(&row.counts))));
    cells.push(right(percent(row.support())));
    cells.extend([row.time, row.host_memory, row.gpu_memory].map(|ratio| right(times(ratio))));
    cells
}

fn right(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

/// A zero is easier passed over as a dot.
fn number(n: usize) -> Cell {
    right(if n == 0 { "·".into() } else { n.to_string() })
}

fn table(headings: impl Iterator<Item = &'static str>, rows: impl Iterator<Item = Vec<Cell>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).enforce_styling();
    // One word a line: the columns stay as narrow as their numbers.
    table.set_header(headings.map(|h| Cell::new(h.replace(' ', "\n")).fg(Color::DarkGrey)));
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
    }
    table
}

/// Columns that the table takes where nothing is wrapped.
fn natural_width(table: &Table) -> usize {
    table.lines().map(|line| anstream::adapter::strip_str(&line).to_string().trim_end().width()).max().unwrap_or(0)
}

fn lines(out: &mut String, mut table: Table, width: usize) {
    if natural_width(&table) + 2 > width {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(u16::try_from(width - 2).unwrap_or(u16::MAX));
    }
    for line in table.lines() {
        let _ = writeln!(out, "  {}", line.trim_end());
    }
}

fn paragraph(out: &mut String, text: &str, width: usize) {
    let options = textwrap::Options::new(width).initial_indent("  ").subsequent_indent("  ");
    for line in textwrap::wrap(text, options) {
        let _ = writeln!(out, "{line}");
    }
}
