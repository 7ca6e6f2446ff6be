//! The driver's entry points that the recorder stands before.
//!
//! Source: `cuda.h` and CUPTI's `generated_cuda_meta.h` (CUDA 12.0) for the arguments, `cupti_driver_cbid.h` for the ids.

#![allow(non_snake_case, non_upper_case_globals, reason = "the driver's names")]
#![allow(clippy::wildcard_imports, reason = "nearly every structure of the two modules")]

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};
use std::ptr::{null_mut, without_provenance};
use std::sync::atomic::{AtomicPtr, Ordering};

use cudarc::cupti::sys::*;
use cudarc::driver::sys::*;
use faultlab_recorder::interpose;

use crate::real_symbol;

/// An entry point that is stood before.
pub(crate) struct Hook {
    /// As the driver exports it.
    pub(crate) name: &'static CStr,
    /// Ours.
    pub(crate) ours: *const (),
    /// The driver's, once it was looked up.
    pub(crate) real: &'static AtomicPtr<c_void>,
}

// SAFETY: addresses of code and of statics.
unsafe impl Sync for Hook {}

impl Hook {
    /// The driver's own entry point, or null.
    pub(crate) fn real(&self) -> *mut c_void {
        let known = self.real.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        let found = real_symbol(self.name);
        self.real.store(found, Ordering::Release);
        found
    }
}

/// `CUDA_ERROR_NOT_FOUND`, where the driver lacks what was asked of us.
const NOT_FOUND: c_int = 500;

/// The name of an entry point as a C string.
macro_rules! concat_name {
    ($name:ident) => {
        const {
            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("an identifier has no zero byte"),
            }
        }
    };
}

macro_rules! hooks {
    ($($name:ident, $parameters:ident, $id:literal, ($($arg:ident: $type:ty),*) $(, launches $kernel:ident)?;)*) => {
        mod real {
            use super::*;
            $(pub(super) static $name: AtomicPtr<c_void> = AtomicPtr::new(null_mut());)*
            pub(super) static cuCtxSynchronize: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
            pub(super) static cuCtxSynchronize_v2: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
            pub(super) static cuInit: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
            pub(super) static cuGetProcAddress: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
            pub(super) static cuGetProcAddress_v2: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
        }

        $(
            /// The driver's function of this name, looked at.
            ///
            /// # Safety
            /// As for the driver's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
                let real = real_of(&real::$name, concat_name!($name));
                if real.is_null() {
                    return NOT_FOUND;
                }
                // SAFETY: the driver exports this name with this signature.
                let real = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> c_int>(real) };
                let function: *mut c_void = null_mut();
                $(let function: *mut c_void = { let _ = function; $kernel.cast() };)?
                let parameters = $parameters { $($arg),* };
                // SAFETY: the arguments are passed on as they came, and the structure is that of the call.
                unsafe {
                    interpose::around($id, concat_name!($name), (&raw const parameters).cast(), function, || {
                        real($($arg),*)
                    })
                }
            }
        )*

        /// All of them.
        pub(crate) static HOOKS: &[Hook] = &[
            $(Hook { name: concat_name!($name), ours: $name as *const (), real: &real::$name },)*
            Hook { name: c"cuCtxSynchronize", ours: cuCtxSynchronize as *const (), real: &real::cuCtxSynchronize },
            Hook { name: c"cuCtxSynchronize_v2", ours: cuCtxSynchronize_v2 as *const (), real: &real::cuCtxSynchronize_v2 },
            Hook { name: c"cuInit", ours: cuInit as *const (), real: &real::cuInit },
            Hook { name: c"cuGetProcAddress", ours: cuGetProcAddress as *const (), real: &real::cuGetProcAddress },
            Hook { name: c"cuGetProcAddress_v2", ours: cuGetProcAddress_v2 as *const (), real: &real::cuGetProcAddress_v2 },
        ];
    };
}

/// The hook of this name.
pub(crate) fn find(name: &CStr) -> Option<&'static Hook> {
    HOOKS.iter().find(|hook| hook.name == name)
}

fn real_of(hook: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = hook.load(Ordering::Acquire);
    if known.is_null() { find(name).map_or(null_mut(), Hook::real) } else { known }
}

/// What the driver gave for a name: ours, if it is one of the entry points above.
fn instead(given: *mut c_void) -> *mut c_void {
    HOOKS.iter().find(|hook| hook.real() == given).map_or(given, |hook| hook.ours.cast_mut().cast())
}

