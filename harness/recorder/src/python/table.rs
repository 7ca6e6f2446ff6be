//! The code objects that were seen, by number.
//!
//! All of it is append-only and without locks: a walk can come from any thread at any time, and a process can fork while
//! another of its threads is in here. Nothing is ever freed, and both the count and the bytes are bounded.

#![expect(clippy::cast_possible_truncation, reason = "hashes, of which any bits will do")]

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::code::Code;
use super::lines::LineTable;

/// Code objects that are kept. A large training program has some thousands.
pub(super) const CAPACITY: usize = 1 << 16;

/// Bytes of copies that are kept.
const BYTES: usize = 64 << 20;

/// What is known of a code object at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    /// Its number; 0 where there was no more room.
    pub(super) id: u32,
    /// Whether the file is the user's own.
    pub(super) own: bool,
    /// Whether it is of no interest to anyone.
    pub(super) hidden: bool,
}

/// A code object, and whether its file is the user's own.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The copy.
    pub(super) code: Code,
    /// The format of its line table.
    pub(super) line_table: LineTable,
    /// See [`super::files::is_own`].
    pub(super) own: bool,
}

/// The numbers, and the way from a live code object to its number.
pub(super) struct Table {
    /// Numbers given, the first is 1. It can exceed the capacity a little.
    given: AtomicU32,
    /// Bytes of copies.
    bytes: AtomicUsize,
    /// Entries by number.
    entries: [AtomicPtr<Entry>; CAPACITY + 1],
    /// Numbers by content, so that code that is compiled again and again has one entry: open addressing.
    by_content: [AtomicU32; 2 * CAPACITY],
    /// Numbers by identity: each set is a cache line.
    by_identity: [Set; SETS],
}

#[repr(align(64))]
struct Set([AtomicU64; WAYS]);

const WAYS: usize = 8;
const SETS: usize = 2 * CAPACITY / WAYS;

/// A slot of [`Table::by_identity`]: the highest 46 bits of the identity, the flag, 17 bits of number.
const ID_BITS: u32 = 17;
const OWN: u64 = 1 << ID_BITS;
const TAG: u64 = !(2 * OWN - 1);
const ID: u64 = OWN - 1;
/// Stands for number 0, as an empty slot has that.
const NO_ROOM: u64 = ID;
/// Stands for a code object that is not shown.
const HIDDEN: u64 = ID - 1;

// The index of a set must come from bits that are not in the tag.
const _: () = assert!(SETS as u64 <= 2 * OWN && (CAPACITY as u64) < HIDDEN);

impl Table {
    #[expect(clippy::large_stack_arrays, reason = "evaluated when it is compiled")]
    pub(super) const fn new() -> Self {
        Self {
            given: AtomicU32::new(0),
            bytes: AtomicUsize::new(0),
            entries: [const { AtomicPtr::new(std::ptr::null_mut()) }; CAPACITY + 1],
            by_content: [const { AtomicU32::new(0) }; 2 * CAPACITY],
            by_identity: [const { Set([const { AtomicU64::new(0) }; WAYS]) }; SETS],
        }
    }

    /// What is known of the code object with this identity: a hash of its address and of what tells it from others that
    /// were at this address before.
    #[inline(always)]
    pub(super) fn find(&self, identity: u64) -> Option<Seen> {
        let set = &self.by_identity[Self::set(identity)];
        for slot in &set.0 {
            let slot = slot.load(Ordering::Acquire);
            if (slot ^ identity) & TAG == 0 && slot & ID != 0 {
                let id = slot & ID;
                let number = if id < HIDDEN { id as u32 } else { 0 };
                return Some(Seen { id: number, own: slot & OWN != 0, hidden: id == HIDDEN });
            }
        }
        None
    }

    #[inline(always)]
    fn set(identity: u64) -> usize {
        (identity % SETS as u64) as usize
    }

    /// Notes the code object with this identity.
    pub(super) fn add(&self, identity: u64, code: Code, line_table: LineTable, own: bool) -> Seen {
        let id = self.number(Entry { code, line_table, own });
        self.remember(identity, if id == 0 { NO_ROOM } else { u64::from(id) }, own);
        Seen { id, own, hidden: false }
    }

    /// Notes that the code object with this identity is not shown.
    pub(super) fn hide(&self, identity: u64) -> Seen {
        self.remember(identity, HIDDEN, false);
        Seen { id: 0, own: false, hidden: true }
    }

    fn remember(&self, identity: u64, id: u64, own: bool) {
        let slot = (identity & TAG) | (u64::from(own) * OWN) | id;
        let set = &self.by_identity[Self::set(identity)];
        let free = set.0.iter().any(|s| s.compare_exchange(0, slot, Ordering::AcqRel, Ordering::Relaxed).is_ok());
        if !free {
            // Whatever goes is found again by its content.
            set.0[(identity >> 61) as usize % WAYS].store(slot, Ordering::Release);
        }
    }

    /// The number of an equal entry, or a new one; 0 where there is no more room.
    fn number(&self, entry: Entry) -> u32 {
        let start = BuildHasherDefault::<DefaultHasher>::default().hash_one(&entry.code) as usize;
        let places = || (0..self.by_content.len()).map(move |n| &self.by_content[(start + n) % self.by_content.len()]);
        for place in places() {
            match place.load(Ordering::Acquire) {
                0 => break,
                there if self.entry(there) == Some(&entry) => return there,
                _ => {}
            }
        }
        let Some(id) = self.claim(&entry) else { return 0 };
        // Never freed: another thread can look at it at any time.
        let entry: &'static Entry = Box::leak(Box::new(entry));
        self.entries[id as usize].store(std::ptr::from_ref(entry).cast_mut(), Ordering::Release);
        for place in places() {
            match place.compare_exchange(0, id, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return id,
                // Another thread was faster; this number stays unused.
                Err(there) if self.entry(there) == Some(entry) => return there,
                Err(_) => {}
            }
        }
        id
    }

