package slidegate_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	slidegate "example.com/slidegate/clients/go"
	"example.com/slidegate/clients/go/slidegatetest"
)

var ctx = context.Background()

// newClient has a timeout that no busy machine exceeds.
func newClient(t testing.TB, url string, options slidegate.Options) *slidegate.Client {
	t.Helper()
	if options.Timeout == 0 {
		options.Timeout = 10 * time.Second
	}
	client, err := slidegate.New(url, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// The first port of a block that no other test finds free, by its UDP port: see crates/slidegate-testkit/src/ports.rs.
var block = func() net.PacketConn {
	for first := 16384; first < 32768; first += 256 {
		if own, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", first)); err == nil {
			return own
		}
	}
	panic("other tests have all ports of 127.0.0.1 from 16384 to 32767")
}()
var taken = 0

// freeAddress is one of loopback that nobody listens on, below the range of ephemeral ports: a connection could be
// given one of those before a server binds it.
func freeAddress(t *testing.T) string {
	t.Helper()
	for tries := 0; tries < 256; tries++ {
		address := fmt.Sprintf("127.0.0.1:%d", block.LocalAddr().(*net.UDPAddr).Port+taken%256)
		taken++
		if listener, err := net.Listen("tcp", address); err == nil {
			listener.Close()
			return address
		}
	}
	t.Fatal("no port of this process is free")
	return ""
}

func user(name string) slidegate.Request {
	return slidegate.Request{Attributes: slidegate.Attributes{"user": name}}
}

func codeOf(t *testing.T, err error) string {
	t.Helper()
	var e *slidegate.Error
	if !errors.As(err, &e) {
		t.Fatalf("%v is not a *slidegate.Error", err)
	}
	return e.Code
}

// The first thing anyone tries, and everything that the answer says.
func TestACheckIsAllowedUntilTheLimit(t *testing.T) {
	service := slidegatetest.Start(t, "--policy", "3/1h per user", "--policy", "100/1h named everyone")
	client := newClient(t, service.URL, slidegate.Options{})
	for remaining := uint64(2); ; remaining-- {
		d := client.Check(ctx, user("alice"))
		if !d.Allowed || d.Err != nil || d.Problem != nil || d.Source != slidegate.SourceStore {
			t.Fatalf("%+v", d)
		}
		if d.Policy != "per-user" || d.Key != "alice" || d.Limit != 3 || d.Remaining != remaining || d.Cost != 1 || d.Never {
			t.Fatalf("%+v", d)
		}
		if remaining == 0 {
			break
		}
	}
	d := client.Check(ctx, user("alice"))
	if d.Allowed || d.Reason != slidegate.ReasonOverLimit || d.Used != 3 || d.Cost != 0 || d.Err != nil {
		t.Fatalf("%+v", d)
	}
	if d.RetryAfter < 59*time.Minute || d.RetryAfter > time.Hour || d.ResetAfter < d.RetryAfter {
		t.Fatalf("retry after %v, reset after %v", d.RetryAfter, d.ResetAfter)
	}
	if !strings.HasPrefix(d.Why, "per-user: `alice` has used 3 of 3 per 1h") {
		t.Fatal(d.Why)
	}
	if d.Problem.Status != 429 || !strings.HasSuffix(d.Problem.Type, "#quota-exceeded") || d.Problem.Detail == "" ||
		len(d.Problem.ViolatedPolicies) != 1 || d.Problem.ViolatedPolicies[0] != "per-user" {
		t.Fatalf("%+v", d.Problem)
	}
	for name, value := range map[string]string{
		"RateLimit-Policy":      `"per-user";q=3;w=3600, "everyone";q=100;w=3600`,
		"X-RateLimit-Remaining": "0",
	} {
		if got := d.Header.Get(name); got != value {
			t.Fatalf("%s: %q", name, got)
		}
	}
	if d.Header.Get("Retry-After") == "" || d.Header.Get("Content-Type") != "" {
		t.Fatalf("%v", d.Header)
	}
	if len(d.Policies) != 2 || d.Policies[1].Policy != "everyone" || !d.Policies[1].Allowed || !d.Policies[1].Enforced ||
		d.Policies[1].Window != time.Hour || d.Policies[1].Used != 3 {
		t.Fatalf("%+v", d.Policies)
	}
}

// A request that no wait helps must not be retried for ever.
func TestACostAboveTheLimitNeverFits(t *testing.T) {
	client := newClient(t, slidegatetest.Start(t, "--policy", "3/1h per user").URL, slidegate.Options{})
	r := user("alice")
	r.Cost = slidegate.Units(4)
	if d := client.Check(ctx, r); d.Allowed || !d.Never || d.RetryAfter != 0 || d.Header.Get("Retry-After") != "" {
		t.Fatalf("%+v", d)
	}
}

// A limit that nothing counts for is none, and numbers that are unknown are 0.
func TestARequestUnderNoPolicyIsAllowed(t *testing.T) {
	client := newClient(t, slidegatetest.Start(t, "--policy", "3/1h per user").URL, slidegate.Options{})
	d := client.Check(ctx, slidegate.Request{})
	if !d.Allowed || d.Policy != "" || d.Source != "" || d.Err != nil || len(d.Policies) != 0 {
		t.Fatalf("%+v", d)
	}
}

// Support tools look, refund and reset; each must do to the same key what it says.
func TestPeekRefundPenalizeResetAndInspect(t *testing.T) {
	client := newClient(t, slidegatetest.Start(t, "--policy", "5/1h per user").URL, slidegate.Options{})
	three := user("a/b c%")
	three.Cost = slidegate.Units(3)
	if d := client.Peek(ctx, three); !d.Allowed || d.Used != 0 {
		t.Fatalf("%+v", d)
	}
	if d := client.Check(ctx, three); !d.Allowed || d.Used != 3 {
		t.Fatalf("%+v", d)
	}
	if d := client.Peek(ctx, three); d.Allowed || d.Problem == nil || d.Err != nil {
		t.Fatalf("%+v", d)
	}
	if d, err := client.Refund(ctx, user("a/b c%")); err != nil || d.Cost != 1 || d.Used != 2 {
		t.Fatalf("%+v %v", d, err)
	}
	if d, err := client.Penalize(ctx, three); err != nil || d.Used != 5 {
		t.Fatalf("%+v %v", d, err)
	}
	key, err := client.Inspect(ctx, "per-user", client.Peek(ctx, three).Key)
	if err != nil || key.Used != 5 || key.Remaining != 0 || key.Window != time.Hour || key.Algorithm != "sliding-log" ||
		key.Reason != slidegate.ReasonOverLimit || key.RetryAfter < 59*time.Minute {
		t.Fatalf("%+v %v", key, err)
	}
	for _, existed := range []bool{true, false} {
		if got, err := client.Reset(ctx, three); err != nil || got != existed {
			t.Fatal(got, err)
		}
	}
	if _, err := client.Inspect(ctx, "no-policy", "x"); codeOf(t, err) != slidegate.CodeNotFound {
		t.Fatal(err)
	}
}

// Costs by name reach the policies that count them.
func TestCostsByName(t *testing.T) {
	config := filepath.Join(t.TempDir(), "slidegate.yaml")
	yaml := "policies:\n  - {name: in, scope: [user], quota: 1000/1h, counts: input}\n" +
		"  - {name: out, scope: [user], quota: 100/1h, counts: output}\n"
	if err := os.WriteFile(config, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	client := newClient(t, slidegatetest.Start(t, "--config", config).URL, slidegate.Options{})
	r := user("alice")
	r.Cost = slidegate.Costs{"input": 900, "output": 40}
	if d := client.Check(ctx, r); !d.Allowed || d.Policies[0].Used != 900 || d.Policies[1].Used != 40 {
		t.Fatalf("%+v", d)
	}
	// A typo must be an error, not a way around the limit.
	r.Cost = slidegate.Costs{"input": 1, "ouput": 1}
	if d := client.Check(ctx, r); d.Allowed || d.Source != slidegate.SourceInvalid || codeOf(t, d.Err) != slidegate.CodeInvalidRequest {
		t.Fatalf("%+v", d)
	}
}

// Batches decide in order, each as a check would.
func TestABatchDecidesInOrder(t *testing.T) {
	client := newClient(t, slidegatetest.Start(t, "--policy", "2/1h per user").URL, slidegate.Options{})
	many := []slidegate.Request{user("a"), user("b"), user("a"), user("a")}
	for i, d := range client.CheckBatch(ctx, many) {
		if allowed := i < 3; d.Allowed != allowed || d.Err != nil || (d.Problem == nil) != allowed {
			t.Fatalf("%d: %+v", i, d)
		}
	}
	if got := client.CheckBatch(ctx, nil); len(got) != 0 {
		t.Fatal(got)
	}
	for name, batch := range map[string][]slidegate.Request{
		"too many":        make([]slidegate.Request, 1001),
		"invalid":         {user("a"), {Policy: "none"}},
		"idempotency key": {user("c"), {IdempotencyKey: "x"}},
	} {
		for _, d := range client.CheckBatch(ctx, batch) {
			if d.Allowed || codeOf(t, d.Err) != slidegate.CodeInvalidRequest {
				t.Fatalf("%s: %+v", name, d)
			}
		}
	}
	if d := client.Peek(ctx, user("c")); d.Used != 0 {
		t.Fatalf("an invalid batch charged %d", d.Used)
	}
}

// Who lost an answer repeats the check, and is charged once.
func TestAnIdempotencyKeyChargesOnce(t *testing.T) {
	client := newClient(t, slidegatetest.Start(t, "--policy", "5/1h per user").URL, slidegate.Options{})
	r := user("alice")
	r.IdempotencyKey = "order-1001"
	for i := 0; i < 3; i++ {
		if d := client.Check(ctx, r); !d.Allowed || d.Used != 1 {
			t.Fatalf("%+v", d)
		}
	}
	for _, key := range []string{"two words", "a\nb", strings.Repeat("x", 129)} {
		r.IdempotencyKey = key
		if d := client.Check(ctx, r); d.Allowed || codeOf(t, d.Err) != slidegate.CodeInvalidRequest || d.Problem.Status != 400 {
			t.Fatalf("%+v", d)
		}
	}
	if _, err := client.Refund(ctx, r); codeOf(t, err) != slidegate.CodeInvalidRequest {
		t.Fatal(err)
	}
	if d := client.Peek(ctx, r); codeOf(t, d.Err) != slidegate.CodeInvalidRequest {
		t.Fatal(d.Err)
	}
}

// Two programs share one limit: under load, exactly the limit is let through.
func TestTwoClientsShareOneLimitExactly(t *testing.T) {
	const limit, each = 200, 150
	service := slidegatetest.Start(t, "--policy", fmt.Sprintf("%d/1h per user", limit))
	var allowed, failed atomic.Int64
	var all sync.WaitGroup
	for c := 0; c < 2; c++ {
		client := newClient(t, service.URL, slidegate.Options{OnFailure: slidegate.FailClosed})
		for worker := 0; worker < 8; worker++ {
			all.Add(1)
			go func() {
				defer all.Done()
				for i := 0; i < each/8+1; i++ {
					d := client.Check(ctx, user("shared"))
					if d.Err != nil {
						failed.Add(1)
					}
					if d.Allowed {
						allowed.Add(1)
					}
				}
			}()
		}
	}
	all.Wait()
	if failed.Load() != 0 || allowed.Load() != limit {
		t.Fatalf("%d allowed of %d, %d failed", allowed.Load(), limit, failed.Load())
	}
}

// An outage must be decided as the user chose, be visible, and end.
func TestAKilledServiceFailsOpenOrClosed(t *testing.T) {
	service := slidegatetest.StartAt(t, freeAddress(t), "--policy", "1/1h per user")
	open := newClient(t, service.URL, slidegate.Options{})
	closed := newClient(t, service.URL, slidegate.Options{OnFailure: slidegate.FailClosed})
	if d := open.Check(ctx, user("a")); !d.Allowed || d.Err != nil {
		t.Fatalf("%+v", d)
	}
	service.Kill()
	for i := 0; i < 3; i++ {
		d := open.Check(ctx, user("a"))
		if !d.Allowed || d.Source != slidegate.SourceFailOpen || codeOf(t, d.Err) != slidegate.CodeUnavailable || len(d.Header) != 0 {
			t.Fatalf("%+v", d)
		}
		d = closed.Check(ctx, user("a"))
		if d.Allowed || d.Source != slidegate.SourceFailClosed || d.Problem.Status != 503 ||
			d.RetryAfter < time.Second || d.RetryAfter > 3*time.Second ||
			d.Header.Get("Retry-After") != fmt.Sprint(d.RetryAfter.Seconds()) {
			t.Fatalf("%+v", d)
		}
	}
	if _, err := open.Refund(ctx, user("a")); codeOf(t, err) != slidegate.CodeUnavailable {
		t.Fatal(err)
	}
	for _, d := range closed.CheckBatch(ctx, []slidegate.Request{user("a"), user("b")}) {
		if d.Allowed || d.Source != slidegate.SourceFailClosed {
			t.Fatalf("%+v", d)
		}
	}
	slidegatetest.StartAt(t, strings.TrimPrefix(service.URL, "http://"), "--policy", "1/1h per user")
	if d := closed.Check(ctx, user("a")); !d.Allowed || d.Err != nil {
		t.Fatalf("%+v", d)
	}
}

// A crash in the middle of calls must leave none of them waiting, and none undecided.
func TestAServiceThatIsKilledUnderLoad(t *testing.T) {
	service := slidegatetest.Start(t, "--policy", "1000000/1h per user")
	client := newClient(t, service.URL, slidegate.Options{OnFailure: slidegate.FailClosed})
	var decided, failed atomic.Int64
	var all sync.WaitGroup
	for worker := 0; worker < 8; worker++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for {
				d := client.Check(ctx, user("a"))
				if d.Err != nil {
					if d.Allowed || d.Source != slidegate.SourceFailClosed || codeOf(t, d.Err) != slidegate.CodeUnavailable {
						t.Errorf("%+v", d)
					}
					failed.Add(1)
					return
				}
				decided.Add(1)
			}
		}()
	}
	for decided.Load() < 100 {
		time.Sleep(time.Millisecond)
	}
	killed := time.Now()
	service.Kill()
	all.Wait()
	if took := time.Since(killed); failed.Load() != 8 || took > 5*time.Second {
		t.Fatalf("%d failed after %v", failed.Load(), took)
	}
}

