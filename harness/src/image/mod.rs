//! The container images that cases run in: what they are made of, and how they are made.
//!
//! `images/<variant>/` holds a Dockerfile, `image.yaml` and what else the build needs; `images/shared/` is part of every
//! build. An image is known by what went in: [`context::tag`] makes its name from that, so the same inputs are never
//! built twice, and a change of any is never overlooked. This module and `backend/docker.rs` alone name bollard.

mod build;
mod context;
mod engine;
mod model;
mod serve;
mod store;

use std::path::PathBuf;

use thiserror::Error;

pub use build::{Built, Event, Options, State, build, list, verify};
pub use engine::{Engine, Inventory, PackageRow, Removed};
pub use model::{Image, ids, load};

/// What every image of faultlab carries, and what nothing else may.
pub const LABEL: (&str, &str) = ("managed-by", "faultlab");

/// The label that names the variant.
pub const VARIANT_LABEL: &str = "faultlab.variant";

/// Why there is no image.
#[derive(Debug, Error)]
pub enum ImageError {
    /// There is no such variant.
    #[error("there is no image `{id}`; there are: {known}")]
    NoSuchVariant {
        /// What was asked for
        id: String,
        /// What there is
        known: String,
    },
    /// The variant has no such build argument.
    #[error("the image `{variant}` has no build argument `{key}`: {known}")]
    NoSuchArgument {
        /// The variant
        variant: String,
        /// What was given
        key: String,
        /// What it has
        known: String,
    },
    /// `image.yaml` is not as it must be.
    #[error("{place}: {why}")]
    File {
        /// File, line and column
        place: String,
        /// What is wrong
        why: String,
    },
    /// A file could not be read or written.
    #[error("failed to read {}: {source}", path.display())]
    Io {
        /// The file
        path: PathBuf,
        /// Why
        source: std::io::Error,
    },
    /// Images that are built on each other in a circle.
    #[error("the image `{0}` is based on itself")]
    Circle(String),
    /// The engine cannot be reached, or refuses.
    #[error("failed to {what}: {why}")]
    Engine {
        /// What was tried
        what: String,
        /// The engine's words
        why: String,
    },
    /// There is nothing to build on.
    #[error(
        "there is no base image for `{variant}`: {tried}; make the stand-in with `ci/make-base`, or pass `--base` with an image that this engine has or can pull"
    )]
    NoBase {
        /// The variant that needs it
        variant: String,
        /// What was looked for
        tried: String,
    },
    /// A step of a Dockerfile failed.
    #[error("failed to build the image `{variant}`: {step}\n  {why}{tail}")]
    Step {
        /// The variant
        variant: String,
        /// The step as the Dockerfile has it, with its place
        step: String,
        /// The engine's words
        why: String,
        /// Its last lines of output, each on a line of its own
        tail: String,
    },
    /// An image is there and does not answer as `image.yaml` says.
    #[error(
        "the image `{variant}` does not answer as its image.yaml says: `{command}` (exit code {code}) must print /{wanted}/, and printed{printed}"
    )]
    Answer {
        /// The variant
        variant: String,
        /// What was run in it
        command: String,
        /// How it ended
        code: i64,
        /// The pattern
        wanted: String,
        /// What it printed
        printed: String,
    },
    /// What is asked for has to be built first.
    #[error("the image `{variant}` is not built; `faultlab images build {variant}` builds it")]
    NotBuilt {
        /// The variant
        variant: String,
    },
}
