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
        let engine = self.engine;
        let span_start = engine.observer.span_start();
        let ask = CheckInTurn { engine, verb, requests, id, patience: turn.patience };
        let decisions = match engine.take_turn(&ask, turn.client).await {
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
        let ask = ReserveInTurn { engine, requests, options, patience: turn.patience };
        let reserved = match engine.take_turn(&ask, turn.client).await {
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
    /// The answer, admitted or denied. An error is one that waited behind others, or not at all.
    async fn take_turn<A: Ask>(&self, ask: &A, client: Connection) -> Result<A::Answer, NoTurn<A::Answer>> {
        let Some(place) = self.observer.waits.enter(client.peer) else {
            return Err(NoTurn::full(MAX_WAITING));
        };
        match self.store.take_turn(ask).await {
            Ok(answer) => {
                place.end(TurnOutcome::Turn);
                Ok(answer)
            }
            Err(mut no_turn) => {
                place.end(if no_turn.is_full() { TurnOutcome::Full } else { TurnOutcome::Late });
                no_turn.answer.take().ok_or(no_turn)
            }
        }
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
