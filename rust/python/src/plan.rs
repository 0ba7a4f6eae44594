//! A plan's hot call.

use std::ffi::CString;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use qsa_group_core::driver::{Driver, Kernel, KernelImage, stub};
use qsa_group_core::error::{Error, Place};
use qsa_group_core::inputs::{Admission, LiveInputs};
use qsa_group_core::launch::{self, Cut, Packed, SCRATCH_WORDS};
use qsa_group_core::layout::StepLayout;
use qsa_group_core::refresh::refresh;

use crate::cache::Counters;
use crate::errors::{Raised, Result, wrong_type};
use crate::memory::Watched;
use crate::request::Request;
use crate::tensor;

/// Words as the int64 that they are to the kernel: Triton's launchers take no larger numbers.
pub fn signed(py: Python<'_>, words: Vec<u64>) -> PyResult<Bound<'_, PyTuple>> {
    PyTuple::new(py, words.into_iter().map(u64::cast_signed))
}

/// A compiled kernel, loaded on the current device.
#[pyclass(frozen, module = "qsa_group._core", name = "Kernel")]
pub struct LoadedKernel {
    pub kernel: Arc<Kernel>,
    pub scratch_words: usize,
}

#[pymethods]
impl LoadedKernel {
    /// Loads `binary` (a cubin) into the calling thread's current context. `groups` are steps and buffers of each group
    /// that it takes; `driver` is "cuda", "stub" or "stub-fail".
    #[new]
    #[pyo3(signature = (binary, name, num_warps, shared, groups, scratch_words=SCRATCH_WORDS, driver="cuda"))]
    fn new(
        binary: &[u8],
        name: &str,
        num_warps: u32,
        shared: u32,
        groups: Vec<(usize, usize)>,
        scratch_words: usize,
        driver: &str,
    ) -> Result<LoadedKernel> {
        let num_params = launch::kernel_words(&groups) + scratch_words;
        let name = CString::new(name).map_err(|_| Error::Unsupported {
            what: "the kernel's name holds a zero byte".to_string(),
            remedy: "report this",
        })?;
        let words = (num_params as u64).to_ne_bytes();
        let (driver, binary) = match driver {
            "stub" => (stub::get(stub::Behaviour::Succeed), &words[..]),
            "stub-fail" => (stub::get(stub::Behaviour::Fail), &words[..]),
            "cuda" if binary.starts_with(b"\x7fELF") => (Driver::cuda()?, binary),
            _ => {
                return Err(Error::Unsupported {
                    what: format!("driver {driver:?} does not take a binary of {} bytes", binary.len()),
                    remedy: "pass \"cuda\" and a cubin",
                }
                .into());
            }
        };
        let image = KernelImage { binary, name: &name, num_warps, shared, num_params };
        // SAFETY: a cubin that Triton has compiled, or the 8 bytes of a stub.
        let kernel = unsafe { Kernel::load(driver, &image) }?;
        Ok(LoadedKernel { kernel: Arc::new(kernel), scratch_words })
    }
}

/// One group's arguments and the kernel that takes them.
struct Launch {
    packed: Packed,
    kernel: Arc<Kernel>,
    scratch_words: usize,
}

impl Launch {
    /// The arguments that Triton's launcher takes: it appends the scratch pointers itself.
    fn without_scratch(&self, inputs: &LiveInputs) -> Vec<u64> {
        let mut words = self.packed.arguments(inputs);
        words.truncate(words.len() - self.scratch_words);
        words
    }
}

/// How a plan's groups are run.
enum Executor {
    /// On host memory, here.
    Host,
    /// By the CUDA driver, here: each group's arguments and kernel.
    Direct {
        launches: Vec<Launch>,
        stream_by_exchange: bool,
        /// Triton's launch hooks: a profiler is at work while one of these lists is not empty.
        hooks: Vec<Py<PyList>>,
    },
    /// By Python, from packed arguments.
    Python { packed: Vec<Packed> },
}

/// The core of a plan. Frozen: a call changes nothing here but atomic counters; refreshes on the host take turns.
#[pyclass(frozen, subclass, module = "qsa_group._core", name = "Plan")]
pub struct Plan {
    request: Py<Request>,
    admission: Admission,
    executor: Executor,
    status: u64,
    cuts: Vec<Cut>,
    memory: Vec<Watched>,
    counters: Arc<Counters>,
    /// Groups and steps whose buckets have rows: what a run launches, and what a launch a step would have.
    launched: (u64, u64),
    runs: AtomicU64,
    overlap_runs: AtomicU64,
    hooked_runs: AtomicU64,
}

impl Plan {
    #[inline]
    fn read(
        &self,
        seq_lens: &Bound<'_, PyAny>,
        req_pool_indices: &Bound<'_, PyAny>,
        num_padding: i64,
        extend_lens: Option<&Bound<'_, PyAny>>,
    ) -> Result<LiveInputs> {
        let inputs = live_inputs(seq_lens, req_pool_indices, num_padding, extend_lens)?;
        self.check(seq_lens.py(), &inputs)?;
        Ok(inputs)
    }

    /// Checks a call's inputs, and that no watched memory has moved.
    #[inline]
    pub fn check(&self, py: Python<'_>, inputs: &LiveInputs) -> Result<()> {
        self.check_memory(py)?;
        Ok(self.admission.check(inputs)?)
    }

    /// An error if watched memory stands elsewhere now. Nothing is watched where memory cannot move.
    #[inline]
    pub fn check_memory(&self, py: Python<'_>) -> Result<()> {
        self.memory.iter().try_for_each(|watched| watched.check(py))
    }

    /// Whether a live input shares memory with an output.
    pub fn overlaps(&self, inputs: &LiveInputs) -> bool {
        self.admission.overlaps_output(inputs)
    }

    /// What the plan was made from.
    pub fn content(&self) -> &Request {
        self.request.get()
    }

    /// A group's arguments for a launch that is cut up as `cut` says, without scratch.
    pub fn packed(&self, group: usize, cut: Cut) -> Packed {
        let request = self.content();
        request.packed(&request.members(group), self.status, cut, 0)
    }

    /// Counts a run of every group.
    #[inline]
    fn count(&self) {
        let (launches, steps) = self.launched;
        self.counters.launches.fetch_add(launches, Ordering::Relaxed);
        self.counters.step_refreshes.fetch_add(steps, Ordering::Relaxed);
    }

    /// Counts a run of one step alone.
    fn count_step(&self, step: usize) {
        let launches = u64::from(self.request.get().steps[step].rows > 0);
        self.counters.launches.fetch_add(launches, Ordering::Relaxed);
        self.counters.step_refreshes.fetch_add(launches, Ordering::Relaxed);
    }

    /// Steps whose buckets have rows.
    pub fn launched_steps(&self) -> u64 {
        self.launched.1
    }

    /// Runs the executor over every group.
    #[inline]
    fn execute(&self, py: Python<'_>, inputs: &LiveInputs) -> Result<()> {
        let request = self.request.get();
        match &self.executor {
            Executor::Host => (0..request.grouping.groups.len())
                .for_each(|group| self.refresh_on_host(request, &request.members(group), inputs)),
            Executor::Direct { launches, stream_by_exchange, .. } => {
                let stream = tensor::current_stream(py, request.table.device, *stream_by_exchange)?;
                for launch in launches {
                    // SAFETY: the planner pairs each group with the kernel of its variant; the plan keeps all planned
                    // memory, and torch keeps the inputs' memory until what the stream holds has run.
                    unsafe { launch.packed.launch(&launch.kernel, inputs, stream) }?;
                }
            }
            Executor::Python { .. } => return Err(run_by_python().into()),
        }
        self.count();
        Ok(())
    }

    fn refresh_on_host(&self, request: &Request, steps: &[&StepLayout], inputs: &LiveInputs) {
        if steps.iter().all(|step| step.rows == 0) {
            return;
        }
        // Two calls must not write one buffer at once, whichever plans they come from. Nothing is awaited while this is
        // held, and the holder runs no Python.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: every address comes from a CPU tensor that the plan or the caller keeps alive over this call, with
        // the shapes and strides that torch gave; the admission saw that inputs and outputs do not overlap, or the
        // caller passed snapshots; other refreshes wait. That no torch operator in another thread writes the same
        // memory meanwhile is the caller's to see to, as with any operator of torch.
        let bits = unsafe { refresh(&request.table, request.mode, request.padding, steps, inputs) };
        if bits != 0 {
            // SAFETY: the status word is an aligned int32 of a tensor that the plan keeps alive. Torch reads and clears
            // it by single aligned accesses.
            unsafe { AtomicI32::from_ptr(self.status as *mut i32) }.fetch_or(bits, Ordering::Relaxed);
        }
    }

    /// The packed arguments of a group's kernel with every step replaced by one: that step alone, by the same binary.
    fn packed_alone(&self, request: &Request, step: usize, group: usize, scratch_words: usize) -> Packed {
        let members = vec![&request.steps[step]; request.grouping.groups[group].len()];
        request.packed(&members, self.status, self.cuts[group], scratch_words)
    }
}

/// Reads a call's live inputs.
#[inline]
pub fn live_inputs(
    seq_lens: &Bound<'_, PyAny>,
    req_pool_indices: &Bound<'_, PyAny>,
    num_padding: i64,
    extend_lens: Option<&Bound<'_, PyAny>>,
) -> Result<LiveInputs> {
    Ok(LiveInputs {
        seq_lens: tensor::live(seq_lens, "seq_lens")?,
        req_pool_indices: tensor::live(req_pool_indices, "req_pool_indices")?,
        extend_lens: extend_lens.map(|lens| tensor::live(lens, "extend_lens")).transpose()?,
        num_padding,
    })
}

/// Whether a launch hook of Triton's is set, so that launches belong to its launcher.
#[inline]
pub fn any_hook(py: Python<'_>, hooks: &[Py<PyList>]) -> bool {
    hooks.iter().any(|calls| !calls.bind(py).is_empty())
}

/// A call's `num_padding`. It is clamped to the batch, so a number past 64 bits is as good as the last within.
pub fn num_padding_of(given: &Bound<'_, PyAny>) -> PyResult<i64> {
    match given.extract() {
        Ok(number) => Ok(number),
        Err(error) if PyErr::is_instance_of::<PyOverflowError>(&error, given.py()) => {
            Ok(if given.lt(0)? { i64::MIN } else { i64::MAX })
        }
        Err(_) => {
            let remedy = "pass how many requests at the end are padding";
            Err(Raised::from(wrong_type(given, Place::Argument("num_padding"), "int", remedy)).into())
        }
    }
}

pub fn run_by_python() -> Error {
    Error::Unsupported { what: "this plan is run by Python".to_string(), remedy: "call ReplayPlan.run" }
}

/// Every tensor of a plan with the address that it was planned at; nothing if no tensors are given.
fn watch(content: &Request, status: u64, memory: Vec<Bound<'_, PyAny>>) -> Result<Vec<Watched>> {
    let buffers =
        content.steps.iter().enumerate().flat_map(|(index, step)| {
            step.present().map(move |(field, buffer)| (field.name(), Some(index), buffer.ptr))
        });
    let own = [("req_to_token", None, content.table.ptr), ("status_word", None, status)];
    let planned: Vec<(&str, Option<usize>, u64)> = own.into_iter().chain(buffers).collect();
    if !memory.is_empty() && memory.len() != planned.len() {
        return Err(Error::Layout {
            place: Place::Argument("memory"),
            what: "length",
            given: memory.len().to_string(),
            wanted: format!("0 or {}, the table, the status word and every buffer", planned.len()),
            remedy: "pass a tensor for each in order, or none",
        }
        .into());
    }
    let watched = planned.into_iter().zip(memory);
    Ok(watched.map(|((name, step, address), tensor)| Watched::new(name, step, tensor, address)).collect())
}

fn no_such_step(step: usize, steps: usize) -> Error {
    Error::Layout {
        place: Place::Argument("step"),
        what: "value",
        given: step.to_string(),
        wanted: format!("below {steps}"),
        remedy: "pass the index of a planned step",
    }
}

#[pymethods]
impl Plan {
    /// `kernels` is None for a host plan, one `Kernel` a group for a direct one, and empty for one that Python runs.
    /// `memory` is empty, or the table's, the status word's and every buffer's tensor in order, to see that they stay.
    #[new]
    #[pyo3(signature = (request, cache, status, cuts, kernels=None, hooks=vec![], memory=vec![]))]
    #[allow(clippy::too_many_arguments)] // What a blueprint holds.
    fn new(
        py: Python<'_>,
        request: Py<Request>,
        cache: &crate::cache::Cache,
        status: u64,
        cuts: Vec<(u32, u32, u32)>,
        kernels: Option<Vec<Py<LoadedKernel>>>,
        hooks: Vec<Py<PyList>>,
        memory: Vec<Bound<'_, PyAny>>,
    ) -> Result<Plan> {
        let content = request.get();
        let groups = content.grouping.groups.len();
        let kernels_fit = kernels.as_ref().is_none_or(|kernels| kernels.is_empty() || kernels.len() == groups);
        if cuts.len() != groups || !kernels_fit {
            return Err(Error::Layout {
                place: Place::Argument("cuts"),
                what: "length",
                given: cuts.len().to_string(),
                wanted: format!("{groups}, one a group, as of kernels"),
                remedy: "pass one cut and one kernel a group",
            }
            .into());
        }
        let cuts: Vec<Cut> =
            cuts.into_iter().map(|(programs, heads, page_bits)| Cut { programs, heads, page_bits }).collect();
        let pack = |group: usize, scratch_words: usize| {
            content.packed(&content.members(group), status, cuts[group], scratch_words)
        };
        let executor = match kernels {
            None => Executor::Host,
            Some(kernels) if kernels.is_empty() => {
                Executor::Python { packed: (0..content.grouping.groups.len()).map(|group| pack(group, 0)).collect() }
            }
            Some(kernels) => Executor::Direct {
                launches: kernels
                    .iter()
                    .enumerate()
                    .map(|(group, loaded)| {
                        let LoadedKernel { kernel, scratch_words } = loaded.get();
                        Launch {
                            packed: pack(group, *scratch_words),
                            kernel: kernel.clone(),
                            scratch_words: *scratch_words,
                        }
                    })
                    .collect(),
                stream_by_exchange: tensor::exchange_names_streams(py, content.table.device),
                hooks,
            },
        };
        let memory = watch(content, status, memory)?;
        let admission = Admission::new(content.table.device, content.mode, &content.steps);
        let steps = |group: &Vec<usize>| if content.steps[group[0]].rows > 0 { group.len() as u64 } else { 0 };
        let busy: Vec<u64> = content.grouping.groups.iter().map(steps).filter(|&steps| steps > 0).collect();
        Ok(Plan {
            launched: (busy.len() as u64, busy.iter().sum()),
            admission,
            executor,
            status,
            cuts,
            memory,
            counters: cache.counters(),
            runs: AtomicU64::new(0),
            overlap_runs: AtomicU64::new(0),
            hooked_runs: AtomicU64::new(0),
            request,
        })
    }

    /// Refreshes every planned buffer from the live batch.
    #[pyo3(signature = (seq_lens, req_pool_indices, num_padding=0, extend_lens=None))]
    fn run(
        slf: &Bound<'_, Self>,
        seq_lens: &Bound<'_, PyAny>,
        req_pool_indices: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = num_padding_of)] num_padding: i64,
        extend_lens: Option<&Bound<'_, PyAny>>,
    ) -> Result<()> {
        let plan = slf.get();
        let inputs = plan.read(seq_lens, req_pool_indices, num_padding, extend_lens)?;
        if inputs.batch() == 0 {
            return Ok(());
        }
        plan.runs.fetch_add(1, Ordering::Relaxed);
        plan.counters.runs.fetch_add(1, Ordering::Relaxed);
        if plan.admission.overlaps_output(&inputs) {
            plan.note_overlap();
            slf.call_method1("_run_apart", (seq_lens, req_pool_indices, num_padding, extend_lens))?;
            return Ok(());
        }
        if plan.is_hooked(slf.py()) {
            slf.call_method1("_run_hooked", (seq_lens, req_pool_indices, num_padding, extend_lens))?;
            return Ok(());
        }
        plan.execute(slf.py(), &inputs)
    }

    /// Checks and counts a call that Python runs: None for an empty batch, else whether an input overlaps an output.
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
        self.runs.fetch_add(1, Ordering::Relaxed);
        self.counters.runs.fetch_add(1, Ordering::Relaxed);
        let overlaps = self.admission.overlaps_output(&inputs);
        if overlaps {
            self.note_overlap();
        }
        Ok(Some(overlaps))
    }

    /// Counts a run of every group that Python made.
    fn _count(&self) {
        self.count();
    }

    /// Counts a run of one step that Python made.
    fn _count_step(&self, step: usize) -> Result<()> {
        let steps = self.request.get().steps.len();
        if step >= steps {
            return Err(no_such_step(step, steps).into());
        }
        self.count_step(step);
        Ok(())
    }

    /// The kernel's arguments of a group, or of one step of it alone, as numbers in the kernel's order.
    #[pyo3(signature = (group, seq_lens, req_pool_indices, num_padding=0, extend_lens=None, alone=None))]
    #[allow(clippy::too_many_arguments)] // `run`'s, and which launch is meant.
    fn _arguments<'py>(
        &self,
        py: Python<'py>,
        group: usize,
        seq_lens: &Bound<'_, PyAny>,
        req_pool_indices: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = num_padding_of)] num_padding: i64,
        extend_lens: Option<&Bound<'_, PyAny>>,
        alone: Option<usize>,
    ) -> Result<Bound<'py, PyTuple>> {
        let inputs = self.read(seq_lens, req_pool_indices, num_padding, extend_lens)?;
        let request = self.request.get();
        let words = match (alone, &self.executor) {
            (Some(step), _) => self.packed_alone(request, step, group, 0).arguments(&inputs),
            (None, Executor::Python { packed }) => packed[group].arguments(&inputs),
            (None, Executor::Direct { launches, .. }) => launches[group].without_scratch(&inputs),
            (None, Executor::Host) => return Err(run_by_python().into()),
        };
        Ok(signed(py, words)?)
    }

    /// Refreshes one step alone; the caller saw to it that no input shares memory with an output.
    #[pyo3(signature = (step, seq_lens, req_pool_indices, num_padding=0, extend_lens=None))]
    fn _run_step(
        &self,
        py: Python<'_>,
        step: usize,
        seq_lens: &Bound<'_, PyAny>,
        req_pool_indices: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = num_padding_of)] num_padding: i64,
        extend_lens: Option<&Bound<'_, PyAny>>,
    ) -> Result<()> {
        let request = self.request.get();
        let group = request.group_of(step).ok_or_else(|| no_such_step(step, request.steps.len()))?;
        let inputs = self.read(seq_lens, req_pool_indices, num_padding, extend_lens)?;
        match &self.executor {
            Executor::Host => self.refresh_on_host(request, &[&request.steps[step]], &inputs),
            Executor::Direct { launches, stream_by_exchange, .. } => {
                let stream = tensor::current_stream(py, request.table.device, *stream_by_exchange)?;
                let launch = &launches[group];
                let alone = self.packed_alone(request, step, group, launch.scratch_words);
                // SAFETY: as in `execute`.
                unsafe { alone.launch(&launch.kernel, &inputs, stream) }?;
            }
            Executor::Python { .. } => return Err(run_by_python().into()),
        }
        self.count_step(step);
        Ok(())
    }

    /// Seconds that `times` launches of the first group take with arguments that are patched once.
    #[pyo3(signature = (seq_lens, req_pool_indices, times, extend_lens=None))]
    fn _bare_launch_seconds(
        &self,
        py: Python<'_>,
        seq_lens: &Bound<'_, PyAny>,
        req_pool_indices: &Bound<'_, PyAny>,
        times: u64,
        extend_lens: Option<&Bound<'_, PyAny>>,
    ) -> Result<f64> {
        let inputs = self.read(seq_lens, req_pool_indices, 0, extend_lens)?;
        let Executor::Direct { launches, stream_by_exchange, .. } = &self.executor else {
            return Err(Error::Unsupported {
                what: "only a direct plan has a bare launch".to_string(),
                remedy: "plan with backend \"direct\"",
            }
            .into());
        };
        let stream = tensor::current_stream(py, self.request.get().table.device, *stream_by_exchange)?;
        let launch = &launches[0];
        let start = Instant::now();
        // SAFETY: as in `execute`.
        unsafe { launch.packed.launch_bare(&launch.kernel, &inputs, stream, times) }?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Calls that did work.
    #[getter]
    fn _runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }

    /// Calls of which an input shared memory with an output.
    #[getter]
    fn _overlap_runs(&self) -> u64 {
        self.overlap_runs.load(Ordering::Relaxed)
    }

    /// Calls that went through Triton's launcher because its launch hooks were set.
    #[getter]
    fn _hooked_runs(&self) -> u64 {
        self.hooked_runs.load(Ordering::Relaxed)
    }

    /// The request that the plan was made from.
    #[getter]
    fn _request(&self, py: Python<'_>) -> Py<Request> {
        self.request.clone_ref(py)
    }
}

