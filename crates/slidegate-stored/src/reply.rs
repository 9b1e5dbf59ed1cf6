//! Replies of calls for any number of keys: numbers, bytes, and lists of them.
//!
//! The first reply to an idempotency key is stored as `MessagePack`, as scripts store it.

/// A reply, or the head of a list that the next ones are in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// A number.
    Number(i64),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A list of this length; its items follow.
    List(usize),
}

/// A reply: its items in the order in which they are sent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reply(pub(super) Vec<Item>);

/// Maximum nesting of lists in a stored reply; written ones have four levels.
const MAX_DEPTH: usize = 8;

impl Reply {
    /// The items in the order in which they are sent.
    #[must_use]
    pub fn items(&self) -> &[Item] {
        &self.0
    }

    pub(super) fn list(&mut self, length: usize) {
        self.0.push(Item::List(length));
    }

    pub(super) fn number(&mut self, number: u64) {
        self.0.push(Item::Number(i64::try_from(number).unwrap_or(i64::MAX)));
    }

    pub(super) fn bytes(&mut self, bytes: Vec<u8>) {
        self.0.push(Item::Bytes(bytes));
    }

    /// The reply to a call that came too late to charge anything.
    pub(super) fn late(now: u64) -> Self {
        let mut reply = Self(vec![Item::List(2), Item::Number(-1)]);
        reply.number(now);
        reply
    }

    /// The reply as it is stored.
    pub(super) fn packed(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.0.len() * 9);
        for item in &self.0 {
            match item {
                Item::Number(number) => pack_number(*number, &mut out),
                Item::Bytes(bytes) => {
                    pack_length(bytes.len(), [(0xa0, 31), (0xd9, 0xff)], [0xda, 0xdb], &mut out);
                    out.extend_from_slice(bytes);
                }
                // There is no form with a length of one byte.
                Item::List(length) => {
                    pack_length(*length, [(0x90, 15), (0, 0)], [0xdc, 0xdd], &mut out);
                }
            }
        }
        out
    }

    /// Reads a stored reply. `None` if it is not one.
    pub(super) fn unpacked(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let mut reply = Self::default();
        // Items left in each open list.
        let mut open = vec![1usize];
        while let Some(left) = open.last_mut() {
            if *left == 0 {
                open.pop();
                continue;
            }
            *left -= 1;
            let item = unpack(&mut rest)?;
            if let Item::List(length) = item {
                open.push(length);
            }
            if open.len() > MAX_DEPTH {
                return None;
            }
            reply.0.push(item);
        }
        let is_list = matches!(reply.0.first(), Some(Item::List(_)));
        (is_list && rest.is_empty()).then_some(reply)
    }
}

fn pack_number(number: i64, out: &mut Vec<u8>) {
    let bytes = number.to_be_bytes();
    let (tag, width) = match number {
        0..=0x7f => (None, 1),
        0x80..=0xff => (Some(0xcc), 1),
        0x100..=0xffff => (Some(0xcd), 2),
        0x1_0000..=0xffff_ffff => (Some(0xce), 4),
        0x1_0000_0000.. => (Some(0xcf), 8),
        -32..0 => (None, 1),
        -0x80..-32 => (Some(0xd0), 1),
        -0x8000..-0x80 => (Some(0xd1), 2),
        -0x8000_0000..-0x8000 => (Some(0xd2), 4),
        _ => (Some(0xd3), 8),
    };
    out.extend(tag);
    out.extend_from_slice(&bytes[8 - width..]);
}

/// The head of bytes or of a list: in the tag itself or one byte if the length fits, else in two or
/// four bytes.
fn pack_length(length: usize, short: [(u8, usize); 2], wide: [u8; 2], out: &mut Vec<u8>) {
    let bytes = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    let [(tag, most), (tag_of_byte, most_of_byte)] = short;
    if length <= most {
        out.push(tag | bytes[3]);
    } else if length <= most_of_byte {
        out.extend([tag_of_byte, bytes[3]]);
    } else if length <= 0xffff {
        out.push(wide[0]);
        out.extend_from_slice(&bytes[2..]);
    } else {
        out.push(wide[1]);
        out.extend_from_slice(&bytes);
    }
}

