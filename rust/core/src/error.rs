//! What can go wrong, as data. The text is made only when an error is displayed.

use thiserror::Error;

/// The place of an error in what the caller gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A field of a step: a buffer, or the offset.
    Step {
        /// Index of the step in the list that was planned.
        step: usize,
        /// Name of the field.
        field: &'static str,
    },
    /// An argument that belongs to no step, such as `req_to_token` or `seq_lens`.
    Argument(&'static str),
}

impl Place {
    /// Index of the step, if the error belongs to one.
    pub const fn step(&self) -> Option<usize> {
        match self {
            Place::Step { step, .. } => Some(*step),
            Place::Argument(_) => None,
        }
    }

    /// Name of the field or argument.
    pub const fn field(&self) -> &'static str {
        match self {
            Place::Step { field, .. } | Place::Argument(field) => field,
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

/// An error in a layout, in a call or in a launch.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// A tensor or a number does not have the form that it must have.
    #[error("{place} has {what} {given}, must be {wanted}; {remedy}")]
    Layout {
        /// Where the error is.
        place: Place,
        /// The property that is wrong ("dtype", "shape", …).
        what: &'static str,
        /// The value that was given.
        given: String,
        /// The value that it must have.
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
    /// A call differs from the plan in something that the plan fixed.
    #[error("{name} was planned as {planned}, {given} was given; {remedy}")]
    PlanChanged {
        /// What changed.
        name: &'static str,
        /// The value that was planned.
        planned: String,
        /// The value of the call.
        given: String,
        /// What the caller can do.
        remedy: &'static str,
    },
    /// This build, driver or kernel cannot do what is asked. A call of a plan never raises this.
    #[error("{what}; {remedy}")]
    Unsupported {
        /// What cannot be done.
        what: String,
        /// What the caller can do.
        remedy: &'static str,
    },
    /// A call of the CUDA driver failed.
    #[error("{call} failed: {name}")]
    Driver {
        /// The driver's function.
        call: &'static str,
        /// The driver's name for the error (`CUDA_ERROR_…`).
        name: String,
        /// The driver's number for the error.
        code: i32,
    },
}

impl Error {
    /// An [`Error::Layout`].
    #[cold]
    pub fn layout(
        place: Place,
        what: &'static str,
        given: impl ToString,
        wanted: impl ToString,
        remedy: &'static str,
    ) -> Error {
        Error::Layout { place, what, given: given.to_string(), wanted: wanted.to_string(), remedy }
    }
}

/// Result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;
