package router

import (
	"slices"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/router/changes"
	"github.com/sightline-router/sightline/router/learned"
)

// lookup is one way in which a prompt is looked up: by the blocks that slots of one class have, if these are of one form and the same rules
// have stepped aside for them. It is named by its index in overlap.lookups; the first ones are those of the classes, in their order.
type lookup struct {
	class         *servedClass
	form          block.Form
	hasWorkers    bool           // there are such slots among those that may get the request
	read          *engineReading // how their engine reads the request; &cut if a rule has stepped aside
	locals, chain []uint64
	own           int // of locals that were computed: the others are recalled
	recalled      recalled
	standing      *audit.Standing // of the rules that compute its prompts
	aside         audit.Rules     // those that have stepped aside for its workers
	cut           engineReading   // without what these compute, if its computed is set
	computed      []uint64        // then the blocks with it
	images        []placedMedium  // of the prompt
	front         uint64          // chain hash of the last block that some slot holds; 0: none
}

const (
	maxMedia     = 64   // media of a prompt that influence a choice
	unknownImage = 1000 // tokens assumed for an image of unknown size: about 1280×720 for most families
)

// unit returns how many blocks the lower tiers of its workers return at once.
func (l *lookup) unit() int { return max(1, l.class.Unit/max(1, l.form.Size)) }

// tokens returns how many tokens the prompt has, at least as far as it is known or estimated.
func (l *lookup) tokens() int {
	if l.read.computed != nil && l.recalled.Tokens > 0 {
		return l.recalled.Tokens
	}
	return max(len(l.read.prompt.IDs), l.recalled.tokens)
}

// knownTokens returns how many tokens the prompt has as far as it is read or remembered: an estimate does not count.
func (l *lookup) knownTokens() int {
	if l.read.computed != nil && l.recalled.Tokens > 0 {
		return l.recalled.Tokens
	}
	return max(len(l.read.prompt.IDs), l.recalled.Tokens)
}

// usable returns how many leading tokens the engine can find cached. It always computes the last one, so a prompt that is wholly cached
// loses its last block (vLLM). Of a prompt whose length is not known it is no more than the prompt nearly always has.
func (l *lookup) usable() int {
	tokens, r := l.tokens()-1, &l.recalled
	if r.class != 0 && r.Tokens == 0 {
		blocks := len(r.Blocks)
		untold := func(s learned.Step) bool { return s.Untold }
		if r.Reach > r.Steps && (r.Reach >= len(r.path.Steps)-1 || slices.ContainsFunc(r.path.Steps[r.Steps:r.Reach], untold)) {
			blocks = r.Learned // the others may be behind the prompt's end
		}
		tokens = min(tokens, max(len(l.read.prompt.IDs)-1, blocks*l.form.Size, int(r.least())))
	}
	return max(0, tokens) / l.form.Size * l.form.Size
}

// begin replaces a lookup by a new one. It uses the slices of an earlier decision's again.
func (l *lookup) begin(r *reading, class *servedClass, form block.Form, standing *audit.Standing, aside audit.Rules) {
	l.class, l.form, l.hasWorkers, l.standing, l.aside, l.cut.computed, l.front = class, form, false, standing, aside, nil, 0
	l.read = &r.byEngine[class.reading]
	l.recalled = recalled{Recalled: learned.Recalled{Blocks: l.recalled.Blocks[:0]}}
}

// stepAside cuts the prompt where a rule begins to matter that has stepped aside for the workers. The cut reading replaces the whole
// one; what the rule computes is kept in it for the audit.
func (l *lookup) stepAside(r *reading) {
	whole := l.read
	if l.aside == 0 || !l.hasWorkers || whole.err != nil {
		return
	}
	from, why := l.standing.Cut(l.aside, whole.prompt, r.shaped, whole.keyed(r.adapter))
	if from > len(whole.prompt.IDs) {
		return
	}
	cut := *whole.prompt // its ids and media remain, as estimates of what the prompt costs
	cut.HashableIDs, cut.Exact, cut.Why = min(cut.HashableIDs, from), false, why
	l.cut = *whole
	l.cut.prompt, l.cut.computed, l.cut.engineTokens = &cut, whole.prompt, 0
	l.computed = whole.prompt.Locals(l.computed[:0], l.form, r.adapter)
	l.read = &l.cut
}

// placedMedium is an image or another medium of a prompt.
type placedMedium struct {
	SharedMedium     // what its encoding costs
	end          int // first token of the prompt behind it; 0: not known
}

// listImages lists the prompt's images, after what is known of it.
func (l *lookup) listImages() {
	p := l.read.prompt
	l.images = l.images[:0]
	for i := range p.Media[:min(len(p.Media), maxMedia)] {
		md := &p.Media[i]
		one := placedMedium{SharedMedium{md.Key, md.Alias, md.Length}, md.Offset + md.Length}
		if md.Length == 0 {
			one.Tokens, one.end = unknownImage, 0
		}
		l.images = append(l.images, one)
	}
	if l.recalled.class != 0 {
		l.recallImages()
	}
}

// lookedUp is a prompt as it was looked up, kept beyond the decision.
type lookedUp struct {
	class                           *servedClass
	form                            block.Form
	unit                            int // blocks that the lower tiers return at once
	prompt                          *engine.Prompt
	locals, chain                   []uint64
	parts                           []changes.Part // of the prompt's text, if it may be compared; with it
	words                           *changes.Input // as its client wrote it, if rules do not read it to its end; with it
	kind, space                     uint64         // changes.Input's Class and Space
	images                          []placedMedium
	multiplePrompts, mayBypassCache bool // there are several prompts; the engine may not read its cache
	unread                          bool
	engineTokens                    int
	answers                         int              // decoded at the same time
	own                             int              // of locals, those that were computed
	tokens                          int              // of the prompt, maybe estimated
	known                           int              // of tokens, those that are read or remembered
	remembered                      bool             // the prompt is looked up as events taught
	recomputed                      bool             // the engine does not read its cache
	estimate                        bool             // what is predicted to be cached is one
	watching                        *learned.Request // nil: nothing is learned from it
	model                           *engine.Model    // that reads the prompt
	computed                        *engine.Prompt   // by rules that have stepped aside; nil: none has
	computedLocals                  []uint64         // its blocks
	shaped, keyed                   bool             // see audit.Expectation
}

// keep copies what is to be kept. A commit calls it, once a lookup: it counts what is remembered of an unproven rule.
func (l *lookup) keep(r *reading) lookedUp {
	rd := l.read
	certain := len(l.locals)
	if l.recalled.used {
		certain = max(l.own, l.recalled.Learned)
	}
	both := slices.Concat(l.locals[:certain], l.chain[:certain])
	var computed []uint64
	if rd.computed != nil {
		computed = slices.Clone(l.computed)
	}
	return lookedUp{model: rd.model, computed: rd.computed, computedLocals: computed, shaped: r.shaped, keyed: rd.keyed(r.adapter),
		class: l.class, form: l.form, unit: l.unit(), prompt: rd.prompt, locals: both[:certain], chain: both[certain:],
		images: slices.Clone(l.images), multiplePrompts: rd.facts.Several, mayBypassCache: rd.facts.Reuse == prompt.Perhaps,
		unread: rd.err != nil, engineTokens: rd.engineTokens, answers: int(max(1, min(r.req.Fields["n"].Int(), maxChoices))),
		own: min(l.own, certain), tokens: l.tokens(), known: l.knownTokens(), remembered: l.recalled.class != 0,
		recomputed: rd.facts.Reuse == prompt.Recomputed, estimate: l.recalled.Estimate, watching: l.watching(both[:certain])}
}
