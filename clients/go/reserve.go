package slidegate

import (
	"context"
	"encoding/json"
	"math/rand"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Reservation is a decision, and what it holds if it is allowed. Settle it, or defer Close.
type Reservation struct {
	Decision
	client *Client

	mu       sync.Mutex
	ticket   string
	until    time.Time
	recorded Cost
	ended    bool
}

// ReserveRequest is a Request that holds its cost instead of being charged.
type ReserveRequest struct {
	Request
	// TTL is how long it is held unless it is settled or extended: 1 ms to 1 h. 0 is the service's
	// default, one minute, or the lease of a policy that limits what is in flight.
	TTL time.Duration
	// Wait is how long the request waits for its turn before it is denied, as in Acquire: whole seconds,
	// rounded up, and at most MaxWait. Canceling the context gives the place up.
	Wait time.Duration
}

// Reserve decides a request, and holds its cost if it is allowed. Defer Close at once: it does nothing
// for a request that is denied, or that was allowed without the service.
func (c *Client) Reserve(ctx context.Context, r ReserveRequest) *Reservation {
	q := question{path: "/v1/reserve", request: r.Request, ttl: r.TTL}
	if r.Wait > 0 {
		wait := min(r.Wait+time.Second-1, MaxWait).Truncate(time.Second)
		q.wait = &wait
	}
	d, held := c.decideOrFail(ctx, q)
	reservation := &Reservation{Decision: d, client: c, ended: held.Ticket == ""}
	reservation.keep(held.Ticket, untilOf(held.UntilMS))
	return reservation
}

// Ticket is the text by which any other program settles, extends or cancels the reservation. It is
// empty if nothing is held.
func (r *Reservation) Ticket() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ticket
}

// Until is when the reservation ends by itself; zero if nothing is held.
func (r *Reservation) Until() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.until
}

// Record sets the total cost so far, for Close to settle. It makes no call.
func (r *Reservation) Record(cost Cost) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recorded = cost
}

// Settle charges the total cost and releases the rest. It is repeated until the service answers, the
// context ends, or Options.SettleTimeout is over; repeated settlements charge once. If it fails, Close
// settles the same cost once more.
func (r *Reservation) Settle(ctx context.Context, cost Cost) (Settlement, error) {
	r.Record(cost)
	return r.end(func(ticket string) (Settlement, error) { return r.client.Settle(ctx, ticket, cost) })
}

// SettlePart charges the total cost so far, keeps the rest held, and restarts the time. It is one
// attempt: if it fails, the next one includes it.
func (r *Reservation) SettlePart(ctx context.Context, cost Cost) (Settlement, error) {
	r.Record(cost)
	return r.goOn(func(ticket string) (Settlement, error) { return r.client.SettlePart(ctx, ticket, cost) })
}

// Extend restarts the time, or changes it or what is held. A denial is no error: see
// Settlement.Outcome. It is one attempt.
func (r *Reservation) Extend(ctx context.Context, e Extension) (Settlement, error) {
	return r.goOn(func(ticket string) (Settlement, error) { return r.client.Extend(ctx, ticket, e) })
}

// Cancel releases everything, and refunds policies that count requests: the request did not run.
func (r *Reservation) Cancel(ctx context.Context) (Settlement, error) {
	return r.end(func(ticket string) (Settlement, error) { return r.client.Cancel(ctx, ticket) })
}

// Close settles what was recorded, or cancels if nothing was. It does nothing after Settle or Cancel.
// It does not use the context of the request, which may have ended. On an error, the reservation ends
// by its TTL.
func (r *Reservation) Close() error {
	r.mu.Lock()
	ended, recorded := r.ended, r.recorded
	r.mu.Unlock()
	var err error
	switch {
	case ended:
	case recorded != nil:
		_, err = r.Settle(context.Background(), recorded)
	default:
		_, err = r.Cancel(context.Background())
	}
	return err
}

