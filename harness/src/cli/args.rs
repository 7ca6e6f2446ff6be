//! What the user can say.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

use super::args_diagnose::{DiagnoseArgs, RecordEnvArgs};
use crate::case::{Mode, Partition};
use crate::report::Output;

/// Finds the line that caused an asynchronous GPU error, and scores the tools that claim to.
#[derive(Debug, Parser)]
#[command(name = "faultlab", version, max_term_width = 110)]
pub(super) struct Args {
    /// The checkout to take scenarios and captures from (default: the one around the current folder, else the copy in
    /// this program)
    #[arg(long, global = true, env = "FAULTLAB_ROOT", value_name = "DIR")]
    pub(super) root: Option<PathBuf>,

    /// Colours
    #[arg(long, global = true, value_enum, default_value_t = ColorChoice::Auto)]
    pub(super) color: ColorChoice,

    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ColorChoice {
    /// At a terminal, unless `NO_COLOR` is set
    Auto,
    Always,
    Never,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List the scenarios
    List(ListArgs),
    /// Show a scenario
    Show(ShowArgs),
    /// Say what this machine has, what is missing, and how to get it
    Doctor(DoctorArgs),
    /// Run scenarios under tools and report what each tool said
    Run(RunArgs),
    /// Write reports of an earlier run
    Report(ReportArgs),
    /// Turn the recorded captures into reports and compare them with their snapshots (needs no GPU)
    Test(TestArgs),
    /// Run scenarios on this machine's GPU (or with --device cpu) and keep the captures for replays and snapshots
    Record(RecordArgs),
    /// Attach gdb to a running program, such as one that hangs, say what it is doing, and let it go on
    Attach(AttachArgs),
    /// Measure what tools cost on training loops that do not fail
    Bench(BenchArgs),
    /// Build, list and remove the container images that cases run in
    Images {
        #[command(subcommand)]
        command: ImagesCommand,
    },
    /// Run your own command and find the line that made it fail
    Diagnose(DiagnoseArgs),
    /// Print the environment that turns the launch recorder on, for jobs that something else starts
    RecordEnv(RecordEnvArgs),
    /// Print the JSON Schema of `run.json` and of `--format json`
    Schema(SchemaArgs),
}

#[derive(Debug, ClapArgs)]
pub(super) struct SchemaArgs {
    /// Of `faultlab diagnose --format json`
    #[arg(long)]
    pub(super) diagnosis: bool,
}

#[derive(Debug, ClapArgs)]
pub(super) struct ListArgs {
    /// The tools too
    #[arg(long)]
    pub(super) tools: bool,
}

#[derive(Debug, ClapArgs)]
pub(super) struct ShowArgs {
    /// The scenario's id
    pub(super) id: String,

    /// Print its `scenario.yaml`
    #[arg(long)]
    pub(super) yaml: bool,
}

#[derive(Debug, ClapArgs)]
pub(super) struct DoctorArgs {
    /// terminal or json
    #[arg(long, value_enum, default_value_t = DoctorFormat::Terminal)]
    pub(super) format: DoctorFormat,

    /// The interpreter to look at
    #[arg(long, default_value = "python3", value_name = "PATH")]
    pub(super) python: String,

    /// Look at what containers of this image have, on this machine: a variant of `faultlab images list`, or any image's
    /// name
    #[arg(long, value_name = "NAME[:TAG]")]
    pub(super) image: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum DoctorFormat {
    Terminal,
    Json,
}

/// Which cases.
#[derive(Debug, ClapArgs)]
pub(super) struct CaseArgs {
    /// Scenarios, by id
    #[arg(value_name = "ID", conflicts_with = "all")]
    pub(super) ids: Vec<String>,

    /// All scenarios
    #[arg(long)]
    pub(super) all: bool,

    /// Tools, separated by commas; `all` is all of them
    #[arg(long, value_delimiter = ',', default_value = "all", value_name = "TOOL")]
    pub(super) tool: Vec<String>,

    /// Async is how users run a program; sync waits for each launch
    #[arg(long, value_enum, default_value_t = ModeChoice::Both)]
    pub(super) mode: ModeChoice,

    /// Leave the fixed programs out
    #[arg(long)]
    pub(super) no_twins: bool,

    /// Only part i of n of the cases, for runners side by side
    #[arg(long, value_name = "i/n")]
    pub(super) partition: Option<Partition>,
}

/// How cases run on this machine.
#[derive(Debug, ClapArgs)]
pub(super) struct LiveArgs {
    /// Cases side by side
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=512))]
    pub(super) jobs: u16,

    /// Seconds that a case may take before its whole process tree is killed
    #[arg(long, default_value_t = 120.0, value_name = "S", value_parser = seconds)]
    pub(super) timeout: f64,

    /// The interpreter that programs are run with
    #[arg(long, default_value = "python3", value_name = "PATH")]
    pub(super) python: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ModeChoice {
    Async,
    Sync,
    Both,
}

