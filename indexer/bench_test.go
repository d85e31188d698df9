package indexer

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sightline-router/sightline/lab/benchpeers/trace"
)

// The full traces, and the comparison with Dynamo's index, are in lab/benchpeers.

// BenchmarkMatch looks up one prompt of 512 blocks, of which eight workers hold the first 64.
func BenchmarkMatch(b *testing.B) {
	x := New(Options{})
	doc := make([]uint64, 512)
	for i := range doc {
		doc[i] = pathOf(1, uint64(i))
	}
	other := x.Join(SlotOptions{})
	x.Store(other, GPU, 0, false, doc, doc)
	for range 8 {
		x.Store(x.Join(SlotOptions{}), GPU, 0, false, doc[:64], doc[:64])
	}
	var m Matches
	b.ReportAllocs()
	for b.Loop() {
		x.Match(doc, &m)
	}
	b.ReportMetric(float64(len(doc))*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mblocks/s")
}

// BenchmarkMatchDuringIngest looks up trace B from one goroutine while another stores and removes it at full speed.
func BenchmarkMatchDuringIngest(b *testing.B) {
	shape, _ := trace.Named("B", 20_000)
	x := New(Options{})
	var ids []SlotID
	for range shape.Workers {
		ids = append(ids, x.Join(SlotOptions{}))
	}
	var locals, engineHashes []uint64
	var events []trace.Event
	marks := []int{0}
	for i := range shape.N {
		from := len(locals)
		locals = shape.Locals(locals, i)
		engineHashes = trace.EngineHashes(engineHashes, locals[from:])
		events = shape.Stored(events, i)
		marks = append(marks, len(events))
	}
	store := func(i int) (n int) {
		at := uint64(i) * shape.Len
		for _, e := range events[marks[i]:marks[i+1]] {
			var parent uint64
			if e.From > 0 {
				parent = engineHashes[at+e.From-1]
			}
			x.Store(ids[e.Worker], GPU, parent, e.From > 0, engineHashes[at+e.From:at+e.To], locals[at+e.From:at+e.To])
			n += int(e.To - e.From)
		}
		return n
	}
	for i := range int(shape.N) {
		store(i)
	}
	var stop atomic.Bool
	stored := make(chan int)
	go func() {
		total := 0
		for i := 0; !stop.Load(); i = (i + 1) % int(shape.N) {
			at := uint64(i) * shape.Len
			for _, e := range events[marks[i]:marks[i+1]] {
				x.Remove(ids[e.Worker], GPU, engineHashes[at+e.From:at+e.To])
			}
			total += store(i)
		}
		stored <- total
	}()
	const count = 4096
	queries := make([]uint64, 0, count*shape.Len)
	for q := range uint64(count) {
		queries = shape.Locals(queries, shape.Query(q))
	}
	var m Matches
	walls := make([]time.Duration, 0, 1<<20)
	start, q := time.Now(), 0
	for b.Loop() {
		at := time.Now()
		x.Match(queries[q*int(shape.Len):(q+1)*int(shape.Len)], &m)
		if len(walls) < cap(walls) {
			walls = append(walls, time.Since(at))
		}
		q = (q + 1) % count
	}
	stop.Store(true)
	total := <-stored
	slices.Sort(walls)
	at := func(p float64) float64 { return float64(walls[int(float64(len(walls)-1)*p)]) }
	b.ReportMetric(at(0.5), "p50-ns")
	b.ReportMetric(at(0.99), "p99-ns")
	b.ReportMetric(at(0.999), "p99.9-ns")
	b.ReportMetric(float64(total)/time.Since(start).Seconds()/1e6, "Mblocks-in/s")
	runtime.KeepAlive(x)
}

// BenchmarkMatchHotFront looks up prompts of 8,192 tokens with a common beginning of 2,048 that 1,000 workers hold, while the
// other core stores a million blocks a second after it and removes as many: each worker keeps its last prompts. It uses
// wall-clock time. A core that is taken away for a while spoils the p99 of that window alone, so both figures are medians over
// windows of 2,048 lookups.
func BenchmarkMatchHotFront(b *testing.B) {
	const (
		workers, live           = 1000, 4
		size, front, batch      = 512, 128, 64
		rate, window, unpopular = 1_000_000, 2048, 10
	)
	prompts := make([]uint64, 0, (workers*live+workers)*size) // enough that each is stored again only after all others
	for i := range uint64(workers * (live + 1)) {
		for k := range uint64(front) {
			prompts = append(prompts, pathOf(1, k))
		}
		for k := range uint64(size - front) {
			prompts = append(prompts, pathOf(2+i, k))
		}
	}
	prompt := func(i int) []uint64 { return prompts[i*size : (i+1)*size] }
	x := New(Options{})
	var ids [workers]SlotID
	for w := range ids {
		ids[w] = x.Join(SlotOptions{})
		x.Store(ids[w], GPU, 0, false, prompt(0)[:front], prompt(0)[:front])
	}
	part := func(w, i, from int) { // blocks that follow a block; a local hash serves as engine hash
		p := prompt(i)
		if err := x.Store(ids[w], GPU, p[from-1], true, p[from:from+batch], p[from:from+batch]); err != nil {
			b.Error(err)
		}
	}
	for i := range workers * live {
		for from := front; from < size; from += batch {
			part(i%workers, i, from)
		}
	}
	var stop atomic.Bool
	done := make(chan float64)
	go func() {
		start, stored := time.Now(), 0
		// Rounds of all workers: in each a worker stores the next batch of its new prompt and loses one of its oldest.
		for next := workers * live; ; next += workers {
			for step := 0; step < size-front; step += batch {
				for w := range workers {
					for float64(stored) > time.Since(start).Seconds()*rate && !stop.Load() {
					}
					if stop.Load() {
						done <- float64(stored) / time.Since(start).Seconds()
						return
					}
					i, from := next+w, size-batch-step
					oldest := prompt((i - workers*live) % (workers * (live + 1)))
					if n, err := x.Remove(ids[w], GPU, oldest[from:from+batch]); n != 0 || err != nil {
						b.Errorf("got %d %v, want 0, no error", n, err)
					}
					part(w, i%(workers*(live+1)), front+step)
					stored += batch
				}
			}
		}
	}()
	var m Matches
	var walls [window]float64
	var p50, p99 []float64
	rng, n := rand.New(rand.NewPCG(1, 1)), 0
	unknown := slices.Clone(prompt(0))
	for i := range unknown[front:] {
		unknown[front+i] = pathOf(0, uint64(i))
	}
	for b.Loop() {
		q := prompt(rng.IntN(workers * (live + 1)))
		if n%unpopular == 0 {
			q = unknown
		}
		at := time.Now()
		x.Match(q, &m)
		walls[n%window] = float64(time.Since(at))
		if len(m.Slots) != workers {
			b.Fatalf("got %d, want %d", len(m.Slots), workers)
		}
		n++
		if n%window == 0 {
			slices.Sort(walls[:])
			p50, p99 = append(p50, walls[window/2]), append(p99, walls[window*99/100])
		}
	}
	stop.Store(true)
	in := <-done
	if len(p50) > 0 {
		slices.Sort(p50)
		slices.Sort(p99)
		b.ReportMetric(p50[len(p50)/2], "p50-ns")
		b.ReportMetric(p99[len(p99)/2], "p99-ns")
		b.ReportMetric(in/1e6, "Mblocks-in/s")
	}
	st := x.Stats()
	b.ReportMetric(float64(st.Used)/float64(st.Blocks), "B/block")
}

// BenchmarkDecode stores one block per event, for 64 prompts in turn, as decoding does.
func BenchmarkDecode(b *testing.B) {
	const prompts = 64
	x := New(Options{})
	id := x.Join(SlotOptions{})
	var last [prompts]uint64
	one := make([]uint64, 1)
	i := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		p := i % prompts
		one[0] = pathOf(p, i)
		if x.Store(id, GPU, last[p], i >= prompts, one, one) != nil {
			b.Fatal("store")
		}
		last[p] = one[0]
		i++
		if i == 4<<20 {
			b.StopTimer()
			x.Clear(id)
			i = 0
			b.StartTimer()
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "Mblocks/s")
}

// BenchmarkMatchPages looks up an 8k-token prompt that two of four workers hold whole, at SGLang's default page size and at the
// usual block size.
func BenchmarkMatchPages(b *testing.B) {
	for _, size := range []int{1, 16} {
		b.Run(fmt.Sprintf("page%d", size), func(b *testing.B) {
			x := New(Options{})
			locals, engineHashes := make([]uint64, 8192/size), make([]uint64, 8192/size)
			for i := range locals {
				locals[i] = uint64(i+1) * 0x9E3779B97F4A7C15
				engineHashes[i] = locals[i] + 1
			}
			for w := range 4 {
				n := len(locals) / (1 + w%2)
				if err := x.Store(x.Join(SlotOptions{}), GPU, 0, false, engineHashes[:n], locals[:n]); err != nil {
					b.Fatal(err)
				}
			}
			var m Matches
			b.ReportAllocs()
			for b.Loop() {
				x.Match(locals, &m)
			}
		})
	}
}
