//! A second implementation: row by row, in 128-bit arithmetic, straight from the tables of the contract.

use qsa_group_core::contract::{Field, Mode, Padding, status};

use crate::scenario::{Scenario, Step, Values};

/// The status bits, and the values of every row of every step.
pub fn expect(s: &Scenario) -> (i32, Vec<Vec<Values>>) {
    let mut bits = 0;
    let mut steps = Vec::new();
    for step in &s.steps {
        let mut wanted = rows(s, step, &mut bits);
        if wanted.len() > step.rows {
            bits |= status::ROWS_EXCEED_BUCKET;
        }
        wanted.resize(step.rows, None);
        steps.push(wanted.into_iter().map(|row| values(s, step, served(s, row, &mut bits))).collect());
    }
    (bits, steps)
}

/// Slot, length and prefix of each row that is asked for; `None` for a row of padding.
fn rows(s: &Scenario, step: &Step, bits: &mut i32) -> Vec<Option<[i128; 3]>> {
    let (seq_lens, slots) = (s.seq_lens.seen(), s.slots.seen());
    let batch = seq_lens.len() as i128;
    let padding_from = batch - i128::from(s.num_padding).clamp(0, batch);
    let offset = i128::from(step.offset);
    let mut rows = Vec::new();
    for q in 0..seq_lens.len() {
        let (len, slot) = (i128::from(seq_lens[q]), i128::from(slots[q]));
        let is_padding = q as i128 >= padding_from || (s.padding == Padding::Slot && slot == 0);
        match s.mode {
            Mode::Decode => rows.push((!is_padding).then_some([slot, len + offset, len + offset - 1])),
            Mode::TargetVerify { draft_token_num } => {
                for j in 0..i128::from(draft_token_num) {
                    rows.push((!is_padding).then_some([slot, len + j + 1, len]));
                }
            }
            Mode::DraftExtend if is_padding => {}
            Mode::DraftExtend => {
                let e = i128::from(s.extend_lens.as_ref().unwrap().seen()[q]);
                if e < 0 {
                    *bits |= status::EXTEND_LENGTH_NEGATIVE;
                }
                let prefix = (len - e).max(0);
                for j in 0..e {
                    rows.push(Some([slot, (prefix + 1 + j).min(len), prefix]));
                    if rows.len() > step.rows {
                        break; // One too many says it all.
                    }
                }
            }
        }
    }
    rows
}

/// The row as it is served: inert if there is nothing to serve, or nothing that can be.
fn served(s: &Scenario, row: Option<[i128; 3]>, bits: &mut i32) -> [i128; 3] {
    const INERT: [i128; 3] = [0, 1, 0];
    let Some([slot, length, prefix]) = row else {
        return INERT;
    };
    *bits |= if slot < 0 || slot >= s.table.len() as i128 {
        status::SLOT_OUT_OF_TABLE
    } else if length <= 0 {
        status::LENGTH_NOT_POSITIVE
    } else if length > s.width() as i128 {
        status::LENGTH_EXCEEDS_TABLE
    } else {
        return [slot, length, prefix.max(0)];
    };
    INERT
}

fn values(s: &Scenario, step: &Step, [slot, n, prefix]: [i128; 3]) -> Values {
    let entry = |token: i128| i128::from(s.table[slot as usize][token as usize]).max(0);
    let (ratio, page_size) = (i128::from(s.ratio), i128::from(s.page_size));
    let pos = n - 1;
    let write_loc = if n % ratio == 0 { entry(pos) / ratio } else { 0 };
    let ring_size = i128::from(s.ring_size);
    let ring = |position: i128| slot * ring_size + position % ring_size;
    // Not to be built for a ratio that no buffer could have.
    let group = if step.present & 1 << Field::RingGroupLocs as u32 == 0 { 0..0 } else { 0..ratio };
    let mut live_pages = Vec::new();
    let mut page = 0;
    while page * page_size < n && page < s.max_pages as i128 && (page + 1) * page_size <= s.width() as i128 {
        live_pages.push((entry(page * page_size) / page_size) as i64);
        page += 1;
    }
    Values {
        scalars: [n, slot, prefix, n / ratio, write_loc, pos, ring(pos)].map(|v| v as i64),
        ring: group.map(|k| ring((pos - (ratio - 1 - k)).max(0)) as i64).collect(),
        live_pages,
    }
}
