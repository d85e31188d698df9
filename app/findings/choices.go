package findings

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/account"
	"github.com/sightline-router/sightline/router/report"
)

const (
	fewDecided = 4    // decisions that are enough to judge hits by
	someHit    = 0.1  // of all: well
	hardlyHit  = 0.02 // of all: prompts simply differ

	turnover     = 6       // times that a cache's contents are computed in recentAge: what is computed stays for ten seconds
	someTurnover = 2       // likewise, of a cache that is much smaller than others
	muchSmaller  = 4       // than the median of the model's caches
	fewComputed  = 8       // requests
	smallestTurn = 1 << 10 // tokens that must have been computed
)

// misses lists the codes of causes for which requests find nothing.
var misses = []string{"SL0102", "SL0103", "SL0201", "SL0204", "SL0206", "SL0301", "SL0303", "SL0304", "SL0308", "SL0309", "SL0503"}

// ofChoices adds what the last decisions show: whether Envoy follows them, and if requests find nothing for which no other finding is a
// reason, the first that applies.
func (f *Facts) ofChoices(l *list) {
	sizes := map[string]int{}
	maps.Copy(sizes, f.BlockSizes)
	full := ""
	for i := range f.Workers {
		w := &f.Workers[i]
		sizes[w.Name] = max(sizes[w.Name], w.BlockSize)
		if w.Report != nil && w.Report.Usage != nil && *w.Report.Usage > 0.9 {
			full = "; the KV cache of " + w.Name + " is full"
		}
	}
	var went, elsewhere, read, found, short, told, more, fewer, alike int
	at, size := "", 0
	begun := map[uint32]int{}
	for i := range f.Last {
		d := &f.Last[i]
		// Not beyond the share of enforce, and not while it lasts: only the report of its end says whether it was tried elsewhere before.
		if d.Used != "" && d.Addr != "" && d.Lasted > 0 && d.Arm != report.Unsteered {
			went++
			if d.Used != d.Addr && !d.Retried {
				elsewhere, at = elsewhere+1, fmt.Sprintf("%s instead of %s", d.Used, d.Addr)
			}
		}
		if d.PromptTokens == 0 || d.Reason == router.RefusedByUs {
			continue
		}
		read++
		block := sizes[d.Worker]
		if d.CachedTokens > 0 {
			found++
		}
		if d.PromptTokens < block && !d.Memory {
			short, size = short+1, block
		}
		if d.Code == http.StatusOK && d.Reported >= 0 && d.Used == d.Addr { // otherwise the count is another worker's
			told++
			if d.Reported >= d.CachedTokens+max(block, 1) && !d.Partial {
				more++
			} else if d.Reported < d.CachedTokens && !d.UpperBound {
				fewer++
			}
		}
		if d.Begins != 0 && d.PromptTokens >= block {
			begun[d.Begins]++
		}
	}
	for _, n := range begun {
		if n > 1 {
			alike += n
		}
	}
	if elsewhere >= fewFailed && 10*elsewhere > went {
		l.add(Finding{Code: "SL0408", Severity: "error", kind: "elsewhere", From: "requests",
			What: fmt.Sprintf("%d of the last %d requests went elsewhere than chosen, such as %s", elsewhere, went, at),
			Fix: "workers' cluster: override_host that reads x-target-worker, or ORIGINAL_DST by that header, as \"sightline envoy --for\" " +
				"prints it"}, "", "")
	}
	add := func(severity, fix, format string, args ...any) {
		if severity == "note" && f.Seen == nil {
			return // who asks the doctor wants to know; that prompts differ is no news for the page
		}
		l.add(Finding{Code: "SL0205", Severity: severity, kind: format, From: "requests", What: fmt.Sprintf(format, args...), Fix: fix}, "", "")
	}
	const smaller = "a smaller --block-size, where the model allows it"
	const apart = "varying parts of prompts (dates, ids, names) after the common ones; " + smaller
	switch share := float64(found) / float64(max(read, 1)); {
	case read < fewDecided || share >= someHit && 2*fewer <= found:
	case slices.ContainsFunc(l.found, func(p *Finding) bool { return p.Severity != "note" && slices.Contains(misses, p.Code) }):
	case 2*more > told && told > 0:
		add("error", "see SL0301, SL0303 and SL0304",
			"events are late or lost: engines found more than was predicted in %d of %d answers", more, told)
	case 2*short > read:
		add("note", "nothing to fix: engines cache whole blocks ("+smaller+")",
			"%d of the last %d prompts are shorter than a block of %d tokens: 0 hits is right for them", short, read, size)
	case 2*fewer > max(found, 1) || full != "":
		add("warning", fixSmall, "evicted: engines found less than was predicted in %d of %d answers%s", fewer, told, full)
	case 2*alike > read:
		add("note", apart,
			"shared prefix shorter than a block: %d of %d prompts begin alike, and differ before the first block ends", alike, read)
	case share < hardlyHit:
		add("note", apart+"; nothing, if prompts are all different",
			"no shared prefix: %d of the last %d requests had a hit, as prompts begin differently", found, read)
	}
}

const fixSmall = "give workers a larger KV cache (--gpu-memory-utilization, offloading), or more workers"

