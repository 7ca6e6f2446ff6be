//! For people, at a terminal: the verdict, the line with its surroundings, what it rests on, what to try.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};

use super::{kernel_facts, seconds, surfaced_text, surfaced_words};
use crate::diagnose::locate::kernel_base;
use crate::diagnose::model::{Confidence, Diagnosis, Launched, Outcome, Place};

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const GOOD: Style = AnsiColor::Green.on_default().bold();
const BAD: Style = AnsiColor::Red.on_default().bold();
const NOTICE: Style = AnsiColor::Yellow.on_default().bold();

/// Columns of the words before a fact.
const LABEL: usize = 12;

pub(super) fn render(d: &Diagnosis, width: usize) -> String {
    let mut out = Writer { text: String::new(), width: width.max(40) };
    let style = match (&d.outcome, d.confidence) {
        (Outcome::Clean, _) => GOOD,
        (_, Confidence::Exact) => BAD,
        _ => NOTICE,
    };
    let confidence = match d.confidence {
        Confidence::None => String::new(),
        confidence => format!(" [{}]", confidence.name()),
    };
    out.paragraph(style, &format!("{}{confidence}", d.headline), "");
    for place in &d.places {
        out.place(place);
    }
    out.facts(d);
    if !d.origins.is_empty() {
        out.heading("Where the values on this line come from (as the file reads, not traced)");
        let name = d.origins.iter().map(|o| o.name.len()).max().unwrap_or(0);
        for origin in &d.origins {
            let place = crate::diagnose::model::short(&origin.file, origin.line);
            out.line(DIM, &format!("  {:name$}  {place}  {}", origin.name, origin.text));
        }
    }
    if !d.around.is_empty() {
        out.heading("The launches around it");
        for launch in &d.around {
            out.launch(launch);
        }
    }
    out.list("Evidence", &d.evidence);
    out.list("What to try next", &d.next);
    out.list("Also", &d.notices);
    out.heading("Runs");
    for step in &d.steps {
        let time = if step.skipped { "left out".to_string() } else { seconds(step.seconds) };
        out.paragraph(Style::new(), &format!("{:<16}{time:>9}  {}", step.id, step.outcome), "  ");
    }
    let host = &d.host;
    let torch = host.torch.as_ref().map(|torch| format!("torch {torch}"));
    let python = host.python.as_ref().map(|python| format!("Python {python}"));
    let cuda = host.cuda.as_ref().map(|cuda| format!("CUDA {cuda}"));
    let facts: Vec<&str> =
        host.gpus.iter().take(1).chain(&cuda).chain(&torch).chain(&python).map(String::as_str).collect();
    let on = if facts.is_empty() { String::new() } else { format!(" on {}", facts.join(", ")) };
    out.text.push('\n');
    out.paragraph(DIM, &format!("faultlab {}{on}; {} in all", d.faultlab, seconds(d.seconds)), "");
    out.text
}

struct Writer {
    text: String,
    width: usize,
}

/// What a program printed, or a file holds, must not drive the terminal.
fn tame(text: &str) -> String {
    let tame = |c: char| match c {
        '\t' | '\n' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.chars().map(tame).collect()
}

impl Writer {
    /// One line, cut at the width.
    fn line(&mut self, style: Style, text: &str) {
        let text = tame(text);
        let cut: String = if text.chars().count() > self.width {
            text.chars().take(self.width - 1).chain(['…']).collect()
        } else {
            text
        };
        let _ = writeln!(self.text, "{style}{}{style:#}", cut.trim_end());
    }

    fn paragraph(&mut self, style: Style, text: &str, indent: &str) {
        let rest = format!("{indent}{}", if indent.is_empty() { "" } else { "  " });
        let options = textwrap::Options::new(self.width).initial_indent(indent).subsequent_indent(&rest);
        for line in textwrap::wrap(tame(text).trim_end(), options) {
            let _ = writeln!(self.text, "{style}{line}{style:#}");
        }
    }

    fn heading(&mut self, text: &str) {
        self.text.push('\n');
        self.line(BOLD, text);
    }

    fn list(&mut self, heading: &str, items: &[String]) {
        if items.is_empty() {
            return;
        }
        self.heading(heading);
        for item in items {
            self.paragraph(Style::new(), &format!("- {item}"), "  ");
        }
    }

    fn fact(&mut self, label: &str, text: &str) {
        let indent = " ".repeat(LABEL + 2);
        let first = format!("  {label:<LABEL$}");
        let options = textwrap::Options::new(self.width).initial_indent(&first).subsequent_indent(&indent);
        for line in textwrap::wrap(&tame(text), options) {
            let _ = writeln!(self.text, "{line}");
        }
    }

    fn place(&mut self, place: &Place) {
        self.text.push('\n');
        let function = if place.function.is_empty() { String::new() } else { format!(" in {}", place.function) };
        self.line(BOLD, &format!("  --> {}:{}{function}", place.file, place.line));
        let digits = place.source.last().map_or(1, |line| line.line.to_string().len());
        for line in &place.source {
            let (style, mark) = if line.marked { (BAD, ">") } else { (Style::new(), " ") };
            self.line(style, &format!("  {mark} {:>digits$} | {}", line.line, line.text));
        }
        for related in &place.related {
            let text = related.text.as_ref().map(|text| format!(": {text}")).unwrap_or_default();
            let at = crate::diagnose::model::short(&related.file, related.line);
            self.line(DIM, &format!("      {} {at} in {}{text}", related.role, related.function));
        }
    }

    fn facts(&mut self, d: &Diagnosis) {
        let start = self.text.len();
        if let Some(kernel) = &d.kernel {
            let facts = kernel_facts(kernel);
            let facts = if facts.is_empty() { facts } else { format!(" ({facts})") };
            self.fact("kernel", &format!("{}{facts}", kernel_base(&kernel.name)));
            if kernel_base(&kernel.name) != kernel.name {
                self.fact("", &kernel.name);
            }
        }
        if let Some(a) = &d.assertion {
            let threads = if a.threads == 1 { "1 thread".to_string() } else { format!("{} threads", a.threads) };
            self.fact(
                "assertion",
                &format!(
                    "`{}` failed in {threads}, first in block {:?}, thread {:?} ({}:{})",
                    a.expression, a.block, a.thread, a.file, a.line
                ),
            );
        }
        for (n, value) in d.values.iter().enumerate() {
            self.fact(if n == 0 { "values" } else { "" }, value);
        }
        if let Some(surfaced) = &d.surfaced {
            self.fact("surfaced as", &surfaced_words(d, surfaced));
            if let Some(text) = surfaced_text(d, surfaced) {
                self.fact("", text);
            }
        }
        if self.text.len() > start {
            self.text.insert(start, '\n');
        }
    }

    fn launch(&mut self, launch: &Launched) {
        let (style, mark) = if launch.culprit { (BAD, ">") } else { (Style::new(), " ") };
        let place = launch.place.as_deref().unwrap_or("-");
        self.line(
            style,
            &format!(
                "  {mark} #{:<7} {:<10} stream {}  {place:<20} {}",
                launch.launch,
                launch.state,
                launch.stream,
                kernel_base(&launch.kernel)
            ),
        );
    }
}
