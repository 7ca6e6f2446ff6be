//! The launch recorder.
//!
//! The CUDA driver loads this library into a process when `CUDA_INJECTION64_PATH` names it. It notes every launch with the
//! Python frames of the launching thread, sets completion markers in the streams, and after a device fault names the
//! first launch that did not complete. The program stays asynchronous.

pub mod format;
pub mod python;
