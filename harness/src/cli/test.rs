//! `faultlab test`: golden captures to reports, reports against their snapshots.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use similar::{ChangeTag, TextDiff};

use super::args::TestArgs;
use super::output::Terminal;
use super::{CliError, Status};
use crate::assets::Assets;
use crate::golden::{self, Comparison};

const ADDED: Style = AnsiColor::Green.on_default();
const REMOVED: Style = AnsiColor::Red.on_default();

/// Lines of a difference that are shown; the files have the rest.
const SHOWN: usize = 60;

pub(super) fn test(assets: &Assets, args: &TestArgs, terminal: &Terminal) -> Result<Status, CliError> {
    let Some(snapshots) = &assets.snapshots else {
        return Err(CliError::Usage("snapshots are part of a checkout: call it there, or name one with --root".into()));
    };
    let reports = golden::reports(&assets.scenarios, &assets.captures)?;
    if reports.is_empty() {
        return Err(CliError::Infra(
            "there are no captures: `faultlab record --all` on a machine with a GPU writes them".into(),
        ));
    }
    let mut differing = 0;
    for report in &reports {
        let comparison = golden::compare(report, snapshots)?;
        if comparison == Comparison::Same {
            continue;
        }
        if args.bless {
            golden::bless(report, snapshots)?;
            terminal.print(&format!("blessed {}/{}", report.stack, report.name))?;
            continue;
        }
        differing += 1;
        match comparison {
            Comparison::Differs(old) => {
                terminal.print(&format!(
                    "{}/{} differs from its snapshot:\n{}",
                    report.stack,
                    report.name,
                    diff(&old, &report.text)
                ))?;
            }
            _ => terminal.print(&format!("{}/{} has no snapshot yet", report.stack, report.name))?,
        }
    }
    for orphan in golden::orphans(&reports, snapshots) {
        if args.bless {
            std::fs::remove_file(&orphan)
                .map_err(|e| CliError::Write { what: orphan.display().to_string(), why: e.to_string() })?;
            terminal.print(&format!("removed {}: nothing makes it any more", orphan.display()))?;
        } else {
            differing += 1;
            terminal.print(&format!("{} belongs to no report", orphan.display()))?;
        }
    }
    let stacks: std::collections::BTreeSet<&str> = reports.iter().map(|r| r.stack.as_str()).collect();
    terminal.print(&format!("{} reports of {} stack(s): {differing} differ", reports.len(), stacks.len()))?;
    if differing > 0 {
        terminal.print(
            "If the new reports are right, make them the snapshots: `faultlab test --bless`, or `cargo insta review`.",
        )?;
        return Ok(Status::Differs);
    }
    Ok(Status::Met)
}

/// Changed lines with two of their neighbours.
fn diff(old: &str, new: &str) -> String {
    let diff = TextDiff::from_lines(old.trim(), new.trim());
    let mut text = String::new();
    let mut lines = 0;
    for group in diff.grouped_ops(2) {
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            lines += 1;
            let (sign, style) = match change.tag() {
                ChangeTag::Delete => ('-', REMOVED),
                ChangeTag::Insert => ('+', ADDED),
                ChangeTag::Equal => (' ', Style::new()),
            };
            if lines <= SHOWN {
                let _ = writeln!(text, "{style}{sign} {}{style:#}", change.value().trim_end_matches('\n'));
            }
        }
    }
    if lines > SHOWN {
        let _ = writeln!(text, "… and {} more lines", lines - SHOWN);
    }
    text
}
