//! The live inputs of a call, and the checks that a call must pass before anything is written.

use crate::error::{Error, Place, Result};
use crate::layout::{Buffer, ByteRange, DType, Device, MAX_ROWS, MAX_STRIDE_BYTES, Mode, StepLayout};

/// A live vector: lengths, request slots or extend lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveVector {
    /// Address of the first element.
    pub ptr: u64,
    /// Elements.
    pub len: u64,
    /// Elements from one to the next.
    pub stride: u64,
    /// int64 if true, int32 otherwise.
    pub wide: bool,
    /// Device it lives on.
    pub device: Device,
}

impl LiveVector {
    /// Bytes of an element.
    #[inline]
    const fn size(&self) -> u64 {
        if self.wide { 8 } else { 4 }
    }

    /// Bytes from an element to the next; 0 where there is no next one.
    #[inline]
    pub const fn byte_stride(&self) -> u64 {
        if self.len > 1 { self.stride.saturating_mul(self.size()) } else { 0 }
    }

    /// Bytes from the first element to the last.
    #[inline]
    pub const fn byte_range(&self) -> ByteRange {
        let span = if self.len == 0 { 0 } else { (self.len - 1) * self.stride + 1 };
        ByteRange { start: self.ptr, end: self.ptr + span * self.size() }
    }
}

/// The live inputs of one call.
#[derive(Clone, Copy, Debug)]
pub struct LiveInputs {
    /// Length of each request.
    pub seq_lens: LiveVector,
    /// Request slot of each request.
    pub req_pool_indices: LiveVector,
    /// Rows of each request; draft extend only.
    pub extend_lens: Option<LiveVector>,
    /// The last so many requests are padding; clamped to 0..batch.
    pub num_padding: i64,
}

impl LiveInputs {
    /// Requests of the call.
    #[inline]
    pub const fn batch(&self) -> u64 {
        self.seq_lens.len
    }

    /// Requests that are not padding by count.
    #[inline]
    pub fn real(&self) -> u64 {
        self.batch() - (self.num_padding.max(0) as u64).min(self.batch())
    }
}

/// What a plan's calls are checked against.
#[derive(Clone, Debug)]
pub struct Admission {
    device: Device,
    mode: Mode,
    /// Rows of the smallest step.
    rows: u64,
    /// Byte ranges of all outputs, merged and sorted, for a quick "shares nothing" answer.
    outputs: Vec<ByteRange>,
    /// Every output, for the exact answer.
    buffers: Vec<(Buffer, DType)>,
}

