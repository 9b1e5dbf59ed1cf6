//! The request that an entry of a log stands for: its attributes and its cost.

use std::net::IpAddr;

use slidegate::Request;

use crate::entry::Entry;

/// The attributes of an entry: ip, method, path, status, user and `user_agent`, as far as it has
/// them.
pub(crate) fn request<'e>(entry: &'e Entry<'_>, status: &'e str) -> Request<'e> {
    let address = std::str::from_utf8(entry.host).ok().and_then(|host| host.parse::<IpAddr>().ok());
    let mut request = Request::new().cost(entry.cost).with("status", status);
    // A client that the server logged by name is counted by it.
    request = match address {
        Some(ip) => request.with("ip", ip),
        None => request.with("ip", entry.host),
    };
    if let Some(line) = &entry.request {
        request = request.with("method", line.method).with("path", line.path());
    }
    if let Some(user) = &entry.user {
        request = request.with("user", &**user);
    }
    if let Some(agent) = &entry.user_agent {
        request = request.with("user_agent", &**agent);
    }
    request
}
