package slidegate

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"
)

// Decision is the answer to one request.
type Decision struct {
	// Outcome is that of the strictest policy. Its numbers are 0 if no policy applies, or if the
	// service did not decide.
	Outcome
	// Why is the decision in a sentence, for operators: it may name tokens and stores. Clients get
	// Problem.Detail.
	Why string
	// Policies are the decisions of all policies that apply.
	Policies []PolicyDecision
	// Problem is the body for the client of a request that is not allowed; otherwise nil.
	Problem *Problem
	// Header has the fields for the client, as the service is configured: RateLimit, RateLimit-Policy,
	// X-RateLimit-..., and Retry-After. Decisions of a batch have none.
	Header http.Header
	// Err is an *Error if the service did not decide: Source then says how the client did.
	Err error
}

// PolicyDecision is the decision of one policy.
type PolicyDecision struct {
	Outcome
	// Enforced is false for a shadow policy, whose denials deny nothing.
	Enforced bool
	// Window is the window of the policy, or the lease of one that limits what is in flight.
	Window time.Duration
}

// Outcome is what a decision says about a key.
type Outcome struct {
	Allowed bool
	// Policy is empty if no enforced policy applies.
	Policy string
	// Key is the values of the policy's scope, joined by commas.
	Key string
	Usage
	Source Source
	// Reason is empty if the request is allowed.
	Reason Reason
	// Block is nil if the key is not blocked by an operator.
	Block *Block
}

// Usage is the state of a key, in whole units of cost: under a policy that weighs costs, what is used, held or
// charged is rounded up, and what remains down.
type Usage struct {
	Limit, Used uint64
	// Held is what open reservations hold. Remaining is without it.
	Held, Remaining uint64
	// Cost is what this call charged, refunded or released.
	Cost uint64
	// RetryAfter is the time until the same cost fits; 0 if it is allowed, or if it never fits.
	RetryAfter time.Duration
	// Never is true if no wait helps: the cost exceeds the limit, or a block has no end.
	Never bool
	// ResetAfter is the time until the key is unused again.
	ResetAfter time.Duration
}

// Source says where a decision comes from.
type Source string

// The first six are those of the service. Empty means that no policy applies.
const (
	SourceStore  Source = "store"  // the store counted
	SourceCached Source = "cached" // a denial of the store that is still valid
	SourceLeased Source = "leased" // a slice of the limit that the instance leases from the store
	SourceLocal  Source = "local"  // fallback of a policy without its shared store
	SourceAllow  Source = "allow"  // fallback
	SourceDeny   Source = "deny"   // fallback

	SourceFailOpen   Source = "fail_open"   // allowed by this client, as the service did not decide
	SourceFailClosed Source = "fail_closed" // denied by this client, as the service did not decide
	SourceInvalid    Source = "invalid"     // denied by this client, as the service rejects the request
	SourceCanceled   Source = "canceled"    // denied by this client, as the caller canceled the context; of Acquire also if its deadline passed
)

// Reason is why a request is denied.
type Reason string

const (
	ReasonOverLimit        Reason = "over_limit"
	ReasonBlocked          Reason = "blocked"
	ReasonQueueFull        Reason = "queue_full" // too many wait for the same key
	ReasonTooManyHolds     Reason = "too_many_holds"
	ReasonStoreFull        Reason = "store_full"
	ReasonStoreUnavailable Reason = "store_unavailable"
)

// Block is an operator's block of a key.
type Block struct {
	// Until is nil if the block has no end.
	Until *time.Time `json:"until"`
	// By is the name of the token that set it.
	By string `json:"by"`
}

// Problem is a body of application/problem+json (RFC 9457). It has nothing that only operators may see.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// ViolatedPolicies are the names of the policies that deny.
	ViolatedPolicies []string `json:"violated-policies,omitempty"`
}

// The types of problems, https://iana.org/assignments/http-problem-types.
const (
	problemTypes = "https://iana.org/assignments/http-problem-types#"

	codeReducedCapacity = "temporary-reduced-capacity"
)

