//! Frames of the calling thread, read from CPython's memory without the GIL.
//!
//! A launch can come from a thread that does not hold the GIL, and must not wait for it: so no function of the C API is
//! called that needs it. A thread's own frames hold still while it is in a call from the innermost of them, and each keeps
//! its code object alive, so they can be read as they are. What is read is checked first: the first walk of a process, and
//! each code object that is seen for the first time, go through the kernel (a bad address is an error then, not a crash),
//! with the types of all objects compared. After the first contradiction no frame is read any more.
//!
//! A frame is kept as the number of its code object and the place in its bytecode. The line is looked up when it is
//! needed, in copies, when the interpreter may be gone.

#![expect(
    clippy::inline_always,
    reason = "a walk is one loop of loads, also in a build that does not optimise across crates"
)]

mod code;
mod files;
mod layout;
mod lines;
mod memory;
mod table;

use std::sync::atomic::{AtomicU8, Ordering};

use self::code::{MANY, Mismatch, Objects, Types};
use self::layout::{CODE_TAG, Layout, NO_CODE, NoLayout, PUBLISHED_SIZE};
use self::memory::{Careful, Direct, Libraries, Memory, Whose, symbol};
use self::table::{Seen, Table};
use crate::format;

pub use self::files::is_own;
pub use self::lines::{LineTable, line, lines};

/// Frames that are kept of a walk.
pub const FRAMES: usize = 20;

/// The innermost frames are kept wherever their files are.
pub const INNERMOST: usize = 4;

/// Frames that are looked at in a walk.
const DEPTH: usize = 1024;

/// A process has one interpreter's worth of code objects, however many [`Python`]s look at it.
static TABLE: Table = Table::new();

/// How frames are read here.
#[derive(Debug)]
pub struct Python {
    version: u32,
    reader: Result<Reader, NoReader>,
    state: AtomicU8,
}

/// Values of [`Python::state`]: this one, [`CHECKED`], or a [`Mismatch`].
const UNCHECKED: u8 = 0;
const CHECKED: u8 = u8::MAX;

/// What is needed to read frames.
#[derive(Debug)]
struct Reader {
    layout: Layout,
    published: bool,
    types: Types,
    /// Address of `_PyRuntime`.
    runtime: usize,
    this_thread: unsafe extern "C" fn() -> usize,
    main_interpreter: unsafe extern "C" fn() -> usize,
}

/// Why frames cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NoReader {
    Layout(NoLayout),
    /// The interpreter does not export what it should.
    Symbols,
}

impl From<NoLayout> for NoReader {
    fn from(why: NoLayout) -> Self {
        Self::Layout(why)
    }
}

/// A frame: enough to find its line later.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RawFrame {
    /// Number of the code object; 0 where too many were seen to remember.
    pub code: u32,
    /// Place in its bytecode, in bytes.
    pub lasti: i32,
}

/// Frames, innermost first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Frames {
    /// How many.
    pub len: u8,
    /// Whether there can have been more frames of the user's own files.
    pub truncated: bool,
    /// They; the rest is unused.
    pub frames: [RawFrame; FRAMES],
}

impl Frames {
    /// Those that are there.
    pub fn as_slice(&self) -> &[RawFrame] {
        self.frames.get(..usize::from(self.len)).unwrap_or(&self.frames)
    }

    fn clear(&mut self) {
        self.len = 0;
        self.truncated = false;
    }
}

impl Python {
    /// Looks for an interpreter in this process; `None` without one. Of an interpreter that cannot be read the walks are
    /// empty, and [`description`](Self::description) says why.
    pub fn detect() -> Option<Self> {
        [Some(Libraries::GLOBAL), Libraries::libpython()].into_iter().flatten().find_map(Self::detect_in)
    }

    fn detect_in(libraries: Libraries) -> Option<Self> {
        let this_thread = symbol(libraries, c"PyGILState_GetThisThreadState")?;
        let version = version(libraries)?;
        let reader = Reader::new(libraries, version, this_thread);
        Some(Self { version, reader, state: AtomicU8::new(UNCHECKED) })
    }

