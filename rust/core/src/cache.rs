//! Plans by content. The least recently used plan goes first.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::blueprint::Blueprint;
use crate::contract::{Mode, NUM_FIELDS};

/// Everything that a plan's packed arguments contain, as numbers: equal keys mean equal plans.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PlanKey {
    words: Box<[u64]>,
}

const HEAD_WORDS: usize = 12;
const GROUP_WORDS: usize = 3;
const STEP_WORDS: usize = 4 + 4 * NUM_FIELDS;

impl PlanKey {
    /// The key of a blueprint.
    pub fn new(blueprint: &Blueprint) -> PlanKey {
        let Blueprint { table, steps, groups, launches, .. } = blueprint;
        let mut words = Vec::with_capacity(HEAD_WORDS + groups.len() * GROUP_WORDS + steps.len() * STEP_WORDS);
        words.extend([
            table.ptr,
            table.device.kind.code(),
            table.device.index as u64,
            table.slots,
            table.width,
            table.row_stride,
            table.col_stride,
            table.compress_ratio,
            table.page_size,
            table.ring_size,
            groups.len() as u64,
            steps.len() as u64,
        ]);
        for (launch, members) in launches.iter().enumerate() {
            for group in members.iter().map(|&group| &groups[group]) {
                let mode = match group.mode {
                    Mode::Decode => 0,
                    Mode::DraftExtend => 1,
                    Mode::TargetVerify { draft_token_num } => 2 | u64::from(draft_token_num) << 8,
                };
                words.extend([mode, group.padding as u64, launch as u64]);
            }
        }
        for (index, step) in steps.iter().enumerate() {
            let group = blueprint.group_of(index).unwrap_or(usize::MAX);
            words.extend([group as u64, step.offset as u64, step.rows, u64::from(step.mask())]);
            for (_, buffer) in step.present() {
                words.extend([buffer.ptr, buffer.rows, buffer.cols, buffer.row_stride]);
            }
        }
        PlanKey { words: words.into_boxed_slice() }
    }
}

/// What a cache has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Look-ups that found a plan.
    pub hits: u64,
    /// Look-ups that found none.
    pub misses: u64,
    /// Plans that made room for others.
    pub evictions: u64,
    /// Plans that the caller dropped, and plans that a look-up found and rejected.
    pub dropped: u64,
}

struct Entry<V> {
    value: V,
    last_used: u64,
}

/// A bounded map from [`PlanKey`] to plans.
pub struct PlanCache<V> {
    entries: HashMap<PlanKey, Entry<V>, FixedState>,
    capacity: usize,
    clock: u64,
    stats: CacheStats,
}

impl<V> PlanCache<V> {
    /// An empty cache of at most `capacity` plans; a capacity of 0 caches nothing.
    pub fn new(capacity: usize) -> PlanCache<V> {
        PlanCache {
            entries: HashMap::with_hasher(FixedState::default()),
            capacity,
            clock: 0,
            stats: CacheStats::default(),
        }
    }

    /// The plan of a key; counts a hit or a miss.
    pub fn get(&mut self, key: &PlanKey) -> Option<&V> {
        self.clock += 1;
        match self.entries.get_mut(key) {
            Some(entry) => {
                self.stats.hits += 1;
                entry.last_used = self.clock;
                Some(&entry.value)
            }
            None => {
                self.stats.misses += 1;
                None
            }
        }
    }

    /// Takes back a look-up that found a plan of no use: the look-up counts as a miss.
    ///
    /// The plan is forgotten, counted as dropped and returned, unless another plan has taken its place. `test` recognises
    /// the plan.
    pub fn reject(&mut self, key: &PlanKey, test: impl FnOnce(&V) -> bool) -> Option<V> {
        self.stats.hits -= 1;
        self.stats.misses += 1;
        if !self.entries.get(key).is_some_and(|entry| test(&entry.value)) {
            return None;
        }
        self.stats.dropped += 1;
        self.entries.remove(key).map(|entry| entry.value)
    }

