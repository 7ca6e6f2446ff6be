//! Runs a benchmark: each process goes the way of a case, through the tool's own command, the local backend and its
//! supervisor, and the tool's own proof of activity.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::watch;

use super::program::{self, Program};
use super::{BASELINE, Bench, ProgramBench, Row, SCHEMA_VERSION, Sample, Trouble, order};
use crate::backend::{Backend, BackendError, Job};
use crate::capture::{Capture, Exit};
use crate::case::{CaseId, Device, Mode, Subject};
use crate::host::{Host, Need};
use crate::plan::obstacle;
use crate::scenario::{self, CpuBehaviour, FaultClass, Place, Scenario, Truth};
use crate::tool::{Activity, Tool};

/// Bytes of each stream to keep: the program prints one line, a tool perhaps thousands.
const OUTPUT_CAP: usize = 4 << 20;

/// What to measure.
pub struct Request {
    /// The training loops.
    pub programs: Vec<Program>,
    /// Beside plain async, which is always measured.
    pub contenders: Vec<(&'static dyn Tool, Mode)>,
    /// How often.
    pub rounds: u32,
    /// Timed windows of a process.
    pub windows: u32,
    /// Iterations in a window; `None`: what suits the program.
    pub iters: Option<u32>,
    /// Where the tensors live.
    pub device: Device,
    /// The cores that this process is kept on.
    pub pinned: Option<Vec<usize>>,
    /// No round begins that would end later.
    pub budget: Option<Duration>,
    /// Of one process.
    pub timeout: Duration,
    /// A place for programs and working directories.
    pub folder: PathBuf,
    /// The machine, as the backend sees it.
    pub backend: Backend,
}

/// What an observer is told.
#[derive(Debug)]
pub struct Event<'a> {
    /// Which program.
    pub program: &'a str,
    /// 1-based.
    pub round: u32,
    /// The tool, its mode, and what has become of it.
    pub row: &'a Row,
}

