//! One step's buffers: validation of the step as a whole.

use super::{Buffer, TableLayout};
use crate::contract::{Field, NUM_FIELDS, limits};
use crate::error::{Error, Place, Result};
use crate::tensor::TensorSpec;

/// One step's validated layout.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StepLayout {
    /// Tokens that the step adds to a request's length; decode mode only.
    pub offset: i64,
    /// Rows of every buffer.
    pub rows: u64,
    /// The buffers, in the order of [`Field::ALL`]. An absent buffer is not computed.
    pub buffers: [Option<Buffer>; NUM_FIELDS],
}

impl StepLayout {
    /// Validates one step against the request table.
    ///
    /// # Errors
    /// [`Error::Layout`] with the step and the field. [`Error::Capacity`] for more rows than [`limits::ROWS`].
    pub fn new(
        step: usize,
        offset: i64,
        specs: &[Option<TensorSpec>; NUM_FIELDS],
        table: &TableLayout,
    ) -> Result<StepLayout> {
        if !(0..=limits::OFFSET).contains(&offset) {
            return Err(Error::layout(
                Place::Step { step, field: "offset" },
                "value",
                offset,
                format!("from 0 to {}", limits::OFFSET),
                "pass the tokens that the step adds to a request, usually step + 1",
            ));
        }
        let mut buffers = [None; NUM_FIELDS];
        let mut first: Option<(Field, u64)> = None;
        for field in Field::ALL {
            let Some(spec) = &specs[field as usize] else {
                continue;
            };
            let buffer = Buffer::new(step, field, spec, table.device)?;
            let (other, rows) = *first.get_or_insert((field, buffer.rows));
            if rows != buffer.rows {
                return Err(Error::layout(
                    Place::Step { step, field: field.name() },
                    "rows",
                    buffer.rows,
                    format!("{rows}, as {}", other.name()),
                    "slice every buffer of a step to the same bucket",
                ));
            }
            buffers[field as usize] = Some(buffer);
        }
        let Some((_, rows)) = first else {
            return Err(Error::layout(
                Place::Step { step, field: "buffers" },
                "count",
                0,
                "at least 1",
                "pass the buffers that the graph reads, or leave the step out",
            ));
        };
        if rows > limits::ROWS {
            return Err(Error::Capacity {
                name: "rows",
                needed: rows,
                limit: limits::ROWS,
                remedy: "split the bucket",
            });
        }
        let layout = StepLayout { offset, rows, buffers };
        layout.check_ring(step, table)?;
        layout.check_own_memory(step, table)?;
        Ok(layout)
    }

    /// The buffers of the step, in order.
    pub fn present(&self) -> impl Iterator<Item = (Field, &Buffer)> {
        Field::ALL.iter().filter_map(|&field| Some((field, self.buffers[field as usize].as_ref()?)))
    }

    /// A bit for each buffer of the step, in the order of [`Field::ALL`].
    pub fn mask(&self) -> u32 {
        self.present().fold(0, |mask, (field, _)| mask | 1 << field as u32)
    }

    /// The buffer of a field, if the step has one.
    pub const fn buffer(&self, field: Field) -> Option<&Buffer> {
        self.buffers[field as usize].as_ref()
    }

    /// The first pair of buffers of two steps that share memory.
    pub fn overlap(&self, other: &StepLayout) -> Option<(Field, Field)> {
        self.present().find_map(|(field, buffer)| {
            other
                .present()
                .find(|(against, theirs)| buffer.overlaps(&field.dtype(), theirs, &against.dtype()))
                .map(|(against, _)| (field, against))
        })
    }

    /// Ring group locations have one column a group member, and all of the table's ring slots fit int32.
    fn check_ring(&self, step: usize, table: &TableLayout) -> Result<()> {
        let Some(ring) = self.buffer(Field::RingGroupLocs) else {
            return Ok(());
        };
        let place = Place::Step { step, field: Field::RingGroupLocs.name() };
        if ring.cols != table.compress_ratio {
            let wanted = format!("compress_ratio {}", table.compress_ratio);
            let remedy = "allocate one column a token of a compressed group";
            return Err(Error::layout(place, "columns", ring.cols, wanted, remedy));
        }
        let slots = table.slots.saturating_mul(table.ring_size);
        if slots > i32::MAX as u64 {
            let remedy = "its entries are int32: use fewer request slots";
            return Err(Error::layout(place, "ring slots", slots, format!("at most {}", i32::MAX), remedy));
        }
        Ok(())
    }

    /// A step does not write one byte twice, and does not write into the request table that it reads.
    fn check_own_memory(&self, step: usize, table: &TableLayout) -> Result<()> {
        for (field, buffer) in self.present() {
            let refuse = |apart_from: String, remedy| {
                let place = Place::Step { step, field: field.name() };
                Err(Error::layout(place, "address", format!("{:#x}", buffer.ptr), apart_from, remedy))
            };
            for (other, against) in self.present().take_while(|(other, _)| *other != field) {
                if buffer.overlaps(&field.dtype(), against, &other.dtype()) {
                    let wanted = format!("apart from {} at {:#x}", other.name(), against.ptr);
                    return refuse(wanted, "give every buffer of a step its own memory");
                }
            }
            if table.overlaps(buffer, &field.dtype()) {
                let wanted = format!("apart from req_to_token at {:#x}", table.ptr);
                return refuse(wanted, "give the buffer memory of its own");
            }
        }
        Ok(())
    }
}