// A service that hangs costs each request at most the timeout.
func TestAPausedServiceIsWaitedForUntilTheTimeout(t *testing.T) {
	service := slidegatetest.Start(t, "--policy", "100/1h per user")
	client := newClient(t, service.URL, slidegate.Options{Timeout: 150 * time.Millisecond, MaxConnections: 4})
	patient := newClient(t, service.URL, slidegate.Options{})
	patient.Check(ctx, user("a"))
	service.Pause()
	asked := time.Now()
	var all sync.WaitGroup
	for i := 0; i < 20; i++ { // more than there are connections
		all.Add(1)
		go func() {
			defer all.Done()
			d := client.Check(ctx, user("a"))
			if !d.Allowed || d.Source != slidegate.SourceFailOpen || codeOf(t, d.Err) != slidegate.CodeTimeout ||
				!errors.Is(d.Err, context.DeadlineExceeded) {
				t.Errorf("%+v", d)
			}
		}()
	}
	all.Wait()
	if took := time.Since(asked); took < 140*time.Millisecond || took > 2*time.Second {
		t.Fatalf("took %v", took)
	}
	// An earlier deadline of the context wins.
	soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	asked = time.Now()
	if d := patient.Check(soon, user("a")); !d.Allowed || codeOf(t, d.Err) != slidegate.CodeTimeout {
		t.Fatalf("%+v", d)
	}
	if took := time.Since(asked); took > 2*time.Second {
		t.Fatalf("took %v", took)
	}
	service.Resume()
	if d := patient.Check(ctx, user("a")); !d.Allowed || d.Err != nil {
		t.Fatalf("%+v", d)
	}
}