// end makes the last change. After one that succeeded, there is none.
func (r *Reservation) end(change func(ticket string) (Settlement, error)) (Settlement, error) {
	r.mu.Lock()
	ticket, ended := r.ticket, r.ended
	r.mu.Unlock()
	if ended {
		return Settlement{Outcome: OutcomeNone}, nil
	}
	s, err := change(ticket)
	if err == nil {
		r.mu.Lock()
		r.ended = true
		r.mu.Unlock()
	}
	return s, err
}

func (r *Reservation) goOn(change func(ticket string) (Settlement, error)) (Settlement, error) {
	r.mu.Lock()
	ticket, ended := r.ticket, r.ended
	r.mu.Unlock()
	if ended {
		return Settlement{Outcome: OutcomeNone}, nil
	}
	s, err := change(ticket)
	if err == nil && s.Ticket != "" {
		r.keep(s.Ticket, s.Until)
	}
	return s, err
}

// keep remembers the ticket of the last answer.
func (r *Reservation) keep(ticket string, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ticket, r.until = ticket, until
}

// Settlement is what a change of a reservation came to.
type Settlement struct {
	Outcome SettlementOutcome
	// Policies is what the change came to under each policy that held cost.
	Policies []SettledPolicy
	// Ticket is for the next change, if the reservation stays open. Older ones remain valid meanwhile.
	Ticket string
	// Until is when it ends by itself; zero if it does not stay open.
	Until time.Time
}

// SettledPolicy is a key after a change.
type SettledPolicy struct {
	Policy  string
	Outcome SettlementOutcome
	Usage
}

// SettlementOutcome is the outcome of a change.
type SettlementOutcome string

const (
	OutcomeChanged        SettlementOutcome = "changed"
	OutcomeAlreadySettled SettlementOutcome = "already_settled" // nothing was charged again
	OutcomeExpired        SettlementOutcome = "expired"         // its time was over; charged is what was not then
	OutcomeDenied         SettlementOutcome = "denied"          // an extension that does not fit; unchanged
	OutcomeQueued         SettlementOutcome = "queued"          // the service makes the change when its store is back
	OutcomeNone           SettlementOutcome = "none"            // nothing is held, so nothing was sent
)

// Extension is how a reservation is extended.
type Extension struct {
	// Hold is the total to hold from now on. Nil leaves it.
	Hold Cost
	// TTL is how long it lasts from now on. 0 is as before.
	TTL time.Duration
}

// Settle settles a reservation by its ticket, as Reservation.Settle does. The error is an *Error, with
// CodeNotFound if the store does not know the ticket.
func (c *Client) Settle(ctx context.Context, ticket string, cost Cost) (Settlement, error) {
	return c.repeat(ctx, "/v1/settle", ticketCall{Ticket: ticket, Cost: costOrZero(cost)})
}

// SettlePart settles in part by a ticket, as Reservation.SettlePart does.
func (c *Client) SettlePart(ctx context.Context, ticket string, cost Cost) (Settlement, error) {
	final := false
	return asResult(c.changeTicket(ctx, "/v1/settle", ticketCall{Ticket: ticket, Cost: costOrZero(cost), Final: &final}))
}

// Extend extends by a ticket, as Reservation.Extend does.
func (c *Client) Extend(ctx context.Context, ticket string, e Extension) (Settlement, error) {
	return asResult(c.changeTicket(ctx, "/v1/extend", ticketCall{Ticket: ticket, Hold: e.Hold, TTL: ttlText(e.TTL)}))
}

// ExtendAll extends up to 256 reservations in one call, for example all that a process has open. TTL 0
// is as before. There are as many settlements as tickets, in their order.
func (c *Client) ExtendAll(ctx context.Context, tickets []string, ttl time.Duration) ([]Settlement, error) {
	var answer struct {
		Reservations []wireSettlement `json:"reservations"`
	}
	body := struct {
		Tickets []string `json:"tickets"`
		TTL     string   `json:"ttl,omitempty"`
	}{tickets, ttlText(ttl)}
	if err := c.ask(ctx, call{path: "/v1/extend", body: body}, &answer); err != nil {
		return nil, err
	}
	if len(answer.Reservations) != len(tickets) {
		return nil, invalidResponse(http.StatusOK, "there is not one settlement for each ticket")
	}
	settlements := make([]Settlement, len(tickets))
	for i := range settlements {
		settlements[i] = answer.Reservations[i].settlement()
	}
	return settlements, nil
}

