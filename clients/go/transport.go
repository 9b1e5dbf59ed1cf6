package slidegate

import (
	"context"
	"io"
	"net/http"
	"time"
)

// Transport is an http.RoundTripper for callers of APIs with rate limits. It repeats a request that is
// answered with 429, or with 503 and Retry-After, after the wait that the response asks for: Retry-After,
// or otherwise that of RateLimit. It repeats GET, HEAD, OPTIONS, TRACE, PUT and DELETE, and other requests
// with an Idempotency-Key, if their body can be read again.
type Transport struct {
	// Base sends the requests. Nil is http.DefaultTransport.
	Base http.RoundTripper
	// MaxTries bounds the attempts of a request. 0 is 3.
	MaxTries int
	// MaxWait bounds the waits of a request in total. A response that asks for more is returned at once.
	// 0 is 10 s.
	MaxWait time.Duration
	// sleep is replaced in tests.
	sleep func(context.Context, time.Duration) error
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(request *http.Request) (*http.Response, error) {
	base, sleep := t.Base, t.sleep
	if base == nil {
		base = http.DefaultTransport
	}
	if sleep == nil {
		sleep = sleepContext
	}
	left := orDefault(t.MaxWait, 10*time.Second)
	for try := 1; ; try++ {
		response, err := base.RoundTrip(request)
		if err != nil || try >= orDefault(t.MaxTries, 3) || !mayRepeat(request) {
			return response, err
		}
		limits, _ := ParseRateLimit(response.Header)
		wait := limits.Wait()
		if response.StatusCode == http.StatusTooManyRequests {
			// A response that does not say when is not to be repeated at once.
			wait = max(wait, time.Second)
		} else if response.StatusCode != http.StatusServiceUnavailable || limits.RetryAfter == nil {
			return response, nil
		}
		if wait > left {
			return response, nil
		}
		left -= wait
		// The connection is used again if little of the body is left.
		_, _ = io.CopyN(io.Discard, response.Body, 64<<10)
		response.Body.Close()
		if err := sleep(request.Context(), wait); err != nil {
			return nil, err
		}
		if request.GetBody != nil {
			body, err := request.GetBody()
			if err != nil {
				return nil, err
			}
			request = request.Clone(request.Context())
			request.Body = body
		}
	}
}

func mayRepeat(r *http.Request) bool {
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
	default:
		if r.Header.Get("Idempotency-Key") == "" {
			return false
		}
	}
	return r.Body == nil || r.Body == http.NoBody || r.GetBody != nil
}

func sleepContext(ctx context.Context, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

func max(a, b time.Duration) time.Duration {
	if a > b {
		return a
	}
	return b
}
