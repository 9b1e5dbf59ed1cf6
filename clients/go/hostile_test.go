package slidegate_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	slidegate "example.com/slidegate/clients/go"
)

func sha256Hex(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func serve(t *testing.T, handler http.HandlerFunc) *httptest.Server {
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server
}

// Whatever a broken or hostile server sends, the client decides by its failure mode, soon, and in little
// memory.
func TestResponsesThatAreNoDecision(t *testing.T) {
	endless := []byte(strings.Repeat(" ", 64<<10))
	for name, one := range map[string]struct {
		code    string
		handler http.HandlerFunc
	}{
		"garbage":      {slidegate.CodeInvalidResponse, text(200, "<html>")},
		"empty":        {slidegate.CodeInvalidResponse, text(200, "")},
		"other JSON":   {slidegate.CodeInvalidResponse, text(200, `{"status": "ok"}`)},
		"wrong types":  {slidegate.CodeInvalidResponse, text(200, `{"allowed": "yes"}`)},
		"negative":     {slidegate.CodeInvalidResponse, text(200, `{"allowed": true, "limit": -1}`)},
		"deep":         {slidegate.CodeInvalidResponse, text(200, strings.Repeat("[", 500_000))},
		"overload":     {slidegate.CodeUnavailable, text(503, "no healthy upstream")},
		"gateway":      {slidegate.CodeUnavailable, text(502, "bad gateway")},
		"wrong tokens": {slidegate.CodeUnauthorized, text(429, `{"type":"about:blank","title":"Too Many Requests","status":429}`)},
		"not found":    {slidegate.CodeNotFound, text(404, "not here")},
		"redirect":     {slidegate.CodeInvalidResponse, text(302, "")},
		"endless body": {slidegate.CodeInvalidResponse, func(w http.ResponseWriter, r *http.Request) {
			for sent := 0; sent < 200<<20; sent += len(endless) {
				if _, err := w.Write(endless); err != nil {
					return
				}
			}
			t.Error("the client read all of the body")
		}},
		"slow body": {slidegate.CodeTimeout, func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, `{"allowed": true`)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}},
		"large header": {slidegate.CodeUnavailable, func(w http.ResponseWriter, r *http.Request) {
			connection, _, _ := w.(http.Hijacker).Hijack()
			defer connection.Close()
			fmt.Fprint(connection, "HTTP/1.1 200 OK\r\n")
			for sent := 0; sent < 200<<20; sent += len(endless) {
				if _, err := fmt.Fprintf(connection, "X-%d: %s\r\n", sent, endless); err != nil {
					return
				}
			}
			t.Error("the client read all of the header")
		}},
		"closed at once": {slidegate.CodeUnavailable, func(w http.ResponseWriter, r *http.Request) {
			connection, _, _ := w.(http.Hijacker).Hijack()
			connection.Close()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			server := serve(t, one.handler)
			options := slidegate.Options{Timeout: 500 * time.Millisecond}
			if one.code != slidegate.CodeTimeout {
				options.Timeout = 20 * time.Second
			}
			d := newClient(t, server.URL, options).Check(ctx, user("a"))
			if !d.Allowed || d.Source != slidegate.SourceFailOpen || codeOf(t, d.Err) != one.code {
				t.Fatalf("%v", d.Err)
			}
			options.OnFailure = slidegate.FailClosed
			if d := newClient(t, server.URL, options).Check(ctx, user("a")); d.Allowed || d.Problem.Status != 503 {
				t.Fatalf("%+v", d)
			}
		})
	}
}

func text(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

// The answers of a batch belong to its requests by their order alone.
func TestABatchWithTooFewAnswersFails(t *testing.T) {
	for _, body := range []string{`{"decisions": [{"allowed": true}]}`, `{"decisions": [{"allowed": true}, {}]}`, `{}`} {
		client := newClient(t, serve(t, text(200, body)).URL, slidegate.Options{OnFailure: slidegate.FailClosed})
		for _, d := range client.CheckBatch(ctx, []slidegate.Request{user("a"), user("b")}) {
			if d.Allowed || codeOf(t, d.Err) != slidegate.CodeInvalidResponse {
				t.Fatalf("%s: %+v", body, d)
			}
		}
	}
}

// A service that was taken over must not be able to have the token sent elsewhere.
func TestTheTokenIsSentToNoOtherHost(t *testing.T) {
	other := serve(t, func(w http.ResponseWriter, r *http.Request) { t.Errorf("asked with %v", r.Header) })
	for _, status := range []int{301, 302, 303, 307, 308} {
		redirecting := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer secret" {
				t.Errorf("asked with %v", r.Header)
			}
			http.Redirect(w, r, other.URL+"/v1/check", status)
		})
		d := newClient(t, redirecting.URL, slidegate.Options{Token: "secret"}).Check(ctx, user("a"))
		if codeOf(t, d.Err) != slidegate.CodeInvalidResponse {
			t.Fatalf("%+v", d)
		}
	}
}

// Numbers at the end of their range must not become negative waits.
func TestNumbersSaturate(t *testing.T) {
	server := serve(t, text(429, `{"allowed": false, "retry_after_ms": 18446744073709551615, "reset_after_ms": 9223372036854775807,
		"status": 429, "policy": null, "until_ms": 18446744073709551615}`))
	d := newClient(t, server.URL, slidegate.Options{}).Check(ctx, user("a"))
	if d.Allowed || d.RetryAfter != 1<<63-1 || d.ResetAfter != 1<<63-1 || d.Err != nil {
		t.Fatalf("%+v", d)
	}
}

// A slow service must not get a connection for each request that waits for it.
func TestConnectionsAreBounded(t *testing.T) {
	var running, most atomic.Int64
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if now := running.Add(1); now > most.Load() {
			most.Store(now)
		}
		time.Sleep(5 * time.Millisecond)
		running.Add(-1)
		fmt.Fprint(w, `{"allowed": true}`)
	})
	client := newClient(t, server.URL, slidegate.Options{MaxConnections: 3})
	var all sync.WaitGroup
	for i := 0; i < 30; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			if d := client.Check(ctx, user("a")); !d.Allowed || d.Err != nil {
				t.Errorf("%+v", d)
			}
		}()
	}
	all.Wait()
	if most.Load() > 3 {
		t.Fatalf("%d connections at once", most.Load())
	}
}
