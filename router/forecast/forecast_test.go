package forecast

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

var start = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

func mix(a, b uint64) uint64 { return alias(a, int(b)) }

// sized returns the caches of slots from 0 on.
func sized(blocks ...int) (list []Cache) {
	for i, n := range blocks {
		list = append(list, Cache{Slot: uint32(i), Blocks: n, Used: -1})
	}
	return list
}

// chain returns the blocks of prompts: numbers of segments, each of so many blocks.
func chain(segments ...[2]int) (list []uint64) {
	h := uint64(1)
	for _, s := range segments {
		for i := range s[1] {
			h = mix(mix(h, uint64(s[0])), uint64(i))
			list = append(list, h)
		}
	}
	return list
}

// TestStack: depths are those of a list that is kept by hand, whatever is used, dropped, cut or thinned.
func TestStack(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		var s stack
		var list []uint64 // most recently used last
		for step := range 3000 {
			key := mix(uint64(r.IntN(200)+1), 0)
			if !sampled(key, s.shift) {
				continue
			}
			switch k := r.IntN(100); {
			case k == 0:
				without, shift := r.IntN(20), s.shift
				if r.IntN(4) == 0 {
					shift++
				}
				without = min(without, len(list))
				want := slices.DeleteFunc(slices.Clone(list[without:]), func(key uint64) bool { return !sampled(key, shift) })
				gone := 0
				s.compact(without, shift, func(uint64) { gone++ })
				if gone != len(list)-len(want) {
					t.Fatalf("seed %d, step %d: %d blocks are said to be gone, want %d", seed, step, gone, len(list)-len(want))
				}
				list = want
			case k < 10:
				s.drop(key)
				list = slices.DeleteFunc(list, func(k uint64) bool { return k == key })
			default:
				s.use(key, 0, 0)
				list = append(slices.DeleteFunc(list, func(k uint64) bool { return k == key }), key)
			}
			if s.len() != len(list) {
				t.Fatalf("seed %d, step %d: %d blocks, want %d", seed, step, s.len(), len(list))
			}
			for i, key := range list {
				if d, ok := s.depth(key); !ok || d != len(list)-1-i {
					t.Fatalf("seed %d, step %d, block %d: got depth %d (known %v), want %d", seed, step, i, d, ok, len(list)-1-i)
				}
			}
		}
	}
}

// lru is a cache of blocks as engines have it, by brute force.
type lru struct {
	room int
	list []uint64
}

func (c *lru) serve(prompt []uint64) (hits int) {
	for hits < len(prompt)-1 && slices.Contains(c.list, prompt[hits]) { // the prompts here are of whole blocks: the last one is computed
		hits++
	}
	for _, key := range slices.Backward(prompt) {
		c.list = append(slices.DeleteFunc(c.list, func(k uint64) bool { return k == key }), key)
	}
	c.list = c.list[max(0, len(c.list)-c.room):]
	return hits
}

// traffic returns prompts of conversations under a few instructions, some of them continued.
func traffic(seed uint64, n int) (prompts [][]uint64) {
	r := rand.New(rand.NewPCG(seed, 2))
	var open [][][2]int
	for i := range n {
		at := len(open)
		if len(open) > 0 && r.IntN(3) > 0 {
			at = r.IntN(len(open))
		} else {
			open = append(open, [][2]int{{1 + r.IntN(3), 8}})
		}
		open[at] = append(slices.Clone(open[at]), [2]int{100 + i, 2 + r.IntN(6)})
		prompts = append(prompts, chain(open[at]...))
		if len(open) > 30 {
			open = slices.Delete(open, 0, 1)
		}
	}
	return prompts
}