// A client of the application that disconnects must not get its request done uncounted.
func TestACancelledCheckIsNotAllowed(t *testing.T) {
	service := slidegatetest.Start(t, "--policy", "100/1h per user")
	client := newClient(t, service.URL, slidegate.Options{})
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if d := client.Check(cancelled, user("a")); d.Allowed || d.Source != slidegate.SourceCanceled || !errors.Is(d.Err, context.Canceled) {
		t.Fatalf("%+v", d)
	}
}

// A value that the service rejects must not lift the limit of who sends it.
func TestInvalidRequestsAreNeverAllowed(t *testing.T) {
	client := newClient(t, slidegatetest.Start(t, "--policy", "1/1h per ip", "--policy", "1/1h per user").URL, slidegate.Options{})
	for name, r := range map[string]slidegate.Request{
		"not UTF-8":    {Attributes: slidegate.Attributes{"user": "\xf1"}},
		"far too long": {Attributes: slidegate.Attributes{"user": strings.Repeat("x", 10<<20)}},
	} {
		d := client.Check(ctx, r)
		if d.Allowed || d.Source != slidegate.SourceInvalid || codeOf(t, d.Err) != slidegate.CodeInvalidRequest || d.Problem.Status != 400 {
			t.Fatalf("%s: %+v", name, d)
		}
	}
	for name, r := range map[string]slidegate.Request{
		"not an address": {Attributes: slidegate.Attributes{"ip": "x"}},
		"long":           {Attributes: slidegate.Attributes{"user": strings.Repeat("x", 9000)}},
	} {
		first, second := client.Check(ctx, r), client.Check(ctx, r)
		if !first.Allowed || second.Allowed || second.Err != nil {
			t.Fatalf("%s: %v, then %v: %v", name, first.Allowed, second.Allowed, second.Err)
		}
	}
	d := client.Check(ctx, slidegate.Request{Policy: "typo"})
	if d.Allowed || d.Problem.Status != 500 {
		t.Fatalf("%+v", d)
	}
	var e *slidegate.Error
	if !errors.As(d.Err, &e) || e.Status != 400 || e.Field != "policy" || !strings.Contains(e.Detail, "typo") || e.Title != "Bad Request" {
		t.Fatalf("%+v", e)
	}
}

