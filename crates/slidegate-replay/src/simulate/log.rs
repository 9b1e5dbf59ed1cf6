//! Simulated requests as lines of a log.

use std::io::{self, Write};

use super::SimulatedRequest;
use crate::entry::{Entry, Extras, RequestLine};

/// How requests are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogStyle {
    /// The combined format of web servers: whole seconds, and no costs.
    Combined,
    /// As the service records requests: microseconds and costs.
    Recording,
}

/// Writes a request as a line.
///
/// # Errors
/// The line cannot be written.
pub fn write_line(out: &mut impl Write, request: &SimulatedRequest, style: LogStyle) -> io::Result<()> {
    let SimulatedRequest { time_us, ip, user, path, cost } = request;
    let (second, us) = (time_us / 1_000_000, time_us % 1_000_000);
    let second = i64::try_from(second).ok().and_then(|second| jiff::Timestamp::from_second(second).ok());
    let second = second.unwrap_or(jiff::Timestamp::MAX);
    match style {
        LogStyle::Combined => {
            let time = second.strftime("%d/%b/%Y:%H:%M:%S +0000");
            writeln!(
                out,
                "{ip} - {user} [{time}] \"GET {path} HTTP/1.1\" 200 512 \"-\" \"slidegate-simulate\""
            )
        }
        LogStyle::Recording => {
            let time = second.strftime("%Y-%m-%dT%H:%M:%S");
            writeln!(
                out,
                "{{\"time\":\"{time}.{us:06}Z\",\"cost\":{cost},\"attributes\":{{\"ip\":\"{ip}\",\"user\":\"{user}\",\
                 \"method\":\"GET\",\"path\":\"{path}\"}}}}"
            )
        }
    }
}

impl SimulatedRequest {
    /// The entry that a log would have for the request.
    #[must_use]
    pub fn entry(&self) -> Entry<'_> {
        let Self { time_us, ip, user, path, cost } = self;
        Entry {
            client: ip.as_bytes(),
            ident: None,
            user: Some(user.as_bytes().into()),
            time_us: *time_us,
            duration_us: None,
            request: Some(RequestLine {
                method: b"GET",
                target: path.as_bytes().into(),
                protocol: Some(b"HTTP/1.1"),
            }),
            host: None,
            status: 200,
            bytes: 512,
            cost: *cost,
            referer: None,
            user_agent: Some(b"slidegate-simulate".into()),
            extra: Extras::default(),
        }
    }
}
