//! Drafters that do not exist, on the text of one that does: what it would commit without one of its limits.

use super::{Along, Scored};

impl Scored {
    /// A perfect drafter: it proposes the target's own distribution.
    pub fn perfect(&self) -> Self {
        self.imagined(|log_p, _, at, _| log_p[at], |_, _, _| true)
    }

    /// The best drafter with the same draft vocabulary: it proposes the target's own distribution over the words that
    /// it has, so every one of them is accepted.
    pub fn best_of_vocabulary(&self) -> Self {
        self.imagined(
            |log_p, _, at, _| if self.known[at] { log_p[at] } else { f64::NEG_INFINITY },
            |_, at, _| self.known[at],
        )
    }

    /// The same drafter if each of its steps read the target's features, as the first does.
    pub fn always_led(&self) -> Self {
        self.imagined(|_, log_q, at, longest| log_q[at * longest], |hits, at, longest| hits[at * longest])
    }

    /// Replaces what is said about the token at `at` of the text by what `log_q` or `hit` says, at every step that
    /// drafts this token.
    fn imagined(
        &self,
        log_q: impl Fn(&[f64], &[f64], usize, usize) -> f64,
        hit: impl Fn(&[bool], usize, usize) -> bool,
    ) -> Self {
        let (n, longest) = (self.tokens, self.longest);
        let entries = (0..n * longest).map(|i| i / longest + i % longest);
        let along = match &self.along {
            Along::Sampled { log_p, log_q: own } => {
                let value = |at| if at < n { log_q(log_p, own, at, longest) } else { f64::NEG_INFINITY };
                Along::Sampled { log_p: log_p.clone(), log_q: entries.map(value).collect() }
            }
            Along::Argmax { hits } => {
                Along::Argmax { hits: entries.map(|at| at < n && hit(hits, at, longest)).collect() }
            }
        };
        Self { along, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scored(along: Along) -> Scored {
        Scored { row: 0, prompt: vec![1], tokens: 3, longest: 2, known: vec![true, false, true], along }
    }

    #[test]
    fn a_greedy_text_loses_what_each_limit_costs() {
        // Step 0 is right at tokens 0 and 2, step 1 nowhere; token 1 is outside the vocabulary.
        let real = scored(Along::Argmax { hits: vec![true, false, false, false, true, false] });
        let depths = |s: &Scored| {
            let renewal = s.renewal(2).expect("a text of three tokens");
            (renewal.starts.clone(), renewal.all_rounds.denominator)
        };
        assert_eq!(depths(&real), (vec![1.0, 0.0, 1.0], 2.0));
        assert_eq!(depths(&real.always_led()), (vec![1.0, 0.0, 1.0], 2.0));
        assert_eq!(depths(&real.best_of_vocabulary()), (vec![1.0, 0.0, 1.0], 2.0));
        assert_eq!(depths(&real.perfect()), (vec![1.0, 0.0, 0.0], 1.0));
        let all = Scored { known: vec![true; 3], ..real };
        assert_eq!(depths(&all.best_of_vocabulary()), depths(&all.perfect()));
    }

    #[test]
    fn every_step_is_as_good_as_the_first_of_its_token() {
        let (half, none) = (0.5_f64.ln(), f64::NEG_INFINITY);
        let log_p = vec![half; 3];
        let real = scored(Along::Sampled { log_p, log_q: vec![half, none, 2.0 * half, none, half, none] });
        let Along::Sampled { log_q, .. } = real.always_led().along else { panic!("it stays sampled") };
        assert_eq!(log_q, [half, 2.0 * half, 2.0 * half, half, half, none]);
        let Along::Sampled { log_q, .. } = real.best_of_vocabulary().along else { panic!("it stays sampled") };
        assert_eq!(log_q, [half, none, none, half, half, none]);
    }
}
