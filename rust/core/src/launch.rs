//! Launch arguments of a group: packed once, patched and started a call.
//!
//! Every kernel parameter is 8 bytes, so a group's arguments are one array of words. The order here is the order of
//! the kernel's signature in `kernel.py`: what it takes to read the live vectors, what a decode step needs to read its
//! pages, what it needs to write them, then the rest, a step's buffers after each other. Numbers of 32 bits go two to a
//! word, since every 64 bytes of arguments that a program touches cost it a miss of the constant cache.

use std::mem::MaybeUninit;

use crate::driver::{Handle, Kernel, LaunchShape};
use crate::error::Result;
use crate::inputs::{LiveInputs, LiveVector};
use crate::layout::{Field, MAX_GROUP_STEPS, Mode, NUM_FIELDS, Padding, StepLayout, TableLayout};

/// Words before the offsets: two addresses, their strides, flags with the requests that are not padding, limits of upper
/// halves, heads with window; the table, its strides, its slots with its width.
const LEADING_WORDS: usize = 9;
/// Words between the offsets and the page tables: strides, rows with pages.
const PAGE_WORDS: usize = 2;
/// Words between the page tables and the other buffers: status, extend lengths, their stride with their limit.
const MIDDLE_WORDS: usize = 3;
/// Scratch parameters that Triton appends; null, since a kernel that needs scratch is refused.
pub const SCRATCH_WORDS: usize = 2;
/// Most words of a launch of one group.
const MAX_WORDS: usize = num_words(MAX_GROUP_STEPS, NUM_FIELDS) + SCRATCH_WORDS;
/// Groups that a joined launch takes at most: as many as the 4 KiB of a kernel's parameters hold at their largest.
pub const MAX_JOINED: usize = 3;
/// Most words of a joined launch.
const MAX_JOINED_WORDS: usize = 1 + MAX_JOINED * num_words(MAX_GROUP_STEPS, NUM_FIELDS) + SCRATCH_WORDS;
const _: () = assert!(8 * MAX_JOINED_WORDS <= 4096);

/// Bits of the kernel's `flags`.
mod flags {
    pub const PADDING_BY_SLOT: u64 = 1;
    /// From here on, the power of two that are a row's first pages, which have a lane each.
    pub const PAGE_SHIFT: u32 = 8;
}

/// The packed arguments of one group's launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    words: Box<[u64]>,
    /// Place of the extend lengths among the words; their stride and limit follow.
    extend_at: usize,
    /// Programs of the launch; 0 for a bucket of no rows.
    programs: u32,
}

/// How a launch is cut up; `shapes.py` says by which rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Programs of the launch.
    pub programs: u32,
    /// Those of them, the first ones, that write all but the pages of served rows.
    pub heads: u32,
    /// The first pages of a row that have a lane each are two to this power.
    pub page_bits: u32,
}

/// Words of the arguments of `num_steps` steps of which each has `num_buffers` buffers, without scratch.
pub const fn num_words(num_steps: usize, num_buffers: usize) -> usize {
    LEADING_WORDS + num_steps.div_ceil(2) + PAGE_WORDS + num_steps * num_buffers + MIDDLE_WORDS
}

/// Words of the arguments of a kernel, without scratch, from steps and buffers of each group that it takes: one group, or
/// several after a word that says which programs are whose.
pub fn kernel_words(groups: &[(usize, usize)]) -> usize {
    let own: usize = groups.iter().map(|&(steps, buffers)| num_words(steps, buffers)).sum();
    own + usize::from(groups.len() > 1)
}

/// Two numbers below 2**32 in a word.
const fn pair(low: u64, high: u64) -> u64 {
    low | high << 32
}

