package slidegate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
)

// Error is why a call has no answer. Use it with errors.As.
type Error struct {
	// Status is that of the service's response; 0 if there is none.
	Status int
	// Code is one of the Code constants, or the fragment of the problem's type.
	Code string
	// Title and Detail are those of the problem (RFC 9457). Detail is for operators.
	Title, Detail string
	// Field is the invalid member of the request, such as attributes.ip, if one is.
	Field string
	cause error
}

const (
	CodeTimeout         = "timeout"          // no answer in time; the service may have charged the request
	CodeUnavailable     = "unavailable"      // not reachable, or its response is an error
	CodeInvalidResponse = "invalid_response" // not a response of slidegate, or one that is too large
	CodeInvalidRequest  = "invalid_request"  // rejected by the service, or before it was sent; nothing is charged
	CodeUnauthorized    = "unauthorized"     // the token is missing, wrong, or lacks the scope
	CodeNotFound        = "not_found"        // the store does not know the ticket or key, or the URL is not of slidegate
)

// Error is one line.
func (e *Error) Error() string {
	var text strings.Builder
	text.WriteString("slidegate: " + e.Code)
	if e.Status != 0 {
		fmt.Fprintf(&text, " (status %d)", e.Status)
	}
	if e.Detail != "" {
		text.WriteString(": " + e.Detail)
	}
	return text.String()
}

// Unwrap returns the error of the connection or of the context, if there is one.
func (e *Error) Unwrap() error { return e.cause }

// Is makes every timeout a context.DeadlineExceeded, also those of connecting.
func (e *Error) Is(target error) bool {
	return e.Code == CodeTimeout && target == context.DeadlineExceeded
}

// isInvalid tells requests that the service rejects from a service that does not decide. Such a
// request is never let through, or clients could lift their limit with a value that is rejected.
func (e *Error) isInvalid() bool { return e.Code == CodeInvalidRequest }

// mayRepeat is whether the same call may have an answer later.
func (e *Error) mayRepeat() bool {
	return e.Code == CodeTimeout || e.Code == CodeUnavailable || e.Status >= 500
}

var errNoDecision = errors.New("it has no member `allowed`")

// failure is the error of a call without a response.
func failure(err error) *Error {
	code := CodeUnavailable
	var network net.Error
	if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &network) && network.Timeout() {
		code = CodeTimeout
	}
	return &Error{Code: code, Detail: err.Error(), cause: err}
}

func invalidRequest(field, detail string) *Error {
	return &Error{Code: CodeInvalidRequest, Title: "Bad Request", Detail: detail, Field: field}
}

func invalidResponse(status int, detail string) *Error {
	return &Error{Status: status, Code: CodeInvalidResponse, Detail: detail}
}

// responseError is the error of a response that is neither a decision nor a settlement.
func responseError(status int, body []byte) *Error {
	e := &Error{Status: status, Title: http.StatusText(status)}
	switch {
	case status == http.StatusBadRequest || status == http.StatusRequestEntityTooLarge:
		e.Code = CodeInvalidRequest
	case status == http.StatusUnauthorized || status == http.StatusForbidden || status == http.StatusTooManyRequests:
		// 429 without a decision is the answer to too many wrong tokens.
		e.Code = CodeUnauthorized
	case status == http.StatusNotFound:
		e.Code = CodeNotFound
	case status == http.StatusRequestTimeout || status >= 500:
		e.Code = CodeUnavailable
	default:
		e.Code = CodeInvalidResponse
		e.Detail = "not a response of slidegate; check the base URL"
	}
	var problem struct {
		Problem
		Field string `json:"field"`
	}
	if json.Unmarshal(body, &problem) == nil && problem.Title != "" {
		e.Title, e.Detail, e.Field = problem.Title, problem.Detail, problem.Field
		if code := strings.TrimPrefix(problem.Type, problemTypes); code != problem.Type {
			e.Code = code
		}
	}
	return e
}
