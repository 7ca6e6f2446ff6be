//! The environment that turns the launch recorder on: one place for `faultlab diagnose`, `faultlab record-env` and the
//! tool `recorder`. Pure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use include_dir::{Dir, include_dir};
use nix::sys::signal::Signal;

static SHIM: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/recorder/shim");

/// The recorder's Python side, by file name: a folder with these goes before `PYTHONPATH`.
pub fn shim_files() -> impl Iterator<Item = (&'static Path, &'static [u8])> {
    let python = |path: &Path| path.extension().is_some_and(|e| e == "py");
    SHIM.files().filter(move |file| python(file.path())).map(|file| (file.path(), file.contents()))
}

/// The file of the recorder's library, beside the `faultlab` executable.
pub const LIBRARY: &str = "libfaultlab_recorder.so";

/// The file of the library for `LD_PRELOAD`, there too.
pub const PRELOAD_LIBRARY: &str = "libfaultlab_recorder_preload.so";

/// Where one of these libraries is expected: beside the executable; `cargo run` and `cargo test` leave it in `deps/` there.
pub fn library_beside(program: &Path, library: &str) -> PathBuf {
    let beside = program.with_file_name(library);
    let built = program.with_file_name("deps").join(library);
    if !beside.is_file() && built.is_file() { built } else { beside }
}

/// The library for `LD_PRELOAD`, if this is it and a machine of this architecture can use it. If not: why, and what helps.
pub fn preload_library(path: PathBuf, architecture: &str) -> Result<PathBuf, String> {
    if architecture != "x86_64" {
        return Err(format!(
            "the recorder for LD_PRELOAD stands before the driver on x86-64 only, and this machine is {architecture}: here the \
             recorder is loaded by the driver, and needs CUPTI for itself"
        ));
    }
    if !path.is_file() {
        return Err(format!("{} is not there: `cargo build` puts it beside faultlab", path.display()));
    }
    nameable(&path)?;
    Ok(path)
}

/// Can `LD_PRELOAD` name this file?
pub fn nameable(path: &Path) -> Result<(), String> {
    let parts = |c: char| c == ':' || c.is_ascii_whitespace();
    if path.display().to_string().contains(parts) {
        return Err(format!(
            "LD_PRELOAD cannot name {}, because spaces and colons part its entries: put faultlab into a folder without them",
            path.display()
        ));
    }
    Ok(())
}

/// The variable by which the CUDA driver is told to load a library into the process.
pub const INJECTION: &str = "CUDA_INJECTION64_PATH";

/// The variable that names the folder of the reports.
pub const FOLDER: &str = "FAULTLAB_RECORDER_DIR";

/// When completion markers are put into the streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Markers {
    /// As many as the overhead allows.
    #[default]
    Adaptive,
    /// After each launch.
    Every,
    /// None: launches are only remembered.
    Off,
}

impl Markers {
    /// The value of `FAULTLAB_RECORDER_MARKERS`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::Every => "every",
            Self::Off => "off",
        }
    }
}

/// How the library comes into the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Entry {
    /// The CUDA driver loads it; it is called back by CUPTI.
    #[default]
    Injection,
    /// The dynamic loader does, before all others; it stands before the driver's entry points.
    Preload,
}

/// How a process is to be recorded.
#[derive(Debug, Clone, Copy)]
pub struct RecorderSettings<'a> {
    /// The recorder's library, absolute.
    pub library: &'a Path,
    /// How it comes into the process.
    pub entry: Entry,
    /// The folder that goes before `PYTHONPATH`, absolute: it joins compiled kernels to the user's lines.
    pub shim: Option<&'a Path>,
    /// The folder of the reports, absolute; `None`: the recorder writes to standard error alone.
    pub reports: Option<&'a Path>,
    /// When markers are set.
    pub markers: Markers,
    /// Report a hang when nothing has finished for so many seconds.
    pub hang_s: Option<f64>,
    /// Whether the recorder also writes its block for people to standard error.
    pub stderr: bool,
    /// Whether results are checked for values that are not finite.
    pub nan: bool,
    /// The signal on which the stacks of all threads are written.
    pub stacks: Option<Signal>,
}

/// What to add to a process's environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecorderEnv {
    /// Variables to set.
    pub set: BTreeMap<String, String>,
    /// Folders to put before the value that a search path has, separated by colons.
    pub prepend: BTreeMap<String, Vec<String>>,
}

/// The signal on which the Python side writes the stacks of all threads: its number.
const STACKS: &str = "FAULTLAB_RECORDER_STACKS";

/// The environment of the Python side alone, where there is no recorder: it answers for its stacks.
pub fn stacks_env(shim: &Path, reports: &Path, signal: Signal) -> RecorderEnv {
    let set = [
        (FOLDER, reports.display().to_string()),
        (STACKS, (signal as i32).to_string()),
        // There are no launches to join compiled kernels to.
        ("FAULTLAB_RECORDER_COMPILE", "0".into()),
    ];
    RecorderEnv {
        set: set.map(|(key, value)| (key.into(), value)).into(),
        prepend: [("PYTHONPATH".into(), vec![shim.display().to_string()])].into(),
    }
}

