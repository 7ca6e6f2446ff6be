//! What the user can say to `faultlab diagnose` and `faultlab record-env`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::args::seconds;
use crate::diagnose::report::Output;

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

    /// Run the command once, whatever it shows
    #[arg(long)]
    pub(super) quick: bool,

    /// Show what the command prints in every run, not in the first alone
    #[arg(long, short)]
    pub(super) verbose: bool,

    /// terminal, markdown or json, with `:PATH` into a file; may be given several times
    #[arg(long, default_value = "terminal", value_name = "F[:PATH]")]
    pub(super) format: Vec<Output>,

    /// Write reports and captures into an archive to attach to a bug report: PATH.tar.gz or PATH.tar
    #[arg(long, value_name = "PATH")]
    pub(super) bundle: Option<PathBuf>,

    /// The command, as it is run without faultlab. Its standard input is empty; what it prints goes to standard error
    #[arg(last = true, value_name = "CMD", required = true)]
    pub(super) command: Vec<String>,
}
