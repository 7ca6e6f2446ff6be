//! faultlab finds the line that caused an asynchronous GPU error, and scores the tools that claim to.
//!
//! [`run`] shows the whole flow; ARCHITECTURE.md says where everything is and what must stay true.

pub mod assets;
pub mod backend;
pub mod bench;
pub mod capture;
pub mod case;
pub mod cli;
pub mod diagnose;
pub mod doctor;
pub mod finding;
pub mod golden;
pub mod host;
pub mod image;
pub mod judge;
pub mod parse;
pub mod plan;
pub mod recorder_env;
pub mod report;
pub mod results;
pub mod run;
pub mod run_dir;
pub mod scenario;
pub mod stats;
pub mod tool;

#[cfg(test)]
mod testing;
