package slidegate

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	// DefaultTimeout is long for a service nearby, which answers within 1 ms, and within 50 ms if its
	// shared store is down.
	DefaultTimeout = 250 * time.Millisecond
	// DefaultSettleTimeout is how long settlements and cancellations are repeated.
	DefaultSettleTimeout = 5 * time.Second
	// DefaultMaxConnections is enough for 10,000 checks per second that take 5 ms each.
	DefaultMaxConnections = 64
	// DefaultWait is how long Acquire waits if its context has no deadline.
	DefaultWait = 10 * time.Second
	// MaxWait is the longest that Acquire waits.
	MaxWait = 60 * time.Second

	maxRequestBody  = 64 << 10 // the service's bounds
	maxBatchBody    = 256 << 10
	maxBatch        = 1000
	maxResponseBody = 1 << 20
	maxBatchAnswer  = 16 << 20
	maxHeader       = 64 << 10
)

// FailureMode is how a request is decided that the service does not decide.
type FailureMode int

const (
	// FailOpen allows it. This is the default: an outage of the limiter is not one of its users.
	FailOpen FailureMode = iota
	// FailClosed denies it with status 503, for limits that protect more than availability.
	FailClosed
)

// Options of a Client. The zero value is ready for use.
type Options struct {
	// Token is sent as a bearer token, to the host of the base URL only. Redirects are not followed,
	// and proxies of the environment are not used.
	Token string
	// Timeout bounds each call, connecting included. 0 is DefaultTimeout. An earlier deadline of the
	// context wins; a later one does not lengthen the call.
	Timeout time.Duration
	// SettleTimeout bounds how long a final settlement or a cancellation is repeated. 0 is
	// DefaultSettleTimeout.
	SettleTimeout time.Duration
	// OnFailure decides checks, peeks and reservations while the service is unreachable, late, answers
	// with an error, or refuses the token. Requests that it rejects as invalid are always denied.
	OnFailure FailureMode
	// TLS is for https: certificate authorities and client certificates. Nil is the system's.
	TLS *tls.Config
	// MaxConnections bounds the connections, which are kept alive for 30 s. Calls beyond it wait within
	// their timeout. 0 is DefaultMaxConnections. Each call of Acquire that waits has a connection
	// besides, so that checks are not late because of those who wait.
	MaxConnections int
}

// Client calls one slidegate service, or a load balancer in front of several.
type Client struct {
	base          string
	token         string
	timeout       time.Duration
	settleTimeout time.Duration
	onFailure     FailureMode
	http          *http.Client
	// waiting is for calls that take long.
	waiting *http.Client
}

// New returns a client of the service at a base URL: http://127.0.0.1:7979, https://host/prefix, or
// unix:///run/slidegate/http.sock. It does not connect. The error says what is invalid.
func New(baseURL string, options Options) (*Client, error) {
	base, err := url.Parse(baseURL)
	isSocket := err == nil && base.Scheme == "unix" && base.Host == "" && base.Path != ""
	isHTTP := err == nil && (base.Scheme == "http" || base.Scheme == "https") && base.Host != ""
	if !isSocket && !isHTTP || base.User != nil || base.RawQuery != "" || base.Fragment != "" {
		return nil, fmt.Errorf("slidegate: invalid base URL %q: must be like http://127.0.0.1:7979, "+
			"https://host/prefix or unix:///path/to/socket; give tokens in Options.Token", redacted(base))
	}
	if options.Timeout < 0 || options.SettleTimeout < 0 || options.MaxConnections < 0 {
		return nil, errors.New("slidegate: invalid options: timeouts and connections must not be negative; " +
			"leave them out for the defaults")
	}
	if !isVisible(options.Token) {
		return nil, errors.New("slidegate: invalid token: must be visible ASCII characters; " +
			"remove spaces and the end of the line")
	}
	connections := orDefault(options.MaxConnections, DefaultMaxConnections)
	dialer := &net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}
	transport := &http.Transport{
		DialContext:            dialer.DialContext,
		TLSClientConfig:        options.TLS,
		MaxConnsPerHost:        connections,
		MaxIdleConnsPerHost:    connections,
		IdleConnTimeout:        30 * time.Second, // the service closes idle connections after 75 s
		MaxResponseHeaderBytes: maxHeader,
		DisableCompression:     true,
		// HTTP/1.1 only: a call that times out then costs its connection, so a dead one is not used again.
		TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
	}
	text := strings.TrimRight(baseURL, "/")
	if isSocket {
		text = "http://localhost"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", base.Path)
		}
	}
	waiting := transport.Clone()
	waiting.MaxConnsPerHost = 0
	return &Client{
		base:          text,
		token:         options.Token,
		timeout:       orDefault(options.Timeout, DefaultTimeout),
		settleTimeout: orDefault(options.SettleTimeout, DefaultSettleTimeout),
		onFailure:     options.OnFailure,
		http:          &http.Client{Transport: transport, CheckRedirect: noRedirect},
		waiting:       &http.Client{Transport: waiting, CheckRedirect: noRedirect},
	}, nil
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Close closes idle connections. The client remains usable.
func (c *Client) Close() {
	c.http.CloseIdleConnections()
	c.waiting.CloseIdleConnections()
}

