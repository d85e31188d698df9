package audit

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/internal/meter"
)

// A rule by which prompts are computed steps aside when events contradict it: what it would compute is learned instead (package
// learned), until enough later requests agree with it again or the model is loaded anew. Meanwhile the rule is computed for the audit
// alone.
//
// A contradiction is certain if the event names the session that we gave to this request alone, or if two requests of a worker
// contradict one after another without a request between them that agrees. The rule steps aside for the worker that contradicts, which
// may be another engine than configured; and as long as no other worker's request has agreed, for the whole class.
//
// What ends it besides requests that agree is asked for: Options.Contradicted has the worker probed, and Probed says what was found.
//
//	another process answers at the worker's address    it is another worker, of which nothing is known yet
//	it is not as configured                            its contradictions say nothing about others: the rule is back for these
//	and later it is as configured                      the rule is back for it too
//
// Two things are no evidence against a rule: blocks after an image that the engine fetched itself, since its host may have given it
// another image than us, and events that name a session that a client chose.

// Rule is how a part of prompts is read here, as the engine reads it. It stands, or steps aside as a whole.
type Rule uint8

// The rules, and which requests each reads.
const (
	RuleText       Rule = iota // template and tokenizer: of all requests
	RuleParameters             // of requests that shape their prompts by parameters of their own
	RuleKeys                   // of requests with a salt or an adapter
	RuleImages                 // tokens and names, from the first image on
	RuleAudio
	RuleVideo
	ruleCount
)

var ruleNames = [ruleCount]string{"text", "parameters", "keys", "images", "audio", "video"}

func (r Rule) String() string { return ruleNames[r] }

// Rules is a set of rules.
type Rules uint8

const every = ^Rules(0)

// Has reports whether a rule is in the set.
func (s Rules) Has(r Rule) bool { return s&(1<<r) != 0 }

// ruleOf returns the rule for media of a modality.
func ruleOf(modality string) Rule {
	switch {
	case strings.HasPrefix(modality, "audio"):
		return RuleAudio
	case strings.HasPrefix(modality, "video"):
		return RuleVideo
	}
	return RuleImages
}

// proof is how many requests must agree with a rule, one after another, for it to be back. A rule that is wrong for one request in ten
// passes 32 of them by chance in 3 of 100 attempts; each time that it is contradicted again, twice as many are needed. Once forgiven times
// as many have agreed, it begins with 32 again: a template with today's date differs at midnight.
const (
	proof      = 32
	maxProof   = 1 << 14
	forgiven   = 16
	mostBeside = 1024 // requests of a class that are remembered while a rule is unproven; without events it is never proven
)

// Class is what is known of the rules for one class of a model's workers. It is safe for concurrent use; a nil Class knows nothing.
type Class struct {
	a           *Auditor
	model, name string
	live        *engine.LiveModel
	now         atomic.Pointer[Standing]

	mu     sync.Mutex
	of     *engine.Model // to which rules applies: a model that is loaded anew begins anew
	rules  [ruleCount]ruleState
	unsaid []func()     // log lines, to be written without mu
	beside atomic.Int64 // requests that were remembered beside a rule that is not proven
}

type ruleState struct {
	use         // for workers that have not contradicted
	agreed  int // requests that agreed, up to proof
	workers map[string]*workerRule
	aside   Aside // about the first contradiction; zero: it is in use everywhere
}

type workerRule struct {
	use          // out: it has contradicted
	agreed  bool // since its last contradiction
	suspect bool // its last request contradicted, perhaps
	other   bool // it has contradicted, and is not as configured
}

// use says whether a rule is in use for some workers.
type use struct {
	out       bool
	row, need int // agreements in its present state, and how many bring it back; 0: it has always been in use, or was forgiven
}

// end puts the rule out, unless it is. The next time twice as many must agree.
func (u *use) end() {
	if !u.out {
		u.out, u.row, u.need = true, 0, min(max(proof, 2*u.need), maxProof)
	}
}

// agree notes that a request agrees, and reports whether that brings the rule back.
func (u *use) agree() (back bool) {
	u.row++
	switch {
	case u.out && u.row >= u.need:
		u.out, u.row = false, 0
		return true
	case !u.out && u.row >= forgiven*u.need:
		u.need = 0
	}
	return false
}

// Standing says which rules have stepped aside for a class. It does not change.
type Standing struct {
	of       *engine.Model
	rest     Rules            // for workers that are not in byWorker
	byWorker map[string]Rules // for workers with a standing of their own
	unproven Rules            // fewer requests than the proof have agreed: theirs are remembered too
	beside   *atomic.Int64    // requests of the class that were remembered so, mostBeside at most
	why      [ruleCount]string
}

