//! What the plans of a planner have done.

use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;

/// Counts that calls of plans add to, and that Python reads.
#[pyclass(frozen, module = "qsa_group._core")]
#[derive(Default)]
pub struct Counters {
    pub runs: Count,
    pub launches: Count,
    pub step_refreshes: Count,
    pub overlap_runs: Count,
    pub hooked_runs: Count,
}

/// A number that only grows.
#[derive(Default)]
pub struct Count(AtomicU64);

impl Count {
    #[inline]
    pub fn add(&self, number: u64) {
        self.0.fetch_add(number, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[pymethods]
impl Counters {
    #[new]
    fn new() -> Counters {
        Counters::default()
    }

    #[getter]
    fn runs(&self) -> u64 {
        self.runs.get()
    }

    #[getter]
    fn launches(&self) -> u64 {
        self.launches.get()
    }

    #[getter]
    fn step_refreshes(&self) -> u64 {
        self.step_refreshes.get()
    }

    #[getter]
    fn overlap_runs(&self) -> u64 {
        self.overlap_runs.get()
    }

    #[getter]
    fn hooked_runs(&self) -> u64 {
        self.hooked_runs.get()
    }
}
