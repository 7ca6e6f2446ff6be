//! The call-back: what happens at every driver call of the program.

use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cudarc::cupti::sys;

use crate::autograd::Autograd;
use crate::capture::Captures;
use crate::config::{Config, Markers};
use crate::cuda::{self, Context, Driver, Stream};
use crate::cupti::{Cupti, ENTER};
use crate::ops::{self, Kind, Op, Table, Waited, normalise};
use crate::python::{Frames, Python};
use crate::report::Reporter;
use crate::ring::{Launch, Ring, Stack};
use crate::risk::{GRAPH_STRIDE, IDLE_STRIDE, STRIDE};
use crate::streams::{Slot, Streams, Which, Words};
use crate::symbols::{Symbol, Symbols};

/// Everything that the recorder keeps. There is one, made when the driver loads the library.
pub(crate) struct Recorder {
    pub(crate) config: Config,
    pub(crate) driver: Driver,
    pub(crate) cupti: OnceLock<Cupti>,
    pub(crate) table: Table,
    pub(crate) ring: Ring,
    pub(crate) symbols: Symbols,
    pub(crate) streams: Streams,
    pub(crate) words: Words,
    pub(crate) captures: Captures,
    pub(crate) autograd: Autograd,
    pub(crate) reporter: Reporter,
    python: OnceLock<Option<Python>>,
    markers_set: AtomicU64,
    /// Kernels that were launched, where no markers are set: a core dump counts them too.
    kernels: AtomicU64,
    /// The driver refused a marker: its code, and no more are set.
    refused: AtomicI32,
    /// A forked child has no CUDA, and the other threads of the recorder are not there.
    inert: AtomicBool,
}

static RECORDER: OnceLock<Recorder> = OnceLock::new();

thread_local! {
    /// The recorder calls the driver itself; these calls are not the program's.
    static BUSY: Cell<bool> = const { Cell::new(false) };
    static THREAD: Cell<i32> = const { Cell::new(0) };
}

/// A call as CUPTI describes it.
struct Call<'a> {
    id: u32,
    data: &'a sys::CUpti_CallbackData,
    context: Context,
}

/// What a call launches, as its parameters say.
struct Shape {
    kind: Kind,
    stream: Stream,
    grid: [u32; 3],
    block: [u32; 3],
    graph: usize,
}

/// Marks an id in the call's correlation word as one of a capture.
const CAPTURED: u64 = 1 << 63;
/// Marks an ordinal there as that of a kernel that can fault by its data.
const RISKY: u64 = 1 << 62;

