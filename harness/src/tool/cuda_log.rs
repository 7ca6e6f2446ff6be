//! `cuda-log`: `CUDA_LOG_FILE`, the CUDA driver's own log of calls that failed.
//!
//! It names the error and the driver's call that returned it, and knows neither Python nor kernels:
//!
//! ```text
//! [20:32:55.441][140071310504256][CUDA][E] No CUDA context is current to the calling thread
//! [20:32:55.441][140071310504256][CUDA][E] Returning 201 (CUDA_ERROR_INVALID_CONTEXT) from cuCtxGetDevice_v2
//! [20:33:03.412][140071310504256][CUDA][E] Returning 710 (CUDA_ERROR_ASSERT) from cuStreamSynchronize
//! ```
//!
//! A healthy PyTorch program makes dozens of such lines at start. So a claim is only the first error of the kind after
//! which a context is dead ([`FATAL`]); of all other errors only those that are not [`HARMLESS`] are shown.

use super::{Activity, Command, Target, Tool, common, text};
use crate::capture::Capture;
use crate::case::{Device, Mode};
use crate::finding::{Evidence, Finding, FindingKind, Location};
use crate::host::Need;
use crate::tool::Collect;

const VARIABLE: &str = "CUDA_LOG_FILE";
const LOG: &str = "cuda.log";
const LOG_CAP: usize = 1 << 20;

/// Errors that the CUDA documentation calls unrecoverable: the process's context can no longer be used.
const FATAL: &[u32] = &[214, 220, 221, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 720, 721];

/// What healthy programs get: no context yet, not ready yet, already enabled, not known to this driver.
const HARMLESS: &[u32] = &[201, 500, 600, 704, 705, 708, 712, 713, 801];

/// Errors that are shown.
const SHOWN: usize = 32;

/// See the module.
pub(super) struct CudaLog;

impl Tool for CudaLog {
    fn id(&self) -> &'static str {
        "cuda-log"
    }

    fn summary(&self) -> &'static str {
        "the CUDA driver's log of failed calls (CUDA_LOG_FILE)"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Gpu]
    }

    fn objection(&self, _: Mode, device: Device) -> Option<&'static str> {
        (device == Device::Cpu).then_some("the log is the CUDA driver's, which is not used on the CPU")
    }

    fn command(&self, target: &Target) -> Command {
        let mut command = common::python_command(target);
        command.env.insert(VARIABLE.into(), format!("{}/{LOG}", target.work));
        command.collect.push(Collect { name: LOG, cap: LOG_CAP });
        command
    }

    fn parse(&self, capture: &Capture) -> Vec<Finding> {
        let mut findings = common::context(capture);
        findings.extend(errors(capture.files.get(LOG).map(Vec::as_slice).unwrap_or_default()));
        findings
    }

    fn activity(&self, capture: &Capture, findings: &[Finding]) -> Activity {
        if !capture.meta.env_seen.contains_key(VARIABLE) {
            return Activity::Unproven(format!("{VARIABLE} was not in the process's environment"));
        }
        match capture.files.get(LOG) {
            Some(log) => Activity::Proven(format!("the driver wrote {LOG}, {} bytes", log.len()))
                .and(common::mode_activity(capture, findings)),
            None => Activity::Unproven(format!("the driver wrote no {LOG} (it can since CUDA 12.9)")),
        }
    }
}

/// The errors of the log. The first fatal one is the claim; what comes after it only repeats it.
fn errors(log: &[u8]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut before: Option<(u64, String)> = None;
    let mut claimed = false;
    for (line, start) in text::lines(log) {
        let Some(words) = words(line) else {
            before = None;
            continue;
        };
        let words = common::text(words);
        let Some((code, name)) = returned(&words) else {
            before = Some((start, words));
            continue;
        };
        // A line without a code explains the one after it.
        let explained = before.take();
        if HARMLESS.contains(&code) || (findings.len() == SHOWN && (claimed || !FATAL.contains(&code))) {
            continue;
        }
        let kind = if FATAL.contains(&code) && !claimed { FindingKind::Report } else { FindingKind::Context };
        claimed |= kind == FindingKind::Report;
        let (from, message) = match explained {
            Some((from, why)) => (from, format!("{why}: {words}")),
            None => (start, words.clone()),
        };
        findings.push(Finding {
            kind,
            error_type: Some(name),
            message,
            location: Location::default(),
            evidence: Evidence { stream: LOG.into(), start: from, end: start + line.len() as u64 },
        });
    }
    findings
}

