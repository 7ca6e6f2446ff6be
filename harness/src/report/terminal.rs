//! For people, at a terminal: a table of tool and mode, then the true line beside the line that the asynchronous
//! traceback blamed.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use comfy_table::{Cell, Color, ContentArrangement, Table, presets};
use unicode_width::UnicodeWidthStr as _;

use super::{Layout, deciding, harmless, replay_notice, scoreboard, seconds, short_kernel};
use crate::case::{CaseId, Mode, Outcome, Subject, TruthLine, Verdict};
use crate::finding::FindingKind;
use crate::results::{CaseResult, Run, ScenarioView, Standing};
use crate::scenario::Place;

pub(super) const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
pub(super) const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default();
const NOTICE: Style = AnsiColor::Yellow.on_default().bold();

/// Lines of code on each side of the line in question.
const CONTEXT: u32 = 3;

const HEADER: [&str; 7] = ["tool", "mode", "verdict", "named line", "kernel", "time", "fixed program"];

/// Two code frames stand side by side from this many columns on.
const SIDE_BY_SIDE: usize = 100;

pub(super) fn render(run: &Run, layout: Layout) -> String {
    let width = layout.width.max(40);
    let mut out = String::new();
    if let Some(notice) = replay_notice(run) {
        wrapped(&mut out, NOTICE, &notice, "", width);
    } else {
        let on = format!(
            "Run on {} ({} backend: {}).",
            run.settings.stack, run.settings.backend, run.settings.backend_reason
        );
        wrapped(&mut out, DIM, &on, "", width);
    }
    for scenario in &run.scenarios {
        out.push('\n');
        scenario_report(&mut out, run, scenario, width);
    }
    out.push('\n');
    if scoreboard::is_worthwhile(run) {
        out.push_str(&scoreboard::terminal(&scoreboard::Scoreboard::of(run), layout));
        out.push('\n');
    }
    summary(&mut out, run, width);
    out
}

fn scenario_report(out: &mut String, run: &Run, scenario: &ScenarioView, width: usize) {
    wrapped(out, BOLD, &format!("{}: {}", scenario.id, scenario.title), "", width);
    wrapped(out, Style::new(), scenario.story.trim(), "  ", width);
    let program: Vec<&CaseResult> = run.cases_of(&scenario.id, Subject::Program).collect();
    let twin: Vec<&CaseResult> = run.cases_of(&scenario.id, Subject::Twin).collect();
    if program.is_empty() && twin.is_empty() {
        return;
    }
    out.push('\n');
    table(out, &program, &twin, width);
    notes(out, &[program.as_slice(), &twin].concat(), width);
    out.push('\n');
    frames(out, scenario, &program, width);
    evidence(out, &program, width);
    wrapped(out, BOLD, "The fix", "", width);
    wrapped(out, Style::new(), scenario.fix.trim(), "  ", width);
}

fn table(out: &mut String, program: &[&CaseResult], twin: &[&CaseResult], width: usize) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(u16::try_from(width - 2).unwrap_or(u16::MAX)).enforce_styling();
    table.set_header(HEADER.map(|h| Cell::new(h).fg(Color::DarkGrey)));
    let same = |a: &CaseResult, b: &CaseResult| a.case.tool == b.case.tool && a.case.mode == b.case.mode;
    for case in program {
        table.add_row(row(Some(case), twin.iter().copied().find(|t| same(t, case))));
    }
    // A partition may hold a twin without its program.
    for case in twin.iter().filter(|t| !program.iter().any(|p| same(p, t))) {
        table.add_row(row(None, Some(case)));
    }
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, if at + 1 == HEADER.len() { 0 } else { 2 }));
    }
    for line in table.lines() {
        let _ = writeln!(out, "  {}", line.trim_end());
    }
}