// TestAgainstCaches: what is forecast for caches of other sizes is what caches of these sizes do.
func TestAgainstCaches(t *testing.T) {
	const room = 300
	for _, c := range []struct {
		shift uint8
		n     int
		most  float64 // points
	}{{0, 1500, 0.6}, {2, 6000, 2}} {
		for seed := range uint64(3) {
			prompts := traffic(seed, c.n)
			m := New(8 << 20)
			m.shift = c.shift
			m.Resize(sized(room), start)
			hits := func(size float64) float64 {
				of := lru{room: int(size * room)}
				found, all := 0, 0
				for _, p := range prompts {
					found, all = found+of.serve(p), all+len(p)
				}
				return float64(found) / float64(all)
			}
			now := lru{room: room}
			for _, p := range prompts {
				r := Request{0, p, 16, 16 * len(p), true, nil, 0, 0}
				m.Decided(r, start)
				m.Ended(r, 16*now.serve(p), 0, start)
				m.Settle()
			}
			f := m.Forecast(time.Hour, start)
			if f.Covered != 1 || math.Abs(f.Today.HitRate-hits(1)) > 1e-9 {
				t.Errorf("%+v, seed %d: covered %v, hit rate %v, want 1 and %v", c, seed, f.Covered, f.Today.HitRate, hits(1))
			}
			for _, size := range []float64{0.25, 0.5, 0.8, 1.2, 2, 4} {
				if off := 100 * (f.With(size, f.Workers).HitRate - hits(size)); math.Abs(off) > c.most {
					t.Errorf("%+v, seed %d, size %v: off by %.2f points of %.1f, want math.Abs(off) <= %v",
						c, seed, size, off, 100*hits(size), c.most)
				}
			}
		}
	}
}

// TestElsewhere: what the chosen worker does not have counts as deep as it lies where it was last, or here, where that is less.
func TestElsewhere(t *testing.T) {
	for _, here := range []int{0, 400} { // blocks that the chosen worker has used since it had them; 0: it never did
		m := New(8 << 20)
		m.Resize(sized(100, 100), start)
		first, others := chain([2]int{1, 10}), chain([2]int{2, 250})
		if here > 0 {
			m.Decided(Request{1, first, 16, 160, true, nil, 0, 0}, start)
		}
		m.Decided(Request{0, first, 16, 160, true, nil, 0, 0}, start)
		if here > 0 {
			m.Decided(Request{1, chain([2]int{3, here}), 16, 16 * here, true, nil, 0, 0}, start)
		}
		m.Decided(Request{0, others, 16, 4000, true, nil, 0, 0}, start)
		m.Settle()
		m.spans = spans{}
		m.Decided(Request{1, first, 16, 161, true, nil, 0, 0}, start)
		f := m.Forecast(time.Hour, start)
		if a, b := f.With(2, f.Workers).HitRate, f.With(3, f.Workers).HitRate; a != 0 || math.Abs(b-160./161) > 1e-9 {
			t.Errorf("after %d blocks here: hit rates of %v at twice the size, %v at three times, want 0 and 160 of 161 tokens", here, a, b)
		}
	}
}

// TestDropped: what one worker has evicted, and another has computed again, takes no more room in larger caches of the first.
func TestDropped(t *testing.T) {
	for _, c := range []struct {
		others int // blocks that the first has used since
		want   float64
	}{{60, 1}, {150, 0}} { // it holds them both still; it has evicted the prompt
		m := New(8 << 20)
		m.Resize(sized(100, 100), start)
		oldest, prompt := chain([2]int{1, 10}), chain([2]int{2, 40})
		for _, r := range []Request{{Slot: 0, Chain: oldest}, {Slot: 0, Chain: prompt}, {Slot: 0, Chain: chain([2]int{3, c.others})},
			{Slot: 1, Chain: prompt}} {
			r.Size, r.Tokens, r.Whole = 16, 16*len(r.Chain), true
			m.Decided(r, start)
		}
		m.Settle()
		if _, has := m.slots[0].depth(prompt[0]); has != (c.want == 1) || m.held != m.slots[0].len()+m.slots[1].len() {
			t.Errorf("after %d other blocks: the first worker's stack has the prompt: %v, with %d blocks counted of %d; want %v, and all",
				c.others, has, m.held, m.slots[0].len()+m.slots[1].len(), c.want == 1)
		}
		m.spans = spans{}
		m.Decided(Request{0, oldest, 16, 161, true, nil, 0, 0}, start) // behind the others, and the prompt if that is held
		if f := m.Forecast(time.Hour, start); f.With(1.75, 2).HitRate < 0.99 {
			t.Errorf("after %d other blocks: hit rate %v at 1.75 times the size, want all but the last token", c.others, f.With(1.75, 2).HitRate)
		}
	}
}

