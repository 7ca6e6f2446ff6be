//! Which driver calls matter: their CUPTI call-back ids and where their parameters are.
//!
//! Source: CUPTI 12 and 13, `cupti_driver_cbid.h` and `generated_cuda_meta.h`. Ids are never reused.

use std::mem::offset_of;

use cudarc::cupti::sys;

use Kind::{Memcpy, Memset};

/// What a launch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A kernel.
    Kernel = 1,
    /// A whole graph.
    Graph,
    /// A copy.
    Memcpy,
    /// A fill.
    Memset,
}

impl Kind {
    /// As reports name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Graph => "graph",
            Self::Memcpy => "memcpy",
            Self::Memset => "memset",
        }
    }
}

/// What a driver call means to the recorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    /// Only its result is looked at.
    Other,
    /// `cuLaunchKernel`, `cuLaunchCooperativeKernel`: the parameters begin alike.
    Kernel,
    /// `cuLaunchKernelEx`: clusters, launch attributes.
    KernelEx,
    /// `cuGraphLaunch`.
    Graph,
    /// A copy or fill on a stream, which is at this offset of the parameters.
    Transfer(Kind, u16),
    /// Begins a capture.
    BeginCapture,
    /// Ends one.
    EndCapture,
    /// Makes an executable graph from a graph.
    Instantiate,
    /// Puts another graph into an executable one.
    Update,
    /// Copies a graph.
    Clone,
    /// Destroys an executable graph.
    DestroyExec,
    /// Records an event.
    RecordEvent,
    /// Lets a stream wait for an event.
    WaitEvent,
    /// Destroys an event.
    DestroyEvent,
    /// Destroys a stream.
    DestroyStream,
    /// Destroys or resets a context.
    DestroyContext,
    /// The host waits for the device.
    Synchronize,
}

/// The classified calls, by id.
pub(crate) struct Table([Op; IDS]);

const IDS: usize = 1024;

/// The ids of entry points that end in `_ptsz`: their stream 0 is the per-thread one.
const fn is_per_thread(id: u32) -> bool {
    matches!(id, 418..=445 | 478 | 496 | 498 | 515 | 540 | 588 | 653 | 657 | 721 | 777 | 779 | 797 | 799 | 838 | 840)
}

impl Table {
    /// Builds the table.
    pub(crate) fn new() -> Self {
        let mut table = [Op::Other; IDS];
        let mut set = |ids: &[usize], op: Op| ids.iter().for_each(|&id| table[id] = op);
        set(&[307, 442, 477, 478], Op::Kernel);
        set(&[652, 653], Op::KernelEx);
        set(&[514, 515], Op::Graph);
        set(&[495, 496, 539, 540, 720, 721], Op::BeginCapture);
        set(&[497, 498], Op::EndCapture);
        set(&[513, 578, 643, 656, 657], Op::Instantiate);
        set(&[561, 696], Op::Update);
        set(&[523], Op::Clone);
        set(&[516], Op::DestroyExec);
        set(&[119, 441, 587, 588], Op::RecordEvent);
        set(&[295, 436], Op::WaitEvent);
        set(&[122, 325], Op::DestroyEvent);
        set(&[127, 326], Op::DestroyStream);
        // cuCtxDestroy, cuCtxDestroy_v2, cuDevicePrimaryCtxReset, _v2, cuDevicePrimaryCtxRelease, _v2
        set(&[11, 322, 387, 389, 544, 545], Op::DestroyContext);
        // cuCtxSynchronize, cuEventSynchronize, cuStreamSynchronize, its _ptsz, cuCtxSynchronize_v2, and the copies that wait:
        // cuMemcpyDtoH_v2, cuMemcpy.
        set(&[17, 121, 126, 440, 800, 278, 305], Op::Synchronize);
        for &(id, kind, offset) in TRANSFERS.iter().chain(NEW_COPIES) {
            table[id] = Op::Transfer(kind, u16::try_from(offset).expect("parameters are small"));
        }
        Self(table)
    }

    /// What the call of this id is.
    pub(crate) fn get(&self, id: u32) -> Op {
        self.0.get(id as usize).copied().unwrap_or(Op::Other)
    }
}

/// What a call of [`Op::Synchronize`] waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waited {
    /// The stream that is its first argument.
    Stream,
    /// The legacy default stream.
    DefaultStream,
    /// Everything in the context.
    Context,
    /// The event that is its first argument.
    Event,
}

/// What the call of this id waits for.
pub(crate) fn waited_for(id: u32) -> Waited {
    match id {
        121 => Waited::Event,
        126 | 440 => Waited::Stream,
        17 | 800 => Waited::Context,
        _ => Waited::DefaultStream,
    }
}

