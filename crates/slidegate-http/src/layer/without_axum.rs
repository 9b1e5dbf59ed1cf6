//! Stubs for builds without the feature `axum`; see `axum_request.rs`.

use std::net::SocketAddr;

use http::Extensions;

pub(super) enum PathParams {}

impl PathParams {
    pub(super) fn of(_: &mut Extensions) -> Option<Self> {
        None
    }

    pub(super) fn value(&self, _: &str) -> Option<&str> {
        match *self {}
    }
}

pub(super) fn matched_path(_: &Extensions) -> Option<&str> {
    None
}

pub(super) fn connected_peer(_: &Extensions) -> Option<&SocketAddr> {
    None
}