    /// A number for this entry, if it has room.
    fn claim(&self, entry: &Entry) -> Option<u32> {
        let size = size_of::<Entry>() + entry.code.file.len() + entry.code.name.len() + entry.code.lines.len();
        let full = self.given.load(Ordering::Relaxed) as usize >= CAPACITY
            || self.bytes.load(Ordering::Relaxed).saturating_add(size) > BYTES;
        if full {
            return None;
        }
        let id = self.given.fetch_add(1, Ordering::Relaxed) + 1;
        if id as usize > CAPACITY {
            return None;
        }
        self.bytes.fetch_add(size, Ordering::Relaxed);
        Some(id)
    }

    /// The entry with this number.
    pub(super) fn entry(&self, id: u32) -> Option<&'static Entry> {
        let entry = self.entries.get(id as usize)?.load(Ordering::Acquire);
        // SAFETY: null, or an entry that was complete before its address was stored, and that is never freed or changed.
        unsafe { entry.as_ref() }
    }

    /// Bytes of copies that are held.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_wrap, clippy::cast_sign_loss, reason = "small numbers")]
mod tests {
    use super::*;

    fn code(file: &str, first_line: i32) -> Code {
        Code { file: file.into(), name: "f".into(), first_line, lines: [0x80, 0].into() }
    }

    /// On the heap from the start: it is too large for a stack.
    fn table() -> Box<Table> {
        // SAFETY: zeros are a table of empty slots.
        unsafe { Box::<Table>::new_zeroed().assume_init() }
    }

    #[test]
    fn found_by_identity_and_by_content() {
        let table = table();
        assert_eq!(table.find(0), None);
        let a = table.add(1 << 40, code("a.py", 1), LineTable::Locations, true);
        assert_eq!(a, Seen { id: 1, own: true, hidden: false });
        assert_eq!(table.find(1 << 40), Some(a));
        assert_eq!(table.find(1 << 41), None);
        let b = table.add(1 << 41, code("b.py", 1), LineTable::Locations, false);
        assert_eq!(table.find(1 << 41), Some(b));
        assert_eq!((b.id, b.own), (2, false));
        assert_eq!(
            table.add(3 << 40, code("a.py", 1), LineTable::Locations, true).id,
            1,
            "the same again, elsewhere in memory"
        );
        assert_eq!(table.entry(2).map(|e| &e.code), Some(&code("b.py", 1)));
        assert_eq!(table.entry(3), None);
        assert_eq!(table.find(1 << 42), None);
        assert_eq!(table.hide(1 << 42), Seen { id: 0, own: false, hidden: true });
        assert_eq!(table.find(1 << 42), Some(Seen { id: 0, own: false, hidden: true }));
        assert_eq!(table.entry(u32::MAX), None);
    }

    #[test]
    fn a_full_set_forgets_and_finds_again() {
        let table = table();
        let many = 3 * WAYS as u64;
        for n in 0..many {
            table.add(n << 58 | n << 20, code("a.py", n as i32), LineTable::Locations, true);
        }
        let found = (0..many).filter(|n| table.find(n << 58 | n << 20).is_some()).count();
        assert!((1..=WAYS).contains(&found), "{found}");
        assert_eq!(table.add(5, code("a.py", 7), LineTable::Locations, true).id, 8);
    }

    #[test]
    fn bounded() {
        let table = table();
        for n in 0..CAPACITY + 10 {
            let seen = table.add((n as u64) << 20, code("a.py", n as i32), LineTable::Locations, true);
            assert_eq!(seen.id as usize, if n < CAPACITY { n + 1 } else { 0 });
        }
        let last = (CAPACITY as u64 + 9) << 20;
        assert_eq!(
            table.find(last),
            Some(Seen { id: 0, own: true, hidden: false }),
            "what has no room is remembered as such"
        );
        assert_eq!(table.add(last, code("a.py", 9), LineTable::Locations, true).id, 10);
    }

    #[test]
    fn bounded_bytes() {
        let table = table();
        let large = |n| Code { lines: vec![0; 1 << 20].into(), ..code("a.py", n) };
        let kept = (0..100).filter(|n| table.add(*n as u64, large(*n), LineTable::Locations, true).id != 0).count();
        assert_eq!(kept, 63);
        assert!(table.bytes() <= BYTES);
    }

    #[test]
    fn many_threads() {
        let table = table();
        std::thread::scope(|scope| {
            for t in 0..4_u64 {
                let table = &table;
                scope.spawn(move || {
                    for n in 0..2000_u64 {
                        let identity = (n << 4 | t).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                        let seen = table.add(identity, code("a.py", n as i32), LineTable::Locations, true);
                        assert_eq!(table.entry(seen.id).map(|e| e.code.first_line), Some(n as i32));
                    }
                });
            }
        });
        for n in 0..2000_u64 {
            let ids: Vec<_> = (0..4_u64)
                .filter_map(|t| table.find((n << 4 | t).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
                .map(|s| s.id)
                .collect();
            assert!(ids.windows(2).all(|w| w[0] == w[1]), "{ids:?}");
        }
    }
}
