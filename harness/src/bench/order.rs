//! In which order a round runs, and whether there is time for another. Pure.

use std::time::Duration;

/// Places 0 to `count`, rotated: round 1 begins with the first, round 2 with the second.
pub fn rotated(count: usize, round: u32) -> impl Iterator<Item = usize> {
    let start = round.saturating_sub(1) as usize;
    (0..count).map(move |at| (at + start) % count)
}

/// Is there time for another round? It takes as long as the longest so far; of the first nothing is known.
pub fn fits(budget: Option<Duration>, elapsed: Duration, longest: Option<Duration>) -> bool {
    budget.is_none_or(|budget| elapsed + longest.unwrap_or(Duration::from_nanos(1)) <= budget)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_has_everyone_once_and_another_first() {
        let rounds: Vec<Vec<usize>> = (1..=4).map(|round| rotated(3, round).collect()).collect();
        assert_eq!(rounds, [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]);
        assert_eq!(rotated(0, 7).count(), 0);
    }

    #[test]
    fn a_round_is_not_begun_that_would_pass_the_budget() {
        let s = Duration::from_secs;
        assert!(fits(None, s(1000), Some(s(1000))));
        assert!(fits(Some(s(10)), s(4), Some(s(6))));
        assert!(!fits(Some(s(10)), s(5), Some(s(6))));
        assert!(fits(Some(s(10)), s(9), None));
        assert!(!fits(Some(s(10)), s(10), None));
    }
}