// ofDepartures adds the place in prompts that costs most, if the last requests lost much there: what follows is computed again and again.
func (f *Facts) ofDepartures(l *list) {
	const few, most = 20, 5 // requests; a fifth of their tokens
	type departure struct {
		model string
		account.Change
	}
	requests, all, lost, dearest, advice := 0, 0, map[departure]int{}, departure{}, ""
	for i := range f.Last {
		d := &f.Last[i]
		if d.Account == nil {
			continue
		}
		requests, all = requests+1, all+d.Account.Tokens
		if c := d.Account.Change(); c != nil {
			at := departure{d.Model, c.General()}
			lost[at] += d.Account.Uncached[account.Changed]
			if lost[at] > lost[dearest] {
				dearest, advice = at, c.Advice()
			}
		}
	}
	if n := lost[dearest]; requests >= few && most*n > all && advice != "" {
		l.add(Finding{Code: "SL0205", Severity: "warning", kind: "place", From: "requests",
			What: fmt.Sprintf("%d %% of the last %d requests' prompt tokens are computed again: of model %s %s", 100*n/all, requests,
				dearest.model, dearest.String()),
			Fix: advice + " (docs/meter.md)"}, "", "")
	}
}

// ofCaches adds workers whose cache is too small for what they compute: it is evicted before it is asked for again.
func (f *Facts) ofCaches(l *list) {
	type cache struct {
		model                                string
		size, held, room, computed, requests int
		since                                time.Time // before it, its cache may have been another
		unknown                              bool
	}
	caches, others := map[string]*cache{}, map[string][]int{}
	for i := range f.Workers { // or ranks
		w := &f.Workers[i]
		c := caches[w.Addr]
		if c == nil {
			c = &cache{model: w.Model}
			caches[w.Addr] = c
		}
		c.size, c.held, c.room = w.BlockSize, c.held+w.Blocks*w.BlockSize, c.room+w.CacheTokens
		if c.since.Before(w.BehindAt) {
			c.since = w.BehindAt
		}
		c.unknown = c.unknown || w.Events != "live" || w.Partial || w.UpperBound != "" || w.BlockSize == 0 || w.Blocks == 0
	}
	for i := range f.Recent {
		r := &f.Recent[i]
		c := caches[r.Used]
		if c == nil || c.unknown || r.Code != http.StatusOK || f.Now.Sub(r.At) > recentAge || r.At.Before(c.since) || r.Reported < 0 && r.Memory {
			continue
		}
		cached := r.Reported
		if cached < 0 {
			cached = r.CachedTokens
		}
		c.computed += max(0, (r.PromptTokens+r.OutputTokens)/c.size*c.size-cached)
		c.requests++
	}
	for _, c := range caches {
		c.held = max(c.held, c.room)
		if !c.unknown {
			others[c.model] = append(others[c.model], c.held)
		}
	}
	for i := range f.Workers {
		w := &f.Workers[i]
		c := caches[w.Addr]
		n, has := c.computed, c.held
		if c.unknown || c.requests < fewComputed || n < smallestTurn || slices.Contains(f.SomeLate, w.Name) {
			continue
		}
		all := slices.Sorted(slices.Values(others[w.Model]))
		small := n > someTurnover*has && muchSmaller*has < all[len(all)/2]
		if small || n > turnover*has {
			l.add(Finding{Code: "SL0503", Severity: "warning", kind: "cache", From: "events", Fix: fixSmall, after: mayBeLate,
				What: "its KV cache is too small: what it computes is evicted before it is asked for again"}, w.Name,
				fmt.Sprintf("it has room for %d tokens and has computed %d in a minute", has, n))
		}
	}
}

// ofRoles adds models without a worker for whole requests, or for a role.
func (f *Facts) ofRoles(l *list) {
	of, all := map[string]map[string]int{}, map[string]int{}
	for i := range f.Workers {
		w := &f.Workers[i]
		all[w.Model]++
		if of[w.Model] == nil {
			of[w.Model] = map[string]int{}
		}
		if w.Health == nil && w.Events != "not ready" {
			of[w.Model][w.Role]++
		}
	}
	models := f.Models
	for model := range all {
		if !slices.Contains(models, model) {
			models = append(models, model)
		}
	}
	for _, model := range slices.Sorted(slices.Values(models)) {
		well := 0
		for _, n := range of[model] {
			well += n
		}
		prefill, encode, decode := of[model]["prefill"], of[model]["encode"], of[model]["decode"]
		p := Finding{Code: "SL0109", Severity: "error", kind: "roles " + model, From: "workers"}
		switch {
		case well == 0 && all[model] == 0:
			p.What, p.Fix = "no worker serves it", "start a worker of it, or correct model of a worker's entry or of the finder's group"
			p.after = starting
		case well == 0:
			p.What, p.Fix = fmt.Sprintf("no worker gets requests, of %d", all[model]), "see why they are out: the other lines of SL0109"
		case well == prefill+encode:
			p.What = fmt.Sprintf("%d workers prefill, %d encode, none decodes", prefill, encode)
			p.Fix = "start workers with role: decode or without a role (Dynamo: of dynamo.component); those with role: prefill " +
				"(Dynamo: of prefill_component) compute no answers"
		case prefill == 0 && decode > 0:
			p.Severity, p.What = "warning", fmt.Sprintf("%d workers have the role decode, none prefills for them: they do it themselves", decode)
			p.Fix = "start workers with role: prefill; if all are to do whole requests, leave role out"
		default:
			continue
		}
		p.What = model + ": " + p.What
		l.add(p, "", "")
	}
}
