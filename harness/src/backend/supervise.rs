//! The process between faultlab and a case: `faultlab __supervise`, one per case.
//!
//! It is the subreaper of the whole tree below it, so that a grandchild that forks, detaches or changes its
//! session is still found and killed; and it lives on when faultlab itself is killed, just long enough to see its
//! standard input close and to clear the tree away. Its own standard output and error are the case's.

#![expect(clippy::disallowed_methods, reason = "this is the place that starts processes")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, Read};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::capture::Exit;

/// The hidden subcommand.
pub const SUBCOMMAND: &str = "__supervise";

/// Marks every process of a case, whoever its parent is: see [`sweep`].
pub(super) const MARK: &str = "FAULTLAB_CASE";

/// How often the supervisor looks at its child.
const TICK: Duration = Duration::from_millis(2);

/// Helpers of a program (Python's resource tracker, say) end a moment after it; only what is there after this
/// long has been left behind.
const GRACE: Duration = Duration::from_millis(500);

/// Asks a process what it is doing. Nothing else uses this signal: it is of a coprocessor that Linux never had.
pub(crate) const ASK: Signal = Signal::SIGSTKFLT;

/// The answer is written in the signal's handler, so at once.
const ANSWER: Duration = Duration::from_millis(500);

/// A killed process that is still there after this long hangs in the kernel.
const KILL_LIMIT: Duration = Duration::from_secs(20);

/// One line of JSON on standard input; the input then stays open for as long as the case may live.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    /// The case's command.
    pub argv: Vec<String>,
    /// Its working directory.
    pub cwd: PathBuf,
    /// Seconds.
    pub deadline_s: f64,
    /// Variables to read back from the running process.
    pub watch_env: BTreeSet<String>,
    /// Before all are killed, send [`ASK`] to those that have a handler for it.
    pub ask: bool,
    /// Where to write the [`Account`].
    pub account: PathBuf,
}

/// What the supervisor saw.
#[derive(Debug, Serialize, Deserialize)]
pub struct Account {
    /// Why nothing was started.
    pub not_started: Option<String>,
    /// How the command ended.
    pub exit: Exit,
    /// faultlab closed the input: the case was stopped from outside.
    pub stopped: bool,
    /// Seconds from start to end of the command itself.
    pub elapsed_s: f64,
    /// Largest resident size of one process of the tree, in bytes.
    pub peak_rss_bytes: Option<u64>,
    /// Command lines of processes that outlived the command.
    pub left_behind: Vec<String>,
    /// Command lines of processes that could not be killed.
    pub unkillable: Vec<String>,
    /// From `/proc/PID/environ` of the running command.
    pub env_seen: BTreeMap<String, String>,
}

/// Runs one case. Returns when nothing of its tree is left, or when what is left cannot be killed.
pub fn supervise() -> io::Result<()> {
    let mut input = io::stdin().lock();
    let mut line = String::new();
    input.read_line(&mut line)?;
    drop(input);
    let order: Order = serde_json::from_str(&line).map_err(io::Error::other)?;
    let account = run(&order)?;
    // Renamed into place, so that faultlab never reads half of it.
    let part = order.account.with_extension("part");
    std::fs::write(&part, serde_json::to_vec(&account)?)?;
    std::fs::rename(&part, &order.account)
}

