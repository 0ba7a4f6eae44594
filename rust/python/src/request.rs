//! A request table and a plan request: validated once, then immutable.

use std::ops::RangeInclusive;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyList, PyTuple};
use qsa_group_core::cache::PlanKey;
use qsa_group_core::error::{Error, Place};
use qsa_group_core::group::{Grouping, group};
use qsa_group_core::launch::{Cut, Packed, num_pages};
use qsa_group_core::layout::{
    Device, Field, MAX_OFFSET, MAX_RATIO, MAX_ROWS, Mode, NUM_FIELDS, Padding, StepLayout, TableLayout, TensorSpec,
};

use crate::errors::{Result, wrong_type};
use crate::memory::Watched;
use crate::tensor;

/// The validated request table.
#[pyclass(frozen, module = "qsa_group._core")]
pub struct Table {
    pub layout: TableLayout,
    memory: Watched,
}

#[pymethods]
impl Table {
    #[new]
    fn new(
        req_to_token: &Bound<'_, PyAny>,
        compress_ratio: &Bound<'_, PyAny>,
        page_size: &Bound<'_, PyAny>,
    ) -> Result<Table> {
        let spec = tensor::spec(req_to_token, Place::Argument("req_to_token"))?;
        let ratio = integer(
            compress_ratio,
            Place::Argument("compress_ratio"),
            1..=MAX_RATIO,
            "pass the model's compress ratio",
        )?;
        let page =
            integer(page_size, Place::Argument("page_size"), 1..=MAX_RATIO, "pass the full-KV page size in tokens")?;
        let layout = TableLayout::new(&spec, ratio, page)?;
        let alias = req_to_token.call_method0("detach")?;
        Ok(Table { layout, memory: Watched::new("req_to_token", None, alias, layout.ptr) })
    }

    /// An alias of the table: the memory stays, even if the caller's tensor is given other data.
    #[getter]
    fn memory(&self, py: Python<'_>) -> Py<PyAny> {
        self.memory.tensor(py)
    }

    #[getter]
    fn slots(&self) -> u64 {
        self.layout.slots
    }

    #[getter]
    fn width(&self) -> u64 {
        self.layout.width
    }

    #[getter]
    fn compress_ratio(&self) -> u64 {
        self.layout.compress_ratio
    }

    #[getter]
    fn page_size(&self) -> u64 {
        self.layout.page_size
    }
}

/// A validated plan request.
#[pyclass(frozen, module = "qsa_group._core")]
pub struct Request {
    pub table: TableLayout,
    pub mode: Mode,
    pub padding: Padding,
    pub steps: Vec<StepLayout>,
    pub grouping: Grouping,
    pub key: PlanKey,
}

impl Request {
    /// The steps of a group, in order.
    pub fn members(&self, group: usize) -> Vec<&StepLayout> {
        self.grouping.groups[group].iter().map(|&step| &self.steps[step]).collect()
    }

    /// Packs the arguments of a launch over these steps of one group.
    pub fn packed(&self, steps: &[&StepLayout], status: u64, cut: Cut, scratch_words: usize) -> Packed {
        Packed::new(&self.table, self.mode, self.padding, steps, status, cut, scratch_words)
    }

    /// The group that holds a step.
    pub fn group_of(&self, step: usize) -> Option<usize> {
        self.grouping.groups.iter().position(|group| group.contains(&step))
    }
}

/// A Python integer. What is none, or is too large for 64 bits, is an error of the core's kind.
fn integer(value: &Bound<'_, PyAny>, place: Place, range: RangeInclusive<i64>, remedy: &'static str) -> Result<i64> {
    if let Ok(number) = value.extract() {
        return Ok(number);
    }
    let wanted = format!("an int from {} to {}", range.start(), range.end());
    // An int that is out of range is shown; of anything else, the type.
    if value.is_instance_of::<PyInt>() {
        let given = value.str().map_or_else(|_| "unknown".to_string(), |text| text.to_string());
        return Err(Error::Layout { place, what: "value", given, wanted, remedy }.into());
    }
    Err(wrong_type(value, place, &wanted, remedy).into())
}

/// An argument that is a name.
fn name(value: &Bound<'_, PyAny>, argument: &'static str) -> Result<String> {
    let remedy = "pass one of the names that `plan` lists";
    value.extract().map_err(|_| wrong_type(value, Place::Argument(argument), "str", remedy).into())
}

