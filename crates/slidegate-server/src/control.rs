//! Control: what was changed while the service runs, for the whole fleet.
//!
//! One document says it all: changed limits of policies with their history, and keys that are blocked or have another limit
//! for a time. It lives where usage lives, in the shared store or in this process, and each instance folds it into the
//! policies of its configuration. What is over by time ends in each instance by itself.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::front::Front;

mod document;
mod fold;
mod key_text;
mod terms;

pub(crate) use document::{Change, Document, KeyChange, KeyKind, What};
pub(crate) use fold::{Base, CANDIDATE, Folded, candidate_of, fold};
pub(crate) use key_text::KeyText;
pub(crate) use terms::{Counting, Mode, Terms};

/// How often the document is looked at, however silent the store's channel is. A look that finds nothing new reads 17 bytes.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Announcements within this time are met by one look.
const BREATH: Duration = Duration::from_millis(50);
/// Writers that may come between before somebody gives up.
const MOST_TRIES: u32 = 16;

/// Milliseconds since the epoch, by the machine's clock: what ends at a time, ends then in every instance.
pub(crate) fn now_ms() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0)
}

/// A time as answers have it: RFC 3339 with milliseconds.
pub(crate) fn at_text(ms: u64) -> String {
    let at = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.map_or_else(|| ms.to_string(), |at| format!("{at:.3}"))
}

/// The document in force, and the way to change it.
#[derive(Debug)]
pub(crate) struct Control {
    front: Arc<Front>,
    state: Mutex<State>,
    /// One writer of this process at a time.
    writing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    version: u64,
    document: Arc<Document>,
    /// Why the store's document is not the one in force.
    problem: Option<String>,
}

/// Why something was not changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) cause: Cause,
    /// One line that names the thing and the way out.
    pub(crate) detail: String,
}

/// Whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// There is no such thing.
    Unknown,
    /// It is not as the caller thought.
    Conflict,
    /// The store did not answer.
    Away,
}

impl Refusal {
    pub(crate) fn new(cause: Cause, detail: impl Into<String>) -> Self {
        Self { cause, detail: detail.into() }
    }
}

impl Control {
    /// Nothing is changed yet: [`look`](Self::look) finds out.
    pub(crate) fn new(front: Arc<Front>) -> Self {
        Self { front, state: Mutex::default(), writing: tokio::sync::Mutex::default() }
    }

    /// The document in force with its version, and why it is not the store's, if it is not.
    pub(crate) fn current(&self) -> (u64, Arc<Document>, Option<String>) {
        let state = self.state();
        (state.version, Arc::clone(&state.document), state.problem.clone())
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
        for _ in 0..MOST_TRIES {
            let (version, mut document) = self.read().await?;
            let now = now_ms();
            document.drop_ended(now);
            let done = edit(&mut document, now)?;
            document.drop_old_history();
            let text = document.stored()?;
            if self.write(version, &text).await? {
                self.take(version + 1, document);
                return Ok(done);
            }
        }
        let detail = "others changed limits at the same time, again and again; try again";
        Err(Refusal::new(Cause::Conflict, detail))
    }

    /// The newest document.
    async fn read(&self) -> Result<(u64, Document), Refusal> {
        let Some(shared) = self.front.shared() else {
            let (version, document, _) = self.current();
            return Ok((version, (*document).clone()));
        };
        let note = shared.note(None).await.map_err(|error| Refusal::new(Cause::Away, error.to_string()))?;
        let note = note.unwrap_or_default();
        Ok((
            note.version,
            Document::from_text(&note.text).map_err(|detail| Refusal::new(Cause::Conflict, detail))?,
        ))
    }

    async fn write(&self, after: u64, text: &str) -> Result<bool, Refusal> {
        let Some(shared) = self.front.shared() else { return Ok(true) };
        shared.set_note(after, text).await.map_err(|error| {
            let detail = format!("{error}; it may be changed or not, so look before you try again");
            Refusal::new(Cause::Away, detail)
        })
    }

    /// Puts a document in force.
    fn take(&self, version: u64, document: Document) {
        let document = Arc::new(document);
        // Goes through all keys in memory.
        let refused = tokio::task::block_in_place(|| self.front.configure_changes(Arc::clone(&document)));
        for refused in refused {
            tracing::warn!("not in force: {refused}");
        }
        let mut state = self.state();
        *state = State { version, document, problem: None };
    }

    /// Looks whether another instance changed something, and puts that in force.
    pub(crate) async fn look(&self) {
        let Some(shared) = self.front.shared() else { return };
        let _writing = self.writing.lock().await;
        let known = self.state().version;
        let is_sound = self.state().problem.is_none();
        let problem = match shared.note(Some(known).filter(|_| is_sound)).await {
            Ok(None) => return,
            Ok(Some(note)) => match Document::from_text(&note.text) {
                Ok(document) => {
                    if note.version != known {
                        tracing::info!(
                            version = note.version,
                            "limits were changed elsewhere; they are in force"
                        );
                    }
                    return self.take(note.version, document);
                }
                Err(problem) => problem,
            },
            Err(error) => error.to_string(),
        };
        let mut state = self.state();
        if state.problem.is_none() {
            tracing::warn!(problem, "changes cannot be read; the ones that are known stay in force");
        }
        state.problem = Some(problem);
    }

    /// Looks again and again, and ends what is over by time. Ends with the process.
    pub(crate) async fn run(&self) {
        loop {
            let wait = self.front.next_end().map_or(LOOK_EVERY, |end| {
                Duration::from_millis(end.saturating_sub(now_ms()).saturating_add(1)).min(LOOK_EVERY)
            });
            let announced = async {
                match self.front.shared() {
                    Some(shared) => shared.note_announced().await,
                    None => std::future::pending().await,
                }
            };
            if tokio::time::timeout(wait, announced).await.is_ok() {
                tokio::time::sleep(BREATH).await;
            }
            self.look().await;
            if self.front.next_end().is_some_and(|end| end <= now_ms()) {
                tokio::task::block_in_place(|| self.front.end_what_is_over());
            }
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
