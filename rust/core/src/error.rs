//! What can be wrong with a request, as data. Text is rendered only for display.

use crate::layout::Field;
use thiserror::Error;

/// Where in a plan request an error lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A buffer of a step.
    Buffer {
        /// Index of the step in the list that was planned.
        step: usize,
        /// The buffer.
        field: Field,
    },
    /// A step as a whole.
    Step {
        /// Index of the step in the list that was planned.
        step: usize,
        /// Name of what is wrong with it.
        name: &'static str,
    },
    /// An argument that belongs to no step (`req_to_token`, `seq_lens`, …).
    Argument(&'static str),
}

impl Place {
    /// Index of the step, if the error belongs to one.
    pub fn step(&self) -> Option<usize> {
        match self {
            Place::Buffer { step, .. } | Place::Step { step, .. } => Some(*step),
            Place::Argument(_) => None,
        }
    }

    /// Name of the field or argument.
    pub fn field(&self) -> &'static str {
        match self {
            Place::Buffer { field, .. } => field.name(),
            Place::Step { name, .. } => name,
            Place::Argument(name) => name,
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.step() {
            Some(step) => write!(f, "step {step}: {}", self.field()),
            None => f.write_str(self.field()),
        }
    }
}

/// An error in a layout, a request or a launch.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// A tensor or number does not have the form it must have.
    #[error("{place} has {what} {given}, must be {wanted}; {remedy}")]
    Layout {
        /// Where.
        place: Place,
        /// The property that is wrong ("dtype", "shape", …).
        what: &'static str,
        /// Its value.
        given: String,
        /// The value it must have.
        wanted: String,
        /// What the caller can do.
        remedy: &'static str,
    },
    /// More is asked for than there is room for.
    #[error("{name} needs {needed}, the limit is {limit}; {remedy}")]
    Capacity {
        /// What is too large.
        name: &'static str,
        /// How much is asked for.
        needed: u64,
        /// How much there is.
        limit: u64,
        /// What the caller can do.
        remedy: &'static str,
    },
    /// Something that was fixed when the plan was made is different in a call.
    #[error("{name} was planned as {planned}, {given} was given; {remedy}")]
    PlanChanged {
        /// What changed.
        name: &'static str,
        /// Its value at plan time.
        planned: String,
        /// Its value now.
        given: String,
        /// What the caller can do.
        remedy: &'static str,
    },
    /// This build, driver or kernel cannot do what is asked; never raised by a hot call.
    #[error("{what}; {remedy}")]
    Unsupported {
        /// What cannot be done.
        what: String,
        /// What the caller can do.
        remedy: &'static str,
    },
    /// A CUDA driver call failed.
    #[error("{call} failed: {name}")]
    Driver {
        /// The driver call.
        call: &'static str,
        /// The driver's name for the error (`CUDA_ERROR_…`).
        name: String,
        /// The driver's number for the error.
        code: i32,
    },
}

/// Result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;
