//! `images.lock`: which image of a registry each variant is, for everyone who works on a checkout.
//!
//! ```text
//! cpu: registry.example.org/team/cpu@sha256:4f0c…
//! ```

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::ImageError;
use super::edit::write_whole;

/// The file's name, beside the variants' folders: it is no part of what a build is given.
const FILE: &str = "images.lock";

const HEAD: &str = "# Images that were built once and are pulled by everyone, by their digests in a registry.\n\
                    # `faultlab images push VARIANT --to NAME --lock` writes this file, `faultlab images pull VARIANT` reads it.\n";

/// What the file says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Locked {
    references: BTreeMap<String, String>,
    path: PathBuf,
}

impl Locked {
    /// Reads the file of `images/`, if there is one.
    pub(super) fn read(root: &Path) -> Result<Self, ImageError> {
        let path = root.join(FILE);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(source) => return Err(ImageError::Io { path, source }),
        };
        Ok(Self { references: parse(&text)?, path })
    }

    /// `NAME@sha256:…` of a variant.
    pub(super) fn reference(&self, variant: &str) -> Option<&str> {
        self.references.get(variant).map(String::as_str)
    }

    /// The variants that it names.
    pub(super) fn variants(&self) -> String {
        self.references.keys().cloned().collect::<Vec<_>>().join(", ")
    }

    /// Sets the reference of a variant, and writes the file.
    pub(super) fn set(&mut self, variant: &str, reference: &str) -> Result<(), ImageError> {
        self.references.insert(variant.into(), reference.into());
        let text = self.references.iter().fold(HEAD.to_string(), |mut text, (variant, reference)| {
            let _ = writeln!(text, "{variant}: {reference}");
            text
        });
        write_whole(&self.path, &text)
    }
}

fn parse(text: &str) -> Result<BTreeMap<String, String>, ImageError> {
    let mut references = BTreeMap::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |why: &str| ImageError::File { place: format!("images/{FILE}:{}", at + 1), why: why.into() };
        let (variant, reference) =
            line.split_once(": ").ok_or_else(|| wrong("`VARIANT: NAME@sha256:DIGEST` is wanted"))?;
        let reference = reference.trim();
        if !is_digest_reference(reference) {
            return Err(wrong(&format!("`{reference}` has no digest: NAME@sha256: and 64 hex digits are wanted")));
        }
        if references.insert(variant.trim().to_string(), reference.to_string()).is_some() {
            return Err(wrong(&format!("`{}` is named twice", variant.trim())));
        }
    }
    Ok(references)
}

/// Is it `NAME@sha256:<64 hex digits>`?
pub(super) fn is_digest_reference(text: &str) -> bool {
    text.split_once("@sha256:").is_some_and(|(name, digest)| {
        !name.is_empty()
            && digest.len() == 64
            && digest.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut locked = Locked::read(folder.path()).unwrap();
        assert_eq!((locked.reference("cpu"), locked.variants()), (None, String::new()));
        let reference = format!("localhost:5000/a/cpu@sha256:{}", "0a".repeat(32));
        locked.set("cpu", &reference).unwrap();
        locked.set("gdb", &reference).unwrap();
        let again = Locked::read(folder.path()).unwrap();
        assert_eq!(again, locked);
        assert_eq!((again.reference("cpu"), again.variants()), (Some(reference.as_str()), "cpu, gdb".into()));
    }

    #[test]
    fn complaints_name_the_line() {
        let complaint = |text: &str| parse(text).unwrap_err().to_string();
        let good = format!("a@sha256:{}", "0".repeat(64));
        for (text, part) in [
            ("# c\n\ncpu a:latest\n".to_string(), "images/images.lock:3: `VARIANT"),
            ("cpu: a:latest\n".into(), "images/images.lock:1: `a:latest` has no digest"),
            (format!("cpu: {good}\ncpu: {good}\n"), "images/images.lock:2: `cpu` is named twice"),
            (format!("cpu: {}\n", good.to_uppercase()), "has no digest"),
        ] {
            assert!(complaint(&text).contains(part), "{}", complaint(&text));
        }
    }
}
