//! What the recorder says: JSON lines into a file, and one block on standard error.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::autograd::{NO_SEQUENCE, NodeId, is_view};
use crate::capture::Captured;
use crate::compiled;
use crate::config::Config;
use crate::cuda::Context;
use crate::format::{
    Active, Confidence, Exit, Fault, Forward, Frame, Hang, Launch, NativeFrame, Node, Notice, Record, Start, Surfaced,
};
use crate::locate::{Progress, Scene, State, likeliest_first, locate};
use crate::ops::Kind;
use crate::recorder::Recorder;
use crate::ring::{self, Stack};
use crate::streams::{Known, Seen};
use crate::symbols::Symbol;

/// Launches that are shown before and behind the first culprit.
const AROUND: usize = 4;
/// Candidates that are described.
const MOST_CULPRITS: usize = 64;
/// The same where no markers narrow them down: some iterations of a training step have about so many of different kernel, size
/// and line.
const MOST_UNMARKED: usize = 1024;
/// Of these, how many the block on standard error shows.
const MOST_SHOWN: usize = 6;
/// Launches that are said to be done, beside a core dump.
const MOST_DONE: usize = 256;
/// Launches of one culprit whose ordinal is told.
const MOST_ORDINALS: usize = 256;
/// How far the chain of backward nodes of backward nodes is followed.
const MOST_HOPS: usize = 4;

/// Where reports go.
pub(crate) struct Reporter {
    path: Option<PathBuf>,
    stderr: bool,
    file: Mutex<Option<File>>,
    active: AtomicBool,
    faulted: AtomicBool,
    /// Held while the first report of a fault copies what it tells of.
    taking: Mutex<()>,
}

impl Reporter {
    pub(crate) fn new(config: &Config) -> Self {
        // Made at the first line: a process that never uses CUDA leaves no file.
        let path = config.folder.as_ref().map(|folder| folder.join(format!("recorder.{}.jsonl", std::process::id())));
        Self {
            path,
            stderr: config.stderr,
            file: Mutex::new(None),
            active: AtomicBool::new(false),
            faulted: AtomicBool::new(false),
            taking: Mutex::new(()),
        }
    }

    /// For [`Reporter::fault`]. Until this is let go, a call that met the same error later leaves its launch where it is: that
    /// call may be what faulted.
    pub(crate) fn taking(&self) -> MutexGuard<'_, ()> {
        self.taking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a line. A report that cannot be written is no reason to disturb the program.
    pub(crate) fn record(&self, record: &Record) {
        let Some(path) = &self.path else { return };
        let Ok(mut line) = serde_json::to_string(record) else { return };
        line.push('\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if file.is_none() {
            *file = OpenOptions::new().create(true).append(true).open(path).ok();
            if file.is_none() {
                self.say(&format!("the report cannot be written to {}", path.display()));
            }
        }
        if let Some(file) = file.as_mut() {
            let _ = file.write_all(line.as_bytes());
        }
    }

    /// Lines for the user, each with the name of who says it.
    pub(crate) fn say(&self, text: &str) {
        if !self.stderr {
            return;
        }
        let mut block = String::new();
        for line in text.lines() {
            let _ = writeln!(block, "faultlab: {line}");
        }
        // In one write, so that what other threads print does not come between.
        let _ = std::io::stderr().write_all(block.as_bytes());
    }

    /// A word that belongs into both.
    pub(crate) fn notice(&self, code: &str, message: &str) {
        self.record(&Record::Notice(Notice { code: code.to_string(), message: message.to_string() }));
        self.say(message);
    }

    /// The recorder has a bug; the program goes on without it.
    pub(crate) fn panicked(&self) {
        self.notice("panicked", "the recorder failed and is off; please report this");
    }

    pub(crate) fn start(&self, start: Start) {
        self.record(&Record::Start(start));
    }

    /// After the first launch: proof that the recorder is on.
    pub(crate) fn first_launch(&self, recorder: &Recorder, device: i32) {
        if self.active.load(Ordering::Relaxed) || self.active.swap(true, Ordering::Relaxed) {
            return;
        }
        let markers = recorder.without_markers().unwrap_or_else(|| "on".to_string());
        self.record(&Record::Active(Active { device, markers }));
        crate::watch::start(recorder);
    }

