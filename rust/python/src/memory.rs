//! Memory whose address a plan keeps. On the host torch may move a tensor's memory, for example when the tensor is shared
//! with another process.

use pyo3::prelude::*;
use qsa_group_core::error::Error;

use crate::errors::Result;
use crate::tensor;

/// An alias of a tensor, and the address of the tensor's elements when the plan was made.
pub struct Watched {
    name: &'static str,
    step: Option<usize>,
    tensor: Py<PyAny>,
    address: u64,
}

impl Watched {
    /// Watches an alias of a tensor. The memory stays then, even if the caller's tensor is given other data.
    pub fn alias(
        name: &'static str,
        step: Option<usize>,
        tensor: &Bound<'_, PyAny>,
        address: u64,
    ) -> PyResult<Watched> {
        Ok(Watched { name, step, tensor: tensor.call_method0("detach")?.unbind(), address })
    }

    /// The alias.
    pub fn tensor<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.tensor.bind(py).clone()
    }

    /// An error if the memory has moved.
    #[inline]
    pub fn check(&self, py: Python<'_>) -> Result<()> {
        let given = tensor::address(self.tensor.bind(py))?;
        if given == self.address { Ok(()) } else { Err(self.moved(given).into()) }
    }

    #[cold]
    fn moved(&self, given: u64) -> Error {
        Error::PlanChanged {
            name: self.name,
            planned: match self.step {
                Some(step) => format!("memory at {:#x} in step {step}", self.address),
                None => format!("memory at {:#x}", self.address),
            },
            given: format!("memory at {given:#x}"),
            remedy: "share_memory_(), sending it to a process or resizing it moved it; plan again, over a new RequestTable if it \
                     is the table",
        }
    }
}
