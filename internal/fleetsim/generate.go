package fleetsim

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"time"
)

// Traffic that no public trace has is generated, from a seed. rate is conversations (or requests) a second.

type maker struct {
	*rand.Rand
	ids   uint64
	at    float64
	rate  float64
	trace []*Request
}

func newMaker(seed uint64, rate float64) *maker {
	return &maker{Rand: rand.New(rand.NewPCG(seed, 99)), rate: rate}
}

func (m *maker) id() uint64 { m.ids++; return mix(m.ids, 7) }

// arrival is the next one of a Poisson process.
func (m *maker) arrival() time.Duration {
	m.at += m.ExpFloat64() / m.rate
	return time.Duration(m.at * float64(time.Second))
}

// about draws from a log-normal distribution around a median.
func (m *maker) about(median, sigma float64) int {
	return max(1, int(median*math.Exp(sigma*m.NormFloat64())))
}

// zipf draws a number below n, the small ones more often.
func (m *maker) zipf(n int, s float64) int {
	return int(rand.NewZipf(m.Rand, s, 1, uint64(n-1)).Uint64())
}

// turn is one request that goes on from another.
func (m *maker) turn(prev *Request, think float64) *Request {
	r := &Request{}
	if prev == nil {
		r.At, r.Session = m.arrival(), m.id()
	} else {
		r.Prev, r.Session, r.At = prev, prev.Session, time.Duration(m.ExpFloat64()*think*float64(time.Second))
		for _, s := range prev.Prompt {
			r.add(s, false)
		}
		r.Images = append(r.Images, prev.Images...)
		r.add(prev.Answer, false)
	}
	m.trace = append(m.trace, r)
	return r
}

func (m *maker) say(r *Request, tokens, answer int) {
	r.add(Segment{m.id(), tokens}, false)
	r.Answer = Segment{m.id(), answer}
}

// talk is a kind of conversation of text.
type talk struct {
	systems, system int     // how many beginnings there are, and their tokens
	turns           int     // at most
	again           float64 // probability of a further turn
	think           float64 // seconds before it, on average
	say, answer     float64 // median tokens of each
}

var (
	chats  = talk{systems: 4, system: 600, turns: 15, again: 0.8, think: 8, say: 250, answer: 180}
	agents = talk{systems: 5, system: 7000, turns: 40, again: 0.92, think: 2, say: 600, answer: 120} // long instructions, short steps
)

func (k talk) traffic(seed uint64, rate, seconds float64) []*Request {
	m := newMaker(seed, rate)
	for m.at < seconds {
		system := Segment{uint64(1 + m.IntN(k.systems)), k.system}
		var r *Request
		for turn := 0; turn == 0 || turn < k.turns && m.Float64() < k.again; turn++ {
			r = m.turn(r, k.think)
			if turn == 0 {
				r.add(system, false)
			}
			m.say(r, m.about(k.say, 1), m.about(k.answer, 0.6))
		}
	}
	return m.trace
}

// images are questions about pictures, of which some are asked about often; a third of them go on for a turn or two.
func images(seed uint64, rate, seconds, hot float64) []*Request {
	m := newMaker(seed, rate)
	for m.at < seconds {
		var r *Request
		for turn := 0; turn == 0 || turn < 4 && m.Float64() < 0.35; turn++ {
			r = m.turn(r, 8)
			if turn == 0 {
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
		}
	}
	return m.trace
}

// siblings come sixteen at a time with one new prompt of 8,000 tokens.
func siblings(seed uint64, rate, seconds float64) []*Request {
	m := newMaker(seed, rate)
	for m.at < seconds {
		at, prompt := m.arrival(), Segment{m.id(), 8000}
		for i := range 16 {
			r := &Request{At: at + time.Duration(i)*time.Millisecond, Session: m.id()}
			r.add(prompt, false)
			r.Answer = Segment{m.id(), m.about(200, 0.5)}
			m.trace = append(m.trace, r)
		}
	}
	return m.trace
}

// shorts are prompts shorter than a block among chats.
func shorts(seed uint64, rate, seconds float64) []*Request {
	m := newMaker(seed, rate)
	for m.at < seconds {
		r := m.turn(nil, 0)
		if m.Float64() < 0.7 {
			m.say(r, 4+m.IntN(11), m.about(150, 0.8))
			r.Short = true
			continue
		}
		m.say(r, m.about(1500, 0.8), m.about(150, 0.8))
	}
	return m.trace
}

// mooncake reads a trace in Mooncake's form: a JSON object a line with timestamp (ms), input_length, output_length and
// hash_ids, one for each 512 tokens of the input. speed is how many times faster than recorded it comes.
func mooncake(r io.Reader, speed float64, n int) (trace []*Request, err error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() && len(trace) < n {
		var l struct {
			Timestamp    float64  `json:"timestamp"`
			InputLength  int      `json:"input_length"`
			OutputLength int      `json:"output_length"`
			HashIDs      []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(trace)+1, err)
		}
		req := &Request{At: time.Duration(l.Timestamp / speed * float64(time.Millisecond))}
		for i, id := range l.HashIDs {
			if tokens := min(512, l.InputLength-512*i); tokens > 0 {
				req.add(Segment{mix(id, 3), tokens}, false)
			}
		}
		if len(req.Prompt) == 0 {
			continue
		}
		req.Answer = Segment{mix(uint64(len(trace)), 4), l.OutputLength}
		req.Session = req.Prompt[min(len(req.Prompt)-1, 1)].ID
		trace = append(trace, req)
	}
	return trace, lines.Err()
}