    /// A context is dead: says, once for each, which launch did it.
    pub(crate) fn fault(
        &self,
        recorder: &Recorder,
        code: i32,
        call: &str,
        context: Context,
        failing: Option<ring::Launch>,
        taking: MutexGuard<'_, ()>,
    ) {
        let time = now();
        let known = {
            let mut inner = recorder.streams.lock();
            // An error in a context in which nothing was launched is another's, seen from here.
            let known = inner.contexts.iter().any(|seen| seen.context == context);
            if inner.contexts.iter().any(|seen| seen.faulted && (seen.context == context || !known)) {
                return;
            }
            inner.contexts.iter_mut().filter(|seen| seen.context == context).for_each(|seen| seen.faulted = true);
            if !known {
                inner.contexts.push(Seen { context, probe: None, faulted: true });
            }
            known
        };
        self.faulted.store(true, Ordering::Relaxed);
        let taken = Taken::take(recorder, Some(context).filter(|_| known));
        drop(taking);
        let view = View::new(&taken);
        let lines = RefCell::new(HashMap::new());
        let line = |launch: &ring::Launch| view.line(recorder, launch, &lines);
        let located = locate(code, &view.scene, failing, taken.forgotten, line);
        let mut frames = match recorder.stack(true) {
            Stack::Python(frames) => python_frames(recorder, &frames),
            Stack::Native(_) => Vec::new(),
        };
        if frames.is_empty() {
            frames = main_thread(recorder);
        }
        let mut evidence = located.evidence;
        if let Some(why) = recorder.without_markers() {
            evidence.push(format!("no completion markers were set: {why}"));
        }
        let culprits = view.culprits(recorder, &located.candidates, &mut evidence);
        let first = located.candidates.first().map_or(u64::MAX, |l| l.seq);
        let fault = Fault {
            time,
            code,
            name: recorder.driver.error_name(code),
            surfaced: Surfaced { call: call.to_string(), frames },
            confidence: located.confidence,
            around: view.around(recorder, first),
            done: if recorder.config.dump_armed { view.done(recorder, &located.candidates) } else { Vec::new() },
            culprits,
            evidence,
        };
        self.record(&Record::Fault(fault.clone()));
        self.say(&(of_rank(recorder) + &fault_block(&fault)));
    }

    /// Says what is running.
    pub(crate) fn hang(&self, recorder: &Recorder, why: &str, seconds: f64) {
        let taken = Taken::take(recorder, None);
        let view = View::new(&taken);
        let guessed = recorder.without_markers().is_some();
        let mut running = view.scene.running();
        if guessed {
            likeliest_first(&mut running);
        } else {
            // One a stream: the rest waits behind it.
            let mut streams = HashSet::new();
            running.retain(|launch| streams.insert(launch.stream));
        }
        let running: Vec<ring::Launch> = running.into_iter().copied().collect();
        let running = view.culprits(recorder, &running, &mut Vec::new());
        let hang = Hang { time: now(), why: why.to_string(), seconds, running, guessed, host: main_thread(recorder) };
        self.record(&Record::Hang(hang.clone()));
        self.say(&(of_rank(recorder) + &hang_block(&hang)));
    }

    pub(crate) fn exit(&self, recorder: &Recorder) {
        let launches = recorder.ring.last();
        let streams = recorder.streams.lock().seen;
        let written = usize::try_from(launches).unwrap_or(usize::MAX).saturating_mul(size_of::<ring::Launch>());
        let ring = recorder.ring.bytes().min(written);
        let python = recorder.python().map_or(0, crate::python::Python::bytes);
        self.record(&Record::Exit(Exit {
            launches,
            markers: recorder.markers_set(),
            evicted: launches.saturating_sub(recorder.ring.capacity()),
            streams,
            bytes: ring as u64 + recorder.words.bytes() + python as u64,
            faulted: self.faulted.load(Ordering::Relaxed),
        }));
    }
}

