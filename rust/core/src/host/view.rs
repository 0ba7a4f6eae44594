//! Bounds-checked access to host tensors by address. Every read and write of a host refresh goes through these views.
//!
//! The memory of two steps may interleave: they may be column slices of one tensor. So no view forms a slice of more than
//! one row.

use crate::contract::Field;
use crate::inputs::LiveVector;
use crate::layout::{Buffer, StepLayout, TableLayout};
use crate::tensor::DType;
use std::marker::PhantomData;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

/// Read access to a [`LiveVector`], whatever its dtype and stride.
#[derive(Clone, Copy, Debug)]
pub struct VectorView<'a> {
    base: *const u8,
    len: u64,
    pitch: usize,
    wide: bool,
    memory: PhantomData<&'a [u8]>,
}

impl VectorView<'_> {
    /// A view of the vector.
    ///
    /// # Safety
    /// Every element must be readable for the lifetime of the view, and nothing may write to an element in that time.
    /// Elements need not be aligned.
    pub unsafe fn new(vector: &LiveVector) -> Self {
        VectorView {
            base: with_exposed_provenance(vector.ptr as usize),
            len: vector.len,
            pitch: vector.byte_stride() as usize,
            wide: vector.wide,
            memory: PhantomData,
        }
    }

    /// Number of elements.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// An element.
    ///
    /// # Panics
    /// For an index past the end.
    #[inline]
    pub fn get(&self, index: u64) -> i64 {
        assert!(index < self.len, "element past the end of a vector");
        // SAFETY: the element exists, and `new` was promised that every element is readable.
        unsafe {
            let at = self.base.byte_add(index as usize * self.pitch);
            if self.wide { at.cast::<i64>().read_unaligned() } else { i64::from(at.cast::<i32>().read_unaligned()) }
        }
    }
}

/// Read access to the request table.
#[derive(Clone, Copy, Debug)]
pub struct TableView<'a> {
    base: *const i32,
    slots: u64,
    width: u64,
    row_stride: usize,
    col_stride: usize,
    memory: PhantomData<&'a [i32]>,
}

impl<'a> TableView<'a> {
    /// A view of the table.
    ///
    /// # Safety
    /// The layout must be one that [`TableLayout::new`] accepts. Every entry must be readable for the lifetime of the view,
    /// and nothing may write to an entry in that time.
    pub unsafe fn new(table: &TableLayout) -> Self {
        TableView {
            base: with_exposed_provenance(table.ptr as usize),
            slots: table.slots,
            width: table.width,
            row_stride: table.row_stride as usize,
            col_stride: table.col_stride as usize,
            memory: PhantomData,
        }
    }

    /// The entries of a slot.
    ///
    /// # Panics
    /// For a slot outside the table.
    #[inline]
    pub fn row(&self, slot: u64) -> TableRow<'a> {
        assert!(slot < self.slots, "slot outside the request table");
        TableRow {
            // SAFETY: the slot exists, so its first entry lies within the table.
            base: unsafe { self.base.add(slot as usize * self.row_stride) },
            width: self.width,
            stride: self.col_stride,
            memory: PhantomData,
        }
    }
}

/// Read access to the entries of one slot.
#[derive(Clone, Copy, Debug)]
pub struct TableRow<'a> {
    base: *const i32,
    width: u64,
    stride: usize,
    memory: PhantomData<&'a [i32]>,
}

impl TableRow<'_> {
    /// The entry of a token.
    ///
    /// # Panics
    /// For a token past the table's width.
    #[inline]
    pub fn get(&self, token: u64) -> i32 {
        assert!(token < self.width, "token past the request table's width");
        // SAFETY: the token exists, and `TableView::new` was promised that every entry is readable.
        unsafe { *self.base.add(token as usize * self.stride) }
    }

    /// Fills `out` from the entries of tokens `first * every`, `(first + 1) * every` and so on.
    ///
    /// # Panics
    /// If the last of these tokens lies past the table's width.
    #[inline]
    pub fn gather(&self, first: u64, every: u64, out: &mut [i32], map: impl Fn(i32) -> i32) {
        let Some(last) = (out.len() as u64).checked_sub(1) else {
            return;
        };
        let last = first.saturating_add(last).saturating_mul(every);
        assert!(last < self.width, "token past the request table's width");
        let pitch = every as usize * self.stride;
        // SAFETY: the first token is not past the last token, and the last token exists.
        let start = unsafe { self.base.add(first as usize * pitch) };
        for (k, value) in out.iter_mut().enumerate() {
            // SAFETY: as in `get`. No token of the loop is past the last token, and the last token exists.
            *value = map(unsafe { *start.add(k * pitch) });
        }
    }
}

