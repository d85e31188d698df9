package extproc

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"strconv"
	"strings"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/proto"

	"github.com/sightline-router/sightline/internal/denied"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/report"
)

// told returns how an answer changes the request's headers: set and removed ("-").
func told(m *extprocv3.HeaderMutation) map[string]string {
	out := map[string]string{}
	for _, h := range m.GetSetHeaders() {
		out[h.GetHeader().GetKey()] = string(h.GetHeader().GetRawValue())
	}
	for _, name := range m.GetRemoveHeaders() {
		out[name] = "-"
	}
	return out
}

// decoded decodes an answer with protobuf.
func decoded(t testing.TB, wire encoded) *extprocv3.ProcessingResponse {
	t.Helper()
	a := new(extprocv3.ProcessingResponse)
	if err := proto.Unmarshal(wire, a); err != nil {
		t.Fatal(err)
	}
	if len(a.ProtoReflect().GetUnknown()) > 0 {
		t.Fatalf("got the fields %x of no message in %v, want none", a.ProtoReflect().GetUnknown(), a)
	}
	return a
}

// TestMetadata checks what a decision carries besides headers, for Envoy's logs and for gateways' load balancers.
func TestMetadata(t *testing.T) {
	d := router.Decision{ID: "ID1", Reason: router.Exact, Model: strings.Repeat("m", 300), Why: "not confirmed by events yet",
		MatchedBlocks: 1 << 30, CachedTokens: 0, PromptTokens: 837,
		Targets: []router.Target{{Worker: "a", Addr: "10.0.0.1:8000", Rank: -1}, {Worker: "b", Addr: "[2001:db8::3]:8000", Rank: -1}}}
	all := "10.0.0.1:8000,[2001:db8::3]:8000"
	own := map[string]any{"id": "ID1", "reason": "exact", "model": d.Model, "why": d.Why, "matched_blocks": float64(1 << 30),
		"cached_tokens": 0., "prompt_tokens": 837.,
		"endpoint": "10.0.0.1:8000", "endpoints": all, "worker": "a"}
	for mode, want := range map[Mode]map[string]any{
		Sightline:      {MetadataSpace: own},
		EndpointPicker: {MetadataSpace: own, spaceLB: map[string]any{HeaderEndpoint: all}},
	} {
		at := &streamSettings{Route: Route{Mode: mode, Header: HeaderWorker}}
		for phase, a := range map[string]encoded{"body": at.bodyAnswer(d), "headers": at.headersAnswer(d),
			"refusal": at.refusal(denied.Chat, router.Decision{ID: "ID1", Refuse: &router.Refusal{Status: 503}})} {
			want := want
			if phase == "refusal" {
				want = map[string]any{MetadataSpace: map[string]any{"id": "ID1", "reason": "refused", "matched_blocks": 0.,
					"cached_tokens": 0., "prompt_tokens": 0.}}
			}
			if got := decoded(t, a).GetDynamicMetadata().AsMap(); !reflect.DeepEqual(got, want) {
				t.Errorf("%q, %s: %v, want %v", mode, phase, got, want)
			}
		}
	}
}

// ours has the terms of a route of our own envoy.yaml.
var ours = &streamSettings{Route: Route{Mode: Sightline, Header: HeaderWorker}}

