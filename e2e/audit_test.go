package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
)

// What workers say they stored is compared with what was predicted: all equal, over ZeroMQ and over NATS.
func TestAuditIsEqual(t *testing.T) {
	l := startLab(t, nil)
	const requests = 9
	for i := range requests {
		if got := ask(t, l, fmt.Sprint("Question ", i), dataURL(photo(uint64(700+i)))); got.status != 200 {
			t.Fatalf("%+v", got)
		}
	}
	equal := 0
	if err := lab.WaitFor(t.Context(), "the verdicts", func() bool {
		text, err := lab.Get("http://" + l.Admin + "/metrics")
		equal = 0
		for _, line := range strings.Split(string(text), "\n") {
			if strings.HasPrefix(line, "sightline_audit_total{") {
				if !strings.Contains(line, `verdict="equal"`) {
					t.Fatal(line)
				}
				n := 0
				fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &n)
				equal += n
			}
		}
		return err == nil && equal == requests
	}); err != nil {
		t.Fatalf("%v: %d of %d equal", err, equal, requests)
	}
	if metric(t, l, "sightline_audit_named_events_total", "") == 0 {
		t.Error("no event named its request by the session that it was given")
	}
}

// A setting that is not the worker's is named by its effect: the picture has another number of tokens there.
func TestAuditNamesTheDifference(t *testing.T) {
	l := startLab(t, func(o *lab.Options) {
		o.Workers = 1
		o.Config = func(keys map[string]any) {
			keys["probe"] = false
			keys["models"].([]any)[0].(map[string]any)["mm_processor_kwargs"] = map[string]any{"max_pixels": 64 * 28 * 28}
		}
	})
	if got := ask(t, l, strings.Repeat("What is it, and what stands behind it? ", 8), dataURL(photo(801))); got.status != 200 {
		t.Fatalf("%+v", got)
	}
	var f gjson.Result
	if err := lab.WaitFor(t.Context(), "a finding", func() bool {
		text, err := lab.Get("http://" + l.Admin + "/audit")
		f = gjson.GetBytes(text, "0")
		return err == nil && f.Exists()
	}); err != nil {
		t.Fatal(err)
	}
	if f.Get("verdict").Str != "span" || f.Get("ours").Int() >= f.Get("theirs").Int() || f.Get("position").Int() == 0 {
		t.Errorf("%s", f.Raw)
	}
	if page, err := lab.Get("http://" + l.Admin + "/"); err != nil || !strings.Contains(string(page), f.Get("says").Str[:20]) {
		t.Errorf("the page does not say it: %v", err)
	}
}
