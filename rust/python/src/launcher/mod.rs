//! What starts the launches of a plan: one type a way, each with one method `start`, which gets checked inputs.

mod direct;
mod host;
mod python;
mod staged;

use pyo3::prelude::*;
use qsa_group_core::error::Place;
use qsa_group_core::launch::Launch;

use crate::call::Call;
use crate::errors::{Result, wrong_type};
pub use direct::DirectLauncher;
pub use host::HostLauncher;
pub use python::PythonLauncher;
pub use staged::StagedLauncher;

/// How launches were started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// As the plan says.
    AsPlanned,
    /// By Triton's launcher, since Triton's launch hooks were set.
    Hooked,
}

/// A launcher of any kind.
pub enum Launcher {
    Direct(Py<DirectLauncher>),
    Host(Py<HostLauncher>),
    Staged(Py<StagedLauncher>),
    Python(PythonLauncher),
}

impl Launcher {
    /// The launcher that Python passes: one of the core's, or any object with a method `start(index, programs, words)`.
    pub fn new(launcher: &Bound<'_, PyAny>) -> Result<Launcher> {
        if let Ok(direct) = launcher.cast::<DirectLauncher>() {
            Ok(Launcher::Direct(direct.clone().unbind()))
        } else if let Ok(host) = launcher.cast::<HostLauncher>() {
            Ok(Launcher::Host(host.clone().unbind()))
        } else if let Ok(staged) = launcher.cast::<StagedLauncher>() {
            Ok(Launcher::Staged(staged.clone().unbind()))
        } else if launcher.hasattr("start")? {
            Ok(Launcher::Python(PythonLauncher::new(launcher.clone().unbind())))
        } else {
            let wanted = "a launcher of the core, or an object with start(index, programs, words)";
            Err(wrong_type(launcher, Place::Argument("launcher"), wanted, "return one from Backend.prepare").into())
        }
    }

    /// Starts launches in order.
    #[inline]
    pub fn start(&self, launches: &[Launch], call: &Call<'_, '_>) -> Result<Started> {
        match self {
            Launcher::Direct(direct) => direct.get().start(launches, call),
            Launcher::Host(host) => host.get().start(launches, call),
            Launcher::Staged(staged) => staged.get().start(launches, call),
            Launcher::Python(python) => python.start(launches, call),
        }
    }

    /// Whether a launch may read tensors of the host. A stubbed driver, the only direct way on the host, reads nothing.
    pub fn may_read_host_memory(&self) -> bool {
        !matches!(self, Launcher::Direct(_))
    }
}
