// Package fleetsim replays traffic against a simulated fleet of engines on a virtual clock, once for each choice rule,
// and says how the rules compare.
//
//	traffic ─▶ rule ─▶ worker (continuous batching, block cache) ─▶ time to first token, hits
//	             ▲                        │
//	             └── KV events, reports, metrics, each with its delay
//
// It is deterministic: equal seeds give equal numbers. Cost: about one second for 10,000 requests on eight workers.
package fleetsim

import (
	"time"

	"github.com/sightline-router/sightline/engine"
)

// Request is one request of a trace. Its content is a list of segments, so that prompts of many thousand tokens cost a
// few bytes; equal segments at equal places are equal tokens.
type Request struct {
	At      time.Duration // from the trace's start; with Prev, after Prev's end
	Prev    *Request      // the turn before it in its conversation; nil: it comes at At
	Session uint64        // of its conversation; 0: none
	Prompt  []Segment
	Answer  Segment // what the engine will generate
	Images  []Image // in the order of the prompt
	Adapter uint64  // LoRA adapter; 0: none
	Short   bool    // reported with the short ones

	input  int      // tokens of Prompt
	hashes []uint64 // see locals
}

// Segment is a run of tokens.
type Segment struct {
	ID     uint64 // equal ids are equal tokens
	Tokens int
}

// Image is a picture's place in a prompt; its tokens are part of a segment.
type Image struct {
	ID             uint64
	Offset, Tokens int
}

// Input is the number of prompt tokens.
func (r *Request) Input() int {
	if r.input == 0 {
		for _, s := range r.Prompt {
			r.input += s.Tokens
		}
	}
	return r.input
}

// add appends a segment to the prompt; image: it is a picture's run.
func (r *Request) add(s Segment, image bool) {
	if image {
		r.Images = append(r.Images, Image{s.ID, r.Input(), s.Tokens})
	}
	r.Prompt, r.input = append(r.Prompt, s), r.Input()+s.Tokens
}

// locals gives the local hashes of the full blocks of prompt and answer, as engines and the router compute them.
func (r *Request) locals(size int) []uint64 {
	if r.hashes == nil {
		p := r.read(nil)
		p.IDs = tokens(p.IDs, r.Answer)
		p.Sure = len(p.IDs)
		r.hashes = p.Locals(nil, size, "")
	}
	return r.hashes
}

// read makes the prompt as the router reads it; ids is memory to use.
func (r *Request) read(ids []uint32) *engine.Prompt {
	for _, s := range r.Prompt {
		ids = tokens(ids, s)
	}
	p := &engine.Prompt{IDs: ids, Sure: len(ids), Exact: true}
	for _, m := range r.Images {
		p.Media = append(p.Media, engine.Medium{Modality: "image", Offset: m.Offset, Length: m.Tokens, Known: true, Named: true, Key: m.ID})
	}
	return p
}

// tokens appends a segment's.
func tokens(ids []uint32, s Segment) []uint32 {
	for i := range s.Tokens {
		ids = append(ids, uint32(mix(s.ID, uint64(i)))&0xffff)
	}
	return ids
}

// mix folds a number into a hash.
func mix(h, x uint64) uint64 {
	h ^= x + 0x9E3779B97F4A7C15 + h<<6 + h>>2
	h ^= h >> 32
	h *= 0xD6E8FEB86659FD93
	h ^= h >> 32
	return h
}
