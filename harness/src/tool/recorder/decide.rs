//! Which of the launches that can have faulted did: by what else speaks of the kernel. Pure.

use std::borrow::Cow;
use std::path::Path;

use faultlab_recorder::format::{Confidence, Fault, Launch};

use crate::parse::DeviceAssertion;
use crate::tool::debugger::Stop;

/// What speaks of the kernel beside the recorder.
pub(super) struct Clues<'a> {
    /// The assertions of standard error.
    pub(super) assertions: &'a [DeviceAssertion],
    /// Standard error.
    pub(super) stderr: &'a [u8],
    /// What a GPU core dump says.
    pub(super) dump: Option<&'a Stop>,
}

/// The culprits that are left, the likeliest first, and what decided.
pub(super) struct Decided<'a> {
    pub(super) culprits: Vec<Cow<'a, Launch>>,
    pub(super) why: Option<String>,
    /// The assertion of the first culprit's kernel.
    pub(super) assertion: Option<&'a DeviceAssertion>,
    /// The first culprit's kernel is that of the core dump.
    pub(super) dumped: bool,
}

/// Joins a fault with the clues. A core dump names the kernel that raised the exception, so it comes first.
pub(super) fn decide<'a>(fault: &'a Fault, clues: &Clues<'a>) -> Decided<'a> {
    let all: Vec<&Launch> = match fault.confidence {
        Confidence::Exact => fault.culprits.iter().take(1).collect(),
        Confidence::Candidates | Confidence::Unlocated => fault.culprits.iter().collect(),
    };
    let by_dump = |launches: &[&'a Launch]| clues.dump.and_then(|dump| by_dump(launches, dump, clues));
    by_dump(&all).or_else(|| by_dump_of_done(fault, by_dump)).unwrap_or_else(|| by_words(fault, all, clues))
}

/// None of the candidates is the core dump's: while the driver wrote it, it told the program that the launch was done.
fn by_dump_of_done<'a>(
    fault: &'a Fault,
    by_dump: impl Fn(&[&'a Launch]) -> Option<Decided<'a>>,
) -> Option<Decided<'a>> {
    let done: Vec<&Launch> = fault.done.iter().collect();
    let mut decided = by_dump(&done)?;
    let why = match decided.culprits.len() {
        1 => "only the core dump knows of it: the driver had said that it was done".to_string(),
        n => format!(
            "the core dump's kernel was launched in this size by {n}, of which the driver had said that they were done"
        ),
    };
    decided.why = Some(why);
    Some(decided)
}

/// The launches of the core dump's kernel; `None` where there is none.
fn by_dump<'a>(all: &[&'a Launch], dump: &Stop, clues: &Clues<'a>) -> Option<Decided<'a>> {
    let name = dump.kernel.as_deref()?;
    let launches: Vec<Cow<'a, Launch>> = all.iter().flat_map(|launch| instances(launch)).collect();
    let fits = |launch: &Launch, whole: bool| {
        let inner = inner(launch);
        let named =
            if whole { is_signature(name, &inner.kernel) } else { has_word(name, function_name(&inner.kernel)) };
        named && !inner.kernel.is_empty() && dump.size().is_none_or(|size| size == (inner.grid, inner.block))
    };
    // Template arguments tell kernels apart, but not every demangler writes them alike.
    let best = |whole| launches.iter().filter(|l| fits(l, whole)).cloned().collect::<Vec<_>>();
    let mut left = best(true);
    if left.is_empty() {
        left = best(false);
    }
    // The dump's grid number counts launches that the program does not make (autotuning), so it decides only between lines
    // that are equal otherwise, and only where it is the ordinal of one of them.
    let counted =
        |launch: &Launch| launch.node.is_none() && dump.grid.is_some_and(|grid| launch.nth_kernel.contains(&grid));
    let likelier = left.iter().any(|launch| counted(launch)) && !left.iter().all(|launch| counted(launch));
    if likelier {
        left.sort_by_key(|launch| !counted(launch));
    }
    let first = left.first()?.clone();
    let place = inner(&first).place().cloned();
    let same = |other: &Cow<'_, Launch>| inner(other).place() == place.as_ref() && other.place() == first.place();
    let all = all.len();
    if place.is_some() && left.iter().all(same) {
        left.truncate(1);
    }
    let why = (all > 1).then(|| match left.len() {
        1 => format!("the core dump names its kernel and size, of {all} that can have faulted"),
        n => {
            let number = dump.grid.filter(|_| likelier);
            let number =
                number.map_or_else(String::new, |grid| format!("; its ordinal is the dump's grid number, {grid}"));
            format!("the core dump's kernel was launched in this size by {n} of {all} that can have faulted{number}")
        }
    });
    let assertion = clues.assertions.iter().find(|assertion| asserts(&inner(&first).kernel, assertion));
    Some(Decided { culprits: left, why, assertion, dumped: true })
}

