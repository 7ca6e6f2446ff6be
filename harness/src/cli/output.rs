//! Writing: reports to standard output or files, everything else to standard error.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;

use super::CliError;
use super::args::ColorChoice;
use crate::report::{Layout, Output, ReportFormat};
use crate::results::Run;

/// Where output goes, and what may go there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terminal {
    colour: bool,
    colour_stderr: bool,
    width: Option<usize>,
}

impl Terminal {
    /// Looks at the streams and at `NO_COLOR`, `CLICOLOR_FORCE` and `TERM`.
    pub(super) fn detect() -> Self {
        let choice = |stream: &dyn Fn() -> anstream::ColorChoice| stream() != anstream::ColorChoice::Never;
        Self {
            colour: choice(&|| anstream::AutoStream::choice(&io::stdout())),
            colour_stderr: choice(&|| anstream::AutoStream::choice(&io::stderr())),
            width: terminal_size::terminal_size().map(|(width, _)| usize::from(width.0)),
        }
    }

    pub(super) fn coloured(self, choice: ColorChoice) -> Self {
        match choice {
            ColorChoice::Auto => self,
            ColorChoice::Always => Self { colour: true, colour_stderr: true, ..self },
            ColorChoice::Never => Self { colour: false, colour_stderr: false, ..self },
        }
    }

    /// Columns for reports: those of the terminal, within reason.
    pub(super) fn width(&self) -> usize {
        self.width.map_or(Layout::default().width, |w| w.clamp(40, 160))
    }

    /// Is standard error a place for a bar that redraws itself?
    pub(super) fn progress_bar() -> bool {
        io::stderr().is_terminal()
    }

    /// A line, or several, on standard output. A reader that has had enough is no error.
    pub(super) fn print(&self, text: &str) -> Result<(), CliError> {
        let text = if self.colour { text.to_string() } else { anstream::adapter::strip_str(text).to_string() };
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()) {
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
                Err(CliError::Write { what: "to standard output".into(), why: e.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// A line, or several, on standard error. Nothing can be done where that fails.
    pub(super) fn say(&self, text: &str) {
        let text = if self.colour_stderr { text.to_string() } else { anstream::adapter::strip_str(text).to_string() };
        let _ = writeln!(io::stderr().lock(), "{}", text.trim_end());
    }
}

/// Before anything runs: can the reports be written where they are wanted?
pub(super) fn writable<F>(outputs: &[Output<F>]) -> Result<(), CliError> {
    match outputs.iter().find_map(Output::obstacle) {
        Some(why) => Err(CliError::Usage(format!("--format: {why}"))),
        None => Ok(()),
    }
}

/// Writes each report where it belongs.
pub(super) fn write_reports(run: &Run, outputs: &[Output], terminal: &Terminal) -> Result<(), CliError> {
    for output in outputs {
        match &output.path {
            None => {
                let text = output.format.render(run, Layout { width: terminal.width() });
                terminal.print(text.strip_suffix('\n').unwrap_or(&text))?;
            }
            Some(path) => write_file(path, output.format, run)?,
        }
    }
    Ok(())
}

/// A file gets the default layout and no colours: it is the same wherever it is written.
fn write_file(path: &Path, format: ReportFormat, run: &Run) -> Result<(), CliError> {
    let text = anstream::adapter::strip_str(&format.render(run, Layout::default())).to_string();
    std::fs::write(path, text).map_err(|e| CliError::Write { what: path.display().to_string(), why: e.to_string() })
}
