//! Reports of a benchmark: each a function of [`Bench`] alone.

mod markdown;
mod terminal;

pub use markdown::render as markdown;
pub use terminal::render as terminal;

use super::claims::{self, Claim, Verdict};
use super::{Bench, ProgramBench, Row, program};
use crate::case::Device;

/// The model itself.
pub fn json(bench: &Bench) -> String {
    // It has string keys and finite numbers only.
    serde_json::to_string_pretty(bench).unwrap_or_default()
}

const HEADINGS: [&str; 7] = ["tool", "mode", "ms/iter", "time", "host memory", "GPU memory", "rounds"];

/// The cells of a row, as text.
fn cells(program: &ProgramBench, row: &Row) -> [String; 7] {
    let dash = || "-".to_string();
    let spread = |s: Option<super::Spread>| s.map_or_else(dash, claims::spread);
    let mut cells = [row.tool.clone(), row.mode.to_string(), dash(), dash(), dash(), dash(), dash()];
    if let Some(trouble) = &row.trouble {
        cells[2] = trouble.label().into();
        return cells;
    }
    cells[2] = row.ms().map_or_else(dash, |ms| format!("{:.2}", ms.median));
    cells[6] = row.samples.len().to_string();
    if row.is_baseline() {
        cells[3] = "1".into();
        let sample = |of: fn(&super::Sample) -> Option<u64>| {
            row.samples.iter().filter_map(of).max().map_or_else(dash, |n| format!("{} MiB", n >> 20))
        };
        cells[4] = sample(|s| s.host_bytes);
        cells[5] = sample(|s| s.gpu_reserved_bytes);
        return cells;
    }
    cells[3] = spread(program.time(row));
    cells[4] = spread(program.host_memory(row));
    cells[5] = spread(program.gpu_memory(row));
    cells
}

/// Under what conditions all of it was measured.
fn conditions(bench: &Bench) -> String {
    let cores = match (&bench.pinned, bench.cores) {
        (Some(cores), _) => format!(", on processor cores {}", super::cores::shown(cores)),
        (None, Some(n)) => format!(", {n} processor cores"),
        (None, None) => String::new(),
    };
    format!(
        "Measured on {}{cores}; tensors on {}. Each figure is the middle of {} windows of a process; each ratio \
         compares two processes of one round, with plain async (bare) as 1; shown is the median round (lowest to \
         highest). The programs do not fail: what a tool costs while it explains an error is not in here.",
        bench.stack, bench.device, bench.windows
    )
}

fn about(program: &ProgramBench, device: Device) -> String {
    let known = program::ALL.iter().find(|p| p.name == program.program);
    let mut parts = vec![format!("{}: {}", program.program, known.map_or("", |p| p.about))];
    parts.extend(known.and_then(|p| p.on_cpu).filter(|_| device == Device::Cpu).map(String::from));
    parts.push(format!("{} iterations a window", program.iters));
    parts.join("; ")
}

/// Why rows have no figure, and what was left out.
fn remarks(bench: &Bench) -> Vec<String> {
    let mut remarks = Vec::new();
    for program in &bench.programs {
        for row in &program.rows {
            if let Some(trouble) = &row.trouble {
                remarks.push(format!(
                    "{} {} {}: {}: {}",
                    program.program,
                    row.tool,
                    row.mode,
                    trouble.label(),
                    trouble.reason()
                ));
            }
        }
    }
    if !bench.left_out.is_empty() {
        remarks.push(format!("Left out: {}.", bench.left_out.join("; ")));
    }
    remarks
}

const CLAIMS: [&str; 4] = ["what people say", "program", "measured", "verdict"];

fn claim_rows(bench: &Bench) -> Vec<[String; 4]> {
    let rows = |claim: &'static Claim| {
        claims::answers(claim, bench).into_iter().map(|answer| {
            let verdict = answer.verdict.map_or("no verdict", Verdict::name);
            [format!("{} ({})", claim.says, claim.meaning), answer.program, answer.measured, verdict.into()]
        })
    };
    claims::ALL.iter().flat_map(rows).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::bench;
    use super::*;

    #[test]
    fn at_a_terminal() {
        insta::assert_snapshot!(anstream::adapter::strip_str(&terminal(&bench(), 120)).to_string());
    }

    #[test]
    fn in_markdown() {
        insta::assert_snapshot!(markdown(&bench()));
    }

    #[test]
    fn as_json() {
        let value: serde_json::Value = serde_json::from_str(&json(&bench())).unwrap();
        assert_eq!(value["programs"][0]["rows"][4]["trouble"]["kind"], "inactive");
        assert_eq!(value["programs"][0]["rows"][0]["samples"][1]["ms"][1], 20.0);
    }
}