/// A launch, and for a graph each of its nodes as the one that faulted.
fn instances(launch: &Launch) -> Vec<Cow<'_, Launch>> {
    let mut all = vec![Cow::Borrowed(launch)];
    let Some(node) = &launch.node else { return all };
    // None of them needs the others once more: of a large graph that would be all nodes for each node.
    let mut alone = launch.clone();
    alone.node.iter_mut().for_each(|node| node.others.clear());
    for other in &node.others {
        let mut instance = alone.clone();
        if let Some(node) = &mut instance.node {
            node.captured = other.clone();
            // Its place in the capture is not in the report.
            node.index = 0;
        }
        all.push(Cow::Owned(instance));
    }
    all
}

/// Does a signature as a debugger prints it (`void at::native::gather<int>(long)`) belong to this name (`at::native::gather<int>`)?
fn is_signature(signature: &str, name: &str) -> bool {
    let (signature, name) = (signature.as_bytes(), name.as_bytes());
    memchr::memmem::find_iter(signature, name).any(|at| {
        let before = at.checked_sub(1).and_then(|at| signature.get(at));
        before.is_none_or(|b| *b == b' ') && signature.get(at + name.len()).is_none_or(|b| *b == b'(')
    })
}

/// What standard error says of the kernel.
fn by_words<'a>(fault: &Fault, all: Vec<&'a Launch>, clues: &Clues<'a>) -> Decided<'a> {
    let Clues { assertions, stderr, .. } = *clues;
    let decided = |culprits: Vec<&'a Launch>, why, assertion| {
        let culprits = culprits.into_iter().map(Cow::Borrowed).collect();
        Decided { culprits, why, assertion, dumped: false }
    };
    let matching = assertions.iter().find_map(|assertion| {
        let left: Vec<&Launch> = all.iter().copied().filter(|l| asserts(&inner(l).kernel, assertion)).collect();
        (!left.is_empty()).then_some((assertion, left))
    });
    if let Some((assertion, left)) = matching {
        // Of candidates that share the kernel, the name tells nothing.
        return match left.as_slice() {
            [_] if all.len() > 1 => {
                let why =
                    format!("the assertion in standard error names its kernel, of {} that can have faulted", all.len());
                decided(left, Some(why), Some(assertion))
            }
            _ => {
                // Those whose kernel asserted first; the order is kept otherwise.
                let others = all.iter().copied().filter(|launch| !asserts(&inner(launch).kernel, assertion));
                decided(left.iter().copied().chain(others).collect(), None, Some(assertion))
            }
        };
    }
    if all.len() > 1 {
        let named: Vec<&Launch> =
            all.iter().copied().filter(|launch| is_named(&inner(launch).kernel, stderr)).collect();
        if let [_] = named.as_slice() {
            let why = format!("standard error names its kernel, of {} that can have faulted", all.len());
            return decided(named, Some(why), None);
        }
    }
    // The only assertion there is belongs to the only launch there is.
    let assertion = match (assertions, all.len()) {
        ([only], 1) if fault.name == "CUDA_ERROR_ASSERT" => Some(only),
        _ => None,
    };
    decided(all, None, assertion)
}

/// The launch of the kernel: of a graph the node's, where it is known.
pub(super) fn inner(launch: &Launch) -> &Launch {
    launch.node.as_ref().map_or(launch, |node| &node.captured)
}

/// Can this assertion have failed in this kernel? By the function's name; where that is a lambda's, by the name of the source
/// file (`ScatterGatherKernel.cu`); where it is Python's, by the kernel being no C++ one.
fn asserts(kernel: &str, assertion: &DeviceAssertion) -> bool {
    if Path::new(&assertion.file).extension().is_some_and(|e| e == "py") {
        return !kernel.is_empty() && kernel.bytes().all(is_word);
    }
    match assertion.function.as_deref().map(function_name) {
        Some(name) if !name.is_empty() && name != "unknown" && !name.starts_with("operator") => has_word(kernel, name),
        _ => {
            let words = snake(&assertion.file);
            words.len() > 2 && has_part(kernel, &words)
        }
    }
}