impl ModeChoice {
    pub(super) fn modes(self) -> Vec<Mode> {
        match self {
            Self::Async => vec![Mode::Async],
            Self::Sync => vec![Mode::Sync],
            Self::Both => vec![Mode::Async, Mode::Sync],
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum BackendChoice {
    /// A GPU in containers (image runtime, or --image), then a GPU here, then a replay; with --device cpu this machine, or
    /// an image that is built where none of the cases can run here; says which and why
    Auto,
    /// A container for each case; see --image
    Docker,
    /// Processes of this machine
    Local,
    /// Recorded captures
    Replay,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum DeviceChoice {
    /// A GPU; never a silent fall to the CPU
    Auto,
    Cuda,
    Cpu,
}

#[derive(Debug, ClapArgs)]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub(super) cases: CaseArgs,

    #[command(flatten)]
    pub(super) live: LiveArgs,

    /// Where cases run
    #[arg(long, value_enum, default_value_t = BackendChoice::Auto)]
    pub(super) backend: BackendChoice,

    /// Where the tensors live
    #[arg(long, value_enum, default_value_t = DeviceChoice::Auto)]
    pub(super) device: DeviceChoice,

    /// Run in containers of this image: a variant of `faultlab images list`, or any image's name
    #[arg(long, value_name = "NAME[:TAG]")]
    pub(super) image: Option<String>,

    /// In containers, MiB of memory that a case may use (default: 32 GiB, or three quarters of the machine's)
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(64..))]
    pub(super) memory: Option<u32>,

    /// For a replay, the stack whose captures to use (default: the one recorded last)
    #[arg(long, value_name = "STACK")]
    pub(super) stack: Option<String>,

    /// Bytes of each output stream to keep; more is cut in the middle and marked
    #[arg(long, default_value_t = 4 << 20, value_name = "BYTES", value_parser = output_cap)]
    pub(super) output_cap: usize,

    /// The run's folder (default: a new one below ./faultlab-runs)
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    pub(super) out: Option<PathBuf>,

    /// Go on with an interrupted run: its finished cases stay as they are
    #[arg(long, value_name = "DIR", conflicts_with_all = ["ids", "all", "partition", "no_twins", "tool", "mode", "backend", "device", "image", "stack"])]
    pub(super) resume: Option<PathBuf>,

    /// terminal, json, junit, markdown or scoreboard, with `:PATH` into a file; may be given several times
    #[arg(long, default_value = "terminal", value_name = "F[:PATH]")]
    pub(super) format: Vec<Output>,
}

#[derive(Debug, ClapArgs)]
pub(super) struct ReportArgs {
    /// The run's folder
    #[arg(value_name = "RUN-DIR")]
    pub(super) run: PathBuf,

    /// In place of other reports, the C++ stacks of this run beside those of another one, such as with and without debug
    /// information, as Markdown
    #[arg(long, value_name = "RUN-DIR", conflicts_with = "format")]
    pub(super) beside: Option<PathBuf>,

    /// terminal, json, junit, markdown or scoreboard, with `:PATH` into a file; may be given several times
    #[arg(long, default_value = "terminal", value_name = "F[:PATH]")]
    pub(super) format: Vec<Output>,
}

#[derive(Debug, ClapArgs)]
pub(super) struct TestArgs {
    /// Make the reports as they are now the snapshots
    #[arg(long)]
    pub(super) bless: bool,
}

#[derive(Debug, ClapArgs)]
pub(super) struct RecordArgs {
    #[command(flatten)]
    pub(super) cases: CaseArgs,

    #[command(flatten)]
    pub(super) live: LiveArgs,

    /// Where the tensors live
    #[arg(long, value_enum, default_value_t = DeviceChoice::Auto)]
    pub(super) device: DeviceChoice,

    /// Record in containers of this image: a variant of `faultlab images list`, or any image's name (default: on this
    /// machine)
    #[arg(long, value_name = "NAME[:TAG]")]
    pub(super) image: Option<String>,

    /// Where captures go (default: golden/captures of the checkout)
    #[arg(long, value_name = "DIR")]
    pub(super) into: Option<PathBuf>,

    /// Bytes of each output stream to keep; more is cut in the middle and marked
    #[arg(long, default_value_t = 64 << 10, value_name = "BYTES", value_parser = output_cap)]
    pub(super) output_cap: usize,
}

#[derive(Debug, ClapArgs)]
pub(super) struct AttachArgs {
    /// The process
    #[arg(value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) pid: u32,

