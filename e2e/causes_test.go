package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/lab"
)

// Two workers with room for three prompts, and nothing steered: a prompt is new, then held elsewhere, then cached, then evicted. Of each
// request, the cached tokens and those of all causes are the prompt; the metric and the report have the same.
func TestCauses(t *testing.T) {
	t.Parallel()
	l := startLab(t, func(o *lab.Options) {
		o.Workers, o.Blocks = 2, 200
		o.Config = func(keys map[string]any) {
			keys["enforce"], keys["envoy"].(map[string]any)["token_usage"] = "0%", true
		}
	})
	tell := func(body map[string]any) (worker int, account gjson.Result) {
		t.Helper()
		r := post(t, l, body, nil)
		var a gjson.Result
		eventually(t, "the request's account", func() bool { a = lastDecision(t, l).Get("account"); return a.Exists() })
		sum := a.Get("cached").Int()
		a.Get("uncached").ForEach(func(_, n gjson.Result) bool { sum += n.Int(); return true })
		if int(a.Get("tokens").Int()) != r.prompt || int(a.Get("cached").Int()) != r.cached || sum != a.Get("tokens").Int() {
			t.Errorf("the account %s adds up to %d, want %d tokens, %d of them cached", a.Raw, sum, r.prompt, r.cached)
		}
		return r.worker, a
	}
	ask := func(about string) (worker int, account gjson.Result) {
		t.Helper()
		return tell(map[string]any{"messages": []any{map[string]any{"role": "user", "content": strings.Repeat(about, 100)}}})
	}
	const tale = "A long story that nobody has read. "
	first, a := ask(tale)
	held := a.Get("tokens").Int() / 16 * 16
	if a.Get("uncached.new").Int() < held-16 || a.Get("uncached.block").Int() == 0 {
		t.Errorf("a first sighting: %s", a.Raw)
	}
	awaitExact(t, l, first, int(held))
	for second := first; second == first; {
		second, a = ask(tale)
	}
	if a.Get("uncached.elsewhere").Int() < held-16 || a.Get(`spans.#(cause=="elsewhere").why`).Str != "not steered" {
		t.Errorf("at the worker that does not hold it: %s", a.Raw)
	}
	_, a = ask(tale)
	if a.Get("cached").Int() < held-16 {
		t.Errorf("again: %s", a.Raw)
	}
	for i := range 24 { // how many each worker gets is Envoy's choice
		ask(fmt.Sprintf("%d other stories. ", i))
	}
	_, a = ask(tale)
	if a.Get("uncached.evicted").Int() < held-64 || a.Get("uncached.new").Exists() {
		t.Errorf("after 24 others: %s", a.Raw)
	}
	rules := "" // that stand behind a time of day
	for i := range 120 {
		rules += fmt.Sprintf("Rule %d says what to do in the case %d. ", i, i*i)
	}
	at := func(clock string) gjson.Result {
		_, a := tell(map[string]any{"messages": []any{map[string]any{"role": "system", "content": "It is " + clock + " now. " + rules},
			map[string]any{"role": "user", "content": "What is the rule?"}}})
		return a
	}
	at("17:05:33")
	a = at("18:44:21")
	change := a.Get("spans.#.change|0")
	if change.Get("part").Str != "the system text" || change.Get("kind").Str != "a time of day" || change.Get("token").Int() > 12 ||
		a.Get("uncached.changed").Int() < a.Get("tokens").Int()-256 { // up to the first chunk that is the same
		t.Errorf("behind another time of day: %s", a.Raw)
	}
	for _, cause := range []string{"new", "elsewhere", "evicted", "block", "changed"} {
		if metric(t, l, "sightline_uncached_tokens_total", `cause="`+cause+`"`) == 0 {
			t.Errorf("sightline_uncached_tokens_total counts nothing as %s", cause)
		}
	}
	out, err := lab.Get("http://" + l.Admin + "/report")
	if err != nil {
		t.Fatal(err)
	}
	var report struct {
		Accounted int            `json:"accounted_tokens"`
		Uncached  map[string]int `json:"uncached"`
		Changed   []struct {
			Kind    string `json:"kind"`
			Tokens  int    `json:"tokens"`
			Advice  string `json:"advice"`
			Example string `json:"example"`
		} `json:"changed"`
		Left struct {
			Prompt int `json:"prompt_tokens"`
			Cached int `json:"cached_tokens"`
		} `json:"unsteered"`
	}
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if c := report.Changed; len(c) != 1 || c[0].Kind != "a time of day" || c[0].Tokens != report.Uncached["changed"] || c[0].Advice == "" ||
		c[0].Example != lastDecision(t, l).Get("id").Str {
		t.Errorf("the report has the changes %+v, want that of the last request", c)
	}
	if page, err := lab.Get("http://" + l.Admin + "/"); err != nil || !strings.Contains(string(page), "a time of day at token") {
		t.Errorf("the page names no place where prompts have changed (%v)", err)
	}
	sum := report.Left.Cached
	for _, n := range report.Uncached {
		sum += n
	}
	if sum != report.Left.Prompt || report.Accounted != sum {
		t.Errorf("the report's causes and cached tokens are %d, want %d: %s", sum, report.Left.Prompt, out)
	}
}

