//! `image.yaml`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use regex::Regex;
use serde::Deserialize;

use super::ImageError;

/// The file's name in each variant's folder.
pub(super) const FILE: &str = "image.yaml";

/// One variant, as `image.yaml` states it. Unknown keys are errors.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// The folder's name
    pub id: String,
    /// One line
    pub title: String,
    /// Another variant, or a reference such as `debian:trixie-slim@sha256:…`
    pub base: String,
    /// What is taken in place of a base that this engine has not
    pub stand_in: Option<String>,
    /// Date of the Debian snapshot that packages come from
    pub snapshot: Option<String>,
    /// Debian packages with their versions; a version that is not known stays empty
    #[serde(default)]
    pub packages: BTreeMap<String, Option<String>>,
    /// Build arguments and their values, unless the user gives others
    #[serde(default)]
    pub args: BTreeMap<String, String>,
    /// Does the build compile so much that what it compiled is to be kept for the next one?
    #[serde(default)]
    pub compiler_cache: bool,
    /// The lock file of Python packages, with hashes
    pub requirements: Option<String>,
    /// What the image must answer
    pub verify: Vec<Answer>,
    /// Where it was read from
    #[serde(skip)]
    pub folder: PathBuf,
}

/// A command, and what it must print.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// The command; no shell reads it
    pub run: Vec<String>,
    /// A regular expression; `^` and `$` are the ends of a line
    pub prints: String,
}

impl Answer {
    /// The expression, of many lines.
    pub(super) fn pattern(&self) -> Result<Regex, regex::Error> {
        regex::RegexBuilder::new(&self.prints).multi_line(true).build()
    }
}

impl Image {
    /// The packages as apt-get is told them.
    pub(super) fn package_list(&self) -> String {
        let named = self.packages.iter().map(|(name, version)| match version {
            Some(version) => format!("{name}={version}"),
            None => name.clone(),
        });
        named.collect::<Vec<_>>().join(" ")
    }

    /// Takes the values that the user gives for build arguments. Those that the variant has not are refused.
    pub(super) fn set_args(&mut self, given: &BTreeMap<String, String>) -> Result<(), ImageError> {
        for (key, value) in given {
            let Some(arg) = self.args.get_mut(key) else {
                let known = match self.args.len() {
                    0 => "it has none".to_string(),
                    _ => format!("it has {}", self.args.keys().cloned().collect::<Vec<_>>().join(", ")),
                };
                return Err(ImageError::NoSuchArgument { variant: self.id.clone(), key: key.clone(), known });
            };
            arg.clone_from(value);
        }
        Ok(())
    }

    /// What may differ between two builds of the same files. Nothing of it is ever made up: a digest or a hash that
    /// nobody looked up is missing, and said to be.
    pub fn not_locked(&self, base_is_a_variant: bool) -> Vec<String> {
        let mut reasons = Vec::new();
        if !base_is_a_variant && !self.base.contains("@sha256:") {
            reasons.push("the base has no digest".to_string());
        }
        let floating: Vec<&str> =
            self.packages.iter().filter(|(_, version)| version.is_none()).map(|(name, _)| name.as_str()).collect();
        if !floating.is_empty() {
            reasons.push(format!("packages without a version: {}", floating.join(", ")));
        }
        if self.snapshot.is_none() && !self.packages.is_empty() {
            reasons.push("without a snapshot, what the packages depend on is not fixed".to_string());
        }
        if let Some(file) = self.requirements.as_ref().filter(|file| !self.folder.join(file).is_file()) {
            reasons.push(format!("{file} is missing"));
        }
        reasons
    }
}

