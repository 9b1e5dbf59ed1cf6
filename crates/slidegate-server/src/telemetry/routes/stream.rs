//! Streams: server-sent events of denials and rates, as the HTML standard defines them.
//!
//! Who reads too slowly misses messages and is told how many; nothing is kept for it but what its socket holds. A stream
//! ends with the service, so that its connection does not hold that up.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use axum::response::sse;
use futures_util::Stream;
use futures_util::stream::unfold;
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::app::App;
use crate::telemetry::events::{Event, Filter, Message};

/// Most denials that a stream of rates carries between two of them. More is for nobody to read.
const DENIALS_A_TICK: usize = 50;

/// What a stream carries.
enum Wanted {
    /// The denials that match.
    Denials(Filter),
    /// Rates, some denials, and what changed.
    Live,
}

struct Listener {
    app: Arc<App>,
    wanted: Wanted,
    messages: Receiver<Message>,
    /// Denials of before that go first.
    kept: VecDeque<Arc<Event>>,
    /// The last event that was kept when the stream began: it may come as a message too.
    last_seq: u64,
    /// Denials since the last rates.
    denials: usize,
    has_ended: bool,
    _place: OwnedSemaphorePermit,
}

/// The denials that match from here on, or from behind the one of this number as far as they are kept.
pub(super) fn denials(
    app: Arc<App>,
    filter: Filter,
    after: Option<u64>,
    place: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<sse::Event, Infallible>> {
    let events = &app.observer().events;
    // Before the kept ones are looked up, so that none falls between.
    let messages = events.listen();
    let kept: VecDeque<_> = after.map(|seq| events.after(seq, &filter)).unwrap_or_default().into();
    let last_seq = kept.back().map_or(0, |event| event.seq);
    stream(app, Wanted::Denials(filter), messages, kept, last_seq, place)
}

/// Rates each second, some denials, and what changed.
pub(super) fn live(
    app: Arc<App>,
    place: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<sse::Event, Infallible>> {
    let messages = app.observer().events.listen();
    stream(app, Wanted::Live, messages, VecDeque::new(), 0, place)
}

fn stream(
    app: Arc<App>,
    wanted: Wanted,
    messages: Receiver<Message>,
    kept: VecDeque<Arc<Event>>,
    last_seq: u64,
    place: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<sse::Event, Infallible>> {
    let has_ended = app.observer().is_ending.load(SeqCst);
    let listener = Listener { app, wanted, messages, kept, last_seq, denials: 0, has_ended, _place: place };
    unfold(listener, |mut listener| async { listener.next().await.map(|event| (Ok(event), listener)) })
}

impl Listener {
    async fn next(&mut self) -> Option<sse::Event> {
        if let Some(event) = self.kept.pop_front() {
            return Some(denial(&event));
        }
        while !self.has_ended {
            match self.messages.recv().await {
                Ok(message) => {
                    if let Some(event) = self.told(&message) {
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

    /// The message as this stream tells it, if it does.
    fn told(&mut self, message: &Message) -> Option<sse::Event> {
        match (message, &self.wanted) {
            (Message::Denial(event), Wanted::Denials(filter)) => {
                let is_new = event.seq > self.last_seq;
                (is_new && self.app.observer().events.matches(event, filter)).then(|| denial(event))
            }
            (Message::Denial(event), Wanted::Live) => {
                self.denials += 1;
                (self.denials <= DENIALS_A_TICK).then(|| denial(event))
            }
            (Message::Rates(rates), Wanted::Live) => {
                self.denials = 0;
                Some(named("rates", rates))
            }
            (Message::Changed, Wanted::Live) => Some(named("changed", "{}")),
            (Message::End, _) => {
                self.has_ended = true;
                None
            }
            (Message::Rates(_) | Message::Changed, Wanted::Denials(_)) => None,
        }
    }
}

fn denial(event: &Event) -> sse::Event {
    let json = serde_json::to_string(event).expect("texts and numbers have a JSON form");
    named("denial", &json).id(event.seq.to_string())
}

/// JSON has no line breaks, which an event's data may not have either.
fn named(name: &str, json: &str) -> sse::Event {
    sse::Event::default().event(name).data(json)
}
