//! Streams, and how far each has come.
//!
//! A *slot* is a word of pinned memory into which the GPU writes the ordinal of the last launch that is done. There is one
//! for each stream and launching thread: so a slot's ordinals rise in the order of the stream without any lock between
//! threads.
//!
//! Streams are destroyed, threads end, and a server may have a new one for each request: slots that nobody uses any more
//! and in which everything is done are forgotten from time to time, and their words are given to others.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cuda::{Context, Driver, Order, PER_THREAD, Pinned, Stream};

/// A word that the GPU writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Word(Pinned);

impl Word {
    /// What it holds.
    pub(crate) fn value(self) -> u32 {
        // SAFETY: pinned memory of ours that is never freed; the GPU writes aligned words, which are whole.
        unsafe { AtomicU32::from_ptr(self.0.host as *mut u32) }.load(Ordering::Acquire)
    }

    /// Where the GPU writes.
    pub(crate) fn device(self) -> u64 {
        self.0.device
    }

    /// Before its first use and each further one.
    fn reset(self) {
        // SAFETY: as above, and the GPU has written all that it was told to.
        unsafe { AtomicU32::from_ptr(self.0.host as *mut u32) }.store(0, Ordering::Release);
    }
}

/// Words, handed out one by one.
#[derive(Default)]
pub(crate) struct Words {
    store: Mutex<Store>,
    /// In all, of which some may be free again.
    made: AtomicU32,
    refused: AtomicI32,
}

#[derive(Default)]
struct Store {
    chunk: Option<(Pinned, usize)>,
    free: Vec<Word>,
}

const CHUNK: usize = 64 * 1024;
/// A word a cache line, so that two streams do not write the same one.
const STEP: usize = 64;
const MOST_WORDS: u32 = 1 << 16;

impl Words {
    /// A word that nobody has, zero.
    pub(crate) fn next(&self, driver: &Driver) -> Result<Word, i32> {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(word) = store.free.pop() {
            word.reset();
            return Ok(word);
        }
        if self.made.load(Ordering::Relaxed) >= MOST_WORDS {
            return Err(0);
        }
        let (pinned, used) = match store.chunk {
            Some((pinned, used)) if used + STEP <= CHUNK => (pinned, used),
            _ => (driver.pinned(CHUNK).inspect_err(|code| self.refused.store(*code, Ordering::Relaxed))?, 0),
        };
        store.chunk = Some((pinned, used + STEP));
        self.made.fetch_add(1, Ordering::Relaxed);
        Ok(Word(Pinned { host: pinned.host + used, device: pinned.device + used as u64 }))
    }

    /// Takes a word back. The GPU must have written everything to it that it was told to.
    fn give_back(&self, word: Word) {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).free.push(word);
    }

    /// The driver's error, if it gave no memory.
    pub(crate) fn refused(&self) -> i32 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Bytes of pinned memory.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.made.load(Ordering::Relaxed)).div_ceil((CHUNK / STEP) as u64) * CHUNK as u64
    }
}

/// A stream that launches were seen on.
#[derive(Debug)]
pub(crate) struct Known {
    /// Its ordinal in the process.
    pub(crate) id: u32,
    pub(crate) context: Context,
    pub(crate) handle: Stream,
    /// For the per-thread default stream: whose.
    thread: i32,
    /// How it goes together with the legacy default stream.
    pub(crate) order: Order,
    pub(crate) device: i32,
    /// The last launch put into it.
    pub(crate) issued: AtomicU64,
    /// Everything up to here is done, because the program waited for it.
    synchronised: AtomicU64,
    /// Destroyed: the handle may mean another stream by now.
    closed: AtomicBool,
}

/// One thread's launches on one stream.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) stream: Arc<Known>,
    pub(crate) thread: i32,
    word: Option<Word>,
    /// The last launch whose completion is marked. Set before the marker is: the GPU may be quicker than we are.
    marked: AtomicU64,
    /// The last launch: of this thread, so it is in the stream. Another thread may have drawn a later ordinal and not be there.
    pub(crate) last: AtomicU64,
    /// The launch whose call has not returned (an ordinal up to its own while it draws that one), or 0. It may be waiting
    /// for the device.
    pub(crate) calling: AtomicU64,
    /// Launches since the last marker.
    pub(crate) unmarked: AtomicU32,
}

