package e2e

import (
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/internal/demo"
)

// At start each worker is asked for its tokens; Envoy then reports the engine's own count of each prompt.
func TestWorkersAreProbed(t *testing.T) {
	l := startLab(t, nil)
	var rows []gjson.Result
	if err := demo.WaitFor(t.Context(), "a probe of all workers", func() bool {
		text, err := l.Get("http://" + l.Admin + "/probes")
		rows = gjson.ParseBytes(text).Array()
		return err == nil && len(rows) == 3 && !strings.Contains(string(text), `"unreachable"`)
	}); err != nil {
		t.Fatal(err, rows)
	}
	for _, r := range rows {
		if r.Get("verdict").Str != "equal" || r.Get(`findings.#(what=="a picture").verdict`).Str != "equal" {
			t.Errorf("%s", r.Raw)
		}
	}
	if got := ask(t, l, "How large is it?", dataURL(photo(41))); got.status != 200 {
		t.Fatalf("%+v", got)
	}
	if err := demo.WaitFor(t.Context(), "Envoy's report of prompt tokens", func() bool {
		text, err := l.Get("http://" + l.Admin + "/metrics")
		return err == nil && strings.Contains(string(text), `sightline_prompt_tokens_reported_total{model="`+demo.ModelName+`",verdict="equal"} 1`)
	}); err != nil {
		t.Error(err)
	}
}
