package indexer

import (
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sightline-router/sightline/internal/testkit/benchpeers/trace"
)

// The full traces, and the comparison with Dynamo's index, are in internal/testkit/benchpeers.

// BenchmarkMatch looks up one prompt of 512 blocks that eight workers hold the first 64 of.
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

// BenchmarkDecode stores one block an event, 64 prompts in turn, as decoding does.
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
		if i++; i == 4<<20 {
			b.StopTimer()
			x.Clear(id)
			i = 0
			b.StartTimer()
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "Mblocks/s")
}

// BenchmarkMatchPages looks an 8k-token prompt up that two of four workers hold whole, at SGLang's default page size and at
// the usual block size.
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
