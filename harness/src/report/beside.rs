//! The C++ stacks of the same case in several runs, side by side: what debug information adds.

use std::fmt::Write as _;

use super::markdown::escape;
use super::{harmless, qualified_name};
use crate::case::CaseId;
use crate::finding::{Finding, NativeFrame};
use crate::results::Run;

/// Frames that are shown; the captures have the others.
const SHOWN: usize = 14;

/// A Markdown report of every case that has a C++ stack in each of the runs.
pub fn render(runs: &[&Run]) -> String {
    let mut out = String::from("# C++ stacks side by side\n\n");
    for (run, name) in runs.iter().zip(names(runs)) {
        let image = run.settings.image.as_ref().map(|image| format!(", image `{image}`")).unwrap_or_default();
        let _ = writeln!(out, "- **{name}**: {}{image}", escape(&run.settings.stack.to_string()));
    }
    let mut cases = 0;
    for case in runs.first().map(|run| run.cases.as_slice()).unwrap_or_default() {
        let found: Vec<&Finding> = runs.iter().filter_map(|run| stack(run, &case.case)).collect();
        if found.len() == runs.len() {
            one_case(&mut out, &case.case, &names(runs), &found);
            cases += 1;
        }
    }
    if cases == 0 {
        out.push_str("\nNo case has a C++ stack in each of them.\n");
    }
    out
}

/// What sets the runs apart in a table's head.
fn names(runs: &[&Run]) -> Vec<String> {
    let torch = |run: &Run| run.settings.stack.torch.clone().unwrap_or_else(|| "no torch".into());
    let all: Vec<String> = runs.iter().map(|run| torch(run)).collect();
    let plain = |at: usize| all.iter().filter(|other| **other == all[at]).count() == 1;
    (0..all.len()).map(|at| if plain(at) { all[at].clone() } else { format!("{} ({})", all[at], at + 1) }).collect()
}

/// The finding of a case that has the most to say of C++.
fn stack<'a>(run: &'a Run, case: &CaseId) -> Option<&'a Finding> {
    let result = run.cases.iter().find(|c| c.case == *case)?;
    result.findings.iter().filter(|f| !f.location.native.is_empty()).max_by_key(|f| f.location.native.len())
}

fn one_case(out: &mut String, case: &CaseId, names: &[String], found: &[&Finding]) {
    let _ = writeln!(out, "\n## {case}\n");
    for (name, finding) in names.iter().zip(found) {
        let frames = &finding.location.native;
        let known = frames.iter().filter(|f| f.source.is_some()).count();
        let nameless = frames.iter().filter(|f| f.symbol == "??").count();
        let _ = writeln!(out, "**{name}**: {}", escape(&finding.message));
        let _ = writeln!(out, "{known} of {} frames with file and line, {nameless} without a name.", frames.len());
        if let Some(python) = finding.location.python.last() {
            let _ = writeln!(out, "Python: `{}:{}` in `{}`.", python.file, python.line, python.function);
        }
        if !finding.location.values.is_empty() {
            let values: Vec<String> = finding.location.values.iter().map(|v| format!("`{}`", harmless(v))).collect();
            let _ = writeln!(out, "Variables where it was raised: {}.", values.join(", "));
        }
        out.push('\n');
    }
    let row = |out: &mut String, cells: Vec<String>| {
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    };
    let head = names.iter().flat_map(|name| [escape(name), "where".into()]);
    row(out, std::iter::once("#".into()).chain(head).collect());
    row(out, vec!["---".into(); 1 + 2 * names.len()]);
    let most = found.iter().map(|f| f.location.native.len()).max().unwrap_or(0).min(SHOWN);
    for at in 0..most {
        let cells = found.iter().flat_map(|f| match f.location.native.get(at) {
            Some(frame) => [format!("`{}`", function(&frame.symbol)), place(frame)],
            None => [String::new(), String::new()],
        });
        row(out, std::iter::once(at.to_string()).chain(cells).collect());
    }
}

/// `aten/src/ATen/native/LossNLL.cpp:242`, or the library in brackets.
fn place(frame: &NativeFrame) -> String {
    let text = match (&frame.source, &frame.module) {
        (Some(source), _) => {
            // The folder that PyTorch was built in says nothing.
            let known = ["/aten/src/", "/torch/csrc/", "/c10/", "/build/"];
            let start = known.iter().filter_map(|part| source.find(part)).min();
            start.map_or(source.as_str(), |at| &source[at + 1..]).to_string()
        }
        (None, Some(module)) => format!("({})", module.rsplit('/').next().unwrap_or(module)),
        (None, None) => "(unknown)".into(),
    };
    escape(&text)
}

/// A function's name for a cell of a table.
fn function(symbol: &str) -> String {
    harmless(&qualified_name(symbol)).replace(['`', '|', '\n'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_a_column() {
        for (long, short) in [
            ("__cxa_throw", "__cxa_throw"),
            (
                "void at::native::(anonymous namespace)::nll_loss_out_frame<float, long>(at::Tensor const&, long) [clone .cold]",
                "at::native::nll_loss_out_frame",
            ),
            (
                "at::native::(anonymous namespace)::f(at::TensorIteratorBase&)::{lambda()#1}::operator()() const",
                "at::native::f",
            ),
            (
                "c10::impl::wrap<at::Tensor (at::Tensor const&), void>::call(c10::OperatorKernel*)",
                "c10::impl::wrap::call",
            ),
            ("??", "??"),
            ("", ""),
        ] {
            assert_eq!(function(long), short);
        }
    }

    #[test]
    fn places_are_told_without_the_builders_folders() {
        let frame = |source: Option<&str>, module: Option<&str>| NativeFrame {
            symbol: "f".into(),
            module: module.map(Into::into),
            source: source.map(Into::into),
        };
        for (source, module, text) in [
            (
                Some("/usr/src/pytorch/aten/src/ATen/native/LossNLL.cpp:242"),
                None,
                "aten/src/ATen/native/LossNLL.cpp:242",
            ),
            (
                Some("/usr/src/pytorch/build/aten/src/ATen/Operators_0.cpp:9"),
                None,
                r"build/aten/src/ATen/Operators\_0.cpp:9",
            ),
            (Some("../Python/ceval.c:1"), Some("/usr/bin/python3"), "../Python/ceval.c:1"),
            (None, Some("/lib/libtorch_cpu.so.2.6"), r"(libtorch\_cpu.so.2.6)"),
            (None, None, "(unknown)"),
        ] {
            assert_eq!(place(&frame(source, module)), text);
        }
    }
}
