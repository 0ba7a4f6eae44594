//! Everything that a refresh depends on, and what a row must hold afterwards.

use qsa_group_core::contract::{Field, Mode, NUM_FIELDS, Padding};
use qsa_group_core::inputs::LiveVector;
use qsa_group_core::tensor::Device;

/// A bit for each buffer.
pub const ALL_FIELDS: u32 = (1 << NUM_FIELDS) - 1;

/// A live vector: its values, and how they lie in memory.
#[derive(Clone, Debug)]
pub struct Live {
    pub values: Vec<i64>,
    pub wide: bool,
    pub stride: usize,
    /// Bytes off an aligned address.
    pub skew: usize,
}

impl Live {
    pub fn new(values: &[i64]) -> Live {
        Live { values: values.to_vec(), wide: true, stride: 1, skew: 0 }
    }

    /// The values as they read back: narrowed to the dtype, and all of them the first one under a stride of 0.
    pub fn seen(&self) -> Vec<i64> {
        let narrow = |v: i64| if self.wide { v } else { v.clamp(i32::MIN.into(), i32::MAX.into()) };
        (0..self.values.len()).map(|i| narrow(self.values[if self.stride == 0 { 0 } else { i }])).collect()
    }

    pub fn memory(&self) -> Vec<u8> {
        let size = if self.wide { 8 } else { 4 };
        let mut bytes = vec![0xa5; self.skew + (self.values.len() * self.stride.max(1) + 1) * size];
        for (i, value) in self.seen().into_iter().enumerate() {
            let at = self.skew + i * self.stride * size;
            bytes[at..at + size].copy_from_slice(&value.to_ne_bytes()[..size]);
        }
        bytes
    }

    pub fn vector(&self, memory: &[u8]) -> LiveVector {
        LiveVector {
            ptr: memory[self.skew..].as_ptr().expose_provenance() as u64,
            len: self.values.len() as u64,
            stride: self.stride as u64,
            wide: self.wide,
            device: Device::CPU,
        }
    }
}

/// One step: its offset, the buffers it has, and their rows.
#[derive(Clone, Debug)]
pub struct Step {
    pub offset: i64,
    pub present: u32,
    pub rows: usize,
}

/// Everything that a refresh depends on.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub mode: Mode,
    pub padding: Padding,
    pub num_padding: i64,
    pub ratio: i64,
    pub page_size: i64,
    pub ring_size: i64,
    /// `table[slot][token]`.
    pub table: Vec<Vec<i32>>,
    /// Slots are columns instead of rows.
    pub transposed: bool,
    pub max_pages: usize,
    pub steps: Vec<Step>,
    /// The two-dimensional buffers of all steps are column slices of one tensor.
    pub interleaved: bool,
    pub seq_lens: Live,
    pub slots: Live,
    pub extend_lens: Option<Live>,
}

impl Scenario {
    /// One step with all its buffers, over 6 slots of 64 tokens in pages of 16.
    pub fn new(mode: Mode, rows: usize, seq_lens: &[i64], slots: &[i64]) -> Scenario {
        Scenario {
            mode,
            padding: Padding::Count,
            num_padding: 0,
            ratio: 4,
            page_size: 16,
            ring_size: 4,
            table: (0..6).map(|slot| (0..64).map(|token| slot * 128 + token).collect()).collect(),
            transposed: false,
            max_pages: 4,
            steps: vec![Step { offset: 1, present: ALL_FIELDS, rows }],
            interleaved: false,
            seq_lens: Live::new(seq_lens),
            slots: Live::new(slots),
            extend_lens: None,
        }
    }

    pub fn decode(seq_lens: &[i64], slots: &[i64]) -> Scenario {
        Scenario::new(Mode::Decode, seq_lens.len(), seq_lens, slots)
    }

    pub fn verify(window: u32, seq_lens: &[i64], slots: &[i64]) -> Scenario {
        let rows = seq_lens.len() * window as usize;
        Scenario::new(Mode::TargetVerify { draft_token_num: window }, rows, seq_lens, slots)
    }

    pub fn extend(rows: usize, seq_lens: &[i64], slots: &[i64], extend_lens: &[i64]) -> Scenario {
        let extend_lens = Some(Live::new(extend_lens));
        Scenario { extend_lens, ..Scenario::new(Mode::DraftExtend, rows, seq_lens, slots) }
    }

    pub fn width(&self) -> usize {
        self.table[0].len()
    }

    /// Columns of a buffer.
    pub fn columns(&self, field: Field) -> usize {
        match field {
            Field::RingGroupLocs => self.ratio as usize,
            Field::PageTable => self.max_pages,
            _ => 1,
        }
    }
}

/// What a row must hold afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Values {
    /// The vectors, in the order of `Field::ALL`.
    pub scalars: [i64; 7],
    pub ring: Vec<i64>,
    /// The entries that are written; those after them keep what they held.
    pub live_pages: Vec<i64>,
}

impl Values {
    pub fn of(&self, field: Field) -> &[i64] {
        match field {
            Field::RingGroupLocs => &self.ring,
            Field::PageTable => &self.live_pages,
            _ => std::slice::from_ref(&self.scalars[field as usize]),
        }
    }
}
