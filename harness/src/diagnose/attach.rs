//! `--attach PID`: where a process hangs. It is asked in the least intrusive way first, and goes on afterwards:
//!
//! 1. the launch recorder, if the process has it: a signal makes it write down what runs on the device and where the host
//!    waits. The signal is sent only if the process catches it; one that it does not catch would end it.
//! 2. py-spy, where it is installed: reads the interpreter's memory.
//! 3. gdb, where it is installed: stops the process, reads the C++ stack, and the Python stack through `py-bt` or a call
//!    into the interpreter.
//! 4. `/proc`: state, the kernel function in which it sleeps, the kernel stack where that may be read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use faultlab_recorder::format::{Frame, Hang};
use jiff::Timestamp;
use serde::Deserialize;
use tokio::sync::watch;

use super::knowledge::Knowledge;
use super::model::{Confidence, Diagnosis, HostFacts, Outcome, Place, SCHEMA_VERSION, Step};
use super::observe::{self, Observed, is_user_file};
use super::run::{DiagnoseError, Event, reader};
use super::{advice, locate};
use crate::backend::user::{self, UserCommand};
use crate::capture::Exit;
use crate::recorder_env::{FOLDER, LIBRARY};
use crate::tool;

/// How long the recorder may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How long a debugger may take. gdb reads the symbols of all of PyTorch.
const DEBUGGER: Duration = Duration::from_mins(2);
/// Native frames that are shown.
const NATIVE: usize = 12;
/// The variable that names the recorder's signal.
const SIGNAL: &str = "FAULTLAB_RECORDER_SIGNAL";

const GDB_SCRIPT: tool::WorkFile =
    tool::WorkFile { name: "gdb_throw.py", text: include_str!("../tool/scripts/gdb_throw.py") };
const GDB_LOG: tool::Collect = tool::Collect { name: "gdb.jsonl", cap: 1 << 20 };

/// What is asked for.
pub struct AttachRequest {
    /// The process.
    pub pid: i32,
    /// The user's environment, for the path.
    pub env: BTreeMap<String, String>,
    /// This program: it supervises the debuggers.
    pub program: PathBuf,
    /// A folder of ours.
    pub folder: PathBuf,
}

/// What `/proc` says of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessFacts {
    /// Its command line.
    pub argv: Vec<String>,
    /// `S (sleeping)`
    pub state: String,
    /// The signals that it catches, a bit each: bit 0 is signal 1.
    pub caught: u64,
    /// The kernel function in which its main thread sleeps.
    pub wchan: Option<String>,
    /// Its threads.
    pub threads: usize,
    /// The recorder's library is in its memory.
    pub has_recorder: bool,
    /// Where the recorder writes.
    pub reports: Option<PathBuf>,
    /// The recorder's signal; 0: none.
    pub signal: i32,
    /// Processes that it started.
    pub children: Vec<i32>,
    /// Its working directory.
    pub cwd: PathBuf,
}

/// Reads them; an error says that there is no such process, or that it may not be looked at.
pub fn process_facts(pid: i32) -> std::io::Result<ProcessFacts> {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let status = std::fs::read_to_string(proc.join("status"))?;
    let argv = std::fs::read(proc.join("cmdline"))?;
    let environ = std::fs::read(proc.join("environ")).unwrap_or_default();
    let maps = std::fs::read(proc.join("maps")).unwrap_or_default();
    let wchan = std::fs::read_to_string(proc.join("wchan")).ok().filter(|w| !w.is_empty() && w != "0");
    let children = std::fs::read_to_string(proc.join(format!("task/{pid}/children"))).unwrap_or_default();
    Ok(ProcessFacts {
        argv: argv.split(|b| *b == 0).filter(|w| !w.is_empty()).map(|w| String::from_utf8_lossy(w).into()).collect(),
        state: field(&status, "State:").unwrap_or_default(),
        caught: field(&status, "SigCgt:").and_then(|hex| u64::from_str_radix(&hex, 16).ok()).unwrap_or_default(),
        wchan,
        threads: field(&status, "Threads:").and_then(|n| n.parse().ok()).unwrap_or(1),
        has_recorder: memchr::memmem::find(&maps, LIBRARY.as_bytes()).is_some(),
        reports: variable(&environ, FOLDER).map(PathBuf::from),
        signal: variable(&environ, SIGNAL)
            .and_then(|n| n.parse().ok())
            .unwrap_or(nix::sys::signal::Signal::SIGUSR2 as i32),
        children: children.split_whitespace().filter_map(|n| n.parse().ok()).collect(),
        cwd: std::fs::read_link(proc.join("cwd")).unwrap_or_else(|_| "/".into()),
    })
}

