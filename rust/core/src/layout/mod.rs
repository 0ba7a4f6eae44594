//! Validated layouts: the buffers of a step, and the request table.

mod buffer;
mod checks;
mod step;
mod table;

pub use buffer::Buffer;
pub use step::StepLayout;
pub use table::TableLayout;
