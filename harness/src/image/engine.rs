//! The container engine, as images need it (Docker, or Podman's Docker-compatible socket).

use std::collections::HashMap;
use std::time::Duration;

use bollard::Docker;
use bollard::auth::DockerCredentials;
use bollard::body_full;
use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::models::{BuildInfo, ContainerCreateBody, HostConfig, ImageInspect, ImageSummary};
use bollard::query_parameters::{
    BuildImageOptions, CreateImageOptionsBuilder, ListImagesOptionsBuilder, LogsOptionsBuilder,
    PushImageOptionsBuilder, RemoveContainerOptionsBuilder, RemoveImageOptions, TagImageOptionsBuilder,
    WaitContainerOptions,
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use tokio::sync::{mpsc, oneshot};

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
    /// Every container that runs a command holds one of these until it is gone
    alive: mpsc::Sender<()>,
    all_gone: mpsc::Receiver<()>,
}

/// A command to run in an image.
pub(super) struct Job<'a> {
    pub(super) image: &'a str,
    pub(super) command: &'a [String],
    pub(super) env: Vec<String>,
    /// As root, with the machine's network and a file system that can be written, as a build's step has it; otherwise
    /// without network, without rights and without a file to write outside /tmp
    pub(super) as_a_step: bool,
    pub(super) limit: Duration,
}

/// What a registry wants to know of who asks. The engine is told it; it is never shown.
#[derive(Clone)]
pub struct Credentials {
    /// Who
    pub user: Option<String>,
    /// A password, or a token in its place
    pub password: Option<String>,
    /// A token that is exchanged for others
    pub identity_token: Option<String>,
    /// Whose they are
    pub registry: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("registry", &self.registry).finish_non_exhaustive()
    }
}

impl From<Credentials> for DockerCredentials {
    fn from(credentials: Credentials) -> Self {
        Self {
            username: credentials.user,
            password: credentials.password,
            identitytoken: credentials.identity_token,
            serveraddress: Some(credentials.registry),
            ..Self::default()
        }
    }
}

/// How a command in an image ended.
pub(super) struct Answered {
    pub(super) code: i64,
    /// Both streams, as they came
    pub(super) text: String,
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

/// Up to version 1.42 of its API an engine says `<none>:<none>` or `<none>@<none>` of an image that has no name, and then
/// does not take it for one.
fn is_a_name(name: &str) -> bool {
    !name.starts_with("<none>")
}

/// The names under which an image is ours to remove. One without any name is what a failed build left. One that was
/// pulled is also held by its digest, which goes last; where somebody gave it another name, only ours go.
fn our_names(image: &ImageSummary) -> Vec<String> {
    let tags: Vec<&String> = image.repo_tags.iter().filter(|name| is_a_name(name)).collect();
    let digests: Vec<&String> = image.repo_digests.iter().filter(|name| is_a_name(name)).collect();
    if tags.is_empty() && digests.is_empty() {
        return vec![image.id.clone()];
    }
    let ours: Vec<&String> = tags.iter().filter(|tag| OUR_NAMES.iter().any(|n| tag.starts_with(n))).copied().collect();
    let digests = if !ours.is_empty() && ours.len() == tags.len() { digests } else { Vec::new() };
    ours.into_iter().chain(digests).cloned().collect()
}

/// A command on one line, its long arguments by their beginnings.
fn shown(command: &[String]) -> String {
    let short = |word: &String| match word.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &word[..end]),
        None => word.clone(),
    };
    command.iter().map(short).collect::<Vec<_>>().join(" ").replace('\n', "\\n")
}

impl Job<'_> {
    fn body(&self) -> ContainerCreateBody {
        let host_config = if self.as_a_step {
            HostConfig { network_mode: Some("host".into()), init: Some(true), ..HostConfig::default() }
        } else {
            HostConfig {
                network_mode: Some("none".into()),
                readonly_rootfs: Some(true),
                tmpfs: Some(HashMap::from([("/tmp".to_string(), String::new())])),
                cap_drop: Some(vec!["ALL".into()]),
                init: Some(true),
                ..HostConfig::default()
            }
        };
        ContainerCreateBody {
            image: Some(self.image.into()),
            cmd: Some(self.command.to_vec()),
            env: Some(self.env.clone()),
            user: self.as_a_step.then(|| "0:0".to_string()),
            labels: Some(HashMap::from([(LABEL.0.to_string(), LABEL.1.to_string())])),
            host_config: Some(host_config),
            ..ContainerCreateBody::default()
        }
    }
}

