//! Launches: the kernel's arguments, packed once a plan and patched at each call.

pub(crate) mod arguments;
mod pack;

pub use arguments::{Argument, GroupSize, launch_words};
pub use pack::{GroupGrid, Launch, flags};
