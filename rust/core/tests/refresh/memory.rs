//! Every output in one poisoned allocation, apart from its neighbours, and the image that it must have afterwards.

use qsa_group_core::contract::{Field, NUM_FIELDS};
use qsa_group_core::host::refresh;
use qsa_group_core::inputs::LiveInputs;
use qsa_group_core::layout::{StepLayout, TableLayout};
use qsa_group_core::tensor::{DType, Device, TensorSpec};

use crate::oracle;
use crate::scenario::{Live, Scenario, Step, Values};

const POISON: u8 = 0x5a;

/// Where a buffer lies in the allocation, in bytes.
#[derive(Clone, Copy)]
struct Place {
    step: usize,
    field: Field,
    at: usize,
    row_bytes: usize,
}

/// Places every present buffer with a guard around it; returns the size of the whole.
fn place(s: &Scenario) -> (Vec<Place>, usize) {
    const GUARD: usize = 64;
    let mut places = Vec::new();
    let mut end = GUARD;
    let mut reserve = |rows: usize, row_bytes: usize| {
        let at = end;
        end = (end + rows * row_bytes).next_multiple_of(8) + GUARD;
        at
    };
    for field in Field::ALL {
        let has = s.steps.iter().enumerate().filter(|(_, step)| step.present & 1 << field as u32 != 0);
        let width = || s.columns(field) * field.dtype().size() as usize;
        // Rows of a matrix are at least a gap of one element apart.
        match (field.rank(), s.interleaved) {
            (1, _) => {
                let at = |(step, has): (usize, &Step)| Place {
                    step,
                    field,
                    at: reserve(has.rows, width()),
                    row_bytes: width(),
                };
                places.extend(has.map(at));
            }
            (_, false) => {
                let row_bytes = |has: &Step| if has.rows == 1 { width() } else { width() + 4 };
                let at = |(step, has): (usize, &Step)| Place {
                    step,
                    field,
                    at: reserve(has.rows, row_bytes(has)),
                    row_bytes: row_bytes(has),
                };
                places.extend(has.map(at));
            }
            (_, true) => {
                let rows = has.clone().map(|(_, step)| step.rows).max().unwrap_or(0);
                let count = has.clone().count();
                let row_bytes = if count == 0 { 0 } else { count * width() + 4 };
                let at = reserve(rows, row_bytes);
                let slice = |(nth, (step, _))| Place { step, field, at: at + nth * width(), row_bytes };
                places.extend(has.enumerate().map(slice));
            }
        }
    }
    (places, end)
}

/// The allocation as it must look afterwards.
fn image(places: &[Place], size: usize, expected: &[Vec<Values>]) -> Vec<u8> {
    let mut image = vec![POISON; size];
    for p in places {
        let element = p.field.dtype().size() as usize;
        for (row, values) in expected[p.step].iter().enumerate() {
            for (col, value) in values.of(p.field).iter().enumerate() {
                let at = p.at + row * p.row_bytes + col * element;
                image[at..at + element].copy_from_slice(&value.to_ne_bytes()[..element]);
            }
        }
    }
    image
}

/// Names the buffer, the step and the row in which the allocation is not what it must be.
fn compare(s: &Scenario, places: &[Place], actual: &[u8], wanted: &[u8]) -> Result<(), String> {
    for p in places {
        let row_bytes = s.columns(p.field) * p.field.dtype().size() as usize;
        for row in 0..s.steps[p.step].rows {
            let at = p.at + row * p.row_bytes;
            let (actual, wanted) = (&actual[at..at + row_bytes], &wanted[at..at + row_bytes]);
            if actual != wanted {
                let (step, name) = (p.step, p.field.name());
                return Err(format!("step {step} {name} row {row}: bytes {actual:?}, wanted {wanted:?}"));
            }
        }
    }
    if actual == wanted { Ok(()) } else { Err("memory between the buffers was written".to_string()) }
}

