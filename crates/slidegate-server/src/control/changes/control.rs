//! Run-time changes, shared by all instances.
//!
//! A control document holds changed policies with their history, and blocked or overridden keys. It
//! is stored with the usage, in the shared store or in this process. Each instance applies it to
//! its configured policies and expires changes by itself.
//!
//! The store may lose the document; instances do not. Active changes stay active and are written
//! back: `reconcile.rs` explains when, how, and why all instances converge on one document.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};
use schemars::JsonSchema;
use serde::Serialize;
use slidegate::Error;
use slidegate::store::{ControlDocument, ControlDocumentId};

use super::active::ActivePolicies;
use super::document::Document;
use super::fold::Base;
use super::reconcile::{Held, Reconciliation, StoredDocument, next_id, reconcile};
use super::refusal::{Cause, Refusal};
use crate::clock::now_ms;
use crate::engine::App;
use crate::engine::store::Shared;
use crate::log_limit::log_limited;

/// Poll interval of the document, in addition to the store's notifications. A poll that finds
/// no change reads 51 bytes.
const POLL_EVERY: Duration = Duration::from_secs(2);
/// Notifications within this time cause one poll.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// Maximum retries after conflicting writes.
const MAX_TRIES: u32 = 16;

/// The active document, and the way to change it.
#[derive(Debug)]
pub(crate) struct Control {
    pub(super) app: Arc<App>,
    pub(crate) active: ActivePolicies,
    state: Mutex<ControlState>,
    /// Serializes writers of this process.
    writing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct ControlState {
    held: Held,
    /// Why the stored document is not the active one.
    problem: Option<String>,
    losses: Losses,
}

/// Losses of changes that were active here.
#[derive(Debug, Default)]
struct Losses {
    count: u64,
    last: Option<LastLoss>,
}

/// The last time the store lost changes that are active here.
#[derive(Debug, Clone)]
pub(crate) struct LastLoss {
    pub(crate) at_ms: u64,
    /// Description of what the store held.
    pub(crate) found: String,
    /// When the store held everything again.
    pub(crate) restored_ms: Option<u64>,
}

/// The state of the active document.
#[derive(Debug, Clone)]
pub(crate) struct ControlStatus {
    /// The stored document that is active, or was before a loss.
    pub(crate) id: ControlDocumentId,
    pub(crate) document: Arc<Document>,
    pub(crate) location: Location,
    /// Why the stored document is not the active one.
    pub(crate) problem: Option<String>,
    pub(crate) losses: u64,
    pub(crate) last_loss: Option<LastLoss>,
}

/// Where the active document is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Location {
    /// In this process: there is no shared store.
    Memory,
    /// In the shared store.
    Store,
    /// In this process: the store lost active changes, and they are not yet written back.
    Lost,
    /// Unknown: the store is unreachable, or holds an unreadable document.
    Unknown,
}

impl Control {
    /// Starts with the configured policies of `base`; [`poll`](Self::poll) loads changes.
    pub(crate) fn new(app: Arc<App>, base: Base, has_inline: bool) -> Self {
        let active = ActivePolicies::new(Arc::clone(&app), base, has_inline);
        Self { app, active, state: Mutex::default(), writing: tokio::sync::Mutex::default() }
    }

    /// The active document.
    pub(crate) fn document(&self) -> Arc<Document> {
        Arc::clone(&self.state().held.document)
    }

    /// The state of the active document.
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

