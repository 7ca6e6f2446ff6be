//! From a variant to an image.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bollard::query_parameters::BuildImageOptionsBuilder;
use futures_util::StreamExt as _;

use super::chain::{Base, Existing, Link, chain};
use super::context::{archive, instruction_line};
use super::engine::{Credentials, Engine, words};
use super::locked::Locked;
use super::model::{self, Image};
use super::serve::serve;
use super::store::serve_store;
use super::{BASE_LABEL, BASE_NAME_LABEL, ImageError, LABEL, RECIPE_LABEL, VARIANT_LABEL};

/// Lines of a failed step that its error shows.
const TAIL: usize = 15;

/// What a program or the engine says, in whatever case, when a file system is full (`ENOSPC`).
const NO_SPACE: &str = "no space left on device";

/// How images are built.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// `images/`
    pub root: PathBuf,
    /// In place of the base that `image.yaml` states: an image, or for an image that is based on a variant also a
    /// variant
    pub base: Option<String>,
    /// Mirror of Debian packages
    pub apt_mirror: Option<String>,
    /// Date of a snapshot
    pub apt_snapshot: Option<String>,
    /// Index of Python packages
    pub pip_index: Option<String>,
    /// HTTP proxy
    pub proxy: Option<String>,
    /// Extra CA bundle, for the build alone
    pub ca_bundle: Option<PathBuf>,
    /// `linux/arm64` and the like; empty is the engine's own
    pub platform: String,
    /// Only the steps up to the end of this stage of the Dockerfile: a check, which gives no image
    pub stage: Option<String>,
    /// Build although the image is there, without the engine's cache
    pub no_cache: bool,
    /// Values for build arguments of the variant that is asked for, in place of those that its `image.yaml` has
    pub args: BTreeMap<String, String>,
    /// What is known of the one who asks a registry; the argument is an image's name
    pub credentials: Option<fn(&str) -> Option<Credentials>>,
    /// Where locks are kept
    pub locks: PathBuf,
    /// Where the results of compilations are kept, for variants that compile much
    pub compiler_cache: PathBuf,
}