/// The launches and the progress of the streams, copied at one moment.
struct Taken {
    launches: Vec<ring::Launch>,
    progress: Vec<Progress>,
    devices: HashMap<u32, i32>,
    forgotten: bool,
}

impl Taken {
    fn take(recorder: &Recorder, context: Option<Context>) -> Self {
        let is_ours = |s: &Known| context.is_none_or(|c| s.context == c);
        let (progress, devices): (Vec<Progress>, HashMap<u32, i32>) = {
            let inner = recorder.streams.lock();
            let of_context = inner.streams.iter().filter(|s| is_ours(s));
            let read = |stream: &Known| Progress {
                stream: stream.id,
                completed: inner.completed(stream.id),
                threads: inner.threads(stream.id),
                marked: inner.marked(stream.id),
                waits: inner.waits_of(stream.id),
                context: stream.context,
                order: stream.order,
            };
            let known = inner.past.iter().chain(&inner.streams).filter(|s| is_ours(s));
            (of_context.map(|s| read(s)).collect(), known.map(|s| (s.id, s.device)).collect())
        };
        let ours = |launch: &ring::Launch| devices.contains_key(&launch.stream);
        let launches = recorder.ring.iter().filter(ours).collect();
        Self { launches, progress, devices, forgotten: recorder.ring.last() > recorder.ring.capacity() }
    }
}

/// Lines of launches that were looked up.
type Lines = RefCell<HashMap<LineKey, Option<(String, u32)>>>;
/// What the line follows from: the frames, the kernel, the backward node.
type LineKey = (Vec<(u32, i32)>, Symbol, u64, usize);

/// What the line of a launch follows from; `None` where only native frames tell it.
fn line_key(launch: &ring::Launch) -> Option<LineKey> {
    let Stack::Python(frames) = &launch.stack else { return None };
    let frames = frames.frames[..usize::from(frames.len)].iter().map(|f| (f.code, f.lasti)).collect();
    Some((frames, launch.symbol, launch.autograd.node.map_or(0, |node| node.sequence), launch.graph))
}

/// So many are looked up.
const MOST_LINES: usize = 256;

/// By PyTorch's number of the thread and the autograd sequence number that was next: the first and the last launch.
struct Forwards<'a>(BTreeMap<(u64, u64), (&'a ring::Launch, &'a ring::Launch)>);

impl<'a> Forwards<'a> {
    /// `launches` in their order.
    fn new(launches: &'a [ring::Launch]) -> Self {
        let mut all = BTreeMap::new();
        for launch in launches.iter().filter(|launch| launch.autograd.next > 0) {
            let key = (launch.autograd.thread, launch.autograd.next);
            all.entry(key).and_modify(|(_, last)| *last = launch).or_insert((launch, launch));
        }
        Self(all)
    }

    /// The operator's first launch: what follows it without a node of its own has the same number.
    fn of(&self, thread: u64, sequence: u64) -> Option<&'a ring::Launch> {
        self.0.get(&(thread, sequence + 1)).map(|(first, _)| *first)
    }

    /// The last launch before the operator of a node that launched nothing, or is no longer remembered.
    fn before(&self, thread: u64, sequence: u64) -> Option<&'a ring::Launch> {
        self.0.range((thread, 0)..=(thread, sequence)).next_back().map(|(_, (_, last))| *last)
    }
}

/// Whether two launches are of one kernel and line. A backward launch without Python of its own has the line of its node's
/// forward side: the frames alone would make all launches of a kernel in a backward pass one.
fn is_same(a: &Launch, b: &Launch, by_size: bool) -> bool {
    let size = (a.grid, a.block) == (b.grid, b.block);
    (size || !by_size) && a.symbol == b.symbol && a.frames == b.frames && a.place() == b.place()
}

/// One more launch that a culprit stands for.
fn count(culprit: &mut Launch, launch: &ring::Launch) {
    culprit.count += 1;
    if launch.nth_kernel > 0 && culprit.nth_kernel.len() < MOST_ORDINALS {
        culprit.nth_kernel.push(launch.nth_kernel);
    }
}