/// Measures, round by round. When `stop` becomes true, the process that is running is killed and the rest is left out.
pub async fn bench(
    request: &Request,
    host: &Host,
    stop: watch::Receiver<bool>,
    mut observe: impl FnMut(Event<'_>),
) -> io::Result<Bench> {
    let contenders = contenders(request);
    let (scenarios, programs) = prepared(request, &contenders, host)?;
    let mut bench = Bench {
        schema_version: SCHEMA_VERSION,
        faultlab: env!("CARGO_PKG_VERSION").into(),
        started: Timestamp::now(),
        device: request.device,
        stack: host.stack(request.device),
        cores: std::thread::available_parallelism().ok().map(usize::from),
        pinned: request.pinned.clone(),
        rounds: request.rounds,
        windows: request.windows,
        programs,
        left_out: Vec::new(),
        stopped: false,
    };
    let mut longest = vec![None; scenarios.len()];
    let began = Instant::now();
    for round in 1..=request.rounds {
        let each = bench.programs.iter_mut().zip(&scenarios).zip(&mut longest);
        for ((measured, scenario), longest) in each {
            let which = format!("{}: round {round} of {}", measured.program, request.rounds);
            if bench.stopped {
                bench.left_out.push(format!("{which} (stopped)"));
                continue;
            }
            if !order::fits(request.budget, began.elapsed(), *longest) {
                bench.left_out.push(format!("{which} ({})", over(request.budget)));
                continue;
            }
            let began_round = Instant::now();
            for place in order::rotated(contenders.len(), round) {
                let (Some((tool, mode)), Some(row)) = (contenders.get(place), measured.rows.get_mut(place)) else {
                    continue;
                };
                if row.trouble.is_some() {
                    continue;
                }
                let what = format!("{which}, {} {mode}", tool.id());
                // A round that takes longer than those before it is broken off.
                if !bench.stopped && !order::fits(request.budget, began.elapsed(), None) {
                    bench.left_out.push(format!("{what} ({})", over(request.budget)));
                    continue;
                }
                if bench.stopped || !measure(request, scenario, (*tool, row), round, &stop).await? {
                    bench.stopped = true;
                    bench.left_out.push(format!("{what} (stopped)"));
                    continue;
                }
                observe(Event { program: &measured.program, round, row });
            }
            *longest = (*longest).max(Some(began_round.elapsed()));
        }
    }
    Ok(bench)
}

/// Plain async, then the rest, each once.
fn contenders(request: &Request) -> Vec<(&'static dyn Tool, Mode)> {
    let baseline = crate::tool::find(BASELINE).map(|tool| (tool, Mode::Async));
    let mut contenders: Vec<(&'static dyn Tool, Mode)> = Vec::new();
    for (tool, mode) in baseline.into_iter().chain(request.contenders.iter().copied()) {
        if !contenders.iter().any(|(t, m)| t.id() == tool.id() && *m == mode) {
            contenders.push((tool, mode));
        }
    }
    contenders
}

/// Writes the programs, and says which tools cannot run on them here.
fn prepared(
    request: &Request,
    contenders: &[(&'static dyn Tool, Mode)],
    host: &Host,
) -> io::Result<(Vec<Scenario>, Vec<ProgramBench>)> {
    let sources = request.folder.join("programs");
    std::fs::create_dir_all(&sources)?;
    let files = request.programs.iter().map(|p| (p.file, p.source)).chain([program::SHARED]);
    for (file, text) in files {
        std::fs::write(sources.join(file), text)?;
    }
    let mut scenarios = Vec::new();
    let mut programs = Vec::new();
    for program in &request.programs {
        let iters = request.iters.unwrap_or_else(|| program.iters(request.device));
        let scenario = as_scenario(program, &sources, iters, request);
        let rows = contenders.iter().map(|(tool, mode)| Row {
            tool: tool.id().into(),
            mode: *mode,
            samples: Vec::new(),
            activity: None,
            trouble: obstacle(&scenario, *tool, *mode, request.device, Some(host)).map(Trouble::Skipped),
        });
        programs.push(ProgramBench { program: program.name.into(), iters, rows: rows.collect() });
        scenarios.push(scenario);
    }
    Ok((scenarios, programs))
}

/// Runs one process and adds what it gave to its row; false where the user stopped it.
async fn measure(
    request: &Request,
    scenario: &Scenario,
    (tool, row): (&'static dyn Tool, &mut Row),
    round: u32,
    stop: &watch::Receiver<bool>,
) -> io::Result<bool> {
    let case =
        CaseId { scenario: scenario.id.clone(), subject: Subject::Program, tool: tool.id().into(), mode: row.mode };
    let work = request.folder.join("work").join(format!("{}-{round}", case.folder().replace(['/', '.'], "-")));
    std::fs::create_dir_all(&work)?;
    let job = Job {
        case,
        scenario,
        tool,
        device: tool.device(request.device),
        stack: request.backend.host().map(|host| host.stack(request.device)).unwrap_or_default(),
        deadline: request.timeout,
        output_cap: OUTPUT_CAP,
        work,
        stop: stop.clone(),
    };
    let captured = request.backend.capture(&job).await;
    // What cannot be removed goes with the whole folder.
    let _ = std::fs::remove_dir_all(&job.work);
    match captured {
        Err(BackendError::Stopped) => return Ok(false),
        Err(e) => row.trouble = Some(Trouble::Failed(e.to_string())),
        Ok(capture) => match measurement(tool, &capture, round, request.timeout) {
            Ok((sample, activity)) => {
                row.samples.push(sample);
                row.activity.get_or_insert(activity);
            }
            Err(trouble) => row.trouble = Some(trouble),
        },
    }
    Ok(true)
}

/// What a process gave, and what shows that its tool was on. Pure.
fn measurement(tool: &dyn Tool, capture: &Capture, round: u32, timeout: Duration) -> Result<(Sample, String), Trouble> {
    let meta = &capture.meta;
    if meta.exit == Exit::Deadline {
        return Err(Trouble::TimedOut(format!("killed at its deadline of {} s", timeout.as_secs_f64())));
    }
    let line = program::read(&capture.stdout).filter(|_| meta.exit == Exit::Code(0)).ok_or_else(|| {
        let stderr = String::from_utf8_lossy(&capture.stderr);
        let last = stderr.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("it printed no measurement");
        Trouble::Failed(format!("{}: {}", meta.exit, last.trim()))
    })?;
    if line.device != meta.device {
        return Err(Trouble::Failed(format!("it ran on {}, not on {}", line.device, meta.device)));
    }
    match tool.activity(capture, &tool.parse(capture)) {
        Activity::Unproven(why) => Err(Trouble::Inactive(why)),
        Activity::Proven(evidence) => {
            let sample = Sample {
                round,
                ms: line.ms,
                host_bytes: meta.peak_rss_bytes.max(line.host_bytes),
                gpu_reserved_bytes: line.gpu_reserved_bytes,
                gpu_tree_bytes: meta.peak_gpu_bytes,
            };
            Ok((sample, evidence))
        }
    }
}

/// A training loop in the shape in which backends and tools get a program. It has no fault: nothing judges it.
fn as_scenario(program: &Program, folder: &Path, iters: u32, request: &Request) -> Scenario {
    let text = scenario::Program { file: program.file.into(), source: program.source.into() };
    let nowhere = Place { file: program.file.into(), line: 1 };
    Scenario {
        id: format!("bench-{}", program.name),
        title: program.about.into(),
        story: String::new(),
        class: FaultClass::Shape,
        needs: if request.device == Device::Cuda { vec![Need::Gpu, Need::Torch] } else { vec![Need::Torch] },
        folder: folder.into(),
        files: std::collections::BTreeSet::new(),
        program: text.clone(),
        twin: text,
        args: vec![format!("--iters={iters}"), format!("--windows={}", request.windows)],
        truth: Truth { fault: nowhere.clone(), root: nowhere, callers: Vec::new(), kernel: None, error: None },
        cpu: Some(CpuBehaviour { error: None, expect: Vec::new() }),
        expect: Vec::new(),
        hints: Vec::new(),
        fix: String::new(),
    }
}

fn over(budget: Option<Duration>) -> String {
    format!("the budget of {} s", budget.unwrap_or_default().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::capture;
    use crate::tool;

    const LINE: &[u8] = b"{\"faultlab_bench\": 1, \"program\": \"mlp\", \"device\": \"cuda\", \"iters\": 2, \"ms\": [5.5], \"host_bytes\": 9, \"gpu_reserved_bytes\": 8, \"loss\": 2.3}\n";

    fn measured(change: impl FnOnce(&mut Capture)) -> Result<(Sample, String), Trouble> {
        let mut capture = capture("/p", b"warning\nlast words\n");
        capture.stdout = LINE.to_vec();
        capture.meta.exit = Exit::Code(0);
        change(&mut capture);
        measurement(tool::find("bare").unwrap(), &capture, 2, Duration::from_mins(1))
    }

    #[test]
    fn a_measurement_needs_an_end_a_line_and_an_active_tool() {
        let (sample, _) = measured(|_| {}).unwrap();
        assert_eq!((sample.round, sample.ms, sample.host_bytes), (2, vec![5.5], Some(9)));
        let failed = measured(|c| c.meta.exit = Exit::Code(1)).unwrap_err();
        assert_eq!(failed, Trouble::Failed("exit 1: last words".into()));
        assert!(matches!(measured(|c| c.stdout.clear()), Err(Trouble::Failed(_))));
        assert!(matches!(measured(|c| c.meta.exit = Exit::Deadline), Err(Trouble::TimedOut(_))));
        assert!(matches!(measured(|c| c.meta.device = Device::Cpu), Err(Trouble::Failed(why)) if why.contains("cuda")));
        // Sync mode without its variable in the process's environment.
        assert!(matches!(measured(|c| c.meta.case.mode = Mode::Sync), Err(Trouble::Inactive(_))));
    }
}
