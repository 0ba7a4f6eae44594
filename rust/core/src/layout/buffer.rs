//! One output buffer: validation, extent and overlap.

use super::checks::{check_address, check_extent, check_stride, dims};
use crate::contract::{Field, limits};
use crate::error::{Error, Place, Result};
use crate::tensor::{ByteRange, DType, Device, TensorSpec};

/// A validated output buffer: `rows` rows of `cols` consecutive elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buffer {
    /// Address of the first element.
    pub ptr: u64,
    /// Rows of the buffer.
    pub rows: u64,
    /// Elements of a row; 1 for a vector.
    pub cols: u64,
    /// Elements from a row to the next; 1 for a vector.
    pub row_stride: u64,
}

impl Buffer {
    /// Validates one output buffer.
    ///
    /// # Errors
    /// [`Error::Layout`] for a wrong dtype, device, rank, stride, extent or alignment.
    pub fn new(step: usize, field: Field, spec: &TensorSpec, device: Device) -> Result<Buffer> {
        let place = Place::Step { step, field: field.name() };
        let dtype = field.dtype();
        if spec.dtype != dtype {
            return Err(Error::layout(place, "dtype", &spec.dtype, dtype, "allocate the buffer with that dtype"));
        }
        if spec.device != device {
            let remedy = "keep every buffer on the request table's device";
            return Err(Error::layout(place, "device", spec.device, device, remedy));
        }
        if spec.shape.len() != field.rank() || spec.strides.len() != field.rank() {
            let wanted = if field.rank() == 1 { "[rows]" } else { "[rows, columns]" };
            return Err(Error::layout(place, "shape", dims(&spec.shape), wanted, "pass a view of that rank"));
        }
        check_extent(place, spec)?;
        check_address(place, spec)?;
        let rows = spec.shape[0];
        let (cols, row_stride) = if field.rank() == 1 { vector(place, spec)? } else { matrix(place, spec)? };
        let most = limits::STRIDE_BYTES / dtype.size();
        if rows > 1 && cols > most {
            let remedy = "slice the buffer to the columns that are read";
            return Err(Error::layout(place, "columns", cols, format!("at most {most}"), remedy));
        }
        let buffer = Buffer { ptr: spec.ptr, rows, cols, row_stride };
        let remedy = "pass a buffer whose rows are closer to each other";
        check_stride(place, "row stride", buffer.row_bytes(&dtype), remedy)?;
        Ok(buffer)
    }

    /// Bytes from the first element to the last; empty for an empty buffer.
    pub const fn byte_range(&self, dtype: &DType) -> ByteRange {
        let span = if self.rows == 0 || self.cols == 0 { 0 } else { (self.rows - 1) * self.row_stride + self.cols };
        ByteRange { start: self.ptr, end: self.ptr + span * dtype.size() }
    }

    /// Bytes from a row to the next; 0 where there is no next row.
    pub const fn row_bytes(&self, dtype: &DType) -> u64 {
        if self.rows > 1 { self.row_stride.saturating_mul(dtype.size()) } else { 0 }
    }

    /// Whether this buffer and another share a byte. Rows of two buffers may interleave (two column slices of one
    /// tensor), so buffers whose ranges overlap are compared row by row.
    pub fn overlaps(&self, dtype: &DType, other: &Buffer, other_dtype: &DType) -> bool {
        if !self.byte_range(dtype).overlaps(&other.byte_range(other_dtype)) {
            return false;
        }
        let (pitch, other_pitch) = (self.row_bytes(dtype), other.row_bytes(other_dtype));
        let (width, other_width) = (self.cols * dtype.size(), other.cols * other_dtype.size());
        if pitch == other_pitch && self.rows > 1 && other.rows > 1 && pitch != 0 {
            // Rows of one pitch meet only if their places within the pitch do.
            let ahead = (other.ptr % pitch + pitch - self.ptr % pitch) % pitch;
            return ahead < width || pitch - ahead < other_width;
        }
        let (mut i, mut j) = (0, 0);
        while i < self.rows && j < other.rows {
            let row = self.ptr + i * pitch;
            let other_row = other.ptr + j * other_pitch;
            if row < other_row + other_width && other_row < row + width {
                return true;
            }
            if row < other_row { i += 1 } else { j += 1 }
        }
        false
    }
}

/// Columns and row stride of a vector.
fn vector(place: Place, spec: &TensorSpec) -> Result<(u64, u64)> {
    if spec.shape[0] > 1 && spec.strides[0] != 1 {
        return Err(Error::layout(place, "stride", spec.strides[0], 1, "pass a contiguous vector"));
    }
    Ok((1, 1))
}

/// Columns and row stride of a matrix.
fn matrix(place: Place, spec: &TensorSpec) -> Result<(u64, u64)> {
    let (rows, cols) = (spec.shape[0], spec.shape[1]);
    let [row_stride, col_stride] = [spec.strides[0], spec.strides[1]];
    if cols > 1 && col_stride != 1 {
        let remedy = "pass a buffer whose rows are contiguous";
        return Err(Error::layout(place, "column stride", col_stride, 1, remedy));
    }
    if rows > 1 && row_stride < cols {
        let remedy = "pass a buffer whose rows do not share memory";
        return Err(Error::layout(place, "row stride", row_stride, format!("at least {cols}"), remedy));
    }
    // The stride of a single row is never used. A fixed value keeps equal layouts equal.
    Ok((cols, if rows > 1 { row_stride } else { cols }))
}
