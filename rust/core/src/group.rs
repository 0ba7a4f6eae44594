//! Which steps share kernel arguments, which groups share a launch, and why a step or a group was kept out.

use crate::contract::{Field, Mode, NUM_FIELDS, Padding, limits};
use crate::driver::MAX_SCRATCH_WORDS;
use crate::launch::arguments::{GroupSize, launch_words};
use crate::layout::StepLayout;
use crate::tensor::ByteRange;

/// Steps that share one set of kernel arguments.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// How rows are laid out over requests.
    pub mode: Mode,
    /// Which requests are padding.
    pub padding: Padding,
    /// Indices of the steps, ascending.
    pub steps: Vec<usize>,
}

impl Group {
    /// What the number of the group's argument words depends on.
    pub fn size(&self, steps: &[StepLayout]) -> GroupSize {
        GroupSize { steps: self.steps.len(), buffers: steps[self.steps[0]].mask() }
    }
}

/// Why a step was kept out of a group, or a group out of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The step that was kept out; of a group the first step.
    pub step: usize,
    /// The first step of the group or launch that the step was kept out of.
    pub group_of: usize,
    /// What differs, or `"overlap"`, `"order"`, `"group size"`, `"launch size"`, `"launch words"`.
    pub field: &'static str,
    /// The step's value.
    pub value: String,
    /// The other's value.
    pub other: String,
}

/// What all steps of a group have in common. Device, request table, ratio, page size, ring size and mode belong to the
/// whole plan, and each field has one dtype.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    rows: u64,
    mask: u32,
    /// Columns and row stride.
    page_table: Option<(u64, u64)>,
    ring_stride: Option<u64>,
}

impl Key {
    fn new(step: &StepLayout) -> Key {
        Key {
            rows: step.rows,
            mask: step.mask(),
            page_table: step.buffer(Field::PageTable).map(|table| (table.cols, table.row_stride)),
            ring_stride: step.buffer(Field::RingGroupLocs).map(|ring| ring.row_stride),
        }
    }
}

/// A group that may still take steps.
struct Open {
    key: Key,
    steps: Vec<usize>,
}

/// Groups steps into the largest compatible sets.
///
/// Every step lands in one group. A step joins the first group with the same [`Key`] that runs after every earlier step
/// whose outputs it overlaps. Steps that overlap keep their order so.
pub fn group_steps(steps: &[StepLayout]) -> (Vec<Vec<usize>>, Vec<Split>) {
    let mut open: Vec<Open> = Vec::new();
    let mut splits = Vec::new();
    let shared_memory = may_share_memory(steps);
    for (index, step) in steps.iter().enumerate() {
        let key = Key::new(step);
        // The last group with an earlier step that writes the same memory. The new step must run after that group.
        let overlaps = |group: &Open| group.steps.iter().any(|&other| step.overlap(&steps[other]).is_some());
        let conflict = if shared_memory { open.iter().rposition(overlaps) } else { None };
        let first_allowed = conflict.map_or(0, |position| position + 1);
        let home = (first_allowed..open.len())
            .find(|&position| open[position].key == key && open[position].steps.len() < limits::GROUP_STEPS);
        if home.is_none() || first_allowed > 0 {
            let passed = home.unwrap_or(open.len());
            splits.extend(open[..passed].iter().map(|group| reason(index, key, group, steps)));
        }
        match home {
            Some(position) => open[position].steps.push(index),
            None => open.push(Open { key, steps: vec![index] }),
        }
    }
    (open.into_iter().map(|group| group.steps).collect(), splits)
}

/// Divides groups into launches of at most [`limits::LAUNCH_GROUPS`] groups and [`limits::LAUNCH_WORDS`] words. Groups
/// keep their order: a group that writes memory of an earlier one is in a later launch.
pub fn join_groups(groups: &[Group], steps: &[StepLayout]) -> (Vec<Vec<usize>>, Vec<Split>) {
    let mut launches: Vec<Vec<usize>> = Vec::new();
    let mut splits = Vec::new();
    for (index, group) in groups.iter().enumerate() {
        let Some(launch) = launches.last_mut() else {
            launches.push(vec![index]);
            continue;
        };
        let overlap = launch.iter().find_map(|&other| {
            let pairs =
                |&step: &usize| groups[other].steps.iter().find_map(move |&with| overlap_split(step, with, steps));
            group.steps.iter().find_map(pairs)
        });
        let full = || {
            let split = |field, value: usize, other: usize| Split {
                step: group.steps[0],
                group_of: groups[launch[0]].steps[0],
                field,
                value: value.to_string(),
                other: other.to_string(),
            };
            if launch.len() >= limits::LAUNCH_GROUPS {
                return Some(split("launch size", limits::LAUNCH_GROUPS + 1, limits::LAUNCH_GROUPS));
            }
            let sizes: Vec<GroupSize> =
                launch.iter().map(|&other| &groups[other]).chain([group]).map(|group| group.size(steps)).collect();
            let words = launch_words(&sizes) + MAX_SCRATCH_WORDS;
            (words > limits::LAUNCH_WORDS).then(|| split("launch words", words, limits::LAUNCH_WORDS))
        };
        match overlap.or_else(full) {
            None => launch.push(index),
            Some(split) => {
                splits.push(split);
                launches.push(vec![index]);
            }
        }
    }
    (launches, splits)
}

