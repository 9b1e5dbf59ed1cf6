package slidegate_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	slidegate "example.com/slidegate/clients/go"
	"example.com/slidegate/clients/go/slidegatetest"
)

// Turns are given by refunds, so that no test depends on how fast the clock goes: until the window ends, nothing else
// gives any.
const window = 15 * time.Second

// awaitWaiting returns once so many requests of alice wait. What would come next would have to wait for as many windows
// as there are requests before it, if each takes more than half of the limit.
func awaitWaiting(t *testing.T, service *slidegatetest.Service, limit, count int) {
	t.Helper()
	body := fmt.Sprintf(`{"attributes": {"user": "alice"}, "cost": %d, "timeout_ms": 0}`, limit)
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		response, err := http.Post(service.URL+"/v1/acquire", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		var denial struct {
			RetryAfterMS int `json:"retry_after_ms"`
		}
		err = json.NewDecoder(response.Body).Decode(&denial)
		response.Body.Close()
		if err != nil || time.Now().After(until) {
			t.Fatal(err, denial)
		}
		if waiting := (time.Duration(denial.RetryAfterMS)*time.Millisecond - 1) / window; int(waiting) == count {
			return
		}
	}
}

func refund(t *testing.T, client *slidegate.Client, cost slidegate.Units) {
	t.Helper()
	r := user("alice")
	r.Cost = cost
	if d, err := client.Refund(ctx, r); err != nil || d.Cost != uint64(cost) {
		t.Fatalf("%+v %v", d, err)
	}
}

// startWaiting is a request of alice that waits, as one of so many.
func startWaiting(t *testing.T, ctx context.Context, service *slidegatetest.Service, client *slidegate.Client, cost slidegate.Units, count int) chan slidegate.Decision {
	t.Helper()
	r := user("alice")
	r.Cost = cost
	decision := make(chan slidegate.Decision, 1)
	go func() { decision <- client.Acquire(ctx, r) }()
	awaitWaiting(t, service, 3, count)
	return decision
}

