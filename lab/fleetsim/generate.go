package fleetsim

import (
	"math"
	"math/rand/v2"
	"time"
)

// Traffic without a public trace is generated from a seed. rate is conversations (or requests) per second.

type generator struct {
	*rand.Rand
	ids   uint64
	at    float64
	rate  float64
	trace []*Request
}

func newGenerator(seed uint64, rate float64) *generator {
	return &generator{Rand: rand.New(rand.NewPCG(seed, 99)), rate: rate}
}

// generate makes traffic for a number of seconds; one adds a conversation, or some requests that come together.
func generate(seed uint64, rate, seconds float64, one func(m *generator)) []*Request {
	m := newGenerator(seed, rate)
	for m.at < seconds {
		one(m)
	}
	return m.trace
}

func (m *generator) id() uint64 { m.ids++; return mix(m.ids, 7) }

// arrival returns the next arrival of a Poisson process.
func (m *generator) arrival() time.Duration {
	m.at += m.ExpFloat64() / m.rate
	return time.Duration(m.at * float64(time.Second))
}

// about draws from a log-normal distribution around a median.
func (m *generator) about(median, sigma float64) int {
	return max(1, int(median*math.Exp(sigma*m.NormFloat64())))
}

// zipf draws a number below n, smaller ones more often.
func (m *generator) zipf(n int, s float64) int {
	return int(rand.NewZipf(m.Rand, s, 1, uint64(n-1)).Uint64())
}

// converse makes the requests of a conversation: at most a number of turns, each further one with a probability and after a while.
func (m *generator) converse(turns int, again, think float64, each func(r *Request, first bool)) {
	var r *Request
	for turn := 0; turn == 0 || turn < turns && m.Float64() < again; turn++ {
		r = m.turn(r, think)
		each(r, turn == 0)
	}
}

// turn returns a request that continues another one.
func (m *generator) turn(prev *Request, think float64) *Request {
	r := &Request{}
	if prev == nil {
		r.At, r.Session = m.arrival(), m.id()
	} else {
		r.Prev, r.Session, r.History, r.At = prev, prev.Session, prev.Input(), time.Duration(m.ExpFloat64()*think*float64(time.Second))
		for _, s := range prev.Prompt {
			r.add(s, false)
		}
		r.Images = append(r.Images, prev.Images...)
		r.add(prev.Answer, false)
	}
	m.trace = append(m.trace, r)
	return r
}

func (m *generator) say(r *Request, tokens, answer int) {
	r.add(Segment{m.id(), tokens}, false)
	r.Answer = Segment{m.id(), answer}
}

// conversationShape is a kind of text conversation.
type conversationShape struct {
	systems, system int     // the number of different system prompts, and their tokens
	turns           int     // at most
	again           float64 // probability of a further turn
	think           float64 // seconds before it, on average
	say, answer     float64 // median tokens of each
}

var (
	chats = conversationShape{systems: 4, system: 600, turns: 15, again: 0.8, think: 8, say: 250, answer: 180}
	// long instructions, short steps
	agents = conversationShape{systems: 5, system: 7000, turns: 40, again: 0.92, think: 2, say: 600, answer: 120}
)

func (k conversationShape) traffic(seed uint64, rate, seconds float64) []*Request {
	return generate(seed, rate, seconds, func(m *generator) {
		system := Segment{uint64(1 + m.IntN(k.systems)), k.system}
		m.converse(k.turns, k.again, k.think, func(r *Request, first bool) {
			if first {
				r.add(system, false)
			}
			m.say(r, m.about(k.say, 1), m.about(k.answer, 0.6))
		})
	})
}

// images generates questions about images, some of which are asked about often; a third continue for a turn or two.
func images(seed uint64, rate, seconds, hot float64) []*Request {
	return generate(seed, rate, seconds, func(m *generator) {
		m.converse(4, 0.35, 8, func(r *Request, first bool) {
			if first {
				r.add(Segment{1, 120}, false)
				for range 1 + m.IntN(2) {
					p := m.zipf(3000, 1.1)
					if m.Float64() < hot {
						p = 0
					}
					r.add(Segment{1e9 + uint64(p), 400 + int(mix(uint64(p), 5)%1600)}, true)
				}
			}
			m.say(r, m.about(40, 0.6), m.about(120, 0.6))
		})
	})
}