// TestFewer: half as many workers have in each cache what two have today, whichever has more of it.
func TestFewer(t *testing.T) {
	for _, c := range []struct {
		first, second int // blocks that each uses before the first is asked again
		larger        float64
		want          [2]float64 // with two and with one worker: of caches so many times as large
	}{
		{90, 0, 0.8, [2]float64{0, 0}}, {90, 0, 1.1, [2]float64{1, 1}}, // alone, it fills one cache as it does now
		{45, 45, 0.8, [2]float64{1, 0}}, {45, 45, 1.1, [2]float64{1, 1}}, // together they fill one
		{45, 90, 1.1, [2]float64{1, 0}},
	} {
		m := New(8 << 20)
		m.Resize(sized(100, 100), start)
		prompt, later := chain([2]int{1, 2}), start.Add(time.Second)
		for _, r := range []Request{{Slot: 0, Chain: prompt}, {Slot: 0, Chain: chain([2]int{2, c.first})},
			{Slot: 1, Chain: chain([2]int{3, c.second})}} {
			r.Size, r.Tokens, r.Whole = 16, 16*len(r.Chain), true
			m.Decided(r, later)
			later = later.Add(time.Second)
		}
		m.Settle()
		m.spans = spans{}
		m.Decided(Request{0, prompt, 16, 33, true, nil, 0, 0}, later)
		m.Settle()
		f := m.Forecast(time.Hour, later)
		f.span.measured = 0
		for i, workers := range []int{2, 1} {
			if got := math.Round(f.span.below(c.larger*float64(workers)*100, 2/float64(workers))); got != c.want[i] {
				t.Errorf("%+v: a hit rate of %v with %d workers, want %v", c, got, workers, c.want[i])
			}
		}
	}
}

// TestGathered: what load has computed again at a worker, beside others that have it, is found with half as many, as likely as a worker
// shares its cache with one of these.
func TestGathered(t *testing.T) {
	m := New(8 << 20)
	m.Resize(sized(100, 100, 100, 100), start)
	begin, rest := [2]int{1, 10}, chain([2]int{1, 10}, [2]int{2, 10})
	for slot, prompt := range [][]uint64{chain(begin), rest, chain(begin, [2]int{3, 5}), rest} {
		m.Decided(Request{uint32(slot), prompt, 16, 16 * len(prompt), true, nil, 0, 0}, start)
	}
	m.Settle()
	m.spans = spans{}
	m.Decided(Request{0, rest, 16, 321, true, nil, 0, 0}, start)
	f := m.Forecast(time.Hour, start)
	for workers, want := range map[int]float64{4: 10, 3: 10 + 10*2./9, 2: 10 + 10*2./3, 1: 10 + 10*2./3} {
		if got := f.With(1, workers).HitRate * 321 / 16; math.Abs(got-want) > 1e-5 {
			t.Errorf("with %d workers: got %v blocks of 20 found, want %v: ten here, and ten at two of three others", workers, got, want)
		}
	}
}

// TestAnswers: an answer takes room, and a prompt that goes on behind it finds it, although the names of its blocks are new.
func TestAnswers(t *testing.T) {
	m := New(8 << 20)
	m.Resize(sized(100), start)
	one := Request{0, chain([2]int{1, 10}), 16, 165, true, nil, 0, 0}
	m.Decided(one, start)
	m.Ended(one, 0, 20*16, start)
	m.Settle()
	if n := m.slots[0].len(); n != 30 {
		t.Errorf("%d blocks, want 10 of the prompt and 20 of the answer", n)
	}
	next := Request{0, chain([2]int{1, 10}, [2]int{2, 40}), 16, 50 * 16, true, nil, 0, 0}
	m.spans = spans{}
	m.Decided(next, start)
	f := m.Forecast(time.Hour, start)
	if got := f.With(1, f.Workers).HitRate * 50; math.Abs(got-30) > 1e-9 || m.slots[0].len() != 50 {
		t.Errorf("%v of 50 blocks are found of %d, want 30 of 50", got, m.slots[0].len())
	}
}