/// The environment for these settings.
pub fn recorder_env(settings: &RecorderSettings<'_>) -> RecorderEnv {
    let mut env = RecorderEnv::default();
    let mut set = |key: &str, value: String| env.set.insert(key.into(), value);
    if settings.entry == Entry::Injection {
        set(INJECTION, settings.library.display().to_string());
    }
    if let Some(reports) = settings.reports {
        set(FOLDER, reports.display().to_string());
    }
    set("FAULTLAB_RECORDER_MARKERS", settings.markers.name().into());
    if let Some(seconds) = settings.hang_s {
        set("FAULTLAB_RECORDER_HANG", seconds.to_string());
    }
    set("FAULTLAB_RECORDER_STDERR", u8::from(settings.stderr).to_string());
    if let Some(signal) = settings.stacks {
        set(STACKS, (signal as i32).to_string());
    }
    if settings.nan {
        set("FAULTLAB_RECORDER_NAN", "1".into());
    }
    if settings.entry == Entry::Preload {
        env.prepend.insert("LD_PRELOAD".into(), vec![settings.library.display().to_string()]);
    }
    if let Some(shim) = settings.shim {
        env.prepend.insert("PYTHONPATH".into(), vec![shim.display().to_string()]);
    }
    env
}

/// A way to hand an environment on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnvForm {
    /// `export` lines of a POSIX shell.
    Shell,
    /// One JSON object: `set` and `prepend`.
    Json,
    /// Flags of `docker run`, with the mounts that the files need.
    Docker,
    /// Entries of a container's `env` in a Kubernetes manifest.
    Kubernetes,
}

impl RecorderEnv {
    /// The environment in a form, with a line end after each line. A shell that was set up for the other way in is set right:
    /// with both, the one with CUPTI would still be there.
    pub fn render(&self, form: EnvForm, settings: &RecorderSettings<'_>) -> String {
        match form {
            EnvForm::Shell => {
                let set = self.set.iter().map(|(key, value)| format!("export {key}={}\n", quoted(value)));
                let prepend = self
                    .prepend
                    .iter()
                    .map(|(key, paths)| format!("export {key}={}\"${{{key}:+:${key}}}\"\n", quoted(&paths.join(":"))));
                let other = format!("case \"${{{INJECTION}-}}\" in */{LIBRARY}) unset {INJECTION};; esac;\n");
                let other = (settings.entry == Entry::Preload).then_some(other);
                other.into_iter().chain(set).chain(prepend).collect()
            }
            EnvForm::Json => {
                let value = serde_json::json!({ "set": self.set, "prepend": self.prepend });
                format!("{value:#}\n")
            }
            EnvForm::Docker => {
                let read_only = settings.library.parent().into_iter().chain(settings.shim);
                let mounts = read_only.map(|path| format!("-v {}\n", quoted(&format!("{0}:{0}:ro", path.display()))));
                let reports =
                    settings.reports.map(|path| format!("-v {}\n", quoted(&format!("{0}:{0}", path.display()))));
                let set = self.joined().map(|(key, value)| format!("-e {}\n", quoted(&format!("{key}={value}"))));
                mounts.chain(reports).chain(set).collect()
            }
            EnvForm::Kubernetes => self
                .joined()
                .map(|(key, value)| {
                    // A JSON string is a YAML string.
                    let value = serde_json::Value::from(value);
                    format!("- name: {key}\n  value: {value}\n")
                })
                .collect::<Vec<String>>()
                .concat(),
        }
    }

    /// Search paths as plain variables: a container's own value cannot be known from outside.
    fn joined(&self) -> impl Iterator<Item = (&str, String)> {
        let set = self.set.iter().map(|(key, value)| (key.as_str(), value.clone()));
        set.chain(self.prepend.iter().map(|(key, paths)| (key.as_str(), paths.join(":"))))
    }
}

