//! Request data from axum: the matched path and the peer.
//!
//! axum reads path parameters in an asynchronous function that never waits, so one poll is enough.

use std::net::SocketAddr;

use axum::extract::{ConnectInfo, FromRequestParts, MatchedPath, RawPathParams};
use http::{Extensions, Request};
use slidegate::internal::poll_once;

/// The parameters of the path pattern that axum matched.
pub(super) struct PathParams(RawPathParams);

impl PathParams {
    /// `None` outside the routes of a router, and if a parameter is not UTF-8.
    pub(super) fn of(extensions: &mut Extensions) -> Option<Self> {
        // The extractor needs a request head, but reads only its extensions.
        let (mut head, ()) = Request::new(()).into_parts();
        std::mem::swap(&mut head.extensions, extensions);
        let read = poll_once(RawPathParams::from_request_parts(&mut head, &()));
        std::mem::swap(&mut head.extensions, extensions);
        read?.ok().map(Self)
    }

    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }
}

pub(super) fn matched_path(extensions: &Extensions) -> Option<&str> {
    extensions.get::<MatchedPath>().map(MatchedPath::as_str)
}

pub(super) fn connected_peer(extensions: &Extensions) -> Option<&SocketAddr> {
    extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| peer)
}
