//! Frames: parses one command from the read buffer, in place.
//!
//! Arguments are slices of the read buffer, so parsing does not allocate. An incomplete command is
//! parsed again from its start when more bytes arrive, which is cheap: contents are skipped.

use smallvec::SmallVec;

/// Maximum bytes of one command: a hundred times real attributes, but less than attributes at their
/// maximum length.
pub(super) const MAX_FRAME: usize = 64 * 1024;
/// Maximum arguments of one command, including its name: 32 attributes with values, and options.
pub(super) const MAX_ARGUMENTS: usize = 80;
/// Maximum bytes of an inline command.
const MAX_LINE: usize = 4096;
/// Digits of the largest valid length or count.
const MAX_DIGITS: usize = 6;

/// A command's arguments, its name first. Never empty.
pub(super) type Arguments<'b> = SmallVec<[&'b [u8]; 8]>;

/// The start of the buffer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame<'b> {
    /// An incomplete command.
    Partial,
    /// An empty line or array of this many bytes, which gets no reply.
    Empty(usize),
    /// A command, and its length in bytes.
    Command(Arguments<'b>, usize),
    /// An inline command without its line end, and its length in bytes with it.
    Inline(&'b [u8], usize),
}

/// A protocol error: what is invalid and what is expected. The connection must close, because the
/// start of the next command is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProtocolError(pub(super) &'static str);

impl<'b> Frame<'b> {
    /// Parses one command.
    pub(super) fn parse(input: &'b [u8]) -> Result<Self, ProtocolError> {
        match input.first() {
            None => Ok(Self::Partial),
            Some(b'*') => Self::array(input),
            Some(_) => Self::inline(input),
        }
    }

    fn array(input: &'b [u8]) -> Result<Self, ProtocolError> {
        const COUNT: ProtocolError = ProtocolError("invalid multibulk length: must be 0 to 80");
        const LENGTH: ProtocolError = ProtocolError("invalid bulk length: must be 0 to 65536");
        let Some((count, mut at)) = number(&input[1..], COUNT)? else { return Ok(Self::Partial) };
        at += 1;
        if count == 0 {
            return Ok(Self::Empty(at));
        }
        if count > MAX_ARGUMENTS {
            return Err(COUNT);
        }
        let mut arguments = Arguments::new();
        for _ in 0..count {
            match input.get(at) {
                None => return Ok(Self::Partial),
                Some(b'$') => {}
                Some(_) => {
                    return Err(ProtocolError("expected a bulk string, for example `$4` and `PING`"));
                }
            }
            let Some((length, header)) = number(&input[at + 1..], LENGTH)? else { return Ok(Self::Partial) };
            if length > MAX_FRAME {
                return Err(LENGTH);
            }
            let start = at + 1 + header;
            let end = start + length;
            at = end + 2;
            if at > MAX_FRAME {
                return Err(ProtocolError("command too long: must be at most 65536 bytes"));
            }
            match input.get(end..at) {
                None => return Ok(Self::Partial),
                Some(b"\r\n") => arguments.push(&input[start..end]),
                Some(_) => {
                    return Err(ProtocolError(
                        "invalid bulk string: must end with CRLF after its announced length",
                    ));
                }
            }
        }
        Ok(Self::Command(arguments, at))
    }

    fn inline(input: &'b [u8]) -> Result<Self, ProtocolError> {
        let window = &input[..input.len().min(MAX_LINE)];
        match window.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                let line = window[..end].strip_suffix(b"\r").unwrap_or(&window[..end]);
                if line.iter().all(|byte| is_space(*byte)) {
                    return Ok(Self::Empty(end + 1));
                }
                Ok(Self::Inline(line, end + 1))
            }
            None if window.len() == MAX_LINE => Err(ProtocolError(
                "inline command too long: must be at most 4096 bytes; send an array of bulk strings",
            )),
            None => Ok(Self::Partial),
        }
    }
}

