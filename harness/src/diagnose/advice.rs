//! What to try next, by what happened. Pure.

use super::knowledge::Knowledge;
use super::locate::kernel_base;
use super::model::{Confidence, Outcome};

/// A kind of mistake, by what the device's assertion and the kernel are called.
struct Rule {
    /// One of these is part of the assertion's expression, its file or the kernel's name.
    signs: &'static [&'static str],
    advice: &'static [&'static str],
}

/// The first that fits counts. The signs are the texts of PyTorch's own kernels (aten/src/ATen/native/cuda) and of those
/// that Inductor generates.
const RULES: &[Rule] = &[
    Rule {
        signs: &["n_classes", "nll_loss", "NLLLoss", "SpatialClassNLL", "cross_entropy"],
        advice: &[
            "A class label is outside [0, C), where C is the size of the logits' class dimension. Before the loss: `assert \
             0 <= labels.min() and labels.max() < logits.size(1)` (leave the ignored label out).",
            "Usual reasons: labels that count from 1 or were shifted twice, a void label such as 255 without \
             `ignore_index=255`, a class more in the data than in the model's last layer.",
        ],
    },
    Rule {
        signs: &["srcIndex < srcSelectDimSize", "indexSelect", "vectorized_gather", "EmbeddingBag", "embedding"],
        advice: &[
            "An index is not below the number of rows. For an embedding: `assert ids.max() < emb.num_embeddings and \
             ids.min() >= 0`.",
            "Usual reasons: a token added to the tokenizer and not to the table (`resize_token_embeddings`), an unknown or \
             padding id equal to the vocabulary's size, a negative padding id.",
        ],
    },
    Rule {
        signs: &["input_val >= zero", "binary_cross_entropy", "input_val <= one"],
        advice: &[
            "`binary_cross_entropy` takes probabilities in [0, 1]; NaN is outside too. `binary_cross_entropy_with_logits` \
             takes the scores before the sigmoid.",
        ],
    },
    Rule {
        signs: &["probability tensor contains", "cumdist", "multinomial", "sum of probabilities"],
        advice: &[
            "The weights that are sampled from hold a negative value, inf or NaN, or a row that sums to 0: often a softmax \
             over a row that is masked completely. Look at the logits before the softmax.",
        ],
    },
    Rule {
        signs: &["0 <= p4 && p4 <= 1", "bernoulli"],
        advice: &["`bernoulli` takes probabilities in [0, 1]; NaN is outside too."],
    },
    Rule {
        signs: &["index out of bounds", "tmp"],
        advice: &[
            "A generated kernel checks an index of an operation that was compiled. Run the function once without \
             `torch.compile` (`TORCH_COMPILE_DISABLE=1`) on the same inputs: then one operation has the line to itself.",
            "Check the index tensor before the compiled function: `assert index.min() >= 0 and index.max() < size`.",
        ],
    },
    Rule {
        signs: &["index < sizes[i]", "idx_dim >= 0", "index_size", "indexing_kernel", "IndexKernel", "index out of"],
        advice: &[
            "An index is outside its dimension. Before the line: print `index.min()`, `index.max()` and the size of the \
             dimension that is indexed.",
            "Usual reasons: padding ids that stand outside on purpose and are gathered all the same, sizes taken from another \
             tensor, an index made on another level of a pyramid.",
        ],
    },
];

