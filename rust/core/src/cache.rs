//! Plans by key, least recently used first out.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::layout::{Mode, NUM_FIELDS, Padding, StepLayout, TableLayout};

/// Everything that a plan's packed arguments contain, as numbers: equal keys mean equal plans.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PlanKey {
    words: Box<[u64]>,
}

const TABLE_WORDS: usize = 9;
const STEP_WORDS: usize = 3 + 4 * NUM_FIELDS;

impl PlanKey {
    /// The key of a plan request.
    pub fn new(table: &TableLayout, mode: Mode, padding: Padding, steps: &[StepLayout]) -> PlanKey {
        let mut words = Vec::with_capacity(TABLE_WORDS + 2 + steps.len() * STEP_WORDS);
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
        ]);
        words.push(match mode {
            Mode::Decode => 0,
            Mode::DraftExtend => 1,
            Mode::TargetVerify { draft_token_num } => 2 | u64::from(draft_token_num) << 8,
        });
        words.push(padding as u64);
        for step in steps {
            words.extend([step.offset as u64, step.rows, u64::from(step.mask())]);
            for (_, buffer) in step.present() {
                words.extend([buffer.ptr, buffer.rows, buffer.cols, buffer.row_stride]);
            }
        }
        PlanKey { words: words.into_boxed_slice() }
    }

    /// Address of the request table that the plan reads.
    pub fn table_ptr(&self) -> u64 {
        self.words[0]
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
    /// Plans that were dropped or invalidated by the caller, or found and of no use.
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

    /// Forgets the plan that a look-up has just found, if a test still recognises it, and returns it: it was of no use,
    /// so the look-up counts as a miss and the plan as dropped.
    pub fn reject(&mut self, key: &PlanKey, test: impl FnOnce(&V) -> bool) -> Option<V> {
        self.stats.hits -= 1;
        self.stats.misses += 1;
        if !self.entries.get(key).is_some_and(|entry| test(&entry.value)) {
            return None;
        }
        self.stats.dropped += 1;
        self.entries.remove(key).map(|entry| entry.value)
    }

    /// Keeps a plan. Returns the plans that had to go, for the caller to release where that is safe.
    ///
    /// `may_evict` is false while a CUDA graph capture is on: releasing a plan's memory then could break the capture,
    /// so the cache grows past its capacity until the next insertion outside a capture.
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

    /// Forgets the plans that a test picks and returns them.
    pub fn remove_if(&mut self, mut test: impl FnMut(&PlanKey, &V) -> bool) -> Vec<V> {
        let gone: Vec<V> =
            self.entries.extract_if(|key, entry| test(key, &entry.value)).map(|(_, entry)| entry.value).collect();
        self.stats.dropped += gone.len() as u64;
        gone
    }

    /// Forgets every plan that reads the table at `table_ptr` and returns them.
    pub fn invalidate_table(&mut self, table_ptr: u64) -> Vec<V> {
        self.remove_if(|key, _| key.table_ptr() == table_ptr)
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
    use crate::layout::{Buffer, Device, Field};

    fn key(table_ptr: u64, ptr: u64) -> PlanKey {
        let table = TableLayout {
            device: Device::CPU,
            ptr: table_ptr,
            slots: 4,
            width: 64,
            row_stride: 64,
            col_stride: 1,
            compress_ratio: 4,
            page_size: 64,
        };
        let mut buffers = [None; NUM_FIELDS];
        buffers[Field::PageTable as usize] = Some(Buffer { ptr, rows: 4, cols: 65, row_stride: 65 });
        let step = StepLayout { device: Device::CPU, offset: 1, rows: 4, buffers };
        PlanKey::new(&table, Mode::Decode, Padding::Count, &[step])
    }

    #[test]
    fn least_recently_used_goes_first() {
        let mut cache = PlanCache::new(2);
        cache.insert(key(1, 10), "a", true);
        cache.insert(key(1, 20), "b", true);
        assert_eq!(cache.get(&key(1, 10)), Some(&"a"));
        assert_eq!(cache.insert(key(1, 30), "c", true), vec!["b"]);
        assert_eq!(cache.get(&key(1, 20)), None);
        let stats = cache.stats();
        assert_eq!((stats.hits, stats.misses, stats.evictions), (1, 1, 1));
    }

    #[test]
    fn a_rejected_plan_was_a_miss() {
        let mut cache = PlanCache::new(2);
        cache.insert(key(1, 10), "a", true);
        cache.insert(key(1, 20), "b", true);
        assert_eq!(cache.get(&key(1, 10)), Some(&"a"));
        assert_eq!(cache.reject(&key(1, 10), |&plan| plan == "a"), Some("a"));
        assert_eq!(cache.stats(), CacheStats { hits: 0, misses: 1, evictions: 0, dropped: 1 });
        assert_eq!(cache.len(), 1);
        // Another plan has taken its place meanwhile.
        assert_eq!(cache.get(&key(1, 20)), Some(&"b"));
        assert_eq!(cache.reject(&key(1, 20), |&plan| plan == "a"), None);
        assert_eq!(cache.stats(), CacheStats { hits: 0, misses: 2, evictions: 0, dropped: 1 });
        assert_eq!(cache.len(), 1);
    }

    #[test]
    fn nothing_is_evicted_while_capturing() {
        let mut cache = PlanCache::new(1);
        cache.insert(key(1, 10), "a", false);
        assert!(cache.insert(key(1, 20), "b", false).is_empty());
        assert_eq!(cache.len(), 2);
        assert_eq!(cache.insert(key(1, 30), "c", true).len(), 2);
        assert_eq!(cache.len(), 1);
    }

    #[test]
    fn a_table_is_invalidated_whole() {
        let mut cache = PlanCache::new(8);
        cache.insert(key(1, 10), "a", true);
        cache.insert(key(2, 10), "b", true);
        cache.insert(key(1, 20), "c", true);
        let mut gone = cache.invalidate_table(1);
        gone.sort_unstable();
        assert_eq!(gone, vec!["a", "c"]);
        assert_eq!(cache.len(), 1);
        assert_eq!(cache.stats().dropped, 2);
    }

    #[test]
    fn a_smaller_buffer_at_the_same_address_is_a_miss() {
        let table = |cols| {
            let spec = Buffer { ptr: 10, rows: 4, cols, row_stride: cols };
            let mut buffers = [None; NUM_FIELDS];
            buffers[Field::PageTable as usize] = Some(spec);
            let step = StepLayout { device: Device::CPU, offset: 1, rows: 4, buffers };
            let base = TableLayout {
                device: Device::CPU,
                ptr: 1,
                slots: 4,
                width: 64,
                row_stride: 64,
                col_stride: 1,
                compress_ratio: 4,
                page_size: 64,
            };
            PlanKey::new(&base, Mode::Decode, Padding::Count, &[step])
        };
        assert_ne!(table(65), table(33));
    }
}