impl Recorder {
    /// The one recorder, once it is made.
    pub(crate) fn get() -> Option<&'static Self> {
        RECORDER.get()
    }

    /// Makes it. `None` if there is one.
    pub(crate) fn make(config: Config, driver: Driver) -> Option<&'static Self> {
        let recorder = Self {
            ring: Ring::new(config.ring),
            reporter: Reporter::new(&config),
            config,
            driver,
            cupti: OnceLock::new(),
            table: Table::new(),
            symbols: Symbols::default(),
            streams: Streams::default(),
            words: Words::default(),
            captures: Captures::default(),
            autograd: Autograd::default(),
            python: OnceLock::new(),
            markers_set: AtomicU64::new(0),
            kernels: AtomicU64::new(0),
            refused: AtomicI32::new(0),
            inert: AtomicBool::new(false),
        };
        RECORDER.set(recorder).ok()?;
        RECORDER.get()
    }

    /// The interpreter, if the process has one.
    pub(crate) fn python(&self) -> Option<&Python> {
        self.python.get_or_init(Python::detect).as_ref()
    }

    /// Does nothing any more.
    pub(crate) fn retire(&self) {
        self.inert.store(true, Ordering::Relaxed);
    }

    /// Whether it was retired.
    pub(crate) fn is_inert(&self) -> bool {
        self.inert.load(Ordering::Relaxed)
    }

    /// Markers that were set.
    pub(crate) fn markers_set(&self) -> u64 {
        self.markers_set.load(Ordering::Relaxed)
    }

    /// Why no markers are set, if that is so.
    pub(crate) fn without_markers(&self) -> Option<String> {
        match (self.config.markers, self.refused.load(Ordering::Relaxed), self.words.refused()) {
            (Markers::Off, ..) => Some("off".to_string()),
            (_, 0, 0) => None,
            (_, 0, code) => Some(format!("there is no pinned memory for them ({})", self.driver.error_name(code))),
            (_, code, _) => Some(format!("the driver refuses them ({})", self.driver.error_name(code))),
        }
    }

    /// Runs something of ours that may call the driver.
    pub(crate) fn quietly<T>(run: impl FnOnce() -> T) -> Option<T> {
        let entered = BUSY.try_with(|busy| !busy.replace(true)).unwrap_or(false);
        if !entered {
            return None;
        }
        let result = run();
        let _ = BUSY.try_with(|busy| busy.set(false));
        Some(result)
    }

    /// The calling thread's stack. The native one, which is dear, only where nothing else tells the place.
    pub(crate) fn stack(&self, placed: bool) -> Stack {
        let mut frames = Frames::default();
        if let Some(python) = self.python() {
            python.walk(&mut frames);
        }
        if frames.len > 0 || placed { Stack::Python(frames) } else { Stack::Native(native_stack()) }
    }

    fn enter(&self, call: &Call<'_>) {
        match self.table.get(call.id) {
            Op::Other | Op::Update | Op::Instantiate | Op::Clone | Op::BeginCapture | Op::DestroyExec => {}
            Op::Kernel | Op::KernelEx | Op::Graph | Op::Transfer(..) => self.launching(call),
            Op::EndCapture => self.ending_capture(call),
            Op::RecordEvent => {
                let (stream, event) = (call.stream(1), call.word(0));
                if self.capture_of(stream).is_some() {
                    // It tells of the graph alone, whatever it told before.
                    self.streams.event_is_gone(event);
                } else {
                    self.streams.recorded(call.context, stream, thread(), event, self.ring.last());
                }
            }
            Op::WaitEvent => {
                let (stream, event) = (call.stream(0), call.word(1));
                if self.capture_of(stream).is_none() && self.streams.is_recorded(event) {
                    // Its first launch may be still to come.
                    let slot = self.slot(call, stream);
                    self.streams.waits(&slot.stream, event, self.ring.last());
                }
            }
            Op::DestroyEvent => self.streams.event_is_gone(call.word(0)),
            Op::DestroyStream => self.destroying_stream(call),
            Op::DestroyContext => self.destroying_context(call),
            Op::Synchronize => {
                self.streams.begins_to_wait();
                self.before_wait(call);
                let last = self.ring.last();
                call.correlate(
                    Self::waited(call).map_or(last, |which| self.streams.waiting(call.context, which, last)),
                );
            }
        }
    }

    fn exit(&self, call: &Call<'_>) {
        let code = call.result();
        if self.table.get(call.id) == Op::Synchronize {
            self.streams.has_waited();
        }
        if code != 0 {
            if self.table.get(call.id) == Op::EndCapture && cuda::ends_capture(code) {
                self.captures.active.fetch_sub(1, Ordering::Relaxed);
                self.captures.lock().spoiled(call.correlation() & !CAPTURED);
            }
            let taking = cuda::is_device_fault(code).then(|| self.reporter.taking());
            let failing = self.failed(call);
            // A context that dies is reported by who meets it first; its destruction meets it again.
            if let Some(taking) = taking.filter(|_| self.table.get(call.id) != Op::DestroyContext) {
                self.reporter.fault(self, code, call.name(), call.context, failing, taking);
            }
            return;
        }
        match self.table.get(call.id) {
            Op::Kernel | Op::KernelEx | Op::Graph | Op::Transfer(..) => self.launched(call),
            Op::BeginCapture => self.began_capture(call),
            Op::EndCapture => {
                self.captures.active.fetch_sub(1, Ordering::Relaxed);
                // SAFETY: `cuStreamEndCapture(hStream, CUgraph *phGraph)` has succeeded.
                let graph = unsafe { call.out(1) };
                if let (Some(graph), id @ 1..) = (graph, call.correlation()) {
                    self.captures.lock().ended(id & !CAPTURED, graph);
                }
            }
            Op::Instantiate => {
                // SAFETY: every `cuGraphInstantiate…(CUgraphExec *, CUgraph, …)` begins so, and it has succeeded.
                if let Some(exec) = unsafe { call.out(0) } {
                    self.captures.lock().instantiated(call.word(1), exec);
                }
            }
            Op::Update => self.captures.lock().instantiated(call.word(1), call.word(0)),
            Op::Clone => {
                // SAFETY: `cuGraphClone(CUgraph *phGraphClone, CUgraph originalGraph)` has succeeded.
                if let Some(copy) = unsafe { call.out(0) } {
                    self.captures.lock().copied(call.word(1), copy);
                }
            }
            Op::DestroyExec => self.captures.lock().destroyed(call.word(0)),
            Op::Synchronize => match Self::waited(call) {
                Some(which) => self.streams.synchronised(call.context, which, call.correlation()),
                None => self.streams.event_reached(call.word(0)),
            },
            Op::Other | Op::RecordEvent | Op::WaitEvent | Op::DestroyEvent | Op::DestroyStream | Op::DestroyContext => {
            }
        }
    }

    /// Before a launch: notes it, and sets the marker that tells what came before from a launch that can fault.
    fn launching(&self, call: &Call<'_>) {
        let Some(shape) = self.shape(call) else { return };
        if let Some(id) = self.capture_of(shape.stream) {
            call.correlate(CAPTURED | id);
            return;
        }
        let slot = self.slot(call, shape.stream);
        let kernel = shape.kind == Kind::Kernel;
        let symbol = if kernel { self.symbol(call) } else { Symbol::default() };
        // A copy of pageable memory waits for the device in the call itself: what came before must be told from it.
        let parted = match shape.kind {
            Kind::Kernel => symbol.risky,
            Kind::Memcpy => !ops::stays_on_devices(call.id),
            Kind::Graph | Kind::Memset => false,
        };
        let fenced = self.config.markers == Markers::Adaptive
            && parted
            && slot.unmarked.load(Ordering::Relaxed) > 0
            && self.mark(&slot, slot.last.load(Ordering::Relaxed));
        slot.calling.store(self.ring.last() + 1, Ordering::Relaxed);
        let seq = self.ring.draw();
        let mut launch = self.describe(call, &shape, symbol);
        (launch.seq, launch.stream, launch.fenced) = (seq, slot.stream.id, fenced);
        if kernel && self.config.markers == Markers::Off {
            launch.nth_kernel = self.kernels.fetch_add(1, Ordering::Relaxed) + 1;
        }
        self.ring.put(launch);
        slot.calling.store(seq, Ordering::Relaxed);
        call.correlate(seq | if symbol.risky { RISKY } else { 0 });
    }

    /// After a launch: sets its marker.
    fn launched(&self, call: &Call<'_>) {
        let (Some(shape), correlation @ 1..) = (self.shape(call), call.correlation()) else { return };
        if correlation & CAPTURED != 0 {
            let symbol = if shape.kind == Kind::Kernel { self.symbol(call) } else { Symbol::default() };
            self.captured(correlation & !CAPTURED, shape.stream, self.describe(call, &shape, symbol));
            return;
        }
        let seq = correlation & !RISKY;
        let slot = self.slot(call, shape.stream);
        slot.calling.store(0, Ordering::Relaxed);
        slot.last.store(seq, Ordering::Relaxed);
        slot.stream.issued.fetch_max(seq, Ordering::Relaxed);
        if self.config.blocking && !self.config.dump_armed && matches!(shape.kind, Kind::Kernel | Kind::Graph) {
            slot.stream.synchronise(seq);
        }
        if shape.kind == Kind::Graph
            && let Some(capture) = self.captures.lock().of_exec(shape.graph)
        {
            capture.replays += 1;
        }
        let unmarked = slot.unmarked.fetch_add(1, Ordering::Relaxed) + 1;
        let due = match self.config.markers {
            Markers::Off => false,
            Markers::Every => true,
            Markers::Adaptive => {
                shape.kind == Kind::Graph
                    || correlation & RISKY != 0
                    || unmarked >= STRIDE
                    || (unmarked >= IDLE_STRIDE && slot.is_caught_up())
            }
        };
        let marked = due && self.mark(&slot, seq);
        self.ring.returned(seq, self.ring.last(), marked);
        self.reporter.first_launch(self, slot.stream.device);
    }

    fn describe(&self, call: &Call<'_>, shape: &Shape, symbol: Symbol) -> Launch {
        let autograd = self.autograd.current();
        Launch {
            seq: 0,
            returned: 0,
            kind: shape.kind,
            fenced: false,
            marked: false,
            symbol,
            call: if shape.kind == Kind::Kernel { "" } else { call.name() },
            grid: shape.grid,
            block: shape.block,
            stream: 0,
            thread: thread(),
            nth_kernel: 0,
            graph: shape.graph,
            stack: self.stack(autograd.node.is_some()),
            autograd,
        }
    }

    /// A call failed: its launch is not in the stream. But a call that waits for the device (a copy of pageable memory; every
    /// launch under `CUDA_LAUNCH_BLOCKING`) can be what faulted.
    fn failed(&self, call: &Call<'_>) -> Option<Launch> {
        let seq = call.correlation() & !RISKY;
        let shape = self.shape(call)?;
        if seq == 0 || seq & CAPTURED != 0 {
            return None;
        }
        self.slot(call, shape.stream).calling.store(0, Ordering::Relaxed);
        if self.config.blocking && self.config.dump_armed {
            // Its own error or that of one before it: it stays among those that are not known to be done.
            return None;
        }
        let launch = self.ring.get(seq);
        self.ring.failed(seq);
        launch.filter(|_| shape.kind == Kind::Memcpy || self.config.blocking)
    }

    fn captured(&self, id: u64, stream: Stream, launch: Launch) {
        let proven = self.markers_set() > 0 && self.refused.load(Ordering::Relaxed) == 0;
        let wanted = self.config.markers;
        let risky = launch.kind == Kind::Kernel && launch.symbol.risky;
        let due = |unmarked| match wanted {
            Markers::Off => false,
            Markers::Every => true,
            Markers::Adaptive => risky || unmarked >= GRAPH_STRIDE,
        };
        // Where a marker was never accepted, a refused one might spoil the capture: better none. The driver, which is asked
        // for memory, may hold a lock of its own: not under ours.
        let wanting = proven && !self.captures.lock().get(id).is_some_and(|capture| capture.has_lane(stream));
        let word = if wanting { self.words.next(&self.driver).ok() } else { None };
        let marker = {
            let mut captures = self.captures.lock();
            let Some(capture) = captures.of(id) else { return };
            let lane = capture.lane(stream, word);
            capture.add(launch, lane, due)
        };
        self.capture_marker(id, stream, marker);
    }

    fn capture_marker(&self, id: u64, stream: Stream, marker: Option<(u32, crate::streams::Word)>) {
        let Some((value, word)) = marker else { return };
        if self.driver.write_value(stream, word.device(), value) == 0 {
            self.markers_set.fetch_add(1, Ordering::Relaxed);
        } else if let Some(capture) = self.captures.lock().get(id) {
            capture.unmark(value);
        }
    }

    fn began_capture(&self, call: &Call<'_>) {
        self.captures.active.fetch_add(1, Ordering::Relaxed);
        let to_graph = call.name().contains("ToGraph");
        if to_graph
            && let Some(id) = self.driver.capture(call.stream(0))
            && let Some(capture) = self.captures.lock().of(id)
        {
            capture.bare = true;
        }
    }

    fn ending_capture(&self, call: &Call<'_>) {
        let stream = call.stream(0);
        let Some(id) = self.driver.capture(stream) else { return };
        call.correlate(CAPTURED | id);
        let marker = self.captures.lock().get(id).and_then(|capture| capture.last(stream));
        self.capture_marker(id, stream, marker);
    }

    /// What has no marker yet gets one now: nobody could ask later whether it is done.
    fn destroying_stream(&self, call: &Call<'_>) {
        let handle = call.word(0);
        self.mark_those(|slot| slot.stream.context == call.context && slot.stream.handle == handle);
        self.streams.close(call.context, handle);
    }

    /// The host is about to wait: a marker costs nothing now, and tells what it waits for.
    fn before_wait(&self, call: &Call<'_>) {
        let me = thread();
        self.mark_those(|slot| slot.stream.context == call.context && slot.thread == me);
    }

    /// Marks what has no marker yet, of some slots of the current context.
    fn mark_those(&self, which: impl Fn(&Slot) -> bool) {
        if self.config.markers != Markers::Adaptive || self.captures.any() {
            return;
        }
        let due: Vec<Arc<Slot>> = {
            let inner = self.streams.lock();
            let unmarked = |s: &Slot| s.stream.is_open() && s.unmarked.load(Ordering::Relaxed) > 0;
            inner.slots.iter().filter(|s| which(s) && unmarked(s)).cloned().collect()
        };
        for slot in due {
            self.mark(&slot, slot.last.load(Ordering::Relaxed));
        }
    }

    /// Before the process ends: marks what has no marker yet, so that its end can be waited for.
    pub(crate) fn mark_the_rest(&self) {
        if self.config.markers != Markers::Adaptive || self.captures.any() {
            return;
        }
        // With the lock held: a stream or context is forgotten before it is destroyed.
        let inner = self.streams.lock();
        for slot in inner.slots.iter().filter(|s| s.stream.is_open() && s.unmarked.load(Ordering::Relaxed) > 0) {
            let alive = inner.contexts.iter().any(|seen| seen.context == slot.stream.context && !seen.faulted);
            if alive {
                let last = slot.last.load(Ordering::Relaxed);
                self.driver.within(slot.stream.context, || self.mark(slot, last));
            }
        }
    }

    /// The streams that the call waits for; `None` if it waits for an event.
    fn waited(call: &Call<'_>) -> Option<Which> {
        match ops::waited_for(call.id) {
            Waited::Stream => Some(Which::One(call.stream(0), thread())),
            Waited::DefaultStream => Some(Which::One(0, 0)),
            Waited::Context => Some(Which::All),
            Waited::Event => None,
        }
    }

    fn destroying_context(&self, call: &Call<'_>) {
        // The argument is a context or a device; in the second case all of that device go.
        let argument = call.word(0);
        let device = i32::try_from(argument).ok();
        let of_device: Vec<Context> = {
            let inner = self.streams.lock();
            inner.streams.iter().filter(|s| Some(s.device) == device).map(|s| s.context).collect()
        };
        self.streams.forget(|context| context == argument || of_device.contains(&context));
    }

    fn mark(&self, slot: &Slot, seq: u64) -> bool {
        if self.refused.load(Ordering::Relaxed) != 0 {
            return false;
        }
        match slot.mark(&self.driver, seq) {
            Ok(()) => {
                self.markers_set.fetch_add(1, Ordering::Relaxed);
                true
            }
            Err(code) => {
                // A context that has just died refuses everything; that says nothing about markers.
                if code != 0 && !cuda::is_device_fault(code) && self.markers_set() == 0 {
                    self.refused.store(code, Ordering::Relaxed);
                }
                false
            }
        }
    }

    fn slot(&self, call: &Call<'_>, stream: Stream) -> Arc<Slot> {
        self.streams.slot(&self.driver, &self.words, call.context, stream, thread())
    }

    fn symbol(&self, call: &Call<'_>) -> Symbol {
        // SAFETY: CUPTI's name of the kernel lives during the call-back.
        unsafe { self.symbols.intern(call.data.symbolName) }
    }

    fn capture_of(&self, stream: Stream) -> Option<u64> {
        if self.captures.any() { self.driver.capture(stream) } else { None }
    }

    /// What the call launches.
    fn shape(&self, call: &Call<'_>) -> Option<Shape> {
        let parameters = call.data.functionParams;
        let (kind, stream, grid, block, graph) = match self.table.get(call.id) {
            Op::Kernel => {
                // SAFETY: the parameters of the kernel launches begin with those of `cuLaunchKernel`, up to the stream.
                let p = unsafe { &*parameters.cast::<sys::cuLaunchCooperativeKernel_params_st>() };
                let grid = [p.gridDimX, p.gridDimY, p.gridDimZ];
                (Kind::Kernel, p.hStream as usize, grid, [p.blockDimX, p.blockDimY, p.blockDimZ], 0)
            }
            Op::KernelEx => {
                // SAFETY: the parameters of `cuLaunchKernelEx`; the driver reads its configuration in this very call.
                let config = unsafe { (*parameters.cast::<sys::cuLaunchKernelEx_params_st>()).config.as_ref() }?;
                let grid = [config.gridDimX, config.gridDimY, config.gridDimZ];
                let block = [config.blockDimX, config.blockDimY, config.blockDimZ];
                (Kind::Kernel, config.hStream as usize, grid, block, 0)
            }
            Op::Graph => (Kind::Graph, call.word(1), [0; 3], [0; 3], call.word(0)),
            Op::Transfer(kind, offset) => {
                // SAFETY: the table has the offset of the stream in this call's parameters.
                let stream = unsafe { parameters.byte_add(offset.into()).cast::<usize>().read_unaligned() };
                (kind, stream, [0; 3], [0; 3], 0)
            }
            _ => return None,
        };
        Some(Shape { kind, stream: normalise(call.id, stream), grid, block, graph })
    }
}

