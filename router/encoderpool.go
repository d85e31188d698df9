package router

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/router/choose"
	"github.com/sightline-router/sightline/workers/fleet"
)

// If a model has workers that only encode, they encode the images that the chosen worker would otherwise have to encode, and
// the request names them. Each image has a home worker, chosen by rendezvous hashing of its name: all replicas agree on it
// without messages or state, and if one of n workers comes or goes only every nth image moves. Another worker gets the image
// only if the home has so much queued that the other would be done sooner even counting that the home must encode the image
// again later; it then keeps the image while that is remembered.
//
// llm-d's sidecar sends a request's i-th image to the i-th address, cyclically (0.7 to 0.10, connector_epd_shared_storage.go,
// since 0.9 connector_ec_common.go). The order is certain only if no image occurs twice (up to 0.10 equal URLs count once, on
// its main branch each counts) and all are of one kind (a prompt may order kinds differently than the body). Otherwise the first
// image's worker is named for all.

// encodeQueues records what was sent to encode workers. Their queues are not reported and are assumed to drain at encodeRate.
type encodeQueues struct {
	mu          sync.Mutex
	busyUntil   map[*fleet.Slot]time.Time // when the slot should be done
	lastEncoder *simplelru.LRU[uint64, *fleet.Slot]
	onNoRoom    func(what string)
}

const encodeRate = 10000 // image tokens a second, as for prefill with unknown rate

func newEncodeQueues(full func(what string)) *encodeQueues {
	last, _ := simplelru.NewLRU[uint64, *fleet.Slot](maxSeen, nil) // the slot that encoded an image last; fails only for a size below 1
	return &encodeQueues{busyUntil: make(map[*fleet.Slot]time.Time), lastEncoder: last, onNoRoom: full}
}

// waiting returns how long an image would wait at a slot.
func (e *encodeQueues) waiting(slot *fleet.Slot, now time.Time) time.Duration {
	return max(0, e.busyUntil[slot].Sub(now))
}

// shortestQueue returns the fewest image tokens that are queued at one of the slots.
func (e *encodeQueues) shortestQueue(among []*fleet.Slot, now time.Time) float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	least := e.waiting(among[0], now)
	for _, slot := range among[1:] {
		least = min(least, e.waiting(slot, now))
	}
	return least.Seconds() * encodeRate
}

// encoding is an image that a slot is to encode, and how long that will take.
type encoding struct {
	image uint64
	slot  *fleet.Slot
	work  time.Duration
}

// assign returns which of the slots is to encode an image with this number of tokens, after what is planned already.
func (e *encodeQueues) assign(image uint64, tokens int, among []*fleet.Slot, now time.Time, planned []encoding) encoding {
	e.mu.Lock()
	defer e.mu.Unlock()
	home := slices.MaxFunc(among, func(a, b *fleet.Slot) int {
		return cmp.Compare(rendezvousHash(image, a.Worker.Addr), rendezvousHash(image, b.Worker.Addr))
	})
	last, _ := e.lastEncoder.Peek(image)
	took := time.Duration(tokens) * time.Second / encodeRate
	best, soonest := encoding{}, time.Duration(0)
	for i, slot := range append([]*fleet.Slot{home}, among...) {
		own := took
		switch slot {
		case last:
			own = 0
		case home:
		default:
			own *= 2 // encoded again later, at home
		}
		done := e.waiting(slot, now) + own
		for j := range planned {
			if planned[j].slot == slot {
				done += planned[j].work
			}
		}
		if i == 0 || done < soonest {
			best, soonest = encoding{image, slot, min(own, took)}, done
		}
	}
	return best
}

// book records what is sent to encode workers.
func (e *encodeQueues) book(planned []encoding, now time.Time) {
	if len(planned) == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for slot, until := range e.busyUntil {
		if !until.After(now) {
			delete(e.busyUntil, slot)
		}
	}
	for _, one := range planned {
		e.busyUntil[one.slot] = now.Add(e.waiting(one.slot, now) + one.work)
		if e.lastEncoder.Add(one.image, one.slot) {
			e.onNoRoom("images encoded")
		}
	}
}

