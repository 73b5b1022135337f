//! Why training stopped, and how a batch is named.

/// Why training stopped.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// No conversation has a supervised token that the unroll reaches.
    #[error("no supervised tokens after masking: nothing to train on")]
    Empty,
    /// The loss or its gradient is no number any more.
    #[error(
        "the loss became {loss} and the norm of its gradient {norm} at step {step}, in the batch of {}: \
         look at these rows of the store, or lower train.learning_rate or train.clip_norm",
        named(requests)
    )]
    Diverged {
        /// The optimiser step, counted from 1.
        step: usize,
        /// Loss per supervised token.
        loss: f64,
        /// Norm of all gradients together.
        norm: f64,
        /// Requests in the batch.
        requests: Vec<u64>,
    },
    /// It was asked to stop; a checkpoint holds where it stood.
    #[error("stopped after step {step} of {total}")]
    Stopped {
        /// Optimiser steps taken.
        step: usize,
        /// Optimiser steps in all.
        total: usize,
    },
    /// A record or checkpoint could not be written, or the drafter could not be measured.
    #[error("{0}")]
    Output(String),
}

/// Requests that a message lists.
const LISTED: usize = 24;

/// `requests 3, 5 and 9`, cut where the list is long.
pub fn named(requests: &[u64]) -> String {
    let listed: Vec<String> = requests.iter().take(LISTED).map(u64::to_string).collect();
    match (requests.len(), requests.len().saturating_sub(LISTED)) {
        (0 | 1, _) => format!("request {}", listed.concat()),
        (_, 0) => format!("requests {} and {}", listed[..listed.len() - 1].join(", "), listed[listed.len() - 1]),
        (_, rest) => format!("requests {} and {rest} more", listed.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_in_words() {
        assert_eq!(named(&[7]), "request 7");
        assert_eq!(named(&[7, 2]), "requests 7 and 2");
        assert_eq!(named(&[7, 2, 9]), "requests 7, 2 and 9");
        let many: Vec<u64> = (0..30).collect();
        assert!(named(&many).starts_with("requests 0, 1,") && named(&many).ends_with(", 23 and 6 more"));
    }
}
