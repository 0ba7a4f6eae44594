//! The plan cache of a planner.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use qsa_group_core::cache::PlanCache;

use crate::blueprint::Blueprint;
use crate::plan::Plan;

/// Plans by content.
#[pyclass(frozen, module = "qsa_group._core")]
pub struct Cache {
    plans: Mutex<PlanCache<Py<Plan>>>,
}

impl Cache {
    fn plans(&self) -> MutexGuard<'_, PlanCache<Py<Plan>>> {
        // Nothing here leaves the map half changed, so a poisoned lock is as good as any.
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Cache {
    #[new]
    fn new(capacity: usize) -> Cache {
        Cache { plans: Mutex::new(PlanCache::new(capacity)) }
    }

    /// The plan of a blueprint, if the cache has one. Counts a hit or a miss.
    ///
    /// A plan whose memory has moved is forgotten. The blueprint's tensors stand where that plan's tensors stood, and a
    /// run of the plan would write to other memory.
    fn get(&self, py: Python<'_>, blueprint: &Blueprint) -> Option<Py<Plan>> {
        let plan = self.plans().get(&blueprint.key).map(|plan| plan.clone_ref(py))?;
        // Torch is asked without the lock, and a forgotten plan is released without the lock.
        if plan.get().check_memory(py).is_ok() {
            return Some(plan);
        }
        let forgotten = self.plans().reject(&blueprint.key, |cached| cached.is(&plan));
        drop(forgotten);
        None
    }

    /// Keeps a plan. Returns the plans that had to go.
    fn insert(&self, blueprint: &Blueprint, plan: Py<Plan>, may_evict: bool) -> Vec<Py<Plan>> {
        self.plans().insert(blueprint.key.clone(), plan, may_evict)
    }

    /// Forgets one plan. Returns whether the cache had it.
    fn drop(&self, plan: &Bound<'_, PyAny>) -> bool {
        let forgotten = self.plans().remove_if(|cached| cached.is(plan));
        !forgotten.is_empty()
    }

    /// Forgets every plan, and returns them.
    fn clear(&self) -> Vec<Py<Plan>> {
        self.plans().remove_if(|_| true)
    }

    /// What the cache has seen.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (seen, cached, capacity) = {
            let plans = self.plans();
            (plans.stats(), plans.len(), plans.capacity())
        };
        let stats = PyDict::new(py);
        for (name, count) in [
            ("hits", seen.hits),
            ("misses", seen.misses),
            ("evictions", seen.evictions),
            ("dropped", seen.dropped),
            ("cached", cached as u64),
            ("capacity", capacity as u64),
        ] {
            stats.set_item(name, count)?;
        }
        Ok(stats)
    }
}
