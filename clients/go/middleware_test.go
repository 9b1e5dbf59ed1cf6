package slidegate_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	slidegate "example.com/slidegate/clients/go"
	"example.com/slidegate/clients/go/slidegatetest"
)

// application is a server of a handler behind the middleware.
func application(t *testing.T, client *slidegate.Client, options slidegate.MiddlewareOptions, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(slidegate.Middleware(client, options)(handler))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // panics of handlers
	server.Start()
	t.Cleanup(server.Close)
	return server
}

func get(t *testing.T, url string, fields ...string) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		request.Header.Add(fields[i], fields[i+1])
	}
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

func hello(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") }

// The zero options limit by address, and clients see what they may do.
func TestMiddlewareLimitsByAddress(t *testing.T) {
	service := slidegatetest.Start(t, "--policy", "2/1h per ip")
	server := application(t, newClient(t, service.URL, slidegate.Options{}), slidegate.MiddlewareOptions{}, hello)
	for _, remaining := range []string{"1", "0"} {
		response, body := get(t, server.URL)
		if response.StatusCode != 200 || body != "hello" || response.Header.Get("X-RateLimit-Remaining") != remaining ||
			response.Header.Get("RateLimit-Policy") != `"per-ip";q=2;w=3600` || response.Header.Get("Retry-After") != "" {
			t.Fatalf("%v %s", response, body)
		}
	}
	// A header of a client, whom nobody trusts, gives no other address.
	response, body := get(t, server.URL, "X-Forwarded-For", "203.0.113.7")
	if response.StatusCode != 429 || response.Header.Get("Content-Type") != "application/problem+json" || response.Header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%v %s", response, body)
	}
	limits, err := slidegate.ParseRateLimit(response.Header)
	if err != nil || limits.Wait() < 59*time.Minute || len(limits.Items) != 1 || limits.Items[0].Remaining != 0 {
		t.Fatalf("%+v %v", limits, err)
	}
	var problem map[string]any
	if err := json.Unmarshal([]byte(body), &problem); err != nil || problem["status"] != 429.0 || problem["why"] != nil ||
		fmt.Sprint(problem["violated-policies"]) != "[per-ip]" {
		t.Fatalf("%v %s", err, body)
	}
}

// Behind a proxy, clients are distinguished; of IPv6, networks are, which is up to the policy.
func TestMiddlewareBehindAProxy(t *testing.T) {
	service := startWith(t, "policies: [{name: per-ip, scope: [ip], quota: 1/1h, ipv6_prefix: 64}]")
	options := slidegate.MiddlewareOptions{TrustedProxies: trusting(t, "loopback")}
	server := application(t, newClient(t, service.URL, slidegate.Options{}), options, hello)
	for _, one := range []struct {
		forwarded string
		status    int
	}{
		{"203.0.113.7", 200}, {"203.0.113.7", 429}, {"6.6.6.6, 203.0.113.7", 429}, {"203.0.113.8", 200},
		{"2001:db8:1:2::1", 200}, {"2001:db8:1:2:ffff::9", 429}, {"2001:db8:1:3::1", 200},
	} {
		if response, _ := get(t, server.URL, "X-Forwarded-For", one.forwarded); response.StatusCode != one.status {
			t.Fatalf("%s: %d", one.forwarded, response.StatusCode)
		}
	}
}

// A path in another spelling must not be another limit.
func TestMiddlewareCountsPathsAsRoutersSeeThem(t *testing.T) {
	service := startWith(t, "policies: [{name: login, when: {path: /login}, quota: 3/1h}]")
	server := application(t, newClient(t, service.URL, slidegate.Options{}), slidegate.MiddlewareOptions{}, hello)
	for i, path := range []string{"//login", "/x/..//%6Cogin", "/./login?q=1", "/login"} {
		if response, _ := get(t, server.URL+path); (response.StatusCode == 429) != (i == 3) {
			t.Fatalf("%s: %d", path, response.StatusCode)
		}
	}
	for _, path := range []string{"/login/", "/other", "/", "/caf%E9", "/caf%C3%A9"} {
		if response, _ := get(t, server.URL+path); response.StatusCode != 200 {
			t.Fatalf("%s: %d", path, response.StatusCode)
		}
	}
}

