//! Memory whose address is kept. On the host torch moves it under a tensor's feet, when the tensor is shared with a
//! process for one.

use pyo3::prelude::*;
use qsa_group_core::error::Error;

use crate::errors::Result;
use crate::tensor;

/// A tensor, and where its elements stood.
pub struct Watched {
    name: &'static str,
    step: Option<usize>,
    tensor: Py<PyAny>,
    address: u64,
}

impl Watched {
    pub fn new(name: &'static str, step: Option<usize>, tensor: Bound<'_, PyAny>, address: u64) -> Watched {
        Watched { name, step, tensor: tensor.unbind(), address }
    }

    pub fn tensor(&self, py: Python<'_>) -> Py<PyAny> {
        self.tensor.clone_ref(py)
    }

    /// An error if the memory stands elsewhere now.
    #[inline]
    pub fn check(&self, py: Python<'_>) -> Result<()> {
        let given = tensor::address(self.tensor.bind(py))?;
        if given == self.address {
            return Ok(());
        }
        Err(Error::PlanChanged {
            name: self.name,
            planned: match self.step {
                Some(step) => format!("memory at {:#x} in step {step}", self.address),
                None => format!("memory at {:#x}", self.address),
            },
            given: format!("memory at {given:#x}"),
            remedy: "share_memory_(), sending it to a process or resizing it moved it; plan again, over a new RequestTable if it \
                     is the table",
        }
        .into())
    }
}
