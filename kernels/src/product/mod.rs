//! Products of rows with weights: `x [rows, inputs] · w [inputs, outputs]`.
//!
//! [`Projection`] holds frozen weights in the order that products read them; [`Learned`] is a weight that training moves,
//! between two of its moves. Both use [`panels`] on the CPU where the processor has the instructions, else Burn's own product.

mod head;
mod panels;
mod tile;

use crate::flex::{self, Floats};
use crate::matrix::View;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, backend_extension};
use burn::tensor::{Device, Tensor};
pub use head::Head;
pub use panels::Panels;

use std::fmt;
use std::sync::{Arc, OnceLock};
use tile::available;

/// A frozen weight matrix `[inputs, outputs]`.
#[derive(Clone)]
pub struct Projection {
    form: Form,
}

#[derive(Clone)]
enum Form {
    Panels(Arc<Panels>),
    Plain(Box<Tensor<2>>),
}

impl Projection {
    /// Takes `weight [inputs, outputs]`.
    pub fn new(weight: Tensor<2>) -> Self {
        Self::of(weight, |view| view)
    }

    /// Takes the transpose `rows [outputs, inputs]`, as an embedding that serves as a head.
    pub fn of_rows(rows: Tensor<2>) -> Self {
        if !panelled(&rows.device()) {
            return Self { form: Form::Plain(Box::new(rows.transpose())) };
        }
        Self::of(rows, |view| view.t())
    }

    fn of(stored: Tensor<2>, turn: fn(View) -> View) -> Self {
        let [rows, cols] = stored.dims();
        if panelled(&stored.device()) {
            let data = stored.clone().into_data();
            let values = data.as_slice::<f32>().expect("weights are f32");
            if let Some(panels) = Panels::new(turn(View::new(values, rows, cols, cols))) {
                return Self { form: Form::Panels(Arc::new(panels)) };
            }
        }
        Self { form: Form::Plain(Box::new(stored)) }
    }

    /// `[inputs, outputs]`.
    pub fn dims(&self) -> [usize; 2] {
        match &self.form {
            Form::Panels(panels) => [panels.inputs(), panels.outputs()],
            Form::Plain(weight) => weight.dims(),
        }
    }

    /// The panels, where there are any.
    pub(crate) fn panels(&self) -> Option<&Panels> {
        match &self.form {
            Form::Panels(panels) => Some(panels),
            Form::Plain(_) => None,
        }
    }

    /// Bytes of the weights, as numbers.
    pub fn bytes(&self) -> usize {
        self.dims().iter().product::<usize>() * size_of::<f32>()
    }

    /// Bytes that are held beside the tensor that this was made of: nothing where that tensor itself serves.
    pub fn copied(&self) -> usize {
        match &self.form {
            Form::Panels(panels) => panels.bytes(),
            Form::Plain(_) => 0,
        }
    }

    /// `x [rows, inputs] · weight`, `[rows, outputs]`. `x` carries no tape.
    pub fn apply(&self, x: Tensor<2>) -> Tensor<2> {
        match &self.form {
            Form::Panels(panels) => Tensor::from_dispatch(Dispatch::project_rows(x.into_dispatch(), panels.clone())),
            Form::Plain(weight) => x.matmul(weight.as_ref().clone()),
        }
    }
}

/// Whether products on `device` go by panels.
fn panelled(device: &Device) -> bool {
    flex::is_fused(device) && available()
}

/// A learned weight matrix `[inputs, outputs]` as it is in one step of training; it may carry a tape.
///
/// An unroll multiplies by the same weights again and again, so what products read is laid out once, when it is first
/// needed.
#[derive(Clone)]
pub struct Learned {
    weight: Tensor<2>,
    forms: Arc<Forms>,
}

/// A weight laid out for the way forth and the way back.
#[derive(Default)]
pub struct Forms {
    forth: OnceLock<Panels>,
    back: OnceLock<Panels>,
}

impl fmt::Debug for Forms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forms").finish_non_exhaustive()
    }
}

impl Learned {
    /// Takes `weight [inputs, outputs]`.
    pub fn new(weight: Tensor<2>) -> Self {
        Self { weight, forms: Arc::default() }
    }

    /// `x [rows, inputs] · weight`, `[rows, outputs]`; `x` may carry a tape.
    pub fn apply(&self, x: Tensor<2>) -> Tensor<2> {
        let weight = self.weight.clone();
        if panelled(&x.device()) {
            let (x, weight) = (x.into_dispatch(), weight.into_dispatch());
            return Tensor::from_dispatch(Dispatch::linear_rows(x, weight, self.forms.clone()));
        }
        x.matmul(weight)
    }
}

/// Backend form of frozen products. Shapes as in [`Projection`].
#[backend_extension(Flex)]
pub trait ProjectOps: Backend {
    /// Rows times panels.
    fn project_rows(x: FloatTensor<Self>, panels: Arc<Panels>) -> FloatTensor<Self>;
}