/// Whether a copy of this id stays on the devices, by its name. Any other may be of pageable memory, and waits then for what
/// is before it in the stream.
pub(crate) fn stays_on_devices(id: u32) -> bool {
    // cuMemcpyDtoDAsync, _v2, _v2_ptsz, cuMemcpyPeerAsync, _ptsz, cuMemcpy3DPeerAsync, _ptsz
    matches!(id, 64 | 281 | 423 | 319 | 426 | 321 | 427)
}

/// The stream of a call, with stream 0 of a per-thread entry point spelt out.
pub(crate) fn normalise(id: u32, stream: usize) -> usize {
    if stream == 0 && is_per_thread(id) { crate::cuda::PER_THREAD } else { stream }
}

/// Calls that are made so often, and say so little, that a call-back for each costs more than it tells.
pub(crate) const QUIET: &[u32] = &[
    2, 3, 4, 9, // cuDriverGetVersion, cuDeviceGet, cuDeviceGetCount, cuDeviceGetAttribute
    16, 795, 304, 303, 323,
    324, // cuCtxGetDevice, _v2, cuCtxGetCurrent, SetCurrent, PushCurrent_v2, PopCurrent_v2
    392, 310, 450, 378, // cuDevicePrimaryCtxGetState, cuPointerGetAttribute, …Attributes, cuPointerSetAttribute
    499, 500, 536, 629, 630, 729, 730,
    541, // cuStreamIsCapturing, cuStreamGetCaptureInfo, cuThreadExchangeStreamCaptureMode
    626, 677, 85, 481, 566, 686, 687, 718, 719, 733, 734, // cuGetProcAddress, attributes of functions and kernels
    118, 120, 125, // cuEventCreate, cuEventQuery, cuStreamQuery: the watcher sees their error too
    483, 759, 368, 369, 693, 574, 575, // cuStreamGetCtx, …Priority, …Flags, …Id, …Attribute
    374, 451, 676, 675, 543, // cuOccupancy…
    681, 682, 697, 137, 296, 370, 673, 373, 372, 695, 312, // lookups and limits, cuTensorMapEncodeTiled
];

