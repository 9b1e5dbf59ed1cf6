//! Redis Cluster replies about slots.

use redis::Value;

use crate::options::Address;
use crate::slot::SLOTS;

/// One entry of `CLUSTER SLOTS`: the slots `first` to `last`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) first: u16,
    pub(crate) last: u16,
    pub(crate) master: Address,
    pub(crate) replicas: Vec<Address>,
}

/// Parses the reply of `CLUSTER SLOTS`; `None` if it is malformed.
pub(crate) fn ranges(reply: &Value, from: &Address) -> Option<Vec<Range>> {
    let Value::Array(entries) = reply else { return None };
    entries.iter().map(|entry| range(entry, from)).collect()
}

fn range(entry: &Value, from: &Address) -> Option<Range> {
    let Value::Array(parts) = entry else { return None };
    let [Value::Int(first), Value::Int(last), master, replicas @ ..] = &parts[..] else { return None };
    let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
    if first > last || last >= SLOTS {
        return None;
    }
    let master = listed(master, from)?;
    let replicas = replicas.iter().filter_map(|replica| listed(replica, from)).collect();
    Some(Range { first, last, master, replicas })
}

/// Parses one node of the list: host, port, and fields that are ignored.
fn listed(node: &Value, from: &Address) -> Option<Address> {
    let Value::Array(parts) = node else { return None };
    let [host, Value::Int(port), ..] = &parts[..] else { return None };
    let host = match host {
        Value::BulkString(bytes) => Some(std::str::from_utf8(bytes).ok()?),
        Value::SimpleString(text) => Some(text.as_str()),
        Value::Nil => None,
        _ => return None,
    };
    located(host, u16::try_from(*port).ok()?, from)
}

/// An address as reported by `from`. A missing or unknown host means the host of `from`.
pub(crate) fn located(host: Option<&str>, port: u16, from: &Address) -> Option<Address> {
    if port == 0 {
        return None;
    }
    match (host.filter(|host| !host.is_empty() && *host != "?"), from) {
        (Some(host), _) => Some(Address::Tcp { host: host.to_owned(), port }),
        (None, Address::Tcp { host, .. }) => Some(Address::Tcp { host: host.clone(), port }),
        (None, Address::Unix(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.to_owned(), port }
    }

    fn read(reply: &str) -> Option<Vec<Range>> {
        ranges(&redis::parse_redis_value(reply.as_bytes()).unwrap(), &tcp("seed", 7000))
    }

    /// The slot map depends on parsing this reply correctly.
    #[test]
    fn the_list_of_slots_is_read() {
        let reply = "*1\r\n*4\r\n:0\r\n:5460\r\n*4\r\n$8\r\n10.0.0.1\r\n:7000\r\n$2\r\nid\r\n*0\r\n\
                     *4\r\n$0\r\n\r\n:7003\r\n$2\r\nid\r\n*0\r\n";
        let range =
            Range { first: 0, last: 5460, master: tcp("10.0.0.1", 7000), replicas: vec![tcp("seed", 7003)] };
        assert_eq!(read(reply), Some(vec![range]));
        // A node that does not know its own host replies nil.
        let reply = "*1\r\n*3\r\n:0\r\n:0\r\n*2\r\n$-1\r\n:7001\r\n";
        assert_eq!(read(reply).unwrap()[0].master, tcp("seed", 7001));
    }

    /// A malformed reply must neither empty the map nor panic.
    #[test]
    fn what_is_no_list_of_slots_is_not_taken_for_one() {
        for reply in [
            "+OK\r\n",
            "*1\r\n:1\r\n",
            "*1\r\n*2\r\n:0\r\n:1\r\n",
            "*1\r\n*3\r\n:5\r\n:1\r\n*2\r\n$1\r\nh\r\n:1\r\n",
            "*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n$1\r\nh\r\n:1\r\n",
            "*1\r\n*3\r\n:-1\r\n:1\r\n*2\r\n$1\r\nh\r\n:1\r\n",
            "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$1\r\nh\r\n:0\r\n",
        ] {
            assert_eq!(read(reply), None, "{reply:?}");
        }
    }
}