fn row(program: Option<&CaseResult>, twin: Option<&CaseResult>) -> Vec<Cell> {
    let cell = |text: Option<String>| Cell::new(text.map_or_else(|| "-".into(), |text| harmless(&text)));
    let verdict = |case: Option<&CaseResult>| {
        case.map_or_else(|| Cell::new("-"), |case| Cell::new(verdict(case)).fg(colour(&case.outcome)))
    };
    let id = program.or(twin).map(|c| &c.case);
    let judgement = program.and_then(|c| c.outcome.judgement());
    let kernel = judgement.and_then(|j| j.kernel.as_ref()).map(|k| {
        let mark = if k.right == Some(false) { " (wrong)" } else { "" };
        format!("{}{mark}", short_kernel(&k.name))
    });
    vec![
        cell(id.map(|case| case.tool.clone())),
        cell(id.map(|case| case.mode.to_string())),
        verdict(program),
        cell(judgement.and_then(|j| j.named.as_ref()).map(ToString::to_string)),
        cell(kernel),
        cell(program.and_then(|c| c.process.as_ref()).map(|p| seconds(p.elapsed_s))),
        verdict(twin),
    ]
}

/// The outcome in a few words, and what was expected where that is something else.
fn verdict(case: &CaseResult) -> String {
    let label = match &case.outcome {
        Outcome::Judged(j) if j.verdict == Verdict::CleanAsExpected => "clean".to_string(),
        other => other.label(),
    };
    match (case.standing(), case.expected) {
        (Standing::Differs, Some(claim)) => format!("{label} (expected: {claim})"),
        _ => label,
    }
}

fn colour(outcome: &Outcome) -> Color {
    match outcome {
        Outcome::Judged(j) => match j.verdict {
            Verdict::Exact(_) | Verdict::CleanAsExpected => Color::Green,
            Verdict::Enclosing | Verdict::KernelOnly => Color::Yellow,
            Verdict::WrongPlace | Verdict::Undetected | Verdict::FalseAlarm => Color::Red,
        },
        Outcome::Skipped { .. } => Color::DarkGrey,
        Outcome::FaultMasked { .. } | Outcome::TimedOut { .. } => Color::Yellow,
        _ => Color::Magenta,
    }
}

/// The reasons that a table has no room for.
fn notes(out: &mut String, cases: &[&CaseResult], width: usize) {
    let mut reasons: Vec<(String, Vec<String>)> = Vec::new();
    for case in cases {
        if let (None, Some(reason)) = (case.outcome.judgement(), case.outcome.reason()) {
            let reason = format!("{}: {reason}", case.outcome.label());
            match reasons.iter_mut().find(|(r, _)| *r == reason) {
                Some((_, names)) => names.push(name(&case.case)),
                None => reasons.push((reason, vec![name(&case.case)])),
            }
        }
    }
    for (reason, names) in reasons {
        let names = if names.len() == cases.len() { "all".to_string() } else { names.join(", ") };
        wrapped(out, Style::new(), &format!("{names}: {reason}"), "  ", width);
    }
    for case in cases {
        if let Some(process) = case.process.as_ref().filter(|p| !p.left_behind.is_empty()) {
            let text = format!(
                "{}: left processes behind, which were killed: {}",
                name(&case.case),
                process.left_behind.join("; ")
            );
            wrapped(out, BAD, &text, "  ", width);
        }
        for (stream, info) in case.process.iter().flat_map(|p| [("stdout", &p.stdout), ("stderr", &p.stderr)]) {
            if let Some(cut) = info.cut {
                let text = format!(
                    "{}: {cut} of {} bytes of {stream} were cut out in the middle",
                    name(&case.case),
                    info.bytes
                );
                wrapped(out, Style::new(), &text, "  ", width);
            }
        }
    }
}

fn name(case: &CaseId) -> String {
    let twin = if case.subject == Subject::Twin { " (fixed program)" } else { "" };
    format!("{} {}{twin}", case.tool, case.mode)
}

