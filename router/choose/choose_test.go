package choose

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/workers/fleet"
)

// slots returns the slots of n workers w0, w1, … at 10.0.0.1:8000, 10.0.0.2:8000, …
func slots(n int) (list []*fleet.Slot) {
	var workers []*fleet.Worker
	for i := range n {
		w := fleet.NewWorker(fmt.Sprint("w", i), netip.MustParseAddrPort(fmt.Sprintf("10.0.0.%d:8000", i+1)), "m", 0,
			func(int) indexer.SlotID { return indexer.SlotID(i) })
		list, workers = append(list, w.Slots...), append(workers, w)
	}
	fleet.New(nil).Set(workers)
	return list
}

// TestChoice makes choices of literal inputs: no index, no request, no router.
func TestChoice(t *testing.T) {
	all := slots(3)
	all[2].Worker.ZoneDelay = time.Second
	prefill := slots(3)
	prefill[0].Worker.Role, prefill[1].Worker.Role, prefill[2].Worker.Role = fleet.Prefill, fleet.Decode, fleet.Decode
	lonely := slots(1)
	lonely[0].Worker.Role = fleet.Prefill
	loads := NewAdapters()
	loads.Sent(all[1], "lora", 1)
	for name, c := range map[string]struct {
		in       Input
		has      []Overlap
		want     string // the chosen worker and the one that decodes
		deadline string
		apart    int // image tokens that an encode worker encodes
	}{
		"the one that holds it": {Input{Slots: all}, []Overlap{{Tokens: 4000},
			{Slot: 1, Tokens: 4000, Exact: 3200, Predicted: 3200}}, "w1 ", "", 0},
		"a trial goes first": {Input{Slots: all, Trial: all[0].Worker}, []Overlap{{Tokens: 4000},
			{Slot: 1, Tokens: 4000, Exact: 3200, Predicted: 3200}}, "w0 ", "", 0},
		"a distant one is late": {Input{Slots: all, FirstToken: 600 * time.Millisecond}, []Overlap{{Tokens: 4000},
			{Slot: 2, Tokens: 4000, Exact: 3200, Predicted: 3200}}, "w0 ", "in time", 0},
		"all are late": {Input{Slots: all, FirstToken: time.Millisecond}, []Overlap{{Tokens: 4000}}, "w0 ",
			"late", 0},
		"the one with the adapter": {Input{Slots: all, Adapter: "lora", MaxLoRAs: 1, Adapters: loads},
			[]Overlap{{Tokens: 400}, {Slot: 1, Tokens: 400}}, "w1 ", "", 0},
		"a pair": {Input{Slots: prefill}, []Overlap{{Tokens: 40000, Exact: 16000, Predicted: 16000}, {Slot: 1, Tokens: 40000},
			{Slot: 2, Tokens: 40000, Exact: 8000, Predicted: 8000}}, "w0 w2", "", 0},
		"one that decodes holds almost all": {Input{Slots: prefill}, []Overlap{{Tokens: 4000},
			{Slot: 1, Tokens: 4000, Exact: 3984, Predicted: 3984}}, "w1 ", "", 0},
		"images are encoded apart": {Input{Slots: all, Encoders: slots(1), EncodeQueues: NewEncodeQueues(nil)},
			[]Overlap{{Tokens: 400, Encode: 300}}, "w0 ", "", 300},
		"nobody decodes": {Input{Slots: lonely}, []Overlap{{Tokens: 4000}}, "", "", 0},
		"no slot":        {Input{FirstToken: time.Second}, nil, "", "", 0},
	} {
		c.in.Overlaps = c.has
		var got Choice
		got.Make(&c.in)
		said, apart := "", 0
		if got.Chosen != nil {
			said, apart = got.Chosen.Worker.Name+" ", got.Ranked[0].EncodedApart
			if got.Decode != nil {
				said += got.Decode.Worker.Name
			}
		}
		if said != c.want || got.Deadline != c.deadline || apart != c.apart {
			t.Errorf("%s: chose %q, %q, %d image tokens apart, want %q, %q, %d\n%+v", name, said, got.Deadline, apart, c.want, c.deadline,
				c.apart, got.Ranked)
		}
	}
}

