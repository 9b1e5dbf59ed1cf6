package slidegate

import (
	"context"
	"time"
)

// Acquire decides a request as Check does, but waits for its turn instead of being denied: first come,
// first served for each key. Nothing is charged while it waits. If there is no turn in time, or too many
// wait already (ReasonQueueFull), it is denied, with RetryAfter, as soon as that is certain.
//
// It waits until the deadline of the context, less what the answer needs to arrive, and at most MaxWait;
// without a deadline, DefaultWait. Canceling the context gives the place up.
func (c *Client) Acquire(ctx context.Context, r Request) Decision {
	wait := DefaultWait
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		wait = left - min(c.timeout, left/10)
	}
	return c.acquire(ctx, r, wait)
}

func (c *Client) acquire(ctx context.Context, r Request, wait time.Duration) Decision {
	wait = max(0, min(wait, MaxWait))
	d, _ := c.decideOrFail(ctx, question{path: "/v1/acquire", request: r, wait: &wait})
	return d
}

// Do waits for a turn as Acquire does, and calls the function. If the request is denied, it is not
// called, and the error is a *DeniedError.
func (c *Client) Do(ctx context.Context, r Request, function func(context.Context) error) error {
	if d := c.Acquire(ctx, r); !d.Allowed {
		return &DeniedError{d}
	}
	return function(ctx)
}

// DeniedError is the error of Do for a request that is not allowed. Use it with errors.As.
type DeniedError struct {
	Decision Decision
}

// Error is one line.
func (e *DeniedError) Error() string {
	if e.Decision.Err != nil {
		return e.Decision.Err.Error()
	}
	return "slidegate: " + string(e.Decision.Reason) + ": " + e.Decision.Why
}

// Unwrap returns Decision.Err, so that errors.Is finds the error of a context that was canceled.
func (e *DeniedError) Unwrap() error { return e.Decision.Err }

func min(a, b time.Duration) time.Duration {
	if a < b {
		return a
	}
	return b
}
