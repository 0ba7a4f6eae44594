//! The host executor against the handed cases and against a plain second implementation.
//!
//! Every output lies in one poisoned allocation, apart from its neighbours. A run is compared with the image that this
//! allocation must have afterwards, byte for byte, so that a write to a guard, to the gap between two rows or to the
//! tail of a page table shows as well as a wrong value.

use proptest::prelude::*;
use qsa_group_core::inputs::{LiveInputs, LiveVector};
use qsa_group_core::layout::{
    DType, Device, Field, MAX_OFFSET, MAX_RATIO, Mode, NUM_FIELDS, Padding, StepLayout, TableLayout, TensorSpec, status,
};
use qsa_group_core::refresh::refresh;
use serde_json::Value;

const POISON: u8 = 0x5a;
const ALL_FIELDS: u32 = (1 << NUM_FIELDS) - 1;

/// A live vector: its values, and how they lie in memory.
#[derive(Clone, Debug)]
struct Live {
    values: Vec<i64>,
    wide: bool,
    stride: usize,
    /// Bytes off an aligned address.
    skew: usize,
}

impl Live {
    fn new(values: &[i64]) -> Live {
        Live { values: values.to_vec(), wide: true, stride: 1, skew: 0 }
    }

    /// The values as they read back: narrowed to the dtype, and all of them the first one under a stride of 0.
    fn seen(&self) -> Vec<i64> {
        let narrow = |v: i64| if self.wide { v } else { v.clamp(i32::MIN.into(), i32::MAX.into()) };
        (0..self.values.len()).map(|i| narrow(self.values[if self.stride == 0 { 0 } else { i }])).collect()
    }

    fn memory(&self) -> Vec<u8> {
        let size = if self.wide { 8 } else { 4 };
        let mut bytes = vec![0xa5; self.skew + (self.values.len() * self.stride.max(1) + 1) * size];
        for (i, value) in self.seen().into_iter().enumerate() {
            let at = self.skew + i * self.stride * size;
            bytes[at..at + size].copy_from_slice(&value.to_ne_bytes()[..size]);
        }
        bytes
    }

    fn vector(&self, memory: &[u8]) -> LiveVector {
        LiveVector {
            ptr: memory[self.skew..].as_ptr().expose_provenance() as u64,
            len: self.values.len() as u64,
            stride: self.stride as u64,
            wide: self.wide,
            device: Device::CPU,
        }
    }
}

/// One step: its offset, the buffers it has, and their rows.
#[derive(Clone, Debug)]
struct Step {
    offset: i64,
    present: u32,
    rows: usize,
}

/// Everything that a refresh depends on.
#[derive(Clone, Debug)]
struct Scenario {
    mode: Mode,
    padding: Padding,
    num_padding: i64,
    ratio: i64,
    page_size: i64,
    /// `table[slot][token]`.
    table: Vec<Vec<i32>>,
    /// Slots are columns instead of rows.
    transposed: bool,
    max_pages: usize,
    steps: Vec<Step>,
    /// The two-dimensional buffers of all steps are column slices of one tensor.
    interleaved: bool,
    seq_lens: Live,
    slots: Live,
    extend_lens: Option<Live>,
}

impl Scenario {
    /// One step with all its buffers, over 6 slots of 64 tokens in pages of 16.
    fn new(mode: Mode, rows: usize, seq_lens: &[i64], slots: &[i64]) -> Scenario {
        Scenario {
            mode,
            padding: Padding::Count,
            num_padding: 0,
            ratio: 4,
            page_size: 16,
            table: (0..6).map(|slot| (0..64).map(|token| slot * 128 + token).collect()).collect(),
            transposed: false,
            max_pages: 4,
            steps: vec![Step { offset: 1, present: ALL_FIELDS, rows }],
            interleaved: false,
            seq_lens: Live::new(seq_lens),
            slots: Live::new(slots),
            extend_lens: None,
        }
    }

    fn decode(seq_lens: &[i64], slots: &[i64]) -> Scenario {
        Scenario::new(Mode::Decode, seq_lens.len(), seq_lens, slots)
    }