fn run(order: &Order) -> io::Result<Account> {
    prctl::set_child_subreaper(true)?;
    let input_closed = watch_input();
    let mut account = Account {
        not_started: None,
        exit: Exit::Code(0),
        stopped: false,
        elapsed_s: 0.0,
        peak_rss_bytes: None,
        left_behind: Vec::new(),
        unkillable: Vec::new(),
        env_seen: BTreeMap::new(),
    };
    let Some((program, args)) = order.argv.split_first() else {
        account.not_started = Some("the command is empty".into());
        return Ok(account);
    };
    let started = Instant::now();
    let spawned =
        Command::new(program).args(args).current_dir(&order.cwd).stdin(Stdio::null()).process_group(0).spawn();
    let child = match spawned {
        Ok(child) => Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX)),
        Err(e) => {
            account.not_started = Some(format!("failed to start {program}: {e}"));
            return Ok(account);
        }
    };
    account.env_seen = environ(child, &order.watch_env);
    let deadline = Duration::try_from_secs_f64(order.deadline_s).unwrap_or(Duration::MAX);
    let mut status = None;
    while status.is_none() {
        status = reap(child)?;
        if status.is_some() {
            break;
        }
        account.stopped = input_closed.load(Ordering::Relaxed);
        if account.stopped || started.elapsed() >= deadline {
            break;
        }
        std::thread::sleep(TICK);
    }
    account.elapsed_s = started.elapsed().as_secs_f64();
    if status.is_none() && order.ask {
        ask();
    }
    if status.is_some() {
        account.left_behind = outlived(child)?;
    }
    account.unkillable = kill_tree(child, &mut status)?;
    account.exit = match status {
        Some(exit) if account.elapsed_s < order.deadline_s => exit,
        _ => Exit::Deadline,
    };
    account.peak_rss_bytes =
        getrusage(UsageWho::RUSAGE_CHILDREN).ok().and_then(|u| u64::try_from(u.max_rss()).ok()).map(|kib| kib * 1024);
    Ok(account)
}

/// Becomes true when faultlab closes the input, on purpose or by dying.
fn watch_input() -> Arc<AtomicBool> {
    let closed = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&closed);
    std::thread::spawn(move || {
        let mut rest = [0; 64];
        while io::stdin().lock().read(&mut rest).is_ok_and(|n| n > 0) {}
        flag.store(true, Ordering::Relaxed);
    });
    closed
}

/// Sends [`ASK`] to each process of the tree that has a handler for it, and waits for the answers.
fn ask() {
    let willing = Tree::look().pids.into_iter().filter(|pid| catches(*pid, ASK));
    let asked = willing.filter(|pid| kill(Pid::from_raw(*pid), ASK).is_ok()).count();
    if asked > 0 {
        std::thread::sleep(ANSWER);
    }
}

/// Whether a process has a handler for a signal: by default this one would end it.
fn catches(pid: i32, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    caught >> (signal as u32 - 1) & 1 == 1
}

/// Collects every child that has ended, adopted orphans too; says how `child` ended, once it has.
fn reap(child: Pid) -> io::Result<Option<Exit>> {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) if pid == child => return Ok(Some(Exit::Code(code))),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == child => {
                return Ok(Some(Exit::Signal(signal.as_str().into())));
            }
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return Ok(None),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Is the tree empty? A process without a parent is this one's child, so the kernel knows, and at once: a look
/// through `/proc` can miss a process that forks and ends all the time.
fn is_empty() -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    waitid(Id::All, flags) == Err(Errno::ECHILD)
}

/// What is still there when the command has ended and the grace is over.
fn outlived(child: Pid) -> io::Result<Vec<String>> {
    let until = Instant::now() + GRACE;
    loop {
        reap(child)?;
        if is_empty() {
            return Ok(Vec::new());
        }
        if Instant::now() >= until {
            return Ok(command_lines());
        }
        std::thread::sleep(TICK);
    }
}

