package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	slidegate "example.com/slidegate/clients/go"
	"example.com/slidegate/clients/go/slidegatetest"
)

// TestMain makes the test's own binary the program.
func TestMain(m *testing.M) {
	if os.Getenv("RUN_MAIN") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func startExample(t *testing.T, service *slidegatetest.Service) (base string) {
	t.Helper()
	program := exec.Command(os.Args[0])
	program.Env = []string{"RUN_MAIN=1", "LISTEN=127.0.0.1:0", "SLIDEGATE_URL=" + service.URL}
	program.Stderr = os.Stderr
	output, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = program.Process.Kill()
		_ = program.Wait()
	})
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(strings.TrimPrefix(line, "listening on "))
}

func read(t *testing.T, response *http.Response, err error) (int, string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// The example is what people copy: each of its limits must limit.
func TestTheExampleLimits(t *testing.T) {
	service := slidegatetest.Start(t, "--config", "policies.yaml")
	base := startExample(t, service)
	for _, want := range []string{"200 hello, 2 requests remain\n", "200 hello, 1 requests remain\n", "200 hello, 0 requests remain\n", "429"} {
		response, err := http.Get(base)
		status, body := read(t, response, err)
		if got := fmt.Sprint(status, " ", body); !strings.HasPrefix(got, want) {
			t.Fatalf("%q, expected %q", got, want)
		}
	}
	// Right passwords are free, wrong ones are counted, and then right ones wait, too.
	for _, one := range []struct {
		password string
		status   int
	}{{"correct", 200}, {"correct", 200}, {"correct", 200}, {"a", 401}, {"b", 401}, {"correct", 429}} {
		response, err := http.PostForm(base+"/login", url.Values{"password": {one.password}})
		if status, body := read(t, response, err); status != one.status {
			t.Fatalf("%s: %d %s", one.password, status, body)
		}
	}
}

// Words that were never sent are not charged: not at the end, and not if the client disconnects.
func TestTheStreamIsSettled(t *testing.T) {
	service := slidegatetest.Start(t, "--config", "policies.yaml")
	base := startExample(t, service)
	client, err := slidegate.New(service.URL, slidegate.Options{Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(user, words string) (*http.Response, error) {
		request, _ := http.NewRequest(http.MethodGet, base+"/stream?words="+words, nil)
		request.Header.Set("X-User", user)
		return http.DefaultClient.Do(request)
	}
	response, err := ask("alice", "5")
	if status, body := read(t, response, err); status != 200 || body != "word0 word1 word2 word3 word4 " {
		t.Fatal(status, body)
	}
	response, err = ask("alice", "96")
	if status, body := read(t, response, err); status != 429 || !strings.Contains(body, "violated-policies") {
		t.Fatal(status, body)
	}
	response, err = ask("bob", "100")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(response.Body, make([]byte, 12)); err != nil {
		t.Fatal(err)
	}
	response.Body.Close() // the client disconnects
	deadline := time.Now().Add(20 * time.Second)
	for {
		key, err := client.Inspect(response.Request.Context(), "words", "bob")
		if err == nil && key.Held == 0 && key.Used > 0 && key.Used < 100 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v %v", key, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
