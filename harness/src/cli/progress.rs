//! What is seen of a run while it goes on: a bar at a terminal, a line for each finished case elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::output::Terminal;
use crate::case::CaseId;
use crate::run::Event;

/// Follows a run.
pub(super) struct Progress<'a> {
    terminal: &'a Terminal,
    bar: ProgressBar,
    total: usize,
    finished: usize,
    running: Vec<CaseId>,
}

impl<'a> Progress<'a> {
    /// `total` cases are to come.
    pub(super) fn new(terminal: &'a Terminal, total: usize) -> Self {
        let bar = if Terminal::progress_bar() {
            ProgressBar::with_draw_target(Some(total as u64), ProgressDrawTarget::stderr())
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len}  {elapsed}  {wide_msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(std::time::Duration::from_millis(200));
        Self { terminal, bar, total, finished: 0, running: Vec::new() }
    }

    /// Takes an event in.
    pub(super) fn observe(&mut self, event: &Event<'_>) {
        match event {
            Event::Started(case) => self.running.push((*case).clone()),
            Event::Finished(result) => {
                self.finished += 1;
                self.running.retain(|case| *case != result.case);
                self.bar.inc(1);
                if self.bar.is_hidden() {
                    let time = result.process.as_ref().map(|p| format!(" ({:.1} s)", p.elapsed_s)).unwrap_or_default();
                    self.terminal.say(&format!(
                        "[{}/{}] {}: {}{time}",
                        self.finished,
                        self.total,
                        result.case,
                        result.outcome.label()
                    ));
                }
            }
        }
        let running: Vec<String> = self.running.iter().map(ToString::to_string).collect();
        self.bar.set_message(running.join(" | "));
    }

    /// Takes the bar away.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