// reused generates questions about an image or two, half of which are among the last hundred. The text before them always differs,
// so no worker holds their blocks.
func reused(seed uint64, rate, seconds float64) []*Request {
	var last []uint64
	return generate(seed, rate, seconds, func(m *generator) {
		r := m.turn(nil, 0)
		r.add(Segment{m.id(), 40}, false)
		for range 1 + m.IntN(2) {
			var p uint64
			if len(last) > 0 && m.Float64() < 0.5 {
				p = last[m.IntN(len(last))]
			} else {
				p = m.id()
				last = append(last, p)[max(0, len(last)-99):]
			}
			r.add(Segment{p, 400 + int(mix(p, 5)%1600)}, true)
		}
		m.say(r, m.about(40, 0.6), m.about(120, 0.6))
	})
}

// documents generates questions about documents, each asked about some five times within a minute; a third continue.
func documents(seed uint64, rate, seconds float64) []*Request {
	var last []uint64
	return generate(seed, rate, seconds, func(m *generator) {
		m.converse(4, 0.35, 8, func(r *Request, first bool) {
			if first {
				r.add(Segment{1, 120}, false)
				d := m.id()
				if len(last) > 0 && m.Float64() < 0.8 {
					d = last[m.IntN(len(last))]
				} else {
					last = append(last, d)[max(0, len(last)-99):]
				}
				r.add(Segment{d, 1000 + int(mix(d, 5)%6000)}, false)
			}
			m.say(r, m.about(40, 0.6), m.about(150, 0.6))
		})
	})
}

// siblings generates groups of sixteen simultaneous requests with one new prompt of 8,000 tokens.
func siblings(seed uint64, rate, seconds float64) []*Request {
	return generate(seed, rate, seconds, func(m *generator) {
		at, prompt := m.arrival(), Segment{m.id(), 8000}
		for i := range 16 {
			r := &Request{At: at + time.Duration(i)*time.Millisecond, Session: m.id()}
			r.add(prompt, false)
			r.Answer = Segment{m.id(), m.about(200, 0.5)}
			m.trace = append(m.trace, r)
		}
	})
}

// shorts generates prompts shorter than a block among chats.
func shorts(seed uint64, rate, seconds float64) []*Request {
	return generate(seed, rate, seconds, func(m *generator) {
		r := m.turn(nil, 0)
		if m.Float64() < 0.7 {
			m.say(r, 4+m.IntN(11), m.about(150, 0.8))
			return
		}
		m.say(r, m.about(1500, 0.8), m.about(150, 0.8))
	})
}

// herd generates single requests under one system prompt, a quarter of their tokens (sglang #21199: 26 %).
func herd(seed uint64, rate, seconds float64) []*Request {
	return generate(seed, rate, seconds, func(m *generator) {
		r := m.turn(nil, 0)
		r.add(Segment{1, 600}, false)
		m.say(r, m.about(1500, 0.5), m.about(150, 0.6))
	})
}

// paced generates requests that each wait for the previous one, like those of a single agent: at each decision nothing is in
// flight. Every fifth begins another conversation.
func paced(seed uint64, n int) []*Request {
	m := newGenerator(seed, 1)
	var before, r *Request
	for i := range n {
		if i%5 == 0 {
			r = m.turn(nil, 0)
			r.add(Segment{1, 1000}, false)
		} else {
			r = m.turn(r, 0)
		}
		m.say(r, m.about(600, 0.6), m.about(60, 0.5))
		r.At, r.Prev = 50*time.Millisecond, before
		before = r
	}
	return m.trace
}

// inBursts compresses traffic into 2 s of every 6 s: generate it at three times the rate and for a third of the seconds.
func inBursts(trace []*Request) []*Request {
	for _, r := range trace {
		if r.Prev == nil {
			r.At += r.At / (2 * time.Second) * (4 * time.Second)
		}
	}
	return trace
}

// adapted gives each conversation one of n adapters, some more often.
func adapted(seed uint64, trace []*Request, n int) []*Request {
	m := newGenerator(seed, 1)
	of := make(map[uint64]uint64)
	for _, r := range trace {
		if of[r.Session] == 0 {
			of[r.Session] = 1 + uint64(m.zipf(n, 1.2))
		}
		r.Adapter = of[r.Session]
	}
	return trace
}

// trending generates chats, of which three of five begin with the same 6,000 tokens: others every 20 s.
func trending(seed uint64, rate, seconds float64) []*Request {
	return generate(seed, rate, seconds, func(m *generator) {
		hot := m.Float64() < 0.6
		m.converse(15, 0.5, 8, func(r *Request, first bool) {
			if first && hot {
				r.add(Segment{1e6 + uint64(m.at/20), 6000}, false)
			} else if first {
				r.add(Segment{uint64(1 + m.IntN(4)), 600}, false)
			}
			m.say(r, m.about(250, 1), m.about(180, 0.6))
		})
	})
}

