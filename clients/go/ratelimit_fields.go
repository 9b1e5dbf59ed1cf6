package slidegate

import (
	"encoding/base64"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits are what the header fields of a response say about limits, of any server that follows
// draft-ietf-httpapi-ratelimit-headers, versions 8 to 11.
type Limits struct {
	// Items are those of RateLimit.
	Items []LimitItem
	// Policies are those of RateLimit-Policy.
	Policies []LimitPolicy
	// RetryAfter is Retry-After, from the time of the response on; nil if there is none.
	RetryAfter *time.Duration
}

// LimitItem is the state of one policy.
type LimitItem struct {
	// Name is that of a policy.
	Name string
	// Remaining is what may be used now, in the unit of the policy.
	Remaining int64
	// Reset is the time until more may be used; nil if it is not said.
	Reset *time.Duration
	// PartitionKey is whose limit it is; nil if it is not said.
	PartitionKey []byte
}

// LimitPolicy is one policy of a server.
type LimitPolicy struct {
	Name string
	// Quota is what may be used in a window, in Unit.
	Quota int64
	// Unit is empty for the default, requests.
	Unit string
	// Window is nil if it is not said.
	Window       *time.Duration
	PartitionKey []byte
}

// FieldErrors are the fields that are malformed, and therefore ignored.
type FieldErrors []FieldError

// FieldError is a malformed field.
type FieldError struct{ Field, Problem string }

func (e FieldErrors) Error() string {
	texts := make([]string, len(e))
	for i, one := range e {
		texts[i] = one.Field + ": " + one.Problem
	}
	return "slidegate: malformed header fields: " + strings.Join(texts, "; ")
}

// maxFieldLength bounds each field, over all of its lines.
const maxFieldLength = 16 << 10

// ParseRateLimit reads RateLimit, RateLimit-Policy and Retry-After. The error is FieldErrors: as the
// draft requires, a malformed field is ignored as a whole, and Limits has the others.
//
// A Retry-After that is a date counts from the field Date, or from now without it. Times that do not
// fit in a Duration are its maximum. The draft says not to use fields of cached responses.
func ParseRateLimit(header http.Header) (Limits, error) {
	var limits Limits
	var errs FieldErrors
	note := func(field string, err error) {
		if err != nil {
			errs = append(errs, FieldError{field, err.Error()})
		}
	}
	var err error
	limits.Items, err = parseItems(header.Values("RateLimit"))
	note("RateLimit", err)
	limits.Policies, err = parsePolicies(header.Values("RateLimit-Policy"))
	note("RateLimit-Policy", err)
	limits.RetryAfter, err = parseRetryAfter(header)
	note("Retry-After", err)
	if errs != nil {
		return limits, errs
	}
	return limits, nil
}

// Wait is how long not to send the next request: Retry-After, or otherwise the longest reset of the
// items with nothing remaining.
func (l Limits) Wait() time.Duration {
	if l.RetryAfter != nil {
		return *l.RetryAfter
	}
	var longest time.Duration
	for _, item := range l.Items {
		if wait := item.Wait(); wait > longest {
			longest = wait
		}
	}
	return longest
}

// Wait is how long not to use what this item limits: 0 if something remains or nothing is said.
func (i LimitItem) Wait() time.Duration {
	if i.Remaining > 0 || i.Reset == nil {
		return 0
	}
	return *i.Reset
}

func parseItems(lines []string) ([]LimitItem, error) {
	members, err := parseList(lines)
	var items []LimitItem
	for i := range members {
		m := &members[i]
		item := LimitItem{m.name, m.required("r"), m.seconds("t", 0), m.bytes("pk")}
		if m.err != nil {
			return nil, m.err
		}
		items = append(items, item)
	}
	return items, err
}

func parsePolicies(lines []string) ([]LimitPolicy, error) {
	members, err := parseList(lines)
	var policies []LimitPolicy
	for i := range members {
		m := &members[i]
		policy := LimitPolicy{m.name, m.required("q"), m.text("qu"), m.seconds("w", 1), m.bytes("pk")}
		if m.err != nil {
			return nil, m.err
		}
		policies = append(policies, policy)
	}
	return policies, err
}

func parseRetryAfter(header http.Header) (*time.Duration, error) {
	values := header.Values("Retry-After")
	if len(values) == 0 {
		return nil, nil
	}
	text := strings.Trim(values[0], " \t")
	var wait time.Duration
	switch {
	case len(values) > 1:
		return nil, fmt.Errorf("it is given %d times", len(values))
	case text != "" && consistsOf(text, digits):
		number, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			number = math.MaxInt64
		}
		wait = seconds(number)
	default:
		date, err := http.ParseTime(text)
		if err != nil {
			return nil, fmt.Errorf("neither seconds nor an HTTP date")
		}
		now, err := http.ParseTime(header.Get("Date"))
		if err != nil {
			now = time.Now()
		}
		if wait = date.Sub(now); wait < 0 {
			wait = 0
		}
	}
	return &wait, nil
}

