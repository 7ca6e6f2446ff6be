//! Where cases run: chooses a backend, and says why.

use super::args::{BackendChoice, LiveArgs, RunArgs};
use super::run::planned;
use super::{CliError, environment, probed, this_program};
use crate::assets::Assets;
use crate::backend::{Backend, Containers, Docker, Local, Replay};
use crate::case::Device;
use crate::host::{Host, Missing, Stack};
use crate::results::Settings;
use crate::scenario::Scenario;

/// Variants that hold PyTorch for the CPU, the smallest first.
const CPU_IMAGES: &[&str] = &["cpu", "gdb", "debug"];

/// Variants that hold PyTorch for CUDA.
const GPU_IMAGES: &[&str] = &["runtime"];

/// A backend and why.
pub(super) struct Chosen {
    pub(super) backend: Backend,
    pub(super) reason: String,
}

impl Chosen {
    pub(super) fn settings(&self, device: Device, timeout_s: f64, output_cap: usize, jobs: u16) -> Settings {
        let (stack, recorded): (Stack, _) = match &self.backend {
            Backend::Replay(replay) => (replay.stack().clone(), Some(replay.recorded())),
            Backend::Local(local) => (local.host().stack(device), None),
            Backend::Docker(docker) => (docker.host().stack(device), None),
        };
        let image = match &self.backend {
            Backend::Docker(docker) => Some(docker.image().to_string()),
            _ => None,
        };
        Settings {
            backend: self.backend.name().into(),
            image,
            backend_reason: self.reason.clone(),
            device,
            stack,
            recorded,
            timeout_s,
            output_cap,
            jobs: jobs.into(),
        }
    }
}

/// Where this run's cases run, and why there.
pub(super) async fn choose(
    assets: &Assets,
    args: &RunArgs,
    scenarios: &[Scenario],
    device: Device,
) -> Result<Chosen, CliError> {
    match (args.backend, device) {
        (BackendChoice::Replay, Device::Cpu) => {
            Err(CliError::Usage("--device cpu runs programs, and a replay runs none: use --backend local".into()))
        }
        (BackendChoice::Replay, Device::Cuda) => Ok(Chosen {
            backend: Backend::Replay(Replay::open(&assets.captures, args.stack.as_deref())?),
            reason: "asked for".into(),
        }),
        (BackendChoice::Local, _) => {
            Ok(Chosen { backend: Backend::Local(Box::new(local(&args.live).await?)), reason: "asked for".into() })
        }
        (BackendChoice::Docker | BackendChoice::Auto, _) if args.image.is_some() => {
            let image = args.image.as_deref().unwrap_or_default();
            containers(assets, &args.live, image, device, args.memory).await
        }
        (BackendChoice::Docker, _) => Err(CliError::Usage("--backend docker needs an --image".into())),
        (BackendChoice::Auto, device) => Automatic { assets, args, scenarios, device }.choose().await,
    }
}

/// `--backend auto` without an image: a GPU in containers, then a GPU here, then a replay. On the CPU this machine, unless
/// none of the cases can run on it and some can in an image that is built.
struct Automatic<'a> {
    assets: &'a Assets,
    args: &'a RunArgs,
    scenarios: &'a [Scenario],
    device: Device,
}

