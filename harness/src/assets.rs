//! Where scenarios, images and captures are: in a checkout, or inside this binary.

use std::path::{Path, PathBuf};

use include_dir::{Dir, include_dir};
use thiserror::Error;

// build.rs has this crate rebuilt when they change.
static SCENARIOS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../scenarios");
static IMAGES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../images");
static CAPTURES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../golden/captures");

/// The folders that faultlab reads.
#[derive(Debug)]
pub struct Assets {
    /// `scenarios/`
    pub scenarios: PathBuf,
    /// `images/`
    pub images: PathBuf,
    /// `golden/captures/`
    pub captures: PathBuf,
    /// `golden/snapshots/`; a copy that was unpacked from the binary has none.
    pub snapshots: Option<PathBuf>,
    /// Keeps an unpacked copy for as long as it is used.
    unpacked: Option<tempfile::TempDir>,
}

impl Assets {
    /// A path among these, as a user can use it: that of an unpacked copy is gone when this program ends.
    pub fn shown(&self, path: &Path) -> String {
        match self.unpacked.as_ref().and_then(|folder| path.strip_prefix(folder.path()).ok()) {
            Some(inside) => format!("{} (built into this program)", inside.display()),
            None => path.display().to_string(),
        }
    }
}

/// No assets.
#[derive(Debug, Error)]
pub enum AssetsError {
    /// The folder that the user named is none.
    #[error("{0} is not a faultlab checkout: it has no folder `scenarios`")]
    NotACheckout(String),
    /// The copy in the binary could not be unpacked.
    #[error("failed to unpack the built-in scenarios: {0}")]
    Unpack(#[from] std::io::Error),
}

impl Assets {
    /// `root`, if the user named one; else the checkout around `here`; else the copy in this binary.
    pub fn find(root: Option<&Path>, here: &Path) -> Result<Self, AssetsError> {
        if let Some(root) = root {
            return Self::checkout(root).ok_or_else(|| AssetsError::NotACheckout(root.display().to_string()));
        }
        match here.ancestors().find_map(Self::around) {
            Some(assets) => Ok(assets),
            None => Self::unpack(),
        }
    }

    fn checkout(root: &Path) -> Option<Self> {
        let root = std::path::absolute(root).ok()?;
        let scenarios = root.join("scenarios");
        scenarios.is_dir().then(|| Self {
            scenarios,
            images: root.join("images"),
            captures: root.join("golden/captures"),
            snapshots: Some(root.join("golden/snapshots")),
            unpacked: None,
        })
    }

    /// Other projects have a folder `scenarios` too: a checkout of faultlab's kind also has `golden`.
    fn around(folder: &Path) -> Option<Self> {
        folder.join("golden").is_dir().then(|| Self::checkout(folder)).flatten()
    }

    fn unpack() -> Result<Self, AssetsError> {
        let folder = tempfile::Builder::new().prefix("faultlab-").tempdir()?;
        let [scenarios, images, captures] = ["scenarios", "images", "captures"].map(|name| folder.path().join(name));
        for (dir, path) in [(&SCENARIOS, &scenarios), (&IMAGES, &images), (&CAPTURES, &captures)] {
            std::fs::create_dir_all(path)?;
            dir.extract(path)?;
        }
        Ok(Self { scenarios, images, captures, snapshots: None, unpacked: Some(folder) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binary_carries_a_complete_copy() -> Result<(), Box<dyn std::error::Error>> {
        let elsewhere = tempfile::tempdir()?;
        let unpacked = Assets::find(None, elsewhere.path())?;
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let ids = crate::scenario::ids(&unpacked.scenarios)?;
        assert_eq!(ids, crate::scenario::ids(&checkout.join("scenarios"))?);
        assert!(!ids.is_empty());
        assert_eq!(crate::image::ids(&unpacked.images)?, crate::image::ids(&checkout.join("images"))?);
        assert_eq!(
            crate::backend::stacks(&unpacked.captures),
            crate::backend::stacks(&checkout.join("golden/captures"))
        );
        Ok(())
    }

    #[test]
    fn a_named_root_must_be_a_checkout() {
        assert!(Assets::find(Some(Path::new("/nowhere")), Path::new("/")).is_err());
    }
}
