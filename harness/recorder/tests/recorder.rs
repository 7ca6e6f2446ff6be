//! The recorder from end to end, in real processes of real interpreters, on a CUDA driver without a GPU (`fake/`).
//!
//! Two packages have these tests: that of the recorder, which the driver injects, and that of its other form, for
//! `LD_PRELOAD`. What they do not have in common asks for [`PRELOADED`].
//!
//! A program in `programs/` marks its lines: `# FAULT` is the launch that dies, `# REPLAY` the replay of the graph in which
//! it does, `# SURFACE` where the error comes to light, `# CANDIDATE` an innocent launch that nothing tells from the culprit.

#![expect(clippy::disallowed_methods, reason = "the tests start programs, and ask for one more of them than usual")]
#![expect(clippy::print_stderr, reason = "a test that is skipped says why")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use faultlab_recorder::format::{Active, Confidence, Exit, Fault, Hang, Launch, Record, Start};
use tempfile::TempDir;

/// No program here takes a second; a deadlock is an error and not a wait.
const DEADLINE: Duration = Duration::from_mins(1);

// ---- The machinery ----

/// Whether the recorder stands before the driver's entry points, without CUPTI.
const PRELOADED: bool = !matches!(env!("CARGO_PKG_NAME").as_bytes(), b"faultlab-recorder");

fn tests() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let recorder = if PRELOADED { package.parent() } else { Some(package) };
    recorder.expect("the other package lies within").join("tests")
}

/// The compiled fakes, each in a folder of its own, so that one can be left away.
fn fake() -> &'static Path {
    static FAKE: OnceLock<PathBuf> = OnceLock::new();
    FAKE.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_PKG_NAME"));
        for (source, to) in [("libcuda.c", "driver/libcuda.so.1"), ("libcupti.c", "cupti/libcupti.so.13")] {
            compile(&tests().join("fake").join(source), &folder.join(to), &["-fPIC", "-shared", "-fvisibility=hidden"]);
        }
        folder
    })
}

