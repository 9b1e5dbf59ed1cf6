//! Replies of Redis Sentinel about its master, and of the master about its role.

use redis::Value;

use crate::options::Address;

/// Parses a host and a port, given as two strings.
pub(crate) fn address(reply: &Value) -> Option<Address> {
    let Value::Array(parts) = reply else { return None };
    let [host, port] = &parts[..] else { return None };
    let port = text(port)?.parse().ok().filter(|port| *port > 0)?;
    Some(Address::Tcp { host: text(host)?.to_owned(), port })
}

pub(crate) fn is_master(reply: &Value) -> bool {
    matches!(reply, Value::Array(parts) if parts.first().and_then(text) == Some("master"))
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(reply: &str) -> Value {
        redis::parse_redis_value(reply.as_bytes()).unwrap()
    }

    /// Calls go to the server named in this reply.
    #[test]
    fn the_masters_address_is_read() {
        let expected = Address::Tcp { host: "10.0.0.1".to_owned(), port: 6379 };
        assert_eq!(address(&value("*2\r\n$8\r\n10.0.0.1\r\n$4\r\n6379\r\n")), Some(expected));
        for none in ["*-1\r\n", "$-1\r\n", "*2\r\n$1\r\nh\r\n$1\r\nx\r\n", "*1\r\n$1\r\nh\r\n"] {
            assert_eq!(address(&value(none)), None, "{none:?}");
        }
    }

    /// A former master that a stale Sentinel still reports must not be called.
    #[test]
    fn only_a_server_that_says_so_is_a_master() {
        assert!(is_master(&value("*3\r\n$6\r\nmaster\r\n:1\r\n*0\r\n")));
        assert!(!is_master(&value("*1\r\n$5\r\nslave\r\n")));
        assert!(!is_master(&value("+master\r\n")));
    }
}