fn take<'b>(rest: &mut &'b [u8], length: usize) -> Option<&'b [u8]> {
    let (bytes, left) = rest.split_at_checked(length)?;
    *rest = left;
    Some(bytes)
}

fn big_endian(rest: &mut &[u8], width: usize) -> Option<u64> {
    take(rest, width).map(|bytes| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn unpack(rest: &mut &[u8]) -> Option<Item> {
    let tag = take(rest, 1)?[0];
    let number = |number: u64| i64::try_from(number).ok().map(Item::Number);
    // The number in its last bytes, with the sign of the first of them.
    let signed = |wide: u64, width: usize| {
        let shift = 64 - 8 * width;
        Some(Item::Number((wide << shift).cast_signed() >> shift))
    };
    let length = |length: u64| usize::try_from(length).ok();
    match tag {
        0..=0x7f => number(tag.into()),
        0xe0..=0xff => signed(tag.into(), 1),
        0xcc..=0xcf => number(big_endian(rest, 1 << (tag - 0xcc))?),
        0xd0..=0xd3 => {
            let width = 1 << (tag - 0xd0);
            signed(big_endian(rest, width)?, width)
        }
        0x90..=0x9f => Some(Item::List((tag & 15).into())),
        0xdc => Some(Item::List(length(big_endian(rest, 2)?)?)),
        0xdd => Some(Item::List(length(big_endian(rest, 4)?)?)),
        0xa0..=0xbf => Some(Item::Bytes(take(rest, (tag & 31).into())?.to_vec())),
        0xd9..=0xdb => {
            let bytes = length(big_endian(rest, 1 << (tag - 0xd9))?)?;
            Some(Item::Bytes(take(rest, bytes)?.to_vec()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(items: &[Item]) -> Reply {
        Reply(items.to_vec())
    }

    /// A script and the module must read each other's first replies.
    #[test]
    fn numbers_and_lengths_have_the_shortest_form() {
        for (number, packed) in [
            (0, &[0][..]),
            (127, &[127]),
            (128, &[0xcc, 128]),
            (0xffff, &[0xcd, 255, 255]),
            (0x1_0000, &[0xce, 0, 1, 0, 0]),
            (1 << 32, &[0xcf, 0, 0, 0, 1, 0, 0, 0, 0]),
            (-1, &[0xff]),
            (-32, &[0xe0]),
            (-33, &[0xd0, 223]),
            (-129, &[0xd1, 255, 127]),
            (i64::MIN, &[0xd3, 128, 0, 0, 0, 0, 0, 0, 0]),
        ] {
            let reply = reply(&[Item::List(1), Item::Number(number)]);
            assert_eq!(reply.packed()[1..], *packed, "{number}");
            assert_eq!(Reply::unpacked(&reply.packed()), Some(reply));
        }
        for (length, head) in [
            (0usize, &[0xa0][..]),
            (31, &[0xbf]),
            (32, &[0xd9, 32]),
            (256, &[0xda, 1, 0]),
            (65_536, &[0xdb, 0, 1, 0, 0]),
        ] {
            let reply = reply(&[Item::List(1), Item::Bytes(vec![7; length])]);
            assert_eq!(reply.packed()[1..=head.len()], *head, "{length}");
            assert_eq!(Reply::unpacked(&reply.packed()), Some(reply));
        }
        for (length, head) in [(15usize, &[0x9f][..]), (16, &[0xdc, 0, 16]), (65_536, &[0xdd, 0, 1, 0, 0])] {
            let items: Vec<_> =
                [Item::List(length)].into_iter().chain(vec![Item::Number(1); length]).collect();
            let reply = reply(&items);
            assert_eq!(reply.packed()[..head.len()], *head, "{length}");
            assert_eq!(Reply::unpacked(&reply.packed()), Some(reply));
        }
    }

    /// Anyone who may write to the server may write there.
    #[test]
    fn what_is_no_reply_is_refused() {
        for bytes in
            [&[][..], &[1], &[0x92, 1], &[0x91, 1, 1], &[0xc0], &[0x91, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0]]
        {
            assert_eq!(Reply::unpacked(bytes), None, "{bytes:?}");
        }
        // Lists within lists, and one that claims to be long.
        assert_eq!(Reply::unpacked(&[0x91; 100]), None);
        assert_eq!(Reply::unpacked(&[0xdd, 255, 255, 255, 255]), None);
    }
}