impl Call<'_> {
    /// A word of the parameters: every one of the calls where this is used has word-sized ones up to there.
    fn word(&self, at: usize) -> usize {
        // SAFETY: see above; `functionParams` is aligned for its widest member.
        unsafe { self.data.functionParams.cast::<usize>().add(at).read() }
    }

    /// What a pointer parameter points to, after the call.
    ///
    /// # Safety
    /// The word is a pointer into which the call, having succeeded, has written a handle.
    unsafe fn out(&self, at: usize) -> Option<usize> {
        let pointer = self.word(at) as *const usize;
        // SAFETY: the caller's promise.
        unsafe { pointer.as_ref() }.copied()
    }

    /// A word that is a stream.
    fn stream(&self, at: usize) -> Stream {
        normalise(self.id, self.word(at))
    }

    fn result(&self) -> i32 {
        let value = self.data.functionReturnValue.cast::<i32>();
        // SAFETY: at the exit of a driver call, CUPTI has its CUresult there.
        unsafe { value.as_ref() }.copied().unwrap_or(0)
    }

    fn correlate(&self, value: u64) {
        // SAFETY: CUPTI gives each call a word that both of its call-backs see.
        if let Some(word) = unsafe { self.data.correlationData.as_mut() } {
            *word = value;
        }
    }

    fn correlation(&self) -> u64 {
        // SAFETY: as above.
        unsafe { self.data.correlationData.as_ref() }.copied().unwrap_or(0)
    }

    fn name(&self) -> &'static str {
        let name = self.data.functionName;
        if name.is_null() {
            return "?";
        }
        // SAFETY: names of entry points are static strings of CUPTI, which is never unloaded.
        unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("?")
    }
}