/// Kills everything below this process, again and again until nothing is left: first all are stopped, so that
/// none can fork while the others die. One that forks faster than it is found dies with its group, which the
/// kernel kills as a whole.
fn kill_tree(child: Pid, status: &mut Option<Exit>) -> io::Result<Vec<String>> {
    let until = Instant::now() + KILL_LIMIT;
    loop {
        let mut seen = BTreeSet::new();
        let mut groups = BTreeSet::new();
        loop {
            let tree = Tree::look();
            groups.extend(tree.groups);
            let fresh: Vec<i32> = tree.pids.into_iter().filter(|pid| seen.insert(*pid)).collect();
            if fresh.is_empty() || Instant::now() >= until {
                break;
            }
            for pid in fresh {
                let _ = kill(Pid::from_raw(pid), Signal::SIGSTOP);
            }
        }
        for pid in &seen {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        for group in groups {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        if let Some(exit) = reap(child)? {
            status.get_or_insert(exit);
        }
        if is_empty() {
            return Ok(Vec::new());
        }
        if Instant::now() >= until {
            return Ok(command_lines());
        }
        std::thread::sleep(TICK);
    }
}

/// Kills what a supervisor left that was killed itself (by the kernel, short of memory, say): every process that
/// carries this mark in its environment. Returns the command lines of those that are still there.
pub(super) fn sweep(mark: &str) -> Vec<String> {
    let wanted = format!("{MARK}={mark}").into_bytes();
    let until = Instant::now() + KILL_LIMIT;
    loop {
        let mut left = Vec::new();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
            let environ = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            if environ.split(|b| *b == 0).any(|pair| pair == wanted) && live_parent(&entry.path()).is_some() {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                left.push(pid);
            }
        }
        if left.is_empty() || Instant::now() >= until {
            return left.into_iter().map(command_line).collect();
        }
        std::thread::sleep(TICK);
    }
}

/// What `/proc` shows below this process.
struct Tree {
    /// Live processes.
    pids: Vec<i32>,
    /// Process groups that have members in the tree and none outside it.
    groups: BTreeSet<i32>,
}

impl Tree {
    fn look() -> Self {
        let mut children: BTreeMap<i32, Vec<(i32, i32)>> = BTreeMap::new();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
            if let Some((parent, group)) = live_parent(&entry.path()) {
                children.entry(parent).or_default().push((pid, group));
            }
        }
        let mut tree = Self { pids: Vec::new(), groups: BTreeSet::new() };
        let mut open = vec![i32::try_from(std::process::id()).unwrap_or(0)];
        while let Some(pid) = open.pop() {
            for (pid, group) in children.remove(&pid).unwrap_or_default() {
                tree.pids.push(pid);
                tree.groups.insert(group);
                open.push(pid);
            }
        }
        for (_, group) in children.values().flatten() {
            tree.groups.remove(group);
        }
        tree
    }
}

/// The parent and the group of a process that is not a zombie. The name in `stat` may hold anything, so the fields
/// are counted from its last parenthesis.
pub(super) fn live_parent(process: &Path) -> Option<(i32, i32)> {
    let stat = std::fs::read(process.join("stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    (state != "Z" && state != "X").then_some((parent, group))
}

/// The command line of everything that is left.
fn command_lines() -> Vec<String> {
    let left: Vec<String> = Tree::look().pids.into_iter().map(command_line).collect();
    // What forks and ends all the time may not be seen, and is there all the same.
    if left.is_empty() { vec!["a process that could not be named".into()] } else { left }
}

/// A process's command line, as far as it can be read.
fn command_line(pid: i32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).replace('\0', " ");
    if text.trim().is_empty() { format!("process {pid}") } else { text.trim().to_string() }
}

/// The wanted variables of a running process. While the kernel still sets the new program up, the file is empty.
fn environ(pid: Pid, wanted: &BTreeSet<String>) -> BTreeMap<String, String> {
    let until = Instant::now() + GRACE;
    let mut bytes = Vec::new();
    while bytes.is_empty() && Instant::now() < until {
        match std::fs::read(format!("/proc/{pid}/environ")) {
            Ok(read) => bytes = read,
            Err(_) => break,
        }
        std::thread::yield_now();
    }
    bytes
        .split(|b| *b == 0)
        .filter_map(|pair| {
            let pair = String::from_utf8_lossy(pair);
            let (key, value) = pair.split_once('=')?;
            wanted.contains(key).then(|| (key.to_string(), value.to_string()))
        })
        .collect()
}
