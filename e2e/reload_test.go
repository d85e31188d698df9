package e2e

import (
	"fmt"
	"os"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
)

// The configuration's file changes ten times under load: a worker goes and comes back, a model gets another name and loses it, the
// file is bad. No request fails, a worker that stays keeps what it holds, and decisions come from Sightline all the while.
func TestReloadUnderLoad(t *testing.T) {
	t.Parallel()
	l := startLab(t, nil)
	first := ask(t, l, "What is this?", dataURL(photo(71)))
	awaitExact(t, l, first.worker, first.prompt)
	good, err := os.ReadFile(l.ConfigFile())
	if err != nil {
		t.Fatal(err)
	}
	edited := func(edit func(keys map[string]any)) []byte {
		var keys map[string]any
		if err := yaml.Unmarshal(good, &keys); err != nil {
			t.Fatal(err)
		}
		edit(keys)
		text, err := yaml.Marshal(keys)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	gone := (first.worker + 1) % len(l.Sims)
	fewer := edited(func(keys map[string]any) {
		list := keys["workers"].([]any)
		keys["workers"] = append(append([]any{}, list[:gone]...), list[gone+1:]...)
	})
	limited := edited(func(keys map[string]any) {
		keys["max_in_flight"] = 1000
		for _, w := range keys["workers"].([]any) { // the reload changes all workers but the one that holds the image
			if w := w.(map[string]any); w["name"] != fmt.Sprint("worker-", first.worker+1) {
				w["max_in_flight"] = 900
			}
		}
	})
	named := edited(func(keys map[string]any) { keys["models"].([]any)[0].(map[string]any)["aliases"] = []string{"another"} })
	sent, end := hundredASecond(t, l)
	for i, change := range []struct {
		text    []byte
		result  string
		workers int
	}{
		{fewer, "success", 2}, {good, "success", 3}, {named, "success", 3}, {[]byte("models: ["), "failure", 3}, {fewer, "success", 2},
		{named, "success", 3}, {[]byte("listen: x"), "failure", 3}, {good, "success", 3}, {fewer, "success", 2}, {limited, "success", 3},
	} {
		at, taken := sent.Load(), metric(t, l, "sightline_config_reloads_total", change.result)
		if err := os.WriteFile(l.ConfigFile()+".new", change.text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(l.ConfigFile()+".new", l.ConfigFile()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "a reload", func() bool { return metric(t, l, "sightline_config_reloads_total", change.result) == taken+1 })
		eventually(t, "load", func() bool { return sent.Load() > at+50 })
		if n := metric(t, l, "sightline_workers ", ""); n != float64(change.workers) {
			t.Errorf("change %d: %v workers, want %d", i, n, change.workers)
		}
	}
	end()
	eventually(t, "all workers' events", func() bool {
		rows, err := lab.Get("http://" + l.Admin + "/workers")
		return err == nil && gjson.GetBytes(rows, `#(events=="live")#|#`).Int() == 3
	})
	if n := metric(t, l, "sightline_decisions_total", ""); n < float64(sent.Load()) {
		t.Errorf("%v decisions of %d requests, want at least %v", n, sent.Load(), float64(sent.Load()))
	}
	quiet(t, l)
	again := ask(t, l, "What is this?", dataURL(photo(71)))
	if d := lastDecision(t, l); again.worker != first.worker || d.Get("cached_tokens").Int() < 300 {
		t.Errorf("after the reloads: got worker %d, decision %s; want worker %d, at least 300 tokens cached",
			again.worker, d, first.worker)
	}
}
