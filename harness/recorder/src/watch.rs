//! The watcher: a thread that sees faults and hangs which no driver call of the program tells.
//!
//! It sleeps almost always. While markers are outstanding and none was written for a while, it asks the driver whether the
//! context is alive; and it answers signals, in whose handlers nothing can be done.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use crate::cuda::is_device_fault;
use crate::recorder::Recorder;

/// How often markers are looked at.
const TICK: Duration = Duration::from_millis(25);
/// Without progress for so long, the driver is asked.
const SUSPICION: Duration = Duration::from_millis(100);
/// The same where only launches without markers are open: they are most likely done.
const UNMARKED_SUSPICION: Duration = Duration::from_secs(1);
/// At exit or abort, unfinished work is waited for so long.
const EXIT_PATIENCE: Duration = Duration::from_secs(2);
/// The same where the driver may be writing a core dump, during which the context looks busy.
const DUMP_PATIENCE: Duration = Duration::from_secs(30);
/// How long an aborting thread waits for the report.
const ABORT_PATIENCE: Duration = Duration::from_secs(3);

static STARTED: AtomicBool = AtomicBool::new(false);
static STOP: AtomicBool = AtomicBool::new(false);
/// The signal that asked for a report; 0 when it is answered.
static ASKED: AtomicI32 = AtomicI32::new(0);

/// Starts the thread, once.
pub(crate) fn start(recorder: &Recorder) {
    if STARTED.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: a zeroed set is a valid argument of sigfillset.
    let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
    let mut all = before;
    // The program's signals are for its own threads.
    // SAFETY: both sets are initialised by these calls; a thread inherits the mask.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    let spawned = std::thread::Builder::new().name("faultlab-watch".into()).stack_size(1 << 20).spawn(watch);
    // SAFETY: puts the mask back.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    if spawned.is_err() {
        recorder.reporter.notice("no-watcher", "no thread could be started: hangs are not reported");
        return;
    }
    handle(libc::SIGABRT, on_abort);
    if recorder.config.signal != 0 {
        handle(recorder.config.signal, on_signal);
    }
}

/// Takes a signal that nobody has.
fn handle(signal: i32, handler: extern "C" fn(i32)) {
    // SAFETY: zeroed structures are valid; the handler does only what is allowed in one.
    unsafe {
        let mut current: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(signal, std::ptr::null(), &raw mut current) != 0 || current.sa_sigaction != libc::SIG_DFL {
            return;
        }
        let mut ours: libc::sigaction = std::mem::zeroed();
        ours.sa_sigaction = handler as *const () as usize;
        ours.sa_flags = libc::SA_RESTART;
        libc::sigaction(signal, &raw const ours, std::ptr::null_mut());
    }
}

extern "C" fn on_signal(signal: i32) {
    ASKED.store(signal, Ordering::Release);
}

/// An exception that left a destructor, say: the report is written by the watcher, then the program dies as it would have.
extern "C" fn on_abort(signal: i32) {
    ASKED.store(signal, Ordering::Release);
    let step = libc::timespec { tv_sec: 0, tv_nsec: 5_000_000 };
    for _ in 0..ABORT_PATIENCE.as_millis() / 5 {
        if ASKED.load(Ordering::Acquire) != signal || STOP.load(Ordering::Relaxed) {
            break;
        }
        // SAFETY: async-signal-safe.
        unsafe { libc::nanosleep(&raw const step, std::ptr::null_mut()) };
    }
    // SAFETY: async-signal-safe; `abort` raises the signal again when the handler returns.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

fn watch() {
    let mut last = Vec::new();
    let mut since = Instant::now();
    let mut checked = Instant::now();
    let mut reported = false;
    loop {
        std::thread::sleep(TICK);
        let Some(recorder) = Recorder::get().filter(|r| !r.is_inert() && !STOP.load(Ordering::Relaxed)) else { return };
        let (progress, work) = progress(recorder);
        if progress != last {
            (last, since, reported) = (progress, Instant::now(), false);
        }
        if work == Work::None {
            since = Instant::now();
        }
        let still = since.elapsed();
        match ASKED.load(Ordering::Acquire) {
            0 => {}
            libc::SIGABRT => {
                Recorder::quietly(|| settle(recorder, "abort"));
                ASKED.store(0, Ordering::Release);
            }
            _ => {
                Recorder::quietly(|| recorder.reporter.hang(recorder, "signal", still.as_secs_f64()));
                ASKED.store(0, Ordering::Release);
            }
        }
        let patience = match work {
            Work::None => continue,
            Work::Awaited => SUSPICION,
            Work::Unmarked => UNMARKED_SUSPICION,
        };
        if still >= patience && checked.elapsed() >= patience {
            checked = Instant::now();
            Recorder::quietly(|| check(recorder, "watcher"));
        }
        // What has no marker may long be done: a program that launched a little and then does something else.
        if work == Work::Awaited
            && let Some(deadline) = recorder.config.hang
            && still >= deadline
            && !reported
            && !faulted(recorder)
        {
            // Without a marker that is outstanding a call that takes long shows nothing: the driver may be loading a module.
            Recorder::quietly(|| {
                reported = is_marked_busy(recorder) || ask_streams(recorder) != Some(false);
                if reported {
                    recorder.reporter.hang(recorder, "deadline", still.as_secs_f64());
                }
            });
            if !reported {
                since = Instant::now();
            }
        }
    }
}

fn faulted(recorder: &Recorder) -> bool {
    recorder.streams.lock().contexts.iter().any(|seen| seen.faulted)
}

/// What is known of unfinished work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Everything is done.
    None,
    /// Something has no marker and may be done or not.
    Unmarked,
    /// A marker is not written yet; without markers: a thread waits for the device.
    Awaited,
}