    fn verify(window: u32, seq_lens: &[i64], slots: &[i64]) -> Scenario {
        let rows = seq_lens.len() * window as usize;
        Scenario::new(Mode::TargetVerify { draft_token_num: window }, rows, seq_lens, slots)
    }

    fn extend(rows: usize, seq_lens: &[i64], slots: &[i64], extend_lens: &[i64]) -> Scenario {
        let extend_lens = Some(Live::new(extend_lens));
        Scenario { extend_lens, ..Scenario::new(Mode::DraftExtend, rows, seq_lens, slots) }
    }

    fn width(&self) -> usize {
        self.table[0].len()
    }

    /// Columns of a buffer.
    fn columns(&self, field: Field) -> usize {
        match field {
            Field::RingGroupLocs => self.ratio as usize,
            Field::PageTable => self.max_pages,
            _ => 1,
        }
    }
}

/// What a row must hold afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Values {
    /// The vectors, in the order of `Field::ALL`.
    scalars: [i64; 7],
    ring: Vec<i64>,
    /// The entries that are written; those after them keep what they held.
    live_pages: Vec<i64>,
}

impl Values {
    fn of(&self, field: Field) -> &[i64] {
        match field {
            Field::RingGroupLocs => &self.ring,
            Field::PageTable => &self.live_pages,
            _ => std::slice::from_ref(&self.scalars[field as usize]),
        }
    }
}

/// The second implementation: row by row, in 128-bit arithmetic, straight from the tables of the contract.
mod oracle {
    use super::*;

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
        let ring = |position: i128| slot * ratio + position % ratio;
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
}

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
    let layout = TableLayout::new(&spec, s.ratio, s.page_size).unwrap();
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
fn check(s: &Scenario, bits: i32, expected: &[Vec<Values>]) -> Result<(), String> {
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
fn agreed(s: &Scenario) -> (i32, Vec<Vec<Values>>) {
    let (bits, expected) = oracle::expect(s);
    check(s, bits, &expected).unwrap();
    (bits, expected)
}

/// The same for the status alone.
fn agreed_status(s: &Scenario) -> i32 {
    agreed(s).0
}

/// The lengths of the rows of the first step.
fn lengths(expected: &[Vec<Values>]) -> Vec<i64> {
    expected[0].iter().map(|row| row.scalars[Field::SequenceLengths as usize]).collect()
}

/// The handed cases: each its name, a scenario and its expected rows.
mod cases {
    use super::*;

    pub fn load() -> Vec<(String, Scenario, Vec<Vec<Values>>)> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/replay_cases.json");
        let cases: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let load = |case: &Value| {
            let name = case["name"].as_str().unwrap().to_string();
            (name, scenario(case), case["expected"].as_array().unwrap().iter().map(expected).collect())
        };
        cases.as_array().unwrap().iter().map(load).collect()
    }

    fn int(value: &Value) -> i64 {
        value.as_i64().unwrap()
    }

    fn ints(value: &Value) -> Vec<i64> {
        value.as_array().unwrap().iter().map(int).collect()
    }

    fn scenario(case: &Value) -> Scenario {
        let mode = Mode::parse(case["mode"].as_str().unwrap(), case["draft_token_num"].as_i64()).unwrap();
        let rows = int(if mode == Mode::Decode { &case["bs"] } else { &case["num_rows"] }) as usize;
        let steps = case["steps"].as_i64().unwrap_or(1);
        Scenario {
            num_padding: int(&case["num_padding"]),
            ratio: int(&case["compress_ratio"]),
            page_size: int(&case["page_size"]),
            table: table(case),
            max_pages: int(&case["max_pages"]) as usize,
            steps: (1..=steps).map(|offset| Step { offset, present: ALL_FIELDS, rows }).collect(),
            extend_lens: case.get("extend_lens").map(|lens| Live::new(&ints(lens))),
            ..Scenario::new(mode, rows, &ints(&case["seq_lens"]), &ints(&case["req_pool_indices"]))
        }
    }

    fn table(case: &Value) -> Vec<Vec<i32>> {
        let (page_size, width) = (int(&case["page_size"]), int(&case["table_width"]));
        let row = |slot: i64| {
            // A slot that is not listed is all zero, and so is a last page that the width cuts off.
            let pages = case["pages"].get(slot.to_string()).map(ints).unwrap_or_default();
            let entry = |token: i64| match pages.get((token / page_size) as usize) {
                Some(page) => (page * page_size + token % page_size) as i32,
                None => 0,
            };
            (0..width).map(entry).collect()
        };
        (0..int(&case["num_slots"])).map(row).collect()
    }

    fn expected(step: &Value) -> Vec<Values> {
        let scalars: Vec<Vec<i64>> = Field::ALL[..7].iter().map(|field| ints(&step[field.name()])).collect();
        (0..scalars[0].len())
            .map(|row| Values {
                scalars: std::array::from_fn(|field| scalars[field][row]),
                ring: ints(&step["ring_group_locs"][row]),
                live_pages: ints(&step["page_table_live"][row]),
            })
            .collect()
    }
}

