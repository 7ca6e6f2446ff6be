//! What the tests and the benchmark run in, and what they load there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::SystemTime;

/// An interpreter that was found.
pub(crate) struct Interpreter {
    pub(crate) program: PathBuf,
    /// Its version and build, as it says.
    pub(crate) version: String,
    pub(crate) minor: u32,
    pub(crate) has_torch: bool,
}

/// The first minor version that can be read.
pub(crate) const FIRST_READABLE: u32 = 10;

/// All of them, one of each build.
pub(crate) static INTERPRETERS: LazyLock<Vec<Interpreter>> = LazyLock::new(|| {
    let env = |name| std::env::var_os(name).unwrap_or_default();
    let mut candidates: Vec<PathBuf> = std::env::split_paths(&env("FAULTLAB_TEST_PYTHONS")).collect();
    let pyenv = std::env::var_os("PYENV_ROOT").map_or_else(|| Path::new(&env("HOME")).join(".pyenv"), PathBuf::from);
    if let Ok(versions) = fs::read_dir(pyenv.join("versions")) {
        candidates.extend(versions.flatten().map(|v| v.path().join("bin/python3")));
    }
    for folder in std::env::split_paths(&env("PATH")) {
        candidates.push(folder.join("python3"));
        candidates.extend((FIRST_READABLE..20).map(|minor| folder.join(format!("python3.{minor}"))));
    }
    let mut seen = BTreeSet::new();
    let found = candidates.into_iter().filter_map(probe).filter(|i| seen.insert((i.version.clone(), i.has_torch)));
    let mut found: Vec<_> = found.collect();
    found.sort_by(|a, b| (a.minor, &a.version).cmp(&(b.minor, &b.version)));
    if !found.iter().any(|i| i.minor >= FIRST_READABLE) {
        let demanded = std::env::var("FAULTLAB_REQUIRE").unwrap_or_default();
        assert!(!demanded.split(',').any(|n| n == "python"), "FAULTLAB_REQUIRE demands python, and none is here");
        eprintln!("not run: no CPython of 3.10 or later is here");
    }
    found
});

fn probe(program: PathBuf) -> Option<Interpreter> {
    const PROBE: &str = "import ctypes, importlib.util, json, sys; print(json.dumps([sys.version, sys.version_info[1], \
                         importlib.util.find_spec('torch') is not None]))\n\
                         assert sys.implementation.name == 'cpython' and sys.version_info >= (3, 7)";
    if !program.is_file() {
        return None;
    }
    let output = Command::new(&program).args(["-c", PROBE]).output().ok().filter(|o| o.status.success())?;
    let (version, minor, has_torch) = serde_json::from_slice(&output.stdout).ok()?;
    Some(Interpreter { program, version, minor, has_torch })
}

/// The library that the programs load. `cargo test` builds it as an example; `cargo test --test python` and `cargo bench`
/// do not.
pub(crate) fn hook() -> &'static Path {
    static HOOK: LazyLock<PathBuf> = LazyLock::new(|| {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let test = std::env::current_exe().expect("a path of its own");
        let profile = test.parent().and_then(Path::parent).expect("a folder of the profile");
        let hook = profile.join("examples/libpython_hook.so");
        let changed = |path: &Path| fs::metadata(path).and_then(|m| m.modified()).ok();
        let source = ["tests/python/hook.rs", "src/lib.rs"].into_iter().map(|f| here.join(f));
        let walker = fs::read_dir(here.join("src/python")).expect("sources").flatten().map(|e| e.path());
        let source: Option<SystemTime> = source.chain(walker).filter_map(|p| changed(&p)).max();
        if changed(&hook) < source {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["build", "--quiet", "--locked", "--example", "python_hook"]).current_dir(here);
            if !cfg!(debug_assertions) {
                cargo.arg("--release");
            }
            assert!(cargo.status().is_ok_and(|s| s.success()), "{cargo:?}");
        }
        assert!(hook.is_file(), "{}: build it with cargo build --example python_hook", hook.display());
        hook
    });
    &HOOK
}

/// The program of `programs/`, ready to run: with the hook, and without leaving anything behind.
pub(crate) fn command(interpreter: &Interpreter, program: &str) -> Command {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/programs");
    let mut command = Command::new(&interpreter.program);
    command
        .args(["-W", "ignore", "-X", "faulthandler"])
        .arg(programs.join(program))
        .env("FAULTLAB_TEST_HOOK", hook())
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}