// wireDecision is a decision as the service sends it.
type wireDecision struct {
	wireOutcome
	Why      string `json:"why"`
	Policies []struct {
		wireOutcome
		Enforced bool   `json:"enforced"`
		WindowMS uint64 `json:"window_ms"`
	} `json:"policies"`
	Problem
	ticketMembers
}

type ticketMembers struct {
	Ticket  string  `json:"ticket"`
	UntilMS *uint64 `json:"until_ms"`
}

type wireOutcome struct {
	// Allowed is nil if the body is not a decision.
	Allowed *bool  `json:"allowed"`
	Policy  string `json:"policy"`
	Key     string `json:"key"`
	wireUsage
	Source Source `json:"source"`
	Reason Reason `json:"reason"`
	Block  *Block `json:"block"`
}

type wireUsage struct {
	Limit        amount  `json:"limit"`
	Used         amount  `json:"used"`
	Held         amount  `json:"held"`
	Remaining    amount  `json:"remaining"`
	Cost         amount  `json:"cost"`
	RetryAfterMS *uint64 `json:"retry_after_ms"`
	ResetAfterMS uint64  `json:"reset_after_ms"`
}

func (w *wireDecision) decision(header http.Header) Decision {
	d := Decision{Outcome: w.outcome(), Why: w.Why, Header: limitFields(header)}
	d.Policies = make([]PolicyDecision, len(w.Policies))
	for i := range w.Policies {
		one := &w.Policies[i]
		d.Policies[i] = PolicyDecision{one.outcome(), one.Enforced, millis(one.WindowMS)}
	}
	if !d.Allowed {
		problem := w.Problem
		d.Problem = &problem
	}
	return d
}

func (w *wireOutcome) outcome() Outcome {
	return Outcome{
		Allowed: w.Allowed != nil && *w.Allowed, Policy: w.Policy, Key: w.Key, Usage: w.usage(),
		Source: w.Source, Reason: w.Reason, Block: w.Block,
	}
}

func (w *wireUsage) usage() Usage {
	u := Usage{
		Limit: w.Limit.floor(), Used: w.Used.ceil(), Held: w.Held.ceil(),
		Remaining: w.Remaining.floor(), Cost: w.Cost.ceil(),
		ResetAfter: millis(w.ResetAfterMS), Never: w.RetryAfterMS == nil,
	}
	if !u.Never {
		u.RetryAfter = millis(*w.RetryAfterMS)
	}
	return u
}

// amount has decimals under policies that weigh costs.
type amount float64

func (a *amount) UnmarshalJSON(text []byte) error {
	var number float64
	if err := json.Unmarshal(text, &number); err != nil {
		return err
	}
	if number < 0 {
		return fmt.Errorf("amount %s: must be 0 or more", text)
	}
	*a = amount(number)
	return nil
}

func (a amount) floor() uint64 { return units(math.Floor(float64(a))) }

func (a amount) ceil() uint64 { return units(math.Ceil(float64(a))) }

// units saturates.
func units(whole float64) uint64 {
	if whole >= math.MaxUint64 {
		return math.MaxUint64
	}
	return uint64(whole)
}

// millis saturates: 292 years are as good as any longer time.
func millis(ms uint64) time.Duration {
	if ms > math.MaxInt64/uint64(time.Millisecond) {
		return math.MaxInt64
	}
	return time.Duration(ms) * time.Millisecond
}

// limitFields are those header fields of a response that are for the client of the limited request.
func limitFields(header http.Header) http.Header {
	fields := http.Header{}
	for name, values := range header {
		if name == "Retry-After" || strings.Contains(name, "Ratelimit") {
			fields[name] = values
		}
	}
	return fields
}

// parseDecision fails if the body is not a decision.
func parseDecision(body []byte) (*wireDecision, error) {
	w := new(wireDecision)
	if err := json.Unmarshal(body, w); err != nil {
		return nil, err
	}
	if w.Allowed == nil {
		return nil, errNoDecision
	}
	return w, nil
}
