//! Compiled kernels, the drivers that load them, and the description of their arguments.

use std::ffi::CString;
use std::sync::Arc;

use pyo3::prelude::*;
use qsa_group_core::contract::Field;
use qsa_group_core::driver::{Driver as CoreDriver, Kernel as CoreKernel, KernelImage, MAX_SCRATCH_WORDS, stub};
use qsa_group_core::error::{Error, Place};
use qsa_group_core::launch::{Argument, GroupSize, launch_words};

use crate::errors::Result;

/// What loads kernels: the CUDA driver, or a stub.
#[pyclass(frozen, module = "qsa_group._core")]
pub struct Driver(DriverKind);

enum DriverKind {
    /// The installed CUDA driver. Opened at the first load.
    Cuda,
    Stub(stub::Behaviour),
}

/// A loaded kernel.
#[pyclass(frozen, module = "qsa_group._core")]
pub struct Kernel(pub Arc<CoreKernel>);

/// What the number of a group's argument words depends on.
#[derive(FromPyObject)]
pub struct SizedGroup {
    num_steps: usize,
    buffers: Vec<String>,
}

impl SizedGroup {
    fn size(&self) -> Result<GroupSize> {
        let mut mask = 0;
        for name in &self.buffers {
            let field = Field::named(name).ok_or_else(|| {
                let wanted = "the name of a buffer";
                Error::layout(Place::Argument("buffers"), "name", name, wanted, "pass names out of FIELDS")
            })?;
            mask |= 1 << field as u32;
        }
        Ok(GroupSize { steps: self.num_steps, buffers: mask })
    }
}

#[pymethods]
impl Driver {
    /// The installed CUDA driver.
    #[staticmethod]
    fn cuda() -> Driver {
        Driver(DriverKind::Cuda)
    }

    /// A driver that does nothing. Its launches succeed, or fail.
    #[staticmethod]
    #[pyo3(signature = (*, fails=false))]
    fn stub(fails: bool) -> Driver {
        Driver(DriverKind::Stub(if fails { stub::Behaviour::Fail } else { stub::Behaviour::Succeed }))
    }

    /// Loads a kernel over groups into the calling thread's current context. A stub needs no binary.
    fn load(&self, binary: &[u8], name: &str, num_warps: u32, shared: u32, groups: Vec<SizedGroup>) -> Result<Kernel> {
        let sizes = groups.iter().map(SizedGroup::size).collect::<Result<Vec<_>>>()?;
        let num_words = launch_words(&sizes);
        let name = CString::new(name).map_err(|_| Error::Unsupported {
            what: "the kernel's name holds a zero byte".to_string(),
            remedy: "report this",
        })?;
        let stub_binary = ((num_words + MAX_SCRATCH_WORDS) as u64).to_ne_bytes();
        let (driver, binary) = match self.0 {
            DriverKind::Stub(behaviour) => (stub::get(behaviour), &stub_binary[..]),
            DriverKind::Cuda if binary.starts_with(b"\x7fELF") => (CoreDriver::cuda()?, binary),
            DriverKind::Cuda => {
                return Err(Error::Unsupported {
                    what: format!("a binary of {} bytes is no cubin", binary.len()),
                    remedy: "pass the cubin that Triton compiled",
                }
                .into());
            }
        };
        let image = KernelImage { binary, name: &name, num_warps, shared, num_words };
        // SAFETY: a cubin that Triton compiled, or the 8 bytes of a stub.
        let kernel = unsafe { CoreKernel::load(driver, &image) }?;
        Ok(Kernel(Arc::new(kernel)))
    }
}

/// Names of a group's kernel arguments, in order. Each has the number of its words: None for a single word, a number for
/// a tuple.
#[pyfunction]
pub fn kernel_arguments(num_steps: usize, buffers: Vec<String>) -> Result<Vec<(&'static str, Option<usize>)>> {
    let size = SizedGroup { num_steps, buffers }.size()?;
    Ok(Argument::ALL.into_iter().map(|argument| (argument.name(), argument.tuple_words(size))).collect())
}
