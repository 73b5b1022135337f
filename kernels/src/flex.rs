//! Reading and making tensors of the CPU backend.

use crate::matrix::View;
use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::{DispatchDevice, TensorMetadata};
use burn::tensor::{Bytes, DType, Device, Shape};

/// True where the fused forms exist: the CPU backend. Elsewhere the references run.
pub fn is_fused(device: &Device) -> bool {
    matches!(device.clone().without_autodiff().as_dispatch(), DispatchDevice::Flex(_))
}

/// A contiguous f32 tensor whose values can be borrowed.
pub struct Floats(FlexTensor);

impl Floats {
    pub fn new(tensor: FlexTensor) -> Self {
        assert_eq!(tensor.dtype(), DType::F32, "fused operations take f32 tensors");
        Self(if tensor.is_contiguous() { tensor } else { tensor.to_contiguous() })
    }

    pub fn values(&self) -> &[f32] {
        let start = self.0.layout().start_offset();
        &self.0.storage::<f32>()[start..start + self.0.layout().num_elements()]
    }

    /// Sizes of the dimensions.
    pub fn dims<const D: usize>(&self) -> [usize; D] {
        self.0.shape().dims()
    }

    /// The values as a matrix.
    pub fn view(&self) -> View<'_> {
        let [rows, cols] = self.dims();
        View::new(self.values(), rows, cols, cols)
    }

    /// The values for writing: in place when nobody else holds the tensor, else in a copy.
    pub fn values_mut(&mut self) -> &mut [f32] {
        let start = self.0.layout().start_offset();
        let n = self.0.layout().num_elements();
        &mut self.0.storage_mut::<f32>()[start..start + n]
    }

    pub fn into_tensor(self) -> FlexTensor {
        self.0
    }
}

/// A tensor around `values` in row-major order.
pub fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> FlexTensor {
    let shape = shape.into();
    assert_eq!(values.len(), shape.num_elements());
    FlexTensor::new(Bytes::from_elems(values), Layout::contiguous(shape), DType::F32)
}

/// Zeroed buffer.
pub fn zeros(n: usize) -> Vec<f32> {
    vec![0.0; n]
}
