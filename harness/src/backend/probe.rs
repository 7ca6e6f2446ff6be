//! Finds out what the machine has. Each question is a short process of its own with a time limit, so that a
//! broken driver or interpreter can neither hang nor crash faultlab.

#![expect(clippy::disallowed_methods, reason = "this is the place that starts processes")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::LazyLock;
use std::time::Duration;

use regex::Regex;
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use super::docker;
use crate::host::{DEBUG_PYTHON, Gpu, Host, Missing, Need, Probed, Program, Python, PythonFolders, Torch};
use crate::recorder_env::{LIBRARY, PRELOAD_LIBRARY, library_beside};

/// The hidden subcommand that asks the CUDA driver, in a process of its own.
pub const GPU_SUBCOMMAND: &str = "__probe-gpu";

/// The variable by which a user names the launch recorder's library where it is not beside faultlab; only `cli` reads it.
pub const RECORDER_VARIABLE: &str = "FAULTLAB_RECORDER_LIBRARY";

const LIMIT: Duration = Duration::from_secs(20);

/// Programs that tools of the field need: name, argument that prints the version, purpose, how to get it.
const PROGRAMS: &[(&str, &str, &str, &str)] = &[
    ("nvidia-smi", "--version", "driver and GPU state", "it comes with the NVIDIA driver"),
    (
        "compute-sanitizer",
        "--version",
        "memory and race checks in kernels",
        "CUDA toolkit, or `pip install nvidia-cuda-sanitizer-api`",
    ),
    (
        "cuda-gdb",
        "--version",
        "GPU core dumps, stops inside kernels",
        "CUDA toolkit, or Debian's nvidia-cuda-gdb (non-free)",
    ),
    ("nsys", "--version", "timelines of launches", "Nsight Systems, or Debian's nsight-systems (non-free)"),
    ("gdb", "--version", "C++ and Python stacks of the host", "`apt-get install gdb`"),
    ("nvcc", "--version", "compiling CUDA C++", "CUDA toolkit, or `pip install nvidia-cuda-nvcc`"),
];

/// Where toolkits put programs that are not on the path. The last component may hold the version.
const MORE_FOLDERS: &[&str] = &[
    "/usr/local/cuda/bin",
    "/opt/cuda/bin",
    "/opt/nvidia/nsight-systems/*/bin",
    // Nsight Compute brings a collector of Nsight Systems.
    "/opt/nvidia/nsight-compute/*/host/target-linux-x64",
];

/// Prints JSON about the interpreter. torch is looked at, not imported: importing takes seconds.
const ASK_PYTHON: &str = r"
import importlib.util, json, os, platform, runpy, site, sys, sysconfig
torch = None
spec = importlib.util.find_spec('torch')
try:
    import importlib.metadata
    debugpy = importlib.util.find_spec('debugpy') and importlib.metadata.version('debugpy')
except Exception:
    debugpy = None
# The debug build of the same interpreter: Debian's python3-dbg beside python3.
debug = sys.executable + '-dbg'
same = os.path.basename(os.path.realpath(sys.executable))
debug = debug if os.access(debug, os.X_OK) and os.path.basename(os.path.realpath(debug)).startswith(same) else None
packages = list(dict.fromkeys(site.getsitepackages() + [sysconfig.get_paths()['purelib']]))
if spec and spec.origin:
    folder = os.path.dirname(spec.origin)
    packages.insert(0, os.path.dirname(folder))
    version = runpy.run_path(os.path.join(folder, 'version.py'))
    torch = {'version': version['__version__'], 'cuda': version.get('cuda')}
print(json.dumps({'python': {'executable': sys.executable, 'version': platform.python_version(), 'folders': {
    'prefix': sys.prefix, 'base_prefix': sys.base_prefix, 'stdlib': sysconfig.get_paths()['stdlib'], 'packages': packages}},
    'torch': torch, 'debugpy': debugpy, 'debug': debug}))
";

#[derive(Deserialize)]
struct PythonAnswer {
    python: PythonAnswerPython,
    torch: Option<TorchAnswer>,
    debugpy: Option<String>,
    debug: Option<String>,
}

