//! One step's buffers, the request table and a plan request as plain data, and their validation.
//!
//! Strides and sizes are in elements, addresses in bytes.

use crate::error::{Error, Place, Result};

/// Buffers of a step, in the order in which every table of this crate lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Field {
    /// Row length n, int32 \[rows\].
    SequenceLengths,
    /// Request slot of the row, int32 \[rows\].
    RowReqPoolIndices,
    /// Tokens before the rows of this pass, int32 \[rows\].
    PrefixLengths,
    /// n // ratio, int32 \[rows\].
    CompressedLengths,
    /// Compressed slot that a completed group is written to, int32 \[rows\].
    WriteLocs,
    /// n - 1, int32 \[rows\].
    LogicalPositions,
    /// Slot of the row's token in the pending ring, int64 \[rows\].
    PendingRingSlots,
    /// Ring slots of the row's group, int32 \[rows, ratio\].
    RingGroupLocs,
    /// Full-KV page ids, int32 \[rows, max_pages\].
    PageTable,
}

/// Number of buffers that a step may have.
pub const NUM_FIELDS: usize = 9;

/// Most steps that one launch takes. The kernel's code has a part for each, and its compile time grows faster than their
/// number: 2 s at 7 steps, 5 s at 16, 21 s at 32 (two cores).
pub const MAX_GROUP_STEPS: usize = 16;

/// Most rows of a bucket, so that 1,024 extend lengths add up within 31 bits.
pub const MAX_ROWS: u64 = 1 << 20;

/// Most tokens of a slot, and most slots: the kernel computes with both in 32 bits, and so many are as far from each other
/// as [`MAX_STRIDE_BYTES`] allows.
pub const MAX_WIDTH: u64 = (1 << 30) - 1;

/// Most bytes from a row or an element to the next, where there is a next one: the kernel takes strides in 32 bits.
pub const MAX_STRIDE_BYTES: u64 = u32::MAX as u64;

/// Most tokens of a compressed group and of a page: what is divided by them is int32.
pub const MAX_RATIO: i64 = i32::MAX as i64;
/// Most tokens that a step may add to a length.
pub const MAX_OFFSET: i64 = 1 << 29;

impl Field {
    /// Every buffer, in order.
    pub const ALL: [Field; NUM_FIELDS] = [
        Field::SequenceLengths,
        Field::RowReqPoolIndices,
        Field::PrefixLengths,
        Field::CompressedLengths,
        Field::WriteLocs,
        Field::LogicalPositions,
        Field::PendingRingSlots,
        Field::RingGroupLocs,
        Field::PageTable,
    ];

    /// The name users know it by.
    pub const fn name(self) -> &'static str {
        match self {
            Field::SequenceLengths => "sequence_lengths",
            Field::RowReqPoolIndices => "row_req_pool_indices",
            Field::PrefixLengths => "prefix_lengths",
            Field::CompressedLengths => "compressed_lengths",
            Field::WriteLocs => "write_locs",
            Field::LogicalPositions => "logical_positions",
            Field::PendingRingSlots => "pending_ring_slots",
            Field::RingGroupLocs => "ring_group_locs",
            Field::PageTable => "page_table",
        }
    }

    /// The dtype it must have.
    pub const fn dtype(self) -> DType {
        match self {
            Field::PendingRingSlots => DType::Int64,
            _ => DType::Int32,
        }
    }

    /// Number of dimensions it must have.
    pub const fn rank(self) -> usize {
        match self {
            Field::RingGroupLocs | Field::PageTable => 2,
            _ => 1,
        }
    }
}

/// Element type of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit signed integers.
    Int32,
    /// 64-bit signed integers.
    Int64,
    /// Anything else, by name; always refused.
    Other(String),
}

impl DType {
    /// Bytes of an element; 0 for a type that is refused anyway.
    pub const fn size(&self) -> u64 {
        match self {
            DType::Int32 => 4,
            DType::Int64 => 8,
            DType::Other(_) => 0,
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            DType::Int32 => "int32",
            DType::Int64 => "int64",
            DType::Other(name) => name,
        })
    }
}

/// Kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// Host memory.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// Anything else, by torch's name for it; nothing runs there.
    Other(&'static str),
}