// Attributes, cost, skipped requests and the denial are the application's to choose.
func TestMiddlewareOptions(t *testing.T) {
	service := slidegatetest.Start(t, "--policy", "5/1h per user named users", "--policy", "1/1h per ip")
	options := slidegate.MiddlewareOptions{
		Policy:     "users",
		Attributes: func(r *http.Request, attributes slidegate.Attributes) { attributes["user"] = r.Header.Get("X-User") },
		Cost:       func(r *http.Request) slidegate.Cost { return slidegate.Units(len(r.URL.Query().Get("q"))) },
		Skip:       func(r *http.Request) bool { return r.URL.Path == "/healthz" },
		Denied: func(w http.ResponseWriter, r *http.Request, d slidegate.Decision) {
			w.WriteHeader(http.StatusTeapot)
			fmt.Fprintf(w, "%s may not", d.Key)
		},
	}
	server := application(t, newClient(t, service.URL, slidegate.Options{}), options, func(w http.ResponseWriter, r *http.Request) {
		d, ok := slidegate.FromContext(r.Context())
		fmt.Fprint(w, ok, d.Used)
	})
	if _, body := get(t, server.URL+"/?q=1234", "X-User", "alice"); body != "true 4" {
		t.Fatal(body)
	}
	response, body := get(t, server.URL+"/?q=12", "X-User", "alice")
	if response.StatusCode != http.StatusTeapot || body != "alice may not" || response.Header.Get("RateLimit") == "" {
		t.Fatalf("%v %s", response, body)
	}
	if response, body := get(t, server.URL+"/healthz", "X-User", "alice"); body != "false 0" || response.Header.Get("RateLimit") != "" {
		t.Fatalf("%v %s", response, body)
	}
}

// Failures of ours are not the client's, also when the handler panics.
func TestMiddlewareRefundsByStatus(t *testing.T) {
	service := slidegatetest.Start(t, "--policy", "100/1h per user")
	client := newClient(t, service.URL, slidegate.Options{})
	options := slidegate.MiddlewareOptions{
		Attributes: func(r *http.Request, attributes slidegate.Attributes) {
			attributes["user"] = r.URL.Path // each path is a user of its own
		},
		Refund:  func(status int) bool { return status >= 500 },
		OnError: func(r *http.Request, err error) { t.Error(err) },
	}
	usedDuring := func(r *http.Request) uint64 { return client.Peek(ctx, user(r.URL.Path)).Used }
	server := application(t, client, options, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/failed":
			w.WriteHeader(http.StatusBadGateway)
			if used := usedDuring(r); used != 0 {
				t.Errorf("the refund was not made before the response: %d", used)
			}
		case "/early-hints":
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusInternalServerError)
		case "/panics":
			panic(http.ErrAbortHandler)
		case "/panics-late":
			fmt.Fprint(w, "hello")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		case "/panics-flushed":
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		case "/written":
			fmt.Fprint(w, "hello")
			w.WriteHeader(http.StatusInternalServerError) // too late
		case "/copied":
			_, _ = io.Copy(w, strings.NewReader("hello"))
		case "/nothing":
		}
	})
	for path, used := range map[string]uint64{
		"/failed": 0, "/early-hints": 0, "/panics": 0, "/panics-late": 1, "/panics-flushed": 1, "/written": 1, "/copied": 1, "/nothing": 1,
	} {
		response, err := http.Get(server.URL + path)
		if err == nil {
			_, _ = io.Copy(io.Discard, response.Body)
			response.Body.Close()
		}
		if strings.HasPrefix(path, "/panics") {
			// The connection may end before the handler has.
			deadline := time.Now().Add(10 * time.Second)
			for client.Peek(ctx, user(path)).Used != used && time.Now().Before(deadline) {
				time.Sleep(5 * time.Millisecond)
			}
		}
		if got := client.Peek(ctx, user(path)).Used; got != used {
			t.Errorf("%s used %d, expected %d", path, got, used)
		}
	}
}

// A response that takes longer than its charge counts must not return what others were charged since.
func TestMiddlewareRefundsOnlyWhatStillCounts(t *testing.T) {
	service := startWith(t, "policies:\n  - {name: short, scope: [user], quota: 100/50ms}\n  - {name: long, scope: [user], quota: 100/1h}\n")
	client := newClient(t, service.URL, slidegate.Options{})
	options := slidegate.MiddlewareOptions{
		Attributes: func(r *http.Request, attributes slidegate.Attributes) { attributes["user"] = "alice" },
		Refund:     func(status int) bool { return status >= 500 },
	}
	var refunds []string
	counting := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.URL.Path == "/v1/refund" {
			refunds = append(refunds, string(body))
		}
		reply, err := http.Post(service.URL+r.URL.Path, "application/json", strings.NewReader(string(body)))
		if err != nil {
			t.Error(err)
			return
		}
		defer reply.Body.Close()
		w.WriteHeader(reply.StatusCode)
		_, _ = io.Copy(w, reply.Body)
	})
	server := application(t, newClient(t, counting.URL, slidegate.Options{}), options, func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(60 * time.Millisecond) // longer than the window of `short`
		w.WriteHeader(500)
	})
	get(t, server.URL)
	if len(refunds) != 1 || !strings.Contains(refunds[0], `"policy":"long"`) || client.Peek(ctx, user("alice")).Policies[1].Used != 0 {
		t.Fatal(refunds)
	}
}