// A token that is wrong must not look like an outage.
func TestTokens(t *testing.T) {
	service := slidegatetest.Start(t, "--config", configWithToken(t))
	for token, code := range map[string]string{"": slidegate.CodeUnauthorized, "sg_wrong": slidegate.CodeUnauthorized, testToken: ""} {
		client := newClient(t, service.URL, slidegate.Options{Token: token})
		_, err := client.Refund(ctx, user("a"))
		if code == "" && err != nil || code != "" && codeOf(t, err) != code {
			t.Fatalf("%q: %v", token, err)
		}
		d := client.Check(ctx, user("a"))
		if code == "" && d.Err != nil || code != "" && (d.Source != slidegate.SourceFailOpen || codeOf(t, d.Err) != code) {
			t.Fatalf("%q: %+v", token, d)
		}
		if err != nil && strings.Contains(err.Error(), "sg_wrong") {
			t.Fatal("the error shows the token")
		}
	}
}

const testToken = "sg_test_token_of_the_go_client"

func configWithToken(t *testing.T) string {
	t.Helper()
	config := filepath.Join(t.TempDir(), "slidegate.yaml")
	yaml := fmt.Sprintf("policies: [{name: per-user, scope: [user], quota: 5/1h}]\n"+
		"admin: {decisions: token, tokens: [{name: go, scope: decide, sha256: %s}]}\n", sha256Hex(testToken))
	if err := os.WriteFile(config, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	return config
}

// A Unix socket is how a sidecar is reached.
func TestAUnixSocket(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "http.sock")
	config := filepath.Join(dir, "slidegate.yaml")
	yaml := "policies: [{name: per-user, scope: [user], quota: 5/1h}]\nserver: {socket: " + socket + "}\n"
	if err := os.WriteFile(config, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	slidegatetest.Start(t, "--config", config)
	client := newClient(t, "unix://"+socket, slidegate.Options{})
	if d := client.Check(ctx, user("a")); !d.Allowed || d.Err != nil || d.Used != 1 {
		t.Fatalf("%+v", d)
	}
}

// Who mistypes an option must read what it must be, and no secret.
func TestInvalidOptions(t *testing.T) {
	for _, url := range []string{"", "127.0.0.1:7979", "ftp://host", "http://", "http://user:secret@host", "http://host?x=1", "unix:", "http://[::1"} {
		_, err := slidegate.New(url, slidegate.Options{})
		if err == nil || !strings.HasPrefix(err.Error(), "slidegate: invalid base URL ") || strings.Contains(err.Error(), "secret") {
			t.Fatalf("%q: %v", url, err)
		}
	}
	if _, err := slidegate.New("http://host", slidegate.Options{Timeout: -1}); err == nil {
		t.Fatal("a negative timeout is accepted")
	}
	if _, err := slidegate.New("http://host", slidegate.Options{Token: "secret\n"}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Fatal(err)
	}
	if client, err := slidegate.New("https://host/prefix/", slidegate.Options{}); err != nil || client == nil {
		t.Fatal(err)
	}
}

// A base URL may have a path, as behind a gateway.
func TestABaseURLWithAPath(t *testing.T) {
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/limits/v1/check" {
			t.Errorf("asked %s", r.URL.Path)
		}
		fmt.Fprint(w, `{"allowed": true}`)
	})
	if d := newClient(t, server.URL+"/limits/", slidegate.Options{}).Check(ctx, user("a")); !d.Allowed || d.Err != nil {
		t.Fatalf("%+v", d)
	}
}

// Under a policy that weighs costs, what is used is not less than it is, and what remains not more.
func TestDecimalsAreRoundedToTheSafeSide(t *testing.T) {
	server := serve(t, text(200, `{"allowed": true, "limit": 5, "used": 0.22, "held": 0.05, "remaining": 4.73, "cost": 0.000001}`))
	d := newClient(t, server.URL, slidegate.Options{}).Check(ctx, user("a"))
	if got := [5]uint64{d.Limit, d.Used, d.Held, d.Remaining, d.Cost}; d.Err != nil || got != [5]uint64{5, 1, 1, 4, 1} {
		t.Fatal(got, d.Err)
	}
}