impl DeviceKind {
    /// The kind by torch's name for it.
    pub fn parse(name: &str) -> DeviceKind {
        const KNOWN: [&str; 7] = ["meta", "xpu", "mps", "hpu", "npu", "xla", "privateuseone"];
        match name {
            "cpu" => DeviceKind::Cpu,
            "cuda" => DeviceKind::Cuda,
            _ => DeviceKind::Other(KNOWN.into_iter().find(|&known| known == name).unwrap_or("other")),
        }
    }

    /// A number for each kind that plans can be made for.
    pub const fn code(self) -> u64 {
        match self {
            DeviceKind::Cpu => 0,
            DeviceKind::Cuda => 1,
            DeviceKind::Other(_) => 2,
        }
    }
}

/// A device that tensors live on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    /// Its kind.
    pub kind: DeviceKind,
    /// Its index; 0 for the CPU.
    pub index: i32,
}

impl Device {
    /// Host memory.
    pub const CPU: Device = Device { kind: DeviceKind::Cpu, index: 0 };
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            DeviceKind::Cpu => f.write_str("cpu"),
            DeviceKind::Cuda => write!(f, "cuda:{}", self.index),
            DeviceKind::Other(name) => write!(f, "{name}:{}", self.index),
        }
    }
}

/// A tensor as plain numbers, before validation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorSpec {
    /// Address of the first element.
    pub ptr: u64,
    /// Element type.
    pub dtype: DType,
    /// Device it lives on.
    pub device: Device,
    /// Size of each dimension.
    pub shape: Vec<u64>,
    /// Stride of each dimension, in elements.
    pub strides: Vec<u64>,
}

/// A validated output buffer: `rows` rows of `cols` consecutive elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buffer {
    /// Address of the first element.
    pub ptr: u64,
    /// Rows.
    pub rows: u64,
    /// Elements of a row; 1 for a vector.
    pub cols: u64,
    /// Elements from a row to the next; 1 for a vector.
    pub row_stride: u64,
}

/// A half-open range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

impl ByteRange {
    /// Whether the two share a byte.
    pub const fn overlaps(&self, other: &ByteRange) -> bool {
        self.start < other.end && other.start < self.end
    }
}

impl Buffer {
    /// Bytes from the first element to the last; empty for an empty buffer.
    pub const fn byte_range(&self, dtype: &DType) -> ByteRange {
        let span = if self.rows == 0 || self.cols == 0 { 0 } else { (self.rows - 1) * self.row_stride + self.cols };
        ByteRange { start: self.ptr, end: self.ptr + span * dtype.size() }
    }

    /// Bytes from a row to the next; 0 where there is no next one.
    pub const fn row_bytes(&self, dtype: &DType) -> u64 {
        if self.rows > 1 { self.row_stride.saturating_mul(dtype.size()) } else { 0 }
    }

    /// Whether writing this buffer and the other touches a common byte. Rows may interleave (two column
    /// slices of one tensor), so ranges that overlap are compared row by row.
    pub fn overlaps(&self, dtype: &DType, other: &Buffer, other_dtype: &DType) -> bool {
        let (a, b) = (self.byte_range(dtype), other.byte_range(other_dtype));
        if !a.overlaps(&b) {
            return false;
        }
        let (sa, sb) = (self.row_bytes(dtype), other.row_bytes(other_dtype));
        let (wa, wb) = (self.cols * dtype.size(), other.cols * other_dtype.size());
        if sa == sb && self.rows > 1 && other.rows > 1 && sa != 0 {
            // Rows of one pitch: they meet only if their positions within the pitch do.
            let (oa, ob) = (self.ptr % sa, other.ptr % sb);
            let forward = (ob + sa - oa) % sa;
            return forward < wa || sa - forward < wb;
        }
        let (mut i, mut j) = (0, 0);
        while i < self.rows && j < other.rows {
            let ra = self.ptr + i * sa;
            let rb = other.ptr + j * sb;
            if ra < rb + wb && rb < ra + wa {
                return true;
            }
            if ra < rb { i += 1 } else { j += 1 }
        }
        false
    }
}

/// One step's validated layout.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StepLayout {
    /// Device of every buffer.
    pub device: Device,
    /// Added to the live length of a request to give the row's length; decode mode only.
    pub offset: i64,
    /// Rows of every buffer.
    pub rows: u64,
    /// The buffers, in the order of [`Field::ALL`]; an absent one is not computed.
    pub buffers: [Option<Buffer>; NUM_FIELDS],
}

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
    /// Elements from a slot to the next.
    pub row_stride: u64,
    /// Elements from a token to the next.
    pub col_stride: u64,
    /// Tokens of a compressed group.
    pub compress_ratio: u64,
    /// Full-KV tokens of a page.
    pub page_size: u64,
}

