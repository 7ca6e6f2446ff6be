//! `faultlab images`: the container images that cases run in.

use std::path::PathBuf;
use std::time::Duration;

use docker_credential::DockerCredential;
use tokio::signal::unix::{SignalKind, signal};

use super::args::{
    CleanImagesArgs, ImageOptions, ImagesCommand, InspectFormat, ListFormat, LockImagesArgs, PullImagesArgs,
    PushImageArgs,
};
use super::output::Terminal;
use super::{CliError, Status, environment};
use crate::assets::Assets;
use crate::image::{self, Credentials, Engine, Event, ImageError, Options};

impl From<ImageError> for CliError {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::NoSuchVariant { .. }
            | ImageError::NoSuchArgument { .. }
            | ImageError::File { .. }
            | ImageError::Circle(_)
            | ImageError::NoDigest(_)
            | ImageError::NotLocked { .. }
            | ImageError::NoRecipe { .. }
            | ImageError::NotBuilt { .. } => Self::Usage(error.to_string()),
            other => Self::Infra(other.to_string()),
        }
    }
}

/// How long containers that are no longer wanted may take to go.
const SETTLE: Duration = Duration::from_secs(30);

pub(super) async fn images(assets: &Assets, command: ImagesCommand, terminal: &Terminal) -> Result<Status, CliError> {
    let engine = Engine::connect().await?;
    // The engine gives a build up when its client goes away.
    let result = tokio::select! {
        result = verb(&engine, assets, command, terminal) => result,
        stopped = stop() => Err(match stopped {
            Ok(()) => CliError::Infra("stopped".into()),
            Err(e) => CliError::Infra(format!("failed to listen for Ctrl-C: {e}")),
        }),
    };
    // A command that was running in an image is being ended. Whoever says it again does not want to wait.
    tokio::select! {
        _ = tokio::time::timeout(SETTLE, engine.settle()) => {}
        _ = stop() => {}
    }
    result
}

/// Returns when somebody wants the program to end.
async fn stop() -> std::io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
    Ok(())
}

async fn verb(
    engine: &Engine,
    assets: &Assets,
    command: ImagesCommand,
    terminal: &Terminal,
) -> Result<Status, CliError> {
    match command {
        ImagesCommand::Build(args) => {
            let options = options(assets, args.options);
            let options = Options { no_cache: args.no_cache, stage: args.stage, ..options };
            build(engine, &options, &args.variants, args.verbose, terminal).await
        }
        ImagesCommand::List(args) => list(engine, &options(assets, args.options), args.format, terminal).await,
        ImagesCommand::Verify(args) => verify(engine, &options(assets, args.options), &args.variants, terminal).await,
        ImagesCommand::Inspect(args) => {
            inspect(engine, &options(assets, args.options), &args.variant, args.format, terminal).await
        }
        ImagesCommand::Lock(args) => lock(engine, assets, args, terminal).await,
        ImagesCommand::Push(args) => push(engine, assets, args, terminal).await,
        ImagesCommand::Pull(args) => pull(engine, assets, args, terminal).await,
        ImagesCommand::Clean(args) => clean(engine, &args, terminal).await,
    }
}

fn options(assets: &Assets, args: ImageOptions) -> Options {
    Options {
        base: args.base,
        apt_mirror: args.apt_mirror,
        apt_snapshot: args.apt_snapshot,
        pip_index: args.pip_index,
        proxy: args.proxy,
        ca_bundle: args.ca_bundle,
        platform: args.platform.unwrap_or_default(),
        args: args.arg.into_iter().collect(),
        credentials: Some(credentials),
        ..Options::new(&assets.images, &cache())
    }
}

/// The image that a name means: a variant's, as it is built from this checkout, or the name itself.
pub(super) async fn named(assets: &Assets, name: &str) -> Result<String, CliError> {
    let variants = image::ids(&assets.images).unwrap_or_default();
    if !variants.iter().any(|variant| variant == name) {
        return Ok(name.to_string());
    }
    let states =
        image::list(&Engine::connect().await?, &Options::new(&assets.images, &cache()), &[name.into()]).await?;
    match states.into_iter().next() {
        Some(image::State { tag: Some(tag), size: Some(_), .. }) => Ok(tag),
        _ => Err(CliError::Infra(format!("the image {name} is not built: `faultlab images build {name}` builds it"))),
    }
}

