package router

import (
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/router/audit"
)

// TestSessionIsGiven checks that a request without a session gets the decision's id if the workers name sessions in their events.
func TestSessionIsGiven(t *testing.T) {
	const say = `"messages":[{"role":"user","content":"how many boats are in the harbour of this small town today"}]}`
	for name, c := range map[string]struct {
		header, body string
		given        bool
	}{
		"none":                {"", `{"model":"m",` + say, true},
		"empty":               {"", `{"model":"m","session_id":"",` + say, true},
		"null":                {"", `{"model":"m","session_id":null,` + say, true},
		"the client's":        {"s", `{"model":"m",` + say, false},
		"in the body":         {"", `{"model":"m","session_id":"s",` + say, false},
		"in extra arguments":  {"", `{"model":"m","vllm_xargs":{"session_id":"s"},` + say, false},
		"other xargs":         {"", `{"model":"m","vllm_xargs":{"a":1},` + say, true},
		"a number, refused":   {"", `{"model":"m","session_id":5,` + say, false},
		"nothing to be asked": {"", `{"model":"unknown",` + say, false},
	} {
		w := newWorld(t, 1)
		w.opt.Audit = audit.New(audit.Options{Index: w.index})
		d := w.Decide(t.Context(), &Request{ID: "d", Path: "/v1/chat/completions", Session: c.header, Body: [][]byte{[]byte(c.body)}})
		if want := map[bool]string{true: "d"}[c.given]; d.Session != want {
			t.Errorf("%s: session %q, want %q", name, d.Session, want)
		}
		w.opt.Audit = nil
		if d := w.decide(c.body); d.Session != "" {
			t.Errorf("%s: session %q without an audit, want %q", name, d.Session, "")
		}
	}
}

func TestNamesSessions(t *testing.T) {
	for version, want := range map[string]bool{"0.29.2": false, "0.30.0": true, "0.32.0+cpu": true} {
		for _, engine_ := range []string{"vllm", "sglang"} {
			s := engine.Server{Engine: engine_, EngineVersion: version}
			if got := namesSessions(&s); got != (want && engine_ == "vllm") {
				t.Errorf("%s %s: got %v, want %v", engine_, version, got, want && engine_ == "vllm")
			}
		}
	}
}

// TestSessionOf checks that the session is the one that vLLM finds.
func TestSessionOf(t *testing.T) {
	for _, c := range []struct{ body, header, want string }{
		{`{"session_id":"b","vllm_xargs":{"session_id":"x"}}`, "h", "b"},
		{`{"session_id":"","vllm_xargs":{"session_id":"x"}}`, "h", "h"},
		{`{"vllm_xargs":{"session_id":"x"}}`, "", "x"},
		{`{"vllm_xargs":7}`, "", ""},
	} {
		if got := sessionOf(gjson.Parse(c.body).Map(), c.header); got != c.want {
			t.Errorf("%s and %q: %q, want %q", c.body, c.header, got, c.want)
		}
	}
}
