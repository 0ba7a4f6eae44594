//! The plan cache of a planner, and what its plans count.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use qsa_group_core::cache::PlanCache;

use crate::plan::Plan;
use crate::request::Request;

/// What the plans of a planner have done.
#[derive(Default)]
pub struct Counters {
    pub runs: AtomicU64,
    pub launches: AtomicU64,
    pub step_refreshes: AtomicU64,
    pub overlap_runs: AtomicU64,
    pub hooked_runs: AtomicU64,
}

/// Plans by content.
#[pyclass(frozen, module = "qsa_group._core", name = "Cache")]
pub struct Cache {
    plans: Mutex<PlanCache<Py<Plan>>>,
    counters: Arc<Counters>,
}

impl Cache {
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    fn plans(&self) -> MutexGuard<'_, PlanCache<Py<Plan>>> {
        // Nothing here can leave the map half changed, so a poisoned lock is as good as any.
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Cache {
    #[new]
    fn new(capacity: usize) -> Cache {
        Cache { plans: Mutex::new(PlanCache::new(capacity)), counters: Arc::default() }
    }

    /// The plan of a request, if it is held; counts a hit or a miss. One whose memory has moved is forgotten: the tensors
    /// of the request stand where that plan's stood, and no run of it would write to them.
    fn get(&self, py: Python<'_>, request: &Request) -> Option<Py<Plan>> {
        let held = self.plans().get(&request.key).map(|plan| plan.clone_ref(py))?;
        // Torch is asked without the lock, and what goes is released without it.
        if held.get().check_memory(py).is_ok() {
            return Some(held);
        }
        let gone = self.plans().reject(&request.key, |plan| plan.is(&held));
        drop(gone);
        None
    }

    /// Keeps a plan; returns those that had to go.
    fn insert(&self, request: &Request, plan: Py<Plan>, may_evict: bool) -> Vec<Py<Plan>> {
        self.plans().insert(request.key.clone(), plan, may_evict)
    }

    /// Forgets one plan; whether it was held.
    fn drop(&self, plan: &Bound<'_, PyAny>) -> bool {
        let gone = self.plans().remove_if(|_, held| held.is(plan));
        !gone.is_empty()
    }

    /// Forgets every plan; returns them.
    fn clear(&self) -> Vec<Py<Plan>> {
        self.plans().remove_if(|_, _| true)
    }

    /// Everything that was counted.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (seen, cached, capacity) = {
            let plans = self.plans();
            (plans.stats(), plans.len(), plans.capacity())
        };
        let stats = PyDict::new(py);
        stats.set_item("hits", seen.hits)?;
        stats.set_item("misses", seen.misses)?;
        stats.set_item("evictions", seen.evictions)?;
        stats.set_item("dropped", seen.dropped)?;
        stats.set_item("cached", cached)?;
        stats.set_item("capacity", capacity)?;
        for (name, counter) in [
            ("runs", &self.counters.runs),
            ("launches", &self.counters.launches),
            ("step_refreshes", &self.counters.step_refreshes),
            ("overlap_runs", &self.counters.overlap_runs),
            ("hooked_runs", &self.counters.hooked_runs),
        ] {
            stats.set_item(name, counter.load(Ordering::Relaxed))?;
        }
        Ok(stats)
    }
}
