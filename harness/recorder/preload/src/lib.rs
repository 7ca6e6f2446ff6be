//! The launch recorder for `LD_PRELOAD`.
//!
//! The CUDA runtime takes the driver's entry points from `dlsym` and `cuGetProcAddress`; others link against them. This
//! library stands before all three: it exports the entry points that matter under the driver's names, and answers a look-up
//! of one of them with its own. There is no CUPTI in it, so the driver still writes core dumps and profilers work.

mod hooks;

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The C library's `dlsym`.
static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// Finds the C library's `dlsym`: `dlvsym` is not stood before.
extern "C" fn real_dlsym() -> *mut c_void {
    let known = DLSYM.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    // Since glibc 2.34; before it.
    for version in [c"GLIBC_2.34", c"GLIBC_2.2.5", c"GLIBC_2.17"] {
        // SAFETY: C strings; RTLD_NEXT means: after this library.
        let found = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
        if !found.is_null() {
            DLSYM.store(found, Ordering::Release);
            return found;
        }
    }
    std::ptr::null_mut()
}

/// The driver's own symbol of this name, or null.
pub(crate) fn real_symbol(name: &CStr) -> *mut c_void {
    let dlsym = real_dlsym();
    if dlsym.is_null() {
        return dlsym;
    }
    // SAFETY: the handle, if any, is that of the loaded driver; the function is the C library's.
    unsafe {
        let driver = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if driver.is_null() {
            return driver;
        }
        std::mem::transmute::<*mut c_void, Dlsym>(dlsym)(driver, name.as_ptr())
    }
}

/// Our entry point for a name that a handle's library has, or null.
///
/// # Safety
/// `name` is a C string.
unsafe extern "C" fn look_up(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let null = std::ptr::null_mut();
    if handle == libc::RTLD_NEXT || name.is_null() {
        return null;
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    if !name.to_bytes().starts_with(b"cu") {
        return null;
    }
    match hooks::find(name) {
        // Only where the driver has it: what it lacks must look missing.
        Some(hook) if !hook.real().is_null() => hook.ours.cast_mut().cast(),
        _ => null,
    }
}

/// The dynamic loader's look-up. Everything that is not an entry point above goes to the C library's in a tail call, because
/// that one looks at who called it (`RTLD_NEXT`).
///
/// # Safety
/// As for the C library's.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {look_up}",
        "test rax, rax",
        "jnz 2f",
        "call {real}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        "2:",
        "add rsp, 24",
        "ret",
        look_up = sym look_up,
        real = sym real_dlsym,
    )
}