// TestCovered: tokens count as covered if their blocks are known, at a worker whose cache is known.
func TestCovered(t *testing.T) {
	m := New(8 << 20)
	m.Resize(sized(100, 0), start)
	blocks := chain([2]int{1, 10})
	for _, r := range []Request{
		{0, blocks, 16, 165, true, nil, 0, 0},  // 165 tokens
		{0, blocks, 16, 300, false, nil, 0, 0}, // 160 of 300
		{0, nil, 16, 75, false, nil, 0, 0},     // no rule reads it
		{1, blocks, 16, 160, true, nil, 0, 0},  // its cache is not known
		{2, blocks, 16, 300, true, nil, 0, 0},  // it has left
	} {
		m.Decided(r, start)
	}
	f := m.Forecast(time.Hour, start)
	if want := 325. / 1000; f.Tokens != 325 || math.Abs(f.Covered-want) > 1e-9 {
		t.Errorf("%v tokens, %v covered, want 325 and %v", f.Tokens, f.Covered, want)
	}
}

// TestWindow: a forecast is of its window alone. After a change of traffic it is right again when the window has passed.
func TestWindow(t *testing.T) {
	m := New(8 << 20)
	m.Resize(sized(100), start)
	serve := func(from, to time.Duration, cached int) {
		for at := from; at < to; at += time.Minute {
			r := Request{0, chain([2]int{int(at.Minutes()), 10}), 16, 160, true, nil, 0, 0}
			m.Decided(r, start.Add(at))
			m.Ended(r, cached, 0, start.Add(at))
		}
	}
	rate := func(window, at time.Duration) float64 {
		f := m.Forecast(window, start.Add(at))
		return f.Today.HitRate
	}
	serve(0, time.Hour, 144)
	serve(time.Hour, 2*time.Hour, 16)
	for _, c := range []struct {
		window, at time.Duration
		want       float64
	}{{time.Hour, time.Hour - 1, 0.9}, {time.Hour, 2*time.Hour - 1, 0.1}, {24 * time.Hour, 2*time.Hour - 1, 0.5},
		{24 * time.Hour, 25*time.Hour - 1, 0.1}, {24 * time.Hour, 48 * time.Hour, 0}} {
		if got := rate(c.window, c.at); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%v after the start, hit rate of the last %v is %v, want %v", c.at, c.window, got, c.want)
		}
	}
	serve(26*time.Hour, 27*time.Hour, 80) // spans of the day before are used again
	if got := rate(24*time.Hour, 27*time.Hour-1); got != 0.5 {
		t.Errorf("hit rate of the next day is %v, want 0.5", got)
	}
}

// TestBounds: whatever prompts have, and however large and many the caches are, a model keeps no more than it may, and no more waits
// than is allowed.
func TestBounds(t *testing.T) {
	const most = 8 << 20
	inUse := func() int {
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		return int(s.HeapAlloc)
	}
	before := inUse()
	m := New(most)
	var caches []Cache
	for w := range 500 {
		caches = append(caches, Cache{Slot: uint32(w), Blocks: 1 << 20})
	}
	m.Resize(caches, start)
	r, largestSeen := rand.New(rand.NewPCG(1, 1)), 0
	blocks := make([]uint64, 4000)
	for i := range 800 {
		for k := range blocks {
			blocks[k] = r.Uint64()
		}
		q := Request{uint32(i % 500), blocks, 16, 16 * len(blocks), true, nil, 0, 0}
		at := start.Add(time.Duration(i) * time.Minute)
		m.Decided(q, at)
		m.Ended(q, 0, 100_000, at)
		m.Settle()
		if i%100 == 99 {
			largestSeen = max(largestSeen, inUse()-before)
		}
	}
	runtime.KeepAlive(blocks)
	if largestSeen > most || m.shift == 0 {
		t.Errorf("%d bytes in use with 1 of 2^%d blocks sampled, want %d at most, and fewer blocks", largestSeen, m.shift, most)
	}
	kept, last := 0, 0
	for id, s := range m.slots {
		kept += s.len()
		for key := range s.at {
			if m.last[key] == id {
				last++
			}
		}
	}
	if kept != m.held || kept > m.most {
		t.Errorf("got %d blocks kept, want %d as counted, and at most %d", kept, m.held, m.most)
	}
	if n := len(m.last); n > kept {
		t.Errorf("got %d blocks with a last worker, want at most the %d that are kept", n, kept)
	}
	m.Resize(caches[:1], start)
	if n := len(slices.Collect(maps.Values(m.last))); m.held != m.slots[0].len() || n > m.held {
		t.Errorf("after the others have left, %d blocks are counted and %d have a last worker, want %d", m.held, n, m.slots[0].len())
	}
	taken := 0
	for range 2 * maxQueue {
		if m.Decided(Request{0, blocks, 16, 160, true, nil, 0, 0}, start) {
			taken++
		}
	}
	if taken != maxQueue {
		t.Errorf("%d decisions wait, want %d", taken, maxQueue)
	}
}

