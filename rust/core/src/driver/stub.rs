//! A driver without a GPU: every call succeeds and does nothing.
//!
//! The stub shows what the host's own work costs, and lets the launch path be tested anywhere. The image of a stubbed
//! kernel is its number of parameters, as 8 bytes.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{Code, Driver, Handle, LaunchKernel, SUCCESS};

/// What the stubbed launch does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Succeeds.
    Succeed,
    /// Fails as a launch with wrong values does.
    Fail,
}

/// What a stubbed launch was started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StubbedLaunch {
    /// Programs (thread blocks) of the launch.
    pub programs: u32,
    /// Threads of a program.
    pub threads: u32,
    /// Dynamic shared memory, in bytes.
    pub shared: u32,
}

thread_local! {
    static LAST: Cell<Option<(StubbedLaunch, u64)>> = const { Cell::new(None) };
}

/// Configuration and last parameter word of this thread's last stubbed launch.
pub fn last_launch() -> Option<(StubbedLaunch, u64)> {
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
    programs: c_uint,
    _: c_uint,
    _: c_uint,
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
    LAST.set(Some((StubbedLaunch { programs, threads, shared }, last)));
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
