//! The validated description that a plan is made from.

use crate::contract::{Field, Mode, Padding};
use crate::error::{Error, Place, Result};
use crate::group::{Group, Split, group_steps, join_groups};
use crate::layout::{StepLayout, TableLayout};

/// Steps over one request table, divided into groups, divided into launches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blueprint {
    /// The request table that every step reads.
    pub table: TableLayout,
    /// The steps, in the caller's order.
    pub steps: Vec<StepLayout>,
    /// The groups, in launch order.
    pub groups: Vec<Group>,
    /// Indices of the groups of each launch, in launch order.
    pub launches: Vec<Vec<usize>>,
    /// Why steps and groups were kept apart.
    pub splits: Vec<Split>,
}

impl Blueprint {
    /// Groups steps of one mode and one padding rule. Every group has a launch of its own.
    ///
    /// # Errors
    /// [`Error::Layout`] for no steps, or for a `draft_token_num` that is larger than a step's rows.
    pub fn new(table: TableLayout, mode: Mode, padding: Padding, steps: Vec<StepLayout>) -> Result<Blueprint> {
        if steps.is_empty() {
            let remedy = "pass one StepBuffers a step";
            return Err(Error::layout(Place::Argument("steps"), "length", 0, "at least 1", remedy));
        }
        if let Mode::TargetVerify { draft_token_num } = mode
            && let Some((index, step)) =
                steps.iter().enumerate().find(|(_, step)| (1..u64::from(draft_token_num)).contains(&step.rows))
        {
            return Err(Error::layout(
                Place::Argument("draft_token_num"),
                "value",
                draft_token_num,
                format!("at most {}, the rows of step {index}", step.rows),
                "plan a bucket that holds a request, or fewer rows a request",
            ));
        }
        let (grouped, splits) = group_steps(&steps);
        let launches = (0..grouped.len()).map(|group| vec![group]).collect();
        let groups = grouped.into_iter().map(|steps| Group { mode, padding, steps }).collect();
        Ok(Blueprint { table, steps, groups, launches, splits })
    }

    /// One blueprint with the steps of several, in order. Up to three of their groups share a launch.
    ///
    /// # Errors
    /// [`Error::Layout`] for fewer than two blueprints, or for blueprints over different request tables.
    pub fn join(parts: &[&Blueprint]) -> Result<Blueprint> {
        let [first, _, ..] = parts else {
            let remedy = "run a single plan as it is";
            return Err(Error::layout(Place::Argument("plans"), "length", parts.len(), "at least 2", remedy));
        };
        if let Some((index, other)) = parts.iter().enumerate().find(|(_, part)| part.table != first.table) {
            let place = Place::Argument("plans");
            let given = format!("{:#x} in plan {index}", other.table.ptr);
            let wanted = format!("{:#x}, as in plan 0", first.table.ptr);
            return Err(Error::layout(place, "request table", given, wanted, "join plans over one request table"));
        }
        let mut joined = Blueprint { launches: Vec::new(), ..(*first).clone() };
        for part in &parts[1..] {
            let shift = joined.steps.len();
            let shifted = |steps: &[usize]| steps.iter().map(|step| step + shift).collect();
            joined.steps.extend_from_slice(&part.steps);
            joined.groups.extend(part.groups.iter().map(|group| Group { steps: shifted(&group.steps), ..*group }));
            let moved =
                |split: &Split| Split { step: split.step + shift, group_of: split.group_of + shift, ..split.clone() };
            joined.splits.extend(part.splits.iter().map(moved));
        }
        let (launches, splits) = join_groups(&joined.groups, &joined.steps);
        joined.launches = launches;
        joined.splits.extend(splits);
        Ok(joined)
    }

    /// The layouts of a group's steps, in order.
    pub fn members<'a>(&'a self, group: &'a Group) -> impl ExactSizeIterator<Item = &'a StepLayout> + Clone {
        group.steps.iter().map(|&step| &self.steps[step])
    }

    /// The layout of a group's first step. All steps of a group have the same rows, buffers and strides.
    pub fn first(&self, group: &Group) -> &StepLayout {
        &self.steps[group.steps[0]]
    }

    /// Index of the group that holds a step.
    pub fn group_of(&self, step: usize) -> Option<usize> {
        self.groups.iter().position(|group| group.steps.contains(&step))
    }

    /// Page entries of a group's rows that exist: no more than the page table's columns or the table's pages.
    pub fn num_pages(&self, group: &Group) -> u64 {
        self.first(group).buffer(Field::PageTable).map_or(0, |pages| pages.cols.min(self.table.pages()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::NUM_FIELDS;
    use crate::layout::Buffer;
    use crate::tensor::Device;

    fn table(ptr: u64) -> TableLayout {
        TableLayout {
            device: Device::CPU,
            ptr,
            slots: 9,
            width: 512,
            row_stride: 512,
            col_stride: 1,
            compress_ratio: 4,
            page_size: 64,
            ring_size: 4,
        }
    }

    fn step(ptr: u64, rows: u64) -> StepLayout {
        let mut buffers = [None; NUM_FIELDS];
        buffers[0] = Some(Buffer { ptr, rows, cols: 1, row_stride: 1 });
        StepLayout { offset: 1, rows, buffers }
    }

    fn blueprint(table_ptr: u64, mode: Mode, steps: &[(u64, u64)]) -> Blueprint {
        let steps = steps.iter().map(|&(ptr, rows)| step(ptr, rows)).collect();
        Blueprint::new(table(table_ptr), mode, Padding::Count, steps).unwrap()
    }

    #[test]
    fn joined_blueprints_keep_modes_and_number_their_steps_on() {
        let draft = blueprint(1, Mode::Decode, &[(0x100, 4), (0x200, 4), (0x300, 5)]);
        let verify = blueprint(1, Mode::TargetVerify { draft_token_num: 2 }, &[(0x400, 8), (0x500, 8)]);
        let joined = Blueprint::join(&[&draft, &verify]).unwrap();
        let groups: Vec<_> = joined.groups.iter().map(|group| (group.mode.name(), group.steps.clone())).collect();
        assert_eq!(groups, [("decode", vec![0, 1]), ("decode", vec![2]), ("target_verify", vec![3, 4])]);
        assert_eq!(joined.launches, [vec![0, 1, 2]]);
        assert_eq!((joined.steps.len(), joined.splits.len()), (5, 1));
        assert_eq!(joined.group_of(4), Some(2));
        let again = Blueprint::join(&[&verify, &draft]).unwrap();
        assert_eq!((again.splits[0].step, again.splits[0].group_of), (4, 2), "the split moved with its steps");
    }

    #[test]
    fn blueprints_of_other_tables_are_not_joined() {
        let parts = [blueprint(1, Mode::Decode, &[(0x100, 4)]), blueprint(2, Mode::Decode, &[(0x200, 4)])];
        let error = Blueprint::join(&[&parts[0], &parts[1]]).unwrap_err().to_string();
        assert!(error.contains("plans has request table 0x2 in plan 1, must be 0x1"), "{error}");
        assert!(Blueprint::join(&[&parts[0]]).is_err());
    }

    #[test]
    fn a_verify_bucket_holds_a_request() {
        let new = |rows| {
            let mode = Mode::TargetVerify { draft_token_num: 3 };
            Blueprint::new(table(1), mode, Padding::Count, vec![step(0x100, rows)])
        };
        assert!(new(0).is_ok() && new(3).is_ok());
        let error = new(2).unwrap_err().to_string();
        assert!(error.contains("draft_token_num has value 3, must be at most 2, the rows of step 0"), "{error}");
    }
}