// A model without files: the place where a prompt has changed is told by what its client wrote and by the tokens that the engine counts,
// and how an image's form has. No token's place is told. The sum holds to the token.
func TestCausesWithoutFiles(t *testing.T) {
	t.Parallel()
	l := startLab(t, func(o *lab.Options) {
		o.Config = func(keys map[string]any) {
			keys["models"], keys["fixed"] = []any{map[string]any{"name": lab.ModelName}}, unprobed()
		}
		o.Front = func(o *envoy.Options) { o.TokenUsage = true }
	})
	rules := ""
	for i := range 200 {
		rules += fmt.Sprintf("Rule %d says what to do in the case %d. ", i, i*i)
	}
	tell := func(system, image string) gjson.Result {
		t.Helper()
		r := post(t, l, map[string]any{"messages": []any{map[string]any{"role": "system", "content": system},
			map[string]any{"role": "user", "content": []any{map[string]any{"type": "image_url", "image_url": map[string]any{"url": image}},
				map[string]any{"type": "text", "text": "What is the rule? " + rules}}}}}, nil)
		var a gjson.Result
		eventually(t, "the request's account", func() bool { a = lastDecision(t, l).Get("account"); return a.Exists() })
		sum := a.Get("cached").Int()
		a.Get("uncached").ForEach(func(_, n gjson.Result) bool { sum += n.Int(); return true })
		if int(a.Get("tokens").Int()) != r.prompt || int(a.Get("cached").Int()) != r.cached || sum != a.Get("tokens").Int() {
			t.Errorf("the account %s adds up to %d, want %d tokens, %d of them cached", a.Raw, sum, r.prompt, r.cached)
		}
		return a
	}
	check := func(what string, a gjson.Result, part, kind string) {
		t.Helper()
		c := a.Get("spans.#.change|0")
		if c.Get("part").Str != part || c.Get("kind").Str != kind || c.Get("token").Int() != -1 ||
			2*a.Get("uncached.changed").Int() < a.Get("tokens").Int() {
			t.Errorf("%s: got %s, want %s: %s, no token, and most tokens under it", what, a.Raw, part, kind)
		}
	}
	tell("It is 17:05:33 now. "+rules, dataURL(photo(71)))
	check("another time of day", tell("It is 18:44:21 now. "+rules, dataURL(photo(71))), "the system text", "a time of day")
	tell("No rules.", dataURL(photo(73)))
	check("another image", tell("No rules.", dataURL(photo(74))), "image 1", "other bytes of the same size")
}

// Two Sightlines behind one Envoy give one account: each reports the requests of both, each request once, and its own alone once the other
// one has gone.
func TestReplicasReportOne(t *testing.T) {
	t.Parallel()
	s := startStand(t, 2, 0, 2, 4, map[string]any{"drain": "0s", "fixed": unprobed(), "replicas": true})
	one, two := s.replicas[0], s.replicas[1]
	eventually(t, "they hear each other", func() bool {
		return metricOf(t, one.admin, "sightline_peers ", "") == 1 && metricOf(t, two.admin, "sightline_peers ", "") == 1
	})
	rules := strings.Repeat("A rule that says what to do. ", 60)
	sent := 0
	send := func() {
		sent++
		s.send(fmt.Sprintf(`{"model":%q,"max_tokens":1,"messages":[{"role":"system","content":"It is 17:%02d:%02d. %s"},`+
			`{"role":"user","content":"Which?"}]}`, lab.ModelName, sent/60, sent%60, rules), false, time.Minute)
	}
	decided := func(r *standing) int { return int(metricOf(t, r.admin, "sightline_decisions_total", "")) }
	eventually(t, "both are asked", func() bool { send(); return decided(one) > 20 && decided(two) > 20 })
	type told struct {
		Accounted int            `json:"accounted_tokens"`
		Uncached  map[string]int `json:"uncached"`
		Replicas  int            `json:"replicas"`
		Steered   struct {
			Requests int `json:"requests"`
			Prompt   int `json:"prompt_tokens"`
		} `json:"steered"`
		Changed []struct {
			Tokens, Requests int
		} `json:"changed"`
	}
	read := func(r *standing) (out told, raw string) {
		text, err := lab.Get("http://" + r.admin + "/report")
		if err == nil {
			err = json.Unmarshal(text, &out)
		}
		if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		return out, string(text)
	}
	eventually(t, "both report all requests", func() bool {
		a, _ := read(one)
		b, _ := read(two)
		return a.Steered.Requests == decided(one)+decided(two) && b.Steered.Requests == a.Steered.Requests
	})
	a, textA := read(one)
	b, textB := read(two)
	if fmt.Sprintf("%+v", a) != fmt.Sprintf("%+v", b) || a.Replicas != 2 {
		t.Errorf("got\n%s\n%s\nwant one account of two replicas", textA, textB)
	}
	for cause, n := range a.Uncached {
		counted := 0
		for _, r := range s.replicas {
			counted += int(metricOf(t, r.admin, "sightline_uncached_tokens_total", `cause="`+cause+`"`))
		}
		if counted != n {
			t.Errorf("%s: %d tokens are reported, want the %d that both have counted", cause, n, counted)
		}
	}
	changed := 0 // behind another digit of the time
	for _, one := range a.Changed {
		changed += one.Tokens
	}
	if changed != a.Uncached["changed"] || changed == 0 || len(a.Changed) > 4 {
		t.Errorf("got the places %+v, want one to four, with all of %d tokens", a.Changed, a.Uncached["changed"])
	}
	two.stop()
	eventually(t, "the other one reports its own alone", func() bool {
		a, _ := read(one)
		return a.Replicas == 0 && a.Steered.Requests == decided(one)
	})
}