// Aside describes a rule that has stepped aside, for /problems, doctor and the log.
type Aside struct {
	Model   string    `json:"model"`
	Class   string    `json:"class,omitempty"`
	Rule    string    `json:"rule"`
	Since   time.Time `json:"since"`
	Workers []string  `json:"workers"` // that have contradicted it
	All     bool      `json:"all"`     // it has stepped aside for the class's other workers too
	First   Finding   `json:"first"`   // the first contradiction
	Agreed  int       `json:"agreed"`  // later requests of such a worker that agreed, one after another
	Needed  int       `json:"needed"`  // the number of agreeing requests that brings it back
}

// Text says it in a sentence.
func (s *Aside) Text() string {
	return fmt.Sprintf("the rule for %s has stepped aside, since %s contradicts it: %s; it is back after %d requests that agree (%d so far)",
		s.Rule, s.First.Worker, s.First.Says, s.Needed, s.Agreed)
}

// Why is the reason of decisions that are not exact for it, one of a fixed set.
func (s *Aside) Why() string {
	return "events contradict the rule for " + s.Rule + ": " + string(s.First.Verdict)
}

// ClassName names a class of a model's workers.
type ClassName struct {
	Model, Class string
	Prompts      *engine.LiveModel
}

// Serve replaces the classes whose rules are judged. All rules are in use again.
func (a *Auditor) Serve(names []ClassName) []*Class {
	if a == nil {
		return make([]*Class, len(names))
	}
	list := make([]*Class, 0, len(names))
	for _, n := range names {
		c := &Class{a: a, model: n.Model, name: n.Class, live: n.Prompts}
		c.reset(n.Prompts.Model())
		list = append(list, c)
	}
	a.mu.Lock()
	a.classes = list
	a.mu.Unlock()
	return list
}

// reset begins anew, for another model of the same files. The caller holds mu, or is the only one.
func (c *Class) reset(m *engine.Model) {
	c.of = m
	c.beside.Store(0)
	for i := range c.rules {
		c.rules[i] = ruleState{workers: make(map[string]*workerRule)}
	}
	c.publish()
}

