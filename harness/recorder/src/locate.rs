//! Which launch faulted. Pure: launches and completion markers in, candidates out.
//!
//! A stream runs its launches in order, and a dead context runs nothing any more. So of each stream everything up to its
//! last completed marker is innocent; behind it, everything up to the next launch that has a marker may have faulted; and
//! nothing after that can have begun.

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

/// The launches that may be running, stream by stream. `launches` are all of the context, in order.
pub(crate) fn running<'a>(launches: &'a [Launch], streams: &[Progress]) -> Vec<&'a Launch> {
    streams.iter().filter(|s| !is_blocked(s, launches, streams)).flat_map(|s| window(s, launches)).collect()
}

/// Where a launch stands.
pub(crate) fn state(launch: &Launch, launches: &[Launch], streams: &[Progress]) -> State {
    let Some(stream) = streams.iter().find(|s| s.stream == launch.stream) else { return State::Waiting };
    if is_complete(launch, stream, launches) {
        State::Completed
    } else if !is_blocked(stream, launches, streams) && window(stream, launches).iter().any(|l| l.seq == launch.seq) {
        State::Running
    } else {
        State::Waiting
    }
}

/// Names the launches that can have raised the error `code`; `line` tells the line that a launch stands for.
pub(crate) fn locate<L: PartialEq>(
    code: i32,
    launches: &[Launch],
    streams: &[Progress],
    failing: Option<Launch>,
    forgotten: bool,
    line: impl Fn(&Launch) -> Option<L>,
) -> Located {
    let mut evidence = Vec::new();
    let mut suspects = running(launches, streams);
    suspects.sort_by_key(|launch| launch.seq);
    let in_flight = suspects.len();
    for stream in streams.iter().filter(|s| is_blocked(s, launches, streams)) {
        evidence
            .push(format!("stream {} was waiting for another stream and had not begun its next launch", stream.stream));
    }
    if code == ASSERT && suspects.iter().any(|launch| is_risky(launch)) {
        suspects.retain(|launch| is_risky(launch));
        if suspects.len() < in_flight {
            evidence.push("only a kernel that contains an assertion can raise this error".to_string());
        }
    }
    if let (true, Some(call)) = (suspects.is_empty(), &failing) {
        suspects.push(call);
        evidence
            .push("the failing call itself waits for the device, and everything before it had completed".to_string());
    }
    // What follows indices is likelier than what does not; of two such, the earlier.
    suspects.sort_by_key(|launch| (!is_risky(launch), launch.seq));
    for suspect in suspects.iter().take(MOST_STANDINGS).filter(|_| in_flight > 0) {
        evidence.push(standing(suspect, launches, streams));
    }
    let one_line = suspects.len() > 1 && {
        let lines: Vec<Option<L>> = suspects.iter().map(|launch| line(launch)).collect();
        lines.iter().all(|l| l.is_some() && *l == lines[0])
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

/// A graph holds kernels that nobody looked at.
fn is_risky(launch: &Launch) -> bool {
    match launch.kind {
        Kind::Kernel => launch.symbol.risky,
        Kind::Graph => true,
        Kind::Memcpy | Kind::Memset => false,
    }
}

fn standing(suspect: &Launch, launches: &[Launch], streams: &[Progress]) -> String {
    let stream = suspect.stream;
    let completed = streams.iter().find(|s| s.stream == stream).map_or(0, |s| s.completed);
    let on = launches.iter().filter(|l| l.stream == stream && l.seq <= completed).next_back();
    match on {
        Some(before) => {
            format!("launch #{} on stream {stream} did not complete, while #{} before it did", suspect.seq, before.seq)
        }
        None => {
            format!("launch #{} on stream {stream} did not complete, nor is one before it known to have", suspect.seq)
        }
    }
}

fn is_complete(launch: &Launch, stream: &Progress, launches: &[Launch]) -> bool {
    if launch.seq > stream.completed {
        return false;
    }
    // Two threads at the same stream at the same time: the order of the calls is not that of the stream.
    launch.seq == stream.completed
        || launches.iter().find(|l| l.seq == stream.completed).is_none_or(|marked| !marked.overlaps(launch))
}

/// The launches of a stream that may have begun: up to the first that has a marker, which was not written.
fn window<'a>(stream: &Progress, launches: &'a [Launch]) -> Vec<&'a Launch> {
    let mut outstanding =
        launches.iter().filter(|l| l.stream == stream.stream && !is_complete(l, stream, launches)).peekable();
    let mut window: Vec<&Launch> = Vec::new();
    while let Some(launch) = outstanding.next() {
        if launch.fenced && !window.is_empty() {
            break;
        }
        window.push(launch);
        if is_marked(launch, stream) && outstanding.peek().is_none_or(|next| !next.overlaps(launch)) {
            break;
        }
    }
    window
}

fn is_marked(launch: &Launch, stream: &Progress) -> bool {
    launch.marked || stream.marked.contains(&launch.seq)
}

/// Whether the stream's next launch waits for one of another stream that is surely not done.
fn is_blocked(stream: &Progress, launches: &[Launch], streams: &[Progress]) -> bool {
    let Some(next) = window(stream, launches).first().map(|l| l.seq) else { return false };
    // Only a launch whose marker is missing is surely not done; one without a marker may be.
    let unfinished = |other: &Progress, until: u64| {
        let first_marked = window(other, launches).last().filter(|l| is_marked(l, other)).map(|l| l.seq);
        until > other.completed && first_marked.is_some_and(|seq| seq <= until)
    };
    let told =
        stream.waits.iter().filter(|wait| wait.after < next).any(|wait| {
            streams.iter().find(|s| s.stream == wait.on).is_some_and(|other| unfinished(other, wait.until))
        });
    let implied = streams.iter().filter(|other| other.context == stream.context).any(|other| {
        let ordered =
            matches!((stream.order, other.order), (Order::Legacy, Order::Blocking) | (Order::Blocking, Order::Legacy));
        ordered && unfinished(other, next - 1)
    });
    told || implied
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Stack;

    const ILLEGAL: i32 = 700;

    fn launch(seq: u64, stream: u32) -> Launch {
        let mut launch = Launch {
            seq,
            returned: seq,
            kind: Kind::Kernel,
            fenced: false,
            marked: true,
            symbol: crate::symbols::Symbol::default(),
            call: "",
            grid: [1; 3],
            block: [1; 3],
            stream,
            thread: 1,
            graph: 0,
            stack: Stack::Native([0; 20]),
            autograd: crate::autograd::Current::default(),
        };
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
        let located = locate(code, launches, streams, None, false, |l| Some(l.seq));
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
        let located = locate(ILLEGAL, &launches, &[progress(0, 1)], None, false, |_| Some("train.py:4"));
        assert_eq!(located.confidence, Confidence::Exact);
        // But a line that is not known is not the same as another one that is not.
        let located = locate(ILLEGAL, &launches, &[progress(0, 1)], None, false, |_| None::<u32>);
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
        let waiting = Progress { stream: 1, waits: vec![Wait { after: 1, on: 0, until: 1 }], ..Progress::default() };
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
        let found = |done| locate(ILLEGAL, &[launch(1, 0)], &[progress(0, done)], Some(copy), false, |l| Some(l.seq));
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
        let states: Vec<_> = launches.iter().map(|l| state(l, &launches, &streams)).collect();
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