impl Slot {
    /// Everything of this thread up to this ordinal is done.
    pub(crate) fn completed(&self) -> u64 {
        let Some(word) = self.word else { return 0 };
        // The word first: a marker that is set and written in between must not be ahead of the last one we know of.
        let written = word.value();
        let marked = self.marked.load(Ordering::Acquire);
        // The word has the low half of the ordinal; the distance to the last marker gives the rest.
        #[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
        let behind = (marked as u32).wrapping_sub(written);
        marked.saturating_sub(u64::from(behind))
    }

    /// Whether the GPU has come to the last marker: it waits for us, and a marker costs it nothing.
    pub(crate) fn is_caught_up(&self) -> bool {
        #[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
        let marked = self.marked.load(Ordering::Relaxed) as u32;
        self.word.is_some_and(|word| word.value() == marked)
    }

    /// Whether a marker is on its way, or a call has not returned: something is running, or waits to.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waits_for_marker() || self.calling.load(Ordering::Relaxed) != 0
    }

    /// Whether a marker is on its way.
    pub(crate) fn waits_for_marker(&self) -> bool {
        self.completed() < self.marked.load(Ordering::Relaxed)
    }

    /// Whether everything that its thread launched is done, and every marker written.
    fn is_done(&self) -> bool {
        let done = self.completed().max(self.stream.synchronised.load(Ordering::Relaxed));
        !self.is_awaited() && done >= self.last.load(Ordering::Relaxed)
    }

    /// Marks the completion of everything up to `seq`.
    pub(crate) fn mark(&self, driver: &Driver, seq: u64) -> Result<(), i32> {
        let word = self.word.ok_or(0)?;
        let before = self.marked.swap(seq, Ordering::Release);
        #[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
        let rc = driver.write_value(self.stream.handle, word.device(), seq as u32);
        if rc == 0 {
            self.unmarked.store(0, Ordering::Relaxed);
            Ok(())
        } else {
            self.marked.store(before, Ordering::Release);
            Err(rc)
        }
    }
}

/// Streams of a context that the host waits for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Which {
    /// One, and the calling thread: it matters for the per-thread stream.
    One(Stream, i32),
    All,
}

/// A wait of one stream for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wait {
    /// Launches of the waiting stream after this ordinal wait.
    pub(crate) after: u64,
    /// The stream that is waited for.
    pub(crate) on: u32,
    /// The launch there that has to be done.
    pub(crate) until: u64,
    /// The last ordinal when the event that is waited for was recorded.
    pub(crate) recorded: u64,
}

/// A context that launches were seen in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) context: Context,
    /// See [`Driver::probe_event`].
    pub(crate) probe: Option<usize>,
    pub(crate) faulted: bool,
}

