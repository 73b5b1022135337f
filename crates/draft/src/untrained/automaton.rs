//! A suffix automaton that grows token by token and knows how often each of its substrings has occurred.
//!
//! Blumer et al. 1985. A state stands for all substrings that end at the same places; its link leads to the longest
//! suffix that ends at more.

/// A state.
#[derive(Debug, Clone, Default)]
struct State {
    /// Longest substring of the state.
    length: usize,
    /// State of the longest suffix with other ends; the root's is itself.
    link: usize,
    /// Occurrences.
    count: usize,
    /// Where the newest occurrence ends.
    newest: usize,
    /// States by the next token, ascending by it.
    next: Vec<(u32, usize)>,
}

impl State {
    fn step(&self, token: u32) -> Option<usize> {
        self.next.binary_search_by_key(&token, |&(t, _)| t).ok().map(|i| self.next[i].1)
    }

    fn set(&mut self, token: u32, to: usize) {
        match self.next.binary_search_by_key(&token, |&(t, _)| t) {
            Ok(i) => self.next[i].1 = to,
            Err(i) => self.next.insert(i, (token, to)),
        }
    }
}

/// The automaton; state [`Automaton::ROOT`] is the empty string.
#[derive(Debug, Clone)]
pub struct Automaton {
    states: Vec<State>,
    /// State of the whole text.
    last: usize,
    length: usize,
}

impl Default for Automaton {
    fn default() -> Self {
        Self { states: vec![State::default()], last: Self::ROOT, length: 0 }
    }
}

impl Automaton {
    /// The empty string.
    pub const ROOT: usize = 0;

    /// Appends a token.
    pub fn push(&mut self, token: u32) {
        let new = self.states.len();
        self.length += 1;
        self.states.push(State { length: self.length, ..State::default() });
        let mut from = Some(self.last);
        let mut link = Self::ROOT;
        while let Some(state) = from {
            if let Some(to) = self.states[state].step(token) {
                link = if self.states[to].length == self.states[state].length + 1 {
                    to
                } else {
                    self.split(state, to, token)
                };
                break;
            }
            self.states[state].set(token, new);
            from = (state != Self::ROOT).then(|| self.states[state].link);
        }
        self.states[new].link = link;
        self.last = new;
        let mut state = new;
        while state != Self::ROOT {
            self.states[state].count += 1;
            self.states[state].newest = self.length;
            state = self.states[state].link;
        }
    }

    /// Parts the shorter substrings of `to` from it, those that `state` reaches by `token`; returns their state.
    fn split(&mut self, state: usize, to: usize, token: u32) -> usize {
        let part = self.states.len();
        let length = self.states[state].length + 1;
        self.states.push(State { length, ..self.states[to].clone() });
        self.states[to].link = part;
        let mut from = Some(state);
        while let Some(state) = from.filter(|&state| self.states[state].step(token) == Some(to)) {
            self.states[state].set(token, part);
            from = (state != Self::ROOT).then(|| self.states[state].link);
        }
        part
    }

    /// State and length of the longest proper suffix of the text that occurs earlier in it.
    pub fn earlier(&self) -> (usize, usize) {
        let state = self.shorter(self.last);
        (state, self.states[state].length)
    }

    /// State of the longest suffix with more ends.
    pub fn shorter(&self, state: usize) -> usize {
        self.states[state].link
    }

    /// State and length of the longest suffix of `text` that occurs.
    pub fn matching(&self, text: &[u32]) -> (usize, usize) {
        let (mut state, mut length) = (Self::ROOT, 0);
        for &token in text {
            while state != Self::ROOT && self.states[state].step(token).is_none() {
                state = self.states[state].link;
                length = self.states[state].length;
            }
            if let Some(to) = self.states[state].step(token) {
                (state, length) = (to, length + 1);
            }
        }
        (state, length)
    }

    /// Longest substring of a state.
    pub fn length(&self, state: usize) -> usize {
        self.states[state].length
    }

    /// The token that followed `state` most often, the newest among equals; with its state, its share of all that
    /// followed. None at the end of the text.
    pub fn likeliest(&self, state: usize) -> Option<(u32, usize, f64)> {
        let next = &self.states[state].next;
        let all: usize = next.iter().map(|&(_, to)| self.states[to].count).sum();
        let rank = |&&(_, to): &&(u32, usize)| (self.states[to].count, self.states[to].newest);
        next.iter().max_by_key(rank).map(|&(token, to)| (token, to, self.states[to].count as f64 / all as f64))
    }
}
