package router

import (
	"cmp"
	"hash/fnv"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/router/learned"
	"github.com/sightline-router/sightline/router/speculative"
	"github.com/sightline-router/sightline/workers/fleet"
)

// A prompt that no rule reads to its end is looked up by what the workers' events showed engines to make of requests that began alike
// (package learned). Such requests are remembered and looked up in the index like computed ones; those that an unproven rule reads to their
// end are remembered only.

// learning is what is learned about requests; nil: nothing is.
type learning struct {
	memory  *learned.Memory
	learner *learned.Learner
	sizes   *learned.Sizes
	// sent predicts which workers will hold what was sent to them recently and is not learned yet, by the steps of paths: so two requests
	// that begin alike, one soon after the other, get the same worker.
	sent   *speculative.Index
	secret *block.Secret
	// replicas reports that others send to the same workers too.
	replicas bool

	mu     sync.Mutex
	key    uint64 // ID of the key that hasher was made under
	hasher *learned.Hasher
}

func newLearning(o *Options, outcome func(learned.Outcome)) *learning {
	if o.LearnedBytes == 0 {
		return nil
	}
	sizes := new(learned.Sizes)
	l := &learning{memory: learned.NewMemory(o.LearnedBytes, sizes), sizes: sizes,
		sent: speculative.New(o.PredictedTTL, pathSteps), secret: o.Secret, replicas: o.Share != nil}
	l.learner = learned.NewLearner(learned.Options{Memory: l.memory, Sizes: l.sizes, Chain: o.Index.Chain, Outcome: outcome, Now: o.Now,
		Share: l.share(o.ShareLearned)})
	return l
}

const pathSteps = 1 << 18 // of all requests on their way

// paths returns the hasher. If the deployment's secret was replaced, all that was learned under the other is forgotten.
func (l *learning) paths() *learned.Hasher {
	key := l.secret.Key().ID
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hasher == nil || l.key != key {
		if l.hasher != nil {
			l.memory.Clear()
			l.learner.Clear()
		}
		l.key, l.hasher = key, learned.NewHasher(l.bytes())
	}
	return l.hasher
}

// recalled is what is remembered of a request, for the workers of one group.
type recalled struct {
	learned.Recalled
	path   *learned.Path // of the request; nil: it is not remembered
	used   bool          // its blocks are looked up: they are more than the computed ones
	class  uint32        // its learnedClass, if the request is looked up; 0: it is not
	teach  uint32        // its learnedClass, if the request is remembered; 0: it is not
	tokens int           // of the prompt; an estimate if Tokens is 0
	size   learned.Size
	scale  float64 // tokens that the first Steps of the path have, divided by what size expects of them
}

// agrees reports whether the remembered blocks begin with those that rules computed, as far as both go.
func (r *recalled) agrees(computed []uint64) bool {
	n := min(len(r.Blocks), len(computed))
	return slices.Equal(r.Blocks[:n], computed[:n])
}

// remembers reports whether a request is remembered: it is looked up, since no rule reads it to its end, or rules read it that events have
// not proved. If events contradict these, the next such request is found.
func (l *lookup) remembers(r *reading) bool {
	return l.looksUp() || l.read.learnable() && l.standing.Unproven(l.read.prompt, r.shaped, l.read.keyed(r.adapter))
}

// looksUp reports whether a request is looked up in what is remembered.
func (l *lookup) looksUp() bool {
	return l.read.learnable() && (l.read.err != nil || !l.read.prompt.Exact)
}

// learnable reports whether events can tell what becomes of the request.
func (e *engineReading) learnable() bool {
	return !e.facts.Several && e.facts.Ambiguous(false) == "" && !e.refused()
}