// TestConcurrent is for the race detector.
func TestConcurrent(t *testing.T) {
	m := New(8 << 20)
	m.Resize(sized(1000), start)
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for i := range 200 {
				r := Request{0, chain([2]int{w, 5}, [2]int{i, 5}), 16, 160, true, nil, 0, 0}
				m.Decided(r, start)
				m.Ended(r, -1, 10, start)
				if i%20 == 0 {
					m.Settle()
					_ = m.Forecast(time.Hour, start)
				}
			}
		})
	}
	all.Wait()
	if f := m.Forecast(time.Hour, start); f.Tokens != 4*200*160 {
		t.Errorf("%v tokens, want %d", f.Tokens, 4*200*160)
	}
}

// TestBusy: what load would decide is told as a bound.
func TestBusy(t *testing.T) {
	for _, c := range []struct {
		rate, used          float64
		less, fewer, larger Bound
	}{
		{10_000, 0.05, "", "", ""},
		{700, 0.05, "", AtMost, ""}, // it computes 320 a second, since nothing is found, with any cache
		{10_000, 0.15, AtMost, "", ""},
		{10_000, 0.3, AtMost, AtMost, AtLeast},
		{0, -1, "", "", ""}, // nothing is known
	} {
		m := New(8 << 20)
		caches := sized(1000, 1000, 1000, 1000, 1000)
		for i := range caches {
			caches[i].Rate, caches[i].Used = c.rate/5, c.used
		}
		for i := range 200 {
			at := start.Add(time.Duration(i) * time.Second)
			m.Resize(caches, at)
			m.Decided(Request{0, chain([2]int{i, 20}), 16, 320, true, nil, 0, 0}, at)
			m.Settle()
		}
		f := m.Forecast(time.Hour, start)
		less, fewer, larger := f.With(0.5, 5).Bound, f.With(1, 4).Bound, f.With(1.2, 5).Bound
		if less != c.less || fewer != c.fewer || larger != c.larger {
			t.Errorf("busy %v: got bounds %q, %q, %q with half the cache, four workers, a larger cache; want %q, %q, %q",
				f.Today.Busy, less, fewer, larger, c.less, c.fewer, c.larger)
		}
	}
}

// TestSaid: the forecast in a sentence.
func TestSaid(t *testing.T) {
	f := Forecast{Tokens: 1, Workers: 8, Today: Point{1, 0.58, 0.3, ""}, Marks: []Mark{{MoreCache, Point{1.2, 0.603, 0.2, ""}},
		{OneMore, Point{1.1, 0.59, 0.2, ""}}, {OneFewer, Point{0.9, 0.53, 0.4, ""}}, {NothingLost, Point{9, 0.78, 0.1, ""}}}}
	want := "You are at 58 %. A fifth more cache: +2. One worker more: +1. One fewer: -5. Nothing evicted: 78 %."
	if got := f.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	f.Marks[0].Bound, f.Marks[2].Bound = AtLeast, AtMost
	want = "You are at 58 %. A fifth more cache: +2 or better. One worker more: +1. One fewer: -5 or worse. Nothing evicted: 78 %."
	if got := f.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := fmt.Sprint((&Forecast{}).String()); got == want || got == "" {
		t.Errorf("without traffic: got %q, want another text than with it", got)
	}
}

