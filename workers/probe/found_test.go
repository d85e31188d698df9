package probe

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestFoundOut checks that a worker's own report is compared with its class: adapters, each mistake by its key.
func TestFoundOut(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answers := map[string]string{
			"/v1/models": `{"data":[{"id":"m","root":"m","parent":null,"owned_by":"vllm"},{"id":"sql","root":"/l","parent":"m"},{"id":"poems","root":"/p","parent":"m"}]}`,
			"/version":   `{"version":"0.32.0"}`,
		}
		if a, ok := answers[r.URL.Path]; ok {
			_, _ = w.Write([]byte(a))
			return
		}
		http.NotFound(w, r)
	}))
	defer s.Close()
	p := New(Options{})
	w := &Worker{Name: "w", Addr: strings.TrimPrefix(s.URL, "http://"), Model: "m", Names: []string{"m"}, Ours: load(t, nil),
		Adapters: []string{"sql", "gone"}}
	got := ""
	found, _ := Settings(t.Context(), p.client, w, w.Ours.Model())
	for _, f := range found {
		got += f.What + ": " + f.Detail + "\n"
	}
	for _, want := range []string{`serves the adapter "poems"`, `no adapter called "gone"`} {
		if !strings.Contains(got, want) {
			t.Errorf("not told: %s\n%s", want, got)
		}
	}
	w.Adapters = []string{"sql", "poems"}
	if found, release := Settings(t.Context(), p.client, w, w.Ours.Model()); len(found) > 0 || release != "vllm 0.32.0" {
		t.Errorf("all is as configured: got %+v and the release %q, want 0 of them, and vllm 0.32.0", found, release)
	}
}
