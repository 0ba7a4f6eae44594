//! Python numbers and names as arguments.

use std::ops::RangeInclusive;

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::PyInt;
use qsa_group_core::error::{Error, Place};

use crate::errors::{Raised, Result, wrong_type};

/// An int. Anything else, and an int past 64 bits, is an error of the core's kind, which names the range. The core checks
/// the range itself.
pub fn integer(
    value: &Bound<'_, PyAny>,
    place: Place,
    range: RangeInclusive<i64>,
    remedy: &'static str,
) -> Result<i64> {
    if let Ok(number) = value.extract() {
        return Ok(number);
    }
    let wanted = format!("an int from {} to {}", range.start(), range.end());
    // The error shows an int that is out of range, and the type of anything else.
    if value.is_instance_of::<PyInt>() {
        let given = value.str().map_or_else(|_| "unknown".to_string(), |text| text.to_string());
        return Err(Error::Layout { place, what: "value", given, wanted, remedy }.into());
    }
    Err(wrong_type(value, place, &wanted, remedy).into())
}

/// A name.
pub fn name(value: &Bound<'_, PyAny>, argument: &'static str) -> Result<String> {
    let remedy = "pass one of the names that `plan` lists";
    value.extract().map_err(|_| wrong_type(value, Place::Argument(argument), "str", remedy).into())
}

/// A call's `num_padding`. The core clamps the number to the batch, so a number past 64 bits may saturate.
pub fn num_padding(given: &Bound<'_, PyAny>) -> PyResult<i64> {
    match given.extract() {
        Ok(number) => Ok(number),
        Err(error) if PyErr::is_instance_of::<PyOverflowError>(&error, given.py()) => {
            Ok(if given.lt(0)? { i64::MIN } else { i64::MAX })
        }
        Err(_) => {
            let remedy = "pass how many requests at the end are padding";
            Err(Raised::from(wrong_type(given, Place::Argument("num_padding"), "int", remedy)).into())
        }
    }
}