async fn run_to_end(docker: &Docker, container: &str) -> Result<Answered, Error> {
    docker.start_container(container, None).await?;
    let mut ended = std::pin::pin!(docker.wait_container(container, None::<WaitContainerOptions>));
    let code = match ended.next().await {
        Some(Ok(response)) => response.status_code,
        Some(Err(Error::DockerContainerWaitError { code, .. })) => code,
        Some(Err(e)) => return Err(e),
        None => -1,
    };
    let options = LogsOptionsBuilder::default().stdout(true).stderr(true).build();
    let mut logs = std::pin::pin!(docker.logs(container, Some(options)));
    let mut text = Vec::new();
    while let Some(output) = logs.next().await {
        if let LogOutput::StdOut { message } | LogOutput::StdErr { message } | LogOutput::Console { message } = output?
        {
            text.extend_from_slice(&message);
        }
    }
    Ok(Answered { code, text: String::from_utf8_lossy(&text).into_owned() })
}

impl Engine {
    /// Connects to the engine that the environment names, as every Docker client does.
    pub async fn connect() -> Result<Self, ImageError> {
        let docker = Docker::connect_with_local_defaults()
            .map_err(failed("reach a container engine"))?
            .with_timeout(Duration::from_secs(LIMIT));
        docker.ping().await.map_err(failed("reach a container engine (`faultlab doctor` says more)"))?;
        let (alive, all_gone) = mpsc::channel(1);
        Ok(Self { docker, alive, all_gone })
    }

    /// Waits until every container that runs a command of faultlab is gone, also of those commands that nobody waits
    /// for any more.
    pub async fn settle(mut self) {
        drop(self.alive);
        self.all_gone.recv().await;
    }

