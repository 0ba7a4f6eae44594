//! Launches by the CUDA driver.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyList;
use qsa_group_core::driver::{Handle, Kernel as CoreKernel};
use qsa_group_core::inputs::LiveInputs;
use qsa_group_core::launch::Launch;
use qsa_group_core::tensor::Device;

use super::{PythonLauncher, Started};
use crate::call::Call;
use crate::errors::Result;
use crate::kernel::Kernel;
use crate::table::Table;
use crate::tensor;

/// Starts each launch by one driver call.
#[pyclass(frozen, module = "qsa_group._core")]
pub struct DirectLauncher {
    device: Device,
    stream_by_exchange: bool,
    /// The kernel of each launch.
    kernels: Vec<Arc<CoreKernel>>,
    /// Triton's launch hooks. A profiler is at work while one of these lists is not empty.
    hooks: Vec<Py<PyList>>,
    /// What starts launches while a hook is set, so that Triton calls the hook.
    hooked: PythonLauncher,
}

#[pymethods]
impl DirectLauncher {
    #[new]
    fn new(
        py: Python<'_>,
        table: &Table,
        kernels: Vec<Py<Kernel>>,
        hooks: Vec<Py<PyList>>,
        hooked: Py<PyAny>,
    ) -> DirectLauncher {
        let device = table.layout.device;
        DirectLauncher {
            device,
            stream_by_exchange: tensor::exchange_names_streams(py, device),
            kernels: kernels.iter().map(|kernel| kernel.get().0.clone()).collect(),
            hooks,
            hooked: PythonLauncher::new(hooked),
        }
    }
}

impl DirectLauncher {
    #[inline]
    pub fn start(&self, launches: &[Launch], call: &Call<'_, '_>) -> Result<Started> {
        if self.hooks.iter().any(|hooks| !hooks.bind(call.py).is_empty()) {
            self.hooked.start(launches, call)?;
            return Ok(Started::Hooked);
        }
        let stream = self.stream(call.py)?;
        for launch in launches {
            self.launch(launch, &call.inputs, stream, 1)?;
        }
        Ok(Started::AsPlanned)
    }

    /// The current stream of the device.
    #[inline]
    pub fn stream(&self, py: Python<'_>) -> Result<Handle> {
        tensor::current_stream(py, self.device, self.stream_by_exchange)
    }

    /// Starts one launch `times` times. The words are patched once.
    #[inline]
    pub fn launch(&self, launch: &Launch, inputs: &LiveInputs, stream: Handle, times: u64) -> Result<()> {
        if launch.programs == 0 {
            return Ok(());
        }
        let kernel = &self.kernels[launch.index];
        launch.with_words(inputs, kernel.scratch_words(), |words| {
            for _ in 0..times {
                // SAFETY: the planner pairs each launch with the kernel of its groups. The plan keeps all planned memory,
                // and torch keeps the inputs' memory until what the stream holds has run.
                unsafe { kernel.launch(stream, launch.programs, words) }?;
            }
            Ok(())
        })
    }
}
