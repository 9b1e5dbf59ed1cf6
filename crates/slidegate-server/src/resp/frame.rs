//! Frames: one command out of the bytes that a client sent, in place.
//!
//! An argument is a slice of the read buffer, so a command costs no allocation. A command that has not come whole is read
//! again from its beginning when more has come: that is cheap, since contents are skipped and not looked at.

use smallvec::SmallVec;

/// Most bytes of one command: attributes at their longest would not fit, real ones fit a hundred times.
pub(super) const MAX_FRAME: usize = 64 * 1024;
/// Most arguments of one command, its name included: 32 attributes, each with its value, and what else a command takes.
pub(super) const MAX_ARGUMENTS: usize = 80;
/// Longest line of an inline command, which people write.
const MAX_LINE: usize = 4096;
/// Digits of the largest length or count that can be within bounds.
const MAX_DIGITS: usize = 6;

/// A command's arguments, its name first. Never empty.
pub(super) type Arguments<'b> = SmallVec<[&'b [u8]; 8]>;

/// What stands at the beginning of a buffer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame<'b> {
    /// Not yet a whole command.
    Partial,
    /// Nothing to answer, in so many bytes: an empty line or an empty array.
    Nothing(usize),
    /// A command of so many bytes.
    Command(Arguments<'b>, usize),
    /// A line as people type it, without its end, in so many bytes.
    Line(&'b [u8], usize),
}

/// Why bytes are no command, and what to send instead. There is no next command to be found behind them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

impl<'b> Frame<'b> {
    /// Reads one command.
    pub(super) fn read(input: &'b [u8]) -> Result<Self, Malformed> {
        match input.first() {
            None => Ok(Self::Partial),
            Some(b'*') => Self::array(input),
            Some(_) => Self::line(input),
        }
    }

    fn array(input: &'b [u8]) -> Result<Self, Malformed> {
        const COUNT: Malformed = Malformed("the number of arguments is no number from 0 to 80");
        const LENGTH: Malformed = Malformed("the length of an argument is no number from 0 to 65536");
        let Some((count, mut at)) = number(&input[1..], COUNT)? else { return Ok(Self::Partial) };
        at += 1;
        if count == 0 {
            return Ok(Self::Nothing(at));
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
                    return Err(Malformed("an argument is no bulk string; send for example `$4` and `PING`"));
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
                return Err(Malformed("the command is longer than 65536 bytes; send less"));
            }
            match input.get(end..at) {
                None => return Ok(Self::Partial),
                Some(b"\r\n") => arguments.push(&input[start..end]),
                Some(_) => return Err(Malformed("an argument does not end where its length says")),
            }
        }
        Ok(Self::Command(arguments, at))
    }

    fn line(input: &'b [u8]) -> Result<Self, Malformed> {
        let window = &input[..input.len().min(MAX_LINE)];
        match window.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                let line = window[..end].strip_suffix(b"\r").unwrap_or(&window[..end]);
                if line.trim_ascii().is_empty() {
                    return Ok(Self::Nothing(end + 1));
                }
                Ok(Self::Line(line, end + 1))
            }
            None if window.len() == MAX_LINE => {
                Err(Malformed("the line is longer than 4096 bytes; send an array of bulk strings"))
            }
            None => Ok(Self::Partial),
        }
    }
}

/// A number before the end of its line, and the bytes up to behind that. `None` if the end has not come.
fn number(input: &[u8], wrong: Malformed) -> Result<Option<(usize, usize)>, Malformed> {
    let mut number = 0;
    for (at, byte) in input.iter().enumerate() {
        match byte {
            b'0'..=b'9' if at < MAX_DIGITS => number = number * 10 + usize::from(byte - b'0'),
            b'\r' if at > 0 => {
                return match input.get(at + 1) {
                    None => Ok(None),
                    Some(b'\n') => Ok(Some((number, at + 2))),
                    Some(_) => Err(wrong),
                };
            }
            _ => return Err(wrong),
        }
    }
    Ok(None)
}

/// The words of a line, which may be quoted: `"a b"` with backslashes, `'a b'` without.
pub(super) fn words(line: &[u8]) -> Result<Vec<Vec<u8>>, Malformed> {
    const QUOTES: Malformed =
        Malformed("the quotes of the line do not come in pairs, each pair a whole argument");
    let mut words = Vec::new();
    let mut rest = line.trim_ascii_start();
    while let Some(first) = rest.first() {
        if words.len() == MAX_ARGUMENTS {
            return Err(Malformed("the line has more than 80 arguments; send fewer"));
        }
        let (word, after) = match first {
            b'"' => double_quoted(&rest[1..]).ok_or(QUOTES)?,
            b'\'' => {
                let end = rest[1..].iter().position(|byte| *byte == b'\'').ok_or(QUOTES)?;
                (rest[1..=end].to_vec(), &rest[end + 2..])
            }
            _ => {
                let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
                (rest[..end].to_vec(), &rest[end..])
            }
        };
        if after.first().is_some_and(|byte| !byte.is_ascii_whitespace()) {
            return Err(QUOTES);
        }
        words.push(word);
        rest = after.trim_ascii_start();
    }
    Ok(words)
}