/// The user's own folder for what can be made anew.
fn cache() -> PathBuf {
    let env = environment();
    let under =
        |key: &str, more: &str| env.get(key).filter(|v| v.starts_with('/')).map(|v| PathBuf::from(v).join(more));
    under("XDG_CACHE_HOME", "faultlab")
        .or_else(|| under("HOME", ".cache/faultlab"))
        .unwrap_or_else(|| std::env::temp_dir().join("faultlab-cache"))
}

async fn build(
    engine: &Engine,
    options: &Options,
    variants: &[String],
    verbose: bool,
    terminal: &Terminal,
) -> Result<Status, CliError> {
    for variant in variants {
        let mut observe = |event: Event<'_>| match event {
            Event::StandIn { variant, base, stand_in } => terminal.say(&format!(
                "{variant}: this engine has no {base}; {stand_in}, made by ci/make-base, stands in for it"
            )),
            Event::Waiting(tag) => terminal.say(&format!("{tag}: somebody else builds it; waiting")),
            Event::Step(variant, step) => terminal.say(&format!("{variant}: step {step}")),
            Event::Line(variant, line) if verbose => terminal.say(&format!("{variant}: | {line}")),
            Event::Line(..) => {}
            Event::Verifying(variant) => terminal.say(&format!("{variant}: asking it what it must answer")),
        };
        let built = image::build(engine, options, variant, &mut observe).await?;
        let how = if built.found { "is there".into() } else { format!("built in {:.0} s", built.elapsed_s) };
        terminal.print(&format!("{variant}  {}  {}  {how}", built.tag, megabytes(built.size)))?;
    }
    Ok(Status::Met)
}

async fn list(engine: &Engine, options: &Options, format: ListFormat, terminal: &Terminal) -> Result<Status, CliError> {
    let states = image::list(engine, options, &[]).await?;
    if format == ListFormat::Json {
        let rows: Vec<serde_json::Value> = states
            .iter()
            .map(|s| {
                serde_json::json!({
                    "variant": s.image.id, "title": s.image.title, "tag": s.tag, "built": s.size.is_some(),
                    "size": s.size, "locked": s.not_locked.is_empty(), "not_locked": s.not_locked,
                })
            })
            .collect();
        let text = serde_json::to_string_pretty(&rows).map_err(|e| CliError::Infra(e.to_string()))?;
        terminal.print(&text)?;
        return Ok(Status::Met);
    }
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["variant", "tag", "built", "size", "locked"]);
    for s in &states {
        table.add_row([
            s.image.id.clone(),
            s.tag.clone().unwrap_or_else(|| "-".into()),
            if s.size.is_some() { "yes" } else { "no" }.into(),
            s.size.map_or_else(|| "-".into(), megabytes),
            if s.not_locked.is_empty() { "locked" } else { "not locked" }.into(),
        ]);
    }
    let lines: Vec<String> = table.to_string().lines().map(|line| line.trim().to_string()).collect();
    terminal.print(&lines.join("\n"))?;
    for s in states.iter().filter(|s| !s.not_locked.is_empty()) {
        terminal.say(&format!("{} is not locked: {}", s.image.id, s.not_locked.join("; ")));
    }
    Ok(Status::Met)
}

