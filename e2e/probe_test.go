package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
)

// At start each worker is asked for its tokens; Envoy then reports the engine's own count of each prompt.
func TestWorkersAreProbed(t *testing.T) {
	t.Parallel()
	l := startLab(t, nil)
	var rows []gjson.Result
	if err := lab.WaitFor(t.Context(), "a probe of all workers", func() bool {
		text, err := lab.Get("http://" + l.Admin + "/probes")
		rows = gjson.ParseBytes(text).Array()
		return err == nil && len(rows) == 3 && !strings.Contains(string(text), `"unreachable"`)
	}); err != nil {
		t.Fatalf("got %v %+v, want no error", err, rows)
	}
	for _, r := range rows {
		if r.Get("verdict").Str != "equal" || r.Get(`findings.#(what=="an image").verdict`).Str != "equal" {
			t.Errorf("got %s, want r.Get(\"verdict\").Str == \"equal\", r.Get(`findings.#(what==\"an image\").verdict`).Str == \"equal\"", r.Raw)
		}
	}
	if got := ask(t, l, "How large is it?", dataURL(photo(41))); got.status != 200 {
		t.Fatalf("got %+v, want status 200", got)
	}
	if err := lab.WaitFor(t.Context(), "Envoy's report of prompt tokens", func() bool {
		text, err := lab.Get("http://" + l.Admin + "/metrics")
		return err == nil && strings.Contains(string(text), `sightline_prompt_tokens_reported_total{model="`+lab.ModelName+`",verdict="equal"} 1`)
	}); err != nil {
		t.Error(err)
	}
}

// A model directory that changes is read while running, and what then differs from the workers is named at once. One that
// does not load changes nothing.
func TestModelDirectoryChanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(modelDir)); err != nil {
		t.Fatal(err)
	}
	l := startLab(t, func(o *lab.Options) { o.ModelDir = dir; o.Workers = 1 })
	template := filepath.Join(dir, "chat_template.jinja")
	change := func(text, verdict string) {
		t.Helper()
		if err := os.WriteFile(template, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := lab.WaitFor(t.Context(), "a model directory "+verdict, func() bool {
			text, err := lab.Get("http://" + l.Admin + "/metrics")
			return err == nil && strings.Contains(string(text), fmt.Sprintf("sightline_model_reloads_total{model=%q,verdict=%q} 1",
				lab.ModelName, verdict))
		}); err != nil {
			t.Fatal(err)
		}
	}
	old, err := os.ReadFile(template)
	if err != nil {
		t.Fatal(err)
	}
	change("Changed. "+string(old), "loaded")
	change("{% if", "failed")
	var row gjson.Result
	if err := lab.WaitFor(t.Context(), "the difference", func() bool {
		text, err := lab.Get("http://" + l.Admin + "/probes")
		row = gjson.GetBytes(text, "0")
		return err == nil && row.Get("verdict").Str == "differs"
	}); err != nil {
		t.Fatalf("got %v %q, want no error", err, row.Raw)
	}
	if at := row.Get(`findings.#(what=="one turn").difference.position`); !at.Exists() || at.Int() != 0 ||
		row.Get(`findings.#(what=="text").verdict`).Str != "equal" {
		t.Errorf("got %s, want one turn to differ at token 0, and the text equal", row.Raw)
	}
	if page, err := lab.Get("http://" + l.Admin + "/"); err != nil || !strings.Contains(string(page), "one turn: differs, at token 0") {
		t.Errorf(`the page does not name the difference: got %v, want no error, strings.Contains(string(page), "one turn: differs, at token 0")`,
			err)
	}
	if got := ask(t, l, "Still there?"); got.status != 200 {
		t.Errorf("got %+v, want status 200", got)
	}
}
