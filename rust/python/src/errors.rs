//! The core's errors as the package's Python exceptions: mapped here and nowhere else.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};
use qsa_group_core::error::{Error, Place};

/// An error on its way to Python, so that `?` crosses the border.
pub struct Raised(pub PyErr);

impl From<PyErr> for Raised {
    fn from(error: PyErr) -> Raised {
        Raised(error)
    }
}

impl From<Error> for Raised {
    fn from(error: Error) -> Raised {
        Raised(Python::attach(|py| to_python(py, &error).unwrap_or_else(|failure| failure)))
    }
}

impl From<Raised> for PyErr {
    fn from(raised: Raised) -> PyErr {
        raised.0
    }
}

/// Result of a binding.
pub type Result<T> = std::result::Result<T, Raised>;

/// A value of another type than it must have.
pub fn wrong_type(given: &Bound<'_, PyAny>, place: Place, wanted: &str, remedy: &'static str) -> Error {
    let class = given.get_type().name().map_or("unknown".to_string(), |name| name.to_string());
    Error::Layout { place, what: "type", given: class, wanted: wanted.to_string(), remedy }
}

/// A `LaunchError` for a reason that is not the driver's.
#[cold]
pub fn launch_error(py: Python<'_>, message: &str) -> Raised {
    let raised = class(py, "LaunchError").and_then(|class| class.call1((message,)));
    Raised(raised.map_or_else(|failure| failure, PyErr::from_value))
}

fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyType>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || py.import("qsa_group.errors").map(Bound::unbind))?;
    Ok(module.bind(py).getattr(name)?.cast_into()?)
}

fn to_python(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let attributes = PyDict::new(py);
    let name = match error {
        Error::Layout { place, .. } => {
            attributes.set_item("step", place.step())?;
            attributes.set_item("field", place.field())?;
            "LayoutError"
        }
        Error::Capacity { name, needed, limit, .. } => {
            attributes.set_item("name", name)?;
            attributes.set_item("needed", needed)?;
            attributes.set_item("limit", limit)?;
            "CapacityError"
        }
        Error::PlanChanged { name, planned, given, .. } => {
            attributes.set_item("field", name)?;
            attributes.set_item("planned", planned)?;
            attributes.set_item("given", given)?;
            "PlanChangedError"
        }
        Error::Unsupported { .. } => "UnsupportedError",
        Error::Driver { name, .. } => {
            attributes.set_item("name", name)?;
            "LaunchError"
        }
    };
    let instance = class(py, name)?.call((error.to_string(),), Some(&attributes))?;
    Ok(PyErr::from_value(instance))
}
