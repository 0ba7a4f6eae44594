//! The live inputs of a call, and the checks that a call must pass before anything is written.

use crate::blueprint::Blueprint;
use crate::contract::{Mode, limits};
use crate::error::{Error, Place, Result};
use crate::layout::Buffer;
use crate::tensor::{ByteRange, DType, Device};

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

    /// Bytes from an element to the next; 0 where there is no next element.
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
    /// The last so many requests are padding. Clamped to 0..batch.
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

/// What the calls of a plan are checked against.
#[derive(Clone, Debug)]
pub struct Admission {
    device: Device,
    /// Whether a group takes extend lengths.
    extends: bool,
    /// Each mode of the plan, and the rows of its smallest step.
    buckets: Vec<(Mode, u64)>,
    /// Byte ranges of all outputs, merged and sorted. They tell quickly that nothing is shared.
    outputs: Vec<ByteRange>,
    /// Every output, for the exact answer.
    buffers: Vec<(Buffer, DType)>,
}

impl Admission {
    /// The checks of a blueprint's plan.
    pub fn new(blueprint: &Blueprint) -> Admission {
        let mut buckets: Vec<(Mode, u64)> = Vec::new();
        for group in &blueprint.groups {
            let rows = blueprint.first(group).rows;
            match buckets.iter_mut().find(|(mode, _)| *mode == group.mode) {
                Some((_, smallest)) => *smallest = rows.min(*smallest),
                None => buckets.push((group.mode, rows)),
            }
        }
        let present = blueprint.steps.iter().flat_map(|step| step.present());
        let buffers: Vec<(Buffer, DType)> = present.map(|(field, buffer)| (*buffer, field.dtype())).collect();
        Admission {
            device: blueprint.table.device,
            extends: buckets.iter().any(|(mode, _)| *mode == Mode::DraftExtend),
            buckets,
            outputs: merged(buffers.iter().map(|(buffer, dtype)| buffer.byte_range(dtype))),
            buffers,
        }
    }

    /// Checks a call.
    ///
    /// # Errors
    /// [`Error::PlanChanged`] for another device, and for extend lengths that are missing or not taken.
    /// [`Error::Layout`] for lengths that differ, a misaligned address or too large a stride. [`Error::Capacity`] for
    /// more requests than the bucket holds.
    #[inline]
    pub fn check(&self, inputs: &LiveInputs) -> Result<()> {
        let batch = inputs.batch();
        self.check_vector("seq_lens", &inputs.seq_lens, batch)?;
        self.check_vector("req_pool_indices", &inputs.req_pool_indices, batch)?;
        match &inputs.extend_lens {
            None if !self.extends => {}
            Some(lens) if self.extends => self.check_vector("extend_lens", lens, batch)?,
            given => return Err(self.extend_lens_misplaced(given.is_some())),
        }
        for &(mode, rows) in &self.buckets {
            // Packed rows past a bucket of draft extend depend on values, not on sizes. They are dropped and flagged.
            let (needed, limit) = match mode {
                Mode::Decode => (batch, rows),
                Mode::TargetVerify { draft_token_num } => (batch.saturating_mul(u64::from(draft_token_num)), rows),
                Mode::DraftExtend => (batch, limits::ROWS),
            };
            if needed > limit {
                return Err(too_large(mode, needed, limit));
            }
        }
        Ok(())
    }

