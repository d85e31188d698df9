package router

import (
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/router/choose"
	"github.com/sightline-router/sightline/router/fleet"
)

// Where a model has workers that only encode, a request whose pictures the chosen worker would have to encode names one of them:
// the one that has seen most of these pictures, and where none has, the one that the first picture's name falls to (rendezvous
// hashing, the same in all replicas, which moves only a lost worker's pictures). Of several addresses llm-d's sidecar gives the i-th
// picture to the i-th (0.7 to 0.9, connector_ec_common.go), counting equal URLs once: one is named, whatever their number is there.

// encoder picks who encodes the pictures of a prompt for its best candidate, and takes down that it has; "": that candidate does.
func (x *decision) encoder(p *engine.Prompt, best *choose.Candidate) (addr string) {
	pool := x.opt.Fleet.Encoders(x.model.Name)
	if len(pool) == 0 || best.Encode == 0 || x.left() {
		return ""
	}
	media := p.Media[:min(len(p.Media), mostMedia)]
	var chosen *fleet.Slot
	most, highest := -1, uint64(0)
	for _, slot := range pool {
		if !slot.Worker.Well() {
			continue
		}
		seen := 0
		for i := range media {
			if by := x.seen.by(media[i].Key); by.holds(slot) {
				seen += max(1, media[i].Length)
			}
		}
		if weight := lot(media[0].Key, slot.Worker.Addr); seen > most || seen == most && weight > highest {
			chosen, most, highest = slot, seen, weight
		}
	}
	if chosen == nil {
		if !x.aside {
			x.metrics.missing.WithLabelValues(x.out.Model, noEncode).Inc()
		}
		return ""
	}
	best.Encode = 0
	if x.aside {
		return chosen.Worker.Addr
	}
	for i := range media {
		x.seen.add(media[i].Key, chosen, max(1, media[i].Length))
	}
	return chosen.Worker.Addr
}

// lot is a number that looks random, of a picture at a worker, in every process the same.
func lot(picture uint64, addr string) uint64 {
	h := picture
	for i := range len(addr) {
		h = (h ^ uint64(addr[i])) * 0x100000001B3
	}
	h = (h ^ h>>32) * 0xD6E8FEB86659FD93
	return h ^ h>>32
}

// source is the worker that holds more of a prompt than the one that prefills it, where fetching that is cheaper than computing it; "":
// none is, or the model's workers do not fetch from each other.
func (x *decision) source(best *choose.Candidate) (addr string) {
	if !x.model.FetchKV || x.left() || x.chosen.Worker.Instance != "" {
		return ""
	}
	most := best.Exact
	for i := range x.mem.candidates {
		c := &x.mem.candidates[i]
		more := c.Exact - best.Predicted
		if w := x.slots[c.Slot].Worker; c.Exact > most && !c.Doubtful && w != x.chosen.Worker && float64(more) > choose.Fetch(more) {
			most, addr = c.Exact, w.Addr
		}
	}
	return addr
}
