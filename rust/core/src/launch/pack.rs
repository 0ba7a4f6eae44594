//! The argument words of a launch: packed once a plan, patched at each call.

use std::mem::MaybeUninit;

use super::arguments::{Argument, GroupSize};
use crate::blueprint::Blueprint;
use crate::contract::{Field, Mode, Padding, limits};
use crate::group::Group;
use crate::inputs::{LiveInputs, LiveVector};
use crate::layout::StepLayout;

/// Bits of the kernel's `flags`.
pub mod flags {
    /// Requests with slot 0 are padding.
    pub const PADDING_BY_SLOT: u64 = 1;
    /// From here on stands the log2 of the number of a row's page entries that have a lane each.
    pub const PAGE_SHIFT: u32 = 8;
}

/// How the programs of a launch are divided over one group. The rule is in `qsa_group/kernel/tiling.py`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupGrid {
    /// Programs of the group.
    pub programs: u32,
    /// The first of these programs, which write all but the pages of served rows.
    pub heads: u32,
    /// The log2 of the number of a row's page entries that have a lane each.
    pub page_bits: u32,
}

/// One launch of a plan: the words of its groups, and the steps that they refresh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Index of the launch in its plan. The launch's kernel has the same index.
    pub index: usize,
    /// Programs of the launch; 0 for buckets of no rows.
    pub programs: u32,
    /// The programs at which the second and the third group begin; `None` for a single group.
    begins: Option<u64>,
    groups: Vec<PackedGroup>,
}

/// The words of one group of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PackedGroup {
    /// Index of the group in the blueprint.
    group: usize,
    /// Steps that the launch refreshes; none where the launch leaves the group out.
    steps: Vec<usize>,
    programs: u32,
    words: Box<[u64]>,
    /// Index of the word with the address of the extend lengths. Their stride and limit follow.
    extend_at: usize,
}

/// Two numbers below 2^32 in a word.
const fn pair(low: u64, high: u64) -> u64 {
    low | high << 32
}

impl Launch {
    /// Packs a launch of a blueprint.
    ///
    /// # Arguments
    /// - `grids`: of every group of the blueprint.
    /// - `status`: address of the status word.
    pub fn new(blueprint: &Blueprint, index: usize, grids: &[GroupGrid], status: u64) -> Launch {
        let pack = |&group: &usize| {
            let steps = blueprint.groups[group].steps.clone();
            PackedGroup::new(blueprint, group, &steps, grids[group], status)
        };
        Launch::with_groups(index, blueprint.launches[index].iter().map(pack).collect())
    }

    /// A launch of one step alone, by the kernel of the launch that holds the step.
    ///
    /// The step takes the place of every step of its group. Other groups of the launch have no programs.
    pub fn alone(&self, blueprint: &Blueprint, step: usize, grids: &[GroupGrid], status: u64) -> Launch {
        let alone = |packed: &PackedGroup| {
            let group = &blueprint.groups[packed.group];
            if !group.steps.contains(&step) {
                return PackedGroup { steps: Vec::new(), programs: 0, ..packed.clone() };
            }
            let repeated = vec![step; group.steps.len()];
            let packed = PackedGroup::new(blueprint, packed.group, &repeated, grids[packed.group], status);
            PackedGroup { steps: vec![step], ..packed }
        };
        Launch::with_groups(self.index, self.groups.iter().map(alone).collect())
    }

    fn with_groups(index: usize, groups: Vec<PackedGroup>) -> Launch {
        let until = |group: usize| groups[..group].iter().map(|group| group.programs).sum::<u32>();
        let begins = (groups.len() > 1).then(|| pair(u64::from(until(1)), u64::from(until(2))));
        Launch { index, programs: until(groups.len()), begins, groups }
    }

    /// The groups of the launch by index, each with the steps that the launch refreshes.
    pub fn groups(&self) -> impl Iterator<Item = (usize, &[usize])> {
        self.groups.iter().map(|packed| (packed.group, &packed.steps[..]))
    }

    /// Calls `start` with the words of a call in the order of the kernel's parameters, and `scratch_words` null words after
    /// them.
    #[inline]
    pub fn with_words<T>(&self, inputs: &LiveInputs, scratch_words: usize, start: impl FnOnce(&mut [u64]) -> T) -> T {
        // The room is not cleared: clearing would take as long as all else in a call.
        let mut room = [MaybeUninit::uninit(); limits::LAUNCH_WORDS];
        let mut filled = 0;
        if let Some(begins) = self.begins {
            room[0].write(begins);
            filled = 1;
        }
        for group in &self.groups {
            filled += group.patch(inputs, &mut room[filled..]);
        }
        let all = filled + scratch_words;
        room[filled..all].fill(MaybeUninit::new(0));
        // SAFETY: every word of the slice was written above: the first word, each group's words, the scratch words.
        start(unsafe { &mut *(std::ptr::from_mut(&mut room[..all]) as *mut [u64]) })
    }
}

