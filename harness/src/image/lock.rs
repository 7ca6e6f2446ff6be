//! `images lock`: writes into `image.yaml` what a registry or a mirror says, and names what none of them could say.

use std::collections::BTreeMap;
use std::path::Path;

use super::build::Options;
use super::chain::chain;
use super::edit::{self, Edit};
use super::engine::Engine;
use super::model::{self, Image};
use super::packages::{Offered, offered};
use super::{ImageError, LABEL};

/// A value that is written, or would be.
#[derive(Debug, PartialEq, Eq)]
pub struct Change {
    /// The variant
    pub variant: String,
    /// The key, such as `packages.gdb`
    pub key: String,
    /// What stood there; nothing if nothing did
    pub from: String,
    /// What stands there now
    pub to: String,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct LockReport {
    /// Values
    pub changes: Vec<Change>,
    /// What was looked for and not found, each with its variant: it stays as it is
    pub failed: Vec<(String, String)>,
    /// What nobody was asked for, and how it is filled
    pub open: Vec<(String, String)>,
}

/// Locks a variant. `update` also replaces what is locked by what is offered now; `check` writes nothing.
pub async fn lock(
    engine: &Engine,
    options: &Options,
    variant: &str,
    update: bool,
    check: bool,
) -> Result<LockReport, ImageError> {
    let image = model::load(&options.root, variant)?;
    let mut work =
        Work { image: &image, update, edits: Vec::new(), wanted: image.clone(), report: LockReport::default() };
    let known = model::ids(&options.root).map_err(|source| ImageError::Io { path: options.root.clone(), source })?;
    if !known.contains(&image.base) {
        work.base(engine, options).await?;
    }
    if !image.packages.is_empty() || !package_words(&image).is_empty() {
        work.packages(engine, options).await?;
    }
    work.requirements();
    let Work { edits, wanted, report, .. } = work;
    if !edits.is_empty() {
        let path = image.folder.join(model::FILE);
        let text = std::fs::read_to_string(&path).map_err(|source| ImageError::Io { path: path.clone(), source })?;
        let edited = edited(&text, &edits, &wanted)?;
        if !check {
            edit::write_whole(&path, &edited)?;
        }
    }
    Ok(report)
}

/// The text with its changes, if it then says what was meant and nothing else.
fn edited(text: &str, edits: &[Edit], wanted: &Image) -> Result<String, ImageError> {
    let place = format!("images/{}/{}", wanted.id, model::FILE);
    let wrong = |why: String| ImageError::File { place: place.clone(), why };
    let edited = edit::apply(text, edits).map_err(|why| wrong(format!("failed to change it: {why}")))?;
    let read = model::parse(&edited, &wanted.id, wanted.folder.clone())?;
    if read == *wanted {
        Ok(edited)
    } else {
        Err(wrong("its changes would not come out as they are meant: write its values in block notation".into()))
    }
}

struct Work<'a> {
    image: &'a Image,
    update: bool,
    edits: Vec<Edit>,
    /// What `image.yaml` must say when it is read again
    wanted: Image,
    report: LockReport,
}

