//! A plan, and its one call.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use qsa_group_core::blueprint::Blueprint as CoreBlueprint;
use qsa_group_core::error::{Error, Place};
use qsa_group_core::inputs::{Admission, LiveInputs};
use qsa_group_core::launch::{GroupGrid, Launch};
use qsa_group_core::tensor::Device;

use crate::blueprint::Blueprint;
use crate::call::Call;
use crate::counters::{Count, Counters};
use crate::errors::Result;
use crate::launcher::{Launcher, Started};
use crate::memory::Watched;
use crate::number::num_padding;
use crate::table::Table;
use crate::tensor;

/// How the programs of a launch are divided over one group, as Python has it.
#[derive(Clone, Copy, FromPyObject)]
struct Grid {
    programs: u32,
    heads: u32,
    page_bits: u32,
}

impl From<Grid> for GroupGrid {
    fn from(grid: Grid) -> GroupGrid {
        GroupGrid { programs: grid.programs, heads: grid.heads, page_bits: grid.page_bits }
    }
}

/// What a run counts.
struct Counted {
    launches: u64,
    /// Launches that a launch a step would take.
    step_refreshes: u64,
}

impl Counted {
    /// A bucket of no rows has no launch.
    fn new(blueprint: &CoreBlueprint) -> Counted {
        let has_rows = |&&group: &&usize| blueprint.first(&blueprint.groups[group]).rows > 0;
        let launches = blueprint.launches.iter().filter(|launch| launch.iter().any(|group| has_rows(&group))).count();
        let steps = blueprint.steps.iter().filter(|step| step.rows > 0).count();
        Counted { launches: launches as u64, step_refreshes: steps as u64 }
    }
}

/// The core of a plan. A call changes nothing here but atomic counters.
#[pyclass(frozen, subclass, module = "qsa_group._core")]
pub struct Plan {
    pub blueprint: Py<Blueprint>,
    pub launcher: Launcher,
    pub launches: Vec<Launch>,
    grids: Vec<GroupGrid>,
    status: u64,
    admission: Admission,
    /// Aliases of the table, the status word and every buffer. They keep the memory that the plan reads and writes.
    memory: Vec<Watched>,
    /// Whether each call checks that no memory has moved.
    checks_memory: bool,
    counted: Counted,
    planner_counters: Py<Counters>,
    runs: Count,
    overlap_runs: Count,
    hooked_runs: Count,
}

impl Plan {
    /// Checks a call's inputs, and that no memory has moved.
    #[inline]
    pub fn check(&self, py: Python<'_>, inputs: &LiveInputs) -> Result<()> {
        self.check_memory(py)?;
        Ok(self.admission.check(inputs)?)
    }

    /// An error if torch moved memory of the plan.
    #[inline]
    pub fn check_memory(&self, py: Python<'_>) -> Result<()> {
        if self.checks_memory { self.memory.iter().try_for_each(|watched| watched.check(py)) } else { Ok(()) }
    }

    /// One launch a step, in order, each on copies of the inputs as they are when its turn comes: an input shares memory
    /// with an output.
    #[cold]
    fn run_step_by_step(&self, call: &Call<'_, '_>) -> Result<Started> {
        self.overlap_runs.add(1);
        let counters = self.planner_counters.get();
        counters.overlap_runs.add(1);
        let blueprint = &self.blueprint.get().content;
        let mut way = Started::AsPlanned;
        for (step, layout) in blueprint.steps.iter().enumerate() {
            let holds = |launch: &&Launch| launch.groups().any(|(_, steps)| steps.contains(&step));
            let Some(launch) = self.launches.iter().find(holds) else {
                continue;
            };
            let alone = launch.alone(blueprint, step, &self.grids, self.status);
            let started = self.launcher.start(&[alone], &call.copied("clone")?.read()?)?;
            if started == Started::Hooked {
                way = started;
            }
            let count = u64::from(layout.rows > 0);
            counters.launches.add(count);
            counters.step_refreshes.add(count);
        }
        Ok(way)
    }
}

