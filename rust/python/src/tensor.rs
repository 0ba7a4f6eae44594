//! Reading torch tensors: in full when a plan is made, by the cheapest sound way in a call.

use std::ffi::{c_int, c_void};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyType};
use qsa_group_core::driver::Handle;
use qsa_group_core::error::{Error, Place};
use qsa_group_core::inputs::LiveVector;
use qsa_group_core::tensor::{DType, Device, DeviceKind, TensorSpec};

use crate::errors::{Result, wrong_type};

const DL_CPU: i32 = 1;
const DL_CUDA: i32 = 2;
const DL_CUDA_HOST: i32 = 3;
const DL_INT: u8 = 0;

/// `DLTensor` of the DLPack C ABI.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// `DLPackExchangeAPI` of the DLPack C ABI, version 1.3: functions that an array library offers to C callers.
#[repr(C)]
struct ExchangeApi {
    major: u32,
    minor: u32,
    // Pointers that are not used here. As numbers they let threads share the table.
    previous: usize,
    managed_tensor_allocator: usize,
    managed_tensor_from_py_object: usize,
    managed_tensor_to_py_object: usize,
    dltensor_from_py_object: Option<unsafe extern "C" fn(*mut c_void, *mut DlTensor) -> c_int>,
    current_work_stream: Option<unsafe extern "C" fn(c_int, i32, *mut *mut c_void) -> c_int>,
}

/// What torch is asked for once.
struct Torch {
    tensor: Py<PyType>,
    /// Torch is never unloaded, so its exchange table is static. Absent before torch 2.10.
    exchange: Option<&'static ExchangeApi>,
    raw_stream: Option<Py<PyAny>>,
}

fn torch(py: Python<'_>) -> PyResult<&Torch> {
    static TORCH: PyOnceLock<Torch> = PyOnceLock::new();
    TORCH.get_or_try_init(py, || {
        let module = py.import("torch")?;
        let tensor: Bound<'_, PyType> = module.getattr("Tensor")?.cast_into()?;
        let raw_stream = module.getattr("_C")?.getattr("_cuda_getCurrentRawStream").ok().map(Bound::unbind);
        Ok(Torch { exchange: exchange_api(&tensor), tensor: tensor.unbind(), raw_stream })
    })
}

