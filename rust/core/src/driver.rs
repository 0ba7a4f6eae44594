//! The few CUDA driver calls that a launch needs, found at run time, and a stub of them.
//!
//! Nothing here links against CUDA: `libcuda.so.1` is opened on first use, and every symbol is looked up by name, so
//! that an older driver misses only what it lacks.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::error::{Error, Result};

type Code = c_int;
/// Handle of a CUDA context, module, function or stream: an address that only the driver looks behind; 0 for none.
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
const MAX_DYNAMIC_SHARED_SIZE_BYTES: c_int = 8;
const BINARY_VERSION: c_int = 6;
const PARAM_BUFFER_POINTER: usize = 1;
const PARAM_BUFFER_SIZE: usize = 2;
const PARAM_END: usize = 0;
/// Above this, a kernel's shared memory must be asked for.
const DEFAULT_SHARED_LIMIT: u32 = 48 * 1024;

/// The driver's entry points.
pub struct Driver {
    ctx_get_current: CtxGetCurrent,
    ctx_push: CtxPush,
    ctx_pop: CtxPop,
    module_load_data: ModuleLoadData,
    module_unload: ModuleUnload,
    module_get_function: ModuleGetFunction,
    func_get_param_info: Option<FuncGetParamInfo>,
    func_get_attribute: FuncGetAttribute,
    func_set_attribute: FuncSetAttribute,
    launch_kernel: LaunchKernel,
    get_error_name: GetErrorName,
}

/// Grid, block and shared memory of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Programs in x, y and z.
    pub grid: (u32, u32, u32),
    /// Threads of a program.
    pub threads: u32,
    /// Dynamic shared memory, in bytes.
    pub shared: u32,
}

impl Driver {
    /// The installed CUDA driver, opened on first use.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where there is none, or where it lacks a symbol that every launch needs.
    pub fn cuda() -> Result<&'static Driver> {
        static DRIVER: OnceLock<std::result::Result<Driver, String>> = OnceLock::new();
        DRIVER.get_or_init(Driver::open).as_ref().map_err(|what| Error::Unsupported {
            what: what.clone(),
            remedy: "install the NVIDIA driver, or use backend \"host\" on CPU tensors",
        })
    }

    fn open() -> std::result::Result<Driver, String> {
        // SAFETY: opening the system's CUDA driver runs its initialisers, which is what every CUDA program does.
        let library = unsafe { libloading::Library::new("libcuda.so.1") }.map_err(|error| error.to_string())?;
        // Never unloaded: the function pointers below live as long as the process.
        let library: &'static libloading::Library = Box::leak(Box::new(library));
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: the type that the field declares is the documented signature of this driver call.
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
            // SAFETY: as above; absent before CUDA 12.4.
            func_get_param_info: unsafe { library.get("cuFuncGetParamInfo\0") }.ok().map(|found| *found),
            func_get_attribute: symbol!("cuFuncGetAttribute"),
            func_set_attribute: symbol!("cuFuncSetAttribute"),
            launch_kernel: symbol!("cuLaunchKernel"),
            get_error_name: symbol!("cuGetErrorName"),
        })
    }

    fn check(&self, call: &'static str, code: Code) -> Result<()> {
        if code == SUCCESS { Ok(()) } else { Err(self.failure(call, code)) }
    }

    #[cold]
    fn failure(&self, call: &'static str, code: Code) -> Error {
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the call writes one pointer; what it points at is a constant of the driver.
        let name = unsafe {
            if (self.get_error_name)(code, &mut text) == SUCCESS && !text.is_null() {
                CStr::from_ptr(text).to_string_lossy().into_owned()
            } else {
                format!("CUDA error {code}")
            }
        };
        Error::Driver { call, name, code }
    }

    /// The calling thread's current context; null if it has none.
    ///
    /// # Errors
    /// [`Error::Driver`] with the driver's name for it.
    pub fn current_context(&self) -> Result<Handle> {
        let mut context = 0;
        // SAFETY: the call writes one handle.
        let code = unsafe { (self.ctx_get_current)(&mut context) };
        self.check("cuCtxGetCurrent", code)?;
        Ok(context)
    }

    /// Runs `body` with `context` current and leaves the calling thread as it was.
    fn with_context<T>(&self, context: Handle, body: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.current_context()? == context {
            return body();
        }
        // SAFETY: the context was current when the plan was made and belongs to a device that torch keeps open.
        let code = unsafe { (self.ctx_push)(context) };
        self.check("cuCtxPushCurrent", code)?;
        let result = body();
        let mut popped = 0;
        // SAFETY: pops what was pushed above, on the same thread.
        let code = unsafe { (self.ctx_pop)(&mut popped) };
        result.and_then(|value| self.check("cuCtxPopCurrent", code).map(|()| value))
    }
}

/// A kernel loaded into one device's context; unloaded when dropped.
pub struct Kernel {
    driver: &'static Driver,
    context: Handle,
    module: Handle,
    function: Handle,
    threads: u32,
    shared: u32,
    num_params: usize,
}

