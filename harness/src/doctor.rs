//! `faultlab doctor`: what this machine has, what is missing, and how to get it.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use schemars::JsonSchema;
use serde::Serialize;

use crate::case::Device;
use crate::host::{Host, Missing, Probed};
use crate::tool;

const GOOD: Style = AnsiColor::Green.on_default().bold();
const BAD: Style = AnsiColor::Yellow.on_default().bold();
const BOLD: Style = Style::new().bold();

/// The answer, for machines.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Diagnosis<'a> {
    /// faultlab's version.
    pub faultlab: &'static str,
    /// The image whose containers were looked at; absent where it is the machine itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// What was found.
    pub host: &'a Host,
    /// Which backends can run here.
    pub backends: Vec<Backend>,
    /// Which tools can run here.
    pub tools: Vec<Tool>,
}

/// A backend.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Backend {
    /// `docker`, `local` or `replay`.
    pub name: &'static str,
    /// Why it cannot be used; `None` if it can.
    pub obstacle: Option<String>,
}

/// A tool.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Tool {
    /// Its id.
    pub id: &'static str,
    /// Why it cannot run; `None` if it can.
    pub obstacle: Option<String>,
}

impl<'a> Diagnosis<'a> {
    /// From what was found. `captures` says whether there is anything to replay.
    pub fn new(host: &'a Host, captures: Result<String, String>) -> Self {
        let local = host
            .python
            .as_ref()
            .err()
            .map(ToString::to_string)
            .or_else(|| host.gpus.as_ref().err().map(ToString::to_string));
        let backends = vec![
            docker(host),
            Backend { name: "local", obstacle: local },
            Backend { name: "replay", obstacle: captures.err() },
        ];
        Self { faultlab: env!("CARGO_PKG_VERSION"), image: None, host, backends, tools: tools(host) }
    }

    /// From what containers of an image have.
    pub fn of_image(host: &'a Host, image: String) -> Self {
        let backends = vec![docker(host)];
        Self { faultlab: env!("CARGO_PKG_VERSION"), image: Some(image), host, backends, tools: tools(host) }
    }

    /// For people.
    pub fn text(&self) -> String {
        let host = self.host;
        let place = self.image.as_ref().map_or_else(String::new, |image| format!("containers of {image}: "));
        let mut out = format!("{BOLD}faultlab {} on {place}{}{BOLD:#}\n", self.faultlab, host.os);
        match &host.gpus {
            Ok(gpus) => {
                for gpu in gpus {
                    let mut text = gpu.name.clone();
                    if let Some(cc) = &gpu.compute_capability {
                        let _ = write!(text, ", compute capability {cc}");
                    }
                    if let Some(bytes) = gpu.memory_bytes {
                        let _ = write!(text, ", {} GiB", bytes >> 30);
                    }
                    match &gpu.trouble {
                        None => line(&mut out, true, &format!("GPU {}", gpu.index), &text),
                        Some(trouble) => {
                            line(&mut out, false, &format!("GPU {}", gpu.index), &format!("{text}: {trouble}"));
                        }
                    }
                }
            }
            Err(missing) => lacking(&mut out, "GPU", missing),
        }
        probed(&mut out, "driver", &host.driver, Clone::clone);
        probed(&mut out, "CUDA", &host.cuda, |v| format!("{v} (newest that the driver speaks)"));
        probed(&mut out, "Python", &host.python, |p| format!("{} at {}", p.version, p.executable));
        probed(&mut out, "torch", &host.torch, |t| match &t.cuda {
            Some(cuda) => format!("{}, built with CUDA {cuda}", t.version),
            None => format!("{}, a CPU build", t.version),
        });
        probed(&mut out, "Docker", &host.docker, |d| {
            let gpu = if d.gpu_support.is_empty() {
                "no way to give a container a GPU".to_string()
            } else {
                format!("GPU by {}", d.gpu_support.join(", "))
            };
            format!("{}; {gpu}", d.version)
        });
        for program in &host.programs {
            probed(&mut out, &program.name, &program.version, |v| format!("{v}  ({})", program.purpose));
        }
        let _ = writeln!(out, "\n{BOLD}What can run {}{BOLD:#}", if self.image.is_some() { "there" } else { "here" });
        for Backend { name, obstacle } in &self.backends {
            line(&mut out, obstacle.is_none(), &format!("backend {name}"), obstacle.as_deref().unwrap_or("yes"));
        }
        for Tool { id, obstacle } in &self.tools {
            line(&mut out, obstacle.is_none(), &format!("tool {id}"), obstacle.as_deref().unwrap_or("yes"));
        }
        out
    }
}

fn docker(host: &Host) -> Backend {
    let obstacle = match &host.docker {
        Ok(docker) if docker.gpu_support.is_empty() => {
            Some("on the CPU only: there is no way to give a container a GPU".into())
        }
        Ok(_) => None,
        Err(missing) => Some(missing.to_string()),
    };
    Backend { name: "docker", obstacle }
}

fn tools(host: &Host) -> Vec<Tool> {
    let obstacle = |t: &dyn tool::Tool| t.needs().iter().find_map(|need| need.check(host, Device::Cuda).err());
    tool::ALL.iter().map(|t| Tool { id: t.id(), obstacle: obstacle(*t) }).collect()
}

fn probed<T>(out: &mut String, name: &str, probed: &Probed<T>, text: impl Fn(&T) -> String) {
    match probed {
        Ok(value) => line(out, true, name, &text(value)),
        Err(missing) => lacking(out, name, missing),
    }
}

fn lacking(out: &mut String, name: &str, missing: &Missing) {
    line(out, false, name, &missing.why);
    let _ = writeln!(out, "  {:24}get it: {}", "", missing.mend);
}

fn line(out: &mut String, good: bool, name: &str, text: &str) {
    let (style, mark) = if good { (GOOD, "ok") } else { (BAD, "--") };
    let _ = writeln!(out, "  {style}{mark}{style:#} {name:<20} {text}");
}