/// What was taken, put in order.
struct View<'a> {
    taken: &'a Taken,
    scene: Scene<'a>,
    forwards: Forwards<'a>,
}

impl<'a> View<'a> {
    fn new(taken: &'a Taken) -> Self {
        Self { taken, scene: Scene::new(&taken.launches, &taken.progress), forwards: Forwards::new(&taken.launches) }
    }

    /// The candidates, one for each kernel and line: a loop may have made hundreds. Without markers they are all launches
    /// that nobody waited for, and whoever joins them with a core dump needs the kernel's size too.
    fn culprits(&self, recorder: &Recorder, candidates: &[ring::Launch], evidence: &mut Vec<String>) -> Vec<Launch> {
        let unmarked = recorder.without_markers().is_some();
        let most = if unmarked { MOST_UNMARKED } else { MOST_CULPRITS };
        let mut culprits: Vec<Launch> = Vec::new();
        // Which of them a launch of the same code is, so that each is described once; none, where there are too many.
        let mut known: HashMap<_, Option<usize>> = HashMap::new();
        for candidate in candidates {
            let size = unmarked.then_some((candidate.grid, candidate.block));
            let key = line_key(candidate).map(|key| (key, size));
            if let Some(at) = key.as_ref().and_then(|key| known.get(key)) {
                if let Some(at) = at {
                    count(&mut culprits[*at], candidate);
                }
                continue;
            }
            let mut described = self.describe(recorder, candidate, true);
            let mut said = Vec::new();
            self.join(recorder, candidate, &mut described, &mut said);
            let mut at = culprits.iter().position(|other| is_same(other, &described, unmarked));
            match at {
                Some(at) => count(&mut culprits[at], candidate),
                None if culprits.len() < most => {
                    evidence.append(&mut said);
                    at = Some(culprits.len());
                    culprits.push(described);
                }
                None => {}
            }
            if let Some(key) = key {
                known.insert(key, at);
            }
        }
        culprits
    }

    /// What is not among the candidates.
    fn done(&self, recorder: &Recorder, candidates: &[ring::Launch]) -> Vec<Launch> {
        let known: HashSet<u64> = candidates.iter().map(|launch| launch.seq).collect();
        let done = self.taken.launches.iter().rev().filter(|launch| launch.kind == Kind::Kernel);
        let done: Vec<ring::Launch> = done.filter(|launch| !known.contains(&launch.seq)).copied().collect();
        let mut done = self.culprits(recorder, &done, &mut Vec::new());
        done.truncate(MOST_DONE);
        for launch in &mut done {
            // What tells it from others and where it is; the rest would be most of the report.
            let place = launch.place().cloned();
            launch.frames.retain(|frame| Some(frame) == place.as_ref());
            launch.frames.truncate(1);
            launch.symbol.clear();
            launch.native.truncate(1);
        }
        done
    }

    fn around(&self, recorder: &Recorder, seq: u64) -> Vec<Launch> {
        let at = self.taken.launches.partition_point(|launch| launch.seq < seq);
        let from = at.saturating_sub(AROUND);
        let around = self.taken.launches.iter().skip(from).take(2 * AROUND + 1);
        let brief = |launch| {
            let mut described = self.describe(recorder, launch, false);
            let own = described.frames.iter().position(|frame| frame.user);
            described.frames = own.map(|at| described.frames.swap_remove(at)).into_iter().collect();
            described
        };
        around.map(brief).collect()
    }

    fn describe(&self, recorder: &Recorder, launch: &ring::Launch, native: bool) -> Launch {
        let symbol = recorder.symbols.name(launch.symbol);
        let kernel = match launch.kind {
            Kind::Kernel => demangle(&symbol),
            Kind::Graph | Kind::Memcpy | Kind::Memset => launch.call.to_string(),
        };
        let (frames, addresses) = match &launch.stack {
            Stack::Python(frames) => (python_frames(recorder, frames), None),
            Stack::Native(addresses) => (Vec::new(), Some(addresses)),
        };
        Launch {
            seq: launch.seq,
            kind: launch.kind.name().to_string(),
            kernel,
            symbol,
            grid: launch.grid,
            block: launch.block,
            device: self.taken.devices.get(&launch.stream).copied().unwrap_or(-1),
            stream: launch.stream,
            thread: launch.thread,
            state: self.scene.state(launch).name().to_string(),
            frames,
            native: addresses.filter(|_| native).map(native_frames).unwrap_or_default(),
            count: 1,
            nth_kernel: Some(launch.nth_kernel).filter(|nth| *nth > 0).into_iter().collect(),
            forward: None,
            node: None,
            source: Vec::new(),
        }
    }

