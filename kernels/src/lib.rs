//! Fused operations that the hot loops need and Burn does not have.
//!
//! Each file holds one operation three times: a *reference* in plain Burn tensors (every device, autodiff
//! included), a fused form for the CPU backend, and, where training needs it, the closed-form backward pass.
//! The public function picks the fused form where the device has one; a test in the file compares the forms.
//!
//! Rows are *packed*: a batch of ragged sequences is one `[rows, width]` matrix without padding, and a plan
//! says which rows belong together.

pub mod cached_attention;
pub mod draft_loss;
mod flex;
mod matrix;
pub mod memory;
pub mod product;
pub mod rms_norm;
pub mod rope;
mod simd;
pub mod softmax;
pub mod swiglu;
pub mod unroll_attention;

pub use flex::is_fused;
