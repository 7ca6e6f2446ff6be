//! Which launch faulted. Pure: launches and completion markers in, candidates out.
//!
//! A stream runs its launches in order, and a dead context runs nothing any more. So of each stream everything up to its
//! last completed marker is innocent; behind it, everything up to the next launch that has a marker may have faulted; and
//! nothing after that can have begun.

use std::collections::HashMap;

use crate::cuda::{ASSERT, Order};
use crate::format::Confidence;
use crate::ops::Kind;
use crate::ring::Launch;
use crate::streams::Wait;

/// A stream as the report finds it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    /// Its ordinal.
    pub(crate) stream: u32,
    /// The last launch whose marker was written.
    pub(crate) completed: u64,
    /// The same for each launching thread.
    pub(crate) threads: Vec<(i32, u64)>,
    /// Further markers that were set behind its launches; whether they were written is in `completed`.
    pub(crate) marked: Vec<u64>,
    /// What it was made to wait for.
    pub(crate) waits: Vec<Wait>,
    /// Its context.
    pub(crate) context: usize,
    /// How it goes together with the legacy default stream.
    pub(crate) order: Order,
}

/// Where a launch stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Its marker, or a later one of its stream, was written.
    Completed,
    /// It may have begun.
    Running,
    /// It cannot have begun.
    Waiting,
}

impl State {
    /// As reports name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Running => "running",
            Self::Waiting => "waiting",
        }
    }
}

/// What is known.
pub(crate) struct Located {
    /// The likeliest first.
    pub(crate) candidates: Vec<Launch>,
    pub(crate) confidence: Confidence,
    /// Why, a sentence each.
    pub(crate) evidence: Vec<String>,
}

/// Candidates whose standing is told.
const MOST_STANDINGS: usize = 4;

/// A stream with its launches.
struct Lane<'a> {
    progress: &'a Progress,
    /// In order.
    launches: Vec<&'a Launch>,
    /// Those that may have begun, if the stream does not wait for another: up to the first whose marker is missing.
    window: Vec<&'a Launch>,
}

/// All streams, each launch looked at once.
pub(crate) struct Scene<'a> {
    lanes: Vec<Lane<'a>>,
}

impl<'a> Scene<'a> {
    /// `launches` are those of the streams, in order.
    pub(crate) fn new(launches: &'a [Launch], streams: &'a [Progress]) -> Self {
        let mut lanes: Vec<Lane<'a>> =
            streams.iter().map(|progress| Lane { progress, launches: Vec::new(), window: Vec::new() }).collect();
        let index: HashMap<u32, usize> = streams.iter().enumerate().map(|(at, s)| (s.stream, at)).collect();
        for launch in launches {
            if let Some(at) = index.get(&launch.stream) {
                lanes[*at].launches.push(launch);
            }
        }
        for lane in &mut lanes {
            lane.window = lane.find_window();
        }
        Self { lanes }
    }

    fn lane(&self, stream: u32) -> Option<&Lane<'a>> {
        self.lanes.iter().find(|lane| lane.progress.stream == stream)
    }

    /// The launches that may be running, stream by stream.
    pub(crate) fn running(&self) -> Vec<&'a Launch> {
        let free = self.lanes.iter().filter(|lane| !self.is_blocked(lane));
        free.flat_map(|lane| lane.window.iter().copied()).collect()
    }

    /// Where a launch stands.
    pub(crate) fn state(&self, launch: &Launch) -> State {
        // A stream is forgotten only when everything in it was done.
        let Some(lane) = self.lane(launch.stream) else { return State::Completed };
        if lane.is_complete(launch) {
            State::Completed
        } else if lane.window.iter().any(|l| l.seq == launch.seq) && !self.is_blocked(lane) {
            State::Running
        } else {
            State::Waiting
        }
    }

    /// Whether the stream's next launch waits for one of another stream that is surely not done.
    fn is_blocked(&self, lane: &Lane<'_>) -> bool {
        let Some(next) = lane.window.first().map(|launch| launch.seq) else { return false };
        let stream = lane.progress;
        // A launch up to `until`, whose call had returned when `last` launches were drawn, is surely not done.
        let unfinished = |other: &Lane<'_>, until: u64, last: u64| {
            let first = other.window.last().filter(|launch| other.tells_of(launch));
            first.is_some_and(|launch| launch.seq <= until && launch.returned <= last)
        };
        let told = stream
            .waits
            .iter()
            .filter(|wait| wait.after < next)
            .any(|wait| self.lane(wait.on).is_some_and(|other| unfinished(other, wait.until, wait.recorded)));
        let implied = self.lanes.iter().filter(|other| other.progress.context == stream.context).any(|other| {
            let ordered = matches!(
                (stream.order, other.progress.order),
                (Order::Legacy, Order::Blocking) | (Order::Blocking, Order::Legacy)
            );
            ordered && unfinished(other, next - 1, next - 1)
        });
        told || implied
    }

    fn standing(&self, suspect: &Launch) -> String {
        let stream = suspect.stream;
        let before = self.lane(stream).and_then(|lane| {
            let end = lane.launches.partition_point(|l| l.seq <= lane.progress.completed);
            lane.launches[..end].last().map(|l| l.seq)
        });
        match before {
            Some(before) => {
                format!("launch #{} on stream {stream} did not complete, while #{before} before it did", suspect.seq)
            }
            None => {
                format!(
                    "launch #{} on stream {stream} did not complete, nor is one before it known to have",
                    suspect.seq
                )
            }
        }
    }
}