/// An interpreter's answer, read.
struct Interpreter {
    python: Python,
    torch: Option<Torch>,
    /// The version of that module.
    debugpy: Option<String>,
    /// Its debug build.
    debug: Option<String>,
}

#[derive(Deserialize)]
struct PythonAnswerPython {
    executable: String,
    version: String,
    folders: PythonFolders,
}

#[derive(Deserialize)]
struct TorchAnswer {
    version: String,
    cuda: Option<String>,
}

/// What `__probe-gpu` prints.
#[derive(Debug, Serialize, Deserialize)]
pub struct GpuAnswer {
    gpus: Vec<Gpu>,
    error: Option<String>,
}

/// Asks everything at once. `faultlab` is this program (for [`GPU_SUBCOMMAND`]; the launch recorder's library lies beside
/// it), `python` the interpreter to use.
pub async fn probe(faultlab: &Path, python: &str) -> Host {
    let (gpus, smi, python, docker) = tokio::join!(gpus(faultlab), nvidia_smi(), ask_python(python), docker::probe());
    let mut asked = Vec::new();
    for row in PROGRAMS {
        asked.push(tokio::spawn(program(*row)));
    }
    let mut programs = Vec::new();
    for asked in asked {
        programs.extend(asked.await);
    }
    let (python, torch, more) = apart(python);
    programs.extend(more);
    programs.extend(RECORDERS.map(|(need, library)| recorder(need, &library_beside(faultlab, library))));
    Host { os: os(), gpus, driver: driver(), cuda: smi, python, torch, docker, programs }
}

/// An interpreter's answer as the parts of a [`Host`].
fn apart(answer: Probed<Interpreter>) -> (Probed<Python>, Probed<Torch>, [Program; 2]) {
    let (python, torch, debugpy, debug) = match answer {
        Ok(Interpreter { python, torch, debugpy, debug }) => {
            let missing = |module: &str| Missing {
                why: format!("{} has no module {module}", python.executable),
                mend: format!("`pip install {module}` there, or name another interpreter with --python"),
            };
            let (torch, debugpy) = (torch.ok_or_else(|| missing("torch")), debugpy.ok_or_else(|| missing("debugpy")));
            let debug = debug.ok_or_else(|| Missing {
                why: format!("{} has no debug build beside it", python.executable),
                mend: "`apt-get install python3-dbg`, for Debian's own python3".into(),
            });
            (Ok(python), torch, debugpy, debug)
        }
        Err(missing) => (Err(missing.clone()), Err(missing.clone()), Err(missing.clone()), Err(missing)),
    };
    let path = debug.clone().ok();
    let programs = [
        Program { name: "debugpy".into(), purpose: "breakpoints in Python".into(), path: None, version: debugpy },
        Program { name: DEBUG_PYTHON.into(), purpose: "Python frames in gdb".into(), path, version: debug },
    ];
    (python, torch, programs)
}

/// The launch recorder's two ways into a program, and the library of each.
pub(super) const RECORDERS: [(Need, &str); 2] = [(Need::Recorder, LIBRARY), (Need::RecorderPreload, PRELOAD_LIBRARY)];

/// The launch recorder's library for a need. It is not loaded: that is done in the program to be recorded.
pub fn recorder(need: Need, path: &Path) -> Program {
    let version = match std::fs::metadata(path) {
        Ok(file) if file.is_file() => Ok(format!("{} bytes at {}", file.len(), path.display())),
        _ => Err(Missing {
            why: format!("{} was not found", path.display()),
            mend: format!("`cargo build` puts it beside faultlab, or name it by {RECORDER_VARIABLE}"),
        }),
    };
    let found = version.as_ref().ok().map(|_| path.display().to_string());
    Program { name: need.name().into(), purpose: "the line of an asynchronous fault".into(), path: found, version }
}

