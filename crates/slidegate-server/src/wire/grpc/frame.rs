//! HTTP/2 frames, as far as connections are read before h2: headers, types and flags.

/// Maximum frame: the smallest maximum that HTTP/2 allows (RFC 9113, 4.2).
pub(super) const MAX_FRAME_BYTES: u32 = 16 * 1024;
/// The connection preface (RFC 9113, 3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Length of a frame header (RFC 9113, 4.1).
pub(super) const HEAD_BYTES: usize = 9;
/// Payload length of a frame, from the first three bytes of its header.
pub(super) fn payload_bytes([a, b, c]: [u8; 3]) -> usize {
    usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c)
}

/// The types of frames with header blocks, and their flags.
pub(super) const HEADERS: u8 = 1;
pub(super) const CONTINUATION: u8 = 9;
pub(super) const END_HEADERS: u8 = 0x4;
pub(super) const PADDED: u8 = 0x8;
pub(super) const PRIORITY: u8 = 0x20;