func TestSteer(t *testing.T) {
	a := router.Target{Worker: "a", Addr: "10.0.0.1:8000", Rank: -1}
	b := router.Target{Worker: "b", Addr: "10.0.0.2:8000", Rank: 3}
	d := router.Target{Worker: "d", Addr: "10.0.0.7:8000", Rank: 1, Instance: "18446744073709551615"}
	d2 := router.Target{Worker: "d", Addr: "10.0.0.8:8000", Rank: 1, Instance: "18446744073709551615"}
	e := router.Target{Worker: "d", Addr: d.Addr, Rank: -1, Instance: "8", Prefill: "7", PrefillRank: 2}
	f := router.Target{Worker: "f", Addr: "10.0.0.9:8000", Rank: -1, Prefill: "10.0.0.7:8000", PrefillRank: -1}
	for _, c := range []struct {
		name    string
		targets []router.Target
		want    map[string]string
	}{
		{"behind front ends", []router.Target{d, d2}, map[string]string{HeaderWorker: d.Addr, HeaderSecond: d2.Addr,
			HeaderRank: "-", HeaderInstance: d.Instance, HeaderInstanceRank: "1"}},
		{"prefill and decode apart", []router.Target{e}, map[string]string{HeaderWorker: d.Addr, HeaderSecond: d.Addr,
			HeaderInstance: "8", HeaderInstanceRank: "-", HeaderPrefill: "7", HeaderPrefillRank: "2"}},
		{"behind llm-d's sidecar", []router.Target{f, a}, map[string]string{HeaderWorker: f.Addr, HeaderSecond: a.Addr,
			HeaderPrefiller: "10.0.0.7:8000", HeaderEncoder: "10.0.0.6:8000", HeaderSource: "10.0.0.5:8000"}},
		{"no worker known", nil, map[string]string{HeaderWorker: "-", HeaderSecond: "-", HeaderRank: "-"}},
		{"one worker", []router.Target{a}, map[string]string{HeaderWorker: a.Addr, HeaderSecond: a.Addr, HeaderRank: "-"}},
		{"two workers", []router.Target{a, b}, map[string]string{HeaderWorker: a.Addr, HeaderSecond: b.Addr, HeaderRank: "-"}},
		{"a session of ours", []router.Target{a}, map[string]string{HeaderWorker: a.Addr, HeaderSecond: a.Addr, HeaderSession: "ID1"}},
		{"a rank", []router.Target{b, a}, map[string]string{HeaderWorker: b.Addr, HeaderSecond: a.Addr, HeaderRank: "3"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := router.Decision{ID: "ID1", Reason: router.Exact, Targets: c.targets, Session: c.want[HeaderSession],
				Encoder: c.want[HeaderEncoder], Source: c.want[HeaderSource]}
			got := told(decoded(t, ours.bodyAnswer(d)).GetRequestBody().GetResponse().GetHeaderMutation())
			if h := decoded(t, ours.headersAnswer(d)); !maps.Equal(told(h.GetRequestHeaders().GetResponse().GetHeaderMutation()), got) ||
				!proto.Equal(h.GetModeOverride(), noBody) {
				t.Errorf("got %v at the headers, want the headers %v as at the body, and no body asked for", h, got)
			}
			c.want[HeaderID], c.want[HeaderReason] = "ID1", "exact"
			for _, name := range choiceHeaders {
				if c.want[name] == "" {
					c.want[name] = "-"
				}
			}
			for name, v := range c.want {
				if got[name] != v {
					t.Errorf("%s: %q, want %q", name, got[name], v)
				}
			}
			if len(got) != len(c.want) {
				t.Errorf("headers %v, want %v", got, c.want)
			}
		})
	}
}

// TestUnsteered checks that for an unsteered request Envoy gets nothing that steers, in any mode, and that the client's
// steering headers are removed.
func TestUnsteered(t *testing.T) {
	d := router.Decision{ID: "ID1", Arm: report.Unsteered, Reason: router.Exact, Session: "ID1",
		UnsteeredChoice: router.Target{Worker: "a", Addr: "10.0.0.1:8000", Rank: 2}}
	for _, mode := range []Mode{Sightline, Auto} {
		at := &streamSettings{Route: Route{Mode: mode, Header: HeaderWorker}}
		want := map[string]string{HeaderID: "ID1", HeaderReason: "exact", HeaderSession: "ID1"}
		for _, name := range at.headersToRemove() {
			want[name] = "-"
		}
		a := decoded(t, at.bodyAnswer(d))
		if got := told(a.GetRequestBody().GetResponse().GetHeaderMutation()); !maps.Equal(got, want) {
			t.Errorf("%q: %v, want %v", mode, got, want)
		}
		meta := map[string]any{MetadataSpace: map[string]any{"id": "ID1", "reason": "exact", "arm": "unsteered", "matched_blocks": 0.,
			"cached_tokens": 0., "prompt_tokens": 0.}}
		if got := a.GetDynamicMetadata().AsMap(); !reflect.DeepEqual(got, meta) {
			t.Errorf("%q: %v, want %v", mode, got, meta)
		}
	}
}

func TestRefusal(t *testing.T) {
	for _, c := range []struct {
		status, want int
		kind         string
		retry        bool
	}{
		{400, 400, "invalid_request_error", false}, {404, 404, "invalid_request_error", false},
		{429, 429, "rate_limit_error", true}, {503, 503, "server_error", true}, {500, 500, "server_error", false},
		{0, 503, "server_error", true}, {200, 503, "server_error", true},
	} {
		r := decoded(t,
			ours.refusal(denied.Chat,
				router.Decision{Refuse: &router.Refusal{Status: c.status, Message: `model "x" is not here`}})).GetImmediateResponse()
		if int(r.GetStatus().GetCode()) != c.want {
			t.Errorf("%d: status %d, want %d", c.status, r.GetStatus().GetCode(), c.want)
		}
		var body struct {
			Error struct{ Message, Type string }
		}
		if err := json.Unmarshal(r.GetBody(), &body); err != nil || body.Error.Type != c.kind || body.Error.Message != `model "x" is not here` {
			t.Errorf("status %d: got %s (%v), want an error of type %q that says which model is not here", c.status, r.GetBody(), err, c.kind)
		}
		h := told(r.GetHeaders())
		if h["content-type"] != "application/json" || (h["retry-after"] != "") != c.retry {
			t.Errorf(`%d: headers %v, want h["content-type"] == "application/json", (h["retry-after"] != "") == c.retry`, c.status, h)
		}
	}
}

