//! Run-time changes: what was changed while the service runs, for the whole fleet.
//!
//! One document says it all: changed limits of policies with their history, and keys that are blocked or have another
//! limit for a time. It lives where usage lives, in the shared store or in this process, and each instance folds it into
//! the policies of its configuration. What is over by time ends in each instance by itself.
//!
//! The store may lose it; the instances do not. What is in force here stays in force, and goes back into the store:
//! `reconcile.rs` says when and how, and why all instances end with one document.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};
use slidegate::{Error, Note, NoteId};

use super::clock::now_ms;
use super::document::Document;
use super::reconcile::{Found, Held, Reconciled, next_id, reconcile};
use super::refusal::{Cause, Refusal};
use crate::app::App;
use crate::app::store::Shared;

/// How often the document is looked at, however silent the store's channel is. A look that finds nothing new reads 51 bytes.
const POLL_EVERY: Duration = Duration::from_secs(2);
/// Announcements within this time are met by one look.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// Writers that may come between before somebody gives up.
const MAX_TRIES: u32 = 16;

/// The document in force, and the way to change it.
#[derive(Debug)]
pub(crate) struct Control {
    app: Arc<App>,
    state: Mutex<State>,
    /// One writer of this process at a time.
    writing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    held: Held,
    /// Why the store's document is not the one in force.
    problem: Option<String>,
    losses: Losses,
}

/// How often the store lost changes that are in force here.
#[derive(Debug, Default)]
struct Losses {
    count: u64,
    last: Option<LastLoss>,
}

/// The last time that the store lost changes that are in force here.
#[derive(Debug, Clone)]
pub(crate) struct LastLoss {
    pub(crate) at_ms: u64,
    /// What the store was found to hold, in words.
    pub(crate) found: String,
    /// When the store held everything again, if it does.
    pub(crate) restored_ms: Option<u64>,
}

/// How things stand with the document in force.
#[derive(Debug, Clone)]
pub(crate) struct ControlStatus {
    /// The stored document that is in force, or was before a loss.
    pub(crate) id: NoteId,
    pub(crate) document: Arc<Document>,
    pub(crate) location: Location,
    /// Why the store's document is not the one in force.
    pub(crate) problem: Option<String>,
    pub(crate) losses: u64,
    pub(crate) last_loss: Option<LastLoss>,
}

/// Where the document in force is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Location {
    /// In this process, by configuration.
    Memory,
    /// In the store.
    Store,
    /// In this process: the store lost changes that are in force, and does not have them back yet.
    Lost,
    /// Nobody knows: the store does not answer, or holds what cannot be read.
    Unknown,
}

impl Location {
    /// The name in answers.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Store => "store",
            Self::Lost => "lost",
            Self::Unknown => "unknown",
        }
    }
}

impl Control {
    /// Nothing is changed yet: [`poll`](Self::poll) finds out.
    pub(crate) fn new(app: Arc<App>) -> Self {
        Self { app, state: Mutex::default(), writing: tokio::sync::Mutex::default() }
    }

    /// The document in force with its version.
    pub(crate) fn current(&self) -> (u64, Arc<Document>) {
        let state = self.state();
        (state.held.id.version, Arc::clone(&state.held.document))
    }

    /// How things stand with the document in force.
    pub(crate) fn status(&self) -> ControlStatus {
        let state = self.state();
        let location = match self.app.shared() {
            None => Location::Memory,
            Some(_) if state.losses.is_open() => Location::Lost,
            Some(_) if state.problem.is_some() => Location::Unknown,
            Some(_) => Location::Store,
        };
        let Held { id, document } = state.held.clone();
        let Losses { count, last } = &state.losses;
        let (problem, losses, last_loss) = (state.problem.clone(), *count, last.clone());
        ControlStatus { id, document, location, problem, losses, last_loss }
    }

