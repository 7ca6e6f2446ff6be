//! Reading this process's memory, at addresses that CPython's structures give.

use std::mem::MaybeUninit;

/// A way to read memory. `None` is an address that cannot be read.
pub(super) trait Memory {
    /// A pointer or another word of 8 bytes.
    fn word(&self, address: usize) -> Option<usize>;

    /// A C `int`.
    fn int(&self, address: usize) -> Option<i32>;

    /// One byte.
    fn byte(&self, address: usize) -> Option<u8>;

    /// As many bytes as there is room for.
    fn bytes(&self, address: usize, into: &mut [u8]) -> Option<()>;
}

/// Plain loads. Nothing is checked: fast, for structures that were checked before and that cannot change meanwhile.
pub(super) struct Direct(());

impl Direct {
    /// # Safety
    ///
    /// Every address that this value is asked for must be readable, and must not be written to at the same time. For
    /// the frames of the calling thread that holds: the thread is in a call from the innermost of them, so that none can
    /// return, and each keeps its code object alive.
    pub(super) unsafe fn new() -> Self {
        Self(())
    }
}

// Unaligned reads cost nothing more here, and leave nothing undefined should a structure be packed.
impl Memory for Direct {
    #[inline(always)]
    fn word(&self, address: usize) -> Option<usize> {
        // SAFETY: promised to `Direct::new`.
        Some(unsafe { (address as *const usize).read_unaligned() })
    }

    #[inline(always)]
    fn int(&self, address: usize) -> Option<i32> {
        // SAFETY: promised to `Direct::new`.
        Some(unsafe { (address as *const i32).read_unaligned() })
    }

    #[inline(always)]
    fn byte(&self, address: usize) -> Option<u8> {
        // SAFETY: promised to `Direct::new`.
        Some(unsafe { (address as *const u8).read() })
    }

    #[inline(always)]
    fn bytes(&self, address: usize, into: &mut [u8]) -> Option<()> {
        // SAFETY: promised to `Direct::new`; a slice that is being filled cannot overlap Python's own memory.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, into.as_mut_ptr(), into.len()) };
        Some(())
    }
}

/// Reads through the kernel, which refuses a bad address instead of ending the process. About 0.3 µs a read.
pub(super) struct Careful {
    /// Whose structures these are: those of another thread can go at any time.
    pub(super) whose: Whose,
}

/// Whether what is read can go while it is read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// The calling thread's: they stay.
    Own,
    /// Another thread's.
    Foreign,
}

impl Memory for Careful {
    fn word(&self, address: usize) -> Option<usize> {
        let mut bytes = [0; size_of::<usize>()];
        self.bytes(address, &mut bytes)?;
        Some(usize::from_ne_bytes(bytes))
    }

    fn int(&self, address: usize) -> Option<i32> {
        let mut bytes = [0; size_of::<i32>()];
        self.bytes(address, &mut bytes)?;
        Some(i32::from_ne_bytes(bytes))
    }

    fn byte(&self, address: usize) -> Option<u8> {
        let mut bytes = [0];
        self.bytes(address, &mut bytes)?;
        Some(bytes[0])
    }

    fn bytes(&self, address: usize, into: &mut [u8]) -> Option<()> {
        if into.is_empty() {
            return Some(());
        }
        let end = address.checked_add(into.len())?;
        if address == 0 {
            return None;
        }
        let here = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let there = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: into.len() };
        // SAFETY: `here` is a slice of ours; the kernel checks `there`.
        let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const here, 1, &raw const there, 1, 0) };
        if usize::try_from(read) == Ok(into.len()) {
            return Some(());
        }
        // Some sandboxes forbid the call.
        let refused = read == -1
            && matches!(
                std::io::Error::last_os_error().raw_os_error(),
                Some(libc::ENOSYS | libc::EPERM | libc::EACCES)
            );
        if !refused || self.whose == Whose::Foreign || !readable(address, end) {
            return None;
        }
        // SAFETY: every page is readable, as the kernel just said, and stays so: it is the calling thread's own.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, into.as_mut_ptr(), into.len()) };
        Some(())
    }
}