// Cancel cancels by a ticket, as Reservation.Cancel does.
func (c *Client) Cancel(ctx context.Context, ticket string) (Settlement, error) {
	return c.repeat(ctx, "/v1/cancel", ticketCall{Ticket: ticket})
}

type ticketCall struct {
	Ticket string `json:"ticket"`
	Cost   Cost   `json:"cost,omitempty"`
	Final  *bool  `json:"final,omitempty"`
	Hold   Cost   `json:"hold,omitempty"`
	TTL    string `json:"ttl,omitempty"`
}

type wireSettlement struct {
	Outcome  SettlementOutcome `json:"outcome"`
	Policies []struct {
		Policy string            `json:"policy"`
		Status SettlementOutcome `json:"status"`
		wireUsage
	} `json:"policies"`
	ticketMembers
}

func (w *wireSettlement) settlement() Settlement {
	s := Settlement{Outcome: w.Outcome, Ticket: w.Ticket, Until: untilOf(w.UntilMS)}
	for _, one := range w.Policies {
		s.Policies = append(s.Policies, SettledPolicy{one.Policy, one.Status, one.usage()})
	}
	return s
}

// repeat sends a change until it is answered: the ticket makes it safe to repeat.
func (c *Client) repeat(ctx context.Context, path string, body ticketCall) (Settlement, error) {
	ctx, cancel := context.WithTimeout(ctx, c.settleTimeout)
	defer cancel()
	for pause := 20 * time.Millisecond; ; pause *= 2 {
		s, err := c.changeTicket(ctx, path, body)
		if err == nil || !err.mayRepeat() || ctx.Err() != nil {
			return asResult(s, err)
		}
		if pause > 500*time.Millisecond {
			pause = 500 * time.Millisecond
		}
		select {
		case <-ctx.Done():
			return s, err
		case <-time.After(pause/2 + time.Duration(rand.Int63n(int64(pause)))):
		}
	}
}

// changeTicket makes one attempt.
func (c *Client) changeTicket(ctx context.Context, path string, body ticketCall) (Settlement, *Error) {
	reply, err := c.send(ctx, call{path: path, body: body})
	if err != nil {
		return Settlement{}, err
	}
	switch reply.status {
	case http.StatusOK, http.StatusAccepted, http.StatusTooManyRequests:
		w := new(wireSettlement)
		if err := json.Unmarshal(reply.body, w); err == nil && w.Outcome != "" {
			return w.settlement(), nil
		}
		if reply.status != http.StatusTooManyRequests {
			return Settlement{}, invalidResponse(reply.status, "the body is not a settlement")
		}
	}
	return Settlement{}, responseError(reply.status, reply.body)
}

// asResult avoids an error that is a nil *Error.
func asResult(s Settlement, err *Error) (Settlement, error) {
	if err != nil {
		return s, err
	}
	return s, nil
}

// costOrZero makes a missing cost 0, which settlements must say.
func costOrZero(cost Cost) Cost {
	if cost == nil {
		return Units(0)
	}
	return cost
}

// ttlText rounds up to milliseconds.
func ttlText(ttl time.Duration) string {
	if ttl == 0 {
		return ""
	}
	ms := ttl.Milliseconds()
	if ttl%time.Millisecond > 0 {
		ms++
	}
	return strconv.FormatInt(ms, 10) + "ms"
}

func untilOf(ms *uint64) time.Time {
	if ms == nil {
		return time.Time{}
	}
	return time.UnixMilli(int64(*ms))
}
