//! How much GPU memory the process tree of each case holds: one `nvidia-smi` for the whole run, asked for a sample every
//! half second.
//!
//! ```text
//! GPU-7a1c…, 4711, 1534
//! GPU-7a1c…, 4790, [N/A]
//! ```
//!
//! A sample's processes are led back to a case through their ancestors: each case has a supervisor of its own, or, in a
//! container, a first process, which has a number outside too. Where faultlab itself is in a container that has process
//! numbers of its own the driver's are others, or are not shown at all: then nothing is known, and nothing is said. A peak shorter than the interval can be missed.

#![expect(clippy::disallowed_methods, reason = "this is the place that starts processes")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::supervise::{self, Order};

const INTERVAL: Duration = Duration::from_millis(500);

/// The lines of a sample come at once; this much silence ends it.
const PAUSE: Duration = Duration::from_millis(50);

/// A supervisor whose input was closed needs this long at most to clear away a process that does not resist.
const CLOSING: Duration = Duration::from_secs(2);

/// Peak bytes of each watched case, by the process number of its supervisor; 0 as long as nothing was seen.
type Peaks = Arc<Mutex<BTreeMap<i32, u64>>>;

/// The running `nvidia-smi`. It stands under a supervisor, so that it ends with faultlab, however that ends.
#[derive(Debug)]
pub(super) struct Sampler {
    peaks: Peaks,
    supervisor: Child,
    input: Option<ChildStdin>,
    _folder: tempfile::TempDir,
}

impl Sampler {
    /// `faultlab` answers `__supervise`. `None` where it could not be started: a run goes on without.
    pub(super) async fn start(faultlab: &Path, nvidia_smi: &str, env: &BTreeMap<String, String>) -> Option<Self> {
        let folder = tempfile::Builder::new().prefix("faultlab-gpu-memory-").tempdir().ok()?;
        let order = Order {
            argv: vec![
                nvidia_smi.into(),
                "--query-compute-apps=gpu_uuid,pid,used_gpu_memory".into(),
                "--format=csv,noheader,nounits".into(),
                format!("--loop-ms={}", INTERVAL.as_millis()),
            ],
            cwd: folder.path().into(),
            deadline_s: f64::MAX,
            watch_env: BTreeSet::new(),
            ask: false,
            account: folder.path().join("account"),
        };
        let mut supervisor = Command::new(faultlab)
            .arg(supervise::SUBCOMMAND)
            .env_clear()
            .envs(env)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .ok()?;
        let mut line = serde_json::to_vec(&order).ok()?;
        line.push(b'\n');
        let mut input = supervisor.stdin.take()?;
        input.write_all(&line).await.ok()?;
        let peaks = Peaks::default();
        tokio::spawn(read(supervisor.stdout.take()?, Arc::clone(&peaks)));
        Some(Self { peaks, supervisor, input: Some(input), _folder: folder })
    }