/// An event.
#[derive(Debug, Clone, Copy)]
struct Recorded {
    /// Its stream.
    stream: u32,
    /// The last launch there.
    issued: u64,
    /// The last ordinal of all.
    last: u64,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Streams {
    inner: Mutex<Inner>,
    /// Raised whenever a handle loses its meaning, so that threads look again.
    epoch: AtomicU64,
    /// Calls that wait for the device: how many began, and how many returned.
    waits_begun: AtomicU64,
    waits_ended: AtomicU64,
}

#[derive(Default)]
pub(crate) struct Inner {
    /// In the order of their ordinals.
    pub(crate) streams: Vec<Arc<Known>>,
    pub(crate) slots: Vec<Arc<Slot>>,
    pub(crate) contexts: Vec<Seen>,
    /// Streams that were destroyed and are forgotten, as far as the ring may still hold launches of them: those were done.
    pub(crate) past: VecDeque<Arc<Known>>,
    /// Streams seen in all.
    pub(crate) seen: u32,
    /// Of each stream, threads that have ended, and how far they had come.
    left: HashMap<u32, VecDeque<(i32, u64)>>,
    waits: HashMap<u32, VecDeque<Wait>>,
    events: HashMap<usize, Recorded>,
    /// With so many slots, what is over is looked for.
    sweep_at: usize,
}

/// A thread's slots: few, so a list. What is in it is not forgotten, and it goes with the thread.
type Cache = Vec<(u64, Context, Stream, Arc<Slot>)>;

thread_local! {
    static CACHE: RefCell<Cache> = const { RefCell::new(Vec::new()) };
}

const MOST_WAITS: usize = 64;
const MOST_EVENTS: usize = 1 << 16;
const MOST_PAST: usize = 1 << 12;
const MOST_LEFT: usize = 256;
/// Fewer slots than this are no burden.
const FEW_SLOTS: usize = 256;

impl Streams {
    /// The calling thread's slot on a stream of the current context.
    pub(crate) fn slot(
        &self,
        driver: &Driver,
        words: &Words,
        context: Context,
        stream: Stream,
        thread: i32,
    ) -> Arc<Slot> {
        let epoch = self.epoch.load(Ordering::Acquire);
        let cached = CACHE.try_with(|cache| {
            let cache = cache.try_borrow().ok()?;
            let found = cache.iter().rev().find(|(e, c, s, _)| *e == epoch && *c == context && *s == stream);
            found.map(|(.., slot)| Arc::clone(slot))
        });
        if let Ok(Some(slot)) = cached {
            return slot;
        }
        let slot = self.make(driver, words, context, stream, thread);
        let _ = CACHE.try_with(|cache| {
            if let Ok(mut cache) = cache.try_borrow_mut() {
                cache.retain(|(e, ..)| *e == epoch);
                cache.push((epoch, context, stream, Arc::clone(&slot)));
            }
        });
        slot
    }

    fn make(&self, driver: &Driver, words: &Words, context: Context, stream: Stream, thread: i32) -> Arc<Slot> {
        let owner = if stream == PER_THREAD { thread } else { 0 };
        // One slot only: a second one would know nothing of the launches that the first has not marked yet.
        let existing = {
            let inner = self.lock();
            let known = inner.find(context, stream, owner);
            known.and_then(|known| {
                inner.slots.iter().rev().find(|s| s.stream.id == known.id && s.thread == thread).cloned()
            })
        };
        if let Some(slot) = existing {
            return slot;
        }
        // The driver is asked before the lock is taken: it may hold a lock of its own while it calls back into us.
        let (device, word, order) = (driver.current_device(), words.next(driver).ok(), driver.order(stream));
        let fresh = !self.lock().contexts.iter().any(|seen| seen.context == context);
        let probe = if fresh { driver.probe_event() } else { None };
        let mut inner = self.lock();
        if fresh && !inner.contexts.iter().any(|seen| seen.context == context) {
            inner.contexts.push(Seen { context, probe, faulted: false });
        }
        if inner.slots.len() >= inner.sweep_at.max(FEW_SLOTS) {
            inner.forget_what_is_over(words);
            inner.sweep_at = 2 * inner.slots.len();
        }
        let known = inner.find(context, stream, owner).cloned().unwrap_or_else(|| {
            let known = Arc::new(Known {
                id: inner.seen,
                context,
                handle: stream,
                thread: owner,
                order,
                device,
                issued: AtomicU64::new(0),
                synchronised: AtomicU64::new(0),
                closed: AtomicBool::new(false),
            });
            inner.seen = inner.seen.saturating_add(1);
            inner.streams.push(Arc::clone(&known));
            known
        });
        let slot = Arc::new(Slot {
            stream: known,
            thread,
            word,
            marked: AtomicU64::new(0),
            last: AtomicU64::new(0),
            calling: AtomicU64::new(0),
            unmarked: AtomicU32::new(0),
        });
        inner.slots.push(Arc::clone(&slot));
        slot
    }