/// A kernel's image and how it is started.
pub struct KernelImage<'a> {
    /// The compiled binary (cubin).
    pub binary: &'a [u8],
    /// Name of the entry function.
    pub name: &'a CStr,
    /// Warps of a program.
    pub num_warps: u32,
    /// Dynamic shared memory, in bytes.
    pub shared: u32,
    /// Parameters that the launch will pass, each of 8 bytes.
    pub num_params: usize,
}

impl Kernel {
    /// Loads a kernel into the calling thread's current context and checks its parameters against what a launch passes.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the thread has no context, the driver cannot tell the parameters, or they differ;
    /// [`Error::Driver`] if a call fails.
    ///
    /// # Safety
    /// The image must be a complete cubin; for a stub, 8 bytes.
    pub unsafe fn load(driver: &'static Driver, image: &KernelImage<'_>) -> Result<Kernel> {
        let context = driver.current_context()?;
        if context == 0 {
            return Err(Error::Unsupported {
                what: "the calling thread has no CUDA context".to_string(),
                remedy: "touch the device with torch first",
            });
        }
        let mut module = 0;
        // SAFETY: the caller promises a complete image; it is alive over the call, and the driver copies it.
        let code = unsafe { (driver.module_load_data)(&mut module, image.binary.as_ptr().cast()) };
        driver.check("cuModuleLoadData", code)?;
        let mut kernel = Kernel {
            driver,
            context,
            module,
            function: 0,
            threads: 32 * image.num_warps,
            shared: image.shared,
            num_params: image.num_params,
        };
        // SAFETY: the module is the one just loaded; the name is a C string.
        let code = unsafe { (driver.module_get_function)(&mut kernel.function, module, image.name.as_ptr()) };
        driver.check("cuModuleGetFunction", code)?;
        kernel.check_params(image.num_params)?;
        if image.shared > DEFAULT_SHARED_LIMIT {
            // SAFETY: sets a documented attribute of our own function.
            let code = unsafe {
                (driver.func_set_attribute)(kernel.function, MAX_DYNAMIC_SHARED_SIZE_BYTES, image.shared as c_int)
            };
            driver.check("cuFuncSetAttribute", code)?;
        }
        // Modules load lazily: asking for an attribute makes the driver finish now and not inside a capture.
        let mut version = 0;
        // SAFETY: reads a documented attribute of our own function.
        let code = unsafe { (driver.func_get_attribute)(&mut version, BINARY_VERSION, kernel.function) };
        driver.check("cuFuncGetAttribute", code)?;
        Ok(kernel)
    }

    /// The binary's own parameter table must name exactly `expected` parameters of 8 bytes, one after the other.
    fn check_params(&self, expected: usize) -> Result<()> {
        let refuse = |what: String| Error::Unsupported {
            what,
            remedy: "start this kernel through Triton's own launcher (backend \"triton\")",
        };
        let Some(info) = self.driver.func_get_param_info else {
            return Err(refuse("the driver has no cuFuncGetParamInfo (CUDA 12.4)".to_string()));
        };
        for index in 0..=expected {
            let (mut offset, mut size) = (0usize, 0usize);
            // SAFETY: writes two numbers; an index past the end is an error code, not undefined.
            let known = unsafe { info(self.function, index, &mut offset, &mut size) } == SUCCESS;
            if index == expected {
                return if known {
                    Err(refuse(format!("the kernel takes more than {expected} parameters")))
                } else {
                    Ok(())
                };
            }
            if !known {
                return Err(refuse(format!("the kernel takes {index} parameters, {expected} would be passed")));
            }
            if (offset, size) != (8 * index, 8) {
                return Err(refuse(format!(
                    "parameter {index} has {size} bytes at {offset}, 8 at {} would be passed",
                    8 * index
                )));
            }
        }
        Ok(())
    }

    /// Grid, block and shared memory for a grid of programs.
    pub fn shape(&self, grid: (u32, u32, u32)) -> LaunchShape {
        LaunchShape { grid, threads: self.threads, shared: self.shared }
    }

    /// Starts the kernel on `stream` with `params`, in the context it was loaded into, whatever context is current.
    ///
    /// # Errors
    /// [`Error::Driver`] if the driver refuses.
    ///
    /// # Panics
    /// If there are not as many parameters as the binary takes.
    ///
    /// # Safety
    /// The parameters must be what the kernel expects: addresses of memory that it may read and write, and true sizes.
    #[inline]
    pub unsafe fn launch(&self, stream: Handle, shape: LaunchShape, params: &mut [u64]) -> Result<()> {
        assert_eq!(params.len(), self.num_params, "as many parameters as the binary takes");
        let mut size = std::mem::size_of_val(params);
        let mut extra: [*mut c_void; 5] = [
            PARAM_BUFFER_POINTER as *mut c_void,
            params.as_mut_ptr().cast(),
            PARAM_BUFFER_SIZE as *mut c_void,
            (&raw mut size).cast(),
            PARAM_END as *mut c_void,
        ];
        self.driver.with_context(self.context, || {
            // SAFETY: the function belongs to the current context; the parameter buffer has the size that was checked
            // against the binary's own table at loading, and is read before the call returns; what it holds is the
            // caller's promise.
            let code = unsafe {
                (self.driver.launch_kernel)(
                    self.function,
                    shape.grid.0,
                    shape.grid.1,
                    shape.grid.2,
                    shape.threads,
                    1,
                    1,
                    shape.shared,
                    stream,
                    std::ptr::null_mut(),
                    extra.as_mut_ptr(),
                )
            };
            self.driver.check("cuLaunchKernel", code)
        })
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // The result is ignored: at process exit the driver may be gone already, and nothing can be done then.
        let _ = self.driver.with_context(self.context, || {
            // SAFETY: the module was loaded by this kernel into this context and is used by nobody else.
            let code = unsafe { (self.driver.module_unload)(self.module) };
            self.driver.check("cuModuleUnload", code)
        });
    }
}

