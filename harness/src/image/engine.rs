//! The container engine, as images need it (Docker, or Podman's Docker-compatible socket).

use std::collections::HashMap;
use std::time::Duration;

use bollard::Docker;
use bollard::body_full;
use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::models::{BuildInfo, ContainerCreateBody, HostConfig, ImageInspect};
use bollard::query_parameters::{
    BuildImageOptions, CreateImageOptionsBuilder, ListImagesOptionsBuilder, LogsOptionsBuilder,
    RemoveContainerOptionsBuilder, RemoveImageOptions, TagImageOptionsBuilder, WaitContainerOptions,
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use serde::Serialize;

use super::{ImageError, LABEL, VARIANT_LABEL};

/// What is asked of the engine answers within this, or not at all. A build's output comes as a stream: it may take
/// longer.
const LIMIT: u64 = 300;

/// How long a command in an image may take.
const COMMAND_LIMIT: Duration = Duration::from_mins(2);

/// How the names of our images begin.
const OUR_NAMES: [&str; 2] = ["faultlab/", "faultlab-base:"];

/// A connection to the engine.
#[derive(Debug)]
pub struct Engine {
    docker: Docker,
}

/// How a command in an image ended.
pub(super) struct Answered {
    pub(super) code: i64,
    /// Both streams, as they came
    pub(super) text: String,
}

/// What is in an image.
#[derive(Debug, Serialize)]
pub struct Inventory {
    /// The variant
    pub variant: String,
    /// Its name
    pub tag: String,
    /// Its content
    pub id: String,
    /// Bytes
    pub size: i64,
    /// `linux/amd64` and the like
    pub platform: String,
    /// Labels
    pub labels: std::collections::BTreeMap<String, String>,
    /// Debian packages
    pub debian: Vec<PackageRow>,
    /// Python packages, also those that came from Debian
    pub python: Vec<PackageRow>,
}

/// A package.
#[derive(Debug, Serialize)]
pub struct PackageRow {
    /// Name
    pub name: String,
    /// Version
    pub version: String,
}

/// What `clean` did.
#[derive(Debug, Default)]
pub struct Removed {
    /// Names that are gone
    pub gone: Vec<String>,
    /// Names that the engine keeps, and why
    pub kept: Vec<(String, String)>,
}

fn failed(what: impl Into<String>) -> impl FnOnce(Error) -> ImageError {
    let what = what.into();
    move |e| ImageError::Engine { what, why: words(&e) }
}

/// The engine's own words, without the library's frame.
pub(super) fn words(error: &Error) -> String {
    match error {
        Error::DockerResponseServerError { message, .. } => message.clone(),
        Error::DockerStreamError { error } => error.clone(),
        other => other.to_string(),
    }
}

impl Engine {
    /// Connects to the engine that the environment names, as every Docker client does.
    pub async fn connect() -> Result<Self, ImageError> {
        let docker = Docker::connect_with_local_defaults()
            .map_err(failed("reach a container engine"))?
            .with_timeout(Duration::from_secs(LIMIT));
        docker.ping().await.map_err(failed("reach a container engine (`faultlab doctor` says more)"))?;
        Ok(Self { docker })
    }

    /// What the engine knows of an image, if it has it.
    pub(super) async fn find(&self, name: &str) -> Result<Option<ImageInspect>, ImageError> {
        match self.docker.inspect_image(name).await {
            Ok(found) => Ok(Some(found)),
            Err(Error::DockerResponseServerError { status_code: 404, .. }) => Ok(None),
            Err(e) => Err(failed(format!("look for the image {name}"))(e)),
        }
    }

    /// Pulls an image.
    pub(super) async fn pull(&self, reference: &str, platform: &str) -> Result<(), ImageError> {
        let options = CreateImageOptionsBuilder::default().from_image(reference).platform(platform).build();
        let mut stream = std::pin::pin!(self.docker.create_image(Some(options), None, None));
        while let Some(step) = stream.next().await {
            step.map_err(failed(format!("pull {reference}")))?;
        }
        Ok(())
    }

    /// Builds an image without a name. The engine stops when the stream is dropped.
    pub(super) fn build(
        &self,
        options: BuildImageOptions,
        context: Vec<u8>,
    ) -> impl Stream<Item = Result<BuildInfo, Error>> + '_ {
        self.docker.build_image(options, None, Some(body_full(Bytes::from(context))))
    }

    /// Names an image.
    pub(super) async fn tag(&self, id: &str, name: &str) -> Result<(), ImageError> {
        let (repository, tag) = name.rsplit_once(':').unwrap_or((name, "latest"));
        let options = TagImageOptionsBuilder::default().repo(repository).tag(tag).build();
        self.docker.tag_image(id, Some(options)).await.map_err(failed(format!("name the image {name}")))
    }

    /// Runs a command in an image, without network and without rights, to its end.
    pub(super) async fn answer(&self, image: &str, command: &[String]) -> Result<Answered, ImageError> {
        let what = || failed(format!("run `{}` in {image}", command.join(" ")));
        let body = ContainerCreateBody {
            image: Some(image.into()),
            cmd: Some(command.to_vec()),
            labels: Some(HashMap::from([(LABEL.0.to_string(), LABEL.1.to_string())])),
            host_config: Some(HostConfig {
                network_mode: Some("none".into()),
                readonly_rootfs: Some(true),
                tmpfs: Some(HashMap::from([("/tmp".to_string(), String::new())])),
                cap_drop: Some(vec!["ALL".into()]),
                init: Some(true),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let created = self.docker.create_container(None, body).await.map_err(what())?;
        let answered = match tokio::time::timeout(COMMAND_LIMIT, self.run_to_end(&created.id)).await {
            Ok(answered) => answered.map_err(what()),
            Err(_) => Err(ImageError::Engine {
                what: format!("run `{}` in {image}", command.join(" ")),
                why: format!("it did not end within {} s", COMMAND_LIMIT.as_secs()),
            }),
        };
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        let removed = self.docker.remove_container(&created.id, Some(options)).await;
        let answered = answered?;
        removed.map_err(failed("remove the container of a command"))?;
        Ok(answered)
    }

    async fn run_to_end(&self, container: &str) -> Result<Answered, Error> {
        self.docker.start_container(container, None).await?;
        let mut ended = std::pin::pin!(self.docker.wait_container(container, None::<WaitContainerOptions>));
        let code = match ended.next().await {
            Some(Ok(response)) => response.status_code,
            Some(Err(Error::DockerContainerWaitError { code, .. })) => code,
            Some(Err(e)) => return Err(e),
            None => -1,
        };
        let options = LogsOptionsBuilder::default().stdout(true).stderr(true).build();
        let mut logs = std::pin::pin!(self.docker.logs(container, Some(options)));
        let mut text = Vec::new();
        while let Some(output) = logs.next().await {
            if let LogOutput::StdOut { message } | LogOutput::StdErr { message } | LogOutput::Console { message } =
                output?
            {
                text.extend_from_slice(&message);
            }
        }
        Ok(Answered { code, text: String::from_utf8_lossy(&text).into_owned() })
    }

    /// What is in an image.
    pub async fn inventory(&self, variant: &str, tag: &str) -> Result<Inventory, ImageError> {
        let found = self.find(tag).await?.ok_or_else(|| ImageError::NotBuilt { variant: variant.into() })?;
        let ask = async |command: &[&str]| {
            let command: Vec<String> = command.iter().map(ToString::to_string).collect();
            // An image without such a program has no such packages.
            let answered = self.answer(tag, &command).await.ok().filter(|a| a.code == 0);
            rows(&answered.map(|a| a.text).unwrap_or_default())
        };
        let debian = ask(&["dpkg-query", "--show", "--showformat=${Package}:${Architecture}\\t${Version}\\n"]).await;
        let python = ask(&["python3", "-c", PYTHON_PACKAGES]).await;
        let or_empty = |text: Option<String>| text.unwrap_or_default();
        Ok(Inventory {
            variant: variant.into(),
            tag: tag.into(),
            id: or_empty(found.id),
            size: found.size.unwrap_or_default(),
            platform: format!("{}/{}", or_empty(found.os), or_empty(found.architecture)),
            labels: found.config.and_then(|c| c.labels).unwrap_or_default().into_iter().collect(),
            debian,
            python,
        })
    }

    /// Removes the images that faultlab made: those of `variants`, or all of them. An image that somebody built on one
    /// of ours inherits its labels: only what also has a name of ours, or none at all, is ours.
    pub async fn clean(&self, variants: &[String], dry_run: bool) -> Result<Removed, ImageError> {
        let filters = HashMap::from([("label".to_string(), vec![format!("{}={}", LABEL.0, LABEL.1)])]);
        let options = ListImagesOptionsBuilder::default().filters(&filters).build();
        let mut images = self.docker.list_images(Some(options)).await.map_err(failed("list the images"))?;
        // An image goes before the one that it is built on.
        images.sort_by_key(|image| std::cmp::Reverse(image.created));
        let mut removed = Removed::default();
        for image in images {
            let variant = image.labels.get(VARIANT_LABEL);
            if !variants.is_empty() && !variant.is_some_and(|v| variants.contains(v)) {
                continue;
            }
            let tags: Vec<String> = image.repo_tags.iter().filter(|tag| *tag != "<none>:<none>").cloned().collect();
            let names = if tags.is_empty() { vec![image.id.clone()] } else { tags };
            let ours = |name: &String| OUR_NAMES.iter().any(|n| name.starts_with(n)) || *name == image.id;
            for name in names.into_iter().filter(ours) {
                if dry_run {
                    removed.gone.push(name);
                    continue;
                }
                match self.docker.remove_image(&name, None::<RemoveImageOptions>, None).await {
                    Ok(_) => removed.gone.push(name),
                    // It went with another one.
                    Err(Error::DockerResponseServerError { status_code: 404, .. }) => {}
                    Err(e @ Error::DockerResponseServerError { status_code: 409, .. }) => {
                        removed.kept.push((name, words(&e)));
                    }
                    Err(e) => return Err(failed(format!("remove {name}"))(e)),
                }
            }
        }
        Ok(removed)
    }
}

/// Names and versions of what Python would import.
const PYTHON_PACKAGES: &str = "import importlib.metadata as m
for name, version in sorted({(d.metadata['Name'], d.version) for d in m.distributions()}):
    print(name, version, sep='\\t')";

fn rows(text: &str) -> Vec<PackageRow> {
    let row = |line: &str| {
        let (name, version) = line.split_once('\t')?;
        Some(PackageRow { name: name.into(), version: version.trim().into() })
    };
    text.lines().filter_map(row).collect()
}