// Streams and WebSockets must work through the middleware, and a writer must not claim what it has not.
func TestMiddlewareKeepsFlusherAndHijacker(t *testing.T) {
	service := slidegatetest.Start(t, "--policy", "100/1h per ip")
	client := newClient(t, service.URL, slidegate.Options{})
	for name, refund := range map[string]func(int) bool{"with refunds": func(int) bool { return false }, "without": nil} {
		server := application(t, client, slidegate.MiddlewareOptions{Refund: refund}, func(w http.ResponseWriter, r *http.Request) {
			if unwrapper, ok := w.(interface{ Unwrap() http.ResponseWriter }); refund != nil && (!ok || unwrapper.Unwrap() == nil) {
				t.Error("it has no Unwrap")
			}
			if r.URL.Path == "/stream" {
				fmt.Fprint(w, "first")
				w.(http.Flusher).Flush()
				<-r.Context().Done()
				return
			}
			connection, buffered, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer connection.Close()
			fmt.Fprint(buffered, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\r\nhijacked")
			buffered.Flush()
		})
		response, err := http.Get(server.URL + "/stream")
		if err != nil {
			t.Fatal(err)
		}
		first := make([]byte, 5)
		if _, err := io.ReadFull(response.Body, first); err != nil || string(first) != "first" {
			t.Fatalf("%s: %q %v", name, first, err)
		}
		response.Body.Close()
		connection, err := net.Dial("tcp", strings.TrimPrefix(server.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(connection, "GET /socket HTTP/1.1\r\nHost: x\r\n\r\n")
		answer, err := io.ReadAll(bufio.NewReader(connection))
		if err != nil || !strings.HasSuffix(string(answer), "hijacked") {
			t.Fatalf("%s: %q %v", name, answer, err)
		}
	}
	plain := struct{ http.ResponseWriter }{httptest.NewRecorder()} // neither flushes nor hijacks
	slidegate.Middleware(client, slidegate.MiddlewareOptions{Refund: func(int) bool { return false }})(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			_, flushes := w.(http.Flusher)
			_, hijacks := w.(http.Hijacker)
			if flushes || hijacks {
				t.Errorf("flushes %v, hijacks %v", flushes, hijacks)
			}
		})).ServeHTTP(plain, httptest.NewRequest("GET", "/", nil))
}

// An outage of the limiter is passed or denied as chosen, and reported; a bad value of a client never passes.
func TestMiddlewareWithoutTheService(t *testing.T) {
	service := slidegatetest.Start(t, "--policy", "1/1h per user")
	var reported atomic.Int64
	options := slidegate.MiddlewareOptions{
		Attributes: func(r *http.Request, attributes slidegate.Attributes) { attributes["user"] = r.Header.Get("X-User") },
		Refund:     func(int) bool { return true },
		OnError: func(r *http.Request, err error) {
			var e *slidegate.Error
			if reported.Add(1); !errors.As(err, &e) {
				t.Errorf("%v", err)
			}
		},
	}
	open := application(t, newClient(t, service.URL, slidegate.Options{}), options, hello)
	closed := application(t, newClient(t, service.URL, slidegate.Options{OnFailure: slidegate.FailClosed}), options, hello)
	if response, body := get(t, open.URL, "X-User", "\xf1"); response.StatusCode != 400 || reported.Swap(0) != 1 {
		t.Fatalf("%v %s", response, body)
	}
	service.Kill()
	if response, body := get(t, open.URL, "X-User", "a"); response.StatusCode != 200 || body != "hello" || response.Header.Get("RateLimit") != "" || reported.Swap(0) != 1 {
		t.Fatalf("%v %s", response, body)
	}
	response, body := get(t, closed.URL, "X-User", "a")
	if response.StatusCode != 503 || response.Header.Get("Retry-After") == "" || !strings.Contains(body, "#temporary-reduced-capacity") || reported.Swap(0) != 1 {
		t.Fatalf("%v %s", response, body)
	}
}

// Who disconnects at once has still been charged.
func TestMiddlewareChargesClientsThatDisconnect(t *testing.T) {
	service := slidegatetest.Start(t, "--policy", "100/1h per user")
	client := newClient(t, service.URL, slidegate.Options{})
	options := slidegate.MiddlewareOptions{
		Attributes: func(r *http.Request, attributes slidegate.Attributes) { attributes["user"] = "gone" },
	}
	called := 0
	handler := slidegate.Middleware(client, options)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { called++ }))
	gone, cancel := context.WithCancel(ctx)
	cancel()
	handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil).WithContext(gone))
	if used := client.Peek(ctx, user("gone")).Used; used != 1 || called != 1 {
		t.Fatal(used, called)
	}
}

// A peer without an address is limited, too, with all others of its kind.
func TestMiddlewareOnAUnixSocket(t *testing.T) {
	service := slidegatetest.Start(t, "--policy", "1/1h per ip")
	handler := slidegate.Middleware(newClient(t, service.URL, slidegate.Options{}), slidegate.MiddlewareOptions{})(http.HandlerFunc(hello))
	for _, status := range []int{200, 429} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = "@"
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != status {
			t.Fatal(w.Code)
		}
	}
}
