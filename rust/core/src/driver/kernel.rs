//! A compiled kernel: loaded, checked against its own parameter table, and started.

use std::ffi::{CStr, c_int, c_void};

use super::{Driver, Handle, SUCCESS};
use crate::error::{Error, Result};

const MAX_DYNAMIC_SHARED_SIZE_BYTES: c_int = 8;
const BINARY_VERSION: c_int = 6;
const PARAM_BUFFER_POINTER: usize = 1;
const PARAM_BUFFER_SIZE: usize = 2;
const PARAM_END: usize = 0;
/// Bytes of shared memory above which a kernel must ask for more.
const DEFAULT_SHARED_LIMIT: u32 = 48 * 1024;
/// Bytes of a parameter: an address, or one or two numbers.
const PARAM_BYTES: usize = 8;
/// Pointers that Triton appends to a kernel's own parameters: `global_scratch`, and from Triton 3.5 on
/// `profile_scratch`. Both are null, since a kernel that needs scratch memory is refused.
pub const MAX_SCRATCH_WORDS: usize = 2;

/// A compiled kernel before loading.
pub struct KernelImage<'a> {
    /// The compiled binary (cubin).
    pub binary: &'a [u8],
    /// Name of the entry function.
    pub name: &'a CStr,
    /// Warps of a program.
    pub num_warps: u32,
    /// Dynamic shared memory, in bytes.
    pub shared: u32,
    /// Argument words that a launch will pass, without scratch pointers.
    pub num_words: usize,
}

/// A kernel in one device's context. Dropping the kernel unloads it.
pub struct Kernel {
    driver: &'static Driver,
    context: Handle,
    module: Handle,
    function: Handle,
    threads: u32,
    shared: u32,
    num_words: usize,
    scratch_words: usize,
}