/// Writes `words` to the start of `place`, which it does not clear first: that would take as long as all else here.
#[inline]
fn copied<'a>(words: &[u64], place: &'a mut [MaybeUninit<u64>]) -> &'a mut [u64] {
    let place = &mut place[..words.len()];
    for (slot, &word) in place.iter_mut().zip(words) {
        slot.write(word);
    }
    // SAFETY: every slot of the slice has just been written.
    unsafe { &mut *(std::ptr::from_mut(place) as *mut [u64]) }
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
        cut: Cut,
        scratch_words: usize,
    ) -> Packed {
        let first = steps[0];
        let stride = |field| first.buffer(field).map_or(0, |buffer| buffer.row_bytes(&field.dtype()));
        let address = |field| move |step: &&StepLayout| step.buffer(field).map(|buffer| buffer.ptr);
        let by_slot = if padding == Padding::Slot { flags::PADDING_BY_SLOT } else { 0 };
        let mut words = Vec::with_capacity(MAX_WORDS);
        let window = match mode {
            Mode::TargetVerify { draft_token_num } => u64::from(draft_token_num),
            Mode::Decode | Mode::DraftExtend => 1,
        };
        words.extend([
            0,
            0,
            0,
            by_slot | u64::from(cut.page_bits) << flags::PAGE_SHIFT,
            0,
            pair(u64::from(cut.heads), window),
            table.ptr,
            pair(table.row_bytes(), table.col_bytes()),
            pair(table.slots, table.width),
        ]);
        let offset = |step: &&StepLayout| if mode == Mode::Decode { step.offset as u64 } else { 0 };
        words.extend(steps.chunks(2).map(|two| pair(offset(&two[0]), two.get(1).map_or(0, offset))));
        words.push(pair(stride(Field::PageTable), stride(Field::RingGroupLocs)));
        words.push(pair(first.rows, num_pages(table, first)));
        words.extend(steps.iter().filter_map(address(Field::PageTable)));
        words.extend([status, 0, 0]);
        let extend_at = words.len() - 2;
        for step in steps {
            words.extend(step.present().filter(|(field, _)| *field != Field::PageTable).map(|(_, buffer)| buffer.ptr));
        }
        words.extend(std::iter::repeat_n(0, scratch_words));
        Packed { words: words.into_boxed_slice(), extend_at, programs: cut.programs }
    }

    /// The words of a call, in the kernel's order, scratch included, at the start of `place`.
    #[inline]
    fn patched<'a>(&self, inputs: &LiveInputs, place: &'a mut [MaybeUninit<u64>]) -> &'a mut [u64] {
        let words = copied(&self.words, place);
        let (lens, slots) = (&inputs.seq_lens, &inputs.req_pool_indices);
        // A kernel without extend lengths never reads them; the lengths stand in so that the address is a real one.
        let extend = inputs.extend_lens.as_ref().unwrap_or(lens);
        words[0] = lens.ptr;
        words[1] = slots.ptr;
        let real = inputs.real();
        // Up to which element a vector has upper halves.
        let limit = |vector: &LiveVector| if vector.wide { real } else { 0 };
        words[2] = pair(lens.byte_stride(), slots.byte_stride());
        words[3] |= pair(0, real);
        words[4] = pair(limit(lens), limit(slots));
        words[self.extend_at] = extend.ptr;
        words[self.extend_at + 1] = pair(extend.byte_stride(), limit(extend));
        words
    }

    /// The arguments of a call as a list, for launchers other than this one.
    pub fn arguments(&self, inputs: &LiveInputs) -> Vec<u64> {
        let mut words = [MaybeUninit::uninit(); MAX_WORDS];
        self.patched(inputs, &mut words).to_vec()
    }

    /// Programs in x, y and z.
    pub fn grid(&self) -> (u32, u32, u32) {
        (self.programs, 1, 1)
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
        if self.programs == 0 {
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
        if self.programs == 0 {
            return Ok(());
        }
        let mut words = [MaybeUninit::uninit(); MAX_WORDS];
        let shape: LaunchShape = kernel.shape(self.grid());
        let words = self.patched(inputs, &mut words);
        // SAFETY: the caller's promise, passed on.
        (0..times).try_for_each(|_| unsafe { kernel.launch(stream, shape, words) })
    }
}

/// The packed arguments of one launch over one group or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The programs at which the second and the third group begin; none where there is one group.
    begins: Option<u64>,
    groups: Vec<Packed>,
    programs: u32,
    scratch_words: usize,
}

impl Joined {
    /// Joins groups, which must be packed without scratch.
    ///
    /// # Panics
    /// If there are more than [`MAX_JOINED`] groups.
    pub fn new(groups: Vec<Packed>, scratch_words: usize) -> Joined {
        assert!(groups.len() <= MAX_JOINED, "as many groups as a launch takes");
        let until = |group: usize| groups[..group].iter().map(|group| group.programs).sum::<u32>();
        let begins = (groups.len() > 1).then(|| pair(u64::from(until(1)), u64::from(until(2))));
        Joined { begins, programs: until(groups.len()), groups, scratch_words }
    }

