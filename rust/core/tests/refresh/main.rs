//! The host refresh against the handed cases and against a plain second implementation.
//!
//! A run is compared with the image that its allocation must have afterwards, byte for byte. So a write to a guard, to the
//! gap between two rows or to the tail of a page table shows as well as a wrong value.

mod cases;
mod memory;
mod oracle;
mod scenario;
mod strategies;

use memory::{agreed, agreed_status, check, lengths};
use proptest::prelude::*;
use qsa_group_core::contract::{Field, Mode, Padding, limits, status};
use scenario::{ALL_FIELDS, Live, Scenario, Step};
use strategies::scenario;

#[test]
fn every_handed_case_holds() {
    let cases = cases::load();
    assert_eq!(cases.len(), 34 + 9);
    for (name, case, expected) in cases {
        let (bits, by_oracle) = oracle::expect(&case);
        assert_eq!(by_oracle, expected, "{name}: the oracle itself");
        for variant in 0..16 {
            let mut s = case.clone();
            s.seq_lens.wide = variant & 1 != 0;
            s.slots.wide = variant & 2 != 0;
            s.transposed = variant & 4 != 0;
            s.interleaved = variant & 8 != 0;
            s.seq_lens.stride = 1 + variant % 3;
            s.slots.skew = variant % 8;
            check(&s, bits, &expected).unwrap_or_else(|fault| panic!("{name}, variant {variant}: {fault}"));
        }
    }
}

#[test]
fn every_handed_case_holds_with_a_buffer_alone_or_missing() {
    for (name, case, expected) in cases::load() {
        let (bits, _) = oracle::expect(&case);
        for field in Field::ALL {
            for present in [1 << field as u32, ALL_FIELDS & !(1 << field as u32)] {
                let mut s = case.clone();
                s.steps.iter_mut().for_each(|step| step.present = present);
                check(&s, bits, &expected).unwrap_or_else(|fault| panic!("{name}, {present:#b}: {fault}"));
            }
        }
    }
}

/// An interpreter of memory accesses sees in a few cases what it can see in many.
const CASES: u32 = if cfg!(miri) { 3 } else { 3000 };

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_scenario_agrees_with_the_oracle(s in scenario()) {
        let (bits, expected) = oracle::expect(&s);
        check(&s, bits, &expected).map_err(TestCaseError::fail)?;
    }
}

#[test]
fn the_first_fault_of_a_row_is_flagged() {
    let flag = |seq_len, slot| agreed_status(&Scenario::decode(&[9, seq_len, 17], &[1, slot, 3]));
    assert_eq!(flag(5, 2), 0);
    assert_eq!(flag(63, 2), 0);
    assert_eq!(flag(0, 0), 0);
    assert_eq!(flag(5, 6), status::SLOT_OUT_OF_TABLE);
    assert_eq!(flag(-1, -1), status::SLOT_OUT_OF_TABLE);
    assert_eq!(flag(64, 6), status::SLOT_OUT_OF_TABLE);
    assert_eq!(flag(-1, 2), status::LENGTH_NOT_POSITIVE);
    assert_eq!(flag(64, 2), status::LENGTH_EXCEEDS_TABLE);
}

#[test]
fn extremes_of_every_input_are_flagged_and_inert() {
    for value in [i64::MIN, i64::MIN + 1, i64::MAX - 1, i64::MAX] {
        let length = if value < 0 { status::LENGTH_NOT_POSITIVE } else { status::LENGTH_EXCEEDS_TABLE };
        let extend = if value < 0 { status::EXTEND_LENGTH_NEGATIVE } else { status::ROWS_EXCEED_BUCKET };

        for offset in [0, 1, limits::OFFSET] {
            let mut s = Scenario::decode(&[value], &[1]);
            s.steps[0].offset = offset;
            assert_eq!(agreed_status(&s), length);
        }
        assert_eq!(agreed_status(&Scenario::decode(&[5], &[value])), status::SLOT_OUT_OF_TABLE);
        assert_eq!(agreed_status(&Scenario::verify(3, &[value], &[1])), length);
        assert_eq!(agreed_status(&Scenario::extend(4, &[value], &[1], &[2])), length);
        assert_eq!(agreed_status(&Scenario::extend(4, &[20, 30], &[1, 2], &[value, 1])), extend);
        let both = agreed_status(&Scenario::extend(4, &[value; 2], &[1, 2], &[value; 2]));
        assert_eq!(both & extend, extend);
    }
}

#[test]
fn dropped_rows_hide_no_negative_extend_length() {
    let s = Scenario::extend(4, &[20, 30, 40], &[1, 2, 3], &[i64::MAX, -1, i64::MAX]);
    assert_eq!(agreed_status(&s), status::ROWS_EXCEED_BUCKET | status::EXTEND_LENGTH_NEGATIVE);
}