impl Admission {
    /// The checks of a plan over these steps.
    pub fn new(device: Device, mode: Mode, steps: &[StepLayout]) -> Admission {
        let buffers: Vec<(Buffer, DType)> =
            steps.iter().flat_map(|step| step.present().map(|(field, buffer)| (*buffer, field.dtype()))).collect();
        let mut ranges: Vec<ByteRange> = buffers
            .iter()
            .map(|(buffer, dtype)| buffer.byte_range(dtype))
            .filter(|range| range.start < range.end)
            .collect();
        ranges.sort_unstable();
        let mut outputs: Vec<ByteRange> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match outputs.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => outputs.push(range),
            }
        }
        Admission { device, mode, rows: steps.iter().map(|step| step.rows).min().unwrap_or(0), outputs, buffers }
    }

    /// Checks a call.
    ///
    /// # Errors
    /// [`Error::PlanChanged`] for another device or extend lengths where they do not belong; [`Error::Layout`] for
    /// lengths that differ, a misaligned address or too large a stride; [`Error::Capacity`] for more requests than the
    /// bucket holds.
    #[inline]
    pub fn check(&self, inputs: &LiveInputs) -> Result<()> {
        self.check_vector("seq_lens", &inputs.seq_lens, inputs.batch())?;
        self.check_vector("req_pool_indices", &inputs.req_pool_indices, inputs.batch())?;
        match (&inputs.extend_lens, self.mode) {
            (None, Mode::Decode | Mode::TargetVerify { .. }) => {}
            (Some(lens), Mode::DraftExtend) => self.check_vector("extend_lens", lens, inputs.batch())?,
            (given, mode) => return Err(extend_lens_misplaced(given.is_some(), mode)),
        }
        let needed = match self.mode {
            Mode::Decode => inputs.batch(),
            Mode::TargetVerify { draft_token_num } => inputs.batch().saturating_mul(u64::from(draft_token_num)),
            // Packed rows past the bucket are a matter of values, not of shapes: they are dropped and flagged.
            Mode::DraftExtend if inputs.batch() > MAX_ROWS => return Err(self.too_large(inputs.batch())),
            Mode::DraftExtend => 0,
        };
        if needed > self.rows { Err(self.too_large(needed)) } else { Ok(()) }
    }

    #[inline]
    fn check_vector(&self, name: &'static str, vector: &LiveVector, batch: u64) -> Result<()> {
        let has_memory = vector.ptr != 0 || vector.len == 0;
        if vector.device == self.device
            && vector.len == batch
            && vector.ptr & (vector.size() - 1) == 0
            && has_memory
            && vector.byte_stride() <= MAX_STRIDE_BYTES
        {
            return Ok(());
        }
        Err(self.refused(name, vector, batch))
    }

    #[cold]
    fn refused(&self, name: &'static str, vector: &LiveVector, batch: u64) -> Error {
        let place = Place::Argument(name);
        if vector.device != self.device {
            return Error::PlanChanged {
                name,
                planned: self.device.to_string(),
                given: vector.device.to_string(),
                remedy: "pass tensors on the planned device, or plan for the other one",
            };
        }
        if vector.len != batch {
            return Error::Layout {
                place,
                what: "length",
                given: vector.len.to_string(),
                wanted: format!("{batch}, as seq_lens"),
                remedy: "pass one entry a request in every live input",
            };
        }
        if vector.byte_stride() > MAX_STRIDE_BYTES {
            return Error::Layout {
                place,
                what: "stride",
                given: format!("{} bytes", vector.byte_stride()),
                wanted: format!("at most {MAX_STRIDE_BYTES} bytes"),
                remedy: "pass a contiguous copy",
            };
        }
        Error::Layout {
            place,
            what: "address",
            given: format!("{:#x}", vector.ptr),
            wanted: format!("that of memory, a multiple of {} bytes", vector.size()),
            remedy: "pass a tensor that has memory, aligned to its elements",
        }
    }

    #[cold]
    fn too_large(&self, needed: u64) -> Error {
        match self.mode {
            Mode::TargetVerify { .. } => Error::Capacity {
                name: "batch * draft_token_num",
                needed,
                limit: self.rows,
                remedy: "plan a bucket of at least that many rows",
            },
            Mode::DraftExtend => Error::Capacity { name: "batch", needed, limit: MAX_ROWS, remedy: "split the batch" },
            Mode::Decode => Error::Capacity {
                name: "batch",
                needed,
                limit: self.rows,
                remedy: "plan a bucket of at least that many rows",
            },
        }
    }

    /// Whether a live input shares memory with an output of the plan.
    #[inline]
    pub fn overlaps_output(&self, inputs: &LiveInputs) -> bool {
        self.touches(&inputs.seq_lens)
            || self.touches(&inputs.req_pool_indices)
            || inputs.extend_lens.as_ref().is_some_and(|lens| self.touches(lens))
    }

    #[inline]
    fn touches(&self, vector: &LiveVector) -> bool {
        let range = vector.byte_range();
        let after = self.outputs.partition_point(|output| output.end <= range.start);
        match self.outputs.get(after) {
            Some(output) if output.start < range.end && range.start < range.end => self.touches_exactly(vector),
            _ => false,
        }
    }

    /// The hulls meet: compare element by element, since a strided vector may interleave with an output.
    #[cold]
    fn touches_exactly(&self, vector: &LiveVector) -> bool {
        let dtype = if vector.wide { DType::Int64 } else { DType::Int32 };
        let as_rows = Buffer { ptr: vector.ptr, rows: vector.len, cols: 1, row_stride: vector.stride };
        self.buffers.iter().any(|(buffer, of)| as_rows.overlaps(&dtype, buffer, of))
    }
}

#[cold]
fn extend_lens_misplaced(given: bool, mode: Mode) -> Error {
    let shown = |there: bool| if there { "a tensor" } else { "None" }.to_string();
    Error::PlanChanged {
        name: "extend_lens",
        planned: format!("{} for mode {:?}", shown(mode == Mode::DraftExtend), mode.name()),
        given: shown(given),
        remedy: "draft_extend takes extend_lens, the other modes do not",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::NUM_FIELDS;

    fn admission() -> Admission {
        let mut buffers = [None; NUM_FIELDS];
        buffers[0] = Some(Buffer { ptr: 0x1000, rows: 4, cols: 1, row_stride: 1 });
        let step = StepLayout { device: Device::CPU, offset: 0, rows: 4, buffers };
        Admission::new(Device::CPU, Mode::Decode, &[step])
    }

    fn inputs(ptr: u64, len: u64, stride: u64, wide: bool) -> LiveInputs {
        let vector = LiveVector { ptr, len, stride, wide, device: Device::CPU };
        LiveInputs { seq_lens: vector, req_pool_indices: vector, extend_lens: None, num_padding: 0 }
    }

    #[test]
    fn a_stride_counts_where_there_is_a_next_element() {
        let last = MAX_STRIDE_BYTES / 8;
        for (len, stride, served) in [(2, last, true), (2, last + 1, false), (2, 1 << 61, false), (1, 1 << 61, true)] {
            let checked = admission().check(&inputs(0x100, len, stride, true));
            assert_eq!(checked.is_ok(), served, "{len} elements {stride} apart: {checked:?}");
        }
        let error = admission().check(&inputs(0x100, 2, last + 1, true)).unwrap_err().to_string();
        for word in ["seq_lens", "stride", "4294967296 bytes", "4294967295 bytes", "contiguous copy"] {
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_single_element_shares_memory_wherever_its_stride_leads() {
        for (ptr, shares) in [(0x0ff8, false), (0x0ffc, true), (0x100c, true), (0x1010, false)] {
            assert_eq!(admission().overlaps_output(&inputs(ptr, 1, 1 << 61, true)), shares, "{ptr:#x}");
        }
    }
}
