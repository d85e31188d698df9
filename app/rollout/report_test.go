package rollout

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The report of a running Sightline ends with its forecasts.
func TestForecastIsSaid(t *testing.T) {
	running := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(map[string]string{
			"/report": `{"mode":"0%","steered":{"requests":3}}`,
			"/forecast": `[{"model":"m","hour":{"prompt_tokens":9,"workers":2,"today":{"hit_rate":0.58},
				"marks":[{"change":"worker_fewer","hit_rate":0.5}]}},{"model":"n","hour":{}}]`}[r.URL.Path]))
	}))
	defer running.Close()
	const one = "\nm, by the last hour: You are at 58 %. One fewer: -8.\n"
	for model, want := range map[string]string{"": one + "\nn, by the last hour: No forecast yet", "m": one} {
		var out strings.Builder
		err := Report(t.Context(), ReportOptions{Admin: running.URL, Model: model}, &out)
		if said := out.String(); err != nil || !strings.Contains(said, want) || model == "m" && strings.Contains(said, "\nn, ") {
			t.Errorf("model %q: %v, %q, want %q", model, err, said, want)
		}
	}
}

// A report without data says so, and an error names what cannot be read and what is expected.
func TestNothingToReport(t *testing.T) {
	file := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	running := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/report" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(`{"since":"2026-11-23T02:33:00Z","mode":"0%"}`))
	}))
	defer running.Close()
	for name, c := range map[string]struct {
		o    ReportOptions
		want string
	}{
		"an empty log": {ReportOptions{Files: []string{file("empty.jsonl", "")}},
			"empty.jsonl: no request in it that was decided (want what decision_log writes)"},
		"an older log": {ReportOptions{Files: []string{file("old.jsonl", `{"arm":"left","outcome":"ended","status":200}`)}},
			"1 lines are left out: want the arm steered or unsteered"},
		"no log":         {ReportOptions{Files: []string{file("a.yaml", "# models")}}, "a.yaml: line 1: "},
		"just started":   {ReportOptions{Admin: running.URL}, "Nothing to report yet: no request has ended since 2026-11-23T02:33:00Z."},
		"nobody":         {ReportOptions{Admin: "127.0.0.1:1"}, "nothing answers at http://127.0.0.1:1: "},
		"another's page": {ReportOptions{Admin: running.URL + "/x"}, "want a Sightline's admin page"},
	} {
		var out strings.Builder
		err := Report(t.Context(), c.o, &out)
		said := out.String()
		if err != nil {
			said = err.Error()
		}
		if !strings.Contains(said, c.want) || (err == nil) != (name == "just started") {
			t.Errorf("%s: %q, %v (want %q)", name, said, err, c.want)
		}
	}
}
