//! What only benches need. The wheel is built without this module.

use std::time::Instant;

use pyo3::prelude::*;
use qsa_group_core::error::Error;

use crate::call::Call;
use crate::errors::Result;
use crate::launcher::Launcher;
use crate::number::num_padding;
use crate::plan::Plan;

/// Takes what `Plan.run` takes and does nothing: what a call from Python costs by itself.
#[pyfunction]
#[pyo3(signature = (seq_lens, req_pool_indices, num_padding=0, extend_lens=None))]
pub fn noop(
    seq_lens: &Bound<'_, PyAny>,
    req_pool_indices: &Bound<'_, PyAny>,
    #[pyo3(from_py_with = num_padding)] num_padding: i64,
    extend_lens: Option<&Bound<'_, PyAny>>,
) {
    let _ = (seq_lens, req_pool_indices, num_padding, extend_lens);
}

/// Seconds that the driver takes to start a plan's first launch `times` times. The arguments are patched once.
#[pyfunction]
#[pyo3(signature = (plan, seq_lens, req_pool_indices, times, extend_lens=None))]
pub fn bare_launch_seconds(
    plan: &Plan,
    seq_lens: &Bound<'_, PyAny>,
    req_pool_indices: &Bound<'_, PyAny>,
    times: u64,
    extend_lens: Option<&Bound<'_, PyAny>>,
) -> Result<f64> {
    let call = Call::read(seq_lens, req_pool_indices, 0, extend_lens)?;
    plan.check(call.py, &call.inputs)?;
    let Launcher::Direct(direct) = &plan.launcher else {
        return Err(Error::Unsupported {
            what: "only a direct plan has a bare launch".to_string(),
            remedy: "plan with backend \"direct\"",
        }
        .into());
    };
    let stream = direct.get().stream(call.py)?;
    let start = Instant::now();
    direct.get().launch(&plan.launches[0], &call.inputs, stream, times)?;
    Ok(start.elapsed().as_secs_f64())
}
