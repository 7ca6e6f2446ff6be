//! The launch recorder.
//!
//! The CUDA driver loads this library into a process when `CUDA_INJECTION64_PATH` names it. It notes every launch with the
//! Python frames of the launching thread, sets completion markers in the streams, and after a device fault names the
//! first launch that did not complete. The program stays asynchronous.
//!
//! ```text
//! driver call -> recorder (call-back) -> ring of launches, streams with markers, captures
//! an error, from a call or the watcher -> locate -> report
//! ```

mod autograd;
mod capture;
pub mod compiled;
mod config;
mod cuda;
mod cupti;
mod dl;
pub mod format;
mod inject;
pub mod interpose;
mod locate;
mod ops;
pub mod python;
mod recorder;
mod report;
mod ring;
mod risk;
mod streams;
mod symbols;
mod watch;
