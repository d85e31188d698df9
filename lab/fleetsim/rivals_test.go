package fleetsim

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"
	"time"
)

// TestDynamoChoosesAsDynamo: the port of Dynamo's selector makes the selector's choices. States and choices were made with the
// crate dynamo-kv-router 1.6.1, DefaultWorkerSelector at temperature 0, no ties.
func TestDynamoChoosesAsDynamo(t *testing.T) {
	type worker struct {
		ID       uint64   `json:"worker_id"`
		Blocks   float64  `json:"active_decode_blocks"`
		Prefill  float64  `json:"active_prefill_tokens"`
		Requests float64  `json:"active_requests"`
		More     float64  `json:"additional_active_blocks"`
		Device   float64  `json:"device_blocks"`
		Host     float64  `json:"host_blocks"`
		Disk     float64  `json:"disk_blocks"`
		Overlap  float64  `json:"effective_overlap_blocks"`
		Known    bool     `json:"load_known"`
		Taints   []string `json:"taints"`
	}
	f, err := os.Open("testdata/dynamo-1.6.1-selection.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 1<<20)
	chosen := 0
	for lines.Scan() {
		var c struct {
			ID     string
			Size   float64 `json:"block_size"`
			Tokens float64 `json:"isl_tokens"`
			Chosen struct {
				ID *uint64 `json:"worker_id"`
			}
			Config struct {
				Requests float64 `json:"decode_active_request_weight"`
				Disk     float64 `json:"disk_cache_hit_weight"`
				Host     float64 `json:"host_cache_hit_weight"`
				Credit   float64 `json:"overlap_score_credit"`
				Decay    float64 `json:"overlap_score_credit_decay"`
				Scale    float64 `json:"prefill_load_scale"`
			}
			Role      string
			Tiers     bool
			Tracked   bool               `json:"track_prefill_tokens"`
			Allowed   *[]uint64          `json:"allowed_worker_ids"`
			Pinned    *uint64            `json:"pinned_worker"`
			Preferred map[string]float64 `json:"preferred_taints"`
			Required  []string           `json:"required_taints"`
			Workers   []worker
		}
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		eligible := slices.DeleteFunc(c.Workers, func(w worker) bool {
			return c.Pinned != nil && *c.Pinned != w.ID || c.Allowed != nil && !slices.Contains(*c.Allowed, w.ID) ||
				slices.ContainsFunc(c.Required, func(taint string) bool { return !slices.Contains(w.Taints, taint) })
		})
		least := math.Inf(1)
		for i := range eligible {
			w := &eligible[i]
			if !w.Known { // the tracker has no row for it
				w.Blocks, w.Prefill, w.Requests, w.More = 0, 0, 0, 0
			}
			least = min(least, w.Prefill)
		}
		d := dynamo{overlapCredit: c.Config.Credit, creditDecay: c.Config.Decay, prefillScale: c.Config.Scale, activeRequest: c.Config.Requests,
			decodeOnly: c.Role == "decode" && !c.Tracked}
		var best *uint64
		cheapest := math.Inf(1)
		for _, w := range eligible {
			in := dynamoInput{request: math.Ceil(c.Tokens / c.Size), excess: (w.Prefill - least) / c.Size, device: w.Overlap,
				decode: w.Blocks + w.More, requests: w.Requests}
			if c.Tracked {
				in.prefill = (w.Prefill + c.Tokens) / c.Size
			}
			if c.Tiers {
				in.device, in.below = w.Device, c.Config.Host*w.Host+c.Config.Disk*w.Disk
			}
			preferred := 0.0
			for _, taint := range w.Taints {
				preferred += c.Preferred[taint]
			}
			if cost := d.cost(in) * math.Exp(-math.Tanh(preferred)); cost < cheapest {
				best, cheapest = &w.ID, cost
			}
		}
		switch want := c.Chosen.ID; {
		case (want == nil) != (best == nil), want != nil && *want != *best:
			t.Errorf("%s: another worker is chosen than Dynamo chooses", c.ID)
		case want != nil:
			chosen++
		}
	}
	if err := lines.Err(); err != nil || chosen != 231 {
		t.Errorf("%d choices were compared, want 231; %v", chosen, err)
	}
	linear, product := (dynamo{prefillScale: 1, overlapCredit: 1}), (dynamo{overlapCredit: 1, lmetric: true})
	if linear.cost(dynamoInput{prefill: 9, device: 4, decode: 7}) != 12 ||
		product.cost(dynamoInput{prefill: 9, device: 4, decode: 7}) != 40 {
		t.Error("linear is no sum, or lmetric no product")
	}
}

// TestOwnHistories: a router's prediction expires after its time; what it sent stays until there is no room for it.
func TestOwnHistories(t *testing.T) {
	a, b := &Request{}, &Request{}
	a.add(Segment{1, 64}, false)
	b.add(Segment{2, 64}, false)
	trace := prepare([]*Request{a, b}, 16)
	v := &View{Size: 16, Loads: make([]Load, 2), Alive: []int{0, 1}, overlap: make([]int, 2),
		held: newHolders(2, len(trace.chain)), sim: &sim{trace: trace}}
	of := func(q *Request) *run { return &run{req: q, blocks: q.blocks, input: q.Input()} }
	h := newHistory(v, 6)
	h.add(v, of(a), 0)
	h.add(v, of(b), 0)
	if got := h.overlap(v, of(a))[0]; got != 32 {
		t.Errorf("of 64 tokens that went first, %d are remembered beside 64 others in a history of 6 blocks of 16, want 32", got)
	}
	k := vllmKVAware(v).(*kvAware)
	v.rand = nil // no random choice: one of two is less loaded
	v.Loads[1].Inflight = 1
	for _, step := range []struct {
		at   int // in seconds
		want int
	}{{0, 0}, {1, 0}, {2, 0}} {
		v.Now = time.Duration(step.at) * time.Second
		if step.at == 2 { // the first prediction has expired, the second has not
			v.Loads[0].Inflight = 2
		}
		if got := k.Pick(v, of(a)); got != step.want {
			t.Errorf("after %d s worker %d gets it, want %d", step.at, got, step.want)
		}
	}
	v.Now = time.Duration(9) * time.Second
	if got := k.Pick(v, of(a)); got != 1 {
		t.Errorf("after 9 s worker %d gets it, want the less loaded one", got)
	}
}
