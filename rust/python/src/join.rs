//! Several plans in one call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use qsa_group_core::driver::Kernel;
use qsa_group_core::error::{Error, Place};
use qsa_group_core::group::{self, Break};
use qsa_group_core::inputs::LiveInputs;
use qsa_group_core::launch::{Cut, Joined, MAX_JOINED};
use qsa_group_core::layout::{Mode, StepLayout};

use crate::cache::Counters;
use crate::errors::{Result, in_plan};
use crate::plan::{LoadedKernel, Plan, any_hook, live_inputs, num_padding_of, run_by_python, signed};
use crate::tensor;

/// One launch: the arguments of its groups, and what starts it.
struct Launch {
    joined: Joined,
    kernel: Option<Arc<Kernel>>,
}

/// A plan, and whether it takes extend lengths.
struct Member {
    plan: Py<Plan>,
    extends: bool,
}

/// The core of a joined plan. Frozen, as `Plan`.
#[pyclass(frozen, subclass, module = "qsa_group._core", name = "Join")]
pub struct Join {
    members: Vec<Member>,
    /// Whether any member takes extend lengths.
    extends: bool,
    launches: Vec<Launch>,
    stream_by_exchange: bool,
    hooks: Vec<Py<PyList>>,
    counters: Arc<Counters>,
    /// Launches of buckets that have rows, and what a launch a step would have taken.
    launched: (u64, u64),
    runs: AtomicU64,
    overlap_runs: AtomicU64,
    hooked_runs: AtomicU64,
}

/// Plan and group of each group of plans, in launches that keep the groups' order, and why each launch but the first was
/// begun.
#[pyfunction]
#[allow(clippy::type_complexity)] // Launches of (plan, group), and dictionaries.
pub fn join_groups<'py>(
    py: Python<'py>,
    plans: Vec<Py<Plan>>,
) -> Result<(Vec<Vec<(usize, usize)>>, Vec<Bound<'py, PyDict>>)> {
    let places: Vec<(usize, usize)> = plans
        .iter()
        .enumerate()
        .flat_map(|(index, plan)| (0..plan.get().content().grouping.groups.len()).map(move |group| (index, group)))
        .collect();
    let groups: Vec<Vec<&StepLayout>> =
        places.iter().map(|&(plan, group)| plans[plan].get().content().members(group)).collect();
    let joining = group::join(&groups, MAX_JOINED);
    let mut splits = Vec::with_capacity(joining.breaks.len());
    for (reason, launch) in joining.breaks.iter().zip(joining.launches.iter().skip(1)) {
        let (plan, group) = places[launch[0]];
        let (field, value, other) = match reason {
            Break::Full => ("launch size", (MAX_JOINED + 1).to_string(), MAX_JOINED.to_string()),
            Break::Overlap { other, field, against } => {
                let (with, its) = places[*other];
                let name = |field: &str, plan: usize, group: usize| format!("{field} of plan {plan}, group {group}");
                ("overlap", name(field.name(), plan, group), name(against.name(), with, its))
            }
        };
        let split = PyDict::new(py);
        split.set_item("plan", plan)?;
        split.set_item("group", group)?;
        split.set_item("field", field)?;
        split.set_item("value", value)?;
        split.set_item("other", other)?;
        splits.push(split);
    }
    let placed = |launch: &Vec<usize>| launch.iter().map(|&index| places[index]).collect();
    Ok((joining.launches.iter().map(placed).collect(), splits))
}

/// Plan, group and cut (programs, heads, log2 of a row's lanes) of each group of a launch, and the kernel that starts it.
type LaunchSpec = (Vec<(usize, usize, (u32, u32, u32))>, Option<Py<LoadedKernel>>);

impl Join {
    fn read(
        &self,
        seq_lens: &Bound<'_, PyAny>,
        req_pool_indices: &Bound<'_, PyAny>,
        num_padding: i64,
        extend_lens: Option<&Bound<'_, PyAny>>,
    ) -> Result<LiveInputs> {
        let inputs = live_inputs(seq_lens, req_pool_indices, num_padding, extend_lens)?;
        for (index, member) in self.members.iter().enumerate() {
            let given = self.inputs_of(member, &inputs);
            member.plan.get().check(seq_lens.py(), &given).map_err(|error| in_plan(seq_lens.py(), error, index))?;
        }
        Ok(inputs)
    }

    /// A member's part of the inputs. Where none takes extend lengths, they are left in, to be refused.
    fn inputs_of(&self, member: &Member, inputs: &LiveInputs) -> LiveInputs {
        let extend_lens = if member.extends || !self.extends { inputs.extend_lens } else { None };
        LiveInputs { extend_lens, ..*inputs }
    }

    /// Whether a member's output shares memory with one of its inputs or another's: one launch would be no sequence.
    fn overlaps(&self, inputs: &LiveInputs) -> bool {
        self.members.iter().any(|member| member.plan.get().overlaps(inputs))
    }

    /// Notes a run that begins, and whether its plans have to run one after the other; these count themselves then.
    fn begins_apart(&self, py: Python<'_>, inputs: &LiveInputs) -> bool {
        self.runs.fetch_add(1, Ordering::Relaxed);
        let note = |found: bool, counter: &AtomicU64| {
            if found {
                counter.fetch_add(1, Ordering::Relaxed);
            }
            found
        };
        let apart = self.launches.is_empty()
            || note(self.overlaps(inputs), &self.overlap_runs)
            || note(any_hook(py, &self.hooks), &self.hooked_runs);
        if !apart {
            self.counters.runs.fetch_add(1, Ordering::Relaxed);
        }
        apart
    }

