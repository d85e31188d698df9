package choose

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

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

// EncodeQueues records what was sent to encode workers. Their queues are not reported and are assumed to drain at encodeRate.
// They are safe for concurrent use.
type EncodeQueues struct {
	mu          sync.Mutex
	busyUntil   map[*fleet.Slot]time.Time // when the slot should be done
	lastEncoder *simplelru.LRU[uint64, *fleet.Slot]
	onNoRoom    func(what string)
}

const (
	encodeRate = 10000   // image tokens a second, as for prefill with unknown rate
	maxEncoded = 1 << 17 // images whose encoder is remembered; the least recently encoded are forgotten
)

// NewEncodeQueues returns empty queues. full is called when something was forgotten for lack of room.
func NewEncodeQueues(full func(what string)) *EncodeQueues {
	last, _ := simplelru.NewLRU[uint64, *fleet.Slot](maxEncoded, nil) // the slot that encoded an image last; fails only for a size below 1
	return &EncodeQueues{busyUntil: make(map[*fleet.Slot]time.Time), lastEncoder: last, onNoRoom: full}
}

// waiting returns how long an image would wait at a slot.
func (e *EncodeQueues) waiting(slot *fleet.Slot, now time.Time) time.Duration {
	return max(0, e.busyUntil[slot].Sub(now))
}

// shortestQueue returns the fewest image tokens that are queued at one of the slots.
func (e *EncodeQueues) shortestQueue(among []*fleet.Slot, now time.Time) float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	least := e.waiting(among[0], now)
	for _, slot := range among[1:] {
		least = min(least, e.waiting(slot, now))
	}
	return least.Seconds() * encodeRate
}

// Encoding is an image that a slot is to encode, and how long that will take.
type Encoding struct {
	image uint64
	slot  *fleet.Slot
	work  time.Duration
}

// assign returns which of the slots is to encode an image with this number of tokens, after what is planned already.
func (e *EncodeQueues) assign(image uint64, tokens int, among []*fleet.Slot, now time.Time, planned []Encoding) Encoding {
	e.mu.Lock()
	defer e.mu.Unlock()
	home := slices.MaxFunc(among, func(a, b *fleet.Slot) int {
		return cmp.Compare(rendezvousHash(image, a.Worker.Addr), rendezvousHash(image, b.Worker.Addr))
	})
	last, _ := e.lastEncoder.Peek(image)
	took := time.Duration(tokens) * time.Second / encodeRate
	best, soonest := Encoding{}, time.Duration(0)
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
			best, soonest = Encoding{image, slot, min(own, took)}, done
		}
	}
	return best
}

// Book records what is sent to encode workers.
func (e *EncodeQueues) Book(planned []Encoding, now time.Time) {
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

// moveEncoding moves what candidates would have to encode to the encode workers.
func moveEncoding(in *Input, c *Choice) {
	if len(in.Encoders) == 0 {
		return
	}
	waiting := in.EncodeQueues.shortestQueue(in.Encoders, in.Now)
	for i := range c.Candidates {
		if one := &c.Candidates[i]; one.Encode > 0 {
			one.EncodedApart, one.Encode = one.Encode, 0
			one.Elsewhere = Fetch(0) + waiting + float64(one.EncodedApart) // time of the request, but none of the candidate's own
		}
	}
}

// Image is an image of a prompt, or another medium.
type Image struct {
	Key    uint64 // its name
	Kind   string // such as "image": media of one kind stand in the order of the body
	Tokens int
}

// Assign returns which of the slots are to encode a prompt's images, and their addresses as ip:port,ip:port.
func (e *EncodeQueues) Assign(images []Image, among []*fleet.Slot, now time.Time) (planned []Encoding, addrs string) {
	if !orderCertain(images) {
		images = images[:1]
	}
	homes := make([]string, len(images))
	for i, image := range images {
		one := e.assign(image.Key, image.Tokens, among, now, planned)
		planned, homes[i] = append(planned, one), one.slot.Worker.Addr
	}
	return planned, strings.Join(homes, ",")
}

// orderCertain reports whether the sidecar is certain to number the images as we do.
func orderCertain(images []Image) bool {
	for i, image := range images {
		if image.Kind != images[0].Kind || slices.ContainsFunc(images[:i], func(m Image) bool { return m.Key == image.Key }) {
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
