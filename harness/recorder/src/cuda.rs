//! The driver's functions that the recorder calls, and its error codes.
//!
//! Handles are plain addresses here: the recorder compares and passes them on, and never looks into them.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::dl::{Library, functions};

/// `CUcontext`, as an address.
pub(crate) type Context = usize;
/// `CUstream`, as an address; 0, 1 and 2 are the default streams.
pub(crate) type Stream = usize;

/// How a stream goes together with the legacy default stream of its context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Order {
    /// It is the legacy default stream.
    Legacy,
    /// Each waits for what was launched before on the other.
    Blocking,
    /// Not at all.
    #[default]
    Free,
}

/// `CU_STREAM_LEGACY`.
const LEGACY: Stream = 1;
/// `CU_STREAM_PER_THREAD`.
pub(crate) const PER_THREAD: Stream = 2;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: i32 = 2;
/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
const CAPTURE_ACTIVE: i32 = 1;
/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`.
const HOST_ALLOC_FLAGS: u32 = 1 | 2;
/// `CU_EVENT_DISABLE_TIMING`.
const EVENT_FLAGS: u32 = 2;
/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: i32 = 600;

functions! {
    /// What is needed of libcuda; every entry is as old as CUDA 11.7.
    Functions {
        driver_version = c"cuDriverGetVersion": fn(*mut i32) -> i32;
        error_name = c"cuGetErrorName": fn(i32, *mut *const c_char) -> i32;
        context_device = c"cuCtxGetDevice": fn(*mut i32) -> i32;
        current = c"cuCtxGetCurrent": fn(*mut *mut c_void) -> i32;
        push = c"cuCtxPushCurrent_v2": fn(*mut c_void) -> i32;
        pop = c"cuCtxPopCurrent_v2": fn(*mut *mut c_void) -> i32;
        host_alloc = c"cuMemHostAlloc": fn(*mut *mut c_void, usize, u32) -> i32;
        device_pointer = c"cuMemHostGetDevicePointer_v2": fn(*mut u64, *mut c_void, u32) -> i32;
        write_value = c"cuStreamWriteValue32_v2": fn(*mut c_void, u64, u32, u32) -> i32;
        capture_mode = c"cuThreadExchangeStreamCaptureMode": fn(*mut i32) -> i32;
        event_create = c"cuEventCreate": fn(*mut *mut c_void, u32) -> i32;
        event_query = c"cuEventQuery": fn(*mut c_void) -> i32;
        stream_query = c"cuStreamQuery": fn(*mut c_void) -> i32;
        stream_flags = c"cuStreamGetFlags": fn(*mut c_void, *mut u32) -> i32;
        capture_info = c"cuStreamGetCaptureInfo_v2": fn(*mut c_void, *mut i32, *mut u64, *mut c_void, *mut c_void, *mut usize) -> i32;
    }
}

/// The driver of this process.
pub(crate) struct Driver {
    functions: Functions,
    /// `cuFuncGetName` and `cuKernelGetName`, since 12.3.
    names: [Option<FunctionName>; 2],
    /// Which of them knew the last handle: a program has mostly handles of one kind, and a refusal is dearer than an answer.
    named_by: AtomicUsize,
}

type FunctionName = unsafe extern "C" fn(*mut *const c_char, *mut c_void) -> i32;

/// Pinned host memory that every device of the process can write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pinned {
    pub(crate) host: usize,
    pub(crate) device: u64,
}

impl Driver {
    /// The driver that loaded us.
    pub(crate) fn load() -> Result<Self, String> {
        let library = Library::loaded(c"libcuda.so.1").ok_or("libcuda.so.1 is not loaded in this process")?;
        let functions =
            Functions::load(library).map_err(|name| format!("the driver has no {}", name.to_string_lossy()))?;
        let name = |symbol| {
            let address = library.symbol(symbol)?;
            // SAFETY: both have this signature; a kernel's handle may stand for its function.
            Some(unsafe { std::mem::transmute::<*mut c_void, FunctionName>(address.as_ptr()) })
        };
        Ok(Self { functions, names: [name(c"cuFuncGetName"), name(c"cuKernelGetName")], named_by: AtomicUsize::new(0) })
    }

    /// As `cuDriverGetVersion` gives it: 13000 is 13.0.
    pub(crate) fn version(&self) -> i32 {
        let mut version = 0;
        // SAFETY: writes one integer; needs no context and no initialisation.
        unsafe { (self.functions.driver_version)(&raw mut version) };
        version
    }

    /// `CUDA_ERROR_ASSERT` for 710.
    pub(crate) fn error_name(&self, code: i32) -> String {
        let mut name = std::ptr::null();
        // SAFETY: writes a pointer to a static string, or null for a code that it does not know.
        let rc = unsafe { (self.functions.error_name)(code, &raw mut name) };
        if rc != 0 || name.is_null() {
            return format!("CUresult {code}");
        }
        // SAFETY: checked above; the string is static.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    /// The symbol of a kernel; null where the driver does not tell.
    pub(crate) fn function_name(&self, function: *mut c_void) -> *const c_char {
        let last = self.named_by.load(Ordering::Relaxed);
        for which in [last, 1 - last] {
            let Some(ask) = self.names[which] else { continue };
            let mut name = std::ptr::null();
            // SAFETY: a handle that the program is about to launch.
            if unsafe { ask(&raw mut name, function) } == 0 && !name.is_null() {
                if which != last {
                    self.named_by.store(which, Ordering::Relaxed);
                }
                return name;
            }
        }
        std::ptr::null()
    }

    /// The device of the calling thread's current context, or -1.
    pub(crate) fn current_device(&self) -> i32 {
        let mut device = -1;
        // SAFETY: writes one integer.
        let rc = unsafe { (self.functions.context_device)(&raw mut device) };
        if rc == 0 { device } else { -1 }
    }

    /// The calling thread's current context, or 0.
    pub(crate) fn current(&self) -> Context {
        let mut context = std::ptr::null_mut();
        // SAFETY: writes one handle.
        let rc = unsafe { (self.functions.current)(&raw mut context) };
        if rc == 0 { context as usize } else { 0 }
    }

    /// Pinned memory for markers. Allowed while a stream is being captured: the thread is relaxed meanwhile.
    pub(crate) fn pinned(&self, bytes: usize) -> Result<Pinned, i32> {
        self.relaxed(|f| {
            let mut host = std::ptr::null_mut();
            // SAFETY: writes the address of memory that is never freed.
            let rc = unsafe { (f.host_alloc)(&raw mut host, bytes, HOST_ALLOC_FLAGS) };
            if rc != 0 || host.is_null() {
                return Err(rc);
            }
            // SAFETY: the allocation has `bytes` bytes. Nothing else knows it yet.
            unsafe { std::ptr::write_bytes(host.cast::<u8>(), 0, bytes) };
            let mut device = 0;
            // SAFETY: `host` is mapped pinned memory.
            let rc = unsafe { (f.device_pointer)(&raw mut device, host, 0) };
            if rc == 0 { Ok(Pinned { host: host as usize, device }) } else { Err(rc) }
        })
    }

    /// Writes `value` to `device` once everything before it in the stream is done.
    pub(crate) fn write_value(&self, stream: Stream, device: u64, value: u32) -> i32 {
        // SAFETY: the stream is the one that the program has just used or is about to use in this very call; the
        // address is pinned memory of ours, which is never freed.
        unsafe { (self.functions.write_value)(stream as *mut c_void, device, value, 0) }
    }

    /// How a stream goes together with the legacy default stream.
    pub(crate) fn order(&self, stream: Stream) -> Order {
        if stream == 0 || stream == LEGACY {
            return Order::Legacy;
        }
        let mut flags = 0;
        // SAFETY: writes one integer; the stream is in use by the calling program.
        let rc = unsafe { (self.functions.stream_flags)(stream as *mut c_void, &raw mut flags) };
        // CU_STREAM_NON_BLOCKING is 1.
        if rc == 0 && flags & 1 == 0 { Order::Blocking } else { Order::Free }
    }

    /// The id of the capture that the stream is in.
    pub(crate) fn capture(&self, stream: Stream) -> Option<u64> {
        let (mut status, mut id) = (0, 0);
        let null = std::ptr::null_mut();
        // SAFETY: the optional results are not asked for; the stream is in use by the calling program.
        let rc = unsafe {
            (self.functions.capture_info)(
                stream as *mut c_void,
                &raw mut status,
                &raw mut id,
                null,
                null,
                std::ptr::null_mut(),
            )
        };
        (rc == 0 && status == CAPTURE_ACTIVE).then_some(id)
    }

    /// An event that is never recorded: to ask it is to ask whether the context is alive.
    pub(crate) fn probe_event(&self) -> Option<usize> {
        self.relaxed(|f| {
            let mut event = std::ptr::null_mut();
            // SAFETY: writes a handle that is never destroyed; it goes with its context.
            let rc = unsafe { (f.event_create)(&raw mut event, EVENT_FLAGS) };
            (rc == 0).then_some(event as usize)
        })
    }

    /// Runs something with a context current.
    pub(crate) fn within<T>(&self, context: Context, run: impl FnOnce() -> T) -> Option<T> {
        // SAFETY: the caller holds the lock under which contexts are forgotten before they are destroyed.
        if unsafe { (self.functions.push)(context as *mut c_void) } != 0 {
            return None;
        }
        let result = run();
        let mut popped = std::ptr::null_mut();
        // SAFETY: what was pushed above.
        unsafe { (self.functions.pop)(&raw mut popped) };
        Some(result)
    }

    /// The sticky error of a context, by its probe event; 0 if there is none.
    pub(crate) fn health(&self, context: Context, event: usize) -> i32 {
        self.relaxed(|f| {
            // SAFETY: the event belongs to the context.
            let rc = self.within(context, || unsafe { (f.event_query)(event as *mut c_void) });
            rc.filter(|rc| *rc != NOT_READY).unwrap_or(0)
        })
    }

    /// Whether all work of a stream is done: 0 if so, `None` if not, else the error. A stream that is captured is never done,
    /// and not asked, which would spoil the capture.
    pub(crate) fn query(&self, context: Context, stream: Stream) -> Option<i32> {
        self.relaxed(|f| {
            let rc = self.within(context, || {
                // SAFETY: the caller holds the lock under which a stream is forgotten before it is destroyed.
                self.capture(stream).is_none().then(|| unsafe { (f.stream_query)(stream as *mut c_void) })
            });
            rc.flatten().filter(|rc| *rc != NOT_READY)
        })
    }

    /// Runs something that the driver calls unsafe during a capture, which it is not for the capture of others.
    fn relaxed<T>(&self, run: impl FnOnce(&Functions) -> T) -> T {
        let mut mode = RELAXED;
        // SAFETY: exchanges a value of this thread.
        unsafe { (self.functions.capture_mode)(&raw mut mode) };
        let result = run(&self.functions);
        // SAFETY: puts back what was there.
        unsafe { (self.functions.capture_mode)(&raw mut mode) };
        result
    }
}

/// Errors after which a context is dead: a kernel (or a copy) did it.
pub(crate) fn is_device_fault(code: i32) -> bool {
    matches!(
        code,
        214  // ECC_UNCORRECTABLE
        | 220 // NVLINK_UNCORRECTABLE
        | 700 // ILLEGAL_ADDRESS
        | 702 // LAUNCH_TIMEOUT
        | 710 // ASSERT
        | 714 // HARDWARE_STACK_ERROR
        | 715 // ILLEGAL_INSTRUCTION
        | 716 // MISALIGNED_ADDRESS
        | 717 // INVALID_ADDRESS_SPACE
        | 718 // INVALID_PC
        | 719 // LAUNCH_FAILED
        | 721 // TENSOR_MEMORY_LEAK
    )
}

/// Errors of `cuStreamEndCapture` after which the stream is no longer captured. After others (the wrong thread or stream) it
/// still is.
pub(crate) fn ends_capture(code: i32) -> bool {
    matches!(
        code,
        901  // STREAM_CAPTURE_INVALIDATED
        | 904 // STREAM_CAPTURE_UNJOINED
    )
}

/// `CUDA_ERROR_ASSERT`: only a kernel that contains an assertion can have raised it.
pub(crate) const ASSERT: i32 = 710;
