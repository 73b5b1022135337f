//! The expected accepted length of single rounds, from either side.
//!
//! Both forms estimate the same number, E\[L\] = Σ_j P(L ≥ j) of a round that starts at a given place: one from the
//! target's own text behind the place, one from what the drafter drew there. The drafter of the first is led along the
//! text as in training, that of the second was at work in the server, so that the two differ where it is not
//! conditioned there as in training.

/// Accepted tokens expected of one round, from the text that followed: Σ_j Π_{i≤j} min(1, q_i / p_i) at the text's own
/// tokens, drawn from p. The arguments are natural logarithms, one a token; the text's end is the sums' end.
pub fn along_text(log_p: &[f64], log_q: &[f64]) -> f64 {
    let passed = log_p.iter().zip(log_q).scan(0.0, |log, (p, q)| {
        *log += (q - p).min(0.0);
        Some(f64::exp(*log))
    });
    passed.sum()
}

/// One drafted token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DraftedToken {
    /// Its mass under the target.
    pub p: f64,
    /// Its mass under the drafter that is estimated.
    pub q: f64,
    /// Its mass in what it was drawn from.
    pub drawn: f64,
    /// Least and largest Σ_v min(p, q) of the distributions there.
    pub overlap: (f64, f64),
}

/// Accepted tokens expected of one round, from its drawn chain.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Drawn {
    /// Σ_j Π_{i≤j} min(p_i, q_i) / drawn_i: of the drafted tokens alone, without bias.
    pub by_token: f64,
    /// Σ_j Π_{i<j} (min(p_i, q_i) / drawn_i) · Σ_v min(p_j, q_j) with the least overlaps: less noise, but a bound.
    pub low: f64,
    /// The same with the largest overlaps.
    pub high: f64,
}

/// As [`along_text`], from a drawn chain. For the drafter that drew, the factors are min(1, p/q). Tokens behind the end
/// of the text are to be left out, an end token itself not.
pub fn along_draft(chain: &[DraftedToken]) -> Drawn {
    let (mut found, mut weight) = (Drawn::default(), 1.0);
    for token in chain {
        found.low += weight * token.overlap.0;
        found.high += weight * token.overlap.1;
        weight *= token.p.min(token.q) / token.drawn;
        found.by_token += weight;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const P1: [f64; 3] = [0.5, 0.3, 0.2];
    const P2: [[f64; 3]; 3] = [[0.6, 0.3, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]];
    const Q1: [f64; 3] = [0.3, 0.45, 0.25];
    const Q2: [[f64; 3]; 3] = [[0.5, 0.35, 0.15], [0.4, 0.38, 0.22], [0.25, 0.3, 0.45]];

    /// The vector `chain_exact_len`: E\[L\] = 1.4140.
    #[test]
    fn both_sides_have_the_exact_length_as_their_mean() {
        let alpha = |p: &[f64], q: &[f64]| p.iter().zip(q).map(|(p, q): (&f64, &f64)| p.min(*q)).sum::<f64>();
        let (mut text, mut draft, mut tokens, mut drawn_elsewhere) = (0.0, 0.0, 0.0, 0.0);
        let other = [0.2, 0.2, 0.6];
        for a in 0..3 {
            for b in 0..3 {
                let log = |p: f64, q: f64| ([p.ln()], [q.ln()]);
                let ((p1, q1), (p2, q2)) = (log(P1[a], Q1[a]), log(P2[a][b], Q2[a][b]));
                text += P1[a] * P2[a][b] * along_text(&[p1[0], p2[0]], &[q1[0], q2[0]]);
            }
            let overlap = |p: &[f64], q: &[f64]| (alpha(p, q), alpha(p, q) + 0.01);
            let chain = |drawn: f64| {
                [
                    DraftedToken { p: P1[a], q: Q1[a], drawn, overlap: overlap(&P1, &Q1) },
                    DraftedToken { p: 0.0, q: 1.0, drawn: 1.0, overlap: overlap(&P2[a], &Q2[a]) },
                ]
            };
            let Drawn { low, high, .. } = along_draft(&chain(Q1[a]));
            assert!(high > low);
            draft += Q1[a] * low;
            drawn_elsewhere += other[a] * along_draft(&chain(other[a])).low;
            for b in 0..3 {
                let second = DraftedToken { p: P2[a][b], q: Q2[a][b], drawn: Q2[a][b], overlap: (0.0, 0.0) };
                tokens += Q1[a] * Q2[a][b] * along_draft(&[chain(Q1[a])[0], second]).by_token;
            }
        }
        for found in [text, draft, tokens, drawn_elsewhere] {
            assert!((found - 1.4140).abs() < 1e-12, "{found}");
        }
    }
}
