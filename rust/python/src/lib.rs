//! The Python surface `qsa_group._core`: conversions, and the hot call. The logic is in `qsa-group-core`.
#![allow(missing_docs)] // `python/qsa_group/_core.pyi` documents what Python sees.

#[cfg(feature = "bench")]
mod bench;
mod blueprint;
mod cache;
mod call;
mod counters;
mod errors;
mod kernel;
mod launcher;
mod memory;
mod number;
mod plan;
mod table;
mod tensor;

use pyo3::prelude::*;

/// Calls hold the GIL for the microseconds that they take. Free-threaded Python runs calls side by side: what calls share
/// is immutable, atomic or behind a lock.
#[pymodule(gil_used = false)]
mod _core {
    #[cfg(feature = "bench")]
    #[pymodule_export]
    use super::bench::{bare_launch_seconds, noop};
    #[pymodule_export]
    use super::blueprint::{Blueprint, Group, Split};
    #[pymodule_export]
    use super::cache::Cache;
    #[pymodule_export]
    use super::counters::Counters;
    #[pymodule_export]
    use super::kernel::{Driver, Kernel, kernel_arguments};
    #[pymodule_export]
    use super::launcher::{DirectLauncher, HostLauncher, StagedLauncher};
    #[pymodule_export]
    use super::plan::Plan;
    #[pymodule_export]
    use super::table::Table;

    use pyo3::prelude::*;
    use pyo3::types::PyTuple;
    use qsa_group_core::contract::{Field, Mode, limits, status};
    use qsa_group_core::launch::flags;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let py = module.py();
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("FIELDS", PyTuple::new(py, Field::ALL.map(Field::name))?)?;
        module.add("MODES", PyTuple::new(py, Mode::NAMES)?)?;
        module.add("MAX_GROUP_STEPS", limits::GROUP_STEPS)?;
        module.add("PADDING_BY_SLOT", flags::PADDING_BY_SLOT)?;
        module.add("PAGE_BITS_SHIFT", flags::PAGE_SHIFT)?;
        module.add("SLOT_OUT_OF_TABLE", status::SLOT_OUT_OF_TABLE)?;
        module.add("LENGTH_NOT_POSITIVE", status::LENGTH_NOT_POSITIVE)?;
        module.add("LENGTH_EXCEEDS_TABLE", status::LENGTH_EXCEEDS_TABLE)?;
        module.add("ROWS_EXCEED_BUCKET", status::ROWS_EXCEED_BUCKET)?;
        module.add("EXTEND_LENGTH_NEGATIVE", status::EXTEND_LENGTH_NEGATIVE)
    }
}
