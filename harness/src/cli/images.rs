//! `faultlab images`: the container images that cases run in.

use std::path::PathBuf;

use super::args::{CleanImagesArgs, ImageOptions, ImagesCommand, ListFormat};
use super::output::Terminal;
use super::{CliError, Status, environment};
use crate::assets::Assets;
use crate::image::{self, Engine, Event, ImageError, Options};

impl From<ImageError> for CliError {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::NoSuchVariant { .. }
            | ImageError::NoSuchArgument { .. }
            | ImageError::File { .. }
            | ImageError::Circle(_)
            | ImageError::NotBuilt { .. } => Self::Usage(error.to_string()),
            other => Self::Infra(other.to_string()),
        }
    }
}

pub(super) async fn images(assets: &Assets, command: ImagesCommand, terminal: &Terminal) -> Result<Status, CliError> {
    let work = async {
        match command {
            ImagesCommand::Build(args) => {
                let options = options(assets, args.options);
                let options = Options { no_cache: args.no_cache, stage: args.stage, ..options };
                build(&options, &args.variants, args.verbose, terminal).await
            }
            ImagesCommand::List(args) => list(&options(assets, args.options), args.format, terminal).await,
            ImagesCommand::Verify(args) => verify(&options(assets, args.options), &args.variants, terminal).await,
            ImagesCommand::Inspect(args) => inspect(&options(assets, args.options), &args.variant, terminal).await,
            ImagesCommand::Clean(args) => clean(&args, terminal).await,
        }
    };
    // The engine gives a build up when its client goes away.
    tokio::select! {
        result = work => result,
        stopped = tokio::signal::ctrl_c() => Err(CliError::Infra(match stopped {
            Ok(()) => "stopped".into(),
            Err(e) => format!("failed to listen for Ctrl-C: {e}"),
        })),
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

async fn build(options: &Options, variants: &[String], verbose: bool, terminal: &Terminal) -> Result<Status, CliError> {
    let engine = Engine::connect().await?;
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
        let built = image::build(&engine, options, variant, &mut observe).await?;
        let how = if built.found { "is there".into() } else { format!("built in {:.0} s", built.elapsed_s) };
        terminal.print(&format!("{variant}  {}  {}  {how}", built.tag, megabytes(built.size)))?;
    }
    Ok(Status::Met)
}

async fn list(options: &Options, format: ListFormat, terminal: &Terminal) -> Result<Status, CliError> {
    let engine = Engine::connect().await?;
    let states = image::list(&engine, options, &[]).await?;
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

async fn verify(options: &Options, variants: &[String], terminal: &Terminal) -> Result<Status, CliError> {
    let engine = Engine::connect().await?;
    for variant in variants {
        match image::verify(&engine, options, variant).await {
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

async fn inspect(options: &Options, variant: &str, terminal: &Terminal) -> Result<Status, CliError> {
    let engine = Engine::connect().await?;
    let states = image::list(&engine, options, &[variant.to_string()]).await?;
    let not_built = || CliError::from(ImageError::NotBuilt { variant: variant.into() });
    let tag = states.into_iter().next().and_then(|s| s.tag).ok_or_else(not_built)?;
    let inventory = engine.inventory(variant, &tag).await?;
    let text = serde_json::to_string_pretty(&inventory).map_err(|e| CliError::Infra(e.to_string()))?;
    terminal.print(&text)?;
    Ok(Status::Met)
}

async fn clean(args: &CleanImagesArgs, terminal: &Terminal) -> Result<Status, CliError> {
    let engine = Engine::connect().await?;
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
