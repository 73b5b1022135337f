//! The plain path: ordinary batched decoding, the oracle that every speculative text is compared with.
//!
//! A batch is refilled as soon as a request ends: a new request's prompt runs in the same pass as the single tokens of
//! the others, which packed rows make free of padding.

use crate::sample::choose;
use crate::{KvCache, Llama, SlotRows};
use burn::tensor::Tensor;
use rayon::prelude::*;
use spectrain_core::constraint::{ConstraintError, restrict};
use spectrain_core::form::{Follower, Form};
use spectrain_core::rng::{Key, Purpose};
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
    /// Sampling temperature; 0 is greedy.
    pub temperature: f64,
    /// Seed of the draws.
    pub seed: u64,
    /// What the answer's text must be like.
    pub form: Form,
}

impl Request {
    /// Key of the draw for the token at absolute position `position`.
    pub fn key(&self, position: usize, purpose: Purpose) -> Key {
        Key::new(self.seed, self.id, position as u64, purpose)
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

    /// Adds the token that the target chooses, if one may follow, and returns how many were added. The logits are those
    /// behind the text so far.
    fn extend(&mut self, logits: &mut [f32]) -> usize {
        if self.follower.mask().is_some_and(|mask| !restrict(logits, &mask)) {
            self.finish = Some(self.follower.exhausted());
            return 0;
        }
        let position = self.request.prompt.len() + self.answer.len();
        let token = choose(logits, self.request.temperature, self.request.key(position, Purpose::Target));
        let outcome = self.follower.commit(&[token]);
        self.answer.extend_from_slice(&[token][..outcome.kept]);
        self.finish = outcome.finish;
        outcome.kept
    }
}

impl Decoder<'_> {
    /// Answers `requests`, none of which needs more than `capacity` tokens of prompt and answer. They are taken as
    /// slots become free; `done` is called as each ends, `progress` with the tokens written by each pass. Returns the
    /// bytes of the key/value cache.
    pub fn run(
        &self,
        requests: impl IntoIterator<Item = Request>,
        capacity: usize,
        mut done: impl FnMut(Completion),
        mut progress: impl FnMut(usize),
    ) -> usize {
        let start = Instant::now();
        let mut waiting = requests.into_iter().fuse();
        let mut slots: Vec<Option<Active>> = (0..self.batch).map(|_| None).collect();
        let mut cache = self.target.cache(slots.len(), capacity);
        loop {
            for (slot, active) in slots.iter_mut().enumerate().filter(|(_, a)| a.is_none()) {
                cache.clear(slot);
                let timeline = Timeline::starting(start.elapsed().as_secs_f64());
                *active = waiting.next().map(|request| {
                    let follower = request.form.follow(self.stop, request.max_new_tokens);
                    Active { request, answer: Vec::new(), timeline, follower, finish: None }
                });
            }
            let written = self.pass(&mut slots, &mut cache);
            if written.is_empty() {
                return cache.bytes();
            }
            progress(written.iter().sum());
            let at = start.elapsed().as_secs_f64();
            for (active, tokens) in slots.iter_mut().flatten().zip(written) {
                active.timeline.arrivals.push(Arrival { at, tokens });
            }
            for slot in &mut slots {
                if let Some(finish) = slot.as_ref().and_then(|a| a.finish)
                    && let Some(active) = slot.take()
                {
                    let Active { request, answer, timeline, follower, .. } = active;
                    let failure = follower.failure().cloned();
                    done(Completion { id: request.id, ids: answer, finish, timeline, failure });
                }
            }
        }
    }

    /// One forward pass over every active slot. Returns the tokens that each gained: one, or none where nothing may
    /// follow.
    fn pass(&self, slots: &mut [Option<Active>], cache: &mut KvCache) -> Vec<usize> {
        let mut ids = Vec::new();
        let mut rows = Vec::new();
        let mut last = Vec::new();
        for (slot, active) in slots.iter().enumerate().filter_map(|(i, a)| a.as_ref().map(|a| (i, a))) {
            let pending = active.pending(cache.len(slot));
            ids.extend_from_slice(pending);
            rows.push(SlotRows::chain(slot, pending.len()));
            last.push(ids.len() - 1);
        }
        if ids.is_empty() {
            return Vec::new();
        }
        let plan = cache.plan(&rows);
        let hidden = self.target.forward(&ids, &plan, cache, &[]).hidden;
        rows.iter().for_each(|r| cache.commit(r.slot, r.rows));
        let hidden = hidden.select(0, indices(last.iter().copied(), self.target.device()));
        let mut logits = host_rows(self.target.logits(hidden));
        let rows = logits.par_chunks_mut(self.target.config().vocab_size);
        let active: Vec<&mut Active> = slots.iter_mut().flatten().collect();
        active.into_par_iter().zip(rows).map(|(active, logits)| active.extend(logits)).collect()
    }
}

/// Copies a tensor's rows to the host.
pub fn host_rows(tensor: Tensor<2>) -> Vec<f32> {
    tensor.into_data().try_to_vec().expect("an f32 tensor")
}
