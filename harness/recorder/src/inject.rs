//! The entry point.

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
    let subscribe = || match source {
        Source::Cupti => Cupti::subscribe(named, callback, ops::QUIET).map(Some),
        Source::Interposed => Ok(None),
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

/// Gives CUPTI up, for a tool that needs it in this process (a profiler). Launches are not recorded any more.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn faultlab_recorder_give_way() {
    let _ = std::panic::catch_unwind(|| {
        if let Some(recorder) = Recorder::get().filter(|recorder| !recorder.is_inert()) {
            recorder.retire();
            Recorder::quietly(|| recorder.cupti.get().map(Cupti::unsubscribe));
            recorder.reporter.notice("gave-way", "a profiler needs CUPTI: launches are not recorded from here on");
        }
    });
}
