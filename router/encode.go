package router

import (
	"slices"
	"strings"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/router/choose"
	"github.com/sightline-router/sightline/router/fleet"
)

// Where a model has workers that only encode, a request whose pictures the chosen worker would have to encode names who does it: for each
// picture the worker that its name falls to (rendezvous hashing). So it is the same in all replicas, with nothing told or remembered,
// and of n workers one that comes or goes moves every nth picture and no other.
//
// llm-d's sidecar gives a request's i-th picture to the i-th address, and those behind the last address to the first again (0.7 to 0.10,
// connector_epd_shared_storage.go, since 0.9 connector_ec_common.go). Which one is the i-th is certain where no picture stands there
// twice (up to 0.10 equal URLs count once, on its main each counts) and where all are of one kind (a prompt may have them in another
// order than the body). Else the first one's worker is named for all.

// encoder says who encodes the media of a prompt for its best candidate, as ip:port,ip:port; "": that candidate does.
func (x *decision) encoder(p *engine.Prompt, best *choose.Candidate) string {
	pool := x.opt.Fleet.Encoders(x.model.Name)
	if len(pool) == 0 || best.Encode == 0 || x.left() {
		return ""
	}
	media := p.Media[:min(len(p.Media), mostMedia)]
	if !ordered(media) {
		media = media[:1]
	}
	var homes []string
	for i := range media {
		home, highest := "", uint64(0)
		for _, slot := range pool {
			if weight := lot(media[i].Key, slot.Worker.Addr); slot.Worker.Well() && (home == "" || weight > highest) {
				home, highest = slot.Worker.Addr, weight
			}
		}
		if home == "" {
			if !x.aside {
				x.metrics.missing.WithLabelValues(x.out.Model, noEncode).Inc()
			}
			return ""
		}
		homes = append(homes, home)
	}
	best.Encode = 0
	return strings.Join(homes, ",")
}

// ordered tells whether the i-th of some media is the i-th for the sidecar too.
func ordered(media []engine.Medium) bool {
	for i := range media {
		if media[i].Modality != media[0].Modality || slices.ContainsFunc(media[:i], func(m engine.Medium) bool { return m.Key == media[i].Key }) {
			return false
		}
	}
	return true
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

// holder is a worker with the leading tokens of a prompt that its events prove.
type holder struct {
	worker *fleet.Worker
	tokens int
}

// pull fills in what each candidate lacks and another worker has, of a model whose workers fetch from each other where they are told from
// whom: the one that holds most or, for that one itself, the next.
func (x *decision) pull() {
	s := x.mem
	s.most, s.next = holder{}, holder{}
	if x.model == nil || !x.model.FetchKV || x.left() {
		return
	}
	for i := range s.candidates {
		c := &s.candidates[i]
		switch h := (holder{x.slots[c.Slot].Worker, c.Exact}); {
		case c.Doubtful:
		case h.worker == s.most.worker:
			s.most.tokens = max(s.most.tokens, h.tokens)
		case h.tokens > s.most.tokens:
			s.most, s.next = h, s.most
		case h.tokens > s.next.tokens:
			s.next = h
		}
	}
	for i := range s.candidates {
		if c := &s.candidates[i]; x.slots[c.Slot].Worker.Instance == "" {
			c.Pulled = max(0, min(s.other(x.slots[c.Slot].Worker).tokens, c.Tokens)-c.Predicted)
		}
	}
}

// other is the holder that a worker may fetch from.
func (s *scratch) other(w *fleet.Worker) holder {
	if w == s.most.worker {
		return s.next
	}
	return s.most
}

// source is the worker from which the best candidate fetches what it lacks; "": from none.
func (x *decision) source(best *choose.Candidate) (addr string) {
	if !best.Pulls() {
		return ""
	}
	return x.mem.other(x.chosen.Worker).worker.Addr
}
