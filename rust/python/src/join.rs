//! Several plans in one call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use qsa_group_core::driver::Kernel;
use qsa_group_core::error::{Error, Place};
use qsa_group_core::group;
use qsa_group_core::inputs::LiveInputs;
use qsa_group_core::launch::{Cut, Joined, MAX_JOINED};
use qsa_group_core::layout::{Mode, StepLayout};

use crate::cache::Counters;
use crate::errors::Result;
use crate::plan::{LoadedKernel, Plan, any_hook, live_inputs, num_padding_of, run_by_python};
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
    runs: AtomicU64,
    apart_runs: AtomicU64,
}

/// Plan and group of each group of plans, in launches that keep the groups' order.
#[pyfunction]
pub fn join_groups(plans: Vec<Py<Plan>>) -> Vec<Vec<(usize, usize)>> {
    let places: Vec<(usize, usize)> = plans
        .iter()
        .enumerate()
        .flat_map(|(index, plan)| (0..plan.get().content().grouping.groups.len()).map(move |group| (index, group)))
        .collect();
    let groups: Vec<Vec<&StepLayout>> =
        places.iter().map(|&(plan, group)| plans[plan].get().content().members(group)).collect();
    let launches = group::join(&groups, MAX_JOINED);
    launches.iter().map(|launch| launch.iter().map(|&index| places[index]).collect()).collect()
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
        for member in &self.members {
            member.plan.get().check(seq_lens.py(), &self.inputs_of(member, &inputs))?;
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

    fn steps(&self) -> usize {
        self.members.iter().map(|member| member.plan.get().content().steps.len()).sum()
    }

    fn note_run(&self, launches: usize) {
        self.runs.fetch_add(1, Ordering::Relaxed);
        self.counters.runs.fetch_add(1, Ordering::Relaxed);
        self.counters.launches.fetch_add(launches as u64, Ordering::Relaxed);
        self.counters.step_refreshes.fetch_add(self.steps() as u64, Ordering::Relaxed);
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
                wanted: "at least 2".to_string(),
                remedy: "pass the plans to join",
            }
            .into());
        };
        let stream_by_exchange = tensor::exchange_names_streams(py, first.get().content().table.device);
        let launches = launches
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
            extends: plans.iter().any(extends),
            members: plans.into_iter().map(|plan| Member { extends: extends(&plan), plan }).collect(),
            launches,
            stream_by_exchange,
            hooks,
            counters: cache.counters(),
            runs: AtomicU64::new(0),
            apart_runs: AtomicU64::new(0),
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
        if any_hook(slf.py(), &join.hooks) || join.overlaps(&inputs) {
            join.apart_runs.fetch_add(1, Ordering::Relaxed);
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
        join.note_run(join.launches.len());
        Ok(())
    }

    /// Checks a call that Python runs: None for an empty batch, else whether the members must run one by one.
    #[pyo3(signature = (seq_lens, req_pool_indices, num_padding=0, extend_lens=None))]
    fn _admit(
        &self,
        seq_lens: &Bound<'_, PyAny>,
        req_pool_indices: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = num_padding_of)] num_padding: i64,
        extend_lens: Option<&Bound<'_, PyAny>>,
    ) -> Result<Option<bool>> {
        let inputs = self.read(seq_lens, req_pool_indices, num_padding, extend_lens)?;
        if inputs.batch() == 0 {
            return Ok(None);
        }
        let apart = self.launches.is_empty() || self.overlaps(&inputs);
        if apart {
            self.apart_runs.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Some(apart))
    }

    /// Counts a run that Python made, of so many launches.
    fn _count(&self, launches: usize) {
        self.note_run(launches);
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
        let launch = &self.launches[launch];
        Ok(PyTuple::new(py, launch.joined.without_scratch(&inputs))?)
    }

    /// Calls that did work in joined launches.
    #[getter]
    fn _runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }

    /// Calls whose members ran one by one.
    #[getter]
    fn _apart_runs(&self) -> u64 {
        self.apart_runs.load(Ordering::Relaxed)
    }
}
