//! What a refresh on host memory costs: `cargo bench --bench host`.
//!
//! Decode mode, all nine buffers, a context limit of 256K tokens of which some 8K are live, the same requests in each call;
//! batch and steps vary.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use qsa_group_core::contract::{Field, Mode, NUM_FIELDS, Padding};
use qsa_group_core::host::refresh;
use qsa_group_core::inputs::{LiveInputs, LiveVector};
use qsa_group_core::layout::{StepLayout, TableLayout};
use qsa_group_core::tensor::{DType, Device, TensorSpec};
use std::hint::black_box;

const RATIO: usize = 4;
const PAGE_SIZE: usize = 64;
/// A context limit of 256K tokens, and a few that an engine adds. A width of exactly 2^18 would have all page starts
/// compete for a quarter of the cache.
const WIDTH: usize = 256 * 1024 + 8;
const MAX_PAGES: usize = WIDTH / PAGE_SIZE;
const LIVE: usize = 8 * 1024;

/// Memory of one tensor, and what a layout is built from.
fn tensor(dtype: DType, shape: &[usize]) -> (Vec<i64>, TensorSpec) {
    let elements: usize = shape.iter().product();
    let mut memory = vec![0i64; (elements * dtype.size() as usize).div_ceil(8)];
    let strides = (0..shape.len()).map(|d| shape[d + 1..].iter().product::<usize>() as u64).collect();
    let spec = TensorSpec {
        ptr: memory.as_mut_ptr().expose_provenance() as u64,
        dtype,
        device: Device::CPU,
        shape: shape.iter().map(|&n| n as u64).collect(),
        strides,
    };
    (memory, spec)
}

/// A request table whose slots hold pages from all over the pool, in every entry that is read: memory that was never
/// written would read as one page of zeros, faster than any real table.
fn request_table(slots: usize) -> (Vec<i64>, TensorSpec) {
    let (mut memory, spec) = tensor(DType::Int32, &[slots, WIDTH]);
    for (slot, row) in memory.chunks_exact_mut(WIDTH / 2).enumerate() {
        for (pair, tokens) in row[..LIVE].iter_mut().enumerate() {
            let page = (slot * MAX_PAGES + 2 * pair / PAGE_SIZE).wrapping_mul(7919) % (1 << 20);
            let token = (page * PAGE_SIZE + 2 * pair % PAGE_SIZE) as i64;
            *tokens = token | (token + 1) << 32;
        }
    }
    (memory, spec)
}

fn columns(field: Field) -> &'static [usize] {
    match field {
        Field::RingGroupLocs => &[RATIO],
        Field::PageTable => &[MAX_PAGES],
        _ => &[],
    }
}

/// A decode round, with all the memory that its layouts point into.
struct Round {
    table: TableLayout,
    steps: Vec<StepLayout>,
    inputs: LiveInputs,
    _memory: Vec<Vec<i64>>,
}

impl Round {
    fn new(batch: usize, num_steps: usize) -> Round {
        let mut kept = Vec::new();
        let mut keep = |(memory, spec): (Vec<i64>, TensorSpec)| {
            kept.push(memory);
            spec
        };
        let table = keep(request_table(batch + 1));
        let table = TableLayout::new(&table, RATIO as i64, PAGE_SIZE as i64, None).expect("valid table");
        let steps = (0..num_steps)
            .map(|step| {
                let buffer = |field: Field| Some(keep(tensor(field.dtype(), &[&[batch], columns(field)].concat())));
                let specs: [Option<TensorSpec>; NUM_FIELDS] = Field::ALL.map(buffer);
                StepLayout::new(step, step as i64 + 1, &specs, &table).expect("valid step")
            })
            .collect();
        let mut vector = |values: Vec<i64>| {
            let ptr = values.as_ptr().expose_provenance() as u64;
            kept.push(values);
            LiveVector { ptr, len: batch as u64, stride: 1, wide: true, device: Device::CPU }
        };
        let inputs = LiveInputs {
            seq_lens: vector((0..batch).map(|q| (LIVE - 100 + q * 37 % 200) as i64).collect()),
            req_pool_indices: vector((0..batch).map(|q| ((q * 7 + 3) % batch + 1) as i64).collect()),
            extend_lens: None,
            num_padding: 0,
        };
        Round { table, steps, inputs, _memory: kept }
    }
}

fn host(c: &mut Criterion) {
    let mut group = c.benchmark_group("host");
    for batch in [1, 64, 512] {
        for num_steps in [1, 3, 7] {
            let round = Round::new(batch, num_steps);
            let steps: Vec<&StepLayout> = round.steps.iter().collect();
            group.throughput(Throughput::Elements((batch * num_steps) as u64));
            group.bench_function(BenchmarkId::new(format!("batch{batch}"), format!("steps{num_steps}")), |b| {
                b.iter(|| {
                    // SAFETY: the layouts are validated, and `round` owns all their memory, each tensor its own.
                    unsafe {
                        refresh(&round.table, Mode::Decode, Padding::Count, black_box(&steps), black_box(&round.inputs))
                    }
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, host);
criterion_main!(benches);
