package slidegate_test

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	slidegate "example.com/slidegate/clients/go"
)

// vector is one of ../ratelimit-fields.json, which has what the clients in other languages must read, too.
type vector struct {
	Name   string
	Fields [][2]string
	Items  []struct {
		Name         string
		Remaining    int64
		ResetS       *int64 `json:"reset_s"`
		PartitionKey []byte `json:"partition_key"`
	}
	Policies []struct {
		Name         string
		Quota        int64
		WindowS      *int64 `json:"window_s"`
		Unit         string
		PartitionKey []byte `json:"partition_key"`
	}
	RetryAfterS *int64 `json:"retry_after_s"`
	Invalid     []string
	WaitS       int64 `json:"wait_s"`
}

func vectors(t testing.TB) []vector {
	t.Helper()
	text, err := os.ReadFile("../ratelimit-fields.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Vectors []vector }
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Vectors) < 40 {
		t.Fatalf("only %d vectors", len(file.Vectors))
	}
	return file.Vectors
}

func (v vector) header() http.Header {
	header := http.Header{}
	for _, field := range v.Fields {
		header.Add(field[0], field[1])
	}
	return header
}

func (v vector) limits() slidegate.Limits {
	var limits slidegate.Limits
	for _, i := range v.Items {
		limits.Items = append(limits.Items, slidegate.LimitItem{i.Name, i.Remaining, seconds(i.ResetS), i.PartitionKey})
	}
	for _, p := range v.Policies {
		limits.Policies = append(limits.Policies, slidegate.LimitPolicy{p.Name, p.Quota, p.Unit, seconds(p.WindowS), p.PartitionKey})
	}
	limits.RetryAfter = seconds(v.RetryAfterS)
	return limits
}

func seconds(n *int64) *time.Duration {
	if n == nil {
		return nil
	}
	d := time.Duration(math.MaxInt64)
	if *n < int64(d/time.Second) {
		d = time.Duration(*n) * time.Second
	}
	return &d
}

// All clients read the same from the same fields.
func TestTheVectorsOfAllClients(t *testing.T) {
	for _, v := range vectors(t) {
		t.Run(v.Name, func(t *testing.T) {
			limits, err := slidegate.ParseRateLimit(v.header())
			var invalid slidegate.FieldErrors
			if err != nil && !errors.As(err, &invalid) {
				t.Fatal(err)
			}
			names := []string{}
			for _, one := range invalid {
				names = append(names, one.Field)
			}
			if !reflect.DeepEqual(names, v.Invalid) {
				t.Fatalf("invalid are %q: %v", names, err)
			}
			if want := v.limits(); !reflect.DeepEqual(limits, want) {
				t.Fatalf("got  %+v\nwant %+v", limits, want)
			}
			if wait := limits.Wait(); wait != time.Duration(v.WaitS)*time.Second {
				t.Fatalf("waits %v", wait)
			}
		})
	}
}

// The error is what someone with a broken server reads.
func TestFieldErrorsSayWhatIsWrong(t *testing.T) {
	header := http.Header{"Ratelimit": {`"a";t=1`}, "Ratelimit-Policy": {`"a";q=1;w=60, daily;q=2`}, "Retry-After": {"soon"}}
	_, err := slidegate.ParseRateLimit(header)
	want := `slidegate: malformed header fields: RateLimit: r of "a" must be given; ` +
		`RateLimit-Policy: expected a string at "daily;q=2"; Retry-After: neither seconds nor an HTTP date`
	if err == nil || err.Error() != want {
		t.Fatal(err)
	}
}

// A hostile server must not make a client work long, or wait for a negative time.
func TestFieldsAreBounded(t *testing.T) {
	long := http.Header{"Ratelimit": {strings.Repeat(`"a";r=1,`, 10_000)}}
	if _, err := slidegate.ParseRateLimit(long); err == nil || !strings.Contains(err.Error(), "80000 bytes, more than 16384") {
		t.Fatal(err)
	}
	limits, err := slidegate.ParseRateLimit(http.Header{"Retry-After": {"99999999999999999999999"}})
	if err != nil || limits.Wait() != math.MaxInt64 {
		t.Fatal(limits, err)
	}
	// Without a Date, a date counts from now; the obsolete forms are dates as well.
	limits, err = slidegate.ParseRateLimit(http.Header{"Retry-After": {"Sunday, 06-Nov-94 08:49:37 GMT"}})
	if err != nil || limits.RetryAfter == nil || limits.Wait() != 0 {
		t.Fatal(limits, err)
	}
	date := time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)
	limits, err = slidegate.ParseRateLimit(http.Header{"Retry-After": {date}})
	if err != nil || limits.Wait() < 59*time.Minute || limits.Wait() > time.Hour {
		t.Fatal(limits, err)
	}
}

// Any bytes give limits or an error, and what is read can be written and read again.
func FuzzParseRateLimit(f *testing.F) {
	for _, v := range vectors(f) {
		header := v.header()
		f.Add(strings.Join(header.Values("RateLimit"), ", "), header.Get("RateLimit-Policy"), header.Get("Retry-After"))
	}
	f.Fuzz(func(t *testing.T, items, policies, retryAfter string) {
		header := http.Header{"Ratelimit": {items}, "Ratelimit-Policy": {policies}, "Retry-After": {retryAfter}}
		limits, err := slidegate.ParseRateLimit(header)
		if limits.Wait() < 0 {
			t.Fatalf("waits %v", limits.Wait())
		}
		if err != nil {
			return
		}
		written := http.Header{"Ratelimit": {writeItems(limits.Items)}, "Ratelimit-Policy": {writePolicies(limits.Policies)}}
		again, err := slidegate.ParseRateLimit(written)
		again.RetryAfter = limits.RetryAfter
		if err != nil || !reflect.DeepEqual(saturated(again), saturated(limits)) {
			t.Fatalf("%v\n%+v\n%+v", err, limits, again)
		}
	})
}
