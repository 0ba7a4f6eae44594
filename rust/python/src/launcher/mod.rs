//! What starts the launches of a plan: one type a way, each with one method `start`, which gets checked inputs.

mod direct;
mod host;
mod staged;
mod triton;

use pyo3::prelude::*;
use qsa_group_core::launch::Launch;

use crate::call::Call;
use crate::errors::Result;
pub use direct::DirectLauncher;
pub use host::HostLauncher;
pub use staged::StagedLauncher;
pub use triton::TritonLauncher;

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
    Triton(TritonLauncher),
}

impl Launcher {
    /// The launcher that Python passes. Any object with a method `start(index, programs, words)` is one of Triton's.
    pub fn new(launcher: &Bound<'_, PyAny>) -> Launcher {
        if let Ok(direct) = launcher.cast::<DirectLauncher>() {
            Launcher::Direct(direct.clone().unbind())
        } else if let Ok(host) = launcher.cast::<HostLauncher>() {
            Launcher::Host(host.clone().unbind())
        } else if let Ok(staged) = launcher.cast::<StagedLauncher>() {
            Launcher::Staged(staged.clone().unbind())
        } else {
            Launcher::Triton(TritonLauncher::new(launcher.clone().unbind()))
        }
    }

    /// Starts launches in order.
    #[inline]
    pub fn start(&self, launches: &[Launch], call: &Call<'_, '_>) -> Result<Started> {
        match self {
            Launcher::Direct(direct) => direct.get().start(launches, call),
            Launcher::Host(host) => host.get().start(launches, call),
            Launcher::Staged(staged) => staged.get().start(launches, call),
            Launcher::Triton(triton) => triton.start(launches, call),
        }
    }

    /// Whether each call must check that no memory has moved. Torch moves memory on the host only. A stubbed driver reads
    /// nothing.
    pub fn reads_host_memory(&self) -> bool {
        !matches!(self, Launcher::Direct(_))
    }
}