    /// Adds what other records know of a launch: its forward side, the node inside a graph.
    fn join(&self, recorder: &Recorder, launch: &ring::Launch, described: &mut Launch, evidence: &mut Vec<String>) {
        if let Some(node) = launch.autograd.node {
            match self.forward(recorder, node) {
                Some((forward, near)) => {
                    if near {
                        evidence.push(format!(
                            "{} launches nothing in the forward pass: the line given is that of a launch close to it",
                            forward.node
                        ));
                    }
                    described.forward = Some(Box::new(forward));
                }
                None if node.sequence == NO_SEQUENCE => evidence.push(format!(
                    "launch #{} accumulates a parameter's gradient, which has no forward line",
                    launch.seq
                )),
                None if recorder.autograd.is_broken() => {
                    evidence.push("the layout of autograd's nodes is not the known one: no forward line".to_string());
                }
                None => evidence.push(format!(
                    "launch #{} belongs to {}, whose forward launch is no longer remembered",
                    launch.seq,
                    node.name()
                )),
            }
        }
        if launch.kind == Kind::Graph {
            self.join_graph(recorder, launch, described, evidence);
        }
        if let Some(folder) = &recorder.config.folder {
            described.source = compiled::own_sources(folder, &described.symbol, &described.frames);
        }
    }

    fn join_graph(
        &self,
        recorder: &Recorder,
        launch: &ring::Launch,
        described: &mut Launch,
        evidence: &mut Vec<String>,
    ) {
        let (suspects, of): (Vec<(u32, Captured)>, usize) = {
            let mut captures = recorder.captures.lock();
            let Some(capture) = captures.of_exec(launch.graph) else {
                evidence.push("the graph was not captured under the recorder: its nodes are not known".to_string());
                return;
            };
            let suspects = capture.suspects().into_iter();
            let nodes = suspects.filter_map(|place| Some((place, *capture.launches.get(place as usize - 1)?)));
            (nodes.collect(), capture.launches.len())
        };
        let risky: Vec<_> =
            suspects.iter().filter(|(_, c)| c.launch.kind == Kind::Kernel && c.launch.symbol.risky).collect();
        let best = risky.first().copied().or(suspects.first());
        let Some((place, captured)) = best else {
            evidence.push("every marker inside the graph was written".to_string());
            return;
        };
        if suspects.len() > 1 {
            evidence.push(format!(
                "inside the graph {} nodes can have faulted; the likeliest is node {place} of {of}",
                suspects.len()
            ));
        }
        let mut node = self.describe(recorder, &captured.launch, true);
        node.state = State::Running.name().to_string();
        node.stream = described.stream;
        node.seq = 0;
        self.join(recorder, &captured.launch, &mut node, evidence);
        let mut lines: Vec<Frame> = Vec::new();
        let mut others: Vec<Launch> = Vec::new();
        let wanted = if recorder.without_markers().is_some() { MOST_UNMARKED } else { 0 };
        for (_, other) in suspects.iter().filter(|(other, _)| other != place) {
            let mut other = self.describe(recorder, &other.launch, false);
            lines.extend(other.place().filter(|frame| !lines.contains(*frame)).cloned());
            (other.stream, other.seq) = (described.stream, 0);
            let same = |known: &Launch| {
                (&known.symbol, known.grid, known.block) == (&other.symbol, other.grid, other.block)
                    && known.place() == other.place()
            };
            if others.len() < wanted && !others.iter().any(same) {
                others.push(other);
            }
        }
        lines.truncate(MOST_CULPRITS);
        let of = u32::try_from(of).unwrap_or(u32::MAX);
        described.node = Some(Box::new(Node { index: *place, of, captured: node, suspects: lines, others }));
    }

