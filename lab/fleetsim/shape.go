package fleetsim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// shapes are kinds of traffic by the shape of their conversations. For images, where half of the conversations begin with images,
// this describes only the text.
var shapes = map[string]conversationShape{
	"chats":  chats,
	"agents": agents,
	"images": {system: 120, turns: 4, again: 0.35, think: 8, say: 40, answer: 120},
}

// Shapes returns the names that Shape accepts.
func Shapes() []string { return slices.Sorted(maps.Keys(shapes)) }

// Shape generates seconds of traffic of a shape from a seed: rate conversations per second, of which the share reuse begins like
// another one (the same instructions; for images, the same image), and the rest like none before.
func Shape(name string, seed uint64, rate, seconds, reuse float64) ([]*Request, error) {
	k, ok := shapes[name]
	if !ok {
		return nil, fmt.Errorf("no traffic of shape %q (want %s)", name, strings.Join(Shapes(), ", "))
	}
	m := newGenerator(seed, rate)
	const few = 8 // beginnings that are reused
	for {
		var r *Request
		front := m.id()
		if m.Float64() < reuse {
			front = uint64(1 + m.IntN(few))
		}
		for turn := 0; turn == 0 || turn < k.turns && m.Float64() < k.again; turn++ {
			r = m.turn(r, k.think)
			if m.at >= seconds {
				return m.trace[:len(m.trace)-1], nil
			}
			switch {
			case turn > 0:
			case name == "images":
				r.add(Segment{1 << 40, k.system}, false) // all have the same instructions
				r.add(Segment{front, 400 + int(mix(front, 5)%1600)}, true)
			default:
				r.add(Segment{front, k.system}, false)
			}
			m.say(r, m.about(k.say, 0.6), m.about(k.answer, 0.6))
		}
	}
}
