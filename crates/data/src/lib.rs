//! What is on disk, free of Burn: weights, conversations, answers, feature stores, draft vocabularies.

pub mod answers;
pub mod draft_vocab;
pub mod fetch;
pub mod gguf;
pub mod prompts;
pub mod store;
pub mod traces;
pub mod weights;
