//! Limiters: the fast path.
//!
//! A check through the usual conversions of napi (a class, a `String`, a returned object) takes four times
//! as long as the decision itself. So each limiter is one function of Node-API's own, which copies the key
//! to the stack and exchanges all numbers through a `Float64Array` that its JavaScript module owns.

use std::collections::HashMap;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;
use std::{ptr, slice};

use napi::bindgen_prelude::{ClassInstance, Env, Float64Array, FromNapiValue, Unknown};
use napi::{check_status, sys};
use napi_derive::napi;
use slidegate::{Decision, Quota};
use slidegate_bindings::{BindingError, EngineOptions};

use crate::clock::ManualClock;
use crate::error::{Result, thrown};
use crate::pending::{Answered, wait};
use crate::values::{Reply, millis};

/// Numbers in the array: the arguments, and then the result in their place.
pub(crate) const NUMBERS: usize = 9;
/// Keys of up to this many bytes need no allocation.
const SHORT_KEY: usize = 128;
/// Names in [`SHARED`]: each is a limiter that lives as long as the process.
const MAX_SHARED: usize = 1024;

/// Limiters by name, for all threads of the process.
static SHARED: LazyLock<Mutex<HashMap<String, Arc<slidegate::Limiter>>>> = LazyLock::new(Mutex::default);

/// A limiter, whose keys are counted through the function of [`calls`](Self::calls).
#[napi]
pub struct NativeLimiter(Arc<slidegate::Limiter>);

#[napi]
impl NativeLimiter {
    /// A limiter of its own.
    #[napi(constructor, catch_unwind)]
    pub fn new(
        quota: String,
        algorithm: Option<String>,
        burst: Option<f64>,
        clock: Option<ClassInstance<'_, ManualClock>>,
        max_keys: Option<f64>,
        max_waiting: Option<f64>,
    ) -> Result<Self> {
        let options = EngineOptions {
            clock: clock.map(|clock| clock.shared()),
            max_keys: max_keys.map(|keys| keys as usize),
            max_waiting: max_waiting.map(|most| most as usize),
            ..EngineOptions::default()
        };
        let quota = quota_of(&quota, algorithm, burst)?;
        let limiter = slidegate::Limiter::with_store(quota, options.store());
        Ok(Self(Arc::new(limiter.with_max_waiting(options.max_waiting()))))
    }

    /// The limiter of this name, which all threads of the process share. The first caller's quota holds.
    #[napi(factory, catch_unwind)]
    pub fn shared(
        name: String,
        quota: String,
        algorithm: Option<String>,
        burst: Option<f64>,
    ) -> Result<Self> {
        let quota = quota_of(&quota, algorithm, burst)?;
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(limiter) = shared.get(&name) {
            return Ok(Self(Arc::clone(limiter)));
        }
        if shared.len() >= MAX_SHARED {
            let text = format!(
                "too many shared limiters: at most {MAX_SHARED}, as each lives as long as the process; give keys to one limiter instead of names to many"
            );
            return Err(thrown(BindingError::request(text)));
        }
        let limiter = Arc::new(slidegate::Limiter::new(quota));
        shared.insert(name, Arc::clone(&limiter));
        Ok(Self(limiter))
    }

