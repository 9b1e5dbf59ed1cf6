//! Calls that wait for their turn instead of being denied at once.

use slidegate::acquire::{Ask, NoTurn, Patience};
use slidegate::reserve::{HoldOptions, Reserved};
use slidegate::{Decisions, Error, Request, verb::Verb};

use super::{Call, Engine};
use crate::listener::Connection;
use crate::record::{MAX_WAITING, TurnOutcome};

/// How a client's call waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TurnTerms {
    pub(crate) patience: Patience,
    /// Whose place in the queue it takes.
    pub(crate) client: Connection,
}

struct CheckInTurn<'c, 'r> {
    engine: &'c Engine,
    verb: Option<Verb>,
    requests: &'r [Request<'r>],
    id: Option<&'c str>,
    patience: Patience,
}

struct ReserveInTurn<'c, 'r> {
    engine: &'c Engine,
    requests: &'r [Request<'r>],
    options: HoldOptions<'c>,
    patience: Patience,
}

impl Call<'_> {
    /// As [`apply`](Self::apply), but waits until the requests are allowed. Dropping the future leaves the queue. The
    /// time that it takes is not recorded as that of a decision.
    pub(crate) async fn apply_in_turn<'r>(
        &self,
        verb: Option<Verb>,
        requests: &'r [Request<'r>],
        id: Option<&str>,
        turn: TurnTerms,
    ) -> Decisions<'r> {
        if requests.is_empty() {
            return self.apply(verb, requests, id).await;
        }
        let engine = self.engine;
        let span_start = engine.observer.span_start();
        let ask = |patience| CheckInTurn { engine, verb, requests, id, patience };
        let decisions = match engine.take_turn(ask, turn).await {
            Ok(decisions) => decisions,
            Err(no_turn) => engine.store.behind(verb, requests, &no_turn).await,
        };
        let candidates = engine.record(&self.caller, verb, span_start, (&decisions, None));
        self.charge_candidates(candidates, requests).await;
        decisions
    }

    /// As [`reserve`](Self::reserve), but waits until the requests are allowed.
    ///
    /// # Errors
    /// The time is out of range. Nothing is decided.
    pub(crate) async fn reserve_in_turn<'r>(
        &self,
        requests: &'r [Request<'r>],
        options: HoldOptions<'_>,
        turn: TurnTerms,
    ) -> Result<Reserved<'r>, Error> {
        let engine = self.engine;
        let span_start = engine.observer.span_start();
        let ask = |patience| ReserveInTurn { engine, requests, options, patience };
        let reserved = match engine.take_turn(ask, turn).await {
            Ok(reserved) => reserved?,
            Err(no_turn) => {
                Reserved::denied(engine.store.behind(Some(Verb::Check), requests, &no_turn).await)
            }
        };
        self.record_reserved(&reserved, requests, span_start).await;
        Ok(reserved)
    }
}

impl Engine {
    /// The answer, admitted or denied. An error is a call that waited behind others, or found no place to wait.
    ///
    /// Without a place, a call is decided at once: a client may be a proxy, and those behind it who need not wait are not
    /// denied because of those who do.
    async fn take_turn<A: Ask>(
        &self,
        ask: impl FnOnce(Patience) -> A,
        turn: TurnTerms,
    ) -> Result<A::Answer, NoTurn<A::Answer>> {
        let waits = &self.observer.waits;
        let place = waits.enter(turn.client.peer);
        let may_wait = place.is_some() && !waits.is_ending();
        let ask = ask(if may_wait { turn.patience } else { turn.patience.none() });
        let mut taken = tokio::select! {
            biased;
            taken = self.store.take_turn(&ask) => taken,
            // Its client asks another instance.
            () = waits.ended(), if may_wait => Err(NoTurn::late()),
        };
        if place.is_none() {
            taken = taken.map_err(|no_turn| no_turn.without_place(MAX_WAITING));
        }
        let outcome = match &taken {
            Ok(_) => TurnOutcome::Turn,
            Err(no_turn) if no_turn.is_full() => TurnOutcome::Full,
            Err(_) => TurnOutcome::Late,
        };
        match place {
            Some(place) => place.end(outcome),
            None => waits.count(outcome),
        }
        taken.or_else(|mut no_turn| no_turn.answer.take().ok_or(no_turn))
    }
}

impl<'r> Ask for CheckInTurn<'_, 'r> {
    type Answer = Decisions<'r>;

    fn verb(&self) -> Option<Verb> {
        self.verb
    }

    fn requests(&self) -> &[Request<'_>] {
        self.requests
    }

    fn patience(&self) -> Patience {
        self.patience
    }

    async fn ask(&self) -> Decisions<'r> {
        self.engine.ask(self.verb, self.requests, self.id, true).await
    }

    fn decisions<'a>(answer: &'a Decisions<'r>) -> Option<&'a Decisions<'a>> {
        Some(answer)
    }
}

impl<'r> Ask for ReserveInTurn<'_, 'r> {
    type Answer = Result<Reserved<'r>, Error>;

    fn requests(&self) -> &[Request<'_>] {
        self.requests
    }

    fn patience(&self) -> Patience {
        self.patience
    }

    async fn ask(&self) -> Result<Reserved<'r>, Error> {
        self.engine.ask_to_reserve(self.requests, self.options, true).await
    }

    fn decisions<'a>(answer: &'a Result<Reserved<'r>, Error>) -> Option<&'a Decisions<'a>> {
        answer.as_ref().ok().map(Reserved::decisions)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::slice;
    use std::time::Duration;

    use slidegate::{MemoryStore, Reason};

    use super::*;
    use crate::caller::Protocol;
    use crate::config::{Config, Outside};
    use crate::engine::App;

    /// All clients of a proxy have one address: those who need not wait must not be denied because others of them fill
    /// its places, and those who must wait are denied with the reason. Other addresses still have places.
    #[tokio::test]
    async fn a_client_without_places_is_decided_at_once() {
        let config = Config::from_sources(None, &["2/50s per user".to_owned()], &Outside::default()).unwrap();
        let app = App::over(config, MemoryStore::new(), None).unwrap();
        let client = |peer: &str| Connection {
            peer: Some(peer.parse::<IpAddr>().unwrap()),
            user: None,
            is_local: false,
            is_verified: false,
        };
        let (proxy, other) = (client("192.0.2.1"), client("192.0.2.2"));
        let mut places = Vec::new();
        while let Some(place) = app.observer().waits.enter(proxy.peer) {
            places.push(place);
        }
        assert_eq!(places.len(), MAX_WAITING / 2);
        let call = app.call(Protocol::Http);
        for patience in
            [Patience::AtMost(Duration::from_secs(40)), Patience::OfPolicies(Duration::from_secs(40))]
        {
            let user = format!("{patience:?}");
            let request = Request::new().with("user", &user);
            let ask = async |client| {
                let turn = TurnTerms { patience, client };
                let decided =
                    call.apply_in_turn(Some(Verb::Check), slice::from_ref(&request), None, turn).await;
                decided.strictest().unwrap().decision().reason()
            };
            assert_eq!((ask(proxy).await, ask(proxy).await), (None, None), "{user}");
            let denied = match patience {
                Patience::AtMost(_) => Reason::QueueFull,
                // This policy lets nobody wait.
                Patience::OfPolicies(_) => Reason::OverLimit,
            };
            assert_eq!(ask(proxy).await, Some(denied), "{user}");
            assert_eq!(ask(other).await, Some(Reason::OverLimit), "{user}");
        }
        drop(places);
        assert_eq!(app.observer().waits.now().0, 0);
    }
}