fn field(status: &str, name: &str) -> Option<String> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_string())
}

fn variable(environ: &[u8], name: &str) -> Option<String> {
    environ.split(|b| *b == 0).find_map(|pair| {
        let rest = pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(String::from_utf8_lossy(rest).into_owned())
    })
}

impl ProcessFacts {
    /// Why the recorder cannot be asked.
    fn recorder_obstacle(&self) -> Option<String> {
        if !self.has_recorder {
            return Some("the process was started without it (`faultlab record-env`)".into());
        }
        let Some(_) = &self.reports else { return Some(format!("{FOLDER} was not set: it has nowhere to write")) };
        let bit = u32::try_from(self.signal).ok().and_then(|n| n.checked_sub(1)).and_then(|n| 1u64.checked_shl(n));
        match bit {
            Some(bit) if self.caught & bit != 0 => None,
            _ => Some(format!("the process does not catch signal {}, which would end it", self.signal)),
        }
    }
}

/// Looks at a process.
pub async fn attach(
    request: &AttachRequest,
    stop: watch::Receiver<bool>,
    mut observe: impl FnMut(Event<'_>),
) -> Result<Diagnosis, DiagnoseError> {
    let (started, clock) = (Timestamp::now(), Instant::now());
    let facts = process_facts(request.pid).map_err(|e| {
        DiagnoseError::NotStarted(format!("--attach {}: there is no such process to look at: {e}", request.pid))
    })?;
    let mut found = Found::default();
    let mut done = Vec::new();
    let mut note = |id: &str, why: &str, outcome: Result<String, String>, clock: Instant| {
        let (skipped, outcome) = match outcome {
            Ok(outcome) => (false, outcome),
            Err(why) => (true, why),
        };
        let seconds = if skipped { 0.0 } else { clock.elapsed().as_secs_f64() };
        let (id, why, exit, active, named) = (id.into(), why.into(), None, None, None);
        let taken = Step { id, why, outcome, skipped, seconds, exit, active, named };
        observe(Event::Done(&taken));
        done.push(taken);
    };
    let at = Instant::now();
    let outcome = match facts.recorder_obstacle() {
        Some(why) => Err(why),
        None => ask_recorder(request.pid, &facts, &mut found).await,
    };
    note("recorder", "a signal makes the launch recorder write down what runs", outcome, at);
    if found.python.is_empty() {
        let at = Instant::now();
        let outcome = py_spy(request, &stop, &mut found).await;
        note("py-spy", "reads the interpreter's memory", outcome, at);
    }
    if found.hang.as_ref().is_none_or(|hang| hang.running.is_empty()) {
        let at = Instant::now();
        let outcome = gdb(request, &stop, &mut found).await;
        note("gdb", "stops the process and reads its stacks", outcome, at);
    }
    if *stop.borrow() {
        return Err(DiagnoseError::Stopped);
    }
    let read = reader(&facts.cwd);
    let mut diagnosis = conclude(&facts, &found, request.pid, started);
    for place in &mut diagnosis.places {
        place.file = facts.cwd.join(&place.file).display().to_string();
    }
    locate::with_source(&mut diagnosis.places, &read);
    diagnosis.steps = done;
    diagnosis.seconds = clock.elapsed().as_secs_f64();
    Ok(diagnosis)
}

/// What the witnesses said.
#[derive(Debug, Default)]
struct Found {
    hang: Option<Hang>,
    /// Python frames of the main thread, innermost first, and who named them.
    python: Vec<Frame>,
    by: String,
    /// Native frames of the main thread, innermost first.
    native: Vec<String>,
}

async fn ask_recorder(pid: i32, facts: &ProcessFacts, found: &mut Found) -> Result<String, String> {
    let file = facts.reports.as_ref().map(|folder| facts.cwd.join(folder).join(format!("recorder.{pid}.jsonl")));
    let file = file.ok_or("it has nowhere to write")?;
    let hangs = || {
        let bytes = std::fs::read(&file).unwrap_or_default();
        observe::process(&format!("recorder.{pid}.jsonl"), &bytes).hangs
    };
    let before = hangs().len();
    let signal = nix::sys::signal::Signal::try_from(facts.signal).map_err(|e| e.to_string())?;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal)
        .map_err(|e| format!("failed to send {signal}: {e}"))?;
    let until = Instant::now() + ANSWER;
    while Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if let Some(hang) = hangs().into_iter().nth(before) {
            let words = match hang.running.first() {
                Some(launch) => format!("{} runs on the device, or is next", locate::kernel_of(launch).name),
                None => "nothing runs on the device".into(),
            };
            found.python.clone_from(&hang.host);
            found.by = "recorder".into();
            found.hang = Some(hang);
            return Ok(words);
        }
    }
    Err(format!("it did not answer within {} s", ANSWER.as_secs()))
}

