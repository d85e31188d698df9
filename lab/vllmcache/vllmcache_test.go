package vllmcache

import (
	"strings"
	"testing"
)

func TestParseGroups(t *testing.T) {
	groups, err := ParseGroups("full:32,window:16:1024,chunk:16:8192,state:64")
	want := []Group{{Full, 32, 0}, {Window, 16, 1024}, {Chunk, 16, 8192}, {State, 64, 0}}
	if err != nil || len(groups) != len(want) {
		t.Fatalf("got %+v %v, want no error, %d of them", groups, err, len(want))
	}
	for i := range want {
		if groups[i] != want[i] {
			t.Errorf("%+v, want %+v", groups[i], want[i])
		}
	}
	for _, text := range []string{"", "full", "full:16:2", "window:16", "state:0", "full:x", "mamba:16"} {
		if _, err := ParseGroups(text); err == nil || !strings.Contains(err.Error(), "group") {
			t.Errorf("%q: got %v, want an error, %q in it", text, err, "group")
		}
	}
}

// A cache of a window of 64 beside full attention, as vLLM keeps it by default: the second prompt with a common beginning finds
// nothing, and has the place kept where it parts from the first; the third finds it.
func TestJunction(t *testing.T) {
	c, err := New[int, int](Options{Groups: []Group{{Full, 16, 0}, {Window, 16, 64}}, Blocks: 200})
	if err != nil {
		t.Fatal(err)
	}
	c.Tell, c.Content = func(Event[int]) {}, func(*Request[int], int, int) int { return 0 }
	for i, want := range []int{0, 0, 192, 288} {
		r := &Request[int]{Prompt: 300, Tokens: 300}
		for block := range 18 {
			hash := block
			if block >= 12 {
				hash += 100 * min(i, 2) // the last two prompts are equal
			}
			r.Hashes = append(r.Hashes, hash)
		}
		hit := c.Find(r, 299)
		if hit.Tokens != want {
			t.Errorf("prompt %d: found %d tokens, want %d", i+1, hit.Tokens, want)
		}
		if !c.Allocate(r, hit, 300-hit.Tokens) {
			t.Fatal("no room")
		}
		c.Release(r)
	}
	if c.Free() != 199 || c.Usage() != 0 {
		t.Errorf("%d free, usage %g, want 199, 0", c.Free(), c.Usage())
	}
}