    /// The words of a call, in the kernel's order, scratch included.
    #[inline]
    fn patched<'a>(&self, inputs: &LiveInputs, place: &'a mut [MaybeUninit<u64>; MAX_JOINED_WORDS]) -> &'a mut [u64] {
        let mut filled = 0;
        if let Some(begins) = self.begins {
            place[0].write(begins);
            filled = 1;
        }
        for group in &self.groups {
            filled += group.patched(inputs, &mut place[filled..]).len();
        }
        let all = filled + self.scratch_words;
        place[filled..all].fill(MaybeUninit::new(0));
        // SAFETY: every slot of the slice has just been written: the first word, each group's, and the scratch words.
        unsafe { &mut *(std::ptr::from_mut(&mut place[..all]) as *mut [u64]) }
    }

    /// Programs of the launch; 0 where no bucket has rows.
    #[inline]
    pub fn programs(&self) -> u32 {
        self.programs
    }

    /// The arguments of a call as a list, for launchers that append scratch themselves.
    pub fn without_scratch(&self, inputs: &LiveInputs) -> Vec<u64> {
        let mut words = [MaybeUninit::uninit(); MAX_JOINED_WORDS];
        let words = self.patched(inputs, &mut words);
        words[..words.len() - self.scratch_words].to_vec()
    }

    /// Starts the kernel over all groups. Buckets of no rows launch nothing.
    ///
    /// # Errors
    /// [`crate::error::Error::Driver`] if the driver refuses.
    ///
    /// # Safety
    /// As for [`Packed::launch`], for each group; the kernel must take these groups in this order.
    #[inline]
    pub unsafe fn launch(&self, kernel: &Kernel, inputs: &LiveInputs, stream: Handle) -> Result<()> {
        let mut words = [MaybeUninit::uninit(); MAX_JOINED_WORDS];
        if self.programs == 0 {
            return Ok(());
        }
        let shape = kernel.shape((self.programs, 1, 1));
        // SAFETY: the caller's promise, passed on.
        unsafe { kernel.launch(stream, shape, self.patched(inputs, &mut words)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{KernelImage, stub};
    use crate::error::Error;
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
        Packed::new(
            &table(),
            mode,
            padding,
            &[&steps[0], &steps[1]],
            0x77,
            Cut { programs: 18, heads: 2, page_bits: 1 },
            SCRATCH_WORDS,
        )
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
        let live = [0x100, 0x200, 16 | 8 << 32, (1 | 1 << 8) | 4 << 32, 4, 2 | 1 << 32];
        let table = [0x1000, 2048 | 4 << 32, 9 | 512 << 32];
        let pages = [1 | 2 << 32, 40, 8 | 6 << 32, 0x10100, 0x20100];
        let others = [0x77, 0x100, 16 | 4 << 32, 0x10000, 0x20000, 0, 0];
        assert_eq!(words, [&live[..], &table[..], &pages[..], &others[..]].concat());
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
        assert_eq!((words[15], words[16]), (0x300, 16 | 6 << 32));
        assert_eq!((words[3], words[4]), (1 << 8 | 6 << 32, 0));
        assert_eq!(words[9], 0);
        let words = packed(Mode::TargetVerify { draft_token_num: 3 }, Padding::Count).arguments(&inputs);
        assert_eq!(words[5], 2 | 3 << 32);
    }

    #[test]
    fn a_single_element_has_no_stride() {
        let far = |ptr| LiveVector { len: 1, stride: 1 << 40, ..vector(ptr, false) };
        let inputs = LiveInputs {
            seq_lens: far(0x100),
            req_pool_indices: far(0x200),
            extend_lens: Some(far(0x300)),
            num_padding: 0,
        };
        let words = packed(Mode::DraftExtend, Padding::Count).arguments(&inputs);
        assert_eq!((words[2], words[4], words[15], words[16]), (0, 0, 0x300, 0));
    }

    #[test]
    fn an_odd_step_has_a_word_of_offsets_for_itself() {
        let steps = [step(0x10000, 1), step(0x20000, 2), step(0x30000, 7)];
        let members: Vec<&StepLayout> = steps.iter().collect();
        let cut = Cut { programs: 27, heads: 3, page_bits: 0 };
        let packed = Packed::new(&table(), Mode::Decode, Padding::Count, &members, 0x77, cut, 1);
        let inputs = LiveInputs {
            seq_lens: vector(0x100, true),
            req_pool_indices: vector(0x200, true),
            extend_lens: None,
            num_padding: 0,
        };
        let words = packed.arguments(&inputs);
        assert_eq!(words[9..16], [1 | 2 << 32, 7, 40, 8 | 6 << 32, 0x10100, 0x20100, 0x30100]);
        assert_eq!(words.len(), num_words(3, 2) + 1);
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
            let words = packed.arguments(&inputs);
            assert_eq!((words[3], words[4]), (1 << 8, 0), "no request is real");
            let inputs = LiveInputs { num_padding: 1, ..inputs };
            let words = packed.arguments(&inputs);
            assert_eq!((words[3], words[4]), (1 << 8 | 5 << 32, if wide { 5 } else { 5 << 32 }));
        }
        assert_eq!(packed, before);
    }

    #[test]
    fn joined_words_are_each_groups_after_one_that_divides_the_programs() {
        let inputs = LiveInputs {
            seq_lens: vector(0x100, true),
            req_pool_indices: vector(0x200, false),
            extend_lens: Some(vector(0x300, true)),
            num_padding: 1,
        };
        let one = [step(0x30000, 0)];
        let cut = Cut { programs: 5, heads: 0, page_bits: 0 };
        let pack = |mode| Packed::new(&table(), mode, Padding::Count, &[&one[0]], 0x88, cut, 0);
        let steps = [step(0x10000, 1), step(0x20000, 2)];
        let members: Vec<&StepLayout> = steps.iter().collect();
        let cut = Cut { programs: 18, heads: 2, page_bits: 1 };
        let decode = Packed::new(&table(), Mode::Decode, Padding::Slot, &members, 0x77, cut, 0);
        let groups = [decode, pack(Mode::TargetVerify { draft_token_num: 2 }), pack(Mode::DraftExtend)];
        let joined = Joined::new(groups.to_vec(), SCRATCH_WORDS);
        let own: Vec<u64> = groups.iter().flat_map(|group| group.arguments(&inputs)).collect();
        assert_eq!(joined.without_scratch(&inputs), [&[18 | 23 << 32], &own[..]].concat());
        let params = kernel_words(&[(2, 2), (1, 2), (1, 2)]) + SCRATCH_WORDS;
        let kernel = kernel(params, stub::Behaviour::Succeed, params).unwrap();
        // SAFETY: the stub reads nothing behind the addresses.
        unsafe { joined.launch(&kernel, &inputs, 0) }.unwrap();
        assert_eq!(stub::last_launch().unwrap().0.grid, (28, 1, 1));
        assert_eq!(Joined::new(groups[..2].to_vec(), 0).without_scratch(&inputs)[0], 18 | 23 << 32);
        assert_eq!(Joined::new(groups[..1].to_vec(), 0).without_scratch(&inputs), groups[0].arguments(&inputs));
    }

    #[test]
    fn buckets_of_no_rows_launch_nothing() {
        let inputs = LiveInputs {
            seq_lens: vector(0x100, true),
            req_pool_indices: vector(0x200, false),
            extend_lens: None,
            num_padding: 0,
        };
        let cut = Cut { programs: 0, heads: 0, page_bits: 0 };
        let none = Packed::new(&table(), Mode::Decode, Padding::Slot, &[&step(0x10000, 1)], 0x77, cut, 0);
        let joined = Joined::new(vec![none.clone(), none], SCRATCH_WORDS);
        let params = kernel_words(&[(1, 2), (1, 2)]) + SCRATCH_WORDS;
        let kernel = kernel(params, stub::Behaviour::Fail, params).unwrap();
        // SAFETY: nothing is started.
        unsafe { joined.launch(&kernel, &inputs, 0) }.unwrap();
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
        assert_eq!((shape.grid, shape.threads, last), ((18, 1, 1), 128, 0));
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
