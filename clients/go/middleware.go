package slidegate

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// MiddlewareOptions of Middleware. The zero value counts by address, method and path.
type MiddlewareOptions struct {
	// TrustedProxies says whose X-Forwarded-For is believed. The zero value believes nobody's.
	TrustedProxies TrustedProxies
	// Attributes adds to the attributes ip, method and path, or changes them. A request without an
	// attribute is not subject to policies that count by it, so give a default, such as "anonymous".
	Attributes func(r *http.Request, attributes Attributes)
	// Policy, if not empty, is the only policy that decides.
	Policy string
	// Cost of a request. Nil is 1.
	Cost func(r *http.Request) Cost
	// Skip passes requests on unchecked, for example health checks and preflight requests.
	Skip func(r *http.Request) bool
	// Wait is how long a request waits for its turn before it is denied, as Client.Acquire does. A client
	// that disconnects loses its place, once the server has read the body of its request.
	Wait time.Duration
	// Denied responds to requests that are not allowed. The header fields are set already. Nil is
	// Decision.Problem as application/problem+json.
	Denied func(w http.ResponseWriter, r *http.Request, d Decision)
	// Refund says whether a response with this status returns its cost. The refund is made before the
	// response is sent. A panic of the handler counts as 500 unless a status was sent.
	Refund func(status int) bool
	// OnError gets the errors of checks and refunds, such as an outage. It may be called concurrently.
	OnError func(r *http.Request, err error)
}

// Middleware checks every request before the handler, and adds the fields of Decision.Header to its
// response. The handler finds the decision with FromContext. Denied requests get 429, or 503 where the
// limits cannot be checked and requests are to be denied then.
//
// Without Wait, the check does not end with the request's context: a client that disconnects is charged.
func Middleware(client *Client, options MiddlewareOptions) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return &limited{client, options, next}
	}
}

// FromContext returns the decision about a request that passed through Middleware.
func FromContext(ctx context.Context) (Decision, bool) {
	d, ok := ctx.Value(decisionKey{}).(Decision)
	return d, ok
}

type decisionKey struct{}

type limited struct {
	client *Client
	MiddlewareOptions
	next http.Handler
}

func (l *limited) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if l.Skip != nil && l.Skip(r) {
		l.next.ServeHTTP(w, r)
		return
	}
	asked := time.Now()
	request := l.request(r)
	var d Decision
	if l.Wait > 0 {
		d = l.client.acquire(r.Context(), request, l.Wait)
	} else {
		d = l.client.Check(context.Background(), request)
	}
	if d.Err != nil {
		l.report(r, d.Err)
	}
	for name, values := range d.Header {
		w.Header()[name] = values
	}
	if !d.Allowed {
		if l.Denied != nil {
			l.Denied(w, r, d)
			return
		}
		WriteProblem(w, d)
		return
	}
	r = r.WithContext(context.WithValue(r.Context(), decisionKey{}, d))
	if l.Refund == nil || d.Err != nil {
		l.next.ServeHTTP(w, r)
		return
	}
	recorder := &recorder{ResponseWriter: w, decided: func(status int) {
		if l.Refund(status) {
			l.refund(r, request, d, asked)
		}
	}}
	status := http.StatusInternalServerError
	defer func() { recorder.decide(status) }()
	l.next.ServeHTTP(recorder.wrapped(), r)
	status = http.StatusOK
}

func (l *limited) request(r *http.Request) Request {
	attributes := Attributes{"ip": AddrAttribute(l.TrustedProxies.ClientAddr(r)), "method": r.Method, "path": cleanPath(r.URL.Path)}
	if l.Attributes != nil {
		l.Attributes(r, attributes)
	}
	request := Request{Attributes: attributes, Policy: l.Policy}
	if l.Cost != nil {
		request.Cost = l.Cost(r)
	}
	return request
}

// refund returns the charges that still count. One that does not would return what later requests were
// charged.
func (l *limited) refund(r *http.Request, request Request, d Decision, asked time.Time) {
	elapsed := time.Since(asked)
	counting, ended := []string{}, false
	for _, one := range d.Policies {
		if one.Window > elapsed {
			counting = append(counting, one.Policy)
		} else {
			ended = true
		}
	}
	if !ended {
		counting = []string{request.Policy}
	}
	for _, policy := range counting {
		request.Policy = policy
		if _, err := l.client.Refund(context.Background(), request); err != nil {
			l.report(r, err)
		}
	}
}

func (l *limited) report(r *http.Request, err error) {
	if l.OnError != nil {
		l.OnError(r, err)
	}
}

// WriteProblem responds to a request that is not allowed with Decision.Problem. It sets no fields of
// Decision.Header.
func WriteProblem(w http.ResponseWriter, d Decision) {
	body, _ := json.Marshal(d.Problem) // has only text and numbers
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(d.Problem.Status)
	_, _ = w.Write(body)
}

// cleanPath is the path as routers see it, so that //login is counted as /login. Bytes that are not
// UTF-8 are written as in the URL: JSON cannot carry them.
func cleanPath(p string) string {
	clean := path.Clean("/" + p)
	last := p[strings.LastIndexByte(p, '/')+1:]
	if clean != "/" && (last == "" || last == "." || last == "..") {
		clean += "/"
	}
	var text strings.Builder
	for i, r := range clean {
		_, size := utf8.DecodeRuneInString(clean[i:])
		if r == utf8.RuneError && size == 1 {
			fmt.Fprintf(&text, "%%%02X", clean[i])
		} else {
			text.WriteString(clean[i : i+size])
		}
	}
	return text.String()
}

// recorder finds out the status, and decides about the refund once, before the status is sent.
type recorder struct {
	http.ResponseWriter
	once    sync.Once
	decided func(status int)
}

func (r *recorder) decide(status int) { r.once.Do(func() { r.decided(status) }) }

func (r *recorder) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		r.decide(status)
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(data []byte) (int, error) {
	r.decide(http.StatusOK)
	return r.ResponseWriter.Write(data)
}

// ReadFrom keeps the kernel's copying of files to sockets.
func (r *recorder) ReadFrom(src io.Reader) (int64, error) {
	r.decide(http.StatusOK)
	return io.Copy(r.ResponseWriter, src)
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

type flushing struct{ *recorder }

func (f flushing) Flush() {
	f.decide(http.StatusOK)
	f.ResponseWriter.(http.Flusher).Flush()
}

type hijacking struct{ flushing }

func (h hijacking) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	h.decide(http.StatusSwitchingProtocols)
	return h.ResponseWriter.(http.Hijacker).Hijack()
}

// wrapped has the optional methods that the original has. Servers of HTTP/2 flush and do not hijack.
func (r *recorder) wrapped() http.ResponseWriter {
	_, canFlush := r.ResponseWriter.(http.Flusher)
	_, canHijack := r.ResponseWriter.(http.Hijacker)
	switch {
	case canFlush && canHijack:
		return hijacking{flushing{r}}
	case canFlush:
		return flushing{r}
	}
	return r
}
