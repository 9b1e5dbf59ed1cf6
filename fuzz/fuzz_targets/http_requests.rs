//! Bodies and query strings of the HTTP API: what is read is what was sent.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use slidegate_server::fuzzing::{batch_body, body, members, pairs, query_string};

fuzz_target!(|bytes: &[u8]| {
    one_line(body(bytes).as_ref().err());
    one_line(batch_body(bytes).as_ref().err());
    one_line(members(bytes).as_ref().err());
    let json = serde_json::from_slice::<Value>(bytes);
    if let Ok((attributes, cost)) = body(bytes) {
        // Values may be any bytes: not UTF-8, half of a surrogate pair, or control characters as they are.
        let is_text = std::str::from_utf8(bytes)
            .is_ok_and(|text| !text.contains("\\u") && !text.contains(|one: char| one < ' '));
        match &json {
            Err(error) => assert!(!is_text, "a body of text is JSON: {error}"),
            Ok(json) => {
                assert!(cost == 1 || json["cost"] == cost, "{cost} in {json}");
                // Of two members with one name this parser keeps the last, so those are not compared.
                if attributes.len() == json["attributes"].as_object().map_or(0, serde_json::Map::len) {
                    // Hosts are read in one spelling.
                    for (name, value) in attributes.iter().filter(|(name, _)| name != "host") {
                        assert_eq!(json["attributes"][name].as_str().map(str::as_bytes), Some(&value[..]));
                    }
                }
            }
        }
    }
    if let Ok(members) = members(bytes) {
        assert_eq!(Value::Object(members), json.expect("members are JSON"));
    }
    if let Ok(query) = std::str::from_utf8(bytes) {
        one_line(query_string(query).as_ref().err());
        // Written with every byte escaped, it is the same query.
        let escape = |bytes: &[u8]| bytes.iter().map(|byte| format!("%{byte:02X}")).collect::<String>();
        let read = pairs(query);
        let written: Vec<_> =
            read.iter().map(|(name, value)| format!("{}={}", escape(name), escape(value))).collect();
        assert_eq!(pairs(&written.join("&")), read);
    }
});

/// Errors stand in logs and in headers.
fn one_line(error: Option<&String>) {
    assert!(error.is_none_or(|error| !error.contains(['\n', '\r'])), "{error:?}");
}
