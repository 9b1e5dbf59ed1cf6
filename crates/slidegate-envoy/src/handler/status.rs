//! The statuses of a response, encoded where they are without a message for each.

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;

/// What a response says about one descriptor.
#[derive(Debug, Clone, Copy)]
pub(super) struct DescriptorStatus<'d> {
    pub(super) code: Code,
    /// `None` if nothing limits it.
    pub(super) limit: Option<CurrentLimit<'d>>,
    pub(super) remaining: u32,
}

/// The limit of a descriptor.
#[derive(Debug, Clone, Copy)]
pub(super) struct CurrentLimit<'d> {
    pub(super) name: &'d str,
    pub(super) requests_per_unit: u32,
    /// The protocol's number; 0 if it has none for the window.
    pub(super) unit: i32,
    /// The seconds until the client may retry, or has its whole limit again.
    pub(super) reset_s: i64,
}

/// Bytes of a status whose name has 20 bytes, and most others.
const USUAL_BYTES: usize = 48;

/// The code and the statuses of a `RateLimitResponse`.
pub(super) fn encode(code: Code, statuses: &[DescriptorStatus<'_>]) -> Vec<u8> {
    let mut out = Vec::with_capacity(8 + USUAL_BYTES * statuses.len());
    write_number(1, code_number(code), &mut out);
    statuses.iter().for_each(|status| write_message(2, &mut out, |out| write_status(status, out)));
    out
}

fn write_status(status: &DescriptorStatus<'_>, out: &mut Vec<u8>) {
    write_number(1, code_number(status.code), out);
    if let Some(limit) = &status.limit {
        write_message(2, out, |out| {
            write_number(1, limit.requests_per_unit.into(), out);
            write_number(2, i64::from(limit.unit).cast_unsigned(), out);
            if !limit.name.is_empty() {
                write_message(3, out, |out| out.extend_from_slice(limit.name.as_bytes()));
            }
        });
    }
    write_number(3, status.remaining.into(), out);
    if let Some(limit) = &status.limit {
        write_message(4, out, |out| write_number(1, limit.reset_s.cast_unsigned(), out));
    }
}

/// Writes a field that is a number, unless it is 0.
fn write_number(field: u8, number: u64, out: &mut Vec<u8>) {
    if number > 0 {
        out.push(field << 3);
        write_varint(number, out);
    }
}

/// Writes a field that is a message or a text: its length before what `write` appends.
fn write_message(field: u8, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    out.push(field << 3 | 2);
    let start = out.len();
    // Most are shorter than 128 bytes, whose length is one byte.
    out.push(0);
    write(out);
    let length = out.len() - start - 1;
    match u8::try_from(length) {
        Ok(length @ ..0x80) => out[start] = length,
        _ => {
            let mut bytes = Vec::new();
            write_varint(length as u64, &mut bytes);
            out.splice(start..=start, bytes);
        }
    }
}

#[allow(clippy::cast_possible_truncation)] // to the lower bits
fn write_varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn code_number(code: Code) -> u64 {
    i64::from(i32::from(code)).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
    use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response;
    use envoy_types::pb::google::protobuf::Duration;
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    fn codes() -> impl Strategy<Value = Code> {
        prop_oneof![Just(Code::Unknown), Just(Code::Ok), Just(Code::OverLimit)]
    }

    fn numbers() -> impl Strategy<Value = u32> {
        prop_oneof![Just(0), 0..300u32, any::<u32>()]
    }

    /// The code, whether there is a limit, what remains, and the limit: its name, number, unit and
    /// seconds.
    type Status = (Code, bool, u32, (String, u32, i32, i64));

    fn statuses() -> impl Strategy<Value = Status> {
        let name = prop_oneof!["", "[a-zß]{1,30}", "[a-z]{100,140}", "x{16370,16400}"];
        let seconds = prop_oneof![Just(0), 0..300i64, any::<i64>()];
        (codes(), any::<bool>(), numbers(), (name, numbers(), -1..9, seconds))
    }

    fn of_prost(
        (code, has_limit, remaining, (name, requests_per_unit, unit, seconds)): Status,
    ) -> rate_limit_response::DescriptorStatus {
        let limit = rate_limit_response::RateLimit { name, requests_per_unit, unit };
        rate_limit_response::DescriptorStatus {
            code: code.into(),
            current_limit: has_limit.then_some(limit),
            limit_remaining: remaining,
            duration_until_reset: has_limit.then_some(Duration { seconds, nanos: 0 }),
            quota: None,
        }
    }

    fn own(
        (code, has_limit, remaining, (name, requests_per_unit, unit, reset_s)): &Status,
    ) -> DescriptorStatus<'_> {
        let (requests_per_unit, unit, reset_s) = (*requests_per_unit, *unit, *reset_s);
        let limit = CurrentLimit { name, requests_per_unit, unit, reset_s };
        DescriptorStatus { code: *code, limit: has_limit.then_some(limit), remaining: *remaining }
    }

    proptest! {
        /// Proxies read what every other service writes.
        #[test]
        fn responses_are_encoded_as_by_prost(code in codes(), statuses in prop::collection::vec(statuses(), 0..7)) {
            let encoded = encode(code, &statuses.iter().map(own).collect::<Vec<_>>());
            let statuses = statuses.into_iter().map(of_prost).collect();
            let response = RateLimitResponse { overall_code: code.into(), statuses, ..RateLimitResponse::default() };
            prop_assert_eq!(encoded, response.encode_to_vec());
        }
    }
}
