//! Errors: the code becomes `error.code` in JavaScript.

use napi::bindgen_prelude::Error;
use slidegate_bindings::BindingError;

pub(crate) type Result<T> = std::result::Result<T, Error<&'static str>>;

pub(crate) fn thrown(error: BindingError) -> Error<&'static str> {
    Error::new(error.code, error.message)
}
