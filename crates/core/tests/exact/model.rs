//! Small models: a target row and a draft row after every history.

use spectrain_core::tree::Tree;

/// Rows after every history of up to `depth + 1` tokens.
#[derive(Clone, Debug)]
pub struct Model {
    pub vocabulary: usize,
    /// Draft depth: texts of interest have `depth + 1` tokens.
    pub depth: usize,
    /// `p[length][code of the history]`.
    p: Vec<Vec<Vec<f64>>>,
    q: Vec<Vec<Vec<f64>>>,
}

/// What the random rows look like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Every entry positive.
    Dense,
    /// Zeros in both rows, one-hot rows included.
    Holes,
    /// The drafter is the target.
    Equal,
    /// Some draft rows nearly one-hot, some target entries tiny.
    Extreme,
}

pub const KINDS: [Kind; 4] = [Kind::Dense, Kind::Holes, Kind::Equal, Kind::Extreme];

/// A small deterministic generator for test data.
pub struct Source(pub u64);

impl Source {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }

    fn row(&mut self, vocabulary: usize, kind: Kind) -> Vec<f64> {
        loop {
            let row: Vec<f64> = (0..vocabulary)
                .map(|_| match kind {
                    Kind::Dense | Kind::Equal => (1 + self.below(9)) as f64,
                    Kind::Holes => self.below(4).saturating_sub(1) as f64,
                    Kind::Extreme => [1e-30, 1e-9, 1.0, 1e9][self.below(4) as usize],
                })
                .collect();
            if row.iter().sum::<f64>() > 0.0 {
                return unit(&row);
            }
        }
    }
}

/// A row divided by its sum.
pub fn unit(row: &[f64]) -> Vec<f64> {
    let sum: f64 = row.iter().sum();
    row.iter().map(|entry| entry / sum).collect()
}

impl Model {
    /// A model whose rows are given by the history.
    pub fn from_fn(vocabulary: usize, depth: usize, mut rows: impl FnMut(&[u32]) -> (Vec<f64>, Vec<f64>)) -> Self {
        let (mut p, mut q) = (Vec::new(), Vec::new());
        for length in 0..=depth + 1 {
            let histories = (0..vocabulary.pow(length as u32)).map(|code| decode(code, length, vocabulary));
            let (of_p, of_q) = histories.map(|history| rows(&history)).unzip();
            p.push(of_p);
            q.push(of_q);
        }
        Self { vocabulary, depth, p, q }
    }

    pub fn random(vocabulary: usize, depth: usize, kind: Kind, seed: u64) -> Self {
        let mut source = Source(seed.wrapping_mul(1009).wrapping_add((vocabulary * 8 + depth) as u64));
        Self::from_fn(vocabulary, depth, |_| {
            let p = source.row(vocabulary, kind);
            let q = if kind == Kind::Equal { p.clone() } else { source.row(vocabulary, kind) };
            (p, q)
        })
    }

    /// One pair of rows whatever the history.
    pub fn constant(p: &[f64], q: &[f64], depth: usize) -> Self {
        Self::from_fn(p.len(), depth, |_| (p.to_vec(), q.to_vec()))
    }

    pub fn p(&self, history: &[u32]) -> &[f64] {
        &self.p[history.len()][encode(history, self.vocabulary)]
    }

    pub fn q(&self, history: &[u32]) -> &[f64] {
        &self.q[history.len()][encode(history, self.vocabulary)]
    }

    /// Target rows of every node of a tree.
    pub fn target_rows(&self, tree: &Tree) -> Vec<&[f64]> {
        (0..tree.len()).map(|node| self.p(&tree.path_tokens(node))).collect()
    }

    /// Tokens by falling draft probability after a history.
    pub fn ranked(&self, history: &[u32]) -> Vec<u32> {
        let q = self.q(history);
        let mut tokens: Vec<u32> = (0..self.vocabulary as u32).collect();
        tokens.sort_by(|&a, &b| q[b as usize].total_cmp(&q[a as usize]));
        tokens
    }

    /// Adds `mass` to all texts that begin with `tokens`, shared out by the target.
    pub fn complete(&self, tokens: &[u32], mass: f64, completed: &mut [f64]) {
        if tokens.len() > self.depth {
            completed[encode(tokens, self.vocabulary)] += mass;
            return;
        }
        for (token, share) in self.p(tokens).iter().enumerate() {
            self.complete(&[tokens, &[token as u32]].concat(), mass * share, completed);
        }
    }

    /// The target's own law of texts of `depth + 1` tokens.
    pub fn target_law(&self) -> Vec<f64> {
        let mut law = vec![0.0; self.vocabulary.pow(self.depth as u32 + 1)];
        self.complete(&[], 1.0, &mut law);
        law
    }
}

fn encode(history: &[u32], vocabulary: usize) -> usize {
    history.iter().fold(0, |code, &token| code * vocabulary + token as usize)
}

fn decode(mut code: usize, length: usize, vocabulary: usize) -> Vec<u32> {
    let mut history = vec![0; length];
    for token in history.iter_mut().rev() {
        *token = (code % vocabulary) as u32;
        code /= vocabulary;
    }
    history
}