    /// Keeps a plan. Returns the plans that had to go. The caller releases them where releasing is safe.
    ///
    /// `may_evict` is false during a CUDA graph capture, since releasing memory could break the capture. The cache grows
    /// past its capacity then, until the next insertion outside a capture.
    pub fn insert(&mut self, key: PlanKey, value: V, may_evict: bool) -> Vec<V> {
        if self.capacity == 0 {
            return Vec::new();
        }
        self.clock += 1;
        let entry = Entry { value, last_used: self.clock };
        let mut gone: Vec<V> = self.entries.insert(key, entry).map(|old| old.value).into_iter().collect();
        while may_evict && self.entries.len() > self.capacity {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.last_used).map(|(key, _)| key.clone());
            let Some(entry) = oldest.and_then(|key| self.entries.remove(&key)) else {
                break;
            };
            self.stats.evictions += 1;
            gone.push(entry.value);
        }
        gone
    }

    /// Forgets the plans that a test picks, and returns them.
    pub fn remove_if(&mut self, mut test: impl FnMut(&V) -> bool) -> Vec<V> {
        let gone: Vec<V> =
            self.entries.extract_if(|_, entry| test(&entry.value)).map(|(_, entry)| entry.value).collect();
        self.stats.dropped += gone.len() as u64;
        gone
    }

    /// Plans that are held.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no plan is held.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Most plans that are kept.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// What was seen so far.
    pub fn stats(&self) -> CacheStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Field, Padding};
    use crate::layout::{Buffer, StepLayout, TableLayout};
    use crate::tensor::Device;

    const TABLE: TableLayout = TableLayout {
        device: Device::CPU,
        ptr: 1,
        slots: 4,
        width: 64,
        row_stride: 64,
        col_stride: 1,
        compress_ratio: 4,
        page_size: 64,
        ring_size: 4,
    };

    fn step(ptr: u64, cols: u64) -> StepLayout {
        let mut buffers = [None; NUM_FIELDS];
        buffers[Field::PageTable as usize] = Some(Buffer { ptr, rows: 4, cols, row_stride: cols });
        StepLayout { offset: 1, rows: 4, buffers }
    }

    fn blueprint(steps: Vec<StepLayout>) -> Blueprint {
        Blueprint::new(TABLE, Mode::Decode, Padding::Count, steps).unwrap()
    }

    fn key(ptr: u64) -> PlanKey {
        PlanKey::new(&blueprint(vec![step(ptr, 65)]))
    }

    #[test]
    fn least_recently_used_goes_first() {
        let mut cache = PlanCache::new(2);
        cache.insert(key(10), "a", true);
        cache.insert(key(20), "b", true);
        assert_eq!(cache.get(&key(10)), Some(&"a"));
        assert_eq!(cache.insert(key(30), "c", true), vec!["b"]);
        assert_eq!(cache.get(&key(20)), None);
        let stats = cache.stats();
        assert_eq!((stats.hits, stats.misses, stats.evictions), (1, 1, 1));
    }

    #[test]
    fn a_rejected_plan_was_a_miss() {
        let mut cache = PlanCache::new(2);
        cache.insert(key(10), "a", true);
        cache.insert(key(20), "b", true);
        assert_eq!(cache.get(&key(10)), Some(&"a"));
        assert_eq!(cache.reject(&key(10), |&plan| plan == "a"), Some("a"));
        assert_eq!(cache.stats(), CacheStats { hits: 0, misses: 1, evictions: 0, dropped: 1 });
        assert_eq!(cache.len(), 1);
        // Another plan has taken the place of the rejected one.
        assert_eq!(cache.get(&key(20)), Some(&"b"));
        assert_eq!(cache.reject(&key(20), |&plan| plan == "a"), None);
        assert_eq!(cache.stats(), CacheStats { hits: 0, misses: 2, evictions: 0, dropped: 1 });
        assert_eq!(cache.len(), 1);
    }

    #[test]
    fn nothing_is_evicted_while_capturing() {
        let mut cache = PlanCache::new(1);
        cache.insert(key(10), "a", false);
        assert!(cache.insert(key(20), "b", false).is_empty());
        assert_eq!(cache.len(), 2);
        assert_eq!(cache.insert(key(30), "c", true).len(), 2);
        assert_eq!(cache.len(), 1);
    }

    #[test]
    fn picked_plans_are_forgotten() {
        let mut cache = PlanCache::new(8);
        for (ptr, plan) in [(10, "a"), (20, "b"), (30, "c")] {
            cache.insert(key(ptr), plan, true);
        }
        let mut gone = cache.remove_if(|&plan| plan != "b");
        gone.sort_unstable();
        assert_eq!(gone, vec!["a", "c"]);
        assert_eq!((cache.len(), cache.stats().dropped), (1, 2));
    }

    #[test]
    fn a_smaller_buffer_at_the_same_address_is_a_miss() {
        let key = |cols| PlanKey::new(&blueprint(vec![step(10, cols)]));
        assert_ne!(key(65), key(33));
        assert_eq!(key(65), key(65));
    }

    #[test]
    fn plans_of_the_same_steps_in_other_groups_differ() {
        let steps = vec![step(0x1000, 8), step(0x2000, 8)];
        let together = blueprint(steps.clone());
        let parts: Vec<_> = steps.into_iter().map(|step| blueprint(vec![step])).collect();
        let joined = Blueprint::join(&[&parts[0], &parts[1]]).unwrap();
        assert_ne!(PlanKey::new(&together), PlanKey::new(&joined));
        let mut verify = together.clone();
        verify.groups[0].mode = Mode::TargetVerify { draft_token_num: 1 };
        assert_ne!(PlanKey::new(&together), PlanKey::new(&verify));
    }
}