/// Backend form of products whose two factors may be learned. Shapes as in [`Learned`]; `forms` are those of `weight`.
#[backend_extension(Flex, Autodiff)]
pub trait LinearOps: Backend {
    /// Rows times weight.
    fn linear_rows(x: FloatTensor<Self>, weight: FloatTensor<Self>, forms: Arc<Forms>) -> FloatTensor<Self>;
    /// Gradient with respect to `x`: `dy · weightᵀ`.
    fn linear_input_gradient(dy: FloatTensor<Self>, weight: FloatTensor<Self>, forms: Arc<Forms>) -> FloatTensor<Self>;
    /// Gradient with respect to `weight`: `xᵀ · dy`.
    fn linear_weight_gradient(x: FloatTensor<Self>, dy: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl ProjectOps for Flex {
    fn project_rows(x: FloatTensor<Self>, panels: Arc<Panels>) -> FloatTensor<Self> {
        let x = Floats::new(x);
        multiply(x.view(), &panels)
    }
}

/// `a · panels` as a tensor.
fn multiply(a: View, panels: &Panels) -> FloatTensor<Flex> {
    flex::tensor(panels.product(a), [a.rows, panels.outputs()])
}

/// `b` in panels.
fn laid_out(b: View) -> Panels {
    Panels::new(b).expect("only called where panels exist")
}

impl LinearOps for Flex {
    fn linear_rows(x: FloatTensor<Self>, weight: FloatTensor<Self>, forms: Arc<Forms>) -> FloatTensor<Self> {
        multiply(Floats::new(x).view(), forms.forth.get_or_init(|| laid_out(Floats::new(weight).view())))
    }

    fn linear_input_gradient(dy: FloatTensor<Self>, weight: FloatTensor<Self>, forms: Arc<Forms>) -> FloatTensor<Self> {
        multiply(Floats::new(dy).view(), forms.back.get_or_init(|| laid_out(Floats::new(weight).view().t())))
    }

    fn linear_weight_gradient(x: FloatTensor<Self>, dy: FloatTensor<Self>) -> FloatTensor<Self> {
        multiply(Floats::new(x).view().t(), &laid_out(Floats::new(dy).view()))
    }
}

impl<B: LinearOps, C: CheckpointStrategy> LinearOps for Autodiff<B, C> {
    fn linear_rows(x: FloatTensor<Self>, weight: FloatTensor<Self>, forms: Arc<Forms>) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct LinearBackward;

        impl<B: LinearOps> Backward<B, 2> for LinearBackward {
            type State = (B::FloatTensorPrimitive, B::FloatTensorPrimitive, Arc<Forms>);

            fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
                let dy = grads.consume::<B>(&ops.node);
                let (x, weight, forms) = ops.state;
                let [of_x, of_weight] = ops.parents;
                if let Some(node) = of_x {
                    grads.register::<B>(node.id, B::linear_input_gradient(dy.clone(), weight, forms));
                }
                if let Some(node) = of_weight {
                    grads.register::<B>(node.id, B::linear_weight_gradient(x, dy));
                }
            }
        }

        let ((x, x_node), (weight, weight_node)) = (x.into_parts(), weight.into_parts());
        let y = B::linear_rows(x.clone(), weight.clone(), forms.clone());
        match LinearBackward.prepare::<C>([x_node, weight_node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((x, weight, forms), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn linear_input_gradient(_: FloatTensor<Self>, _: FloatTensor<Self>, _: Arc<Forms>) -> FloatTensor<Self> {
        unreachable!("gradients are first order")
    }

    fn linear_weight_gradient(_: FloatTensor<Self>, _: FloatTensor<Self>) -> FloatTensor<Self> {
        unreachable!("gradients are first order")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use burn::tensor::{Distribution, Tolerance};

    fn noise(rows: usize, cols: usize, device: &Device) -> Tensor<2> {
        Tensor::random([rows, cols], Distribution::Normal(0.0, 1.0), device)
    }

    fn assert_close(a: Tensor<2>, b: Tensor<2>) {
        a.into_data().assert_approx_eq::<f32>(&b.into_data(), Tolerance::rel_abs(1e-5, 1e-5));
    }

    #[test]
    fn frozen_products_match_burns() {
        let device = Device::flex();
        let (x, w) = (noise(13, 70, &device), noise(70, 101, &device));
        let expected = x.clone().matmul(w.clone());
        assert_close(Projection::new(w.clone()).apply(x.clone()), expected.clone());
        assert_close(Projection::of_rows(w.clone().transpose()).apply(x), expected);
        assert_eq!(Projection::of_rows(w.transpose()).dims(), [70, 101]);
    }

    #[test]
    fn gradients_match_burns() {
        let device = Device::flex().autodiff();
        let (x, w) = (noise(33, 70, &device).require_grad(), noise(70, 101, &device).require_grad());
        let weight = noise(33, 101, &device);
        // Twice, as in an unroll: the second product finds what the first has laid out.
        let run = |f: &dyn Fn(Tensor<2>) -> Tensor<2>| {
            let y = f(x.clone()) + f(x.clone() * 2.0);
            let grads = (y.clone() * weight.clone()).sum().backward();
            [y.without_autodiff(), x.grad(&grads).unwrap(), w.grad(&grads).unwrap()]
        };
        let learned = Learned::new(w.clone());
        for (a, b) in run(&|x| learned.apply(x)).into_iter().zip(run(&|x| x.matmul(w.clone()))) {
            assert_close(a, b);
        }
    }
}
