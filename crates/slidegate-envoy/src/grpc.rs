//! The gRPC services of Envoy: rate limits, with health and reflection, over HTTP/2.

mod authority;
mod codec;
mod connection;
mod health;
mod incomplete;
mod received;
mod reflection;
mod services;
mod unread;

use std::convert::Infallible;

use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use hyper::{Request, Response};
use tonic::body::Body;
use tower_service::Service;

pub use connection::{ConnectionError, serve_connection, serve_unix_connection};
pub use services::GrpcServices;

/// Largest message of a call: 64 descriptors of a kilobyte each.
pub(crate) const MAX_MESSAGE_BYTES: usize = 64 * 1024;

/// A service that is called rarely.
type BoxService = Box<dyn Fn(Request<Incoming>) -> BoxFuture<'static, Response<Body>> + Send + Sync>;

/// Boxes a service.
fn boxed<S>(service: S) -> BoxService
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
{
    Box::new(move |request| {
        let mut service = service.clone();
        Box::pin(async move { service.call(request).await.unwrap_or_else(|never| match never {}) })
    })
}
