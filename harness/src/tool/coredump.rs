//! `coredump`: a GPU core dump, written by the driver at the first exception, read with cuda-gdb afterwards.
//!
//! The program itself runs at full speed. cuda-gdb says of the dump:
//!
//! ```text
//! Opening GPU coredump: core.cuda
//! [Current focus set to CUDA kernel 0, grid 36, block (112,0,0), thread (128,0,0), device 0, sm 8, warp 5, lane 0]
//!
//! CUDA Exception: Warp Illegal Address
//! The exception was triggered at PC 0x7f33cf7a3ce0  pack_rows  (pack_rows.cu:7)
//! #0  0x00007f33cf7a3ce0 in pack_rows<<<(128,1,1),(256,1,1)>>> () at <WORK>/pack_rows.cu:7
//! ```
//!
//! It knows the kernel with its signature, block and thread, and the line of device code where the kernel was
//! compiled with line information; nothing of Python. The dump leaves out all memory: with `skip_abort` alone, or with
//! `CUDA_ENABLE_LIGHTWEIGHT_COREDUMP=1` beside it, dumps of 1 to 2.4 GB were seen; with these flags 332 KB.
//!
//! Without a fault there is no dump. That it would have been written is then shown by the driver: an exit handler asks
//! it for its own setting (`cuCoredumpGetAttributeGlobal`). A program that is killed before its exit handlers run
//! leaves only its environment as evidence, and that is not taken for a proof.

use super::{Activity, After, Command, Target, Tool, common, debugger, inject};
use crate::capture::Capture;
use crate::finding::{Finding, FindingKind};
use crate::host::Need;

const DUMP: &str = "core.cuda";
const ENABLE: &str = "CUDA_ENABLE_COREDUMP_ON_EXCEPTION";
const FLAGS: &str = "skip_nonrelocated_elf_images,skip_global_memory,skip_shared_memory,skip_local_memory,\
                     skip_constbank_memory,skip_abort";

/// See the module.
pub(super) struct Coredump;

impl Coredump {
    /// What cuda-gdb said of the dump.
    pub(super) const READ: &str = "coredump.txt";

    /// Where the kernel stopped, if there is a dump.
    pub(super) fn stop(capture: &Capture) -> Option<debugger::Stop> {
        debugger::stop(capture.files.get(Self::READ)?)
    }
}

