//! The request that an entry of a log stands for: its attributes and its cost.

use std::net::IpAddr;

use slidegate::Request;

use crate::entry::Entry;

/// The attributes of an entry, as far as it has them: ip, user, host, method, path, `user_agent`,
/// referer, status, and those that only its log has.
pub(crate) fn request<'e>(entry: &'e Entry<'_>, status: &'e str) -> Request<'e> {
    let mut request = Request::new().cost(entry.cost);
    request = match address(entry.client) {
        _ if entry.client.is_empty() => request,
        Some(ip) => request.with("ip", ip),
        // A client that the server logged by name is counted by it.
        None => request.with("ip", entry.client),
    };
    if let Some(line) = &entry.request {
        for (name, value) in [("path", line.path()), ("method", line.method)] {
            if !value.is_empty() {
                request = request.with(name, value);
            }
        }
    }
    let texts = [("user", &entry.user), ("user_agent", &entry.user_agent), ("host", &entry.host)];
    for (name, text) in texts.into_iter().chain([("referer", &entry.referer)]) {
        if let Some(text) = text {
            request = request.with(name, &**text);
        }
    }
    if entry.status > 0 {
        request = request.with("status", status);
    }
    request.extend(entry.extra.iter());
    request
}

/// The address of a client: with or without a port, and of a list the last, which is the one that
/// the nearest proxy saw.
fn address(client: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(client).ok()?;
    if let Ok(ip) = text.parse() {
        return Some(ip);
    }
    let last = text.rsplit(',').next()?.trim();
    let bare = last.strip_prefix('[').and_then(|last| last.strip_suffix(']')).unwrap_or(last);
    bare.parse().ok().or_else(|| last.parse().ok().map(|address: std::net::SocketAddr| address.ip()))
}