// recall replaces the blocks by remembered ones if these are more. path is the request's, read once for all lookups.
func (l *lookup) recall(in *lookInput, path *learned.Path) {
	r := &l.recalled
	l.own = len(l.locals)
	if in.learning == nil || !l.remembers(in.reading) {
		return
	}
	if len(path.Steps) == 0 {
		head := learned.Head{Endpoint: in.path, Model: in.model.Name, Adapter: in.adapter, Tenant: in.tenant}
		for i := range in.byEngine {
			head.Media = append(head.Media, in.byEngine[i].texts...)
		}
		in.learning.paths().Read(path, head, &in.body, &in.req)
	}
	class := learnedClass(in.model.Name, l.class.Name, l.form)
	facts := &l.read.facts
	r.path = path
	if facts.Ambiguous(len(r.path.Media) > 0) != "" {
		return
	}
	r.teach = class
	in.learning.sizes.Fill(r.teach, r.path)
	if !l.looksUp() {
		return
	}
	r.class = r.teach
	in.learning.memory.Recall(r.class, path, &r.Recalled)
	// What rules computed is otherwise, as where a URL shows another image now; or the prompt is cut, and one that goes on begins elsewhere.
	if !r.agrees(l.locals) || facts.Truncated && r.Tokens == 0 {
		r.Recalled = learned.Recalled{Blocks: r.Blocks[:0], Estimate: true}
	}
	p, known := l.read.prompt, 0
	if r.Learned > 0 {
		known = r.Learned*l.form.Size + l.form.Size/2
	}
	if cut := len(p.Media) - 1; cut >= 0 && cut < len(path.Media) && p.Media[cut].Length == 0 && len(p.IDs) > known {
		known, r.Steps = len(p.IDs), path.Media[cut].Step
	}
	r.size = in.learning.sizes.Of(r.class)
	r.scale = float64(known) / max(1, r.size.Tokens(path.Steps[:r.Steps]))
	r.tokens = r.Tokens
	switch {
	case r.tokens > 0:
	case !slices.ContainsFunc(path.Steps[r.Steps:], func(s learned.Step) bool { return s.Media || s.Bytes > 0 }):
		r.tokens = max(len(r.Blocks)*l.form.Size, len(p.IDs)) // it may end with its last block, which is not found then
	default:
		r.tokens = max(len(r.Blocks)*l.form.Size+1, int(r.tokensOf(path.Steps, 0, len(path.Steps))), len(p.IDs))
	}
	if len(r.Blocks) > len(l.locals) {
		r.used = true
		l.locals = append(l.locals[:0], r.Blocks...)
	}
}

// learnedClass returns the number of a class of workers with blocks of one form, the same in all replicas.
func learnedClass(model, class string, form block.Form) uint32 {
	return numberOf(model, class, strconv.Itoa(form.Size), strconv.Itoa(form.Lookahead))
}

// numberOf returns a number of some texts, which is not 0.
func numberOf(texts ...string) uint32 {
	h := fnv.New32a()
	for _, text := range texts {
		_, _ = io.WriteString(h, text+"\x00")
	}
	return h.Sum32() | 1
}

// tokensOf returns about how many tokens some steps of the request's path are.
func (r *recalled) tokensOf(steps []learned.Step, from, to int) float64 {
	known := max(from, min(r.Steps, to))
	return r.scale*r.size.Tokens(steps[from:known]) + r.size.Tokens(steps[known:to])
}

// least returns how many tokens the prompt nearly always has: languages differ by half in tokens for each byte, and images by no more.
// Audio, video and files that were not seen before may be any number.
func (r *recalled) least() float64 {
	known := r.tokensOf(r.path.Steps, 0, r.Steps)
	rest := r.tokensOf(r.path.Steps, 0, len(r.path.Steps)) - known
	for _, md := range r.path.Media {
		if md.Other && md.Step >= r.Steps && r.path.Steps[md.Step].Bytes == 0 {
			rest -= r.size.PerMedium
		}
	}
	return known + rest/2
}

// blocksOf returns about how many blocks of a size the first steps of the request's path are; 0 if memory knows them: then the index says
// who holds them, and who has evicted them since.
func (r *recalled) blocksOf(steps, size int) int {
	if steps <= r.Steps {
		return 0
	}
	n := int(r.tokensOf(r.path.Steps, 0, steps)) / size
	if steps <= r.Reach {
		n = min(n, len(r.Blocks))
	}
	return n
}

// recallImages adds the images that no rule reads, which are known by their part of the body, and estimates their places.
func (l *lookup) recallImages() {
	r, path, end, next := &l.recalled, l.recalled.path, 0.0, 0
	for i, md := range path.Media[:min(len(path.Media), maxMedia)] {
		if i == len(l.images) {
			l.images = append(l.images, placedMedium{})
		}
		begin := end + r.tokensOf(path.Steps, next, md.Step)
		next = md.Step + 1
		end = begin + r.tokensOf(path.Steps, md.Step, next)
		one := &l.images[i]
		if one.Key|one.Alias == 0 {
			one.Key = md.ID
		}
		if one.end == 0 {
			one.Tokens, one.end = int(end-begin), int(end)
		}
	}
}

