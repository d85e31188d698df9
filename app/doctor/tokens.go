package doctor

import (
	"net/http"
	"slices"
	"time"

	"github.com/sightline-router/sightline/app/findings"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/workers/probe"
)

const plainText = "text" // the probe's name for it

func anImage(what string) bool { return what == probe.Image || what == probe.LargeImage }

// compared reports what the probe found for the conversations selected by meant.
func (s *collected) compared(r *report, meant func(what string) bool) {
	s.asked(r, func(w *worker) {
		seen, wrong := 0, 0
		for _, p := range s.probes {
			for _, f := range p.Findings {
				if p.Worker != w.Name || !meant(f.What) {
					continue
				}
				switch f.Verdict {
				case probe.Equal:
					seen++
				case probe.Differs:
					wrong++
					_, _, fix := findings.OfProbe(f.What)
					at := ""
					if d := f.Difference; d != nil {
						at = ": first difference " + d.String()
					} else {
						at = " " + f.Detail
					}
					r.bad(Error, fix, "%s, %s%s", w.Name, f.What, at)
				case probe.Refused:
					if anImage(f.What) {
						r.bad(Warning, "--limit-mm-per-prompt: the same at all workers, with room for the images that clients send",
							"%s, %s: refused, %s", w.Name, f.What, f.Detail)
						continue
					}
					fallthrough
				default:
					r.unchecked("%s, %s: %s %s", w.Name, f.What, f.Verdict, f.Detail)
				}
			}
		}
		switch {
		case seen > 0 && wrong == 0:
			r.ok("%s: %d texts", w.Name, seen)
		case seen+wrong == 0:
			r.unchecked("%s has no /tokenize for it, or no rule reads it (SL0206)", w.Name)
		}
	})
}

// differs reports whether the probe found different tokens in plain text, which makes everything else differ too.
func (s *collected) differs(what string) bool {
	return slices.ContainsFunc(s.probes, func(p probe.Result) bool {
		return slices.ContainsFunc(p.Findings, func(f probe.Finding) bool { return f.What == what && f.Verdict == probe.Differs })
	})
}

// readings says of each class of workers whether its requests are read by rule or learned, and why, and whether a rule has stepped
// aside (SL0206). Files that do not load are a mistake of the configuration (SL0501).
func readings(s *collected, r *report) {
	asks(s, r)
	for _, says := range s.readings {
		r.ok("%s", says)
	}
}

// tokenizers checks that plain text becomes the same tokens here and at the workers (SL0202).
func tokenizers(s *collected, r *report) {
	s.compared(r, func(what string) bool { return what == plainText })
	s.asked(r, func(w *worker) {
		if theirs := w.facts.Revision; theirs != "" && theirs != w.class.Revision {
			r.bad(Warning, "revision: "+theirs, "%s has revision %s, configured is %q", w.Name, theirs, w.class.Revision)
		}
	})
}

// templates checks that conversations become the same tokens here and at the workers (SL0201).
func templates(s *collected, r *report) {
	if s.differs(plainText) {
		r.unchecked("plain text differs already (SL0202)")
		return
	}
	s.compared(r, func(what string) bool {
		return slices.Contains([]string{"one turn", "system and user", "several turns"}, what)
	})
}

// images checks that images become the same tokens and names here and at the workers (SL0204).
func images(s *collected, r *report) {
	if s.differs("one turn") || s.differs(plainText) {
		r.unchecked("texts differ already (SL0201, SL0202)")
		return
	}
	s.compared(r, anImage)
}

// decisions returns the last decisions of the running Sightline.
func (s *collected) decisions() []router.Recent {
	if s.running == nil {
		return nil
	}
	return s.running.decisions
}

// auditAge is how old a finding of the audit may be: what it was about may have been corrected since.
const auditAge = time.Hour

// audited returns the running Sightline's last audit findings with one of these verdicts.
func (s *collected) audited(verdicts ...audit.Verdict) (list []audit.Finding) {
	if s.running != nil {
		for _, f := range s.running.findings {
			if slices.Contains(verdicts, f.Verdict) && (f.At.IsZero() || s.began.Sub(f.At) < auditAge) {
				list = append(list, f)
			}
		}
	}
	return list
}

// sizeOf returns the block size of the worker that a decision chose.
func (s *collected) sizeOf(d *router.Recent) int {
	for _, w := range s.workers {
		if w.Name == d.Worker {
			for _, row := range w.of(s.rows()) {
				if row.BlockSize > 0 {
					return row.BlockSize
				}
			}
			return w.class.BlockSize
		}
	}
	return 0
}

