//! The installed CUDA driver, opened at run time.

use std::sync::OnceLock;

use super::Driver;
use crate::error::{Error, Result};

impl Driver {
    /// The installed CUDA driver. The first call opens the driver.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where there is no driver, and where the driver lacks a symbol that every launch needs.
    pub fn cuda() -> Result<&'static Driver> {
        static DRIVER: OnceLock<std::result::Result<Driver, String>> = OnceLock::new();
        DRIVER.get_or_init(open).as_ref().map_err(|what| Error::Unsupported {
            what: what.clone(),
            remedy: "install the NVIDIA driver, or use backend \"host\" on CPU tensors",
        })
    }
}

fn open() -> std::result::Result<Driver, String> {
    // SAFETY: opening the system's CUDA driver runs its initialisers, as every CUDA program does.
    let library = unsafe { libloading::Library::new("libcuda.so.1") }.map_err(|error| error.to_string())?;
    // Never unloaded: the function pointers below live as long as the process.
    let library: &'static libloading::Library = Box::leak(Box::new(library));
    macro_rules! symbol {
        ($name:literal) => {
            // SAFETY: the field declares the documented signature of this driver call.
            *unsafe { library.get(concat!($name, "\0")) }.map_err(|_| format!("libcuda.so.1 has no {}", $name))?
        };
    }
    Ok(Driver {
        ctx_get_current: symbol!("cuCtxGetCurrent"),
        ctx_push: symbol!("cuCtxPushCurrent_v2"),
        ctx_pop: symbol!("cuCtxPopCurrent_v2"),
        module_load_data: symbol!("cuModuleLoadData"),
        module_unload: symbol!("cuModuleUnload"),
        module_get_function: symbol!("cuModuleGetFunction"),
        // SAFETY: as above.
        func_get_param_info: unsafe { library.get("cuFuncGetParamInfo\0") }.ok().map(|symbol| *symbol),
        func_get_attribute: symbol!("cuFuncGetAttribute"),
        func_set_attribute: symbol!("cuFuncSetAttribute"),
        launch_kernel: symbol!("cuLaunchKernel"),
        get_error_name: symbol!("cuGetErrorName"),
    })
}
