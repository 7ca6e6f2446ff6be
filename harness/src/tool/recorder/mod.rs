//! `recorder`: faultlab's own launch recorder (`harness/recorder`), which the CUDA driver loads into the program. It names
//! the launch that faulted, with the Python line that made it, while the program stays asynchronous.
//!
//! What it writes, shortened (`faultlab_recorder::format` is the definition); the files of all processes become one,
//! `recorder.jsonl`:
//!
//! ```text
//! {"type":"start","version":1,"pid":71,"backend":"cupti","markers":"adaptive",…}
//! {"type":"active","device":0,"markers":"on"}
//! {"type":"fault","code":710,"name":"CUDA_ERROR_ASSERT","confidence":"exact","culprits":[{"seq":412,"kernel":"at::native::…","frames":[{"file":"/p/train.py","line":43,…}],…}],…}
//! {"type":"exit","launches":431,"markers":120,…}
//! ```
//!
//! - The place of a fault is the line that its launch stands for: for a kernel that `torch.compile` generated the line of
//!   the user's function, for a launch of autograd's own thread the forward line of its node, else the innermost frame. Of a
//!   CUDA graph it is the line that replayed it; the line that captured the node is said beside it.
//! - Of several launches that can have faulted, the kernel's name decides where the assertion's text in standard error has
//!   it. Where nothing decides, the likeliest is the claim and the others are context: a claim is never a list of guesses.
//! - A hang is a claim like a fault. What ran on other streams at that moment is context.
//! - Evidence of activity is the recorder's own: it was loaded with CUPTI, saw a launch, could set its markers, set some,
//!   and wrote to the end. One that gave way to a profiler is inactive.
//!
//! The Python side of the recorder ([`SHIM`]) goes before `PYTHONPATH`. In a container the library is this machine's, mounted; an
//! image whose C library is too old cannot load it, and is said to have no recorder.

mod decide;
mod dump;
mod said;

use std::path::Path;
use std::sync::LazyLock;

use faultlab_recorder::format::Record;
use serde::de::DeserializeOwned;

pub(super) use self::dump::RecorderDump;
use self::said::Said;
use super::debugger::Stop;
use super::{Activity, After, Command, Target, Tool, WorkFile, common, text};
use crate::capture::Capture;
use crate::case::{Device, Mode};
use crate::finding::{Evidence, Finding, Location};
use crate::host::Need;
use crate::recorder_env::{Entry, Markers, RecorderSettings, recorder_env, shim_files};

const REPORT: &str = "recorder.jsonl";

/// In the words of a finding that is one of several possible ones.
pub(crate) const LIKELIEST: &str = "the likeliest of";

/// Seconds without anything finishing that are a hang: beyond a long kernel, within the patience of a watchdog.
const HANG_S: f64 = 5.0;

/// The recorder's Python side, as files of the working directory below `shim/`.
static SHIM: LazyLock<Vec<WorkFile>> = LazyLock::new(|| {
    let text = |bytes: &'static [u8]| std::str::from_utf8(bytes).ok();
    let file = |(path, bytes): (&'static Path, &'static [u8])| {
        let name: &'static str = Box::leak(format!("shim/{}", path.display()).into_boxed_str());
        Some(WorkFile { name, text: text(bytes)? })
    };
    shim_files().filter_map(file).collect()
});

/// See the module.
pub(super) struct Recorder;

impl Tool for Recorder {
    fn id(&self) -> &'static str {
        "recorder"
    }

    fn summary(&self) -> &'static str {
        "the launch that faulted and its Python line, while the program stays asynchronous (faultlab's launch recorder)"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Gpu, Need::Recorder]
    }

    fn objection(&self, _: Mode, device: Device) -> Option<&'static str> {
        (device == Device::Cpu).then_some("it records CUDA launches, and on the CPU there are none")
    }

    fn command(&self, target: &Target) -> Command {
        let mut command = common::python_command(target);
        record(&mut command, target, Need::Recorder, Markers::Adaptive);
        command
    }

    fn parse(&self, capture: &Capture) -> Vec<Finding> {
        findings(capture, None)
    }

    fn activity(&self, capture: &Capture, findings: &[Finding]) -> Activity {
        Seen::activity(capture, &On { backend: "cupti", markers: "on" }).and(common::mode_activity(capture, findings))
    }
}

/// Puts the recorder's Python side on a command: what it does there, the environment says.
pub(super) fn python_side(command: &mut Command, target: &Target) {
    if !SHIM.is_empty() {
        command.prepend.entry("PYTHONPATH".into()).or_default().push(format!("{}/shim", target.work));
        command.files.extend_from_slice(&SHIM);
    }
}

/// Puts the recorder on a command, by the library that `need` stands for.
fn record(command: &mut Command, target: &Target, need: Need, markers: Markers) {
    let library = target.program_path(need.name());
    let env = recorder_env(&RecorderSettings {
        library: Path::new(&library),
        entry: if need == Need::RecorderPreload { Entry::Preload } else { Entry::Injection },
        shim: None,
        reports: Some(Path::new(&target.work)),
        markers,
        hang_s: Some(HANG_S),
        // Its words are in the file; standard error stays the program's.
        stderr: false,
        nan: false,
        stacks: None,
    });
    command.env.extend(env.set);
    for (key, paths) in env.prepend {
        command.prepend.entry(key).or_default().extend(paths);
    }
    python_side(command, target);
    command.after.push(joined("recorder", REPORT));
}

