//! The validated description of a plan as Python sees it.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use qsa_group_core::blueprint::Blueprint as CoreBlueprint;
use qsa_group_core::cache::PlanKey;
use qsa_group_core::contract::{Field, Mode, NUM_FIELDS, Padding, limits};
use qsa_group_core::error::Place;
use qsa_group_core::group;
use qsa_group_core::layout::{StepLayout, TableLayout};
use qsa_group_core::tensor::TensorSpec;

use crate::errors::Result;
use crate::number::{integer, name};
use crate::table::Table;
use crate::tensor;

/// What a plan is made from.
#[pyclass(frozen, module = "qsa_group._core")]
pub struct Blueprint {
    pub content: CoreBlueprint,
    pub key: PlanKey,
}

/// Steps that share one set of kernel arguments.
#[pyclass(frozen, get_all, module = "qsa_group._core")]
pub struct Group {
    mode: &'static str,
    draft_token_num: Option<u32>,
    padding: &'static str,
    steps: Py<PyTuple>,
    rows: u64,
    buffers: Py<PyTuple>,
    num_pages: u64,
}

/// Why a step was kept out of a group, or a group out of a launch.
#[pyclass(frozen, get_all, module = "qsa_group._core")]
pub struct Split {
    step: usize,
    group_of: usize,
    field: &'static str,
    value: String,
    other: String,
}

impl Blueprint {
    fn keyed(content: CoreBlueprint) -> Blueprint {
        Blueprint { key: PlanKey::new(&content), content }
    }
}

#[pymethods]
impl Blueprint {
    #[new]
    fn new(
        py: Python<'_>,
        table: &Table,
        mode: &Bound<'_, PyAny>,
        draft_token_num: Option<Bound<'_, PyAny>>,
        padding: &Bound<'_, PyAny>,
        steps: &Bound<'_, PyTuple>,
    ) -> Result<Blueprint> {
        // The table comes first. A buffer may stand where a moved table stood, and would be blamed.
        table.check_memory(py)?;
        let place = Place::Argument("draft_token_num");
        let remedy = "pass the rows of a request that one verify pass holds";
        let draft_token_num =
            draft_token_num.map(|number| integer(&number, place, 1..=limits::ROWS as i64, remedy)).transpose()?;
        let (mode, padding) = (name(mode, "mode")?, name(padding, "padding")?);
        let padding = Padding::parse(&padding)?;
        let mode = Mode::parse(&mode, draft_token_num)?;
        let layouts = steps.iter().enumerate().map(|(index, step)| step_layout(index, &step, &table.layout));
        let layouts = layouts.collect::<Result<Vec<_>>>()?;
        Ok(Blueprint::keyed(CoreBlueprint::new(table.layout, mode, padding, layouts)?))
    }

    /// One blueprint with the steps of several. Up to three of their groups share a launch.
    #[staticmethod]
    fn join(parts: Vec<Py<Blueprint>>) -> Result<Blueprint> {
        let parts: Vec<&CoreBlueprint> = parts.iter().map(|part| &part.get().content).collect();
        Ok(Blueprint::keyed(CoreBlueprint::join(&parts)?))
    }

    /// The groups, in launch order.
    #[getter]
    fn groups(&self, py: Python<'_>) -> PyResult<Vec<Group>> {
        self.content.groups.iter().map(|group| self.group(py, group)).collect()
    }

    /// Indices of the groups of each launch, in launch order.
    #[getter]
    fn launches<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let launches = self.content.launches.iter().map(|launch| PyTuple::new(py, launch));
        PyTuple::new(py, launches.collect::<PyResult<Vec<_>>>()?)
    }

    /// Why steps and groups were kept apart.
    #[getter]
    fn splits(&self) -> Vec<Split> {
        let split = |split: &group::Split| Split {
            step: split.step,
            group_of: split.group_of,
            field: split.field,
            value: split.value.clone(),
            other: split.other.clone(),
        };
        self.content.splits.iter().map(split).collect()
    }
}

impl Blueprint {
    fn group(&self, py: Python<'_>, group: &group::Group) -> PyResult<Group> {
        let first = self.content.first(group);
        Ok(Group {
            mode: group.mode.name(),
            draft_token_num: match group.mode {
                Mode::TargetVerify { draft_token_num } => Some(draft_token_num),
                Mode::Decode | Mode::DraftExtend => None,
            },
            padding: group.padding.name(),
            steps: PyTuple::new(py, &group.steps)?.unbind(),
            rows: first.rows,
            buffers: PyTuple::new(py, first.present().map(|(field, _)| field.name()).collect::<Vec<_>>())?.unbind(),
            num_pages: self.content.num_pages(group),
        })
    }
}

/// Reads and validates one `StepBuffers`.
fn step_layout(index: usize, step: &Bound<'_, PyAny>, table: &TableLayout) -> Result<StepLayout> {
    let mut specs: [Option<TensorSpec>; NUM_FIELDS] = Default::default();
    for field in Field::ALL {
        let value = step.getattr(field.name())?;
        if !value.is_none() {
            let place = Place::Step { step: index, field: field.name() };
            specs[field as usize] = Some(tensor::spec(&value, place)?);
        }
    }
    let place = Place::Step { step: index, field: "offset" };
    let remedy = "pass the tokens that the step adds to a request, usually step + 1";
    let offset = integer(&step.getattr("offset")?, place, 0..=limits::OFFSET, remedy)?;
    Ok(StepLayout::new(index, offset, &specs, table)?)
}