impl Work<'_> {
    fn failed(&mut self, why: String) {
        self.report.failed.push((self.image.id.clone(), why));
    }

    fn open(&mut self, why: String) {
        self.report.open.push((self.image.id.clone(), why));
    }

    fn change(&mut self, key: String, from: &str, to: &str, edit: Edit) {
        self.edits.push(edit);
        let variant = self.image.id.clone();
        self.report.changes.push(Change { variant, key, from: from.into(), to: to.into() });
    }

    /// The digest of the base, from its registry. An image that stands in for it has a content and no digest.
    async fn base(&mut self, engine: &Engine, options: &Options) -> Result<(), ImageError> {
        let base = &self.image.base;
        let name = match base.split_once("@sha256:") {
            Some((name, _)) if self.update => name,
            Some(_) => return Ok(()),
            None => base.as_str(),
        };
        match engine.registry_digest(name, options.credentials_for(name)).await {
            Ok(digest) => {
                let to = format!("{name}@{digest}");
                if to != *base {
                    self.wanted.base.clone_from(&to);
                    self.change("base".into(), base, &to, Edit::Set { path: vec!["base".into()], value: to.clone() });
                }
            }
            Err(e) => {
                let mut why = format!("base: {e}");
                if let Some(stand_in) = &self.image.stand_in
                    && engine.find(base).await?.is_none()
                    && let Some(found) = engine.find(stand_in).await?
                {
                    let labels = found.config.and_then(|c| c.labels).unwrap_or_default();
                    let inputs =
                        labels.get("faultlab.inputs").filter(|_| labels.get(LABEL.0).is_some_and(|v| v == LABEL.1));
                    let known_by = inputs.map_or_else(String::new, |inputs| format!(", made from the inputs {inputs}"));
                    why = format!(
                        "{why} ({stand_in} stands in for it: its content is {}{known_by}; no registry has a digest for that)",
                        found.id.unwrap_or_default()
                    );
                }
                self.failed(why);
            }
        }
        Ok(())
    }

    /// Versions of Debian packages, from the mirror that a build would use, and the date of the snapshot.
    async fn packages(&mut self, engine: &Engine, options: &Options) -> Result<(), ImageError> {
        let snapshot = options.apt_snapshot.as_ref().or(self.image.snapshot.as_ref());
        if snapshot.is_some() && options.apt_mirror.is_none() {
            self.failed("packages: `snapshot` needs a mirror that serves snapshots: pass --apt-mirror".into());
            return Ok(());
        }
        let Some(base) = chain(options, &self.image.id)?.base_here(engine).await? else {
            self.failed(
                "packages: apt asks from within the base image, and this engine has none: pull it, or run ci/make-base"
                    .into(),
            );
            return Ok(());
        };
        let words = package_words(self.image);
        let mut names: Vec<String> = self.image.packages.keys().cloned().collect();
        names.extend(words.iter().map(|word| word.package.clone()));
        names.sort();
        names.dedup();
        let look = Options { apt_snapshot: snapshot.cloned(), ..options.clone() };
        // What an argument names may be meant for a step that adds components.
        let all = (!words.is_empty()).then_some("main contrib non-free");
        let components = self.image.args.get("FAULTLAB_APT_COMPONENTS").map(String::as_str).or(all);
        let script = script(&options.root)?;
        let found = match offered(engine, &look, &base.id, &script, components, &names).await {
            Ok(found) => found,
            Err(e) => {
                self.failed(format!("packages: {e}"));
                return Ok(());
            }
        };
        for (package, pinned) in &self.image.packages {
            if let Some(version) = self.version(package, pinned.as_deref(), &found) {
                self.wanted.packages.insert(package.clone(), Some(version.clone()));
                let path = vec!["packages".into(), package.clone()];
                let from = pinned.as_deref().unwrap_or_default();
                self.change(format!("packages.{package}"), from, &version, Edit::Set { path, value: version.clone() });
            }
        }
        for word in words {
            if let Some(version) = self.version(&word.package, word.version.as_deref(), &found) {
                self.word(&word, &version);
            }
        }
        let absent: Vec<&str> =
            found.iter().filter(|(_, offered)| offered.candidate.is_empty()).map(|(name, _)| name.as_str()).collect();
        if !absent.is_empty() {
            let components = components.unwrap_or("main");
            self.failed(format!("packages: the mirror has none of these in {components}: {}", absent.join(", ")));
        }
        self.snapshot(options);
        Ok(())
    }

    /// The version to write in place of what is there, if any.
    fn version(&mut self, package: &str, pinned: Option<&str>, found: &BTreeMap<String, Offered>) -> Option<String> {
        let offered = found.get(package)?;
        let candidate = &offered.candidate;
        match pinned {
            _ if candidate.is_empty() => None,
            None => Some(candidate.clone()),
            Some(pinned) if pinned == candidate => None,
            Some(_) if self.update => Some(candidate.clone()),
            Some(pinned) if offered.versions.iter().any(|version| version == pinned) => None,
            Some(pinned) => {
                self.failed(format!(
                    "{package}: the mirror does not have {pinned} any more; it has {candidate}, which --update takes"
                ));
                None
            }
        }
    }

    fn word(&mut self, word: &Word, version: &str) {
        let to = format!("{}={version}", word.package);
        if let Some(value) = self.wanted.args.get_mut(&word.key) {
            let words = value.split(' ').map(|w| if w == word.text { to.as_str() } else { w });
            *value = words.collect::<Vec<_>>().join(" ");
        }
        let path = vec!["args".into(), word.key.clone()];
        let edit = Edit::Word { path, from: word.text.clone(), to: to.clone() };
        self.change(format!("args.{}", word.key), &word.text, &to, edit);
    }

    /// The mirror has just answered for this date.
    fn snapshot(&mut self, options: &Options) {
        let old = self.image.snapshot.as_deref();
        match &options.apt_snapshot {
            Some(date) if old != Some(date) => {
                self.wanted.snapshot = Some(date.clone());
                let edit = if old.is_some() {
                    Edit::Set { path: vec!["snapshot".into()], value: date.clone() }
                } else {
                    let behind = if self.image.stand_in.is_some() { "stand_in" } else { "base" };
                    Edit::Add { behind: behind.into(), key: "snapshot".into(), value: date.clone() }
                };
                self.change("snapshot".into(), old.unwrap_or_default(), date, edit);
            }
            None if old.is_none() => {
                self.open("snapshot: no mirror of snapshots was given (--apt-mirror URL --apt-snapshot DATE)".into());
            }
            _ => {}
        }
    }

    /// Only pip knows which wheels belong together: this says what is missing, and what fills it.
    fn requirements(&mut self) {
        let Some(file) = &self.image.requirements else { return };
        let remedy = "`pip install --dry-run --ignore-installed --only-binary :all: --report report.json PACKAGE==VERSION` \
                    gives the wheels with their hashes";
        match std::fs::read_to_string(self.image.folder.join(file)) {
            Err(e) => self.open(format!("{file}: {e}; {remedy}")),
            Ok(text) => {
                let bare = without_hash(&text);
                if !bare.is_empty() {
                    self.open(format!("{file}: without a hash: {}; {remedy}", bare.join(", ")));
                }
            }
        }
    }
}

