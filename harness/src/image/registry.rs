//! To and from a registry: built once, pushed, and pulled by everyone by its digest.

use super::build::{self, Options};
use super::chain::chain;
use super::engine::Engine;
use super::locked::{Locked, is_digest_reference};
use super::{BASE_NAME_LABEL, ImageError, RECIPE_LABEL, VARIANT_LABEL};

/// An image that a registry has now.
#[derive(Debug)]
pub struct Pushed {
    /// Its name here
    pub tag: String,
    /// `NAME@sha256:…`
    pub reference: String,
}

/// An image that came from a registry.
#[derive(Debug)]
pub struct Pulled {
    /// The variant
    pub variant: String,
    /// Its name here: `faultlab/<variant>:<12 hex digits>`
    pub tag: String,
    /// `NAME@sha256:…`
    pub reference: String,
    /// What its builder's engine called the image that it was built on
    pub base: String,
    /// Bytes
    pub size: i64,
}

/// The registry that a name begins with, as Docker reads names: what is before the first `/`, if it has a dot or a port
/// or is `localhost`; else Docker Hub, under the address that its credentials have.
pub fn registry_of(name: &str) -> &str {
    match name.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => host,
        _ => "https://index.docker.io/v1/",
    }
}

/// Gives the image of a variant to a registry, as `to`. The digest is the registry's own.
pub async fn push(
    engine: &Engine,
    options: &Options,
    variant: &str,
    to: &str,
    lock: bool,
) -> Result<Pushed, ImageError> {
    // The one that was built here: what the file names has been pushed already.
    let state = build::state(engine, options, variant, &Locked::default()).await?;
    let Some(tag) = state.tag.filter(|_| state.size.is_some()) else {
        return Err(ImageError::NotBuilt { variant: variant.into() });
    };
    let found = engine.find(&tag).await?.unwrap_or_default();
    if !found.config.and_then(|c| c.labels).unwrap_or_default().contains_key(RECIPE_LABEL) {
        return Err(ImageError::NoRecipe { tag });
    }
    let hash = tag.rsplit(':').next().unwrap_or_default();
    let credentials = options.credentials_for(to);
    engine.push(&tag, to, hash, credentials.clone()).await?;
    let reference = format!("{to}@{}", engine.registry_digest(&format!("{to}:{hash}"), credentials).await?);
    if lock {
        Locked::read(&options.root)?.set(variant, &reference)?;
    }
    Ok(Pushed { tag, reference })
}

/// What `pull` is asked for: a variant, by the digest that `images.lock` has, or `NAME@sha256:…`.
fn reference(options: &Options, what: &str) -> Result<String, ImageError> {
    if is_digest_reference(what) {
        return Ok(what.into());
    }
    if what.contains(['/', ':', '@']) {
        return Err(ImageError::NoDigest(what.into()));
    }
    super::load(&options.root, what)?;
    let locked = Locked::read(&options.root)?;
    locked.reference(what).map(String::from).ok_or_else(|| ImageError::NotLocked {
        variant: what.into(),
        known: match locked.variants() {
            names if names.is_empty() => String::new(),
            names => format!(" (it names {names})"),
        },
    })
}

/// Pulls an image. It gets its name here if it was built from the files that are here, and answers what it must; what is
/// not so and was not here before is removed again.
pub async fn pull(engine: &Engine, options: &Options, what: &str) -> Result<Pulled, ImageError> {
    let reference = reference(options, what)?;
    let was_here = engine.find(&reference).await?.is_some();
    if !was_here {
        engine.pull(&reference, &options.platform, options.credentials_for(&reference)).await?;
    }
    let named = name(engine, options, what, &reference).await;
    if named.is_err() && !was_here {
        engine.untag(&reference).await?;
    }
    named
}

async fn name(engine: &Engine, options: &Options, what: &str, reference: &str) -> Result<Pulled, ImageError> {
    let foreign = |why: String| ImageError::Foreign { reference: reference.into(), why };
    let found = engine.find(reference).await?.ok_or_else(|| foreign("the engine does not keep it".into()))?;
    let labels = found.config.as_ref().and_then(|c| c.labels.clone()).unwrap_or_default();
    let variant = labels.get(VARIANT_LABEL).ok_or_else(|| foreign("it says of no variant that it is one".into()))?;
    if what != reference && what != variant {
        return Err(foreign(format!("it is the variant `{variant}`, and images.lock names it for `{what}`")));
    }
    let chain = chain(options, variant)?;
    let link = chain.links.last().ok_or_else(|| ImageError::Circle(variant.clone()))?;
    let Some(tag) = link.tag_of(&found) else {
        let its = labels.get(RECIPE_LABEL).map_or("none", |recipe| recipe.get(..12).unwrap_or(recipe));
        return Err(foreign(format!(
            "it was built from other files or arguments of `{variant}` (recipe {its}, here {})",
            &link.recipe[..12]
        )));
    };
    build::ask(engine, &link.image, reference).await?;
    engine.tag(reference, &tag).await?;
    Ok(Pulled {
        variant: variant.clone(),
        tag,
        reference: reference.into(),
        base: labels.get(BASE_NAME_LABEL).cloned().unwrap_or_default(),
        size: found.size.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registry_is_what_docker_takes_for_one() {
        for (name, registry) in [
            ("registry.example.org/team/cpu@sha256:0", "registry.example.org"),
            ("localhost:5000/cpu", "localhost:5000"),
            ("localhost/cpu", "localhost"),
            ("team/cpu", "https://index.docker.io/v1/"),
            ("debian", "https://index.docker.io/v1/"),
        ] {
            assert_eq!(registry_of(name), registry, "{name}");
        }
    }
}
