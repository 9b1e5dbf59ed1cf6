//! Reservations: made by `/v1/reserve`, and settled, extended or cancelled by their tickets.

use std::time::Duration;

use axum::body::Bytes;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request as HttpRequest, StatusCode, header};
use axum::response::Response as HttpResponse;
use http_body_util::Full;
use schemars::JsonSchema;
use serde::Deserialize;
use slidegate::Error;
use slidegate::acquire::Patience;
use slidegate::reserve::{Extension, HoldOptions, HoldStatus, Settlement, Ticket};
use slidegate_http::headers::secs_ceil;

use super::acquire::{applied, preferred_wait};
use super::answer::{self, MAX_TICKETS, ReservationRequest};
use super::cost::Cost;
use super::idempotency;
use super::reply::{AppAnswer, JSON, call, ok, status_of, undecided};
use super::request::{MAX_BODY, ReserveBody, parse_ttl};
use super::text::{Text, Ttl};
use crate::engine::App;
use crate::engine::decide::TurnTerms;
use crate::engine::ticket_change::{TicketChange, TicketChanged};
use crate::listener::{Connection, TrackedBody};
use crate::wire::fields::{self, NO_STORE};
use crate::wire::json_body;
use crate::wire::problem::{self, Problem};

/// `{"ticket": "...", "cost": 512, "final": true}`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Settle")]
pub(super) struct SettleBody<'a> {
    /// Opaque text that stands for the reservation.
    #[schemars(length(max = Ticket::MAX_TEXT))]
    #[serde(borrow)]
    ticket: Text<'a>,
    /// The total cost since the reservation was made.
    #[serde(borrow)]
    cost: Cost<'a>,
    /// False: the request continues, and the rest stays held.
    #[serde(default = "yes")]
    r#final: bool,
}

fn yes() -> bool {
    true
}

/// `{"ticket": "...", "hold": 8192, "ttl": "30s"}`, or `{"tickets": [...], "ttl": "30s"}`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Extend")]
pub(super) struct ExtendBody<'a> {
    /// Opaque text that stands for the reservation.
    #[schemars(length(max = Ticket::MAX_TEXT))]
    #[serde(borrow, default)]
    ticket: Option<Text<'a>>,
    /// Several reservations to extend, instead of `ticket`.
    #[schemars(length(max = MAX_TICKETS), inner(length(max = Ticket::MAX_TEXT)))]
    #[serde(borrow, default)]
    tickets: Option<Vec<Text<'a>>>,
    /// The total to hold from now on. Only with `ticket`.
    #[serde(borrow, default)]
    hold: Option<Cost<'a>>,
    /// How long the reservations last from now on, 1 ms to 1 h; also for later extensions and partial settlements.
    /// Default: as before.
    #[schemars(extend("example" = "30s"))]
    #[serde(borrow, default)]
    ttl: Option<Ttl<'a>>,
}

/// `{"ticket": "..."}`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Cancel")]
pub(super) struct CancelBody<'a> {
    /// Opaque text that stands for the reservation.
    #[schemars(length(max = Ticket::MAX_TEXT))]
    #[serde(borrow)]
    ticket: Text<'a>,
}

pub(super) async fn reserve(app: &App, client: Connection, request: HttpRequest<TrackedBody>) -> AppAnswer {
    let (Parts { headers, .. }, body) = request.into_parts();
    // Bound to its caller, so that a ticket is not given to who guesses the key.
    let caller = || app.access.caller(&headers, client);
    let id = idempotency::id(slidegate::verb::Verb::Check, &headers)?.map(|id| format!("{}\n{id}", caller()));
    let bytes = json_body::read(body, MAX_BODY).await?;
    let call = call(app, &headers);
    let (ask, ttl) = json_body::parse::<ReserveBody<'_>>(&bytes)?.into_parts()?;
    let request = ask.request(app)?;
    let options = HoldOptions { ttl, id: id.as_deref() };
    let requests = std::slice::from_ref(&request);
    let wait = preferred_wait(&headers);
    let reserved = match wait {
        Some(wait) => {
            call.reserve_in_turn(requests, options, TurnTerms { patience: Patience::AtMost(wait), client })
                .await
        }
        None => call.reserve(requests, options).await,
    };
    let reserved = reserved.map_err(|error| Problem::field("ttl", error.to_string()))?;
    if let Some(error) = reserved.decisions().error() {
        return Err(undecided(&error));
    }
    let text = call.ticket_text(&reserved).await.map_err(|detail| Problem::field("attributes", detail))?;
    let asked = ReservationRequest { request: &request, says_cost: ask.says_cost() };
    let written = answer::reserved(reserved.decisions(), &asked, reserved.ticket().zip(text.as_deref()));
    let (status, media_type) = status_of(slidegate::verb::Verb::Check, reserved.decisions());
    let mut response = HttpResponse::new(written.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, media_type);
    fields::insert(headers, &app.headers, reserved.decisions());
    if let Some(wait) = wait {
        applied(headers, wait);
    }
    Ok(response)
}