/// How far every slot has come, and whether something is launched and not known to be done.
fn progress(recorder: &Recorder) -> (Vec<(u64, u64)>, Work) {
    let host = recorder.without_markers().map(|_| recorder.streams.host_waits());
    let inner = recorder.streams.lock();
    let mut slots: Vec<(u64, u64)> =
        inner.slots.iter().map(|s| (s.completed(), s.stream.issued.load(Ordering::Relaxed))).collect();
    slots.extend(host.map(|(ended, _)| (ended, 0)));
    let work = if host.is_some_and(|(_, waits)| waits) || inner.slots.iter().any(|slot| slot.is_awaited()) {
        Work::Awaited
    } else if inner.streams.iter().any(|s| inner.completed(s.id) < s.issued.load(Ordering::Relaxed)) {
        Work::Unmarked
    } else {
        Work::None
    };
    (slots, work)
}

/// Asks the driver whether the contexts are alive.
fn check(recorder: &Recorder, who: &str) {
    let mut dead = None;
    {
        // With the lock held: a context is forgotten before it is destroyed.
        let inner = recorder.streams.lock();
        for seen in inner.contexts.iter().filter(|seen| !seen.faulted) {
            let code = seen.probe.map_or(0, |event| recorder.driver.health(seen.context, event));
            if is_device_fault(code) {
                dead = Some((code, seen.context));
            }
        }
    }
    if let Some((code, context)) = dead {
        recorder.reporter.fault(recorder, code, who, context, None, recorder.reporter.taking());
    }
}

/// Whether a marker is outstanding: the device is not done.
fn is_marked_busy(recorder: &Recorder) -> bool {
    recorder.streams.lock().slots.iter().any(|slot| slot.waits_for_marker())
}

/// Where no markers tell it: asks the streams whether they are done. Whether one is still busy; `None` where none may be
/// asked, because another stream is being captured.
fn ask_streams(recorder: &Recorder) -> Option<bool> {
    if recorder.captures.any() {
        return None;
    }
    // With the lock held: a stream or context is forgotten before it is destroyed.
    let inner = recorder.streams.lock();
    let mut busy = false;
    for stream in inner.streams.iter().filter(|stream| stream.is_askable() && inner.is_open_ended(stream)) {
        if !inner.contexts.iter().any(|seen| seen.context == stream.context && !seen.faulted) {
            continue;
        }
        let issued = stream.issued.load(Ordering::Relaxed);
        match recorder.driver.query(stream.context, stream.handle) {
            Some(0) => stream.synchronise(issued),
            // The context's own error is asked for by `check`.
            Some(_) => {}
            None => busy = true,
        }
    }
    Some(busy)
}

/// Waits a little for unfinished work, since a fault in it would go unnoticed, and asks the driver.
fn settle(recorder: &Recorder, who: &str) {
    let begin = Instant::now();
    let mut checked = Instant::now();
    let patience = if recorder.config.dump_armed { DUMP_PATIENCE } else { EXIT_PATIENCE };
    let asking = recorder.without_markers().is_some();
    while !faulted(recorder) && begin.elapsed() < patience {
        let work = progress(recorder).1;
        if work != Work::Awaited && !(asking && work == Work::Unmarked && ask_streams(recorder) == Some(true)) {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
        if checked.elapsed() > Duration::from_millis(20) {
            check(recorder, who);
            checked = Instant::now();
        }
    }
    check(recorder, who);
}

/// At exit: waits a little for unfinished work, so that a fault in it is seen, and writes the last record.
pub(crate) fn finish(recorder: &Recorder) {
    STOP.store(true, Ordering::Relaxed);
    Recorder::quietly(|| {
        recorder.mark_the_rest();
        settle(recorder, "exit");
        recorder.reporter.exit(recorder);
    });
    recorder.retire();
}
