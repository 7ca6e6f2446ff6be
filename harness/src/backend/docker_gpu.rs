//! How a container gets the GPU.

use std::path::{Path, PathBuf};

use bollard::models::{DeviceMapping, DeviceRequest, HostConfig};

/// Where the driver's libraries are put in a container that gets the bare device nodes.
pub(super) const LIBRARIES: &str = "/usr/local/nvidia/lib64";

/// What is known of the ways.
#[derive(Debug, Clone, Default)]
pub(super) struct Ways {
    /// There is a Container Device Interface specification of NVIDIA's.
    pub(super) cdi: bool,
    /// The engine has the runtime `nvidia`.
    pub(super) runtime: bool,
    /// `/dev/nvidiactl` and the like.
    pub(super) nodes: Vec<PathBuf>,
    /// The driver's libraries of the user's side.
    pub(super) libraries: Vec<PathBuf>,
}

/// The way that is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Access {
    Cdi,
    Runtime,
    Nodes { nodes: Vec<PathBuf>, libraries: Vec<PathBuf> },
}

impl Ways {
    /// Looks at the machine.
    pub(super) fn look(runtime: bool) -> Self {
        let below = |folder: &str, wanted: fn(&str) -> bool| -> Vec<PathBuf> {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            let mut paths: Vec<_> = entries
                .map(|e| e.path())
                .filter(|p| p.file_name().is_some_and(|n| wanted(&n.to_string_lossy())))
                .collect();
            paths.sort();
            paths
        };
        let node = |name: &str| name.starts_with("nvidia") && !name.contains("caps");
        let library = |name: &str| {
            (name.starts_with("libcuda.so.")
                || name.starts_with("libnvidia-")
                || name.starts_with("libcudadebugger.so."))
                && name.contains(".so.")
        };
        let folders = [
            "/usr/lib/x86_64-linux-gnu",
            "/usr/lib/aarch64-linux-gnu",
            "/usr/lib64",
            "/usr/lib/wsl/lib",
            // Where a container that was itself given a GPU has them.
            LIBRARIES,
        ];
        Self {
            cdi: ["/etc/cdi", "/var/run/cdi"].iter().any(|dir| has_nvidia_spec(Path::new(dir))),
            runtime,
            nodes: below("/dev", node),
            // Other folders may hold one of them, such as a copy for another purpose: the driver's own has all.
            libraries: folders
                .iter()
                .map(|folder| below(folder, library))
                .find(|found| found.iter().any(|path| path.ends_with("libcuda.so.1")))
                .unwrap_or_default(),
        }
    }

    /// The best way first: what the vendor describes, what the engine brings, what can be done by hand.
    pub(super) fn choose(&self) -> Option<Access> {
        let named = |paths: &[PathBuf], name: &str| paths.iter().any(|p| p.to_string_lossy().contains(name));
        if self.cdi {
            Some(Access::Cdi)
        } else if self.runtime {
            Some(Access::Runtime)
        } else if named(&self.nodes, "/nvidiactl") && named(&self.libraries, "/libcuda.so.1") {
            Some(Access::Nodes { nodes: self.nodes.clone(), libraries: self.libraries.clone() })
        } else {
            None
        }
    }

    /// All the ways, by name.
    pub(super) fn names(&self) -> Vec<String> {
        let nodes = self.nodes.iter().any(|p| p.ends_with("nvidiactl"));
        let ways = [(self.cdi, "CDI device"), (self.runtime, "nvidia runtime"), (nodes, "device nodes")];
        ways.into_iter().filter(|(there, _)| *there).map(|(_, name)| name.to_string()).collect()
    }
}

impl Access {
    /// Asks for it.
    pub(super) fn put_into(&self, config: &mut HostConfig) {
        let text = |path: &Path| path.display().to_string();
        match self {
            Self::Cdi => {
                config.device_requests = Some(vec![DeviceRequest {
                    driver: Some("cdi".into()),
                    device_ids: Some(vec!["nvidia.com/gpu=all".into()]),
                    ..DeviceRequest::default()
                }]);
            }
            Self::Runtime => {
                config.device_requests = Some(vec![DeviceRequest {
                    driver: Some("nvidia".into()),
                    count: Some(-1),
                    capabilities: Some(vec![vec!["gpu".into(), "compute".into(), "utility".into()]]),
                    ..DeviceRequest::default()
                }]);
            }
            Self::Nodes { nodes, libraries } => {
                config.devices = Some(
                    nodes
                        .iter()
                        .map(|node| DeviceMapping {
                            path_on_host: Some(text(node)),
                            path_in_container: Some(text(node)),
                            cgroup_permissions: Some("rw".into()),
                        })
                        .collect(),
                );
                let binds = config.binds.get_or_insert_default();
                binds.extend(libraries.iter().filter_map(|library| {
                    Some(format!("{}:{LIBRARIES}/{}:ro", text(library), library.file_name()?.to_string_lossy()))
                }));
            }
        }
    }
}

/// Is there a Container Device Interface specification of NVIDIA's in this folder?
fn has_nvidia_spec(folder: &Path) -> bool {
    std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| std::fs::read_to_string(entry.path()).is_ok_and(|text| text.contains("nvidia.com/gpu")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Ways {
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect();
        Ways {
            cdi: true,
            runtime: true,
            nodes: paths(&["/dev/nvidia0", "/dev/nvidiactl"]),
            libraries: paths(&["/lib/libcuda.so.1"]),
        }
    }

    #[test]
    fn the_ways_are_tried_in_order() {
        let mut ways = all();
        assert_eq!(ways.choose(), Some(Access::Cdi));
        ways.cdi = false;
        assert_eq!(ways.choose(), Some(Access::Runtime));
        ways.runtime = false;
        assert!(matches!(ways.choose(), Some(Access::Nodes { .. })));
        // The nodes alone give a container no CUDA.
        assert_eq!(Ways { libraries: Vec::new(), ..ways.clone() }.choose(), None);
        ways.nodes.pop();
        assert_eq!(ways.choose(), None);
        assert_eq!(Ways::default().choose(), None);
    }

    #[test]
    fn each_way_asks_the_engine_in_its_own_words() {
        let asked = |access: &Access| {
            let mut config = HostConfig { binds: Some(vec!["/s:/scenario:ro".into()]), ..HostConfig::default() };
            access.put_into(&mut config);
            config
        };
        let cdi = asked(&Access::Cdi).device_requests.unwrap_or_default();
        assert_eq!(cdi[0].device_ids.as_deref(), Some(["nvidia.com/gpu=all".to_string()].as_slice()));
        let runtime = asked(&Access::Runtime).device_requests.unwrap_or_default();
        assert_eq!((runtime[0].driver.as_deref(), runtime[0].count), (Some("nvidia"), Some(-1)));
        let nodes = asked(&Ways { cdi: false, runtime: false, ..all() }.choose().expect("a way"));
        assert_eq!(nodes.devices.map(|d| d.len()), Some(2));
        let binds = nodes.binds.unwrap_or_default();
        assert_eq!(binds, ["/s:/scenario:ro", "/lib/libcuda.so.1:/usr/local/nvidia/lib64/libcuda.so.1:ro"]);
    }
}
