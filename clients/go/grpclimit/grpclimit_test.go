package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	slidegate "example.com/slidegate/clients/go"
	"example.com/slidegate/clients/go/grpclimit"
	"example.com/slidegate/clients/go/slidegatetest"
)

// serve starts a gRPC server, whose service is gRPC's own health check, behind the interceptors.
func serve(t *testing.T, options grpclimit.Options) grpc_health_v1.HealthClient {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(options.Unary()), grpc.StreamInterceptor(options.Stream()))
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	connection, err := grpc.Dial(listener.Addr().String(), grpc.WithInsecure())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	return grpc_health_v1.NewHealthClient(connection)
}

func newClient(t *testing.T, service *slidegatetest.Service, mode slidegate.FailureMode) *slidegate.Client {
	t.Helper()
	client, err := slidegate.New(service.URL, slidegate.Options{Timeout: 10 * time.Second, OnFailure: mode})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// call makes a unary call, and returns its code, its details, its header and its trailer.
func call(t *testing.T, health grpc_health_v1.HealthClient, fields ...string) (*status.Status, metadata.MD, metadata.MD) {
	t.Helper()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), fields...), 20*time.Second)
	defer cancel()
	var header, trailer metadata.MD
	_, err := health.Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
	return status.Convert(err), header, trailer
}

// A client library of gRPC must find the wait where it looks for it.
func TestDeniedCallsAreExhaustedWithTheWait(t *testing.T) {
	service := slidegatetest.Start(t, "--policy", "1/1h per ip")
	health := serve(t, grpclimit.Options{Client: newClient(t, service, slidegate.FailOpen)})
	allowed, header, _ := call(t, health)
	if allowed.Code() != codes.OK || header.Get("ratelimit-policy")[0] != `"per-ip";q=1;w=3600` {
		t.Fatal(allowed, header)
	}
	// A header of a client, whom nobody trusts, gives no other address.
	denied, _, trailer := call(t, health, "x-forwarded-for", "203.0.113.7")
	if denied.Code() != codes.ResourceExhausted || denied.Message() == "" {
		t.Fatal(denied)
	}
	seconds, err := strconv.Atoi(trailer.Get("retry-after")[0])
	if err != nil || seconds < 3500 || seconds > 3600 {
		t.Fatal(trailer)
	}
	info, ok := denied.Details()[0].(*errdetails.RetryInfo)
	if !ok || info.RetryDelay.Seconds < 3500 || info.RetryDelay.Seconds > 3600 {
		t.Fatal(denied.Details())
	}
}

// A stream is checked when it starts, and goes on.
func TestStreamsAreCheckedOnce(t *testing.T) {
	service := slidegatetest.Start(t, "--policy", "1/1h per ip")
	health := serve(t, grpclimit.Options{Client: newClient(t, service, slidegate.FailOpen)})
	watch := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		stream, err := health.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	if err := watch(); err != nil {
		t.Fatal(err)
	}
	if err := watch(); status.Code(err) != codes.ResourceExhausted {
		t.Fatal(err)
	}
}

// Attributes, cost and skipped calls are the application's to choose; proxies tell their clients apart.
func TestOptions(t *testing.T) {
	service := slidegatetest.Start(t, "--policy", "5/1h per ip,method,user named users")
	proxies, err := slidegate.NewTrustedProxies("loopback")
	if err != nil {
		t.Fatal(err)
	}
	var skip atomic.Bool
	health := serve(t, grpclimit.Options{
		Client:         newClient(t, service, slidegate.FailOpen),
		TrustedProxies: proxies,
		Policy:         "users",
		Attributes:     func(call grpclimit.Call, attributes slidegate.Attributes) { attributes["user"] = "alice" },
		Cost: func(call grpclimit.Call) slidegate.Cost {
			if _, ok := call.Request.(*grpc_health_v1.HealthCheckRequest); !ok || call.Method != "/grpc.health.v1.Health/Check" {
				t.Errorf("%+v", call)
			}
			return slidegate.Units(5)
		},
		Skip: func(grpclimit.Call) bool { return skip.Load() },
	})
	for _, one := range []struct {
		forwarded string
		code      codes.Code
	}{{"203.0.113.7", codes.OK}, {"203.0.113.7", codes.ResourceExhausted}, {"203.0.113.8", codes.OK}} {
		if got, _, _ := call(t, health, "x-forwarded-for", one.forwarded); got.Code() != one.code {
			t.Fatal(one, got)
		}
	}
	skip.Store(true)
	if got, _, _ := call(t, health, "x-forwarded-for", "203.0.113.8"); got.Code() != codes.OK {
		t.Fatal(got)
	}
}

