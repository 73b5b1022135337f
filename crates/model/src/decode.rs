//! The plain path: ordinary batched decoding, the oracle that every speculative text is compared with.
//!
//! A batch is refilled as soon as a request ends: a new request's prompt runs in the same pass as the single tokens of
//! the others, which packed rows make free of padding.

use crate::{KvCache, Llama, Prefix, SlotRows};
use burn::tensor::Tensor;
use rayon::prelude::*;
use spectrain_core::constraint::ConstraintError;
use spectrain_core::form::{Ends, Follower, Form};
use spectrain_core::process::{Processors, RowError};
use spectrain_core::stats::{Arrival, Timeline};
use spectrain_kernels::rope::indices;
use std::time::Instant;

/// A prompt to answer.
#[derive(Debug, Clone)]
pub struct Request {
    /// Number that keys the random draws; also names the completion.
    pub id: u64,
    /// Prompt token ids, not empty.
    pub prompt: Vec<u32>,
    /// Most tokens to write.
    pub max_new_tokens: usize,
    /// From logits to the distribution that is sampled; a temperature of 0 is greedy.
    pub sampling: Processors,
    /// Seed of the draws.
    pub seed: u64,
    /// What the answer's text must be like.
    pub form: Form,
}

impl Request {
    /// Where its answer ends if `end_tokens` end answers.
    pub fn ends<'a>(&self, end_tokens: &'a [u32]) -> Ends<'a> {
        Ends { tokens: end_tokens, max_tokens: self.max_new_tokens, min_tokens: self.sampling.min_length }
    }

    /// The start of its answer.
    pub fn follow(&self, end_tokens: &[u32]) -> Follower {
        self.form.follow(self.ends(end_tokens))
    }
}

pub use spectrain_core::stats::Finish;

/// An answer.
#[derive(Debug, Clone)]
pub struct Completion {
    /// The request's number.
    pub id: u64,
    /// Written tokens, a stop token included.
    pub ids: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// When its tokens came.
    pub timeline: Timeline,
    /// Set where the request's constraint gave up, which ended the answer.
    pub failure: Option<ConstraintError>,
}

/// Decodes requests in batches.
pub struct Decoder<'a> {
    /// The model.
    pub target: &'a Llama,
    /// Tokens that end an answer.
    pub stop: &'a [u32],
    /// Requests at a time.
    pub batch: usize,
}

struct Active {
    request: Request,
    answer: Vec<u32>,
    timeline: Timeline,
    follower: Follower,
    finish: Option<Finish>,
}

impl Active {
    /// Tokens the cache does not hold yet.
    fn pending(&self, cached: usize) -> &[u32] {
        if cached == 0 { &self.request.prompt } else { &self.answer[self.answer.len() - 1..] }
    }

    /// Adds the token that the target chooses by the logits behind the text so far, or ends where none may follow.
    fn extend(&mut self, logits: &[f32], stop: &[u32]) -> Result<(), RowError> {
        let Self { request, answer, follower, .. } = self;
        let prefix = Prefix { request, answer, end_tokens: stop, state: follower.state(), script: None };
        let chosen = prefix.choose(logits)?;
        self.finish = match chosen {
            None => Some(Finish::Masked),
            Some(token) => {
                self.answer.push(token);
                self.follower.commit(&[token]).finish
            }
        };
        Ok(())
    }

    fn masked(&self) -> bool {
        self.finish == Some(Finish::Masked)
    }
}

impl Decoder<'_> {
    /// Answers `requests`, none of which needs more than `capacity` tokens of prompt and answer. They are taken as
    /// slots become free; `done` is called as each ends, `progress` with the tokens written by each pass. Returns the
    /// bytes of the key/value cache.
    ///
    /// # Errors
    /// [`RowError`] when logits make no distribution.
    pub fn run(
        &self,
        requests: impl IntoIterator<Item = Request>,
        capacity: usize,
        mut done: impl FnMut(Completion),
        mut progress: impl FnMut(usize),
    ) -> Result<usize, RowError> {
        let start = Instant::now();
        let mut waiting = requests.into_iter().fuse();
        let mut slots: Vec<Option<Active>> = (0..self.batch).map(|_| None).collect();
        let mut cache = self.target.cache(slots.len(), capacity);
        loop {
            for (slot, active) in slots.iter_mut().enumerate().filter(|(_, a)| a.is_none()) {
                cache.clear(slot);
                let timeline = Timeline::starting(start.elapsed().as_secs_f64());
                *active = waiting.next().map(|request| {
                    let follower = request.follow(self.stop);
                    Active { request, answer: Vec::new(), timeline, follower, finish: None }
                });
            }
            if slots.iter().all(Option::is_none) {
                return Ok(cache.bytes());
            }
            self.pass(&mut slots, &mut cache)?;
            let arrival = Arrival { at: start.elapsed().as_secs_f64(), tokens: 1 };
            let wrote = slots.iter_mut().flatten().filter(|active| !active.masked());
            progress(wrote.map(|active| active.timeline.arrivals.push(arrival)).count());
            for slot in &mut slots {
                if let Some(finish) = slot.as_ref().and_then(|a| a.finish)
                    && let Some(active) = slot.take()
                {
                    let Active { request, answer, timeline, follower, .. } = active;
                    let failure = follower.failure(finish);
                    done(Completion { id: request.id, ids: answer, finish, timeline, failure });
                }
            }
        }
    }

    /// One forward pass over every active slot; each gains one token, unless none may follow.
    fn pass(&self, slots: &mut [Option<Active>], cache: &mut KvCache) -> Result<(), RowError> {
        let mut ids = Vec::new();
        let mut rows = Vec::new();
        let mut last = Vec::new();
        for (slot, active) in slots.iter().enumerate().filter_map(|(i, a)| a.as_ref().map(|a| (i, a))) {
            let pending = active.pending(cache.len(slot));
            ids.extend_from_slice(pending);
            rows.push(SlotRows::chain(slot, pending.len()));
            last.push(ids.len() - 1);
        }
        let plan = cache.plan(&rows);
        let hidden = self.target.forward(&ids, &plan, cache, &[]).hidden;
        rows.iter().for_each(|r| cache.commit(r.slot, r.rows));
        let hidden = hidden.select(0, indices(last.iter().copied(), self.target.device()));
        let logits = host_rows(self.target.logits(hidden));
        let vocabulary = self.target.config().vocab_size;
        let active: Vec<&mut Active> = slots.iter_mut().flatten().collect();
        let rows = logits.par_chunks(vocabulary);
        active.into_par_iter().zip(rows).try_for_each(|(active, logits)| active.extend(logits, self.stop))
    }
}

/// Copies a tensor's rows to the host.
pub fn host_rows(tensor: Tensor<2>) -> Vec<f32> {
    tensor.into_data().try_to_vec().expect("an f32 tensor")
}
