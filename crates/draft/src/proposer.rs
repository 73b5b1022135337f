//! What a drafter does at run time, whatever its kind.

use crate::drawing::Drawing;
use burn::tensor::Tensor;
use spectrain_core::process::RowError;
use spectrain_core::rng::Purpose;
use spectrain_core::rules::Ask;
use spectrain_core::tree::{Replacement, SampledTree, Shape, Tree, TreeError};
use spectrain_model::Prefix;

/// A slot that is asked for a draft.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The slot.
    pub slot: usize,
    /// What is drafted.
    pub plan: &'a Plan,
    /// Most tokens of its chain, up to the plan's; trees are drafted whole.
    pub length: usize,
    /// The mass that the drafter must give its likeliest token for its chain to go on; at 0 it always does. The token
    /// there has not been drawn when this is asked, so that rules that read `q` stay exact.
    pub confidence: f64,
    /// The text that the draft continues. Tokens are drawn under [`Purpose::Draft`].
    pub prefix: Prefix<'a>,
}

impl<'a> Wanted<'a> {
    /// All of `plan`.
    pub fn whole(slot: usize, plan: &'a Plan, prefix: Prefix<'a>) -> Self {
        Self { slot, plan, length: plan.depth(), confidence: 0.0, prefix }
    }
}

/// Tokens that one slot has newly committed, with the target features that belong to them.
///
/// Row `i` pairs the features at token position `t` with the token at `t + 1`; after the call the drafter knows every
/// committed token, the newest (whose features do not exist yet) included.
pub struct Observed {
    /// The slot.
    pub slot: usize,
    /// The tokens `x[t+1]`, one a row.
    pub next: Vec<u32>,
}

/// How draft tokens are picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pick {
    /// The most likely one; the lowest id among equals.
    Argmax,
    /// Drawn from the drafter's distribution under the request's processors.
    Sample,
}

/// What a round proposes for every request. A draft may turn out smaller.
#[derive(Debug, Clone, PartialEq)]
pub enum Plan {
    /// One token after the other.
    Chain {
        /// Drafted tokens.
        length: usize,
        /// How each is picked.
        pick: Pick,
    },
    /// A fixed shape, filled with the most likely tokens.
    Ranked(Shape),
    /// EAGLE-2's tree: of the paths that the drafter holds most likely.
    Dynamic {
        /// Most nodes, the root counted.
        nodes: usize,
        /// Longest path.
        depth: usize,
        /// Children of a node, and nodes that are expanded a depth.
        width: usize,
    },
    /// A fixed shape whose children are drawn from the drafter's distribution under the request's processors.
    Sampled {
        /// Draws at every node.
        shape: Shape,
        /// How siblings are drawn.
        replacement: Replacement,
    },
}

impl Plan {
    /// A chain of `length` tokens.
    pub fn chain(length: usize, pick: Pick) -> Self {
        Self::Chain { length, pick }
    }

    /// How the tokens of a chain are picked, also of one that a drafter of chains answers a tree with.
    pub fn pick(&self) -> Pick {
        if let Self::Chain { pick, .. } = *self { pick } else { Pick::Argmax }
    }

    /// Most drafted tokens.
    pub fn drafted(&self) -> usize {
        match self {
            Self::Chain { length, .. } => *length,
            Self::Ranked(shape) | Self::Sampled { shape, .. } => shape.len() - 1,
            Self::Dynamic { nodes, .. } => nodes.saturating_sub(1),
        }
    }

    /// Drafted tokens of the longest path.
    pub fn depth(&self) -> usize {
        match self {
            Self::Chain { length, .. } => *length,
            Self::Ranked(shape) | Self::Sampled { shape, .. } => shape.max_depth(),
            Self::Dynamic { depth, nodes, .. } => (*depth).min(nodes.saturating_sub(1)),
        }
    }

    /// Most rows that a drafter runs behind the committed ones of a slot: tokens whose followers are asked for.
    pub fn expanded(&self) -> usize {
        match self {
            Self::Dynamic { depth, width, .. } => depth.saturating_sub(1) * width,
            _ => self.drafted().saturating_sub(1),
        }
    }
}

/// A drafted tree behind the newest committed token, its root; the root is not among its nodes.
#[derive(Debug, Clone, Default)]
pub struct Draft {
    /// Target token ids, one a node.
    pub tokens: Vec<u32>,
    /// The node that each node follows, `None` for the root; parents stand first. `None` for the whole: a chain.
    pub parents: Option<Vec<Option<usize>>>,
    /// The distribution each token of a chain was really drawn from, over the draft vocabulary; empty for
    /// [`Pick::Argmax`] and for trees.
    pub q: Vec<Vec<f64>>,
    /// A drawn tree with its distributions, over the draft vocabulary.
    pub drawn: Option<SampledTree>,
    /// The drafter's logits over the draft vocabulary at each step of a chain.
    pub logits: Vec<Vec<f32>>,
}

