//! Transactions: commands queued between `MULTI` and `EXEC`.
//!
//! `EXEC` executes them as a pipeline, not atomically: other connections are served in between, and
//! a denial undoes nothing. Use `RL.REQUEST` to charge several limits atomically. The queue copies
//! arguments, because the read buffer is reused.

use super::commands::Name;
use super::error::CommandError;
use super::frame::Arguments;

/// Maximum commands of one transaction. They run without yielding to the thread's other
/// connections, at a few microseconds each.
pub(super) const MAX_COMMANDS: usize = 1024;
/// Maximum bytes of queued arguments, plus four per argument for its end: the memory an idle client
/// can hold. Fits 1024 commands of 256 bytes, and any single command.
pub(super) const MAX_BYTES: usize = 256 * 1024;

/// The queue of one connection.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    /// All arguments, concatenated.
    bytes: Vec<u8>,
    /// The end of each argument in `bytes`.
    argument_ends: Vec<u32>,
    /// The end of each command in `argument_ends`.
    command_ends: Vec<u32>,
    /// Whether a command was rejected. `EXEC` then executes none.
    has_failed: bool,
}

/// How a command is treated between `MULTI` and `EXEC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queueing {
    Queued,
    /// Executed at once: it concerns the transaction or the connection.
    Immediate,
    /// Rejected: it would change the protocol version or the rights within a reply.
    Rejected,
}

impl Queueing {
    pub(super) fn of(name: Name) -> Self {
        match name {
            Name::Multi | Name::Exec | Name::Discard | Name::ResetConnection | Name::Quit => Self::Immediate,
            Name::Auth | Name::Hello => Self::Rejected,
            _ => Self::Queued,
        }
    }
}

impl Transaction {
    /// Adds a command.
    ///
    /// # Errors
    /// The queue is full. The caller must then call [`Self::fail`].
    pub(super) fn queue(&mut self, arguments: &[&[u8]]) -> Result<(), CommandError> {
        if self.has_failed {
            // `EXEC` will fail, so nothing is stored.
            return Ok(());
        }
        if self.command_ends.len() == MAX_COMMANDS {
            let detail = format!(
                "too many queued commands: at most {MAX_COMMANDS}; send EXEC earlier, or do not use MULTI"
            );
            return Err(CommandError::new(detail));
        }
        let ends = (self.argument_ends.len() + arguments.len()) * size_of::<u32>();
        let bytes: usize = arguments.iter().map(|argument| argument.len()).sum();
        if self.bytes.len() + bytes + ends > MAX_BYTES {
            let detail =
                format!("too many queued bytes: at most {MAX_BYTES}; send EXEC earlier, or do not use MULTI");
            return Err(CommandError::new(detail));
        }
        for argument in arguments {
            self.bytes.extend_from_slice(argument);
            self.argument_ends.push(offset(self.bytes.len()));
        }
        self.command_ends.push(offset(self.argument_ends.len()));
        Ok(())
    }

    /// Makes `EXEC` fail, and drops the queued commands.
    pub(super) fn fail(&mut self) {
        *self = Self { has_failed: true, ..Self::default() };
    }

    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// The memory it uses.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.capacity()
            + (self.argument_ends.capacity() + self.command_ends.capacity()) * size_of::<u32>()
    }

    pub(super) fn len(&self) -> usize {
        self.command_ends.len()
    }

    /// The queued commands, in order.
    pub(super) fn commands(&self) -> impl Iterator<Item = Arguments<'_>> {
        let (mut start, mut first) = (0, 0);
        self.command_ends.iter().map(move |end| {
            let ends = &self.argument_ends[first..*end as usize];
            first = *end as usize;
            ends.iter()
                .map(|end| {
                    let argument = &self.bytes[start..*end as usize];
                    start = *end as usize;
                    argument
                })
                .collect()
        })
    }
}

fn offset(position: usize) -> u32 {
    u32::try_from(position).expect("a queue is at most MAX_BYTES long")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(transaction: &Transaction) -> Vec<Vec<Vec<u8>>> {
        let owned = |arguments: Arguments<'_>| arguments.iter().map(|argument| argument.to_vec()).collect();
        transaction.commands().map(owned).collect()
    }

    /// An argument in the wrong command would charge the wrong key.
    #[test]
    fn queued_commands_keep_their_arguments() {
        let mut transaction = Transaction::default();
        let commands: [&[&[u8]]; 4] =
            [&[b"RL.CHECK", b"", b"\r\n\0"], &[b"PING"], &[b"", b"", b""], &[b"ECHO", b"*1\r\n$4\r\nPING"]];
        for command in commands {
            transaction.queue(command).unwrap();
        }
        assert_eq!(transaction.len(), 4);
        assert_eq!(
            queued(&transaction),
            commands.map(|command| command.iter().map(|a| a.to_vec()).collect::<Vec<_>>())
        );
        assert_eq!(queued(&Transaction::default()), Vec::<Vec<Vec<u8>>>::new());
    }

    /// A client that never sends `EXEC` must not exhaust the memory.
    #[test]
    fn a_queue_is_bounded_in_commands_and_in_bytes() {
        let fill = |arguments: &[&[u8]]| {
            let mut transaction = Transaction::default();
            let refused = (0..).find_map(|_| transaction.queue(arguments).err()).unwrap();
            (transaction, refused)
        };
        let (transaction, refused) = fill(&[b"PING"]);
        assert_eq!(transaction.len(), MAX_COMMANDS);
        assert_eq!(
            refused,
            CommandError::new(
                "too many queued commands: at most 1024; send EXEC earlier, or do not use MULTI"
            )
        );
        let bytes = CommandError::new(
            "too many queued bytes: at most 262144; send EXEC earlier, or do not use MULTI",
        );
        let long = vec![b'a'; 60_000];
        let (mut transaction, refused) = fill(&[b"ECHO", &long]);
        assert_eq!((transaction.len(), &refused), (4, &bytes));
        // Empty arguments are not free.
        let (many, refused) = fill(&[&b""[..]; 80]);
        assert_eq!(refused, bytes);
        assert!(many.argument_ends.len() * size_of::<u32>() <= MAX_BYTES);
        transaction.fail();
        assert!(transaction.has_failed() && transaction.bytes.capacity() == 0);
        transaction.queue(&[b"ECHO", &long]).unwrap();
        assert_eq!(transaction.len(), 0, "a failed transaction stores nothing");
    }
}
