//! HTTP/2 by hand: frames that no library would send.

/// The beginning of every connection: the preface and empty settings.
pub(crate) fn preface() -> Vec<u8> {
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &frame(SETTINGS, 0, 0, &[])[..]].concat()
}

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// The message of a health check that succeeded: `SERVING`.
pub(crate) const SERVING: [u8; 7] = [0, 0, 0, 0, 2, 8, 1];

/// One frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes()[..], payload].concat()
}

/// A text as HPACK writes it, uncoded.
fn literal(text: &str) -> Vec<u8> {
    [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
}

/// The header block of a call: no entry joins the table of names, so it fits every stream.
pub(crate) fn call_headers(path: &str) -> Vec<u8> {
    [
        // `POST` and `http` of the static table, then fields without indexing.
        &[0x83, 0x86, 0x01][..],
        &literal("localhost"),
        &[0x04],
        &literal(path),
        &[0x0f, 0x10],
        &literal("application/grpc"),
        &[0x00],
        &literal("te"),
        &literal("trailers"),
    ]
    .concat()
}

/// A whole connection with one health check.
pub(crate) fn health_check() -> Vec<u8> {
    [preface(), next_health_check(1)].concat()
}

/// A health check on a stream.
pub(crate) fn next_health_check(stream: u32) -> Vec<u8> {
    let headers = call_headers("/grpc.health.v1.Health/Check");
    [frame(HEADERS, END_HEADERS, stream, &headers), frame(DATA, END_STREAM, stream, &[0; 5])].concat()
}