// TestRefusalOfMessages checks that clients of Anthropic's API get its own form of errors, below its path too.
func TestRefusalOfMessages(t *testing.T) {
	for status, kind := range map[int]string{
		400: "invalid_request_error", 403: "permission_error", 404: "not_found_error", 408: "timeout_error", 413: "request_too_large",
		415: "invalid_request_error", 429: "rate_limit_error", 500: "api_error", 503: "overloaded_error",
	} {
		for _, path := range []string{denied.Messages, denied.Messages + "/count_tokens"} {
			d := router.Decision{Refuse: &router.Refusal{Status: status, Message: "why"}}
			r := decoded(t, ours.refusal(path, d)).GetImmediateResponse()
			want := `{"type":"error","error":{"type":"` + kind + `","message":"why"}}`
			if got := string(r.GetBody()); int(r.GetStatus().GetCode()) != status || got != want {
				t.Errorf("%s, %d: status %d, body %s; want %s", path, status, r.GetStatus().GetCode(), got, want)
			}
		}
	}
}

func TestSplice(t *testing.T) {
	const text = "0123456789abcdefghij"
	for _, c := range []struct {
		edits string // from-to=text, in order
		list  []router.Edit
		want  string // empty: an error
	}{
		{"none", nil, text},
		{"front", []router.Edit{{From: 0, To: 0, Text: []byte("<")}}, "<" + text},
		{"end", []router.Edit{{From: 20, To: 20, Text: []byte(">")}}, text + ">"},
		{"across pieces", []router.Edit{{From: 2, To: 9, Text: []byte("-")}}, "01-9abcdefghij"},
		{"two, touching", []router.Edit{{From: 2, To: 4, Text: []byte("A")}, {From: 4, To: 5, Text: []byte("BB")}}, "01ABB56789abcdefghij"},
		{"delete", []router.Edit{{From: 0, To: 19}}, "j"},
		{"overlap", []router.Edit{{From: 2, To: 5}, {From: 4, To: 6}}, ""},
		{"past the end", []router.Edit{{From: 2, To: 21}}, ""},
		{"backwards", []router.Edit{{From: 5, To: 2}}, ""},
		{"negative", []router.Edit{{From: -1, To: 2}}, ""},
	} {
		for size := 1; size <= len(text); size++ {
			out, err := splice(cut([]byte(text), size), c.list)
			if got := string(out.Materialize()); (err != nil) != (c.want == "") || err == nil && got != c.want {
				t.Fatalf("%s, pieces of %d: %q, %v; want %q", c.edits, size, got, err, c.want)
			}
		}
	}
}

// TestEditedAnswerOnTheWire checks that the hand-encoded part of an edited answer merges with the rest, by protobuf's rules.
func TestEditedAnswerOnTheWire(t *testing.T) {
	d := router.Decision{ID: "ID1", Reason: router.Load, Targets: []router.Target{{Addr: "10.0.0.1:1", Rank: -1}}}
	for _, n := range []int{0, 1, 127, 128, 300_000} {
		body := bytes.Repeat([]byte("z"), n)
		wire, err := codec{}.Marshal(&edited{answer: ours.bodyAnswer(d), body: cut(body, 16384)})
		if err != nil {
			t.Fatal(err)
		}
		got := decoded(t, wire.Materialize())
		r := got.GetRequestBody().GetResponse()
		if !bytes.Equal(r.GetBodyMutation().GetBody(), body) {
			t.Errorf("%d bytes: got a body of %d bytes, want the same bytes back", n, len(r.GetBodyMutation().GetBody()))
		}
		if h := told(r.GetHeaderMutation()); h[HeaderWorker] != "10.0.0.1:1" || h["content-length"] != strconv.Itoa(n) {
			t.Errorf("%d bytes: headers %v, want [HeaderWorker] %q, content-length %q", n, h, "10.0.0.1:1", strconv.Itoa(n))
		}
		if got.GetDynamicMetadata() == nil {
			t.Errorf("%d bytes: got no metadata, want the decision's", n)
		}
	}
}

func TestIDs(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := newID()
		if seen[id] || len(id) > maxID || len(id) < 20 || strings.ContainsAny(id, "\r\n ") {
			t.Fatalf("got the id %q, want a new one of 20 to %d characters that fits a header", id, maxID)
		}
		seen[id] = true
	}
}