impl<'a> Lane<'a> {
    fn is_complete(&self, launch: &Launch) -> bool {
        let completed = self.progress.completed;
        if self.progress.threads.iter().any(|(thread, upto)| *thread == launch.thread && launch.seq <= *upto) {
            return true;
        }
        if launch.seq >= completed {
            return launch.seq == completed;
        }
        // Two threads at the same stream at the same time: the order of the calls is not that of the stream.
        let marked = self.launches.binary_search_by_key(&completed, |l| l.seq).ok();
        marked.is_none_or(|at| !self.launches[at].overlaps(launch))
    }

    fn is_marked(&self, launch: &Launch) -> bool {
        launch.marked || self.progress.marked.contains(&launch.seq)
    }

    /// Whether a missing marker shows that this very launch is not done. One that was set later may wait for something else:
    /// for what the stream was made to wait for meanwhile, on the legacy stream for every blocking one.
    fn tells_of(&self, launch: &Launch) -> bool {
        launch.marked && (launch.returned == launch.seq || self.progress.order == Order::Free)
    }

    fn find_window(&self) -> Vec<&'a Launch> {
        let mut outstanding = self.launches.iter().filter(|launch| !self.is_complete(launch)).peekable();
        let mut window: Vec<&'a Launch> = Vec::new();
        while let Some(launch) = outstanding.next() {
            if launch.fenced && window.iter().any(|before| before.thread == launch.thread) {
                break;
            }
            window.push(launch);
            if self.is_marked(launch) && outstanding.peek().is_none_or(|next| !next.overlaps(launch)) {
                break;
            }
        }
        window
    }
}

/// Names the launches that can have raised the error `code`; `line` tells the line that a launch stands for.
pub(crate) fn locate<L: PartialEq>(
    code: i32,
    scene: &Scene<'_>,
    failing: Option<Launch>,
    forgotten: bool,
    line: impl Fn(&Launch) -> Option<L>,
) -> Located {
    let mut evidence = Vec::new();
    let mut suspects = scene.running();
    suspects.sort_by_key(|launch| launch.seq);
    let in_flight = suspects.len();
    for lane in scene.lanes.iter().filter(|lane| scene.is_blocked(lane)) {
        evidence.push(format!(
            "stream {} was waiting for another stream and had not begun its next launch",
            lane.progress.stream
        ));
    }
    if code == ASSERT && suspects.iter().any(|launch| is_risky(launch)) {
        suspects.retain(|launch| is_risky(launch));
        if suspects.len() < in_flight {
            evidence.push("only a kernel that contains an assertion can raise this error".to_string());
        }
    }
    // A copy may wait by itself, beside other streams; any launch waits under `CUDA_LAUNCH_BLOCKING`, after all others.
    if let Some(call) = &failing {
        let alone = match call.kind {
            Kind::Memcpy => suspects.iter().all(|launch| launch.stream != call.stream),
            Kind::Kernel | Kind::Graph | Kind::Memset => {
                suspects.iter().all(|launch| matches!(launch.kind, Kind::Memcpy | Kind::Memset))
            }
        };
        if alone {
            if call.kind != Kind::Memcpy {
                suspects.clear();
            }
            suspects.push(call);
            evidence.push(format!(
                "launch #{} itself returned the error, and every kernel before it in its stream had completed",
                call.seq
            ));
        }
    }
    likeliest_first(&mut suspects);
    for suspect in suspects.iter().take(MOST_STANDINGS).filter(|_| in_flight > 0) {
        evidence.push(scene.standing(suspect));
    }
    let one_line = suspects.len() > 1 && {
        let first = line(suspects[0]);
        first.is_some() && suspects[1..].iter().all(|launch| line(launch) == first)
    };
    let confidence = match suspects.len() {
        0 => Confidence::Unlocated,
        1 => Confidence::Exact,
        _ if one_line => {
            evidence.push(format!("all {} launches that can have faulted were made by the same line", suspects.len()));
            Confidence::Exact
        }
        _ => Confidence::Candidates,
    };
    if suspects.is_empty() {
        evidence.push(if forgotten {
            "every launch that is still remembered had completed; the ring was too small (FAULTLAB_RECORDER_RING)"
                .to_string()
        } else {
            "every recorded launch had completed: the fault came from work that makes no call-back".to_string()
        });
    }
    Located { candidates: suspects.into_iter().copied().collect(), confidence, evidence }
}