// Attributes are what policies count by and match, such as user, ip, method and path. Values are UTF-8.
type Attributes map[string]string

// Request is what is decided.
type Request struct {
	Attributes Attributes `json:"attributes"`
	// Cost is Units or Costs. Nil is 1, or in a reservation the estimate of each policy.
	Cost Cost `json:"cost,omitempty"`
	// Policy, if not empty, is the only policy that decides.
	Policy string `json:"policy,omitempty"`
	// IdempotencyKey, if not empty, makes a check or reservation safe to repeat: 1 to 128 visible ASCII
	// characters, unique to this request. Other calls reject it.
	IdempotencyKey string `json:"-"`
}

// withAttributes is the request with an object of attributes, which the service requires.
func (r Request) withAttributes() Request {
	if r.Attributes == nil {
		r.Attributes = Attributes{}
	}
	return r
}

// Cost is Units or Costs.
type Cost interface{ isCost() }

// Units is a cost that counts under every policy, up to 2^53-1.
type Units uint64

// Costs are up to 16 costs by name, such as {"input": 900, "output": 4096}.
type Costs map[string]uint64

func (Units) isCost() {}
func (Costs) isCost() {}

// Check decides a request, and charges it if it is allowed. A request that is cancelled by its context
// is never allowed, but may have been charged.
func (c *Client) Check(ctx context.Context, r Request) Decision {
	d, _ := c.decideOrFail(ctx, question{path: "/v1/check", request: r})
	return d
}

// Peek decides a request without charging it.
func (c *Client) Peek(ctx context.Context, r Request) Decision {
	d, _ := c.decideOrFail(ctx, question{path: "/v1/peek", request: r})
	return d
}

// CheckBatch decides up to 1000 requests, one after the other, in one call. If one of them is invalid,
// none is decided. There are always as many decisions as requests.
func (c *Client) CheckBatch(ctx context.Context, requests []Request) []Decision {
	decisions, err := c.batch(ctx, requests)
	if err == nil {
		return decisions
	}
	decisions = make([]Decision, len(requests))
	for i := range decisions {
		decisions[i] = c.failed(err, errors.Is(ctx.Err(), context.Canceled))
	}
	return decisions
}

// Refund returns cost that was charged and still counts. Decision.Cost is what was refunded under the
// strictest policy. It is not safe to repeat: repeated, it refunds again. Refund, Penalize and Reset
// need a token unless the service is on loopback without tokens. Their errors are *Error.
func (c *Client) Refund(ctx context.Context, r Request) (Decision, error) {
	return c.change(ctx, "/v1/refund", r)
}

// Penalize charges a cost even if it exceeds the limit.
func (c *Client) Penalize(ctx context.Context, r Request) (Decision, error) {
	return c.change(ctx, "/v1/penalize", r)
}

// Reset clears the usage of the keys of a request, and reports whether there was any.
func (c *Client) Reset(ctx context.Context, r Request) (existed bool, err error) {
	var answer struct {
		Existed *bool `json:"existed"`
	}
	if e := r.validate("/v1/reset", ""); e != nil {
		return false, e
	}
	if e := c.ask(ctx, call{path: "/v1/reset", body: r.withAttributes()}, &answer); e != nil {
		return false, e
	}
	if answer.Existed == nil {
		return false, invalidResponse(http.StatusOK, "it has no member `existed`")
	}
	return *answer.Existed, nil
}

// Key is the usage of one key under one policy.
type Key struct {
	Policy, Key string
	// Usage.RetryAfter and Never are about cost 1.
	Usage
	Window    time.Duration
	Algorithm string
	// OpenHolds is the number of open reservations.
	OpenHolds int
	// Reason is why cost 1 is denied now, if it is.
	Reason Reason
}

// Inspect returns the usage of a key, as decisions print it. It needs a token with scope read, unless
// the service is on loopback without tokens.
func (c *Client) Inspect(ctx context.Context, policy, key string) (Key, error) {
	var w struct {
		wireUsage
		Policy    string `json:"policy"`
		Key       string `json:"key"`
		WindowMS  uint64 `json:"window_ms"`
		Algorithm string `json:"algorithm"`
		OpenHolds int    `json:"open_holds"`
		Reason    Reason `json:"reason"`
	}
	path := "/v1/keys/" + url.PathEscape(policy) + "/" + url.PathEscape(key)
	if err := c.ask(ctx, call{method: http.MethodGet, path: path}, &w); err != nil {
		return Key{}, err
	}
	return Key{w.Policy, w.Key, w.usage(), millis(w.WindowMS), w.Algorithm, w.OpenHolds, w.Reason}, nil
}