/// The true line beside what the asynchronous traceback blamed instead; then where the bad value is made.
fn frames(out: &mut String, scenario: &ScenarioView, program: &[&CaseResult], width: usize) {
    let blamed = program.iter().filter(|c| c.case.mode == Mode::Async).find_map(|c| {
        let judgement = c.outcome.judgement()?;
        Some((judgement.verdict, judgement.named.clone()?, c.case.tool.as_str()))
    });
    let frame = |title: String, place: &Place, style: Style, width: usize| {
        let mut lines = vec![format!("{BOLD}{}{BOLD:#}", cut(&format!("{title}: {place}"), width))];
        lines.extend(code_frame(&scenario.program.source, place.line, style, width));
        lines
    };
    let fault = |width: usize| frame("The line that faults".into(), &scenario.fault, GOOD, width);
    let wrong = match &blamed {
        Some((Verdict::WrongPlace | Verdict::Enclosing, place, tool)) => {
            Some((format!("What the async traceback blamed ({tool})"), place))
        }
        _ => None,
    };
    match wrong {
        Some((title, place)) if width >= SIDE_BY_SIDE => {
            let half = (width - 3) / 2;
            beside(out, &fault(half), &frame(title, place, BAD, half), half);
        }
        Some((title, place)) => {
            lines(out, &fault(width));
            lines(out, &frame(title, place, BAD, width));
        }
        None => lines(out, &fault(width)),
    }
    if scenario.root != scenario.fault {
        lines(out, &frame("Where the bad value is made".into(), &scenario.root, GOOD, width));
    }
    if let Some((Verdict::Exact(which), _, tool)) = &blamed {
        let line = match which {
            TruthLine::Fault => "the line that faults",
            TruthLine::Root => "where the bad value is made",
        };
        wrapped(out, Style::new(), &format!("The async traceback ({tool}) names {line} too."), "", width);
    }
}

