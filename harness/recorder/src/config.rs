//! What the environment asks for.

use std::path::PathBuf;
use std::time::Duration;

/// When a completion marker is set behind a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Markers {
    /// Before and behind every launch that can fault by its data; behind others one for several, see [`crate::risk`].
    Adaptive,
    /// Behind every launch.
    Every,
    /// None: launches are only logged.
    Off,
}

/// The settings, all from variables that begin with `FAULTLAB_RECORDER_`.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// `DIR`: where the report goes; without it there is only the block on standard error.
    pub(crate) folder: Option<PathBuf>,
    /// `MARKERS`.
    pub(crate) markers: Markers,
    /// `HANG`: seconds without progress after which the running launches are reported; zero is never.
    pub(crate) hang: Option<Duration>,
    /// `STDERR=0` keeps the block away.
    pub(crate) stderr: bool,
    /// `SIGNAL`: the signal that asks for a report of what is running; 0 is none.
    pub(crate) signal: i32,
    /// `RING`: launches that are remembered, a power of two.
    pub(crate) ring: usize,
    /// `CUPTI`: the library, where it is not found.
    pub(crate) cupti: Option<PathBuf>,
    /// `CUDA_LAUNCH_BLOCKING` is set: a launch that returned is done, and one that fails can be what faulted.
    pub(crate) blocking: bool,
    /// `CUDA_ENABLE_COREDUMP_ON_EXCEPTION` is set: while the driver writes the dump, the launch that faulted may return
    /// success, and the next one its error.
    pub(crate) dump_armed: bool,
    /// See [`crate::format::Start::rank`].
    pub(crate) rank: Option<u32>,
    /// What could not be understood, as a sentence each.
    pub(crate) complaints: Vec<String>,
}

impl Config {
    /// Reads the environment through `variable`.
    pub(crate) fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let get = |name: &str| variable(&format!("FAULTLAB_RECORDER_{name}")).filter(|value| !value.is_empty());
        let mut complaints = Vec::new();
        let mut complain = |name: &str, value: &str, wanted: &str| {
            complaints.push(format!("FAULTLAB_RECORDER_{name}={value} is not understood (wanted: {wanted}); ignored"));
        };
        let markers = match get("MARKERS").as_deref() {
            None | Some("adaptive") => Markers::Adaptive,
            Some("every") => Markers::Every,
            Some("off") => Markers::Off,
            Some(other) => {
                complain("MARKERS", other, "adaptive, every or off");
                Markers::Adaptive
            }
        };
        let hang = match get("HANG") {
            None => Some(DEFAULT_HANG),
            Some(text) => match text.parse::<f64>().ok().filter(|s| s.is_finite() && (0.0..1e9).contains(s)) {
                Some(seconds) if seconds > 0.0 => Some(Duration::from_secs_f64(seconds)),
                Some(_) => None,
                None => {
                    complain("HANG", &text, "seconds, 0 for never");
                    Some(DEFAULT_HANG)
                }
            },
        };
        let signal = match get("SIGNAL") {
            None => libc::SIGUSR2,
            Some(text) => text.parse().ok().filter(|n| (0..=64).contains(n)).unwrap_or_else(|| {
                complain("SIGNAL", &text, "a number from 1 to 64, 0 for none");
                libc::SIGUSR2
            }),
        };
        let ring = match get("RING") {
            None => DEFAULT_RING,
            Some(text) => {
                let entries = text.parse().ok().filter(|n: &usize| n.is_power_of_two() && (1024..=1 << 22).contains(n));
                entries.unwrap_or_else(|| {
                    complain("RING", &text, "a power of two from 1024 to 4194304");
                    DEFAULT_RING
                })
            }
        };
        let on = |name: &str| variable(name).is_some_and(|value| !matches!(value.trim(), "" | "0"));
        Self {
            folder: get("DIR").map(PathBuf::from),
            markers,
            hang,
            stderr: get("STDERR").is_none_or(|value| value != "0"),
            signal,
            ring,
            cupti: get("CUPTI").map(PathBuf::from),
            blocking: on("CUDA_LAUNCH_BLOCKING"),
            dump_armed: on("CUDA_ENABLE_COREDUMP_ON_EXCEPTION"),
            rank: RANKS.iter().find_map(|name| variable(name)?.trim().parse().ok()),
            complaints,
        }
    }
}

impl Markers {
    /// As the environment names it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::Every => "every",
            Self::Off => "off",
        }
    }
}

/// The variables in which launchers give a process its number, the likeliest first.
const RANKS: [&str; 4] = ["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"];

const DEFAULT_HANG: Duration = Duration::from_mins(2);
/// A training step of a large model is some thousand launches, and a backward launch has to find its forward one. Not more,
/// because what is written in turns should stay in the processor's cache.
const DEFAULT_RING: usize = 1 << 14;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Config {
        Config::read(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_string()))
    }

    #[test]
    fn defaults_and_every_setting() {
        let config = read(&[]);
        assert_eq!((config.markers, config.hang, config.ring), (Markers::Adaptive, Some(DEFAULT_HANG), DEFAULT_RING));
        assert!(config.stderr && config.complaints.is_empty());
        let config = read(&[
            ("FAULTLAB_RECORDER_MARKERS", "every"),
            ("FAULTLAB_RECORDER_HANG", "0"),
            ("FAULTLAB_RECORDER_STDERR", "0"),
            ("FAULTLAB_RECORDER_RING", "4096"),
            ("FAULTLAB_RECORDER_SIGNAL", "10"),
        ]);
        assert_eq!((config.markers, config.hang, config.ring, config.signal), (Markers::Every, None, 4096, 10));
        assert!(!config.stderr && config.complaints.is_empty());
    }

    #[test]
    fn the_rank_of_a_launcher() {
        assert_eq!(read(&[]).rank, None);
        assert_eq!(read(&[("RANK", "3"), ("SLURM_PROCID", "5")]).rank, Some(3));
        assert_eq!(read(&[("RANK", ""), ("SLURM_PROCID", "5")]).rank, Some(5));
        assert_eq!(read(&[("RANK", "first")]).rank, None);
    }

    #[test]
    fn switches_of_the_driver() {
        let (blocking, dump) = ("CUDA_LAUNCH_BLOCKING", "CUDA_ENABLE_COREDUMP_ON_EXCEPTION");
        let both = |pairs: &[(&str, &str)]| (read(pairs).blocking, read(pairs).dump_armed);
        assert_eq!(both(&[]), (false, false));
        assert_eq!(both(&[(blocking, "1"), (dump, "0")]), (true, false));
        assert_eq!(both(&[(blocking, "0"), (dump, "1")]), (false, true));
        assert_eq!(both(&[(blocking, "1"), (dump, "1")]), (true, true));
    }

    #[test]
    fn what_is_not_understood_is_said_and_ignored() {
        let config = read(&[
            ("FAULTLAB_RECORDER_MARKERS", "often"),
            ("FAULTLAB_RECORDER_HANG", "soon"),
            ("FAULTLAB_RECORDER_RING", "1000"),
            ("FAULTLAB_RECORDER_SIGNAL", "-4"),
        ]);
        assert_eq!(config.complaints.len(), 4);
        assert!(config.complaints[0].contains("MARKERS=often"), "{:?}", config.complaints);
    }
}
