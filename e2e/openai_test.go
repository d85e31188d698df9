package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/internal/testkit/lab"
)

// The stock Python client of OpenAI's: chat, streaming, pictures, a body of 20 MB, the list of models. `make e2e` installs
// it; other ways to run the tests give its interpreter by SIGHTLINE_OPENAI.
func TestOpenAIClient(t *testing.T) {
	python := os.Getenv("SIGHTLINE_OPENAI")
	if python == "" {
		t.Skip("SIGHTLINE_OPENAI names no Python with the package openai; make e2e does")
	}
	l := startLab(t, nil)
	out, err := exec.Command(python, "openai_client.py", l.URL, lab.ModelName, "../examples/picture.png").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "all good") {
		t.Fatalf("%v\n%s", err, out)
	}
}