// question is a request, and how it is to be decided.
type question struct {
	path    string
	request Request
	// ttl is that of a reservation.
	ttl time.Duration
	// wait is how long the service may wait before it decides. Nil for calls that do not wait. That of a
	// reservation is in whole seconds.
	wait *time.Duration
}

// decideOrFail decides a request, if necessary without the service.
func (c *Client) decideOrFail(ctx context.Context, q question) (Decision, ticketMembers) {
	w, header, err := c.decide(ctx, q)
	if err != nil {
		// Who waits until the last moment has not found the service failing.
		hasGivenUp := errors.Is(ctx.Err(), context.Canceled) || q.wait != nil && ctx.Err() != nil
		return c.failed(err, hasGivenUp), ticketMembers{}
	}
	return w.decision(header), w.ticketMembers
}

// decide returns what the service decides.
func (c *Client) decide(ctx context.Context, q question) (*wireDecision, http.Header, *Error) {
	if err := q.request.validate(q.path, ""); err != nil {
		return nil, nil, err
	}
	body := struct {
		Request
		TTL       string `json:"ttl,omitempty"`
		TimeoutMS *int64 `json:"timeout_ms,omitempty"`
	}{Request: q.request.withAttributes(), TTL: ttlText(q.ttl)}
	call := call{path: q.path, idempotencyKey: q.request.IdempotencyKey}
	if q.wait != nil {
		call.wait, call.isWaiting = *q.wait, true
		if q.path == "/v1/reserve" {
			call.prefer = fmt.Sprintf("wait=%d", *q.wait/time.Second)
		} else {
			ms := q.wait.Milliseconds()
			body.TimeoutMS = &ms
		}
	}
	call.body = body
	reply, err := c.send(ctx, call)
	if err != nil {
		return nil, nil, err
	}
	switch reply.status {
	case http.StatusOK, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		w, parseErr := parseDecision(reply.body)
		if parseErr == nil {
			return w, reply.header, nil
		}
		if reply.status == http.StatusOK {
			return nil, nil, invalidResponse(reply.status, "the body is not a decision: "+parseErr.Error())
		}
	}
	return nil, nil, responseError(reply.status, reply.body)
}

// change is a call that takes a request and is not decided without the service.
func (c *Client) change(ctx context.Context, path string, r Request) (Decision, error) {
	w, header, err := c.decide(ctx, question{path: path, request: r})
	if err != nil {
		return Decision{Err: err}, err
	}
	return w.decision(header), nil
}

func (c *Client) batch(ctx context.Context, requests []Request) ([]Decision, *Error) {
	if len(requests) > maxBatch {
		return nil, invalidRequest("requests", fmt.Sprintf("there are %d requests; give at most %d", len(requests), maxBatch))
	}
	for i, r := range requests {
		if err := r.validate("/v1/check/batch", fmt.Sprintf("requests[%d].", i)); err != nil {
			return nil, err
		}
	}
	if len(requests) == 0 {
		return nil, nil
	}
	var answer struct {
		Decisions []wireDecision `json:"decisions"`
	}
	body := make([]Request, len(requests))
	for i := range requests {
		body[i] = requests[i].withAttributes()
	}
	batch := call{path: "/v1/check/batch", body: map[string][]Request{"requests": body}, isBatch: true}
	if err := c.ask(ctx, batch, &answer); err != nil {
		return nil, err
	}
	if len(answer.Decisions) != len(requests) {
		detail := fmt.Sprintf("%d decisions for %d requests", len(answer.Decisions), len(requests))
		return nil, invalidResponse(http.StatusOK, detail)
	}
	decisions := make([]Decision, len(requests))
	for i := range decisions {
		if answer.Decisions[i].Allowed == nil {
			return nil, invalidResponse(http.StatusOK, errNoDecision.Error())
		}
		decisions[i] = answer.Decisions[i].decision(nil)
	}
	return decisions, nil
}

