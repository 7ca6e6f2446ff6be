//! `faultlab record-env`: the environment that turns the launch recorder on, and nothing else on standard output.

use std::path::{Path, PathBuf};

use super::args_diagnose::{MarkersChoice, RecordEnvArgs};
use super::diagnose::{preload_of, recorder_library, write_shim};
use super::output::Terminal;
use super::{CliError, Status, environment, this_program};
use crate::capture::sha256_hex;
use crate::diagnose::command::{self, Kind};
use crate::recorder_env::{
    Entry, EnvForm, LIBRARY, Markers, PRELOAD_LIBRARY, RecorderSettings, nameable, recorder_env, shim_files,
};

pub(super) fn run(args: &RecordEnvArgs, cwd: &Path, terminal: &Terminal) -> Result<Status, CliError> {
    let form = match args {
        RecordEnvArgs { json: true, .. } => EnvForm::Json,
        RecordEnvArgs { docker: true, .. } => EnvForm::Docker,
        RecordEnvArgs { kubernetes: true, .. } => EnvForm::Kubernetes,
        _ => EnvForm::Shell,
    };
    let reports = cwd.join(&args.dir);
    let (entry, file) = if args.preload { (Entry::Preload, PRELOAD_LIBRARY) } else { (Entry::Injection, LIBRARY) };
    let (library, shim) = if let Some(at) = &args.at {
        // Another machine's, or a container's: it cannot be looked at from here.
        if !at.is_absolute() {
            return Err(CliError::Usage(format!("--at {}: an absolute path is wanted", at.display())));
        }
        let library = at.join(file);
        if args.preload {
            nameable(&library).map_err(|why| CliError::Usage(format!("--preload: {why}")))?;
        }
        (library, at.join("shim"))
    } else {
        std::fs::create_dir_all(&reports)
            .map_err(|e| CliError::Usage(format!("--dir {}: failed to make it: {e}", reports.display())))?;
        let program = this_program()?;
        let library = if args.preload {
            preload_of(&program).map_err(|why| {
                CliError::Infra(format!("--preload: {why}; --at names the folder of another machine's"))
            })?
        } else {
            recorder_library(&program)
                .map_err(|why| CliError::Infra(format!("{why}; --at names the folder of another machine's")))?
        };
        (library, write_shim(&shim_folder()?)?)
    };
    // A program without Python has no use for the Python side; without a command nothing is known of it.
    let python = args.command.is_empty() || command::kind(&args.command) != Kind::Executable;
    let settings = RecorderSettings {
        library: &library,
        entry,
        shim: python.then_some(shim.as_path()),
        reports: Some(&reports),
        markers: match args.markers {
            MarkersChoice::Adaptive => Markers::Adaptive,
            MarkersChoice::Every => Markers::Every,
            MarkersChoice::Off => Markers::Off,
        },
        hang_s: Some(args.hang),
        stderr: true,
        nan: false,
        stacks: None,
    };
    terminal.print(recorder_env(&settings).render(form, &settings).trim_end())?;
    Ok(Status::Met)
}

/// A folder that lasts, named by what is in it: a job may start long after this program has ended, and another version of
/// faultlab must not change it under a running one.
fn shim_folder() -> Result<PathBuf, CliError> {
    let mut all = Vec::new();
    for (name, text) in shim_files() {
        all.extend_from_slice(name.display().to_string().as_bytes());
        all.extend_from_slice(text);
    }
    let env = environment();
    let cache = env.get("XDG_CACHE_HOME").filter(|path| path.starts_with('/')).map(PathBuf::from);
    let cache = cache.or_else(|| Some(Path::new(env.get("HOME")?).join(".cache")));
    let cache = cache.ok_or_else(|| CliError::Infra("neither HOME nor XDG_CACHE_HOME is set".into()))?;
    let name: String = sha256_hex(&all).chars().take(12).collect();
    Ok(cache.join("faultlab").join(format!("shim-{name}")))
}