pub(super) async fn settle(app: &App, request: HttpRequest<TrackedBody>) -> AppAnswer {
    let (headers, bytes) = body(request).await?;
    let ask: SettleBody<'_> = json_body::parse(&bytes)?;
    let ticket = read(&ask.ticket, "ticket")?;
    let change = TicketChange::Settle { cost: ask.cost.read()?, is_final: ask.r#final };
    change_one(app, &headers, &ticket, change).await
}

pub(super) async fn extend(app: &App, request: HttpRequest<TrackedBody>) -> AppAnswer {
    let (headers, bytes) = body(request).await?;
    let ask: ExtendBody<'_> = json_body::parse(&bytes)?;
    let ttl = ask.ttl.as_ref().map(parse_ttl).transpose()?;
    let tickets = match (&ask.ticket, &ask.tickets) {
        (Some(text), None) => {
            let ticket = read(text, "ticket")?;
            let in_hold = |problem: Problem| problem.in_field("hold");
            let hold = ask.hold.as_ref().map(Cost::read).transpose().map_err(in_hold)?;
            let change = TicketChange::Extend(extension(hold, ttl)?);
            return change_one(app, &headers, &ticket, change).await;
        }
        (None, Some(tickets)) => tickets,
        (Some(_), Some(_)) => {
            return Err(Problem::field("tickets", "`ticket` and `tickets` are given; give one of them"));
        }
        (None, None) => {
            return Err(Problem::field("ticket", "missing field `ticket`; give one, or a list as `tickets`"));
        }
    };
    if ask.hold.is_some() {
        let detail = "`hold` is about one reservation; give `ticket`, or leave `hold` out";
        return Err(Problem::field("hold", detail));
    }
    if tickets.len() > MAX_TICKETS {
        let detail = format!("there are {} tickets; give at most {MAX_TICKETS}", tickets.len());
        return Err(Problem::field("tickets", detail));
    }
    let read_one = |(at, text)| read(text, &format!("tickets[{at}]"));
    let tickets = tickets.iter().enumerate().map(read_one).collect::<Result<Vec<_>, _>>()?;
    let extension = extension(None, ttl)?;
    let extended = call(app, &headers).extend_each(&tickets, &extension).await;
    Ok(ok(answer::settlements(&extended.map_err(|error| failed(&error))?)))
}

fn extension(hold: Option<slidegate::Cost<'_>>, ttl: Option<Duration>) -> Result<Extension<'_>, Problem> {
    let mut extension = Extension::new();
    if let Some(hold) = hold {
        extension = extension.with_total(hold);
    }
    let Some(ttl) = ttl else { return Ok(extension) };
    extension.with_ttl(ttl).map_err(|error| Problem::field("ttl", error.to_string()))
}

pub(super) async fn cancel(app: &App, request: HttpRequest<TrackedBody>) -> AppAnswer {
    let (headers, bytes) = body(request).await?;
    let ask: CancelBody<'_> = json_body::parse(&bytes)?;
    let ticket = read(&ask.ticket, "ticket")?;
    change_one(app, &headers, &ticket, TicketChange::Cancel).await
}

/// The headers and the body of a change, which has no idempotency key, as it may be repeated.
async fn body(request: HttpRequest<TrackedBody>) -> Result<(HeaderMap, Bytes), Problem> {
    let (head, body) = request.into_parts();
    idempotency::none(&head.headers)?;
    Ok((head.headers, json_body::read(body, MAX_BODY).await?))
}

fn read(text: &Text<'_>, field: &str) -> Result<Ticket, Problem> {
    text.0.parse().map_err(|error: Error| Problem::field(field, error.to_string()))
}

/// A store that did not reply: it is not known whether the change was made.
fn failed(error: &Error) -> Problem {
    let detail = format!("{error}; the change may or may not be made, and repeating it is safe");
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
}

async fn change_one(app: &App, headers: &HeaderMap, ticket: &Ticket, change: TicketChange<'_>) -> AppAnswer {
    let goes_on = !change.is_last();
    let cost_field = if matches!(change, TicketChange::Extend(_)) { "hold" } else { "cost" };
    let failed = |error: Error| match error.is_unknown_cost() {
        true => Problem::field(cost_field, error.to_string()),
        false => failed(&error),
    };
    match call(app, headers).change(ticket, change).await.map_err(failed)? {
        TicketChanged::Now(settlement) if settlement.status() == HoldStatus::Unknown => {
            Err(Problem::field("ticket", TicketChanged::UNKNOWN).with_status(StatusCode::NOT_FOUND))
        }
        TicketChanged::Now(settlement) => Ok(respond(app, &settlement, goes_on)),
        TicketChanged::Later => {
            let mut response = ok(answer::queued());
            *response.status_mut() = StatusCode::ACCEPTED;
            Ok(response)
        }
    }
}

/// 429 for an extension that does not fit, with the wait; otherwise 200.
fn respond(app: &App, settlement: &Settlement, goes_on: bool) -> HttpResponse<Full<Bytes>> {
    let is_denied = settlement.status() == HoldStatus::Denied;
    let mut response = HttpResponse::new(answer::settlement(settlement, goes_on).into());
    let headers = response.headers_mut();
    let media_type = if is_denied { problem::MEDIA_TYPE } else { JSON };
    headers.insert(header::CONTENT_TYPE, media_type);
    headers.insert(header::CACHE_CONTROL, NO_STORE);
    for (name, value) in app.headers.settlement_headers(settlement) {
        let value = value.try_into().expect("fields are printable ASCII");
        headers.insert(HeaderName::from_static(name), value);
    }
    if is_denied {
        let waits = settlement
            .iter()
            .filter(|key| key.decision().is_denied())
            .map(|key| key.decision().retry_after());
        // Without a wait it never fits.
        if let Some(wait) = waits.collect::<Option<Vec<_>>>().and_then(|waits| waits.into_iter().max()) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(secs_ceil(wait).max(1)));
        }
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    }
    response
}