/// The kernel's number of the calling thread.
pub(crate) fn thread() -> i32 {
    // SAFETY: has no arguments and cannot fail.
    let ask = || i32::try_from(unsafe { libc::syscall(libc::SYS_gettid) }).unwrap_or(0);
    let cached = THREAD.try_with(|cached| {
        if cached.get() == 0 {
            cached.set(ask());
        }
        cached.get()
    });
    cached.unwrap_or_else(|_| ask())
}

/// Forgets the cached number: a forked child's thread has another.
pub(crate) fn forget_thread() {
    let _ = THREAD.try_with(|cached| cached.set(0));
}

/// Return addresses of the calling thread, from the program's call into the driver outwards.
fn native_stack() -> crate::ring::Addresses {
    static MACHINERY: OnceLock<Vec<(usize, usize)>> = OnceLock::new();
    // Told by the object, not by the symbol: the driver has none.
    let machinery =
        MACHINERY.get_or_init(|| crate::dl::ranges_of(&["libfaultlab_recorder", "libcupti.so", "libcuda.so"]));
    let mut addresses = [0; 20];
    let (mut filled, mut inside) = (0, true);
    // SAFETY: not called from a signal handler, and not from two frames of the same thread at once.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            let address = frame.ip() as usize;
            inside = inside && machinery.iter().any(|(from, to)| (*from..*to).contains(&address));
            if !inside {
                addresses[filled] = address;
                filled += 1;
            }
            filled < addresses.len()
        });
    }
    addresses
}

/// The call-back that CUPTI is given.
///
/// # Safety
/// Only CUPTI calls it, with the data that goes with the domain.
pub(crate) unsafe extern "C" fn callback(_: *mut c_void, domain: u32, id: u32, data: *const c_void) {
    if domain != crate::cupti::DRIVER_API {
        return;
    }
    // SAFETY: the data of the driver domain, alive during the call-back.
    if let Some(data) = unsafe { data.cast::<sys::CUpti_CallbackData>().as_ref() } {
        observe(id, data);
    }
}

/// Looks at a driver call of the program, before or after it.
pub(crate) fn observe(id: u32, data: &sys::CUpti_CallbackData) {
    let Some(recorder) = Recorder::get().filter(|recorder| !recorder.is_inert()) else { return };
    Recorder::quietly(|| {
        let run = || {
            let call = Call { id, data, context: data.context as usize };
            if data.callbackSite as u32 == ENTER { recorder.enter(&call) } else { recorder.exit(&call) }
        };
        // Nothing of ours may unwind into the driver. A recorder that panicked once is off.
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err() {
            recorder.retire();
            recorder.reporter.panicked();
        }
    });
}
