//! Refreshes on the host of tensors that are elsewhere: copies in, a refresh of the copies, copies out.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyTuple;
use qsa_group_core::contract::Field;
use qsa_group_core::launch::Launch;

use super::Started;
use super::host::refresh_on_host;
use crate::blueprint::Blueprint;
use crate::call::Call;
use crate::errors::{Result, launch_error};
use crate::table::Table;

/// A buffer, and its mirror on the host.
struct Mirror {
    field: Field,
    buffer: Py<PyAny>,
    host: Py<PyAny>,
}

/// Stages every refresh through the host. Slow, synchronous, and right.
#[pyclass(frozen, module = "qsa_group._core")]
pub struct StagedLauncher {
    /// What is refreshed, on its device.
    blueprint: Py<Blueprint>,
    table: Py<Table>,
    status_word: Py<PyAny>,
    /// The same steps on the host.
    host_blueprint: Py<Blueprint>,
    host_table: Py<Table>,
    /// The buffers of each step.
    mirrors: Vec<Vec<Mirror>>,
    /// Whether the device's current stream is being captured: a function without arguments.
    capturing: Py<PyAny>,
    /// Held over a whole refresh, since two calls must not share the mirrors.
    one_at_a_time: Mutex<()>,
}

#[pymethods]
impl StagedLauncher {
    /// `device` and `host` are each a blueprint, its table and its steps.
    #[new]
    fn new(
        device: (Py<Blueprint>, Py<Table>, Bound<'_, PyTuple>),
        host: (Py<Blueprint>, Py<Table>, Bound<'_, PyTuple>),
        status_word: Py<PyAny>,
        capturing: Py<PyAny>,
    ) -> PyResult<StagedLauncher> {
        let (blueprint, table, steps) = device;
        let (host_blueprint, host_table, host_steps) = host;
        let layouts = &blueprint.get().content.steps;
        let mirrors = layouts.iter().zip(steps.iter().zip(host_steps.iter())).map(|(layout, (step, host_step))| {
            let mirror = |(field, _): (Field, _)| {
                let alias = |step: &Bound<'_, PyAny>| -> PyResult<Py<PyAny>> {
                    Ok(step.getattr(field.name())?.call_method0("detach")?.unbind())
                };
                Ok(Mirror { field, buffer: alias(&step)?, host: alias(&host_step)? })
            };
            layout.present().map(mirror).collect::<PyResult<Vec<_>>>()
        });
        let mirrors = mirrors.collect::<PyResult<Vec<_>>>()?;
        let one_at_a_time = Mutex::new(());
        Ok(StagedLauncher {
            blueprint,
            table,
            status_word,
            host_blueprint,
            host_table,
            mirrors,
            capturing,
            one_at_a_time,
        })
    }
}

impl StagedLauncher {
    pub fn start(&self, launches: &[Launch], call: &Call<'_, '_>) -> Result<Started> {
        let py = call.py;
        if self.capturing.call0(py)?.extract(py)? {
            let remedy = "run it before the replay";
            return Err(launch_error(
                py,
                &format!("a plan that is staged through the host cannot be recorded in a CUDA graph; {remedy}"),
            ));
        }
        let _guard = self.one_at_a_time.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        self.host_table.get().alias(py).call_method1("copy_", (self.table.get().alias(py),))?;
        let copies = call.copied("cpu")?;
        let host_call = copies.read()?;
        let host = &self.host_blueprint.get().content;
        for (group, steps) in launches.iter().flat_map(Launch::groups) {
            let group = &self.blueprint.get().content.groups[group];
            for &step in steps {
                self.copy_in(py, step)?;
                let bits = refresh_on_host(&host.table, group, &[&host.steps[step]], &host_call.inputs);
                self.copy_out(py, step)?;
                if bits != 0 {
                    self.status_word.call_method1(py, "bitwise_or_", (bits,))?;
                }
            }
        }
        Ok(Started::AsPlanned)
    }

    /// Brings what a refresh leaves as it stands: the page table's entries past the live ones.
    fn copy_in(&self, py: Python<'_>, step: usize) -> Result<()> {
        for mirror in self.mirrors[step].iter().filter(|mirror| mirror.field == Field::PageTable) {
            mirror.host.call_method1(py, "copy_", (&mirror.buffer,))?;
        }
        Ok(())
    }

    fn copy_out(&self, py: Python<'_>, step: usize) -> Result<()> {
        for mirror in &self.mirrors[step] {
            mirror.buffer.call_method1(py, "copy_", (&mirror.host,))?;
        }
        Ok(())
    }
}
