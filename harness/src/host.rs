//! What the machine has. Probed once, by [`crate::backend::probe`]; everything here is data.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::case::Device;

/// The versions that a capture depends on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stack {
    /// The GPU's name; `None` without one.
    pub gpu: Option<String>,
    /// `9.0`
    pub compute_capability: Option<String>,
    /// The kernel driver: `580.159.04`.
    pub driver: Option<String>,
    /// The newest CUDA that the driver speaks: `13.0`.
    pub cuda: Option<String>,
    /// PyTorch: `2.11.0+cu130`.
    pub torch: Option<String>,
    /// Python: `3.12.3`.
    pub python: Option<String>,
}

impl Stack {
    /// A folder name: `h200-sm90_driver580.159.04_cuda13.0_torch2.11.0+cu130_py3.12.3`.
    pub fn slug(&self) -> String {
        let mut slug = match &self.gpu {
            Some(gpu) => {
                gpu.trim_start_matches("NVIDIA ").to_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "-")
            }
            None => "cpu".into(),
        };
        if let Some(cc) = &self.compute_capability {
            let _ = write!(slug, "-sm{}", cc.replace('.', ""));
        }
        for (name, version) in
            [("driver", &self.driver), ("cuda", &self.cuda), ("torch", &self.torch), ("py", &self.python)]
        {
            if let Some(version) = version {
                let _ = write!(slug, "_{name}{version}");
            }
        }
        slug
    }
}

impl std::fmt::Display for Stack {
    /// `NVIDIA H200 (driver 580.159.04, CUDA 13.0), torch 2.11.0+cu130, Python 3.12.3`
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.gpu.as_deref().unwrap_or("no GPU"))?;
        let driver: Vec<String> = [("driver", &self.driver), ("CUDA", &self.cuda)]
            .iter()
            .filter_map(|(name, version)| Some(format!("{name} {}", version.as_deref()?)))
            .collect();
        if !driver.is_empty() {
            write!(f, " ({})", driver.join(", "))?;
        }
        for (name, version) in [("torch", &self.torch), ("Python", &self.python)] {
            if let Some(version) = version {
                write!(f, ", {name} {version}")?;
            }
        }
        Ok(())
    }
}

/// What was found, or in words why not and how to get it.
pub type Probed<T> = Result<T, Missing>;

/// A thing that is not there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Missing {
    /// What was tried and what came back.
    pub why: String,
    /// How to get it.
    pub mend: String,
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.why, self.mend)
    }
}

/// The machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Host {
    /// Operating system and kernel.
    pub os: String,
    /// Every GPU that CUDA can use.
    pub gpus: Probed<Vec<Gpu>>,
    /// The kernel driver's version.
    pub driver: Probed<String>,
    /// The newest CUDA that the driver speaks.
    pub cuda: Probed<String>,
    /// The interpreter that programs are run with.
    pub python: Probed<Python>,
    /// PyTorch in that interpreter.
    pub torch: Probed<Torch>,
    /// The container engine.
    pub docker: Probed<Docker>,
    /// Diagnostic programs: what each needs beside Python and torch.
    pub programs: Vec<Program>,
}

impl Host {
    /// The stack of a case that runs here.
    pub fn stack(&self, device: Device) -> Stack {
        let gpu = match (device, &self.gpus) {
            (Device::Cuda, Ok(gpus)) => gpus.first(),
            _ => None,
        };
        let with_gpu = |version: &Probed<String>| gpu.and(version.clone().ok());
        Stack {
            gpu: gpu.map(|g| g.name.clone()),
            compute_capability: gpu.and_then(|g| g.compute_capability.clone()),
            driver: with_gpu(&self.driver),
            cuda: with_gpu(&self.cuda),
            torch: self.torch.as_ref().ok().map(|t| t.version.clone()),
            python: self.python.as_ref().ok().map(|p| p.version.clone()),
        }
    }
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Gpu {
    /// CUDA's ordinal.
    pub index: u32,
    /// `NVIDIA H200`
    pub name: String,
    /// `9.0`; `None` where no context could be made.
    pub compute_capability: Option<String>,
    /// Bytes; `None` where no context could be made.
    pub memory_bytes: Option<u64>,
    /// Why no context could be made on it.
    pub trouble: Option<String>,
}

/// A Python interpreter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Python {
    /// The interpreter, absolute.
    pub executable: String,
    /// `3.12.3`
    pub version: String,
    /// `sys.prefix`, `sys.base_prefix`, the standard library and the package folders: replaced by placeholders
    /// in captures that are committed.
    pub folders: PythonFolders,
}

