//! What a variant is based on, down to the image of somebody else, and which of it this engine has.

use std::collections::BTreeMap;

use bollard::models::ImageInspect;

use super::build::Options;
use super::context::{File, files, recipe, tag};
use super::engine::Engine;
use super::locked::Locked;
use super::model::{self, Image};
use super::{BASE_LABEL, ImageError, RECIPE_LABEL};

/// A variant and what it is based on.
pub(super) struct Chain {
    /// The lowest variant first, the one that was asked for last
    pub(super) links: Vec<Link>,
    /// What the lowest one is based on
    pub(super) base: String,
    /// May an image stand in for the base? Not if the user named it.
    stand_in: Option<String>,
}

/// One variant, and what its build would be given.
pub(super) struct Link {
    pub(super) image: Image,
    pub(super) files: Vec<File>,
    pub(super) args: BTreeMap<String, String>,
    pub(super) platform: String,
    /// See [`recipe`]
    pub(super) recipe: String,
}

/// The base of a chain, as this engine has it.
pub(super) struct Base {
    /// What it is called
    pub(super) name: String,
    /// Its content
    pub(super) id: String,
    /// Does it stand in for the one that is stated?
    pub(super) stands_in: bool,
}

/// An image of a variant that is here.
pub(super) struct Existing {
    /// `faultlab/<variant>:<12 hex digits>`
    pub(super) tag: String,
    pub(super) found: ImageInspect,
}

impl Existing {
    /// Its content.
    pub(super) fn id(&self) -> String {
        self.found.id.clone().unwrap_or_default()
    }
}

/// The chain of a variant. It needs no engine.
pub(super) fn chain(options: &Options, variant: &str) -> Result<Chain, ImageError> {
    let known = model::ids(&options.root).map_err(|source| ImageError::Io { path: options.root.clone(), source })?;
    let mut images: Vec<Image> = Vec::new();
    let mut next = variant.to_string();
    let (base, stand_in) = loop {
        if images.iter().any(|image| image.id == next) {
            return Err(ImageError::Circle(next));
        }
        let mut image = model::load(&options.root, &next)?;
        if images.is_empty() {
            image.set_args(&options.args)?;
        }
        let on_variant = known.contains(&image.base);
        // A variant as `--base` replaces the variant that is below; any other image the lowest base.
        let wanted = options.base.as_ref().filter(|b| on_variant == known.contains(b) && **b != next);
        let below = wanted.unwrap_or(&image.base).clone();
        let stand_in = image.stand_in.clone().filter(|_| wanted.is_none());
        images.push(image);
        if !known.contains(&below) {
            break (below, stand_in);
        }
        next = below;
    };
    let mut links: Vec<Link> = Vec::new();
    for image in images.into_iter().rev() {
        let below = links.last().map_or(base.as_str(), |link| link.recipe.as_str());
        let link = Link::new(options, image, below)?;
        links.push(link);
    }
    Ok(Chain { links, base, stand_in })
}

impl Link {
    fn new(options: &Options, image: Image, below: &str) -> Result<Self, ImageError> {
        let files = files(&image)?;
        let mut args = image.args.clone();
        args.insert("FAULTLAB_PACKAGES".into(), image.package_list());
        if let Some(snapshot) = options.apt_snapshot.as_ref().or(image.snapshot.as_ref()) {
            args.insert("FAULTLAB_APT_SNAPSHOT".into(), snapshot.clone());
        }
        let platform = options.platform.clone();
        let recipe = recipe(&image.id, &files, &args, below, &platform);
        Ok(Self { image, files, args, platform, recipe })
    }

    /// The image's name on a base of this content.
    pub(super) fn tag(&self, base: &str) -> String {
        tag(&self.image.id, &self.files, &self.args, base, &self.platform)
    }

    /// The name of an image that others built from the same files: its labels say so.
    pub(super) fn tag_of(&self, found: &ImageInspect) -> Option<String> {
        let labels = found.config.as_ref()?.labels.as_ref()?;
        (labels.get(RECIPE_LABEL)? == &self.recipe).then(|| labels.get(BASE_LABEL)).flatten().map(|base| self.tag(base))
    }