/// Runs a debugger beside the process; what it printed, and its files.
async fn debugger(
    request: &AttachRequest,
    stop: &watch::Receiver<bool>,
    command: tool::Command,
) -> Result<user::Ended, String> {
    let name = command.argv.first().cloned().unwrap_or_default();
    let work = request.folder.join(name.rsplit('/').next().unwrap_or("debugger"));
    std::fs::create_dir_all(&work).map_err(|e| format!("failed to make {}: {e}", work.display()))?;
    let mut env = request.env.clone();
    env.extend(command.env.clone());
    let user = UserCommand {
        supervisor: &request.program,
        command: &command,
        env: &env,
        cwd: &work,
        work: &work,
        deadline: DEBUGGER,
        output_cap: 1 << 20,
        echo: false,
        watch_env: BTreeSet::new(),
        stop: stop.clone(),
    };
    let ended = user::run(&user).await.map_err(|e| e.to_string())?;
    match ended.exit {
        Exit::Deadline => Err(format!("{name} did not end within {} s", DEBUGGER.as_secs())),
        _ => Ok(ended),
    }
}

fn on_path(request: &AttachRequest, name: &str) -> Option<String> {
    let folders = request.env.get("PATH")?;
    let path = std::env::split_paths(folders).map(|folder| folder.join(name)).find(|path| path.is_file())?;
    Some(path.display().to_string())
}

/// A thread of `py-spy dump --json`; its frames come innermost first.
#[derive(Debug, Deserialize)]
struct SpyThread {
    #[serde(default)]
    thread_name: Option<String>,
    #[serde(default)]
    frames: Vec<SpyFrame>,
}

#[derive(Debug, Deserialize)]
struct SpyFrame {
    name: String,
    filename: String,
    line: i64,
}

fn spy_frames(json: &[u8]) -> Option<Vec<Frame>> {
    let threads: Vec<SpyThread> = serde_json::from_slice(json).ok()?;
    let main = threads.iter().find(|t| t.thread_name.as_deref() == Some("MainThread")).or(threads.first())?;
    Some(main.frames.iter().map(|f| python_frame(&f.filename, u32::try_from(f.line).unwrap_or(0), &f.name)).collect())
}

fn python_frame(file: &str, line: u32, function: &str) -> Frame {
    Frame { file: file.into(), line, function: function.into(), user: is_user_file(file) }
}

async fn py_spy(request: &AttachRequest, stop: &watch::Receiver<bool>, found: &mut Found) -> Result<String, String> {
    let path = on_path(request, "py-spy").ok_or("py-spy is not on the path (`pip install py-spy`)")?;
    let argv = [&path, "dump", "--json", "--pid", &request.pid.to_string()].map(String::from).into();
    let ended = debugger(request, stop, tool::Command { argv, ..tool::Command::default() }).await?;
    match spy_frames(&ended.stdout.0).filter(|frames| !frames.is_empty()) {
        Some(frames) => {
            let words = frame_words(&frames);
            found.python = frames;
            found.by = "py-spy".into();
            Ok(words)
        }
        None => Err(last_line(&ended.stderr.0)),
    }
}

/// What the script of the tool `gdb` writes when it is attached; Python frames come outermost first, native ones
/// innermost first.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct GdbRecord {
    kind: String,
    native: Vec<GdbNative>,
    python: Vec<GdbPython>,
}

#[derive(Debug, Deserialize)]
struct GdbNative {
    symbol: String,
}