impl Kernel {
    /// Loads a kernel into the calling thread's current context, and checks its parameters against the words that a
    /// launch will pass.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the thread has no context, if the driver cannot tell the parameters, and if they are not
    /// those that would be passed. [`Error::Driver`] if a call fails.
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
        // SAFETY: the caller promises a complete image. The driver copies the image during the call.
        let code = unsafe { (driver.module_load_data)(&mut module, image.binary.as_ptr().cast()) };
        driver.check("cuModuleLoadData", code)?;
        let mut kernel = Kernel {
            driver,
            context,
            module,
            function: 0,
            threads: 32 * image.num_warps,
            shared: image.shared,
            num_words: image.num_words,
            scratch_words: 0,
        };
        // SAFETY: the module is the one just loaded; the name is a C string.
        let code = unsafe { (driver.module_get_function)(&mut kernel.function, module, image.name.as_ptr()) };
        driver.check("cuModuleGetFunction", code)?;
        kernel.scratch_words = kernel.count_params()? - image.num_words;
        if image.shared > DEFAULT_SHARED_LIMIT {
            // SAFETY: sets a documented attribute of the kernel's own function.
            let code = unsafe {
                (driver.func_set_attribute)(kernel.function, MAX_DYNAMIC_SHARED_SIZE_BYTES, image.shared as c_int)
            };
            driver.check("cuFuncSetAttribute", code)?;
        }
        // The driver loads modules lazily. Asking for an attribute makes it finish now, and not inside a capture.
        let mut version = 0;
        // SAFETY: reads a documented attribute of the kernel's own function.
        let code = unsafe { (driver.func_get_attribute)(&mut version, BINARY_VERSION, kernel.function) };
        driver.check("cuFuncGetAttribute", code)?;
        Ok(kernel)
    }

    /// Parameters of the kernel by the binary's own table: the argument words, then at most [`MAX_SCRATCH_WORDS`] more,
    /// all of 8 bytes, one after the other.
    fn count_params(&self) -> Result<usize> {
        let refuse = |what: String| Error::Unsupported {
            what,
            remedy: "start this kernel through Triton's own launcher (backend \"triton\")",
        };
        let Some(info) = self.driver.func_get_param_info else {
            return Err(refuse("the driver has no cuFuncGetParamInfo (CUDA 12.4)".to_string()));
        };
        let most = self.num_words + MAX_SCRATCH_WORDS;
        for index in 0..=most {
            let (mut offset, mut size) = (0usize, 0usize);
            // SAFETY: writes two numbers. An index past the end gives an error code.
            if unsafe { info(self.function, index, &mut offset, &mut size) } != SUCCESS {
                return if index < self.num_words {
                    Err(refuse(format!("the kernel takes {index} parameters, {} would be passed", self.num_words)))
                } else {
                    Ok(index)
                };
            }
            if (offset, size) != (PARAM_BYTES * index, PARAM_BYTES) {
                let expected = PARAM_BYTES * index;
                return Err(refuse(format!(
                    "parameter {index} has {size} bytes at {offset}, {PARAM_BYTES} at {expected} would be passed"
                )));
            }
        }
        Err(refuse(format!("the kernel takes more than {most} parameters")))
    }

    /// Scratch pointers that a launch passes after the argument words.
    #[inline]
    pub const fn scratch_words(&self) -> usize {
        self.scratch_words
    }

    /// Starts the kernel on `stream`, in the context that the kernel was loaded into, whatever context is current.
    ///
    /// # Errors
    /// [`Error::Driver`] if the driver refuses.
    ///
    /// # Panics
    /// If there are not as many words as the kernel takes, scratch words included.
    ///
    /// # Safety
    /// The words must be what the kernel expects: addresses of memory that the kernel may read and write, and true sizes.
    #[inline]
    pub unsafe fn launch(&self, stream: Handle, programs: u32, words: &mut [u64]) -> Result<()> {
        assert_eq!(words.len(), self.num_words + self.scratch_words, "as many parameters as the kernel takes");
        let mut size = std::mem::size_of_val(words);
        let mut extra: [*mut c_void; 5] = [
            PARAM_BUFFER_POINTER as *mut c_void,
            words.as_mut_ptr().cast(),
            PARAM_BUFFER_SIZE as *mut c_void,
            (&raw mut size).cast(),
            PARAM_END as *mut c_void,
        ];
        self.driver.with_context(self.context, || {
            // SAFETY: the function belongs to the current context. The size of the parameter buffer was checked against
            // the binary's own table at loading, and the driver reads the buffer before the call returns. The caller
            // promises what the buffer holds.
            let code = unsafe {
                (self.driver.launch_kernel)(
                    self.function,
                    programs,
                    1,
                    1,
                    self.threads,
                    1,
                    1,
                    self.shared,
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
        // The result is ignored. At process exit the driver may be gone already, and nothing can be done then.
        let _ = self.driver.with_context(self.context, || {
            // SAFETY: this kernel loaded the module into this context, and nothing else uses the module.
            let code = unsafe { (self.driver.module_unload)(self.module) };
            self.driver.check("cuModuleUnload", code)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::stub;
    use super::*;

    fn load(params: u64, num_words: usize) -> Result<Kernel> {
        let image = KernelImage { binary: &params.to_ne_bytes(), name: c"stub", num_warps: 4, shared: 0, num_words };
        // SAFETY: a stub's image is 8 bytes.
        unsafe { Kernel::load(stub::get(stub::Behaviour::Succeed), &image) }
    }

    #[test]
    fn scratch_pointers_are_counted() {
        for scratch in 0..=2 {
            assert_eq!(load(24 + scratch, 24).map(|kernel| kernel.scratch_words() as u64), Ok(scratch));
        }
    }

    #[test]
    fn a_kernel_with_other_parameters_is_refused() {
        for (params, message) in
            [(23, "takes 23 parameters, 24 would be passed"), (27, "takes more than 26 parameters")]
        {
            let error = load(params, 24).err().unwrap();
            assert!(matches!(error, Error::Unsupported { .. }), "{error}");
            assert!(error.to_string().contains(message), "{error}");
        }
    }
}
