//! Answers that may take until later.
//!
//! A future is polled once on the thread that calls, as most need no more: a gate in memory, a denial that
//! is cached, a fallback while Redis is away, a turn that is free. Only the others become a promise, which
//! takes a hop to the thread of the runtime and back.

use std::cell::RefCell;
use std::collections::HashMap;
use std::pin::Pin;

use napi::bindgen_prelude::{Env, Object};
use napi::{Either, JsDeferred};
use slidegate_bindings::{BindingError, Engine, poll_once};
use tokio::task::AbortHandle;

use crate::error::{Result, thrown};
use crate::runtime;
use crate::values::Reply;

/// An answer as JSON, or a promise of it.
pub(crate) type Answered<'e> = Either<String, Object<'e>>;

thread_local! {
    /// The calls of this thread that wait for their turn, by the numbers that JavaScript gives them.
    static WAITING: RefCell<HashMap<u32, AbortHandle>> = RefCell::default();
}

/// The answer of a future that calls `engine`.
pub(crate) fn answer<'e>(
    env: &'e Env,
    engine: &Engine,
    future: impl Future<Output = Reply> + Send + 'static,
) -> Result<Answered<'e>> {
    if !engine.is_local() {
        return promise(env, Box::pin(future), None);
    }
    match poll_once(Box::pin(future)) {
        Ok(reply) => Ok(Either::A(reply.json())),
        Err(_) => unreachable!("a gate in memory waits for nothing"),
    }
}

/// The answer of a future that waits for its turn, until it has it or [`leave`] is called with this number.
pub(crate) fn wait(
    env: &Env,
    number: u32,
    future: impl Future<Output = Reply> + Send + 'static,
) -> Result<Answered<'_>> {
    promise(env, Box::pin(future), Some(number))
}

/// Takes a call out of its queue.
pub(crate) fn leave(number: u32) {
    let waiting = WAITING.with_borrow_mut(|waiting| waiting.remove(&number));
    waiting.iter().for_each(AbortHandle::abort);
}

/// Takes all calls of this thread, which ends, out of their queues: nobody would use their turns.
pub(crate) fn leave_all() {
    WAITING.take().values().for_each(AbortHandle::abort);
}

fn promise(
    env: &Env,
    future: Pin<Box<impl Future<Output = Reply> + Send + 'static>>,
    waiting: Option<u32>,
) -> Result<Answered<'_>> {
    let runtime = runtime::handle(env)?;
    let _context = runtime.enter();
    let future = match poll_once(future) {
        Ok(reply) => return Ok(Either::A(reply.json())),
        Err(future) => future,
    };
    let (deferred, promise) = env.create_deferred().map_err(|error| thrown(runtime::failure(&error)))?;
    let mut promised = Promised { deferred: Some(deferred), waiting };
    let task = runtime.spawn(async move { promised.settle(&future.await) });
    if let Some(number) = waiting {
        WAITING.with_borrow_mut(|waiting| waiting.insert(number, task.abort_handle()));
    }
    Ok(Either::B(promise))
}

type Resolver = Box<dyn FnOnce(Env) -> napi::Result<String> + Send>;

/// A promise, which is settled even if its task panics, leaves its queue, or the runtime ends.
struct Promised {
    deferred: Option<JsDeferred<String, Resolver>>,
    waiting: Option<u32>,
}

impl Promised {
    fn settle(&mut self, reply: &Reply) {
        if let Some(deferred) = self.deferred.take() {
            let (json, waiting) = (reply.json(), self.waiting);
            // On the thread of the promise.
            deferred.resolve(Box::new(move |_| {
                waiting.map(|number| WAITING.with_borrow_mut(|waiting| waiting.remove(&number)));
                Ok(json)
            }));
        }
    }
}

impl Drop for Promised {
    fn drop(&mut self) {
        self.settle(&BindingError::new("internal", "the call ended without an answer").into());
    }
}
