//! What is written for a row.

use super::divisor::Divisor;
use super::rows::{Asked, Row};
use super::view::{OutputRows, StepRow, TableView};
use crate::contract::Field;
use crate::layout::TableLayout;

/// Writes rows. Holds what all rows share.
pub struct Writer<'a> {
    layout: &'a TableLayout,
    table: TableView<'a>,
    ratio: Divisor,
    page_size: Divisor,
    ring_size: Divisor,
    /// Pages of a slot that the table holds in full.
    pages: usize,
}

impl<'a> Writer<'a> {
    pub const fn new(layout: &'a TableLayout, table: TableView<'a>) -> Self {
        Writer {
            layout,
            table,
            ratio: Divisor::new(layout.compress_ratio),
            page_size: Divisor::new(layout.page_size),
            ring_size: Divisor::new(layout.ring_size),
            pages: layout.pages() as usize,
        }
    }

    /// Writes every row of the bucket in every step. Rows that nothing asks for are inert. Returns the status bits of rows
    /// that could not be served.
    pub fn fill(
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
        let rest = u64::from(row.length) - u64::from(groups) * self.ratio.value;
        // Only absurd sizes lead past 64 bits. The kernel's product wraps in the same way.
        let ring = u64::from(row.slot).wrapping_mul(self.ring_size.value);

        out.put(Field::SequenceLengths, row.length as i32);
        out.put(Field::RowReqPoolIndices, row.slot as i32);
        out.put(Field::PrefixLengths, row.prefix as i32);
        out.put(Field::CompressedLengths, groups as i32);
        out.put(Field::LogicalPositions, position as i32);
        out.put(Field::PendingRingSlots, ring.wrapping_add(self.ring_size.remainder(position)) as i64);
        if let Some([loc, ..]) = out.elements(Field::WriteLocs) {
            *loc = if rest == 0 {
                let slot = self.table.row(row.slot.into());
                self.ratio.divide_entry(slot.get(position.into()))
            } else {
                0
            };
        }
        if let Some(locs) = out.elements(Field::RingGroupLocs) {
            write_ring_group(locs, ring, position, self.ring_size);
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

/// Ring slots of the last `locs.len()` positions up to `position`, oldest first. Positions before 0 count as position 0.
fn write_ring_group(locs: &mut [i32], ring: u64, position: u32, ring_size: Divisor) {
    let ring = ring as i32;
    let count = locs.len();
    let before = count.saturating_sub(position as usize + 1);
    let (repeated, real) = locs.split_at_mut(before);
    repeated.fill(ring);
    let first = (position as usize + 1).saturating_sub(count);
    let mut at = ring_size.remainder(first as u32) as i32;
    for loc in real {
        *loc = ring + at;
        at += 1;
        if at as u64 == ring_size.value {
            at = 0;
        }
    }
}

/// The longest run of page ids written for the last slot.
///
/// Page ids depend on the slot alone. Rows of one request follow each other, as steps in decode mode and as rows in the
/// other modes. So a row copies the page ids of the row before, and reads the table for further pages only.
struct KnownPages<'o> {
    slot: u32,
    ids: &'o [i32],
}

impl<'o> KnownPages<'o> {
    const NONE: KnownPages<'static> = KnownPages { slot: 0, ids: &[] };

    /// Writes the page ids of a slot. `read` reads page ids from the table, from a page on.
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