    /// gdb, if not the one that is found
    #[arg(long, default_value = "gdb", value_name = "PATH")]
    pub(super) gdb: String,

    /// Seconds that gdb may take, most of which it reads symbols
    #[arg(long, default_value_t = 180.0, value_name = "S", value_parser = seconds)]
    pub(super) timeout: f64,

    /// Where gdb's script and what it wrote are kept (default: a new folder below ./faultlab-runs)
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub(super) struct BenchArgs {
    /// Tools, separated by commas, `TOOL.sync` or `TOOL.async` for one mode; `all` is all of them (default: those that
    /// people make claims about)
    #[arg(long, value_delimiter = ',', value_name = "TOOL")]
    pub(super) tool: Vec<String>,

    /// The mode of tools that name none; plain async is always measured
    #[arg(long, value_enum, default_value_t = ModeChoice::Async)]
    pub(super) mode: ModeChoice,

    /// Training loops: mlp is launch-bound, transformer is GPU-bound, graph-replay replays a CUDA graph
    #[arg(long, value_delimiter = ',', default_value = "mlp,transformer,graph-replay", value_name = "PROGRAM")]
    pub(super) program: Vec<String>,

    /// How often each is measured, interleaved
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) rounds: u32,

    /// Iterations in a timed window (default: what suits the program)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) iters: Option<u32>,

    /// Timed windows of a process
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) windows: u32,

    /// Where the tensors live
    #[arg(long, value_enum, default_value_t = DeviceChoice::Auto)]
    pub(super) device: DeviceChoice,

    /// Processor cores that the processes are kept on, such as 2-5,8; `any` lets them wander (default: the last four where
    /// there are eight or more)
    #[arg(long, value_name = "LIST")]
    pub(super) cores: Option<crate::bench::cores::Cores>,

    /// The interpreter that programs are run with
    #[arg(long, default_value = "python3", value_name = "PATH")]
    pub(super) python: String,

    /// Seconds in all: no round begins that would take longer
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(super) budget: Option<f64>,

    /// Seconds that a process may take before its whole tree is killed
    #[arg(long, default_value_t = 300.0, value_name = "S", value_parser = seconds)]
    pub(super) timeout: f64,

    /// terminal, markdown or json
    #[arg(long, value_enum, default_value_t = BenchFormat::Terminal)]
    pub(super) format: BenchFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum BenchFormat {
    Terminal,
    Markdown,
    Json,
}

#[derive(Debug, Subcommand)]
pub(super) enum ImagesCommand {
    /// Build images; what is there already is not built again
    Build(BuildImagesArgs),
    /// List the variants: name, built or not, size, locked or not
    List(ListImagesArgs),
    /// Run in images what their image.yaml says that they must answer
    Verify(VerifyImagesArgs),
    /// Print what is in an image, as JSON or as a bill of materials (SBOM)
    Inspect(InspectImageArgs),
    /// Write into image.yaml what registry and mirror say: digest of the base, versions, date of the snapshot
    Lock(LockImagesArgs),
    /// Give an image to a registry; prints its digest
    Push(PushImageArgs),
    /// Take images from a registry by their digests, in place of building them
    Pull(PullImagesArgs),
    /// Remove the images that faultlab made, and nothing else
    Clean(CleanImagesArgs),
}

/// What an image is made from. The base, the snapshot and the platform are part of an image's name; where things are
/// fetched from is not.
#[derive(Debug, ClapArgs)]
pub(super) struct ImageOptions {
    /// An image to build on in place of the stated one, best with its digest; for an image that is based on another
    /// variant also a variant
    #[arg(long, value_name = "IMAGE")]
    pub(super) base: Option<String>,

    /// Date of the Debian snapshot that packages come from (needs a mirror that serves snapshots)
    #[arg(long, value_name = "DATE", requires = "apt_mirror")]
    pub(super) apt_snapshot: Option<String>,

    /// Mirror of Debian packages (default: the base image's)
    #[arg(long, value_name = "URL")]
    pub(super) apt_mirror: Option<String>,

    /// Index of Python packages (default: pip's)
    #[arg(long, value_name = "URL")]
    pub(super) pip_index: Option<String>,

    /// HTTP proxy of the build
    #[arg(long, value_name = "URL")]
    pub(super) proxy: Option<String>,

    /// CA certificates that the build needs on top of the usual ones; they do not stay in the image
    #[arg(long, value_name = "PATH")]
    pub(super) ca_bundle: Option<PathBuf>,