impl PackedGroup {
    /// Packs the arguments of a group. `steps` are of the group, so all have the same rows, buffers and strides.
    fn new(blueprint: &Blueprint, group: usize, steps: &[usize], grid: GroupGrid, status: u64) -> PackedGroup {
        let Group { mode, padding, .. } = blueprint.groups[group];
        let layouts: Vec<&StepLayout> = steps.iter().map(|&step| &blueprint.steps[step]).collect();
        let first = layouts[0];
        let table = &blueprint.table;
        let stride = |field: Field| first.buffer(field).map_or(0, |buffer| buffer.row_bytes(&field.dtype()));
        let offset = |layout: &StepLayout| if mode == Mode::Decode { layout.offset as u64 } else { 0 };
        // As many steps as the group has, even where one stands for all of them.
        let size = blueprint.groups[group].size(&blueprint.steps);
        let mut words = Vec::with_capacity(size.num_words());
        for argument in Argument::ALL {
            match argument {
                // Patched at each call.
                Argument::SeqLens
                | Argument::ReqPoolIndices
                | Argument::LiveStrides
                | Argument::HighLimits
                | Argument::ExtendLens
                | Argument::ExtendStrideAndLimit => words.push(0),
                Argument::FlagsAndReal => {
                    let by_slot = if padding == Padding::Slot { flags::PADDING_BY_SLOT } else { 0 };
                    words.push(by_slot | u64::from(grid.page_bits) << flags::PAGE_SHIFT);
                }
                Argument::HeadsAndWindow => {
                    let window = match mode {
                        Mode::TargetVerify { draft_token_num } => u64::from(draft_token_num),
                        Mode::Decode | Mode::DraftExtend => 1,
                    };
                    words.push(pair(u64::from(grid.heads), window));
                }
                Argument::ReqToToken => words.push(table.ptr),
                Argument::TableStrides => words.push(pair(table.row_bytes(), table.col_bytes())),
                Argument::SlotsAndWidth => words.push(pair(table.slots, table.width)),
                Argument::Offsets => {
                    let two = |two: &[&StepLayout]| pair(offset(two[0]), two.get(1).map_or(0, |second| offset(second)));
                    words.extend(layouts.chunks(2).map(two));
                }
                Argument::OutputStrides => words.push(pair(stride(Field::PageTable), stride(Field::RingGroupLocs))),
                Argument::RowsAndPages => {
                    words.push(pair(first.rows, blueprint.num_pages(&blueprint.groups[group])));
                }
                Argument::PageTable => {
                    words.extend(layouts.iter().filter_map(|layout| Some(layout.buffer(Field::PageTable)?.ptr)));
                }
                Argument::Status => words.push(status),
                Argument::Fields => {
                    let others = |layout: &&StepLayout| {
                        layout
                            .present()
                            .filter(|(field, _)| *field != Field::PageTable)
                            .map(|(_, buffer)| buffer.ptr)
                            .collect::<Vec<_>>()
                    };
                    words.extend(layouts.iter().flat_map(others));
                }
            }
        }
        debug_assert_eq!(words.len(), size.num_words());
        PackedGroup {
            group,
            steps: steps.to_vec(),
            programs: grid.programs,
            words: words.into_boxed_slice(),
            extend_at: Argument::ExtendLens.first_word(size),
        }
    }

    /// Writes the words of a call to the start of `room`, and returns their number.
    #[inline]
    fn patch(&self, inputs: &LiveInputs, room: &mut [MaybeUninit<u64>]) -> usize {
        // Arguments before the offsets have one word each, so their place is the same for every size (see the assertion).
        const SEQ_LENS: usize = Argument::SeqLens as usize;
        const REQ_POOL_INDICES: usize = Argument::ReqPoolIndices as usize;
        const LIVE_STRIDES: usize = Argument::LiveStrides as usize;
        const FLAGS_AND_REAL: usize = Argument::FlagsAndReal as usize;
        const HIGH_LIMITS: usize = Argument::HighLimits as usize;
        let room = &mut room[..self.words.len()];
        for (slot, &word) in room.iter_mut().zip(&self.words) {
            slot.write(word);
        }
        // SAFETY: every word of the slice was just written.
        let words = unsafe { &mut *(std::ptr::from_mut(room) as *mut [u64]) };
        let (lens, slots) = (&inputs.seq_lens, &inputs.req_pool_indices);
        // A group without extend lengths never reads them. The lengths stand in, so that the address is a real one.
        let extend = inputs.extend_lens.as_ref().unwrap_or(lens);
        let real = inputs.real();
        let limit = |vector: &LiveVector| if vector.wide { real } else { 0 };
        words[SEQ_LENS] = lens.ptr;
        words[REQ_POOL_INDICES] = slots.ptr;
        words[LIVE_STRIDES] = pair(lens.byte_stride(), slots.byte_stride());
        words[FLAGS_AND_REAL] |= pair(0, real);
        words[HIGH_LIMITS] = pair(limit(lens), limit(slots));
        words[self.extend_at] = extend.ptr;
        words[self.extend_at + 1] = pair(extend.byte_stride(), limit(extend));
        words.len()
    }
}

const _: () = {
    assert!(limits::LAUNCH_GROUPS <= 3, "one word has the first programs of the second and the third group");
    let mut index = 0;
    while index < Argument::Offsets as usize {
        assert!(Argument::ALL[index].tuple_words(GroupSize::MAX).is_none(), "one word each before the offsets");
        index += 1;
    }
    let extend = Argument::ExtendLens as usize;
    assert!(Argument::ALL[extend + 1] as usize == Argument::ExtendStrideAndLimit as usize, "read together");
};

#[cfg(test)]
mod tests;
