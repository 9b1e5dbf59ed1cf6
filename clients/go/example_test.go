package slidegate_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"time"

	slidegate "example.com/slidegate/clients/go"
)

func ExampleParseRateLimit() {
	header := http.Header{}
	header.Set("RateLimit-Policy", `"burst";q=100;w=60, "daily";q=1000;w=86400`)
	header.Set("RateLimit", `"burst";r=0;t=12, "daily";r=640`)
	limits, err := slidegate.ParseRateLimit(header)
	if err != nil {
		fmt.Println(err)
	}
	fmt.Println("wait", limits.Wait())
	for i, item := range limits.Items {
		fmt.Println(item.Name, item.Remaining, "of", limits.Policies[i].Quota, "per", *limits.Policies[i].Window)
	}
	// Output:
	// wait 12s
	// burst 0 of 100 per 1m0s
	// daily 640 of 1000 per 24h0m0s
}

func ExampleTrustedProxies_Resolve() {
	proxies, err := slidegate.NewTrustedProxies("10.0.0.0/8")
	if err != nil {
		fmt.Println(err)
	}
	// The client wrote 6.6.6.6 itself; the first proxy appended what it saw, the second one the first.
	lines := []string{"6.6.6.6, 203.0.113.7, 10.0.0.2"}
	fmt.Println(proxies.Resolve(netip.MustParseAddr("10.0.0.1"), lines))
	// Nobody else is believed.
	fmt.Println(proxies.Resolve(netip.MustParseAddr("198.51.100.9"), lines))
	// Output:
	// 203.0.113.7
	// 198.51.100.9
}

func ExampleTransport() {
	requests := 0
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests++; requests == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer api.Close()
	client := http.Client{Transport: &slidegate.Transport{MaxTries: 3, MaxWait: 10 * time.Second}}
	response, err := client.Get(api.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer response.Body.Close()
	fmt.Println(response.StatusCode, "after", requests, "requests")
	// Output: 200 after 2 requests
}

func ExampleMiddleware() {
	client, err := slidegate.New("http://127.0.0.1:7979", slidegate.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	limited := slidegate.Middleware(client, slidegate.MiddlewareOptions{
		Attributes: func(r *http.Request, attributes slidegate.Attributes) {
			attributes["user"] = r.Header.Get("X-User")
		},
		Refund: func(status int) bool { return status >= 500 },
	})
	http.Handle("/", limited(http.NotFoundHandler()))
}

func ExampleClient_Reserve() {
	client, err := slidegate.New("http://127.0.0.1:7979", slidegate.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	reservation := client.Reserve(ctx, slidegate.ReserveRequest{Request: slidegate.Request{
		Attributes: slidegate.Attributes{"user": "alice"},
		Cost:       slidegate.Units(4096),
	}})
	defer reservation.Close() // cancels, unless something is recorded or settled
	if !reservation.Allowed {
		fmt.Println("wait", reservation.RetryAfter)
		return
	}
	if _, err := reservation.Settle(ctx, slidegate.Units(512)); err != nil {
		fmt.Println(err)
	}
}