    /// Platform, such as linux/arm64 (default: the engine's)
    #[arg(long, value_name = "OS/ARCH")]
    pub(super) platform: Option<String>,

    /// In place of the value that image.yaml has for a build argument; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub(super) arg: Vec<(String, String)>,
}

#[derive(Debug, ClapArgs)]
pub(super) struct BuildImagesArgs {
    /// Variants; `faultlab images list` shows them
    #[arg(value_name = "VARIANT", required = true)]
    pub(super) variants: Vec<String>,

    #[command(flatten)]
    pub(super) options: ImageOptions,

    /// Only check the Dockerfile's steps up to the end of this stage; nothing gets a name
    #[arg(long, value_name = "NAME")]
    pub(super) stage: Option<String>,

    /// Build it although it is there, and every step anew
    #[arg(long)]
    pub(super) no_cache: bool,

    /// Show every line of the build
    #[arg(long, short)]
    pub(super) verbose: bool,
}

#[derive(Debug, ClapArgs)]
pub(super) struct ListImagesArgs {
    #[command(flatten)]
    pub(super) options: ImageOptions,

    /// terminal or json
    #[arg(long, value_enum, default_value_t = ListFormat::Terminal)]
    pub(super) format: ListFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ListFormat {
    Terminal,
    Json,
}

#[derive(Debug, ClapArgs)]
pub(super) struct VerifyImagesArgs {
    /// Variants
    #[arg(value_name = "VARIANT", required = true)]
    pub(super) variants: Vec<String>,

    #[command(flatten)]
    pub(super) options: ImageOptions,
}

#[derive(Debug, ClapArgs)]
pub(super) struct InspectImageArgs {
    /// A variant
    pub(super) variant: String,

    #[command(flatten)]
    pub(super) options: ImageOptions,

    /// json, or cyclonedx: a bill of materials by version 1.6 of that standard
    #[arg(long, value_enum, default_value_t = InspectFormat::Json)]
    pub(super) format: InspectFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum InspectFormat {
    Json,
    Cyclonedx,
}

#[derive(Debug, ClapArgs)]
pub(super) struct LockImagesArgs {
    /// Variants (default: all)
    #[arg(value_name = "VARIANT")]
    pub(super) variants: Vec<String>,

    #[command(flatten)]
    pub(super) options: ImageOptions,

    /// Also replace digests and versions that are there by those that are offered now
    #[arg(long)]
    pub(super) update: bool,

    /// Write nothing; exit with 1 if something would be written
    #[arg(long)]
    pub(super) check: bool,
}

#[derive(Debug, ClapArgs)]
pub(super) struct PushImageArgs {
    /// A variant that is built
    pub(super) variant: String,

    /// Where: REGISTRY/NAME, without a tag
    #[arg(long, value_name = "REGISTRY/NAME", value_parser = repository)]
    pub(super) to: String,

    /// Write the digest into images/images.lock, which `pull VARIANT` reads
    #[arg(long)]
    pub(super) lock: bool,

    #[command(flatten)]
    pub(super) options: ImageOptions,
}

#[derive(Debug, ClapArgs)]
pub(super) struct PullImagesArgs {
    /// Variants that images/images.lock names, or images by digest
    #[arg(value_name = "VARIANT|REGISTRY/NAME@sha256:DIGEST", required = true)]
    pub(super) images: Vec<String>,

    #[command(flatten)]
    pub(super) options: ImageOptions,
}

#[derive(Debug, ClapArgs)]
pub(super) struct CleanImagesArgs {
    /// Only these variants; `base` is the stand-in base (default: all)
    #[arg(value_name = "VARIANT")]
    pub(super) variants: Vec<String>,

    /// Only say what would be removed
    #[arg(long)]
    pub(super) dry_run: bool,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.into(), value.into())),
        _ => Err("KEY=VALUE is wanted".into()),
    }
}

/// A name without tag and digest: those are the image's own.
fn repository(text: &str) -> Result<String, String> {
    let last = text.rsplit('/').next().unwrap_or_default();
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b);
    let whole = !last.is_empty() && last.bytes().all(plain) && !text.contains(['@', ' ']);
    if whole {
        Ok(text.into())
    } else {
        Err("REGISTRY/NAME in lower case, without a tag and a digest, is wanted".into())
    }
}

pub(super) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if s > 0.0 && s <= 1e6 => Ok(s),
        _ => Err("a number of seconds is wanted: more than 0, at most 1000000".into()),
    }
}

/// Less could not hold a traceback.
fn output_cap(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(bytes) if (4 << 10..=1 << 30).contains(&bytes) => Ok(bytes),
        _ => Err("a number of bytes between 4096 and 1073741824 is wanted".into()),
    }
}
