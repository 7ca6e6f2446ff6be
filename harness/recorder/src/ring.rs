//! The last launches of the process.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::autograd::Current;
use crate::ops::Kind;
use crate::python::Frames;
use crate::symbols::Symbol;

/// Return addresses, innermost first; zeros behind the last.
pub(crate) type Addresses = [usize; 20];

/// Where a launch was made.
#[derive(Clone, Copy)]
pub(crate) enum Stack {
    /// Frames of the interpreter.
    Python(Frames),
    /// Return addresses, where the thread has no interpreter frames.
    Native(Addresses),
}

/// A launch as it is noted before the call.
#[derive(Clone, Copy)]
pub(crate) struct Launch {
    /// Ordinal in the process, from 1.
    pub(crate) seq: u64,
    /// The last ordinal given out when the call returned: launches up to it may have overtaken this one. 0 while it runs:
    /// the device can be quicker than the call.
    pub(crate) returned: u64,
    pub(crate) kind: Kind,
    /// A marker was set between what came before it in its stream and it.
    pub(crate) fenced: bool,
    /// A marker was set behind it.
    pub(crate) marked: bool,
    pub(crate) symbol: Symbol,
    /// The driver call, for what is no kernel.
    pub(crate) call: &'static str,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    /// Index in the table of streams.
    pub(crate) stream: u32,
    /// Thread id of the kernel.
    pub(crate) thread: i32,
    /// Its ordinal among the kernels of the process, from 1; 0 for what is none, and where markers are set.
    pub(crate) nth_kernel: u64,
    /// The executable graph; 0 for what is none.
    pub(crate) graph: usize,
    pub(crate) stack: Stack,
    /// The autograd node that was being evaluated, and the sequence number that the next one gets.
    pub(crate) autograd: Current,
}

impl Launch {
    /// A kernel without frames, in stream 0.
    #[cfg(test)]
    pub(crate) fn of_test(seq: u64) -> Self {
        Self {
            seq,
            returned: seq,
            kind: Kind::Kernel,
            fenced: false,
            marked: false,
            symbol: Symbol::default(),
            call: "",
            grid: [1; 3],
            block: [1; 3],
            stream: 0,
            thread: 1,
            nth_kernel: 0,
            graph: 0,
            stack: Stack::Native([0; 20]),
            autograd: Current::default(),
        }
    }

    /// Whether the two calls overlapped in time, so that their order in the stream is not known.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let (first, second) = if self.seq < other.seq { (self, other) } else { (other, self) };
        first.thread != second.thread && (first.returned == 0 || first.returned >= second.seq)
    }
}

struct Entry {
    /// The launch that the entry holds; 0 while it is being written.
    seq: AtomicU64,
    /// [`Launch::returned`] and [`Launch::marked`], or [`FAILED`]: what is known only after the call.
    outcome: AtomicU64,
    launch: UnsafeCell<std::mem::MaybeUninit<Launch>>,
}

/// The bit of [`Entry::outcome`] for a launch with a marker behind it.
const MARKED: u64 = 1 << 63;
/// A launch that the driver refused: nothing was put into the stream.
const FAILED: u64 = u64::MAX;

/// A ring of launches that every thread writes and a report reads.
pub(crate) struct Ring {
    entries: Box<[Entry]>,
    next: AtomicU64,
}

// SAFETY: an entry is written by the one thread that drew its ordinal, and read by others only between two looks at `seq`
// that agree (`get`), so a copy that was torn by a writer is thrown away.
unsafe impl Sync for Ring {}

impl Ring {
    /// `capacity` is a power of two. The memory is touched only as it is used.
    pub(crate) fn new(capacity: usize) -> Self {
        let layout = Layout::array::<Entry>(capacity).expect("checked by Config");
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc_zeroed(layout) };
        if memory.is_null() {
            handle_alloc_error(layout);
        }
        #[expect(clippy::cast_ptr_alignment, reason = "the layout is that of entries")]
        let first = memory.cast::<Entry>();
        // SAFETY: zero is a valid `Entry` (ordinal 0, nothing written), and the allocation holds `capacity` of them.
        let entries = unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(first, capacity)) };
        Self { entries, next: AtomicU64::new(0) }
    }

    /// The next ordinal. Who sees it in [`Ring::last`] sees what the thread did before.
    pub(crate) fn draw(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Release) + 1
    }

    /// The last ordinal that was drawn.
    pub(crate) fn last(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    /// Bytes that it can come to hold.
    pub(crate) fn bytes(&self) -> usize {
        std::mem::size_of_val::<[Entry]>(&self.entries)
    }

    /// Launches that can be held.
    pub(crate) fn capacity(&self) -> u64 {
        self.entries.len() as u64
    }

    fn entry(&self, seq: u64) -> &Entry {
        // The capacity is a power of two, so the truncation of a cast changes nothing.
        #[expect(clippy::cast_possible_truncation, reason = "masked")]
        let at = seq as usize & (self.entries.len() - 1);
        &self.entries[at]
    }

    /// Notes a launch under its ordinal, which the calling thread drew.
    pub(crate) fn put(&self, launch: Launch) {
        let entry = self.entry(launch.seq);
        entry.seq.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        // SAFETY: only this thread has this ordinal; one that drew an ordinal a whole ring later and overtook us in between
        // leaves a torn launch behind, of plain data, under an ordinal that is checked by the reader.
        unsafe { (*entry.launch.get()).write(launch) };
        entry.outcome.store(0, Ordering::Relaxed);
        entry.seq.store(launch.seq, Ordering::Release);
    }

    /// The call returned: other launches up to `returned` may have been made meanwhile.
    pub(crate) fn returned(&self, seq: u64, returned: u64, marked: bool) {
        self.outcome(seq, returned | if marked { MARKED } else { 0 });
    }

    /// The driver refused the launch.
    pub(crate) fn failed(&self, seq: u64) {
        self.outcome(seq, FAILED);
    }

    fn outcome(&self, seq: u64, outcome: u64) {
        let entry = self.entry(seq);
        if entry.seq.load(Ordering::Relaxed) == seq {
            entry.outcome.store(outcome, Ordering::Release);
        }
    }

    /// A copy of a launch; `None` if it was overwritten, is being written, or failed.
    pub(crate) fn get(&self, seq: u64) -> Option<Launch> {
        let entry = self.entry(seq);
        if seq == 0 || entry.seq.load(Ordering::Acquire) != seq {
            return None;
        }
        // SAFETY: the memory is ours; if a writer was in it meanwhile, the second look below says so and the copy is dropped
        // without having been read.
        let copy = unsafe { std::ptr::read_volatile(entry.launch.get()) };
        let outcome = entry.outcome.load(Ordering::Acquire);
        fence(Ordering::Acquire);
        if entry.seq.load(Ordering::Relaxed) != seq || outcome == FAILED {
            return None;
        }
        // SAFETY: the ordinal did not change, so the entry was whole.
        let launch = unsafe { copy.assume_init() };
        Some(Launch { returned: outcome & !MARKED, marked: outcome & MARKED != 0, ..launch })
    }

    /// The launches that are still there, in order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = Launch> + '_ {
        let last = self.last();
        let first = last.saturating_sub(self.capacity()) + 1;
        (first..=last).filter_map(|seq| self.get(seq))
    }
}
