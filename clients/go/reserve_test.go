package slidegate_test

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	slidegate "example.com/slidegate/clients/go"
	"example.com/slidegate/clients/go/slidegatetest"
)

const tokensAndStreams = `
policies:
  - {name: tokens, scope: [user], quota: 2_000/1h}
  - {name: streams, scope: [user], in_flight: 2, lease: 30s}
  - {name: requests, scope: [user], quota: 100/1h, counts: requests}
`

func startWith(t testing.TB, yaml string) *slidegatetest.Service {
	t.Helper()
	config := filepath.Join(t.TempDir(), "slidegate.yaml")
	if err := os.WriteFile(config, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	return slidegatetest.Start(t, "--config", config)
}

func reserve(name string, cost uint64) slidegate.ReserveRequest {
	r := slidegate.ReserveRequest{Request: user(name)}
	r.Cost = slidegate.Units(cost)
	return r
}

// usage of a user under one policy: used, held.
func usage(t *testing.T, client *slidegate.Client, policy, user string) [2]uint64 {
	t.Helper()
	key, err := client.Inspect(ctx, policy, user)
	if err != nil {
		t.Fatal(err)
	}
	return [2]uint64{key.Used, key.Held}
}

// The life of a streamed answer: hold the most, charge what flows, release the rest.
func TestAReservationIsSettledToItsTrueCost(t *testing.T) {
	client := newClient(t, startWith(t, tokensAndStreams).URL, slidegate.Options{})
	r := client.Reserve(ctx, reserve("alice", 1500))
	defer r.Close()
	if !r.Allowed || r.Err != nil || r.Ticket() == "" || time.Until(r.Until()) < 20*time.Second {
		t.Fatalf("%+v", r)
	}
	if got := usage(t, client, "tokens", "alice"); got != [2]uint64{0, 1500} {
		t.Fatal(got)
	}
	if denied := client.Reserve(ctx, reserve("alice", 600)); denied.Allowed || denied.Ticket() != "" || denied.Problem.Status != 429 {
		t.Fatalf("%+v", denied)
	}
	first := r.Ticket()
	s, err := r.SettlePart(ctx, slidegate.Units(128))
	if err != nil || s.Outcome != slidegate.OutcomeChanged || s.Ticket == "" || s.Until.IsZero() || r.Ticket() != s.Ticket {
		t.Fatalf("%+v %v", s, err)
	}
	if got := usage(t, client, "tokens", "alice"); got != [2]uint64{128, 1372} {
		t.Fatal(got)
	}
	s, err = r.Extend(ctx, slidegate.Extension{Hold: slidegate.Units(1800), TTL: 45 * time.Second})
	if err != nil || s.Outcome != slidegate.OutcomeChanged || time.Until(s.Until) < 35*time.Second {
		t.Fatalf("%+v %v", s, err)
	}
	if s, err = r.Extend(ctx, slidegate.Extension{Hold: slidegate.Units(5000)}); err != nil || s.Outcome != slidegate.OutcomeDenied {
		t.Fatalf("%+v %v", s, err)
	}
	s, err = r.Settle(ctx, slidegate.Units(512))
	if err != nil || s.Outcome != slidegate.OutcomeChanged || len(s.Policies) != 2 || s.Policies[0].Cost != 384 {
		t.Fatalf("%+v %v", s, err)
	}
	// Once is enough: neither Close nor another program changes it.
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err := r.Settle(ctx, slidegate.Units(900)); err != nil || s.Outcome != slidegate.OutcomeNone {
		t.Fatalf("%+v %v", s, err)
	}
	if s, err := client.Settle(ctx, first, slidegate.Units(900)); err != nil || s.Outcome != slidegate.OutcomeAlreadySettled {
		t.Fatalf("%+v %v", s, err)
	}
	if got := usage(t, client, "tokens", "alice"); got != [2]uint64{512, 0} {
		t.Fatal(got)
	}
}

// A handler that fails early has used nothing; one that panics midway, what it recorded.
func TestCloseSettlesWhatWasRecordedOrCancels(t *testing.T) {
	client := newClient(t, startWith(t, tokensAndStreams).URL, slidegate.Options{})
	r := client.Reserve(ctx, reserve("early", 1000))
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if tokens, requests := usage(t, client, "tokens", "early"), usage(t, client, "requests", "early"); tokens != [2]uint64{} || requests != [2]uint64{} {
		t.Fatal(tokens, requests)
	}
	func() {
		defer func() { _ = recover() }()
		r := client.Reserve(ctx, reserve("midway", 1000))
		defer r.Close()
		r.Record(slidegate.Units(70))
		panic("the model is gone")
	}()
	if tokens, streams := usage(t, client, "tokens", "midway"), usage(t, client, "streams", "midway"); tokens != [2]uint64{70, 0} || streams != [2]uint64{} {
		t.Fatal(tokens, streams)
	}
	if _, err := client.Cancel(ctx, "no-ticket"); codeOf(t, err) != slidegate.CodeInvalidRequest && codeOf(t, err) != slidegate.CodeNotFound {
		t.Fatal(err)
	}
}

// The request's context ends with its client; the deferred settlement must still be made.
func TestCloseSettlesAfterTheContextHasEnded(t *testing.T) {
	client := newClient(t, startWith(t, tokensAndStreams).URL, slidegate.Options{})
	r := client.Reserve(ctx, reserve("alice", 1000))
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := r.Settle(ended, slidegate.Units(300)); err == nil {
		t.Fatal("settled with a context that has ended")
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if got := usage(t, client, "tokens", "alice"); got != [2]uint64{300, 0} {
		t.Fatal(got)
	}
}

// One call keeps all permits of a process.
func TestExtendAll(t *testing.T) {
	client := newClient(t, startWith(t, tokensAndStreams).URL, slidegate.Options{})
	a, b := client.Reserve(ctx, reserve("a", 1)), client.Reserve(ctx, reserve("b", 1))
	settlements, err := client.ExtendAll(ctx, []string{a.Ticket(), b.Ticket()}, 50*time.Minute)
	if err != nil || len(settlements) != 2 {
		t.Fatalf("%+v %v", settlements, err)
	}
	for _, s := range settlements {
		if s.Outcome != slidegate.OutcomeChanged || time.Until(s.Until) < 45*time.Minute {
			t.Fatalf("%+v", s)
		}
	}
}

// What nobody settles is charged at its end, and a late settlement says so.
func TestAReservationExpires(t *testing.T) {
	client := newClient(t, startWith(t, tokensAndStreams).URL, slidegate.Options{})
	short := reserve("alice", 800)
	short.TTL = 30 * time.Millisecond
	r := client.Reserve(ctx, short)
	if !r.Allowed {
		t.Fatalf("%+v", r)
	}
	deadline := time.Now().Add(20 * time.Second)
	for usage(t, client, "tokens", "alice") != [2]uint64{800, 0} {
		if time.Now().After(deadline) {
			t.Fatal("it is still held")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if s, err := r.Settle(ctx, slidegate.Units(900)); err != nil || s.Outcome != slidegate.OutcomeExpired {
		t.Fatalf("%+v %v", s, err)
	}
	if got := usage(t, client, "tokens", "alice"); got != [2]uint64{900, 0} {
		t.Fatal(got)
	}
}

// A reservation whose answer was lost is made again, and holds once.
func TestAReservationIsRepeatedWithAnIdempotencyKey(t *testing.T) {
	client := newClient(t, startWith(t, tokensAndStreams).URL, slidegate.Options{})
	r := reserve("alice", 500)
	r.IdempotencyKey = "answer-7"
	first, second := client.Reserve(ctx, r), client.Reserve(ctx, r)
	if !second.Allowed || first.Ticket() != second.Ticket() {
		t.Fatalf("%+v", second)
	}
	if got := usage(t, client, "tokens", "alice"); got != [2]uint64{0, 500} {
		t.Fatal(got)
	}
}

// The connection breaks after the service has settled and before the reply arrives: what is repeated
// must charge once.
func TestASettlementWhoseReplyIsLostChargesOnce(t *testing.T) {
	service := startWith(t, tokensAndStreams)
	direct := newClient(t, service.URL, slidegate.Options{})
	var lost atomic.Int64
	lossy := serve(t, func(w http.ResponseWriter, r *http.Request) {
		reply, err := http.Post(service.URL+r.URL.Path, "application/json", r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		defer reply.Body.Close()
		if isChange := r.URL.Path == "/v1/settle" || r.URL.Path == "/v1/cancel"; isChange && lost.Add(1) <= 3 {
			connection, _, _ := w.(http.Hijacker).Hijack()
			connection.Close()
			return
		}
		w.WriteHeader(reply.StatusCode)
		_, _ = io.Copy(w, reply.Body)
	})
	client := newClient(t, lossy.URL, slidegate.Options{})
	r := client.Reserve(ctx, reserve("alice", 1000))
	s, err := r.Settle(ctx, slidegate.Units(400))
	if err != nil || s.Outcome != slidegate.OutcomeAlreadySettled || lost.Load() != 4 {
		t.Fatalf("%+v %v, %d calls", s, err, lost.Load())
	}
	if got := usage(t, direct, "tokens", "alice"); got != [2]uint64{400, 0} {
		t.Fatal(got)
	}
	// A part is not repeated: the next one includes it.
	lost.Store(0)
	r = client.Reserve(ctx, reserve("bob", 1000))
	if _, err := r.SettlePart(ctx, slidegate.Units(100)); codeOf(t, err) != slidegate.CodeUnavailable || lost.Load() != 1 {
		t.Fatalf("%v, %d calls", err, lost.Load())
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if got := usage(t, direct, "tokens", "bob"); got != [2]uint64{100, 0} {
		t.Fatal(got)
	}
}

// A settlement waits for a service that restarts, and no longer than it may.
func TestASettlementIsRepeatedUntilItsDeadline(t *testing.T) {
	service := startWith(t, tokensAndStreams)
	client := newClient(t, service.URL, slidegate.Options{SettleTimeout: 300 * time.Millisecond, Timeout: 100 * time.Millisecond})
	patient := newClient(t, service.URL, slidegate.Options{SettleTimeout: 30 * time.Second, Timeout: time.Second})
	r := patient.Reserve(ctx, reserve("alice", 1000))
	service.Pause()
	asked := time.Now()
	if _, err := client.Settle(ctx, r.Ticket(), slidegate.Units(1)); codeOf(t, err) != slidegate.CodeTimeout {
		t.Fatal(err)
	}
	if took := time.Since(asked); took < 250*time.Millisecond || took > 5*time.Second {
		t.Fatalf("took %v", took)
	}
	soon, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	asked = time.Now()
	if _, err := patient.Settle(soon, r.Ticket(), slidegate.Units(1)); err == nil || time.Since(asked) > 5*time.Second {
		t.Fatal(err, time.Since(asked))
	}
	settled := make(chan error)
	go func() {
		_, err := patient.Settle(ctx, r.Ticket(), slidegate.Units(7))
		settled <- err
	}()
	time.AfterFunc(100*time.Millisecond, service.Resume)
	if err := <-settled; err != nil {
		t.Fatal(err)
	}
	// The largest total counts, whichever arrived first.
	if got := usage(t, patient, "tokens", "alice"); got[1] != 0 || got[0] != 7 && got[0] != 1 {
		t.Fatal(got)
	}
}

// Another store made the ticket: it is no outage, and nothing is repeated.
func TestAnUnknownTicket(t *testing.T) {
	client := newClient(t, startWith(t, tokensAndStreams).URL, slidegate.Options{})
	other := newClient(t, startWith(t, tokensAndStreams).URL, slidegate.Options{})
	r := other.Reserve(ctx, reserve("alice", 1))
	asked := time.Now()
	_, err := client.Settle(ctx, r.Ticket(), slidegate.Units(1))
	if codeOf(t, err) != slidegate.CodeNotFound || time.Since(asked) > 4*time.Second {
		t.Fatal(err)
	}
}

// Without the service, nothing is held, and nothing must be sent later.
func TestAReservationDuringAnOutage(t *testing.T) {
	url := "http://" + freeAddress(t)
	open := newClient(t, url, slidegate.Options{}).Reserve(ctx, reserve("alice", 1))
	if !open.Allowed || open.Source != slidegate.SourceFailOpen || open.Ticket() != "" {
		t.Fatalf("%+v", open)
	}
	if s, err := open.Settle(ctx, slidegate.Units(1)); err != nil || s.Outcome != slidegate.OutcomeNone {
		t.Fatalf("%+v %v", s, err)
	}
	if err := open.Close(); err != nil {
		t.Fatal(err)
	}
	closed := newClient(t, url, slidegate.Options{OnFailure: slidegate.FailClosed}).Reserve(ctx, reserve("alice", 1))
	if closed.Allowed || closed.Problem.Status != 503 || closed.Close() != nil {
		t.Fatalf("%+v", closed)
	}
}

// A settlement that is queued while the store is away is not to be repeated.
func TestAQueuedSettlementIsDone(t *testing.T) {
	var calls atomic.Int64
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		if strings.HasSuffix(r.URL.Path, "reserve") {
			_, _ = io.WriteString(w, `{"allowed": true, "ticket": "t", "until_ms": null}`)
			return
		}
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, `{"outcome": "queued", "policies": []}`)
	})
	r := newClient(t, server.URL, slidegate.Options{}).Reserve(ctx, reserve("alice", 1))
	if s, err := r.Settle(ctx, slidegate.Units(1)); err != nil || s.Outcome != slidegate.OutcomeQueued || r.Close() != nil || calls.Load() != 2 {
		t.Fatalf("%+v %v, %d calls", s, err, calls.Load())
	}
}