    /// The tables, for a report.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stream's handle is about to lose its meaning.
    pub(crate) fn close(&self, context: Context, stream: Stream) {
        let inner = self.lock();
        inner.streams.iter().filter(|s| s.context == context && s.handle == stream).for_each(|s| s.close());
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// All contexts are about to go that match. While this holds the lock, the watcher asks none.
    pub(crate) fn forget(&self, gone: impl Fn(Context) -> bool) {
        let mut inner = self.lock();
        inner.streams.iter().filter(|s| gone(s.context)).for_each(|s| s.close());
        inner.contexts.retain(|seen| !gone(seen.context));
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// An event is about to be destroyed: its handle may mean another one soon, which nobody has recorded.
    pub(crate) fn event_is_gone(&self, event: usize) {
        self.lock().events.remove(&event);
    }

    /// An event is about to be recorded; `last` is the last ordinal so far.
    pub(crate) fn recorded(&self, context: Context, stream: Stream, thread: i32, event: usize, last: u64) {
        let mut inner = self.lock();
        if inner.events.len() >= MOST_EVENTS {
            inner.events.clear();
        }
        match inner.find(context, stream, if stream == PER_THREAD { thread } else { 0 }).cloned() {
            Some(known) => {
                let issued = known.issued.load(Ordering::Relaxed);
                inner.events.insert(event, Recorded { stream: known.id, issued, last })
            }
            None => inner.events.remove(&event),
        };
    }

    /// A call begins that waits for the device.
    pub(crate) fn begins_to_wait(&self) {
        self.waits_begun.fetch_add(1, Ordering::Relaxed);
    }

    /// It has returned.
    pub(crate) fn has_waited(&self) {
        self.waits_ended.fetch_add(1, Ordering::Relaxed);
    }

    /// How many waits have ended, and whether a thread waits now.
    pub(crate) fn host_waits(&self) -> (u64, bool) {
        let ended = self.waits_ended.load(Ordering::Relaxed);
        (ended, self.waits_begun.load(Ordering::Relaxed) > ended)
    }

    /// The program is about to wait for some streams: the last launch, of those up to `last`, that it surely waits for. A
    /// launch whose call has not returned may come into its stream only after the wait began.
    pub(crate) fn waiting(&self, context: Context, which: Which, last: u64) -> u64 {
        let inner = self.lock();
        let waited = inner.slots.iter().filter(|slot| slot.stream.is_one_of(context, which));
        let calling = waited.map(|slot| slot.calling.load(Ordering::Acquire)).filter(|seq| *seq != 0);
        calling.map(|seq| seq - 1).fold(last, u64::min)
    }

    /// The program has waited for some streams; `upto` is what `waiting` told before.
    pub(crate) fn synchronised(&self, context: Context, which: Which, upto: u64) {
        let inner = self.lock();
        for stream in inner.streams.iter().filter(|stream| stream.is_one_of(context, which)) {
            stream.synchronise(upto.min(stream.issued.load(Ordering::Relaxed)));
        }
    }

    /// The program has waited for an event.
    pub(crate) fn event_reached(&self, event: usize) {
        let inner = self.lock();
        if let Some(recorded) = inner.events.get(&event)
            && let Some(known) = inner.known(recorded.stream)
        {
            known.synchronise(recorded.issued);
        }
    }

    /// Whether it is known what an event tells.
    pub(crate) fn is_recorded(&self, event: usize) -> bool {
        self.lock().events.contains_key(&event)
    }

    /// A stream is about to be made to wait for an event; `last` is the last ordinal so far.
    pub(crate) fn waits(&self, known: &Known, event: usize, last: u64) {
        let mut inner = self.lock();
        let Some(&recorded) = inner.events.get(&event) else { return };
        if recorded.stream != known.id {
            let waits = inner.waits.entry(known.id).or_default();
            if waits.len() >= MOST_WAITS {
                waits.pop_front();
            }
            let Recorded { stream: on, issued: until, last: recorded } = recorded;
            waits.push_back(Wait { after: last, on, until, recorded });
        }
    }
}

impl Known {
    /// Everything up to `seq` is done.
    pub(crate) fn synchronise(&self, seq: u64) {
        self.synchronised.fetch_max(seq, Ordering::Relaxed);
    }

    /// Whether any thread can ask for it: the per-thread default stream means another stream to each.
    pub(crate) fn is_askable(&self) -> bool {
        self.is_open() && self.handle != PER_THREAD
    }

    /// Whether the handle still means this stream.
    pub(crate) fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Relaxed)
    }

