//! Parameters numbered by their place in the module.

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::Tensor;

/// `module` with its parameters numbered from 1 in visiting order. An optimiser's stored state knows parameters by
/// number; fresh numbers are random, so without this it would fit no module that was read from a file.
pub fn numbered<M: Module>(module: M) -> M {
    module.map(&mut Numbered(0))
}

struct Numbered(u64);

impl ModuleMapper for Numbered {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.0 += 1;
        let (_, tensor, mapper) = param.consume();
        Param::from_mapped_value(ParamId::from(self.0), tensor, mapper)
    }
}