/// The request table in memory, and its layout. What lies between its rows is far outside any page.
fn table(s: &Scenario) -> (Vec<i32>, TableLayout) {
    let (slots, width) = (s.table.len(), s.width());
    let strides = if s.transposed { [1, slots + 3] } else { [width + 3, 1] };
    let mut memory = vec![i32::MAX; (slots + 3) * (width + 3)];
    for (slot, row) in s.table.iter().enumerate() {
        for (token, &entry) in row.iter().enumerate() {
            memory[slot * strides[0] + token * strides[1]] = entry;
        }
    }
    let spec = TensorSpec {
        ptr: memory.as_ptr().expose_provenance() as u64,
        dtype: DType::Int32,
        device: Device::CPU,
        shape: vec![slots as u64, width as u64],
        strides: strides.map(|stride| stride as u64).to_vec(),
    };
    let layout = TableLayout::new(&spec, s.ratio, s.page_size, Some(s.ring_size)).unwrap();
    (memory, layout)
}

fn step_layouts(s: &Scenario, places: &[Place], base: u64, table: &TableLayout) -> Vec<StepLayout> {
    let spec = |p: &Place| {
        let dtype = p.field.dtype();
        let mut shape = vec![s.steps[p.step].rows as u64];
        let mut strides = vec![p.row_bytes as u64 / dtype.size()];
        if p.field.rank() == 2 {
            shape.push(s.columns(p.field) as u64);
            strides.push(1);
        }
        TensorSpec { ptr: base + p.at as u64, dtype, device: Device::CPU, shape, strides }
    };
    let layout = |(index, step): (usize, &Step)| {
        let mut specs = [const { None }; NUM_FIELDS];
        for p in places.iter().filter(|p| p.step == index) {
            specs[p.field as usize] = Some(spec(p));
        }
        StepLayout::new(index, step.offset, &specs, table).unwrap()
    };
    s.steps.iter().enumerate().map(layout).collect()
}

/// Runs the scenario, and checks the status and all memory against what is expected.
pub fn check(s: &Scenario, bits: i32, expected: &[Vec<Values>]) -> Result<(), String> {
    let (places, size) = place(s);
    let mut memory = vec![i64::from_ne_bytes([POISON; 8]); size / 8];
    let (table_memory, table) = table(s);
    let layouts = step_layouts(s, &places, memory.as_mut_ptr().expose_provenance() as u64, &table);
    let steps: Vec<&StepLayout> = layouts.iter().collect();
    let (seq_lens, slots) = (s.seq_lens.memory(), s.slots.memory());
    let extend_lens = s.extend_lens.as_ref().map(Live::memory);
    let inputs = LiveInputs {
        seq_lens: s.seq_lens.vector(&seq_lens),
        req_pool_indices: s.slots.vector(&slots),
        extend_lens: s.extend_lens.as_ref().zip(extend_lens.as_ref()).map(|(live, memory)| live.vector(memory)),
        num_padding: s.num_padding,
    };

    // SAFETY: the layouts are validated, all memory outlives the call, and no buffer shares memory with anything.
    let actual = unsafe { refresh(&table, s.mode, s.padding, &steps, &inputs) };
    drop((table_memory, seq_lens, slots, extend_lens));

    let memory: Vec<u8> = memory.iter().flat_map(|word| word.to_ne_bytes()).collect();
    compare(s, &places, &memory, &image(&places, size, expected))?;
    if actual == bits { Ok(()) } else { Err(format!("status {actual}, wanted {bits}")) }
}

/// Runs the scenario against the second implementation, and returns what that expects.
pub fn agreed(s: &Scenario) -> (i32, Vec<Vec<Values>>) {
    let (bits, expected) = oracle::expect(s);
    check(s, bits, &expected).unwrap();
    (bits, expected)
}

/// The same for the status alone.
pub fn agreed_status(s: &Scenario) -> i32 {
    agreed(s).0
}

/// The lengths of the rows of the first step.
pub fn lengths(expected: &[Vec<Values>]) -> Vec<i64> {
    expected[0].iter().map(|row| row.scalars[Field::SequenceLengths as usize]).collect()
}
