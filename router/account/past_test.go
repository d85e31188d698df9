package account

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/sightline-router/sightline/internal/fair"
)

var now = time.Unix(1_800_000_000, 0)

// chain returns n blocks of a prompt.
func chain(prompt uint64, n int) []uint64 {
	r, out := rand.New(rand.NewPCG(prompt, 9)), make([]uint64, n)
	for i := range out {
		out[i] = r.Uint64()
	}
	return out
}

// TestFate checks what is remembered of blocks: who had them last, when it was asked for them, and whether it lost them with all others.
func TestFate(t *testing.T) {
	p := NewPast(1000, now)
	a, b, prompt := Cache{"a", -1}, Cache{"b", 1}, chain(1, 200)
	fates := func() (out string) {
		for at := 0; at < len(prompt); {
			n, f := p.Fate(prompt[at:], now.Add(time.Minute))
			if n == 0 {
				return out + "end"
			}
			out, at = out+fmt.Sprint(n, f, " "), at+n
		}
		return out
	}
	if got := fates(); got != "end" {
		t.Errorf("nothing is remembered: got %s, want %q", got, "end")
	}
	p.Had(1, 7, a, prompt[:150], true, now)
	p.Had(1, 8, b, prompt[:100], true, now.Add(10*time.Second))
	p.Lost(7, prompt)
	if got := fates(); got != "100 {{b 1} 50s false false} 50 {{a -1} 1m0s true false} end" {
		t.Errorf("a lost everything: got %s, want %q", got, "100 {{b 1} 50s false false} 50 {{a -1} 1m0s true false} end")
	}
	p.Had(1, 9, a, prompt[:120], false, now.Add(time.Hour)) // in another slot
	p.Lost(7, prompt)
	if got := fates(); got != "120 {{a -1} 0s true true} 30 {{a -1} 1m0s true false} end" {
		t.Errorf("a's events do not tell all: got %s, want %q", got, "120 {{a -1} 0s true true} 30 {{a -1} 1m0s true false} end")
	}
}

// TestFull checks the bound, and that a client with ever new prompts pushes out no block of one that has less.
func TestFull(t *testing.T) {
	const most = 20_000
	p, at := NewPast(most, now), Cache{"w", -1}
	theirs := chain(1, 5_000)
	p.Had(1, 0, at, theirs, true, now)
	for i := range 200 {
		p.Had(2, 0, at, chain(uint64(10+i), 1_000), true, now)
		if n := p.Len(); n > most {
			t.Fatalf("%d blocks, want %d at most", n, most)
		}
	}
	if n, _ := p.Fate(theirs, now); n != len(theirs) {
		t.Errorf("%d of the other client's %d blocks are left, want %d", n, len(theirs), len(theirs))
	}
	if n, _ := p.Fate(chain(10, 1_000), now); n > 0 {
		t.Errorf("%d of the first of 200 prompts are left in room for 15, want 0", n)
	}
	if n, _ := p.Fate(chain(209, 1_000), now); n != 1_000 {
		t.Errorf("%d of the last prompt's 1,000 are left, want 1_000", n)
	}
}

// TestUsedAgain checks that blocks that are used again outlive those that are not.
func TestUsedAgain(t *testing.T) {
	p, at := NewPast(10_000, now), Cache{"w", -1}
	system := chain(1, 500)
	for i := range 100 {
		p.Had(1, 0, at, system, true, now)
		p.Had(1, 0, at, chain(uint64(10+i), 500), true, now)
	}
	if n, _ := p.Fate(system, now); n != len(system) {
		t.Errorf("%d of %d blocks that all prompts begin with are left, want %d", n, len(system), len(system))
	}
}

// TestCaches checks that too many workers' names do not grow without end.
func TestCaches(t *testing.T) {
	p := NewPast(maxCaches, now)
	for i := range maxCaches + 1 {
		p.Had(1, uint32(i%9), Cache{fmt.Sprint(i), -1}, []uint64{uint64(i)}, true, now)
	}
	if n := p.Len(); n != 1 {
		t.Errorf("%d blocks, want one: all others were forgotten with their workers", n)
	}
}

// TestMemory checks that a full Past of many clients takes 32 MiB at most.
func TestMemory(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	p, r, prompt := NewPast(Blocks, now), rand.New(rand.NewPCG(1, 2)), make([]uint64, 500)
	for i := range Blocks * 5 / 4 / len(prompt) {
		for k := range prompt {
			prompt[k] = r.Uint64()
		}
		p.Had(fair.Client(i), 0, Cache{"w", -1}, prompt, true, now)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if size := (after.HeapAlloc - before.HeapAlloc) >> 10; size > 32<<10 || p.Len() > Blocks {
		t.Errorf("%d KiB for %d blocks, want 32 MiB at most", size, p.Len())
	} else {
		t.Logf("%d KiB for %d blocks", size, p.Len())
	}
	runtime.KeepAlive(p)
}
