//! `faultlab bench`: what tools cost on training loops.

use std::time::Duration;

use super::args::{BenchArgs, BenchFormat, DeviceChoice, ModeChoice};
use super::choose::local_with;
use super::output::Terminal;
use super::run::stoppable;
use super::{CliError, Status};
use crate::backend::Backend;
use crate::bench::program::{self, Program};
use crate::bench::run::{Event, Request, bench};
use crate::bench::{BASELINE, Bench, ProgramBench, Trouble, cores, report};
use crate::case::{Device, Mode};
use crate::tool::{self, Tool};

/// What people make claims about, and what else tells more of an asynchronous fault than the program itself does.
const USUAL: [(&str, Mode); 8] = [
    (BASELINE, Mode::Sync),
    ("recorder", Mode::Async),
    ("coredump", Mode::Async),
    ("op-log", Mode::Async),
    ("profiler", Mode::Async),
    ("cpp-stacktraces", Mode::Async),
    ("cpp-log", Mode::Async),
    ("anomaly", Mode::Async),
];

pub(super) async fn run(args: BenchArgs, terminal: &Terminal) -> Result<Status, CliError> {
    let contenders = contenders(&args.tool, args.mode)?;
    let programs = programs(&args.program)?;
    let local = local_with(&args.python).await?;
    let host = local.host().clone();
    let device = match args.device {
        DeviceChoice::Cpu => Device::Cpu,
        DeviceChoice::Auto | DeviceChoice::Cuda => match &host.gpus {
            Ok(_) => Device::Cuda,
            Err(missing) => {
                return Err(CliError::Infra(format!("no GPU: {missing}; `--device cpu` tries it without one")));
            }
        },
    };
    let folder = tempfile::Builder::new().prefix("faultlab-bench-").tempdir();
    let folder = folder.map_err(|e| CliError::Infra(format!("failed to make a temporary folder: {e}")))?;
    let request = Request {
        programs,
        contenders,
        rounds: args.rounds,
        windows: args.windows,
        iters: args.iters,
        device,
        pinned: cores::pin(&args.cores.unwrap_or_default()).map_err(CliError::Usage)?,
        budget: args.budget.map(Duration::from_secs_f64),
        timeout: Duration::from_secs_f64(args.timeout),
        folder: folder.path().into(),
        backend: Backend::Local(Box::new(local)),
    };
    let measured = stoppable(terminal, |stop| async {
        let observe = |event: Event<'_>| terminal.say(&progress(&event, request.rounds));
        let failed = |e: std::io::Error| CliError::Infra(format!("failed to write the programs: {e}"));
        bench(&request, &host, stop, observe).await.map_err(failed)
    })
    .await?;
    let text = match args.format {
        BenchFormat::Terminal => report::terminal(&measured, terminal.width()),
        BenchFormat::Markdown => report::markdown(&measured),
        BenchFormat::Json => report::json(&measured),
    };
    terminal.print(text.trim_end())?;
    Ok(status(&measured))
}

fn progress(event: &Event<'_>, rounds: u32) -> String {
    let Event { program, round, row } = event;
    let became = match (&row.trouble, row.samples.last().and_then(crate::bench::Sample::ms_per_iteration)) {
        (Some(trouble), _) => format!("{}: {}", trouble.label(), trouble.reason()),
        (None, Some(ms)) => format!("{ms:.2} ms/iter"),
        (None, None) => "no figure".into(),
    };
    format!("round {round}/{rounds}  {program} {} {}: {became}", row.tool, row.mode)
}

/// Without plain async nothing is known; a tool that was off, or that failed, is not as expected. A tool that cannot
/// run here, or that is slower than the deadline allows, is.
fn status(bench: &Bench) -> Status {
    let lacks_base = |p: &ProgramBench| p.row(BASELINE, Mode::Async).is_none_or(|r| r.samples.is_empty());
    let went_wrong = |t: &Trouble| matches!(t, Trouble::Inactive(_) | Trouble::Failed(_));
    if bench.stopped || bench.programs.iter().any(lacks_base) {
        Status::Infra
    } else if bench.programs.iter().flat_map(|p| &p.rows).any(|r| r.trouble.as_ref().is_some_and(went_wrong)) {
        Status::Differs
    } else {
        Status::Met
    }
}

/// `T` in the modes asked for, `T.async` or `T.sync` in one of them.
fn contenders(ids: &[String], mode: ModeChoice) -> Result<Vec<(&'static dyn Tool, Mode)>, CliError> {
    if ids.is_empty() {
        return Ok(USUAL.into_iter().filter_map(|(id, mode)| Some((tool::find(id)?, mode))).collect());
    }
    let mut contenders = Vec::new();
    for id in ids {
        let (id, modes) = match id.rsplit_once('.') {
            Some((id, "async")) => (id, vec![Mode::Async]),
            Some((id, "sync")) => (id, vec![Mode::Sync]),
            _ => (id.as_str(), mode.modes()),
        };
        let tools = match (id, tool::find(id)) {
            ("all", _) => tool::ALL.to_vec(),
            (_, Some(tool)) => vec![tool],
            (_, None) => {
                let known: Vec<&str> = tool::ALL.iter().map(|t| t.id()).collect();
                return Err(CliError::Usage(format!("there is no tool `{id}`; there are: {}", known.join(", "))));
            }
        };
        for tool in tools {
            contenders.extend(modes.iter().map(|mode| (tool, *mode)));
        }
    }
    Ok(contenders)
}

fn programs(names: &[String]) -> Result<Vec<Program>, CliError> {
    let mut chosen: Vec<Program> = Vec::new();
    for name in names {
        let Some(program) = program::ALL.into_iter().find(|p| p.name == name) else {
            let known: Vec<&str> = program::ALL.iter().map(|p| p.name).collect();
            return Err(CliError::Usage(format!("there is no program `{name}`; there are: {}", known.join(", "))));
        };
        if !chosen.contains(&program) {
            chosen.push(program);
        }
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_may_name_its_mode() {
        let chosen = |ids: &[&str], mode| -> Vec<String> {
            let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
            let found = contenders(&ids, mode).unwrap();
            found.into_iter().map(|(tool, mode)| format!("{}.{mode}", tool.id())).collect()
        };
        assert_eq!(chosen(&["bare.sync", "anomaly"], ModeChoice::Async), ["bare.sync", "anomaly.async"]);
        assert_eq!(chosen(&["anomaly"], ModeChoice::Both), ["anomaly.async", "anomaly.sync"]);
        assert!(chosen(&[], ModeChoice::Async).contains(&"bare.sync".to_string()));
        // A misspelt id would be left out without a word.
        assert_eq!(chosen(&[], ModeChoice::Async).len(), USUAL.len());
        assert!(contenders(&["no-such.sync".into()], ModeChoice::Async).is_err());
        assert!(programs(&["gpt".into()]).is_err());
    }
}
