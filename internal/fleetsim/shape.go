package fleetsim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// shapes are traffic by what a conversation is; text says it of all but pictures, which half of the images' conversations begin with.
var shapes = map[string]talk{
	"chats":  chats,
	"agents": agents,
	"images": {system: 120, turns: 4, again: 0.35, think: 8, say: 40, answer: 120},
}

// Shapes are the names that Shape knows.
func Shapes() []string { return slices.Sorted(maps.Keys(shapes)) }

// Shape makes seconds of traffic of a shape from a seed: rate conversations a second, of which the share reuse begins as
// another one does (the same instructions; of images, the same picture), and the rest as none before.
func Shape(name string, seed uint64, rate, seconds, reuse float64) ([]*Request, error) {
	k, ok := shapes[name]
	if !ok {
		return nil, fmt.Errorf("no traffic of shape %q (want %s)", name, strings.Join(Shapes(), ", "))
	}
	m := newMaker(seed, rate)
	const few = 8 // beginnings that are used again
	for {
		var r *Request
		front := m.id()
		if m.Float64() < reuse {
			front = uint64(1 + m.IntN(few))
		}
		for turn := 0; turn == 0 || turn < k.turns && m.Float64() < k.again; turn++ {
			if r = m.turn(r, k.think); m.at >= seconds {
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
