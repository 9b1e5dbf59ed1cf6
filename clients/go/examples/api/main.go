// Command api is an HTTP API behind slidegate: a limit by address, a stricter one on logins of which
// successes do not count, and a stream whose cost is known at its end.
//
//	slidegate serve --config policies.yaml
//	go run .
//	curl -i http://127.0.0.1:3000/
//	curl -i http://127.0.0.1:3000/login -d user=alice -d password=wrong
//	curl -iN 'http://127.0.0.1:3000/stream?words=20' -H 'X-User: alice'
package main

import (
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	slidegate "example.com/slidegate/clients/go"
)

func main() {
	client, err := slidegate.New(env("SLIDEGATE_URL", "http://127.0.0.1:7979"), slidegate.Options{})
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", env("LISTEN", "127.0.0.1:3000"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("listening on http://" + listener.Addr().String())
	log.Fatal(http.Serve(listener, routes(client)))
}

func routes(client *slidegate.Client) http.Handler {
	onError := func(r *http.Request, err error) { log.Printf("%s %s: %v", r.Method, r.URL.Path, err) }
	limited := slidegate.Middleware(client, slidegate.MiddlewareOptions{OnError: onError})
	// Only wrong passwords count: this is a limit on guesses.
	guesses := slidegate.Middleware(client, slidegate.MiddlewareOptions{
		OnError: onError,
		Refund:  func(status int) bool { return status < 400 },
	})
	mux := http.NewServeMux()
	mux.Handle("/", limited(http.HandlerFunc(home)))
	mux.Handle("/login", guesses(http.HandlerFunc(login)))
	mux.Handle("/stream", stream(client))
	return mux
}

func home(w http.ResponseWriter, r *http.Request) {
	decision, _ := slidegate.FromContext(r.Context())
	fmt.Fprintf(w, "hello, %d requests remain\n", decision.Remaining)
}

func login(w http.ResponseWriter, r *http.Request) {
	if r.PostFormValue("password") != "correct" {
		http.Error(w, "wrong password", http.StatusUnauthorized)
		return
	}
	fmt.Fprintln(w, "welcome")
}

// stream reserves the most that the request allows, and settles what was sent.
func stream(client *slidegate.Client) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		most, err := strconv.ParseUint(r.URL.Query().Get("words"), 10, 32)
		if err != nil {
			http.Error(w, "words must be a number", http.StatusBadRequest)
			return
		}
		reservation := client.Reserve(r.Context(), slidegate.ReserveRequest{Request: slidegate.Request{
			Attributes: slidegate.Attributes{"user": r.Header.Get("X-User")},
			Cost:       slidegate.Units(most),
			Policy:     "words",
		}})
		defer func() {
			if err := reservation.Close(); err != nil {
				log.Printf("settle: %v", err)
			}
		}()
		for name, values := range reservation.Header {
			w.Header()[name] = values
		}
		if !reservation.Allowed {
			slidegate.WriteProblem(w, reservation.Decision)
			return
		}
		for sent := uint64(0); sent < most && r.Context().Err() == nil; {
			fmt.Fprintf(w, "word%d ", sent)
			w.(http.Flusher).Flush()
			sent++
			reservation.Record(slidegate.Units(sent)) // for Close, whatever ends the stream
			time.Sleep(10 * time.Millisecond)
		}
	}
}

func env(name, byDefault string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return byDefault
}