func BenchmarkSettle(b *testing.B) {
	prompts := traffic(1, 2000)
	m := New(8 << 20)
	m.Resize(sized(25000, 25000), start)
	m.shift = 3
	blocks := 0
	for i := 0; b.Loop(); i++ {
		p := prompts[i%len(prompts)]
		r := Request{uint32(i % 2), p, 16, 16 * len(p), true, nil, 0, 0}
		m.Decided(r, start)
		m.Ended(r, 16, 160, start)
		m.Settle()
		blocks += len(p)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(blocks), "ns/block")
}

// TestReportedCaches: a cache is as large as its engine says, as soon as it is known how long blocks are; as large as what it holds where
// that is more, as with a lower tier.
func TestReportedCaches(t *testing.T) {
	m := New(8 << 20)
	caches := []Cache{{Slot: 0, Blocks: 40, Held: 40, Tokens: 16 * 100, Used: -1},
		{Slot: 1, Blocks: 300, Held: 300, Tokens: 16 * 100, Used: -1}}
	m.Resize(caches, start)
	if got := m.Forecast(time.Hour, start).Blocks; got != 340 {
		t.Errorf("before a request: got %d blocks, want 340 as held", got)
	}
	for slot := range uint32(2) {
		m.Decided(Request{slot, chain([2]int{1, 20}), 16, 330, true, nil, 0, 0}, start)
	}
	m.Settle()
	m.Resize(caches, start.Add(time.Second))
	if got := m.Forecast(time.Hour, start).Blocks; got != 400 {
		t.Errorf("got %d blocks, want 100 as reported and 300 as held", got)
	}
	caches[0].Held, caches[1].Held = 0, 5
	m.Resize(caches, start.Add(2*time.Second))
	if got := m.Forecast(time.Hour, start).Blocks; got != 400 {
		t.Errorf("after a restart: got %d blocks, want 100 as reported and 300 as held before", got)
	}
}

// TestNeeds asks how large a cache would have had to be for blocks that are not in it any more: as many times the size as other blocks were
// used since. The answers are bounded.
func TestNeeds(t *testing.T) {
	m, at := New(8<<20), time.Unix(1_800_000_000, 0)
	m.Resize(sized(100), at)
	old := chain([2]int{1, 20})
	for i := range 8 {
		p := old
		if i > 0 {
			p = chain([2]int{100 + i, 20})
		}
		m.Decided(Request{0, p, 16, 16*len(p) + 1, true, nil, 0, 0}, at)
		m.Ended(Request{0, p, 16, 16*len(p) + 1, true, nil, 0, 0}, 0, 1, at)
	}
	asks := &Needs{From: 5, To: 20}
	if asks.Answer() != nil || (*Needs)(nil).Answer() != nil {
		t.Error("before Settle: got an answer, want none")
	}
	m.Decided(Request{0, old, 16, 16*len(old) + 1, true, asks, 0, 0}, at)
	m.Settle()
	list := asks.Answer()
	if len(list) != 15 || list[0].Block != 5 {
		t.Fatalf("got the answer %v, want one for each of 15 blocks", list)
	}
	for _, n := range list { // 140 others were used since
		if n.Times < 1.35 || n.Times > 1.65 {
			t.Errorf("block %d needs %.2f times the size, want 1.4 to 1.6", n.Block, n.Times)
		}
	}
	asks = &Needs{To: 20}
	m.Decided(Request{0, old, 16, 16*len(old) + 1, true, asks, 0, 0}, at)
	m.Settle()
	for _, n := range asks.Answer() { // they were used just now: if they are not held, requests in flight have their room
		if !n.Pushed || !math.IsInf(n.Times, 1) {
			t.Errorf("block %d, used just now: got %+v, want one that was pushed out", n.Block, n)
		}
	}
	long := chain([2]int{7, 200})
	asks = &Needs{To: 200}
	m.Decided(Request{0, long, 16, 16*len(long) + 1, true, asks, 0, 0}, at)
	m.Settle()
	if n := len(asks.Answer()); n != maxNeeds || !math.IsInf(asks.Answer()[0].Times, 1) {
		t.Errorf("of a prompt never seen: %d answers, the first %v, want %d of +Inf", n, asks.Answer()[0], maxNeeds)
	}
}
