//! Server-sent events of denials and rates, as defined by the HTML standard.
//!
//! A slow reader misses messages and receives their number; nothing is buffered beyond its socket. Streams
//! end at shutdown, so they do not delay it, and when the reader's access is revoked.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use axum::response::sse;
use futures_util::Stream;
use futures_util::stream::unfold;
use serde_json::json;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::access::Grant;
use crate::engine::App;
use crate::record::events::{Event, Filter, Message};
use crate::shares::Share;

/// Maximum denials between two rate messages. Nobody can read more.
const DENIALS_A_TICK: usize = 50;

/// The content of a stream.
enum Content {
    /// Denials that match a filter.
    Denials(Filter),
    /// Rates, some denials, and changes.
    Live,
}

struct StreamReader {
    app: Arc<App>,
    content: Content,
    messages: Receiver<Message>,
    /// Earlier denials, sent first.
    kept: VecDeque<Arc<Event>>,
    /// The last event recorded when the stream began; it may also arrive as a message.
    last_seq: u64,
    /// Denials since the last rate message.
    denials: usize,
    has_ended: bool,
    grant: Grant,
    _permit: Share<String>,
}

/// Held while a stream is open: its place among the streams, and the permission to read.
pub(super) type OpenStream = (Share<String>, Grant);

/// Streams matching denials from now on, or first those recorded after this sequence number.
pub(super) fn denials(
    app: Arc<App>,
    filter: Filter,
    after: Option<u64>,
    held: OpenStream,
) -> impl Stream<Item = Result<sse::Event, Infallible>> {
    let events = &app.observer().events;
    // Subscribe before reading the recorded events, so that none is missed.
    let messages = events.listen();
    let kept: VecDeque<_> = after.map(|seq| events.after(seq, &filter)).unwrap_or_default().into();
    let last_seq = kept.back().map_or(0, |event| event.seq);
    stream(app, Content::Denials(filter), messages, (kept, last_seq), held)
}

/// Streams rates every second, some denials, and changes.
pub(super) fn live(app: Arc<App>, held: OpenStream) -> impl Stream<Item = Result<sse::Event, Infallible>> {
    let messages = app.observer().events.listen();
    stream(app, Content::Live, messages, (VecDeque::new(), 0), held)
}

fn stream(
    app: Arc<App>,
    content: Content,
    messages: Receiver<Message>,
    (kept, last_seq): (VecDeque<Arc<Event>>, u64),
    (permit, grant): OpenStream,
) -> impl Stream<Item = Result<sse::Event, Infallible>> {
    let has_ended = app.observer().is_ending.load(SeqCst);
    let listener = StreamReader {
        app,
        content,
        messages,
        kept,
        last_seq,
        denials: 0,
        has_ended,
        grant,
        _permit: permit,
    };
    unfold(listener, |mut listener| async { listener.next().await.map(|event| (Ok(event), listener)) })
}

impl StreamReader {
    async fn next(&mut self) -> Option<sse::Event> {
        // Checked before ready messages: a slow reader with revoked access must not read on.
        if self.grant.is_revoked() {
            return None;
        }
        if let Some(event) = self.kept.pop_front() {
            return Some(denial(&event));
        }
        while !self.has_ended {
            let message = tokio::select! {
                biased;
                () = self.grant.revoked() => return None,
                message = self.messages.recv() => message,
            };
            match message {
                Ok(message) => {
                    if let Some(event) = self.event(&message) {
                        return Some(event);
                    }
                }
                Err(RecvError::Lagged(missed)) => {
                    return Some(named("missed", &json!({ "messages": missed }).to_string()));
                }
                Err(RecvError::Closed) => self.has_ended = true,
            }
        }
        None
    }

    /// The message in this stream's format, if the stream includes it.
    fn event(&mut self, message: &Message) -> Option<sse::Event> {
        match (message, &self.content) {
            (Message::Denial(event), Content::Denials(filter)) => {
                let is_new = event.seq > self.last_seq;
                (is_new && self.app.observer().events.matches(event, filter)).then(|| denial(event))
            }
            (Message::Denial(event), Content::Live) => {
                self.denials += 1;
                (self.denials <= DENIALS_A_TICK).then(|| denial(event))
            }
            (Message::Rates(rates), Content::Live) => {
                self.denials = 0;
                Some(named("rates", rates))
            }
            (Message::Changed, Content::Live) => Some(named("changed", "{}")),
            (Message::End, _) => {
                self.has_ended = true;
                None
            }
            (Message::Rates(_) | Message::Changed, Content::Denials(_)) => None,
        }
    }
}

fn denial(event: &Event) -> sse::Event {
    let json = serde_json::to_string(event).expect("strings and numbers serialize");
    named(event.name(), &json).id(event.seq.to_string())
}

/// Event data must not contain line breaks; JSON has none.
fn named(name: &str, json: &str) -> sse::Event {
    sse::Event::default().event(name).data(json)
}