    /// Counts what a run has launched.
    fn count(&self) {
        let (launches, steps) = self.launched;
        self.counters.launches.fetch_add(launches, Ordering::Relaxed);
        self.counters.step_refreshes.fetch_add(steps, Ordering::Relaxed);
    }
}

#[pymethods]
impl Join {
    /// `launches` are as `join_groups` has them; kernels are None where Python starts them.
    #[new]
    #[pyo3(signature = (plans, cache, launches, hooks=vec![]))]
    fn new(
        py: Python<'_>,
        plans: Vec<Py<Plan>>,
        cache: &crate::cache::Cache,
        launches: Vec<LaunchSpec>,
        hooks: Vec<Py<PyList>>,
    ) -> Result<Join> {
        let Some(first) = plans.first() else {
            return Err(Error::Layout {
                place: Place::Argument("plans"),
                what: "length",
                given: "0".to_string(),
                wanted: "at least 1".to_string(),
                remedy: "pass the plans to join",
            }
            .into());
        };
        let stream_by_exchange = tensor::exchange_names_streams(py, first.get().content().table.device);
        let launches: Vec<Launch> = launches
            .into_iter()
            .map(|(groups, kernel)| {
                let packed = groups.iter().map(|&(plan, group, (programs, heads, page_bits))| {
                    plans[plan].get().packed(group, Cut { programs, heads, page_bits })
                });
                let loaded = kernel.as_ref().map(|kernel| kernel.get());
                Launch {
                    joined: Joined::new(packed.collect(), loaded.map_or(0, |loaded| loaded.scratch_words)),
                    kernel: loaded.map(|loaded| loaded.kernel.clone()),
                }
            })
            .collect();
        let extends = |plan: &Py<Plan>| plan.get().content().mode == Mode::DraftExtend;
        Ok(Join {
            launched: (
                launches.iter().filter(|launch| launch.joined.programs() > 0).count() as u64,
                plans.iter().map(|plan| plan.get().launched_steps()).sum(),
            ),
            extends: plans.iter().any(extends),
            members: plans.into_iter().map(|plan| Member { extends: extends(&plan), plan }).collect(),
            launches,
            stream_by_exchange,
            hooks,
            counters: cache.counters(),
            runs: AtomicU64::new(0),
            overlap_runs: AtomicU64::new(0),
            hooked_runs: AtomicU64::new(0),
        })
    }

    /// Refreshes what every member plans, from one live batch.
    #[pyo3(signature = (seq_lens, req_pool_indices, num_padding=0, extend_lens=None))]
    fn run(
        slf: &Bound<'_, Self>,
        seq_lens: &Bound<'_, PyAny>,
        req_pool_indices: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = num_padding_of)] num_padding: i64,
        extend_lens: Option<&Bound<'_, PyAny>>,
    ) -> Result<()> {
        let join = slf.get();
        let inputs = join.read(seq_lens, req_pool_indices, num_padding, extend_lens)?;
        if inputs.batch() == 0 {
            return Ok(());
        }
        if join.begins_apart(slf.py(), &inputs) {
            slf.call_method1("_run_apart", (seq_lens, req_pool_indices, num_padding, extend_lens))?;
            return Ok(());
        }
        let device = join.members[0].plan.get().content().table.device;
        let stream = tensor::current_stream(slf.py(), device, join.stream_by_exchange)?;
        for launch in &join.launches {
            let kernel = launch.kernel.as_ref().ok_or_else(run_by_python)?;
            // SAFETY: the planner pairs a launch with the kernel of its groups; the plans keep all planned memory, and
            // torch keeps the inputs' memory until what the stream holds has run.
            unsafe { launch.joined.launch(kernel, &inputs, stream) }?;
        }
        join.count();
        Ok(())
    }

    /// Checks a call that Python runs: None for an empty batch, else whether the members must run one by one.
    #[pyo3(signature = (seq_lens, req_pool_indices, num_padding=0, extend_lens=None))]
    fn _admit(
        &self,
        py: Python<'_>,
        seq_lens: &Bound<'_, PyAny>,
        req_pool_indices: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = num_padding_of)] num_padding: i64,
        extend_lens: Option<&Bound<'_, PyAny>>,
    ) -> Result<Option<bool>> {
        let inputs = self.read(seq_lens, req_pool_indices, num_padding, extend_lens)?;
        if inputs.batch() == 0 {
            return Ok(None);
        }
        Ok(Some(self.begins_apart(py, &inputs)))
    }

    /// Counts what a run that Python made has launched.
    fn _count(&self) {
        self.count();
    }

    /// The kernel's arguments of a launch, as numbers in the kernel's order, without scratch.
    #[pyo3(signature = (launch, seq_lens, req_pool_indices, num_padding=0, extend_lens=None))]
    fn _arguments<'py>(
        &self,
        py: Python<'py>,
        launch: usize,
        seq_lens: &Bound<'_, PyAny>,
        req_pool_indices: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = num_padding_of)] num_padding: i64,
        extend_lens: Option<&Bound<'_, PyAny>>,
    ) -> Result<Bound<'py, PyTuple>> {
        let inputs = self.read(seq_lens, req_pool_indices, num_padding, extend_lens)?;
        let launch = self.launches.get(launch).ok_or_else(run_by_python)?;
        Ok(signed(py, launch.joined.without_scratch(&inputs))?)
    }

    /// Calls that did work.
    #[getter]
    fn _runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }

    /// Calls of which an input shared memory with an output of one of the plans.
    #[getter]
    fn _overlap_runs(&self) -> u64 {
        self.overlap_runs.load(Ordering::Relaxed)
    }

    /// Calls during which Triton's launch hooks were set.
    #[getter]
    fn _hooked_runs(&self) -> u64 {
        self.hooked_runs.load(Ordering::Relaxed)
    }
}
