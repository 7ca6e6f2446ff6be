//! Whose a container is: what the sweep goes by.

/// The process that a container belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    /// Boot and process namespace: a process id means nothing elsewhere.
    place: String,
    pub(super) pid: u32,
    /// When it started: ids come again.
    started: u64,
}

impl Owner {
    pub(super) fn this() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let space = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let space: String = space.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
        let pid = std::process::id();
        Self { place: format!("{}.{space}", boot.trim()), pid, started: Self::started(pid).unwrap_or_default() }
    }

    pub(super) fn read(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let place = parts.next()?.to_string();
        Some(Self { place, pid: parts.next()?.parse().ok()?, started: parts.next()?.parse().ok()? })
    }

    /// When a process started, if it is there: field 22 of `stat`.
    pub(super) fn started(pid: u32) -> Option<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
    }

    /// Is this owner gone, as far as `me` can tell? Of one elsewhere only what no longer runs is taken for left.
    pub(super) fn is_over(&self, me: &Self, running: bool, started: impl Fn(u32) -> Option<u64>) -> bool {
        if self.place == me.place { started(self.pid) != Some(self.started) } else { !running }
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}", self.place, self.pid, self.started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_run_that_is_over_is_cleared_away() {
        let me = Owner::this();
        assert_eq!(Owner::read(&me.to_string()), Some(me.clone()));
        assert_eq!(Owner::started(me.pid), Some(me.started));
        let other = |place: &str, started| Owner { place: place.into(), pid: 7, started };
        let lives = |_| Some(70);
        assert!(!other(&me.place, 70).is_over(&me, true, lives));
        // Its id has come again, or is gone.
        assert!(other(&me.place, 69).is_over(&me, true, lives));
        assert!(other(&me.place, 70).is_over(&me, true, |_| None));
        // Elsewhere.
        assert!(!other("elsewhere", 70).is_over(&me, true, |_| None));
        assert!(other("elsewhere", 70).is_over(&me, false, |_| None));
    }
}
