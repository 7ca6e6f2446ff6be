//! Looking up libraries and symbols of the process that this one was loaded into.

use std::ffi::{CStr, CString, c_void};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// A library that is open, and stays so.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Library(NonNull<c_void>);

// SAFETY: a handle of `dlopen` may be used from any thread, and is never closed here.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// The library of this name, if the process has it already.
    pub(crate) fn loaded(name: &CStr) -> Option<Self> {
        Self::open_with(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD)
    }

    /// Loads it.
    pub(crate) fn open(path: &Path) -> Option<Self> {
        use std::os::unix::ffi::OsStrExt as _;
        let path = CString::new(path.as_os_str().as_bytes()).ok()?;
        Self::open_with(&path, libc::RTLD_LAZY | libc::RTLD_LOCAL)
    }

    fn open_with(name: &CStr, flags: i32) -> Option<Self> {
        // SAFETY: `name` is a C string; no library of this list runs code that depends on ours.
        NonNull::new(unsafe { libc::dlopen(name.as_ptr(), flags) }).map(Self)
    }

    /// The address of a symbol.
    pub(crate) fn symbol(self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is open, the name is a C string.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }
}

/// The folders of all libraries in the process whose file name begins with `prefix`.
pub(crate) fn folders_of(prefix: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for (_, path) in mapped(&maps(), &[prefix]) {
        if let Some(folder) = path.parent()
            && !folders.iter().any(|known| known == folder)
        {
            folders.push(folder.to_path_buf());
        }
    }
    folders
}

/// The addresses of all libraries in the process whose file name begins with one of `prefixes`.
pub(crate) fn ranges_of(prefixes: &[&str]) -> Vec<(usize, usize)> {
    let range = |text: &str| {
        let (from, to) = text.split_once('-')?;
        Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
    };
    mapped(&maps(), prefixes).into_iter().filter_map(|(addresses, _)| range(addresses)).collect()
}

/// The kernel's own list: `dl_iterate_phdr` would take the loader's lock.
fn maps() -> String {
    std::fs::read_to_string("/proc/self/maps").unwrap_or_default()
}

fn mapped<'a>(maps: &'a str, prefixes: &[&str]) -> Vec<(&'a str, &'a Path)> {
    let line = |line: &'a str| {
        let path = Path::new(&line[line.find('/')?..]);
        let name = path.file_name()?.to_str()?;
        let wanted = prefixes.iter().any(|prefix| name.starts_with(prefix));
        wanted.then_some((line.split_whitespace().next()?, path))
    };
    maps.lines().filter_map(line).collect()
}

/// Declares a table of functions that are looked up at run time.
macro_rules! functions {
    ($(#[$meta:meta])* $table:ident { $($(#[$doc:meta])* $field:ident = $symbol:literal: fn($($arg:ty),*) -> $result:ty;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy)]
        pub(crate) struct $table {
            $($(#[$doc])* pub(crate) $field: unsafe extern "C" fn($($arg),*) -> $result,)*
        }

        impl $table {
            /// Looks all of them up; the name of the first that is missing otherwise.
            pub(crate) fn load(library: $crate::dl::Library) -> Result<Self, &'static std::ffi::CStr> {
                Ok(Self {
                    $($field: {
                        let address = library.symbol($symbol).ok_or($symbol)?;
                        // SAFETY: the symbol is the function of this name in the driver's or CUPTI's C interface, whose
                        // signature is the declared one.
                        unsafe {
                            std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($arg),*) -> $result>(
                                address.as_ptr(),
                            )
                        }
                    },)*
                })
            }
        }
    };
}
pub(crate) use functions;
