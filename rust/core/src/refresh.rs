//! The contract of `docs/semantics.md` on host memory: the CPU executor, and the independent check of the kernel.
//!
//! A mode only decides what each row of the bucket *asks for*: a request slot, a length and a prefix
//! (`Requests::decode`, `Requests::verify`, `Requests::extend`). Whether that can be served (`Asked::serve`) and
//! what is written for it (`Writer::write`) is the same for every mode.

use crate::inputs::{LiveInputs, LiveVector};
use crate::layout::{Field, Mode, Padding, StepLayout, TableLayout, status};
use crate::view::{OutputRows, StepRow, TableView, VectorView};

/// Rebuilds the buffers of the given steps from the live inputs, and returns the bits of [`status`] that apply.
///
/// Values never cause a panic or an access out of bounds: a row that cannot be served is inert. A batch of 0 (that of
/// the shortest input) writes nothing.
///
/// # Safety
/// - `table` and `steps` must have passed [`TableLayout::new`] and [`StepLayout::new`], on the host.
/// - All their memory, and that of `inputs`, must stay valid during the call, and nothing else may write to it.
/// - The outputs must share no memory with each other, with the table or with the inputs.
pub unsafe fn refresh(
    table: &TableLayout,
    mode: Mode,
    padding: Padding,
    steps: &[&StepLayout],
    inputs: &LiveInputs,
) -> i32 {
    // SAFETY: the caller promises that the inputs stay readable and unwritten during the call.
    let requests = unsafe { Requests::new(inputs, mode, padding) };
    if requests.batch == 0 {
        return 0;
    }
    // SAFETY: the caller promises the same for the table.
    let writer = Writer::new(table, unsafe { TableView::new(table) });
    // SAFETY: the caller promises valid host layouts, whose memory is writable and nobody else's during the call.
    let outputs = unsafe { OutputRows::new(steps) };

    let (asked, flags) = requests.count(mode);
    let dropped = steps.iter().any(|step| step.rows < asked);
    let flags = flags | flag_if(dropped, status::ROWS_EXCEED_BUCKET);
    flags
        | match mode {
            Mode::Decode => writer.fill(outputs, requests.decode(), |row| row.offset()),
            Mode::TargetVerify { draft_token_num } => writer.fill(outputs, requests.verify(draft_token_num), |_| 0),
            Mode::DraftExtend => writer.fill(outputs, requests.extend(), |_| 0),
        }
}

const fn flag_if(applies: bool, flag: i32) -> i32 {
    if applies { flag } else { 0 }
}

/// What a row of the bucket asks for, in numbers that nobody has checked.
#[derive(Clone, Copy)]
struct Asked {
    slot: i64,
    length: i64,
    prefix: i64,
}

impl Asked {
    /// The same row so many tokens later. A sum past 64 bits cannot be served either way, so it may saturate.
    const fn later(self, tokens: i64) -> Asked {
        Asked {
            slot: self.slot,
            length: self.length.saturating_add(tokens),
            prefix: self.prefix.saturating_add(tokens),
        }
    }

    /// The row if the table has room for it, or the flag that says why not.
    fn serve(self, table: &TableLayout) -> Result<Row, i32> {
        if !(0..table.slots as i64).contains(&self.slot) {
            Err(status::SLOT_OUT_OF_TABLE)
        } else if self.length <= 0 {
            Err(status::LENGTH_NOT_POSITIVE)
        } else if self.length > table.width as i64 {
            Err(status::LENGTH_EXCEEDS_TABLE)
        } else {
            // Slots and widths are below 2^31, and a prefix is always less than its length.
            Ok(Row { slot: self.slot as u32, length: self.length as u32, prefix: self.prefix.max(0) as u32 })
        }
    }
}

/// A row that can be served: the slot is in the table, `0 <= prefix < length <= width`, and all are below 2^31.
#[derive(Clone, Copy)]
struct Row {
    slot: u32,
    length: u32,
    prefix: u32,
}

impl Row {
    /// What stands in every row that has no request behind it.
    const INERT: Row = Row { slot: 0, length: 1, prefix: 0 };
}