/// What follows indices, or is not known, is likelier than what does not; of two such, the earlier.
pub(crate) fn likeliest_first(suspects: &mut [&Launch]) {
    suspects.sort_by_key(|launch| (!is_risky(launch), launch.seq));
}

/// A graph holds kernels that nobody looked at.
fn is_risky(launch: &Launch) -> bool {
    match launch.kind {
        Kind::Kernel => launch.symbol.risky,
        Kind::Graph => true,
        Kind::Memcpy | Kind::Memset => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ILLEGAL: i32 = 700;

    fn launch(seq: u64, stream: u32) -> Launch {
        let mut launch = Launch { stream, marked: true, ..Launch::of_test(seq) };
        launch.symbol.risky = true;
        launch
    }

    fn safe(seq: u64, stream: u32) -> Launch {
        let mut launch = launch(seq, stream);
        launch.symbol.risky = false;
        launch.marked = false;
        launch
    }

    fn progress(stream: u32, completed: u64) -> Progress {
        Progress { stream, completed, ..Progress::default() }
    }

    fn named(code: i32, launches: &[Launch], streams: &[Progress]) -> (Vec<u64>, Confidence) {
        let located = locate(code, &Scene::new(launches, streams), None, false, |l| Some(l.seq));
        (located.candidates.iter().map(|l| l.seq).collect(), located.confidence)
    }

    #[test]
    fn the_first_missing_marker_is_the_fault() {
        let launches: Vec<_> = (1..=9).map(|seq| launch(seq, 0)).collect();
        assert_eq!(named(ILLEGAL, &launches, &[progress(0, 4)]), (vec![5], Confidence::Exact));
        assert_eq!(named(ILLEGAL, &launches, &[progress(0, 0)]), (vec![1], Confidence::Exact));
    }

    #[test]
    fn launches_without_markers_are_candidates_together() {
        let launches = [launch(1, 0), safe(2, 0), safe(3, 0), launch(4, 0), launch(5, 0)];
        assert_eq!(named(ILLEGAL, &launches, &[progress(0, 1)]), (vec![4, 2, 3], Confidence::Candidates));
        // An assertion needs a kernel that has one.
        assert_eq!(named(ASSERT, &launches, &[progress(0, 1)]), (vec![4], Confidence::Exact));
    }

    #[test]
    fn a_marker_before_a_launch_parts_it_from_what_came_before() {
        let mut fenced = launch(4, 0);
        fenced.fenced = true;
        let launches = [launch(1, 0), safe(2, 0), safe(3, 0), fenced];
        assert_eq!(named(ILLEGAL, &launches, &[progress(0, 1)]).0, vec![2, 3]);
        assert_eq!(named(ILLEGAL, &launches, &[progress(0, 3)]), (vec![4], Confidence::Exact));
    }

    #[test]
    fn a_marker_that_was_set_later_ends_the_window() {
        let launches = [launch(1, 0), safe(2, 0), safe(3, 0)];
        let stream = Progress { completed: 1, marked: vec![2], ..Progress::default() };
        assert_eq!(named(ILLEGAL, &launches, &[stream]), (vec![2], Confidence::Exact));
    }

    #[test]
    fn candidates_of_one_line_are_exact() {
        let launches = [launch(1, 0), safe(2, 0), safe(3, 0), launch(4, 0)];
        let located = locate(ILLEGAL, &Scene::new(&launches, &[progress(0, 1)]), None, false, |_| Some("train.py:4"));
        assert_eq!(located.confidence, Confidence::Exact);
        // But a line that is not known is not the same as another one that is not.
        let located = locate(ILLEGAL, &Scene::new(&launches, &[progress(0, 1)]), None, false, |_| None::<u32>);
        assert_eq!(located.confidence, Confidence::Candidates);
    }

    #[test]
    fn two_streams_in_flight_are_both_named() {
        let launches = [launch(1, 0), launch(2, 1), launch(3, 0), launch(4, 1)];
        let streams = [progress(0, 1), progress(1, 0)];
        assert_eq!(named(ILLEGAL, &launches, &streams), (vec![2, 3], Confidence::Candidates));
    }

    #[test]
    fn a_stream_that_waits_for_the_other_is_innocent() {
        let launches = [launch(1, 0), launch(2, 1), launch(3, 0)];
        let waiting =
            Progress { stream: 1, waits: vec![Wait { after: 1, on: 0, until: 1, recorded: 1 }], ..Progress::default() };
        assert_eq!(named(ILLEGAL, &launches, &[progress(0, 0), waiting.clone()]), (vec![1], Confidence::Exact));
        // Once the other has come that far, it may run.
        assert_eq!(named(ILLEGAL, &launches, &[progress(0, 1), waiting]).0, vec![2, 3]);
    }

    #[test]
    fn the_legacy_stream_and_blocking_ones_wait_for_each_other() {
        let launches = [launch(1, 0), launch(2, 1)];
        let legacy = Progress { order: Order::Legacy, ..progress(0, 0) };
        let blocking = Progress { order: Order::Blocking, ..progress(1, 0) };
        assert_eq!(named(ILLEGAL, &launches, &[legacy.clone(), blocking]).0, vec![1]);
        assert_eq!(named(ILLEGAL, &launches, &[legacy, progress(1, 0)]).0, vec![1, 2]);
    }

    #[test]
    fn a_call_that_waits_is_the_culprit_when_all_else_is_done() {
        let copy = safe(2, 0);
        let found = |done| {
            locate(ILLEGAL, &Scene::new(&[launch(1, 0)], &[progress(0, done)]), Some(copy), false, |l| Some(l.seq))
        };
        assert_eq!(found(1).candidates[0].seq, 2);
        assert_eq!(found(0).candidates[0].seq, 1);
        assert_eq!(found(0).candidates.len(), 1);
    }

    #[test]
    fn threads_that_overtook_each_other_are_both_named() {
        let mut first = launch(1, 0);
        first.returned = 2;
        let mut second = launch(2, 0);
        second.thread = 2;
        assert_eq!(named(ILLEGAL, &[first, second], &[progress(0, 0)]).0, vec![1, 2]);
        // The marker of #2 says nothing of #1.
        assert_eq!(named(ILLEGAL, &[first, second], &[progress(0, 2)]).0, vec![1]);
    }

    #[test]
    fn nothing_left_is_unlocated() {
        assert_eq!(named(ILLEGAL, &[launch(1, 0)], &[progress(0, 1)]), (vec![], Confidence::Unlocated));
        assert_eq!(named(ILLEGAL, &[], &[]), (vec![], Confidence::Unlocated));
    }

    #[test]
    fn states_around_the_fault() {
        let launches: Vec<_> = (1..=4).map(|seq| launch(seq, 0)).collect();
        let streams = [progress(0, 2)];
        let states: Vec<_> = launches.iter().map(|l| Scene::new(&launches, &streams).state(l)).collect();
        assert_eq!(states, [State::Completed, State::Completed, State::Running, State::Waiting]);
    }

    proptest::proptest! {
        /// With a marker behind every launch and one stream in flight, there is always one candidate, and it is right.
        #[test]
        fn the_line_is_exact_whatever_ran_before(
            streams in proptest::collection::vec(0u32..4, 1..60),
            at in proptest::prelude::any::<proptest::sample::Index>(),
        ) {
            let launches: Vec<_> = (1..).zip(&streams).map(|(seq, stream)| launch(seq, *stream)).collect();
            let fault = at.get(&launches);
            // The others had finished all that was launched before, and are idle.
            let launches: Vec<_> = launches.iter().copied().filter(|l| l.seq <= fault.seq || l.stream == fault.stream).collect();
            let progress: Vec<_> = (0..4).map(|stream| {
                let done = launches.iter().filter(|l| l.stream == stream && l.seq < fault.seq).map(|l| l.seq).max();
                progress(stream, done.unwrap_or(0))
            }).collect();
            proptest::prop_assert_eq!(named(ILLEGAL, &launches, &progress), (vec![fault.seq], Confidence::Exact));
        }
    }
}
