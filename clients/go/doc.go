// Package slidegate is a client of the slidegate rate limiter's HTTP API, a net/http middleware, and
// a parser of RateLimit header fields.
//
//	client, err := slidegate.New("http://127.0.0.1:7979", slidegate.Options{})
//	...
//	decision := client.Check(ctx, slidegate.Request{Attributes: slidegate.Attributes{"user": "alice"}})
//	if !decision.Allowed { ... }
//
// A check always returns a decision. If the service is unreachable or late, the client decides by
// [Options.OnFailure], and [Decision.Err] says why; the default is to allow.
//
// A [Client] and everything else in this package is safe for concurrent use, unless it says otherwise.
package slidegate