/// What the records say, and what the program printed as their context.
fn findings(capture: &Capture, dump: Option<Stop>) -> Vec<Finding> {
    let mut said = Said::new(capture, dump);
    let mut last_hang = None;
    for (record, evidence) in records(capture) {
        match record {
            Record::Fault(fault) => said.fault(&fault, &evidence),
            // A later one knows more of the same hang.
            Record::Hang(hang) => last_hang = Some((hang, evidence)),
            Record::Notice(notice) => said.context(notice.message, &evidence, Location::default()),
            Record::Start(_) | Record::Active(_) | Record::Exit(_) => {}
        }
    }
    if let Some((hang, evidence)) = last_hang {
        said.hang(&hang, &evidence);
    }
    let mut findings = said.findings;
    findings.extend(common::context(capture));
    findings
}

/// Joins the files `STEM.<pid>.jsonl` of all processes in one; without any it makes an empty one.
pub(super) fn joined(stem: &str, output: &'static str) -> After {
    let script = format!("for f in {stem}.*.jsonl; do [ -e \"$f\" ] && cat \"$f\"; done; true");
    After { output, argv: vec!["sh".into(), "-c".into(), script], only_if: None }
}

/// The records of such a file. A line that is none (cut off by a kill, or of a later format) is passed over.
pub(super) fn records_of<T: DeserializeOwned>(
    capture: &Capture,
    file: &'static str,
) -> impl Iterator<Item = (T, Evidence)> {
    let bytes = capture.files.get(file).map(Vec::as_slice).unwrap_or_default();
    text::lines(bytes).filter_map(move |(line, start)| {
        let record = serde_json::from_slice(line).ok()?;
        Some((record, Evidence { stream: file.into(), start, end: start + line.len() as u64 }))
    })
}

fn records(capture: &Capture) -> impl Iterator<Item = (Record, Evidence)> {
    records_of(capture, REPORT)
}

/// How a recorder that is on says so.
struct On {
    /// How it gets its call-backs.
    backend: &'static str,
    /// Its markers: `on`, or `off` where none are wanted.
    markers: &'static str,
}

/// What the records prove. Processes that never launched anything (workers) prove and disprove nothing.
#[derive(Default)]
struct Seen {
    backend: Option<String>,
    /// What was said of the markers when the first launch was seen.
    markers: Option<String>,
    launches: u64,
    markers_set: u64,
    /// What it held in the end.
    bytes: u64,
    /// It wrote to the end, or to the event that is the end.
    ended: bool,
    gave_way: Option<String>,
}

impl Seen {
    /// Does the capture show that the recorder was on?
    fn activity(capture: &Capture, on: &On) -> Activity {
        let mut seen = Self::default();
        records(capture).for_each(|(record, _)| seen.add(record, on));
        seen.judged(on)
    }

    fn add(&mut self, record: Record, on: &On) {
        match record {
            // One process that is recorded is enough.
            Record::Start(start) if self.backend.as_deref() != Some(on.backend) => self.backend = Some(start.backend),
            Record::Active(active) if self.markers.as_deref() != Some(on.markers) => {
                self.markers = Some(active.markers);
            }
            Record::Notice(notice) if matches!(notice.code.as_str(), "gave-way" | "panicked") => {
                self.gave_way.get_or_insert(notice.message);
            }
            Record::Exit(exit) => {
                self.ended = true;
                self.launches = self.launches.saturating_add(exit.launches);
                self.markers_set = self.markers_set.saturating_add(exit.markers);
                self.bytes = self.bytes.saturating_add(exit.bytes);
            }
            Record::Fault(_) | Record::Hang(_) => self.ended = true,
            Record::Start(_) | Record::Active(_) | Record::Notice(_) => {}
        }
    }

    fn judged(self, on: &On) -> Activity {
        let Self { backend, markers, launches, markers_set, bytes, ended, gave_way } = self;
        let Some(backend) = backend else {
            return Activity::Unproven(format!("the recorder was not loaded: there is no record in {REPORT}"));
        };
        if backend != on.backend {
            return Activity::Unproven(format!("the recorder was loaded and is off: {backend}"));
        }
        if let Some(why) = gave_way {
            return Activity::Unproven(why);
        }
        let wanted = on.markers == "on";
        match markers.as_deref() {
            None => Activity::Unproven("the recorder was loaded and saw no launch".into()),
            Some(markers) if markers != on.markers => {
                Activity::Unproven(format!("the recorder could set no markers: {markers}"))
            }
            Some(_) if !ended => Activity::Unproven("the recorder's report breaks off before the program's end".into()),
            Some(_) if wanted && launches > 0 && markers_set == 0 => {
                Activity::Unproven(format!("the recorder saw {launches} launches and set no marker"))
            }
            Some(markers) if launches == 0 => {
                Activity::Proven(format!("the recorder saw launches, with markers {markers}"))
            }
            Some(_) => Activity::Proven(format!(
                "the recorder saw {launches} launches, set {markers_set} markers and held {bytes} bytes in the end"
            )),
        }
    }
}

#[cfg(test)]
mod tests;
