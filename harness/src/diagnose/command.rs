//! The user's command, and how a tool is put on it. Pure.

use std::collections::BTreeMap;
use std::path::Path;

use crate::case::{Device, Mode};
use crate::recorder_env::{FOLDER, RecorderEnv};
use crate::tool::{self, SCRUBBED, Target, Tool};

/// What sort of program the command starts. What cannot be told is an executable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `python train.py`, `python -m pkg`, `python -c …`
    Python,
    /// `torchrun`, `accelerate`, `deepspeed`: a Python program that starts others.
    Launcher,
    /// Anything else. It may start Python all the same, so tools that live in the interpreter are still tried.
    Executable,
}

/// Variables of the user's that stay although cases of scenarios do without them: a program may not start without
/// them.
const KEPT: &[&str] = &["LD_PRELOAD", "PYTHONFAULTHANDLER", "PYTHONMALLOC", "PYTHONSTARTUP", "TORCH_LOGS"];

/// Words of the argument list that stand for nothing: a [`Target`] has a program, and a command of one word has none.
const NO_WORD: &str = "\u{0}";

/// The last component of a path.
fn base(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// Is this the name of a Python interpreter?
fn is_python(word: &str) -> bool {
    let rest = base(word).strip_prefix("python").or_else(|| base(word).strip_prefix("pypy"));
    rest.is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit() || b == b'.' || b == b't' || b == b'd'))
}

/// The sort of a command.
pub fn kind(argv: &[String]) -> Kind {
    match argv.first().map(|word| base(word)) {
        Some("torchrun" | "accelerate" | "deepspeed" | "composer" | "lightning") => Kind::Launcher,
        Some(word) if is_python(word) => {
            let launches = |module: &String| module == "torch.distributed.run" || module == "torch.distributed.launch";
            let module = argv.iter().position(|w| w == "-m").and_then(|at| argv.get(at + 1));
            if module.is_some_and(launches) { Kind::Launcher } else { Kind::Python }
        }
        _ => Kind::Executable,
    }
}

/// The interpreter whose packages the command uses, as far as its words tell: its first word, or what the first line
/// of a script names. `first_line` reads it.
pub fn interpreter(argv: &[String], first_line: impl Fn(&str) -> Option<String>) -> String {
    let fallback = "python3".to_string();
    let Some(word) = argv.first() else { return fallback };
    if is_python(word) {
        return word.clone();
    }
    let Some(line) = first_line(word) else { return fallback };
    let Some(rest) = line.strip_prefix("#!") else { return fallback };
    let mut words = rest.split_whitespace();
    let python = match words.next() {
        Some(env) if base(env) == "env" => words.find(|w| !w.starts_with('-')),
        word => word,
    };
    python.filter(|w| is_python(w)).map_or(fallback, String::from)
}

/// The user's script, where the command names one: `train.py`.
pub fn script(argv: &[String]) -> Option<&str> {
    argv.iter().map(String::as_str).find(|word| {
        Path::new(word).extension().is_some_and(|e| e.eq_ignore_ascii_case("py")) && !word.starts_with('-')
    })
}

/// Puts a tool on the command. Tools are written for a folder of their own as working directory; here that is the
/// user's, so names of the tool's files become paths.
pub fn under(
    tool: &dyn Tool,
    argv: &[String],
    mode: Mode,
    work: &Path,
    programs: BTreeMap<String, String>,
) -> tool::Command {
    let mut words = argv.iter().cloned();
    let target = Target {
        python: words.next().unwrap_or_default(),
        program: words.next().unwrap_or_else(|| NO_WORD.into()),
        args: words.collect(),
        device: Device::Cuda,
        mode,
        work: work.display().to_string(),
        programs,
    };
    let mut command = tool.command(&target);
    command.argv.retain(|word| word != NO_WORD);
    let own = command.argv.len() - argv.len().min(command.argv.len());
    for word in command.argv.iter_mut().take(own) {
        if command.collect.iter().any(|collect| collect.name == word) {
            *word = work.join(&*word).display().to_string();
        }
    }
    command
}

/// The environment that a step runs in: the user's, without what would change what the step shows, with what the step
/// sets.
pub fn environment(
    user: &BTreeMap<String, String>,
    command: &tool::Command,
    recorder: &RecorderEnv,
) -> BTreeMap<String, String> {
    let mut env = user.clone();
    env.retain(|key, _| !is_left_out(key));
    for (key, paths) in recorder.prepend.iter().chain(&command.prepend) {
        let before = env.get(key).filter(|value| !value.is_empty());
        let paths: Vec<&str> = paths.iter().chain(before).map(String::as_str).collect();
        env.insert(key.clone(), paths.join(":"));
    }
    env.extend(recorder.set.clone());
    env.extend(command.env.clone());
    env
}

