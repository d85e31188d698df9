package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
)

// Two Sightlines that hold a half of the index each, behind one Envoy that sends requests to either: what they find is what one that
// holds all finds, after a start, so that nothing of it is a prediction; each holds half. One is killed under
// load: no request fails, and its half is decided by predictions.
func TestPartsAreOne(t *testing.T) {
	t.Parallel()
	const apps, perSecond = 60, 50
	secret := filepath.Join(t.TempDir(), "secret") // which prompts are in a half depends on it
	if err := os.WriteFile(secret, []byte(strings.Repeat("a secret of a test", 2)), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startStand(t, 4, 0, 2, 100, map[string]any{"drain": "0s", "probe": false, "replicas": true,
		"index": map[string]any{"key_file": secret}})
	one, two := s.replicas[0], s.replicas[1]
	systems := make([]string, apps)
	for i := range systems {
		systems[i] = words(rand.New(rand.NewPCG(uint64(i), 77)), 400) // one worker has room for all, if it must
	}
	ask := func(app int, question string) attempt {
		body, _ := json.Marshal(map[string]any{"model": lab.ModelName, "max_tokens": 1, "messages": []any{
			map[string]any{"role": "system", "content": systems[app]}, map[string]any{"role": "user", "content": question}}})
		return s.send(string(body), false, time.Minute)
	}
	round := func(name string) (found int64) { // held by any worker, as those who decided knew; hits are a choice's too, and a busy machine's
		t.Helper()
		for i := range apps {
			eventually(t, "a decision", func() bool { // Envoy's threads learn one after another who is well, and send on undecided until then
				r := ask(i, "A question of "+name)
				if r.failed() {
					t.Fatalf("status %d, %v: %.200s", r.status, r.err, r.body)
				}
				return r.decided
			})
		}
		for _, r := range s.replicas {
			for _, held := range gjson.Get(page(t, r.admin, "/decisions?n=200"), "#.held_tokens").Array() {
				found += held.Int()
			}
		}
		return found
	}
	asked := func(r *standing, what string) float64 {
		return metricOf(t, r.admin, "sightline_part_questions_total", `"`+what+`"`)
	}
	none := func() {
		one.stop()
		two.stop()
		s.replicas = nil
		eventually(t, "Envoy finds nobody", s.whole)
	}
	part := func(r *standing, is string) {
		r.keys = map[string]any{"index": map[string]any{"partition": is, "key_file": secret}}
		s.configure(r, s.workers)
		r.start(t)
		s.replicas = append(s.replicas, r)
	}
	blocks := func() (n float64) {
		for _, r := range s.replicas {
			n += metricOf(t, r.admin, "sightline_index_blocks ", "")
		}
		return n
	}
	round("nobody before")
	stored := 0.0
	eventually(t, "both have heard all", func() bool {
		stored = blocks() / 2
		return stored == metricOf(t, one.admin, "sightline_index_blocks ", "")
	})
	none()
	part(one, "1/1")
	eventually(t, "Envoy finds one, alone, that knows all", func() bool { return s.whole() && blocks() >= stored })
	whole := round("the whole")
	stored = blocks()
	none()
	part(one, "1/2")
	part(two, "2/2")
	eventually(t, "Envoy finds both halves", s.whole)
	eventually(t, "they know each other, and all", func() bool {
		return metricOf(t, one.admin, "sightline_peers ", "") == 1 && metricOf(t, two.admin, "sightline_peers ", "") == 1 && blocks() >= stored
	})
	all := blocks()
	halves := round("two halves")
	answered, late := asked(one, "answered")+asked(two, "answered"), asked(one, "late")+asked(two, "late")
	t.Logf("%d tokens found by the halves, %d by the whole: %.3f; %v questions answered, %v late, %v to nobody", halves,
		whole, float64(halves)/float64(whole),
		answered, late, asked(one, "nobody")+asked(two, "nobody"))
	if float64(halves) < (0.97-late/apps)*float64(whole) || answered < apps/4 { // late: this machine is too busy
		t.Error("want 97 % but for late ones, and questions that are answered")
	}
	for _, r := range []*standing{one, two} {
		if n := metricOf(t, r.admin, "sightline_index_blocks ", "") / all; n < 0.35 || n > 0.65 {
			t.Errorf("%s holds %.2f of the blocks, want about half (TestPart of package indexer: in half of the bytes)", r.name, n)
		}
	}
	load := startLoad(t, perSecond, func(i int) reply { return ask(i%apps, fmt.Sprint("Under load ", i)).reply })
	load.more(perSecond)
	one.stop()
	load.more(4 * perSecond)
	for _, r := range load.stop() {
		if r.err != nil || r.status != http.StatusOK {
			t.Errorf("status %d, %v: %.100s", r.status, r.err, r.body)
		}
	}
	other := strings.Count(page(t, two.admin, "/decisions?n=500"), `"reason":"predicted"`)
	t.Logf("of %d requests under load %d were predicted, %v questions were late, %v to nobody", load.sent, other,
		asked(two, "late"), asked(two, "nobody"))
	if other == 0 || asked(two, "nobody") == 0 {
		t.Error("the dead one's half is not decided by predictions")
	}
}