    /// The image of this variant that is here, if one is. First the one that `images.lock` names: it is the one that a
    /// team agreed on. Then the one on the base that is here. Then one that was pulled and has the same recipe, or that
    /// was built here on a base that is gone; but none that was built here on another base than the present one: it is
    /// stale.
    pub(super) async fn existing(
        &self,
        engine: &Engine,
        locked: &Locked,
        base: Option<&str>,
    ) -> Result<Option<Existing>, ImageError> {
        if let Some(reference) = locked.reference(&self.image.id)
            && let Some(found) = engine.find(reference).await?
            && let Some(tag) = self.tag_of(&found)
            && found.repo_tags.iter().flatten().any(|name| *name == tag)
        {
            return Ok(Some(Existing { tag, found }));
        }
        if let Some(tag) = base.map(|base| self.tag(base))
            && let Some(found) = engine.find(&tag).await?
        {
            return Ok(Some(Existing { tag, found }));
        }
        for name in engine.names_by_label(RECIPE_LABEL, &self.recipe).await? {
            let Some(found) = engine.find(&name).await? else { continue };
            // An image that somebody built on ours inherits its labels, and has another name.
            let pulled = found.repo_digests.as_ref().is_some_and(|digests| !digests.is_empty());
            if let Some(tag) = self.tag_of(&found).filter(|tag| *tag == name && (pulled || base.is_none())) {
                return Ok(Some(Existing { tag, found }));
            }
        }
        Ok(None)
    }

    /// Is the lock file of Python packages there, if there must be one?
    pub(super) fn requirements_are_there(&self) -> Result<(), ImageError> {
        let Some(lock) = &self.image.requirements else { return Ok(()) };
        let path = self.image.folder.join(lock);
        std::fs::metadata(&path).map(drop).map_err(|source| ImageError::Io { path, source })
    }

    /// A snapshot is a folder of a mirror that serves snapshots: the base image's own mirror is none.
    pub(super) fn snapshot_has_a_mirror(&self, options: &Options) -> Result<(), ImageError> {
        match self.args.get("FAULTLAB_APT_SNAPSHOT") {
            Some(date) if options.apt_mirror.is_none() => Err(ImageError::File {
                place: format!("images/{}/{}", self.image.id, model::FILE),
                why: format!("`snapshot: {date}` needs a mirror that serves snapshots: pass --apt-mirror URL"),
            }),
            _ => Ok(()),
        }
    }
}

impl Chain {
    /// The base, if this engine has it or what stands in for it. Nothing is pulled.
    pub(super) async fn base_here(&self, engine: &Engine) -> Result<Option<Base>, ImageError> {
        for (name, stands_in) in [(Some(&self.base), false), (self.stand_in.as_ref(), true)] {
            let Some(name) = name else { continue };
            if let Some(id) = engine.find(name).await?.and_then(|found| found.id) {
                return Ok(Some(Base { name: name.clone(), id, stands_in }));
            }
        }
        Ok(None)
    }

    /// The base, which is pulled if it must be.
    pub(super) async fn base(&self, engine: &Engine, options: &Options) -> Result<Base, ImageError> {
        if let Some(here) = self.base_here(engine).await? {
            return Ok(here);
        }
        let variant = self.links.first().map(|link| link.image.id.clone()).unwrap_or_default();
        let mut tried = format!("this engine has no {}", self.base);
        if let Some(stand_in) = &self.stand_in {
            tried = format!("{tried} and no {stand_in}");
        }
        if let Err(e) = engine.pull(&self.base, &options.platform, options.credentials_for(&self.base)).await {
            return Err(ImageError::NoBase { variant, tried: format!("{tried}, and {e}") });
        }
        self.base_here(engine).await?.ok_or(ImageError::NoBase { variant, tried })
    }
}