    /// Where the engine keeps images, as far as it says.
    pub(super) async fn data_folder(&self) -> String {
        let info = self.docker.info().await.ok();
        info.and_then(|info| info.docker_root_dir).unwrap_or_else(|| "it does not say where".into())
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
    pub(super) async fn pull(
        &self,
        reference: &str,
        platform: &str,
        credentials: Option<Credentials>,
    ) -> Result<(), ImageError> {
        let options = CreateImageOptionsBuilder::default().from_image(reference).platform(platform).build();
        let mut stream = std::pin::pin!(self.docker.create_image(Some(options), None, credentials.map(Into::into)));
        while let Some(step) = stream.next().await {
            step.map_err(failed(format!("pull {reference}")))?;
        }
        Ok(())
    }

    /// Pushes an image as `repository:tag`. A registry is given names, so the image has this one for as long as it
    /// takes, and longer only if it had it before; also where nobody waits for the end.
    pub(super) async fn push(
        &self,
        image: &str,
        repository: &str,
        tag: &str,
        credentials: Option<Credentials>,
    ) -> Result<(), ImageError> {
        let name = format!("{repository}:{tag}");
        let has_it = self.find(&name).await?.is_some();
        self.tag(image, &name).await?;
        let (docker, alive, repository) = (self.docker.clone(), self.alive.clone(), repository.to_string());
        let options = PushImageOptionsBuilder::default().tag(tag).build();
        let (_waits, nobody_waits) = oneshot::channel::<()>();
        let untagged = name.clone();
        let task = tokio::spawn(async move {
            let pushed = async {
                let stream = docker.push_image(&repository, Some(options), credentials.map(Into::into));
                let mut stream = std::pin::pin!(stream);
                while let Some(step) = stream.next().await {
                    step?;
                }
                Ok(())
            };
            let pushed = tokio::select! { pushed = pushed => pushed, _ = nobody_waits => Ok(()) };
            let removed = if has_it {
                Ok(())
            } else {
                docker.remove_image(&untagged, None::<RemoveImageOptions>, None).await.map(drop)
            };
            drop(alive);
            pushed.and(removed)
        });
        let ended = task.await.map_err(|e| ImageError::Engine { what: format!("push {name}"), why: e.to_string() })?;
        ended.map_err(failed(format!("push {name}")))
    }

    /// The digest that a registry has for an image: `sha256:…`. Asks the registry, through the engine.
    pub(super) async fn registry_digest(
        &self,
        reference: &str,
        credentials: Option<Credentials>,
    ) -> Result<String, ImageError> {
        let asked = self.docker.inspect_registry_image(reference, credentials.map(Into::into)).await;
        let what = || format!("ask the registry for the digest of {reference}");
        let digest = asked.map_err(failed(what()))?.descriptor.digest;
        digest.ok_or_else(|| ImageError::Engine { what: what(), why: "it says none".into() })
    }

    /// Takes a name from an image; the image goes with its last one.
    pub(super) async fn untag(&self, name: &str) -> Result<(), ImageError> {
        match self.docker.remove_image(name, None::<RemoveImageOptions>, None).await {
            Ok(_) | Err(Error::DockerResponseServerError { status_code: 404, .. }) => Ok(()),
            Err(e) => Err(failed(format!("remove {name}"))(e)),
        }
    }

    /// The names of the images that have a label of this value, the newest image first.
    pub(super) async fn names_by_label(&self, label: &str, value: &str) -> Result<Vec<String>, ImageError> {
        let filters = HashMap::from([("label".to_string(), vec![format!("{label}={value}")])]);
        let options = ListImagesOptionsBuilder::default().filters(&filters).build();
        let mut images = self.docker.list_images(Some(options)).await.map_err(failed("list the images"))?;
        images.sort_by_key(|image| std::cmp::Reverse(image.created));
        Ok(images.into_iter().flat_map(|image| image.repo_tags).filter(|name| is_a_name(name)).collect())
    }

    /// Removes what builds of a variant left that has no name. What is still in use stays.
    pub(super) async fn remove_unnamed(&self, variant: &str) {
        let filters = HashMap::from([
            ("dangling".to_string(), vec!["true".to_string()]),
            ("label".to_string(), vec![format!("{}={}", LABEL.0, LABEL.1), format!("{VARIANT_LABEL}={variant}")]),
        ]);
        let options = ListImagesOptionsBuilder::default().filters(&filters).build();
        for image in self.docker.list_images(Some(options)).await.unwrap_or_default() {
            // Those of an image that is based on ours have its label, and may be somebody's.
            let _ = self.docker.remove_image(&image.id, None::<RemoveImageOptions>, None).await;
        }
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
        self.run(Job { image, command, env: Vec::new(), as_a_step: false, limit: COMMAND_LIMIT }).await
    }

    /// Runs a command in an image to its end. Its container goes also where nobody waits for it any more.
    pub(super) async fn run(&self, job: Job<'_>) -> Result<Answered, ImageError> {
        let what = format!("run `{}` in {}", shown(job.command), job.image);
        let alive = self.alive.clone();
        let (docker, limit, body) = (self.docker.clone(), job.limit, job.body());
        // Dropped with this function: then the task below knows that nobody waits.
        let (_waits, nobody_waits) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            let container = docker.create_container(None, body).await?.id;
            let ended = tokio::select! {
                ended = tokio::time::timeout(limit, run_to_end(&docker, &container)) => ended.map_err(|_| limit),
                _ = nobody_waits => Err(Duration::ZERO),
            };
            let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
            docker.remove_container(&container, Some(options)).await?;
            drop(alive);
            ended.map_or_else(|limit| Ok(Err(limit)), |answered| answered.map(Ok))
        });
        match task.await {
            Ok(Ok(Ok(answered))) => Ok(answered),
            Ok(Ok(Err(limit))) => {
                Err(ImageError::Engine { what, why: format!("it did not end within {} s", limit.as_secs()) })
            }
            Ok(Err(e)) => Err(failed(what)(e)),
            Err(e) => Err(ImageError::Engine { what, why: e.to_string() }),
        }
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
            for name in our_names(&image) {
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