/// The text up to the closing quote, and what follows that.
fn double_quoted(input: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut word = Vec::new();
    let mut at = 0;
    loop {
        match input.get(at)? {
            b'"' => return Some((word, &input[at + 1..])),
            b'\\' => {
                let escaped = *input.get(at + 1)?;
                let hex = input.get(at + 2..at + 4).filter(|_| escaped == b'x');
                let hex = hex.and_then(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok());
                at += if hex.is_some() { 4 } else { 2 };
                word.push(hex.unwrap_or(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    other => other,
                }));
            }
            byte => {
                word.push(*byte);
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(input: &[u8]) -> Frame<'_> {
        Frame::read(input)
            .unwrap_or_else(|error| panic!("{error:?} in {:?}", input.escape_ascii().to_string()))
    }

    /// A key is any bytes, and a client may send it byte by byte.
    #[test]
    fn a_command_is_read_whole_or_not_at_all() {
        let bytes = b"*3\r\n$8\r\nRL.CHECK\r\n$0\r\n\r\n$4\r\n\0\r\n\xff\r\nPING\r\n";
        let end = bytes.len() - 6;
        for cut in 0..end {
            assert_eq!(frame(&bytes[..cut]), Frame::Partial, "{cut} bytes");
        }
        let arguments: &[&[u8]] = &[b"RL.CHECK", b"", b"\0\r\n\xff"];
        assert_eq!(frame(bytes), Frame::Command(arguments.into(), end));
        assert_eq!(frame(&bytes[end..]), Frame::Line(b"PING", 6));
        assert_eq!(frame(b"*0\r\n"), Frame::Nothing(4));
        assert_eq!(frame(b"\r\n"), Frame::Nothing(2));
        assert_eq!(frame(b"PING\nPING\n"), Frame::Line(b"PING", 5));
    }

    /// Whatever a client claims, no memory is set aside for it, and the error is told as soon as it can be.
    #[test]
    fn what_is_out_of_bounds_is_refused_before_it_has_come() {
        for (input, error) in [
            (&b"*81\r\n"[..], "the number of arguments is no number from 0 to 80"),
            (b"*-1\r\n", "the number of arguments is no number from 0 to 80"),
            (b"*1000000", "the number of arguments is no number from 0 to 80"),
            (b"*1\n", "the number of arguments is no number from 0 to 80"),
            (b"*1\r$", "the number of arguments is no number from 0 to 80"),
            (b"*1\r\n*1\r\n", "an argument is no bulk string; send for example `$4` and `PING`"),
            (b"*1\r\n:1\r\n", "an argument is no bulk string; send for example `$4` and `PING`"),
            (b"*1\r\n$65537\r\n", "the length of an argument is no number from 0 to 65536"),
            (b"*1\r\n$-1\r\n", "the length of an argument is no number from 0 to 65536"),
            (b"*1\r\n$\r\n", "the length of an argument is no number from 0 to 65536"),
            (b"*1\r\n$65536\r\n", "the command is longer than 65536 bytes; send less"),
            (b"*1\r\n$1\r\nab\r\n", "an argument does not end where its length says"),
        ] {
            assert_eq!(Frame::read(input), Err(Malformed(error)), "{}", input.escape_ascii());
        }
        let long = vec![b'a'; MAX_LINE];
        assert_eq!(frame(&long[1..]), Frame::Partial);
        let error = "the line is longer than 4096 bytes; send an array of bulk strings";
        assert_eq!(Frame::read(&long), Err(Malformed(error)));
    }

    /// The bounds stand as text in errors.
    #[test]
    fn errors_say_the_bounds_that_hold() {
        assert_eq!((MAX_ARGUMENTS, MAX_FRAME, MAX_LINE), (80, 65536, 4096));
        assert!(MAX_FRAME.to_string().len() <= MAX_DIGITS);
        const { assert!(MAX_ARGUMENTS > 2 * crate::limits::MAX_ATTRIBUTES + 4) };
    }

    /// `telnet` is the client that is always there.
    #[test]
    fn a_line_is_split_into_words_that_may_be_quoted() {
        let split = |line: &[u8]| words(line).map(|words| words.join(&b"|"[..]));
        for (line, expected) in [
            (&b"  RL.CHECK  per-user\talice "[..], &b"RL.CHECK|per-user|alice"[..]),
            (br#"ECHO "a b\n\x41\"\q" 'c "d'"#, b"ECHO|a b\nA\"q|c \"d"),
            (br#"ECHO "" '' "\x4""#, b"ECHO|||x4"),
        ] {
            assert_eq!(split(line).as_deref(), Ok(expected), "{}", line.escape_ascii());
        }
        let quotes = Malformed("the quotes of the line do not come in pairs, each pair a whole argument");
        for line in [&b"ECHO \"a"[..], b"ECHO 'a", b"ECHO \"a\"b", b"ECHO 'a'b", b"ECHO \"a\\"] {
            assert_eq!(split(line), Err(quotes), "{}", line.escape_ascii());
        }
        let many = Malformed("the line has more than 80 arguments; send fewer");
        assert_eq!(split(&b"a ".repeat(81)), Err(many));
    }
}
