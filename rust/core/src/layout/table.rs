//! The request table and its constants: validation, extent and overlap.

use super::Buffer;
use super::checks::{check_address, check_extent, check_stride, dims};
use crate::contract::limits;
use crate::error::{Error, Place, Result};
use crate::tensor::{ByteRange, DType, Device, DeviceKind, TensorSpec};

/// The validated request table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableLayout {
    /// Device of the table.
    pub device: Device,
    /// Address of entry \[0, 0\].
    pub ptr: u64,
    /// Request slots.
    pub slots: u64,
    /// Tokens of a slot.
    pub width: u64,
    /// Elements from a slot to the next; 0 where there is one slot.
    pub row_stride: u64,
    /// Elements from a token to the next; 0 where a slot has one token.
    pub col_stride: u64,
    /// Tokens of a compressed group.
    pub compress_ratio: u64,
    /// Full-KV tokens of a page.
    pub page_size: u64,
    /// Entries of a request's pending ring.
    pub ring_size: u64,
}

impl TableLayout {
    /// Validates the request table and its constants. Without a `ring_size` the ring has `compress_ratio` entries.
    ///
    /// # Errors
    /// [`Error::Layout`] naming `req_to_token`, `compress_ratio`, `page_size` or `ring_size`.
    pub fn new(spec: &TensorSpec, compress_ratio: i64, page_size: i64, ring_size: Option<i64>) -> Result<TableLayout> {
        let ring_size = ring_size.unwrap_or(compress_ratio);
        check_constants(compress_ratio, page_size, ring_size)?;
        let place = Place::Argument("req_to_token");
        check_form(place, spec)?;
        let (slots, width) = (spec.shape[0], spec.shape[1]);
        // A dimension of size 1 has no stride of its own.
        let row_stride = if slots > 1 { spec.strides[0] } else { 0 };
        let col_stride = if width > 1 { spec.strides[1] } else { 0 };
        let table = TableLayout {
            device: spec.device,
            ptr: spec.ptr,
            slots,
            width,
            row_stride,
            col_stride,
            compress_ratio: compress_ratio as u64,
            page_size: page_size as u64,
            ring_size: ring_size as u64,
        };
        if !table.entries_are_apart() {
            let wanted = if col_stride <= row_stride.max(1) {
                format!("a row stride of at least {}", (width - 1) * col_stride.max(1) + 1)
            } else {
                format!("a column stride of at least {}", (slots - 1) * row_stride.max(1) + 1)
            };
            let remedy = "pass a table whose entries do not share memory, slots apart from each other, or tokens";
            return Err(Error::layout(place, "strides", dims(&spec.strides), wanted, remedy));
        }
        for (what, bytes) in [("row stride", table.row_bytes()), ("column stride", table.col_bytes())] {
            check_stride(place, what, bytes, "pass a table whose entries are closer to each other")?;
        }
        Ok(table)
    }

    /// Bytes from a slot to the next; 0 where there is one slot.
    pub const fn row_bytes(&self) -> u64 {
        self.row_stride.saturating_mul(4)
    }

    /// Bytes from a token to the next; 0 where a slot has one token.
    pub const fn col_bytes(&self) -> u64 {
        self.col_stride.saturating_mul(4)
    }

    /// Bytes from the first entry to the last.
    pub const fn byte_range(&self) -> ByteRange {
        let last = (self.slots - 1) * self.row_stride + (self.width - 1) * self.col_stride;
        ByteRange { start: self.ptr, end: self.ptr + (last + 1) * 4 }
    }

    /// Pages of a slot that the table holds in full.
    pub const fn pages(&self) -> u64 {
        self.width / self.page_size
    }

    /// Whether a buffer shares memory with the table. A transposed table counts as a whole.
    pub(super) fn overlaps(&self, buffer: &Buffer, dtype: &DType) -> bool {
        if self.col_stride <= 1 {
            let rows = Buffer { ptr: self.ptr, rows: self.slots, cols: self.width, row_stride: self.row_stride };
            return rows.overlaps(&DType::Int32, buffer, dtype);
        }
        buffer.byte_range(dtype).overlaps(&self.byte_range())
    }

    /// Whether no two entries share memory: the larger stride spans the whole other dimension.
    fn entries_are_apart(&self) -> bool {
        let (slots, width, row, col) = (self.slots, self.width, self.row_stride, self.col_stride);
        if slots == 1 || width == 1 {
            (slots == 1 || row > 0) && (width == 1 || col > 0)
        } else if row >= col {
            col > 0 && row > (width - 1) * col
        } else {
            row > 0 && col > (slots - 1) * row
        }
    }
}

fn check_constants(compress_ratio: i64, page_size: i64, ring_size: i64) -> Result<()> {
    if !(1..=limits::RATIO).contains(&compress_ratio) {
        return Err(Error::layout(
            Place::Argument("compress_ratio"),
            "value",
            compress_ratio,
            format!("from 1 to {}", limits::RATIO),
            "pass the model's compress ratio",
        ));
    }
    let multiples = [
        ("page_size", page_size, "pass the full-KV page size in tokens"),
        ("ring_size", ring_size, "pass the entries of a request's pending ring, or None for one group"),
    ];
    for (name, value, remedy) in multiples {
        if !(1..=limits::RATIO).contains(&value) || value % compress_ratio != 0 {
            let wanted = format!("a multiple of compress_ratio {compress_ratio} from 1 to {}", limits::RATIO);
            return Err(Error::layout(Place::Argument(name), "value", value, wanted, remedy));
        }
    }
    Ok(())
}

fn check_form(place: Place, spec: &TensorSpec) -> Result<()> {
    if spec.device.kind == DeviceKind::Other("meta") {
        let remedy = "pass the engine's table itself";
        return Err(Error::layout(place, "device", spec.device, "one that holds data", remedy));
    }
    if spec.dtype != DType::Int32 {
        let remedy = "pass the engine's int32 request table";
        return Err(Error::layout(place, "dtype", &spec.dtype, DType::Int32, remedy));
    }
    if spec.shape.len() != 2 || spec.strides.len() != 2 {
        let remedy = "pass the two-dimensional request table";
        return Err(Error::layout(place, "shape", dims(&spec.shape), "[slots, width]", remedy));
    }
    check_extent(place, spec)?;
    check_address(place, spec)?;
    let (slots, width) = (spec.shape[0], spec.shape[1]);
    if slots == 0 || width == 0 {
        let remedy = "pass a table that holds slot 0, which padding rows read";
        return Err(Error::layout(place, "shape", dims(&spec.shape), "at least [1, 1]", remedy));
    }
    if width > limits::WIDTH || slots > limits::WIDTH {
        let wanted = format!("at most {} a dimension", limits::WIDTH);
        let remedy = "pass a table of fewer; row lengths and slots are int32";
        return Err(Error::layout(place, "shape", dims(&spec.shape), wanted, remedy));
    }
    Ok(())
}