/// Is this variable kept from the command?
fn is_left_out(key: &str) -> bool {
    (SCRUBBED.contains(&key) && !KEPT.contains(&key)) || key == FOLDER
}

/// The user's variables that are kept from the command, by name.
pub fn left_out(user: &BTreeMap<String, String>) -> Vec<String> {
    user.keys().filter(|key| is_left_out(key)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(String::from).collect()
    }

    #[test]
    fn kinds_and_interpreters() {
        assert_eq!(kind(&words("python train.py")), Kind::Python);
        assert_eq!(kind(&words("/opt/venv/bin/python3.12 -m pkg.train")), Kind::Python);
        assert_eq!(kind(&words("python3.13t -m torch.distributed.run x.py")), Kind::Launcher);
        assert_eq!(kind(&words("torchrun --nproc-per-node 2 train.py")), Kind::Launcher);
        assert_eq!(kind(&words("./a.out")), Kind::Executable);
        assert_eq!(kind(&words("python-argcomplete x")), Kind::Executable);
        let read = |line: &'static str| move |_: &str| Some(line.to_string());
        assert_eq!(interpreter(&words("/v/bin/python x.py"), |_| None), "/v/bin/python");
        assert_eq!(interpreter(&words("torchrun x.py"), read("#!/v/bin/python3")), "/v/bin/python3");
        assert_eq!(interpreter(&words("./x"), read("#!/usr/bin/env -S python3.11 -u")), "python3.11");
        assert_eq!(interpreter(&words("./x"), read("#!/bin/sh")), "python3");
        assert_eq!(interpreter(&words("./x"), read("\u{7f}ELF")), "python3");
        assert_eq!(script(&words("torchrun --rdzv x train.py --lr 1")), Some("train.py"));
        assert_eq!(script(&words("./a.out")), None);
    }

    #[test]
    fn a_tool_goes_on_any_command() {
        let work = Path::new("/w");
        let on = |id: &str, text: &str| {
            let tool = tool::find(id).expect("a tool");
            under(tool, &words(text), Mode::Async, work, BTreeMap::new())
        };
        assert_eq!(on("bare", "./a.out").argv, ["./a.out"]);
        assert_eq!(on("bare", "torchrun -n 2 x.py").argv, ["torchrun", "-n", "2", "x.py"]);
        let memcheck = on("memcheck", "./a.out sanitizer.log");
        assert!(memcheck.argv.contains(&"/w/sanitizer.log".to_string()), "{:?}", memcheck.argv);
        assert_eq!(memcheck.argv[memcheck.argv.len() - 2..], ["./a.out", "sanitizer.log"]);
        assert_eq!(on("guard", "python -m p").prepend["PYTHONPATH"], ["/w/inject"]);
    }

    #[test]
    fn debug_variables_of_the_user_are_left_out_and_named() {
        let user: BTreeMap<String, String> = [
            ("CUDA_LAUNCH_BLOCKING", "1"),
            ("LD_PRELOAD", "/lib/libjemalloc.so"),
            ("PYTHONPATH", "/mine"),
            ("FAULTLAB_RECORDER_DIR", "/old"),
            ("FAULTLAB_RECORDER_RING", "4096"),
        ]
        .map(|(k, v)| (k.to_string(), v.to_string()))
        .into();
        assert_eq!(left_out(&user), ["CUDA_LAUNCH_BLOCKING", "FAULTLAB_RECORDER_DIR", "FAULTLAB_RECORDER_RING"]);
        let recorder = RecorderEnv {
            set: [("A".to_string(), "recorder".to_string())].into(),
            prepend: [("PYTHONPATH".to_string(), vec!["/shim".to_string()])].into(),
        };
        let command = tool::Command {
            env: [("A".to_string(), "tool".to_string())].into(),
            prepend: [("PYTHONPATH".to_string(), vec!["/w/inject".to_string()])].into(),
            ..tool::Command::default()
        };
        let env = environment(&user, &command, &recorder);
        assert_eq!(env["PYTHONPATH"], "/w/inject:/shim:/mine");
        assert_eq!(env["LD_PRELOAD"], "/lib/libjemalloc.so");
        assert_eq!(env["A"], "tool");
        assert!(!env.contains_key("CUDA_LAUNCH_BLOCKING"));
    }
}
