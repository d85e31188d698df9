package router

import (
	"testing"

	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/router/learned"
)

// The memory of a decision is used again, and nothing that was recalled for one request is seen by the next.
func TestRecalledIsOfOneRequest(t *testing.T) {
	var o overlap
	class, r := new(servedClass), &reading{byEngine: make([]engineReading, 1)}
	o.add(r, class, block.Form{Size: 16}, nil, 0)
	o.lookups[0].recalled = recalled{Prompt: learned.Prompt{Blocks: []uint64{1, 2}, Learned: 2, Tokens: 40, Estimate: true},
		used: true, class: 7, tokens: 40}
	o.release()
	o.add(r, class, block.Form{Size: 16}, nil, 0)
	if r := &o.lookups[0].recalled; len(r.Blocks) > 0 || r.Learned+r.Tokens+r.tokens > 0 || r.Estimate || r.used || r.class != 0 {
		t.Errorf("%+v", r)
	}
}

// What is remembered under a URL is not used for a request whose image, as it was fetched, makes other blocks.
func TestRecalledAgreesWithRules(t *testing.T) {
	r := &recalled{Prompt: learned.Prompt{Blocks: []uint64{1, 2, 3}}}
	for _, c := range []struct {
		computed []uint64
		want     bool
	}{{nil, true}, {[]uint64{1, 2}, true}, {[]uint64{1, 2, 3, 4}, true}, {[]uint64{1, 9}, false}, {[]uint64{9}, false}} {
		if got := r.agrees(c.computed); got != c.want {
			t.Errorf("%v beside computed %v: %v", r.Blocks, c.computed, got)
		}
	}
}