fn exchange_api(tensor: &Bound<'_, PyType>) -> Option<&'static ExchangeApi> {
    let attribute = tensor.getattr("__dlpack_c_exchange_api__").ok()?;
    let capsule = attribute.cast::<PyCapsule>().ok()?;
    let pointer = capsule.pointer_checked(Some(c"dlpack_exchange_api")).ok()?.cast::<ExchangeApi>();
    // SAFETY: torch guarantees that a capsule of this name holds a pointer to its static exchange table.
    let api = unsafe { pointer.as_ref() };
    (api.major == 1 && api.dltensor_from_py_object.is_some()).then_some(api)
}

/// Whether `object` is a `torch.Tensor`. The type itself is compared, since a mock may claim any `__class__`.
fn is_tensor(py: Python<'_>, torch: &Torch, object: &Bound<'_, PyAny>) -> bool {
    let class = object.get_type_ptr();
    let tensor = torch.tensor.bind(py).as_type_ptr();
    // SAFETY: both are valid type objects, and the interpreter is attached.
    class == tensor || unsafe { ffi::PyType_IsSubtype(class, tensor) } != 0
}

fn not_a_tensor(object: &Bound<'_, PyAny>, place: Place) -> Error {
    wrong_type(object, place, "torch.Tensor", "pass a torch tensor")
}

fn device_of(tensor: &Bound<'_, PyAny>) -> PyResult<Device> {
    let device = tensor.getattr("device")?;
    let index: Option<i32> = device.getattr("index")?.extract()?;
    let kind = DeviceKind::parse(device.getattr("type")?.extract()?);
    Ok(Device { kind, index: index.unwrap_or(0) })
}

/// A tensor as plain numbers.
pub fn spec(object: &Bound<'_, PyAny>, place: Place) -> Result<TensorSpec> {
    let py = object.py();
    let torch = torch(py)?;
    if !is_tensor(py, torch, object) {
        return Err(not_a_tensor(object, place).into());
    }
    if object.call_method0("is_neg")?.extract()? {
        return Err(Error::Layout {
            place,
            what: "negative bit",
            given: "set".to_string(),
            wanted: "not set".to_string(),
            remedy: "pass tensor.resolve_neg()",
        }
        .into());
    }
    match torch.exchange.and_then(|api| spec_by_exchange(api, object)) {
        Some(spec) => Ok(spec),
        None => spec_by_attributes(object, place),
    }
}

/// None for a tensor that this way does not read. Reading by attributes then says what is wrong with the tensor.
fn spec_by_exchange(api: &ExchangeApi, object: &Bound<'_, PyAny>) -> Option<TensorSpec> {
    let tensor = exchange(api, object)?;
    let rank = usize::try_from(tensor.ndim).ok()?;
    let dtype = if tensor.is_wide()? { DType::Int64 } else { DType::Int32 };
    if rank == 0 || tensor.strides.is_null() {
        return None;
    }
    // SAFETY: shape and strides have `ndim` entries each and live as long as the tensor.
    let (shape, strides) =
        unsafe { (std::slice::from_raw_parts(tensor.shape, rank), std::slice::from_raw_parts(tensor.strides, rank)) };
    let numbers = |values: &[i64]| values.iter().map(|&value| value as u64).collect();
    Some(TensorSpec {
        ptr: tensor.address(),
        dtype,
        device: tensor.device()?,
        shape: numbers(shape),
        strides: numbers(strides),
    })
}

fn spec_by_attributes(object: &Bound<'_, PyAny>, place: Place) -> Result<TensorSpec> {
    let layout = object.getattr("layout")?.str()?.to_string();
    if layout != "torch.strided" {
        return Err(Error::Layout {
            place,
            what: "layout",
            given: layout,
            wanted: "torch.strided".to_string(),
            remedy: "pass a dense tensor",
        }
        .into());
    }
    let name = object.getattr("dtype")?.str()?.to_string();
    let dtype = match name.strip_prefix("torch.").unwrap_or(&name) {
        "int32" => DType::Int32,
        "int64" => DType::Int64,
        other => DType::Other(other.to_string()),
    };
    Ok(TensorSpec {
        ptr: object.call_method0("data_ptr")?.extract()?,
        dtype,
        device: device_of(object)?,
        shape: object.getattr("shape")?.extract()?,
        strides: object.call_method0("stride")?.extract()?,
    })
}

/// A live vector of a call.
#[inline]
pub fn live(object: &Bound<'_, PyAny>, name: &'static str) -> Result<LiveVector> {
    let py = object.py();
    let torch = torch(py)?;
    if !is_tensor(py, torch, object) {
        return Err(not_a_tensor(object, Place::Argument(name)).into());
    }
    match torch.exchange.and_then(|api| live_by_exchange(api, object)) {
        Some(vector) => Ok(vector),
        None => live_by_attributes(object, name),
    }
}

/// Address of a tensor's first element, as `data_ptr` gives it.
#[inline]
pub fn address(object: &Bound<'_, PyAny>) -> PyResult<u64> {
    match torch(object.py())?.exchange.and_then(|api| exchange(api, object)) {
        Some(tensor) => Ok(tensor.address()),
        None => object.call_method0("data_ptr")?.extract(),
    }
}

impl DlTensor {
    /// Whether the elements are int64 rather than int32; None for any other type.
    #[inline]
    fn is_wide(&self) -> Option<bool> {
        match (self.code, self.bits, self.lanes) {
            (DL_INT, 32, 1) => Some(false),
            (DL_INT, 64, 1) => Some(true),
            _ => None,
        }
    }

    #[inline]
    fn device(&self) -> Option<Device> {
        match self.device_type {
            DL_CPU | DL_CUDA_HOST => Some(Device::CPU),
            DL_CUDA => Some(Device { kind: DeviceKind::Cuda, index: self.device_id }),
            _ => None,
        }
    }

    #[inline]
    fn address(&self) -> u64 {
        self.data as u64 + self.byte_offset
    }
}

/// A tensor by the exchange table; None for a tensor that has no DLPack form, such as a meta or sparse tensor.
#[inline]
fn exchange(api: &ExchangeApi, object: &Bound<'_, PyAny>) -> Option<DlTensor> {
    let read = api.dltensor_from_py_object?;
    let mut tensor = std::mem::MaybeUninit::<DlTensor>::uninit();
    // SAFETY: the object is a torch.Tensor, and torch fills the struct unless it reports an error.
    if unsafe { read(object.as_ptr().cast(), tensor.as_mut_ptr()) } != 0 {
        // Reading by attributes says what is wrong, so torch's own error is dropped.
        drop(PyErr::take(object.py()));
        return None;
    }
    // SAFETY: filled by the call above.
    Some(unsafe { tensor.assume_init() })
}

/// None for a tensor that this way does not read. Reading by attributes then says what is wrong with the tensor.
#[inline]
fn live_by_exchange(api: &ExchangeApi, object: &Bound<'_, PyAny>) -> Option<LiveVector> {
    let tensor = exchange(api, object)?;
    if tensor.ndim != 1 {
        return None;
    }
    // SAFETY: shape and strides have ndim = 1 entries and live as long as the tensor; a null `strides` means compact.
    let (len, stride) = unsafe { (*tensor.shape, if tensor.strides.is_null() { 1 } else { *tensor.strides }) };
    Some(LiveVector {
        ptr: tensor.address(),
        len: len as u64,
        stride: stride as u64,
        wide: tensor.is_wide()?,
        device: tensor.device()?,
    })
}

/// Reads by Python attributes, as every torch allows. Slower, and says what is wrong with a tensor.
fn live_by_attributes(object: &Bound<'_, PyAny>, name: &'static str) -> Result<LiveVector> {
    let place = Place::Argument(name);
    let spec = spec_by_attributes(object, place)?;
    let wide = match &spec.dtype {
        DType::Int32 => false,
        DType::Int64 => true,
        DType::Other(other) => {
            return Err(Error::Layout {
                place,
                what: "dtype",
                given: other.clone(),
                wanted: "int32 or int64".to_string(),
                remedy: "pass integer lengths and slots",
            }
            .into());
        }
    };
    let [len] = spec.shape[..] else {
        return Err(Error::Layout {
            place,
            what: "shape",
            given: format!("{:?}", spec.shape),
            wanted: "[batch]".to_string(),
            remedy: "pass a one-dimensional tensor",
        }
        .into());
    };
    Ok(LiveVector { ptr: spec.ptr, len, stride: spec.strides[0], wide, device: spec.device })
}

/// The current stream of a device. The stream may change between calls, so each call asks.
#[inline]
pub fn current_stream(py: Python<'_>, device: Device, by_exchange: bool) -> Result<Handle> {
    let torch = torch(py)?;
    if by_exchange && let Some(ask) = torch.exchange.and_then(|api| api.current_work_stream) {
        let kind = if device.kind == DeviceKind::Cuda { DL_CUDA } else { DL_CPU };
        let mut stream: *mut c_void = std::ptr::null_mut();
        // SAFETY: writes one handle unless it reports an error.
        if unsafe { ask(kind, device.index, &mut stream) } != 0 {
            return Err(PyErr::fetch(py).into());
        }
        return Ok(stream as Handle);
    }
    match (&torch.raw_stream, device.kind) {
        (Some(ask), DeviceKind::Cuda) => Ok(ask.call1(py, (device.index,))?.extract(py)?),
        _ => Ok(0),
    }
}

/// Whether the exchange table names the same current stream as torch itself. If not, torch is asked for streams.
pub fn exchange_names_streams(py: Python<'_>, device: Device) -> bool {
    let Ok(torch) = torch(py) else { return false };
    if torch.exchange.and_then(|api| api.current_work_stream).is_none() {
        return false;
    }
    match (current_stream(py, device, true), current_stream(py, device, false)) {
        (Ok(exchange), Ok(own)) => exchange == own,
        _ => false,
    }
}