    /// Watches the tree below a case's supervisor from now on.
    pub(super) fn watch(&self, supervisor: Option<u32>) -> Option<Watch> {
        let supervisor = i32::try_from(supervisor?).ok()?;
        lock(&self.peaks).insert(supervisor, 0);
        Some(Watch { peaks: Arc::clone(&self.peaks), supervisor })
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        drop(self.input.take());
        let until = Instant::now() + CLOSING;
        while matches!(self.supervisor.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A case that is being watched.
#[derive(Debug)]
pub(super) struct Watch {
    peaks: Peaks,
    supervisor: i32,
}

impl Watch {
    /// The most that the tree held in one sample, in bytes; `None` where no sample showed it.
    pub(super) fn peak(&self) -> Option<u64> {
        lock(&self.peaks).get(&self.supervisor).copied().filter(|bytes| *bytes > 0)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        lock(&self.peaks).remove(&self.supervisor);
    }
}

fn lock(peaks: &Peaks) -> std::sync::MutexGuard<'_, BTreeMap<i32, u64>> {
    peaks.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn read(output: ChildStdout, peaks: Peaks) {
    let mut lines = BufReader::new(output).lines();
    let mut sample = Sample::default();
    loop {
        let next = if sample.0.is_empty() {
            lines.next_line().await
        } else if let Ok(next) = tokio::time::timeout(PAUSE, lines.next_line()).await {
            next
        } else {
            account(&std::mem::take(&mut sample), &peaks);
            continue;
        };
        let Ok(Some(line)) = next else { break };
        if let Some(usage) = Usage::read(&line)
            && let Some(ended) = sample.add(usage)
        {
            account(&ended, &peaks);
        }
    }
    account(&sample, &peaks);
}

fn account(sample: &Sample, peaks: &Peaks) {
    let mut peaks = lock(peaks);
    let totals = sample.totals(|pid| supervisor_of(pid, &peaks));
    for (supervisor, bytes) in totals {
        if let Some(peak) = peaks.get_mut(&supervisor) {
            *peak = bytes.max(*peak);
        }
    }
}

/// The watched supervisor above a process.
fn supervisor_of(pid: i32, watched: &BTreeMap<i32, u64>) -> Option<i32> {
    let mut pid = pid;
    // A chain that is longer than this is none that a program makes.
    for _ in 0..64 {
        if watched.contains_key(&pid) {
            return Some(pid);
        }
        pid = supervise::live_parent(Path::new(&format!("/proc/{pid}")))?.0;
    }
    None
}

/// A line of `nvidia-smi`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Usage {
    gpu: String,
    pid: i32,
    bytes: u64,
}

impl Usage {
    /// `None` for everything else that it prints: `[N/A]`, `[Insufficient Permissions]`, headings, errors.
    fn read(line: &str) -> Option<Self> {
        let mut fields = line.split(',').map(str::trim);
        let (gpu, pid, mebibytes) = (fields.next()?, fields.next()?, fields.next()?);
        if gpu.is_empty() || fields.next().is_some() {
            return None;
        }
        let bytes = mebibytes.parse::<u64>().ok()?.checked_mul(1 << 20)?;
        Some(Self { gpu: gpu.into(), pid: pid.parse().ok().filter(|pid| *pid > 0)?, bytes })
    }
}

/// Lines of one moment.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sample(Vec<Usage>);

impl Sample {
    /// A process that comes a second time on the same GPU begins the next sample: the one that ended comes back.
    fn add(&mut self, usage: Usage) -> Option<Self> {
        let again = self.0.iter().any(|u| (&u.gpu, u.pid) == (&usage.gpu, usage.pid));
        let ended = again.then(|| std::mem::take(self));
        self.0.push(usage);
        ended
    }

    /// Bytes of each supervisor's tree: its processes, on all GPUs, together.
    fn totals(&self, supervisor_of: impl Fn(i32) -> Option<i32>) -> BTreeMap<i32, u64> {
        let mut totals = BTreeMap::new();
        for usage in &self.0 {
            if let Some(supervisor) = supervisor_of(usage.pid) {
                let total = totals.entry(supervisor).or_insert(0u64);
                *total = total.saturating_add(usage.bytes);
            }
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn usage(gpu: &str, pid: i32, mebibytes: u64) -> Usage {
        Usage { gpu: gpu.into(), pid, bytes: mebibytes << 20 }
    }

    #[test]
    fn only_lines_with_a_process_and_a_number_count() {
        assert_eq!(Usage::read("GPU-7a1c, 4711, 1534"), Some(usage("GPU-7a1c", 4711, 1534)));
        for other in [
            "GPU-7a1c, 4711, [N/A]",
            "GPU-7a1c, [Insufficient Permissions], [Insufficient Permissions]",
            "GPU-7a1c, -1, 5",
            "gpu_uuid, pid, used_gpu_memory [MiB]",
            "GPU-7a1c, 4711, 1534 MiB",
            "GPU-7a1c, 4711, 1534, 7",
            "GPU-7a1c, 4711, 18446744073709551615",
            "No devices were found",
            "",
        ] {
            assert_eq!(Usage::read(other), None, "{other}");
        }
    }

    #[test]
    fn a_tree_is_summed_over_processes_and_gpus_within_one_sample() {
        let mut sample = Sample::default();
        for line in [usage("a", 10, 100), usage("a", 11, 50), usage("b", 10, 7), usage("a", 99, 1)] {
            assert_eq!(sample.add(line), None);
        }
        let ended = sample.add(usage("a", 10, 3)).expect("a repeated process begins a sample");
        let supervisor = |pid| (pid < 50).then_some(1);
        assert_eq!(ended.totals(supervisor), BTreeMap::from([(1, 157 << 20)]));
        assert_eq!(sample.totals(supervisor), BTreeMap::from([(1, 3 << 20)]));
    }

    #[test]
    fn a_process_is_led_back_through_its_ancestors() {
        let (own, parent) = (i32::try_from(std::process::id()).unwrap(), std::os::unix::process::parent_id());
        let parent = i32::try_from(parent).unwrap();
        assert_eq!(supervisor_of(own, &BTreeMap::from([(parent, 0)])), Some(parent));
        assert_eq!(supervisor_of(own, &BTreeMap::from([(i32::MAX, 0)])), None);
        assert_eq!(supervisor_of(i32::MAX, &BTreeMap::new()), None);
    }

    proptest! {
        #[test]
        fn any_line_is_read(line in ".{0,80}") {
            Usage::read(&line);
        }
    }
}
