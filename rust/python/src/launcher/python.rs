//! Launches by an object of Python's: Triton's own launcher, or its interpreter.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use qsa_group_core::launch::Launch;

use super::Started;
use crate::call::Call;
use crate::errors::Result;

/// Passes each launch's words to a Python object.
pub struct PythonLauncher {
    /// An object with a method `start(index, programs, words)`.
    object: Py<PyAny>,
}

impl PythonLauncher {
    pub fn new(object: Py<PyAny>) -> PythonLauncher {
        PythonLauncher { object }
    }

    pub fn start(&self, launches: &[Launch], call: &Call<'_, '_>) -> Result<Started> {
        for launch in launches.iter().filter(|launch| launch.programs > 0) {
            // Triton appends the scratch pointers itself, and takes int64 numbers only.
            let words = launch.with_words(&call.inputs, 0, |words| {
                PyTuple::new(call.py, words.iter().map(|word| word.cast_signed()))
            })?;
            self.object.call_method1(call.py, "start", (launch.index, launch.programs, words))?;
        }
        Ok(Started::AsPlanned)
    }
}
