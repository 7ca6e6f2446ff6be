//! Reports: each format is one file over the one [`Run`] model, and a function of it alone.

mod attached;
mod beside;
mod json;
mod junit;
mod markdown;
mod scoreboard;
mod terminal;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub(crate) use attached::render as attached;
pub use beside::render as beside;

use crate::results::Run;

/// A report format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReportFormat {
    /// For people, at a terminal.
    Terminal,
    /// The model itself.
    Json,
    /// For CI systems.
    Junit,
    /// For issues and chats.
    Markdown,
    /// The tools compared over all scenarios, at a terminal.
    Scoreboard,
}

impl Named for ReportFormat {
    const ALL: &'static [Self] = &[Self::Terminal, Self::Json, Self::Junit, Self::Markdown, Self::Scoreboard];

    fn name(self) -> &'static str {
        match self {
            Self::Terminal => "terminal",
            Self::Json => "json",
            Self::Junit => "junit",
            Self::Markdown => "markdown",
            Self::Scoreboard => "scoreboard",
        }
    }
}

impl ReportFormat {
    /// The report's text. Styling escapes are part of a terminal report only; the caller strips them where
    /// the output is no terminal.
    pub fn render(self, run: &Run, layout: Layout) -> String {
        match self {
            Self::Terminal => terminal::render(run, layout),
            Self::Json => json::render(run),
            Self::Junit => junit::render(run),
            Self::Markdown => markdown::render(run),
            Self::Scoreboard => scoreboard::terminal(&scoreboard::Scoreboard::of(run), layout),
        }
    }
}

impl fmt::Display for ReportFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How a terminal report is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Columns.
    pub width: usize,
}

impl Default for Layout {
    /// What a pipe or a file gets.
    fn default() -> Self {
        Self { width: 120 }
    }
}

/// Formats that the command line can name.
pub trait Named: Copy + 'static {
    /// All of them.
    const ALL: &'static [Self];

    /// The name on the command line.
    fn name(self) -> &'static str;
}

/// `FORMAT` or `FORMAT:PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output<F = ReportFormat> {
    /// Which.
    pub format: F,
    /// Where; `None` is standard output.
    pub path: Option<PathBuf>,
}

impl<F: Named> FromStr for Output<F> {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let (name, path) = match s.split_once(':') {
            Some((_, "")) => return Err(format!("`{s}` names no file behind the colon")),
            Some((name, path)) => (name, Some(PathBuf::from(path))),
            None => (s, None),
        };
        let format = F::ALL.iter().copied().find(|f| f.name() == name).ok_or_else(|| {
            let names: Vec<&str> = F::ALL.iter().map(|f| f.name()).collect();
            format!("unknown format `{name}`; possible: {}", names.join(", "))
        })?;
        Ok(Self { format, path })
    }
}

impl<F> Output<F> {
    /// Why nothing can be written there, as far as it can be told before there is anything to write.
    pub fn obstacle(&self) -> Option<String> {
        self.path.as_deref().and_then(obstacle)
    }
}

/// Why no file can be written at a path, as far as that can be told beforehand.
pub fn obstacle(path: &Path) -> Option<String> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.is_dir() {
        Some(format!("{} is a folder: name a file", path.display()))
    } else if !folder.is_dir() {
        Some(format!("{}: there is no folder {}", path.display(), folder.display()))
    } else {
        None
    }
}

/// What a replay must say before anything else; `None` for a live run.
fn replay_notice(run: &Run) -> Option<String> {
    let (first, last) = run.settings.recorded?;
    let day = |t: jiff::Timestamp| t.strftime("%Y-%m-%d").to_string();
    let when = if day(first) == day(last) { day(first) } else { format!("{} to {}", day(first), day(last)) };
    Some(format!("REPLAY: nothing was run here. Recorded {when} on {}.", run.settings.stack))
}

/// The finding that decided a case.
fn deciding(case: &crate::results::CaseResult) -> Option<&crate::finding::Finding> {
    case.findings.get(case.outcome.judgement()?.decided_by?)
}

/// A program's words without what a terminal would obey: a message may hold any character.
fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// A function's qualified name without template arguments, parameters and what surrounds it: a column is narrow.
fn qualified_name(symbol: &str) -> String {
    let mut plain = String::new();
    let mut depth = 0usize;
    // `operator<` and `operator->` have brackets in their names.
    let text = symbol.replace("(anonymous namespace)::", "").replace("operator()", "operator call");
    for c in text.chars() {
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            '(' if depth == 0 => break,
            c if depth == 0 => plain.push(c),
            _ => {}
        }
    }
    // A template's name begins with its return type.
    let name = plain.trim().replace("operator call", "operator()");
    let name = name.rsplit(' ').next().unwrap_or_default();
    if name.is_empty() { symbol.to_string() } else { name.to_string() }
}

/// The kernel's bare name, for a narrow column: without its namespace too.
fn short_kernel(name: &str) -> String {
    let qualified = qualified_name(name);
    qualified.rsplit("::").next().filter(|last| !last.is_empty()).unwrap_or(name).to_string()
}

/// `5.2 s`, `310 ms`.
fn seconds(s: f64) -> String {
    if s < 0.9995 { format!("{:.0} ms", s * 1000.0) } else { format!("{s:.1} s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_shortened_to_their_names() {
        for (long, short) in [
            ("nll_loss_forward_reduce_cuda_kernel_2d", "nll_loss_forward_reduce_cuda_kernel_2d"),
            (
                "void at::native::(anonymous namespace)::indexSelectSmallIndex<float, long, (int)2>(at::cuda::detail::TensorInfo<T1, T3>)",
                "indexSelectSmallIndex",
            ),
            ("operator()", "operator()"),
            ("<x>", "<x>"),
        ] {
            assert_eq!(short_kernel(long), short);
        }
    }

    #[test]
    fn outputs_name_a_format_and_perhaps_a_file() {
        assert_eq!("json:a:b.json".parse(), Ok(Output { format: ReportFormat::Json, path: Some("a:b.json".into()) }));
        assert!(
            "jsn".parse::<Output>().is_err_and(|e| e.contains("possible: terminal, json, junit, markdown, scoreboard"))
        );
        assert!("json:".parse::<Output>().is_err());
    }
}