/// Asks an image what it has; see [`image_host`]. Its arguments are [`ASK_PYTHON`], and as JSON programs and folders, and where
/// the launch recorder's libraries are. Whether an image can load that shows only when it does: an older C library
/// cannot. The dynamic linker then says so ("object … cannot be preloaded").
const ASK_IMAGE: &str = r"
import glob, json, os, shutil, subprocess, sys
exec(sys.argv[1])
asked, folders = json.loads(sys.argv[2])
programs = {}
for name, argument in asked:
    folders_now = [folder for pattern in folders for folder in sorted(glob.glob(pattern), reverse=True)]
    path = shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders_now))
    if path:
        try:
            done = subprocess.run([path, argument], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20)
            programs[name] = [path, done.stdout.decode(errors='replace')]
        except Exception as error:
            programs[name] = [path, '']
try:
    release = open('/etc/os-release').read()
except OSError:
    release = ''
recorders = {}
for name, library in json.loads(sys.argv[3]).items():
    env = {**os.environ, 'LD_PRELOAD': library}
    done = subprocess.run([sys.executable, '-S', '-c', ''], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env)
    recorders[name] = done.stdout.decode(errors='replace').strip()
    if done.returncode != 0:
        recorders[name] = recorders[name] or 'it ends whoever loads it'
print(json.dumps({'release': release, 'programs': programs, 'recorders': recorders}))
";

/// The command that [`image_host`] reads the answer of.
pub(super) fn ask_image(python: &str, libraries: &BTreeMap<&str, String>) -> Vec<String> {
    let asked: Vec<_> = PROGRAMS.iter().map(|(name, argument, ..)| (name, argument)).collect();
    let asked = serde_json::to_string(&(asked, MORE_FOLDERS)).unwrap_or_default();
    let libraries = serde_json::to_string(libraries).unwrap_or_default();
    [python, "-c", ASK_IMAGE, ASK_PYTHON, &asked, &libraries].map(String::from).into()
}

#[derive(Deserialize)]
struct ImageAnswer {
    release: String,
    programs: BTreeMap<String, (String, String)>,
    /// What was said against loading each of the launch recorder's libraries, by the name of the need.
    recorders: BTreeMap<String, String>,
}

/// What a container of an image has: Python, torch and programs are the image's; GPU and driver are the machine's, and so is
/// the launch recorder, at these paths in the container.
pub(super) fn image_host(machine: &Host, answer: &str, libraries: &BTreeMap<&str, String>) -> Result<Host, String> {
    let (python, image) = answer.trim().split_once('\n').ok_or("it did not say what is in it")?;
    let (python, torch, more) = apart(Ok(read_python("its Python", python)?));
    let ImageAnswer { release, programs: found, recorders } = serde_json::from_str(image).map_err(|e| e.to_string())?;
    let mut programs: Vec<Program> = PROGRAMS
        .iter()
        .map(|(name, argument, purpose, mend)| {
            let found = found.get(*name);
            let missing = |why: String| Missing { why, mend: format!("an image that has it: {mend}") };
            let version = match found {
                None => Err(missing(format!("{name} is not in the image"))),
                Some((_, text)) => {
                    version_line(text).ok_or_else(|| missing(format!("`{name} {argument}` printed no version")))
                }
            };
            let path = found.map(|(path, _)| path.clone());
            Program { name: (*name).into(), purpose: (*purpose).into(), path, version }
        })
        .collect();
    programs.extend(more);
    let is_recorder = |program: &&Program| RECORDERS.iter().any(|(need, _)| program.name == need.name());
    programs.extend(machine.programs.iter().filter(is_recorder).map(|outside| {
        let path = libraries.get(outside.name.as_str()).cloned();
        let version = match (recorders.get(&outside.name).map(String::as_str), &path) {
            (Some(""), Some(library)) => Ok(format!("this machine's, which the image can load, at {library}")),
            (Some(why), _) => Err(Missing {
                why: format!("the image cannot load this machine's launch recorder: {}", first_line(why)),
                mend: "build faultlab on a system that is no newer than the image's, or use --backend local".into(),
            }),
            (None, _) => outside.version.clone(),
        };
        Program { path, version, ..outside.clone() }
    }));
    Ok(Host { os: os_of(&release), python, torch, programs, ..machine.clone() })
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// Distribution and kernel.
fn os() -> String {
    os_of(&std::fs::read_to_string("/etc/os-release").unwrap_or_default())
}

fn os_of(release: &str) -> String {
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).map(|name| name.trim_matches('"'));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{}, kernel {}", name.unwrap_or(std::env::consts::OS), kernel.trim())
}