/// A number, and the bytes up to the end of its line. `None` if the line is incomplete.
fn number(input: &[u8], invalid: ProtocolError) -> Result<Option<(usize, usize)>, ProtocolError> {
    let mut number = 0;
    for (at, byte) in input.iter().enumerate() {
        match byte {
            b'0'..=b'9' if at < MAX_DIGITS => number = number * 10 + usize::from(byte - b'0'),
            b'\r' if at > 0 => {
                return match input.get(at + 1) {
                    None => Ok(None),
                    Some(b'\n') => Ok(Some((number, at + 2))),
                    Some(_) => Err(invalid),
                };
            }
            _ => return Err(invalid),
        }
    }
    Ok(None)
}

/// Splits an inline command like Redis: `"a b"` with backslash escapes, and `'a b'`, in which `\'`
/// is a quote. A quote may begin within an argument and ends it.
pub(super) fn split_inline(line: &[u8]) -> Result<Vec<Vec<u8>>, ProtocolError> {
    const QUOTES: ProtocolError = ProtocolError(
        "unbalanced quotes in inline command: a quote must be closed, and a space or the end must follow",
    );
    let mut words = Vec::new();
    let mut rest = line.iter().copied().peekable();
    loop {
        while rest.next_if(|byte| is_space(*byte)).is_some() {}
        if rest.peek().is_none() {
            return Ok(words);
        }
        if words.len() == MAX_ARGUMENTS {
            return Err(ProtocolError("too many arguments in inline command: must be at most 80"));
        }
        let mut word = Vec::new();
        while let Some(byte) = rest.next_if(|byte| !matches!(byte, b' ' | b'\n' | b'\r' | b'\t')) {
            let (b'"' | b'\'') = byte else {
                word.push(byte);
                continue;
            };
            quoted(byte, &mut rest, &mut word).ok_or(QUOTES)?;
            if rest.peek().is_some_and(|byte| !is_space(*byte)) {
                return Err(QUOTES);
            }
            break;
        }
        words.push(word);
    }
}

