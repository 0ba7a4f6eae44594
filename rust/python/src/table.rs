//! The request table as Python sees it.

use pyo3::prelude::*;
use qsa_group_core::contract::limits;
use qsa_group_core::error::Place;
use qsa_group_core::layout::TableLayout;
use qsa_group_core::tensor::Device;

use crate::errors::Result;
use crate::memory::Watched;
use crate::number::integer;
use crate::tensor;

/// The validated request table.
#[pyclass(frozen, subclass, module = "qsa_group._core")]
pub struct Table {
    pub layout: TableLayout,
    memory: Watched,
}

impl Table {
    /// An alias of the table's tensor.
    pub fn alias<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.memory.tensor(py)
    }

    /// An error if torch moved the table's memory. Torch moves memory on the host only.
    pub fn check_memory(&self, py: Python<'_>) -> Result<()> {
        if self.layout.device == Device::CPU { self.memory.check(py) } else { Ok(()) }
    }
}

#[pymethods]
impl Table {
    #[new]
    #[pyo3(signature = (req_to_token, compress_ratio, page_size, ring_size=None))]
    fn new(
        req_to_token: &Bound<'_, PyAny>,
        compress_ratio: &Bound<'_, PyAny>,
        page_size: &Bound<'_, PyAny>,
        ring_size: Option<&Bound<'_, PyAny>>,
    ) -> Result<Table> {
        let spec = tensor::spec(req_to_token, Place::Argument("req_to_token"))?;
        let place = Place::Argument("compress_ratio");
        let ratio = integer(compress_ratio, place, 1..=limits::RATIO, "pass the model's compress ratio")?;
        let place = Place::Argument("page_size");
        let page_size = integer(page_size, place, 1..=limits::RATIO, "pass the full-KV page size in tokens")?;
        let place = Place::Argument("ring_size");
        let remedy = "pass the entries of a request's pending ring, or None for one group";
        let ring_size = ring_size.map(|size| integer(size, place, 1..=limits::RATIO, remedy)).transpose()?;
        let layout = TableLayout::new(&spec, ratio, page_size, ring_size)?;
        let memory = Watched::alias("req_to_token", None, req_to_token, layout.ptr)?;
        Ok(Table { layout, memory })
    }

    /// Request slots of the table.
    #[getter]
    fn slots(&self) -> u64 {
        self.layout.slots
    }

    /// Tokens of a slot.
    #[getter]
    fn width(&self) -> u64 {
        self.layout.width
    }

    /// Tokens of a compressed group.
    #[getter]
    fn compress_ratio(&self) -> u64 {
        self.layout.compress_ratio
    }

    /// Full-KV tokens of a page.
    #[getter]
    fn page_size(&self) -> u64 {
        self.layout.page_size
    }

    /// Entries of a request's pending ring.
    #[getter]
    fn ring_size(&self) -> u64 {
        self.layout.ring_size
    }
}