#[test]
fn every_handed_case_holds() {
    let cases = cases::load();
    assert_eq!(cases.len(), 34);
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

/// Integers that are mostly sensible below `limit`, often just past it, and sometimes hostile.
fn hostile(limit: i64) -> impl Strategy<Value = i64> {
    const EXTREMES: &[i64] = &[
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

fn live(limit: i64, batch: usize) -> impl Strategy<Value = Live> {
    let values = prop::collection::vec(hostile(limit), batch);
    let stride = prop_oneof![1 => Just(0usize), 12 => 1..4usize];
    (values, any::<bool>(), stride, 0..8usize).prop_map(|(values, wide, stride, skew)| Live {
        values,
        wide,
        stride,
        skew,
    })
}

fn entry() -> impl Strategy<Value = i32> {
    prop_oneof![12 => 0..100_000i32, 1 => any::<i32>(), 1 => Just(-1), 1 => Just(i32::MAX)]
}

fn mode() -> impl Strategy<Value = Mode> {
    let verify = (1..5u32).prop_map(|draft_token_num| Mode::TargetVerify { draft_token_num });
    prop_oneof![Just(Mode::Decode), verify, Just(Mode::DraftExtend)]
}

prop_compose! {
    /// A step with some rows more or fewer than there are requests; `spare` is what most steps of a scenario have.
    fn step(spare: i64)(
        offset in prop_oneof![9 => 0..8i64, 1 => Just(MAX_OFFSET)],
        present in prop_oneof![Just(ALL_FIELDS), 1..=ALL_FIELDS],
        spare in prop_oneof![9 => Just(spare), 1 => 0..9i64],
    ) -> (i64, u32, i64) {
        (offset, present, spare)
    }
}

prop_compose! {
    fn scenario()(
        ratio in prop::sample::select(&[1i64, 2, 3, 4, 8, 5][..]),
        slots in 1..7usize,
        width in 1..70usize,
        batch in 1..7usize,
        steps in 1..4usize,
        spare in -2..9i64,
    )(
        ratio in Just(ratio),
        page_size in (1..6i64).prop_map(move |groups| groups * ratio),
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
            mode, padding, num_padding, ratio, page_size, table, transposed, max_pages,
            steps: steps.into_iter().map(step).collect(),
            interleaved, seq_lens, slots, extend_lens: Some(extend_lens),
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

        for offset in [0, 1, MAX_OFFSET] {
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
    let mut s = Scenario { ratio: 1, ..Scenario::new(Mode::Decode, 3, &[5], &[2]) };
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
    let odd = [7, 11, 641, 99_991, 6_700_417, MAX_RATIO - 2, MAX_RATIO];
    for ratio in odd.into_iter().chain((0..31).map(|bit| 1 << bit)) {
        let mut s = Scenario::decode(&[6, 12, 63], &[1, 2, 0]);
        (s.ratio, s.page_size) = (ratio, ratio);
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
