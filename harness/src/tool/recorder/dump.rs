//! `recorder-dump`: the launch recorder by `LD_PRELOAD`, without CUPTI and without markers, and a GPU core dump beside it.
//!
//! The recorder stands before the driver's entry points and only notes launches: the GPU has nothing more to do than without
//! it. A CUPTI subscriber would keep the driver from writing the core dump; this one does not. After a fault the recorder
//! names every launch that nobody had waited for, by kernel, size and line; the dump names the kernel that raised the
//! exception and the size of its grid. Where only one line launched that kernel in that size, that line is the fault.
//!
//! The dump's grid number is not used: it counts launches that no call-back sees (cuDNN, autotuning), and kernels inside a
//! CUDA graph. Where two lines launched the kernel in the same size the likeliest is the claim and says of how many it is one.

use super::super::coredump::Coredump;
use super::super::{Activity, Command, Target, Tool};
use super::{On, Seen, findings, record};
use crate::capture::Capture;
use crate::case::{Device, Mode};
use crate::finding::{Finding, FindingKind};
use crate::host::Need;
use crate::recorder_env::Markers;

/// See the module.
pub(in crate::tool) struct RecorderDump;

impl Tool for RecorderDump {
    fn id(&self) -> &'static str {
        "recorder-dump"
    }

    fn summary(&self) -> &'static str {
        "the line that launched a GPU core dump's kernel: a log of launches without markers or CUPTI (LD_PRELOAD)"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Gpu, Need::Torch, Need::RecorderPreload, Need::CudaGdb]
    }

    fn objection(&self, _: Mode, device: Device) -> Option<&'static str> {
        (device == Device::Cpu).then_some("it records CUDA launches, and on the CPU there are none")
    }

    fn command(&self, target: &Target) -> Command {
        let mut command = Coredump.command(target);
        record(&mut command, target, Need::RecorderPreload, Markers::Off);
        command
    }

    fn parse(&self, capture: &Capture) -> Vec<Finding> {
        let found = findings(capture, Coredump::stop(capture));
        if found.iter().any(|f| f.kind == FindingKind::Report) {
            return found;
        }
        // Without the recorder's report the dump speaks for itself.
        let dump = Coredump::stop(capture).and_then(|stop| stop.finding(Coredump::READ));
        dump.into_iter().chain(found).collect()
    }

    fn activity(&self, capture: &Capture, findings: &[Finding]) -> Activity {
        let recorder = Seen::activity(capture, &On { backend: "interposed", markers: "off" });
        recorder.and(Coredump.activity(capture, findings))
    }
}