/// Whether all pages from `address` to `end` can be read: asks the kernel to take a signal mask from there for an
/// operation that does not exist. It reads the mask first, and refuses a bad address (`EFAULT`) before a bad operation
/// (`EINVAL`).
fn readable(address: usize, end: usize) -> bool {
    const MASK: usize = 8;
    const NO_OPERATION: libc::c_int = -1;
    let page = page_size();
    let last = end - 1;
    let mut at = address;
    loop {
        // Aligned, so that the mask cannot reach over the end of the page.
        let probe = at & !(MASK - 1);
        // SAFETY: the kernel reads 8 bytes at `probe` if it can, and then refuses the operation: nothing is changed.
        let answer = unsafe {
            libc::syscall(libc::SYS_rt_sigprocmask, NO_OPERATION, probe, std::ptr::null::<libc::c_void>(), MASK)
        };
        if answer != -1 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL) {
            return false;
        }
        let Some(next) = (at & !(page - 1)).checked_add(page) else { return false };
        if next > last {
            return true;
        }
        at = next;
    }
}

fn page_size() -> usize {
    // SAFETY: it only looks a number up.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok().filter(|n| n.is_power_of_two()).unwrap_or(4096)
}

/// The symbol that the process's libraries export under this name.
pub(super) fn symbol(libraries: Libraries, name: &std::ffi::CStr) -> Option<usize> {
    // SAFETY: `dlsym` takes a handle that is open, or the default one, and a terminated string.
    let found = unsafe { libc::dlsym(libraries.0, name.as_ptr()) };
    (!found.is_null()).then_some(found as usize)
}

/// Where symbols are looked for.
#[derive(Clone, Copy)]
pub(super) struct Libraries(*mut libc::c_void);

impl Libraries {
    /// What the program and its libraries export to all.
    pub(super) const GLOBAL: Self = Self(libc::RTLD_DEFAULT);

    /// A `libpython3` that the program loaded for itself (`RTLD_LOCAL`), as programs with an embedded interpreter do.
    pub(super) fn libpython() -> Option<Self> {
        unsafe extern "C" fn visit(
            object: *mut libc::dl_phdr_info,
            _size: libc::size_t,
            found: *mut libc::c_void,
        ) -> libc::c_int {
            // SAFETY: the loader passes a valid object, and what the caller gave it.
            let (name, found) = unsafe { ((*object).dlpi_name, &mut *found.cast::<[MaybeUninit<u8>; NAME]>()) };
            if name.is_null() {
                return 0;
            }
            // SAFETY: the loader's names are terminated.
            let name = unsafe { std::ffi::CStr::from_ptr(name) }.to_bytes_with_nul();
            let file = name.rsplit(|b| *b == b'/').next().unwrap_or(name);
            if !file.starts_with(b"libpython3.") || name.len() > NAME {
                return 0;
            }
            for (to, from) in found.iter_mut().zip(name) {
                to.write(*from);
            }
            1
        }
        const NAME: usize = libc::PATH_MAX as usize;
        let mut name = [const { MaybeUninit::<u8>::uninit() }; NAME];
        // SAFETY: `visit` writes a terminated name into `name`, and then says 1.
        if unsafe { libc::dl_iterate_phdr(Some(visit), name.as_mut_ptr().cast()) } != 1 {
            return None;
        }
        // SAFETY: as above. The library is there already, so nothing is loaded and no constructor runs.
        let handle = unsafe { libc::dlopen(name.as_ptr().cast(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        (!handle.is_null()).then_some(Self(handle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_address_is_refused() {
        for whose in [Whose::Own, Whose::Foreign] {
            let memory = Careful { whose };
            let number = 0x1122_3344_usize;
            assert_eq!(memory.word(&raw const number as usize), Some(number));
            for bad in [0, 1, 8, usize::MAX, usize::MAX - 7, 1 << 46] {
                assert_eq!(memory.word(bad), None, "{bad:#x}");
            }
        }
    }

    #[test]
    fn a_mapping_ends_where_it_ends() {
        let page = page_size();
        // SAFETY: new mappings of our own.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), 3 * page, libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        assert_ne!(start, libc::MAP_FAILED);
        // SAFETY: a page of that mapping.
        assert_eq!(unsafe { libc::munmap(start.byte_add(2 * page), page) }, 0);
        let (start, end) = (start as usize, start as usize + 2 * page);
        assert!(readable(start, end));
        assert!(readable(end - 1, end));
        assert!(!readable(start, end + 1));
        assert!(!readable(end, end + 1));
        let memory = Careful { whose: Whose::Own };
        let mut all = vec![1; 2 * page];
        assert_eq!(memory.bytes(start, &mut all), Some(()));
        assert_eq!(memory.bytes(start + 1, &mut all), None);
        // SAFETY: what is left of that mapping.
        assert_eq!(unsafe { libc::munmap(start as *mut libc::c_void, 2 * page) }, 0);
    }
}
