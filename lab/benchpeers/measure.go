package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/lab/benchpeers/trace"
)

const (
	sequencesAtOnce = 2000
	lookupsAtOnce   = 4096
)

// bench is one index under one trace.
type bench struct {
	shape        trace.Shape
	x            *indexer.Index
	slots        []indexer.SlotID
	locals       []uint64
	engineHashes []uint64
	events       [][]trace.Event // by sequence of the batch
}

// measure runs one trace and prints a line for each kind of work: "name value unit".
func measure(name string, sequences, lookups uint64) error {
	shape, err := trace.Named(name, sequences)
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	b := &bench{shape: shape}
	b.prepare(0) // the generator's own memory, before the first look at the resident set
	debug.FreeOSMemory()
	before := resident()
	b.x = indexer.New(indexer.Options{})
	for range shape.Workers {
		b.slots = append(b.slots, b.x.Join(indexer.SlotOptions{}))
	}
	blocks, events, secs := b.ingest()
	grown := resident() - before
	st := b.x.Stats()
	fmt.Printf("%s ingest %.0f blocks/s cold, %d events, %d stored, %d held\n", name, float64(blocks)/secs, events, blocks, st.Blocks)
	fmt.Printf("%s memory %.2f B/block stored, %.2f B/block held, slabs in use %.2f, resident %d B, %d nodes\n", name,
		float64(grown)/float64(blocks),
		float64(grown)/float64(st.Blocks), float64(st.Used)/float64(blocks), grown, st.Nodes)
	sum := b.checksum(min(1000, lookups))
	fmt.Printf("%s checksum %016x\n", name, sum)
	if want, ok := trace.Sums[fmt.Sprintf("%s %d", name, shape.N)]; ok && want != sum {
		return fmt.Errorf("trace %s: checksum %016x, want %016x", name, sum, want)
	}
	b.lookups(lookups)
	blocks, secs = b.remove()
	fmt.Printf("%s removal %.0f blocks/s\n", name, float64(blocks)/secs)
	blocks, _, secs = b.ingest()
	fmt.Printf("%s warm %.0f blocks/s\n", name, float64(blocks)/secs)
	start := cpuTime()
	for _, h := range b.slots {
		b.x.Leave(h)
	}
	fmt.Printf("%s leave %.0f blocks/s\n", name, float64(st.Blocks)/(cpuTime()-start))
	return nil
}

// prepare generates a batch of sequences from number i on, before the clock.
func (b *bench) prepare(i uint64) (n int) {
	b.locals, b.engineHashes = b.locals[:0], b.engineHashes[:0]
	for ; n < sequencesAtOnce && i+uint64(n) < b.shape.N; n++ {
		from := len(b.locals)
		b.locals = b.shape.Locals(b.locals, i+uint64(n))
		b.engineHashes = trace.EngineHashes(b.engineHashes, b.locals[from:])
	}
	return n
}

func (b *bench) prepareEvents(i uint64, n int, of func(*trace.Shape, []trace.Event, uint64) []trace.Event) {
	for len(b.events) < n {
		b.events = append(b.events, nil)
	}
	for k := range n {
		b.events[k] = of(&b.shape, b.events[k][:0], i+uint64(k))
	}
}

func (b *bench) ingest() (blocks, events uint64, secs float64) {
	for i := uint64(0); i < b.shape.N; i += sequencesAtOnce {
		n := b.prepare(i)
		b.prepareEvents(i, n, (*trace.Shape).Stored)
		start := cpuTime()
		for k := range n {
			at := uint64(k) * b.shape.Len
			for _, e := range b.events[k] {
				var parent uint64
				if e.From > 0 {
					parent = b.engineHashes[at+e.From-1]
				}
				err := b.x.Store(b.slots[e.Worker], indexer.GPU, parent, e.From > 0, b.engineHashes[at+e.From:at+e.To], b.locals[at+e.From:at+e.To])
				if err != nil {
					panic(err) // a trace is well formed
				}
				blocks += e.To - e.From
			}
		}
		secs += cpuTime() - start
		for _, e := range b.events[:n] {
			events += uint64(len(e))
		}
	}
	return blocks, events, secs
}

func (b *bench) remove() (blocks uint64, secs float64) {
	for i := uint64(0); i < b.shape.N; i += sequencesAtOnce {
		n := b.prepare(i)
		b.prepareEvents(i, n, (*trace.Shape).Removed)
		for k := range n { // the deepest block first
			slices.Reverse(b.engineHashes[uint64(k)*b.shape.Len : uint64(k+1)*b.shape.Len])
		}
		start := cpuTime()
		for k := range n {
			end := uint64(k+1) * b.shape.Len
			for _, e := range b.events[k] {
				b.x.Remove(b.slots[e.Worker], indexer.GPU, b.engineHashes[end-e.To:end-e.From])
				blocks += e.To - e.From
			}
		}
		secs += cpuTime() - start
	}
	return blocks, secs
}

func (b *bench) checksum(lookups uint64) (c uint64) {
	var m indexer.Matches
	for q := range lookups {
		b.x.Match(b.shape.Locals(b.locals[:0], b.shape.Query(q)), &m)
		slices.SortFunc(m.Slots, func(a, b indexer.Match) int { return int(a.Slot) - int(b.Slot) })
		for _, h := range m.Slots {
			c = trace.Checksum(c, uint64(h.Slot), uint64(h.Blocks))
		}
	}
	return c
}

// lookups times each lookup by the wall clock, then the same ones again in CPU time without a clock in the loop.
func (b *bench) lookups(count uint64) {
	var m indexer.Matches
	var total float64
	walls := make([]uint32, 0, count)
	var before, after runtime.MemStats
	allocs := uint64(0)
	queries := make([]uint64, 0, lookupsAtOnce*b.shape.Len)
	for at := uint64(0); at < count; at += lookupsAtOnce {
		n := int(min(lookupsAtOnce, count-at))
		queries = queries[:0]
		for q := range n {
			queries = b.shape.Locals(queries, b.shape.Query(at+uint64(q)))
		}
		size := int(b.shape.Len)
		for q := range n {
			start := time.Now()
			b.x.Match(queries[q*size:(q+1)*size], &m)
			walls = append(walls, uint32(time.Since(start)))
		}
		runtime.ReadMemStats(&before)
		start := cpuTime()
		for q := range n {
			b.x.Match(queries[q*size:(q+1)*size], &m)
		}
		total += cpuTime() - start
		runtime.ReadMemStats(&after)
		allocs += after.Mallocs - before.Mallocs
	}
	slices.Sort(walls)
	at := func(p float64) float64 { return float64(walls[int(float64(len(walls)-1)*p)]) / 1000 }
	fmt.Printf("%s lookup %.0f lookups/s, p50 %.2f us, p99 %.2f us, p99.9 %.2f us, max %.0f us, %d allocations\n", b.shape.Name,
		float64(count)/total, at(0.5), at(0.99), at(0.999), at(1), allocs)
}

// resident is the process's resident set in bytes; 0 where /proc has none.
func resident() int64 {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	pages, _ := strconv.ParseInt(strings.Fields(string(data))[1], 10, 64)
	return pages * int64(os.Getpagesize())
}
