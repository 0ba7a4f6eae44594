//! The contract of `docs/semantics.md` on host memory: the CPU backend, and an independent check of the kernel.
//!
//! A mode decides what each row of the bucket asks for: a request slot, a length and a prefix (`rows`). Whether the table
//! can serve a row, and what is written for the row (`writer`), is the same in every mode.

mod divisor;
mod rows;
mod view;
mod writer;

use crate::contract::{Mode, Padding, status};
use crate::inputs::LiveInputs;
use crate::layout::{StepLayout, TableLayout};
use rows::{Requests, flag_if};
use view::{OutputRows, TableView};
use writer::Writer;

/// Rebuilds the buffers of the given steps from the live inputs. Returns the bits of [`status`] that apply.
///
/// No value causes a panic or an access out of bounds: a row that cannot be served is inert. The batch is that of the
/// shortest input, and an empty batch writes nothing.
///
/// # Safety
/// - `table` and `steps` must have passed [`TableLayout::new`] and [`StepLayout::new`], on the host.
/// - The memory of the table, the steps and the inputs must stay valid during the call, and nothing else may write to it.
/// - The outputs must share no memory with each other, with the table or with the inputs.
pub unsafe fn refresh(
    table: &TableLayout,
    mode: Mode,
    padding: Padding,
    steps: &[&StepLayout],
    inputs: &LiveInputs,
) -> i32 {
    // SAFETY: the caller promises that the inputs stay readable and unwritten during the call.
    let requests = unsafe { Requests::new(inputs, mode, padding) };
    if requests.batch == 0 {
        return 0;
    }
    // SAFETY: the caller promises the same for the table.
    let writer = Writer::new(table, unsafe { TableView::new(table) });
    // SAFETY: the caller promises valid host layouts, and that nothing else accesses their memory during the call.
    let outputs = unsafe { OutputRows::new(steps) };

    let (asked, flags) = requests.count(mode);
    let dropped = steps.iter().any(|step| step.rows < asked);
    let row_flags = match mode {
        Mode::Decode => writer.fill(outputs, requests.decode(), |row| row.offset()),
        Mode::TargetVerify { draft_token_num } => writer.fill(outputs, requests.verify(draft_token_num), |_| 0),
        Mode::DraftExtend => writer.fill(outputs, requests.extend(), |_| 0),
    };
    flags | flag_if(dropped, status::ROWS_EXCEED_BUCKET) | row_flags
}
