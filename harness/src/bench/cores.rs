//! Keeps a benchmark on a few processor cores: a launch-bound loop that wanders from core to core differs from itself by
//! more than most tools cost.

use std::str::FromStr;

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Cores that a process gets where the user names none: its main thread, autograd's, and what a tool adds.
const USUAL: usize = 4;

/// Which cores the processes of a benchmark may use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Cores {
    /// The last few of those that faultlab may use; all of them on a machine that has few.
    #[default]
    Usual,
    /// All.
    Any,
    /// These.
    These(Vec<usize>),
}

impl FromStr for Cores {
    type Err = String;

    /// `any`, or numbers and ranges as `taskset` takes them: `2-5,8`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "any" {
            return Ok(Self::Any);
        }
        let mut cores = Vec::new();
        for part in text.split(',') {
            let wrong = || format!("`{part}` is no core: `any`, or numbers and ranges such as `2-5,8`, are wanted");
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (usize, usize) =
                (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
            if first > last || last >= CpuSet::count() {
                return Err(wrong());
            }
            cores.extend(first..=last);
        }
        cores.sort_unstable();
        cores.dedup();
        Ok(Self::These(cores))
    }
}

/// Keeps every thread of this process, and what they start from now on, on some cores; tells which.
///
/// # Errors
/// A core that faultlab may not use, or what the kernel says.
pub fn pin(wanted: &Cores) -> Result<Option<Vec<usize>>, String> {
    let failed = |e: Errno| format!("the processor cores cannot be chosen: {e}");
    let mine = sched_getaffinity(Pid::this()).map_err(failed)?;
    let allowed: Vec<usize> = (0..CpuSet::count()).filter(|core| mine.is_set(*core).unwrap_or(false)).collect();
    let Some(chosen) = choose(wanted, &allowed)? else { return Ok(None) };
    let mut set = CpuSet::new();
    for core in &chosen {
        set.set(*core).map_err(failed)?;
    }
    // A child inherits from the thread that starts it, and that may be any.
    let threads = std::fs::read_dir("/proc/self/task").map_err(|e| format!("failed to read /proc/self/task: {e}"))?;
    for thread in threads.flatten() {
        let Some(id) = thread.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        match sched_setaffinity(Pid::from_raw(id), &set) {
            // It ended meanwhile.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(e) => return Err(failed(e)),
        }
    }
    Ok(Some(chosen))
}

/// Pure: which of the allowed cores; `None` for no choice.
fn choose(wanted: &Cores, allowed: &[usize]) -> Result<Option<Vec<usize>>, String> {
    match wanted {
        Cores::Any => Ok(None),
        Cores::Usual if allowed.len() < 2 * USUAL => Ok(None),
        // The first ones have the machine's interrupts.
        Cores::Usual => Ok(Some(allowed[allowed.len() - USUAL..].to_vec())),
        Cores::These(cores) => match cores.iter().find(|core| !allowed.contains(core)) {
            Some(core) => Err(format!("core {core} is not one that faultlab may use: those are {}", shown(allowed))),
            None => Ok(Some(cores.clone())),
        },
    }
}

/// As `taskset` shows them: `2-5,8`.
pub fn shown(cores: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &core in cores {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == core => *last = core,
            _ => ranges.push((core, core)),
        }
    }
    let range = |(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_the_user_names_them() {
        assert_eq!("any".parse(), Ok(Cores::Any));
        assert_eq!("8,2-4,3".parse(), Ok(Cores::These(vec![2, 3, 4, 8])));
        for wrong in ["", "a", "4-2", "1-", "-1", "1,,2", "0-99999999999", "5000000"] {
            let error = Cores::from_str(wrong).unwrap_err();
            assert!(error.contains("is no core"), "{wrong}: {error}");
        }
    }

    #[test]
    fn the_last_of_many_or_all_of_few() {
        let sixteen: Vec<usize> = (0..16).collect();
        assert_eq!(choose(&Cores::Usual, &sixteen), Ok(Some(vec![12, 13, 14, 15])));
        assert_eq!(choose(&Cores::Usual, &[0, 1]), Ok(None));
        assert_eq!(choose(&Cores::Any, &sixteen), Ok(None));
        assert_eq!(choose(&Cores::These(vec![3]), &sixteen), Ok(Some(vec![3])));
        let error = choose(&Cores::These(vec![3, 20]), &[0, 1, 2, 3, 7]).unwrap_err();
        assert_eq!(error, "core 20 is not one that faultlab may use: those are 0-3,7");
    }

    #[test]
    fn all_that_there_are_can_be_chosen() {
        // Fewer would slow the other tests of this process down.
        let mine = sched_getaffinity(Pid::this()).unwrap();
        let all: Vec<usize> = (0..CpuSet::count()).filter(|core| mine.is_set(*core).unwrap()).collect();
        assert_eq!(pin(&Cores::These(all.clone())), Ok(Some(all)));
        assert_eq!(pin(&Cores::Any), Ok(None));
    }

    proptest::proptest! {
        #[test]
        fn what_is_shown_can_be_named(cores in proptest::collection::btree_set(0usize..200, 1..20)) {
            let cores: Vec<usize> = cores.into_iter().collect();
            proptest::prop_assert_eq!(shown(&cores).parse(), Ok(Cores::These(cores)));
        }

        #[test]
        fn any_text_is_taken_or_refused(text in ".*") {
            let _ = Cores::from_str(&text);
        }
    }
}