/// The bare name in a C++ signature: `void at::native::gather<int>(long)` is `gather`.
fn function_name(signature: &str) -> &str {
    let head = signature.split(['(', '<']).next().unwrap_or_default();
    let head = head.rsplit("::").next().unwrap_or_default();
    head.split_whitespace().next_back().unwrap_or_default()
}

/// `/pytorch/…/ScatterGatherKernel.cu` is `scatter_gather`.
fn snake(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or_default();
    let stem = name.split('.').next().unwrap_or_default();
    let stem = stem.strip_suffix("Kernels").or(stem.strip_suffix("Kernel")).unwrap_or(stem);
    let mut words = String::new();
    for c in stem.chars() {
        if c.is_uppercase() && words.ends_with(|p: char| p.is_lowercase() || p.is_ascii_digit()) {
            words.push('_');
        }
        words.extend(c.to_lowercase());
    }
    words
}

/// Is the base name of the kernel in the text, outside the lines that the recorder itself wrote? Names of one word say
/// too little.
fn is_named(kernel: &str, stderr: &[u8]) -> bool {
    let name = function_name(kernel);
    name.contains('_')
        && memchr::memmem::find_iter(stderr, name).any(|at| {
            let line = stderr[..at].rsplit(|b| *b == b'\n').next().unwrap_or_default();
            bounded(stderr, at, name.len(), is_word) && !line.starts_with(b"faultlab: ")
        })
}

fn is_word(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric()
}

/// Does `word` stand in `text` as an identifier of its own?
fn has_word(text: &str, word: &str) -> bool {
    memchr::memmem::find_iter(text.as_bytes(), word).any(|at| bounded(text.as_bytes(), at, word.len(), is_word))
}

/// Does it stand there as one or more words of an identifier: `scatter_gather` in `_scatter_gather_elementwise_kernel`?
fn has_part(text: &str, part: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric();
    memchr::memmem::find_iter(text.as_bytes(), part).any(|at| bounded(text.as_bytes(), at, part.len(), letter))
}

/// Is there no such byte on either side?
fn bounded(text: &[u8], at: usize, length: usize, inside: impl Fn(u8) -> bool) -> bool {
    let before = at.checked_sub(1).and_then(|at| text.get(at));
    !before.is_some_and(|b| inside(*b)) && !text.get(at + length).is_some_and(|b| inside(*b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;
    use crate::tool::recorder::tests::LOSS;

    #[test]
    fn an_assertion_is_of_a_kernel() {
        let assertion = |file: &str, function: Option<&str>| {
            let text = format!(
                "{file}:7: {}: block: [0,0,0], thread: [1,0,0] Assertion `x` failed.\n",
                function.unwrap_or("operator()")
            );
            parse::scan_bytes(text.as_bytes()).assertions.remove(0)
        };
        let scatter = "at::native::_scatter_gather_elementwise_kernel<128, 8, at::native::_cuda_scatter_gather_internal_kernel<true>>";
        let lambda = assertion("/pytorch/aten/src/ATen/native/cuda/ScatterGatherKernel.cu", None);
        assert!(asserts(scatter, &lambda));
        assert!(!asserts(LOSS, &lambda));
        assert!(!asserts("at::native::index_elementwise_kernel<128, 4>", &lambda));
        assert!(asserts(
            LOSS,
            &assertion("Loss.cu", Some("void at::nll_loss_forward_reduce_cuda_kernel_2d<float>(long)"))
        ));
        assert!(!asserts("gather_rows_2", &assertion("x.cu", Some("gather_rows"))));
        assert_eq!(snake("/a/IndexKernel.cu"), "index");
        assert_eq!(function_name("void at::native::gather<int>(long)"), "gather");
    }

    #[test]
    fn a_signature_is_of_a_kernel() {
        let gather = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, bool)";
        assert!(is_signature(gather, "at::native::vectorized_gather_kernel<16, long>"));
        assert!(!is_signature(gather, "at::native::vectorized_gather_kernel<16>"));
        assert!(!is_signature(gather, "native::vectorized_gather_kernel<16, long>"));
        assert!(is_signature("pack_rows", "pack_rows"));
    }
}
