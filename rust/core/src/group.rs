//! Which steps share a launch, in which order the launches run, and why a step was kept out.

use crate::layout::{ByteRange, Field, MAX_GROUP_STEPS, NUM_FIELDS, StepLayout};

/// Why a step could not join a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The step that was kept out.
    pub step: usize,
    /// The first step of the group it was kept out of.
    pub group_of: usize,
    /// What differs, or `"overlap"`.
    pub field: String,
    /// The step's value.
    pub value: String,
    /// The group's value.
    pub other: String,
}

/// Groups in launch order, and the reasons for each split.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grouping {
    /// Step indices of each launch, ascending within a launch.
    pub groups: Vec<Vec<usize>>,
    /// One entry for each group that a step was kept out of.
    pub splits: Vec<Split>,
}

/// What all steps of a launch have in common. Device, request table, ratio, page size and mode belong to the whole
/// plan; dtypes are fixed by the field.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    rows: u64,
    mask: u32,
    page_table: Option<(u64, u64)>,
    ring_stride: Option<u64>,
}

impl Key {
    fn of(step: &StepLayout) -> Key {
        Key {
            rows: step.rows,
            mask: step.mask(),
            page_table: step.buffer(Field::PageTable).map(|table| (table.cols, table.row_stride)),
            ring_stride: step.buffer(Field::RingGroupLocs).map(|ring| ring.row_stride),
        }
    }
}

/// A group while it is being built.
struct Open {
    key: Key,
    steps: Vec<usize>,
}

/// Groups steps into the largest compatible sets.
///
/// Every step lands in exactly one group. A step joins the first group that it is compatible with and that runs after
/// every earlier step whose outputs it overlaps, so that overlapping steps keep their order.
pub fn group(steps: &[StepLayout]) -> Grouping {
    let mut open: Vec<Open> = Vec::new();
    let mut splits = Vec::new();
    let shared_memory = may_share_memory(steps);
    for (index, step) in steps.iter().enumerate() {
        let key = Key::of(step);
        // The last group that holds an earlier step which writes the same memory; the new one must run after it.
        let meets = |group: &Open| group.steps.iter().any(|&other| overlap(step, &steps[other]).is_some());
        let conflict = if shared_memory { open.iter().rposition(meets) } else { None };
        let first_allowed = conflict.map_or(0, |position| position + 1);
        let home = open
            .iter()
            .enumerate()
            .skip(first_allowed)
            .find(|(_, group)| group.key == key && group.steps.len() < MAX_GROUP_STEPS)
            .map(|(position, _)| position);
        if home.is_none() || first_allowed > 0 {
            for (position, group) in open.iter().enumerate() {
                if Some(position) == home {
                    break;
                }
                splits.push(reason(index, step, key, group, steps));
            }
        }
        match home {
            Some(position) => open[position].steps.push(index),
            None => open.push(Open { key, steps: vec![index] }),
        }
    }
    Grouping { groups: open.into_iter().map(|group| group.steps).collect(), splits }
}

/// Why a group is not in the launch of the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// The launch is full.
    Full,
    /// Both write the same memory.
    Overlap {
        /// The other group.
        other: usize,
        /// The group's buffer.
        field: Field,
        /// The other's buffer.
        against: Field,
    },
}

/// Groups by launch, and why each launch but the first was begun.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Joining {
    /// Indices of each launch's groups, ascending.
    pub launches: Vec<Vec<usize>>,
    /// One entry for each launch but the first.
    pub breaks: Vec<Break>,
}

/// Divides groups into launches of at most `most` each, which keep their order: a group that writes memory of one before
/// it is in a later launch.
pub fn join(groups: &[Vec<&StepLayout>], most: usize) -> Joining {
    let mut joining = Joining::default();
    for (index, group) in groups.iter().enumerate() {
        let Some(last) = joining.launches.last_mut() else {
            joining.launches.push(vec![index]);
            continue;
        };
        let shared = last.iter().find_map(|&other| {
            let (field, against) =
                group.iter().find_map(|step| groups[other].iter().find_map(|earlier| overlap(step, earlier)))?;
            Some(Break::Overlap { other, field, against })
        });
        match shared.or_else(|| (last.len() >= most).then_some(Break::Full)) {
            None => last.push(index),
            Some(reason) => {
                joining.breaks.push(reason);
                joining.launches.push(vec![index]);
            }
        }
    }
    joining
}

/// Whether any two buffers might share memory, by one pass over their sorted ranges: almost never, and then no pair
/// of steps needs a closer look.
fn may_share_memory(steps: &[StepLayout]) -> bool {
    let mut ranges: Vec<ByteRange> = Vec::with_capacity(steps.len() * NUM_FIELDS);
    for step in steps {
        ranges.extend(step.present().map(|(field, buffer)| buffer.byte_range(&field.dtype())));
    }
    ranges.sort_unstable();
    ranges.windows(2).any(|pair| pair[0].overlaps(&pair[1]))
}

/// The first pair of buffers of two steps that share memory.
fn overlap(step: &StepLayout, other: &StepLayout) -> Option<(Field, Field)> {
    step.present().find_map(|(field, buffer)| {
        other
            .present()
            .find(|(against, theirs)| buffer.overlaps(&field.dtype(), theirs, &against.dtype()))
            .map(|(against, _)| (field, against))
    })
}