// Standing returns which rules have stepped aside. It is never nil.
func (c *Class) Standing() *Standing {
	if c == nil {
		return new(Standing)
	}
	s := c.now.Load()
	if s.of == c.live.Model() {
		return s
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.follow()
	return c.now.Load()
}

// follow begins anew if the model was loaded anew. The caller holds mu.
func (c *Class) follow() {
	if m := c.live.Model(); m != c.of {
		c.reset(m)
	}
}

// Aside returns the rules that have stepped aside for a worker.
func (s *Standing) Aside(worker string) Rules {
	if rules, ok := s.byWorker[worker]; ok {
		return rules
	}
	return s.rest
}

// Cut returns from which token on a prompt is not computed any more if some rules have stepped aside, and why; math.MaxInt: none of them
// is about it.
func (s *Standing) Cut(aside Rules, p *engine.Prompt, shaped, keyed bool) (from int, why string) {
	from = math.MaxInt
	for r := range ruleCount {
		if at := startOf(r, p, shaped, keyed); aside.Has(r) && at < from {
			from, why = at, s.why[r]
		}
	}
	return from, why
}

// Unproven reports whether a prompt is read by an unproven rule and may be remembered too: if events contradict the rule, they have shown
// what becomes of such a request. CountUnproven counts it.
func (s *Standing) Unproven(p *engine.Prompt, shaped, keyed bool) bool {
	for r := range ruleCount {
		if s.unproven.Has(r) && startOf(r, p, shaped, keyed) < math.MaxInt {
			return s.beside.Load() < mostBeside
		}
	}
	return false
}

// CountUnproven counts a request of which Unproven is true, when it is sent. It returns false if mostBeside others came first: then it is
// not remembered.
func (s *Standing) CountUnproven() bool { return s.beside.Add(1) <= mostBeside }

// startOf returns from which token on a prompt depends on a rule; math.MaxInt: it does not.
func startOf(r Rule, p *engine.Prompt, shaped, keyed bool) int {
	switch {
	case r == RuleText, r == RuleParameters && shaped, r == RuleKeys && keyed:
		return 0
	case r >= RuleImages:
		for i := range p.Media {
			if p.Media[i].Length > 0 && ruleOf(p.Media[i].Modality) == r {
				return p.Media[i].Offset
			}
		}
	}
	return math.MaxInt
}

// contradicted returns the rule that a request's finding is about. ok is false if the finding is no evidence against a rule.
func (x *request) contradicted(f *Finding) (r Rule, ok bool) {
	var medium *engine.Medium
	end := f.Position // of what may differ
	switch f.Verdict {
	case Token, Span, MediaName:
	case Keys, Block:
		end += x.Size - 1
	default:
		return 0, false
	}
	for i := range x.Prompt.Media {
		if md := &x.Prompt.Media[i]; medium == nil && md.Offset <= end && md.Offset+md.Length >= f.Position {
			medium = md
		}
	}
	from := end
	if medium != nil {
		from = medium.Offset
	}
	if x.Prompt.StablePrefix() <= from || x.borrowed {
		return 0, false
	}
	switch {
	case x.Shaped:
		return RuleParameters, true
	case medium != nil:
		return ruleOf(medium.Modality), true
	case f.Verdict == Keys && x.Keyed:
		return RuleKeys, true
	}
	return RuleText, true
}

// judgeRules takes a request's verdict as evidence for or against rules.
func (a *placements) judgeRules(x *request, v Verdict) {
	c := x.Class
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.unlock()
	c.follow()
	if x.Prompts != c.of {
		return // it was read before the model was loaded anew
	}
	if v == Equal {
		for r := range ruleCount {
			if x.proves(r) {
				c.agree(r, x.Worker)
			}
		}
		return
	}
	if x.finding == nil || x.finding.Verdict != v || !x.certain && a.o.Index.Partial(x.Slot) { // its blocks may be held and not known
		return
	}
	if r, ok := x.contradicted(x.finding); ok {
		c.contradict(r, x, *x.finding)
	}
}

// unlock releases mu, and then writes the log lines that are due.
func (c *Class) unlock() {
	lines := c.unsaid
	c.unsaid = nil
	c.mu.Unlock()
	for _, say := range lines {
		say()
	}
}

// proves reports whether a request that was stored as computed depends on a rule within its whole blocks.
func (x *request) proves(r Rule) bool {
	if r < RuleImages {
		return len(x.Locals) > 0 && startOf(r, x.Prompt, x.Shaped, x.Keyed) == 0
	}
	return slices.ContainsFunc(x.Prompt.Media, func(md engine.Medium) bool {
		return ruleOf(md.Modality) == r && md.Length > 0 && md.Offset+md.Length <= len(x.Locals)*x.Size
	})
}

func (s *ruleState) worker(name string) *workerRule {
	w := s.workers[name]
	if w == nil {
		w = new(workerRule)
		s.workers[name] = w
	}
	return w
}

// contradict notes that a request of a worker contradicts a rule. The caller holds mu.
func (c *Class) contradict(r Rule, x *request, f Finding) {
	s := &c.rules[r]
	w := s.worker(x.Worker)
	second, holds := false, false
	for _, other := range s.workers {
		second = second || other != w && (other.out && !other.other || other.suspect)
		holds = holds || other != w && other.agreed
	}
	w.row = 0
	if w.out {
		return
	}
	if !x.certain && !w.suspect && (holds || !second) {
		w.suspect = true
		return
	}
	w.agreed = false
	w.end()
	if !holds {
		s.end()
		s.row = 0
	}
	if c.a.o.Contradicted != nil {
		c.unsaid = append(c.unsaid, func() { c.a.o.Contradicted(x.Worker) })
	}
	if s.aside.Rule == "" {
		s.aside = Aside{Model: c.model, Class: c.name, Rule: r.String(), Since: f.At, First: f}
		c.unsaid = append(c.unsaid, func() {
			c.a.o.Log.Warn("a rule steps aside: "+r.String(), zap.String("model", c.model), zap.String("class", c.name),
				zap.String("worker", f.Worker), zap.String("id", f.ID), zap.String("what", f.Says))
		})
	}
	c.publish()
}

// agree notes that a request of a worker agrees with a rule. The caller holds mu.
func (c *Class) agree(r Rule, worker string) {
	s := &c.rules[r]
	w := s.worker(worker)
	w.suspect, w.agreed = false, true
	if s.agreed < proof {
		s.agreed++
		if s.agreed == proof {
			defer c.publish()
		}
	}
	if w.agree() {
		c.settle(s)
	}
	if w.out {
		return
	}
	if s.agree() { // others' requests agree: it is the workers that have contradicted
		c.settle(s)
	}
}

// settle ends the stepping aside for workers that have not contradicted if all that have are not as configured, and altogether if none
// contradicts any more. The caller holds mu.
func (c *Class) settle(s *ruleState) {
	out, others := 0, 0
	for _, w := range s.workers {
		if w.out {
			out++
			if w.other {
				others++
			}
		}
	}
	if out == others {
		s.out, s.row = false, 0
	}
	if out > 0 {
		c.publish()
		return
	}
	rule := s.aside.Rule
	c.unsaid = append(c.unsaid, func() {
		c.a.o.Log.Info("a rule is in use again: "+rule, zap.String("model", c.model), zap.String("class", c.name))
	})
	s.aside = Aside{}
	c.publish()
}

// publish makes what has changed known to decisions. The caller holds mu.
func (c *Class) publish() {
	out := &Standing{of: c.of, byWorker: make(map[string]Rules), beside: &c.beside}
	for r := range ruleCount {
		s := &c.rules[r]
		if s.agreed < proof {
			out.unproven |= 1 << r
		}
		if s.aside.Rule == "" {
			continue
		}
		out.why[r] = s.aside.Why()
		if s.out {
			out.rest |= 1 << r
		}
		for name := range s.workers {
			out.byWorker[name] = 0
		}
	}
	for name := range out.byWorker {
		for r := range ruleCount {
			s := &c.rules[r]
			w := s.workers[name]
			if s.out || w != nil && w.out {
				out.byWorker[name] |= 1 << r
			}
		}
	}
	c.now.Store(out)
}

// forget removes a worker: its contradictions count no longer.
func (c *Class) forget(worker string) {
	c.mu.Lock()
	defer c.unlock()
	for r := range c.rules {
		s := &c.rules[r]
		w := s.workers[worker]
		delete(s.workers, worker)
		if w != nil && w.out {
			c.settle(s)
		}
	}
}

// Probed takes what a worker was found to be when it was asked: as configured, or other.
func (a *Auditor) Probed(worker string, other bool) {
	if a == nil {
		return
	}
	for _, c := range a.judged() {
		c.probed(worker, other)
	}
}

func (c *Class) probed(worker string, other bool) {
	c.mu.Lock()
	defer c.unlock()
	for r := range c.rules {
		s := &c.rules[r]
		w := s.workers[worker]
		if w == nil || !w.out || w.other == other {
			continue
		}
		w.other, w.out, w.row = other, other, 0
		c.settle(s)
	}
}

func (a *Auditor) judged() []*Class {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.classes
}

// Aside returns the rules that have stepped aside, by model, class and rule.
func (a *Auditor) Aside() (list []Aside) {
	if a == nil {
		return nil
	}
	for _, c := range a.judged() {
		list = append(list, c.asides(every)...)
	}
	slices.SortStableFunc(list, func(x, y Aside) int {
		return cmp.Or(strings.Compare(x.Model, y.Model), strings.Compare(x.Class, y.Class))
	})
	return list
}

// AsideFor returns the rules that have stepped aside for a worker of a class.
func (a *Auditor) AsideFor(model, class, worker string) (list []Aside) {
	if a == nil {
		return nil
	}
	for _, c := range a.judged() {
		if c.model == model && c.name == class {
			list = append(list, c.asides(c.Standing().Aside(worker))...)
		}
	}
	return list
}

// asides returns those of some rules that have stepped aside.
func (c *Class) asides(of Rules) (list []Aside) {
	c.mu.Lock()
	defer c.unlock()
	c.follow()
	for r := range c.rules {
		s := &c.rules[r]
		if s.aside.Rule == "" || !of.Has(Rule(r)) {
			continue
		}
		one := s.aside
		one.All = s.out
		for _, name := range slices.Sorted(maps.Keys(s.workers)) {
			w := s.workers[name]
			if !w.out {
				continue
			}
			if one.Needed == 0 || w.need-w.row < one.Needed-one.Agreed {
				one.Agreed, one.Needed = w.row, w.need
			}
			one.Workers = append(one.Workers, name)
		}
		list = append(list, one)
	}
	return list
}

var asideDesc = meter.Desc("rules_aside", "Rules for reading prompts that have stepped aside.",
	"model", "class")

func (a *Auditor) collectAside(ch chan<- prometheus.Metric) {
	for _, c := range a.judged() {
		meter.Gauge(ch, asideDesc, float64(len(c.asides(every))), c.model, c.name)
	}
}
