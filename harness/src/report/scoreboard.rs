//! Which tool names what, in which mode, at what cost: one table over all scenarios of a run. Computed from [`Run`]
//! alone.
//!
//! A ratio compares a case with plain async: `bare` in async mode on the same program in the same run. Only cases
//! that were judged count on either side: the time of a tool that was off, or that was killed at its deadline, is no
//! cost of the tool.

mod markdown;
mod terminal;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::collections::BTreeSet;

pub(super) use markdown::render as markdown;
pub(super) use terminal::render as terminal;

use crate::case::{CaseId, Claim, Mode, Outcome, Subject, TruthLine, Verdict};
use crate::finding::{Finding, FindingKind};
use crate::results::{CaseResult, ProcessView, Run, ScenarioView};
use crate::scenario::Place;

/// The tool of which, in async mode, the ratios are ratios.
const BASELINE: &str = "bare";

/// The table.
#[derive(Debug, PartialEq)]
pub(super) struct Scoreboard {
    /// Best tools first: by exact rate in async mode, then by cost; async before sync.
    rows: Vec<Row>,
    /// The same tools in the same order, without those that were judged on no faulty program.
    facets: Vec<ToolFacets>,
    /// What bears on how far the ratios can be trusted.
    caution: Option<String>,
}

/// A tool in a mode.
#[derive(Debug, PartialEq)]
struct Row {
    tool: String,
    mode: Mode,
    counts: Counts,
    time: Option<Ratio>,
    host_memory: Option<Ratio>,
    gpu_memory: Option<Ratio>,
}

/// What became of a row's cases: each is counted once.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    exact_fault: usize,
    exact_root: usize,
    enclosing: usize,
    kernel_only: usize,
    wrong_place: usize,
    undetected: usize,
    masked: usize,
    false_alarm: usize,
    clean: usize,
    inactive: usize,
    /// The tool or the harness failed, or nothing was understood.
    failed: usize,
    timed_out: usize,
    skipped: usize,
    unfinished: usize,
    /// Cases that could run and were judged. A fault that the tool masked, and a deadline that the scenario expects,
    /// are judgements too.
    judged: usize,
    /// Of the faulty programs.
    planned_program: usize,
    planned: usize,
}

/// A median with what it is a median of.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Ratio {
    median: f64,
    of: usize,
}

/// A facet of a place that a tool can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Facet {
    /// The true line of the program, while the program stays asynchronous.
    AsyncLine,
    Value,
    Kernel,
    DeviceLine,
    Module,
    NativeFrame,
}

impl Facet {
    const ALL: [Self; 6] =
        [Self::AsyncLine, Self::Value, Self::Kernel, Self::DeviceLine, Self::Module, Self::NativeFrame];

    fn name(self) -> &'static str {
        match self {
            Self::AsyncLine => "line in async",
            Self::Value => "value",
            Self::Kernel => "kernel",
            Self::DeviceLine => "device line",
            Self::Module => "module",
            Self::NativeFrame => "native frame",
        }
    }
}

/// On how many scenarios a tool gave each facet correctly, in either mode.
#[derive(Debug, PartialEq)]
struct ToolFacets {
    tool: String,
    /// Scenarios on whose faulty program it was judged.
    scenarios: usize,
    /// By [`Facet::ALL`].
    given: [usize; Facet::ALL.len()],
    /// Facets that no other tool of the run gave there, with the scenarios.
    alone: Vec<(Facet, Vec<String>)>,
}

/// Is there enough to compare? A run of two scenarios under three tools is seen at a glance.
pub(super) fn is_worthwhile(run: &Run) -> bool {
    run.scenarios.len() > 2 || tools(run).len() > 3
}