impl Automatic<'_> {
    async fn choose(&self) -> Result<Chosen, CliError> {
        let local = local(&self.args.live).await?;
        match self.device {
            Device::Cpu => self.cpu(local).await,
            Device::Cuda => self.gpu(local).await,
        }
    }

    async fn cpu(&self, local: Local) -> Result<Chosen, CliError> {
        let Some(lacking) = self.lacking(local.host())? else {
            let reason = "--device cpu runs on this machine".into();
            return Ok(Chosen { backend: Backend::Local(Box::new(local)), reason });
        };
        match self.images(local.host(), CPU_IMAGES).await {
            Ok((docker, variant)) => {
                let reason = format!(
                    "this machine can run none of these cases ({lacking}); image {variant} can: {} ({})",
                    docker.image(),
                    docker.image_id()
                );
                Ok(Chosen { backend: Backend::Docker(Box::new(docker)), reason })
            }
            Err(why) => {
                let reason = format!("--device cpu runs on this machine; it can run none of these cases, nor {why}");
                Ok(Chosen { backend: Backend::Local(Box::new(local)), reason })
            }
        }
    }

    async fn gpu(&self, local: Local) -> Result<Chosen, CliError> {
        let host = local.host();
        let gpu = match &host.gpus {
            Ok(gpus) => gpus.first().map_or("a GPU", |gpu| &gpu.name).to_string(),
            Err(missing) => return self.replay(format!("this machine has no GPU: {}", missing.why)),
        };
        let no_containers = match self.images(host, GPU_IMAGES).await {
            Ok((docker, variant)) => {
                let reason =
                    format!("{gpu} in containers of image {variant}: {} ({})", docker.image(), docker.image_id());
                return Ok(Chosen { backend: Backend::Docker(Box::new(docker)), reason });
            }
            Err(why) => why,
        };
        match &host.torch {
            Ok(torch) => {
                let reason = format!("this machine has {gpu} and torch {}; not in {no_containers}", torch.version);
                Ok(Chosen { backend: Backend::Local(Box::new(local)), reason })
            }
            Err(missing) => self.replay(format!("{}; nor can it be in {no_containers}", missing.why)),
        }
    }

    fn replay(&self, reason: String) -> Result<Chosen, CliError> {
        let replay = Replay::open(&self.assets.captures, self.args.stack.as_deref())?;
        Ok(Chosen { backend: Backend::Replay(replay), reason })
    }

    /// Containers of the first of these images that is built and can run some of the cases; else why there are none.
    async fn images(&self, machine: &Host, variants: &[&'static str]) -> Result<(Docker, &'static str), String> {
        let engine = machine.docker.as_ref().map_err(|missing| format!("containers: {}", missing.why))?;
        if self.device == Device::Cuda && engine.gpu_support.is_empty() {
            return Err("containers: there is no way to give one a GPU".into());
        }
        let mut why = Vec::new();
        for variant in variants {
            match self.image(machine, variant).await {
                Ok(docker) => return Ok((docker, variant)),
                Err(error) => why.push(error.to_string()),
            }
        }
        Err(format!("containers: {}", why.join("; ")))
    }

    async fn image(&self, machine: &Host, variant: &str) -> Result<Docker, CliError> {
        let image = super::images::named(self.assets, variant).await?;
        let docker = docker(machine, &self.args.live, &image, self.device, self.args.memory).await?;
        match self.lacking(docker.host())? {
            None => Ok(docker),
            Some(lacking) => Err(CliError::Infra(format!("image {variant} can run none of these cases ({lacking})"))),
        }
    }

    /// What the first case lacks on a host that can run none; `None` where some can run.
    fn lacking(&self, host: &Host) -> Result<Option<String>, CliError> {
        let plan = planned(self.scenarios, &self.args.cases, self.device, Some(host))?;
        // What no machine could mend says nothing about this one.
        let senseless = planned(self.scenarios, &self.args.cases, self.device, None)?;
        let mut first = None;
        for (here, anywhere) in plan.into_iter().zip(senseless) {
            match (here.skip, anywhere.skip) {
                (None, _) => return Ok(None),
                (Some(why), None) => first = first.or(Some(why)),
                (Some(_), Some(_)) => {}
            }
        }
        Ok(first)
    }
}

pub(super) async fn local(live: &LiveArgs) -> Result<Local, CliError> {
    local_with(&live.python).await
}

/// Containers of an image that the user names.
pub(super) async fn containers(
    assets: &Assets,
    live: &LiveArgs,
    image: &str,
    device: Device,
    memory_mib: Option<u32>,
) -> Result<Chosen, CliError> {
    let machine = probed(&this_program()?, &live.python).await;
    let docker = docker(&machine, live, &super::images::named(assets, image).await?, device, memory_mib).await?;
    let reason = format!("asked for, with image {} ({})", docker.image(), docker.image_id());
    Ok(Chosen { backend: Backend::Docker(Box::new(docker)), reason })
}

/// Containers of an image on this machine's engine.
pub(super) async fn docker(
    machine: &Host,
    live: &LiveArgs,
    image: &str,
    device: Device,
    memory_mib: Option<u32>,
) -> Result<Docker, CliError> {
    open(machine, &live.python, image, device, memory_mib).await
}

async fn open(
    machine: &Host,
    python: &str,
    image: &str,
    device: Device,
    memory_mib: Option<u32>,
) -> Result<Docker, CliError> {
    let env = environment();
    if let Some(elsewhere) = env.get("DOCKER_HOST").filter(|host| !host.is_empty() && !host.starts_with("unix://")) {
        return Err(CliError::Usage(format!(
            "DOCKER_HOST is {elsewhere}: containers mount this machine's files, so the engine must be on it: \
             DOCKER_HOST=unix://PATH"
        )));
    }
    let memory = memory_mib.map(|mib| u64::from(mib) << 20);
    let supervisor = this_program()?;
    let containers = Containers { machine, image, python, device, memory, supervisor, env };
    // It is large, and part of every future above it.
    Ok(Box::pin(Docker::open(containers)).await?)
}

/// What containers have.
pub(super) struct Inside {
    pub(super) image: String,
    pub(super) host: Host,
}

/// Looks into an image: what a container of it has on this machine.
pub(super) async fn inside(assets: &Assets, machine: Host, python: &str, image: &str) -> Result<Inside, CliError> {
    let image = super::images::named(assets, image).await?;
    let docker = open(&machine, python, &image, Device::Cpu, None).await?;
    let mut host = docker.host().clone();
    if host.docker.as_ref().is_ok_and(|docker| docker.gpu_support.is_empty()) {
        host.gpus = host.gpus.and_then(|_| {
            Err(Missing {
                why: "there is no way to give a container this machine's GPU".into(),
                mend: "install NVIDIA's container toolkit".into(),
            })
        });
    }
    Ok(Inside { image, host })
}

/// This machine, with an interpreter.
pub(super) async fn local_with(python: &str) -> Result<Local, CliError> {
    let program = this_program()?;
    let host = probed(&program, python).await;
    Ok(Local::new(program, host, environment()))
}
