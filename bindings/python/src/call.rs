//! Calls of functions that are written in Python, or may call one.

use std::{hint, mem, ptr, thread};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// Calls a function.
///
/// While the interpreter ends, Python before 3.14 ends every thread that asks for the GIL, and does so by unwinding its
/// stack (`pthread_exit`): through frames of Rust, whose destructors would change Python's objects without the GIL. From
/// 3.14 on, such a thread hangs instead (<https://github.com/python/cpython/issues/87135>). It does so here, too, as it
/// does where `PyO3` itself asks for the GIL; `PyO3`'s own calls unwind.
pub(crate) fn call<'py>(
    function: &Bound<'py, PyAny>,
    arguments: impl IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error: Into<PyErr>>,
) -> PyResult<Bound<'py, PyAny>> {
    type Call = unsafe extern "C-unwind" fn(
        *mut ffi::PyObject,
        *mut ffi::PyObject,
        *mut ffi::PyObject,
    ) -> *mut ffi::PyObject;

    let arguments = arguments.into_pyobject(function.py()).map_err(Into::into)?;
    // `PyO3` declares that it never unwinds: an optimizer that recognizes it leaves out what is done if it does.
    let declared = hint::black_box(ffi::PyObject_Call as *const ());
    // SAFETY: the declarations differ in whether the function may unwind, and this one does.
    let call = unsafe { mem::transmute::<*const (), Call>(declared) };
    let hang = Hang;
    // SAFETY: this thread has the GIL, as it has a `Bound`; function and arguments are borrowed during the call.
    let result = unsafe { call(function.as_ptr(), arguments.as_ptr(), ptr::null_mut()) };
    mem::forget(hang);
    // SAFETY: a call returns a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(function.py(), result) }
}

/// Calls a method.
pub(crate) fn call_method<'py>(
    object: &Bound<'py, PyAny>,
    name: &str,
    arguments: impl IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error: Into<PyErr>>,
) -> PyResult<Bound<'py, PyAny>> {
    call(&object.getattr(name)?, arguments)
}

/// Keeps a thread whose stack is unwound.
struct Hang;

impl Drop for Hang {
    fn drop(&mut self) {
        loop {
            thread::park();
        }
    }
}
