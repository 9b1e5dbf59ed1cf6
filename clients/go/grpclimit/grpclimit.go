// Package grpclimit limits the calls of a gRPC server by the slidegate service.
//
//	limit := grpclimit.Options{Client: client}
//	server := grpc.NewServer(
//		grpc.UnaryInterceptor(limit.Unary()),
//		grpc.StreamInterceptor(limit.Stream()),
//	)
//
// A denied call gets RESOURCE_EXHAUSTED, with google.rpc.RetryInfo in its details and retry-after in its
// trailer. If the limits cannot be checked and the client fails closed, it gets UNAVAILABLE.
package grpclimit

import (
	"context"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	slidegate "example.com/slidegate/clients/go"
)

// Options of the interceptors. All but Client are optional.
type Options struct {
	// Client asks the service. Required.
	Client *slidegate.Client
	// TrustedProxies says whose x-forwarded-for is believed. The zero value believes nobody's.
	TrustedProxies slidegate.TrustedProxies
	// Attributes adds to the attributes ip and method, such as /grpc.health.v1.Health/Check, or changes
	// them.
	Attributes func(call Call, attributes slidegate.Attributes)
	// Policy, if not empty, is the only policy that decides.
	Policy string
	// Cost of a call. Nil is 1.
	Cost func(call Call) slidegate.Cost
	// Skip passes calls on unchecked, for example health checks.
	Skip func(call Call) bool
	// Wait is how long a call waits for its turn before it is denied, less what the answer needs to arrive. A
	// call that its client cancels loses its place.
	Wait time.Duration
	// OnError gets the errors of checks, such as an outage. It may be called concurrently.
	OnError func(call Call, err error)
}

// Call is one call of a client.
type Call struct {
	Context context.Context
	// Method is such as /grpc.health.v1.Health/Check.
	Method string
	// Request is the message of a unary call, and nil for a stream.
	Request any
}

// Unary checks each unary call.
func (o Options) Unary() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if err := o.check(Call{ctx, info.FullMethod, request}); err != nil {
			return nil, err
		}
		return handler(ctx, request)
	}
}

// Stream checks each stream once, when it starts.
func (o Options) Stream() grpc.StreamServerInterceptor {
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if err := o.check(Call{Context: stream.Context(), Method: info.FullMethod}); err != nil {
			return err
		}
		return handler(server, stream)
	}
}

// check returns the status of a call that is not allowed.
func (o Options) check(call Call) error {
	if o.Skip != nil && o.Skip(call) {
		return nil
	}
	attributes := slidegate.Attributes{"ip": o.clientAddr(call.Context), "method": call.Method}
	if o.Attributes != nil {
		o.Attributes(call, attributes)
	}
	request := slidegate.Request{Attributes: attributes, Policy: o.Policy}
	if o.Cost != nil {
		request.Cost = o.Cost(call)
	}
	d := o.decide(call, request)
	if d.Err != nil && o.OnError != nil {
		o.OnError(call, d.Err)
	}
	fields := metadata.MD{}
	for name, values := range d.Header {
		fields[strings.ToLower(name)] = values
	}
	// The fields cannot be set if the header was sent already, which changes no decision.
	if d.Allowed {
		_ = grpc.SetHeader(call.Context, fields)
		return nil
	}
	_ = grpc.SetTrailer(call.Context, fields)
	return denial(d)
}

func (o Options) decide(call Call, request slidegate.Request) slidegate.Decision {
	if o.Wait <= 0 {
		// Not the call's context: its deadline is the client's to choose, and a check that fails may be allowed.
		return o.Client.Check(context.Background(), request)
	}
	ctx, cancel := context.WithTimeout(call.Context, o.Wait)
	defer cancel()
	return o.Client.Acquire(ctx, request)
}

func denial(d slidegate.Decision) error {
	code := codes.ResourceExhausted
	switch d.Problem.Status {
	case http.StatusBadRequest:
		code = codes.InvalidArgument
	case http.StatusInternalServerError:
		code = codes.Internal
	case http.StatusServiceUnavailable:
		code = codes.Unavailable
	}
	answer := status.New(code, d.Problem.Detail)
	if d.RetryAfter > 0 {
		info := new(errdetails.RetryInfo)
		delay := newOf(&info.RetryDelay)
		delay.Seconds, delay.Nanos = int64(d.RetryAfter/time.Second), int32(d.RetryAfter%time.Second)
		if detailed, err := answer.WithDetails(info); err == nil {
			answer = detailed
		}
	}
	return answer.Err()
}

// newOf fills in a pointer. The package of RetryInfo's duration depends on the release of errdetails.
func newOf[T any](field **T) *T {
	*field = new(T)
	return *field
}

func (o Options) clientAddr(ctx context.Context) string {
	var from netip.Addr
	if p, ok := peer.FromContext(ctx); ok {
		if addr, err := netip.ParseAddrPort(p.Addr.String()); err == nil {
			from = addr.Addr()
		}
	}
	fields, _ := metadata.FromIncomingContext(ctx)
	return slidegate.AddrAttribute(o.TrustedProxies.Resolve(from, fields.Get("x-forwarded-for")))
}