    /// `CPython 3.12.3, frames by table`, `CPython 3.13.0, frames by published debug offsets`, or the version and why only
    /// native frames can be read.
    pub fn description(&self) -> String {
        let [major, minor, micro, level] = self.version.to_be_bytes();
        let level = match (level >> 4, level & 0xf) {
            (0xa, n) => format!("a{n}"),
            (0xb, n) => format!("b{n}"),
            (0xc, n) => format!("rc{n}"),
            _ => String::new(),
        };
        let how = match (&self.reader, self.mismatch()) {
            (Err(NoReader::Layout(NoLayout::TooOld)), _) => ": 3.10 and later can be read, native frames only".into(),
            (Err(NoReader::Layout(NoLayout::Unknown)), _) => ": unknown version, native frames only".into(),
            (Err(NoReader::Layout(NoLayout::Contradiction)), _) => {
                ": its debug offsets contradict its version, native frames only".into()
            }
            (Err(NoReader::Symbols), _) => ": it does not export its types, native frames only".into(),
            (Ok(_), Some(why)) => format!(": not laid out as expected ({}), native frames only", why.description()),
            (Ok(Reader { published: true, .. }), None) => ", frames by published debug offsets".into(),
            (Ok(_), None) => ", frames by table".into(),
        };
        format!("CPython {major}.{minor}.{micro}{level}{how}")
    }

    /// Whether walks yield frames, as far as is known by now.
    pub fn readable(&self) -> bool {
        self.reader.is_ok() && self.mismatch().is_none()
    }

    fn mismatch(&self) -> Option<Mismatch> {
        let state = self.state.load(Ordering::Relaxed);
        Mismatch::ALL.into_iter().find(|m| *m as u8 == state)
    }

