//! What was captured into CUDA graphs.
//!
//! A replay is one driver call: the kernels inside make no call-backs. But each was captured by a launch, which was seen,
//! and the markers that were set behind it became nodes of the graph: at a replay they write how far the graph has come.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cuda::Stream;
use crate::ring::Launch;
use crate::streams::Word;

/// A launch that became a node.
#[derive(Clone, Copy)]
pub(crate) struct Captured {
    pub(crate) launch: Launch,
    /// A marker node with this launch's place stands behind it.
    pub(crate) marked: bool,
    /// Which of the capture's streams.
    pub(crate) lane: usize,
}

/// One of the streams that took part in a capture.
#[derive(Clone, Copy)]
pub(crate) struct Lane {
    stream: Stream,
    pub(crate) word: Option<Word>,
    unmarked: u32,
}

/// A capture. The place of a launch in it counts from 1.
#[derive(Default)]
pub(crate) struct Capture {
    pub(crate) launches: Vec<Captured>,
    pub(crate) lanes: Vec<Lane>,
    /// The body of a conditional node takes no marker nodes.
    pub(crate) bare: bool,
    /// Replays that were started.
    pub(crate) replays: u64,
}

impl Capture {
    /// Whether the stream has a lane, or could not have a marker in one.
    pub(crate) fn has_lane(&self, stream: Stream) -> bool {
        self.bare || self.lanes.iter().any(|lane| lane.stream == stream)
    }

    /// The lane of a stream; `word` is for a new one.
    pub(crate) fn lane(&mut self, stream: Stream, word: Option<Word>) -> usize {
        self.lanes.iter().position(|lane| lane.stream == stream).unwrap_or_else(|| {
            let word = word.filter(|_| !self.bare);
            self.lanes.push(Lane { stream, word, unmarked: 0 });
            self.lanes.len() - 1
        })
    }

    /// Adds a launch, and tells the value and the word of the marker that it is due, if it is.
    pub(crate) fn add(&mut self, launch: Launch, lane: usize, due: impl FnOnce(u32) -> bool) -> Option<(u32, Word)> {
        let unmarked = self.lanes[lane].unmarked + 1;
        let word = self.lanes[lane].word.filter(|_| due(unmarked));
        self.lanes[lane].unmarked = if word.is_some() { 0 } else { unmarked };
        self.launches.push(Captured { launch, marked: word.is_some(), lane });
        Some((u32::try_from(self.launches.len()).ok()?, word?))
    }

    /// The marker that ends a stream's part: so that a finished replay can be told from one that has not begun.
    pub(crate) fn last(&mut self, stream: Stream) -> Option<(u32, Word)> {
        let lane = self.lanes.iter().position(|lane| lane.stream == stream && lane.unmarked > 0)?;
        let word = self.lanes[lane].word?;
        let at = self.launches.iter().rposition(|captured| captured.lane == lane)?;
        self.launches[at].marked = true;
        self.lanes[lane].unmarked = 0;
        Some((u32::try_from(at + 1).ok()?, word))
    }

    /// A marker could not be set after all.
    pub(crate) fn unmark(&mut self, value: u32) {
        if let Some(captured) = self.launches.get_mut(value as usize - 1) {
            captured.marked = false;
        }
    }

    /// The nodes that can have faulted in an unfinished replay, by what the markers say: places from 1.
    pub(crate) fn suspects(&self) -> Vec<u32> {
        let mut suspects = Vec::new();
        for (index, lane) in self.lanes.iter().enumerate() {
            let nodes: Vec<(u32, bool)> = (1..)
                .zip(&self.launches)
                .filter(|(_, captured)| captured.lane == index)
                .map(|(place, captured)| (place, captured.marked))
                .collect();
            let reached = lane.word.map_or(0, Word::value);
            let window = |from: u32| {
                let behind: Vec<_> = nodes.iter().skip_while(|(place, _)| *place <= from).collect();
                let end = behind.iter().position(|(_, marked)| *marked).map_or(behind.len(), |at| at + 1);
                behind[..end].iter().map(|(place, _)| *place).collect::<Vec<_>>()
            };
            let last = nodes.iter().rev().find(|(_, marked)| *marked).map_or(0, |(place, _)| *place);
            suspects.extend(window(reached));
            // The last marker's value may be left from the replay before: then this one has not come to its first marker.
            if reached == last && reached != 0 && self.replays > 1 {
                suspects.extend(window(0));
            }
        }
        suspects.sort_unstable();
        suspects.dedup();
        suspects
    }
}

/// All captures, and which graph came of which.
#[derive(Default)]
pub(crate) struct Captures {
    inner: Mutex<Inner>,
    /// Captures that are going on: while there are none, no launch has to ask.
    pub(crate) active: AtomicU32,
}

#[derive(Default)]
pub(crate) struct Inner {
    captures: HashMap<u64, Capture>,
    graphs: HashMap<usize, u64>,
    execs: HashMap<usize, u64>,
    nodes: usize,
}

/// Captured launches that are kept in all.
const MOST_NODES: usize = 1 << 20;

impl Captures {
    /// Whether any stream is being captured.
    pub(crate) fn any(&self) -> bool {
        self.active.load(Ordering::Relaxed) > 0
    }

    /// The tables.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// The capture of this id, begun if need be; `None` when too much is captured already.
    pub(crate) fn of(&mut self, id: u64) -> Option<&mut Capture> {
        if self.nodes >= MOST_NODES {
            return None;
        }
        self.nodes += 1;
        Some(self.captures.entry(id).or_default())
    }

    /// The capture of this id.
    pub(crate) fn get(&mut self, id: u64) -> Option<&mut Capture> {
        self.captures.get_mut(&id)
    }

    /// A capture ended in a graph.
    pub(crate) fn ended(&mut self, id: u64, graph: usize) {
        self.graphs.insert(graph, id);
    }

    /// A capture ended without a graph.
    pub(crate) fn spoiled(&mut self, id: u64) {
        if let Some(capture) = self.captures.remove(&id) {
            self.nodes = self.nodes.saturating_sub(capture.launches.len());
        }
    }

    /// A graph was copied.
    pub(crate) fn copied(&mut self, from: usize, to: usize) {
        if let Some(&id) = self.graphs.get(&from) {
            self.graphs.insert(to, id);
        }
    }

    /// A graph was made executable, or put into an executable one.
    pub(crate) fn instantiated(&mut self, graph: usize, exec: usize) {
        match self.graphs.get(&graph) {
            Some(&id) => self.execs.insert(exec, id),
            None => self.execs.remove(&exec),
        };
    }

    /// An executable graph was destroyed. What it was captured from is forgotten once no other is left.
    pub(crate) fn destroyed(&mut self, exec: usize) {
        let Some(id) = self.execs.remove(&exec) else { return };
        if !self.execs.values().any(|other| *other == id)
            && let Some(capture) = self.captures.remove(&id)
        {
            self.nodes = self.nodes.saturating_sub(capture.launches.len());
            self.graphs.retain(|_, other| *other != id);
        }
    }

    /// The capture that an executable graph was made from.
    pub(crate) fn of_exec(&mut self, exec: usize) -> Option<&mut Capture> {
        let id = *self.execs.get(&exec)?;
        self.captures.get_mut(&id)
    }
}
