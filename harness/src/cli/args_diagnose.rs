//! What the user can say to `faultlab diagnose` and `faultlab record-env`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};

use super::args::seconds;
use crate::backend::probe::RECORDER_VARIABLE;
use crate::diagnose::report::Format;
use crate::report::Output;

#[derive(Debug, ClapArgs)]
pub(super) struct DiagnoseArgs {
    /// Seconds for the runs that follow the first one
    #[arg(long, default_value_t = 600.0, value_name = "S", value_parser = seconds)]
    pub(super) budget: f64,

    /// Seconds that a run may take before its whole process tree is killed, and the command counts as hanging
    /// (default: the first run may take any time)
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(super) timeout: Option<f64>,

    /// Seconds without anything finishing on a device after which it counts as hanging
    #[arg(long, default_value_t = 60.0, value_name = "S", value_parser = seconds)]
    pub(super) hang: f64,

    /// The launch recorder's library (default: `libfaultlab_recorder.so` beside this program)
    #[arg(long, env = RECORDER_VARIABLE, value_name = "PATH")]
    pub(super) recorder: Option<PathBuf>,

    /// Run the command once, whatever it shows
    #[arg(long)]
    pub(super) quick: bool,

    /// Show what the command prints in every run, not in the first alone
    #[arg(long, short)]
    pub(super) verbose: bool,

    /// terminal, markdown or json, with `:PATH` into a file; may be given several times
    #[arg(long, default_value = "terminal", value_name = "F[:PATH]")]
    pub(super) format: Vec<Output<Format>>,

    /// Write reports and captures into an archive to attach to a bug report: PATH.tar.gz or PATH.tar
    #[arg(long, value_name = "PATH")]
    pub(super) bundle: Option<PathBuf>,

    /// Look at a process that hangs in place of running a command; it goes on afterwards
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..), conflicts_with_all = ["command", "budget", "timeout", "quick"])]
    pub(super) attach: Option<i32>,

    /// The command, as it is run without faultlab. Its standard input is empty; what it prints goes to standard error
    #[arg(last = true, value_name = "CMD", required_unless_present = "attach")]
    pub(super) command: Vec<String>,
}

#[derive(Debug, ClapArgs)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line, and at most one is given")]
pub(super) struct RecordEnvArgs {
    /// Lines for a POSIX shell (the default): eval "$(faultlab record-env)"
    #[arg(long, group = "form")]
    pub(super) shell: bool,

    /// A JSON object
    #[arg(long, group = "form")]
    pub(super) json: bool,

    /// Flags for `docker run`, one a line
    #[arg(long, group = "form")]
    pub(super) docker: bool,

    /// Entries for a container's `env` in a Kubernetes manifest
    #[arg(long, group = "form")]
    pub(super) kubernetes: bool,

    /// Where the recorder writes its reports; every machine of the job must be able to write there
    #[arg(long, default_value = "faultlab-records", value_name = "DIR")]
    pub(super) dir: PathBuf,

    /// Let the dynamic loader load the recorder (`LD_PRELOAD`), not the CUDA driver: then it needs no CUPTI, and a profiler
    /// can run beside it. x86-64 only
    #[arg(long)]
    pub(super) preload: bool,

    /// A folder that has `libfaultlab_recorder.so` (with --preload `libfaultlab_recorder_preload.so`) and shim/ where the job
    /// runs, if that is another place than here
    #[arg(long, value_name = "DIR")]
    pub(super) at: Option<PathBuf>,

    /// Seconds without anything finishing on a device after which a hang is reported
    #[arg(long, default_value_t = 60.0, value_name = "S", value_parser = seconds)]
    pub(super) hang: f64,

    /// When completion markers are set
    #[arg(long, value_enum, default_value_t = MarkersChoice::Adaptive)]
    pub(super) markers: MarkersChoice,

    /// The command that will be started: what it needs is printed, and nothing is run
    #[arg(last = true, value_name = "CMD")]
    pub(super) command: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum MarkersChoice {
    /// As many as the overhead allows
    Adaptive,
    /// After each launch
    Every,
    /// None: launches are only remembered
    Off,
}