    /// Changes the document as `edit` does, which may run more than once, and puts it in force here; others follow.
    ///
    /// # Errors
    /// What `edit` refuses; a store that does not answer; a document that would grow too large.
    pub(crate) async fn change<T>(
        &self,
        mut edit: impl FnMut(&mut Document, u64) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let _writing = self.writing.lock().await;
        let Some(shared) = self.app.shared() else { return self.change_here(edit) };
        for _ in 0..MAX_TRIES {
            let found = found(&shared.note(None).await.map_err(away)?.unwrap_or_default())?;
            let now = now_ms();
            let Reconciled { mut document, loss } = self.reconcile(&found, now);
            let done = edit(&mut document, now)?;
            let written = self.write(shared, &found, document, loss.is_some()).await;
            let unsure = |refusal: Refusal| {
                if refusal.cause != Cause::Away {
                    return refusal;
                }
                let detail = "it may be changed or not, so look before you try again";
                Refusal { detail: format!("{}; {detail}", refusal.detail), ..refusal }
            };
            if written.map_err(unsure)? {
                return Ok(done);
            }
        }
        let detail = "others changed limits at the same time, again and again; try again";
        Err(Refusal::new(Cause::Conflict, detail))
    }

    /// The same where the document lives in this process.
    fn change_here<T>(
        &self,
        mut edit: impl FnMut(&mut Document, u64) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let (version, document) = self.current();
        let (now, mut document) = (now_ms(), (*document).clone());
        let done = edit(&mut document, now)?;
        document.trim(now);
        document.stored()?;
        self.put_in_force(Held {
            id: NoteId { version: version + 1, ..NoteId::ABSENT },
            document: document.into(),
        });
        Ok(done)
    }

    /// What has to be in force, of what is and what the store holds. A loss is reported when it is first met.
    fn reconcile(&self, found: &Found, now: u64) -> Reconciled {
        let mut state = self.state();
        let reconciled = reconcile(&state.held, found, now);
        let Some(loss) = reconciled.loss.filter(|_| !state.losses.is_open()) else { return reconciled };
        state.losses.count += 1;
        let words = loss.to_string();
        state.losses.last = Some(LastLoss { at_ms: now, found: words.clone(), restored_ms: None });
        let in_force = state.held.document.count_in_force(now);
        drop(state);
        tracing::warn!(
            found = words,
            in_force,
            "the store lost run-time changes; they stay active and are written back"
        );
        self.app.observer().changes_lost();
        reconciled
    }

    /// Writes a document in the location of the one found, and puts it in force; false if another one is stored by now.
    async fn write(
        &self,
        shared: &Shared,
        found: &Found,
        mut document: Document,
        is_after_loss: bool,
    ) -> Result<bool, Refusal> {
        document.trim(now_ms());
        let text = document.stored()?;
        let held = self.state().held.clone();
        let id = next_id(&held, found, is_after_loss, random)?;
        let is_written = shared.set_note(found.id, &Note::new(id, text)).await.map_err(away)?;
        if is_written {
            self.put_in_force(Held { id, document: document.into() });
            self.is_stored();
        }
        Ok(is_written)
    }

    /// Puts a document in force.
    fn put_in_force(&self, held: Held) {
        let document = Arc::clone(&held.document);
        // Goes through all keys in memory.
        let refused = tokio::task::block_in_place(|| self.app.active.set_document(document));
        for refused in refused {
            tracing::warn!("not in force: {refused}");
        }
        self.state().held = held;
    }

    /// Remembers that the store holds everything that is in force.
    fn is_stored(&self) {
        let mut state = self.state();
        state.problem = None;
        let version = state.held.id.version;
        let open = state.losses.last.as_mut().filter(|last| last.restored_ms.is_none());
        let is_restored = open.map(|last| last.restored_ms = Some(now_ms())).is_some();
        drop(state);
        if is_restored {
            tracing::info!(version, "the store holds all run-time changes again");
            self.app.observer().mark_changed();
        }
        self.app.observer().changes_are_stored(true);
    }