/// What to try.
pub fn next(known: &Knowledge) -> Vec<String> {
    let mut next: Vec<String> = Vec::new();
    match &known.outcome {
        Outcome::Clean => {
            if known.recorder_was_on {
                next.push(
                    "If the command fails now and then, run it again: only a run that fails can be looked at.".into(),
                );
            }
        }
        Outcome::DeviceFault { name, text } => {
            next.extend(device_fault(known, name.as_deref().unwrap_or_default(), text));
        }
        Outcome::NotFinite { .. } => {
            next.push(
                "Print the range of the operands on the line: an overflow in half precision, a logarithm or root at 0, a \
                 division by 0, or 0 · inf in the backward of a branch that `torch.where` did not pick."
                    .into(),
            );
            if known.confidence != Confidence::Exact {
                next.push(
                    "Check in between: `assert torch.isfinite(x).all(), 'x'` after each stage, from the loss backwards.".into(),
                );
            }
        }
        Outcome::OutOfMemory { .. } => {
            next.push(
                "The line asked last; `torch.cuda.memory_summary()` before it shows who holds the memory.".into(),
            );
            next.push(
                "Usual reasons: losses kept with their graph (`total += loss` in place of `loss.item()`), evaluation without \
                 `torch.no_grad()`, another process on the GPU (`nvidia-smi`)."
                    .into(),
            );
        }
        Outcome::HostError { type_name, .. } => {
            if type_name == "EOFError" {
                next.push(
                    "Under `faultlab diagnose` standard input is empty: if the program reads it, give it a file in its place."
                        .into(),
                );
            }
        }
        Outcome::Hang { .. } => next.extend(hang(known)),
        Outcome::Killed { signal } => next.extend(killed(signal, known)),
        Outcome::Failed { .. } => {
            next.push("The output above is all that is known; a traceback or a CUDA error in it would be read.".into());
        }
    }
    if known.vanished_words().is_some() {
        next.push(
            "Because it comes and goes: look for a tensor that is used on a second stream without `record_stream`, a pinned \
             buffer that is refilled too early, an output of a CUDA graph that is read after the next replay."
                .into(),
        );
    }
    next
}

fn device_fault(known: &Knowledge, name: &str, text: &str) -> Vec<String> {
    let mut next: Vec<String> = Vec::new();
    let kernel = known.places.iter().find_map(|p| p.kernel.as_ref()).or(known.kernel.as_ref());
    let kernel_name = kernel.map(|k| k.name.as_str()).unwrap_or_default();
    let assertion = known.assertion.as_ref();
    let mut witness: Vec<&str> = assertion.map_or_else(Vec::new, |a| {
        vec![a.expression.as_str(), a.file.as_str(), a.function.as_deref().unwrap_or_default()]
    });
    witness.push(kernel_base(kernel_name));
    let fits = |rule: &&Rule| rule.signs.iter().any(|sign| witness.iter().any(|text| text.contains(sign)));
    let asserted = assertion.is_some() || text.contains("assert") || name.contains("ssert");
    if let Some(rule) = RULES.iter().find(fits).filter(|_| asserted) {
        next.extend(rule.advice.iter().map(ToString::to_string));
    } else if text.contains("misaligned") {
        next.push(
            "A vectorised access needs an address that is a multiple of its width: check `data_ptr() % 16`, slices that \
             begin at an odd element, and casts of pointers in the kernel."
                .into(),
        );
    } else if text.contains("illegal") || text.contains("address space") {
        next.push(
            "The kernel read or wrote outside of its memory. In a kernel of your own: masks at the ends, strides of tensors \
             that are not contiguous, and offsets that pass 2^31 (multiply in 64 bits: `tl.int64`, `int64_t`)."
                .into(),
        );
        next.push(
            "In PyTorch's own: memory that was freed or used again while another stream still worked on it, or an index \
             that no assertion checks."
                .into(),
        );
    } else if name.starts_with("CUBLAS") || name.starts_with("CUDNN") {
        next.push(
            "A library's status is mostly the echo of a kernel that failed before, or of memory that ran out.".into(),
        );
    }
    if known.places.iter().any(|p| p.role.contains("graph")) {
        next.push(
            "A replay reads its static inputs as they are now: check that every element of them was refreshed, padding too."
                .into(),
        );
    }
    match known.confidence {
        Confidence::Unlocated if !known.recorder_was_on && !known.preload_was_on => {
            next.push(
                "`faultlab doctor` says what is missing here for the launch recorder and the other tools.".into(),
            );
        }
        Confidence::Unlocated => {
            next.push(
                "A longer `--budget`, or the command on a smaller input, lets the dearer tools run to the end.".into(),
            );
        }
        Confidence::Candidates => {
            next.push(
                "Put `torch.cuda.synchronize()` between the candidates: the first that raises is the one.".into(),
            );
        }
        _ => {}
    }
    next
}