impl Scoreboard {
    pub(super) fn of(run: &Run) -> Self {
        let mut rows: Vec<Row> = Vec::new();
        for case in ids(run) {
            if !rows.iter().any(|r| r.tool == case.tool && r.mode == case.mode) {
                rows.push(Row::of(run, &case.tool, case.mode));
            }
        }
        let mut order = tools(run);
        // The sort is stable: tools that are equal stay in the order of the plan.
        order.sort_by(|a, b| standing(&rows, a).compare(&standing(&rows, b)));
        let place = |row: &Row| (order.iter().position(|tool| *tool == row.tool), row.mode);
        rows.sort_by_key(place);
        Self { facets: facets(run, &order), rows, caution: caution(run) }
    }
}

/// Every case of the plan.
fn ids(run: &Run) -> impl Iterator<Item = &CaseId> {
    run.cases.iter().map(|c| &c.case).chain(&run.unfinished)
}

/// In the order of the plan.
fn tools(run: &Run) -> Vec<String> {
    let mut tools: Vec<String> = Vec::new();
    for case in ids(run) {
        if !tools.contains(&case.tool) {
            tools.push(case.tool.clone());
        }
    }
    tools
}

fn caution(run: &Run) -> Option<String> {
    if run.is_replay() {
        return Some(
            "These are recorded captures; cases that ran side by side shared their machine, so the ratios are only \
             indicative."
                .into(),
        );
    }
    (run.settings.jobs > 1).then(|| {
        format!(
            "Up to {} cases shared the machine, so the ratios are only indicative: `--jobs 1` or `faultlab bench` \
             measures cost.",
            run.settings.jobs
        )
    })
}

impl Row {
    fn of(run: &Run, tool: &str, mode: Mode) -> Self {
        let own = |case: &CaseId| case.tool == tool && case.mode == mode;
        let cases: Vec<&CaseResult> = run.cases.iter().filter(|c| own(&c.case)).collect();
        let unfinished: Vec<&CaseId> = run.unfinished.iter().filter(|c| own(c)).collect();
        let mut counts = Counts {
            unfinished: unfinished.len(),
            planned: cases.len() + unfinished.len(),
            planned_program: cases
                .iter()
                .map(|c| &c.case)
                .chain(unfinished)
                .filter(|c| c.subject == Subject::Program)
                .count(),
            ..Counts::default()
        };
        for case in &cases {
            counts.add(case);
        }
        let ratio = |of: fn(&ProcessView) -> Option<f64>| {
            median(cases.iter().filter_map(|case| {
                let base = run.cases.iter().find(|c| {
                    let (a, b) = (&c.case, &case.case);
                    a.tool == BASELINE && a.mode == Mode::Async && a.scenario == b.scenario && a.subject == b.subject
                })?;
                if !is_judged(case) || !is_judged(base) {
                    return None;
                }
                let (cost, base) = (of(case.process.as_ref()?)?, of(base.process.as_ref()?)?);
                (base > 0.0).then_some(cost / base)
            }))
        };
        Self {
            tool: tool.into(),
            mode,
            counts,
            time: ratio(|p| Some(p.elapsed_s)),
            host_memory: ratio(|p| p.peak_rss_bytes.map(|b| b as f64)),
            gpu_memory: ratio(|p| p.peak_gpu_bytes.map(|b| b as f64)),
        }
    }

    /// Of the faulty programs of the plan: one that a tool cannot run on is one that it does not name.
    fn exact_rate(&self) -> f64 {
        let exact = self.counts.exact_fault + self.counts.exact_root;
        exact as f64 / self.counts.planned_program.max(1) as f64
    }

    /// Cases that could run and were judged, of the planned ones.
    fn support(&self) -> f64 {
        self.counts.judged as f64 / self.counts.planned.max(1) as f64
    }
}

fn is_judged(case: &CaseResult) -> bool {
    match &case.outcome {
        Outcome::Judged(_) | Outcome::FaultMasked { .. } => true,
        Outcome::TimedOut { .. } => case.expected == Some(Claim::TimedOut),
        _ => false,
    }
}