/// How rows are laid out over requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// One row a request, at its length plus the step's offset.
    Decode,
    /// `draft_token_num` rows a request.
    TargetVerify {
        /// Rows of a request.
        draft_token_num: u32,
    },
    /// `extend_lens[q]` rows of request q, packed.
    DraftExtend,
}

/// Which requests are padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Padding {
    /// The last `num_padding` ones.
    Count,
    /// Those with request slot 0, and the last `num_padding` ones.
    Slot,
}

/// The status word's bits: why rows of a refresh were made inert or dropped.
pub mod status {
    /// A request slot outside the table.
    pub const SLOT_OUT_OF_TABLE: i32 = 1;
    /// A row length of 0 or less.
    pub const LENGTH_NOT_POSITIVE: i32 = 2;
    /// A row length past the table's width.
    pub const LENGTH_EXCEEDS_TABLE: i32 = 4;
    /// More packed rows than the bucket holds.
    pub const ROWS_EXCEED_BUCKET: i32 = 8;
    /// A negative extend length, taken as 0.
    pub const EXTEND_LENGTH_NEGATIVE: i32 = 16;
}

fn layout_error(
    place: Place,
    what: &'static str,
    given: impl ToString,
    wanted: impl ToString,
    remedy: &'static str,
) -> Error {
    Error::Layout { place, what, given: given.to_string(), wanted: wanted.to_string(), remedy }
}

fn dims(values: &[u64]) -> String {
    let parts: Vec<String> = values.iter().map(u64::to_string).collect();
    format!("[{}]", parts.join(", "))
}

/// Checks that the byte extent of a tensor fits the address space, so that later arithmetic cannot wrap.
fn check_extent(place: Place, spec: &TensorSpec) -> Result<()> {
    let span = spec
        .shape
        .iter()
        .zip(&spec.strides)
        .try_fold(0u64, |sum, (&n, &s)| sum.checked_add(n.saturating_sub(1).checked_mul(s)?))
        .and_then(|last| last.checked_add(1)?.checked_mul(spec.dtype.size()))
        .and_then(|bytes| bytes.checked_add(spec.ptr));
    match span {
        Some(end) if end <= i64::MAX as u64 => Ok(()),
        _ => Err(layout_error(
            place,
            "extent",
            format!("{} x {}", dims(&spec.shape), dims(&spec.strides)),
            "within the address space",
            "pass a tensor whose shape and strides are real",
        )),
    }
}

/// Address and memory: a tensor with elements must have memory behind it, aligned to them.
fn check_address(place: Place, spec: &TensorSpec) -> Result<()> {
    if spec.ptr == 0 && !spec.shape.contains(&0) {
        return Err(layout_error(
            place,
            "address",
            0,
            "that of the tensor's memory",
            "pass a tensor that has storage of its own",
        ));
    }
    if !spec.ptr.is_multiple_of(spec.dtype.size().max(1)) {
        return Err(layout_error(
            place,
            "address",
            format!("{:#x}", spec.ptr),
            format!("a multiple of {} bytes", spec.dtype.size()),
            "pass a tensor whose memory is aligned to its elements",
        ));
    }
    Ok(())
}

/// Checks a stride, in bytes, against what the kernel takes.
fn check_stride(place: Place, what: &'static str, bytes: u64, remedy: &'static str) -> Result<()> {
    if bytes <= MAX_STRIDE_BYTES {
        return Ok(());
    }
    let wanted = format!("at most {MAX_STRIDE_BYTES} bytes");
    Err(layout_error(place, what, format!("{bytes} bytes"), wanted, remedy))
}

