package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
)

// What workers say they stored is compared with what was predicted: all equal, over ZeroMQ and over NATS. A request whose client
// left is not judged: its worker may have computed nothing.
func TestAuditIsEqual(t *testing.T) {
	t.Parallel()
	l := startLab(t, func(o *lab.Options) { o.Speed = 1 })
	const requests = 9
	leave(t, l, strings.Repeat("a long question ", 2000))
	time.Sleep(2 * time.Second) // until a verdict would have come
	for i := range requests {
		if got := ask(t, l, fmt.Sprint("Question ", i), dataURL(photo(uint64(700+i)))); got.status != 200 {
			t.Fatalf("got %+v, want status 200", got)
		}
	}
	equal := 0
	if err := lab.WaitFor(t.Context(), "the verdicts", func() bool {
		text, err := lab.Get("http://" + l.Admin + "/metrics")
		equal = 0
		for _, line := range strings.Split(string(text), "\n") {
			if strings.HasPrefix(line, "sightline_audit_total{") {
				if !strings.Contains(line, `verdict="equal"`) {
					t.Fatalf("got %q, want %q in it", line, `verdict="equal"`)
				}
				n := 0
				fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &n)
				equal += n
			}
		}
		return err == nil && equal == requests
	}); err != nil {
		t.Fatalf("%v: %d of %d equal, want no error", err, equal, requests)
	}
	if metric(t, l, "sightline_audit_events_total", `"named"`) == 0 {
		t.Error("no event named its request by the session that it was given")
	}
}

// leave asks for a stream and leaves when the answer's headers are there.
func leave(t *testing.T, l *lab.Lab, question string) {
	t.Helper()
	body := fmt.Sprintf(`{"model":%q,"stream":true,"messages":[{"role":"user","content":%q}]}`, lab.ModelName, question)
	resp, err := http.Post(l.URL+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%q: got %d, want %d", resp.Status, resp.StatusCode, http.StatusOK)
	}
}

// A setting that is not the worker's is named by its effect: the image has another number of tokens there. The rule steps aside: what has
// been seen twice is known to the token nevertheless, the product says so everywhere, and a reload brings the rule back.
func TestAuditNamesTheDifference(t *testing.T) {
	t.Parallel()
	l := startLab(t, func(o *lab.Options) {
		o.Workers = 1
		o.Config = func(keys map[string]any) {
			keys["fixed"], keys["admin_token"] = unprobed(), "a-token-of-tests"
			keys["models"].([]any)[0].(map[string]any)["mm_processor_kwargs"] = map[string]any{"max_pixels": 64 * 28 * 28}
		}
	})
	question := strings.Repeat("What is it, and what stands behind it? ", 8)
	if got := ask(t, l, question, dataURL(photo(801))); got.status != 200 {
		t.Fatalf("got %+v, want status 200", got)
	}
	contradicts := lastDecision(t, l)
	var f gjson.Result
	if err := lab.WaitFor(t.Context(), "a finding", func() bool {
		text, err := lab.Get("http://" + l.Admin + "/audit")
		f = gjson.GetBytes(text, "0")
		return err == nil && f.Exists()
	}); err != nil {
		t.Fatal(err)
	}
	if f.Get("verdict").Str != "span" || f.Get("ours").Int() >= f.Get("theirs").Int() || f.Get("position").Int() == 0 {
		t.Errorf(`got %s, want f.Get("verdict").Str == "span", f.Get("ours").Int() < f.Get("theirs").Int(), f.Get("position").Int() != 0`, f.Raw)
	}
	if page, err := lab.Get("http://" + l.Admin + "/"); err != nil || !strings.Contains(string(page), f.Get("says").Str[:20]) {
		t.Errorf(`the page does not say it: got %v, want no error, strings.Contains(string(page), f.Get("says").Str[:20])`, err)
	}

	taught := func() float64 { return metric(t, l, "sightline_learned_requests_total", `"learned"`) }
	aside := func() float64 { return metric(t, l, "sightline_rules_aside", "") }
	eventually(t, "the rule steps aside, and the request is learned", func() bool { return aside() == 1 && taught() == 1 })
	// again asks what was asked before: all of it is known, by what events taught.
	again := func(photo []byte) {
		t.Helper()
		got := ask(t, l, question, dataURL(photo))
		d := lastDecision(t, l)
		if got.cached < 300 || d.Get("reason").Str != "learned" || int(d.Get("cached_tokens").Int()) != got.cached ||
			d.Get("why").Str != "events contradict the rule for images: span" {
			t.Errorf("%+v; decided %s", got, d.Raw)
		}
	}
	again(photo(801))
	ask(t, l, question, dataURL(photo(802)))
	eventually(t, "the next image is learned", func() bool { return taught() >= 2 })
	again(photo(802))
	quiet(t, l)
	plain := func() result {
		return post(t, l, map[string]any{"messages": []any{map[string]any{"role": "user", "content": question}}}, nil)
	}
	plain()
	awaitExact(t, l, 0, plain().cached)
	text := plain()
	if d := lastDecision(t, l); d.Get("reason").Str != "exact" || d.Get("why").Str != "" || int(d.Get("cached_tokens").Int()) != text.cached {
		t.Errorf("a text: %+v; decided %s", text, d.Raw)
	}
	for path, want := range map[string]string{
		"/workers": `"rule":"images"`,
		"/":        "the rule for images has stepped aside",
		"/explain?id=" + contradicts.Get("id").Str: `"rule":"images"`,
	} {
		if text, err := lab.Get("http://" + l.Admin + path); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s does not say %s: %v %.500s", path, want, err, text)
		}
	}
	if bad := metric(t, l, "sightline_cached_tokens_reported_total", `"fewer"`) +
		metric(t, l, "sightline_cached_tokens_reported_total", `"more"`); bad > 0 {
		t.Errorf("%v predictions were wrong, want 0", bad)
	}
	if problem := reload(t, http.DefaultClient, l); problem != "" {
		t.Fatalf("got %q, want %q", problem, "")
	}
	eventually(t, "the rule is back", func() bool { return aside() == 0 })
}
