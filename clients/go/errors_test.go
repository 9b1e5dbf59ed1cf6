package slidegate

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
)

// Callers ask one question about timeouts, whichever part of a call was late.
func TestEveryTimeoutIsADeadlineExceeded(t *testing.T) {
	for _, cause := range []error{context.DeadlineExceeded, &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}} {
		err := failure(cause)
		if err.Code != CodeTimeout || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, cause) {
			t.Errorf("%#v", err)
		}
	}
	if err := failure(io.EOF); err.Code != CodeUnavailable || errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, io.EOF) {
		t.Errorf("%#v", err)
	}
}

// The line is what stands in the application's log.
func TestErrorsAreOneLine(t *testing.T) {
	body := `{"type": "about:blank", "title": "Bad Request", "status": 400, "detail": "invalid ip", "field": "attributes.ip"}`
	err := responseError(400, []byte(body))
	if err.Error() != "slidegate: invalid_request (status 400): invalid ip" || err.Field != "attributes.ip" || err.Title != "Bad Request" {
		t.Errorf("%v", err)
	}
	if text := responseError(404, nil).Error(); text != "slidegate: not_found (status 404)" {
		t.Error(text)
	}
	if code := responseError(503, []byte(`{"type": "`+problemTypes+`temporary-reduced-capacity", "title": "x"}`)).Code; code != codeReducedCapacity {
		t.Error(code)
	}
}