#[rustfmt::skip]
const TRANSFERS: &[(usize, Kind, usize)] = &[
    (60, Memcpy, offset_of!(sys::cuMemcpyHtoDAsync_params_st, hStream)), // cuMemcpyHtoDAsync
    (62, Memcpy, offset_of!(sys::cuMemcpyDtoHAsync_params_st, hStream)), // cuMemcpyDtoHAsync
    (64, Memcpy, offset_of!(sys::cuMemcpyDtoDAsync_params_st, hStream)), // cuMemcpyDtoDAsync
    (66, Memcpy, offset_of!(sys::cuMemcpyHtoAAsync_params_st, hStream)), // cuMemcpyHtoAAsync
    (67, Memcpy, offset_of!(sys::cuMemcpyAtoHAsync_params_st, hStream)), // cuMemcpyAtoHAsync
    (68, Memcpy, offset_of!(sys::cuMemcpy2DAsync_params_st, hStream)), // cuMemcpy2DAsync
    (69, Memcpy, offset_of!(sys::cuMemcpy3DAsync_params_st, hStream)), // cuMemcpy3DAsync
    (216, Memset, offset_of!(sys::cuMemsetD8Async_params_st, hStream)), // cuMemsetD8Async
    (218, Memset, offset_of!(sys::cuMemsetD16Async_params_st, hStream)), // cuMemsetD16Async
    (220, Memset, offset_of!(sys::cuMemsetD32Async_params_st, hStream)), // cuMemsetD32Async
    (222, Memset, offset_of!(sys::cuMemsetD2D8Async_params_st, hStream)), // cuMemsetD2D8Async
    (224, Memset, offset_of!(sys::cuMemsetD2D16Async_params_st, hStream)), // cuMemsetD2D16Async
    (226, Memset, offset_of!(sys::cuMemsetD2D32Async_params_st, hStream)), // cuMemsetD2D32Async
    (277, Memcpy, offset_of!(sys::cuMemcpyHtoDAsync_v2_params_st, hStream)), // cuMemcpyHtoDAsync_v2
    (279, Memcpy, offset_of!(sys::cuMemcpyDtoHAsync_v2_params_st, hStream)), // cuMemcpyDtoHAsync_v2
    (281, Memcpy, offset_of!(sys::cuMemcpyDtoDAsync_v2_params_st, hStream)), // cuMemcpyDtoDAsync_v2
    (283, Memcpy, offset_of!(sys::cuMemcpyAtoHAsync_v2_params_st, hStream)), // cuMemcpyAtoHAsync_v2
    (289, Memcpy, offset_of!(sys::cuMemcpy2DAsync_v2_params_st, hStream)), // cuMemcpy2DAsync_v2
    (291, Memcpy, offset_of!(sys::cuMemcpy3DAsync_v2_params_st, hStream)), // cuMemcpy3DAsync_v2
    (293, Memcpy, offset_of!(sys::cuMemcpyHtoAAsync_v2_params_st, hStream)), // cuMemcpyHtoAAsync_v2
    (306, Memcpy, offset_of!(sys::cuMemcpyAsync_params_st, hStream)), // cuMemcpyAsync
    (319, Memcpy, offset_of!(sys::cuMemcpyPeerAsync_params_st, hStream)), // cuMemcpyPeerAsync
    (321, Memcpy, offset_of!(sys::cuMemcpy3DPeerAsync_params_st, hStream)), // cuMemcpy3DPeerAsync
    (418, Memcpy, offset_of!(sys::cuMemcpyAsync_ptsz_params_st, hStream)), // cuMemcpyAsync_ptsz
    (419, Memcpy, offset_of!(sys::cuMemcpyHtoAAsync_v2_ptsz_params_st, hStream)), // cuMemcpyHtoAAsync_v2_ptsz
    (420, Memcpy, offset_of!(sys::cuMemcpyAtoHAsync_v2_ptsz_params_st, hStream)), // cuMemcpyAtoHAsync_v2_ptsz
    (421, Memcpy, offset_of!(sys::cuMemcpyHtoDAsync_v2_ptsz_params_st, hStream)), // cuMemcpyHtoDAsync_v2_ptsz
    (422, Memcpy, offset_of!(sys::cuMemcpyDtoHAsync_v2_ptsz_params_st, hStream)), // cuMemcpyDtoHAsync_v2_ptsz
    (423, Memcpy, offset_of!(sys::cuMemcpyDtoDAsync_v2_ptsz_params_st, hStream)), // cuMemcpyDtoDAsync_v2_ptsz
    (424, Memcpy, offset_of!(sys::cuMemcpy2DAsync_v2_ptsz_params_st, hStream)), // cuMemcpy2DAsync_v2_ptsz
    (425, Memcpy, offset_of!(sys::cuMemcpy3DAsync_v2_ptsz_params_st, hStream)), // cuMemcpy3DAsync_v2_ptsz
    (426, Memcpy, offset_of!(sys::cuMemcpyPeerAsync_ptsz_params_st, hStream)), // cuMemcpyPeerAsync_ptsz
    (427, Memcpy, offset_of!(sys::cuMemcpy3DPeerAsync_ptsz_params_st, hStream)), // cuMemcpy3DPeerAsync_ptsz
    (428, Memset, offset_of!(sys::cuMemsetD8Async_ptsz_params_st, hStream)), // cuMemsetD8Async_ptsz
    (429, Memset, offset_of!(sys::cuMemsetD16Async_ptsz_params_st, hStream)), // cuMemsetD16Async_ptsz
    (430, Memset, offset_of!(sys::cuMemsetD32Async_ptsz_params_st, hStream)), // cuMemsetD32Async_ptsz
    (431, Memset, offset_of!(sys::cuMemsetD2D8Async_ptsz_params_st, hStream)), // cuMemsetD2D8Async_ptsz
    (432, Memset, offset_of!(sys::cuMemsetD2D16Async_ptsz_params_st, hStream)), // cuMemsetD2D16Async_ptsz
    (433, Memset, offset_of!(sys::cuMemsetD2D32Async_ptsz_params_st, hStream)), // cuMemsetD2D32Async_ptsz
];