    #[inline]
    fn check_vector(&self, name: &'static str, vector: &LiveVector, batch: u64) -> Result<()> {
        let has_memory = vector.ptr != 0 || vector.len == 0;
        if vector.device == self.device
            && vector.len == batch
            && vector.ptr & (vector.size() - 1) == 0
            && has_memory
            && vector.byte_stride() <= limits::STRIDE_BYTES
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
        if vector.byte_stride() > limits::STRIDE_BYTES {
            return Error::Layout {
                place,
                what: "stride",
                given: format!("{} bytes", vector.byte_stride()),
                wanted: format!("at most {} bytes", limits::STRIDE_BYTES),
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
    fn extend_lens_misplaced(&self, given: bool) -> Error {
        let shown = |there: bool| if there { "a tensor" } else { "None" }.to_string();
        let modes: Vec<&str> = self.buckets.iter().map(|(mode, _)| mode.name()).collect();
        Error::PlanChanged {
            name: "extend_lens",
            planned: format!("{} for mode \"{}\"", shown(self.extends), modes.join(" + ")),
            given: shown(given),
            remedy: "draft_extend takes extend_lens, the other modes do not",
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

    /// Compares element by element, since a strided vector may interleave with an output.
    #[cold]
    fn touches_exactly(&self, vector: &LiveVector) -> bool {
        let dtype = if vector.wide { DType::Int64 } else { DType::Int32 };
        let as_rows = Buffer { ptr: vector.ptr, rows: vector.len, cols: 1, row_stride: vector.stride };
        self.buffers.iter().any(|(buffer, of)| as_rows.overlaps(&dtype, buffer, of))
    }
}

#[cold]
fn too_large(mode: Mode, needed: u64, limit: u64) -> Error {
    let (name, remedy) = match mode {
        Mode::Decode => ("batch", "plan a bucket of at least that many rows"),
        Mode::TargetVerify { .. } => ("batch * draft_token_num", "plan a bucket of at least that many rows"),
        Mode::DraftExtend => ("batch", "split the batch"),
    };
    Error::Capacity { name, needed, limit, remedy }
}

/// Ranges sorted, those that touch merged, empty ones left out.
fn merged(ranges: impl Iterator<Item = ByteRange>) -> Vec<ByteRange> {
    let mut sorted: Vec<ByteRange> = ranges.filter(|range| range.start < range.end).collect();
    sorted.sort_unstable();
    let mut merged: Vec<ByteRange> = Vec::with_capacity(sorted.len());
    for range in sorted {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{NUM_FIELDS, Padding};
    use crate::layout::{StepLayout, TableLayout};

    const TABLE: TableLayout = TableLayout {
        device: Device::CPU,
        ptr: 0x8000,
        slots: 9,
        width: 512,
        row_stride: 512,
        col_stride: 1,
        compress_ratio: 4,
        page_size: 64,
        ring_size: 4,
    };

    fn blueprint(mode: Mode, ptr: u64, rows: u64) -> Blueprint {
        let mut buffers = [None; NUM_FIELDS];
        buffers[0] = Some(Buffer { ptr, rows, cols: 1, row_stride: 1 });
        let step = StepLayout { offset: 0, rows, buffers };
        Blueprint::new(TABLE, mode, Padding::Count, vec![step]).unwrap()
    }

    fn admission() -> Admission {
        Admission::new(&blueprint(Mode::Decode, 0x1000, 4))
    }

    fn inputs(ptr: u64, len: u64, stride: u64, wide: bool) -> LiveInputs {
        let vector = LiveVector { ptr, len, stride, wide, device: Device::CPU };
        LiveInputs { seq_lens: vector, req_pool_indices: vector, extend_lens: None, num_padding: 0 }
    }

    #[test]
    fn a_stride_counts_where_there_is_a_next_element() {
        let last = limits::STRIDE_BYTES / 8;
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

    #[test]
    fn a_joined_plan_serves_what_its_smallest_bucket_holds() {
        let draft = blueprint(Mode::Decode, 0x1000, 4);
        let verify = blueprint(Mode::TargetVerify { draft_token_num: 2 }, 0x2000, 6);
        let extend = blueprint(Mode::DraftExtend, 0x3000, 1);
        let check = |parts: &[&Blueprint], inputs: &LiveInputs| {
            Admission::new(&Blueprint::join(parts).unwrap()).check(inputs).map_err(|error| error.to_string())
        };
        let live = |batch| inputs(0x100, batch, 1, true);
        assert_eq!(check(&[&draft, &verify], &live(3)), Ok(()));
        let error = check(&[&draft, &verify], &live(4)).unwrap_err();
        assert!(error.contains("batch * draft_token_num needs 8, the limit is 6"), "{error}");
        let with_extend = LiveInputs { extend_lens: Some(live(3).seq_lens), ..live(3) };
        assert_eq!(check(&[&draft, &extend], &with_extend), Ok(()));
        let error = check(&[&draft, &extend], &live(3)).unwrap_err();
        assert!(error.contains("a tensor for mode \"decode + draft_extend\", None was given"), "{error}");
        let error = check(&[&draft, &verify], &with_extend).unwrap_err();
        assert!(error.contains("None for mode \"decode + target_verify\", a tensor was given"), "{error}");
    }
}
