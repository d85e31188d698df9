package e2e

import (
	"fmt"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
)

// A request for its prompt's log probabilities is computed whole, and Sightline says so beforehand; what its worker holds is
// known as before.
func TestPromptLogprobsForgetNothing(t *testing.T) {
	t.Parallel()
	l := startLab(t, nil)
	url := dataURL(photo(51))
	first := ask(t, l, "What is this?", url)
	awaitExact(t, l, first.worker, first.prompt)
	held := func() int64 {
		raw, err := lab.Get("http://" + l.Admin + "/workers")
		if err != nil {
			t.Fatal(err)
		}
		return gjson.GetBytes(raw, fmt.Sprint(first.worker, ".blocks_held")).Int()
	}
	before := held()
	for i, fields := range []map[string]any{{"prompt_logprobs": 1}, {"echo": true}, {"prompt_logprobs": 0},
		{"echo": true, "top_logprobs": 2, "logprobs": true}} {
		body := request(fmt.Sprint("skips-", i), "What is this?", imagePart(url, nil))
		for k, v := range fields {
			body[k] = v
		}
		r := post(t, l, body, nil)
		if d := lastDecision(t, l); r.status != 200 || r.cached != 0 || d.Get("cached_tokens").Int() != 0 {
			t.Errorf("%v: got status %d, %d cached, decision %s; want 200, nothing cached, nothing promised",
				fields, r.status, r.cached, d.Raw)
		}
	}
	again := ask(t, l, "What is this?", url)
	if d := lastDecision(t, l); again.cached < 380 || d.Get("cached_tokens").Int() != int64(again.cached) {
		t.Errorf(`afterwards: worker %d, %d cached, decision %s, want again.cached >= 380, d.Get("cached_tokens").Int() == int64(again.cached)`,
			again.worker, again.cached, d.Raw)
	}
	if n := held(); n < before || metric(t, l, "sightline_blocks_corrected_total", "") != 0 ||
		metric(t, l, "sightline_cached_tokens_reported_total", "fewer") != 0 {
		t.Errorf("%d blocks known, %d before, %v taken out", n, before, metric(t, l, "sightline_blocks_corrected_total", ""))
	}
}
