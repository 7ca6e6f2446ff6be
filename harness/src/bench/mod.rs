//! `faultlab bench`: what each tool costs on real training loops that do not fail.
//!
//! Rounds of separate processes, interleaved: each round runs plain async and every tool once, in an order that is
//! rotated from round to round. A ratio compares two processes of the same round, so that what changes slowly (clocks,
//! temperature, neighbours) hits both. A process whose tool cannot be shown to have been on gives no figure.

pub mod claims;
pub mod cores;
pub mod order;
pub mod program;
pub mod report;
pub mod run;

use jiff::Timestamp;
use serde::Serialize;

use crate::case::{Device, Mode};
use crate::host::Stack;
use crate::stats::median;

/// The tool of which, in async mode, the ratios are ratios.
pub const BASELINE: &str = "bare";

/// Rises when a reader of the JSON would have to change.
pub const SCHEMA_VERSION: u32 = 1;

/// A benchmark: what was measured under which conditions. Every report of it is a function of this alone.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bench {
    /// See [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// faultlab's version.
    pub faultlab: String,
    /// When it began.
    pub started: Timestamp,
    /// Where the tensors live.
    pub device: Device,
    /// The machine.
    pub stack: Stack,
    /// Processor cores that faultlab may use.
    pub cores: Option<usize>,
    /// Those that the processes were kept on, by number.
    pub pinned: Option<Vec<usize>>,
    /// Rounds asked for.
    pub rounds: u32,
    /// Timed windows of a process.
    pub windows: u32,
    /// By program.
    pub programs: Vec<ProgramBench>,
    /// What was planned and not run: the budget was spent, or the user stopped it.
    pub left_out: Vec<String>,
    /// The user stopped it.
    pub stopped: bool,
}

/// What was measured on one program.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProgramBench {
    /// `mlp`, `transformer` or `graph-replay`.
    pub program: String,
    /// Iterations in a window.
    pub iters: u32,
    /// Plain async first.
    pub rows: Vec<Row>,
}

/// A tool in a mode, on one program.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Its id.
    pub tool: String,
    /// Async or sync.
    pub mode: Mode,
    /// One a round.
    pub samples: Vec<Sample>,
    /// What shows that the tool was on, in the first round.
    pub activity: Option<String>,
    /// Why there is no figure; it is not run again in later rounds.
    pub trouble: Option<Trouble>,
}

/// A process.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sample {
    /// 1-based.
    pub round: u32,
    /// Milliseconds an iteration, by window.
    pub ms: Vec<f64>,
    /// Largest resident size of one process of the tree.
    pub host_bytes: Option<u64>,
    /// The most that PyTorch's allocator had reserved on the GPU.
    pub gpu_reserved_bytes: Option<u64>,
    /// The most that the process tree held on the GPU, as nvidia-smi showed it.
    pub gpu_tree_bytes: Option<u64>,
}

/// Why a tool has no figure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", content = "reason", rename_all = "kebab-case")]
pub enum Trouble {
    /// It cannot run here, or makes no sense.
    Skipped(String),
    /// No evidence that it was on.
    Inactive(String),
    /// The program did not come to its end, or the machine failed.
    Failed(String),
    /// The deadline came first.
    TimedOut(String),
}

impl Trouble {
    /// One or two words for a table.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Skipped(_) => "skipped",
            Self::Inactive(_) => "inactive",
            Self::Failed(_) => "failed",
            Self::TimedOut(_) => "timed out",
        }
    }

    /// The sentence behind it.
    pub fn reason(&self) -> &str {
        match self {
            Self::Skipped(reason) | Self::Inactive(reason) | Self::Failed(reason) | Self::TimedOut(reason) => reason,
        }
    }
}

/// A ratio over rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The middle round.
    pub median: f64,
    /// The cheapest round.
    pub min: f64,
    /// The dearest round.
    pub max: f64,
    /// How many rounds.
    pub rounds: usize,
}

impl Spread {
    /// `None` of nothing.
    pub fn of(values: &[f64]) -> Option<Self> {
        Some(Self {
            median: median(values)?,
            min: values.iter().copied().min_by(f64::total_cmp)?,
            max: values.iter().copied().max_by(f64::total_cmp)?,
            rounds: values.len(),
        })
    }
}

impl Sample {
    /// The middle window.
    pub fn ms_per_iteration(&self) -> Option<f64> {
        median(&self.ms)
    }
}

impl Row {
    /// Is it what the others are compared with?
    pub fn is_baseline(&self) -> bool {
        self.tool == BASELINE && self.mode == Mode::Async
    }

    /// Milliseconds an iteration, over the rounds.
    pub fn ms(&self) -> Option<Spread> {
        Spread::of(&self.samples.iter().filter_map(Sample::ms_per_iteration).collect::<Vec<_>>())
    }
}

impl ProgramBench {
    /// The row of a tool in a mode.
    pub fn row(&self, tool: &str, mode: Mode) -> Option<&Row> {
        self.rows.iter().find(|r| r.tool == tool && r.mode == mode)
    }

