//! JSON request bodies: bounded in size and time, with errors that name the field.

use std::error::Error;
use std::fmt;
use std::iter::successors;
use std::pin::pin;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::StatusCode;
use futures_util::future::poll_immediate;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::{Map, Value};

use crate::listener::TooMuch;
use crate::wire::problem::Problem;

/// A client that does not send its whole body within this time gets an error.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads a whole body within [`BODY_TIMEOUT`], of at most `most` bytes.
pub(crate) async fn read<B>(body: B, most: usize) -> Result<Bytes, Problem>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
{
    let mut whole = pin!(whole(Limited::new(body, most)));
    // Most bodies arrive with their heads and need no timer.
    let read = match poll_immediate(whole.as_mut()).await {
        Some(read) => Ok(read),
        // Boxed, because few requests need it and futures are moved.
        None => Box::pin(tokio::time::timeout(BODY_TIMEOUT, whole)).await,
    };
    match read {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body is larger than {most} bytes; send less, or several requests"),
        )),
        Ok(Err(error)) if is_too_much(&*error) => {
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, TooMuch.to_string())
                .after(Duration::from_secs(1)))
        }
        Ok(Err(error)) => {
            Err(Problem::new(StatusCode::BAD_REQUEST, format!("the body could not be read: {error}")))
        }
        Err(_) => Err(Problem::new(
            StatusCode::REQUEST_TIMEOUT,
            format!("the body did not arrive within {} seconds", BODY_TIMEOUT.as_secs()),
        )),
    }
}

/// Whether a body was too large for memory. Routers wrap its errors.
fn is_too_much(error: &(dyn Error + 'static)) -> bool {
    successors(Some(error), |error| Error::source(*error)).any(<dyn Error>::is::<TooMuch>)
}

/// The whole body. A single frame, the usual case, is not copied.
async fn whole<B: Body<Data = Bytes>>(body: B) -> Result<Bytes, B::Error> {
    let mut body = pin!(body);
    let first = match body.frame().await {
        Some(frame) => frame?.into_data().unwrap_or_default(),
        None => Bytes::new(),
    };
    if body.is_end_stream() {
        return Ok(first);
    }
    // Copied, because a frame of one byte may keep its whole read buffer alive.
    let mut bytes = first.to_vec();
    drop(first);
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes.into())
}

/// Parses JSON. An error names the field and the position.
pub(crate) fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Problem> {
    // Otherwise an array would be accepted as an object without names.
    if !bytes.trim_ascii_start().starts_with(b"{") {
        let example = r#"{"attributes": {"user": "alice"}}"#;
        return Err(Problem::field(
            "body",
            format!("the body is not a JSON object; send for example `{example}`"),
        ));
    }
    // Only invalid bodies run the slower parser, which finds the position.
    if let Ok(parsed) = serde_json::from_slice(bytes) {
        return Ok(parsed);
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let detail = format!("invalid body: {}", in_plain_words(error.inner()));
        // The parser writes `.` for the whole body and `?` for an unknown position.
        if path == "." || path.contains('?') {
            Problem::field("body", detail)
        } else {
            Problem::field(path, detail)
        }
    })?;
    json.end()
        .map_err(|error| Problem::field("body", format!("the body goes on after its JSON: {error}")))?;
    Ok(parsed)
}

/// What a deserializer found invalid, without the names of this program's types.
pub(crate) fn in_plain_words(error: &serde_json::Error) -> String {
    let text = error.to_string();
    ["u64", "u32", "usize"]
        .iter()
        .fold(text, |text, number| text.replace(&format!("expected {number}"), "expected a whole number"))
}

/// Parses a JSON object with any members. Rejects duplicate names at any depth, because JSON
/// parsers disagree on which one counts.
pub(crate) fn members(bytes: &[u8]) -> Result<Map<String, Value>, Problem> {
    match parse(bytes)? {
        Unique(Value::Object(members)) => Ok(members),
        Unique(_) => Err(Problem::field("body", "the body is not a JSON object")),
    }
}

/// A JSON value without duplicate names.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Unique;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON value")
            }

            fn visit_unit<E: de::Error>(self) -> Result<Unique, E> {
                Ok(Unique(Value::Null))
            }

            fn visit_bool<E: de::Error>(self, flag: bool) -> Result<Unique, E> {
                Ok(Unique(flag.into()))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Unique, E> {
                Ok(Unique(number.into()))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Unique, E> {
                Ok(Unique(number.into()))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Unique, E> {
                Ok(Unique(number.into()))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Unique, E> {
                Ok(Unique(text.into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Unique, A::Error> {
                let mut values = Vec::new();
                while let Some(Unique(value)) = list.next_element()? {
                    values.push(value);
                }
                Ok(Unique(values.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unique, A::Error> {
                let mut members = Map::new();
                while let Some((name, Unique(value))) = map.next_entry::<String, Unique>()? {
                    if members.contains_key(&name) {
                        let name = name.escape_debug();
                        return Err(de::Error::custom(format_args!("duplicate field `{name}`")));
                    }
                    members.insert(name, value);
                }
                Ok(Unique(members.into()))
            }
        }

        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    /// Clients and proxies split bodies anywhere.
    #[tokio::test]
    async fn a_body_in_several_frames_is_read_whole_and_bounded_as_a_whole() {
        let body = |frames: &[&'static str]| {
            let frames: Vec<_> =
                frames.iter().map(|text| Frame::data(Bytes::from_static(text.as_bytes()))).collect();
            StreamBody::new(stream::iter(frames.into_iter().map(Ok::<_, Infallible>)))
        };
        for frames in [&[][..], &["{}"], &["{", "}"], &["{", "", "\"a\":", "1}"]] {
            assert_eq!(read(body(frames), 7).await.unwrap(), frames.concat());
        }
        let too_long = read(body(&["{\"a\"", ":1}", "\n"]), 7).await.unwrap_err();
        assert_eq!(too_long.status(), StatusCode::PAYLOAD_TOO_LARGE);
    }
}