#[test]
fn a_count_of_packed_rows_past_64_bits_is_still_too_many() {
    // Together 2^64: a sum that wraps would be 0.
    let s = Scenario::extend(4, &[20, 30, 40], &[1, 2, 3], &[i64::MAX, i64::MAX, 2]);
    assert_eq!(agreed_status(&s), status::ROWS_EXCEED_BUCKET);
}

#[test]
fn unservable_packed_rows_keep_their_place() {
    let (bits, expected) = agreed(&Scenario::extend(8, &[20, 30, 40], &[1, 77, 3], &[2, 3, 2]));
    assert_eq!(bits, status::SLOT_OUT_OF_TABLE);
    assert_eq!(lengths(&expected), [19, 20, 1, 1, 1, 39, 40, 1]);
}

#[test]
fn a_negative_prefix_is_0_where_the_length_is_positive() {
    let (bits, expected) = agreed(&Scenario::verify(4, &[-2], &[1]));
    assert_eq!(bits, status::LENGTH_NOT_POSITIVE);
    assert_eq!(expected[0][2].scalars[..3], [1, 1, 0]);
}

#[test]
fn padding_is_inert_and_never_flagged() {
    let hostile = [i64::MIN, i64::MAX, -1];
    for mut s in [
        Scenario::decode(&hostile, &hostile),
        Scenario::verify(2, &hostile, &hostile),
        Scenario::extend(4, &hostile, &hostile, &hostile),
    ] {
        for num_padding in [3, 4, i64::MAX] {
            s.num_padding = num_padding;
            assert_eq!(agreed_status(&s), 0);
        }
        s.num_padding = i64::MIN;
        assert_ne!(agreed_status(&s), 0);
        // The same with padding told by its slot.
        s.padding = Padding::Slot;
        s.slots = Live::new(&[0, 0, 0]);
        assert_eq!(agreed_status(&s), 0);
    }
}

#[test]
fn padding_by_slot_may_lie_between_requests() {
    let mut s = Scenario::extend(6, &[20, 30, 40], &[1, 0, 3], &[2, 3, 2]);
    s.padding = Padding::Slot;
    let (bits, expected) = agreed(&s);
    assert_eq!((bits, lengths(&expected)), (0, vec![19, 20, 39, 40, 1, 1]));
}

#[test]
fn an_empty_batch_writes_nothing() {
    let untouched = [Vec::new()];
    for s in [
        Scenario::new(Mode::Decode, 4, &[], &[]),
        Scenario::new(Mode::TargetVerify { draft_token_num: 2 }, 4, &[], &[]),
        Scenario::extend(4, &[], &[], &[]),
        // Nor does one whose shortest input is empty.
        Scenario::new(Mode::Decode, 4, &[5, 6], &[]),
        Scenario::extend(4, &[5, 6], &[1, 2], &[]),
    ] {
        check(&s, 0, &untouched).unwrap();
    }
}

#[test]
fn inert_rows_read_slot_0_as_any_row_does() {
    let mut s = Scenario { ratio: 1, ring_size: 1, ..Scenario::new(Mode::Decode, 3, &[5], &[2]) };
    s.table[0][0] = 4097;
    let (_, expected) = agreed(&s);
    let inert = &expected[0][2];
    assert_eq!((inert.scalars[Field::WriteLocs as usize], inert.live_pages[0]), (4097, 256));
    s.table[0][0] = -7;
    agreed(&s);
}

#[test]
fn column_slices_of_one_tensor_may_be_the_buffers_of_several_steps() {
    let mut s = Scenario::decode(&[14, 30, 62], &[1, 2, 3]);
    s.interleaved = true;
    s.steps = (1..=3).map(|offset| Step { offset, present: ALL_FIELDS, rows: 4 }).collect();
    let (bits, expected) = agreed(&s);
    assert_eq!(bits, status::LENGTH_EXCEEDS_TABLE);
    // The second step of the first request ends a page, the third begins the next one.
    assert_eq!(expected.iter().map(|step| step[0].live_pages.len()).collect::<Vec<_>>(), [1, 1, 2]);
}

#[test]
fn any_ratio_and_page_size_divides_exactly() {
    let odd = [7, 11, 641, 99_991, 6_700_417, limits::RATIO - 2, limits::RATIO];
    for ratio in odd.into_iter().chain((0..31).map(|bit| 1 << bit)) {
        let mut s = Scenario::decode(&[6, 12, 63], &[1, 2, 0]);
        (s.ratio, s.page_size, s.ring_size) = (ratio, ratio, ratio);
        // A ring buffer of such a width has no room, in memory or in int32.
        s.steps[0].present &= !(1 << Field::RingGroupLocs as u32);
        for (i, entry) in (0..).zip(s.table.iter_mut().flatten()) {
            // Either side of the multiples of the ratio, up to the largest entry.
            let near = ratio.saturating_mul(i / 3).saturating_add(i % 3 - 1);
            *entry = near.clamp(-1, i32::MAX.into()) as i32;
        }
        agreed(&s);
    }
}