fn driver() -> Probed<String> {
    let path = "/proc/driver/nvidia/version";
    let mend = || "install the NVIDIA driver, or pass the GPU into this container or virtual machine".to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|e| Missing { why: format!("failed to read {path}: {e}"), mend: mend() })?;
    driver_version(&text).ok_or_else(|| Missing { why: format!("no version in {path}"), mend: mend() })
}

/// `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build …`
fn driver_version(text: &str) -> Option<String> {
    static VERSION: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"\s(\d{3,}\.\d+(?:\.\d+)?)\s").ok());
    Some(VERSION.as_ref()?.captures(text.lines().next()?)?[1].to_string())
}

/// `CUDA Version: 13.0`, or `CUDA UMD Version: 13.0` of newer ones, in the table's head.
fn cuda_version(text: &str) -> Option<String> {
    static VERSION: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"CUDA (?:UMD )?Version\s*:\s*(\d+\.\d+)").ok());
    Some(VERSION.as_ref()?.captures(text)?[1].to_string())
}

async fn nvidia_smi() -> Probed<String> {
    let missing = |why: String| Missing { why, mend: "it comes with the NVIDIA driver".into() };
    let text = output("nvidia-smi", &[]).await.map_err(missing)?;
    cuda_version(&text).ok_or_else(|| missing("nvidia-smi printed no CUDA version".into()))
}

async fn gpus(faultlab: &Path) -> Probed<Vec<Gpu>> {
    let missing = |why: String| Missing {
        why,
        mend: "install the NVIDIA driver, or pass the GPU into this container or virtual machine".into(),
    };
    let text = output(&faultlab.display().to_string(), &[GPU_SUBCOMMAND]).await.map_err(missing)?;
    let answer: GpuAnswer =
        serde_json::from_str(&text).map_err(|e| missing(format!("the GPU probe printed no JSON: {e}")))?;
    match answer {
        GpuAnswer { error: Some(why), .. } => Err(missing(why)),
        GpuAnswer { gpus, .. } if gpus.is_empty() => {
            Err(missing("the driver lists no GPU (is CUDA_VISIBLE_DEVICES set?)".into()))
        }
        GpuAnswer { gpus, .. } => Ok(gpus),
    }
}

/// Asks the CUDA driver, which is loaded at run time; the body of [`GPU_SUBCOMMAND`].
pub fn gpu_answer() -> GpuAnswer {
    // cudarc panics where there is no library to load.
    std::panic::set_hook(Box::new(|_| {}));
    let asked = std::panic::catch_unwind(|| {
        let count = cudarc::driver::CudaContext::device_count().map_err(|e| format!("the CUDA driver failed: {e}"))?;
        Ok::<_, String>((0..count).map(gpu).collect::<Vec<_>>())
    });
    match asked {
        Ok(Ok(gpus)) => GpuAnswer { gpus, error: None },
        Ok(Err(error)) => GpuAnswer { gpus: Vec::new(), error: Some(error) },
        Err(_) => GpuAnswer {
            gpus: Vec::new(),
            error: Some("the CUDA driver library (libcuda.so.1) could not be loaded".into()),
        },
    }
}

/// A context is made on it: that shows that it really works.
fn gpu(index: i32) -> Gpu {
    let name = cudarc::driver::result::device::get(index).and_then(cudarc::driver::result::device::get_name);
    let index = u32::try_from(index).unwrap_or_default();
    let mut gpu = Gpu {
        index,
        name: name.unwrap_or_else(|e| format!("GPU {index} ({e})")),
        compute_capability: None,
        memory_bytes: None,
        trouble: None,
    };
    match cudarc::driver::CudaContext::new(index as usize) {
        Ok(context) => {
            gpu.compute_capability = context.compute_capability().ok().map(|(major, minor)| format!("{major}.{minor}"));
            gpu.memory_bytes = context.total_mem().ok().map(|bytes| bytes as u64);
        }
        Err(e) => gpu.trouble = Some(format!("no context could be made: {e}")),
    }
    gpu
}