/// C's `isspace`.
fn is_space(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

/// Reads up to the closing quote. `None` if there is none.
fn quoted(quote: u8, rest: &mut (impl Iterator<Item = u8> + Clone), word: &mut Vec<u8>) -> Option<()> {
    loop {
        let mut byte = rest.next()?;
        if byte == quote {
            return Some(());
        }
        let mut after = rest.clone();
        let next = after.next();
        if byte == b'\\' && (quote == b'"' && next.is_some() || next == Some(quote)) {
            let mut digit = || after.next().and_then(|digit| char::from(digit).to_digit(16));
            let code = if next == Some(b'x') { digit().zip(digit()) } else { None };
            let code = code.and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
            byte = match rest.next()? {
                _ if code.is_some() => {
                    *rest = after;
                    code?
                }
                b'n' if quote == b'"' => b'\n',
                b'r' if quote == b'"' => b'\r',
                b't' if quote == b'"' => b'\t',
                b'b' if quote == b'"' => 0x08,
                b'a' if quote == b'"' => 0x07,
                other => other,
            };
        }
        word.push(byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(input: &[u8]) -> Frame<'_> {
        Frame::parse(input)
            .unwrap_or_else(|error| panic!("{error:?} in {:?}", input.escape_ascii().to_string()))
    }

    /// A key may contain any bytes, and a client may send it byte by byte.
    #[test]
    fn a_command_is_parsed_whole_or_not_at_all() {
        let bytes = b"*3\r\n$8\r\nRL.CHECK\r\n$0\r\n\r\n$4\r\n\0\r\n\xff\r\nPING\r\n";
        let end = bytes.len() - 6;
        for cut in 0..end {
            assert_eq!(frame(&bytes[..cut]), Frame::Partial, "{cut} bytes");
        }
        let arguments: &[&[u8]] = &[b"RL.CHECK", b"", b"\0\r\n\xff"];
        assert_eq!(frame(bytes), Frame::Command(arguments.into(), end));
        assert_eq!(frame(&bytes[end..]), Frame::Inline(b"PING", 6));
        assert_eq!(frame(b"*0\r\n"), Frame::Empty(4));
        assert_eq!(frame(b"\r\n"), Frame::Empty(2));
        assert_eq!(frame(b"PING\nPING\n"), Frame::Inline(b"PING", 5));
    }

    /// A client must not reserve memory by announcing a length.
    #[test]
    fn lengths_out_of_range_are_rejected_before_their_bytes_arrive() {
        for (input, error) in [
            (&b"*81\r\n"[..], "invalid multibulk length: must be 0 to 80"),
            (b"*-1\r\n", "invalid multibulk length: must be 0 to 80"),
            (b"*1000000", "invalid multibulk length: must be 0 to 80"),
            (b"*1\n", "invalid multibulk length: must be 0 to 80"),
            (b"*1\r$", "invalid multibulk length: must be 0 to 80"),
            (b"*1\r\n*1\r\n", "expected a bulk string, for example `$4` and `PING`"),
            (b"*1\r\n:1\r\n", "expected a bulk string, for example `$4` and `PING`"),
            (b"*1\r\n$65537\r\n", "invalid bulk length: must be 0 to 65536"),
            (b"*1\r\n$-1\r\n", "invalid bulk length: must be 0 to 65536"),
            (b"*1\r\n$\r\n", "invalid bulk length: must be 0 to 65536"),
            (b"*1\r\n$65536\r\n", "command too long: must be at most 65536 bytes"),
            (b"*1\r\n$1\r\nab\r\n", "invalid bulk string: must end with CRLF after its announced length"),
        ] {
            assert_eq!(Frame::parse(input), Err(ProtocolError(error)), "{}", input.escape_ascii());
        }
        let long = vec![b'a'; MAX_LINE];
        assert_eq!(frame(&long[1..]), Frame::Partial);
        let error = "inline command too long: must be at most 4096 bytes; send an array of bulk strings";
        assert_eq!(Frame::parse(&long), Err(ProtocolError(error)));
    }

    /// Error texts contain the bounds as literals.
    #[test]
    fn error_texts_contain_the_actual_bounds() {
        assert_eq!((MAX_ARGUMENTS, MAX_FRAME, MAX_LINE), (80, 65536, 4096));
        assert!(MAX_FRAME.to_string().len() <= MAX_DIGITS);
        const { assert!(MAX_ARGUMENTS > 2 * crate::limits::MAX_ATTRIBUTES + 4) };
    }

    /// Operators use `telnet` when no client is installed, and paste commands that Redis accepts.
    #[test]
    fn an_inline_command_is_split_into_arguments_as_redis_does() {
        let split = |line: &[u8]| split_inline(line).map(|words| words.join(&b"|"[..]));
        for (line, expected) in [
            (&b"  RL.CHECK  per-user\talice "[..], &b"RL.CHECK|per-user|alice"[..]),
            (br#"ECHO "a b\n\x41\"\q" 'c "d'"#, b"ECHO|a b\nA\"q|c \"d"),
            (br#"ECHO "" '' "\x4""#, b"ECHO|||x4"),
            (br"ECHO 'x\'y'", b"ECHO|x'y"),
            (br"ECHO 'x\ny\\ ' z", b"ECHO|x\\ny\\\\ |z"),
            (br#"ECHO "\r\t\b\a\\\x7f\xZZ\'""#, b"ECHO|\r\t\x08\x07\\\x7fxZZ'"),
            (br#"ECHO a"b c" d'e f'"#, b"ECHO|ab c|de f"),
            (b"ECHO\x0b a\x0bb", b"ECHO\x0b|a\x0bb"),
            (b"ECHO 'a'\x0bb", b"ECHO|a|b"),
            (b"ECHO 'a\"b' \"a'b\"", b"ECHO|a\"b|a'b"),
            (b"   ", b""),
        ] {
            assert_eq!(split(line).as_deref(), Ok(expected), "{}", line.escape_ascii());
        }
        for line in [
            &b"ECHO \"a"[..],
            b"ECHO 'a",
            b"ECHO \"a\"b",
            b"ECHO 'a'b",
            b"ECHO \"a\\",
            b"ECHO 'a\\'",
            b"ECHO \"a\\\"",
            b"ECHO ''a",
            b"ECHO x'y",
            b"ECHO 'a''b'",
        ] {
            let error = split(line).unwrap_err();
            assert!(error.0.starts_with("unbalanced quotes in inline command"), "{}", line.escape_ascii());
        }
        let many = ProtocolError("too many arguments in inline command: must be at most 80");
        assert_eq!(split(&b"a ".repeat(81)), Err(many));
    }
}