// shortPrompts checks that prompts are longer than a block (SL0203).
func shortPrompts(s *collected, r *report) {
	read, short, size := 0, 0, 0
	for _, d := range s.decisions() {
		if n := s.sizeOf(&d); d.PromptTokens > 0 && n > 0 && !d.Memory {
			read++
			if d.PromptTokens < n {
				short, size = short+1, n
			}
		}
	}
	switch {
	case s.running == nil:
		r.unchecked("%s", s.notFoundReason)
	case read == 0:
		r.unchecked("the running Sightline has decided nothing yet")
	case 2*short > read:
		r.bad(Warning, "nothing to fix: engines cache whole blocks (a smaller --block-size, where the model allows it)",
			"%d of the last %d prompts are shorter than a block of %d tokens: 0 hits is right for them", short, read, size)
	default:
		r.ok("%d of the last %d prompts are shorter than a block", short, read)
	}
}

// hits checks that requests hit blocks computed before (SL0205). If not, it reports the first cause that applies.
func hits(s *collected, r *report) {
	if s.running == nil {
		r.unchecked("%s", s.notFoundReason)
		return
	}
	var asked, found, unknown, short, more, fewer, told, behind, blind int
	begun := map[uint32]int{}
	for _, d := range s.decisions() {
		size := s.sizeOf(&d)
		if d.Asked != "" {
			unknown++
		}
		if d.PromptTokens == 0 || d.Reason == router.RefusedByUs {
			continue
		}
		asked++
		if d.CachedTokens > 0 {
			found++
		}
		if d.PromptTokens < size {
			short++
		}
		if d.Code == http.StatusOK && d.Reported >= 0 && d.Used == d.Addr { // otherwise the count is another worker's
			told++
			if d.Reported >= d.CachedTokens+max(size, 1) && !d.Partial {
				more++
			} else if d.Reported < d.CachedTokens {
				fewer++
			}
		}
		begun[d.Begins]++
		if d.Begins != 0 && begun[d.Begins] == 2 && d.PromptTokens >= size {
			blind += 2
		} else if d.Begins != 0 && begun[d.Begins] > 2 && d.PromptTokens >= size {
			blind++
		}
	}
	full := ""
	for _, row := range s.rows() {
		if row.Events != "live" && row.Events != "none" {
			behind++
		}
		if row.Report != nil && row.Report.Usage != nil && *row.Report.Usage > 0.9 {
			full = "; the KV cache of " + row.Name + " is full"
		}
	}
	other := s.audited(audit.Token, audit.Span, audit.MediaName, audit.Keys, audit.Block, audit.BlockSize)
	switch {
	case asked+unknown == 0:
		r.unchecked("the running Sightline has decided nothing yet")
	case 2*unknown > asked+unknown:
		r.bad(Warning, "aliases of the intended model (SL0103 lists the names)",
			"wrong name: %d of the last %d requests name a model that no worker serves", unknown, asked+unknown)
	case len(other) > 0:
		r.bad(Error, "see SL0201, SL0202 and SL0204, or block_size", "different tokens: %s stored another prompt than predicted: %s",
			other[0].Worker, other[0].Says)
	case s.differs(plainText) || s.differs("one turn"):
		r.bad(Error, "see SL0201 and SL0202", "different tokens: workers do not read prompts as Sightline does")
	case asked < 4 || 10*found >= asked && 2*fewer <= found: // 10 percent
		r.ok("%d of the last %d requests had a hit", found, asked)
	case behind > 0:
		r.bad(Error, "see SL0303", "events late: %d event streams are behind, so the workers' contents are not known", behind)
	case 2*more > told && told > 0:
		r.bad(Error, "see SL0301, SL0303 and SL0304", "events late or lost: engines found more than was predicted in %d of %d answers",
			more, told)
	case 2*short > asked:
		r.bad(Warning, "see SL0203", "%d of %d prompts are shorter than a block", short, asked)
	case full != "" || 2*fewer > max(found, 1):
		r.bad(Warning, "give workers a larger KV cache (--gpu-memory-utilization, offloading), or more workers",
			"evicted: engines found less than was predicted in %d of %d answers%s", fewer, told, full)
	case 2*blind > asked:
		r.bad(Warning,
			"put varying parts (dates, ids, names) after the common parts of prompts; a smaller --block-size, where the model allows it",
			"shared prefix shorter than a block: %d of %d prompts begin alike, and differ before the first block ends", blind, asked)
	case 50*found >= asked: // 2 percent, and no cause was found
		r.ok("%d of the last %d requests had a hit", found, asked)
	default:
		r.bad(Warning, "nothing to fix if prompts are really all different; otherwise put the varying parts after the common ones",
			"no shared prefix: %d of the last %d requests had a hit; the only cause found is that prompts begin differently", found, asked)
	}
}