    /// Looks whether another instance changed something, or the store lost something, and does what follows.
    pub(crate) async fn poll(&self) {
        let Some(shared) = self.app.shared() else { return };
        let _writing = self.writing.lock().await;
        for _ in 0..MAX_TRIES {
            match self.poll_once(shared).await {
                Ok(true) => return,
                // Another instance was faster; what it wrote is read now.
                Ok(false) => {}
                Err(refusal) => return self.is_not_stored(&refusal.detail),
            }
        }
    }

    /// Whether it is done. If not, another instance wrote meanwhile.
    async fn poll_once(&self, shared: &Shared) -> Result<bool, Refusal> {
        let (held, is_sound) = {
            let state = self.state();
            (state.held.clone(), state.problem.is_none() && !state.losses.is_open())
        };
        let Some(note) = shared.note(Some(held.id).filter(|_| is_sound)).await.map_err(away)? else {
            self.is_stored();
            return Ok(true);
        };
        let found = found(&note)?;
        let Reconciled { document, loss } = self.reconcile(&found, now_ms());
        let is_other = document != *held.document;
        if loss.is_some() {
            if is_other {
                // In force at once: the store may take a while to be written.
                self.put_in_force(Held { document: document.clone().into(), ..held });
            }
            let written = self.write(shared, &found, document, true).await;
            return written.map_err(|refusal| {
                let detail = format!("changes that the store lost are not written back: {}", refusal.detail);
                Refusal { detail, ..refusal }
            });
        }
        let new = Held { id: found.id, document: document.into() };
        if is_other {
            self.put_in_force(new);
        } else {
            self.state().held = new;
        }
        if found.id != held.id {
            let version = found.id.version;
            if held.id.is_absent() {
                tracing::info!(version, "run-time changes were read from the store and are active");
            } else if is_other {
                tracing::info!(version, "another instance changed limits; its changes are active");
            } else {
                tracing::info!(version, "another instance wrote the run-time changes back to the store");
            }
        }
        self.is_stored();
        Ok(true)
    }

    /// Remembers why it is not known whether the store holds what is in force.
    fn is_not_stored(&self, problem: &str) {
        let is_new = self.state().problem.replace(problem.to_owned()).is_none();
        if is_new {
            tracing::warn!(
                problem,
                "run-time changes cannot be synchronized with the store; active changes stay active"
            );
        }
        self.app.observer().changes_are_stored(false);
    }

    /// Looks again and again, and ends what is over by time. Ends with the process.
    pub(crate) async fn run(&self) {
        loop {
            let wait = self.app.active.next_expiry().map_or(POLL_EVERY, |end| {
                Duration::from_millis(end.saturating_sub(now_ms()).saturating_add(1)).min(POLL_EVERY)
            });
            let announced = async {
                match self.app.shared() {
                    Some(shared) => shared.note_announced().await,
                    None => std::future::pending().await,
                }
            };
            if tokio::time::timeout(wait, announced).await.is_ok() {
                tokio::time::sleep(DEBOUNCE).await;
            }
            self.poll().await;
            if self.app.active.next_expiry().is_some_and(|end| end <= now_ms()) {
                tokio::task::block_in_place(|| self.app.active.expire());
            }
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Losses {
    /// Whether the store still lacks something.
    fn is_open(&self) -> bool {
        self.last.as_ref().is_some_and(|last| last.restored_ms.is_none())
    }
}

/// What a note is.
fn found(note: &Note) -> Result<Found, Refusal> {
    let document = Document::from_text(&note.text).map_err(|detail| Refusal::new(Cause::Conflict, detail))?;
    Ok(Found { id: note.id, document })
}

/// The store did not do what was asked.
#[allow(clippy::needless_pass_by_value)] // As `map_err` has it.
fn away(error: Error) -> Refusal {
    Refusal::new(Cause::Away, error.to_string())
}

/// A random number other than 0.
fn random() -> Result<u64, Refusal> {
    let mut bytes = [0; 8];
    SystemRandom::new().fill(&mut bytes).map_err(|_| {
        Refusal::new(Cause::Away, "the system gives no random numbers, so nothing is written")
    })?;
    Ok(u64::from_be_bytes(bytes).max(1))
}
