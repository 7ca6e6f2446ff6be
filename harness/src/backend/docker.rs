//! The container engine, seen through its API (Docker, or Podman's Docker-compatible socket).

use std::time::Duration;

use super::docker_gpu::Ways;
use crate::host::{Docker, Missing, Probed};

const LIMIT: Duration = Duration::from_secs(5);

/// Is there an engine, and how would a container get a GPU from it?
pub(super) async fn probe() -> Probed<Docker> {
    let missing = |why: String| Missing {
        why,
        mend: "install Docker Engine (or Podman and its API socket), start it, and give this user access to its socket"
            .into(),
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
    Ok(Docker { version: version.version.unwrap_or_else(|| "unknown".into()), gpu_support })
}
