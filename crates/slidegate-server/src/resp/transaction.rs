//! Transactions: commands that a client queues between `MULTI` and `EXEC`, and has carried out one after another.
//!
//! `EXEC` is a pipeline and not one atomic step: other connections are served in between, and a denial undoes nothing.
//! `RL.REQUEST` is what decides several limits at once. The queue is a copy, as the read buffer is used again.

use super::command::{Name, Wrong};
use super::frame::Arguments;

/// Most commands of one transaction: they are carried out without a pause for the thread's other connections, at a
/// microsecond or a few for each.
pub(super) const MAX_COMMANDS: usize = 1024;
/// Most bytes of the queued arguments, each with the four that say where it ends: the memory that a client may hold
/// without using it. Room for 1024 commands of 256 bytes, and for any single command.
pub(super) const MAX_BYTES: usize = 256 * 1024;

/// The queue of one connection.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    /// All arguments, one behind the other.
    bytes: Vec<u8>,
    /// Where each argument ends in `bytes`.
    argument_ends: Vec<u32>,
    /// Where each command ends in `argument_ends`.
    command_ends: Vec<u32>,
    /// Whether a command was refused. `EXEC` then carries out none.
    has_failed: bool,
}

/// What happens to a command between `MULTI` and `EXEC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queueing {
    Queued,
    /// It is about the transaction or the connection, and carried out at once.
    Immediate,
    /// It would change the protocol or the rights within a reply.
    Refused,
}

impl Queueing {
    pub(super) fn of(name: Name) -> Self {
        match name {
            Name::Multi | Name::Exec | Name::Discard | Name::ResetConnection | Name::Quit => Self::Immediate,
            Name::Auth | Name::Hello => Self::Refused,
            _ => Self::Queued,
        }
    }
}

impl Transaction {
    /// Adds a command.
    ///
    /// # Errors
    /// There is no room. `EXEC` will carry out none of the commands.
    pub(super) fn queue(&mut self, arguments: &[&[u8]]) -> Result<(), Wrong> {
        if self.has_failed {
            // Nothing of it will be carried out, so nothing is kept.
            return Ok(());
        }
        if self.command_ends.len() == MAX_COMMANDS {
            let detail =
                format!("more than {MAX_COMMANDS} commands are queued; send EXEC before, or no MULTI");
            return Err(Wrong::new(detail));
        }
        let ends = (self.argument_ends.len() + arguments.len()) * size_of::<u32>();
        let bytes: usize = arguments.iter().map(|argument| argument.len()).sum();
        if self.bytes.len() + bytes + ends > MAX_BYTES {
            let detail = format!("more than {MAX_BYTES} bytes are queued; send EXEC before, or no MULTI");
            return Err(Wrong::new(detail));
        }
        for argument in arguments {
            self.bytes.extend_from_slice(argument);
            self.argument_ends.push(index(self.bytes.len()));
        }
        self.command_ends.push(index(self.argument_ends.len()));
        Ok(())
    }

    /// Marks the transaction as one that `EXEC` refuses, and forgets what was queued.
    pub(super) fn fail(&mut self) {
        *self = Self { has_failed: true, ..Self::default() };
    }

    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// How many commands are queued.
    pub(super) fn len(&self) -> usize {
        self.command_ends.len()
    }

    /// The queued commands, in their order.
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

fn index(at: usize) -> u32 {
    u32::try_from(at).expect("a queue is within its bounds")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(transaction: &Transaction) -> Vec<Vec<Vec<u8>>> {
        let owned = |arguments: Arguments<'_>| arguments.iter().map(|argument| argument.to_vec()).collect();
        transaction.commands().map(owned).collect()
    }

    /// An argument in the wrong command is a charge on the wrong key.
    #[test]
    fn commands_come_out_as_they_went_in() {
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

    /// A client that never sends EXEC must not fill the memory, whatever its commands are made of.
    #[test]
    fn a_queue_is_bounded_in_commands_and_in_bytes() {
        let fill = |arguments: &[&[u8]]| {
            let mut transaction = Transaction::default();
            let refused = (0..).find_map(|_| transaction.queue(arguments).err()).unwrap();
            (transaction, refused)
        };
        let (transaction, refused) = fill(&[b"PING"]);
        assert_eq!(transaction.len(), MAX_COMMANDS);
        assert_eq!(refused, Wrong::new("more than 1024 commands are queued; send EXEC before, or no MULTI"));
        let bytes = Wrong::new("more than 262144 bytes are queued; send EXEC before, or no MULTI");
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
        assert_eq!(transaction.len(), 0, "what is not carried out is not kept");
    }
}