/// A word as a POSIX shell takes it: quoted, unless nothing in it means anything to a shell.
pub fn quoted(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./:=,+@%".contains(&b);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.into();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> RecorderSettings<'static> {
        RecorderSettings {
            library: Path::new("/opt/f/lib.so"),
            entry: Entry::Injection,
            shim: None,
            reports: Some(Path::new("/tmp/r")),
            markers: Markers::Adaptive,
            hang_s: None,
            stderr: true,
            nan: false,
            stacks: None,
        }
    }

    #[test]
    fn every_form_says_the_same() {
        let settings = RecorderSettings { shim: Some(Path::new("/c/it's")), ..settings() };
        let render = |form| recorder_env(&settings).render(form, &settings);
        assert_eq!(
            render(EnvForm::Shell),
            "export CUDA_INJECTION64_PATH=/opt/f/lib.so\n\
             export FAULTLAB_RECORDER_DIR=/tmp/r\n\
             export FAULTLAB_RECORDER_MARKERS=adaptive\n\
             export FAULTLAB_RECORDER_STDERR=1\n\
             export PYTHONPATH='/c/it'\\''s'\"${PYTHONPATH:+:$PYTHONPATH}\"\n"
        );
        let docker = render(EnvForm::Docker);
        assert!(docker.starts_with("-v /opt/f:/opt/f:ro\n-v '/c/it'\\''s:"), "{docker}");
        assert!(docker.contains("-v /tmp/r:/tmp/r\n-e CUDA_INJECTION64_PATH=/opt/f/lib.so\n"), "{docker}");
        let yaml = render(EnvForm::Kubernetes);
        assert!(yaml.ends_with("- name: PYTHONPATH\n  value: \"/c/it's\"\n"), "{yaml}");
        let json: serde_json::Value = serde_json::from_str(&render(EnvForm::Json)).unwrap();
        assert_eq!(json["prepend"]["PYTHONPATH"][0], "/c/it's");
    }

    #[test]
    fn the_shim_starts_by_itself() {
        assert!(shim_files().any(|(path, text)| path == Path::new("sitecustomize.py") && !text.is_empty()));
    }

    #[test]
    fn only_what_was_asked_for_is_set() {
        let settings = RecorderSettings { markers: Markers::Every, hang_s: Some(1.5), stderr: false, ..settings() };
        let env = recorder_env(&settings);
        let set: Vec<String> = env.set.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(
            set,
            [
                "CUDA_INJECTION64_PATH=/opt/f/lib.so",
                "FAULTLAB_RECORDER_DIR=/tmp/r",
                "FAULTLAB_RECORDER_HANG=1.5",
                "FAULTLAB_RECORDER_MARKERS=every",
                "FAULTLAB_RECORDER_STDERR=0",
            ]
        );
        assert!(env.prepend.is_empty());
        let more = recorder_env(&RecorderSettings { shim: Some(Path::new("/s")), nan: true, hang_s: None, ..settings });
        assert_eq!(more.prepend["PYTHONPATH"], ["/s"]);
        assert_eq!(more.set["FAULTLAB_RECORDER_NAN"], "1");
        let preloaded = recorder_env(&RecorderSettings { entry: Entry::Preload, ..settings });
        assert_eq!(preloaded.prepend["LD_PRELOAD"], ["/opt/f/lib.so"]);
        assert!(!preloaded.set.contains_key(INJECTION));
        assert!(!more.set.contains_key("FAULTLAB_RECORDER_HANG"));
    }

    #[test]
    fn by_preload_a_shell_leaves_the_other_way_in() {
        let settings = RecorderSettings {
            library: Path::new("/opt/f/pre.so"),
            entry: Entry::Preload,
            reports: None,
            markers: Markers::Off,
            ..settings()
        };
        let render = |form| recorder_env(&settings).render(form, &settings);
        assert_eq!(
            render(EnvForm::Shell),
            "case \"${CUDA_INJECTION64_PATH-}\" in */libfaultlab_recorder.so) unset CUDA_INJECTION64_PATH;; esac;\n\
             export FAULTLAB_RECORDER_MARKERS=off\n\
             export FAULTLAB_RECORDER_STDERR=1\n\
             export LD_PRELOAD=/opt/f/pre.so\"${LD_PRELOAD:+:$LD_PRELOAD}\"\n"
        );
        assert!(render(EnvForm::Docker).starts_with("-v /opt/f:/opt/f:ro\n-e FAULTLAB_RECORDER_MARKERS=off\n"));
        assert!(render(EnvForm::Kubernetes).ends_with("- name: LD_PRELOAD\n  value: \"/opt/f/pre.so\"\n"));
    }

    #[test]
    fn what_cannot_be_preloaded_is_said() {
        let folder = tempfile::Builder::new().prefix("faultlab").tempdir().expect("a folder");
        let path = folder.path().join(PRELOAD_LIBRARY);
        let why = preload_library(path.clone(), "x86_64").unwrap_err();
        assert!(why.contains("is not there") && why.contains("cargo build"), "{why}");
        std::fs::write(&path, "").expect("a file");
        assert_eq!(preload_library(path.clone(), "x86_64"), Ok(path.clone()));
        let why = preload_library(path, "aarch64").unwrap_err();
        assert!(why.contains("x86-64 only") && why.contains("aarch64"), "{why}");
        for name in ["/a b/x.so", "/a:b/x.so", "/a\tb/x.so"] {
            assert!(nameable(Path::new(name)).is_err_and(|why| why.contains(name)), "{name}");
        }
        assert_eq!(nameable(Path::new("/it's/x.so")), Ok(()));
    }
}
