//! What people repeat about the cost of tools, beside what was measured. Pure.

use super::{Bench, ProgramBench, Row, Spread};
use crate::case::{Device, Mode};
use crate::stats::times;

/// A sentence that is handed on from post to post, made definite.
#[derive(Debug)]
pub struct Claim {
    /// What is said.
    pub says: &'static str,
    /// The tool's id.
    pub tool: &'static str,
    /// In which mode.
    pub mode: Mode,
    /// On which program; `None`: on each.
    pub program: Option<&'static str>,
    /// What is taken for the word in it; shown with each verdict.
    pub meaning: &'static str,
    test: Test,
}

#[derive(Debug)]
enum Test {
    TimeAtMost(f64),
    TimeAtLeast(f64),
    MemoryAtLeast(f64),
}

/// The claims.
pub const ALL: [Claim; 7] = [
    Claim {
        says: "PyTorch's C++ log level INFO costs \"slight\" time",
        tool: "cpp-log",
        mode: Mode::Async,
        program: None,
        meaning: "at most 1.10x",
        test: Test::TimeAtMost(1.10),
    },
    Claim {
        says: "C++ stack traces cost \"negligible\" time",
        tool: "cpp-stacktraces",
        mode: Mode::Async,
        program: None,
        meaning: "at most 1.02x",
        test: Test::TimeAtMost(1.02),
    },
    Claim {
        says: "launch blocking slows a program down \"severely\"",
        tool: "bare",
        mode: Mode::Sync,
        program: None,
        meaning: "at least 1.50x",
        test: Test::TimeAtLeast(1.50),
    },
    Claim {
        says: "anomaly mode is \"memory-heavy\"",
        tool: "anomaly",
        mode: Mode::Async,
        program: None,
        meaning: "at least 1.25x host or GPU memory",
        test: Test::MemoryAtLeast(1.25),
    },
    // What the launch recorder is meant to cost; by program, because that is how it is said.
    Claim {
        says: "the launch recorder costs at most 5% where the host decides the speed",
        tool: "recorder",
        mode: Mode::Async,
        program: Some("mlp"),
        meaning: "at most 1.05x",
        test: Test::TimeAtMost(1.05),
    },
    Claim {
        says: "the launch recorder costs at most 3% where the GPU decides the speed",
        tool: "recorder",
        mode: Mode::Async,
        program: Some("transformer"),
        meaning: "at most 1.03x",
        test: Test::TimeAtMost(1.03),
    },
    Claim {
        says: "the launch recorder costs at most 2% on replays of a CUDA graph",
        tool: "recorder",
        mode: Mode::Async,
        program: Some("graph-replay"),
        meaning: "at most 1.02x",
        test: Test::TimeAtMost(1.02),
    },
];

/// What a benchmark says about a claim on one program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The program.
    pub program: String,
    /// `1.02x (0.99x to 1.05x)`, or why there is none.
    pub measured: String,
    /// `None`: nothing can be said.
    pub verdict: Option<Verdict>,
}

/// Of all rounds, not of the middle one alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// In every round.
    Holds,
    /// In no round.
    Fails,
    /// In some rounds.
    Undecided,
}

impl Verdict {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Holds => "holds here",
            Self::Fails => "does not hold here",
            Self::Undecided => "the rounds disagree",
        }
    }

    fn of(spread: Spread, test: impl Fn(f64) -> bool) -> Self {
        match (test(spread.min), test(spread.max)) {
            (true, true) => Self::Holds,
            (false, false) => Self::Fails,
            _ => Self::Undecided,
        }
    }
}

/// One answer for each program that the claim is about.
pub fn answers(claim: &Claim, bench: &Bench) -> Vec<Answer> {
    let about = |program: &&ProgramBench| claim.program.is_none_or(|name| name == program.program);
    bench.programs.iter().filter(about).map(|program| answer(claim, bench.device, program)).collect()
}

fn answer(claim: &Claim, device: Device, program: &ProgramBench) -> Answer {
    let nothing = |measured: String| Answer { program: program.program.clone(), measured, verdict: None };
    let Some(row) = program.row(claim.tool, claim.mode) else {
        return nothing(format!("{} {} was not part of this benchmark", claim.tool, claim.mode));
    };
    if let Some(trouble) = &row.trouble {
        return nothing(format!("not measured: {}", trouble.label()));
    }
    let Some((measured, verdict, rounds)) = figure(claim, program, row) else {
        return nothing("not measured".into());
    };
    if device == Device::Cpu {
        return nothing(format!("{measured}, on the CPU: the claim is about a GPU"));
    }
    if rounds < 2 {
        return nothing(format!("{measured}, in one round: two at least are needed to know the spread"));
    }
    Answer { program: program.program.clone(), measured, verdict: Some(verdict) }
}

