use super::super::launch_words;
use super::*;
use crate::contract::NUM_FIELDS;
use crate::driver::stub::StubbedLaunch;
use crate::driver::{Kernel, KernelImage, stub};
use crate::error::{Error, Result};
use crate::layout::{Buffer, TableLayout};
use crate::tensor::Device;

const STATUS: u64 = 0x77;
const SIZE: GroupSize = GroupSize { steps: 2, buffers: 1 | 1 << 8 };
const GRID: GroupGrid = GroupGrid { programs: 18, heads: 2, page_bits: 1 };

fn step(ptr: u64, offset: i64) -> StepLayout {
    let mut buffers = [None; NUM_FIELDS];
    buffers[0] = Some(Buffer { ptr, rows: 8, cols: 1, row_stride: 1 });
    buffers[8] = Some(Buffer { ptr: ptr + 0x100, rows: 8, cols: 6, row_stride: 10 });
    StepLayout { offset, rows: 8, buffers }
}

fn blueprint(mode: Mode, padding: Padding, steps: &[(u64, i64)]) -> Blueprint {
    let table = TableLayout {
        device: Device::CPU,
        ptr: 0x1000,
        slots: 9,
        width: 512,
        row_stride: 512,
        col_stride: 1,
        compress_ratio: 4,
        page_size: 64,
        ring_size: 4,
    };
    let steps = steps.iter().map(|&(ptr, offset)| step(ptr, offset)).collect();
    Blueprint::new(table, mode, padding, steps).unwrap()
}

fn draft(padding: Padding) -> Blueprint {
    blueprint(Mode::Decode, padding, &[(0x10000, 1), (0x20000, 2)])
}

fn vector(ptr: u64, wide: bool) -> LiveVector {
    LiveVector { ptr, len: 6, stride: 2, wide, device: Device::CPU }
}

fn inputs(wide: (bool, bool), num_padding: i64) -> LiveInputs {
    let (seq_lens, req_pool_indices) = (vector(0x100, wide.0), vector(0x200, wide.1));
    LiveInputs { seq_lens, req_pool_indices, extend_lens: None, num_padding }
}

fn words(launch: &Launch, inputs: &LiveInputs, scratch_words: usize) -> Vec<u64> {
    launch.with_words(inputs, scratch_words, |words| words.to_vec())
}

fn packed(blueprint: &Blueprint, inputs: &LiveInputs) -> Vec<u64> {
    let grids = vec![GRID; blueprint.groups.len()];
    words(&Launch::new(blueprint, 0, &grids, STATUS), inputs, 0)
}

fn kernel(num_words: usize, behaviour: stub::Behaviour) -> Result<Kernel> {
    let binary = (num_words as u64 + 2).to_ne_bytes();
    let image = KernelImage { binary: &binary, name: c"stub", num_warps: 4, shared: 0, num_words };
    // SAFETY: a stub's image is 8 bytes.
    unsafe { Kernel::load(stub::get(behaviour), &image) }
}

#[test]
fn words_stand_in_the_kernels_order() {
    let words = packed(&draft(Padding::Slot), &inputs((true, false), 2));
    let live = [0x100, 0x200, 16 | 8 << 32, (1 | 1 << 8) | 4 << 32, 4, 2 | 1 << 32];
    let table = [0x1000, 2048 | 4 << 32, 9 | 512 << 32];
    let pages = [1 | 2 << 32, 40, 8 | 6 << 32, 0x10100, 0x20100];
    let others = [STATUS, 0x100, 16 | 4 << 32, 0x10000, 0x20000];
    assert_eq!(words, [&live[..], &table[..], &pages[..], &others[..]].concat());
    assert_eq!(words.len(), SIZE.num_words());
}

#[test]
fn offsets_count_in_decode_mode_only() {
    let inputs = LiveInputs { extend_lens: Some(vector(0x300, true)), ..inputs((false, false), -5) };
    let steps = [(0x10000, 1), (0x20000, 2)];
    let words = packed(&blueprint(Mode::DraftExtend, Padding::Count, &steps), &inputs);
    assert_eq!((words[15], words[16]), (0x300, 16 | 6 << 32));
    assert_eq!((words[3], words[4]), (1 << 8 | 6 << 32, 0));
    assert_eq!(words[9], 0);
    let words = packed(&blueprint(Mode::TargetVerify { draft_token_num: 3 }, Padding::Count, &steps), &inputs);
    assert_eq!(words[5], 2 | 3 << 32);
}

#[test]
fn a_single_element_has_no_stride() {
    let far = |ptr| LiveVector { len: 1, stride: 1 << 40, ..vector(ptr, false) };
    let inputs = LiveInputs {
        seq_lens: far(0x100),
        req_pool_indices: far(0x200),
        extend_lens: Some(far(0x300)),
        num_padding: 0,
    };
    let words = packed(&blueprint(Mode::DraftExtend, Padding::Count, &[(0x10000, 1), (0x20000, 2)]), &inputs);
    assert_eq!((words[2], words[4], words[15], words[16]), (0, 0, 0x300, 0));
}