impl Buffer {
    /// Validates one output buffer.
    ///
    /// # Errors
    /// [`Error::Layout`] for a wrong dtype, device, rank, stride, extent or alignment.
    pub fn new(step: usize, field: Field, spec: &TensorSpec, device: Device) -> Result<Buffer> {
        let place = Place::Buffer { step, field };
        if spec.dtype != field.dtype() {
            return Err(layout_error(
                place,
                "dtype",
                &spec.dtype,
                field.dtype(),
                "allocate the buffer with that dtype",
            ));
        }
        if spec.device != device {
            return Err(layout_error(
                place,
                "device",
                spec.device,
                device,
                "keep every buffer on the request table's device",
            ));
        }
        if spec.shape.len() != field.rank() || spec.strides.len() != field.rank() {
            return Err(layout_error(
                place,
                "shape",
                dims(&spec.shape),
                if field.rank() == 1 { "[rows]" } else { "[rows, columns]" },
                "pass a view of that rank",
            ));
        }
        check_extent(place, spec)?;
        check_address(place, spec)?;
        let rows = spec.shape[0];
        let (cols, row_stride) = if field.rank() == 1 {
            if rows > 1 && spec.strides[0] != 1 {
                return Err(layout_error(place, "stride", spec.strides[0], 1, "pass a contiguous vector"));
            }
            (1, 1)
        } else {
            let cols = spec.shape[1];
            if cols > 1 && spec.strides[1] != 1 {
                return Err(layout_error(
                    place,
                    "column stride",
                    spec.strides[1],
                    1,
                    "pass a buffer whose rows are contiguous",
                ));
            }
            if rows > 1 && spec.strides[0] < cols {
                return Err(layout_error(
                    place,
                    "row stride",
                    spec.strides[0],
                    format!("at least {cols}"),
                    "pass a buffer whose rows do not share memory",
                ));
            }
            // The stride of a single row is never used; a fixed value keeps equal layouts equal.
            (cols, if rows > 1 { spec.strides[0] } else { cols })
        };
        let buffer = Buffer { ptr: spec.ptr, rows, cols, row_stride };
        let most = MAX_STRIDE_BYTES / spec.dtype.size();
        if rows > 1 && cols > most {
            return Err(layout_error(
                place,
                "columns",
                cols,
                format!("at most {most}"),
                "slice the buffer to the columns that are read",
            ));
        }
        check_stride(
            place,
            "row stride",
            buffer.row_bytes(&spec.dtype),
            "pass a buffer whose rows are closer to each other",
        )?;
        Ok(buffer)
    }
}

impl TableLayout {
    /// Validates the request table and its two constants.
    ///
    /// # Errors
    /// [`Error::Layout`] naming `req_to_token`, `compress_ratio` or `page_size`.
    pub fn new(spec: &TensorSpec, compress_ratio: i64, page_size: i64) -> Result<TableLayout> {
        if !(1..=MAX_RATIO).contains(&compress_ratio) {
            return Err(layout_error(
                Place::Argument("compress_ratio"),
                "value",
                compress_ratio,
                format!("from 1 to {MAX_RATIO}"),
                "pass the model's compress ratio",
            ));
        }
        if !(1..=MAX_RATIO).contains(&page_size) || page_size % compress_ratio != 0 {
            return Err(layout_error(
                Place::Argument("page_size"),
                "value",
                page_size,
                format!("a multiple of compress_ratio {compress_ratio} from 1 to {MAX_RATIO}"),
                "pass the full-KV page size in tokens",
            ));
        }
        let place = Place::Argument("req_to_token");
        if spec.device.kind == DeviceKind::Other("meta") {
            return Err(layout_error(
                place,
                "device",
                spec.device,
                "one that holds data",
                "pass the engine's table itself",
            ));
        }
        if spec.dtype != DType::Int32 {
            return Err(layout_error(
                place,
                "dtype",
                &spec.dtype,
                DType::Int32,
                "pass the engine's int32 request table",
            ));
        }
        if spec.shape.len() != 2 || spec.strides.len() != 2 {
            return Err(layout_error(
                place,
                "shape",
                dims(&spec.shape),
                "[slots, width]",
                "pass the two-dimensional request table",
            ));
        }
        check_extent(place, spec)?;
        check_address(place, spec)?;
        let (slots, width) = (spec.shape[0], spec.shape[1]);
        if slots == 0 || width == 0 {
            return Err(layout_error(
                place,
                "shape",
                dims(&spec.shape),
                "at least [1, 1]",
                "pass a table that holds slot 0, which padding rows read",
            ));
        }
        if width > MAX_WIDTH || slots > MAX_WIDTH {
            return Err(layout_error(
                place,
                "shape",
                dims(&spec.shape),
                format!("at most {MAX_WIDTH} a dimension"),
                "pass a table of fewer; row lengths and slots are int32",
            ));
        }
        // A dimension of size 1 has no stride of its own.
        let row_stride = if slots > 1 { spec.strides[0] } else { 0 };
        let col_stride = if width > 1 { spec.strides[1] } else { 0 };
        let apart = if slots == 1 || width == 1 {
            (slots == 1 || row_stride > 0) && (width == 1 || col_stride > 0)
        } else if row_stride >= col_stride {
            col_stride > 0 && row_stride > (width - 1) * col_stride
        } else {
            row_stride > 0 && col_stride > (slots - 1) * row_stride
        };
        if !apart {
            return Err(layout_error(
                place,
                "strides",
                dims(&spec.strides),
                if col_stride <= row_stride.max(1) {
                    format!("a row stride of at least {}", (width - 1) * col_stride.max(1) + 1)
                } else {
                    format!("a column stride of at least {}", (slots - 1) * row_stride.max(1) + 1)
                },
                "pass a table whose entries do not share memory, slots apart from each other, or tokens",
            ));
        }
        let table = TableLayout {
            device: spec.device,
            ptr: spec.ptr,
            slots,
            width,
            row_stride,
            col_stride,
            compress_ratio: compress_ratio as u64,
            page_size: page_size as u64,
        };
        for (what, bytes) in [("row stride", table.row_bytes()), ("column stride", table.col_bytes())] {
            check_stride(place, what, bytes, "pass a table whose entries are closer to each other")?;
        }
        Ok(table)
    }