/// The requirements of a lock file that no hash pins.
fn without_hash(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ").replace("\\\r\n", " ");
    let lines = joined.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', '-']));
    let bare = lines.filter(|line| !line.contains("--hash=sha256:"));
    bare.map(|line| line.split_whitespace().next().unwrap_or_default().to_string()).collect()
}

fn script(root: &Path) -> Result<String, ImageError> {
    let path = root.join("shared/install-packages");
    std::fs::read_to_string(&path).map_err(|source| ImageError::Io { path, source })
}

/// A package in a build argument.
#[derive(Debug, PartialEq, Eq)]
struct Word {
    /// The argument
    key: String,
    /// `package` or `package=version`
    text: String,
    package: String,
    version: Option<String>,
}

/// The packages that build arguments name: those whose keys end in `_PACKAGES`, as for apt-get.
fn package_words(image: &Image) -> Vec<Word> {
    let lists = image.args.iter().filter(|(key, _)| key.ends_with("_PACKAGES"));
    let words = lists.flat_map(|(key, value)| value.split_whitespace().map(move |text| (key, text)));
    words
        .map(|(key, text)| {
            let (package, version) = match text.split_once('=') {
                Some((package, version)) => (package, Some(version.to_string())),
                None => (text, None),
            };
            Word { key: key.clone(), text: text.into(), package: package.into(), version }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "id: tiny\ntitle: t\nbase: some:tag # here\npackages: { gdb: 16.3-1, strace: null }\nargs:\n  A_PACKAGES: >-\n    lld patch=1\n    patch-x\nverify: [{ run: [id], prints: '^1$' }]\n";

    fn image() -> Image {
        model::parse(TEXT, "tiny", "nowhere".into()).unwrap()
    }

    fn work(image: &Image, update: bool) -> Work<'_> {
        Work { image, update, edits: Vec::new(), wanted: image.clone(), report: LockReport::default() }
    }

    fn found(rows: &[(&str, &str, &[&str])]) -> BTreeMap<String, Offered> {
        let row = |(name, candidate, versions): &(&str, &str, &[&str])| {
            let versions = versions.iter().map(ToString::to_string).collect();
            ((*name).to_string(), Offered { candidate: (*candidate).into(), versions })
        };
        rows.iter().map(row).collect()
    }

    #[test]
    fn a_version_is_filled_and_one_that_is_there_stays_until_it_is_updated() {
        let image = image();
        let mirror =
            found(&[("gdb", "17.1-1", &["17.1-1", "16.3-1"]), ("strace", "6.13-1", &["6.13-1"]), ("gone", "", &[])]);
        let mut fills = work(&image, false);
        assert_eq!(fills.version("strace", None, &mirror), Some("6.13-1".into()));
        assert_eq!(fills.version("gdb", Some("16.3-1"), &mirror), None);
        assert!(fills.report.failed.is_empty(), "the mirror still has it");
        assert_eq!(fills.version("gdb", Some("15.2-1"), &mirror), None);
        assert_eq!(fills.version("gone", None, &mirror), None);
        let said: Vec<&str> = fills.report.failed.iter().map(|(_, why)| why.as_str()).collect();
        assert!(said.len() == 1 && said[0].contains("15.2-1") && said[0].contains("17.1-1"), "{said:?}");
        assert_eq!(work(&image, true).version("gdb", Some("16.3-1"), &mirror), Some("17.1-1".into()));
        assert_eq!(work(&image, true).version("gdb", Some("17.1-1"), &mirror), None);
    }

    #[test]
    fn words_of_build_arguments_are_packages_too() {
        let image = image();
        let words = package_words(&image);
        assert_eq!(words.iter().map(|w| w.package.as_str()).collect::<Vec<_>>(), ["lld", "patch", "patch-x"]);
        assert_eq!(words[1].version.as_deref(), Some("1"));
        let mut work = work(&image, true);
        work.word(&words[0], "1:19.0-63");
        work.word(&words[1], "2.8-2");
        let edited = edited(TEXT, &work.edits, &work.wanted).unwrap();
        assert!(edited.contains("    lld=1:19.0-63 patch=2.8-2\n    patch-x\n"), "{edited}");
        assert!(edited.contains("base: some:tag # here"), "{edited}");
    }

    #[test]
    fn a_change_that_does_not_come_out_as_meant_is_refused() {
        let image = image();
        let edits = [Edit::Set { path: vec!["base".into()], value: "other".into() }];
        let error = edited(TEXT, &edits, &image).unwrap_err().to_string();
        assert!(error.starts_with("images/tiny/image.yaml: "), "{error}");
    }

    #[test]
    fn requirements_without_a_hash_are_named() {
        let text = "# c\n--only-binary :all:\na==1 \\\n    --hash=sha256:00\nb==2\nc==3; python_version > '3' \\\n  --hash=sha256:11\n";
        assert_eq!(without_hash(text), ["b==2"]);
    }
}
