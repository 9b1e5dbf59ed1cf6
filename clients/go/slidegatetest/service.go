// Package slidegatetest starts the slidegate service in tests.
package slidegatetest

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// Service is a running `slidegate serve` on a free port of loopback, with its own memory store.
type Service struct {
	// URL is the base URL, such as http://127.0.0.1:34567.
	URL string
	tb  testing.TB
	cmd *exec.Cmd
}

// Start starts the service, waits until it listens, and ends it with the test. The binary is that of
// the variable SLIDEGATE_BIN, or the command slidegate. The test fails if there is none. Arguments
// are those of `slidegate serve`, such as "--policy", "100/1m per user".
func Start(tb testing.TB, args ...string) *Service {
	tb.Helper()
	return StartAt(tb, "127.0.0.1:0", args...)
}

// StartAt starts the service at an address, for example that of one that was killed.
func StartAt(tb testing.TB, listen string, args ...string) *Service {
	tb.Helper()
	binary := os.Getenv("SLIDEGATE_BIN")
	if binary == "" {
		var err error
		if binary, err = exec.LookPath("slidegate"); err != nil {
			tb.Fatal("no slidegate: set SLIDEGATE_BIN to the path of its binary, which `cargo build` " +
				"in the repository writes to target/debug/slidegate, or install it on the PATH")
		}
	}
	cmd := exec.Command(binary, append([]string{"serve", "--listen", listen, "--log-level", "error"}, args...)...)
	cmd.Env = []string{} // no settings of whoever runs the test
	cmd.Stderr = os.Stderr
	output, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	s := &Service{tb: tb, cmd: cmd}
	tb.Cleanup(s.Kill)
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "listening ") {
			s.URL, _, _ = strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "listening ")), ",")
		}
		if strings.HasPrefix(line, "try ") && s.URL != "" {
			return s
		}
	}
	tb.Fatalf("%s serve %q ended without listening; its error is above", binary, args)
	return nil
}

// Kill ends the service at once, as a crash does.
func (s *Service) Kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// Pause stops the process, so that connections stay open and nothing answers. It has stopped when Pause
// returns.
func (s *Service) Pause() {
	s.tb.Helper()
	s.signal(syscall.SIGSTOP)
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(s.cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		s.tb.Fatalf("the service did not stop: %v, status %d", err, status)
	}
}

// Resume ends a pause.
func (s *Service) Resume() { s.signal(syscall.SIGCONT) }

func (s *Service) signal(signal syscall.Signal) {
	s.tb.Helper()
	if err := s.cmd.Process.Signal(signal); err != nil {
		s.tb.Fatal(err)
	}
}