async fn verify(
    engine: &Engine,
    options: &Options,
    variants: &[String],
    terminal: &Terminal,
) -> Result<Status, CliError> {
    for variant in variants {
        match image::verify(engine, options, variant).await {
            Ok(answers) => {
                for answer in answers {
                    terminal.print(&format!("{variant}  {answer}"))?;
                }
            }
            Err(e @ ImageError::Answer { .. }) => {
                terminal.say(&format!("error: {e}"));
                return Ok(Status::Differs);
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(Status::Met)
}

async fn inspect(
    engine: &Engine,
    options: &Options,
    variant: &str,
    format: InspectFormat,
    terminal: &Terminal,
) -> Result<Status, CliError> {
    let states = image::list(engine, options, &[variant.to_string()]).await?;
    let not_built = || CliError::from(ImageError::NotBuilt { variant: variant.into() });
    let tag = states.into_iter().next().and_then(|s| s.tag).ok_or_else(not_built)?;
    let inventory = image::inventory(engine, variant, &tag).await?;
    let text = match format {
        InspectFormat::Json => serde_json::to_string_pretty(&inventory),
        InspectFormat::Cyclonedx => serde_json::to_string_pretty(&image::cyclonedx(&inventory)),
    };
    let text = text.map_err(|e| CliError::Infra(e.to_string()))?;
    terminal.print(&text)?;
    Ok(Status::Met)
}

async fn lock(engine: &Engine, assets: &Assets, args: LockImagesArgs, terminal: &Terminal) -> Result<Status, CliError> {
    if !args.check && assets.snapshots.is_none() {
        return Err(CliError::Usage("`images lock` writes into a checkout, and there is none here".into()));
    }
    let options = options(assets, args.options);
    let variants = match args.variants {
        named if named.is_empty() => image::ids(&options.root).unwrap_or_default(),
        named => named,
    };
    let (mut changed, mut failed) = (false, false);
    for variant in variants {
        let report = image::lock(engine, &options, &variant, args.update, args.check).await?;
        for image::Change { variant, key, from, to } in &report.changes {
            let from = if from.is_empty() { "nothing" } else { from };
            terminal.print(&format!("{variant}  {key}: {from} -> {to}"))?;
        }
        for (variant, why) in &report.failed {
            terminal.say(&format!("{variant}: not looked up, left as it is: {why}"));
        }
        for (variant, why) in &report.open {
            terminal.say(&format!("{variant}: still open: {why}"));
        }
        changed |= !report.changes.is_empty();
        failed |= !report.failed.is_empty();
    }
    Ok(match (args.check && changed, failed) {
        (true, _) => Status::Differs,
        (false, true) => Status::Infra,
        (false, false) => Status::Met,
    })
}

async fn push(engine: &Engine, assets: &Assets, args: PushImageArgs, terminal: &Terminal) -> Result<Status, CliError> {
    if args.lock && assets.snapshots.is_none() {
        return Err(CliError::Usage("`--lock` writes into a checkout, and there is none here".into()));
    }
    let options = options(assets, args.options);
    let pushed = image::push(engine, &options, &args.variant, &args.to, args.lock).await?;
    terminal.say(&format!("{}: pushed {}", args.variant, pushed.tag));
    terminal.print(&pushed.reference)?;
    Ok(Status::Met)
}

async fn pull(engine: &Engine, assets: &Assets, args: PullImagesArgs, terminal: &Terminal) -> Result<Status, CliError> {
    let options = options(assets, args.options);
    for what in &args.images {
        let pulled = match image::pull(engine, &options, what).await {
            Err(e @ (ImageError::Foreign { .. } | ImageError::Answer { .. })) => {
                terminal.say(&format!("error: {e}"));
                return Ok(Status::Differs);
            }
            pulled => pulled?,
        };
        terminal.say(&format!("{}: {} was built on {}", pulled.variant, pulled.reference, pulled.base));
        let size = megabytes(pulled.size);
        terminal.print(&format!("{}  {}  {size}  {}", pulled.variant, pulled.tag, pulled.reference))?;
    }
    Ok(Status::Met)
}

/// What Docker's own configuration has for the registry of a name (`~/.docker/config.json`, or that of `DOCKER_CONFIG`,
/// with its credential helpers). A registry that wants none is asked without.
fn credentials(name: &str) -> Option<Credentials> {
    let registry = image::registry_of(name).to_string();
    let (user, password, identity_token) = match docker_credential::get_credential(&registry).ok()? {
        DockerCredential::UsernamePassword(user, password) => (Some(user), Some(password), None),
        DockerCredential::IdentityToken(token) => (None, None, Some(token)),
    };
    Some(Credentials { user, password, identity_token, registry })
}

async fn clean(engine: &Engine, args: &CleanImagesArgs, terminal: &Terminal) -> Result<Status, CliError> {
    let removed = engine.clean(&args.variants, args.dry_run).await?;
    for name in &removed.gone {
        terminal.print(&format!("{}{name}", if args.dry_run { "would remove " } else { "removed " }))?;
    }
    for (name, why) in &removed.kept {
        terminal.say(&format!("kept {name}: {why}"));
    }
    Ok(if removed.kept.is_empty() { Status::Met } else { Status::Infra })
}

fn megabytes(bytes: i64) -> String {
    format!("{:.0} MB", bytes as f64 / 1e6)
}