impl Draft {
    /// A tree whose tokens were chosen without chance, or in a way that no `q` tells; node `i` of the draft is node
    /// `i + 1` of `tree`. `d2t` names the target token of each of the tree's.
    pub fn chosen(tree: &Tree, d2t: &[u32]) -> Self {
        let parent = |node| tree.parent(node).and_then(|parent: usize| parent.checked_sub(1));
        Self {
            tokens: tree.drafted().map(|token| d2t[token as usize]).collect(),
            parents: Some((1..tree.len()).map(parent).collect()),
            ..Self::default()
        }
    }

    /// Appends the token picked from one row of draft `logits` for `wanted`; the chain ends where no token may follow, and
    /// where the drafter is less sure of any than is asked.
    pub(crate) fn push(&mut self, logits: &[f32], wanted: &Wanted, drawing: &Drawing) -> Result<(), RowError> {
        let index = match wanted.plan.pick() {
            Pick::Argmax => match drawing.best(logits, &self.tokens)? {
                Some((best, mass)) if wanted.confidence <= 0.0 || mass() >= wanted.confidence => best,
                _ => return Ok(()),
            },
            Pick::Sample => {
                let q = drawing.q(logits, &self.tokens)?;
                let likeliest = q.iter().copied().fold(0.0, f64::max);
                if likeliest == 0.0 || likeliest < wanted.confidence {
                    return Ok(());
                }
                let ask = Ask { depth: self.tokens.len(), purpose: Purpose::Draft, index: 0 };
                let index = drawing.prefix.chance().invert(ask, &q);
                self.q.push(q);
                index
            }
        };
        self.tokens.push(drawing.d2t[index]);
        self.logits.push(logits.to_vec());
        Ok(())
    }

    /// The draft as a tree behind the token `root` at `position`.
    ///
    /// # Errors
    /// [`TreeError`] if a node does not stand behind its parent, or two siblings are equal.
    pub fn tree(&self, root: u32, position: usize) -> Result<Tree, TreeError> {
        let Some(parents) = &self.parents else { return Ok(Tree::chain(root, position, &self.tokens)) };
        if parents.len() != self.tokens.len() {
            return Err(TreeError::Length { what: "parents", expected: self.tokens.len(), found: parents.len() });
        }
        let node = |(parent, &token): (&Option<usize>, &u32)| (parent.map_or(0, |parent| parent + 1), token);
        Tree::new(root, position, &parents.iter().zip(&self.tokens).map(node).collect::<Vec<_>>())
    }
}

/// Bytes that a drafter holds for the slots that it was opened with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DrafterMemory {
    /// Weights, copies of the target's included, what is shared with the target not.
    pub weights: usize,
    /// Key/value cache, provisional rows included.
    pub cache: usize,
    /// Part of the cache that drafting fills before the verdict, in all slots.
    pub provisional: usize,
}

/// A drafter at run time: it follows the committed text of several slots and proposes chains or trees behind it.
pub trait Proposer {
    /// Taps of the target whose features [`Self::observe`] reads.
    fn taps(&self) -> &[usize];

    /// Target token id of every draft vocabulary entry.
    fn draft_to_target(&self) -> &[u32];

    /// Prepares `slots` slots of up to `capacity` tokens.
    fn open(&mut self, slots: usize, capacity: usize);

    /// Forgets what `slot` holds.
    fn clear(&mut self, slot: usize);

    /// A request begins in `slot`, which forgets what it held. The first [`Self::observe`] tells the prompt's tokens from
    /// the second on, so that only here the first is told.
    fn start(&mut self, slot: usize, prompt: &[u32]) {
        let _ = prompt;
        self.clear(slot);
    }

    /// Commits rows: their true features replace anything provisional. `features` holds one `[rows, hidden]` tensor a
    /// tap, packed in the order of `observed`.
    fn observe(&mut self, observed: &[Observed], features: Vec<Tensor<2>>);

    /// Proposes for each of `wanted`, whose slots were observed since their last change. A drafter that makes chains only
    /// may answer every plan but [`Plan::Sampled`] with one, of [`Plan::depth`] tokens at most.
    ///
    /// # Errors
    /// [`RowError`] when the drafter's logits make no distribution.
    fn draft(&mut self, wanted: &[Wanted]) -> Result<Vec<Draft>, RowError>;

    /// What is held for rounds of `plan`.
    fn memory(&self, plan: &Plan) -> DrafterMemory;

    /// Entries of `slot` that hold committed rows.
    fn committed(&self, slot: usize) -> usize;
}