impl Tool for Coredump {
    fn id(&self) -> &'static str {
        "coredump"
    }

    fn summary(&self) -> &'static str {
        "kernel, block, thread and device line of a GPU core dump (CUDA_ENABLE_COREDUMP_ON_EXCEPTION, cuda-gdb)"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Gpu, Need::Torch, Need::CudaGdb]
    }

    fn command(&self, target: &Target) -> Command {
        let mut command = common::python_command(target);
        inject::inject(&mut command, &target.work, include_str!("inject/coredump.py"));
        command.env.insert(ENABLE.into(), "1".into());
        command.env.insert("CUDA_COREDUMP_FILE".into(), format!("{}/{DUMP}", target.work));
        command.env.insert("CUDA_COREDUMP_GENERATION_FLAGS".into(), FLAGS.into());
        command.env.insert("CUDA_COREDUMP_SHOW_PROGRESS".into(), "1".into());
        let mut argv = vec![target.program_path("cuda-gdb")];
        let open = format!("target cudacore {DUMP}");
        for word in ["-batch", "-nx", "-ex", "set width 0", "-ex", &open, "-ex", "bt", "-ex", "info cuda kernels"] {
            argv.push(word.into());
        }
        command.after.push(After { output: Self::READ, argv, only_if: Some(DUMP) });
        command
    }

    fn parse(&self, capture: &Capture) -> Vec<Finding> {
        let stop = Self::stop(capture).and_then(|stop| stop.finding(Self::READ));
        let mut findings: Vec<Finding> = stop.into_iter().collect();
        findings.extend(inject::reports(capture).into_iter().filter(|f| f.kind == FindingKind::Context));
        findings.extend(common::context(capture));
        findings
    }

    fn activity(&self, capture: &Capture, findings: &[Finding]) -> Activity {
        let mode = common::mode_activity(capture, findings);
        if !capture.had_env(ENABLE, "1") {
            return Activity::Unproven(format!("{ENABLE}=1 was not in the process's environment"));
        }
        if capture.files.contains_key(Self::READ) {
            return match Self::stop(capture) {
                Some(_) => Activity::Proven("the driver wrote a core dump, and cuda-gdb read it".into()).and(mode),
                None => Activity::Unproven("the driver wrote a core dump, and cuda-gdb could not read it".into()),
            };
        }
        match inject::reports(capture).iter().find(|f| f.message.starts_with("driver: ")) {
            Some(f) if f.message.ends_with(" is on") => {
                Activity::Proven("the driver said when the program ended that core dumps were on".into()).and(mode)
            }
            Some(f) => Activity::Unproven(f.message.clone()),
            None => Activity::Unproven("no core dump, and no answer from the driver whether it would write one".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use proptest::prelude::*;

    const DUMP_OF_PACK: &str = "\
Opening GPU coredump: core.cuda
[Current focus set to CUDA kernel 0, grid 36, block (112,0,0), thread (128,0,0), device 0, sm 8, warp 5, lane 0]

CUDA Exception: Warp Illegal Address
The exception was triggered at PC 0x7f33cf7a3ce0  pack_rows  (pack_rows.cu:7)
#0  0x00007f33cf7a3ce0 in pack_rows<<<(128,1,1),(256,1,1)>>> () at <WORK>/pack_rows.cu:7
  Kernel Parent Dev Grid Status                             SMs Mask   GridDim  BlockDim Invocation  
*      0      -   0   36 Active 0x000003c00f003c00e00300030003000300 (128,1,1) (256,1,1) pack_rows() 
";

    fn capture(files: &[(&str, &str)]) -> Capture {
        let mut capture = testing::capture("/p", b"");
        capture.meta.env_seen.insert(ENABLE.into(), "1".into());
        for (name, text) in files {
            capture.files.insert((*name).into(), text.as_bytes().to_vec());
        }
        capture
    }

    fn proven(capture: &Capture) -> bool {
        matches!(Coredump.activity(capture, &Coredump.parse(capture)), Activity::Proven(_))
    }

    #[test]
    fn a_dump_is_a_report_of_the_kernel() {
        let capture = capture(&[(Coredump::READ, DUMP_OF_PACK)]);
        let findings = Coredump.parse(&capture);
        assert_eq!(findings.len(), 1);
        let place = &findings[0].location;
        assert_eq!(place.kernel.as_ref().map(|k| (k.name.as_str(), k.block)), Some(("pack_rows", Some([112, 0, 0]))));
        assert_eq!(place.device.as_ref().map(|d| d.line), Some(7));
        assert!(proven(&capture));
    }

    #[test]
    fn without_a_dump_the_drivers_word_is_needed() {
        let said = |what: &str| format!("{{\"message\": \"driver: {what}\", \"note\": true}}\n");
        let on = said("core dump on exception is on");
        assert!(proven(&capture(&[("reports.jsonl", on.as_str())])));
        assert!(!proven(&capture(&[("reports.jsonl", said("core dump on exception is off").as_str())])));
        assert!(!proven(&capture(&[])));
        assert!(!proven(&capture(&[(Coredump::READ, "core.cuda: No such file or directory.\n")])));
        let mut off = capture(&[("reports.jsonl", on.as_str())]);
        off.meta.env_seen.clear();
        assert!(!proven(&off));
        assert!(Coredump.parse(&capture(&[("reports.jsonl", on.as_str())])).iter().all(|f| !f.kind.is_claim()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..400), cut in 0usize..700) {
            let mut capture = capture(&[]);
            let mut text = DUMP_OF_PACK.as_bytes()[..cut.min(DUMP_OF_PACK.len())].to_vec();
            text.extend(bytes);
            capture.files.insert(Coredump::READ.into(), text);
            proven(&capture);
        }
    }
}