    /// Changes the document with `edit`, which may run more than once, and activates it here; other
    /// instances follow.
    ///
    /// # Errors
    /// `edit` rejects the change, the store is unreachable, or the document would be too large.
    pub(crate) async fn change<T>(
        &self,
        mut edit: impl FnMut(&mut Document, u64) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let _writing = self.writing.lock().await;
        let Some(shared) = self.app.shared() else { return self.change_here(edit) };
        for _ in 0..MAX_TRIES {
            let found =
                found(&shared.store().control_document(None).await.map_err(away)?.unwrap_or_default())?;
            let now = now_ms();
            let Reconciliation { mut document, loss } = self.reconcile(&found, now);
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

    /// [`change`](Self::change) without a shared store.
    fn change_here<T>(
        &self,
        mut edit: impl FnMut(&mut Document, u64) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let Held { id, document } = self.state().held.clone();
        let (now, mut document) = (now_ms(), (*document).clone());
        let done = edit(&mut document, now)?;
        document.trim(now);
        document.stored()?;
        self.put_in_force(Held {
            id: ControlDocumentId { version: id.version + 1, ..ControlDocumentId::ABSENT },
            document: document.into(),
        });
        if let Some(snapshots) = &self.app.snapshots {
            snapshots.request();
        }
        Ok(done)
    }

    /// The active document of a process without a shared store, in a format that
    /// [`restore`](Self::restore) reads.
    pub(crate) fn saved(&self) -> String {
        let Held { id, document } = self.state().held.clone();
        // It was stored before, so it is not too large.
        let text = (*document).clone().stored().unwrap_or_default();
        format!("{}\n{text}", id.version)
    }

    /// Activates a document saved by an earlier process.
    ///
    /// # Errors
    /// The text is not one that [`saved`](Self::saved) wrote.
    pub(crate) fn restore(&self, saved: &str) -> Result<(), String> {
        let (version, text) = saved.split_once('\n').ok_or("the number of its version is missing")?;
        let version = version.parse().map_err(|error| format!("version `{version}`: {error}"))?;
        let document = Document::from_text(text)?;
        if version > 0 {
            let id = ControlDocumentId { version, ..ControlDocumentId::ABSENT };
            self.put_in_force(Held { id, document: document.into() });
        }
        Ok(())
    }

    /// The document to activate, from the active and the stored one. Reports a loss when first
    /// detected.
    fn reconcile(&self, found: &StoredDocument, now: u64) -> Reconciliation {
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

    /// Replaces the stored document if unchanged and activates the new one. False if another
    /// instance wrote meanwhile.
    async fn write(
        &self,
        shared: Shared<'_>,
        found: &StoredDocument,
        mut document: Document,
        is_after_loss: bool,
    ) -> Result<bool, Refusal> {
        document.trim(now_ms());
        let text = document.stored()?;
        let held = self.state().held.clone();
        let id = next_id(&held, found, is_after_loss, random)?;
        let is_written = shared
            .store()
            .replace_control_document(found.id, &ControlDocument::new(id, text))
            .await
            .map_err(away)?;
        if is_written {
            self.put_in_force(Held { id, document: document.into() });
            self.is_stored();
        }
        Ok(is_written)
    }

    fn put_in_force(&self, held: Held) {
        let document = Arc::clone(&held.document);
        // Visits all keys in memory.
        let refused = tokio::task::block_in_place(|| self.active.set_document(document));
        for refused in refused {
            tracing::warn!("not in force: {refused}");
        }
        self.state().held = held;
    }

    /// Records that the store holds all active changes.
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

    /// Polls the store for changes by other instances and for losses, and handles them.
    pub(crate) async fn poll(&self) {
        let Some(shared) = self.app.shared() else { return };
        let _writing = self.writing.lock().await;
        for _ in 0..MAX_TRIES {
            match self.poll_once(shared).await {
                Ok(true) => return,
                // Another instance wrote first: read again.
                Ok(false) => {}
                Err(refusal) => return self.is_not_stored(&refusal.detail),
            }
        }
    }

    /// Returns false if another instance wrote meanwhile.
    async fn poll_once(&self, shared: Shared<'_>) -> Result<bool, Refusal> {
        let (held, is_sound) = {
            let state = self.state();
            (state.held.clone(), state.problem.is_none() && !state.losses.is_open())
        };
        let Some(stored) =
            shared.store().control_document(Some(held.id).filter(|_| is_sound)).await.map_err(away)?
        else {
            self.is_stored();
            return Ok(true);
        };
        let found = found(&stored)?;
        let Reconciliation { document, loss } = self.reconcile(&found, now_ms());
        let is_other = document != *held.document;
        if loss.is_some() {
            if is_other {
                // Activate at once: the write may take a while.
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
                // Clients also cause such changes: denials block their keys.
                log_limited!(INFO, None, version, "another instance changed limits; its changes are active");
            } else {
                tracing::info!(version, "another instance wrote the run-time changes back to the store");
            }
        }
        self.is_stored();
        Ok(true)
    }

    /// Records why the state of the stored document is unknown.
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

    /// Polls and expires changes until the process ends.
    pub(crate) async fn run(&self) {
        loop {
            let wait = self.active.next_expiry().map_or(POLL_EVERY, |end| {
                Duration::from_millis(end.saturating_sub(now_ms()).saturating_add(1)).min(POLL_EVERY)
            });
            let announced = async {
                match self.app.shared() {
                    Some(shared) => shared.store().control_document_changed().await,
                    None => std::future::pending().await,
                }
            };
            if tokio::time::timeout(wait, announced).await.is_ok() {
                tokio::time::sleep(DEBOUNCE).await;
            }
            self.poll().await;
            if self.active.next_expiry().is_some_and(|end| end <= now_ms()) {
                tokio::task::block_in_place(|| self.active.expire());
            }
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, ControlState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Losses {
    /// Whether the store lacks active changes.
    fn is_open(&self) -> bool {
        self.last.as_ref().is_some_and(|last| last.restored_ms.is_none())
    }
}

/// Parses a stored document.
fn found(stored: &ControlDocument) -> Result<StoredDocument, Refusal> {
    let document =
        Document::from_text(&stored.text).map_err(|detail| Refusal::new(Cause::Conflict, detail))?;
    Ok(StoredDocument { id: stored.id, document })
}

/// The refusal for a failed store operation.
#[allow(clippy::needless_pass_by_value)] // for `map_err`
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
