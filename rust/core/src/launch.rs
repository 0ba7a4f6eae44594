//! Launch arguments of a group: packed once, patched and started a call.
//!
//! Every kernel parameter is 8 bytes, so a group's arguments are one array of words. The order here is the order of
//! the kernel's signature in `kernel.py`: the live words first, then the fixed ones, then each buffer of every step.

use std::mem::MaybeUninit;

use crate::driver::{Handle, Kernel, LaunchShape};
use crate::error::Result;
use crate::inputs::LiveInputs;
use crate::layout::{Field, MAX_GROUP_STEPS, Mode, NUM_FIELDS, Padding, StepLayout, TableLayout};

/// Words that a call patches: three addresses, three strides, flags, requests that are not padding.
const LIVE_WORDS: usize = 8;
/// Words that stay: table, its strides, slots and width; rows, page count, two strides, window, least and greatest
/// offset, status.
const FIXED_WORDS: usize = 13;
/// Scratch parameters that Triton appends; null, since a kernel that needs scratch is refused.
pub const SCRATCH_WORDS: usize = 2;
/// Most words of a launch.
const MAX_WORDS: usize = LIVE_WORDS + FIXED_WORDS + MAX_GROUP_STEPS * (NUM_FIELDS + 1) + SCRATCH_WORDS;

/// Bits of the kernel's `flags` parameter.
mod flags {
    pub const SEQ_LENS_INT64: u64 = 1;
    pub const REQ_POOL_INDICES_INT64: u64 = 2;
    pub const EXTEND_LENS_INT64: u64 = 4;
    pub const PADDING_BY_SLOT: u64 = 8;
}

/// The packed arguments of one group's launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    words: Box<[u64]>,
    /// Rows of the group: programs in x.
    rows: u32,
    /// Programs that divide a row's pages and its steps: programs in y and z.
    cut: (u32, u32),
}

/// Words of the arguments of `num_steps` steps of which each has `num_buffers` buffers, without scratch.
pub const fn num_words(num_steps: usize, num_buffers: usize) -> usize {
    LIVE_WORDS + FIXED_WORDS + num_steps * (num_buffers + 1)
}

/// Page entries of a row that exist.
pub fn num_pages(table: &TableLayout, step: &StepLayout) -> u64 {
    step.buffer(Field::PageTable).map_or(0, |pages| pages.cols.min(table.width / table.page_size))
}

impl Packed {
    /// Packs the arguments of a group. All steps must be of one group: they have the same rows, buffers and strides.
    pub fn new(
        table: &TableLayout,
        mode: Mode,
        padding: Padding,
        steps: &[&StepLayout],
        status: u64,
        cut: (u32, u32),
        scratch_words: usize,
    ) -> Packed {
        let first = steps[0];
        let stride = |field| first.buffer(field).map_or(0, |buffer| buffer.row_stride);
        let mut words = Vec::with_capacity(MAX_WORDS);
        words.extend([0; LIVE_WORDS]);
        words[6] = if padding == Padding::Slot { flags::PADDING_BY_SLOT } else { 0 };
        let offset = |step: &&StepLayout| if mode == Mode::Decode { step.offset as u64 } else { 0 };
        words.extend([
            table.ptr,
            table.row_stride,
            table.col_stride,
            table.slots,
            table.width,
            first.rows,
            num_pages(table, first),
            stride(Field::PageTable),
            stride(Field::RingGroupLocs),
            match mode {
                Mode::TargetVerify { draft_token_num } => u64::from(draft_token_num),
                Mode::Decode | Mode::DraftExtend => 1,
            },
            steps.iter().map(offset).min().unwrap_or(0),
            steps.iter().map(offset).max().unwrap_or(0),
            status,
        ]);
        for (field, _) in first.present() {
            words.extend(steps.iter().filter_map(|step| step.buffer(field)).map(|buffer| buffer.ptr));
        }
        words.extend(steps.iter().map(offset));
        words.extend(std::iter::repeat_n(0, scratch_words));
        Packed { words: words.into_boxed_slice(), rows: first.rows as u32, cut }
    }