/// `cuInit`, after which the recorder starts.
///
/// # Safety
/// As for the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(flags: c_uint) -> c_int {
    let real = real_of(&real::cuInit, c"cuInit");
    if real.is_null() {
        return NOT_FOUND;
    }
    // SAFETY: the driver's signature.
    let result = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_uint) -> c_int>(real)(flags) };
    if result == 0 {
        interpose::start();
    }
    result
}

/// Waits for the current context.
///
/// # Safety
/// As for the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSynchronize() -> c_int {
    let real = real_of(&real::cuCtxSynchronize, c"cuCtxSynchronize");
    if real.is_null() {
        return NOT_FOUND;
    }
    // SAFETY: the driver's signature; the call has no parameters.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(real);
        interpose::around(17, c"cuCtxSynchronize", without_provenance(0), null_mut(), || real())
    }
}

/// Waits for a context.
///
/// # Safety
/// As for the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSynchronize_v2(context: CUcontext) -> c_int {
    let real = real_of(&real::cuCtxSynchronize_v2, c"cuCtxSynchronize_v2");
    if real.is_null() {
        return NOT_FOUND;
    }
    // SAFETY: the driver's signature; the parameters are the one handle.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, unsafe extern "C" fn(CUcontext) -> c_int>(real);
        interpose::around(800, c"cuCtxSynchronize_v2", (&raw const context).cast(), null_mut(), || real(context))
    }
}

/// Gives out entry points; the runtime library takes all of its own from here.
///
/// # Safety
/// As for the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: c_ulonglong,
    status: *mut c_void,
) -> c_int {
    type Real = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, c_ulonglong, *mut c_void) -> c_int;
    let real = real_of(&real::cuGetProcAddress_v2, c"cuGetProcAddress_v2");
    if real.is_null() {
        return NOT_FOUND;
    }
    // SAFETY: the driver's signature.
    let result = unsafe { std::mem::transmute::<*mut c_void, Real>(real)(symbol, function, version, flags, status) };
    // SAFETY: on success the driver has written an entry point there.
    if let (0, Some(given)) = (result, unsafe { function.as_mut() }) {
        *given = instead(*given);
    }
    result
}

/// As above, before CUDA 12.
///
/// # Safety
/// As for the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: c_ulonglong,
) -> c_int {
    type Real = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, c_ulonglong) -> c_int;
    let real = real_of(&real::cuGetProcAddress, c"cuGetProcAddress");
    if real.is_null() {
        return NOT_FOUND;
    }
    // SAFETY: the driver's signature.
    let result = unsafe { std::mem::transmute::<*mut c_void, Real>(real)(symbol, function, version, flags) };
    // SAFETY: on success the driver has written an entry point there.
    if let (0, Some(given)) = (result, unsafe { function.as_mut() }) {
        *given = instead(*given);
    }
    result
}