// failed is the decision about a request that the service did not decide.
func (c *Client) failed(err *Error, hasGivenUp bool) Decision {
	d := Decision{Err: err, Why: err.Error(), Header: http.Header{}}
	switch {
	case err.isInvalid():
		d.Source = SourceInvalid
		status, detail := http.StatusInternalServerError, "The request could not be counted."
		if strings.HasPrefix(err.Field, "attributes") || err.Field == "Idempotency-Key" {
			status, detail = http.StatusBadRequest, "The request has a value that cannot be counted."
		}
		d.Problem = &Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail}
		return d
	case hasGivenUp:
		// A client that disconnects at once must not get its request done uncounted.
		d.Source = SourceCanceled
	case c.onFailure == FailOpen:
		d.Source, d.Allowed = SourceFailOpen, true
		return d
	default:
		d.Source, d.Reason = SourceFailClosed, ReasonStoreUnavailable
		// At random, so that clients do not retry all at once.
		seconds := 1 + rand.Intn(3)
		d.RetryAfter = time.Duration(seconds) * time.Second
		d.Header.Set("Retry-After", fmt.Sprint(seconds))
	}
	d.Problem = &Problem{
		Type:   problemTypes + codeReducedCapacity,
		Title:  "Request cannot be satisfied due to temporary server capacity constraints",
		Status: http.StatusServiceUnavailable,
		Detail: "The limits of this request cannot be checked at the moment.",
	}
	return d
}

// call is one request to the service.
type call struct {
	method         string // default: POST
	path           string
	body           any
	idempotencyKey string
	isBatch        bool
	// isWaiting calls are answered within wait, and the time of any other call.
	isWaiting bool
	wait      time.Duration
	prefer    string
}

type reply struct {
	status int
	header http.Header
	body   []byte
}

// ask sends a call whose only answer is 200 with this JSON.
func (c *Client) ask(ctx context.Context, call call, answer any) *Error {
	reply, err := c.send(ctx, call)
	if err != nil {
		return err
	}
	if reply.status != http.StatusOK {
		return responseError(reply.status, reply.body)
	}
	if err := json.Unmarshal(reply.body, answer); err != nil {
		return invalidResponse(reply.status, "the body is not the expected JSON: "+err.Error())
	}
	return nil
}

// send makes one attempt, within the timeout and the bounds on bodies.
func (c *Client) send(ctx context.Context, call call) (*reply, *Error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout+call.wait)
	defer cancel()
	client := c.http
	if call.isWaiting {
		client = c.waiting
	}
	mostSent, mostRead := maxRequestBody, int64(maxResponseBody)
	if call.isBatch {
		mostSent, mostRead = maxBatchBody, maxBatchAnswer
	}
	method, body := http.MethodPost, new(bytes.Buffer)
	if call.method != "" {
		method = call.method
	}
	if call.body != nil {
		encoder := json.NewEncoder(body)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(call.body); err != nil {
			return nil, invalidRequest("", err.Error())
		}
	}
	if body.Len() > mostSent {
		// The service would close the connection, which looks like an outage.
		return nil, invalidRequest("attributes", fmt.Sprintf("the body has %d bytes; give at most %d", body.Len(), mostSent))
	}
	request, err := http.NewRequestWithContext(ctx, method, c.base+call.path, body)
	if err != nil {
		return nil, invalidRequest("", err.Error())
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "slidegate-go")
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	if call.idempotencyKey != "" {
		request.Header.Set("Idempotency-Key", call.idempotencyKey)
	}
	if call.prefer != "" {
		request.Header.Set("Prefer", call.prefer)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, failure(err)
	}
	defer response.Body.Close()
	read, err := io.ReadAll(io.LimitReader(response.Body, mostRead+1))
	if err != nil {
		return nil, failure(err)
	}
	if int64(len(read)) > mostRead {
		return nil, invalidResponse(response.StatusCode, fmt.Sprintf("the body has more than %d bytes", mostRead))
	}
	return &reply{response.StatusCode, response.Header, read}, nil
}

// validate rejects what JSON and header fields cannot carry. Prefix is that of the field in errors.
func (r Request) validate(path, prefix string) *Error {
	takesKey := path == "/v1/check" || path == "/v1/acquire" || path == "/v1/reserve"
	if r.IdempotencyKey != "" && !takesKey {
		return invalidRequest("Idempotency-Key", "only Check, Acquire and Reserve take an idempotency key; leave it out")
	}
	if !isVisible(r.IdempotencyKey) || len(r.IdempotencyKey) > 128 {
		return invalidRequest("Idempotency-Key", "the idempotency key must be 1 to 128 visible ASCII characters")
	}
	for name, value := range r.Attributes {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			// Encoded as JSON, different bytes would become one key.
			name = strings.ToValidUTF8(name, "\uFFFD")
			detail := fmt.Sprintf("attribute %q is not UTF-8; encode it, for example as hex", name)
			return invalidRequest(prefix+"attributes."+name, detail)
		}
	}
	return nil
}

// isVisible is whether all characters are visible ASCII.
func isVisible(text string) bool {
	return strings.IndexFunc(text, func(r rune) bool { return r < '!' || r > '~' }) < 0
}

func orDefault[T int | time.Duration](value, byDefault T) T {
	if value == 0 {
		return byDefault
	}
	return value
}

func redacted(base *url.URL) string {
	if base == nil {
		return ""
	}
	return base.Redacted()
}