// seconds saturates.
func seconds(n int64) time.Duration {
	if n > math.MaxInt64/int64(time.Second) {
		return math.MaxInt64
	}
	return time.Duration(n) * time.Second
}

// listMember is a string with parameters, in a list of structured fields (RFC 9651).
type listMember struct {
	name string
	// parameters are int64, string, []byte, or of another type, which none of the draft has.
	parameters map[string]any
	// err is the first parameter of the draft that is missing or of another type.
	err error
}

func (m *listMember) fail(key, expected string) {
	if m.err == nil {
		m.err = fmt.Errorf("%s of %q must be %s", key, m.name, expected)
	}
}

// integer is nil if it is missing.
func (m *listMember) integer(key string, least int64) *int64 {
	value, isGiven := m.parameters[key]
	number, isInteger := value.(int64)
	if !isGiven {
		return nil
	}
	if !isInteger || number < least {
		m.fail(key, fmt.Sprintf("an integer from %d", least))
		return nil
	}
	return &number
}

func (m *listMember) required(key string) int64 {
	number := m.integer(key, 0)
	if number == nil {
		m.fail(key, "given")
		return 0
	}
	return *number
}

func (m *listMember) seconds(key string, least int64) *time.Duration {
	number := m.integer(key, least)
	if number == nil {
		return nil
	}
	duration := seconds(*number)
	return &duration
}

func (m *listMember) text(key string) string {
	value, isGiven := m.parameters[key]
	text, isText := value.(string)
	if isGiven && !isText {
		m.fail(key, "a string")
	}
	return text
}

func (m *listMember) bytes(key string) []byte {
	value, isGiven := m.parameters[key]
	bytes, isBytes := value.([]byte)
	if isGiven && !isBytes {
		m.fail(key, "a byte sequence")
	}
	return bytes
}

// parseList reads a list of strings. The draft has no members of other types.
func parseList(lines []string) ([]listMember, error) {
	text := strings.Join(lines, ", ")
	if len(text) > maxFieldLength {
		return nil, fmt.Errorf("it has %d bytes, more than %d", len(text), maxFieldLength)
	}
	p := &fieldParser{rest: strings.Trim(text, " ")}
	var members []listMember
	if p.rest == "" {
		return nil, nil
	}
	for {
		if !p.is('"') {
			return nil, p.expected("a string")
		}
		name, err := p.string()
		if err != nil {
			return nil, err
		}
		parameters, err := p.parameters()
		if err != nil {
			return nil, err
		}
		members = append(members, listMember{name: name, parameters: parameters})
		p.skip(" \t")
		if p.rest == "" {
			return members, nil
		}
		if !p.take(',') {
			return nil, p.expected("a comma")
		}
		p.skip(" \t")
	}
}

// fieldParser reads structured fields. Each method takes what it reads from the front of rest.
type fieldParser struct{ rest string }

func (p *fieldParser) is(c byte) bool { return p.rest != "" && p.rest[0] == c }

func (p *fieldParser) take(c byte) bool {
	isNext := p.is(c)
	if isNext {
		p.rest = p.rest[1:]
	}
	return isNext
}

// next takes a byte, which there must be.
func (p *fieldParser) next() byte {
	c := p.rest[0]
	p.rest = p.rest[1:]
	return c
}

func (p *fieldParser) skip(bytes string) { p.rest = strings.TrimLeft(p.rest, bytes) }

// takeAll takes all bytes of a set, of which there may be none.
func (p *fieldParser) takeAll(bytes string) string {
	rest := strings.TrimLeft(p.rest, bytes)
	taken := p.rest[:len(p.rest)-len(rest)]
	p.rest = rest
	return taken
}

func (p *fieldParser) expected(what string) error {
	at := p.rest
	if len(at) > 20 {
		at = at[:20] + "..."
	}
	return fmt.Errorf("expected %s at %q", what, at)
}