impl Plan {
    /// Whether launches are hooked, and so belong to Triton's launcher, which calls the hooks.
    #[inline]
    fn is_hooked(&self, py: Python<'_>) -> bool {
        let Executor::Direct { hooks, .. } = &self.executor else { return false };
        let hooked = any_hook(py, hooks);
        if hooked {
            self.hooked_runs.fetch_add(1, Ordering::Relaxed);
            self.counters.hooked_runs.fetch_add(1, Ordering::Relaxed);
        }
        hooked
    }

    #[cold]
    fn note_overlap(&self) {
        self.overlap_runs.fetch_add(1, Ordering::Relaxed);
        self.counters.overlap_runs.fetch_add(1, Ordering::Relaxed);
    }
}

/// Takes what `Plan.run` takes and does nothing: what a call from Python costs by itself.
#[pyfunction]
#[pyo3(signature = (seq_lens, req_pool_indices, num_padding=0, extend_lens=None))]
pub fn noop(
    seq_lens: &Bound<'_, PyAny>,
    req_pool_indices: &Bound<'_, PyAny>,
    #[pyo3(from_py_with = num_padding_of)] num_padding: i64,
    extend_lens: Option<&Bound<'_, PyAny>>,
) {
    let _ = (seq_lens, req_pool_indices, num_padding, extend_lens);
}
