//! The secret that seals tickets, shared by all instances on a store.
//!
//! If none is configured, the first instance generates one and stores it. Each instance keeps the
//! secrets it has read, and stores the current one again after the store lost its data. The stored
//! value has an incarnation, which tells reservations lost with the data from settled ones.

use arc_swap::ArcSwap;
use redis::Value;
use redis_once::{Executed, Failure, FailureKind};
use slidegate::Secret;
use slidegate::internal::new_id;
use slidegate::reserve::Ticket;
use slidegate::store::TicketSecret;

use crate::calls::Calls;

/// Its key. Keys of policies have a second colon.
const KEY: &[u8] = b"sg1:tickets";
/// Bytes of the value: layout, key of the seals, incarnation.
const BYTES: usize = 1 + 16 + 8;
/// The first byte of the value.
const LAYOUT: u8 = 0x31;
/// Number of earlier incarnations whose tickets are recognized: covers reservations of the last
/// hour, unless the store is emptied more often.
const EARLIER: usize = 3;

/// The secrets that this instance knows.
#[derive(Debug)]
pub(super) struct TicketSecrets {
    /// The current one first.
    known: ArcSwap<Vec<TicketSecret>>,
    /// The key of the seals, if a secret is configured.
    configured: Option<Secret<[u8; 16]>>,
}

impl TicketSecrets {
    pub(super) fn new(configured: Option<Secret<[u8; 16]>>) -> Self {
        Self { known: ArcSwap::default(), configured }
    }

    /// The current secret. `None` until the store was asked for it.
    pub(super) fn current(&self) -> Option<TicketSecret> {
        self.known.load().first().cloned()
    }

    fn have_sealed(&self, ticket: &Ticket) -> bool {
        self.known.load().iter().any(|secret| ticket.is_sealed_by(secret))
    }

    fn adopt(&self, secret: &TicketSecret) {
        self.known.rcu(|known| {
            let others = known.iter().filter(|one| *one != secret).take(EARLIER);
            std::iter::once(secret).chain(others).cloned().collect::<Vec<_>>()
        });
    }

    /// The secret that seals. Asks the store for it once.
    pub(super) async fn sealing(&self, calls: &Calls) -> Result<TicketSecret, Failure> {
        match self.current() {
            Some(secret) => Ok(secret),
            None => self.read(calls).await,
        }
    }

    /// Whether an instance on this store sealed this ticket.
    pub(super) async fn has_sealed(&self, calls: &Calls, ticket: &Ticket) -> Result<bool, Failure> {
        if self.have_sealed(ticket) {
            return Ok(true);
        }
        // Another instance may have drawn a new one. A reply costs less than a change of a hold, so
        // tickets that are made up are no load.
        match self.read(calls).await {
            Ok(_) => Ok(self.have_sealed(ticket)),
            // Otherwise they would fill the queue of pending settlements.
            Err(_) if self.current().is_some() => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Whether the store has lost its data since the ticket was made.
    pub(super) async fn has_lost(&self, calls: &Calls, ticket: &Ticket) -> Result<bool, Failure> {
        Ok(self.read(calls).await?.incarnation != ticket.incarnation())
    }

    /// Reads the stored secret. Stores one if the key does not exist.
    async fn read(&self, calls: &Calls) -> Result<TicketSecret, Failure> {
        let (deadline, client) = (calls.deadline(), &calls.client);
        let get = {
            let mut get = redis::cmd("GET");
            get.arg(KEY);
            get
        };
        let mut stored = client.command(Some(KEY), &get, deadline).await?;
        if stored == Value::Nil {
            let mut set = redis::cmd("SET");
            set.arg(KEY).arg(self.drawn()).arg("NX");
            client.command(Some(KEY), &set, deadline).await?;
            // The secret of a faster instance, if any.
            stored = client.command(Some(KEY), &get, deadline).await?;
        }
        let secret = match &stored {
            Value::BulkString(bytes) => read(bytes),
            _ => None,
        };
        let Some(mut secret) = secret else {
            let detail = "`sg1:tickets` is not a secret that this release can read; another program or a newer \
                          slidegate wrote it";
            let slot = client.slot(KEY);
            return Err(calls.failed(slot, Executed::No, FailureKind::ForeignValue, detail));
        };
        if let Some(configured) = &self.configured {
            secret.key = configured.clone();
        }
        self.adopt(&secret);
        Ok(secret)
    }

    /// A new value: the known secret, or a new one, with a new incarnation.
    fn drawn(&self) -> Vec<u8> {
        let mut bytes = vec![LAYOUT];
        match self.current() {
            // A configured secret stays out of the store.
            Some(known) if self.configured.is_none() => bytes.extend_from_slice(known.key.expose()),
            _ => bytes.extend([new_id(), new_id()].iter().flat_map(|word| word.to_le_bytes())),
        }
        bytes.extend_from_slice(&new_id().to_le_bytes());
        bytes
    }
}

fn read(bytes: &[u8]) -> Option<TicketSecret> {
    if bytes.len() != BYTES || bytes[0] != LAYOUT {
        return None;
    }
    let (mut key, mut incarnation) = ([0; 16], [0; 8]);
    key.copy_from_slice(&bytes[1..17]);
    incarnation.copy_from_slice(&bytes[17..]);
    Some(TicketSecret { key: Secret::new(key), incarnation: u64::from_le_bytes(incarnation) })
}