/// Whether any two buffers might share memory. One pass over their sorted ranges says no for almost every plan, and no
/// pair of steps needs a closer look then.
fn may_share_memory(steps: &[StepLayout]) -> bool {
    let mut ranges: Vec<ByteRange> = Vec::with_capacity(steps.len() * NUM_FIELDS);
    for step in steps {
        ranges.extend(step.present().map(|(field, buffer)| buffer.byte_range(&field.dtype())));
    }
    ranges.sort_unstable();
    ranges.windows(2).any(|pair| pair[0].overlaps(&pair[1]))
}

/// The split of two steps that write the same memory.
fn overlap_split(step: usize, with: usize, steps: &[StepLayout]) -> Option<Split> {
    let (field, against) = steps[step].overlap(&steps[with])?;
    Some(Split {
        step,
        group_of: with,
        field: "overlap",
        value: format!("{} of step {step}", field.name()),
        other: format!("{} of step {with}", against.name()),
    })
}

/// Why a step is not in a group.
fn reason(step: usize, key: Key, group: &Open, steps: &[StepLayout]) -> Split {
    let first = group.steps[0];
    let split = |field, value: String, other: String| Split { step, group_of: first, field, value, other };
    if key != group.key {
        let (field, value, other) = difference(key, group.key);
        return split(field, value, other);
    }
    if let Some(overlap) = group.steps.iter().find_map(|&other| overlap_split(step, other, steps)) {
        return Split { group_of: first, ..overlap };
    }
    if group.steps.len() >= limits::GROUP_STEPS {
        return split("group size", (group.steps.len() + 1).to_string(), limits::GROUP_STEPS.to_string());
    }
    // The step fits, but an earlier step that it overlaps runs later than this group.
    split(
        "order",
        format!("step {step} runs after the steps it overlaps"),
        format!("group of step {first} runs before them"),
    )
}

