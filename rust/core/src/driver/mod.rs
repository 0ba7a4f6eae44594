//! The few CUDA driver calls that a launch needs.
//!
//! Nothing here links against CUDA: [`Driver::cuda`] opens `libcuda.so.1` at run time and looks every symbol up by name.
//! [`stub`] stands in for the driver where there is no GPU.

mod cuda;
mod kernel;
pub mod stub;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::error::{Error, Result};
pub use kernel::{Kernel, KernelImage, MAX_SCRATCH_WORDS};

type Code = c_int;
/// Handle of a CUDA context, module, function or stream; 0 for none.
pub type Handle = usize;

type CtxGetCurrent = unsafe extern "C" fn(*mut Handle) -> Code;
type CtxPush = unsafe extern "C" fn(Handle) -> Code;
type CtxPop = unsafe extern "C" fn(*mut Handle) -> Code;
type ModuleLoadData = unsafe extern "C" fn(*mut Handle, *const c_void) -> Code;
type ModuleUnload = unsafe extern "C" fn(Handle) -> Code;
type ModuleGetFunction = unsafe extern "C" fn(*mut Handle, Handle, *const c_char) -> Code;
type FuncGetParamInfo = unsafe extern "C" fn(Handle, usize, *mut usize, *mut usize) -> Code;
type FuncGetAttribute = unsafe extern "C" fn(*mut c_int, c_int, Handle) -> Code;
type FuncSetAttribute = unsafe extern "C" fn(Handle, c_int, c_int) -> Code;
type LaunchKernel = unsafe extern "C" fn(
    Handle,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Handle,
    *mut *mut c_void,
    *mut *mut c_void,
) -> Code;
type GetErrorName = unsafe extern "C" fn(Code, *mut *const c_char) -> Code;

const SUCCESS: Code = 0;

/// The driver's entry points.
pub struct Driver {
    ctx_get_current: CtxGetCurrent,
    ctx_push: CtxPush,
    ctx_pop: CtxPop,
    module_load_data: ModuleLoadData,
    module_unload: ModuleUnload,
    module_get_function: ModuleGetFunction,
    /// Absent before CUDA 12.4.
    func_get_param_info: Option<FuncGetParamInfo>,
    func_get_attribute: FuncGetAttribute,
    func_set_attribute: FuncSetAttribute,
    launch_kernel: LaunchKernel,
    get_error_name: GetErrorName,
}

impl Driver {
    fn check(&self, call: &'static str, code: Code) -> Result<()> {
        if code == SUCCESS { Ok(()) } else { Err(self.failure(call, code)) }
    }

    #[cold]
    fn failure(&self, call: &'static str, code: Code) -> Error {
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the call writes one pointer, to a string constant of the driver.
        let name = unsafe {
            if (self.get_error_name)(code, &mut text) == SUCCESS && !text.is_null() {
                CStr::from_ptr(text).to_string_lossy().into_owned()
            } else {
                format!("CUDA error {code}")
            }
        };
        Error::Driver { call, name, code }
    }

    /// The calling thread's current context; 0 if it has none.
    ///
    /// # Errors
    /// [`Error::Driver`] with the driver's name for the error.
    pub fn current_context(&self) -> Result<Handle> {
        let mut context = 0;
        // SAFETY: the call writes one handle.
        let code = unsafe { (self.ctx_get_current)(&mut context) };
        self.check("cuCtxGetCurrent", code)?;
        Ok(context)
    }

    /// Runs `body` with `context` current, and leaves the calling thread as it was.
    fn with_context<T>(&self, context: Handle, body: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.current_context()? == context {
            return body();
        }
        // SAFETY: the context was current when the kernel was loaded, and belongs to a device that torch keeps open.
        let code = unsafe { (self.ctx_push)(context) };
        self.check("cuCtxPushCurrent", code)?;
        let result = body();
        let mut popped = 0;
        // SAFETY: pops what was pushed above, on the same thread.
        let code = unsafe { (self.ctx_pop)(&mut popped) };
        result.and_then(|value| self.check("cuCtxPopCurrent", code).map(|()| value))
    }
}