    /// The frames of the calling thread, innermost first: the [`INNERMOST`] ones, and those further out that are in files
    /// of the user's own. None in a thread that never ran Python.
    ///
    /// Needs no GIL, takes no lock, and allocates only for code objects that it has not seen.
    pub fn walk(&self, into: &mut Frames) {
        into.clear();
        let Ok(reader) = &self.reader else { return };
        let state = self.state.load(Ordering::Relaxed);
        let walked = match state {
            CHECKED => {
                // SAFETY: the layout was checked, and the frames are the calling thread's own.
                let memory = unsafe { Direct::new() };
                reader.own_thread(&memory, into)
            }
            UNCHECKED => reader.own_thread(&Careful { whose: Whose::Own }, into),
            _ => return,
        };
        let next = match walked {
            Err(mismatch) => {
                into.clear();
                mismatch as u8
            }
            Ok(()) if into.len > 0 => CHECKED,
            Ok(()) => return,
        };
        if next != state {
            // The first contradiction stays.
            let _ = self.state.compare_exchange(state, next, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// The frames of the interpreter's main thread, from any thread, by the same rule. It may run meanwhile: then frames
    /// can be missing, or be some that have just returned. About 2 µs a frame.
    pub fn walk_main_thread(&self, into: &mut Frames) {
        into.clear();
        if let (Ok(reader), true) = (&self.reader, self.readable()) {
            // What was read before a contradiction stays: here it only says that the thread was faster.
            let _ = reader.main_thread(&Careful { whose: Whose::Foreign }, into);
        }
    }

    /// File, line and function of a frame, from copies: needs no interpreter any more.
    pub fn resolve(&self, frame: RawFrame) -> format::Frame {
        let Some(entry) = TABLE.entry(frame.code) else {
            return format::Frame { file: "?".into(), line: 0, function: "?".into(), user: false };
        };
        format::Frame {
            file: entry.code.file.to_string(),
            line: line(entry.line_table, &entry.code.lines, entry.code.first_line, frame.lasti).unwrap_or(0),
            function: entry.code.name.to_string(),
            user: entry.own,
        }
    }

    /// Bytes of copies of code objects that are held.
    pub fn bytes(&self) -> usize {
        TABLE.bytes()
    }
}

/// `PY_VERSION_HEX` of the interpreter.
fn version(libraries: Libraries) -> Option<u32> {
    // Since 3.11.
    if let Some(address) = symbol(libraries, c"Py_Version") {
        // SAFETY: a constant `unsigned long` (C API, "API and ABI versioning").
        return u32::try_from(unsafe { *(address as *const libc::c_ulong) }).ok();
    }
    let address = symbol(libraries, c"Py_GetVersion")?;
    // SAFETY: the C API's function of this name, which can be called at any time and without the GIL.
    let text = unsafe {
        let get: unsafe extern "C" fn() -> *const libc::c_char = std::mem::transmute(address);
        std::ffi::CStr::from_ptr(get())
    };
    parse_version(text.to_str().ok()?)
}

/// `3.10.13 (main, …)`, `3.10.0rc2 …`.
fn parse_version(text: &str) -> Option<u32> {
    let text = text.split([' ', '+']).next()?;
    let mut parts = text.splitn(3, '.');
    let (major, minor, micro) = (parts.next()?.parse::<u8>().ok()?, parts.next()?.parse::<u8>().ok()?, parts.next()?);
    let digits = micro.find(|c: char| !c.is_ascii_digit()).unwrap_or(micro.len());
    let (micro, level) = micro.split_at(digits);
    let level = match level.trim_end_matches(|c: char| c.is_ascii_digit()) {
        "a" => 0xa0,
        "b" => 0xb0,
        "rc" => 0xc0,
        _ => 0xf0,
    };
    Some(u32::from_be_bytes([major, minor, micro.parse().ok()?, level]))
}

impl Reader {
    fn new(libraries: Libraries, version: u32, this_thread: usize) -> Result<Self, NoReader> {
        let need = |name| symbol(libraries, name).ok_or(NoReader::Symbols);
        let table = Layout::table(version).transpose()?;
        let runtime = need(c"_PyRuntime")?;
        let (layout, published) = if let Some(layout) = table {
            (layout, false)
        } else {
            let mut offsets = vec![0; PUBLISHED_SIZE];
            let read = Careful { whose: Whose::Own }.bytes(runtime, &mut offsets);
            read.ok_or(NoReader::Layout(NoLayout::Contradiction))?;
            (Layout::published(version, &offsets)?, true)
        };
        let types =
            Types { code: need(c"PyCode_Type")?, text: need(c"PyUnicode_Type")?, bytes: need(c"PyBytes_Type")? };
        let main_interpreter = need(c"PyInterpreterState_Main")?;
        // SAFETY: the C API's functions of these names. Both take nothing and return a pointer.
        let (this_thread, main_interpreter) = unsafe {
            type Get = unsafe extern "C" fn() -> usize;
            (std::mem::transmute::<usize, Get>(this_thread), std::mem::transmute::<usize, Get>(main_interpreter))
        };
        Ok(Self { layout, published, types, runtime, this_thread, main_interpreter })
    }

    /// The frames of the calling thread.
    #[inline(always)]
    fn own_thread<M: Memory>(&self, memory: &M, into: &mut Frames) -> Result<(), Mismatch> {
        // SAFETY: it needs neither the GIL nor an interpreter: it looks a value of the thread up, which is null before an
        // interpreter was initialised, after the last was finalised, and in threads that never ran Python.
        let thread = unsafe { (self.this_thread)() };
        if thread == 0 {
            return Ok(());
        }
        // While a thread finalises the interpreter, the states of the others are freed under them.
        let finalizing = memory.word(field(self.runtime, self.layout.finalizing)).ok_or(Mismatch::Address)?;
        if finalizing != 0 && finalizing != thread {
            return Ok(());
        }
        self.frames(memory, thread, into)
    }

    /// The frames of the main thread.
    fn main_thread(&self, memory: &Careful, into: &mut Frames) -> Result<(), Mismatch> {
        let layout = &self.layout;
        // SAFETY: it reads a global variable: null before and after the interpreter's life.
        let interpreter = unsafe { (self.main_interpreter)() };
        if interpreter == 0 {
            return Ok(());
        }
        // The newest is the first, so that of the main thread is the last, unless the process forked in another one.
        let process = std::process::id() as usize;
        let mut thread = memory.word(field(interpreter, layout.threads_head)).ok_or(Mismatch::Address)?;
        for _ in 0..DEPTH {
            if thread == 0 {
                break;
            }
            if let Some(at) = layout.thread_native_id
                && memory.word(field(thread, at)) == Some(process)
            {
                break;
            }
            match memory.word(field(thread, layout.thread_next)).ok_or(Mismatch::Address)? {
                0 => break,
                next => thread = next,
            }
        }
        if thread == 0 { Ok(()) } else { self.frames(memory, thread, into) }
    }

    /// The frames of a thread, from its state.
    #[inline(always)]
    fn frames<M: Memory>(&self, memory: &M, thread: usize, into: &mut Frames) -> Result<(), Mismatch> {
        let layout = &self.layout;
        let word = |address: usize| memory.word(address).ok_or(Mismatch::Address);
        let mut frame = word(field(thread, layout.thread_frame))?;
        if let Some(innermost) = layout.cframe_frame {
            frame = if frame == 0 { 0 } else { word(field(frame, innermost))? };
        }
        let mut len = 0;
        for _ in 0..DEPTH {
            if frame == 0 {
                into.len = count(len);
                return Ok(());
            }
            if len == FRAMES {
                break;
            }
            let has_code = match layout.frame_owner {
                Some(owner) => memory.byte(field(frame, owner)).ok_or(Mismatch::Address)? < NO_CODE,
                None => true,
            };
            if has_code {
                let code = word(field(frame, layout.frame_code))? & !CODE_TAG;
                let seen = self.seen(memory, code)?;
                if !seen.hidden && (seen.own || len < INNERMOST) {
                    into.frames[len] = RawFrame { code: seen.id, lasti: self.place(memory, frame, code)? };
                    len += 1;
                }
            }
            frame = word(field(frame, layout.frame_previous))?;
        }
        into.len = count(len);
        into.truncated = true;
        Ok(())
    }

    /// The place in the bytecode that a frame is at, in bytes.
    #[inline(always)]
    fn place<M: Memory>(&self, memory: &M, frame: usize, code: usize) -> Result<i32, Mismatch> {
        let layout = &self.layout;
        if !layout.instruction_is_address {
            let ordinal = memory.int(field(frame, layout.frame_instruction)).ok_or(Mismatch::Address)?;
            return Ok(ordinal.wrapping_mul(2));
        }
        let instruction = memory.word(field(frame, layout.frame_instruction)).ok_or(Mismatch::Address)?;
        let start = match (layout.code_copies, layout.frame_copy) {
            (Some(copies), Some(copy)) => Self::copy(memory, field(code, copies), field(frame, copy))?,
            _ => field(code, layout.code_start),
        };
        Ok(instruction.wrapping_sub(start).cast_signed().try_into().unwrap_or(i32::MAX))
    }

    /// The start of the copy of the bytecode that a frame runs: an element of `_PyCodeArray {size, entries[]}`.
    #[cold]
    fn copy<M: Memory>(memory: &M, copies: usize, copy: usize) -> Result<usize, Mismatch> {
        let copies = memory.word(copies).ok_or(Mismatch::Address)?;
        let copy = memory.int(copy).ok_or(Mismatch::Address)?;
        let size = memory.word(copies).ok_or(Mismatch::Address)?;
        match usize::try_from(copy) {
            Ok(n) if n < size => memory.word(field(copies, 8 + 8 * n)).ok_or(Mismatch::Address),
            _ => Err(Mismatch::Length),
        }
    }

    /// What is known of this code object; a new one is read first.
    #[inline(always)]
    fn seen<M: Memory>(&self, memory: &M, code: usize) -> Result<Seen, Mismatch> {
        let identity = self.identity(memory, code)?;
        if let Some(seen) = TABLE.find(identity.addresses) {
            return Ok(seen);
        }
        if identity.sure {
            return self.learn(identity, code);
        }
        let content = self.content(memory, code, identity)?;
        match TABLE.find(content) {
            Some(seen) => Ok(seen),
            None => self.learn(identity, code),
        }
    }

    #[cold]
    #[inline(never)]
    fn learn(&self, identity: Identity, address: usize) -> Result<Seen, Mismatch> {
        let memory = &Careful { whose: Whose::Own };
        let content = self.content(memory, address, identity)?;
        let code = Objects { memory, layout: &self.layout, types: &self.types }.code(address)?;
        // Another thread's can have been replaced meanwhile.
        let after = self.identity(memory, address)?;
        if after != identity || self.content(memory, address, after)? != content {
            return Err(Mismatch::NotCode);
        }
        if code.is_trampoline() {
            return Ok(TABLE.hide(identity.addresses));
        }
        let own = is_own(&code.file);
        // Libraries are not compiled again and again: for them, the addresses will do.
        let identity = if own && !identity.sure { content } else { identity.addresses };
        Ok(TABLE.add(identity, code, self.layout.line_table, own))
    }

    /// What tells this code object from others.
    #[inline(always)]
    fn identity<M: Memory>(&self, memory: &M, code: usize) -> Result<Identity, Mismatch> {
        let layout = &self.layout;
        let word = |address: usize| memory.word(address).ok_or(Mismatch::Address);
        if code == 0 {
            return Err(Mismatch::NotCode);
        }
        let (file, name) = (word(field(code, layout.code_file))?, word(field(code, layout.code_name))?);
        let lines = word(field(code, layout.code_lines))?;
        let int =
            |offset| memory.int(field(code, offset)).map(|i| u64::from(i.cast_unsigned())).ok_or(Mismatch::Address);
        let first_line = int(layout.code_first_line)?;
        let version = match layout.code_version {
            Some(at) => int(at)?,
            None => 0,
        };
        let names = fold(file as u64 ^ SEEDS[0], name as u64 ^ SEEDS[1]);
        let lines = fold(lines as u64 ^ SEEDS[2], (version << 32 | first_line) ^ SEEDS[3]);
        Ok(Identity { addresses: fold(names ^ lines ^ code as u64, SEEDS[4]), sure: version != 0 })
    }

    /// A hash of the identity, the names and the line table. Without a version, code that is compiled, run and freed again
    /// and again can have the very addresses of its predecessor, those of its names and its line table included.
    #[inline(always)]
    fn content<M: Memory>(&self, memory: &M, code: usize, identity: Identity) -> Result<u64, Mismatch> {
        let layout = &self.layout;
        let word = |address: usize| memory.word(address).ok_or(Mismatch::Address);
        // Before addresses in it are followed.
        if word(field(code, layout.object_type))? != self.types.code {
            return Err(Mismatch::NotCode);
        }
        let (file, name) = (word(field(code, layout.code_file))?, word(field(code, layout.code_name))?);
        let lines = word(field(code, layout.code_lines))?;
        // The string's own hash, which follows the length: names are interned, so it is there.
        let name = word(field(name, layout.text_length + size_of::<usize>()))? as u64;
        let state = memory.int(field(file, layout.text_state)).ok_or(Mismatch::Address)?.cast_unsigned();
        // Of one that is not ASCII, fewer bytes than there are; a subclass has its data elsewhere.
        let characters = if is_compact(layout, state) { word(field(file, layout.text_length))? } else { 0 };
        let start = field(file, layout.text_ascii_data);
        let typed = characters == 0 || memory.byte(start).ok_or(Mismatch::Address)? == b'<';
        let length = word(field(lines, layout.bytes_length))?;
        if characters >= MANY || length >= MANY {
            return Err(Mismatch::Length);
        }
        let file = sample(memory, start, characters, false)?;
        let lines = sample(memory, field(lines, layout.bytes_data), length, typed)?;
        Ok(fold(fold(file ^ SEEDS[5], lines ^ SEEDS[6]) ^ identity.addresses, name ^ SEEDS[4]))
    }
}

/// What tells a code object from others.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    /// A hash of its address, those of its parts, and its version if it has one.
    addresses: u64,
    /// Whether it has: then no other one ever has these.
    sure: bool,
}

/// Whether the data of a string follow its header.
#[inline(always)]
fn is_compact(layout: &Layout, state: u32) -> bool {
    state >> layout.text_kind_shift >> 3 & 1 == 1
}

/// [`Frames::len`] of at most [`FRAMES`].
#[inline(always)]
fn count(len: usize) -> u8 {
    u8::try_from(len).unwrap_or(u8::MAX)
}

/// The address of a field. It wraps, as what is not checked yet can be anything.
#[inline(always)]
fn field(address: usize, offset: usize) -> usize {
    address.wrapping_add(offset)
}

/// Odd numbers without a pattern: the fractional digits of pi.
const SEEDS: [u64; 7] = [
    0x243f_6a88_85a3_08d3,
    0x1319_8a2e_0370_7345,
    0xa409_3822_299f_31d1,
    0x082e_fa98_ec4e_6c89,
    0x4528_21e6_38d0_1377,
    0xbe54_66cf_34e9_0c6d,
    0xc0ac_29b7_c97c_50dd,
];

/// Multiplies, and folds the upper half of the product into the lower.
#[expect(clippy::cast_possible_truncation, reason = "the halves of a product")]
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// A hash of these bytes: of all if they are few or `whole` says so, otherwise of both ends.
#[inline(always)]
fn sample<M: Memory>(memory: &M, start: usize, length: usize, whole: bool) -> Result<u64, Mismatch> {
    const ENDS: usize = 64;
    const MUCH: usize = 1 << 16;
    let whole = whole && length <= MUCH;
    let word = |at: usize| memory.word(field(start, at)).map(|w| w as u64).ok_or(Mismatch::Address);
    let mut hash = (length as u64).wrapping_mul(SEEDS[0]);
    if length < 16 {
        if length >= 8 {
            return Ok(hash ^ fold(word(0)? ^ SEEDS[1], word(length - 8)? ^ SEEDS[2]));
        }
        for at in 0..length {
            hash = fold(hash ^ u64::from(memory.byte(field(start, at)).ok_or(Mismatch::Address)?), SEEDS[1]);
        }
        return Ok(hash);
    }
    // The products do not wait for each other: a sum, with the place in each.
    let two = |at: usize| Ok(fold(word(at)? ^ SEEDS[1].wrapping_add(at as u64), word(at + 8)? ^ SEEDS[2]));
    let mut at = 0;
    while at + 16 <= length {
        if !whole && at == ENDS && length > 2 * ENDS {
            at = length - ENDS;
        }
        hash = hash.wrapping_add(two(at)?);
        at += 16;
    }
    if at < length {
        hash = hash.wrapping_add(two(length - 16)?);
    }
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn versions() {
        assert_eq!(parse_version("3.10.13 (main, May  9 2026, 07:30:30) [GCC 12.2.0]"), Some(0x030a_0df0));
        assert_eq!(parse_version("3.10.0rc2+ (heads/3.10:1, ...)"), Some(0x030a_00c0));
        assert_eq!(parse_version("3.9.0a1"), Some(0x0309_00a0));
        for text in ["", "3", "3.x.1", "3.10.", "99999.1.1"] {
            assert_eq!(parse_version(text), None, "{text}");
        }
    }

    #[test]
    fn no_interpreter_in_this_process() {
        assert!(Python::detect().is_none());
    }

    fn reader(version: u32) -> Reader {
        unsafe extern "C" fn somewhere() -> usize {
            0x4000
        }
        let types = Types { code: 0x2000, text: 0x2008, bytes: 0x2010 };
        let layout = table(version);
        Reader { layout, published: false, types, runtime: 0x1000, this_thread: somewhere, main_interpreter: somewhere }
    }

    fn table(version: u32) -> Layout {
        Layout::table(version).expect("a table").expect("a known version")
    }

    #[test]
    fn descriptions() {
        let describe = |version, reader, state| {
            let python = Python { version, reader, state: AtomicU8::new(state) };
            let mut frames = Frames { len: 3, ..Frames::default() };
            if !python.readable() {
                python.walk(&mut frames);
                assert_eq!(frames.as_slice(), []);
            }
            (python.readable(), python.description())
        };
        let unreadable = |layout| Err(NoReader::Layout(layout));
        for (version, reader, state, readable, text) in [
            (0x030c_03f0, Ok(reader(0x030c_03f0)), UNCHECKED, true, "CPython 3.12.3, frames by table"),
            (
                0x030d_00f0,
                Ok(Reader { published: true, ..reader(0x030c_03f0) }),
                CHECKED,
                true,
                "CPython 3.13.0, frames by published debug offsets",
            ),
            (
                0x030c_03f0,
                Ok(reader(0x030c_03f0)),
                Mismatch::NotText as u8,
                false,
                "CPython 3.12.3: not laid out as expected (a name is no string), native frames only",
            ),
            (
                0x0310_00a1,
                unreadable(NoLayout::Unknown),
                UNCHECKED,
                false,
                "CPython 3.16.0a1: unknown version, native frames only",
            ),
            (
                0x0309_12f0,
                unreadable(NoLayout::TooOld),
                UNCHECKED,
                false,
                "CPython 3.9.18: 3.10 and later can be read, native frames only",
            ),
        ] {
            assert_eq!(describe(version, reader, state), (readable, text.to_owned()));
        }
    }

    #[test]
    fn versions_without_a_layout() {
        assert_eq!(Layout::table(0x0309_12f0), Some(Err(NoLayout::TooOld)));
        assert_eq!(Layout::table(0x0207_12f0), Some(Err(NoLayout::TooOld)));
        assert_eq!(Layout::table(0x0400_00f0), Some(Err(NoLayout::Unknown)));
        assert_eq!(Layout::table(0x030d_00f0), None);
        let mut runtime = b"xdebugpy".to_vec();
        runtime.resize(PUBLISHED_SIZE, 0);
        for version in [0x0310_00f0_u32, 0x030e_00a7, 0x030f_00b1] {
            runtime[8..16].copy_from_slice(&u64::from(version).to_ne_bytes());
            assert_eq!(Layout::published(version, &runtime), Err(NoLayout::Unknown), "{version:#x}");
        }
        assert_eq!(Layout::published(0x030d_00f0, &runtime), Err(NoLayout::Contradiction), "another version");
        assert_eq!(Layout::published(0x030d_00f0, b"xdebugpy"), Err(NoLayout::Contradiction), "cut off");
        assert_eq!(Layout::published(0x030d_00f0, &[0; PUBLISHED_SIZE]), Err(NoLayout::Contradiction), "no cookie");
    }

    /// Memory that has something at every address: a few words, again and again, so that pointers lead somewhere.
    struct Arbitrary(Vec<usize>);

    impl Memory for Arbitrary {
        fn word(&self, address: usize) -> Option<usize> {
            (address % 61 != 3).then(|| self.0[address / 8 % self.0.len()])
        }

        fn int(&self, address: usize) -> Option<i32> {
            self.word(address).and_then(|w| u32::try_from(w & 0xffff_ffff).ok()).map(u32::cast_signed)
        }

        fn byte(&self, address: usize) -> Option<u8> {
            self.word(address).and_then(|w| u8::try_from(w & 3).ok())
        }

        fn bytes(&self, address: usize, into: &mut [u8]) -> Option<()> {
            into.fill(self.byte(address)?);
            Some(())
        }
    }

    fn words() -> impl Strategy<Value = Vec<usize>> {
        let word = prop_oneof![
            Just(0),
            Just(0x2000_usize),
            Just(0x2008_usize),
            Just(0x2010_usize),
            0..64_usize,
            Just(usize::MAX),
            (0..0x100_usize).prop_map(|n| 0x4000 + 8 * n),
            any::<usize>()
        ];
        prop::collection::vec(word, 1..80)
    }

    proptest! {
        /// Whatever is in memory: an error, or frames within bounds. (New code objects are looked for in this process's
        /// own memory, where they are not.)
        #[test]
        fn any_memory(words in words(), minor in 10..=12_u32) {
            let reader = reader(0x0300_00f0 | minor << 16);
            let memory = Arbitrary(words);
            let mut frames = Frames::default();
            let _ = reader.own_thread(&memory, &mut frames);
            prop_assert!(usize::from(frames.len) <= FRAMES);
            let objects = Objects { memory: &memory, layout: &reader.layout, types: &reader.types };
            for address in [0, 0x4000, 0x4010, usize::MAX - 100] {
                let _ = objects.code(address);
            }
        }

        #[test]
        fn any_offsets(mut offsets in prop::collection::vec(0..3000_u64, PUBLISHED_SIZE / 8), minor in 13..=16_u32) {
            let version = 0x0300_00f0 | minor << 16;
            offsets[1] = u64::from(version);
            offsets[2] &= 1;
            let mut runtime: Vec<u8> = offsets.iter().flat_map(|o| o.to_ne_bytes()).collect();
            runtime[..8].copy_from_slice(b"xdebugpy");
            let _ = Layout::published(version, &runtime);
        }
    }
}
