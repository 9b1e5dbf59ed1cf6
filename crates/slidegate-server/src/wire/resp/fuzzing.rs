//! Fuzz entry points: commands that arrive in chunks.

use super::frame::{Frame, split_inline};

/// Takes commands from these chunks as a connection does from its buffer. Returns the arguments of
/// each, and the protocol error that ended the input, if any.
#[must_use]
pub fn commands<'c>(chunks: impl IntoIterator<Item = &'c [u8]>) -> (Vec<Vec<Vec<u8>>>, Option<&'static str>) {
    let (mut buffer, mut commands) = (Vec::new(), Vec::new());
    for chunk in chunks {
        buffer.extend_from_slice(chunk);
        let mut at = 0;
        loop {
            match Frame::parse(&buffer[at..]) {
                Ok(Frame::Partial) => break,
                Ok(Frame::Empty(length)) => at += length,
                Ok(Frame::Command(arguments, length)) => {
                    commands.push(arguments.iter().map(|argument| argument.to_vec()).collect());
                    at += length;
                }
                Ok(Frame::Inline(line, length)) => {
                    match split_inline(line) {
                        Ok(arguments) => commands.push(arguments),
                        Err(error) => return (commands, Some(error.0)),
                    }
                    at += length;
                }
                Err(error) => return (commands, Some(error.0)),
            }
        }
        buffer.drain(..at);
    }
    (commands, None)
}