#[derive(Debug, Deserialize)]
struct GdbPython {
    file: String,
    line: u32,
    function: String,
}

fn gdb_record(log: &[u8]) -> Option<GdbRecord> {
    let records = log.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice::<GdbRecord>(line).ok());
    records.into_iter().find(|record| record.kind == "attached")
}

async fn gdb(request: &AttachRequest, stop: &watch::Receiver<bool>, found: &mut Found) -> Result<String, String> {
    let path = on_path(request, "gdb").ok_or("gdb is not on the path (`apt-get install gdb`)")?;
    let pid = request.pid.to_string();
    let argv = [&path, "-batch", "-nx", "-p", &pid, "-x", GDB_SCRIPT.name].map(String::from).into();
    let command = tool::Command {
        argv,
        // No questions to symbol servers.
        env: [("DEBUGINFOD_URLS".to_string(), String::new())].into(),
        files: vec![GDB_SCRIPT],
        collect: vec![GDB_LOG],
        ..tool::Command::default()
    };
    let ended = debugger(request, stop, command).await?;
    let log = ended.files.get(GDB_LOG.name).map(Vec::as_slice).unwrap_or_default();
    let record = gdb_record(log).ok_or_else(|| last_line(&ended.stderr.0))?;
    found.native = record.native.into_iter().map(|frame| frame.symbol).collect();
    if found.python.is_empty() && !record.python.is_empty() {
        let frames = record.python.iter().rev();
        found.python = frames.map(|f| python_frame(&f.file, f.line, &f.function)).collect();
        found.by = "gdb".into();
    }
    let native = found.native.first().map_or("no native stack", String::as_str);
    Ok(if found.python.is_empty() {
        format!("{native}; no Python stack")
    } else {
        format!("{native}; {}", frame_words(&found.python))
    })
}

fn frame_words(frames: &[Frame]) -> String {
    let frame = observe::user_frame(frames).or(frames.first());
    frame.map_or_else(|| "no Python stack".into(), |f| super::model::short(&f.file, f.line))
}

/// The last line of what a debugger complained of.
fn last_line(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
    line.map_or_else(|| "it said nothing".into(), |line| line.chars().take(300).collect())
}

fn conclude(facts: &ProcessFacts, found: &Found, pid: i32, started: Timestamp) -> Diagnosis {
    let hang = found.hang.as_ref();
    let why = match hang {
        Some(hang) if !hang.running.is_empty() => format!("nothing finished on the device for {:.1} s", hang.seconds),
        _ => format!("process {pid}, {}", facts.state),
    };
    // The same reading as of a run that hung.
    let process = observe::Process { hangs: hang.cloned().into_iter().collect(), ..observe::Process::default() };
    let observed = Observed::new(Exit::Deadline, 0.0, b"", b"", vec![process]);
    let mut known = Knowledge::first(&observed);
    known.outcome = Outcome::Hang { why };
    if known.places.is_empty()
        && let Some(frame) = observe::user_frame(&found.python).or(found.python.first())
    {
        known.places = vec![host_place(frame, &found.python, &found.by)];
        known.confidence = Confidence::Exact;
    }
    if !found.native.is_empty() {
        let shown: Vec<&str> = found.native.iter().take(NATIVE).map(String::as_str).collect();
        known.evidence.push(format!("Native stack of the main thread, innermost first: {}.", shown.join(" < ")));
    }
    let sleeps = facts.wchan.as_ref().map(|wchan| format!(", asleep in the kernel's {wchan}")).unwrap_or_default();
    known.evidence.push(format!("Process {pid} is {}{sleeps}; it has {} threads.", facts.state, facts.threads));
    if facts.state.starts_with('D') {
        known
            .evidence
            .push("It waits in the kernel and cannot be interrupted: a driver or a file system hangs.".into());
    }
    if !facts.children.is_empty() {
        let children: Vec<String> = facts.children.iter().map(ToString::to_string).collect();
        known
            .notices
            .push(format!("It has child processes, which may be the ones to look at: {}.", children.join(", ")));
    }
    Diagnosis {
        schema_version: SCHEMA_VERSION,
        faultlab: env!("CARGO_PKG_VERSION").into(),
        command: facts.argv.clone(),
        cwd: facts.cwd.display().to_string(),
        started,
        seconds: 0.0,
        headline: known.headline(),
        next: advice::next(&known)
            .into_iter()
            .filter(|text| !text.contains("--timeout") && !text.contains("--attach"))
            .collect(),
        outcome: known.outcome,
        confidence: known.confidence,
        places: known.places,
        kernel: known.kernel,
        surfaced: known.surfaced,
        assertion: None,
        values: Vec::new(),
        origins: Vec::new(),
        around: Vec::new(),
        evidence: known.evidence,
        steps: Vec::new(),
        notices: known.notices,
        host: HostFacts::default(),
    }
}