    fn is(&self, context: Context, stream: Stream, owner: i32) -> bool {
        let same = self.context == context && self.handle == stream && self.thread == owner;
        same && self.is_open()
    }

    fn is_one_of(&self, context: Context, which: Which) -> bool {
        match which {
            Which::All => self.context == context,
            Which::One(stream, thread) => self.is(context, stream, if stream == PER_THREAD { thread } else { 0 }),
        }
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}

impl Inner {
    fn find(&self, context: Context, stream: Stream, owner: i32) -> Option<&Arc<Known>> {
        self.streams.iter().rev().find(|s| s.is(context, stream, owner))
    }

    /// The stream of this ordinal, unless it is forgotten.
    fn known(&self, id: u32) -> Option<&Arc<Known>> {
        self.streams.binary_search_by_key(&id, |known| known.id).ok().map(|at| &self.streams[at])
    }

    /// Forgets the slots that no thread has at hand and in which everything is done, those of a context that is gone, and
    /// destroyed streams without any slot.
    fn forget_what_is_over(&mut self, words: &Words) {
        let Self { streams, slots, contexts, past, left, waits, .. } = self;
        slots.retain(|slot| {
            let known = &slot.stream;
            // With the lock held nobody else can take it up, and what the last who had it did is seen.
            let is_unused = Arc::strong_count(slot) == 1;
            fence(Ordering::Acquire);
            let is_over = is_unused && slot.is_done();
            let is_lost = !known.is_open() && !contexts.iter().any(|seen| seen.context == known.context);
            if !is_over && !is_lost {
                return true;
            }
            known.synchronise(slot.completed());
            let threads = left.entry(known.id).or_default();
            if threads.len() >= MOST_LEFT {
                threads.pop_front();
            }
            threads
                .push_back((slot.thread, if is_over { slot.last.load(Ordering::Relaxed) } else { slot.completed() }));
            if let Some(word) = slot.word.filter(|_| is_over) {
                words.give_back(word);
            }
            false
        });
        let used: HashSet<u32> = slots.iter().map(|slot| slot.stream.id).collect();
        streams.retain(|known| {
            let stays = known.is_open() || used.contains(&known.id);
            if !stays {
                left.remove(&known.id);
                waits.remove(&known.id);
                past.push_back(Arc::clone(known));
            }
            stays
        });
        past.drain(..past.len().saturating_sub(MOST_PAST));
    }

    /// How far a stream has come: the furthest of its threads' markers, or what the program has waited for.
    pub(crate) fn completed(&self, stream: u32) -> u64 {
        let slots = self.slots.iter().filter(|slot| slot.stream.id == stream).map(|slot| slot.completed());
        let waited = self.known(stream).map_or(0, |known| known.synchronised.load(Ordering::Relaxed));
        slots.max().unwrap_or(0).max(waited)
    }

    /// Whether something was launched on a stream, or is about to be, of which nobody knows that it is done.
    pub(crate) fn is_open_ended(&self, stream: &Known) -> bool {
        let calling = |slot: &Slot| slot.stream.id == stream.id && slot.calling.load(Ordering::Relaxed) != 0;
        self.completed(stream.id) < stream.issued.load(Ordering::Relaxed) || self.slots.iter().any(|slot| calling(slot))
    }

    /// How far each of a stream's threads has come.
    pub(crate) fn threads(&self, stream: u32) -> Vec<(i32, u64)> {
        let slots = self.slots.iter().filter(|slot| slot.stream.id == stream);
        let left = self.left.get(&stream).into_iter().flatten().copied();
        slots.map(|slot| (slot.thread, slot.completed())).chain(left).collect()
    }

    /// The last markers that were set behind a stream's launches, one a thread; they may have been written or not.
    pub(crate) fn marked(&self, stream: u32) -> Vec<u64> {
        let slots = self.slots.iter().filter(|slot| slot.stream.id == stream);
        slots.map(|slot| slot.marked.load(Ordering::Acquire)).collect()
    }

    /// What a stream was made to wait for, lately.
    pub(crate) fn waits_of(&self, stream: u32) -> Vec<Wait> {
        self.waits.get(&stream).map(|waits| waits.iter().copied().collect()).unwrap_or_default()
    }
}