// An outage is passed or denied as chosen, and reported; an invalid check never passes.
func TestWithoutTheService(t *testing.T) {
	service := slidegatetest.Start(t, "--policy", "9/1h per user")
	var reported atomic.Int64
	options := func(mode slidegate.FailureMode, user string) grpclimit.Options {
		return grpclimit.Options{
			Client:     newClient(t, service, mode),
			Attributes: func(call grpclimit.Call, attributes slidegate.Attributes) { attributes["user"] = user },
			OnError: func(call grpclimit.Call, err error) {
				var e *slidegate.Error
				if reported.Add(1); !errors.As(err, &e) {
					t.Errorf("%v", err)
				}
			},
		}
	}
	invalid, typo := options(slidegate.FailOpen, "\xff"), options(slidegate.FailOpen, "a")
	typo.Policy = "typo"
	if got, _, _ := call(t, serve(t, invalid)); got.Code() != codes.InvalidArgument || reported.Swap(0) != 1 {
		t.Fatal(got)
	}
	if got, _, _ := call(t, serve(t, typo)); got.Code() != codes.Internal || reported.Swap(0) != 1 {
		t.Fatal(got)
	}
	service.Kill()
	if got, _, _ := call(t, serve(t, options(slidegate.FailOpen, "a"))); got.Code() != codes.OK || reported.Swap(0) != 1 {
		t.Fatal(got)
	}
	got, _, trailer := call(t, serve(t, options(slidegate.FailClosed, "a")))
	if got.Code() != codes.Unavailable || len(got.Details()) != 1 || len(trailer.Get("retry-after")) != 1 || reported.Swap(0) != 1 {
		t.Fatal(got, trailer)
	}
}

// The limits are the limiter's, not those of a deadline that a client chooses: such a call is charged.
func TestACallWithAShortDeadlineIsCharged(t *testing.T) {
	service := slidegatetest.Start(t, "--policy", "100/1h per user")
	client := newClient(t, service, slidegate.FailOpen)
	unary := grpclimit.Options{
		Client:     client,
		Attributes: func(call grpclimit.Call, attributes slidegate.Attributes) { attributes["user"] = "hasty" },
	}.Unary()
	over, cancel := context.WithTimeout(context.Background(), 0)
	defer cancel()
	_, err := unary(over, nil, &grpc.UnaryServerInfo{FullMethod: "/x"}, func(context.Context, any) (any, error) { return nil, io.EOF })
	used := client.Peek(context.Background(), slidegate.Request{Attributes: slidegate.Attributes{"user": "hasty"}}).Used
	if err != io.EOF || used != 1 {
		t.Fatal(err, used)
	}
}

// Calls of a burst are late instead of refused; a denial comes as soon as it is certain.
func TestCallsWaitForTheirTurn(t *testing.T) {
	service := slidegatetest.Start(t, "--policy", "1/15s per ip")
	client := newClient(t, service, slidegate.FailClosed)
	patient, hasty := serve(t, grpclimit.Options{Client: client, Wait: time.Minute}), serve(t, grpclimit.Options{Client: client, Wait: time.Second})
	if allowed, _, _ := call(t, patient); allowed.Code() != codes.OK {
		t.Fatal(allowed)
	}
	if denied, _, _ := call(t, hasty); denied.Code() != codes.ResourceExhausted {
		t.Fatal(denied)
	}
	started, waiting := time.Now(), make(chan *status.Status, 1)
	go func() {
		answer, _, _ := call(t, patient)
		waiting <- answer
	}()
	select {
	case answer := <-waiting:
		t.Fatal(answer)
	case <-time.After(100 * time.Millisecond):
	}
	local := slidegate.Request{Attributes: slidegate.Attributes{"ip": "127.0.0.1"}}
	if d, err := client.Refund(context.Background(), local); err != nil || d.Cost != 1 {
		t.Fatal(d, err)
	}
	if answer := <-waiting; answer.Code() != codes.OK || time.Since(started) > 12*time.Second {
		t.Fatal(answer, time.Since(started))
	}
}
