//! The values of a recipe: what is wrong by itself, and what does not fit the target.

use std::fmt::Debug;

use super::check_loss::check_loss;
use super::error::PlanError;
use super::tables::{Drafter, Eagle3};
use super::{Data, Eval, Recipe, ScheduleShape, Train, Verifier};
use crate::process::{ProcessError, Processors};
use crate::rules::{Guarantee, Proposals, Rule};
use crate::tree::TreeKind;

/// What a plan must know of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetFacts {
    /// Decoder layers.
    pub layers: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Width of the hidden state.
    pub hidden: usize,
}

/// A key and what is wrong with its value.
pub(super) type Fault = (&'static str, String);

impl Recipe {
    /// Refuses a recipe that cannot be run with this target, before any work.
    ///
    /// # Errors
    /// The first key that does not fit, with what would be right.
    pub fn check(&self, facts: &TargetFacts) -> Result<(), PlanError> {
        self.check_values()?;
        let Drafter::Eagle3(drafter) = &self.drafter;
        check_taps(drafter, facts)
            .and_then(|()| {
                let right = format!("\"full\" or at most the target's vocabulary, {}", facts.vocab);
                let size = drafter.draft_vocab.size(facts.vocab);
                must(size <= facts.vocab, "drafter.draft_vocab", &size, &right)
            })
            .map_err(|(key, message)| self.places.fault(key, message))
    }

    /// Refuses values that are wrong for any target.
    pub(super) fn check_values(&self) -> Result<(), PlanError> {
        self.counts()
            .and_then(|()| check_name(&self.name))
            .and_then(|()| check_data(&self.data))
            .and_then(|()| check_drafter(&self.drafter))
            .and_then(|()| check_verifier(&self.verifier))
            .and_then(|()| check_loss(self))
            .and_then(|()| check_train(&self.train, self.loss.unroll))
            .and_then(|()| check_eval(&self.eval, self.verifier.rule))
            .map_err(|(key, message)| self.places.fault(key, message))
    }

    /// Counts that cannot be 0.
    fn counts(&self) -> Result<(), Fault> {
        let Self { data, store, loss, train, eval, .. } = self;
        [
            ("data.answer_tokens", data.answer_tokens),
            ("data.max_new_tokens", data.max_new_tokens),
            ("data.max_prompt_tokens", data.max_prompt_tokens),
            ("data.batch", data.batch),
            ("store.batch_tokens", store.batch_tokens),
            ("loss.unroll", loss.unroll),
            ("train.epochs", train.epochs),
            ("train.accumulate", train.accumulate),
            ("train.devices", train.devices),
            ("train.log_every", train.log_every),
            ("eval.limit", eval.limit),
            ("eval.max_new_tokens", eval.max_new_tokens),
            ("eval.length", eval.length),
            ("eval.batch", eval.batch),
        ]
        .into_iter()
        .try_for_each(|(key, count)| must(count >= 1, key, &count, "at least 1"))
    }
}

/// Refuses `value` of `key` unless `right_so`; `right` completes "it must be".
pub(super) fn must(right_so: bool, key: &'static str, value: &dyn Debug, right: &str) -> Result<(), Fault> {
    if right_so { Ok(()) } else { Err((key, format!("is {value:?}; it must be {right}"))) }
}

/// A number above 0, and no infinity.
pub(super) fn positive(key: &'static str, value: f64) -> Result<(), Fault> {
    must(value.is_finite() && value > 0.0, key, &value, "a number above 0")
}

fn check_name(name: &str) -> Result<(), Fault> {
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    let right = "a plain directory name of letters, digits, '-', '_' and '.'";
    must(plain && !name.is_empty() && !name.starts_with('.'), "name", &name, right)
}

fn check_data(data: &Data) -> Result<(), Fault> {
    positive("data.temperature", data.temperature)?;
    must((0.0..=1.0).contains(&data.greedy_share), "data.greedy_share", &data.greedy_share, "from 0 to 1")
}

fn check_drafter(Drafter::Eagle3(drafter): &Drafter) -> Result<(), Fault> {
    let Some(taps) = &drafter.taps else {
        return Ok(());
    };
    must(!taps.is_empty(), "drafter.taps", taps, "one id or more")?;
    match repeated(taps) {
        None => Ok(()),
        Some(tap) => Err(("drafter.taps", format!("is {taps:?}; {tap} is repeated, but ids must be distinct"))),
    }
}

fn check_verifier(verifier: &Verifier) -> Result<(), Fault> {
    let Verifier { rule, temperature } = *verifier;
    let valid = temperature.is_finite() && temperature >= 0.0;
    must(valid, "verifier.temperature", &temperature, "0 or more")?;
    let drafted = matches!(rule.proposals(), Proposals::Chain | Proposals::AnyTree);
    let exact = rule.guarantee() != Guarantee::Approximate;
    must(drafted && exact, "verifier.rule", &rule.name(), "token, block, greedy or sampled-match")?;
    let fits = rule != Rule::Greedy || temperature == 0.0;
    must(fits, "verifier.temperature", &temperature, "0 under verifier.rule = \"greedy\"")
}

fn check_train(train: &Train, unroll: usize) -> Result<(), Fault> {
    positive("train.learning_rate", train.learning_rate)?;
    positive("train.eps", train.eps)?;
    positive("train.clip_norm", train.clip_norm)?;
    for (key, share) in [
        ("train.warmup_ratio", train.warmup_ratio),
        ("train.validation_share", train.validation_share),
        ("train.dropout", train.dropout),
        ("train.ema", train.ema),
    ] {
        must((0.0..1.0).contains(&share), key, &share, "at least 0 and below 1")?;
    }
    let right = format!("at most train.accumulate, {}: a device without a batch would idle", train.accumulate);
    must(train.devices <= train.accumulate, "train.devices", &train.devices, &right)?;
    check_schedule(train)?;
    let noise = train.feature_noise;
    must(noise.is_finite() && noise >= 0.0, "train.feature_noise", &noise, "0 or more")?;
    let anchor = train.anchor;
    must(anchor.is_finite() && anchor >= 0.0, "train.anchor", &anchor, "0 or more")?;
    let spike = train.spike;
    must(spike == 0.0 || spike.is_finite() && spike > 1.0, "train.spike", &spike, "above 1, or 0 for no guard")?;
    let patient = train.patience == 0 || train.validation_share > 0.0;
    must(
        patient,
        "train.patience",
        &train.patience,
        "0 where train.validation_share is 0: there is nothing to measure",
    )?;
    let decays = train.betas.iter().all(|beta| (0.0..1.0).contains(beta));
    must(decays, "train.betas", &train.betas, "two numbers, at least 0 and below 1")?;
    let decay = train.weight_decay;
    must(decay.is_finite() && decay >= 0.0, "train.weight_decay", &decay, "0 or more")?;
    let shortest = unroll.saturating_add(2);
    let right = format!("at least {shortest}, loss.unroll + 2");
    must(train.max_seq >= shortest, "train.max_seq", &train.max_seq, &right)?;
    let right = format!("at least train.max_seq, {}", train.max_seq);
    must(train.batch_tokens >= train.max_seq, "train.batch_tokens", &train.batch_tokens, &right)
}

fn check_schedule(train: &Train) -> Result<(), Fault> {
    let share = train.decay_share;
    must((0.0..=1.0).contains(&share), "train.decay_share", &share, "from 0 to 1")?;
    let right = format!("at most 1 - train.warmup_ratio, {}, under train.schedule = \"wsd\"", 1.0 - train.warmup_ratio);
    let fits = train.schedule != ScheduleShape::Wsd || share + train.warmup_ratio <= 1.0;
    must(fits, "train.decay_share", &share, &right)
}

fn check_eval(eval: &Eval, rule: Rule) -> Result<(), Fault> {
    let lengths: Vec<usize> = eval.curve.iter().copied().chain([eval.length]).collect();
    let valid = repeated(&lengths).is_none() && lengths.iter().all(|l| *l >= 1);
    must(valid, "eval.curve", &eval.curve, "distinct lengths of 1 or more, other than eval.length")?;
    let (key, temperatures) = ("eval.temperatures", &eval.temperatures);
    must(!temperatures.is_empty(), key, temperatures, "one temperature or more")?;
    let valid = temperatures.iter().all(|t| t.is_finite() && *t >= 0.0);
    must(valid, key, temperatures, "numbers of 0 or more")?;
    must(repeated(temperatures).is_none(), key, temperatures, "distinct")?;
    let fits = rule != Rule::Greedy || temperatures.iter().all(|t| *t == 0.0);
    must(fits, key, temperatures, "[0.0] under verifier.rule = \"greedy\"")?;
    check_processors(&eval.processors())?;
    let exact = temperatures.iter().try_for_each(|&temperature| eval.tree.check(rule.at(temperature)));
    exact.map_err(|error| ("eval.tree", format!("is \"{}\": {error}", eval.tree)))?;
    // Costs are measured when there is a drafter.
    let sized = eval.tree != TreeKind::Sequoia(None);
    must(
        sized,
        "eval.tree",
        &eval.tree.to_string(),
        "of a given size, as sequoia:32; eval --tree sequoia:best chooses one",
    )
}

fn check_processors(processors: &Processors) -> Result<(), Fault> {
    const KEYS: [&str; 5] =
        ["eval.top_p", "eval.min_p", "eval.repetition_penalty", "eval.frequency_penalty", "eval.presence_penalty"];
    processors.validate().map_err(|error| {
        let ProcessError::Setting { name, value, range } = error else { return ("eval", error.to_string()) };
        let key = KEYS.into_iter().find(|key| key.ends_with(name)).unwrap_or("eval");
        (key, format!("is {value:?}; it must be {range}"))
    })
}

fn check_taps(drafter: &Eagle3, facts: &TargetFacts) -> Result<(), Fault> {
    let (key, last) = ("drafter.taps", facts.layers);
    let Some(taps) = drafter.taps_for(last) else {
        let message = "is not set, and there is a default for targets of 8 layers or more only";
        return Err((key, format!("{message}; it must be distinct ids from 0 to {last}")));
    };
    let range = format!("from 0 to {last} for a target of {last} layers");
    match taps.iter().find(|tap| **tap > last) {
        None => Ok(()),
        Some(tap) => Err((key, format!("is {taps:?}; {tap} is out of range, ids must be {range}"))),
    }
}

/// The first element that was there before.
fn repeated<T: PartialEq>(list: &[T]) -> Option<&T> {
    list.iter().enumerate().find_map(|(i, item)| list[..i].contains(item).then_some(item))
}
