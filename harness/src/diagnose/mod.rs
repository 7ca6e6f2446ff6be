//! `faultlab diagnose`: from a command that fails to the line that did it.
//!
//! ```text
//! command -> run (async, with the launch recorder) -> Observed -> Knowledge -> plan -> run under a tool -> … -> Diagnosis
//! ```
//!
//! [`run`] is that flow, [`observe`] reads a run, [`classify`] says what happened, [`locate`] turns what tools say into
//! lines, [`escalate`] chooses the next run, [`knowledge`] adds up; [`report`] writes the one [`model`] in each format. All
//! but [`run`], [`attach`] and [`bundle`] is pure.

pub mod advice;
pub mod attach;
pub mod bundle;
pub mod classify;
pub mod command;
pub mod compiled;
pub mod escalate;
pub mod knowledge;
pub mod locate;
pub mod model;
pub mod observe;
pub mod report;
pub mod run;
pub mod source;

#[cfg(test)]
pub(crate) mod testing;
