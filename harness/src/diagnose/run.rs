//! The flow of `faultlab diagnose`: run, read, decide, run again, conclude.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use thiserror::Error;
use tokio::sync::watch;

use super::command;
use super::escalate::{self, Planned, StepId};
use super::knowledge::{Knowledge, Seen};
use super::model::{Confidence, Diagnosis, HostFacts, Origin, Outcome, Place, SCHEMA_VERSION, Step};
use super::observe::{self, Observed};
use super::source::{self, ReadSource};
use super::{advice, locate};
use crate::backend::user::{self, Ended, UserCommand, UserCommandError};
use crate::backend::{probe, supervise};
use crate::capture::{Capture, Exit, Meta, Provenance};
use crate::case::{CaseId, Device, Mode, Subject};
use crate::host::{Host, Stack};
use crate::recorder_env::{Entry, RecorderEnv, RecorderSettings, recorder_env, stacks_env};
use crate::tool::{self, Activity, RECORDED, Tool};
use faultlab_recorder::compiled::is_kernel_file;

/// Seconds that a run may still take once the recorder has reported a hang: other processes report theirs.
const AFTER_HANG: Duration = Duration::from_secs(2);
/// How often the reports are looked at while the command runs.
const TICK: Duration = Duration::from_millis(250);
/// No run is started that would have less time than this.
const LEAST_DEADLINE_S: f64 = 5.0;
/// Bytes that are read of one report file.
const REPORT_CAP: u64 = 8 << 20;

/// What is asked for.
pub struct Request {
    /// The command.
    pub argv: Vec<String>,
    /// The user's working directory.
    pub cwd: PathBuf,
    /// The user's environment.
    pub env: BTreeMap<String, String>,
    /// This program: it supervises.
    pub program: PathBuf,
    /// The recorder's library; `Err` says why there is none.
    pub recorder: Result<PathBuf, String>,
    /// The recorder's other library, for `LD_PRELOAD`; `Err` says why there is none.
    pub preload: Result<PathBuf, String>,
    /// The folder that goes before `PYTHONPATH`.
    pub shim: Option<PathBuf>,
    /// For everything after the first run.
    pub budget: Duration,
    /// The longest that any run may take; by default the first may take any time.
    pub timeout: Option<Duration>,
    /// When the recorder reports a hang.
    pub hang_s: f64,
    /// Stop after the first run.
    pub quick: bool,
    /// Look at the machine in any case, for a report that others read.
    pub facts: bool,
    /// Show what the command prints in every run, not in the first alone.
    pub echo_all: bool,
    /// Bytes of each stream to keep.
    pub output_cap: usize,
    /// A folder of ours for the runs' files.
    pub folder: PathBuf,
}

