package tokenizer

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestStops: every kind of tokenizer stops soon when its time is over, with the ids of complete leading stretches, and works
// normally for the next text.
func TestStops(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	letters := make([]byte, stretches*lookEvery)
	for i := range letters {
		letters[i] = 'a' + byte(r.IntN(26))
	}
	over := make(chan struct{})
	close(over)
	stopped := 0
	for i, c := range pipelines(t) {
		tok, err := LoadJSON([]byte(c.Tokenizer))
		if err != nil {
			continue
		}
		for name, text := range map[string]string{
			"one word": string(letters), "words": strings.Repeat("Word, word; 17 words. ", stretches*lookEvery/22),
			"marks": strings.Repeat("e\u0301中文 ", stretches*lookEvery/10),
		} {
			all := tok.Encode(nil, text, Options{})
			if len(all) < 100 { // the model has hardly any tokens for it
				continue
			}
			cache := tok.NewCache(1<<20, 1)
			for how, way := range map[string]func([]uint32, string, Options) []uint32{"plain": tok.Encode, "cached": cache.Encode} {
				fault := func(what string, ids []uint32) {
					t.Errorf("tokenizer %d, %s, %s: got %d ids, or others, want %d, %s\n%s", i, name, how, len(ids), len(all), what, summary(c.Tokenizer))
				}
				if ids := way(nil, text, Options{Done: over}); len(ids) == len(all) || !slices.Equal(ids, all[:len(ids)]) {
					fault("though the time was over", ids)
				}
				for _, most := range []int{1, len(all) / 2, len(all) - 1} {
					if ids := way(nil, text, Options{Max: most}); len(ids) <= most || len(ids) > len(all) || !slices.Equal(ids[:most], all[:most]) {
						fault(fmt.Sprintf("where no more than %d are wanted", most), ids)
					}
				}
				if ids := way(nil, text, Options{Done: make(chan struct{})}); !slices.Equal(ids, all) {
					fault("after a stop", ids)
				}
			}
			if !stops(tok, text, over) {
				t.Errorf("tokenizer %d, %s: no look at the clock within a stretch\n%s", i, name, summary(c.Tokenizer))
			}
			stopped++
		}
	}
	if stopped < 80 {
		t.Errorf("got %d texts tried, want 80", stopped)
	}
}

// stops reports whether a stretch is abandoned in its middle.
func stops(tok *Tokenizer, text string, over chan struct{}) (stopped bool) {
	s := &scratch{done: over}
	defer func() { stopped = s.stopped(recover()) }()
	tok.encodePart(nil, s, []byte(text), true, false)
	return false
}

// TestStopKeepsWholeStretches: text encoded before the time was over is kept up to its last added token.
func TestStopKeepsWholeStretches(t *testing.T) {
	tok := chatTokenizer(t, 100)
	var added string
	for _, a := range tok.added {
		added = a.Content
	}
	first := "the end" + added
	want := tok.Encode(nil, first, Options{})
	over := make(chan struct{})
	close(over)
	got := tok.Encode(nil, first+strings.Repeat("the than then ", lookEvery), Options{Done: over})
	if !slices.Equal(got, want) {
		t.Errorf("%d ids, want the %d before the long stretch", len(got), len(want))
	}
}

// TestScratchIsBounded: the buffers of a text are kept for the next one up to a bound, for a bounded number of texts.
func TestScratchIsBounded(t *testing.T) {
	p := make(pool, 2)
	for range 3 {
		p.put(&scratch{syms: make([]uint32, maxKept), dead: make([]uint64, 0, maxKept/8)})
	}
	if s := p.get(); len(p) != 1 || s.syms != nil || cap(s.dead) != maxKept/8 {
		t.Errorf("%d kept beside one, of %d and %d: got %v, want 1, nil, %d", len(p), cap(s.syms), cap(s.dead), s.syms, maxKept/8)
	}
}
