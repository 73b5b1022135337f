//! How large a tree pays: expected tokens against the measured time of a round.

/// Measured times of one machine, in any one unit.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    /// Time of one draft level.
    pub draft_level: f64,
    /// Time of the rest of a round that depends on neither size nor depth (commit, roll-back, synchronisation).
    pub fixed: f64,
    /// Time of a target pass over so many nodes, for every size that may be chosen.
    pub verify: Vec<(usize, f64)>,
}

/// The best size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Nodes of the tree, the root included.
    pub nodes: usize,
    /// Draft levels.
    pub depth: usize,
    /// Expected committed tokens per round.
    pub expected: f64,
    /// Time per committed token.
    pub time_per_token: f64,
}

impl Budget {
    /// The size and depth of least time per token; `None` if none of the measured sizes can be built.
    ///
    /// `expected(nodes, depth)` is the committed length of the best tree of that size, as from
    /// [`super::SequoiaTable::expected`]. Ties go to the smaller depth, then to the earlier line of the table.
    pub fn choose(&self, max_depth: usize, expected: impl Fn(usize, usize) -> Option<f64>) -> Option<Choice> {
        let mut best: Option<Choice> = None;
        for depth in 0..=max_depth {
            for &(nodes, verify) in &self.verify {
                let Some(expected) = expected(nodes, depth) else { continue };
                let round = self.draft_level * depth as f64 + verify + self.fixed;
                let choice = Choice { nodes, depth, expected, time_per_token: round / expected };
                if best.is_none_or(|best| choice.time_per_token < best.time_per_token) {
                    best = Some(choice);
                }
            }
        }
        best
    }
}
