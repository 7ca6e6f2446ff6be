//! The recorder without CUPTI: for a library that stands before the driver's entry points (`preload/`).
//!
//! A CUPTI subscriber suppresses the driver's core dumps, and there can be only one. Where the entry points themselves are
//! interposed, a core dump can be armed beside the recorder, and a profiler may run.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

use cudarc::cupti::sys;

use crate::inject::{Source, initialise};
use crate::recorder::{Recorder, observe};

/// Makes the recorder, once the driver is loaded and initialised. Later calls do nothing.
pub fn start() {
    let _ = std::panic::catch_unwind(|| {
        if Recorder::get().is_none() {
            initialise(Source::Interposed);
        }
    });
}

/// Makes a driver call of the program, and looks at it before and after.
///
/// `id` is the call's id in CUPTI's tables, `parameters` its arguments as CUPTI would give them, `function` the kernel of a
/// launch, else null.
///
/// # Safety
/// The parameters are those of the call of this id and live until it returns.
pub unsafe fn around(
    id: u32,
    name: &'static CStr,
    parameters: *const c_void,
    function: *mut c_void,
    call: impl FnOnce() -> i32,
) -> i32 {
    let Some(recorder) = Recorder::get().filter(|recorder| !recorder.is_inert()) else { return call() };
    let mut correlation = 0u64;
    let mut data = sys::CUpti_CallbackData {
        callbackSite: sys::CUpti_ApiCallbackSite::CUPTI_API_ENTER,
        functionName: name.as_ptr(),
        functionParams: parameters,
        functionReturnValue: null_mut(),
        symbolName: if function.is_null() { std::ptr::null() } else { recorder.driver.function_name(function) },
        context: recorder.driver.current() as cudarc::driver::sys::CUcontext,
        contextUid: 0,
        correlationData: &raw mut correlation,
        correlationId: 0,
    };
    observe(id, &data);
    let mut result = call();
    data.callbackSite = sys::CUpti_ApiCallbackSite::CUPTI_API_EXIT;
    data.functionReturnValue = (&raw mut result).cast();
    observe(id, &data);
    result
}