// TestChoiceAllocatesNothing: the memory of a choice is used again.
func TestChoiceAllocatesNothing(t *testing.T) {
	in, c := Input{Slots: slots(64)}, Choice{}
	for i := range in.Slots {
		in.Overlaps = append(in.Overlaps, Overlap{Slot: i, Tokens: 1000})
	}
	c.Make(&in)
	if n := testing.AllocsPerRun(10, func() { c.Make(&in) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// TestEncodersShareTheQueue checks that of many new images at once none waits long at its home while another encoder is idle,
// and that an encoder of an image gets it again.
func TestEncodersShareTheQueue(t *testing.T) {
	queues, now := NewEncodeQueues(nil), time.Unix(1_800_000_000, 0)
	pool, counts, at := slots(4), map[*fleet.Slot]int{}, map[uint64]*fleet.Slot{}
	moved := 0
	for image := range uint64(400) {
		one := queues.assign(image*77777, 1000, pool, now, nil)
		queues.Book([]Encoding{one}, now)
		slot := one.slot
		counts[slot]++
		at[image] = slot
		if slot != NewEncodeQueues(nil).assign(image*77777, 1000, pool, now, nil).slot {
			moved++
		}
	}
	for slot, n := range counts {
		if n > 102 {
			t.Errorf("%s got %d of 400", slot.Worker.Name, n)
		}
	}
	if moved == 0 || moved > 100 {
		t.Errorf("%d of 400 are not at home, want some, at most 100", moved)
	}
	now = now.Add(time.Hour)
	for image, slot := range at {
		if again := queues.assign(image*77777, 1000, pool, now, nil).slot; again != slot {
			t.Fatalf("image %d: at %s, then at %s; got %+v, want %+v", image, slot.Worker.Name, again.Worker.Name, again, slot)
		}
	}
	if n := queues.shortestQueue(pool[:1], now); n != 0 {
		t.Errorf("%v tokens wait, though all was there, want 0", n)
	}
}

// TestOrderOfImages: the sidecar numbers images in the order of the body if all are of one kind and none is there twice.
func TestOrderOfImages(t *testing.T) {
	for want, images := range map[bool][]Image{true: {{Key: 1, Kind: "image"}, {Key: 2, Kind: "image"}},
		false: {{Key: 1, Kind: "image"}, {Key: 2, Kind: "audio"}}} {
		if got := orderCertain(images); got != want {
			t.Errorf("%+v: order certain %v, want %v", images, got, want)
		}
	}
}

// TestDecodingCosts checks that one that decodes gets all from who prefills that its GPU lacks, and computes nothing.
func TestDecodingCosts(t *testing.T) {
	d := decoding(&Candidate{Overlap: Overlap{Tokens: 5000, Exact: 4000, Predicted: 4000, Offloaded: 4000}, Backlog: 3000,
		Inflight: 3, Rate: 10000})
	if got := (Fleet{}).Cost(&d); d.Elsewhere != Fetch(5000) || got.Prefill != 0 || got.Fetch != 0 {
		t.Errorf("got %v elsewhere, prefill %v, fetch %v; want %v, 0, 0", d.Elsewhere, got.Prefill, got.Fetch, Fetch(5000))
	}
}

// TestEncodingApartCosts checks that, with encode workers, overlap decides and not images to encode: encoding takes time of the
// request, but none of the worker's.
func TestEncodingApartCosts(t *testing.T) {
	f := Fleet{}
	own := Candidate{Overlap: Overlap{Tokens: 1000, Encode: 1000}, Inflight: 20}
	apart := Candidate{Overlap: Overlap{Tokens: 1000}, EncodedApart: 1000, Inflight: 20, Elsewhere: Fetch(0) + 1000}
	a, b := f.Cost(&own), f.Cost(&apart)
	if a.Delay != 2*b.Delay || a.Prefill != 2*b.Prefill || b.Elsewhere < 1000 || a.Sum() < b.Sum() {
		t.Errorf("got costs %+v and, encoded apart, %+v; want half the delay and prefill apart, at least 1000 elsewhere, no higher sum", a, b)
	}
}

// TestMemoryOfEncodersIsBounded checks the limit of remembered encoders, and that evictions are counted.
func TestMemoryOfEncodersIsBounded(t *testing.T) {
	full := map[string]int{}
	e, all, now := NewEncodeQueues(func(what string) { full[what]++ }), slots(1), time.Unix(1, 0)
	for i := range uint64(maxEncoded + 7) {
		e.Book([]Encoding{e.assign(i, 1, all, now, nil)}, now)
	}
	if e.lastEncoder.Len() != maxEncoded || full["images encoded"] != 7 {
		t.Errorf("%d images, went: %v; want %d, 7 gone", e.lastEncoder.Len(), full, maxEncoded)
	}
}
