//! The autograd node that a launch belongs to, read from libtorch without Python.
//!
//! Autograd's device threads run C++ nodes: they have no Python frames, and the traceback ends in `backward()`. But a node
//! has the sequence number that its forward operator drew, and the forward launch was noted with the number that its thread
//! would draw next: the two are one apart, because the node is made before the operator's kernel is called.
//!
//! Source: `torch/csrc/autograd/function.h` and `ATen/SequenceNumber.h`, the same from PyTorch 2.0 to 2.11. A node begins
//! with its vtable, the `weak_ptr` of `enable_shared_from_this`, `sequence_nr_`, `topological_nr_`, a flag, `thread_id_`.

use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::mem::{MaybeUninit, transmute};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use crate::dl::Library;

/// What autograd was doing at a launch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Current {
    /// The next sequence number of this thread; 0 without PyTorch.
    pub(crate) next: u64,
    /// PyTorch's own number of this thread.
    pub(crate) thread: u64,
    /// The node that is being evaluated, if any.
    pub(crate) node: Option<NodeId>,
}

/// A node of the backward graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeId {
    /// Its sequence number: drawn in the forward pass. `u64::MAX` for the accumulation of a parameter's gradient.
    pub(crate) sequence: u64,
    /// The thread that drew it, by PyTorch's number.
    pub(crate) thread: u64,
    /// Its mangled type name: a string of the library, which is never unloaded.
    name: usize,
}

/// `sequence_nr_` of a node that has none.
pub(crate) const NO_SEQUENCE: u64 = u64::MAX;

/// A `std::shared_ptr`, in a structure that is too large for registers: so every C ABI returns it in memory, as C++ does.
type Returned = MaybeUninit<[usize; 3]>;

struct Functions {
    node: unsafe extern "C" fn() -> Returned,
    next: unsafe extern "C" fn() -> u64,
    thread: unsafe extern "C" fn() -> u64,
}

/// The reader.
#[derive(Default)]
pub(crate) struct Autograd {
    functions: OnceLock<Functions>,
    /// Launches so far for which libtorch was not there.
    looked: AtomicU64,
    /// The layout is not what it should be: off for good.
    broken: AtomicBool,
}

thread_local! {
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

const POINTER: usize = size_of::<usize>();

impl Autograd {
    /// What autograd is doing on the calling thread.
    pub(crate) fn current(&self) -> Current {
        let Some(functions) = self.functions() else { return Current::default() };
        // SAFETY: reads a thread-local.
        let next = unsafe { (functions.next)() };
        let thread = THREAD.try_with(|cached| {
            if cached.get() == 0 {
                // SAFETY: reads a thread-local; the first call gives the thread its number.
                cached.set(unsafe { (functions.thread)() });
            }
            cached.get()
        });
        Current { next, thread: thread.unwrap_or(0), node: self.node(functions) }
    }

    /// Whether the layout turned out to be unknown.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    fn functions(&self) -> Option<&Functions> {
        if let Some(functions) = self.functions.get() {
            return Some(functions);
        }
        // The loader's lock is taken at the first launch, the second, the fourth…
        let looked = self.looked.fetch_add(1, Ordering::Relaxed);
        if !(looked + 1).is_power_of_two() {
            return None;
        }
        let library = Library::loaded(c"libtorch_cpu.so")?;
        let node = library.symbol(c"_ZN5torch8autograd16get_current_nodeEv")?;
        let next = library.symbol(c"_ZN2at15sequence_number4peekEv")?;
        let thread = library.symbol(c"_ZN2at14RecordFunction15currentThreadIdEv")?;
        // SAFETY: the mangled names fix the arguments (none); the results are those of the headers named above.
        let functions = unsafe {
            Functions {
                node: transmute::<*mut std::ffi::c_void, unsafe extern "C" fn() -> Returned>(node.as_ptr()),
                next: transmute::<*mut std::ffi::c_void, unsafe extern "C" fn() -> u64>(next.as_ptr()),
                thread: transmute::<*mut std::ffi::c_void, unsafe extern "C" fn() -> u64>(thread.as_ptr()),
            }
        };
        Some(self.functions.get_or_init(|| functions))
    }

    fn node(&self, functions: &Functions) -> Option<NodeId> {
        if self.broken.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: copies the thread-local `shared_ptr` and counts one reference more.
        let returned = unsafe { (functions.node)() };
        // SAFETY: a `shared_ptr` is two words, both written by its constructor.
        let [node, control] = unsafe { returned.as_ptr().cast::<[usize; 2]>().read() };
        if node == 0 || control == 0 {
            return None;
        }
        // SAFETY: the reference just taken keeps both alive.
        let found = unsafe { read_node(node, control) };
        // The reference is given back by hand. It is never the last: the engine holds the node that it evaluates.
        // SAFETY: libstdc++'s control block begins with its vtable and the use count.
        let uses = unsafe { AtomicI32::from_ptr((control + POINTER) as *mut i32) };
        let before = uses.fetch_sub(1, Ordering::AcqRel);
        if found.is_none() || before < 2 {
            self.broken.store(true, Ordering::Relaxed);
        }
        found
    }
}