    /// Waits for a turn. JavaScript has checked the key, the cost and the time.
    #[napi(catch_unwind)]
    pub fn acquire<'e>(
        &self,
        env: &'e Env,
        number: u32,
        key: String,
        cost: f64,
        timeout_ms: f64,
    ) -> Result<Answered<'e>> {
        let (limiter, timeout) = (Arc::clone(&self.0), millis(timeout_ms));
        wait(env, number, async move {
            let decision = limiter.acquire(key).cost(cost as u64).timeout(timeout).decide().await;
            let mut numbers = [Status::Done(decision.is_allowed()).number(); NUMBERS];
            write(&decision, &mut numbers);
            Reply::Numbers { numbers, reason: decision.reason().map(slidegate::Reason::name) }
        })
    }

    /// Lets calls that wait ask again: after the clock of a test was advanced.
    #[napi(catch_unwind)]
    pub fn time_has_passed(&self) {
        self.0.configure(self.0.quota());
    }

    /// Puts another quota in force.
    #[napi(catch_unwind)]
    pub fn configure(&self, quota: String, algorithm: Option<String>, burst: Option<f64>) -> Result<()> {
        self.0.configure(quota_of(&quota, algorithm, burst)?);
        Ok(())
    }

    /// The quota in force.
    #[napi(getter, catch_unwind)]
    pub fn quota(&self) -> QuotaFacts {
        let quota = self.0.quota();
        QuotaFacts {
            text: quota.to_string(),
            algorithm: quota.algorithm().name(),
            limit: quota.limit() as f64,
            burst: quota.burst() as f64,
            window_ms: quota.window().as_secs_f64() * 1000.0,
        }
    }

    /// A function `(key) => undefined` that reads a verb and a cost from `numbers`, and writes a decision
    /// there. `numbers` must not be detached while the function exists: its module keeps it private.
    #[napi(catch_unwind)]
    pub fn calls<'e>(&self, env: &'e Env, mut numbers: Float64Array) -> Result<Unknown<'e>> {
        assert_eq!(numbers.len(), NUMBERS, "the module in JavaScript and this one are of two versions");
        // SAFETY: the array is the caller's, who is JavaScript and so waits.
        let address = unsafe { numbers.as_mut() }.as_mut_ptr();
        let calls = Box::new(Calls { limiter: Arc::clone(&self.0), address, _numbers: numbers });
        function(env, calls).map_err(|error| thrown(BindingError::new("internal", error.to_string())))
    }
}

/// A quota, for people and for header fields.
#[napi(object, object_from_js = false)]
pub struct QuotaFacts {
    /// Such as `100/1m`.
    pub text: String,
    /// Its name.
    pub algorithm: &'static str,
    /// Limit per window.
    pub limit: f64,
    /// Of a token bucket.
    pub burst: f64,
    /// The window.
    pub window_ms: f64,
}

fn quota_of(text: &str, algorithm: Option<String>, burst: Option<f64>) -> Result<Quota> {
    let burst = burst.map(|burst| burst as u64);
    let quota = slidegate_bindings::quota(text, algorithm.as_deref(), burst).map_err(thrown)?;
    if quota.algorithm() == slidegate::Algorithm::InFlight {
        let text = format!(
            "invalid quota `{quota}` of a limiter: what is in flight must be reserved; use it in a policy of a `Gate`"
        );
        return Err(thrown(BindingError::new("invalid_quota", text)));
    }
    Ok(quota)
}

/// What the function of a limiter owns.
struct Calls {
    limiter: Arc<slidegate::Limiter>,
    /// Of the numbers, read once: asking Node-API for it takes as long as a decision.
    address: *mut f64,
    /// Keeps them alive.
    _numbers: Float64Array,
}

/// What is at the first number after a call: below 2, whether the request is allowed.
#[repr(u8)]
enum Status {
    Done(bool),
    /// The key is no string.
    NotText,
    /// The key has a lone surrogate: encoded, different keys would become one.
    LoneSurrogate,
    Panicked,
}

impl Status {
    fn number(self) -> f64 {
        match self {
            Self::Done(is_allowed) => f64::from(u8::from(is_allowed)),
            Self::NotText => 2.0,
            Self::LoneSurrogate => 3.0,
            Self::Panicked => 4.0,
        }
    }
}

/// The function, which drops `calls` when it is collected.
fn function<'e>(env: &'e Env, calls: Box<Calls>) -> napi::Result<Unknown<'e>> {
    let calls: *mut c_void = Box::into_raw(calls).cast();
    let mut function = ptr::null_mut();
    // SAFETY: `env` is the current one, `calls` lives until `drop_calls`, and the function is a value.
    unsafe {
        let status =
            sys::napi_create_function(env.raw(), c"limit".as_ptr(), -1, Some(call), calls, &raw mut function);
        check_status!(status)?;
        let finalizer = Some(drop_calls as unsafe extern "C" fn(_, _, _));
        let status =
            sys::napi_add_finalizer(env.raw(), function, calls, finalizer, ptr::null_mut(), ptr::null_mut());
        check_status!(status)?;
        Unknown::from_napi_value(env.raw(), function)
    }
}

