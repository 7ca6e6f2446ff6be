//! The entry point.

use std::ffi::{CStr, c_char};
use std::sync::Mutex;

use crate::config::Config;
use crate::cuda::Driver;
use crate::cupti::{Cupti, Refusal};
use crate::format::{Start, VERSION};
use crate::recorder::{Recorder, callback, forget_thread};
use crate::report::Reporter;
use crate::{ops, watch};

/// The driver calls this in `cuInit`, once it has loaded the library that `CUDA_INJECTION64_PATH` names.
///
/// Returns 1, as the driver's interface wants it; whatever goes wrong, the program goes on without the recorder.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn InitializeInjection() -> i32 {
    let _ = std::panic::catch_unwind(|| initialise(Source::Cupti));
    1
}

/// Who tells of the program's driver calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// CUPTI's call-backs.
    Cupti,
    /// The entry points themselves: see [`crate::interpose`].
    Interposed,
}

pub(crate) fn initialise(source: Source) {
    let config = Config::read(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()));
    let driver = match Driver::load() {
        Ok(driver) => driver,
        Err(why) => {
            Reporter::new(&config).notice("no-driver", &format!("{why}, so no launch is recorded"));
            return;
        }
    };
    let Some(recorder) = Recorder::make(config, driver) else { return };
    for complaint in &recorder.config.complaints {
        recorder.reporter.notice("setting", complaint);
    }
    let named = recorder.config.cupti.as_deref();
    let subscribe = || match (source, gave_way_before()) {
        (Source::Cupti, Some(who)) => Err(Refusal::GaveWay(who)),
        (Source::Cupti, None) => Cupti::subscribe(named, callback, ops::QUIET).map(Some),
        (Source::Interposed, _) => Ok(None),
    };
    let backend = match Recorder::quietly(subscribe) {
        Some(Ok(None)) => "interposed".to_string(),
        Some(Ok(Some(cupti))) => {
            let _ = recorder.cupti.set(cupti);
            "cupti".to_string()
        }
        Some(Err(refusal)) => {
            recorder.retire();
            reason(&refusal)
        }
        None => return,
    };
    recorder.reporter.start(Start {
        version: VERSION,
        pid: std::process::id(),
        rank: recorder.config.rank,
        argv: command_line(),
        backend,
        driver_version: recorder.driver.version(),
        cupti_version: recorder.cupti.get().map_or(0, |cupti| cupti.version),
        python: recorder.python().map_or_else(String::new, crate::python::Python::description),
        markers: recorder.config.markers.name().to_string(),
        ring: recorder.config.ring,
    });
    if recorder.is_inert() {
        return;
    }
    // SAFETY: both handlers live as long as the process: a library that was injected is never unloaded.
    unsafe {
        libc::atexit(at_exit);
        libc::pthread_atfork(None, None, Some(in_child));
    }
}

fn reason(refusal: &Refusal) -> String {
    let Some(recorder) = Recorder::get() else { return String::new() };
    let (code, message) = match refusal {
        Refusal::NotFound(places) => (
            "no-cupti",
            format!(
                "CUPTI was not found, so no launch is recorded (looked for {} files; FAULTLAB_RECORDER_CUPTI names it)",
                places.len()
            ),
        ),
        Refusal::Busy => (
            "cupti-busy",
            "another tool uses CUPTI in this process (a profiler?), so no launch is recorded: only one can".to_string(),
        ),
        Refusal::Failed(why) => ("cupti-failed", format!("{why}, so no launch is recorded")),
        Refusal::GaveWay(who) => (GAVE_WAY, gave_way_words(who, "no launch is recorded")),
    };
    recorder.reporter.notice(code, &message);
    code.to_string()
}

fn command_line() -> Vec<String> {
    let bytes = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let arguments = bytes.split(|byte| *byte == 0).filter(|argument| !argument.is_empty());
    arguments.map(|argument| String::from_utf8_lossy(argument).into_owned()).collect()
}

extern "C" fn at_exit() {
    let _ = std::panic::catch_unwind(|| {
        if let Some(recorder) = Recorder::get().filter(|recorder| !recorder.is_inert()) {
            watch::finish(recorder);
        }
    });
}

/// A forked child cannot use its parent's CUDA context, and has none of the recorder's threads.
extern "C" fn in_child() {
    forget_thread();
    if let Some(recorder) = Recorder::get() {
        recorder.retire();
    }
}

/// The notice's code.
const GAVE_WAY: &str = "gave-way";

/// Who asked for CUPTI before the recorder was made, and in which process: a child by `fork` is another one.
///
/// It is never waited for: a thread that is not there in such a child may hold it for ever.
static BEFORE: Mutex<Option<(u32, String)>> = Mutex::new(None);

fn gave_way_before() -> Option<String> {
    let before = BEFORE.try_lock().ok()?;
    before.as_ref().filter(|(pid, _)| *pid == std::process::id()).map(|(_, who)| who.clone())
}

fn gave_way_words(who: &str, consequence: &str) -> String {
    format!(
        "the recorder gave way to {who}: only one tool in a process can use CUPTI, so {consequence}. \
         `faultlab record-env --preload` records without CUPTI, beside a profiler"
    )
}

/// Gives CUPTI up, for a tool that needs it in this process (a profiler). Launches are not recorded any more; where CUDA has
/// not begun yet, none will be.
///
/// # Safety
/// `who` is null or a C string: which tool, and where the program starts it. It is shown as it is.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn faultlab_recorder_give_way_to(who: *const c_char) {
    let _ = std::panic::catch_unwind(|| {
        let who = if who.is_null() {
            "a profiler".to_string()
        } else {
            // SAFETY: the caller's promise.
            unsafe { CStr::from_ptr(who) }.to_string_lossy().into_owned()
        };
        give_way(who);
    });
}

/// The same for a tool that is not named.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn faultlab_recorder_give_way() {
    let _ = std::panic::catch_unwind(|| give_way("a profiler".to_string()));
}

fn give_way(who: String) {
    let Some(recorder) = Recorder::get() else {
        let process = std::process::id();
        if let Ok(mut before) = BEFORE.try_lock()
            && before.as_ref().is_none_or(|(asked, _)| *asked != process)
        {
            *before = Some((process, who));
        }
        return;
    };
    if recorder.is_inert() {
        return;
    }
    // Without CUPTI there is nothing that another could want.
    let Some(cupti) = recorder.cupti.get() else { return };
    recorder.retire();
    Recorder::quietly(|| cupti.unsubscribe());
    recorder.reporter.notice(GAVE_WAY, &gave_way_words(&who, "launches are not recorded from here on"));
}