/// Reads a node, if it looks like one.
///
/// # Safety
/// Both addresses are those of a live `shared_ptr<torch::autograd::Node>`.
unsafe fn read_node(node: usize, control: usize) -> Option<NodeId> {
    // SAFETY: the caller's promise; a node is larger than this.
    let words = unsafe { (node as *const [usize; 7]).read() };
    let [vtable, own, own_control, sequence, _, _, thread] = words;
    // The `weak_ptr` to itself proves the layout up to here.
    if own != node || own_control != control || vtable == 0 {
        return None;
    }
    let (sequence, thread) = (sequence as u64, thread as u64);
    if (sequence != NO_SEQUENCE && sequence >= 1 << 48) || thread >= 1 << 32 {
        return None;
    }
    // SAFETY: the Itanium C++ ABI: the word before the vtable's address point is the `type_info`, whose second word is the
    // name.
    let name = unsafe {
        let type_info = ((vtable - POINTER) as *const usize).read();
        ((type_info + POINTER) as *const usize).read()
    };
    Some(NodeId { sequence, thread, name })
}

impl NodeId {
    /// `EmbeddingBackward0`.
    pub(crate) fn name(&self) -> String {
        // SAFETY: a type's name is a static string of libtorch.
        let mangled = unsafe { CStr::from_ptr(self.name as *const c_char) };
        last_component(&mangled.to_string_lossy())
    }
}

/// The last name of `N5torch8autograd9generated18EmbeddingBackward0E`; the whole text if it is built otherwise.
fn last_component(mangled: &str) -> String {
    let mut rest = mangled.trim_start_matches('*').trim_start_matches('N');
    let mut last = None;
    loop {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let Ok(length) = rest[..digits].parse::<usize>() else { break };
        let Some(name) = rest.get(digits..digits + length) else { break };
        last = Some(name);
        rest = &rest[digits + length..];
    }
    last.unwrap_or(mangled).to_string()
}

/// Nodes that launch nothing in the forward pass: what launches next has the same number and is another operator.
pub(crate) fn is_view(name: &str) -> bool {
    const VIEWS: &[&str] = &[
        "TBackward",
        "TransposeBackward",
        "ViewBackward",
        "UnsafeViewBackward",
        "ReshapeAliasBackward",
        "ExpandBackward",
        "SliceBackward",
        "SelectBackward",
        "SqueezeBackward",
        "UnsqueezeBackward",
        "PermuteBackward",
        "AsStridedBackward",
        "UnbindBackward",
        "SplitBackward",
        "SplitWithSizesBackward",
        "DiagonalBackward",
        "UnfoldBackward",
        "AliasBackward",
    ];
    VIEWS.iter().any(|view| name.strip_prefix(view).is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_names() {
        assert_eq!(last_component("N5torch8autograd9generated18EmbeddingBackward0E"), "EmbeddingBackward0");
        assert_eq!(last_component("*N5torch8autograd6PyNodeE"), "PyNode");
        for odd in ["", "*", "N", "N99torch", "é", "N3torc", "18446744073709551616x"] {
            last_component(odd);
        }
    }

    #[test]
    fn views_launch_nothing() {
        assert!(is_view("TBackward0") && is_view("ViewBackward0"));
        assert!(!is_view("TanhBackward0") && !is_view("EmbeddingBackward0"));
    }
}