#[test]
fn an_odd_step_has_a_word_of_offsets_for_itself() {
    let steps = [(0x10000, 1), (0x20000, 2), (0x30000, 7)];
    let words = packed(&blueprint(Mode::Decode, Padding::Count, &steps), &inputs((true, true), 0));
    assert_eq!(words[9..16], [1 | 2 << 32, 7, 40, 8 | 6 << 32, 0x10100, 0x20100, 0x30100]);
}

#[test]
fn a_call_leaves_the_packed_words_as_they_were() {
    let launch = Launch::new(&draft(Padding::Count), 0, &[GRID], STATUS);
    let before = launch.clone();
    for wide in [true, false] {
        let words_of = |num_padding| words(&launch, &inputs((wide, !wide), num_padding), 2);
        let none_real = words_of(99);
        assert_eq!((none_real[3], none_real[4]), (1 << 8, 0));
        let five_real = words_of(1);
        assert_eq!((five_real[3], five_real[4]), (1 << 8 | 5 << 32, if wide { 5 } else { 5 << 32 }));
        assert_eq!(five_real[SIZE.num_words()..], [0, 0], "scratch pointers are null");
    }
    assert_eq!(launch, before);
}

/// Draft, verify and extend in one launch, and the grid of each.
fn joined() -> (Blueprint, [GroupGrid; 3]) {
    let extend_grid = GroupGrid { programs: 5, heads: 0, page_bits: 0 };
    let parts = [
        draft(Padding::Slot),
        blueprint(Mode::TargetVerify { draft_token_num: 2 }, Padding::Count, &[(0x30000, 0)]),
        blueprint(Mode::DraftExtend, Padding::Count, &[(0x40000, 0)]),
    ];
    let joined = Blueprint::join(&parts.iter().collect::<Vec<_>>()).unwrap();
    (joined, [GRID, GroupGrid { programs: 7, ..extend_grid }, extend_grid])
}

#[test]
fn several_groups_stand_after_a_word_that_divides_the_programs() {
    let (joined, grids) = joined();
    let live = LiveInputs { extend_lens: Some(vector(0x300, true)), ..inputs((true, false), 1) };
    let launch = Launch::new(&joined, 0, &grids, STATUS);
    let single = |steps, buffers| GroupSize { steps, buffers };
    let sizes = [SIZE, single(1, SIZE.buffers), single(1, SIZE.buffers)];
    let words = words(&launch, &live, 0);
    assert_eq!((words[0], launch.programs, words.len()), (18 | 25 << 32, 30, launch_words(&sizes)));
    assert_eq!(words[1..1 + SIZE.num_words()], packed(&draft(Padding::Slot), &live));
    let kernel = kernel(words.len(), stub::Behaviour::Succeed).unwrap();
    // SAFETY: the stub reads nothing behind the addresses.
    let start = |words: &mut [u64]| unsafe { kernel.launch(0, launch.programs, words) };
    launch.with_words(&live, kernel.scratch_words(), start).unwrap();
    assert_eq!(stub::last_launch().unwrap().0.programs, 30);
}

#[test]
fn a_step_alone_takes_every_place_of_its_group_and_other_groups_have_no_programs() {
    let (joined, grids) = joined();
    let launch = Launch::new(&joined, 0, &grids, STATUS);
    let live = inputs((true, false), 0);
    let alone = launch.alone(&joined, 1, &grids, STATUS);
    assert_eq!(alone.groups().collect::<Vec<_>>(), [(0, &[1][..]), (1, &[]), (2, &[])]);
    let draft_alone = words(&alone, &live, 0);
    assert_eq!((alone.programs, draft_alone[0]), (18, 18 | 18 << 32));
    assert_eq!((draft_alone[10], draft_alone[13], draft_alone[14]), (2 | 2 << 32, 0x20100, 0x20100));
    let verify_alone = words(&launch.alone(&joined, 2, &grids, STATUS), &live, 0);
    assert_eq!(verify_alone[0], 7 << 32, "the first group has no programs");
}

#[test]
fn a_stubbed_launch_gets_programs_and_words() {
    let launch = Launch::new(&draft(Padding::Count), 0, &[GRID], STATUS);
    let start = |behaviour| {
        let kernel = kernel(SIZE.num_words(), behaviour).unwrap();
        // SAFETY: the stub reads nothing behind the addresses.
        let start = |words: &mut [u64]| unsafe { kernel.launch(0, launch.programs, words) };
        launch.with_words(&inputs((false, false), 0), kernel.scratch_words(), start)
    };
    start(stub::Behaviour::Succeed).unwrap();
    assert_eq!(stub::last_launch().unwrap(), (StubbedLaunch { programs: 18, threads: 128, shared: 0 }, 0));
    let error = start(stub::Behaviour::Fail).unwrap_err();
    assert!(matches!(error, Error::Driver { name, .. } if name == "CUDA_ERROR_INVALID_VALUE"));
}