fn figure(claim: &Claim, program: &ProgramBench, row: &Row) -> Option<(String, Verdict, usize)> {
    match claim.test {
        Test::TimeAtMost(limit) => {
            let time = program.time(row)?;
            Some((spread(time), Verdict::of(time, |t| t <= limit), time.rounds))
        }
        Test::TimeAtLeast(limit) => {
            let time = program.time(row)?;
            Some((spread(time), Verdict::of(time, |t| t >= limit), time.rounds))
        }
        Test::MemoryAtLeast(limit) => {
            let known = [("host", program.host_memory(row)), ("GPU", program.gpu_memory(row))];
            let known: Vec<(&str, Spread)> = known.into_iter().filter_map(|(name, s)| Some((name, s?))).collect();
            // Heavy in either is heavy.
            let heaviest = known.iter().map(|(_, s)| *s).max_by(|a, b| a.median.total_cmp(&b.median))?;
            let text: Vec<String> = known.iter().map(|(name, s)| format!("{name} {}", spread(*s))).collect();
            Some((text.join(", "), Verdict::of(heaviest, |m| m >= limit), heaviest.rounds))
        }
    }
}

/// `1.02x (0.99x to 1.05x)`
pub fn spread(s: Spread) -> String {
    if s.rounds < 2 {
        return times(s.median);
    }
    format!("{} ({} to {})", times(s.median), times(s.min), times(s.max))
}

#[cfg(test)]
mod tests {
    use super::super::testing::bench;
    use super::*;

    fn of(tool: &str, bench: &Bench) -> Answer {
        let claim = ALL.iter().find(|c| c.tool == tool).unwrap();
        answers(claim, bench).remove(0)
    }

    #[test]
    fn a_claim_is_held_against_every_round() {
        let bench = bench();
        let verdict = |tool| of(tool, &bench).verdict;
        assert_eq!(verdict("bare"), Some(Verdict::Holds));
        assert_eq!(verdict("cpp-stacktraces"), Some(Verdict::Holds));
        assert_eq!(of("bare", &bench).measured, "2.25x (2.00x to 2.50x)");
    }

    #[test]
    fn without_a_measurement_there_is_no_verdict() {
        let mut bench = bench();
        assert_eq!(of("cpp-log", &bench).verdict, None);
        assert!(of("cpp-log", &bench).measured.contains("inactive"));
        // One round.
        assert_eq!(of("anomaly", &bench).verdict, None);
        bench.programs[0].rows.retain(|r| r.tool != "cpp-log");
        assert!(of("cpp-log", &bench).measured.contains("not part"));
        bench.device = Device::Cpu;
        assert_eq!(of("bare", &bench).verdict, None);
    }

    #[test]
    fn a_claim_about_one_program_is_held_against_that_one() {
        let mut bench = bench();
        let mut recorder = bench.programs[0].rows[2].clone();
        recorder.tool = "recorder".into();
        bench.programs[0].rows.push(recorder);
        let mut other = bench.programs[0].clone();
        other.program = "transformer".into();
        other.rows.iter_mut().filter(|r| r.tool == "recorder").for_each(|r| {
            r.samples.iter_mut().for_each(|s| s.ms.iter_mut().for_each(|ms| *ms *= 1.04));
        });
        bench.programs.push(other);
        let of = |program| {
            let claim = ALL.iter().find(|c| c.program == Some(program)).unwrap();
            answers(claim, &bench)
        };
        assert_eq!(of("mlp").len(), 1);
        assert_eq!(of("mlp")[0].verdict, Some(Verdict::Holds));
        assert_eq!(of("transformer")[0].verdict, Some(Verdict::Fails));
        assert!(of("graph-replay").is_empty());
    }

    #[test]
    fn rounds_that_disagree_decide_nothing() {
        let spread = Spread { median: 1.5, min: 1.0, max: 2.0, rounds: 2 };
        assert_eq!(Verdict::of(spread, |t| t >= 1.2), Verdict::Undecided);
        assert_eq!(Verdict::of(spread, |t| t >= 2.1), Verdict::Fails);
    }
}