func allowed(t *testing.T, decision chan slidegate.Decision) {
	t.Helper()
	select {
	case d := <-decision:
		if !d.Allowed || d.Err != nil {
			t.Fatalf("%+v", d)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("there was no turn")
	}
}

// Who came first goes first, also with a large cost; who gives up is charged nothing and stops nobody.
func TestTurnsComeInTheOrderOfArrival(t *testing.T) {
	service := slidegatetest.Start(t, "--policy", "3/15s per user")
	client := newClient(t, service.URL, slidegate.Options{})
	minute, cancelMinute := context.WithTimeout(ctx, 2*time.Minute)
	defer cancelMinute()
	r := user("alice")
	r.Cost = slidegate.Units(3)
	if d := client.Acquire(ctx, r); !d.Allowed {
		t.Fatalf("%+v", d)
	}
	first := startWaiting(t, minute, service, client, 3, 1)
	cancelled, cancel := context.WithCancel(minute)
	second := startWaiting(t, cancelled, service, client, 2, 2)
	third := startWaiting(t, minute, service, client, 2, 3)
	cancel()
	if d := <-second; d.Allowed || d.Source != slidegate.SourceCanceled {
		t.Fatalf("%+v", d)
	}
	awaitWaiting(t, service, 3, 2)
	refund(t, client, 2)
	refund(t, client, 1)
	allowed(t, first)
	select {
	case d := <-third:
		t.Fatalf("%+v", d)
	default:
	}
	refund(t, client, 2)
	allowed(t, third)
	if d := client.Peek(ctx, user("alice")); d.Used != 3 {
		t.Fatalf("%+v", d)
	}
}

// A caller that cannot be served in time must know it now, not after it has waited in vain.
func TestWhoCannotBeServedInTimeIsDeniedAtOnce(t *testing.T) {
	client := newClient(t, slidegatetest.Start(t, "--policy", "1/1h per user").URL, slidegate.Options{})
	client.Check(ctx, user("alice"))
	minute, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	started := time.Now()
	d := client.Acquire(minute, user("alice"))
	if d.Allowed || d.Reason != slidegate.ReasonOverLimit || d.RetryAfter < 59*time.Minute || d.Problem.Status != 429 || d.Err != nil {
		t.Fatalf("%+v", d)
	}
	if time.Since(started) > 30*time.Second {
		t.Fatal("it waited")
	}
	for i := 0; i < 2; i++ {
		r := user("bob")
		r.IdempotencyKey = "order-1001"
		if d := client.Acquire(ctx, r); !d.Allowed || d.Used != 1 {
			t.Fatalf("%+v", d)
		}
	}
}

// A job runs once another has ended, and not before.
func TestAReservationWaitsForAPlace(t *testing.T) {
	service := startWith(t, "policies: [{name: jobs, scope: [user], in_flight: 1, lease: 1m}]")
	client := newClient(t, service.URL, slidegate.Options{})
	first := client.Reserve(ctx, slidegate.ReserveRequest{Request: user("alice")})
	second := make(chan *slidegate.Reservation, 1)
	go func() {
		second <- client.Reserve(ctx, slidegate.ReserveRequest{Request: user("alice"), Wait: 50 * time.Second})
	}()
	select {
	case r := <-second:
		t.Fatalf("%+v", r.Decision)
	case <-time.After(100 * time.Millisecond):
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case r := <-second:
		if !r.Allowed || r.Err != nil || r.Ticket() == "" {
			t.Fatalf("%+v", r.Decision)
		}
		r.Close()
	case <-time.After(20 * time.Second):
		t.Fatal("there was no place")
	}
	if d := client.Peek(ctx, user("alice")); d.Held != 0 {
		t.Fatalf("%+v", d)
	}
}

// Requests of a burst are late instead of refused, and clients that are gone take no turn from the others.
func TestMiddlewareWaits(t *testing.T) {
	service := slidegatetest.Start(t, "--policy", "3/15s per user")
	client := newClient(t, service.URL, slidegate.Options{})
	server := application(t, client, slidegate.MiddlewareOptions{
		Wait:       58 * time.Second,
		Attributes: func(r *http.Request, attributes slidegate.Attributes) { attributes["user"] = "alice" },
		Cost:       func(r *http.Request) slidegate.Cost { return slidegate.Units(3) },
	}, hello)
	if response, _ := get(t, server.URL); response.StatusCode != 200 {
		t.Fatal(response)
	}
	cancelled, cancel := context.WithCancel(ctx)
	gone, statuses := make(chan error, 1), make(chan int, 1)
	go func() {
		request, _ := http.NewRequestWithContext(cancelled, http.MethodGet, server.URL, nil)
		_, err := http.DefaultClient.Do(request)
		gone <- err
	}()
	awaitWaiting(t, service, 3, 1)
	go func() {
		response, err := http.Get(server.URL)
		if err != nil {
			t.Error(err)
			statuses <- 0
			return
		}
		response.Body.Close()
		statuses <- response.StatusCode
	}()
	awaitWaiting(t, service, 3, 2)
	cancel()
	<-gone
	awaitWaiting(t, service, 3, 1)
	refund(t, client, 3)
	if status := <-statuses; status != 200 {
		t.Fatal(status)
	}
	if d := client.Peek(ctx, user("alice")); d.Used != 3 {
		t.Fatalf("%+v", d)
	}

	denying := application(t, client, slidegate.MiddlewareOptions{
		Wait:       time.Second,
		Attributes: func(r *http.Request, attributes slidegate.Attributes) { attributes["user"] = "alice" },
	}, hello)
	if response, _ := get(t, denying.URL); response.StatusCode != 429 || response.Header.Get("Retry-After") == "" {
		t.Fatal(response)
	}
}