    /// The forward launch of a backward node, and whether it is only near it.
    fn forward(&self, recorder: &Recorder, node: NodeId) -> Option<(Forward, bool)> {
        let mut current = node;
        let mut near = is_view(&node.name());
        for _ in 0..MOST_HOPS {
            if current.sequence == NO_SEQUENCE {
                return None;
            }
            let launch = self.forwards.of(current.thread, current.sequence).or_else(|| {
                near = true;
                self.forwards.before(current.thread, current.sequence)
            })?;
            let frames = match &launch.stack {
                Stack::Python(frames) => python_frames(recorder, frames),
                Stack::Native(_) => Vec::new(),
            };
            if frames.iter().any(|frame| frame.user) && !crate::format::is_engine(&frames) {
                let kernel = match launch.kind {
                    Kind::Kernel => demangle(&recorder.symbols.name(launch.symbol)),
                    _ => launch.call.to_string(),
                };
                return Some((Forward { node: node.name(), sequence: node.sequence, frames, kernel }, near));
            }
            // The backward of a backward: its forward side is itself a backward launch.
            current = launch.autograd.node?;
        }
        None
    }

    /// The line that a launch stands for, to tell whether several candidates are of one.
    fn line(&self, recorder: &Recorder, launch: &ring::Launch, lines: &Lines) -> Option<(String, u32)> {
        let key = line_key(launch)?;
        if let Some(known) = lines.borrow().get(&key) {
            return known.clone();
        }
        if lines.borrow().len() >= MOST_LINES {
            return None;
        }
        let mut described = self.describe(recorder, launch, false);
        self.join(recorder, launch, &mut described, &mut Vec::new());
        let line = described.place().map(|frame| (frame.file.clone(), frame.line));
        lines.borrow_mut().insert(key, line.clone());
        line
    }
}

/// Where the interpreter's main thread is.
fn main_thread(recorder: &Recorder) -> Vec<Frame> {
    let mut frames = crate::python::Frames::default();
    if let Some(python) = recorder.python() {
        python.walk_main_thread(&mut frames);
    }
    python_frames(recorder, &frames)
}

fn python_frames(recorder: &Recorder, frames: &crate::python::Frames) -> Vec<Frame> {
    let Some(python) = recorder.python() else { return Vec::new() };
    frames.frames.iter().take(frames.len.into()).map(|frame| python.resolve(*frame)).collect()
}

/// Symbols and lines of return addresses.
fn native_frames(addresses: &ring::Addresses) -> Vec<NativeFrame> {
    let mut frames = Vec::new();
    for address in addresses.iter().take_while(|address| **address != 0) {
        // A return address is behind the call; the line wanted is that of the call.
        backtrace::resolve((address - 1) as *mut std::ffi::c_void, |symbol| {
            frames.push(NativeFrame {
                function: symbol.name().map_or_else(|| format!("{address:#x}"), |name| name.to_string()),
                file: symbol.filename().map(|file| file.display().to_string()),
                line: symbol.lineno(),
            });
        });
    }
    frames
}

/// A name for people: demangled, without the argument list.
pub(crate) fn demangle(symbol: &str) -> String {
    let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
    let parsed = cpp_demangle::Symbol::new(symbol).ok();
    parsed.and_then(|name| name.demangle_with_options(&options).ok()).unwrap_or_else(|| symbol.to_string())
}

/// The name of a kernel without its template arguments and namespaces.
fn short(kernel: &str) -> &str {
    let end = kernel.find('<').unwrap_or(kernel.len());
    let name = &kernel[..end];
    name.rsplit("::").next().filter(|n| !n.is_empty()).unwrap_or(kernel)
}

/// Of a job of several processes: which one speaks.
fn of_rank(recorder: &Recorder) -> String {
    recorder.config.rank.map_or_else(String::new, |rank| format!("rank {rank}, process {}\n", std::process::id()))
}