/// The ids of all variants below a folder: its sub-folders that hold an `image.yaml`, sorted.
pub fn ids(root: &Path) -> std::io::Result<Vec<String>> {
    let mut ids = Vec::new();
    for entry in std::fs::read_dir(root)? {
        let entry = entry?;
        if entry.path().join(FILE).is_file() {
            ids.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    ids.sort();
    Ok(ids)
}

/// Reads the variant `root/id`.
pub fn load(root: &Path, id: &str) -> Result<Image, ImageError> {
    let io = |path: &Path| {
        let path = path.to_path_buf();
        move |source| ImageError::Io { path, source }
    };
    let known = ids(root).map_err(io(root))?;
    if !known.iter().any(|k| k == id) {
        return Err(ImageError::NoSuchVariant { id: id.into(), known: known.join(", ") });
    }
    let folder = root.join(id);
    let path = folder.join(FILE);
    let text = std::fs::read_to_string(&path).map_err(io(&path))?;
    parse(&text, id, folder)
}

/// The place is named as the user would write it: it must not depend on where the checkout is.
pub(super) fn parse(text: &str, id: &str, folder: PathBuf) -> Result<Image, ImageError> {
    let name = format!("images/{id}/{FILE}");
    let wrong = |why: String| ImageError::File { place: name.clone(), why };
    let mut image: Image = serde_yaml::from_str(text).map_err(|e| {
        let e = e.without_snippet();
        let place = e.location().map_or_else(|| name.clone(), |at| format!("{name}:{}:{}", at.line(), at.column()));
        ImageError::File { place, why: e.to_string() }
    })?;
    if image.id != id {
        return Err(wrong(format!("`id` is `{}`, and the folder is `{id}`: they must be the same", image.id)));
    }
    // The id becomes part of the image's name.
    if !id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
        return Err(wrong(format!("`{id}` is no name for an image: use lower-case letters, digits and `-`")));
    }
    if image.verify.is_empty() {
        return Err(wrong("`verify` is empty: state what the image must answer".into()));
    }
    for answer in &image.verify {
        answer.pattern().map_err(|e| wrong(format!("`prints: {}` is no regular expression: {e}", answer.prints)))?;
        if answer.run.is_empty() {
            return Err(wrong("`run` is empty: it is a command and its arguments".into()));
        }
    }
    let odd = image.packages.iter().find(|(name, version)| {
        let plain =
            |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.:~".contains(&b));
        !plain(name) || !version.as_deref().is_none_or(plain)
    });
    if let Some((package, _)) = odd {
        return Err(wrong(format!("`{package}` is not a Debian package with a version")));
    }
    image.folder = folder;
    Ok(image)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "id: tiny\ntitle: t\nbase: some:tag\npackages: { gdb: 16.3-1, strace: null }\nverify: [{ run: [id], prints: '^1$' }]\n";

    fn read(text: &str) -> Result<Image, String> {
        parse(text, "tiny", PathBuf::from("nowhere")).map_err(|e| e.to_string())
    }

    #[test]
    fn what_is_missing_is_said_and_never_made_up() {
        let image = read(GOOD).unwrap();
        assert_eq!(image.package_list(), "gdb=16.3-1 strace");
        let reasons = image.not_locked(false).join("; ");
        for part in ["no digest", "strace", "snapshot"] {
            assert!(reasons.contains(part), "{reasons}");
        }
        let digest = "0".repeat(64);
        let locked = GOOD.replace("some:tag", &format!("some:tag@sha256:{digest}\nsnapshot: 20260101T000000Z"));
        assert!(read(&locked.replace(", strace: null", "")).unwrap().not_locked(false).is_empty());
    }

    #[test]
    fn arguments_are_those_that_the_variant_has() {
        let mut image = read(&format!("{GOOD}args: {{ JOBS: '0', CUDA: '1' }}\n")).unwrap();
        image.set_args(&BTreeMap::from([("JOBS".into(), "4".into())])).unwrap();
        assert_eq!((image.args["JOBS"].as_str(), image.args["CUDA"].as_str()), ("4", "1"));
        let error = image.set_args(&BTreeMap::from([("JOB".into(), "4".into())])).unwrap_err().to_string();
        assert!(error.contains("`JOB`") && error.contains("CUDA, JOBS"), "{error}");
        let error = read(GOOD).unwrap().set_args(&BTreeMap::from([("A".into(), String::new())])).unwrap_err();
        assert!(error.to_string().contains("it has none"), "{error}");
    }

    #[test]
    fn complaints_name_the_place() {
        let unknown = read(&GOOD.replace("title: t", "titel: t")).unwrap_err();
        assert!(unknown.starts_with("images/tiny/image.yaml:2:") && unknown.contains("titel"), "{unknown}");
        assert!(read(&GOOD.replace("'^1$'", "'('")).unwrap_err().contains("no regular expression"));
        assert!(read(&GOOD.replace("gdb:", "'gdb;id':")).unwrap_err().contains("gdb;id"));
        assert!(read(&GOOD.replace("id: tiny", "id: other")).unwrap_err().contains("the same"));
    }

    #[test]
    fn the_repository_s_images_are_well_formed() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../images");
        let ids = ids(&root).unwrap();
        assert_eq!(ids, ["cpu", "debug", "gdb", "runtime"]);
        for id in ids {
            let image = load(&root, &id).unwrap();
            assert!(image.folder.join("Dockerfile").is_file(), "{id}");
        }
    }
}