#[pymethods]
impl Plan {
    /// Packs the launches of a blueprint. `steps` are the `StepBuffers` of the blueprint, `grids` one a group.
    #[new]
    fn new(
        blueprint: Py<Blueprint>,
        table: &Table,
        steps: &Bound<'_, PyTuple>,
        status_word: &Bound<'_, PyAny>,
        launcher: &Bound<'_, PyAny>,
        grids: Vec<Grid>,
        counters: Py<Counters>,
    ) -> Result<Plan> {
        let content = &blueprint.get().content;
        if grids.len() != content.groups.len() {
            let wanted = format!("{}, one a group", content.groups.len());
            let remedy = "pass one grid a group";
            return Err(Error::layout(Place::Argument("grids"), "length", grids.len(), wanted, remedy).into());
        }
        let grids: Vec<GroupGrid> = grids.into_iter().map(GroupGrid::from).collect();
        let status = tensor::address(status_word)?;
        let memory = aliases(content, table, steps, status_word, status)?;
        let launcher = Launcher::new(launcher)?;
        Ok(Plan {
            launches: (0..content.launches.len()).map(|index| Launch::new(content, index, &grids, status)).collect(),
            admission: Admission::new(content),
            checks_memory: content.table.device == Device::CPU && launcher.may_read_host_memory(),
            counted: Counted::new(content),
            status,
            grids,
            memory,
            launcher,
            planner_counters: counters,
            runs: Count::default(),
            overlap_runs: Count::default(),
            hooked_runs: Count::default(),
            blueprint,
        })
    }

    /// Refreshes every planned buffer from the live batch, on the stream that is current.
    ///
    /// Compiles, allocates and synchronises nothing, but for the fallbacks that `explain()` names: inputs that overlap
    /// an output are cloned, tensors that only the host can serve are copied, and Triton's launcher loads itself at its
    /// first use. An empty batch launches nothing. Rows past the batch are inert.
    ///
    /// Args:
    ///     seq_lens: [batch] int32 or int64, any stride below 4 GiB: length of each request before the draft. In draft
    ///         extend, the length with the extension.
    ///     req_pool_indices: [batch] int32 or int64, any stride below 4 GiB: request slot of each request.
    ///     num_padding: the last so many requests are padding, clamped to 0..batch.
    ///     extend_lens: [batch] int32 or int64, any stride below 4 GiB: accepted rows of each request; draft extend
    ///         only.
    ///
    /// Raises:
    ///     LayoutError: an input that is no tensor, of a wrong dtype or rank, of another length than `seq_lens`,
    ///         misaligned, or with a stride of 4 GiB or more.
    ///     PlanChangedError: an input on another device than planned; `extend_lens` missing, or given to a plan without
    ///         draft extend; memory of the plan that moved.
    ///     CapacityError: more requests than the bucket holds.
    ///     LaunchError: a launch was refused, or a plan that is staged through the host is run during a capture.
    #[pyo3(signature = (seq_lens, req_pool_indices, num_padding=0, extend_lens=None))]
    fn run(
        &self,
        seq_lens: &Bound<'_, PyAny>,
        req_pool_indices: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = num_padding)] num_padding: i64,
        extend_lens: Option<&Bound<'_, PyAny>>,
    ) -> Result<()> {
        let call = Call::read(seq_lens, req_pool_indices, num_padding, extend_lens)?;
        self.check(call.py, &call.inputs)?;
        if call.inputs.batch() == 0 {
            return Ok(());
        }
        let counters = self.planner_counters.get();
        self.runs.add(1);
        counters.runs.add(1);
        let started = if self.admission.overlaps_output(&call.inputs) {
            self.run_step_by_step(&call)?
        } else {
            let started = self.launcher.start(&self.launches, &call)?;
            counters.launches.add(self.counted.launches);
            counters.step_refreshes.add(self.counted.step_refreshes);
            started
        };
        if started == Started::Hooked {
            self.hooked_runs.add(1);
            counters.hooked_runs.add(1);
        }
        Ok(())
    }

    /// What the plan was made from.
    #[getter]
    fn blueprint(&self, py: Python<'_>) -> Py<Blueprint> {
        self.blueprint.clone_ref(py)
    }

    /// Calls of `run` with at least one request.
    #[getter]
    fn runs(&self) -> u64 {
        self.runs.get()
    }

    /// Runs in which a live input shared memory with an output.
    #[getter]
    fn overlap_runs(&self) -> u64 {
        self.overlap_runs.get()
    }

    /// Runs in which Triton's launch hooks were set.
    #[getter]
    fn hooked_runs(&self) -> u64 {
        self.hooked_runs.get()
    }
}

/// Aliases of the table, the status word and every buffer, with the addresses that were planned.
fn aliases(
    blueprint: &CoreBlueprint,
    table: &Table,
    steps: &Bound<'_, PyTuple>,
    status_word: &Bound<'_, PyAny>,
    status: u64,
) -> PyResult<Vec<Watched>> {
    let py = steps.py();
    let mut memory = vec![
        Watched::alias("req_to_token", None, &table.alias(py), blueprint.table.ptr)?,
        Watched::alias("status_word", None, status_word, status)?,
    ];
    for (index, (layout, step)) in blueprint.steps.iter().zip(steps.iter()).enumerate() {
        for (field, buffer) in layout.present() {
            memory.push(Watched::alias(field.name(), Some(index), &step.getattr(field.name())?, buffer.ptr)?);
        }
    }
    Ok(memory)
}