/// What stands after `[time][thread][CUDA][E] `.
fn words(line: &[u8]) -> Option<&[u8]> {
    let mark = b"[CUDA][E] ";
    let at = line.windows(mark.len()).take(100).position(|w| w == mark)?;
    line.get(at + mark.len()..)
}

/// `Returning 710 (CUDA_ERROR_ASSERT) from cuStreamSynchronize`.
fn returned(words: &str) -> Option<(u32, String)> {
    let (code, rest) = words.strip_prefix("Returning ")?.split_once(" (")?;
    let (name, _) = rest.split_once(") from ")?;
    Some((code.parse().ok()?, name.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const NOISE: &str = "[20:32:55.441][140071310504256][CUDA][E] No CUDA context is current to the calling thread
[20:32:55.441][140071310504256][CUDA][E] Returning 201 (CUDA_ERROR_INVALID_CONTEXT) from cuCtxGetDevice_v2
";
    const LABEL: &str =
        "[20:33:03.412][140071310504256][CUDA][E] Returning 710 (CUDA_ERROR_ASSERT) from cuStreamSynchronize\n";
    const EMBEDDING: &str = "[20:32:56.939][140367326003520][CUDA][E] Sticky error detected
[20:32:56.939][140367326003520][CUDA][E] Returning 710 (CUDA_ERROR_ASSERT) from cuKernelGetFunction
";
    const ILLEGAL: &str = "[20:32:57.926][140454526292288][CUDA][E] Returning 700 (CUDA_ERROR_ILLEGAL_ADDRESS) from cuStreamSynchronize\n";

    fn capture(log: &str) -> Capture {
        let mut capture = testing::capture("/p", b"");
        capture.meta.env_seen.insert(VARIABLE.into(), "/w/cuda.log".into());
        capture.files.insert(LOG.into(), log.as_bytes().to_vec());
        capture
    }

    #[test]
    fn the_first_fatal_error_is_the_claim() {
        for (log, words) in [
            (LABEL, "Returning 710 (CUDA_ERROR_ASSERT) from cuStreamSynchronize"),
            (EMBEDDING, "Sticky error detected: Returning 710 (CUDA_ERROR_ASSERT) from cuKernelGetFunction"),
            (ILLEGAL, "Returning 700 (CUDA_ERROR_ILLEGAL_ADDRESS) from cuStreamSynchronize"),
        ] {
            let log = format!("{NOISE}{NOISE}{log}{log}");
            let found = CudaLog.parse(&capture(&log));
            assert_eq!(found.iter().filter(|f| f.kind == FindingKind::Report).count(), 1);
            assert_eq!(found[0].message, words);
            assert!(!found[0].location.names_a_place());
            let at = &found[0].evidence;
            let read = &log[usize::try_from(at.start).unwrap()..usize::try_from(at.end).unwrap()];
            assert!(read.ends_with(words.rsplit(": ").next().unwrap()));
        }
    }

    #[test]
    fn a_healthy_program_is_silent() {
        assert!(CudaLog.parse(&capture(&NOISE.repeat(50))).is_empty());
    }

    #[test]
    fn without_the_file_or_the_variable_nothing_is_proven() {
        let mut capture = capture(NOISE);
        assert!(matches!(CudaLog.activity(&capture, &[]), Activity::Proven(_)));
        capture.files.clear();
        assert!(matches!(CudaLog.activity(&capture, &[]), Activity::Unproven(_)));
        let mut capture = super::tests::capture(NOISE);
        capture.meta.env_seen.clear();
        assert!(matches!(CudaLog.activity(&capture, &[]), Activity::Unproven(_)));
    }
}
