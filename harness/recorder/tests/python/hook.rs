//! The walker as a library that a Python program loads with `ctypes`: for the tests of `faultlab_recorder::python`.
//!
//! `ctypes.CDLL` gives the GIL up around each call, as PyTorch does around a launch.

#![expect(clippy::missing_safety_doc, reason = "called by the tests' Python programs alone")]

use std::ffi::{CString, c_char, c_int};
use std::hint::black_box;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use faultlab_recorder::python::{Frames, LineTable, Python, lines};

fn python() -> Option<&'static Python> {
    static PYTHON: OnceLock<Option<Python>> = OnceLock::new();
    PYTHON.get_or_init(Python::detect).as_ref()
}

fn give(text: &str, buffer: *mut c_char, size: usize) -> c_int {
    let Ok(text) = CString::new(text) else { return -1 };
    let bytes = text.as_bytes_with_nul();
    if bytes.len() > size {
        return -1;
    }
    // SAFETY: the caller's buffer has `size` bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), buffer, bytes.len()) };
    0
}

fn report(frames: &Frames) -> String {
    let python = python();
    let resolved: Vec<_> = frames.as_slice().iter().filter_map(|f| Some(python?.resolve(*f))).collect();
    serde_json::json!({
        "description": python.map(Python::description),
        "readable": python.is_some_and(Python::readable),
        "truncated": frames.truncated,
        "frames": resolved,
    })
    .to_string()
}

fn walked() -> Frames {
    let mut frames = Frames::default();
    if let Some(python) = python() {
        python.walk(&mut frames);
    }
    frames
}

/// The calling thread's frames, as JSON.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hook_walk(buffer: *mut c_char, size: usize) -> c_int {
    give(&report(&walked()), buffer, size)
}

/// The main thread's frames, as JSON.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hook_walk_main(buffer: *mut c_char, size: usize) -> c_int {
    let mut frames = Frames::default();
    if let Some(python) = python() {
        python.walk_main_thread(&mut frames);
    }
    give(&report(&frames), buffer, size)
}

/// The frames of a thread that Python knows nothing of, as JSON.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hook_walk_bare_thread(buffer: *mut c_char, size: usize) -> c_int {
    let report = std::thread::spawn(|| report(&walked())).join().unwrap_or_default();
    give(&report, buffer, size)
}

/// The calling thread's frames, unresolved: for [`hook_resolve`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hook_walk_raw(into: *mut Frames) {
    // SAFETY: the caller's buffer is large enough (`hook_size`) and aligned.
    unsafe { into.write(walked()) };
}

/// Size of what [`hook_walk_raw`] writes.
#[unsafe(no_mangle)]
pub extern "C" fn hook_size() -> usize {
    size_of::<Frames>()
}

/// What [`hook_walk_raw`] wrote, as JSON.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hook_resolve(frames: *const Frames, buffer: *mut c_char, size: usize) -> c_int {
    // SAFETY: `hook_walk_raw` wrote it.
    give(&report(unsafe { &*frames }), buffer, size)
}

/// Nanoseconds of a walk: the best mean of so many short rounds, as other processes only add to it.
#[unsafe(no_mangle)]
pub extern "C" fn hook_time(rounds: u32) -> f64 {
    const WALKS: u32 = 100;
    let Some(python) = python() else { return f64::NAN };
    let mut frames = Frames::default();
    let mut time = || {
        let start = Instant::now();
        for _ in 0..WALKS {
            python.walk(black_box(&mut frames));
        }
        start.elapsed().as_nanos() as f64 / f64::from(WALKS)
    };
    (0..rounds).map(|_| time()).fold(f64::INFINITY, f64::min)
}

/// Bytes of copies.
#[unsafe(no_mangle)]
pub extern "C" fn hook_bytes() -> usize {
    python().map_or(0, Python::bytes)
}

/// Walks on threads of its own, of the thread itself and of the main thread, until [`hook_stop`].
#[unsafe(no_mangle)]
pub extern "C" fn hook_watch(threads: u32) {
    for _ in 0..threads {
        std::thread::spawn(|| {
            let mut frames = Frames::default();
            while let Some(python) = python().filter(|_| WATCHING.load(Ordering::Relaxed) != u64::MAX) {
                python.walk_main_thread(&mut frames);
                black_box(report(&frames));
                WATCHING.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
}

static WATCHING: AtomicU64 = AtomicU64::new(0);

/// How often the main thread was looked at.
#[unsafe(no_mangle)]
pub extern "C" fn hook_watched() -> u64 {
    WATCHING.load(Ordering::Relaxed)
}

/// Walks in the C library's exit handlers, when the interpreter is gone, and prints what it found.
#[unsafe(no_mangle)]
pub extern "C" fn hook_at_exit() {
    extern "C" fn at_exit() {
        let own = report(&walked());
        let mut main = Frames::default();
        if let Some(python) = python() {
            python.walk_main_thread(&mut main);
        }
        let text = format!("at exit: {own}\nat exit, main thread: {}\n", report(&main));
        // SAFETY: writes a slice.
        unsafe { libc::write(1, text.as_ptr().cast(), text.len()) };
    }
    // SAFETY: registers a function that stays.
    unsafe { libc::atexit(at_exit) };
}

/// The lines of the first `count` instructions that a table gives; -1 where it gives none,
/// -2 behind its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hook_lines(
    pairs: c_int,
    table: *const u8,
    size: usize,
    first_line: c_int,
    into: *mut c_int,
    count: usize,
) {
    // SAFETY: the caller passes its bytes and their number.
    let table = unsafe { std::slice::from_raw_parts(table, size) };
    let format = if pairs == 0 { LineTable::Locations } else { LineTable::Pairs };
    // SAFETY: the caller's array has `count` elements.
    let into = unsafe { std::slice::from_raw_parts_mut(into, count) };
    let mut n = 0;
    for (end, line) in lines(format, table, first_line) {
        while 2 * n < end
            && let Some(place) = into.get_mut(n)
        {
            *place = line.and_then(|l| c_int::try_from(l).ok()).unwrap_or(-1);
            n += 1;
        }
    }
    into[n..].fill(-2);
}