/// Where a Python keeps things.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PythonFolders {
    /// `sys.prefix`
    pub prefix: String,
    /// `sys.base_prefix`
    pub base_prefix: String,
    /// The standard library.
    pub stdlib: String,
    /// Where `torch` is, or the site-packages.
    pub packages: Vec<String>,
}

/// PyTorch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Torch {
    /// `2.11.0+cu130`
    pub version: String,
    /// The CUDA it was built with; `None` for a CPU build.
    pub cuda: Option<String>,
}

/// A container engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Docker {
    /// The engine's version.
    pub version: String,
    /// How a container would get a GPU; empty: no way.
    pub gpu_support: Vec<String>,
}

/// The debug build of the interpreter, among [`Host::programs`]: gdb can read its Python frames.
pub const DEBUG_PYTHON: &str = "python3-dbg";

/// A program on the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub purpose: String,
    /// Where it is, where it is there.
    pub path: Option<String>,
    /// The line in which it says its version.
    pub version: Probed<String>,
}

/// A condition that a scenario or a tool puts to the machine: the table of the harness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Need {
    /// A GPU that CUDA can use.
    Gpu,
    /// PyTorch.
    Torch,
    /// PyTorch with CUDA (its wheels bring NVRTC, which compiles hand-written kernels).
    Nvrtc,
    /// `compute-sanitizer`
    ComputeSanitizer,
    /// `cuda-gdb`
    CudaGdb,
    /// `gdb`
    Gdb,
    /// `nsys`
    Nsys,
    /// `nvcc`
    Nvcc,
    /// The Python module `debugpy`.
    Debugpy,
    /// The launch recorder's library, beside the `faultlab` executable.
    Recorder,
    /// The same for `LD_PRELOAD`.
    RecorderPreload,
}

impl Need {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Gpu,
        Self::Torch,
        Self::Nvrtc,
        Self::ComputeSanitizer,
        Self::CudaGdb,
        Self::Gdb,
        Self::Nsys,
        Self::Nvcc,
        Self::Debugpy,
        Self::Recorder,
        Self::RecorderPreload,
    ];

    /// The name in `scenario.yaml`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Torch => "torch",
            Self::Nvrtc => "nvrtc",
            Self::ComputeSanitizer => "compute-sanitizer",
            Self::CudaGdb => "cuda-gdb",
            Self::Gdb => "gdb",
            Self::Nsys => "nsys",
            Self::Nvcc => "nvcc",
            Self::Debugpy => "debugpy",
            Self::Recorder => "recorder",
            Self::RecorderPreload => "recorder-preload",
        }
    }

    /// Is it met here, on this device? If not: why, and how to get it.
    pub fn check(self, host: &Host, device: Device) -> Result<(), String> {
        match self {
            Self::Gpu => match (&host.gpus, device) {
                (_, Device::Cpu) => Err("it needs a GPU, and `--device cpu` was asked for".into()),
                (Ok(_), Device::Cuda) => Ok(()),
                (Err(missing), Device::Cuda) => Err(format!("no GPU: {missing}")),
            },
            Self::Torch => match &host.torch {
                Ok(_) => Ok(()),
                Err(missing) => Err(format!("no PyTorch: {missing}")),
            },
            Self::Nvrtc => match &host.torch {
                Ok(Torch { cuda: Some(_), .. }) => Ok(()),
                Ok(Torch { version, cuda: None }) => Err(format!("no NVRTC: torch {version} is a build without CUDA")),
                Err(missing) => Err(format!("no PyTorch: {missing}")),
            },
            Self::ComputeSanitizer
            | Self::CudaGdb
            | Self::Gdb
            | Self::Nsys
            | Self::Nvcc
            | Self::Debugpy
            | Self::Recorder
            | Self::RecorderPreload => match host.programs.iter().find(|p| p.name == self.name()).map(|p| &p.version) {
                Some(Ok(_)) => Ok(()),
                Some(Err(missing)) => Err(format!("no {}: {missing}", self.name())),
                None => Err(format!("no {}", self.name())),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slug_is_a_plain_folder_name() {
        let stack = Stack {
            gpu: Some("NVIDIA GeForce RTX 4090".into()),
            compute_capability: Some("8.9".into()),
            driver: Some("580.1".into()),
            cuda: None,
            torch: Some("2.11.0+cu130".into()),
            python: Some("3.12.3".into()),
        };
        assert_eq!(stack.slug(), "geforce-rtx-4090-sm89_driver580.1_torch2.11.0+cu130_py3.12.3");
        assert_eq!(stack.to_string(), "NVIDIA GeForce RTX 4090 (driver 580.1), torch 2.11.0+cu130, Python 3.12.3");
        assert_eq!(Stack::default().slug(), "cpu");
    }
}
