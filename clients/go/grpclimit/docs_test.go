package grpclimit_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The server in docs/go.md is what people copy; it must compile.
func TestTheServerOfThePageCompiles(t *testing.T) {
	page, err := os.ReadFile("../../../docs/go.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, found := strings.Cut(string(page), "```go\n// grpc.go\n")
	block, _, _ = strings.Cut(block, "```")
	if !found {
		t.Fatal("docs/go.md has no block grpc.go")
	}
	file := filepath.Join(t.TempDir(), "grpc.go")
	if err := os.WriteFile(file, []byte(block), 0o600); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.Command("go", "vet", file).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
}
