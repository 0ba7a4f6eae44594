//! The live inputs of one call.

use pyo3::prelude::*;
use qsa_group_core::inputs::LiveInputs;

use crate::errors::Result;
use crate::tensor;

/// The live inputs of one call, as tensors and as numbers.
pub struct Call<'a, 'py> {
    pub py: Python<'py>,
    pub seq_lens: &'a Bound<'py, PyAny>,
    pub req_pool_indices: &'a Bound<'py, PyAny>,
    pub extend_lens: Option<&'a Bound<'py, PyAny>>,
    pub inputs: LiveInputs,
}

impl<'a, 'py> Call<'a, 'py> {
    /// Reads a call's tensors.
    #[inline]
    pub fn read(
        seq_lens: &'a Bound<'py, PyAny>,
        req_pool_indices: &'a Bound<'py, PyAny>,
        num_padding: i64,
        extend_lens: Option<&'a Bound<'py, PyAny>>,
    ) -> Result<Call<'a, 'py>> {
        let inputs = LiveInputs {
            seq_lens: tensor::live(seq_lens, "seq_lens")?,
            req_pool_indices: tensor::live(req_pool_indices, "req_pool_indices")?,
            extend_lens: extend_lens.map(|lens| tensor::live(lens, "extend_lens")).transpose()?,
            num_padding,
        };
        Ok(Call { py: seq_lens.py(), seq_lens, req_pool_indices, extend_lens, inputs })
    }

    /// The result of a tensor method for each of the call's tensors: `clone`, or `cpu`.
    pub fn copied(&self, method: &str) -> Result<CopiedCall<'py>> {
        Ok(CopiedCall {
            seq_lens: self.seq_lens.call_method0(method)?,
            req_pool_indices: self.req_pool_indices.call_method0(method)?,
            extend_lens: self.extend_lens.map(|lens| lens.call_method0(method)).transpose()?,
            num_padding: self.inputs.num_padding,
        })
    }
}

/// Copies of a call's tensors.
pub struct CopiedCall<'py> {
    seq_lens: Bound<'py, PyAny>,
    req_pool_indices: Bound<'py, PyAny>,
    extend_lens: Option<Bound<'py, PyAny>>,
    num_padding: i64,
}

impl<'py> CopiedCall<'py> {
    /// The copies as a call.
    pub fn read(&self) -> Result<Call<'_, 'py>> {
        Call::read(&self.seq_lens, &self.req_pool_indices, self.num_padding, self.extend_lens.as_ref())
    }
}
