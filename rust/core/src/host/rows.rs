//! What each row of a bucket asks for, and whether the table can serve the row.

use super::view::VectorView;
use crate::contract::{Mode, Padding, status};
use crate::inputs::{LiveInputs, LiveVector};
use crate::layout::TableLayout;

/// What a row of the bucket asks for, before any check.
#[derive(Clone, Copy)]
pub struct Asked {
    slot: i64,
    length: i64,
    prefix: i64,
}

impl Asked {
    /// The row with `tokens` more tokens. A sum past 64 bits cannot be served, saturated or not.
    pub const fn later(self, tokens: i64) -> Asked {
        Asked {
            slot: self.slot,
            length: self.length.saturating_add(tokens),
            prefix: self.prefix.saturating_add(tokens),
        }
    }

    /// The row, if the table can serve it; otherwise the status bit that says why not.
    pub fn serve(self, table: &TableLayout) -> Result<Row, i32> {
        if !(0..table.slots as i64).contains(&self.slot) {
            Err(status::SLOT_OUT_OF_TABLE)
        } else if self.length <= 0 {
            Err(status::LENGTH_NOT_POSITIVE)
        } else if self.length > table.width as i64 {
            Err(status::LENGTH_EXCEEDS_TABLE)
        } else {
            // Slots and widths are below 2^31, and a prefix is less than its length.
            Ok(Row { slot: self.slot as u32, length: self.length as u32, prefix: self.prefix.max(0) as u32 })
        }
    }
}

/// A row that can be served: the slot is in the table, `0 <= prefix < length <= width`, and all three are below 2^31.
#[derive(Clone, Copy)]
pub struct Row {
    pub slot: u32,
    pub length: u32,
    pub prefix: u32,
}

impl Row {
    /// A row without a request.
    pub const INERT: Row = Row { slot: 0, length: 1, prefix: 0 };
}

/// The live batch.
pub struct Requests<'a> {
    seq_lens: VectorView<'a>,
    slots: VectorView<'a>,
    extend_lens: Option<VectorView<'a>>,
    padding: Padding,
    /// Requests, padding included.
    pub batch: u64,
    /// Requests before the padding that `num_padding` counts.
    counted: u64,
}

/// A request that is not padding.
#[derive(Clone, Copy)]
struct Request {
    slot: i64,
    seq_len: i64,
}

impl Requests<'_> {
    /// # Safety
    /// The inputs must stay readable while this lives, and nothing may write to them.
    pub unsafe fn new(inputs: &LiveInputs, mode: Mode, padding: Padding) -> Self {
        // SAFETY: as promised to this function.
        let view = |vector: &LiveVector| unsafe { VectorView::new(vector) };
        let seq_lens = view(&inputs.seq_lens);
        let slots = view(&inputs.req_pool_indices);
        let extend_lens = match mode {
            Mode::DraftExtend => inputs.extend_lens.as_ref().map(view),
            Mode::Decode | Mode::TargetVerify { .. } => None,
        };
        let batch = seq_lens.len().min(slots.len()).min(extend_lens.map_or(u64::MAX, |lens| lens.len()));
        let num_padding = inputs.num_padding.max(0) as u64;
        Requests { seq_lens, slots, extend_lens, padding, batch, counted: batch.saturating_sub(num_padding) }
    }

    /// A request, unless it is padding.
    fn get(&self, q: u64) -> Option<Request> {
        if q >= self.counted {
            return None;
        }
        let slot = self.slots.get(q);
        if slot == 0 && self.padding == Padding::Slot {
            return None;
        }
        Some(Request { slot, seq_len: self.seq_lens.get(q) })
    }

    /// The requests that are not padding, each with its extend length as given.
    fn extending(&self) -> impl Iterator<Item = (Request, i64)> {
        (0..self.counted).filter_map(|q| Some((self.get(q)?, self.extend_lens.as_ref()?.get(q))))
    }

    /// How many rows the batch asks for, and the status bits of the batch as a whole.
    pub fn count(&self, mode: Mode) -> (u64, i32) {
        match mode {
            Mode::Decode => (self.batch, 0),
            Mode::TargetVerify { draft_token_num } => (self.batch.saturating_mul(draft_token_num.into()), 0),
            Mode::DraftExtend => self.extending().fold((0, 0), |(rows, flags), (_, e)| {
                (u64::saturating_add(rows, e.max(0) as u64), flags | flag_if(e < 0, status::EXTEND_LENGTH_NEGATIVE))
            }),
        }
    }

    /// One row a request, before the step's offset.
    pub fn decode(&self) -> impl Iterator<Item = Option<Asked>> {
        (0..self.batch).map(|q| {
            self.get(q).map(|request| Asked {
                slot: request.slot,
                length: request.seq_len,
                prefix: request.seq_len.saturating_sub(1),
            })
        })
    }

    /// `window` rows a request. Each row is a token longer than the row before.
    pub fn verify(&self, window: u32) -> impl Iterator<Item = Option<Asked>> {
        (0..self.batch).flat_map(move |q| {
            let request = self.get(q);
            (0..i64::from(window)).map(move |j| {
                request.map(|request| Asked {
                    slot: request.slot,
                    length: request.seq_len.saturating_add(j + 1),
                    prefix: request.seq_len,
                })
            })
        })
    }

    /// The packed rows: `extend_lens[q]` of request q, of which the last has the full length.
    pub fn extend(&self) -> impl Iterator<Item = Option<Asked>> {
        self.extending().flat_map(|(request, e)| {
            let prefix = request.seq_len.saturating_sub(e).max(0);
            // `prefix + e` is the larger of sequence length and extend length, so no sum below overflows.
            (0..e).map(move |j| Some(Asked { slot: request.slot, length: request.seq_len.min(prefix + 1 + j), prefix }))
        })
    }
}

/// The flag, if it applies.
pub const fn flag_if(applies: bool, flag: i32) -> i32 {
    if applies { flag } else { 0 }
}
