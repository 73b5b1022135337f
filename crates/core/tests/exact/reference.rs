//! A second, plain implementation of the p/q rules with every known mistake as a switch. Without a mistake it must be
//! exact in the same harness, so that each failure below is the mistake's alone.

use crate::enumerate::Walk;
use crate::model::{Model, unit};
use spectrain_core::rng::Purpose;
use spectrain_core::rules::{Ask, Chance};

/// How siblings are judged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AfterReject {
    /// The token leaves `q`, which is renormalised (siblings without replacement).
    TakeOut,
    /// `q` stays (siblings with replacement).
    Keep,
}

/// What is drawn after a rejection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Residual {
    /// max(p - q, 0).
    Positive,
    /// max(q - p, 0).
    WrongSign,
    /// The target itself.
    Target,
}

impl Residual {
    fn of(self, p: &[f64], q: &[f64]) -> Vec<f64> {
        let rest: Vec<f64> = match self {
            Self::Positive => p.iter().zip(q).map(|(p, q)| (p - q).max(0.0)).collect(),
            Self::WrongSign => p.iter().zip(q).map(|(p, q)| (q - p).max(0.0)).collect(),
            Self::Target => p.to_vec(),
        };
        unit(&rest)
    }
}

/// Judges `siblings` at one node and returns the token emitted there, with whether it was a sibling.
pub fn judge_siblings(
    (p, q): (&[f64], &[f64]),
    siblings: &[u32],
    after: AfterReject,
    residual: Residual,
    (depth, walk): (usize, &mut Walk),
) -> (u32, bool) {
    let (mut p, mut q) = (p.to_vec(), q.to_vec());
    for (index, &token) in siblings.iter().enumerate() {
        let x = token as usize;
        // A repeated sibling after it was taken out has q = 0: the ratio is read as "accept if p > 0".
        let probability = if q[x] > 0.0 { (p[x] / q[x]).min(1.0) } else { f64::from(p[x] > 0.0) };
        if walk.accept(Ask { depth, purpose: Purpose::Accept, index }, probability) {
            return (token, true);
        }
        // Only a mistake can get here with nothing left; it then goes on with what it had.
        let rest = residual.of(&p, &q);
        if !rest[0].is_nan() {
            p = rest;
        }
        if after == AfterReject::TakeOut {
            q[x] = 0.0;
            if q.iter().sum::<f64>() > 0.0 {
                q = unit(&q);
            }
        }
    }
    (walk.draw(Ask { depth, purpose: Purpose::Residual, index: 0 }, &p) as u32, false)
}

/// Draws an ordered list of siblings.
pub fn draw_siblings(q: &[f64], count: usize, after: AfterReject, (depth, walk): (usize, &mut Walk)) -> Vec<u32> {
    let mut left = q.to_vec();
    let mut siblings = Vec::new();
    while siblings.len() < count && left.iter().sum::<f64>() > 0.0 {
        left = unit(&left);
        let ask = Ask { depth, purpose: Purpose::Draft, index: siblings.len() };
        let token = walk.draw(ask, &left);
        siblings.push(token as u32);
        if after == AfterReject::TakeOut {
            left[token] = 0.0;
        }
    }
    siblings
}

/// A whole round, siblings drawn level by level; `siblings(q, depth, walk)` drafts and may edit what it drafted.
pub fn round(
    model: &Model,
    mut siblings: impl FnMut(&[f64], usize, &mut Walk) -> Vec<u32>,
    after: AfterReject,
    residual: Residual,
    walk: &mut Walk,
) -> Vec<u32> {
    let mut text = Vec::new();
    while text.len() < model.depth {
        let depth = text.len();
        let (p, q) = (model.p(&text), model.q(&text));
        let drafted = siblings(q, depth, walk);
        let (token, accepted) = judge_siblings((p, q), &drafted, after, residual, (depth, walk));
        text.push(token);
        if !accepted {
            return text;
        }
    }
    let bonus = Ask { depth: model.depth, purpose: Purpose::Bonus, index: 0 };
    text.push(walk.draw(bonus, model.p(&text)) as u32);
    text
}

/// How traversal updates a parent after a rejected leaf.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ParentUpdate {
    /// R / (R + 1 - alpha).
    Residual,
    /// min(1, R / (1 - q(v))): a public implementation's.
    Simple,
}

/// Traversal by recursion: settles the subtree after `path`, drawing its children as it goes. Returns what it emits,
/// or `None` if everything in it was rejected.
pub fn traverse(
    model: &Model,
    path: &[u32],
    carried: f64,
    (count, update): (usize, ParentUpdate),
    walk: &mut Walk,
    events: &mut usize,
) -> Option<Vec<u32>> {
    let (mut p, mut q) = (model.p(path).to_vec(), model.q(path).to_vec());
    let mut alpha = carried;
    let mut ask = |purpose| {
        *events += 1;
        Ask { depth: path.len(), purpose, index: *events }
    };
    if path.len() < model.depth {
        let mut siblings = Vec::new();
        let mut left = q.clone();
        while siblings.len() < count && left.iter().sum::<f64>() > 0.0 {
            left = unit(&left);
            let token = walk.draw(ask(Purpose::Draft), &left);
            siblings.push(token);
            left[token] = 0.0;
        }
        for x in siblings {
            let child = (alpha * p[x] / q[x]).min(1.0);
            let longer = [path, &[x as u32]].concat();
            let settled = traverse(model, &longer, child, (count, update), walk, events);
            if settled.is_some() {
                return settled;
            }
            let rest: Vec<f64> = p.iter().zip(&q).map(|(p, q)| (alpha * p - q).max(0.0)).collect();
            let mass: f64 = rest.iter().sum();
            alpha = match update {
                _ if path.is_empty() => 1.0,
                ParentUpdate::Residual if mass + (1.0 - alpha) > 0.0 => mass / (mass + (1.0 - alpha)),
                ParentUpdate::Residual => 1.0,
                ParentUpdate::Simple if q[x] < 1.0 => (mass / (1.0 - q[x])).min(1.0),
                ParentUpdate::Simple => 0.0,
            };
            if mass > 0.0 {
                p = unit(&rest);
            }
            q[x] = 0.0;
            if q.iter().sum::<f64>() > 0.0 {
                q = unit(&q);
            }
        }
    }
    *events += 1;
    let keep = Ask { depth: path.len(), purpose: Purpose::Accept, index: *events };
    if !walk.accept(keep, alpha) {
        return None;
    }
    let next = walk.draw(Ask { purpose: Purpose::Bonus, ..keep }, &p);
    Some([path, &[next as u32]].concat())
}

/// The token rule on a drafted chain.
pub fn judge_chain(model: &Model, drafted: &[u32], walk: &mut Walk) -> Vec<u32> {
    let mut text = Vec::new();
    for (depth, &token) in drafted.iter().enumerate() {
        let rows = (model.p(&text), model.q(&text));
        let (emitted, accepted) = judge_siblings(rows, &[token], AfterReject::Keep, Residual::Positive, (depth, walk));
        text.push(emitted);
        if !accepted {
            return text;
        }
    }
    let bonus = Ask { depth: drafted.len(), purpose: Purpose::Bonus, index: 0 };
    text.push(walk.draw(bonus, model.p(&text)) as u32);
    text
}