/// What is seen of a diagnosis while it goes on.
pub enum Event<'a> {
    /// A run begins.
    Starting {
        /// The first is 1.
        number: usize,
        /// Which.
        step: StepId,
        /// Why.
        why: &'a str,
    },
    /// A run, or one that was left out, is done.
    Done(&'a Step),
    /// Something beside.
    Notice(&'a str),
}

/// A run's capture, for the bundle.
pub struct Kept {
    /// The step's name.
    pub id: String,
    /// All of it.
    pub capture: Capture,
}

/// What came of it.
pub struct Diagnosed {
    /// The verdict.
    pub diagnosis: Diagnosis,
    /// Every run.
    pub captures: Vec<Kept>,
}

/// Why there is no diagnosis.
#[derive(Debug, Error)]
pub enum DiagnoseError {
    /// The command itself could not be started.
    #[error("{0}")]
    NotStarted(String),
    /// The machine or faultlab failed.
    #[error("{0}")]
    Infra(String),
    /// The user stopped it.
    #[error("stopped by the user")]
    Stopped,
}

impl From<UserCommandError> for DiagnoseError {
    fn from(error: UserCommandError) -> Self {
        match error {
            UserCommandError::NotStarted(why) => Self::NotStarted(why),
            UserCommandError::Infra(why) => Self::Infra(why),
        }
    }
}

/// Runs the command until its fault is located or nothing is left to try.
pub async fn diagnose(
    request: &Request,
    stop: watch::Receiver<bool>,
    mut observe: impl FnMut(Event<'_>),
) -> Result<Diagnosed, DiagnoseError> {
    let started = Timestamp::now();
    let clock = Instant::now();
    announce(request, &mut observe);
    let mut flow = Flow { request, stop, captures: Vec::new(), steps: Vec::new(), host: None };
    let first = Planned { step: StepId::Recorder, why: first_why(request), values_only: false };
    observe(Event::Starting { number: 1, step: first.step, why: &first.why });
    let tool = flow.tool(StepId::Recorder).await.map_err(DiagnoseError::Infra)?;
    let capture = flow.run(StepId::Recorder, tool, Entry::Injection, request.timeout).await?;
    let observed = Observed::of(&capture);
    let mut known = Knowledge::first(&observed);
    if let Err(why) = &request.recorder {
        known.notices.push(format!("no launch recorder: {why}"));
    }
    let mut interrupted = *flow.stop.borrow();
    if interrupted && let Outcome::Hang { why } = &mut known.outcome {
        *why = format!("it was stopped by hand after {:.0} s", observed.elapsed_s);
    }
    let shown = known.shown();
    let active = observed.recorder_was_on().then(|| recorder_words(&observed));
    flow.keep(&first, capture, shown.outcome, shown.named, active, &mut observe);

    if known.outcome != Outcome::Clean && !request.quick && !interrupted {
        let escalating = Instant::now();
        let mut done: Vec<StepId> = Vec::new();
        // After each run the plan is made again: what is known now decides.
        while let Some(planned) = escalate::plan(&known).into_iter().find(|p| !done.contains(&p.step)) {
            done.push(planned.step);
            if escalate::is_settled(&known, &planned) {
                continue;
            }
            let left_s = request.budget.saturating_sub(escalating.elapsed()).as_secs_f64();
            match flow.escalate(&planned, &mut known, left_s, &mut observe).await {
                // What is known already is worth telling.
                Err(DiagnoseError::Stopped) => {
                    interrupted = true;
                    known.notices.push(format!("it was stopped by hand in the run with {}", planned.step.id()));
                    break;
                }
                ran => ran?,
            }
        }
    }
    if request.facts && !interrupted {
        flow.look_at_the_machine().await;
    }
    let facts = facts(flow.host.as_ref(), &observed);
    let read = reader(&request.cwd);
    let mut diagnosis = conclude(known, request, started, &read);
    diagnosis.steps = flow.steps;
    diagnosis.host = facts;
    diagnosis.seconds = clock.elapsed().as_secs_f64();
    Ok(Diagnosed { diagnosis, captures: flow.captures })
}

/// What the user should know before the first run.
fn announce(request: &Request, observe: &mut impl FnMut(Event<'_>)) {
    if let Err(why) = &request.recorder {
        observe(Event::Notice(&format!("no launch recorder: {why}")));
    }
    let left_out = command::left_out(&request.env);
    if !left_out.is_empty() {
        observe(Event::Notice(&format!("left out of the command's environment: {}", left_out.join(", "))));
    }
}

fn first_why(request: &Request) -> String {
    match &request.recorder {
        Ok(_) => "as you run it, with the launch recorder".into(),
        Err(_) => "as you run it".into(),
    }
}

fn recorder_words(observed: &Observed) -> String {
    let on: Vec<String> = observed.recorded.iter().filter(|p| p.active.is_some()).map(|p| p.pid.to_string()).collect();
    format!("the recorder saw launches in process {}", on.join(", "))
}

struct Flow<'a> {
    request: &'a Request,
    stop: watch::Receiver<bool>,
    captures: Vec<Kept>,
    steps: Vec<Step>,
    /// Looked at when it is first needed: a probe makes a CUDA context, which a command that needs all of the memory
    /// would not survive beside it.
    host: Option<Host>,
}

impl Flow<'_> {
    /// One more run, or the reason why it is left out.
    async fn escalate(
        &mut self,
        planned: &Planned,
        known: &mut Knowledge,
        left_s: f64,
        observe: &mut impl FnMut(Event<'_>),
    ) -> Result<(), DiagnoseError> {
        let tool = match escalate::over_budget(planned, known.first_s, left_s) {
            Some(why) => Err(why),
            None => self.tool(planned.step).await,
        };
        let tool = match tool {
            Ok(tool) => tool,
            Err(why) => {
                let step = skipped(planned, why);
                observe(Event::Done(&step));
                self.steps.push(step);
                return Ok(());
            }
        };
        observe(Event::Starting { number: self.captures.len() + 1, step: planned.step, why: &planned.why });
        let deadline = planned
            .step
            .deadline_s(known.first_s, left_s)
            .max(LEAST_DEADLINE_S)
            .min(self.request.timeout.map_or(f64::MAX, |t| t.as_secs_f64()));
        let entry = planned.step.entry(known);
        let capture = match self.run(planned.step, tool, entry, Some(Duration::from_secs_f64(deadline))).await {
            Ok(run) => run,
            // The tool's own program, say: that ends the step and not the diagnosis.
            Err(DiagnoseError::NotStarted(why)) => {
                let step = skipped(planned, why);
                observe(Event::Done(&step));
                self.steps.push(step);
                return Ok(());
            }
            Err(e) => return Err(e),
        };
        let observed = Observed::of(&capture);
        let (findings, activity) = read_tool(planned.step, &capture, &observed);
        let find = |name: &str| find_file(&self.request.cwd, &self.request.argv, name);
        let seen = Seen { observed: &observed, findings: &findings, activity: &activity, find: &find };
        let mut shown = known.absorb(planned.step, &seen);
        if observed.exit == Exit::Deadline && shown.named.is_none() {
            shown.outcome = format!("nothing: it was killed after {deadline:.0} s");
        }
        let active = match activity {
            Activity::Proven(what) => Some(what),
            Activity::Unproven(_) => None,
        };
        self.keep(planned, capture, shown.outcome, shown.named, active, observe);
        Ok(())
    }

    /// The step's tool on this machine, or why it has none.
    async fn tool(&mut self, step: StepId) -> Result<&'static dyn Tool, String> {
        if step == StepId::Preload
            && let Err(why) = &self.request.preload
        {
            return Err(why.clone());
        }
        let mut obstacle = format!("there is no tool for {}", step.id());
        for tool in step.tools() {
            match self.obstacle(step, tool).await {
                None => return Ok(tool),
                Some(why) => obstacle = why,
            }
        }
        // That of the last one, which needs the least.
        Err(obstacle)
    }

    async fn obstacle(&mut self, step: StepId, tool: &dyn Tool) -> Option<String> {
        if tool.needs().is_empty() {
            return None;
        }
        let host = self.look_at_the_machine().await;
        if let Some(why) = tool.objection(step.mode(), Device::Cuda) {
            return Some(format!("it makes no sense: {why}"));
        }
        // A loss that is not finite needs no GPU to be found.
        let device = if host.gpus.is_ok() { Device::Cuda } else { Device::Cpu };
        tool.needs().iter().find_map(|need| need.check(host, device).err())
    }

    async fn look_at_the_machine(&mut self) -> &Host {
        let request = self.request;
        match &mut self.host {
            Some(host) => host,
            none => {
                let python = command::interpreter(&request.argv, |word| first_line(request, word));
                none.insert(probe::probe(&request.program, &python).await)
            }
        }
    }

    /// Runs the command once.
    async fn run(
        &self,
        step: StepId,
        tool: &'static dyn Tool,
        entry: Entry,
        timeout: Option<Duration>,
    ) -> Result<Capture, DiagnoseError> {
        let request = self.request;
        let folder = request.folder.join(format!("{:02}-{}", self.captures.len() + 1, step.id()));
        let (work, reports) = (folder.join("work"), folder.join("recorder"));
        for path in [&work, &reports] {
            std::fs::create_dir_all(path)
                .map_err(|e| DiagnoseError::Infra(format!("failed to make {}: {e}", path.display())))?;
        }
        let programs = self.host.iter().flat_map(|host| &host.programs);
        let programs = programs.filter_map(|p| Some((p.name.clone(), p.path.clone()?))).collect();
        let mut command = command::under(tool, &request.argv, step.mode(), &work, programs);
        if step == StepId::Faulthandler {
            // Not in the first run: its handler of SIGABRT would stand before the recorder's.
            command.env.insert("PYTHONFAULTHANDLER".into(), "1".into());
        }
        let library = if entry == Entry::Preload { &request.preload } else { &request.recorder };
        let recorder = match (step.markers(), library) {
            (Some(markers), Ok(library)) => recorder_env(&RecorderSettings {
                library,
                entry,
                shim: request.shim.as_deref(),
                reports: Some(&reports),
                markers,
                hang_s: Some(request.hang_s),
                stderr: false,
                nan: false,
                stacks: Some(supervise::ASK),
            }),
            (Some(_), Err(_)) => match &request.shim {
                Some(shim) => stacks_env(shim, &reports, supervise::ASK),
                None => RecorderEnv::default(),
            },
            (None, _) => RecorderEnv::default(),
        };
        let env = command::environment(&request.env, &command, &recorder);
        let recorded_key = |key: &String| {
            RECORDED.contains(&key.as_str())
                || command.env.contains_key(key)
                || command.prepend.contains_key(key)
                || recorder.set.contains_key(key)
                || recorder.prepend.contains_key(key)
        };
        let recorded_env: BTreeMap<String, String> =
            env.iter().filter(|(key, _)| recorded_key(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
        let (stop_run, stopped) = watch::channel(false);
        let user = UserCommand {
            supervisor: &request.program,
            command: &command,
            env: &env,
            cwd: &request.cwd,
            work: &work,
            deadline: timeout.unwrap_or(Duration::from_secs(1_000_000)),
            output_cap: request.output_cap,
            echo: step == StepId::Recorder || request.echo_all,
            watch_env: recorded_env.keys().cloned().collect::<BTreeSet<_>>(),
            stop: stopped,
        };
        let date = Timestamp::now();
        let mut user_stop = self.stop.clone();
        let watching = async {
            tokio::select! {
                () = hang_reported(&reports) => tokio::time::sleep(AFTER_HANG).await,
                _ = user_stop.wait_for(|stop| *stop) => {}
            }
            let _ = stop_run.send(true);
            std::future::pending::<()>().await;
        };
        let ended = tokio::select! {
            ended = user::run(&user) => ended?,
            () = watching => return Err(DiagnoseError::Stopped),
        };
        let mut ended = ended;
        ended.files.extend(read_reports(&reports));
        if ended.stopped && *self.stop.borrow() {
            // Who stops the command itself mostly saw it hang, and what it was doing is known.
            let answered = ended.files.keys().any(|name| observe::is_stacks_file(name).is_some());
            if step != StepId::Recorder || !answered {
                return Err(DiagnoseError::Stopped);
            }
        }
        if ended.stopped {
            ended.exit = Exit::Deadline;
        }
        let mut recorded_env = recorded_env;
        // Of the user's search paths nothing is kept: what faultlab put before them is what matters.
        for key in command.prepend.keys().chain(recorder.prepend.keys()) {
            let Some(users) = request.env.get(key).filter(|value| !value.is_empty()) else { continue };
            for env in [&mut recorded_env, &mut ended.env_seen] {
                if let Some(ours) = env.get(key).and_then(|value| value.strip_suffix(users.as_str())).map(String::from)
                {
                    env.insert(key.clone(), format!("{ours}<{key}>"));
                }
            }
        }
        Ok(self.capture((tool.id(), step.mode()), &command.argv, recorded_env, date, ended))
    }

    fn capture(
        &self,
        (tool, mode): (&str, Mode),
        argv: &[String],
        env: BTreeMap<String, String>,
        date: Timestamp,
        ended: Ended,
    ) -> Capture {
        let script = command::script(&self.request.argv).map(|script| self.request.cwd.join(script));
        let root = script.as_deref().and_then(Path::parent).unwrap_or(&self.request.cwd);
        let text = script.as_deref().and_then(|path| std::fs::read(path).ok()).unwrap_or_default();
        let device = match &self.host {
            Some(host) if host.gpus.is_err() => Device::Cpu,
            _ => Device::Cuda,
        };
        let ((stdout, stdout_info), (stderr, stderr_info)) = (ended.stdout, ended.stderr);
        Capture {
            meta: Meta {
                schema_version: crate::capture::SCHEMA_VERSION,
                case: CaseId { scenario: "diagnose".into(), subject: Subject::Program, tool: tool.into(), mode },
                device,
                argv: absolute(&self.request.cwd, argv),
                env,
                env_seen: ended.env_seen,
                exit: ended.exit,
                elapsed_s: ended.elapsed_s,
                peak_rss_bytes: ended.peak_rss_bytes,
                peak_gpu_bytes: None,
                stdout: stdout_info,
                stderr: stderr_info,
                left_behind: ended.left_behind,
                program_root: root.display().to_string(),
                program_sha256: crate::capture::sha256_hex(&text),
                provenance: Provenance {
                    faultlab: env!("CARGO_PKG_VERSION").into(),
                    date,
                    backend: "local".into(),
                    stack: self.host.as_ref().map_or_else(Stack::default, |host| host.stack(device)),
                },
            },
            stdout,
            stderr,
            files: ended.files,
        }
    }

    /// Notes a run, and what it showed.
    fn keep(
        &mut self,
        planned: &Planned,
        capture: Capture,
        outcome: String,
        named: Option<String>,
        active: Option<String>,
        observe: &mut impl FnMut(Event<'_>),
    ) {
        let step = Step {
            id: planned.step.id().into(),
            why: planned.why.clone(),
            outcome,
            skipped: false,
            seconds: capture.meta.elapsed_s,
            exit: Some(capture.meta.exit.clone()),
            active,
            named,
        };
        observe(Event::Done(&step));
        self.steps.push(step);
        self.captures.push(Kept { id: planned.step.id().into(), capture });
    }
}

fn skipped(planned: &Planned, why: String) -> Step {
    Step {
        id: planned.step.id().into(),
        why: planned.why.clone(),
        outcome: why,
        skipped: true,
        seconds: 0.0,
        exit: None,
        active: None,
        named: None,
    }
}

/// What the step's tool says, and whether it was on. The recorder speaks through its records.
pub fn read_tool(step: StepId, capture: &Capture, observed: &Observed) -> (Vec<crate::finding::Finding>, Activity) {
    if matches!(step, StepId::Preload | StepId::Every) {
        let activity = if observed.recorder_was_on() {
            Activity::Proven(recorder_words(observed))
        } else {
            Activity::Unproven("the recorder saw no launch".into())
        };
        return (Vec::new(), activity);
    }
    let Some(tool) = tool::find(&capture.meta.case.tool) else {
        return (Vec::new(), Activity::Unproven(format!("there is no tool {}", capture.meta.case.tool)));
    };
    let findings = tool.parse(capture);
    let activity = tool.activity(capture, &findings);
    (findings, activity)
}

/// What recorded runs show, in their order: the same reading as of runs that have just ended. `None` where the first is
/// not the first step, or a step is not known.
pub fn reread(runs: &[Kept]) -> Option<Knowledge> {
    let (first, others) = runs.split_first().filter(|(first, _)| first.id == StepId::Recorder.id())?;
    let mut known = Knowledge::first(&Observed::of(&first.capture));
    for Kept { id, capture } in others {
        let step = StepId::ALL.into_iter().find(|step| step.id() == id)?;
        let observed = Observed::of(capture);
        let (findings, activity) = read_tool(step, capture, &observed);
        // The files are elsewhere now: only the script's own name is certain.
        let script = command::script(&capture.meta.argv);
        let find = |name: &str| script.filter(|path| path.rsplit('/').next() == Some(name)).map(String::from);
        known.absorb(step, &Seen { observed: &observed, findings: &findings, activity: &activity, find: &find });
    }
    Some(known)
}

/// The verdict.
pub(super) fn conclude(known: Knowledge, request: &Request, started: Timestamp, read: &ReadSource<'_>) -> Diagnosis {
    let mut places = known.places.clone();
    for place in &mut places {
        place.file = request.cwd.join(&place.file).display().to_string();
        for related in &mut place.related {
            related.file = request.cwd.join(&related.file).display().to_string();
        }
    }
    locate::with_source(&mut places, read);
    let mut surfaced = known.surfaced.clone();
    if let Some(surfaced) = &mut surfaced
        && surfaced.text.is_none()
        && let (Some(file), Some(line)) = (&surfaced.file, surfaced.line)
    {
        surfaced.text = read(file).and_then(|text| source::line_of(&text, line));
    }
    let mut evidence = known.evidence.clone();
    evidence.extend(known.vanished_words());
    let looks_for_values = matches!(known.outcome, Outcome::DeviceFault { .. } | Outcome::NotFinite { .. });
    let origins = match places.first() {
        Some(place) if looks_for_values && known.confidence != Confidence::Unlocated => origins_of(place, read),
        _ => Vec::new(),
    };
    Diagnosis {
        schema_version: SCHEMA_VERSION,
        faultlab: env!("CARGO_PKG_VERSION").into(),
        command: request.argv.clone(),
        cwd: request.cwd.display().to_string(),
        started,
        seconds: 0.0,
        headline: known.headline(),
        next: advice::next(&known),
        outcome: known.outcome,
        confidence: known.confidence,
        places,
        kernel: known.kernel,
        surfaced,
        assertion: known.assertion,
        values: known.values,
        origins,
        around: known.around,
        evidence,
        steps: Vec::new(),
        notices: known.notices,
        host: HostFacts::default(),
    }
}

/// Where the names on the line got their values; for a graph those of the line that was captured. A name may be a
/// parameter: then the callers' lines say more.
fn origins_of(place: &Place, read: &ReadSource<'_>) -> Vec<Origin> {
    /// More are not read.
    const LISTED: usize = 12;
    let captured = place.related.iter().find(|related| related.role.contains("captured at"));
    let first = captured.map_or((&place.file, place.line), |related| (&related.file, related.line));
    let callers = place.related.iter().filter(|r| r.role == "called from").map(|r| (&r.file, r.line));
    let mut all: Vec<Origin> = Vec::new();
    for (file, line) in std::iter::once(first).chain(callers) {
        for origin in read(file).map(|text| source::origins(file, &text, line)).unwrap_or_default() {
            if !all.iter().any(|o| (&o.file, o.line) == (&origin.file, origin.line)) {
                all.push(origin);
            }
        }
    }
    all.truncate(LISTED);
    all
}

/// Ends when a process reports a hang of its device.
async fn hang_reported(reports: &Path) {
    loop {
        tokio::time::sleep(TICK).await;
        let hangs = observe::processes(&read_reports(reports)).into_iter().flat_map(|process| process.hangs);
        if hangs.into_iter().any(|hang| hang.why == "deadline" && !hang.running.is_empty()) {
            return;
        }
    }
}

/// All that the recorder and its Python side wrote there.
fn read_reports(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let stacks = observe::is_stacks_file(&name).is_some();
        if !observe::is_record_file(&name) && !stacks && !is_kernel_file(&name) {
            continue;
        }
        let text = read_capped(&entry.path(), REPORT_CAP).unwrap_or_default();
        // A process that was not asked, or is gone, says nothing.
        if !stacks || !text.is_empty() {
            files.insert(name, text);
        }
    }
    files
}

fn read_capped(path: &Path, cap: u64) -> Option<Vec<u8>> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(cap).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Reads source files, relative ones from the user's folder.
pub(super) fn reader(cwd: &Path) -> impl Fn(&str) -> Option<String> + Sync + use<> {
    const CAP: u64 = 4 << 20;
    let cwd = cwd.to_path_buf();
    move |file| {
        let path = cwd.join(file);
        // A pipe or a device would be waited for.
        path.metadata().ok().filter(std::fs::Metadata::is_file)?;
        Some(String::from_utf8_lossy(&read_capped(&path, CAP)?).into_owned())
    }
}

/// A file of the user's by its bare name: beside the script, or in the working directory.
fn find_file(cwd: &Path, argv: &[String], name: &str) -> Option<String> {
    let script = command::script(argv).map(|script| cwd.join(script));
    let beside = script.as_deref().and_then(Path::parent);
    [beside, Some(cwd)]
        .into_iter()
        .flatten()
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
        .map(|path| path.display().to_string())
}

/// The first line of a script that stands on the path or is named by a path.
fn first_line(request: &Request, word: &str) -> Option<String> {
    let path = if word.contains('/') {
        request.cwd.join(word)
    } else {
        let folders = request.env.get("PATH")?;
        std::env::split_paths(folders).map(|folder| folder.join(word)).find(|path| path.is_file())?
    };
    let bytes = read_capped(&path, 256)?;
    Some(String::from_utf8_lossy(bytes.split(|b| *b == b'\n').next()?).into_owned())
}

/// Words that are files of the user's as absolute paths: parsers know the user's files by them.
fn absolute(cwd: &Path, argv: &[String]) -> Vec<String> {
    let file = |word: &String| {
        let path = cwd.join(word);
        if Path::new(word).extension().is_some() && path.is_file() { path.display().to_string() } else { word.clone() }
    };
    argv.iter().map(file).collect()
}

fn facts(host: Option<&Host>, observed: &Observed) -> HostFacts {
    // `CPython 3.11.7, frames by table`
    let python = observed.recorded.iter().find_map(|p| p.start.as_ref()).and_then(|start| {
        let mut words = start.python.split([' ', ',']);
        words.find(|word| word.starts_with(|c: char| c.is_ascii_digit())).map(String::from)
    });
    let Some(host) = host else {
        let driver = observed.recorded.iter().find_map(|p| p.start.as_ref()).map(|s| s.driver_version);
        let cuda = driver.filter(|v| *v > 0).map(|v| format!("{}.{}", v / 1000, v % 1000 / 10));
        return HostFacts { cuda, python, ..HostFacts::default() };
    };
    HostFacts {
        os: Some(host.os.clone()),
        gpus: host.gpus.iter().flatten().map(|gpu| gpu.name.clone()).collect(),
        driver: host.driver.as_ref().ok().cloned(),
        cuda: host.cuda.as_ref().ok().cloned(),
        torch: host.torch.as_ref().ok().map(|t| t.version.clone()),
        python: python.or_else(|| host.python.as_ref().ok().map(|p| p.version.clone())),
    }
}