fn hang(known: &Knowledge) -> Vec<String> {
    let kernel = known.kernel.as_ref().map(|k| k.name.to_lowercase()).unwrap_or_default();
    if kernel.contains("nccl") {
        return vec![
            "A collective waits for a rank that does not come. Compare what every rank does before it: a branch on the \
             rank, a dataset of another length, a rank that has died. `TORCH_NCCL_TRACE_BUFFER_SIZE=2000` records who was \
             where."
                .into(),
        ];
    }
    if known.kernel.is_some() {
        return vec![
            "The kernel waits for something that nobody does: a flag, a counter of a grid barrier with more blocks than fit \
             on the GPU, a loop whose end depends on data."
                .into(),
        ];
    }
    vec![
        "`faultlab diagnose --attach PID` looks at a process while it hangs.".into(),
        "If it was merely slow, give it longer with `--timeout`.".into(),
    ]
}

fn killed(signal: &str, known: &Knowledge) -> Vec<String> {
    match signal {
        "SIGKILL" => vec![
            "Nothing in a program catches SIGKILL: mostly the kernel was short of memory. `dmesg | grep -i oom`, the memory \
             limit of the container, job or pod, and the number of DataLoader workers tell."
                .into(),
        ],
        "SIGTERM" | "SIGINT" | "SIGHUP" => vec!["Somebody asked it to end: a scheduler's time limit, or a user.".into()],
        "SIGXCPU" | "SIGXFSZ" => {
            vec!["It reached a limit of the system (`ulimit -a`, or the scheduler's): processor time, or a file's size.".into()]
        }
        "SIGUSR1" | "SIGUSR2" | "SIGALRM" | "SIGVTALRM" | "SIGPROF" => vec![
            "The signal came from outside or from a timer, and the program has no handler for it: schedulers send SIGUSR1 and \
             SIGUSR2 ahead of a time limit."
                .into(),
        ],
        _ if known.places.is_empty() => vec![
            "It died in native code, and no Python stack is known: leave out `--quick` or give a larger `--budget`, so that \
             faulthandler can print it; `gdb --args` shows the C++ stack."
                .into(),
        ],
        _ => vec!["The native code that this line called is where it died: `gdb --args` shows the C++ stack.".into()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::Exit;
    use crate::diagnose::observe::{Observed, Process};
    use crate::diagnose::testing::{fault, launch};

    #[track_caller]
    fn check(stderr: &str, kernel: &str, expected: &str) {
        let fault = fault(vec![launch(1, kernel, &[("/j/t.py", 4)])]);
        let process = Process { pid: 1, faults: vec![fault], ..Process::default() };
        let known = Knowledge::first(&Observed::new(Exit::Code(1), 1.0, b"", stderr.as_bytes(), vec![process]));
        let next = next(&known).join("\n");
        assert!(next.contains(expected), "{stderr} {kernel}: {next}");
    }

    fn assertion(file: &str, function: &str, expression: &str) -> String {
        format!("/a/{file}:2: {function}: block: [0,0,0], thread: [7,0,0] Assertion `{expression}` failed.\n")
    }

    #[test]
    fn advice_is_of_the_class() {
        check(&assertion("Loss.cu", "nll_loss_forward", "t >= 0 && t < n_classes"), "nll_loss_forward", "ignore_index");
        check(&assertion("Indexing.cu", "indexSelectSmallIndex", "srcIndex < srcSelectDimSize"), "f", "num_embeddings");
        check(&assertion("Loss.cu", "operator()", "input_val >= zero && input_val <= one"), "f", "with_logits");
        check(&assertion("IndexKernel.cu", "operator()", "-sizes[i] <= index && index < sizes[i]"), "f", "index.min()");
        check(
            &assertion("x.py", "unknown", "index out of bounds: 0 <= tmp4 < 8"),
            "triton_poi_0",
            "TORCH_COMPILE_DISABLE",
        );
    }

    #[test]
    fn a_hang_of_nccl_is_another_rank() {
        let mut known = Knowledge::first(&Observed::new(Exit::Deadline, 9.0, b"", b"", Vec::new()));
        assert!(next(&known).join("").contains("--attach"));
        known.kernel = Some(super::super::locate::kernel_of(&launch(1, "ncclDevKernel_AllReduce", &[])));
        assert!(next(&known).join("").contains("rank"));
    }
}