/// A driver without a GPU: every call succeeds and does nothing. It isolates the host's own cost, and lets the launch
/// path be tested anywhere. Its "binary" is the number of parameters as 8 bytes.
pub mod stub {
    use super::*;
    use std::cell::Cell;

    /// What the stubbed launch does.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Behaviour {
        /// Succeeds.
        Succeed,
        /// Fails as a launch with wrong values does.
        Fail,
    }

    thread_local! {
        static LAST: Cell<Option<(LaunchShape, u64)>> = const { Cell::new(None) };
    }

    /// Shape and last parameter word of this thread's last stubbed launch.
    pub fn last_launch() -> Option<(LaunchShape, u64)> {
        LAST.get()
    }

    extern "C" fn get_current(context: *mut Handle) -> Code {
        // SAFETY: the caller passes a valid place for one handle.
        unsafe { *context = 1 };
        SUCCESS
    }
    extern "C" fn push(_: Handle) -> Code {
        SUCCESS
    }
    extern "C" fn pop(_: *mut Handle) -> Code {
        SUCCESS
    }
    extern "C" fn load(module: *mut Handle, image: *const c_void) -> Code {
        // SAFETY: a stub image is 8 bytes, and the caller passes a valid place for one handle.
        unsafe { *module = image.cast::<u64>().read_unaligned() as usize };
        SUCCESS
    }
    extern "C" fn unload(_: Handle) -> Code {
        SUCCESS
    }
    extern "C" fn get_function(function: *mut Handle, module: Handle, _: *const c_char) -> Code {
        // SAFETY: the caller passes a valid place for one handle.
        unsafe { *function = module };
        SUCCESS
    }
    extern "C" fn param_info(function: Handle, index: usize, offset: *mut usize, size: *mut usize) -> Code {
        if index >= function {
            return 1;
        }
        // SAFETY: the caller passes valid places for two numbers.
        unsafe {
            *offset = 8 * index;
            *size = 8;
        }
        SUCCESS
    }
    extern "C" fn get_attribute(value: *mut c_int, _: c_int, _: Handle) -> Code {
        // SAFETY: the caller passes a valid place for one number.
        unsafe { *value = 90 };
        SUCCESS
    }
    extern "C" fn set_attribute(_: Handle, _: c_int, _: c_int) -> Code {
        SUCCESS
    }
    extern "C" fn launch(
        _: Handle,
        x: c_uint,
        y: c_uint,
        z: c_uint,
        threads: c_uint,
        _: c_uint,
        _: c_uint,
        shared: c_uint,
        _: Handle,
        _: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Code {
        // SAFETY: `Kernel::launch` passes the five entries that it builds.
        let last = unsafe {
            let params = *extra.add(1) as *const u64;
            let size = *(*extra.add(3) as *const usize);
            *params.add(size / 8 - 1)
        };
        LAST.set(Some((LaunchShape { grid: (x, y, z), threads, shared }, last)));
        SUCCESS
    }
    extern "C" fn launch_fails(
        _: Handle,
        _: c_uint,
        _: c_uint,
        _: c_uint,
        _: c_uint,
        _: c_uint,
        _: c_uint,
        _: c_uint,
        _: Handle,
        _: *mut *mut c_void,
        _: *mut *mut c_void,
    ) -> Code {
        1
    }
    extern "C" fn error_name(_: Code, text: *mut *const c_char) -> Code {
        // SAFETY: the caller passes a valid place for one pointer.
        unsafe { *text = c"CUDA_ERROR_INVALID_VALUE".as_ptr() };
        SUCCESS
    }

    const fn driver(launch_kernel: LaunchKernel) -> Driver {
        Driver {
            ctx_get_current: get_current,
            ctx_push: push,
            ctx_pop: pop,
            module_load_data: load,
            module_unload: unload,
            module_get_function: get_function,
            func_get_param_info: Some(param_info),
            func_get_attribute: get_attribute,
            func_set_attribute: set_attribute,
            launch_kernel,
            get_error_name: error_name,
        }
    }

    static SUCCEEDS: Driver = driver(launch);
    static FAILS: Driver = driver(launch_fails);

    /// The stub.
    pub fn get(behaviour: Behaviour) -> &'static Driver {
        match behaviour {
            Behaviour::Succeed => &SUCCEEDS,
            Behaviour::Fail => &FAILS,
        }
    }
}
