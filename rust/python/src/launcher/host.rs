//! Refreshes on host memory.

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use qsa_group_core::group::Group;
use qsa_group_core::host::refresh;
use qsa_group_core::inputs::LiveInputs;
use qsa_group_core::launch::Launch;
use qsa_group_core::layout::{StepLayout, TableLayout};

use super::Started;
use crate::blueprint::Blueprint;
use crate::call::Call;
use crate::errors::Result;
use crate::tensor;

/// Runs the groups of each launch on the calling thread.
#[pyclass(frozen, module = "qsa_group._core")]
pub struct HostLauncher {
    blueprint: Py<Blueprint>,
    /// Address of the status word.
    status: u64,
}

#[pymethods]
impl HostLauncher {
    #[new]
    fn new(blueprint: Py<Blueprint>, status_word: &Bound<'_, PyAny>) -> PyResult<HostLauncher> {
        Ok(HostLauncher { blueprint, status: tensor::address(status_word)? })
    }
}

impl HostLauncher {
    pub fn start(&self, launches: &[Launch], call: &Call<'_, '_>) -> Result<Started> {
        let blueprint = &self.blueprint.get().content;
        for (group, steps) in launches.iter().flat_map(Launch::groups) {
            let layouts: Vec<&StepLayout> = steps.iter().map(|&step| &blueprint.steps[step]).collect();
            let bits = refresh_on_host(&blueprint.table, &blueprint.groups[group], &layouts, &call.inputs);
            if bits != 0 {
                // SAFETY: the status word is an aligned int32 of a tensor that the plan keeps alive. Torch reads and
                // clears the word by single aligned accesses.
                unsafe { AtomicI32::from_ptr(self.status as *mut i32) }.fetch_or(bits, Ordering::Relaxed);
            }
        }
        Ok(Started::AsPlanned)
    }
}

/// Refreshes steps of one group. Returns the status bits.
pub fn refresh_on_host(table: &TableLayout, group: &Group, steps: &[&StepLayout], inputs: &LiveInputs) -> i32 {
    if steps.iter().all(|step| step.rows == 0) {
        return 0;
    }
    // Two calls must not write one buffer at once, whichever plans they belong to. The holder of the lock waits for
    // nothing and runs no Python.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: every address comes from a CPU tensor that the plan or the caller keeps alive during this call, with the
    // shape and strides that torch gave. The admission saw that inputs and outputs share no memory, or the inputs are
    // copies. Other refreshes wait. As with any operator of torch, the caller sees to it that no other thread writes the
    // same memory by torch meanwhile.
    unsafe { refresh(table, group.mode, group.padding, steps, inputs) }
}