fn reason(index: usize, step: &StepLayout, key: Key, group: &Open, steps: &[StepLayout]) -> Split {
    let first = group.steps[0];
    let split = |field: &str, value: String, other: String| Split {
        step: index,
        group_of: first,
        field: field.to_string(),
        value,
        other,
    };
    let pair = |value: Option<(u64, u64)>, part: fn((u64, u64)) -> u64| {
        value.map_or("absent".to_string(), |both| part(both).to_string())
    };
    if key.rows != group.key.rows {
        return split("rows", key.rows.to_string(), group.key.rows.to_string());
    }
    if key.mask != group.key.mask {
        let differs = Field::ALL
            .iter()
            .find(|&&field| (key.mask ^ group.key.mask) & (1 << field as u32) != 0)
            .map_or("buffers", |field| field.name());
        let has = |there: bool| if there { "present" } else { "absent" }.to_string();
        let mine = step.present().any(|(field, _)| field.name() == differs);
        return split(differs, has(mine), has(!mine));
    }
    if key.page_table.map(|t| t.0) != group.key.page_table.map(|t| t.0) {
        return split("page_table.shape[1]", pair(key.page_table, |t| t.0), pair(group.key.page_table, |t| t.0));
    }
    if key.page_table != group.key.page_table {
        return split("page_table.stride(0)", pair(key.page_table, |t| t.1), pair(group.key.page_table, |t| t.1));
    }
    if key.ring_stride != group.key.ring_stride {
        let show = |stride: Option<u64>| stride.map_or("absent".to_string(), |s| s.to_string());
        return split("ring_group_locs.stride(0)", show(key.ring_stride), show(group.key.ring_stride));
    }
    let shared = group.steps.iter().find_map(|&other| Some((other, overlap(step, &steps[other])?)));
    match shared {
        Some((other, (field, against))) => {
            split("overlap", format!("{} of step {index}", field.name()), format!("{} of step {other}", against.name()))
        }
        None if group.steps.len() >= MAX_GROUP_STEPS => {
            split("group size", (group.steps.len() + 1).to_string(), MAX_GROUP_STEPS.to_string())
        }
        // Compatible in itself, but an earlier step that it overlaps runs later than this group.
        None => split(
            "order",
            format!("step {index} runs after the steps it overlaps"),
            format!("group of step {first} runs before them"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Buffer, Device};

    fn step(ptr: u64, rows: u64, cols: u64) -> StepLayout {
        let mut buffers = [None; crate::layout::NUM_FIELDS];
        buffers[Field::SequenceLengths as usize] = Some(Buffer { ptr, rows, cols: 1, row_stride: 1 });
        buffers[Field::PageTable as usize] = Some(Buffer { ptr: ptr + 0x1000, rows, cols, row_stride: cols });
        StepLayout { device: Device::CPU, offset: 1, rows, buffers }
    }

    #[test]
    fn compatible_steps_share_one_launch() {
        let steps = [step(0x10000, 8, 4), step(0x20000, 8, 4), step(0x30000, 8, 4)];
        let grouping = group(&steps);
        assert_eq!(grouping.groups, vec![vec![0, 1, 2]]);
        assert!(grouping.splits.is_empty());
    }

    #[test]
    fn one_odd_step_leaves_the_others_grouped_and_is_named() {
        let steps = [step(0x10000, 8, 4), step(0x20000, 8, 5), step(0x30000, 8, 4)];
        let grouping = group(&steps);
        assert_eq!(grouping.groups, vec![vec![0, 2], vec![1]]);
        assert_eq!(grouping.splits.len(), 1);
        let split = &grouping.splits[0];
        assert_eq!((split.step, split.group_of), (1, 0));
        assert_eq!(split.field, "page_table.shape[1]");
        assert_eq!((split.value.as_str(), split.other.as_str()), ("5", "4"));
    }

    #[test]
    fn overlapping_steps_keep_their_order() {
        // Steps 0 and 1 share their outputs; step 2 is free to join the first launch.
        let steps = [step(0x10000, 8, 4), step(0x10000, 8, 4), step(0x30000, 8, 4)];
        let grouping = group(&steps);
        assert_eq!(grouping.groups, vec![vec![0, 2], vec![1]]);
        assert_eq!(grouping.splits[0].field, "overlap");
    }

    #[test]
    fn a_step_never_runs_before_one_it_overlaps() {
        // Step 2 would fit the first launch, but step 1 before it writes the same memory and runs second.
        let steps = [step(0x10000, 8, 4), step(0x20000, 8, 5), step(0x20000, 8, 4)];
        let grouping = group(&steps);
        assert_eq!(grouping.groups, vec![vec![0], vec![1], vec![2]]);
        assert!(grouping.splits.iter().any(|split| split.step == 2 && split.field == "order"));
    }

    #[test]
    fn groups_join_until_a_launch_is_full_or_memory_is_shared() {
        let steps: Vec<_> = (1..=5).map(|i| step(0x10000 * i, 8, 4)).collect();
        let mut groups: Vec<Vec<&StepLayout>> = steps.iter().map(|step| vec![step]).collect();
        assert_eq!(join(&groups, 3), Joining { launches: vec![vec![0, 1, 2], vec![3, 4]], breaks: vec![Break::Full] });
        // The third writes what the second writes; what follows stays behind it.
        groups[2] = vec![&steps[1], &steps[2]];
        let field = Field::SequenceLengths;
        let breaks = vec![Break::Overlap { other: 1, field, against: field }];
        assert_eq!(join(&groups, 3), Joining { launches: vec![vec![0, 1], vec![2, 3, 4]], breaks });
        assert_eq!(join(&[], 3), Joining::default());
    }

    #[test]
    fn a_group_has_a_size_limit() {
        let steps: Vec<_> = (0..MAX_GROUP_STEPS as u64 + 3).map(|i| step(0x10000 * (i + 1), 8, 4)).collect();
        let grouping = group(&steps);
        assert_eq!(grouping.groups[0].len(), MAX_GROUP_STEPS);
        assert_eq!(grouping.groups[1].len(), 3);
        assert_eq!(grouping.splits[0].field, "group size");
    }
}