/// The first field in which two keys differ, and its value in each.
fn difference(key: Key, other: Key) -> (&'static str, String, String) {
    let show = |value: Option<u64>| value.map_or("absent".to_string(), |number| number.to_string());
    if key.rows != other.rows {
        return ("rows", key.rows.to_string(), other.rows.to_string());
    }
    if let Some(field) = Field::ALL.into_iter().find(|&field| (key.mask ^ other.mask) & 1 << field as u32 != 0) {
        let presence = |mask: u32| if mask & 1 << field as u32 != 0 { "present" } else { "absent" }.to_string();
        return (field.name(), presence(key.mask), presence(other.mask));
    }
    let columns = |key: Key| key.page_table.map(|(columns, _)| columns);
    let stride = |key: Key| key.page_table.map(|(_, stride)| stride);
    if columns(key) != columns(other) {
        return ("page_table.shape[1]", show(columns(key)), show(columns(other)));
    }
    if stride(key) != stride(other) {
        return ("page_table.stride(0)", show(stride(key)), show(stride(other)));
    }
    ("ring_group_locs.stride(0)", show(key.ring_stride), show(other.ring_stride))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Buffer;

    fn step(ptr: u64, rows: u64, cols: u64) -> StepLayout {
        let mut buffers = [None; NUM_FIELDS];
        buffers[Field::SequenceLengths as usize] = Some(Buffer { ptr, rows, cols: 1, row_stride: 1 });
        buffers[Field::PageTable as usize] = Some(Buffer { ptr: ptr + 0x1000, rows, cols, row_stride: cols });
        StepLayout { offset: 1, rows, buffers }
    }

    fn groups(steps: &[&[usize]]) -> Vec<Group> {
        let group = |steps: &&[usize]| Group { mode: Mode::Decode, padding: Padding::Count, steps: steps.to_vec() };
        steps.iter().map(group).collect()
    }

    #[test]
    fn compatible_steps_share_one_group() {
        let steps = [step(0x10000, 8, 4), step(0x20000, 8, 4), step(0x30000, 8, 4)];
        assert_eq!(group_steps(&steps), (vec![vec![0, 1, 2]], vec![]));
    }

    #[test]
    fn one_odd_step_leaves_the_others_grouped_and_is_named() {
        let steps = [step(0x10000, 8, 4), step(0x20000, 8, 5), step(0x30000, 8, 4)];
        let (groups, splits) = group_steps(&steps);
        assert_eq!(groups, vec![vec![0, 2], vec![1]]);
        let (value, other) = ("5".to_string(), "4".to_string());
        assert_eq!(splits, vec![Split { step: 1, group_of: 0, field: "page_table.shape[1]", value, other }]);
    }

    #[test]
    fn every_difference_is_named_with_both_values() {
        let base = Key::new(&step(0x10000, 8, 4));
        let other = |change: fn(&mut Key)| {
            let mut key = base;
            change(&mut key);
            difference(key, base)
        };
        let named = |field, value: &str, other: &str| (field, value.to_string(), other.to_string());
        assert_eq!(other(|key| key.rows = 9), named("rows", "9", "8"));
        assert_eq!(other(|key| key.mask ^= 1), named("sequence_lengths", "absent", "present"));
        assert_eq!(other(|key| key.mask ^= 1 << 4), named("write_locs", "present", "absent"));
        assert_eq!(other(|key| key.page_table = Some((5, 4))), named("page_table.shape[1]", "5", "4"));
        assert_eq!(other(|key| key.page_table = Some((4, 7))), named("page_table.stride(0)", "7", "4"));
        assert_eq!(other(|key| key.ring_stride = Some(3)), named("ring_group_locs.stride(0)", "3", "absent"));
    }

    #[test]
    fn overlapping_steps_keep_their_order() {
        // Steps 0 and 1 share their outputs. Step 2 is free to join the first group.
        let steps = [step(0x10000, 8, 4), step(0x10000, 8, 4), step(0x30000, 8, 4)];
        let (groups, splits) = group_steps(&steps);
        assert_eq!(groups, vec![vec![0, 2], vec![1]]);
        assert_eq!(splits[0].field, "overlap");
    }

    #[test]
    fn a_step_never_runs_before_one_it_overlaps() {
        // Step 2 would fit the first group, but step 1 writes the same memory and runs second.
        let steps = [step(0x10000, 8, 4), step(0x20000, 8, 5), step(0x20000, 8, 4)];
        let (groups, splits) = group_steps(&steps);
        assert_eq!(groups, vec![vec![0], vec![1], vec![2]]);
        assert!(splits.iter().any(|split| split.step == 2 && split.field == "order"));
    }

    #[test]
    fn a_group_has_a_size_limit() {
        let steps: Vec<_> = (1..=limits::GROUP_STEPS as u64 + 3).map(|i| step(0x10000 * i, 8, 4)).collect();
        let (groups, splits) = group_steps(&steps);
        assert_eq!((groups[0].len(), groups[1].len()), (limits::GROUP_STEPS, 3));
        assert_eq!(splits[0].field, "group size");
    }

    #[test]
    fn groups_share_a_launch_until_it_is_full() {
        let steps: Vec<_> = (1..=5).map(|i| step(0x10000 * i, 8, 4)).collect();
        let (launches, splits) = join_groups(&groups(&[&[0], &[1], &[2], &[3], &[4]]), &steps);
        assert_eq!(launches, vec![vec![0, 1, 2], vec![3, 4]]);
        let (value, other) = ("4".to_string(), "3".to_string());
        assert_eq!(splits, vec![Split { step: 3, group_of: 0, field: "launch size", value, other }]);
        assert_eq!(join_groups(&[], &steps), (vec![], vec![]));
    }

    #[test]
    fn a_launch_has_no_more_words_than_a_kernel_takes() {
        let steps: Vec<_> = (1..=3).map(|i| step(0x10000 * i, 8, 4)).collect();
        // Each group has 14 + 60 + 240 words, of one step's layout again and again.
        let large = |step: usize| vec![step; 120];
        let parts = [large(0), large(1), vec![2]];
        let (launches, splits) = join_groups(&groups(&[&parts[0], &parts[1], &parts[2]]), &steps);
        assert_eq!(launches, vec![vec![0], vec![1, 2]]);
        let (value, other) = ((1 + 2 * (14 + 60 + 240) + 2).to_string(), "512".to_string());
        assert_eq!(splits, vec![Split { step: 1, group_of: 0, field: "launch words", value, other }]);
    }

    #[test]
    fn a_group_that_writes_memory_of_an_earlier_one_is_in_a_later_launch() {
        let steps = [step(0x10000, 8, 4), step(0x20000, 8, 4), step(0x20000, 8, 4), step(0x30000, 8, 4)];
        let (launches, splits) = join_groups(&groups(&[&[0], &[1], &[2], &[3]]), &steps);
        assert_eq!(launches, vec![vec![0, 1], vec![2, 3]]);
        assert_eq!((splits[0].step, splits[0].group_of, splits[0].field), (2, 1, "overlap"));
        assert_eq!(splits[0].value, "sequence_lengths of step 2");
    }
}