fn lines(out: &mut String, lines: &[String]) {
    for line in lines {
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

/// Two blocks in columns of `half` each, three apart.
fn beside(out: &mut String, left: &[String], right: &[String], half: usize) {
    for at in 0..left.len().max(right.len()) {
        let l = left.get(at).map_or("", String::as_str);
        let r = right.get(at).map_or("", String::as_str);
        let pad = " ".repeat(half.saturating_sub(visible_width(l)));
        let _ = writeln!(out, "{}", format!("{l}{pad}   {r}").trim_end());
    }
}

/// Source lines around a line, numbered, without the indentation that all of them share, each cut to the width.
pub(super) fn code_frame(source: &str, line: u32, style: Style, width: usize) -> Vec<String> {
    let first = line.saturating_sub(CONTEXT).max(1);
    let shown: Vec<(u32, String)> = (1u32..)
        .zip(source.lines())
        .skip(first as usize - 1)
        .take_while(|(number, _)| *number <= line + CONTEXT)
        .map(|(number, text)| (number, text.replace('\t', "    ")))
        .collect();
    let indent = |text: &str| text.len() - text.trim_start_matches(' ').len();
    let shared =
        shown.iter().filter(|(_, text)| !text.trim().is_empty()).map(|(_, text)| indent(text)).min().unwrap_or(0);
    let mut frame = Vec::new();
    for (number, text) in shown {
        let mark = if number == line { ">" } else { " " };
        let text = cut(&format!("  {mark}{number:>4} | {}", text.get(shared..).unwrap_or_default()), width);
        frame.push(if number == line { format!("{style}{text}{style:#}") } else { text });
    }
    frame
}

/// What each verdict rests on, with its byte range in the capture.
fn evidence(out: &mut String, program: &[&CaseResult], width: usize) {
    let mut lines = Vec::new();
    for case in program {
        if let Some(finding) = deciding(case) {
            let error = finding.error_type.as_ref().map(|t| format!("{t}: ")).unwrap_or_default();
            let message = finding.message.lines().next().unwrap_or_default();
            let at = &finding.evidence;
            lines.push(format!("{} [{} {}-{}] {error}{message}", name(&case.case), at.stream, at.start, at.end));
        }
    }
    if !lines.is_empty() {
        wrapped(out, BOLD, "What the verdicts rest on", "", width);
        for line in lines {
            let _ = writeln!(out, "{}", cut(&format!("  {line}"), width));
        }
    }
    let asserted = program.iter().flat_map(|c| &c.findings).find(|f| f.kind == FindingKind::DeviceAssertion);
    if let Some((kernel, device)) =
        asserted.and_then(|f| Some((f.location.kernel.as_ref()?, f.location.device.as_ref()?)))
    {
        let thread = match (kernel.block, kernel.thread) {
            (Some(b), Some(t)) => format!(", block {b:?} thread {t:?}"),
            _ => String::new(),
        };
        let expression = device.expression.as_deref().unwrap_or_default();
        wrapped(out, BOLD, "What the device itself said", "", width);
        let text = format!("assertion `{expression}` failed at {}:{}{thread}", device.file, device.line);
        wrapped(out, Style::new(), &text, "  ", width);
    }
}

fn summary(out: &mut String, run: &Run, width: usize) {
    let count = |standing| run.cases.iter().filter(|c| c.standing() == standing).count();
    let (met, differs) = (count(Standing::Met), count(Standing::Differs));
    let (infra, skipped) = (count(Standing::Infra), count(Standing::Skipped));
    let mut parts = vec![format!("{met} as expected")];
    for (n, text) in [
        (differs, "not as expected"),
        (infra, "lost to infrastructure"),
        (skipped, "skipped"),
        (run.unfinished.len(), "not finished"),
    ] {
        if n > 0 {
            parts.push(format!("{n} {text}"));
        }
    }
    let style = if differs + infra + run.unfinished.len() > 0 { BAD.bold() } else { GOOD.bold() };
    wrapped(out, style, &format!("{} cases: {}", run.cases.len() + run.unfinished.len(), parts.join(", ")), "", width);
    if !run.unfinished.is_empty() {
        let names: Vec<String> = run.unfinished.iter().map(ToString::to_string).collect();
        wrapped(out, Style::new(), &format!("Not finished: {}", names.join(", ")), "  ", width);
        wrapped(out, Style::new(), "The run was interrupted: `faultlab run --resume DIR` goes on with it.", "", width);
    }
}

pub(super) fn wrapped(out: &mut String, style: Style, text: &str, indent: &str, width: usize) {
    // Line ends of a scenario's text are those of its file, not of this terminal.
    let text = harmless(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    let options = textwrap::Options::new(width).initial_indent(indent).subsequent_indent(indent);
    for line in textwrap::wrap(&text, options) {
        let _ = writeln!(out, "{style}{line}{style:#}");
    }
}

/// At most `width` columns, with a mark where something was cut off.
pub(super) fn cut(text: &str, width: usize) -> String {
    let text = harmless(text);
    if text.width() <= width {
        return text;
    }
    let mut short = String::new();
    let mut used = 0;
    for c in text.chars() {
        let columns = unicode_width::UnicodeWidthChar::width(c).unwrap_or(0);
        if used + columns + 1 > width {
            break;
        }
        used += columns;
        short.push(c);
    }
    short.push('…');
    short
}

/// Columns without styling escapes.
fn visible_width(text: &str) -> usize {
    anstream::adapter::strip_str(text).to_string().width()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cutting_counts_columns() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abcd", 3), "ab…");
        assert_eq!(cut("日本語", 5), "日本…");
    }

    #[test]
    fn code_frames_stay_inside_the_file() {
        let source = "a\nb\nc\n";
        let plain = |line| code_frame(source, line, Style::new(), 80);
        assert_eq!(plain(1), ["  >   1 | a", "      2 | b", "      3 | c"]);
        assert_eq!(plain(9), Vec::<String>::new());
    }
}