/// Seconds since the Unix epoch.
fn now() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

fn fault_block(fault: &Fault) -> String {
    let mut text = String::new();
    let place = |frame: Option<&Frame>| frame.map(|f| format!("{}:{} in {}", f.file, f.line, f.function));
    let _ = writeln!(text, "{} ({}): a launch died on the device", fault.name, fault.code);
    match fault.confidence {
        Confidence::Exact => {}
        Confidence::Candidates => {
            let launches: u32 = fault.culprits.iter().map(|culprit| culprit.count).sum();
            let _ = writeln!(text, "{launches} launches can have done it; the likeliest first");
        }
        Confidence::Unlocated => {
            let _ = writeln!(text, "which one is not known");
        }
    }
    let mut shown: Vec<&Frame> = Vec::new();
    for culprit in &fault.culprits {
        if shown.len() >= MOST_SHOWN {
            let _ = writeln!(text, "… the rest is in the report file");
            break;
        }
        let place = culprit.place();
        if place.is_none_or(|place| !shown.contains(&place)) {
            describe_culprit(&mut text, culprit, "culprit");
            shown.extend(place);
        }
    }
    let surfaced = fault.surfaced.frames.iter().find(|f| f.user);
    let blamed = fault.culprits.first().and_then(Launch::place);
    let innocent = match (surfaced, blamed) {
        (Some(s), Some(b)) if (&s.file, s.line) != (&b.file, b.line) => ", which is innocent",
        _ => "",
    };
    let at = place(surfaced).map_or_else(String::new, |at| format!(" at {at}"));
    let _ = writeln!(text, "surfaced  {}{at}{innocent}", fault.surfaced.call);
    for sentence in &fault.evidence {
        let _ = writeln!(text, "evidence  {sentence}");
    }
    for launch in &fault.around {
        let at = place(launch.place()).unwrap_or_default();
        let _ = writeln!(
            text,
            "  #{:<7} {:<9} stream {} {}  {at}",
            launch.seq,
            launch.state,
            launch.stream,
            short(&launch.kernel)
        );
    }
    text
}

fn describe_culprit(text: &mut String, launch: &Launch, title: &str) {
    match launch.place() {
        Some(frame) => {
            let _ = writeln!(text, "{title:<9} {}:{} in {}", frame.file, frame.line, frame.function);
            if let Some(line) = source_line(frame) {
                let _ = writeln!(text, "          {line}");
            }
        }
        None => match launch.native.iter().find(|frame| frame.line.is_some()).or(launch.native.first()) {
            Some(frame) => {
                let at = frame.file.as_deref().map(|file| format!(" at {file}:{}", frame.line.unwrap_or(0)));
                let _ = writeln!(text, "{title:<9} {}{}", frame.function, at.unwrap_or_default());
            }
            None => {
                let _ = writeln!(text, "{title:<9} a thread without Python frames");
            }
        },
    }
    let [x, y, z] = launch.grid;
    let [width, height, depth] = launch.block;
    let shape = if x == 0 { String::new() } else { format!("  grid ({x},{y},{z}) block ({width},{height},{depth})") };
    let _ =
        writeln!(text, "kernel    {}{shape}  stream {}, launch #{}", short(&launch.kernel), launch.stream, launch.seq);
    if let Some(forward) = &launch.forward {
        let at = forward.frames.iter().find(|f| f.user);
        let at = at.map_or_else(String::new, |f| format!(" of {}:{} in {}", f.file, f.line, f.function));
        let _ = writeln!(text, "backward  {}{at}", forward.node);
    }
    for frame in launch.source.iter().skip(1).take(7) {
        let _ = writeln!(text, "fused of  {}:{} in {}", frame.file, frame.line, frame.function);
    }
    if let Some(node) = &launch.node {
        let at = node
            .captured
            .place()
            .map_or_else(String::new, |f| format!(", captured at {}:{} in {}", f.file, f.line, f.function));
        let _ = writeln!(text, "node      {} of {}: {}{at}", node.index, node.of, short(&node.captured.kernel));
    }
    for frame in launch.frames.iter().filter(|f| f.user && Some(*f) != launch.place()).take(5) {
        let _ = writeln!(text, "called by {}:{} in {}", frame.file, frame.line, frame.function);
    }
}

