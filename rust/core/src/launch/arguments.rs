//! The kernel's arguments for one group: their order, their names and how many words each has.
//!
//! This is the one description. Packing follows from [`Argument::ALL`] (`pack.rs`), and so do the kernel's signature and
//! its named tuple in Python (`qsa_group/kernel/arguments.py`).
//!
//! Every word has 8 bytes: an address, or two numbers of 32 bits, the first in the lower half. A program of the kernel
//! misses the constant cache once for each 64 bytes of arguments that it touches. So numbers share words, and the order
//! is the order of need: what it takes to read the live vectors, what a decode step needs to read its pages, what it
//! needs to write them, then the rest.

use crate::contract::{Field, NUM_FIELDS, limits};
use crate::driver::MAX_SCRATCH_WORDS;

/// An argument of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Argument {
    /// Address of \[batch\] int32 or int64: live lengths.
    SeqLens,
    /// Address of \[batch\] int32 or int64: request slots.
    ReqPoolIndices,
    /// Two uint32: strides of `seq_lens` and of `req_pool_indices`, in bytes.
    LiveStrides,
    /// Two int32. Flags: bit 0 says that requests with slot 0 are padding; from bit 8 on stands the log2 of the number of
    /// a row's page entries that have a lane each. Then the live requests that are not padding by count.
    FlagsAndReal,
    /// Two int32: up to which element `seq_lens` and `req_pool_indices` have upper halves. That is the number of live
    /// requests for int64, and 0 for int32.
    HighLimits,
    /// Two int32: programs that are heads; rows of a request in target verify.
    HeadsAndWindow,
    /// Address of \[slots, width\] int32: KV slot of each token.
    ReqToToken,
    /// Two uint32: bytes from a slot of the table to the next, and from a token to the next.
    TableStrides,
    /// Two int32: slots of the table, tokens of a slot.
    SlotsAndWidth,
    /// What each step adds to a length: an int32 a step, two steps a word; 0 in every mode but decode.
    Offsets,
    /// Two uint32: row strides of the page tables and of the ring group locations, in bytes.
    OutputStrides,
    /// Two int32: rows of the bucket, page entries of a row that exist.
    RowsAndPages,
    /// Address of each step's page table; absent without page tables.
    PageTable,
    /// Address of \[1\] int32: the status word.
    Status,
    /// Address of \[batch\] int32 or int64: rows of each request. Read in draft extend only.
    ExtendLens,
    /// A uint32 and an int32: stride of `extend_lens` in bytes; up to which element it has upper halves.
    ExtendStrideAndLimit,
    /// Addresses of the other buffers, step after step, and within a step in the order of [`Field::ALL`]; absent if there
    /// are none.
    Fields,
}

/// What the number of words of a group depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSize {
    /// Steps of the group.
    pub steps: usize,
    /// A bit for each buffer of a step, in the order of [`Field::ALL`].
    pub buffers: u32,
}

impl Argument {
    /// Every argument, in the order of the kernel's parameters.
    pub const ALL: [Argument; 17] = [
        Argument::SeqLens,
        Argument::ReqPoolIndices,
        Argument::LiveStrides,
        Argument::FlagsAndReal,
        Argument::HighLimits,
        Argument::HeadsAndWindow,
        Argument::ReqToToken,
        Argument::TableStrides,
        Argument::SlotsAndWidth,
        Argument::Offsets,
        Argument::OutputStrides,
        Argument::RowsAndPages,
        Argument::PageTable,
        Argument::Status,
        Argument::ExtendLens,
        Argument::ExtendStrideAndLimit,
        Argument::Fields,
    ];

    /// Name of the argument in the kernel.
    pub const fn name(self) -> &'static str {
        match self {
            Argument::SeqLens => "seq_lens",
            Argument::ReqPoolIndices => "req_pool_indices",
            Argument::LiveStrides => "live_strides",
            Argument::FlagsAndReal => "flags_and_real",
            Argument::HighLimits => "high_limits",
            Argument::HeadsAndWindow => "heads_and_window",
            Argument::ReqToToken => "req_to_token",
            Argument::TableStrides => "table_strides",
            Argument::SlotsAndWidth => "slots_and_width",
            Argument::Offsets => "offsets",
            Argument::OutputStrides => "output_strides",
            Argument::RowsAndPages => "rows_and_pages",
            Argument::PageTable => "page_table",
            Argument::Status => "status",
            Argument::ExtendLens => "extend_lens",
            Argument::ExtendStrideAndLimit => "extend_stride_and_limit",
            Argument::Fields => "fields",
        }
    }

    /// Words of an argument that is a tuple; `None` for a single word.
    pub const fn tuple_words(self, size: GroupSize) -> Option<usize> {
        let page_table = 1 << Field::PageTable as u32;
        match self {
            Argument::Offsets => Some(size.steps.div_ceil(2)),
            Argument::PageTable => Some(if size.buffers & page_table != 0 { size.steps } else { 0 }),
            Argument::Fields => Some(size.steps * (size.buffers & !page_table).count_ones() as usize),
            _ => None,
        }
    }

    /// Words of the argument.
    pub const fn num_words(self, size: GroupSize) -> usize {
        match self.tuple_words(size) {
            Some(words) => words,
            None => 1,
        }
    }

    /// Index of the argument's first word among the words of its group.
    pub const fn first_word(self, size: GroupSize) -> usize {
        let (mut index, mut words) = (0, 0);
        while index < self as usize {
            words += Argument::ALL[index].num_words(size);
            index += 1;
        }
        words
    }
}

impl GroupSize {
    /// The largest group.
    pub const MAX: GroupSize = GroupSize { steps: limits::GROUP_STEPS, buffers: (1 << NUM_FIELDS) - 1 };

    /// Words of all arguments of the group.
    pub const fn num_words(self) -> usize {
        Argument::Fields.first_word(self) + Argument::Fields.num_words(self)
    }
}

/// Words of a launch over groups of these sizes. Before the words of several groups stands one that says which programs
/// belong to which group.
pub fn launch_words(groups: &[GroupSize]) -> usize {
    usize::from(groups.len() > 1) + groups.iter().map(|group| group.num_words()).sum::<usize>()
}

const _: () = {
    // The order of the enum is the order of the list.
    let mut index = 0;
    while index < Argument::ALL.len() {
        assert!(Argument::ALL[index] as usize == index);
        index += 1;
    }
    // The largest group has a launch.
    assert!(GroupSize::MAX.num_words() + MAX_SCRATCH_WORDS <= limits::LAUNCH_WORDS);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_follow_from_steps_and_buffers() {
        let page_table_and_lengths = GroupSize { steps: 3, buffers: 1 | 1 << 8 };
        assert_eq!(page_table_and_lengths.num_words(), 14 + 2 + 3 + 3);
        assert_eq!(Argument::ExtendLens.first_word(page_table_and_lengths), 9 + 2 + 2 + 3 + 1);
        assert_eq!(Argument::PageTable.tuple_words(GroupSize { steps: 3, buffers: 7 }), Some(0));
        assert_eq!(Argument::Status.tuple_words(page_table_and_lengths), None);
        assert_eq!(GroupSize::MAX.num_words(), 14 + 8 + 16 * 9);
        assert_eq!(launch_words(&[page_table_and_lengths]), 22);
        assert_eq!(launch_words(&[page_table_and_lengths, GroupSize { steps: 1, buffers: 1 }]), 1 + 22 + 16);
    }
}
