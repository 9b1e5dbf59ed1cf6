package slidegate_test

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	slidegate "example.com/slidegate/clients/go"
	"example.com/slidegate/clients/go/slidegatetest"
)

// The programs in docs/go.md, run as they are written but for their addresses.

// program builds the block of the page that begins with a comment of this name, in a module of its own.
func program(t *testing.T, name string, addresses ...string) (dir string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/go.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, found := strings.Cut(string(page), "```go\n// "+name+"\n")
	block, _, _ = strings.Cut(block, "```")
	if !found {
		t.Fatalf("docs/go.md has no block %s", name)
	}
	dir = t.TempDir()
	text := strings.NewReplacer(addresses...).Replace(block)
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	const module = "example.com/slidegate/clients/go"
	run(t, dir, "go", "mod", "init", "program.example")
	run(t, dir, "go", "mod", "edit", "-require", module+"@v0.0.0", "-replace", module+"="+root)
	if !strings.HasSuffix(name, "_test.go") {
		run(t, dir, "go", "build", "-o", "program", ".")
	}
	return dir
}

func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	command := exec.Command(name, args...)
	command.Dir = dir
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, output)
	}
	return string(output)
}

// serving starts a server of the page on a port of its own, and returns its URL.
func serving(t *testing.T, name, service string) string {
	t.Helper()
	address := freeAddress(t)
	command := exec.Command(filepath.Join(program(t, name, "http://127.0.0.1:7979", service, "127.0.0.1:3000", address), "program"))
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	deadline := time.Now().Add(20 * time.Second)
	for {
		connection, err := net.Dial("tcp", address)
		if err == nil {
			connection.Close()
			return "http://" + address
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not listen", name)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// What the page says it prints is what it prints.
func TestThePageFirstLimit(t *testing.T) {
	service := slidegatetest.Start(t, "--policy", "3/1m per user")
	dir := program(t, "first.go", "http://127.0.0.1:7979", service.URL)
	if got := run(t, dir, "./program"); got != "true 2 false\ntrue 1 false\ntrue 0 false\nfalse 0 true\n" {
		t.Fatal(got)
	}
}

// A call that waits gets a turn, and one that asks for too much is denied.
func TestThePageWaiting(t *testing.T) {
	service := slidegatetest.Start(t, "--policy", "2/2s per host")
	dir := program(t, "waiting.go", "http://127.0.0.1:7979", service.URL)
	if got := run(t, dir, "./program"); got != "called\ncalled\ncalled\nover_limit true\n" {
		t.Fatal(got)
	}
}

// The server limits, and the client of the page reads what it says.
func TestThePageServerAndCaller(t *testing.T) {
	service := slidegatetest.Start(t, "--policy", "2/1m per ip")
	url := serving(t, "main.go", service.URL)
	dir := program(t, "caller.go", "http://127.0.0.1:3000", url)
	if got := run(t, dir, "./program"); got != "per-ip 1 remain; wait 0s\n" {
		t.Fatal(got)
	}
	get(t, url)
	// The wait is longer than the page's client may wait.
	if got := run(t, dir, "./program"); !strings.HasPrefix(got, "per-ip 0 remain; wait ") || strings.Contains(got, "wait 0s") {
		t.Fatal(got)
	}
}

// The stream is charged for what it sent.
func TestThePageReservation(t *testing.T) {
	service := slidegatetest.Start(t, "--policy", "1200/1h per user")
	url := serving(t, "chat.go", service.URL)
	if response, body := get(t, url+"/chat", "X-User", "alice"); response.StatusCode != 200 || !strings.HasSuffix(body, "word50 ") {
		t.Fatal(response, body)
	}
	client := newClient(t, service.URL, slidegate.Options{})
	deadline := time.Now().Add(20 * time.Second)
	for usage(t, client, "per-user", "alice") != [2]uint64{50, 0} {
		if time.Now().After(deadline) {
			t.Fatal(usage(t, client, "per-user", "alice"))
		}
		time.Sleep(5 * time.Millisecond)
	}
	client.Penalize(ctx, slidegate.Request{Attributes: slidegate.Attributes{"user": "alice"}, Cost: slidegate.Units(200)})
	if response, _ := get(t, url+"/chat", "X-User", "alice"); response.StatusCode != http.StatusTooManyRequests {
		t.Fatal(response)
	}
}

// Who tests with the service runs it as the page says.
func TestThePageTest(t *testing.T) {
	dir := program(t, "limits_test.go")
	if got := run(t, dir, "go", "test", "-count=1", "-v", "."); !strings.Contains(got, "--- PASS: TestTheSecondRequestIsDenied") {
		t.Fatal(got)
	}
}