fn hang_block(hang: &Hang) -> String {
    let mut text = String::new();
    let _ = match hang.why.as_str() {
        "signal" => writeln!(text, "asked by a signal what is running; nothing finished for {:.1} s", hang.seconds),
        _ => writeln!(text, "nothing finished on the device for {:.1} s", hang.seconds),
    };
    if hang.running.is_empty() {
        let _ = writeln!(text, "no launch is running: the host is elsewhere");
    }
    if hang.guessed && hang.running.len() > 1 {
        let _ = writeln!(text, "without markers each of {} can be what runs; the likeliest first", hang.running.len());
    }
    for launch in hang.running.iter().take(MOST_SHOWN) {
        describe_culprit(&mut text, launch, if hang.guessed { "candidate" } else { "running" });
    }
    if hang.running.len() > MOST_SHOWN {
        let _ = writeln!(text, "… the rest is in the report file");
    }
    if let Some(frame) = hang.host.iter().find(|f| f.user) {
        let _ = writeln!(text, "host at   {}:{} in {}", frame.file, frame.line, frame.function);
    }
    text
}

/// The line itself, if the file can be read.
fn source_line(frame: &Frame) -> Option<String> {
    let text = std::fs::read_to_string(&frame.file).ok()?;
    let line = text.lines().nth(frame.line.checked_sub(1)? as usize)?.trim();
    (!line.is_empty()).then(|| line.chars().take(160).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::autograd::Current;

    /// A launch of a thread by PyTorch's number, made when `next` was the next sequence number.
    fn made(seq: u64, thread: u64, next: u64) -> ring::Launch {
        ring::Launch { autograd: Current { next, thread, node: None }, ..ring::Launch::of_test(seq) }
    }

    #[test]
    fn the_forward_launch_of_a_node() {
        // Node 10 launches twice, 11 (a view) not at all, 12 once; thread 2 is at the same numbers; without PyTorch: 0.
        let launches = [made(1, 1, 10), made(2, 1, 11), made(3, 1, 11), made(4, 2, 12), made(5, 1, 13), made(6, 1, 0)];
        let forwards = Forwards::new(&launches);
        let of = |sequence| forwards.of(1, sequence).map(|launch| launch.seq);
        assert_eq!([9, 10, 11, 12, 13].map(of), [Some(1), Some(2), None, Some(5), None]);
        let before = |sequence| forwards.before(1, sequence).map(|launch| launch.seq);
        assert_eq!([9, 10, 11, 12, 99].map(before), [None, Some(1), Some(3), Some(3), Some(5)]);
        assert_eq!(forwards.of(2, 11).map(|launch| launch.seq), Some(4));
        assert!(forwards.of(3, 11).is_none() && forwards.before(3, 99).is_none());
    }

    #[test]
    fn one_kernel_in_the_backward_of_two_lines_is_two_culprits() {
        let frame = |line| Frame { file: "/j/net.py".into(), line, function: "forward".into(), user: true };
        let backward = |line| Launch {
            seq: 7,
            kind: "kernel".into(),
            kernel: "gather_backward".into(),
            symbol: "gather_backward".into(),
            grid: [4, 1, 1],
            block: [32, 1, 1],
            device: 0,
            stream: 0,
            thread: 9,
            state: "running".into(),
            frames: Vec::new(),
            native: Vec::new(),
            count: 1,
            nth_kernel: Vec::new(),
            forward: Some(Box::new(Forward {
                node: "GatherBackward0".into(),
                sequence: 3,
                frames: vec![frame(line)],
                kernel: "gather".into(),
            })),
            node: None,
            source: Vec::new(),
        };
        assert!(!is_same(&backward(3), &backward(4), false));
        assert!(is_same(&backward(3), &backward(3), true));
        let larger = Launch { grid: [8, 1, 1], ..backward(3) };
        assert!(is_same(&larger, &backward(3), false) && !is_same(&larger, &backward(3), true));
    }
}