unsafe extern "C" fn drop_calls(_env: sys::napi_env, calls: *mut c_void, _hint: *mut c_void) {
    // SAFETY: the pointer is the one of `function`, and the function is gone.
    drop(unsafe { Box::from_raw(calls.cast::<Calls>()) });
}

unsafe extern "C" fn call(env: sys::napi_env, info: sys::napi_callback_info) -> sys::napi_value {
    let (mut count, mut key, mut calls) = (1, ptr::null_mut(), ptr::null_mut());
    // SAFETY: out-parameters are valid; there is room for one argument, and a missing one is `undefined`.
    unsafe {
        sys::napi_get_cb_info(env, info, &raw mut count, &raw mut key, ptr::null_mut(), &raw mut calls)
    };
    // SAFETY: `function` made the pointer, and the function lives while it is called. Each environment has
    // one thread, which is here, so nobody else reads or writes its numbers.
    let (limiter, numbers) = unsafe {
        let calls = &*calls.cast::<Calls>();
        (&*calls.limiter, slice::from_raw_parts_mut(calls.address, NUMBERS))
    };
    let decided = catch_unwind(AssertUnwindSafe(|| with_key(env, key, |key| decide(limiter, key, numbers))));
    numbers[0] = decided.unwrap_or(Status::Panicked).number();
    ptr::null_mut()
}

/// Calls `decide` with the bytes of a key.
fn with_key(env: sys::napi_env, key: sys::napi_value, decide: impl FnOnce(&[u8]) -> bool) -> Status {
    let mut short = [0_u8; SHORT_KEY];
    let mut length = 0;
    // SAFETY: the buffer has this many bytes, of which one is for a NUL.
    let status = unsafe {
        sys::napi_get_value_string_utf8(env, key, short.as_mut_ptr().cast(), SHORT_KEY, &raw mut length)
    };
    if status != sys::Status::napi_ok {
        return Status::NotText;
    }
    let bytes = &short[..length];
    // A character that did not fit may have had up to four bytes. U+FFFD may stand for a lone surrogate.
    if length >= SHORT_KEY - 4 || bytes.contains(&0xef) {
        return with_whole_key(env, key, decide);
    }
    Status::Done(decide(bytes))
}

#[cold]
fn with_whole_key(env: sys::napi_env, key: sys::napi_value, decide: impl FnOnce(&[u8]) -> bool) -> Status {
    let mut length = 0;
    // SAFETY: without a buffer, only the length is written.
    unsafe { sys::napi_get_value_string_utf16(env, key, ptr::null_mut(), 0, &raw mut length) };
    let mut units = vec![0_u16; length + 1];
    // SAFETY: the buffer has this many units, of which one is for a NUL.
    unsafe {
        sys::napi_get_value_string_utf16(env, key, units.as_mut_ptr(), units.len(), &raw mut length);
    }
    match String::from_utf16(&units[..length]) {
        Ok(key) => Status::Done(decide(key.as_bytes())),
        Err(_) => Status::LoneSurrogate,
    }
}

fn decide(limiter: &slidegate::Limiter, key: &[u8], numbers: &mut [f64]) -> bool {
    // Saturates; JavaScript has checked it.
    let cost = numbers[1] as u64;
    let decision = match numbers[0] as u8 {
        0 => limiter.check_cost(key, cost),
        1 => limiter.peek_cost(key, cost),
        2 => limiter.refund(key, cost),
        3 => limiter.penalize(key, cost),
        _ => return limiter.reset(key),
    };
    write(&decision, numbers);
    decision.is_allowed()
}

/// Writes a decision. -1 is "never".
fn write(decision: &Decision, numbers: &mut [f64]) {
    let micros = |span: Duration| span.as_micros() as f64;
    let never_or = |span: Option<Duration>| span.map_or(-1.0, micros);
    numbers[1..].copy_from_slice(&[
        decision.cost() as f64,
        decision.limit() as f64,
        decision.used() as f64,
        decision.remaining() as f64,
        never_or(decision.retry_after()),
        micros(decision.reset_after()),
        never_or(decision.frees_after()),
        decision.reset_at().as_micros() as f64,
    ]);
}
