//! The container images that cases run in: what they are made of, and how they are made.
//!
//! `images/<variant>/` holds a Dockerfile, `image.yaml` and what else the build needs; `images/shared/` is part of every
//! build. An image is known by what went in: [`context::tag`] makes its name from that, so the same inputs are never
//! built twice, and a change of any is never overlooked. This module and `backend/docker.rs` alone name bollard.

mod build;
mod chain;
mod context;
mod edit;
mod engine;
mod lock;
mod locked;
mod model;
mod packages;
mod registry;
mod sbom;
mod serve;
mod store;

use std::path::PathBuf;

use thiserror::Error;

pub use build::{Built, Event, Options, State, build, list, verify};
pub use engine::{Credentials, Engine, Removed};
pub use lock::{Change, LockReport, lock};
pub use model::{Image, ids, load};
pub use packages::{Inventory, PackageRow, inventory};
pub use registry::{Pulled, Pushed, pull, push, registry_of};
pub use sbom::cyclonedx;

/// What every image of faultlab carries, and what nothing else may.
pub const LABEL: (&str, &str) = ("managed-by", "faultlab");

/// The label that names the variant.
pub const VARIANT_LABEL: &str = "faultlab.variant";

/// The label with the hash of all files and arguments that the image and those below it are made from; the same for
/// everyone who has the same files.
pub const RECIPE_LABEL: &str = "faultlab.recipe";

/// The label with the content of the image that it was built on.
pub const BASE_LABEL: &str = "faultlab.base";

/// The label with that image's name, as the builder's engine had it.
pub const BASE_NAME_LABEL: &str = "faultlab.base-name";

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
    /// The file system that the engine keeps images on is full.
    #[error(
        "{failed}\n  the disk is full that the engine keeps its images on ({data}): `docker system df` says what takes the room, `faultlab images clean` gives back what faultlab made; the unnamed layers of this build are removed"
    )]
    DiskFull {
        /// The step that failed
        failed: Box<ImageError>,
        /// Where the engine keeps its data
        data: String,
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
    /// An image of a registry is to be named by its digest.
    #[error("`{0}` has no digest: name the image as NAME@sha256:DIGEST, as `faultlab images push` prints it")]
    NoDigest(String),
    /// `images.lock` does not have the variant.
    #[error(
        "images/images.lock does not name the image `{variant}`{known}; `faultlab images push {variant} --to NAME --lock` does"
    )]
    NotLocked {
        /// The variant
        variant: String,
        /// What it names, as `: it names …`
        known: String,
    },
    /// An image that was pulled is not what the files here say.
    #[error("{reference} is not the image of these files: {why}; it gets no name")]
    Foreign {
        /// Where it came from
        reference: String,
        /// What differs
        why: String,
    },
    /// An image is too old to be given to others.
    #[error(
        "{tag} does not say what it was built from, as images of this version do: remove it (`docker rmi {tag}`) and build it again (the engine still has its steps)"
    )]
    NoRecipe {
        /// Its name
        tag: String,
    },
}
