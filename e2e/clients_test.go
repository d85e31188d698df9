package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/lab"
)

// TestClients runs the stock Python clients of OpenAI and Anthropic: chat, streaming, images, tools, responses, messages, a body of 20 MB,
// the list of models, and Sightline's own errors as each client reads them. Predicted hits are those that the clients are told. `make
// e2e` installs them; other ways to run the tests give their interpreter by SIGHTLINE_CLIENTS.
func TestClients(t *testing.T) {
	t.Parallel()
	python := os.Getenv("SIGHTLINE_CLIENTS")
	if python == "" {
		t.Skip("SIGHTLINE_CLIENTS names no Python with the packages openai and anthropic; make e2e does")
	}
	l := startLab(t, nil)
	out, err := exec.Command(python, "clients.py", l.URL, lab.ModelName, "../examples/picture.png", "http://"+l.Admin).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "all good") {
		t.Fatalf("%v\n%s", err, out)
	}
}