const (
	lower     = "abcdefghijklmnopqrstuvwxyz"
	keyBytes  = lower + digits + "_-.*"
	tokenTail = letters + digits + "!#$%&'*+-.^_`|~:/"
)

func (p *fieldParser) parameters() (map[string]any, error) {
	parameters := map[string]any{}
	for p.take(';') {
		p.skip(" ")
		if p.rest == "" || !strings.Contains(lower+"*", p.rest[:1]) {
			return nil, p.expected("the name of a parameter")
		}
		key := p.takeAll(keyBytes)
		var value any = true
		if p.take('=') {
			var err error
			if value, err = p.item(); err != nil {
				return nil, err
			}
		}
		parameters[key] = value
	}
	return parameters, nil
}

// item reads any bare item.
func (p *fieldParser) item() (any, error) {
	switch {
	case p.rest == "":
	case p.is('"'):
		return p.string()
	case p.is(':'):
		return p.byteSequence()
	case strings.HasPrefix(p.rest, `%"`):
		return p.displayString()
	case p.take('?'):
		if !p.take('0') && !p.take('1') {
			return nil, p.expected("0 or 1")
		}
		return true, nil
	case p.take('@'):
		date, err := p.number()
		if _, isInteger := date.(int64); err == nil && !isInteger {
			return nil, fmt.Errorf("a date has a fraction")
		}
		return struct{}{}, err
	case strings.Contains(digits+"-", p.rest[:1]):
		return p.number()
	case strings.Contains(letters+"*", p.rest[:1]):
		p.takeAll(tokenTail)
		return struct{}{}, nil
	}
	return nil, p.expected("a value")
}

// number is an int64 for an integer of at most 15 digits. A decimal has at most 12, and 3 more.
func (p *fieldParser) number() (any, error) {
	isNegative := p.take('-')
	whole := p.takeAll(digits)
	if p.take('.') {
		fraction := p.takeAll(digits)
		if whole == "" || len(whole) > 12 || fraction == "" || len(fraction) > 3 {
			return nil, fmt.Errorf("a decimal has more than 12 digits, or not 1 to 3 after the point")
		}
		return struct{}{}, nil
	}
	if whole == "" || len(whole) > 15 {
		return nil, fmt.Errorf("an integer has not 1 to 15 digits")
	}
	number, err := strconv.ParseInt(whole, 10, 64)
	if isNegative {
		number = -number
	}
	return number, err
}

func (p *fieldParser) string() (string, error) {
	p.take('"')
	var text strings.Builder
	for p.rest != "" {
		c := p.next()
		switch {
		case c == '"':
			return text.String(), nil
		case c == '\\':
			if !p.is('"') && !p.is('\\') {
				return "", p.expected("a quote or a backslash after a backslash")
			}
			c = p.next()
		case c < ' ' || c > '~':
			return "", fmt.Errorf("a string has the byte 0x%02x", c)
		}
		text.WriteByte(c)
	}
	return "", fmt.Errorf("a string has no end")
}

// byteSequence accepts missing padding, as RFC 9651 asks.
func (p *fieldParser) byteSequence() (any, error) {
	p.take(':')
	text := p.takeAll(letters + digits + "+/")
	padding := p.takeAll("=")
	if !p.take(':') || len(padding) > 2 || padding != "" && (len(text)+len(padding))%4 != 0 {
		return nil, fmt.Errorf("a byte sequence is not base64 between colons")
	}
	bytes, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("a byte sequence is not base64 between colons")
	}
	return bytes, nil
}

// displayString checks a display string, which no parameter of the draft is.
func (p *fieldParser) displayString() (any, error) {
	p.rest = p.rest[len(`%"`):]
	var text strings.Builder
	for p.rest != "" {
		c := p.next()
		switch {
		case c == '"' && utf8.ValidString(text.String()):
			return struct{}{}, nil
		case c == '%' && len(p.rest) >= 2 && consistsOf(p.rest[:2], digits+"abcdef"):
			code, _ := strconv.ParseUint(p.rest[:2], 16, 8)
			c, p.rest = byte(code), p.rest[2:]
		case c == '%' || c == '"' || c < ' ' || c > '~':
			return nil, fmt.Errorf("a display string is not UTF-8 with percent signs")
		}
		text.WriteByte(c)
	}
	return nil, fmt.Errorf("a display string has no end")
}