// encoders appends the healthy workers that encode for the model, if the request is steered.
func (x *planner) encoders(list []*fleet.Slot) []*fleet.Slot {
	pool := x.opt.Fleet.Encoders(x.model.Name)
	if !x.steers {
		return list
	}
	for _, slot := range pool {
		if slot.Worker.IsHealthy() {
			list = append(list, slot)
		}
	}
	return list
}

// moveEncoding moves what candidates would have to encode to the encode workers.
func (x *planner) moveEncoding(cands []choose.Candidate) {
	if len(x.mem.encoders) == 0 {
		return
	}
	waiting := x.encodeQueues.shortestQueue(x.mem.encoders, x.now)
	for i := range cands {
		if c := &cands[i]; c.Encode > 0 {
			c.EncodedApart, c.Encode = c.Encode, 0
			c.Elsewhere = choose.Fetch(0) + waiting + float64(c.EncodedApart) // time of the request, but none of the candidate's own
		}
	}
}

// encoder returns the workers that encode the media of a prompt for its best candidate, as ip:port,ip:port; "": that candidate itself.
func (x *planner) encoder(p *engine.Prompt, best *choose.Candidate) string {
	if best.EncodedApart == 0 {
		x.tally.noEncode = best.Encode > 0 && x.steers && len(x.opt.Fleet.Encoders(x.model.Name)) > 0
		return ""
	}
	media := p.Media[:min(len(p.Media), maxMedia)]
	if !mediaOrderCertain(media) {
		media = media[:1]
	}
	var homes []string
	for i := range media {
		tokens := media[i].Length
		if tokens == 0 {
			tokens = unknownImage
		}
		one := x.encodeQueues.assign(media[i].Key, tokens, x.mem.encoders, x.now, x.encodings)
		x.encodings, homes = append(x.encodings, one), append(homes, one.slot.Worker.Addr)
	}
	return strings.Join(homes, ",")
}

// mediaOrderCertain reports whether the sidecar is certain to number the media as we do.
func mediaOrderCertain(media []engine.Medium) bool {
	for i := range media {
		if media[i].Modality != media[0].Modality || slices.ContainsFunc(media[:i], func(m engine.Medium) bool { return m.Key == media[i].Key }) {
			return false
		}
	}
	return true
}

// rendezvousHash returns a pseudo-random number for an image at a worker, the same in every process.
func rendezvousHash(image uint64, addr string) uint64 {
	h := image
	for i := range len(addr) {
		h = (h ^ uint64(addr[i])) * 0x100000001B3
	}
	h = (h ^ h>>32) * 0xD6E8FEB86659FD93
	return h ^ h>>32
}

// topHolder is the worker that holds most of a prompt by its events, in leading tokens.
type topHolder struct {
	worker *fleet.Worker
	tokens int
}

// addPullSources fills in what each candidate could fetch from the worker that holds most of the prompt, if the model's workers fetch from
// each other.
func (x *planner) addPullSources() {
	s := x.mem
	s.topHolder = topHolder{}
	if x.model == nil || !x.model.FetchKV || !x.steers {
		return
	}
	for i := range s.candidates {
		if c := &s.candidates[i]; c.Exact > s.topHolder.tokens && !c.Doubtful {
			s.topHolder = topHolder{x.slots[c.Slot].Worker, c.Exact}
		}
	}
	from := s.topHolder.worker
	if from == nil {
		return
	}
	for i := range s.candidates {
		c := &s.candidates[i]
		if w := x.slots[c.Slot].Worker; w != from && w.Instance == "" && w.Revision == from.Revision {
			c.Pulled = max(0, min(s.topHolder.tokens, c.Tokens)-c.Predicted)
		}
	}
}

// pullSource returns the worker from which the best candidate fetches; "": it does not fetch.
func (x *planner) pullSource(best *choose.Candidate) (addr string) {
	if !best.Pulls() {
		return ""
	}
	return x.mem.topHolder.worker.Addr
}
