//! Host cost of what happens at `plan` (grouping, the cache) and in a call (checking, patching, a stubbed launch),
//! beside an empty call.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use qsa_group_core::blueprint::Blueprint;
use qsa_group_core::cache::{PlanCache, PlanKey};
use qsa_group_core::contract::{Field, Mode, NUM_FIELDS, Padding};
use qsa_group_core::driver::{Kernel, KernelImage, stub};
use qsa_group_core::group::group_steps;
use qsa_group_core::inputs::{Admission, LiveInputs, LiveVector};
use qsa_group_core::launch::{GroupGrid, GroupSize, Launch};
use qsa_group_core::layout::{Buffer, StepLayout, TableLayout};
use qsa_group_core::tensor::Device;

const ROWS: u64 = 64;

fn table() -> TableLayout {
    TableLayout {
        device: Device::CPU,
        ptr: 0x1000_0000,
        slots: ROWS + 1,
        width: 1 << 18,
        row_stride: 1 << 18,
        col_stride: 1,
        compress_ratio: 4,
        page_size: 64,
        ring_size: 4,
    }
}

/// Steps as an engine lays them out: every buffer its own allocation, all steps of a buffer kind near each other.
fn steps(count: u64) -> Vec<StepLayout> {
    let layout = |step: u64| {
        let mut buffers = [None; NUM_FIELDS];
        for field in Field::ALL {
            let cols = match field {
                Field::RingGroupLocs => 4,
                Field::PageTable => 4096,
                _ => 1,
            };
            let ptr = 0x4000_0000 + (field as u64 * 64 + step) * 0x40_0000;
            buffers[field as usize] = Some(Buffer { ptr, rows: ROWS, cols, row_stride: cols });
        }
        StepLayout { offset: step as i64 + 1, rows: ROWS, buffers }
    };
    (0..count).map(layout).collect()
}

fn inputs() -> LiveInputs {
    let vector = |ptr| LiveVector { ptr, len: ROWS, stride: 1, wide: true, device: Device::CPU };
    LiveInputs {
        seq_lens: vector(0x2000_0000),
        req_pool_indices: vector(0x2100_0000),
        extend_lens: None,
        num_padding: 3,
    }
}

fn empty_call(criterion: &mut Criterion) {
    #[inline(never)]
    fn empty(value: &LiveInputs) -> &LiveInputs {
        value
    }
    let live = inputs();
    criterion.bench_function("empty call", |bench| bench.iter(|| black_box(empty(black_box(&live)))));
}

fn blueprint(table: TableLayout, steps: &[StepLayout]) -> Blueprint {
    Blueprint::new(table, Mode::Decode, Padding::Slot, steps.to_vec()).expect("valid steps")
}

fn planning(criterion: &mut Criterion) {
    for count in [2, 8] {
        let steps = steps(count);
        criterion
            .bench_function(&format!("group {count} steps"), |bench| bench.iter(|| group_steps(black_box(&steps))));
    }
    let mut cache = PlanCache::new(256);
    let key = |slots| PlanKey::new(&blueprint(TableLayout { slots, ..table() }, &steps(2)));
    let keys: Vec<PlanKey> = (1..=256).map(key).collect();
    for key in &keys {
        cache.insert(key.clone(), 0u64, true);
    }
    criterion.bench_function("cache hit, 2 steps, 256 plans", |bench| {
        bench.iter(|| cache.get(black_box(&keys[77])).copied())
    });
    let two_steps = blueprint(table(), &steps(2));
    criterion.bench_function("key of 2 steps", |bench| bench.iter(|| PlanKey::new(black_box(&two_steps))));
}

fn calling(criterion: &mut Criterion) {
    for count in [2, 7] {
        let blueprint = blueprint(table(), &steps(count));
        let grids = [GroupGrid { programs: 72, heads: 8, page_bits: 7 }];
        let pack = || Launch::new(black_box(&blueprint), 0, &grids, 0x77);
        criterion.bench_function(&format!("pack {count} steps"), |bench| bench.iter(pack));
        let admission = Admission::new(&blueprint);
        let live = inputs();
        criterion.bench_function(&format!("check a call, {count} steps"), |bench| {
            bench.iter(|| admission.check(black_box(&live)).is_ok() && !admission.overlaps_output(black_box(&live)));
        });
        let launch = pack();
        let num_words = GroupSize { steps: count as usize, buffers: (1 << NUM_FIELDS) - 1 }.num_words();
        let binary = (num_words as u64 + 2).to_ne_bytes();
        let image = KernelImage { binary: &binary, name: c"stub", num_warps: 4, shared: 0, num_words };
        // SAFETY: a stub's image is 8 bytes.
        let kernel = unsafe { Kernel::load(stub::get(stub::Behaviour::Succeed), &image) }.expect("a stub loads");
        criterion.bench_function(&format!("patch and launch a stub, {count} steps"), |bench| {
            bench.iter(|| {
                // SAFETY: the stub reads nothing behind the addresses.
                let start = |words: &mut [u64]| unsafe { kernel.launch(0, launch.programs, words) };
                launch.with_words(black_box(&live), kernel.scratch_words(), start).is_ok()
            });
        });
    }
}

criterion_group!(benches, empty_call, planning, calling);
criterion_main!(benches);