    /// The words of a call, in the kernel's order, scratch included.
    #[inline]
    fn patched<'a>(&self, inputs: &LiveInputs, place: &'a mut [MaybeUninit<u64>; MAX_WORDS]) -> &'a mut [u64] {
        let place = &mut place[..self.words.len()];
        for (slot, &word) in place.iter_mut().zip(&self.words) {
            slot.write(word);
        }
        // SAFETY: every slot of the slice has just been written. Clearing all of `place` first would take as long as
        // all else that is done here.
        let words = unsafe { &mut *(std::ptr::from_mut(place) as *mut [u64]) };
        let (lens, slots) = (&inputs.seq_lens, &inputs.req_pool_indices);
        // A kernel without extend lengths never reads them; the lengths stand in so that the address is a real one.
        let extend = inputs.extend_lens.as_ref().unwrap_or(lens);
        words[0] = lens.ptr;
        words[1] = slots.ptr;
        words[2] = extend.ptr;
        words[3] = lens.byte_stride();
        words[4] = slots.byte_stride();
        words[5] = extend.byte_stride();
        words[6] |= if lens.wide { flags::SEQ_LENS_INT64 } else { 0 }
            | if slots.wide { flags::REQ_POOL_INDICES_INT64 } else { 0 }
            | if extend.wide { flags::EXTEND_LENS_INT64 } else { 0 };
        words[7] = inputs.real();
        words
    }

    /// The arguments of a call as a list, for launchers other than this one.
    pub fn arguments(&self, inputs: &LiveInputs) -> Vec<u64> {
        let mut words = [MaybeUninit::uninit(); MAX_WORDS];
        self.patched(inputs, &mut words).to_vec()
    }

    /// Programs in x, y and z.
    pub fn grid(&self) -> (u32, u32, u32) {
        (self.rows, self.cut.0, self.cut.1)
    }

    /// Starts the group's kernel.
    ///
    /// A bucket of no rows launches nothing.
    ///
    /// # Errors
    /// [`crate::error::Error::Driver`] if the driver refuses.
    ///
    /// # Safety
    /// The kernel must be compiled for this group's mode, steps and buffers. The memory of the planned layouts, of the
    /// table, of the status word and of the inputs must stay valid until the kernel has run.
    #[inline]
    pub unsafe fn launch(&self, kernel: &Kernel, inputs: &LiveInputs, stream: Handle) -> Result<()> {
        let mut words = [MaybeUninit::uninit(); MAX_WORDS];
        if self.rows == 0 {
            return Ok(());
        }
        let shape = kernel.shape(self.grid());
        // SAFETY: the caller's promise, passed on.
        unsafe { kernel.launch(stream, shape, self.patched(inputs, &mut words)) }
    }

    /// Starts the group's kernel `times` times with arguments that are patched once: what the driver alone costs.
    ///
    /// # Errors
    /// [`crate::error::Error::Driver`] if the driver refuses.
    ///
    /// # Safety
    /// As for [`Packed::launch`].
    pub unsafe fn launch_bare(&self, kernel: &Kernel, inputs: &LiveInputs, stream: Handle, times: u64) -> Result<()> {
        let mut words = [MaybeUninit::uninit(); MAX_WORDS];
        let shape: LaunchShape = kernel.shape(self.grid());
        let words = self.patched(inputs, &mut words);
        // SAFETY: the caller's promise, passed on.
        (0..times).try_for_each(|_| unsafe { kernel.launch(stream, shape, words) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{KernelImage, stub};
    use crate::error::Error;
    use crate::inputs::LiveVector;
    use crate::layout::{Buffer, Device};

    fn table() -> TableLayout {
        TableLayout {
            device: Device::CPU,
            ptr: 0x1000,
            slots: 9,
            width: 512,
            row_stride: 512,
            col_stride: 1,
            compress_ratio: 4,
            page_size: 64,
        }
    }

    fn step(ptr: u64, offset: i64) -> StepLayout {
        let mut buffers = [None; NUM_FIELDS];
        buffers[0] = Some(Buffer { ptr, rows: 8, cols: 1, row_stride: 1 });
        buffers[8] = Some(Buffer { ptr: ptr + 0x100, rows: 8, cols: 6, row_stride: 10 });
        StepLayout { device: Device::CPU, offset, rows: 8, buffers }
    }

    fn vector(ptr: u64, wide: bool) -> LiveVector {
        LiveVector { ptr, len: 6, stride: 2, wide, device: Device::CPU }
    }

    fn packed(mode: Mode, padding: Padding) -> Packed {
        let steps = [step(0x10000, 1), step(0x20000, 2)];
        Packed::new(&table(), mode, padding, &[&steps[0], &steps[1]], 0x77, (4, 2), SCRATCH_WORDS)
    }

    fn kernel(params: usize, behaviour: stub::Behaviour, expected: usize) -> Result<Kernel> {
        let binary = (params as u64).to_ne_bytes();
        let image = KernelImage { binary: &binary, name: c"stub", num_warps: 4, shared: 0, num_params: expected };
        // SAFETY: a stub's image is 8 bytes.
        unsafe { Kernel::load(stub::get(behaviour), &image) }
    }

    #[test]
    fn words_stand_in_the_kernels_order() {
        let inputs = LiveInputs {
            seq_lens: vector(0x100, true),
            req_pool_indices: vector(0x200, false),
            extend_lens: None,
            num_padding: 2,
        };
        let words = packed(Mode::Decode, Padding::Slot).arguments(&inputs);
        let live = [0x100, 0x200, 0x100, 16, 8, 16, 1 | 4 | 8, 4];
        let fixed = [0x1000, 512, 1, 9, 512, 8, 6, 10, 0, 1, 1, 2, 0x77];
        let steps = [0x10000, 0x20000, 0x10100, 0x20100, 1, 2, 0, 0];
        assert_eq!(words, [&live[..], &fixed[..], &steps[..]].concat());
        assert_eq!(words.len(), num_words(2, 2) + SCRATCH_WORDS);
    }

    #[test]
    fn offsets_count_in_decode_mode_only() {
        let inputs = LiveInputs {
            seq_lens: vector(0x100, false),
            req_pool_indices: vector(0x200, false),
            extend_lens: Some(vector(0x300, true)),
            num_padding: -5,
        };
        let words = packed(Mode::DraftExtend, Padding::Count).arguments(&inputs);
        assert_eq!((words[2], words[6], words[7]), (0x300, 4, 6));
        assert_eq!(words[words.len() - 4..], [0, 0, 0, 0]);
        let words = packed(Mode::TargetVerify { draft_token_num: 3 }, Padding::Count).arguments(&inputs);
        assert_eq!(words[17], 3);
    }

    #[test]
    fn a_call_leaves_the_packed_words_as_they_were() {
        let packed = packed(Mode::Decode, Padding::Count);
        let before = packed.clone();
        for wide in [true, false] {
            let inputs = LiveInputs {
                seq_lens: vector(0x100, wide),
                req_pool_indices: vector(0x200, !wide),
                extend_lens: None,
                num_padding: 99,
            };
            assert_eq!(packed.arguments(&inputs)[6], if wide { 1 | 4 } else { 2 });
            assert_eq!(packed.arguments(&inputs)[7], 0);
        }
        assert_eq!(packed, before);
    }

    #[test]
    fn a_stubbed_launch_gets_grid_and_words() {
        let packed = packed(Mode::Decode, Padding::Count);
        let params = num_words(2, 2) + SCRATCH_WORDS;
        let kernel = kernel(params, stub::Behaviour::Succeed, params).unwrap();
        let inputs = LiveInputs {
            seq_lens: vector(0x100, false),
            req_pool_indices: vector(0x200, false),
            extend_lens: None,
            num_padding: 0,
        };
        // SAFETY: the stub reads nothing behind the addresses.
        unsafe { packed.launch(&kernel, &inputs, 0) }.unwrap();
        let (shape, last) = stub::last_launch().unwrap();
        assert_eq!((shape.grid, shape.threads, last), ((8, 4, 2), 128, 0));
    }

    #[test]
    fn a_refused_launch_is_an_error() {
        let packed = packed(Mode::Decode, Padding::Count);
        let params = num_words(2, 2) + SCRATCH_WORDS;
        let kernel = kernel(params, stub::Behaviour::Fail, params).unwrap();
        let inputs = LiveInputs {
            seq_lens: vector(0x100, false),
            req_pool_indices: vector(0x200, false),
            extend_lens: None,
            num_padding: 0,
        };
        // SAFETY: as above.
        let error = unsafe { packed.launch(&kernel, &inputs, 0) }.unwrap_err();
        assert!(matches!(error, Error::Driver { name, .. } if name == "CUDA_ERROR_INVALID_VALUE"));
    }

    #[test]
    fn a_kernel_with_other_parameters_is_refused() {
        for (has, expected) in [(25, 26), (27, 26)] {
            let error = kernel(has, stub::Behaviour::Succeed, expected).err().unwrap();
            assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        }
    }
}
