package fleetsim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/learned"
)

// memory is how a router without a rule for any prompt learns what workers' events teach of requests that began alike.
type memory struct {
	noNames  bool // events name no sessions
	noCounts bool // ends of requests tell no tokens
	links    bool // clients send images as URLs, which do not tell their size
}

// byMemory makes routers of that kind.
func byMemory(m memory) func(*View) Picker { return func(v *View) Picker { return newRouter(v, &m) } }

// bytes returns how much is remembered.
func (m *memory) bytes() int {
	if m == nil {
		return 0
	}
	return 64 << 20
}

// decide decides a request.
func (s *sightline) decide(r *run) router.Decision {
	id, model := fmt.Sprint(s.next), cmp.Or(r.req.adapter(), modelName)
	if s.memory != nil {
		s.router.Learner().Settle(time.Unix(1_000_000, 0).Add(s.now))
		return s.router.DecideUnread(id, model, r.req.path(s.memory.links))
	}
	p := r.req.read(s.ids[:0])
	s.ids = p.IDs
	return s.router.DecidePrompt(id, model, r.req.Priority, p)
}

// teach tells the router whose blocks a slot stores.
func (s *sightline) teach(v *View, slot indexer.SlotID, c change, parent uint64) {
	d, decided := c.run.booked.(router.Decision)
	if s.memory == nil || !decided || c.lower {
		return
	}
	e := &kvevent.Event{Kind: kvevent.Stored, BlockSize: v.Size, HasParent: c.from > 0, Parent: parent, EngineHashes: s.hashes,
		Locals: c.run.req.locals[c.from:c.to]}
	if !s.memory.noNames {
		e.Session = d.ID
	}
	s.router.Learner().Stored(slot, e)
}

// teachOthers returns a function that tells the other replicas what a request taught.
func (s *sightline) teachOthers(v *View, own int) func(uint64, *learned.Lesson) {
	if s.memory == nil {
		return nil
	}
	return func(key uint64, l *learned.Lesson) {
		again := *l
		again.Path.Steps, again.Taught.Chain = slices.Clone(l.Path.Steps), slices.Clone(l.Taught.Chain)
		s.others(v, own, shareEvery+shareTravel, func(o *sightline) { o.router.Replicas().ApplyLearned(key, &again) })
	}
}

// Of English text, and of images as Qwen3-VL counts them.
const (
	leastBytes     = 3 // a token, at most 5: no two texts have as many
	pixelsPerToken = 32 * 32
)

// path returns the request's path as package learned makes it of a body: an image is a step, a text has several. links: images are URLs.
func (r *Request) path(links bool) *learned.Path {
	answers := make(map[uint64]bool)
	for p := r.Prev; p != nil; p = p.Prev {
		answers[p.Answer.ID] = true
	}
	at, number := 0, [2]uint64{r.Adapter, 1}
	images, p := r.Images, new(learned.Path)
	for _, s := range r.Prompt {
		step := func(bytes int) learned.Step {
			number = [2]uint64{mix(mix(number[0], s.ID), uint64(bytes)), mix(mix(number[1], uint64(bytes)), s.ID)}
			return learned.Step{Number: number, Bytes: int32(bytes)}
		}
		if len(images) > 0 && images[0].Offset == at {
			one := step(s.Tokens * pixelsPerToken)
			one.Media = true
			if links {
				one.Bytes, one.Untold = 0, true
			}
			p.Media = append(p.Media, learned.MediaStep{ID: images[0].ID, Step: len(p.Steps)})
			p.Steps, images = append(p.Steps, one), images[1:]
		} else {
			first := len(p.Steps)
			for done, all := 0, s.Tokens*int(leastBytes+s.ID%3); done < all; {
				size := 512
				switch {
				case done < 64:
					size = 8
				case done < 512:
					size = 32
				case done < 4096:
					size = 128
				}
				size = min(size, all-done)
				done += size
				p.Steps = append(p.Steps, step(size))
			}
			if len(p.Steps) > first {
				p.Steps[first].Answer = answers[s.ID]
			}
		}
		at += s.Tokens
	}
	p.Steps = p.Steps[:min(len(p.Steps), learned.MaxSteps)]
	return p
}
