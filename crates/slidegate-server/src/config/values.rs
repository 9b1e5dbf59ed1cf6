//! Values of the service written as text: sizes, addresses, paths and URLs.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;

use lined_config::{Form, only_if};
use serde::de::{Deserialize, Deserializer, Error};
use slidegate_config::values::{Parsed, Text, form_of};
use slidegate_redis::RedisOptions;

/// Reads a value of the library from its text.
pub(super) fn from_str<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: FromStr<Err: std::fmt::Display>,
    D: Deserializer<'de>,
{
    Cow::<str>::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

/// Reads a value from its text.
pub(super) fn parsed<'de, T: Text, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    Parsed::deserialize(deserializer).map(|parsed: Parsed<T>| parsed.0)
}

/// A number of bytes, at least one MiB: `1GiB`, `500MB`, or as a plain number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(crate) usize);

/// The units of a [`ByteSize`], with their bytes. The short binary ones are those of Kubernetes.
const BYTE_UNITS: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("ki", 1 << 10),
    ("kib", 1 << 10),
    ("mi", 1 << 20),
    ("mib", 1 << 20),
    ("gi", 1 << 30),
    ("gib", 1 << 30),
    ("ti", 1 << 40),
    ("tib", 1 << 40),
    ("kb", 1000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
];

impl Text for ByteSize {
    const FORM: Form = form_of::<Self>(
        "byte-size",
        "1MiB to 1024TiB, as a number with a unit (KiB, MiB, GiB, TiB, kB, MB, GB or TB), for example `1GiB`",
    )
    .pattern(r"^\s*\d+\s*([kKmMgGtT]?[bB]|[kKmMgGtT]i[bB]?)?\s*$");

    fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let unit = unit.trim().to_ascii_lowercase();
        let unit = BYTE_UNITS.iter().find(|(name, _)| *name == unit).map(|(_, bytes)| *bytes);
        let number: Option<u64> = number.replace('_', "").parse().ok();
        let bytes = number.zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
        let bytes = bytes.filter(|bytes| (1 << 20..=1 << 50).contains(bytes));
        bytes.and_then(|bytes| usize::try_from(bytes).ok()).map(Self).ok_or_else(String::new)
    }
}

/// Reads a number of bytes.
pub(super) fn bytes<'de, N: TryFrom<usize>, D: Deserializer<'de>>(deserializer: D) -> Result<N, D::Error> {
    let ByteSize(bytes) = parsed(deserializer)?;
    N::try_from(bytes).map_err(|_| D::Error::custom("too many bytes"))
}

/// Reads a number of bytes for an optional key.
pub(super) fn some_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    bytes(deserializer).map(Some)
}

/// Bytes in the largest unit that gives at least 1, with three digits: `1.50 GiB`.
pub(crate) fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = (bytes.max(1).ilog2() / 10) as usize;
    if unit == 0 {
        return format!("{bytes} bytes");
    }
    #[allow(clippy::cast_precision_loss)] // three digits are shown
    let size = bytes as f64 / (1_u64 << (10 * unit)) as f64;
    let digits = if size < 10.0 { 2 } else { usize::from(size < 100.0) };
    format!("{size:.digits$} {}", UNITS[unit])
}

/// The path of a file to write, which may not exist yet.
pub(super) const NEW_FILE: Form = Form::new(
    "new-file",
    "the path of a file, not of a directory, for example `path: /var/lib/slidegate/usage`",
    |path, _| {
        let names_file = !path.ends_with('/') && Path::new(path).file_name().is_some();
        only_if(names_file && !path.contains('\0'), path)
    },
);

/// An address with its port.
pub(super) const ADDRESS: Form = Form::new(
    "address",
    "an IP address and a port, for example `127.0.0.1:7979` for this machine, or `0.0.0.0:7979` for all",
    |text, _| text.parse().map(|address: SocketAddr| address.to_string()).map_err(|_| String::new()),
);

/// An address on the command line.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| ADDRESS.explain(String::new()))
}

/// The URL of the shared store.
#[derive(Debug, Clone)]
pub(super) struct RedisUrl(pub(super) RedisOptions);

impl Text for RedisUrl {
    const FORM: Form = form_of::<Self>("redis-url", "a URL, for example `redis: redis://127.0.0.1:6379`")
        .pattern(r"^(rediss?(\+cluster|\+sentinel)?://|redis\+unix://|unix://)")
        .secret();

    fn parse(url: &str) -> Result<Self, String> {
        if url.contains('$') && !url.contains("://") {
            return Err(
                "variables are not expanded; remove the key, and set the variable SLIDEGATE_REDIS".to_owned()
            );
        }
        RedisOptions::new(url).map(Self).map_err(|error| error.to_string())
    }
}
