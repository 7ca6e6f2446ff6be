//! The container engine, seen through its API (Docker, or Podman's Docker-compatible socket).

use std::time::Duration;

use bollard::models::SystemVersion;

use super::docker_gpu::Ways;
use crate::host::{Docker, Missing, Probed};

/// A loaded machine is slow to answer; one that hangs does not.
const LIMIT: Duration = Duration::from_secs(10);

/// Is there an engine, and how would a container get a GPU from it?
pub(super) async fn probe() -> Probed<Docker> {
    let missing = |why: String| {
        Missing {
        why,
        mend: "install Docker Engine (or Podman: `podman system service --time=0 unix://PATH`, and DOCKER_HOST=unix://PATH), \
               start it, and give this user access to its socket"
            .into(),
    }
    };
    let engine = bollard::Docker::connect_with_local_defaults().map_err(|e| missing(format!("no engine: {e}")))?;
    let asked = async {
        let version = engine.version().await?;
        let info = engine.info().await?;
        Ok::<_, bollard::errors::Error>((version, info))
    };
    let (version, info) = tokio::time::timeout(LIMIT, asked)
        .await
        .map_err(|_| missing(format!("the engine did not answer within {} s", LIMIT.as_secs())))?
        .map_err(|e| missing(format!("no engine answered: {e}")))?;
    let gpu_support = Ways::look(info.runtimes.is_some_and(|runtimes| runtimes.contains_key("nvidia"))).names();
    Ok(Docker { version: named_version(&version), gpu_support })
}

/// `28.2.2`, or `Podman 4.3.1`: that speaks the same language, and is another engine.
fn named_version(version: &SystemVersion) -> String {
    let number = version.version.as_deref().unwrap_or("unknown");
    let components = version.components.iter().flatten();
    let podman = components.map(|part| part.name.as_str()).any(|name| name.starts_with("Podman"));
    if podman { format!("Podman {number}") } else { number.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_is_not_docker_says_so() {
        let version = |name: &str| -> SystemVersion {
            let answer = format!(r#"{{"Version": "4.3.1", "Components": [{{"Name": "{name}", "Version": "4.3.1"}}]}}"#);
            serde_json::from_str(&answer).expect("an answer of the API")
        };
        assert_eq!(named_version(&version("Podman Engine")), "Podman 4.3.1");
        assert_eq!(named_version(&version("Engine")), "4.3.1");
        assert_eq!(named_version(&SystemVersion::default()), "unknown");
    }
}