    /// Time against plain async of the same round.
    pub fn time(&self, row: &Row) -> Option<Spread> {
        self.ratio(row, |a, b| Some((a.ms_per_iteration()?, b.ms_per_iteration()?)))
    }

    /// Host memory against plain async of the same round.
    pub fn host_memory(&self, row: &Row) -> Option<Spread> {
        self.ratio(row, |a, b| Some((a.host_bytes? as f64, b.host_bytes? as f64)))
    }

    /// GPU memory against plain async of the same round: what the allocator reserved, and where a tool turns the
    /// allocator's cache off, what the driver saw.
    pub fn gpu_memory(&self, row: &Row) -> Option<Spread> {
        self.ratio(row, |a, b| {
            let reserved = a.gpu_reserved_bytes.filter(|n| *n > 0).zip(b.gpu_reserved_bytes);
            let (a, b) = reserved.or_else(|| a.gpu_tree_bytes.zip(b.gpu_tree_bytes))?;
            Some((a as f64, b as f64))
        })
    }

    /// Round by round; a round without plain async gives nothing, and so does a tool with trouble.
    fn ratio(&self, row: &Row, of: impl Fn(&Sample, &Sample) -> Option<(f64, f64)>) -> Option<Spread> {
        if row.trouble.is_some() {
            return None;
        }
        let base = self.rows.iter().find(|r| r.is_baseline() && r.trouble.is_none())?;
        let rounds = row.samples.iter().filter_map(|sample| {
            let base = base.samples.iter().find(|b| b.round == sample.round)?;
            let (cost, base) = of(sample, base)?;
            (base > 0.0).then_some(cost / base)
        });
        Spread::of(&rounds.collect::<Vec<_>>())
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    pub(crate) fn sample(round: u32, ms: f64, reserved: u64) -> Sample {
        Sample {
            round,
            ms: vec![ms * 1.5, ms, ms * 0.9],
            host_bytes: Some(1000),
            gpu_reserved_bytes: Some(reserved),
            gpu_tree_bytes: Some(reserved + 500),
        }
    }

    pub(crate) fn row(tool: &str, mode: Mode, samples: Vec<Sample>) -> Row {
        Row { tool: tool.into(), mode, samples, activity: Some("seen".into()), trouble: None }
    }

    /// Two rounds of one program on a GPU.
    pub(crate) fn bench() -> Bench {
        let two = |a: f64, b: f64, reserved| vec![sample(1, a, reserved), sample(2, b, reserved)];
        let mut inactive = row("cpp-log", Mode::Async, two(9.0, 9.0, 100));
        inactive.trouble = Some(Trouble::Inactive("nothing was logged".into()));
        let rows = vec![
            row(BASELINE, Mode::Async, two(10.0, 20.0, 100)),
            row(BASELINE, Mode::Sync, two(20.0, 50.0, 100)),
            row("cpp-stacktraces", Mode::Async, two(10.1, 20.0, 100)),
            row("anomaly", Mode::Async, vec![sample(2, 60.0, 150)]),
            inactive,
        ];
        Bench {
            schema_version: SCHEMA_VERSION,
            faultlab: "0.0.0".into(),
            started: Timestamp::UNIX_EPOCH,
            device: Device::Cuda,
            stack: Stack { gpu: Some("NVIDIA H200".into()), torch: Some("2.11.0".into()), ..Stack::default() },
            cores: Some(4),
            pinned: Some(vec![12, 13, 14, 15]),
            rounds: 3,
            windows: 3,
            programs: vec![ProgramBench { program: "mlp".into(), iters: 200, rows }],
            left_out: vec!["mlp: round 3 of 3 (the budget of 60 s)".into()],
            stopped: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{bench, row, sample};
    use super::*;

    #[test]
    fn ratios_are_taken_within_a_round() {
        let bench = bench();
        let mlp = &bench.programs[0];
        let time = |tool, mode| mlp.time(mlp.row(tool, mode).unwrap());
        let sync = time(BASELINE, Mode::Sync);
        assert_eq!(sync, Some(Spread { median: 2.25, min: 2.0, max: 2.5, rounds: 2 }));
        // Only the second round has it: 60 against that round's 20.
        assert_eq!(time("anomaly", Mode::Async), Some(Spread { median: 3.0, min: 3.0, max: 3.0, rounds: 1 }));
        assert_eq!(time("cpp-log", Mode::Async), None);
        let anomaly = mlp.row("anomaly", Mode::Async).unwrap();
        assert_eq!(mlp.gpu_memory(anomaly).map(|s| s.median), Some(1.5));
        assert_eq!(mlp.host_memory(anomaly).map(|s| s.median), Some(1.0));
    }

    #[test]
    fn without_the_allocators_cache_the_drivers_figure_is_compared() {
        let rows = vec![
            row(BASELINE, Mode::Async, vec![sample(1, 1.0, 500)]),
            row("memcheck", Mode::Async, vec![Sample { gpu_tree_bytes: Some(2000), ..sample(1, 9.0, 0) }]),
        ];
        let program = ProgramBench { program: "mlp".into(), iters: 1, rows };
        assert_eq!(program.gpu_memory(&program.rows[1]).map(|s| s.median), Some(2.0));
    }
}
