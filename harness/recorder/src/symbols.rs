//! Kernel names, kept once each.
//!
//! A name's address alone does not identify it: a module that is unloaded (Triton, NVRTC) gives its memory back. So a
//! cached address is only believed if the same bytes are still there.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::sync::{Mutex, PoisonError};

use crate::risk::is_risky;

/// Index of a name in the table; 0 is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Symbol {
    id: u32,
    /// Decided once per name.
    pub(crate) risky: bool,
}

/// So many names are kept; programs have some thousands.
const CAPACITY: usize = 1 << 16;

/// The table.
#[derive(Default)]
pub(crate) struct Symbols {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    ids: HashMap<&'static CStr, Symbol>,
    names: Vec<&'static CStr>,
}

/// A place of the cache: the driver's address of a name, and what it was last time.
type Place = Option<(usize, &'static CStr, Symbol)>;

/// Places; a program's loop has some tens of kernels.
const PLACES: usize = 256;

thread_local! {
    static CACHE: RefCell<[Place; PLACES]> = const { RefCell::new([None; PLACES]) };
}

impl Symbols {
    /// The entry of a name that the driver gave.
    ///
    /// # Safety
    /// `name` is null or a C string that lives during the call.
    pub(crate) unsafe fn intern(&self, name: *const c_char) -> Symbol {
        if name.is_null() {
            return Symbol { id: 0, risky: true };
        }
        // Names are aligned, so the lowest bits tell little.
        let place = (name as usize >> 4) % PLACES;
        let cached = CACHE.try_with(|cache| {
            let cache = cache.try_borrow().ok()?;
            let (address, known, symbol) = cache[place]?;
            // SAFETY: the caller's promise; the other is a string of ours.
            let same = address == name as usize && unsafe { libc::strcmp(known.as_ptr(), name) } == 0;
            same.then_some(symbol)
        });
        if let Ok(Some(symbol)) = cached {
            return symbol;
        }
        // SAFETY: the caller's promise.
        let text = unsafe { CStr::from_ptr(name) };
        let Some((kept, symbol)) = self.insert(text) else { return Symbol { id: 0, risky: true } };
        // A thread whose locals are gone already goes without the cache.
        let _ = CACHE.try_with(|cache| {
            if let Ok(mut cache) = cache.try_borrow_mut() {
                cache[place] = Some((name as usize, kept, symbol));
            }
        });
        symbol
    }

    fn insert(&self, text: &CStr) -> Option<(&'static CStr, Symbol)> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((kept, symbol)) = inner.ids.get_key_value(text) {
            return Some((kept, *symbol));
        }
        if inner.names.len() >= CAPACITY {
            return None;
        }
        let kept: &'static CStr = Box::leak(text.to_owned().into_boxed_c_str());
        inner.names.push(kept);
        let id = u32::try_from(inner.names.len()).ok()?;
        let symbol = Symbol { id, risky: is_risky(&kept.to_string_lossy()) };
        inner.ids.insert(kept, symbol);
        Some((kept, symbol))
    }

    /// The name, as the driver has it; empty where it is unknown.
    pub(crate) fn name(&self, symbol: Symbol) -> String {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (symbol.id as usize).checked_sub(1).and_then(|at| inner.names.get(at));
        name.map_or_else(String::new, |n| n.to_string_lossy().into_owned())
    }
}