/// Entry points that are newer than the bindings. All their parameters are words, of which the stream is the last.
///
/// Source: CUPTI 13, `generated_cuda_meta.h`.
#[rustfmt::skip]
const NEW_COPIES: &[(usize, Kind, usize)] = &[
    (776, Memcpy, 64), // cuMemcpyBatchAsync, CUDA 12.8
    (777, Memcpy, 64), // cuMemcpyBatchAsync_ptsz
    (796, Memcpy, 56), // cuMemcpyBatchAsync_v2, CUDA 13.0
    (797, Memcpy, 56), // cuMemcpyBatchAsync_v2_ptsz
    (778, Memcpy, 32), // cuMemcpy3DBatchAsync, CUDA 12.8
    (779, Memcpy, 32), // cuMemcpy3DBatchAsync_ptsz
    (798, Memcpy, 24), // cuMemcpy3DBatchAsync_v2, CUDA 13.0
    (799, Memcpy, 24), // cuMemcpy3DBatchAsync_v2_ptsz
    (837, Memcpy, 32), // cuMemcpyWithAttributesAsync, CUDA 13.2
    (838, Memcpy, 32), // cuMemcpyWithAttributesAsync_ptsz
    (839, Memcpy, 16), // cuMemcpy3DWithAttributesAsync, CUDA 13.2
    (840, Memcpy, 16), // cuMemcpy3DWithAttributesAsync_ptsz
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the ids that cudarc took from CUPTI's headers.
    #[test]
    fn ids_are_those_of_the_headers() {
        use sys::CUpti_driver_api_trace_cbid_enum as id;
        let table = Table::new();
        for (id, op) in [
            (id::CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, Op::Kernel),
            (id::CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz, Op::Kernel),
            (id::CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel, Op::Kernel),
            (id::CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, Op::KernelEx),
            (id::CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz, Op::KernelEx),
            (id::CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch, Op::Graph),
            (id::CUPTI_DRIVER_TRACE_CBID_cuStreamBeginCapture_v2, Op::BeginCapture),
            (id::CUPTI_DRIVER_TRACE_CBID_cuStreamEndCapture, Op::EndCapture),
            (id::CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithFlags, Op::Instantiate),
            (id::CUPTI_DRIVER_TRACE_CBID_cuGraphExecDestroy, Op::DestroyExec),
            (id::CUPTI_DRIVER_TRACE_CBID_cuGraphExecUpdate_v2, Op::Update),
            (id::CUPTI_DRIVER_TRACE_CBID_cuGraphClone, Op::Clone),
            (id::CUPTI_DRIVER_TRACE_CBID_cuEventRecordWithFlags_ptsz, Op::RecordEvent),
            (id::CUPTI_DRIVER_TRACE_CBID_cuStreamWaitEvent, Op::WaitEvent),
            (id::CUPTI_DRIVER_TRACE_CBID_cuEventDestroy, Op::DestroyEvent),
            (id::CUPTI_DRIVER_TRACE_CBID_cuEventDestroy_v2, Op::DestroyEvent),
            (id::CUPTI_DRIVER_TRACE_CBID_cuStreamDestroy_v2, Op::DestroyStream),
            (id::CUPTI_DRIVER_TRACE_CBID_cuCtxDestroy_v2, Op::DestroyContext),
            (id::CUPTI_DRIVER_TRACE_CBID_cuDevicePrimaryCtxReset_v2, Op::DestroyContext),
            (id::CUPTI_DRIVER_TRACE_CBID_cuDevicePrimaryCtxRelease_v2, Op::DestroyContext),
            (id::CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize_ptsz, Op::Synchronize),
            (id::CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoH_v2, Op::Synchronize),
            (id::CUPTI_DRIVER_TRACE_CBID_cuModuleLoad, Op::Other),
        ] {
            assert_eq!(table.get(id as u32), op, "{id:?}");
        }
        assert_eq!(table.get(u32::MAX), Op::Other);
    }

    #[test]
    fn copies_that_stay_on_devices() {
        use sys::CUpti_driver_api_trace_cbid_enum as id;
        for id in [
            id::CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoDAsync,
            id::CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoDAsync_v2,
            id::CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoDAsync_v2_ptsz,
            id::CUPTI_DRIVER_TRACE_CBID_cuMemcpyPeerAsync,
            id::CUPTI_DRIVER_TRACE_CBID_cuMemcpyPeerAsync_ptsz,
            id::CUPTI_DRIVER_TRACE_CBID_cuMemcpy3DPeerAsync,
            id::CUPTI_DRIVER_TRACE_CBID_cuMemcpy3DPeerAsync_ptsz,
        ] {
            assert!(stays_on_devices(id as u32), "{id:?}");
            assert!(matches!(Table::new().get(id as u32), Op::Transfer(Memcpy, _)), "{id:?}");
        }
        let staying = (0..IDS).filter(|id| stays_on_devices(u32::try_from(*id).expect("small"))).count();
        assert_eq!(staying, 7);
        for id in [id::CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoDAsync_v2, id::CUPTI_DRIVER_TRACE_CBID_cuMemcpyAsync] {
            assert!(!stays_on_devices(id as u32), "{id:?}");
        }
    }

    #[test]
    fn stream_zero_of_a_per_thread_entry_point() {
        use sys::CUpti_driver_api_trace_cbid_enum as id;
        assert_eq!(normalise(id::CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz as u32, 0), 2);
        assert_eq!(normalise(id::CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoDAsync_v2_ptsz as u32, 0), 2);
        assert_eq!(normalise(id::CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel as u32, 0), 0);
        assert_eq!(normalise(id::CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz as u32, 7), 7);
    }
}
