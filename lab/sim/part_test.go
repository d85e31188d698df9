package sim

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/lab/vllmid"
	"github.com/sightline-router/sightline/router"
)

// Two Sightlines that hold a half each, beside one that holds all, hear the same two workers: the halves make up the whole, each
// decides exactly in its own, and by prediction and load in the other's.
func TestParts(t *testing.T) {
	const fronts, turns = 40, 3
	workers := startTwo(t)
	all := startDeciding(t, workers, indexer.Options{}, false)
	var halves [2]*deciding
	for i := range halves {
		halves[i] = startDeciding(t, workers, indexer.Options{Part: indexer.Part{Number: i + 1, Of: 2}}, false)
	}
	var bodies [][]byte
	var told [2][]vllmid.Digest
	for front := range fronts {
		prompt := event{}
		for turn := range turns { // each event hangs behind the one before
			body := fmt.Appendf(nil, `{"model":"m","messages":[{"role":"system","content":"app %d: %s"},{"role":"user","content":"%s"}]}`,
				front, words(40, "boat"), words(60*(turn+1), "sail"))
			e, from := all.stored(t, uint64(front), body), len(prompt.hashes)
			prompt = e
			if from > 0 {
				e.parent = e.hashes[from-1]
			}
			e.hashes, e.keys, e.tokens = e.hashes[from:], e.keys[from:], e.tokens[from*16:]
			workers[front%2].publish([]event{e})
			if turn == turns-1 {
				bodies = append(bodies, body)
			}
		}
		told[front%2] = append(told[front%2], prompt.hashes...)
	}
	for w, slot := range all.slots {
		whole := len(told[w])
		within(t, 30*time.Second, "all to have heard", func() bool {
			ok := all.index.HeldBlocks(slot) == whole
			for _, h := range halves {
				st := h.feeds[w].Stats()
				ok = ok && h.index.HeldBlocks(h.slots[w])+int(st.Elsewhere) == whole
			}
			return ok
		})
		one, two := halves[0].index.HeldBlocks(halves[0].slots[w]), halves[1].index.HeldBlocks(halves[1].slots[w])
		if one+two != whole || min(one, two)*4 < whole {
			t.Errorf("worker %d holds %d blocks; the halves know %d and %d", w, whole, one, two)
		}
	}
	for i, body := range bodies {
		holder, exact := fmt.Sprint("w", i%2), 0
		for _, h := range halves {
			first, before := h.decide(body), ""
			if first.Reason == router.Exact {
				exact++
				if first.Targets[0].Worker != holder || first.CachedTokens < first.PromptTokens/2 {
					t.Errorf("front %d: %+v, held by %s", i, first, holder)
				}
				continue
			}
			if first.Reason != router.Load || first.CachedTokens != 0 || first.Why != "the prompt is of another part of the index" {
				t.Errorf("front %d, of another part: %+v", i, first)
			}
			for range 2 { // what was sent somewhere goes there again
				h.ids++
				d := h.Decide(context.Background(), &router.Request{ID: fmt.Sprint(h.ids), Path: "/v1/chat/completions", Body: [][]byte{body}})
				h.Observe(router.Outcome{ID: d.ID, Phase: router.Ended, Code: 200, CachedTokens: -1})
				if before != "" && (d.Reason != router.Predicted || d.Targets[0].Worker != before) {
					t.Errorf("front %d, asked again: %+v, went to %s before", i, d, before)
				}
				before = d.Targets[0].Worker
			}
		}
		if exact != 1 {
			t.Errorf("front %d: %d of the two halves know it", i, exact)
		}
	}
	for w, p := range workers {
		for list := range slices.Chunk(told[w], 64) {
			p.publish([]event{{kind: removed, hashes: list}})
		}
		for _, h := range halves {
			within(t, 30*time.Second, "all to be removed", func() bool { return h.index.HeldBlocks(h.slots[w]) == 0 })
			st := h.feeds[w].Stats()
			if st.UnknownParents+st.UnknownBlocks+st.Gaps+st.Replays > 1 || st.Orphans != 0 || st.Partial || st.Elsewhere == 0 {
				t.Errorf("%+v", st)
			}
		}
	}
}