/// The live batch.
struct Requests<'a> {
    seq_lens: VectorView<'a>,
    slots: VectorView<'a>,
    extend_lens: Option<VectorView<'a>>,
    padding: Padding,
    /// Requests, padding included.
    batch: u64,
    /// Requests before the counted padding.
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
    /// The inputs must stay readable, and nothing may write to them, while this lives.
    unsafe fn new(inputs: &LiveInputs, mode: Mode, padding: Padding) -> Self {
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

    /// How many rows the batch asks for, and the flags of what is wrong with the batch as a whole.
    fn count(&self, mode: Mode) -> (u64, i32) {
        match mode {
            Mode::Decode => (self.batch, 0),
            Mode::TargetVerify { draft_token_num } => (self.batch.saturating_mul(draft_token_num.into()), 0),
            Mode::DraftExtend => self.extending().fold((0, 0), |(rows, flags), (_, e)| {
                (u64::saturating_add(rows, e.max(0) as u64), flags | flag_if(e < 0, status::EXTEND_LENGTH_NEGATIVE))
            }),
        }
    }

    /// A row a request, before the offset of the step.
    fn decode(&self) -> impl Iterator<Item = Option<Asked>> {
        (0..self.batch).map(|q| {
            self.get(q).map(|request| Asked {
                slot: request.slot,
                length: request.seq_len,
                prefix: request.seq_len.saturating_sub(1),
            })
        })
    }

    /// `window` rows a request, each a token longer than the one before.
    fn verify(&self, window: u32) -> impl Iterator<Item = Option<Asked>> {
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

    /// The packed rows: as many a request as it extends by, the last of them at its full length.
    fn extend(&self) -> impl Iterator<Item = Option<Asked>> {
        self.extending().flat_map(|(request, e)| {
            let prefix = request.seq_len.saturating_sub(e).max(0);
            // `prefix + e` is the larger of the sequence and extend lengths, so nothing below it overflows.
            (0..e).map(move |j| Some(Asked { slot: request.slot, length: request.seq_len.min(prefix + 1 + j), prefix }))
        })
    }
}

/// Division by a number that is fixed for a whole refresh, as one multiplication and one shift.
#[derive(Clone, Copy)]
struct Divisor {
    value: u64,
    factor: u64,
    shift: u32,
}

impl Divisor {
    /// A divisor of at least 1.
    ///
    /// For dividends below 2^31 and a divisor up to 2^k, the factor `ceil(2^(31 + k) / value)` gives exact quotients
    /// (Granlund and Montgomery, "Division by Invariant Integers using Multiplication"), and products fit 64 bits.
    const fn new(value: u64) -> Divisor {
        if value >= 1 << 31 {
            // Larger than any dividend: every quotient is 0.
            return Divisor { value, factor: 0, shift: 0 };
        }
        let shift = 31 + value.next_power_of_two().trailing_zeros();
        Divisor { value, factor: (1u64 << shift).div_ceil(value), shift }
    }

    /// The quotient of a dividend below 2^31.
    const fn divide(self, dividend: u32) -> u32 {
        debug_assert!(dividend < 1 << 31);
        ((dividend as u64 * self.factor) >> self.shift) as u32
    }

    /// The quotient of a table entry, of which a negative one counts as 0.
    const fn divide_entry(self, entry: i32) -> i32 {
        let entry = if entry < 0 { 0 } else { entry };
        self.divide(entry as u32) as i32
    }
}

/// Writes rows; holds what is the same for all of them.
struct Writer<'a> {
    layout: &'a TableLayout,
    table: TableView<'a>,
    ratio: Divisor,
    page_size: Divisor,
    /// Pages of a slot that the table holds in full.
    pages: usize,
}

impl<'a> Writer<'a> {
    const fn new(layout: &'a TableLayout, table: TableView<'a>) -> Self {
        Writer {
            layout,
            table,
            ratio: Divisor::new(layout.compress_ratio),
            page_size: Divisor::new(layout.page_size),
            pages: (layout.width / layout.page_size) as usize,
        }
    }