async fn ask_python(python: &str) -> Probed<Interpreter> {
    let missing = |why: String| Missing { why, mend: "install Python 3, or name an interpreter with --python".into() };
    let text = output(python, &["-c", ASK_PYTHON]).await.map_err(missing)?;
    read_python(python, &text).map_err(missing)
}

/// Reads what [`ASK_PYTHON`] printed.
fn read_python(python: &str, text: &str) -> Result<Interpreter, String> {
    let PythonAnswer { python, torch, debugpy, debug } =
        serde_json::from_str(text.trim()).map_err(|e| format!("{python} did not answer: {e}"))?;
    let PythonAnswerPython { executable, version, folders } = python;
    let torch = torch.map(|t| Torch { version: t.version, cuda: t.cuda });
    Ok(Interpreter { python: Python { executable, version, folders }, torch, debugpy, debug })
}

async fn program((name, argument, purpose, mend): (&str, &str, &str, &str)) -> Program {
    let missing = |why: String| Missing { why, mend: mend.into() };
    let path = find_program(name);
    let version = match &path {
        None => Err(missing(format!("{name} was not found"))),
        Some(path) => match output(&path.display().to_string(), &[argument]).await {
            Ok(text) => version_line(&text).ok_or_else(|| missing(format!("`{name} {argument}` printed no version"))),
            Err(why) => Err(missing(why)),
        },
    };
    Program { name: name.into(), purpose: purpose.into(), path: path.map(|p| p.display().to_string()), version }
}

/// On the search path, else where toolkits put it; of several versions the last by name.
fn find_program(name: &str) -> Option<PathBuf> {
    let on_path =
        std::env::var_os("PATH").into_iter().flat_map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let elsewhere = MORE_FOLDERS.iter().flat_map(|folder| match folder.split_once('*') {
        None => vec![PathBuf::from(folder)],
        Some((parent, rest)) => {
            let mut versions: Vec<PathBuf> =
                std::fs::read_dir(parent).into_iter().flatten().flatten().map(|e| e.path()).collect();
            versions.sort();
            versions.iter().rev().map(|v| v.join(rest.trim_start_matches('/'))).collect()
        }
    });
    on_path.chain(elsewhere).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// The first line with a version in it. cuda-gdb's launcher first says which program it starts.
fn version_line(text: &str) -> Option<String> {
    static VERSION: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"\d+\.\d+").ok());
    let version = VERSION.as_ref()?;
    text.lines()
        .find(|line| version.is_match(line) && !line.starts_with("exec: "))
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Standard output of a short command.
async fn output(program: &str, args: &[&str]) -> Result<String, String> {
    let child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => format!("{program} was not found"),
            _ => format!("failed to start {program}: {e}"),
        })?;
    let output = tokio::time::timeout(LIMIT, child.wait_with_output())
        .await
        .map_err(|_| format!("{program} did not end within {} s", LIMIT.as_secs()))?
        .map_err(|e| format!("failed to read from {program}: {e}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        return Err(format!("{program} ended with {}: {said}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_programs_print() {
        let proc = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (a@b)  Tue\nGCC version: gcc 11.4.0 \n";
        assert_eq!(driver_version(proc).as_deref(), Some("580.159.04"));
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n";
        assert_eq!(driver_version(closed).as_deref(), Some("535.183.01"));
        let smi = "| NVIDIA-SMI 580.159.04   Driver Version: 580.159.04     CUDA Version: 13.0     |";
        assert_eq!(cuda_version(smi).as_deref(), Some("13.0"));
        let nvcc = "nvcc: NVIDIA (R) Cuda compiler driver\nCopyright (c) 2005-2025\nCuda compilation tools, release 13.0, V13.0.88\n";
        assert_eq!(version_line(nvcc).as_deref(), Some("Cuda compilation tools, release 13.0, V13.0.88"));
        let cuda_gdb = "exec: /usr/local/cuda/bin/cuda-gdb-python3.12-tui --version\nNVIDIA (R) cuda-gdb 13.0\n";
        assert_eq!(version_line(cuda_gdb).as_deref(), Some("NVIDIA (R) cuda-gdb 13.0"));
        assert_eq!(version_line("none"), None);
    }
}
