//! Random scenarios, hostile numbers among them.

use proptest::prelude::*;
use qsa_group_core::contract::{Mode, Padding, limits};

use crate::scenario::{ALL_FIELDS, Live, Scenario, Step};

/// Integers that are mostly sensible below `limit`, often just past it, and sometimes hostile.
pub fn hostile(limit: i64) -> impl Strategy<Value = i64> {
    pub const EXTREMES: &[i64] = &[
        i64::MIN,
        i64::MIN + 1,
        i64::MAX - 1,
        i64::MAX,
        i32::MIN as i64,
        i32::MAX as i64,
        1 << 31,
        -(1 << 40),
        1 << 40,
    ];
    prop_oneof![
        12 => 0..=limit,
        3 => limit - 2..=limit + 3,
        1 => -5..=0i64,
        1 => prop::sample::select(EXTREMES),
    ]
}

pub fn live(limit: i64, batch: usize) -> impl Strategy<Value = Live> {
    let values = prop::collection::vec(hostile(limit), batch);
    let stride = prop_oneof![1 => Just(0usize), 12 => 1..4usize];
    (values, any::<bool>(), stride, 0..8usize).prop_map(|(values, wide, stride, skew)| Live {
        values,
        wide,
        stride,
        skew,
    })
}

pub fn entry() -> impl Strategy<Value = i32> {
    prop_oneof![12 => 0..100_000i32, 1 => any::<i32>(), 1 => Just(-1), 1 => Just(i32::MAX)]
}

pub fn mode() -> impl Strategy<Value = Mode> {
    let verify = (1..5u32).prop_map(|draft_token_num| Mode::TargetVerify { draft_token_num });
    prop_oneof![Just(Mode::Decode), verify, Just(Mode::DraftExtend)]
}

prop_compose! {
    /// A step with some rows more or fewer than there are requests; `spare` is what most steps of a scenario have.
    pub fn step(spare: i64)(
        offset in prop_oneof![9 => 0..8i64, 1 => Just(limits::OFFSET)],
        present in prop_oneof![Just(ALL_FIELDS), 1..=ALL_FIELDS],
        spare in prop_oneof![9 => Just(spare), 1 => 0..9i64],
    ) -> (i64, u32, i64) {
        (offset, present, spare)
    }
}

prop_compose! {
    pub fn scenario()(
        ratio in prop::sample::select(&[1i64, 2, 3, 4, 8, 5][..]),
        slots in 1..7usize,
        width in 1..70usize,
        batch in 1..7usize,
        steps in 1..4usize,
        spare in -2..9i64,
    )(
        ratio in Just(ratio),
        page_size in (1..6i64).prop_map(move |groups| groups * ratio),
        ring_size in (1..5i64).prop_map(move |groups| groups * ratio),
        table in prop::collection::vec(prop::collection::vec(entry(), width), slots),
        mode in mode(),
        padding in prop_oneof![Just(Padding::Count), Just(Padding::Slot)],
        num_padding in prop_oneof![8 => 0..3i64, 1 => hostile(6)],
        seq_lens in live(width as i64, batch),
        slots in live(slots as i64 - 1, batch),
        extend_lens in live(4, batch),
        steps in prop::collection::vec(step(spare), steps),
        max_pages in 0..8usize,
        transposed in any::<bool>(),
        interleaved in any::<bool>(),
    ) -> Scenario {
        let window = if let Mode::TargetVerify { draft_token_num } = mode { i64::from(draft_token_num) } else { 1 };
        let requested = seq_lens.values.len() as i64 * window;
        let step = |(offset, present, spare): (i64, u32, i64)| Step { offset, present, rows: (requested + spare).max(1) as usize };
        Scenario {
            mode, padding, num_padding, ratio, page_size, ring_size, table, transposed, max_pages,
            steps: steps.into_iter().map(step).collect(),
            interleaved, seq_lens, slots, extend_lens: Some(extend_lens),
        }
    }
}
