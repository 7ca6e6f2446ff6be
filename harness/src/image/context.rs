//! What a build is given, and the name that follows from it.

use std::collections::BTreeMap;
use std::path::Path;

use sha2::{Digest as _, Sha256};

use super::ImageError;
use super::model::Image;

/// The files that all variants share: `images/shared/`, under the same name in each context.
const SHARED: &str = "shared";

/// A file of a build's context.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct File {
    path: String,
    bytes: Vec<u8>,
}

impl File {
    /// Scripts can be run. The file system is not asked: the copy in the binary has no modes.
    fn mode(&self) -> u32 {
        if self.bytes.starts_with(b"#!") { 0o755 } else { 0o644 }
    }
}

/// The files of a variant, sorted by path.
pub(super) fn files(image: &Image) -> Result<Vec<File>, ImageError> {
    let mut files = Vec::new();
    collect(&image.folder, "", &mut files)?;
    if let Some(shared) = image.folder.parent().map(|root| root.join(SHARED)).filter(|shared| shared.is_dir()) {
        collect(&shared, SHARED, &mut files)?;
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn collect(folder: &Path, prefix: &str, into: &mut Vec<File>) -> Result<(), ImageError> {
    let io = |path: &Path, source| ImageError::Io { path: path.into(), source };
    for entry in std::fs::read_dir(folder).map_err(|e| io(folder, e))? {
        let path = entry.map_err(|e| io(folder, e))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let name = if prefix.is_empty() { name.to_string() } else { format!("{prefix}/{name}") };
        if path.is_dir() {
            collect(&path, &name, into)?;
        } else {
            let bytes = std::fs::read(&path).map_err(|e| io(&path, e))?;
            into.push(File { path: name, bytes });
        }
    }
    Ok(())
}

/// The name of an image: `faultlab/<variant>:<12 hex digits>`, from the files, the arguments that matter, the base's
/// content and the platform. Where packages come from (mirror, proxy, CA bundle) is not what they are: it is left out.
pub(super) fn tag(
    variant: &str,
    files: &[File],
    args: &BTreeMap<String, String>,
    base: &str,
    platform: &str,
) -> String {
    let hex = hash("faultlab image 1", variant, files, args, base, platform);
    format!("faultlab/{variant}:{}", &hex[..12])
}

/// What an image is made from, as far as these files say: the same for everyone who has them, whatever image stands in
/// for a base. `below` is the recipe of the variant that it is based on, or the reference of another image. In hex.
pub(super) fn recipe(
    variant: &str,
    files: &[File],
    args: &BTreeMap<String, String>,
    below: &str,
    platform: &str,
) -> String {
    hash("faultlab recipe 1", variant, files, args, below, platform)
}

fn hash(
    kind: &str,
    variant: &str,
    files: &[File],
    args: &BTreeMap<String, String>,
    base: &str,
    platform: &str,
) -> String {
    let mut hash = Sha256::new();
    // Each part with its length, so that no two lists of parts read the same.
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    for text in [kind, variant, base, platform] {
        part(text.as_bytes());
    }
    for file in files {
        part(file.path.as_bytes());
        part(&file.mode().to_le_bytes());
        part(&file.bytes);
    }
    for (key, value) in args {
        part(key.as_bytes());
        part(value.as_bytes());
    }
    hash.finalize().iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
}

/// The context as the engine wants it. The same files give the same bytes: no times, no owners.
pub(super) fn archive(files: &[File]) -> std::io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for file in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(file.bytes.len() as u64);
        header.set_mode(file.mode());
        header.set_mtime(0);
        archive.append_data(&mut header, &file.path, file.bytes.as_slice())?;
    }
    archive.into_inner()
}

/// The line on which the Dockerfile's n-th instruction begins, counted from 1 as the engine counts steps.
pub(super) fn instruction_line(dockerfile: &str, n: usize) -> Option<usize> {
    let (mut seen, mut goes_on) = (0, false);
    for (number, line) in dockerfile.lines().enumerate() {
        let line = line.trim();
        // Comments and empty lines may also stand inside an instruction.
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if !goes_on {
            seen += 1;
            if seen == n {
                return Some(number + 1);
            }
        }
        goes_on = line.ends_with('\\');
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.into(), bytes: text.into() }
    }

    #[test]
    fn every_input_that_matters_changes_the_tag() {
        let args = BTreeMap::from([("A".to_string(), "1".to_string())]);
        let first = tag("cpu", &[file("Dockerfile", "FROM x")], &args, "sha256:1", "");
        assert!(first.starts_with("faultlab/cpu:") && first.len() == "faultlab/cpu:".len() + 12, "{first}");
        assert_eq!(first, tag("cpu", &[file("Dockerfile", "FROM x")], &args, "sha256:1", ""));
        let others = [
            tag("cpu", &[file("Dockerfile", "FROM y")], &args, "sha256:1", ""),
            tag("cpu", &[file("Dockerfile", "FROM x"), file("more", "")], &args, "sha256:1", ""),
            tag("cpu", &[file("Dockerfile", "FROM x")], &BTreeMap::new(), "sha256:1", ""),
            tag("cpu", &[file("Dockerfile", "FROM x")], &args, "sha256:2", ""),
            tag("cpu", &[file("Dockerfile", "FROM x")], &args, "sha256:1", "linux/arm64"),
        ];
        for other in others {
            assert_ne!(first, other);
        }
    }

    #[test]
    fn the_archive_is_the_same_each_time_and_scripts_can_be_run() {
        let files = [file("Dockerfile", "FROM x"), file("shared/run", "#!/bin/sh\n")];
        let bytes = archive(&files).unwrap();
        assert_eq!(bytes, archive(&files).unwrap());
        let mut archive = tar::Archive::new(bytes.as_slice());
        let modes: Vec<u32> = archive.entries().unwrap().map(|e| e.unwrap().header().mode().unwrap()).collect();
        assert_eq!(modes, [0o644, 0o755]);
    }

    #[test]
    fn steps_are_counted_as_the_engine_counts_them() {
        let text = "# c\nARG BASE\nFROM ${BASE}\n\nRUN a; \\\n    # inside\n    b\nUSER x\n";
        let lines: Vec<Option<usize>> = (1..=5).map(|n| instruction_line(text, n)).collect();
        assert_eq!(lines, [Some(2), Some(3), Some(5), Some(8), None]);
    }
}