fn host_place(frame: &Frame, all: &[Frame], by: &str) -> Place {
    let callers = all.iter().skip_while(|f| *f != frame).skip(1).filter(|f| f.user).take(3);
    Place {
        file: frame.file.clone(),
        line: frame.line,
        function: frame.function.clone(),
        role: "is where the host is".into(),
        named_by: by.into(),
        kernel: None,
        source: Vec::new(),
        related: callers
            .map(|f| super::model::Related {
                role: "called from".into(),
                file: f.file.clone(),
                line: f.line,
                function: f.function.clone(),
                text: None,
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::testing::launch;

    #[test]
    fn this_process_can_be_looked_at() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let facts = process_facts(pid).unwrap();
        assert!(!facts.argv.is_empty() && facts.threads >= 1 && !facts.has_recorder, "{facts:?}");
        assert_eq!(facts.cwd, std::env::current_dir().unwrap());
        assert!(process_facts(i32::MAX).is_err());
    }

    #[test]
    fn a_signal_goes_only_to_who_catches_it() {
        let caught = ProcessFacts {
            has_recorder: true,
            reports: Some("/r".into()),
            signal: 12,
            caught: 1 << 11,
            ..ProcessFacts::default()
        };
        assert_eq!(caught.recorder_obstacle(), None);
        for facts in [
            ProcessFacts { caught: 1 << 12, ..caught.clone() },
            ProcessFacts { signal: 0, ..caught.clone() },
            ProcessFacts { signal: 200, ..caught.clone() },
            ProcessFacts { has_recorder: false, ..caught.clone() },
            ProcessFacts { reports: None, ..caught.clone() },
        ] {
            assert!(facts.recorder_obstacle().is_some(), "{facts:?}");
        }
    }

    #[test]
    fn debuggers_are_read() {
        let spy = br#"[{"pid": 7, "thread_name": "MainThread", "frames": [{"name": "inner", "filename": "/j/t.py", "module": null, "short_filename": "t.py", "line": 3, "locals": null}]}]"#;
        assert_eq!(spy_frames(spy).unwrap()[0], python_frame("/j/t.py", 3, "inner"));
        let log = br#"{"kind": "attached", "thread": 1, "native": [{"symbol": "nanosleep", "module": null, "source": null}], "python": [{"file": "/j/t.py", "line": 6, "function": "<module>"}, {"file": "/j/t.py", "line": 3, "function": "inner"}], "python_by": "py-bt"}"#;
        let record = gdb_record(log).unwrap();
        assert_eq!((record.native[0].symbol.as_str(), record.python.len()), ("nanosleep", 2));
        assert!(gdb_record(b"x\n{}").is_none() && spy_frames(b"[]").is_none());
    }

    #[test]
    fn the_running_kernel_is_the_place_and_else_the_host() {
        let facts = ProcessFacts { state: "S (sleeping)".into(), ..ProcessFacts::default() };
        let mut found =
            Found { python: vec![python_frame("/j/t.py", 9, "main")], by: "gdb".into(), ..Found::default() };
        let diagnosis = conclude(&facts, &found, 7, Timestamp::UNIX_EPOCH);
        assert_eq!((diagnosis.places[0].line, diagnosis.confidence), (9, Confidence::Exact));
        found.hang = Some(Hang {
            time: 0.0,
            why: "signal".into(),
            seconds: 3.0,
            running: vec![launch(4, "spin", &[("/j/t.py", 5)])],
            guessed: false,
            host: vec![python_frame("/j/t.py", 9, "main")],
        });
        let diagnosis = conclude(&facts, &found, 7, Timestamp::UNIX_EPOCH);
        assert_eq!((diagnosis.places[0].line, diagnosis.surfaced.and_then(|s| s.line)), (5, Some(9)));
    }
}
