//! The Python surface `qsa_group._core`: conversions, and the hot call. All logic is in `qsa-group-core`.
#![allow(missing_docs)] // `python/qsa_group/_core.pyi` documents what Python sees.

mod cache;
mod errors;
mod join;
mod memory;
mod plan;
mod request;
mod tensor;

use pyo3::prelude::*;

/// Calls hold the GIL for the microseconds they take. On a free-threaded Python they run side by side: everything they
/// share is immutable or atomic.
#[pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use super::cache::Cache;
    #[pymodule_export]
    use super::join::{Join, join_groups};
    #[pymodule_export]
    use super::plan::{LoadedKernel, Plan, noop};
    #[pymodule_export]
    use super::request::{Request, Table};

    use pyo3::prelude::*;

    /// Whether live tensors are read through DLPack's exchange table.
    #[pyfunction]
    fn uses_exchange_api(py: Python<'_>) -> PyResult<bool> {
        crate::tensor::uses_exchange_api(py)
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("MAX_GROUP_STEPS", qsa_group_core::layout::MAX_GROUP_STEPS)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