#[rustfmt::skip]
hooks! {
    cuLaunchKernel, cuLaunchKernel_params_st, 307, (f: CUfunction, gridDimX: c_uint, gridDimY: c_uint, gridDimZ: c_uint, blockDimX: c_uint, blockDimY: c_uint, blockDimZ: c_uint, sharedMemBytes: c_uint, hStream: CUstream, kernelParams: *mut *mut c_void, extra: *mut *mut c_void), launches f;
    cuLaunchKernel_ptsz, cuLaunchKernel_ptsz_params_st, 442, (f: CUfunction, gridDimX: c_uint, gridDimY: c_uint, gridDimZ: c_uint, blockDimX: c_uint, blockDimY: c_uint, blockDimZ: c_uint, sharedMemBytes: c_uint, hStream: CUstream, kernelParams: *mut *mut c_void, extra: *mut *mut c_void), launches f;
    cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_params_st, 477, (f: CUfunction, gridDimX: c_uint, gridDimY: c_uint, gridDimZ: c_uint, blockDimX: c_uint, blockDimY: c_uint, blockDimZ: c_uint, sharedMemBytes: c_uint, hStream: CUstream, kernelParams: *mut *mut c_void), launches f;
    cuLaunchCooperativeKernel_ptsz, cuLaunchCooperativeKernel_ptsz_params_st, 478, (f: CUfunction, gridDimX: c_uint, gridDimY: c_uint, gridDimZ: c_uint, blockDimX: c_uint, blockDimY: c_uint, blockDimZ: c_uint, sharedMemBytes: c_uint, hStream: CUstream, kernelParams: *mut *mut c_void), launches f;
    cuLaunchKernelEx, cuLaunchKernelEx_params_st, 652, (config: *const CUlaunchConfig, f: CUfunction, kernelParams: *mut *mut c_void, extra: *mut *mut c_void), launches f;
    cuLaunchKernelEx_ptsz, cuLaunchKernelEx_ptsz_params_st, 653, (config: *const CUlaunchConfig, f: CUfunction, kernelParams: *mut *mut c_void, extra: *mut *mut c_void), launches f;
    cuGraphLaunch, cuGraphLaunch_params_st, 514, (hGraph: CUgraphExec, hStream: CUstream);
    cuGraphLaunch_ptsz, cuGraphLaunch_ptsz_params_st, 515, (hGraphExec: CUgraphExec, hStream: CUstream);
    cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_params_st, 539, (hStream: CUstream, mode: CUstreamCaptureMode);
    cuStreamBeginCapture_v2_ptsz, cuStreamBeginCapture_v2_ptsz_params_st, 540, (hStream: CUstream, mode: CUstreamCaptureMode);
    cuStreamEndCapture, cuStreamEndCapture_params_st, 497, (hStream: CUstream, phGraph: *mut CUgraph);
    cuStreamEndCapture_ptsz, cuStreamEndCapture_ptsz_params_st, 498, (hStream: CUstream, phGraph: *mut CUgraph);
    cuGraphInstantiate_v2, cuGraphInstantiate_v2_params_st, 578, (phGraphExec: *mut CUgraphExec, hGraph: CUgraph, phErrorNode: *mut CUgraphNode, logBuffer: *mut c_char, bufferSize: usize);
    cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags_params_st, 643, (phGraphExec: *mut CUgraphExec, hGraph: CUgraph, flags: c_ulonglong);
    cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_params_st, 656, (phGraphExec: *mut CUgraphExec, hGraph: CUgraph, instantiateParams: *mut CUDA_GRAPH_INSTANTIATE_PARAMS);
    cuGraphExecUpdate, cuGraphExecUpdate_params_st, 561, (hGraphExec: CUgraphExec, hGraph: CUgraph, hErrorNode_out: *mut CUgraphNode, updateResult_out: *mut CUgraphExecUpdateResult);
    cuGraphExecUpdate_v2, cuGraphExecUpdate_v2_params_st, 696, (hGraphExec: CUgraphExec, hGraph: CUgraph, resultInfo: *mut CUgraphExecUpdateResultInfo);
    cuGraphClone, cuGraphClone_params_st, 523, (phGraphClone: *mut CUgraph, originalGraph: CUgraph);
    cuGraphExecDestroy, cuGraphExecDestroy_params_st, 516, (hGraphExec: CUgraphExec);
    cuEventRecord, cuEventRecord_params_st, 119, (hEvent: CUevent, hStream: CUstream);
    cuEventRecord_ptsz, cuEventRecord_ptsz_params_st, 441, (hEvent: CUevent, hStream: CUstream);
    cuEventRecordWithFlags, cuEventRecordWithFlags_params_st, 587, (hEvent: CUevent, hStream: CUstream, flags: c_uint);
    cuEventRecordWithFlags_ptsz, cuEventRecordWithFlags_ptsz_params_st, 588, (hEvent: CUevent, hStream: CUstream, flags: c_uint);
    cuStreamWaitEvent, cuStreamWaitEvent_params_st, 295, (hStream: CUstream, hEvent: CUevent, Flags: c_uint);
    cuStreamWaitEvent_ptsz, cuStreamWaitEvent_ptsz_params_st, 436, (hStream: CUstream, hEvent: CUevent, Flags: c_uint);
    cuEventDestroy_v2, cuEventDestroy_v2_params_st, 325, (hEvent: CUevent);
    cuStreamDestroy_v2, cuStreamDestroy_v2_params_st, 326, (hStream: CUstream);
    cuCtxDestroy_v2, cuCtxDestroy_v2_params_st, 322, (ctx: CUcontext);
    cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset_v2_params_st, 545, (dev: CUdevice);
    cuStreamSynchronize, cuStreamSynchronize_params_st, 126, (hStream: CUstream);
    cuStreamSynchronize_ptsz, cuStreamSynchronize_ptsz_params_st, 440, (hStream: CUstream);
    cuEventSynchronize, cuEventSynchronize_params_st, 121, (hEvent: CUevent);
    cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_params_st, 278, (dstHost: *mut c_void, srcDevice: CUdeviceptr, ByteCount: usize);
    cuMemcpy, cuMemcpy_params_st, 305, (dst: CUdeviceptr, src: CUdeviceptr, ByteCount: usize);
    cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_params_st, 277, (dstDevice: CUdeviceptr, srcHost: *const c_void, ByteCount: usize, hStream: CUstream);
    cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_params_st, 279, (dstHost: *mut c_void, srcDevice: CUdeviceptr, ByteCount: usize, hStream: CUstream);
    cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_params_st, 281, (dstDevice: CUdeviceptr, srcDevice: CUdeviceptr, ByteCount: usize, hStream: CUstream);
    cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_params_st, 289, (pCopy: *const CUDA_MEMCPY2D, hStream: CUstream);
    cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_params_st, 291, (pCopy: *const CUDA_MEMCPY3D, hStream: CUstream);
    cuMemcpyAsync, cuMemcpyAsync_params_st, 306, (dst: CUdeviceptr, src: CUdeviceptr, ByteCount: usize, hStream: CUstream);
    cuMemcpyPeerAsync, cuMemcpyPeerAsync_params_st, 319, (dstDevice: CUdeviceptr, dstContext: CUcontext, srcDevice: CUdeviceptr, srcContext: CUcontext, ByteCount: usize, hStream: CUstream);
    cuMemcpyAsync_ptsz, cuMemcpyAsync_ptsz_params_st, 418, (dst: CUdeviceptr, src: CUdeviceptr, ByteCount: usize, hStream: CUstream);
    cuMemcpyHtoDAsync_v2_ptsz, cuMemcpyHtoDAsync_v2_ptsz_params_st, 421, (dstDevice: CUdeviceptr, srcHost: *const c_void, ByteCount: usize, hStream: CUstream);
    cuMemcpyDtoHAsync_v2_ptsz, cuMemcpyDtoHAsync_v2_ptsz_params_st, 422, (dstHost: *mut c_void, srcDevice: CUdeviceptr, ByteCount: usize, hStream: CUstream);
    cuMemcpyDtoDAsync_v2_ptsz, cuMemcpyDtoDAsync_v2_ptsz_params_st, 423, (dstDevice: CUdeviceptr, srcDevice: CUdeviceptr, ByteCount: usize, hStream: CUstream);
    cuMemcpy2DAsync_v2_ptsz, cuMemcpy2DAsync_v2_ptsz_params_st, 424, (pCopy: *const CUDA_MEMCPY2D, hStream: CUstream);
    cuMemcpy3DAsync_v2_ptsz, cuMemcpy3DAsync_v2_ptsz_params_st, 425, (pCopy: *const CUDA_MEMCPY3D, hStream: CUstream);
    cuMemcpyPeerAsync_ptsz, cuMemcpyPeerAsync_ptsz_params_st, 426, (dstDevice: CUdeviceptr, dstContext: CUcontext, srcDevice: CUdeviceptr, srcContext: CUcontext, ByteCount: usize, hStream: CUstream);
    cuMemsetD8Async, cuMemsetD8Async_params_st, 216, (dstDevice: CUdeviceptr, uc: c_uchar, N: usize, hStream: CUstream);
    cuMemsetD16Async, cuMemsetD16Async_params_st, 218, (dstDevice: CUdeviceptr, us: c_ushort, N: usize, hStream: CUstream);
    cuMemsetD32Async, cuMemsetD32Async_params_st, 220, (dstDevice: CUdeviceptr, ui: c_uint, N: usize, hStream: CUstream);
    cuMemsetD8Async_ptsz, cuMemsetD8Async_ptsz_params_st, 428, (dstDevice: CUdeviceptr, uc: c_uchar, N: usize, hStream: CUstream);
    cuMemsetD16Async_ptsz, cuMemsetD16Async_ptsz_params_st, 429, (dstDevice: CUdeviceptr, us: c_ushort, N: usize, hStream: CUstream);
    cuMemsetD32Async_ptsz, cuMemsetD32Async_ptsz_params_st, 430, (dstDevice: CUdeviceptr, ui: c_uint, N: usize, hStream: CUstream);
}