/// What happens during a build.
#[derive(Debug)]
pub enum Event<'a> {
    /// The base that `image.yaml` states is not here.
    StandIn {
        /// The variant
        variant: &'a str,
        /// What it states
        base: &'a str,
        /// What is taken
        stand_in: &'a str,
    },
    /// Somebody else builds the same image.
    Waiting(&'a str),
    /// A step of the Dockerfile began: `3/14 : RUN …`.
    Step(&'a str, &'a str),
    /// A line of output.
    Line(&'a str, &'a str),
    /// All steps are done; the image is asked what it must answer.
    Verifying(&'a str),
}

/// An image that is there.
#[derive(Debug, Clone)]
pub struct Built {
    /// The variant
    pub variant: String,
    /// `faultlab/<variant>:<12 hex digits>`
    pub tag: String,
    /// Its content
    pub id: String,
    /// Was it there already?
    pub found: bool,
    /// Seconds
    pub elapsed_s: f64,
    /// Bytes
    pub size: i64,
}

/// A variant, as `list` shows it.
#[derive(Debug)]
pub struct State {
    /// The variant
    pub image: Image,
    /// Its name, if its base is there: without one there is none
    pub tag: Option<String>,
    /// Bytes, if it is built
    pub size: Option<i64>,
    /// Why two builds may differ
    pub not_locked: Vec<String>,
}

/// Builds a variant, and first what it is based on. What is there already is not built again.
pub async fn build(
    engine: &Engine,
    options: &Options,
    variant: &str,
    observe: &mut (dyn FnMut(Event<'_>) + Send),
) -> Result<Built, ImageError> {
    let chain = chain(options, variant)?;
    let locked = Locked::read(&options.root)?;
    let mut base = chain.base_here(engine).await?;
    if let Some(base) = base.as_ref().filter(|base| base.stands_in) {
        let variant = chain.links.first().map(|link| link.image.id.as_str()).unwrap_or_default();
        observe(Event::StandIn { variant, base: &chain.base, stand_in: &base.name });
    }
    let mut built = None;
    let last = chain.links.len().saturating_sub(1);
    for (at, link) in chain.links.iter().enumerate() {
        link.requirements_are_there()?;
        let stage = options.stage.as_deref().filter(|_| at == last);
        let existing = if options.no_cache || stage.is_some() {
            None
        } else {
            link.existing(engine, &locked, base.as_ref().map(|base| base.id.as_str())).await?
        };
        let one = if let Some(existing) = existing {
            Built::found(link, existing)
        } else {
            link.snapshot_has_a_mirror(options)?;
            let below = match base.take() {
                Some(base) => base,
                None => chain.base(engine, options).await?,
            };
            build_one(engine, options, &Plan { link, base: below }, stage, observe).await?
        };
        base = Some(Base { name: one.tag.clone(), id: one.id.clone(), stands_in: false });
        built = Some(one);
    }
    built.ok_or_else(|| ImageError::Circle(variant.into()))
}

/// What a build is given.
struct Plan<'a> {
    link: &'a Link,
    base: Base,
}

impl Built {
    fn found(link: &Link, existing: Existing) -> Self {
        Self {
            variant: link.image.id.clone(),
            id: existing.id(),
            size: existing.found.size.unwrap_or_default(),
            tag: existing.tag,
            found: true,
            elapsed_s: 0.0,
        }
    }
}

/// One build of an image at a time, also across processes: the second one finds the first one's image.
async fn lock(options: &Options, tag: &str, observe: &mut (dyn FnMut(Event<'_>) + Send)) -> Result<File, ImageError> {
    let path = options.locks.join(format!("{}.lock", tag.replace(['/', ':'], "-")));
    let io = |source| ImageError::Io { path: path.clone(), source };
    std::fs::create_dir_all(&options.locks).map_err(io)?;
    let file = File::create(&path).map_err(io)?;
    if file.try_lock().is_ok() {
        return Ok(file);
    }
    observe(Event::Waiting(tag));
    // A lock that is waited for in a thread of its own cannot be given up; asked for again and again it can.
    loop {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(std::fs::TryLockError::WouldBlock) => {}
            Err(std::fs::TryLockError::Error(e)) => return Err(io(e)),
        }
    }
}

async fn build_one(
    engine: &Engine,
    options: &Options,
    plan: &Plan<'_>,
    stage: Option<&str>,
    observe: &mut (dyn FnMut(Event<'_>) + Send),
) -> Result<Built, ImageError> {
    let started = Instant::now();
    let variant = plan.link.image.id.clone();
    let tag = plan.link.tag(&plan.base.id);
    let _lock = lock(options, &tag, observe).await?;
    let built = |found: bool, inspected: bollard::models::ImageInspect| Built {
        variant: variant.clone(),
        tag: tag.clone(),
        id: inspected.id.unwrap_or_default(),
        found,
        elapsed_s: started.elapsed().as_secs_f64(),
        size: inspected.size.unwrap_or_default(),
    };
    if let Some(stage) = stage {
        let id = run_steps(engine, options, plan, stage, observe).await?;
        let inspected = engine.find(&id).await?.unwrap_or_default();
        return Ok(Built { tag: format!("stage {stage}"), ..built(false, inspected) });
    }
    if !options.no_cache
        && let Some(inspected) = engine.find(&tag).await?
    {
        return Ok(built(true, inspected));
    }
    let whole = async {
        let id = run_steps(engine, options, plan, "", observe).await?;
        observe(Event::Verifying(&variant));
        ask(engine, &plan.link.image, &id).await.map(|_| id)
    };
    let id = match whole.await {
        Err(e) if e.to_string().to_lowercase().contains(NO_SPACE) => {
            engine.remove_unnamed(&variant).await;
            return Err(ImageError::DiskFull { failed: Box::new(e), data: engine.data_folder().await });
        }
        id => id?,
    };
    // It gets its name last: an image that has one is whole, and answers.
    engine.tag(&id, &tag).await?;
    let inspected = engine.find(&tag).await?.unwrap_or_default();
    Ok(built(false, inspected))
}

/// Has the engine go through the Dockerfile, to the end of a stage if one is named. Returns the image's content.
async fn run_steps(
    engine: &Engine,
    options: &Options,
    plan: &Plan<'_>,
    stage: &str,
    observe: &mut (dyn FnMut(Event<'_>) + Send),
) -> Result<String, ImageError> {
    let variant = plan.link.image.id.as_str();
    let mut args: HashMap<&str, &str> = plan.link.args.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    // The base by its content: its name may mean another image by now.
    args.insert("BASE", &plan.base.id);
    for (key, value) in [("FAULTLAB_APT_MIRROR", &options.apt_mirror), ("FAULTLAB_PIP_INDEX", &options.pip_index)] {
        if let Some(value) = value {
            args.insert(key, value);
        }
    }
    if let Some(proxy) = &options.proxy {
        // Engines know these names, and keep them out of the image and its history.
        for key in ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"] {
            args.insert(key, proxy);
        }
        args.insert("no_proxy", "127.0.0.1,localhost");
        args.insert("NO_PROXY", "127.0.0.1,localhost");
    }
    // Served until the end of this function.
    let served = match &options.ca_bundle {
        Some(path) => {
            let io = |source| ImageError::Io { path: path.clone(), source };
            let bytes = tokio::fs::read(path).await.map_err(io)?;
            Some(serve(bytes, variant).await.map_err(io)?)
        }
        None => None,
    };
    if let Some(served) = &served {
        args.insert("FAULTLAB_CA_URL", &served.url);
    }
    let store = if plan.link.image.compiler_cache {
        let folder = options.compiler_cache.join(variant);
        let io = |source| ImageError::Io { path: folder.clone(), source };
        Some(serve_store(&folder, variant).await.map_err(io)?)
    } else {
        None
    };
    if let Some(store) = &store {
        args.insert("FAULTLAB_CACHE_URL", &store.url);
    }
    let labels = HashMap::from([
        LABEL,
        (VARIANT_LABEL, variant),
        (RECIPE_LABEL, plan.link.recipe.as_str()),
        (BASE_LABEL, plan.base.id.as_str()),
        (BASE_NAME_LABEL, plan.base.name.as_str()),
    ]);
    let query = BuildImageOptionsBuilder::default()
        .dockerfile("Dockerfile")
        .buildargs(&args)
        .labels(&labels)
        .networkmode("host")
        .nocache(options.no_cache)
        .target(stage)
        .platform(&options.platform)
        .rm(true)
        .forcerm(true)
        .build();
    let context =
        archive(&plan.link.files).map_err(|source| ImageError::Io { path: plan.link.image.folder.clone(), source })?;

    let (mut step, mut tail, mut id) = (String::new(), VecDeque::new(), None);
    let mut unfinished = String::new();
    let mut stream = std::pin::pin!(engine.build(query, context));
    while let Some(info) = stream.next().await {
        let info = match info {
            Ok(info) => info,
            Err(e) => return Err(failure(plan, &step, &words(&e), &tail)),
        };
        if let Some(found) = info.aux.and_then(|aux| aux.id) {
            id = Some(found);
        }
        unfinished += info.stream.as_deref().unwrap_or_default();
        while let Some(end) = unfinished.find('\n') {
            let line = without_controls(&unfinished[..end]);
            unfinished.drain(..=end);
            if let Some(next) = line.strip_prefix("Step ").or_else(|| line.strip_prefix("STEP ")) {
                step = next.to_string();
                tail.clear();
                observe(Event::Step(variant, &step));
            } else if !line.is_empty() && !line.starts_with(" --->") && !line.starts_with("Removing intermediate") {
                if tail.len() == TAIL {
                    tail.pop_front();
                }
                observe(Event::Line(variant, &line));
                tail.push_back(line);
            }
        }
    }
    id.ok_or_else(|| failure(plan, &step, "the engine ended without an image", &tail))
}

/// A line as it is safe to show: builds print colours and redraw lines.
fn without_controls(line: &str) -> String {
    let plain = anstream::adapter::strip_str(line).to_string();
    let last = plain.trim_end_matches('\r').rsplit('\r').next().unwrap_or_default();
    last.chars().filter(|c| !c.is_control()).collect::<String>().trim_end().to_string()
}

/// `step` is `3/14 : RUN …`.
fn failure(plan: &Plan<'_>, step: &str, why: &str, tail: &VecDeque<String>) -> ImageError {
    let number = step.split('/').next().and_then(|n| n.trim().parse().ok());
    let dockerfile = std::fs::read_to_string(plan.link.image.folder.join("Dockerfile")).unwrap_or_default();
    let place = match number.and_then(|n| instruction_line(&dockerfile, n)) {
        Some(line) => format!("images/{}/Dockerfile:{line}: ", plan.link.image.id),
        None => format!("images/{}/Dockerfile: ", plan.link.image.id),
    };
    let step = if step.is_empty() { "before its first step".into() } else { format!("step {step}") };
    let mut lines = String::new();
    if !tail.is_empty() {
        lines.push_str("\n  its last lines:");
        for line in tail {
            lines.push_str("\n  | ");
            lines.push_str(line);
        }
    }
    ImageError::Step { variant: plan.link.image.id.clone(), step: place + &step, why: why.trim().into(), tail: lines }
}

/// Asks an image what it must answer.
pub(super) async fn ask(engine: &Engine, image: &Image, name: &str) -> Result<Vec<String>, ImageError> {
    let mut answers = Vec::new();
    for answer in &image.verify {
        let command = answer.run.join(" ").replace('\n', "\\n");
        let answered = engine.answer(name, &answer.run).await?;
        let pattern = answer
            .pattern()
            .map_err(|e| ImageError::File { place: format!("images/{}/image.yaml", image.id), why: e.to_string() })?;
        if answered.code != 0 || !pattern.is_match(&answered.text) {
            let lines = answered.text.lines().map(|line| format!("\n  | {}", without_controls(line)));
            return Err(ImageError::Answer {
                variant: image.id.clone(),
                command,
                code: answered.code,
                wanted: answer.prints.clone(),
                printed: if answered.text.trim().is_empty() { " nothing".into() } else { lines.collect() },
            });
        }
        let shown = answered.text.lines().find(|line| pattern.is_match(line)).unwrap_or_default();
        answers.push(format!("{command}: {}", without_controls(shown)));
    }
    Ok(answers)
}

/// Asks an image that is there what it must answer; returns one line for each answer.
pub async fn verify(engine: &Engine, options: &Options, variant: &str) -> Result<Vec<String>, ImageError> {
    let state = state(engine, options, variant, &Locked::read(&options.root)?).await?;
    match (state.tag, state.size) {
        (Some(tag), Some(_)) => ask(engine, &state.image, &tag).await,
        _ => Err(ImageError::NotBuilt { variant: variant.into() }),
    }
}

/// All variants, or those that are named, and which of them are built. Nothing is built or pulled for this.
pub async fn list(engine: &Engine, options: &Options, variants: &[String]) -> Result<Vec<State>, ImageError> {
    let known = model::ids(&options.root).map_err(|source| ImageError::Io { path: options.root.clone(), source })?;
    let mut states = Vec::new();
    for id in if variants.is_empty() { &known } else { variants } {
        states.push(state(engine, options, id, &Locked::read(&options.root)?).await?);
    }
    Ok(states)
}

/// How a variant stands, if `locked` is what `images.lock` says.
pub(super) async fn state(engine: &Engine, options: &Options, id: &str, locked: &Locked) -> Result<State, ImageError> {
    let chain = chain(options, id)?;
    let mut base = chain.base_here(engine).await?.map(|base| base.id);
    let (mut tag, mut size, mut not_locked) = (None, None, Vec::new());
    for (at, link) in chain.links.iter().enumerate() {
        // What is below comes after what is said of the variant itself.
        let below = link.image.not_locked(at > 0 || chain.base.contains("@sha256:"));
        let other = link.image.id != id;
        let prefixed = below.into_iter().map(|why| if other { format!("{}: {why}", link.image.id) } else { why });
        not_locked.splice(0..0, prefixed);
        let existing = link.existing(engine, locked, base.as_deref()).await?;
        // A variant whose lock file is missing has no name yet either.
        let name = base.as_ref().map(|base| link.tag(base)).filter(|_| link.requirements_are_there().is_ok());
        tag = existing.as_ref().map(|existing| existing.tag.clone()).or(name);
        size = existing.as_ref().and_then(|existing| existing.found.size);
        base = existing.map(|existing| existing.id());
    }
    let image = chain.links.into_iter().next_back().map(|link| link.image);
    let image = image.ok_or_else(|| ImageError::Circle(id.into()))?;
    Ok(State { image, tag, size, not_locked })
}

impl Options {
    /// What the registry of an image wants to know.
    pub(super) fn credentials_for(&self, name: &str) -> Option<Credentials> {
        self.credentials.and_then(|credentials| credentials(name))
    }

    /// Options that build from `root`. `cache` is a folder of the user's own: a lock that others may delete is none, and
    /// what others may write must not end up in an image.
    pub fn new(root: &Path, cache: &Path) -> Self {
        let (locks, compiler_cache) = (cache.join("locks"), cache.join("ccache"));
        Self { root: root.into(), locks, compiler_cache, ..Self::default() }
    }
}
