//! For issues and chats.

use std::fmt::Write as _;

use super::{kernel_facts, seconds, surfaced_text, surfaced_words};
use crate::diagnose::model::{Confidence, Diagnosis, Place};

pub(super) fn render(d: &Diagnosis) -> String {
    let mut out = String::new();
    let confidence = match d.confidence {
        Confidence::None => String::new(),
        confidence => format!(" ({})", confidence.name()),
    };
    let _ = writeln!(out, "# {}{confidence}\n", text(&d.headline));
    let _ = writeln!(out, "Command: {}", code(&shown_command(&d.command)));
    for place in &d.places {
        write_place(&mut out, place);
    }
    facts(&mut out, d);
    if !d.origins.is_empty() {
        out.push_str("\n## Where the values on this line come from\n\nAs the file reads, not traced.\n\n");
        for origin in &d.origins {
            let at = crate::diagnose::model::short(&origin.file, origin.line);
            let _ = writeln!(out, "- {}: {at}: {}", code(&origin.name), code(&origin.text));
        }
    }
    if !d.around.is_empty() {
        out.push_str(
            "\n## The launches around it\n\n| | # | state | stream | line | kernel |\n|---|---|---|---|---|---|\n",
        );
        for launch in &d.around {
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {} | {} |",
                if launch.culprit { "**>**" } else { "" },
                launch.launch,
                launch.state,
                launch.stream,
                cell(launch.place.as_deref().unwrap_or("-")),
                cell(&code(&launch.kernel)),
            );
        }
    }
    list(&mut out, "Evidence", &d.evidence);
    list(&mut out, "What to try next", &d.next);
    list(&mut out, "Also", &d.notices);
    out.push_str("\n## Runs\n\n| run | why | what came of it | time |\n|---|---|---|---|\n");
    for step in &d.steps {
        let time = if step.skipped { "left out".to_string() } else { seconds(step.seconds) };
        let _ = writeln!(out, "| {} | {} | {} | {time} |", step.id, cell(&step.why), cell(&step.outcome));
    }
    let host = &d.host;
    let versions = [
        ("driver", &host.driver),
        ("CUDA", &host.cuda),
        ("torch", &host.torch),
        ("Python", &host.python),
        ("OS", &host.os),
    ];
    let versions = versions.iter().filter_map(|(name, version)| Some(format!("{name} {}", version.as_deref()?)));
    let facts: Vec<String> = host.gpus.iter().cloned().chain(versions).collect();
    let on = if facts.is_empty() { String::new() } else { format!(" on {}", text(&facts.join(", "))) };
    let _ = writeln!(out, "\nfaultlab {}{on}; {} in all.", d.faultlab, seconds(d.seconds));
    out
}

fn write_place(out: &mut String, place: &Place) {
    let function = if place.function.is_empty() { String::new() } else { format!(" in {}", code(&place.function)) };
    let _ = writeln!(out, "\n**{}:{}**{function} {}\n", text(&place.file), place.line, text(&place.role));
    if !place.source.is_empty() {
        let digits = place.source.last().map_or(1, |line| line.line.to_string().len());
        let lines: Vec<String> = place
            .source
            .iter()
            .map(|l| format!("{} {:>digits$} | {}", if l.marked { '>' } else { ' ' }, l.line, l.text))
            .collect();
        let body = lines.join("\n");
        // A longer fence than any in the source.
        let fence = "`".repeat(longest_run(&body).max(2) + 1);
        let _ = writeln!(out, "{fence}text\n{body}\n{fence}\n");
    }
    for related in &place.related {
        let at = crate::diagnose::model::short(&related.file, related.line);
        let line = related.text.as_ref().map(|text| format!(": {}", code(text))).unwrap_or_default();
        let _ = writeln!(out, "- {} {at} in {}{line}", text(&related.role), code(&related.function));
    }
}

fn facts(out: &mut String, d: &Diagnosis) {
    out.push('\n');
    if let Some(kernel) = &d.kernel {
        let facts = kernel_facts(kernel);
        let facts = if facts.is_empty() { facts } else { format!(" ({facts})") };
        let _ = writeln!(out, "- kernel: {}{facts}", code(&kernel.name));
    }
    if let Some(a) = &d.assertion {
        let _ = writeln!(
            out,
            "- assertion: {} failed in {} thread(s), first in block {:?}, thread {:?} ({}:{})",
            code(&a.expression),
            a.threads,
            a.block,
            a.thread,
            text(&a.file),
            a.line
        );
    }
    if !d.values.is_empty() {
        let _ = writeln!(out, "- values: {}", d.values.iter().map(|v| code(v)).collect::<Vec<_>>().join(", "));
    }
    if let Some(surfaced) = &d.surfaced {
        let line = surfaced_text(d, surfaced).map(|text| format!(": {}", code(text))).unwrap_or_default();
        let _ = writeln!(out, "- surfaced as: {}{line}", text(&surfaced_words(d, surfaced)));
    }
}

fn list(out: &mut String, heading: &str, items: &[String]) {
    if !items.is_empty() {
        let _ = writeln!(out, "\n## {heading}\n");
        for item in items {
            let _ = writeln!(out, "- {}", item.replace('\n', " "));
        }
    }
}

/// A command as a shell would take it.
fn shown_command(argv: &[String]) -> String {
    argv.iter().map(|word| crate::recorder_env::quoted(word)).collect::<Vec<_>>().join(" ")
}

/// Text in which nothing is markup.
fn text(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\n' | '\r' => out.push(' '),
            '\\' | '`' | '*' | '_' | '<' | '[' | '|' => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}

/// A span of code, fenced by more backticks than are in it.
fn code(text: &str) -> String {
    let text = text.replace(['\n', '\r'], " ");
    let fence = "`".repeat(longest_run(&text) + 1);
    let space = if text.starts_with('`') || text.ends_with('`') || text.is_empty() { " " } else { "" };
    format!("{fence}{space}{text}{space}{fence}")
}

fn longest_run(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or(0)
}

fn cell(text: &str) -> String {
    text.replace('\n', " ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_the_programs_is_markup() {
        assert_eq!(text("a_b *c* [x](y) `z`"), "a\\_b \\*c\\* \\[x](y) \\`z\\`");
        assert_eq!(code("a`b``c"), "```a`b``c```");
        assert_eq!(code("`"), "`` ` ``");
        let mut diagnosis = crate::diagnose::report::tests::full();
        diagnosis.places[0].source[0].text = "```".into();
        assert!(render(&diagnosis).contains("````text\n"));
    }
}