fn step_layout(index: usize, step: &Bound<'_, PyAny>, table: &TableLayout) -> Result<StepLayout> {
    let mut specs: [Option<TensorSpec>; NUM_FIELDS] = Default::default();
    for field in Field::ALL {
        let value = step.getattr(field.name())?;
        if !value.is_none() {
            specs[field as usize] = Some(tensor::spec(&value, Place::Buffer { step: index, field })?);
        }
    }
    let offset = step.getattr("offset")?;
    let place = Place::Step { step: index, name: "offset" };
    let offset =
        integer(&offset, place, 0..=MAX_OFFSET, "pass the tokens that the step adds to a request, usually step + 1")?;
    Ok(StepLayout::new(index, offset, &specs, table)?)
}

#[pymethods]
impl Request {
    #[new]
    fn new(
        py: Python<'_>,
        table: &Table,
        mode: &Bound<'_, PyAny>,
        draft_token_num: Option<Bound<'_, PyAny>>,
        padding: &Bound<'_, PyAny>,
        steps: &Bound<'_, PyTuple>,
    ) -> Result<Request> {
        // Before the buffers: one may stand by now where the table stood, and would be blamed. Only torch on the host
        // moves memory.
        if table.layout.device == Device::CPU {
            table.memory.check(py)?;
        }
        let window = Place::Argument("draft_token_num");
        let remedy = "pass the rows of a request that one verify pass holds";
        let draft_token_num =
            draft_token_num.map(|number| integer(&number, window, 1..=MAX_ROWS as i64, remedy)).transpose()?;
        let (mode, padding) = (name(mode, "mode")?, name(padding, "padding")?);
        let padding = Padding::parse(&padding)?;
        let mode = Mode::parse(&mode, draft_token_num)?;
        if steps.is_empty() {
            return Err(Error::Layout {
                place: Place::Argument("steps"),
                what: "length",
                given: "0".to_string(),
                wanted: "at least 1".to_string(),
                remedy: "pass one StepBuffers a step",
            }
            .into());
        }
        let layouts = steps
            .iter()
            .enumerate()
            .map(|(index, step)| step_layout(index, &step, &table.layout))
            .collect::<Result<Vec<_>>>()?;
        if let Mode::TargetVerify { draft_token_num } = mode
            && let Some((index, step)) =
                layouts.iter().enumerate().find(|(_, step)| (1..u64::from(draft_token_num)).contains(&step.rows))
        {
            return Err(Error::Layout {
                place: window,
                what: "value",
                given: draft_token_num.to_string(),
                wanted: format!("at most {}, the rows of step {index}", step.rows),
                remedy: "plan a bucket that holds a request, or fewer rows a request",
            }
            .into());
        }
        Ok(Request {
            table: table.layout,
            mode,
            padding,
            grouping: group(&layouts),
            key: PlanKey::new(&table.layout, mode, padding, &layouts),
            steps: layouts,
        })
    }

    /// Step indices of each launch, in launch order.
    #[getter]
    fn groups<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let groups = self.grouping.groups.iter().map(|group| PyTuple::new(py, group)).collect::<PyResult<Vec<_>>>()?;
        PyTuple::new(py, groups)
    }

    /// Why steps were kept out of groups.
    #[getter]
    fn splits<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for split in &self.grouping.splits {
            let entry = PyDict::new(py);
            entry.set_item("step", split.step)?;
            entry.set_item("group_of", split.group_of)?;
            entry.set_item("field", &split.field)?;
            entry.set_item("value", &split.value)?;
            entry.set_item("other", &split.other)?;
            list.append(entry)?;
        }
        Ok(list)
    }

    /// Rows of each group.
    #[getter]
    fn group_rows(&self) -> Vec<u64> {
        self.grouping.groups.iter().map(|group| self.steps[group[0]].rows).collect()
    }

    /// Names of the buffers that each group has.
    #[getter]
    fn group_buffers(&self) -> Vec<Vec<&'static str>> {
        let names = |step: &StepLayout| step.present().map(|(field, _)| field.name()).collect();
        self.grouping.groups.iter().map(|group| names(&self.steps[group[0]])).collect()
    }

    /// Page entries of a row that each group's launch has; 0 without page tables.
    #[getter]
    fn group_pages(&self) -> Vec<u64> {
        self.grouping.groups.iter().map(|group| num_pages(&self.table, &self.steps[group[0]])).collect()
    }
}