    /// Bytes from a slot to the next; 0 where there is no next one, as [`TableLayout::new`] has it.
    pub const fn row_bytes(&self) -> u64 {
        self.row_stride.saturating_mul(4)
    }

    /// Bytes from a token to the next; 0 where there is no next one.
    pub const fn col_bytes(&self) -> u64 {
        self.col_stride.saturating_mul(4)
    }

    /// Whether a buffer shares memory with the table. A transposed table counts as a whole.
    fn overlaps(&self, buffer: &Buffer, dtype: &DType) -> bool {
        if self.col_stride <= 1 {
            let rows = Buffer { ptr: self.ptr, rows: self.slots, cols: self.width, row_stride: self.row_stride };
            return rows.overlaps(&DType::Int32, buffer, dtype);
        }
        buffer.byte_range(dtype).overlaps(&self.byte_range())
    }

    /// Bytes from the first entry to the last.
    pub const fn byte_range(&self) -> ByteRange {
        let last = (self.slots - 1) * self.row_stride + (self.width - 1) * self.col_stride;
        ByteRange { start: self.ptr, end: self.ptr + (last + 1) * 4 }
    }
}

impl StepLayout {
    /// Validates one step against the request table.
    ///
    /// # Errors
    /// [`Error::Layout`] with the step and the field; [`Error::Capacity`] for more rows than [`MAX_ROWS`].
    pub fn new(
        step: usize,
        offset: i64,
        specs: &[Option<TensorSpec>; NUM_FIELDS],
        table: &TableLayout,
    ) -> Result<StepLayout> {
        if !(0..=MAX_OFFSET).contains(&offset) {
            return Err(layout_error(
                Place::Step { step, name: "offset" },
                "value",
                offset,
                format!("from 0 to {MAX_OFFSET}"),
                "pass the tokens that the step adds to a request, usually step + 1",
            ));
        }
        let mut buffers = [None; NUM_FIELDS];
        let mut first: Option<(Field, u64)> = None;
        for field in Field::ALL {
            let Some(spec) = &specs[field as usize] else {
                continue;
            };
            let place = Place::Buffer { step, field };
            let buffer = Buffer::new(step, field, spec, table.device)?;
            match first {
                None => first = Some((field, buffer.rows)),
                Some((other, rows)) if rows != buffer.rows => {
                    return Err(layout_error(
                        place,
                        "rows",
                        buffer.rows,
                        format!("{rows}, as {}", other.name()),
                        "slice every buffer of a step to the same bucket",
                    ));
                }
                Some(_) => {}
            }
            buffers[field as usize] = Some(buffer);
        }
        let Some((_, rows)) = first else {
            return Err(layout_error(
                Place::Step { step, name: "buffers" },
                "count",
                0,
                "at least 1",
                "pass the buffers that the graph reads, or leave the step out",
            ));
        };
        if rows > MAX_ROWS {
            return Err(Error::Capacity { name: "rows", needed: rows, limit: MAX_ROWS, remedy: "split the bucket" });
        }
        if let Some(ring) = buffers[Field::RingGroupLocs as usize] {
            let place = Place::Buffer { step, field: Field::RingGroupLocs };
            if ring.cols != table.compress_ratio {
                return Err(layout_error(
                    place,
                    "columns",
                    ring.cols,
                    format!("compress_ratio {}", table.compress_ratio),
                    "allocate one column a token of a compressed group",
                ));
            }
            let slots = table.slots.saturating_mul(table.compress_ratio);
            if slots > i32::MAX as u64 {
                return Err(layout_error(
                    place,
                    "ring slots",
                    slots,
                    format!("at most {}", i32::MAX),
                    "its entries are int32: use fewer request slots",
                ));
            }
        }
        let layout = StepLayout { device: table.device, offset, rows, buffers };
        layout.check_own_memory(step, table)?;
        Ok(layout)
    }