/// An element type of an output.
pub trait Element: sealed::Sealed + Copy {
    /// Its dtype.
    const DTYPE: DType;
}

impl Element for i32 {
    const DTYPE: DType = DType::Int32;
}

impl Element for i64 {
    const DTYPE: DType = DType::Int64;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for i32 {}
    impl Sealed for i64 {}
}

/// The rows of a bucket in order, each with its place in every step. A row is handed out once, and so belongs to its
/// receiver alone.
#[derive(Debug)]
pub struct OutputRows<'a> {
    steps: &'a [&'a StepLayout],
    next: u64,
    rows: u64,
}

impl<'a> OutputRows<'a> {
    /// The rows of the given steps: as many as the largest step has.
    ///
    /// # Safety
    /// Each step must be one that [`StepLayout::new`] accepts on the host. Every element of its buffers must be writable
    /// for the lifetime `'a`. No two steps may share memory, and nothing else may access a buffer in that time.
    pub unsafe fn new(steps: &'a [&'a StepLayout]) -> Self {
        OutputRows { steps, next: 0, rows: steps.iter().map(|step| step.rows).max().unwrap_or(0) }
    }
}

impl<'a> Iterator for OutputRows<'a> {
    type Item = BucketRow<'a>;

    #[inline]
    fn next(&mut self) -> Option<BucketRow<'a>> {
        if self.next == self.rows {
            return None;
        }
        let index = self.next;
        self.next += 1;
        Some(BucketRow { steps: self.steps.iter(), index })
    }
}

/// One row of a bucket: an iterator over the row's place in each step that is large enough.
#[derive(Debug)]
pub struct BucketRow<'a> {
    steps: std::slice::Iter<'a, &'a StepLayout>,
    index: u64,
}

impl<'a> Iterator for BucketRow<'a> {
    type Item = StepRow<'a>;

    #[inline]
    fn next(&mut self) -> Option<StepRow<'a>> {
        let index = self.index;
        let step = self.steps.find(|step| index < step.rows)?;
        Some(StepRow { step, index })
    }
}

/// Write access to one row of one step.
#[derive(Debug)]
pub struct StepRow<'a> {
    step: &'a StepLayout,
    index: u64,
}

impl<'a> StepRow<'a> {
    /// The step's offset.
    #[inline]
    pub const fn offset(&self) -> i64 {
        self.step.offset
    }

    /// Writes the row's element of a vector, if the step has the buffer.
    ///
    /// # Panics
    /// If the buffer has another dtype.
    #[inline]
    pub fn put<T: Element>(&mut self, field: Field, value: T) {
        if let Some([element, ..]) = self.row::<T>(field) {
            *element = value;
        }
    }

    /// The row's elements of an int32 buffer, if the step has the buffer.
    ///
    /// # Panics
    /// If the buffer has another dtype.
    #[inline]
    pub fn elements(&mut self, field: Field) -> Option<&mut [i32]> {
        self.row(field)
    }

    /// As [`StepRow::elements`], for as long as the outputs live.
    ///
    /// # Panics
    /// If the buffer has another dtype.
    #[inline]
    pub fn into_elements(mut self, field: Field) -> Option<&'a mut [i32]> {
        let elements: *mut [i32] = self.row(field)?;
        // SAFETY: the row was handed out once and is consumed here, so nothing else refers to its elements during 'a.
        Some(unsafe { &mut *elements })
    }

    #[inline]
    fn row<T: Element>(&mut self, field: Field) -> Option<&mut [T]> {
        let buffer: &Buffer = self.step.buffer(field)?;
        assert!(
            self.index < buffer.rows && field.dtype() == T::DTYPE,
            "row past the end of a buffer, or of another dtype"
        );
        let base = with_exposed_provenance_mut::<T>(buffer.ptr as usize);
        // SAFETY: the row exists. `OutputRows::new` was promised that its elements are writable, aligned and accessed by
        // nothing else. Rows of a buffer share no memory, and `self` is the only handle to this row.
        Some(unsafe {
            let row = base.add((self.index * buffer.row_stride) as usize);
            std::slice::from_raw_parts_mut(row, buffer.cols as usize)
        })
    }
}
