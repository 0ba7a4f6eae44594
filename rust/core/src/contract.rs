//! The terms of `docs/semantics.md`: buffers, modes, padding rules, status bits and limits.

use crate::error::{Error, Place, Result};
use crate::tensor::DType;

/// A buffer of a step. The order here is the order of every list of buffers in this project.
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

    /// Name of the buffer in SGLang and in the public API.
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

    /// The buffer of a name.
    pub fn named(name: &str) -> Option<Field> {
        Field::ALL.into_iter().find(|field| field.name() == name)
    }

    /// Element type of the buffer.
    pub const fn dtype(self) -> DType {
        match self {
            Field::PendingRingSlots => DType::Int64,
            _ => DType::Int32,
        }
    }

    /// Number of dimensions of the buffer.
    pub const fn rank(self) -> usize {
        match self {
            Field::RingGroupLocs | Field::PageTable => 2,
            _ => 1,
        }
    }
}

/// How the rows of a bucket are laid out over requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// One row a request, at the request's length plus the step's offset.
    Decode,
    /// `draft_token_num` rows a request.
    TargetVerify {
        /// Rows of a request.
        draft_token_num: u32,
    },
    /// `extend_lens[q]` rows of request q, packed.
    DraftExtend,
}

impl Mode {
    /// The public names of the modes.
    pub const NAMES: [&'static str; 3] = ["decode", "target_verify", "draft_extend"];

    /// A mode by its public name.
    ///
    /// # Errors
    /// [`Error::Layout`] for an unknown name. The same error for a `draft_token_num` that is missing, below 1, or given
    /// in a mode that has none.
    pub fn parse(name: &str, draft_token_num: Option<i64>) -> Result<Mode> {
        let place = Place::Argument("draft_token_num");
        match (name, draft_token_num) {
            ("decode", None) => Ok(Mode::Decode),
            ("draft_extend", None) => Ok(Mode::DraftExtend),
            ("target_verify", Some(n)) if (1..=limits::ROWS as i64).contains(&n) => {
                Ok(Mode::TargetVerify { draft_token_num: n as u32 })
            }
            ("target_verify", given) => Err(Error::layout(
                place,
                "value",
                given.map_or("None".to_string(), |n| n.to_string()),
                format!("from 1 to {}", limits::ROWS),
                "pass the rows of a request that one verify pass holds",
            )),
            ("decode" | "draft_extend", Some(n)) => {
                Err(Error::layout(place, "value", n, "None", "it belongs to mode \"target_verify\" alone"))
            }
            _ => Err(Error::layout(
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
            Mode::Decode => Mode::NAMES[0],
            Mode::TargetVerify { .. } => Mode::NAMES[1],
            Mode::DraftExtend => Mode::NAMES[2],
        }
    }
}

/// Which requests are padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Padding {
    /// The last `num_padding` requests.
    Count,
    /// Requests with slot 0, and the last `num_padding` requests.
    Slot,
}

impl Padding {
    /// A padding rule by its public name.
    ///
    /// # Errors
    /// [`Error::Layout`] for an unknown name.
    pub fn parse(name: &str) -> Result<Padding> {
        match name {
            "count" => Ok(Padding::Count),
            "slot" => Ok(Padding::Slot),
            _ => Err(Error::layout(
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

/// Bits of the status word: why rows of a refresh were made inert or dropped.
pub mod status {
    /// A request slot outside the table.
    pub const SLOT_OUT_OF_TABLE: i32 = 1;
    /// A row length of 0 or less.
    pub const LENGTH_NOT_POSITIVE: i32 = 2;
    /// A row length past the table's width.
    pub const LENGTH_EXCEEDS_TABLE: i32 = 4;
    /// More packed rows than the bucket holds.
    pub const ROWS_EXCEED_BUCKET: i32 = 8;
    /// A negative extend length. The refresh takes 0 instead.
    pub const EXTEND_LENGTH_NEGATIVE: i32 = 16;
}

/// The largest sizes that the kernel serves, most of them for the sake of its 32-bit arithmetic.
pub mod limits {
    /// Steps of a group. The kernel's code has a part for each step, and compile time grows faster than the number of
    /// steps: 2 s at 7 steps, 5 s at 16, 21 s at 32 (two cores).
    pub const GROUP_STEPS: usize = 16;
    /// Groups of a launch. The word before them has the first programs of two.
    pub const LAUNCH_GROUPS: usize = 3;
    /// Words of a launch, scratch pointers included: a kernel's parameters have 4 KiB at most.
    pub const LAUNCH_WORDS: usize = 512;
    /// Rows of a bucket. The kernel adds up 1,024 extend lengths, each clipped to the rows, in 31 bits.
    pub const ROWS: u64 = 1 << 20;
    /// Tokens of a slot, and slots of a table. So many int32 entries lie within [`STRIDE_BYTES`] of each other.
    pub const WIDTH: u64 = (1 << 30) - 1;
    /// Bytes from a row or an element to the next. The kernel multiplies by strides of 32 bits.
    pub const STRIDE_BYTES: u64 = u32::MAX as u64;
    /// Tokens of a compressed group, and of a page. Both divide int32 numbers.
    pub const RATIO: i64 = i32::MAX as i64;
    /// Tokens that a step may add to a length.
    pub const OFFSET: i64 = 1 << 29;
}