    /// Writes every row of the bucket in every step, and returns the flags of those that could not be served. Rows past
    /// what is asked for are inert.
    fn fill(
        &self,
        outputs: OutputRows<'_>,
        mut asked: impl Iterator<Item = Option<Asked>>,
        offset: impl Fn(&StepRow<'_>) -> i64,
    ) -> i32 {
        let mut flags = 0;
        let mut known = KnownPages::NONE;
        for bucket_row in outputs {
            let asked = asked.next().flatten();
            for out in bucket_row {
                let row = asked.map_or(Row::INERT, |asked| {
                    asked.later(offset(&out)).serve(self.layout).unwrap_or_else(|flag| {
                        flags |= flag;
                        Row::INERT
                    })
                });
                self.write(row, out, &mut known);
            }
        }
        flags
    }

    /// Writes one row of one step.
    fn write<'o>(&self, row: Row, mut out: StepRow<'o>, known: &mut KnownPages<'o>) {
        let position = row.length - 1;
        let groups = self.ratio.divide(row.length);
        let ratio = self.ratio.value;
        let rest = u64::from(row.length) - u64::from(groups) * ratio;
        // Past 64 bits only where a ratio is absurd; the kernel's product wraps in the same way.
        let ring = u64::from(row.slot).wrapping_mul(ratio);
        // The remainder of the position, which is one less than that of the length.
        let ring_position = if rest == 0 { ratio - 1 } else { rest - 1 };

        out.put(Field::SequenceLengths, row.length as i32);
        out.put(Field::RowReqPoolIndices, row.slot as i32);
        out.put(Field::PrefixLengths, row.prefix as i32);
        out.put(Field::CompressedLengths, groups as i32);
        out.put(Field::LogicalPositions, position as i32);
        out.put(Field::PendingRingSlots, ring.wrapping_add(ring_position) as i64);
        if let Some([loc, ..]) = out.elements(Field::WriteLocs) {
            *loc = if rest == 0 {
                let slot = self.table.row(row.slot.into());
                self.ratio.divide_entry(slot.get(position.into()))
            } else {
                0
            };
        }
        if let Some(locs) = out.elements(Field::RingGroupLocs) {
            write_ring_group(locs, ring, position, rest);
        }
        if let Some(ids) = out.into_elements(Field::PageTable) {
            let live = self.page_size.divide(position) as usize + 1;
            let live = live.min(ids.len()).min(self.pages);
            known.write(row.slot, &mut ids[..live], |first, ids| {
                self.page_ids(row.slot, first, ids);
            });
        }
    }

    /// Page ids of a slot, from page `first` on.
    fn page_ids(&self, slot: u32, first: usize, ids: &mut [i32]) {
        let page_size = self.page_size;
        self.table.row(slot.into()).gather(first as u64, page_size.value, ids, |entry| page_size.divide_entry(entry));
    }
}

/// Ring slots of the last `locs.len()` positions up to `position`, oldest first; before position 0 the first one is
/// repeated. `rest` is the remainder of `position + 1`.
fn write_ring_group(locs: &mut [i32], ring: u64, position: u32, rest: u64) {
    let ring = ring as i32;
    let ratio = locs.len();
    // Positions before 0. If there are any, the first real one is position 0, else it is `position + 1 - ratio`.
    let before = ratio.saturating_sub(position as usize + 1);
    let (repeated, real) = locs.split_at_mut(before);
    repeated.fill(ring);
    let mut at = if before > 0 { 0 } else { rest as i32 };
    for loc in real {
        *loc = ring + at;
        at += 1;
        if at as usize == ratio {
            at = 0;
        }
    }
}

/// The longest run of page ids written for the last slot.
///
/// Page ids depend on the slot alone, and the rows of a request follow each other (as steps in decode mode, as rows in
/// the others), so that a row copies what the one before it has and only reads the table for what is new.
struct KnownPages<'o> {
    slot: u32,
    ids: &'o [i32],
}

impl<'o> KnownPages<'o> {
    const NONE: KnownPages<'static> = KnownPages { slot: 0, ids: &[] };

    /// Writes the page ids of a slot; `read` gives those from a page on.
    fn write(&mut self, slot: u32, ids: &'o mut [i32], read: impl FnOnce(usize, &mut [i32])) {
        if self.slot != slot {
            *self = KnownPages { slot, ids: &[] };
        }
        let copied = ids.len().min(self.ids.len());
        ids[..copied].copy_from_slice(&self.ids[..copied]);
        if ids.len() > copied {
            read(copied, &mut ids[copied..]);
            self.ids = ids;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Divisor;

    #[test]
    fn quotients_are_exact_on_both_sides_of_every_multiple() {
        const LAST: u64 = i32::MAX as u64;
        let near_powers = (1..=62).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1]);
        for value in (1..5000).chain(near_powers).chain([i64::MAX as u64, u64::MAX]) {
            let divisor = Divisor::new(value);
            // The largest dividends are those that a factor of too few bits gets wrong.
            for multiple in [1, 2, LAST / value / 2, LAST / value].map(|times| value.saturating_mul(times)) {
                for dividend in [multiple.saturating_sub(1), multiple, multiple.saturating_add(1), LAST] {
                    let dividend = dividend.min(LAST);
                    assert_eq!(u64::from(divisor.divide(dividend as u32)), dividend / value, "{dividend} / {value}");
                }
            }
        }
    }

    #[test]
    fn a_negative_entry_divides_as_0() {
        let divisor = Divisor::new(3);
        assert_eq!(
            [i32::MIN, -4, -1, 0, 2, 3, i32::MAX].map(|entry| divisor.divide_entry(entry)),
            [0, 0, 0, 0, 0, 1, i32::MAX / 3]
        );
    }
}
