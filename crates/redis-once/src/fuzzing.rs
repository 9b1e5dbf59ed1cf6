//! Fuzz entry points: framing of replies, and replies about the topology.

use redis::Value;

use crate::error_reply::{self, ErrorReply};
use crate::failure::FailureKind;
use crate::options::Address;
use crate::reply_bound::{AcceptedReplies, ReplyScanner};
use crate::{cluster, sentinel};

/// Follows the framing of replies.
#[derive(Debug, Default)]
pub struct ReplyFraming {
    accepted: AcceptedReplies,
    scanner: ReplyScanner,
}

impl ReplyFraming {
    /// Reads the next bytes. The error is the reason for rejecting them.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.accepted.check(&mut self.scanner, bytes).map_err(str::to_owned)
    }

    /// Whether the last reply is complete.
    #[must_use]
    pub fn is_between_replies(&self) -> bool {
        self.scanner.is_between_replies()
    }
}

/// Decodes a reply as each kind that the transport requests.
pub fn read_topology(reply: &Value) {
    let from = Address::Tcp { host: "h".to_owned(), port: 1 };
    let _ = cluster::ranges(reply, &from);
    let _ = sentinel::address(reply);
    let _ = sentinel::is_master(reply);
    if let Value::ServerError(error) = reply {
        let _ = ErrorReply::of(error);
        let _ = FailureKind::of(error, "APP");
        let text = error_reply::reply_text(error);
        assert!(!text.contains(|c: char| c.is_control()) && text.chars().count() <= 300, "{text:?}");
    }
}
