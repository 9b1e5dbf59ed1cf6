package slidegate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// slept is a Transport whose time is advanced by hand.
func slept(t *testing.T, transport *Transport) (*http.Client, *[]time.Duration) {
	waits := new([]time.Duration)
	transport.sleep = func(_ context.Context, wait time.Duration) error {
		*waits = append(*waits, wait)
		return nil
	}
	return &http.Client{Transport: transport}, waits
}

// denying answers with these responses, and the last one for ever.
func denying(t *testing.T, responses ...http.HandlerFunc) (url string, bodies *[]string) {
	bodies = new([]string)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		*bodies = append(*bodies, string(body))
		at := len(*bodies) - 1
		if at >= len(responses) {
			at = len(responses) - 1
		}
		responses[at](w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL, bodies
}

func with(status int, fields ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for i := 0; i < len(fields); i += 2 {
			w.Header().Set(fields[i], fields[i+1])
		}
		w.WriteHeader(status)
	}
}

// A caller of an API gets its answer after the wait that the API asks for, without code of its own.
func TestTransportWaitsAsTold(t *testing.T) {
	for name, one := range map[string]struct {
		denial http.HandlerFunc
		wait   time.Duration
	}{
		"Retry-After":  {with(429, "Retry-After", "3", "RateLimit", `"a";r=0;t=2`), 3 * time.Second},
		"RateLimit":    {with(429, "RateLimit", `"a";r=0;t=2`), 2 * time.Second},
		"no wait":      {with(429), time.Second},
		"wait 0":       {with(429, "Retry-After", "0"), time.Second},
		"busy service": {with(503, "Retry-After", "4"), 4 * time.Second},
	} {
		url, bodies := denying(t, one.denial, with(200))
		client, waits := slept(t, &Transport{})
		request, _ := http.NewRequest(http.MethodPut, url, strings.NewReader("the body"))
		response, err := client.Do(request)
		if err != nil || response.StatusCode != 200 || fmt.Sprint(*waits) != fmt.Sprint([]time.Duration{one.wait}) {
			t.Fatalf("%s: %v %v, waited %v", name, response, err, *waits)
		}
		response.Body.Close()
		if fmt.Sprint(*bodies) != "[the body the body]" {
			t.Fatalf("%s: sent %q", name, *bodies)
		}
	}
}

// What may have had an effect, or is to wait too long, is the caller's to decide.
func TestTransportReturnsWhatItMustNotRepeat(t *testing.T) {
	for name, one := range map[string]struct {
		method, key string
		denial      http.HandlerFunc
		calls       int
	}{
		"POST":                          {"POST", "", with(429, "Retry-After", "1"), 1},
		"POST with an idempotency key":  {"POST", "k", with(429, "Retry-After", "1"), 3},
		"tries":                         {"GET", "", with(429, "Retry-After", "1"), 3},
		"a wait that is too long":       {"GET", "", with(429, "Retry-After", "3600"), 1},
		"waits that are, together":      {"GET", "", with(429, "Retry-After", "6"), 2},
		"a wait beyond any duration":    {"GET", "", with(429, "Retry-After", "99999999999999999999"), 1},
		"503 without a wait":            {"GET", "", with(503), 1},
		"another status with Retry-...": {"GET", "", with(404, "Retry-After", "1"), 1},
	} {
		url, bodies := denying(t, one.denial)
		client, _ := slept(t, &Transport{})
		request, _ := http.NewRequest(one.method, url, nil)
		if one.key != "" {
			request.Header.Set("Idempotency-Key", one.key)
		}
		response, err := client.Do(request)
		if err != nil || response.StatusCode == 200 || len(*bodies) != one.calls {
			t.Fatalf("%s: %v %v, %d calls", name, response, err, len(*bodies))
		}
		response.Body.Close()
	}
	url, bodies := denying(t, with(429, "Retry-After", "1"))
	client, _ := slept(t, &Transport{})
	request, _ := http.NewRequest(http.MethodPut, url, io.MultiReader(strings.NewReader("a stream"))) // cannot be read again
	response, err := client.Do(request)
	if err != nil || response.StatusCode != 429 || len(*bodies) != 1 {
		t.Fatal(response, err, len(*bodies))
	}
}

// A caller that gives up must not wait on.
func TestTransportStopsWithItsContext(t *testing.T) {
	url, _ := denying(t, with(429, "Retry-After", "9"))
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(20*time.Millisecond, cancel)
	request, _ := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	asked := time.Now()
	_, err := (&http.Client{Transport: &Transport{}}).Do(request)
	if !errors.Is(err, context.Canceled) || time.Since(asked) > 5*time.Second {
		t.Fatal(err, time.Since(asked))
	}
}