// appendChain appends the numbers of a path's steps, under which it is predicted.
func appendChain(dst []uint64, p *learned.Path) []uint64 {
	for i := range p.Steps {
		dst = append(dst, p.Steps[i].Number[0])
	}
	return dst
}

// watch begins to watch a request that is remembered, on its way to a slot; nil: it is not.
func (l *learning) watch(id string, slot *fleet.Slot, session string, q *learned.Request) {
	if q == nil {
		l.receiver().Borrowed(slot.ID, session) // a client's
		return
	}
	q.ID, q.Slot, q.Worker, q.Session = id, slot.ID, numberOf(slot.Worker.Name), session
	l.learner.Watch(q)
}

// others reports whether others send requests to a slot too, and whether some of these are not watched: other replicas' are, those of
// clients that go past Sightline are not.
func (l *learning) others(slot *fleet.Slot, now time.Time) (shared, unwatched bool) {
	unwatched = slot.Load(now).OtherSenders > 0
	return l.replicas || unwatched, unwatched
}

// watchTheirs watches a request of another replica, of which q says how the slot serves it, so that its events are taken for no other
// one's. It returns what they show; nil: nothing.
func (l *learning) watchTheirs(id string, slot *fleet.Slot, s *SharedBooking, q *learned.Request) *fleet.Seen {
	if l == nil || len(s.Path) == 0 || q.Size == 0 || l.learner.Named(slot.ID) { // where events name sessions, they tell it apart
		return nil
	}
	q.ID, q.Slot, q.Begin, q.Shared, q.Theirs = id, slot.ID, s.Locals, true, true
	q.Seen = &fleet.Seen{Blocks: s.Context / max(1, s.Answers) / q.Size, Others: true}
	for _, number := range s.Path {
		q.Path.Steps = append(q.Path.Steps, learned.Step{Number: [2]uint64{number}})
	}
	l.learner.Watch(q)
	return q.Seen
}

// predict predicts that a slot will have what a path's steps become.
func (l *learning) predict(slot *fleet.Slot, path []uint64, ttl time.Duration, now time.Time) *speculative.Promise {
	if l == nil {
		return nil
	}
	return l.sent.Add(uint32(slot.ID), path, 0, speculative.Longest(ttl), now)
}

// withdraw withdraws what predict predicted, as of a request that its worker refused.
func (l *learning) withdraw(made *speculative.Promise, path []uint64) {
	if l != nil {
		l.sent.Withdraw(made, path)
	}
}

// watching returns what is to be watched of the request at a slot, whose prompt should begin with some blocks; nil: nothing.
func (l *lookup) watching(begin []uint64) *learned.Request {
	if l.recalled.teach == 0 || l.recalled.class == 0 && !l.standing.CountUnproven() {
		return nil
	}
	path := l.recalled.path
	return &learned.Request{Class: l.recalled.teach, Size: l.form.Size, Begin: begin, AtEnd: l.class.rules.AnswersAtEnd,
		Seen: &fleet.Seen{Blocks: l.tokens() / l.form.Size},
		Path: learned.Path{Steps: slices.Clone(path.Steps), Media: slices.Clone(path.Media), Said: path.Said, SaidAt: path.SaidAt}}
}

// taught ends the watch of a request.
func (l *learning) taught(o *Outcome) {
	if o.Code != http.StatusOK {
		l.receiver().Drop(o.ID)
		return
	}
	l.receiver().End(o.ID, learned.Report{Prompt: o.PromptTokens, Output: cmp.Or(o.OutputTokens, -1)})
}

// receiver returns the receiver of the workers' stored events; nil: nothing is learned.
func (l *learning) receiver() *learned.Learner {
	if l == nil {
		return nil
	}
	return l.learner
}

// Learner returns the receiver of the workers' stored events; nil: nothing is learned.
func (r *Router) Learner() *learned.Learner { return r.learning.receiver() }

// bytes returns what the secret is now.
func (l *learning) bytes() []byte {
	if l.secret == nil {
		return nil // as block.Fixed
	}
	b := l.secret.Bytes()
	return b[:]
}

// stats returns what is remembered.
func (l *learning) stats() learned.Stats {
	if l == nil {
		return learned.Stats{}
	}
	return l.memory.Stats()
}
