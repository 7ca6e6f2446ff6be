//! For issues and chats: GitHub-flavoured Markdown.

use std::fmt::Write as _;

use super::{harmless, replay_notice, scoreboard, seconds, short_kernel};
use crate::case::{Mode, Subject, Verdict};
use crate::results::{CaseResult, Run, ScenarioView, Standing};

pub(super) fn render(run: &Run) -> String {
    let mut out = String::from("# faultlab report\n\n");
    if let Some(notice) = replay_notice(run) {
        let _ = writeln!(out, "> **{}**", escape(&notice));
    } else {
        let settings = &run.settings;
        let _ = writeln!(
            out,
            "Run on {} ({} backend: {}).",
            escape(&settings.stack.to_string()),
            settings.backend,
            escape(&settings.backend_reason)
        );
    }
    for scenario in &run.scenarios {
        scenario_report(&mut out, run, scenario);
    }
    if scoreboard::is_worthwhile(run) {
        let _ = write!(out, "\n{}", scoreboard::markdown(&scoreboard::Scoreboard::of(run)));
    }
    let met = run.cases.iter().filter(|c| c.standing() == Standing::Met).count();
    let _ = writeln!(out, "\n{met} of {} cases as expected.", run.cases.len() + run.unfinished.len());
    if !run.unfinished.is_empty() {
        out.push_str("\nThe run was interrupted before these came to an end:\n\n");
        for case in &run.unfinished {
            let _ = writeln!(out, "- {case}");
        }
    }
    out
}

fn scenario_report(out: &mut String, run: &Run, scenario: &ScenarioView) {
    let _ = writeln!(out, "\n## `{}`: {}\n\n{}\n", scenario.id, escape(&scenario.title), escape(scenario.story.trim()));
    out.push_str("| tool | mode | program | verdict | named line | kernel | time |\n|---|---|---|---|---|---|---|\n");
    let cases: Vec<&CaseResult> = run.cases.iter().filter(|c| c.case.scenario == scenario.id).collect();
    for case in &cases {
        row(out, case);
    }
    for case in &cases {
        if let (None, Some(reason)) = (case.outcome.judgement(), case.outcome.reason()) {
            let _ = writeln!(out, "\n- {}: {}", case.case, escape(&reason));
        }
    }
    let code = |out: &mut String, line: u32| {
        let text = scenario.program.source.lines().nth(line as usize - 1).unwrap_or_default();
        // A fence longer than any run of backticks in the line cannot be closed by it.
        let fence = "`".repeat(3.max(text.split(|c| c != '`').map(str::len).max().unwrap_or(0) + 1));
        let _ = writeln!(out, "\n{fence}python\n{}\n{fence}", harmless(text.trim()));
    };
    let _ = writeln!(out, "\nThe line that faults, {}:", scenario.fault);
    code(out, scenario.fault.line);
    if scenario.root != scenario.fault {
        let _ = writeln!(out, "\nWhere the bad value is made, {}:", scenario.root);
        code(out, scenario.root.line);
    }
    let blamed =
        cases.iter().filter(|c| c.case.mode == Mode::Async && c.case.subject == Subject::Program).find_map(|c| {
            let judgement = c.outcome.judgement().filter(|j| j.verdict == Verdict::WrongPlace)?;
            Some((judgement.named.as_ref()?, &c.case.tool))
        });
    if let Some((place, tool)) = blamed {
        let _ = writeln!(out, "\nWhat the async traceback blamed ({tool}), {place}:");
        code(out, place.line);
    }
    let _ = writeln!(out, "\n**The fix.** {}", escape(scenario.fix.trim()));
}

fn row(out: &mut String, case: &CaseResult) {
    let judgement = case.outcome.judgement();
    let named = judgement.and_then(|j| j.named.as_ref()).map_or("-".into(), |p| format!("`{p}`"));
    let kernel =
        judgement.and_then(|j| j.kernel.as_ref()).map_or("-".into(), |k| format!("`{}`", short_kernel(&k.name)));
    let time = case.process.as_ref().map_or("-".into(), |p| seconds(p.elapsed_s));
    let expected = match (case.standing(), case.expected) {
        (Standing::Differs, Some(claim)) => format!(" (expected: {claim})"),
        _ => String::new(),
    };
    let program = match case.case.subject {
        Subject::Program => "faulty",
        Subject::Twin => "fixed",
    };
    let (tool, mode, verdict) = (&case.case.tool, case.case.mode, case.outcome.label());
    let _ = writeln!(out, "| {tool} | {mode} | {program} | {verdict}{expected} | {named} | {kernel} | {time} |");
}

/// Text that must not be read as markup.
pub(super) fn escape(text: &str) -> String {
    harmless(text).chars().fold(String::new(), |mut escaped, c| {
        if matches!(c, '\\' | '`' | '*' | '_' | '<' | '>' | '|' | '[' | ']' | '#') {
            escaped.push('\\');
        }
        escaped.push(c);
        escaped
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn text_is_not_markup() {
        assert_eq!(super::escape("a|b <c> `d` _e_"), r"a\|b \<c\> \`d\` \_e\_");
    }
}
