package slidegate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	slidegate "example.com/slidegate/clients/go"
)

// askedWait is a server that allows, and says how long each call may wait.
func askedWait(t *testing.T) (url string, waits chan time.Duration) {
	waits = make(chan time.Duration, 1)
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			TimeoutMS *int64 `json:"timeout_ms"`
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.TimeoutMS == nil || r.URL.Path != "/v1/acquire" {
			t.Errorf("%s: %v", r.URL.Path, err)
			return
		}
		waits <- time.Duration(*body.TimeoutMS) * time.Millisecond
		fmt.Fprint(w, `{"allowed": true}`)
	})
	return server.URL, waits
}

// within is a context with a deadline, or without one if nothing is left.
func within(left time.Duration) (context.Context, context.CancelFunc) {
	if left == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, left)
}

// The answer must be able to arrive before the deadline: the service waits a little less.
func TestAcquireWaitsUntilTheDeadlineOfItsContext(t *testing.T) {
	url, waits := askedWait(t)
	client := newClient(t, url, slidegate.Options{Timeout: 5 * time.Second})
	for name, one := range map[string]struct{ left, least, most time.Duration }{
		"none":      {0, slidegate.DefaultWait, slidegate.DefaultWait},
		"40 s":      {40 * time.Second, 25 * time.Second, 36 * time.Second},
		"two hours": {2 * time.Hour, slidegate.MaxWait, slidegate.MaxWait},
	} {
		ctx, cancel := within(one.left)
		d := client.Acquire(ctx, user("a"))
		cancel()
		if !d.Allowed || d.Err != nil {
			t.Fatalf("%s: %+v", name, d)
		}
		if wait := <-waits; wait < one.least || wait > one.most {
			t.Fatalf("%s: %v", name, wait)
		}
	}
}

// Who waits is no outage: a context that ends meanwhile lets nothing through, and is seen as what it is.
func TestAnAcquireThatIsGivenUpIsNotAllowed(t *testing.T) {
	arrived := make(chan bool, 2)
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewDecoder(r.Body).Decode(new(any)) // the server notices the end of a connection after the body
		arrived <- true
		<-r.Context().Done()
	})
	client := newClient(t, server.URL, slidegate.Options{})
	for cause, deadline := range map[error]time.Duration{context.Canceled: time.Hour, context.DeadlineExceeded: 500 * time.Millisecond} {
		t.Run(cause.Error(), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(ctx, deadline)
			defer cancel()
			if cause == context.Canceled {
				go func() {
					<-arrived
					cancel()
				}()
			}
			d := client.Acquire(ctx, user("a"))
			if d.Allowed || d.Source != slidegate.SourceCanceled || d.Problem.Status != 503 || !errors.Is(d.Err, cause) {
				t.Fatalf("%+v", d)
			}
			err := client.Do(ctx, user("a"), func(context.Context) error {
				t.Error("called without a turn")
				return nil
			})
			var denied *slidegate.DeniedError
			if !errors.As(err, &denied) || !errors.Is(err, cause) {
				t.Fatal(err)
			}
		})
	}
}

// Those who wait must not keep checks from the service, or these would be late and let through.
func TestWaitingTakesNoConnectionFromChecks(t *testing.T) {
	waiting, end := make(chan bool), make(chan bool)
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/acquire" {
			waiting <- true
			<-end
		}
		fmt.Fprint(w, `{"allowed": true}`)
	})
	client := newClient(t, server.URL, slidegate.Options{MaxConnections: 2})
	decisions := make(chan slidegate.Decision)
	for i := 0; i < 5; i++ {
		go func() { decisions <- client.Acquire(ctx, user("a")) }()
	}
	for i := 0; i < 5; i++ {
		<-waiting
	}
	if d := client.Check(ctx, user("a")); !d.Allowed || d.Err != nil {
		t.Fatalf("%+v", d)
	}
	close(end)
	for i := 0; i < 5; i++ {
		if d := <-decisions; !d.Allowed || d.Err != nil {
			t.Fatalf("%+v", d)
		}
	}
}

// A caller knows what to do: wait for as long as the denial says, or not at all.
func TestDoCallsOrSaysWhyNot(t *testing.T) {
	failure := errors.New("failed")
	allowing := newClient(t, serve(t, text(200, `{"allowed": true}`)).URL, slidegate.Options{})
	if err := allowing.Do(ctx, user("a"), func(context.Context) error { return failure }); err != failure {
		t.Fatal(err)
	}
	denying := newClient(t, serve(t, text(429, `{"allowed": false, "status": 429, "policy": "per-user", "reason": "queue_full",
		"retry_after_ms": 1500, "why": "too many wait"}`)).URL, slidegate.Options{})
	err := denying.Do(ctx, user("a"), func(context.Context) error { t.Error("called"); return nil })
	var denied *slidegate.DeniedError
	if !errors.As(err, &denied) || denied.Decision.Reason != slidegate.ReasonQueueFull || denied.Decision.RetryAfter != 1500*time.Millisecond {
		t.Fatal(err)
	}
	if err.Error() != "slidegate: queue_full: too many wait" {
		t.Fatal(err)
	}
}