    /// A step must not write one byte twice, nor write into the request table that it reads.
    fn check_own_memory(&self, step: usize, table: &TableLayout) -> Result<()> {
        for (field, buffer) in self.present() {
            let place = Place::Buffer { step, field };
            for (other, against) in self.present() {
                if (other as usize) < field as usize && buffer.overlaps(&field.dtype(), against, &other.dtype()) {
                    return Err(layout_error(
                        place,
                        "address",
                        format!("{:#x}", buffer.ptr),
                        format!("apart from {} at {:#x}", other.name(), against.ptr),
                        "give every buffer of a step its own memory",
                    ));
                }
            }
            if table.overlaps(buffer, &field.dtype()) {
                return Err(layout_error(
                    place,
                    "address",
                    format!("{:#x}", buffer.ptr),
                    format!("apart from req_to_token at {:#x}", table.ptr),
                    "give the buffer memory of its own",
                ));
            }
        }
        Ok(())
    }

    /// The buffers that are there, in order.
    pub fn present(&self) -> impl Iterator<Item = (Field, &Buffer)> {
        Field::ALL.iter().filter_map(|&field| Some((field, self.buffers[field as usize].as_ref()?)))
    }

    /// A bit for each buffer that is there.
    pub fn mask(&self) -> u32 {
        self.present().fold(0, |mask, (field, _)| mask | 1 << field as u32)
    }

    /// The buffer of a field, if it is there.
    pub const fn buffer(&self, field: Field) -> Option<&Buffer> {
        self.buffers[field as usize].as_ref()
    }
}

impl Mode {
    /// Validates a mode by its public name.
    ///
    /// # Errors
    /// [`Error::Layout`] for an unknown name or a `draft_token_num` that is missing, out of place or below 1.
    pub fn parse(name: &str, draft_token_num: Option<i64>) -> Result<Mode> {
        let window = Place::Argument("draft_token_num");
        match (name, draft_token_num) {
            ("decode", None) => Ok(Mode::Decode),
            ("draft_extend", None) => Ok(Mode::DraftExtend),
            ("target_verify", Some(n)) if (1..=MAX_ROWS as i64).contains(&n) => {
                Ok(Mode::TargetVerify { draft_token_num: n as u32 })
            }
            ("target_verify", given) => Err(layout_error(
                window,
                "value",
                given.map_or("None".to_string(), |n| n.to_string()),
                format!("from 1 to {MAX_ROWS}"),
                "pass the rows of a request that one verify pass holds",
            )),
            ("decode" | "draft_extend", Some(n)) => {
                Err(layout_error(window, "value", n, "None", "it belongs to mode \"target_verify\" alone"))
            }
            _ => Err(layout_error(
                Place::Argument("mode"),
                "value",
                format!("{name:?}"),
                "\"decode\", \"target_verify\" or \"draft_extend\"",
                "pass one of these",
            )),
        }
    }

    /// The public name.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Decode => "decode",
            Mode::TargetVerify { .. } => "target_verify",
            Mode::DraftExtend => "draft_extend",
        }
    }
}

impl Padding {
    /// Validates a padding rule by its public name.
    ///
    /// # Errors
    /// [`Error::Layout`] for an unknown name.
    pub fn parse(name: &str) -> Result<Padding> {
        match name {
            "count" => Ok(Padding::Count),
            "slot" => Ok(Padding::Slot),
            _ => Err(layout_error(
                Place::Argument("padding"),
                "value",
                format!("{name:?}"),
                "\"count\" or \"slot\"",
                "pass one of these",
            )),
        }
    }

    /// The public name.
    pub const fn name(self) -> &'static str {
        match self {
            Padding::Count => "count",
            Padding::Slot => "slot",
        }
    }
}
