//! Hash slots: maps keys to the 16,384 slots of a cluster.

/// The number of slots of a cluster.
pub const SLOTS: u16 = 16_384;

/// The slot of a key: CRC-16 of its hash tag, or of the whole key if it has none.
///
/// The hash tag is the text between the first `{` and the next `}`, unless empty (Redis Cluster
/// specification).
#[must_use]
pub fn of(key: &[u8]) -> u16 {
    crc16(tag(key)) % SLOTS
}

/// The part of a key that determines its slot: its hash tag, or the whole key.
#[must_use]
pub fn tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
    let rest = &key[open + 1..];
    match rest.iter().position(|byte| *byte == b'}') {
        Some(0) | None => key,
        Some(close) => &rest[..close],
    }
}

/// CRC-16/XMODEM: polynomial 0x1021, initial value 0, no reflection.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) ^ u16::from(*byte))])
}

const TABLE: [u16; 256] = {
    let mut table = [0_u16; 256];
    let mut index = 0_u16;
    while index < 256 {
        let mut crc = index << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[index as usize] = crc;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    /// With slots other than the server's, every call would be redirected.
    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(of(b"123456789"), 12_739);
        assert_eq!(of(b"foo"), 12_182);
        assert_eq!(of(b""), 0);
    }

    /// Keys of one decision share a script call only if they share a slot.
    #[test]
    fn keys_with_one_tag_share_a_slot() {
        assert_eq!(of(b"{user1000}.following"), of(b"{user1000}.followers"));
        assert_eq!(of(b"{user1000}.following"), of(b"user1000"));
        assert_eq!(of(b"foo{bar}{zap}"), of(b"bar"));
        assert_eq!(of(b"foo{{bar}}zap"), of(b"{bar"));
    }

    /// An empty or unclosed tag is ignored: servers hash the whole key.
    #[test]
    fn an_empty_or_unclosed_tag_hashes_the_whole_key() {
        for key in [&b"foo{}{bar}"[..], b"{}", b"{user", b"}{"] {
            assert_eq!(of(key), crc16(key) % SLOTS);
        }
    }
}
