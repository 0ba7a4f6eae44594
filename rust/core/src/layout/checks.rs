//! Checks that buffers and the request table share.

use crate::contract::limits;
use crate::error::{Error, Place, Result};
use crate::tensor::TensorSpec;

/// Sizes or strides as text.
pub fn dims(values: &[u64]) -> String {
    let parts: Vec<String> = values.iter().map(u64::to_string).collect();
    format!("[{}]", parts.join(", "))
}

/// Checks that the bytes of a tensor lie within the address space. Later arithmetic on addresses cannot wrap then.
pub fn check_extent(place: Place, spec: &TensorSpec) -> Result<()> {
    let span = spec
        .shape
        .iter()
        .zip(&spec.strides)
        .try_fold(0u64, |sum, (&n, &stride)| sum.checked_add(n.saturating_sub(1).checked_mul(stride)?))
        .and_then(|last| last.checked_add(1)?.checked_mul(spec.dtype.size()))
        .and_then(|bytes| bytes.checked_add(spec.ptr));
    match span {
        Some(end) if end <= i64::MAX as u64 => Ok(()),
        _ => Err(Error::layout(
            place,
            "extent",
            format!("{} x {}", dims(&spec.shape), dims(&spec.strides)),
            "within the address space",
            "pass a tensor whose shape and strides are real",
        )),
    }
}

/// Checks that a tensor with elements has memory, and that its address is a multiple of the element size.
pub fn check_address(place: Place, spec: &TensorSpec) -> Result<()> {
    if spec.ptr == 0 && !spec.shape.contains(&0) {
        return Err(Error::layout(
            place,
            "address",
            0,
            "that of the tensor's memory",
            "pass a tensor that has storage of its own",
        ));
    }
    if !spec.ptr.is_multiple_of(spec.dtype.size().max(1)) {
        return Err(Error::layout(
            place,
            "address",
            format!("{:#x}", spec.ptr),
            format!("a multiple of {} bytes", spec.dtype.size()),
            "pass a tensor whose memory is aligned to its elements",
        ));
    }
    Ok(())
}

/// Checks a stride in bytes against [`limits::STRIDE_BYTES`].
pub fn check_stride(place: Place, what: &'static str, bytes: u64, remedy: &'static str) -> Result<()> {
    if bytes <= limits::STRIDE_BYTES {
        return Ok(());
    }
    let wanted = format!("at most {} bytes", limits::STRIDE_BYTES);
    Err(Error::layout(place, what, format!("{bytes} bytes"), wanted, remedy))
}