fn compile(source: &Path, to: &Path, options: &[&str]) {
    std::fs::create_dir_all(to.parent().expect("a file has a folder")).expect("the folder can be made");
    // Another process of the same test run may load it just now: the file is replaced, not written.
    let new = to.with_extension(std::process::id().to_string());
    let soname = format!("-Wl,-soname,{}", to.file_name().expect("a file has a name").to_string_lossy());
    let compiled = Command::new("cc")
        .args(["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .args(options)
        .arg(source)
        .arg("-o")
        .arg(&new)
        .args(options.contains(&"-shared").then_some(soname))
        .args(if options.contains(&"-shared") { None } else { Some(fake().join("driver/libcuda.so.1")) })
        .output()
        .expect("there is a C compiler: Rust links with it");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    std::fs::rename(&new, to).expect("the file can be replaced");
}

/// The variable that loads the recorder.
const LOADED_BY: &str = if PRELOADED { "LD_PRELOAD" } else { "CUDA_INJECTION64_PATH" };

/// The recorder. Cargo builds it beside the test, but not a library that is nothing except a `cdylib`.
fn recorder() -> &'static Path {
    static RECORDER: OnceLock<PathBuf> = OnceLock::new();
    RECORDER.get_or_init(|| {
        let test = std::env::current_exe().expect("a test has a file");
        let folder = test.parent().expect("a file has a folder");
        let library = if PRELOADED { build_preload(folder) } else { folder.join("libfaultlab_recorder.so") };
        assert!(library.is_file(), "cargo builds {}", library.display());
        library
    })
}

fn build_preload(beside: &Path) -> PathBuf {
    let profile = beside.parent().expect("target/PROFILE/deps");
    let name = profile.file_name().expect("target/PROFILE").to_string_lossy();
    let built = Command::new(env!("CARGO"))
        .args(["build", "--locked", "--package", env!("CARGO_PKG_NAME"), "--profile"])
        .arg(if name == "debug" { "dev" } else { &name })
        .arg("--target-dir")
        .arg(profile.parent().expect("target"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo built this test");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    profile.join("libfaultlab_recorder_preload.so")
}

/// A program that is about to run.
struct Session {
    command: Command,
    folder: TempDir,
    program: PathBuf,
}

/// What came of it.
struct Outcome {
    status: ExitStatus,
    stdout: String,
    stderr: String,
    /// The report of each process.
    reports: BTreeMap<u32, Vec<Record>>,
    program: PathBuf,
    folder: TempDir,
}

fn session(program: &str) -> Session {
    let program = tests().join("programs").join(program);
    let mut command = Command::new("python3");
    command.arg(&program);
    Session::new(command, program)
}

impl Session {
    fn new(mut command: Command, program: PathBuf) -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let report = folder.path().join("report");
        std::fs::create_dir(&report).expect("a folder can be made");
        let fake = fake();
        let libraries =
            std::env::join_paths([fake.join("driver"), fake.join("cupti")]).expect("no colon in the folder's name");
        for (name, _) in std::env::vars_os() {
            let name_text = name.to_string_lossy();
            if ["FAKE_", "FAULTLAB_", "CUDA_", "PYTHON"].iter().any(|prefix| name_text.starts_with(prefix)) {
                command.env_remove(&name);
            }
        }
        command
            .env("LD_LIBRARY_PATH", libraries)
            .env("PYTHONPATH", tests().join("fake/site-packages"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env(LOADED_BY, recorder())
            // A real one, where the tests run on a machine that has it, is of no use with this driver.
            .env("FAULTLAB_RECORDER_CUPTI", fake.join("cupti/libcupti.so.13"))
            .env("FAULTLAB_RECORDER_DIR", report)
            .env("FAKE_TRUTH", folder.path().join("truth"))
            .stdin(Stdio::null())
            .stdout(File::create(folder.path().join("stdout")).expect("a file can be made"))
            .stderr(File::create(folder.path().join("stderr")).expect("a file can be made"));
        Self { command, folder, program }
    }

    fn args(mut self, args: &[&str]) -> Self {
        self.command.args(args);
        self
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// The plain program.
    fn without_recorder(mut self) -> Self {
        self.command.env_remove(LOADED_BY);
        self
    }

    /// Notes which line handed over what.
    fn with_oracle(mut self) -> Self {
        let oracle = self.folder.path().join("oracle");
        self.command.env("FAKE_ORACLE", oracle);
        self
    }

    fn run(self) -> Outcome {
        self.run_until(|_, _| false)
    }

    /// Runs until the program ends; one that `enough` (of its process and its folder) says yes to is killed.
    fn run_until(mut self, mut enough: impl FnMut(u32, &Path) -> bool) -> Outcome {
        let mut child = self.command.spawn().expect("the program starts");
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().expect("a child can be waited for") {
                break status;
            }
            if enough(child.id(), self.folder.path()) {
                child.kill().expect("a child can be killed");
            } else if begin.elapsed() > DEADLINE {
                child.kill().expect("a child can be killed");
                let stderr = std::fs::read_to_string(self.folder.path().join("stderr")).unwrap_or_default();
                panic!("{} does not end; its standard error:\n{stderr}", self.program.display());
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let read = |name: &str| {
            let bytes = std::fs::read(self.folder.path().join(name)).expect("the file was made");
            String::from_utf8_lossy(&bytes).into_owned()
        };
        Outcome {
            status,
            stdout: read("stdout"),
            stderr: read("stderr"),
            reports: reports(&self.folder.path().join("report")),
            program: self.program,
            folder: self.folder,
        }
    }
}

fn reports(folder: &Path) -> BTreeMap<u32, Vec<Record>> {
    let mut reports = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("the folder was made") {
        let path = entry.expect("the folder can be read").path();
        let name = path.file_name().expect("a file has a name").to_string_lossy().into_owned();
        let pid = name.strip_prefix("recorder.").and_then(|n| n.strip_suffix(".jsonl")).and_then(|n| n.parse().ok());
        let lines = BufReader::new(File::open(&path).expect("the report can be read")).lines();
        let records = lines.map(|line| {
            let line = line.expect("the report is text");
            serde_json::from_str(&line).unwrap_or_else(|error| panic!("{name}: {error}: {line}"))
        });
        reports.insert(pid.unwrap_or_else(|| panic!("a report is called {name}")), records.collect());
    }
    reports
}

impl Outcome {
    fn records(&self) -> impl Iterator<Item = &Record> {
        self.reports.values().flatten()
    }

    fn faults(&self) -> Vec<&Fault> {
        self.records().filter_map(|r| if let Record::Fault(fault) = r { Some(fault) } else { None }).collect()
    }

    fn hangs(&self) -> Vec<&Hang> {
        self.records().filter_map(|r| if let Record::Hang(hang) = r { Some(hang) } else { None }).collect()
    }

    fn notices(&self) -> Vec<&str> {
        self.records().filter_map(|r| if let Record::Notice(n) = r { Some(n.code.as_str()) } else { None }).collect()
    }

    fn starts(&self) -> Vec<&Start> {
        self.records().filter_map(|r| if let Record::Start(start) = r { Some(start) } else { None }).collect()
    }

    fn active(&self) -> Vec<&Active> {
        self.records().filter_map(|r| if let Record::Active(active) = r { Some(active) } else { None }).collect()
    }

    fn exits(&self) -> Vec<&Exit> {
        self.records().filter_map(|r| if let Record::Exit(exit) = r { Some(exit) } else { None }).collect()
    }

    /// The one fault.
    fn fault(&self) -> &Fault {
        let faults = self.faults();
        assert_eq!(faults.len(), 1, "one report of a fault; the program said:\n{}", self.stderr);
        faults[0]
    }

    /// The line with this mark.
    fn line(&self, mark: &str) -> u32 {
        marked(&self.program, mark)
    }

    /// What the driver knows: the ordinal of the work that faulted.
    fn truth(&self) -> Option<u64> {
        let text = std::fs::read_to_string(self.folder.path().join("truth")).ok()?;
        text.split_whitespace().nth(1)?.parse().ok()
    }

    /// The line that handed over the work of this ordinal, and its kind.
    fn handed_over(&self, ordinal: u64) -> (String, u32) {
        let text = std::fs::read_to_string(self.folder.path().join("oracle")).expect("the oracle was on");
        let mut entries = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let entry = entries.find(|fields| fields[1] == ordinal.to_string()).expect("the oracle knows all work");
        (entry[0].to_string(), entry[2].parse().expect("a line is a number"))
    }

    /// The program ended by itself with this exit code.
    fn exited(&self, code: i32) {
        assert_eq!(self.status.code(), Some(code), "{:?}; standard error:\n{}", self.status, self.stderr);
    }
}

fn marked(program: &Path, mark: &str) -> u32 {
    find(program, mark).unwrap_or_else(|| panic!("{} has no line that ends in {mark}", program.display()))
}

fn find(program: &Path, mark: &str) -> Option<u32> {
    let text = std::fs::read_to_string(program).expect("the program can be read");
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| line.ends_with(mark));
    let (line, _) = lines.next()?;
    assert!(lines.next().is_none(), "{} has two lines that end in {mark}", program.display());
    Some(line)
}

/// The line that a report gives for a launch; that of the node for a graph.
fn place(launch: &Launch) -> u32 {
    let launch = launch.node.as_deref().map_or(launch, |node| &node.captured);
    launch.place().map_or(0, |frame| frame.line)
}

/// What a program must give that faults: one report, of one launch, on its line; said on standard error as well.
fn exact(outcome: &Outcome, code: i32, surfaced: &str) {
    let fault = outcome.fault();
    let lines: Vec<u32> = fault.culprits.iter().map(place).collect();
    assert_eq!(lines, [outcome.line("# FAULT")], "{:?}", fault.evidence);
    assert_eq!((fault.confidence, fault.code), (Confidence::Exact, code));
    assert!(fault.name.starts_with("CUDA_ERROR_"), "{}", fault.name);
    let culprit = &fault.culprits[0];
    assert_eq!(culprit.state, "running");
    let own = culprit.place().expect("the launch has a frame of the program's own");
    assert_eq!(Path::new(&own.file).file_name(), outcome.program.file_name());
    if let Some(node) = &culprit.node {
        assert!(node.index >= 1 && node.index <= node.of, "node {} of {}", node.index, node.of);
        assert_eq!(own.line, outcome.line("# REPLAY"));
    }
    // On a slow machine the fault may be there before the program comes to the call that waits for it.
    if fault.surfaced.call == surfaced {
        let at = fault.surfaced.frames.iter().find(|frame| frame.user).map(|frame| frame.line);
        assert_eq!(at, find(&outcome.program, "# SURFACE"));
    } else {
        assert!(["cuLaunchKernel", "watcher"].contains(&fault.surfaced.call.as_str()), "{}", fault.surfaced.call);
    }
    assert!(!fault.evidence.is_empty());
    assert!(fault.around.iter().any(|launch| launch.seq == culprit.seq), "the culprit is among those around it");
    let told = format!("{}:{}", outcome.program.display(), outcome.line("# FAULT"));
    assert!(outcome.stderr.contains(&told), "standard error names {told}:\n{}", outcome.stderr);
    assert!(outcome.active().iter().all(|active| active.markers == "on"), "{:?}", outcome.active());
}

/// What a healthy program must give: the same as without the recorder, and nothing more.
fn unharmed(with: &Outcome, without: &Outcome) {
    assert_eq!((with.status, &with.stdout, &with.stderr), (without.status, &without.stdout, &without.stderr));
    assert!(with.faults().is_empty() && with.hangs().is_empty(), "nothing is reported");
}

fn healthy(make: impl Fn() -> Session) -> Outcome {
    let with = make().run();
    unharmed(&with, &make().without_recorder().run());
    assert!(!with.active().is_empty(), "the recorder was on: {:?}", with.starts());
    let exits = with.exits();
    assert!(exits.iter().any(|exit| exit.launches > 0) && exits.iter().all(|exit| !exit.faulted), "{exits:?}");
    with
}

// ---- Faults ----

#[test]
fn one_kernel_launched_from_two_lines() {
    let outcome = session("two_lines.py").run();
    exact(&outcome, 710, "cuCtxSynchronize");
    outcome.exited(1);
    assert_eq!(outcome.fault().surfaced.call, "cuCtxSynchronize");
    // The driver's own words come too, once.
    assert_eq!(outcome.stderr.matches("Assertion `word == 0` failed").count(), 1);
    let fault = outcome.fault();
    let around: Vec<&str> = fault.around.iter().map(|launch| launch.state.as_str()).collect();
    assert_eq!(
        around,
        ["completed", "completed", "completed", "completed", "running", "waiting", "waiting", "waiting", "waiting"]
    );
    assert_eq!((fault.culprits[0].grid, fault.culprits[0].block), ([1; 3], [32, 1, 1]));
    assert_eq!(fault.culprits[0].kernel, "gather_fault_assert");
    assert_eq!(outcome.starts()[0].backend, if PRELOADED { "interposed" } else { "cupti" });
}

#[test]
fn the_first_launch_of_the_process() {
    exact(&session("first_launch.py").run(), 710, "cuCtxSynchronize");
}

#[test]
fn every_kind_of_error() {
    for (kernel, code) in [
        ("fault_illegal", 700),
        ("fault_assert", 710),
        ("fault_instruction", 715),
        ("fault_misaligned", 716),
        ("fault_space", 717),
        ("fault_pc", 718),
        ("fault_launch", 719),
    ] {
        exact(&session("errors.py").args(&[kernel]).run(), code, "cuCtxSynchronize");
    }
}

#[test]
fn every_entry_point() {
    for entry in ["ex", "cooperative", "library", "ptsz"] {
        exact(&session("errors.py").args(&["fault_illegal", entry]).run(), 700, "cuCtxSynchronize");
    }
}

#[test]
fn a_copy_or_a_fill_that_faults() {
    // The last one waits in its call, since it copies to pageable memory: the call that fails is the culprit itself.
    for (at, mark, kind) in
        [("1", "# FILL", "memset"), ("2", "# COPY", "memcpy"), ("4", "# WRITE", "memcpy"), ("5", "# READ", "memcpy")]
    {
        for markers in ["adaptive", "every"] {
            let outcome = session("copies.py")
                .env("FAKE_FAULT_AT", at)
                .env("FAKE_FAULT_CODE", "700")
                .env("FAULTLAB_RECORDER_MARKERS", markers)
                .run();
            let fault = outcome.fault();
            let culprit = fault.culprits.iter().find(|culprit| place(culprit) == outcome.line(mark));
            let lines: Vec<u32> = fault.culprits.iter().map(place).collect();
            let culprit =
                culprit.unwrap_or_else(|| panic!("{mark}, markers {markers}: {lines:?}: {:?}", fault.evidence));
            assert_eq!(culprit.kind, kind);
            // Copies share a marker, unless each has one.
            if markers == "every" {
                assert_eq!(fault.confidence, Confidence::Exact, "{mark}: {:?}", fault.evidence);
            }
            if lines.len() == 1 {
                assert_eq!(fault.confidence, Confidence::Exact);
            }
        }
    }
}

/// A marker costs the GPU 2 us, and a copy that cannot wait in its call needs none before it.
#[test]
fn copies_between_devices_share_a_marker() {
    let markers = |from: &str| session("many_copies.py").args(&[from]).run().exits()[0].markers;
    let (device, host) = (markers("device"), markers("host"));
    // One behind the kernel, one before the program waits, one at its end.
    assert!(device <= 3, "{device}");
    assert!(host >= 12, "{host}");
}

#[test]
fn a_neighbour_that_had_not_finished_is_a_candidate() {
    for program in ["busy_neighbour.py", "two_faults.py"] {
        let outcome = session(program).run();
        let fault = outcome.fault();
        let mut lines: Vec<u32> = fault.culprits.iter().map(place).collect();
        lines.sort_unstable();
        let mut expected = [outcome.line("# CANDIDATE"), outcome.line("# FAULT")];
        expected.sort_unstable();
        assert_eq!((fault.confidence, lines.as_slice()), (Confidence::Candidates, expected.as_slice()), "{program}");
    }
}

#[test]
fn a_stream_that_waits_for_the_faulty_one_is_innocent() {
    exact(&session("waits.py").run(), 700, "cuStreamSynchronize");
    exact(&session("waits.py").args(&["first"]).run(), 700, "cuStreamSynchronize");
}

#[test]
fn other_streams_go_on_for_a_while() {
    let outcome = session("threads.py").env("FAKE_FAULT_DELAY", "30000").run();
    exact(&outcome, 710, "cuStreamSynchronize");
}

#[test]
fn at_the_exit_of_the_interpreter() {
    let outcome = session("at_exit.py").run();
    exact(&outcome, 710, "exit");
    outcome.exited(0);
    assert_eq!(outcome.stdout, "done\n");
}

/// Nobody waits and there are no markers: the streams themselves are asked.
#[test]
fn at_the_exit_of_the_interpreter_without_markers() {
    let outcome = session("at_exit.py").env("FAULTLAB_RECORDER_MARKERS", "off").run();
    outcome.exited(0);
    let fault = outcome.fault();
    assert_eq!((fault.code, fault.surfaced.call.as_str()), (710, "exit"));
    assert!(fault.culprits.iter().any(|c| place(c) == outcome.line("# FAULT")), "{:?}", fault.evidence);
}

#[test]
fn swallowed_by_an_except_clause() {
    let outcome = session("swallowed.py").run();
    exact(&outcome, 716, "cuCtxSynchronize");
    outcome.exited(0);
    assert_eq!(outcome.stdout, "done\n");
}

#[test]
fn thousands_of_launches_before_it_surfaces() {
    exact(&session("long_before.py").run(), 700, "cuStreamSynchronize");
}

#[test]
fn a_launch_that_is_no_longer_remembered_is_not_guessed_at() {
    let outcome = session("long_before.py").env("FAULTLAB_RECORDER_RING", "1024").run();
    let fault = outcome.fault();
    assert_eq!((fault.confidence, fault.culprits.len()), (Confidence::Unlocated, 0), "{:?}", fault.evidence);
    assert!(fault.evidence.iter().any(|sentence| sentence.contains("FAULTLAB_RECORDER_RING")), "{:?}", fault.evidence);
    assert!(outcome.exits()[0].evicted > 3000);
}

#[test]
fn a_node_of_a_graph() {
    let outcome = session("graph.py").run();
    exact(&outcome, 710, "cuStreamSynchronize");
    let node = outcome.fault().culprits[0].node.as_deref().expect("a graph has a node");
    assert_eq!((node.index, node.of, node.captured.kernel.as_str()), (3, 5, "third_fault_assert"));
}

#[test]
fn a_node_on_a_branch_of_a_graph() {
    exact(&session("graph_fork.py").run(), 700, "cuStreamSynchronize");
}

#[test]
fn the_third_of_many_replays() {
    // The third piece of work is the graph's first node.
    for markers in ["adaptive", "every"] {
        let outcome = session("graph.py")
            .args(&["8"])
            .env("FAKE_FAULT_AT", "3@3")
            .env("FAULTLAB_RECORDER_MARKERS", markers)
            .run();
        let fault = outcome.fault();
        assert_eq!(fault.confidence, Confidence::Exact, "{markers}: {:?}", fault.evidence);
        let node = fault.culprits[0].node.as_deref().expect("a graph has a node");
        assert_eq!((node.index, node.captured.kernel.as_str()), (1, "first"), "{markers}");
    }
}

#[test]
fn handles_that_are_given_again() {
    exact(&session("many_streams.py").run(), 710, "cuStreamSynchronize");
    let outcome = session("many_graphs.py").run();
    let fault = outcome.fault();
    assert_eq!(fault.confidence, Confidence::Exact, "{:?}", fault.evidence);
    let node = fault.culprits[0].node.as_deref().expect("a graph has a node");
    assert_eq!(place(&node.captured), outcome.line("# FAULT"));
}

#[test]
fn threads_and_streams_that_come_and_go_are_forgotten() {
    let bytes = |requests: &str| {
        let outcome = session("many_threads.py").args(&[requests]).env("FAULTLAB_RECORDER_RING", "1024").run();
        assert!(outcome.status.success(), "{}", outcome.stderr);
        outcome.exits()[0].bytes
    };
    let (few, many) = (bytes("1000"), bytes("4000"));
    // Copies of the interpreter's code objects differ by a few.
    assert!(many < few + (16 << 10), "memory grows with the requests: {few} and {many} bytes");
    for markers in ["adaptive", "every"] {
        let outcome =
            session("many_threads.py").args(&["1200", "1150"]).env("FAULTLAB_RECORDER_MARKERS", markers).run();
        let fault = outcome.fault();
        assert_eq!(fault.confidence, Confidence::Exact, "{markers}: {:?}", fault.evidence);
        assert_eq!(place(&fault.culprits[0]), outcome.line("# FAULT"), "{markers}");
    }
}

/// Neither stream waits for the other: who took the event for the one before it would say that the faulty one does.
fn with_a_busy_neighbour(program: &str) -> Outcome {
    let outcome = session(program).run();
    let fault = outcome.fault();
    let mut lines: Vec<u32> = fault.culprits.iter().map(place).collect();
    lines.sort_unstable();
    assert_eq!(lines, [outcome.line("# BUSY"), outcome.line("# FAULT")], "{:?}", fault.evidence);
    outcome
}

#[test]
fn an_event_in_the_place_of_a_destroyed_one() {
    assert_eq!(with_a_busy_neighbour("stale_event.py").stdout.trim(), "the same handle");
}

#[test]
fn an_event_recorded_in_a_capture_tells_of_the_graph_alone() {
    with_a_busy_neighbour("captured_event.py");
}

#[test]
fn a_stream_destroyed_beside_the_faulty_one() {
    let outcome = session("destroyed_beside.py").run();
    let lines: Vec<u32> = outcome.fault().culprits.iter().map(place).collect();
    assert!(lines.contains(&outcome.line("# FAULT")), "{lines:?}");
}

#[test]
fn a_launch_that_comes_after_a_wait_began() {
    exact(&session("late_launch.py").env("FAKE_SLOW_LAUNCH", "200000").run(), 700, "cuStreamSynchronize");
}

#[test]
fn threads_with_a_stream_each() {
    let outcome = session("threads.py").run();
    exact(&outcome, 710, "cuStreamSynchronize");
    outcome.exited(0);
}

#[test]
fn threads_in_one_stream() {
    // The second and third time calls take long, so that many overlap.
    for (launch, back) in [("0", "0"), ("300", "200"), ("0", "400")] {
        let outcome = session("shared_stream.py").env("FAKE_SLOW_LAUNCH", launch).env("FAKE_SLOW_RETURN", back).run();
        let fault = outcome.fault();
        // Launches that overlapped cannot be told apart; the culprit is one of them.
        assert_ne!(fault.confidence, Confidence::Unlocated);
        let lines: Vec<u32> = fault.culprits.iter().map(place).collect();
        assert!(lines.contains(&outcome.line("# FAULT")), "{launch}, {back}: {lines:?}, {:?}", fault.evidence);
        assert!(fault.culprits.len() <= 2, "one culprit a line: {lines:?}");
    }
}

#[test]
fn launches_that_share_a_marker_are_candidates() {
    let outcome = session("safe_kernels.py").run();
    let fault = outcome.fault();
    assert_eq!(fault.confidence, Confidence::Candidates);
    let lines: Vec<u32> = fault.culprits.iter().map(place).collect();
    assert!(lines.contains(&outcome.line("# FAULT")), "{lines:?}");
    exact(&session("safe_kernels.py").env("FAULTLAB_RECORDER_MARKERS", "every").run(), 700, "cuCtxSynchronize");
}

#[test]
fn the_second_of_two_devices() {
    let outcome = session("devices.py").env("FAKE_DEVICES", "2").run();
    exact(&outcome, 700, "cuCtxSynchronize");
    assert_eq!(outcome.fault().culprits[0].device, 1);
    outcome.exited(0);
    assert_eq!(outcome.stdout, "700\nb'\\x03\\x03\\x03\\x03'\n", "the first device goes on");
}

#[test]
fn at_the_bottom_of_a_deep_recursion() {
    let outcome = session("deep.py").run();
    exact(&outcome, 710, "cuCtxSynchronize");
    let frames = &outcome.fault().culprits[0].frames;
    assert!(frames.iter().filter(|frame| frame.user).count() >= 16, "{} frames", frames.len());
}

#[test]
fn the_error_surfaces_in_a_call_that_keeps_the_gil() {
    let outcome = session("gil.py").run();
    let fault = outcome.fault();
    assert_eq!(fault.confidence, Confidence::Exact, "{:?}", fault.evidence);
    assert_eq!(place(&fault.culprits[0]), outcome.line("# FAULT"));
    outcome.exited(0);
    assert_eq!(outcome.stdout, "710\n");
}

#[test]
fn code_that_is_gone_when_the_error_surfaces() {
    let outcome = session("freed_code.py").run();
    let fault = outcome.fault();
    assert_eq!((fault.confidence, place(&fault.culprits[0])), (Confidence::Exact, outcome.line("# FAULT")));
    let mut outcome = session("exit_function.py").run();
    outcome.program = tests().join("programs/helper_of_exit_function.py");
    exact(&outcome, 700, "exit");
    outcome.exited(0);
}

#[test]
fn a_program_that_goes_on_after_the_fault() {
    let outcome = session("zombie.py").run();
    let fault = outcome.fault();
    assert_eq!((fault.confidence, place(&fault.culprits[0])), (Confidence::Exact, outcome.line("# FAULT")));
    outcome.exited(0);
    assert_eq!(outcome.stdout, "6000\n6000\n", "every call failed, as it does without the recorder");
}

#[test]
fn a_context_that_dies_and_is_destroyed() {
    let outcome = session("contexts.py").run();
    exact(&outcome, 700, "cuCtxSynchronize");
    outcome.exited(0);
    assert_eq!(outcome.stdout, "700\n700\nwell\nb'\\x03\\x03\\x03\\x03'\n");
}

#[test]
fn a_fault_before_the_launch_has_returned() {
    for first in [&[][..], &["first"]] {
        let outcome = session("late_return.py").args(first).env("FAKE_SLOW_RETURN", "50000").run();
        exact(&outcome, 700, "cuStreamSynchronize");
    }
}

#[test]
fn a_full_ring_is_reported_at_once() {
    let outcome = session("full_ring.py").args(&["70000"]).run();
    exact(&outcome, 710, "cuCtxSynchronize");
    let seconds: f64 = outcome.stdout.trim().parse().expect("the program prints seconds");
    assert!(seconds < 5.0, "the call that met the fault took {seconds} s");
    assert_eq!(outcome.exits()[0].evicted, 70_001 - 16_384);
}

#[test]
fn a_thread_that_exits() {
    exact(&session("thread_exit.py").run(), 710, "cuCtxSynchronize");
}

#[test]
fn a_program_without_python() {
    let source = tests().join("programs/native.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-native", env!("CARGO_PKG_NAME")));
    compile(&source, &program, &["-fno-omit-frame-pointer"]);
    let outcome = Session::new(Command::new(&program), source.clone()).run();
    let fault = outcome.fault();
    assert_eq!((fault.confidence, fault.code), (Confidence::Exact, 710));
    assert_eq!(fault.culprits[0].kernel, "gather_fault_assert", "the name is demangled: {}", fault.culprits[0].symbol);
    let native = &fault.culprits[0].native;
    // The function that launches, then the line that called it: nothing of CUPTI, the driver or the recorder.
    let functions: Vec<&str> = native.iter().map(|frame| frame.function.as_str()).collect();
    assert_eq!(functions.get(..2), Some(["gather", "main"].as_slice()), "{functions:?}");
    assert_eq!(native[1].line, Some(marked(&source, "// FAULT")));
    assert!(native[1].file.as_deref().is_some_and(|file| file.ends_with("native.c")), "{:?}", native[1].file);
    assert_eq!(outcome.starts()[0].python, "");
}

// ---- Other processes ----

#[test]
fn forked_children_are_left_alone() {
    let outcome = session("fork.py").run();
    exact(&outcome, 710, "cuCtxSynchronize");
    assert_eq!(outcome.reports.len(), 1, "only the parent has a report");
    assert_eq!(outcome.stdout, "child 7\ncuda in a child 3\n[0, 1, 4, 9, 16]\n");
    assert_eq!(outcome.exits().len(), 1, "a child that leaves writes no end into its parent's report");
}

#[test]
fn workers_have_reports_of_their_own() {
    let outcome = session("spawn.py").run();
    outcome.exited(0);
    exact(&outcome, 700, "cuCtxSynchronize");
    assert_eq!(outcome.stdout, "[0, 1]\nplain\n\n");
    // The parent, two workers; a subprocess that never uses CUDA leaves nothing.
    assert_eq!(outcome.reports.len(), 3);
    let faulted = outcome.reports.values().filter(|r| r.iter().any(|r| matches!(r, Record::Fault(_)))).count();
    assert_eq!(faulted, 1);
}

#[test]
fn a_program_that_replaces_itself() {
    let mut outcome = session("exec.py").run();
    outcome.program = tests().join("programs/two_lines.py");
    exact(&outcome, 710, "cuCtxSynchronize");
    assert_eq!((outcome.reports.len(), outcome.starts().len()), (1, 2), "one process, two programs");
}

// ---- Ends ----

#[test]
fn an_abort_with_a_fault_that_no_call_told() {
    let outcome = session("abort.py").run();
    exact(&outcome, 700, "abort");
    assert_eq!(outcome.status.signal(), Some(6));
}

#[test]
fn leaving_without_exit_handlers() {
    let outcome = session("os_exit.py").run();
    outcome.exited(5);
    let outcome = session("os_exit.py").args(&["wait"]).run();
    outcome.exited(5);
    exact(&outcome, 700, "cuCtxSynchronize");
}

#[test]
fn sigterm_ends_the_program_at_once() {
    let begin = Instant::now();
    let outcome = session("sigterm.py").run();
    assert_eq!(outcome.status.signal(), Some(15));
    assert!(begin.elapsed() < Duration::from_secs(20));
    assert!(outcome.faults().is_empty() && outcome.stderr.is_empty(), "{}", outcome.stderr);
}

// ---- Hangs ----

fn hung(outcome: &Outcome, why: &str) {
    let hangs = outcome.hangs();
    let hang = hangs.first().unwrap_or_else(|| panic!("a hang is reported:\n{}", outcome.stderr));
    assert_eq!(hang.why, why);
    let lines: Vec<u32> = hang.running.iter().map(place).collect();
    assert_eq!(lines, [outcome.line("# FAULT")]);
    let host = hang.host.iter().find(|frame| frame.user).map(|frame| frame.line);
    assert_eq!(host, Some(outcome.line("# SURFACE")), "where the host waits");
    assert!(outcome.stderr.contains(&format!("{}:{}", outcome.program.display(), outcome.line("# FAULT"))));
    assert!(outcome.faults().is_empty());
}

fn has_hang(folder: &Path) -> bool {
    let report = std::fs::read_dir(folder.join("report")).ok().and_then(|mut files| files.next()?.ok());
    report.and_then(|file| std::fs::read_to_string(file.path()).ok()).is_some_and(|text| text.contains("\"hang\""))
}

#[test]
fn a_hang_is_located_after_the_deadline() {
    let mut since = None;
    // Long enough to see that it is said once.
    let outcome = session("hang.py").env("FAULTLAB_RECORDER_HANG", "0.5").run_until(|_, folder| {
        if since.is_none() && has_hang(folder) {
            since = Some(Instant::now());
        }
        since.is_some_and(|since| since.elapsed() > Duration::from_millis(1500))
    });
    hung(&outcome, "deadline");
    assert_eq!(outcome.hangs().len(), 1);
    assert!(outcome.hangs()[0].seconds >= 0.5);
}

#[test]
fn without_markers_a_host_that_waits_shows_a_hang() {
    let mut since = None;
    let session = || session("hang.py").env("FAULTLAB_RECORDER_MARKERS", "off");
    let outcome = session().env("FAULTLAB_RECORDER_HANG", "0.5").run_until(|_, folder| {
        if since.is_none() && has_hang(folder) {
            since = Some(Instant::now());
        }
        since.is_some_and(|since| since.elapsed() > Duration::from_millis(300))
    });
    let hangs = outcome.hangs();
    let [hang] = hangs.as_slice() else { panic!("one hang is reported:\n{}", outcome.stderr) };
    assert!(hang.guessed);
    assert!(hang.running.iter().any(|launch| place(launch) == outcome.line("# FAULT")), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("can be what runs"), "{}", outcome.stderr);
}

#[test]
fn a_call_that_takes_long_is_no_hang_of_the_device() {
    for markers in ["adaptive", "off"] {
        let slow = session("slow_launch.py").env("FAKE_SLOW_LAUNCH", "1500000");
        let outcome = slow.env("FAULTLAB_RECORDER_MARKERS", markers).env("FAULTLAB_RECORDER_HANG", "0.4").run();
        outcome.exited(0);
        assert!(outcome.hangs().is_empty(), "{markers}: {}", outcome.stderr);
    }
}

#[test]
fn a_hang_is_located_on_a_signal() {
    let (mut announced, mut asked) = (None, None);
    let outcome = session("hang.py").run_until(|pid, folder| {
        if std::fs::read_to_string(folder.join("stdout")).is_ok_and(|text| text.contains("waiting")) {
            announced.get_or_insert_with(Instant::now);
        }
        // It says so just before it waits.
        let waiting = announced.is_some_and(|since: Instant| since.elapsed() > Duration::from_millis(500));
        if waiting && asked.is_none() {
            let kill = Command::new("kill").args(["-USR2", &pid.to_string()]).status();
            assert!(kill.is_ok_and(|status| status.success()));
            asked = Some(Instant::now());
        }
        has_hang(folder) || asked.is_some_and(|since| since.elapsed() > Duration::from_secs(20))
    });
    hung(&outcome, "signal");
}

// ---- Healthy programs ----

#[test]
fn a_healthy_program_is_left_as_it_is() {
    for markers in ["adaptive", "every", "off"] {
        let outcome =
            healthy(|| session("healthy.py").args(&["4", "workers"]).env("FAULTLAB_RECORDER_MARKERS", markers));
        assert_eq!(outcome.reports.len(), 1, "workers that do not use CUDA have no report");
    }
}

/// The soak of the issue: `FAULTLAB_SOAK=1000 cargo test -p faultlab-recorder --test recorder -- --ignored soak`.
#[test]
#[ignore = "takes minutes"]
fn soak() {
    let runs = std::env::var_os("FAULTLAB_SOAK").and_then(|n| n.to_str()?.parse().ok()).unwrap_or(100);
    let expected = session("healthy.py").args(&["4"]).without_recorder().run();
    for run in 0..runs {
        let outcome = session("healthy.py").args(&["4"]).run();
        unharmed(&outcome, &expected);
        assert!(outcome.exits().iter().all(|exit| exit.launches > 100), "run {run}");
    }
    inject("healthy.py", || session("healthy.py"), runs / 4);
}

#[test]
fn captures_are_not_disturbed() {
    for markers in ["adaptive", "every"] {
        healthy(|| session("slow_capture.py").env("FAULTLAB_RECORDER_MARKERS", markers));
        let spoilt = healthy(|| session("failed_capture.py").env("FAULTLAB_RECORDER_MARKERS", markers));
        let set = spoilt.exits()[0].markers;
        assert!(set >= 20, "{markers}: a capture that failed is over: {set} markers for 20 waits");
    }
}

#[test]
fn a_big_graph_takes_little_memory() {
    let exit = healthy(|| session("big_graph.py")).exits()[0].clone();
    assert!(exit.bytes < 100_000, "{exit:?}");
}

#[test]
fn errors_of_the_host_are_no_faults() {
    healthy(|| session("invalid.py"));
}

#[test]
fn a_signal_that_the_program_uses_itself() {
    healthy(|| session("own_signal.py"));
}

#[test]
fn a_daemon_thread_launches_to_the_end() {
    healthy(|| session("daemon.py"));
}

#[test]
fn a_program_that_never_uses_cuda() {
    let outcome = session("no_cuda.py").run();
    unharmed(&outcome, &session("no_cuda.py").without_recorder().run());
    assert!(outcome.reports.is_empty());
    let outcome = session("only_init.py").run();
    unharmed(&outcome, &session("only_init.py").without_recorder().run());
    assert!(outcome.active().is_empty(), "nothing was launched");
}

// ---- Where the recorder cannot work ----

#[test]
fn another_client_of_cupti_comes_first() {
    if PRELOADED {
        return;
    }
    let outcome = session("profiler_before.py").run();
    outcome.exited(0);
    assert_eq!((outcome.stdout.as_str(), outcome.notices()), ("2 {307}\n", vec!["cupti-busy"]));
    assert!(outcome.active().is_empty());
}

#[test]
fn another_client_of_cupti_comes_later() {
    if PRELOADED {
        return;
    }
    let outcome = session("profiler_after.py").run();
    outcome.exited(0);
    assert_eq!((outcome.stdout.as_str(), outcome.notices()), ("0\n2 {307}\n", vec!["gave-way"]));
}

#[test]
fn no_cupti_is_said_once() {
    if PRELOADED {
        return;
    }
    let missing = fake().join("nowhere/libcupti.so.13");
    for (name, value, notice) in [
        ("FAULTLAB_RECORDER_CUPTI", missing.to_str().expect("the folder is text"), "no-cupti"),
        ("FAKE_CUPTI", "busy", "cupti-busy"),
        ("FAKE_CUPTI", "error", "cupti-failed"),
    ] {
        let outcome = session("two_lines.py").env(name, value).run();
        outcome.exited(1);
        assert_eq!(outcome.notices(), [notice]);
        assert_eq!(outcome.starts()[0].backend, notice);
        assert!(outcome.faults().is_empty() && outcome.active().is_empty());
        assert_eq!(outcome.stderr.matches("faultlab: ").count(), 1, "{}", outcome.stderr);
    }
}

#[test]
fn without_markers_the_launches_are_candidates() {
    for (name, value) in
        [("FAKE_MARKERS", "unsupported"), ("FAKE_PINNED", "none"), ("FAULTLAB_RECORDER_MARKERS", "off")]
    {
        let outcome = session("two_lines.py").env(name, value).run();
        let fault = outcome.fault();
        assert_eq!(fault.confidence, Confidence::Candidates, "{name}");
        let lines: Vec<u32> = fault.culprits.iter().map(place).collect();
        assert!(lines.contains(&outcome.line("# FAULT")), "{name}: {lines:?}");
        assert!(fault.evidence.iter().any(|s| s.contains("no completion markers")), "{name}: {:?}", fault.evidence);
        healthy(|| session("healthy.py").env(name, value));
    }
}

#[test]
fn without_markers_kernel_and_size_are_told_of_each() {
    let outcome = session("many_sizes.py").env("FAULTLAB_RECORDER_MARKERS", "off").run();
    let fault = outcome.fault();
    let of = |grid| {
        fault.culprits.iter().filter(|c| c.grid == grid && c.kernel == "gather_fault_assert").collect::<Vec<_>>()
    };
    let named = of([150, 2, 1]);
    assert_eq!(named.len(), 1, "{:?}", fault.evidence);
    assert_eq!(place(named[0]), outcome.line("# FAULT"));
    assert_eq!(of([150, 1, 1]).len(), 1);
    let mut ordinals: Vec<u64> = fault.culprits.iter().flat_map(|culprit| culprit.nth_kernel.clone()).collect();
    ordinals.sort_unstable();
    assert!(ordinals.windows(2).all(|pair| pair[0] < pair[1]), "each kernel has its own ordinal: {ordinals:?}");
    assert!(named[0].nth_kernel.len() == named[0].count as usize, "{named:?}");
    let counted: u32 = fault.culprits.iter().map(|c| c.count).sum();
    assert_eq!((fault.culprits.len(), counted), (203, 2003), "one for each size, and no kernel left out");
}

#[test]
fn a_report_that_cannot_be_written() {
    let outcome = session("two_lines.py").env("FAULTLAB_RECORDER_DIR", "/dev/null/nowhere").run();
    outcome.exited(1);
    let told = format!("{}:{}", outcome.program.display(), outcome.line("# FAULT"));
    assert!(outcome.stderr.contains(&told), "the block on standard error is there:\n{}", outcome.stderr);
    assert!(outcome.stderr.contains("cannot be written"), "{}", outcome.stderr);
}

// ---- Faults injected anywhere ----

/// Injects faults into a program that has none, one a run, evenly over its work; the report must name the line that the fake
/// and the program's own notes say. Gives how many faulted, and how many of these were located exactly.
fn inject(name: &str, program: impl Fn() -> Session, runs: u64) -> (u64, u64) {
    let healthy = program().with_oracle().run();
    assert!(healthy.faults().is_empty() && healthy.hangs().is_empty(), "{name}: nothing is reported");
    let oracle = std::fs::read_to_string(healthy.folder.path().join("oracle")).unwrap_or_default();
    let work = oracle.lines().count() as u64;
    let (mut faulted, mut exact) = (0, 0);
    for run in 0..runs {
        let at = 1 + (2 * run + 1) * work / (2 * runs);
        let outcome = program().with_oracle().env("FAKE_FAULT_AT", &at.to_string()).env("FAKE_FAULT_CODE", "700").run();
        let Some(ordinal) = outcome.truth() else {
            // The graph was captured and never replayed, or the program was shorter this time.
            assert!(outcome.faults().is_empty(), "{name}, run {run}: nothing faulted");
            continue;
        };
        faulted += 1;
        let (kind, line) = outcome.handed_over(ordinal);
        let fault = outcome.fault();
        // A graph that faults as a whole is named by its replay.
        let lines: Vec<u32> = fault
            .culprits
            .iter()
            .flat_map(|culprit| {
                let suspects = culprit.node.iter().flat_map(|node| node.suspects.iter().map(|frame| frame.line));
                [place(culprit), culprit.place().map_or(0, |frame| frame.line)].into_iter().chain(suspects)
            })
            .collect();
        let told = format!("{name}, run {run}: {kind} #{at}, line {line}");
        assert!(lines.contains(&line), "{told}; named {lines:?}: {:#?}", fault.evidence);
        if fault.confidence == Confidence::Exact {
            exact += 1;
            // Which node of a graph it was may still be open: then all of them are named.
            let first = &fault.culprits[0];
            let open = first.node.as_ref().is_some_and(|node| !node.suspects.is_empty());
            assert!(open || lines[..2].contains(&line), "{told}; called exact {lines:?}: {:#?}", fault.evidence);
        }
    }
    (faulted, exact)
}

#[test]
fn a_fault_injected_anywhere_is_found() {
    let (faulted, exact) = inject("healthy.py", || session("healthy.py"), 24);
    assert!(faulted > 12, "{faulted} of 24 faulted");
    eprintln!("{faulted} faults, all found, {exact} located exactly");
}

/// More: `FAULTLAB_SEEDS=1000-2000 cargo test -p faultlab-recorder --test recorder -- random`.
#[test]
fn a_fault_anywhere_in_a_random_program_is_found() {
    let range = std::env::var("FAULTLAB_SEEDS").unwrap_or_else(|_| "0-12".into());
    let (first, end) = range.split_once('-').expect("FAULTLAB_SEEDS is FIRST-END");
    let (first, end): (u64, u64) = (first.parse().expect("a number"), end.parse().expect("a number"));
    let (mut faulted, mut exact) = (0, 0);
    for seed in first..end {
        let seed = seed.to_string();
        let found = inject(&format!("random_program.py {seed}"), || session("random_program.py").args(&[&seed]), 3);
        (faulted, exact) = (faulted + found.0, exact + found.1);
    }
    eprintln!("{faulted} faults, all found, {exact} located exactly");
    assert!(faulted > end - first, "{faulted} faults in {} programs", end - first);
}

// ---- Interpreters ----

/// Every CPython of a version that the recorder reads, on `PATH` and of pyenv.
fn interpreters() -> BTreeMap<String, PathBuf> {
    let pyenv = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".pyenv/versions"));
    let versions = pyenv.and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten();
    let pyenv = versions.filter_map(|version| Some(version.ok()?.path().join("bin")));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found = BTreeMap::new();
    for folder in std::env::split_paths(&path).chain(pyenv) {
        for minor in 10..=14 {
            let name = format!("python3.{minor}");
            let file = folder.join(&name);
            // A shim of pyenv is there also for versions that are not.
            let runs = || Command::new(&file).arg("-c").output().is_ok_and(|o| o.status.code() == Some(2));
            if file.is_file() && !found.contains_key(&name) && runs() {
                found.insert(name, file);
            }
        }
    }
    found
}

#[test]
fn every_interpreter_there_is() {
    let interpreters = interpreters();
    if interpreters.is_empty() {
        eprintln!("skipped: no python3.10 to python3.14 on PATH");
    }
    for (name, file) in interpreters {
        for (program, code, call) in [
            ("two_lines.py", 710, "cuCtxSynchronize"),
            ("graph_fork.py", 700, "cuStreamSynchronize"),
            ("threads.py", 710, "cuStreamSynchronize"),
            ("deep.py", 710, "cuCtxSynchronize"),
        ] {
            let program = tests().join("programs").join(program);
            let mut command = Command::new(&file);
            command.arg(&program);
            let outcome = Session::new(command, program).run();
            eprintln!("{name}: {}", outcome.starts().first().map_or("?", |start| start.python.as_str()));
            exact(&outcome, code, call);
        }
    }
}

// ---- PyTorch's profiler ----

/// A program that has PyTorch's profiler; `shim`: with the recorder's Python side, which knows of it.
fn profiled(args: &[&str], shim: bool) -> Session {
    let session = session("torch_profiler.py").args(args);
    let recorder = tests().join("../shim");
    let fake = tests().join("fake");
    let path = shim.then_some(recorder).into_iter();
    let path = path.chain([fake.join("profiler/site-packages"), fake.join("site-packages")]);
    let path = std::env::join_paths(path).expect("no colon in the folder's name");
    session.env("PYTHONPATH", path.to_str().expect("the folder is text"))
}

/// The words of the one notice, whose code is `gave-way`.
fn gave_way(outcome: &Outcome) -> &str {
    assert_eq!(outcome.notices(), ["gave-way"], "{}", outcome.stderr);
    let mut notices = outcome.records().filter_map(|r| if let Record::Notice(n) = r { Some(&n.message) } else { None });
    notices.next().expect("there is one")
}

#[test]
fn the_profiler_gets_what_it_would_get_without_the_recorder() {
    for args in [&[][..], &["first"]] {
        let plain = profiled(args, true).without_recorder().run();
        assert_eq!(plain.stdout, "3\n1\n", "{}", plain.stderr);
        let outcome = profiled(args, true).run();
        outcome.exited(1);
        assert_eq!(outcome.stdout, plain.stdout, "{}", outcome.stderr);
        if PRELOADED {
            // Nothing has to give way.
            exact(&outcome, 710, "cuCtxSynchronize");
            assert!(outcome.notices().is_empty(), "{:?}", outcome.notices());
            continue;
        }
        assert!(outcome.faults().is_empty());
        let message = gave_way(&outcome);
        let started = format!("torch.profiler at {}:{}:", outcome.program.display(), outcome.line("# PROFILE"));
        for part in [started.as_str(), "record-env --preload"] {
            assert!(message.contains(part), "{part:?} in {message:?}");
        }
        assert!(outcome.stderr.contains(&format!("faultlab: {message}\n")), "{}", outcome.stderr);
        let (backend, launched, says) = match args {
            [] => ("cupti", 1, "launches are not recorded from here on"),
            _ => ("gave-way", 0, "no launch is recorded"),
        };
        assert_eq!((outcome.starts()[0].backend.as_str(), outcome.active().len()), (backend, launched));
        assert!(message.contains(says), "{message}");
    }
}

#[test]
fn a_profile_of_the_host_alone_costs_no_record() {
    let outcome = profiled(&["cpu"], true).run();
    assert_eq!((outcome.stdout.as_str(), outcome.notices()), ("0\n0\n", vec![]));
    exact(&outcome, 710, "cuCtxSynchronize");
}

/// Why the recorder gives way: the profiler is refused, and goes on without the device's events.
#[test]
fn without_the_python_side_the_profiler_is_refused() {
    if PRELOADED {
        return;
    }
    let outcome = profiled(&[], false).run();
    assert_eq!(outcome.stdout, "0\n0\n");
    assert!(outcome.stderr.contains("CUDA profiler activities will be missing"), "{}", outcome.stderr);
    exact(&outcome, 710, "cuCtxSynchronize");
}

/// A child by `fork` is another process: what its parent asked for does not bind it.
#[test]
fn a_child_does_not_give_way_because_its_parent_would_have() {
    if PRELOADED {
        return;
    }
    let outcome = session("give_way_fork.py").run();
    outcome.exited(1);
    exact(&outcome, 710, "cuCtxSynchronize");
    assert!(outcome.notices().is_empty(), "{:?}", outcome.notices());
}

// ---- A job of several processes ----

#[test]
fn a_report_says_when_and_in_a_job_of_several_which_process() {
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    let before = now();
    let outcome = session("two_lines.py").env("RANK", "3").run();
    assert_eq!(outcome.starts()[0].rank, Some(3));
    assert!((before..=now()).contains(&outcome.fault().time), "{}", outcome.fault().time);
    assert!(outcome.stderr.contains("faultlab: rank 3, process "), "{}", outcome.stderr);
    let alone = session("two_lines.py").run();
    assert_eq!(alone.starts()[0].rank, None);
    assert!(!alone.stderr.contains("faultlab: rank"), "{}", alone.stderr);
}

// ---- Launch blocking beside a core dump ----

/// While a real driver writes a core dump, a launch that faulted may return success in spite of launch blocking. The fake one
/// knows neither: its launches always return at once.
#[test]
fn under_launch_blocking_a_core_dump_leaves_two_launches_possible() {
    let blocking = || session("next_launch_fails.py").env("CUDA_LAUNCH_BLOCKING", "1");
    let lines = |outcome: &Outcome| -> Vec<u32> { outcome.fault().culprits.iter().map(place).collect() };
    let outcome = blocking().env("FAULTLAB_RECORDER_MARKERS", "off").run();
    assert_eq!(lines(&outcome), [outcome.line("# NEXT")], "what returned is done: {:?}", outcome.fault().evidence);
    let armed = blocking().env("FAULTLAB_RECORDER_MARKERS", "off").env("CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "1").run();
    assert_eq!(lines(&armed), ["# FAULT", "# NEXT"].map(|mark| armed.line(mark)), "{:?}", armed.fault().evidence);
    assert_eq!(armed.fault().confidence, Confidence::Candidates);
    // The dump may know better than the driver what was done.
    let done: Vec<u32> = armed.fault().done.iter().map(place).collect();
    assert_eq!(done, [armed.line("# BEFORE")]);
    assert!(outcome.fault().done.is_empty());
}