impl Counts {
    fn add(&mut self, case: &CaseResult) {
        self.judged += usize::from(is_judged(case));
        let count = match &case.outcome {
            Outcome::Judged(j) => match j.verdict {
                Verdict::Exact(TruthLine::Fault) => &mut self.exact_fault,
                Verdict::Exact(TruthLine::Root) => &mut self.exact_root,
                Verdict::Enclosing => &mut self.enclosing,
                Verdict::KernelOnly => &mut self.kernel_only,
                Verdict::WrongPlace => &mut self.wrong_place,
                Verdict::Undetected => &mut self.undetected,
                Verdict::FalseAlarm => &mut self.false_alarm,
                Verdict::CleanAsExpected => &mut self.clean,
            },
            Outcome::FaultMasked { .. } => &mut self.masked,
            Outcome::ToolInactive { .. } => &mut self.inactive,
            Outcome::ToolFailed { .. } | Outcome::ParseFailed { .. } | Outcome::Infra { .. } => &mut self.failed,
            Outcome::TimedOut { .. } => &mut self.timed_out,
            Outcome::Skipped { .. } => &mut self.skipped,
        };
        *count += 1;
    }
}

/// The middle value; of an even number the mean of the two in the middle.
fn median(values: impl Iterator<Item = f64>) -> Option<Ratio> {
    let values: Vec<f64> = values.collect();
    Some(Ratio { median: crate::stats::median(&values)?, of: values.len() })
}

/// What tools are ordered by.
struct Standing {
    /// Exact rate and cost in async mode, then the same in sync mode.
    modes: [(f64, Option<f64>); 2],
}

fn standing(rows: &[Row], tool: &str) -> Standing {
    let of = |mode| {
        let row = rows.iter().find(|r| r.tool == tool && r.mode == mode);
        row.map_or((0.0, None), |r| (r.exact_rate(), r.time.map(|t| t.median)))
    };
    Standing { modes: [of(Mode::Async), of(Mode::Sync)] }
}

impl Standing {
    fn compare(&self, other: &Self) -> Ordering {
        let costs = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            // What was not measured comes last.
            (a, b) => b.is_some().cmp(&a.is_some()),
        };
        self.modes.iter().zip(&other.modes).fold(Ordering::Equal, |order, (a, b)| {
            order.then_with(|| b.0.total_cmp(&a.0)).then_with(|| costs(a.1, b.1))
        })
    }
}

fn facets(run: &Run, tools: &[String]) -> Vec<ToolFacets> {
    // Who gave what where.
    let mut given: Vec<(&str, &str, Facet)> = Vec::new();
    let mut judged: BTreeSet<(&str, &str)> = BTreeSet::new();
    for case in run.cases.iter().filter(|c| c.case.subject == Subject::Program) {
        let Some(scenario) = run.scenarios.iter().find(|s| s.id == case.case.scenario) else { continue };
        if is_judged(case) {
            judged.insert((&case.case.tool, &scenario.id));
        }
        for facet in given_by(case, scenario) {
            let entry = (case.case.tool.as_str(), scenario.id.as_str(), facet);
            if !given.contains(&entry) {
                given.push(entry);
            }
        }
    }
    let row = |tool: &String| {
        let scenarios = |facet: Facet| {
            given.iter().filter(move |(t, _, f)| t == tool && *f == facet).map(|(_, scenario, _)| *scenario)
        };
        let alone =
            |scenario: &&str, facet: Facet| !given.iter().any(|(t, s, f)| t != tool && s == scenario && *f == facet);
        ToolFacets {
            tool: tool.clone(),
            scenarios: judged.iter().filter(|(t, _)| t == tool).count(),
            given: Facet::ALL.map(|facet| scenarios(facet).count()),
            alone: Facet::ALL
                .iter()
                .map(|facet| (*facet, scenarios(*facet).filter(|s| alone(s, *facet)).map(String::from).collect()))
                .filter(|(_, scenarios): &(Facet, Vec<String>)| tools.len() > 1 && !scenarios.is_empty())
                .collect(),
        }
    };
    tools.iter().map(row).filter(|row| row.scenarios > 0).collect()
}