// withDocuments generates chats, of which one of twenty begins with a document of its own of 30,000 to 60,000 tokens.
func withDocuments(seed uint64, rate, seconds float64) []*Request {
	return generate(seed, rate, seconds, func(m *generator) {
		document := m.Float64() < 0.05
		m.converse(15, 0.8, 8, func(r *Request, first bool) {
			if first {
				r.add(Segment{uint64(1 + m.IntN(4)), 600}, false)
				if document {
					r.add(Segment{m.id(), 30000 + m.IntN(30000)}, false)
				}
			}
			m.say(r, m.about(250, 1), m.about(180, 0.6))
		})
	})
}

// screenshots generates agents that send one more image of 1,200 tokens with each turn.
func screenshots(seed uint64, rate, seconds float64) []*Request {
	return generate(seed, rate, seconds, func(m *generator) {
		m.converse(25, 0.9, 3, func(r *Request, first bool) {
			if first {
				r.add(Segment{1, 2000}, false)
			}
			r.add(Segment{m.id(), 1200}, true)
			m.say(r, m.about(60, 0.6), m.about(80, 0.5))
		})
	})
}

// passages generates single questions about five passages of 400 tokens each, some of which are found often; the best stands first.
func passages(seed uint64, rate, seconds float64) []*Request {
	return generate(seed, rate, seconds, func(m *generator) {
		r := m.turn(nil, 0)
		r.add(Segment{1, 300}, false)
		for range 5 {
			r.add(Segment{1e7 + uint64(m.zipf(2000, 1.3)), 400}, false)
		}
		m.say(r, m.about(40, 0.6), m.about(150, 0.6))
	})
}

// pages generates questions about documents of 2 to 12 pages, each an image; of ten documents, seven are among the last hundred.
func pages(seed uint64, rate, seconds float64) []*Request {
	var last []uint64
	return generate(seed, rate, seconds, func(m *generator) {
		m.converse(4, 0.4, 12, func(r *Request, first bool) {
			if first {
				r.add(Segment{1, 150}, false)
				d := m.id()
				if len(last) > 0 && m.Float64() < 0.7 {
					d = last[m.IntN(len(last))]
				} else {
					last = append(last, d)[max(0, len(last)-99):]
				}
				for page := range 2 + mix(d, 5)%11 {
					r.add(Segment{mix(d, page+100), 1000 + int(mix(d, page+200)%1000)}, true)
				}
			}
			m.say(r, m.about(40, 0.6), m.about(150, 0.6))
		})
	})
}

// catalogue generates single questions of twelve kinds about images of 2,000 articles, popular ones more often. In half of the requests
// the question stands before the image.
func catalogue(seed uint64, rate, seconds float64) []*Request {
	return generate(seed, rate, seconds, func(m *generator) {
		r := m.turn(nil, 0)
		r.add(Segment{1, 300}, false)
		article, kind := uint64(m.zipf(2000, 1.1)), m.IntN(12)
		question := Segment{1e4 + uint64(kind), 40 + 5*kind}
		before := kind%2 == 0
		if before {
			r.add(question, false)
		}
		r.add(Segment{1e9 + article, 300 + int(mix(article, 5)%700)}, true)
		if !before {
			r.add(question, false)
		}
		r.Answer = Segment{m.id(), m.about(60, 0.4)}
	})
}

// frames generates questions about clips, of which 8, 16 or 32 frames are images of 260 tokens; six of ten are among the last sixty. A
// fifth of the conversations watch: each turn adds four frames.
func frames(seed uint64, rate, seconds float64) []*Request {
	var last []uint64
	return generate(seed, rate, seconds, func(m *generator) {
		clip, watch := m.id(), m.Float64() < 0.2
		if !watch && len(last) > 0 && m.Float64() < 0.6 {
			clip = last[m.IntN(len(last))]
		} else {
			last = append(last, clip)[max(0, len(last)-59):]
		}
		n := uint64(0)
		m.converse(6, 0.5, 6, func(r *Request, first bool) {
			more := uint64(0)
			if first {
				r.add(Segment{1, 120}, false)
				more = 8 << (mix(clip, 5) % 3)
			} else if watch {
				more = 4
			}
			for range more {
				r.add(Segment{mix(clip, 100+n), 260}, true)
				n++
			}
			m.say(r, m.about(30, 0.6), m.about(100, 0.6))
		})
	})
}
