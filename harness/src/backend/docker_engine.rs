//! The container engine as the docker backend needs it: every question has a time limit, and what failed is told apart
//! from an engine that stopped, was restarted or hangs.

use std::fmt::Display;
use std::time::Duration;

use bollard::errors::Error;

use super::docker_run::DockerError;

/// Anything that an engine does at once: longer, and it hangs.
const ALIVE: Duration = Duration::from_secs(10);

/// Making or starting a container: a storage driver without copy-on-write copies the image's files.
const WORK: Duration = Duration::from_mins(2);

/// How often an engine is asked, during a case, whether it is still there.
const WATCH_EVERY: Duration = Duration::from_secs(3);

/// So many questions in a row without an answer: it is gone, or it hangs.
const WATCH_TRIES: u32 = 2;

/// What the user does about every one of these.
const RESUME: &str = "then `faultlab run --resume` runs what this run lost";

/// A connection to the engine.
pub(super) struct Engine {
    /// The API.
    pub(super) api: bollard::Docker,
}

/// How long a question may take.
#[derive(Debug, Clone, Copy)]
pub(super) enum Patience {
    /// The answer is there already.
    Little,
    /// Something has to be made first.
    Much,
}

/// Why a question got no answer.
#[derive(Debug)]
pub(super) enum Failed {
    /// The engine answered: no.
    Refused(Error),
    /// There is no engine any more, or there is a new one.
    Gone(String),
    /// There is an engine, and it does not answer.
    Hangs,
}

impl Failed {
    /// In words, where no run has begun.
    pub(super) fn at_the_start(&self) -> String {
        match self {
            Self::Refused(error) => error.to_string(),
            Self::Gone(why) => why.clone(),
            Self::Hangs => format!("it hangs: it does not answer within {} s", ALIVE.as_secs()),
        }
    }

    /// Did the engine say that there is no such thing?
    pub(super) fn not_found(&self) -> bool {
        matches!(self, Self::Refused(Error::DockerResponseServerError { status_code: 404, .. }))
    }
}

impl Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(error) => write!(f, "{error}"),
            Self::Gone(why) => write!(f, "the container engine stopped during the run ({why}): start it; {RESUME}"),
            Self::Hangs => write!(
                f,
                "the container engine hangs (it does not answer within {} s): restart it; {RESUME}",
                ALIVE.as_secs()
            ),
        }
    }
}

impl Engine {
    /// Finds the engine's socket: that of `DOCKER_HOST`, else Docker's own.
    pub(super) fn connect() -> Result<Self, DockerError> {
        let api = bollard::Docker::connect_with_local_defaults().map_err(|e| DockerError::Engine(e.to_string()))?;
        Ok(Self { api })
    }

    /// Asks within a time limit; where that fails, finds out what has become of the engine.
    pub(super) async fn ask<T>(
        &self,
        patience: Patience,
        question: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Failed> {
        let limit = match patience {
            Patience::Little => ALIVE,
            Patience::Much => WORK,
        };
        match tokio::time::timeout(limit, question).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error @ Error::DockerResponseServerError { .. })) => Err(Failed::Refused(error)),
            Ok(Err(error)) => Err(self.health().await.err().unwrap_or(Failed::Refused(error))),
            Err(_) => Err(self.health().await.err().unwrap_or(Failed::Hangs)),
        }
    }

    /// Is it there, and does it answer?
    pub(super) async fn health(&self) -> Result<(), Failed> {
        match tokio::time::timeout(ALIVE, self.api.ping()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(Failed::Gone(error.to_string())),
            Err(_) => Err(Failed::Hangs),
        }
    }

    /// Comes back when the engine is gone or hangs: what hangs does not end a stream.
    pub(super) async fn watch(&self) -> Failed {
        let mut tries = 0;
        loop {
            tokio::time::sleep(WATCH_EVERY).await;
            match self.health().await {
                Ok(()) => tries = 0,
                Err(failed) => {
                    tries += 1;
                    if tries == WATCH_TRIES {
                        return failed;
                    }
                }
            }
        }
    }
}
