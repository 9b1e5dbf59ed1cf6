//! Answers that may take until later.
//!
//! A future is polled once on the thread that calls, as most need no more: a gate in memory, a denial that
//! is cached, a fallback while Redis is away. Only the others become a promise, which takes a hop to the
//! thread of the runtime and back.

use napi::Either;
use napi::bindgen_prelude::{Env, Object};
use slidegate_bindings::{Engine, poll_once};

use crate::error::Result;
use crate::values::Reply;

/// An answer as JSON, or a promise of it.
pub(crate) type Answered<'e> = Either<String, Object<'e>>;

/// The answer of a future that calls `engine`.
pub(crate) fn answer<'e>(
    env: &'e Env,
    engine: &Engine,
    future: impl Future<Output = Reply> + Send + 'static,
) -> Result<Answered<'e>> {
    #[cfg(feature = "redis")]
    if !engine.is_local() {
        return shared::answer(env, Box::pin(future));
    }
    let _ = (env, engine);
    match poll_once(Box::pin(future)) {
        Ok(reply) => Ok(Either::A(reply.json())),
        Err(_) => unreachable!("a gate in memory waits for nothing"),
    }
}

#[cfg(feature = "redis")]
mod shared {
    use std::pin::Pin;

    use napi::JsDeferred;
    use slidegate_bindings::BindingError;

    use super::{Answered, Either, Env, Reply, Result, poll_once};
    use crate::error::thrown;
    use crate::runtime;

    pub(super) fn answer(
        env: &Env,
        future: Pin<Box<impl Future<Output = Reply> + Send + 'static>>,
    ) -> Result<Answered<'_>> {
        let runtime = runtime::handle(env)?;
        let _context = runtime.enter();
        let future = match poll_once(future) {
            Ok(reply) => return Ok(Either::A(reply.json())),
            Err(future) => future,
        };
        let (deferred, promise) = env.create_deferred().map_err(|error| thrown(runtime::failure(&error)))?;
        let mut promised = Promised { deferred: Some(deferred) };
        runtime.spawn(async move { promised.settle(&future.await) });
        Ok(Either::B(promise))
    }

    type Resolver = Box<dyn FnOnce(Env) -> napi::Result<String> + Send>;

    /// A promise, which is settled even if its task panics or the runtime ends.
    struct Promised {
        deferred: Option<JsDeferred<String, Resolver>>,
    }

    impl Promised {
        fn settle(&mut self, reply: &Reply) {
            if let Some(deferred) = self.deferred.take() {
                let json = reply.json();
                deferred.resolve(Box::new(|_| Ok(json)));
            }
        }
    }

    impl Drop for Promised {
        fn drop(&mut self) {
            self.settle(&BindingError::new("internal", "the call ended without an answer").into());
        }
    }
}