/// The facets that a case gave correctly. The truth has lines and a kernel; the other facets count where they come
/// with a true line or with the true kernel, in one statement of the tool.
fn given_by(case: &CaseResult, scenario: &ScenarioView) -> BTreeSet<Facet> {
    let mut facets = BTreeSet::new();
    let Some(judgement) = case.outcome.judgement() else { return facets };
    let exact = matches!(judgement.verdict, Verdict::Exact(_));
    if exact && case.case.mode == Mode::Async {
        facets.insert(Facet::AsyncLine);
    }
    let kernel = judgement.kernel.as_ref().filter(|k| k.right == Some(true));
    if kernel.is_some() {
        facets.insert(Facet::Kernel);
    }
    let is_true = |f: &Finding| {
        let line = f.location.innermost_own().map(|(file, line)| Place { file: file.into(), line });
        let names_kernel = f.location.kernel.as_ref().zip(kernel).is_some_and(|(a, b)| a.name == b.name);
        names_kernel || line.is_some_and(|line| line == scenario.fault || line == scenario.root)
    };
    for finding in case.findings.iter().filter(|f| f.kind.is_claim() && is_true(f)) {
        let location = &finding.location;
        facets.extend((!location.values.is_empty()).then_some(Facet::Value));
        facets.extend(location.device.is_some().then_some(Facet::DeviceLine));
        facets.extend(location.module.is_some().then_some(Facet::Module));
        facets.extend((!location.native.is_empty()).then_some(Facet::NativeFrame));
    }
    // A C++ stack by itself is that of the error that ended the program: right where this error names the fault.
    let decided = judgement.decided_by.and_then(|at| case.findings.get(at));
    let by_error = decided.is_some_and(|f| f.kind == FindingKind::Exception);
    let stack = case.findings.iter().any(|f| f.kind == FindingKind::NativeStack);
    if judgement.verdict == Verdict::Exact(TruthLine::Fault) && by_error && stack {
        facets.insert(Facet::NativeFrame);
    }
    facets
}

/// `12.3x`, `1.04x`
fn times(ratio: Option<Ratio>) -> String {
    ratio.map_or_else(|| "-".into(), |r| crate::stats::times(r.median))
}

/// `83%`
fn percent(rate: f64) -> String {
    format!("{:.0}%", rate * 100.0)
}

/// What stands below the table, in either format.
fn legend(board: &Scoreboard) -> Vec<String> {
    let mut lines = vec![
        "exact: of the faulty programs planned. support: cases that could run and were judged, of those planned. \
         Ratios: medians over the scenarios, against bare async of the same program in this run."
            .to_string(),
    ];
    lines.extend(board.caution.clone());
    lines
}

/// `kernel on a, b; value on c`
fn alone(facets: &ToolFacets) -> String {
    let parts: Vec<String> =
        facets.alone.iter().map(|(facet, scenarios)| format!("{} on {}", facet.name(), scenarios.join(", "))).collect();
    parts.join("; ")
}

/// A column of counts: its heading, and its number in a row.
type Column = (&'static str, fn(&Counts) -> usize);

const COLUMNS: [Column; 13] = [
    ("fault", |c| c.exact_fault),
    ("root", |c| c.exact_root),
    ("enclosing", |c| c.enclosing),
    ("kernel only", |c| c.kernel_only),
    ("wrong place", |c| c.wrong_place),
    ("undetected", |c| c.undetected),
    ("fault masked", |c| c.masked),
    ("false alarm", |c| c.false_alarm),
    ("inactive", |c| c.inactive),
    ("failed", |c| c.failed),
    ("timed out", |c| c.timed_out),
    ("skipped", |c| c.skipped),
    ("unfinished", |c| c.unfinished),
];
