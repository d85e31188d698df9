package router

import (
	"math"
	"strings"
	"time"

	"github.com/sightline-router/sightline/router/decisionlog"
)

const (
	lineBytes   = 2048 // size of a line, without the hashes of its prompt
	sessionText = 256  // bytes of a session id that are kept to tell sessions apart
)

// newLogLine begins the decision log's line for a decision; b is its booking, nil for none.
func (p *plan) newLogLine(b *bookingRecord) *decisionlog.Line {
	d, r, c := &p.out, &p.mem.reading, &p.mem.choice
	l := &decisionlog.Line{Timestamp: p.now.UnixMilli(), ID: d.ID, Model: d.Model, Adapter: r.adapter,
		Session:     strings.Clone(r.session[:min(len(r.session), sessionText)]),
		InputLength: d.PromptTokens, HashIDs: []uint64{}, Arm: string(d.Arm), Reason: string(d.Reason), Why: d.Why, Rank: -1,
		Cached: d.CachedTokens, Held: d.HeldTokens, Regret: d.Regret,
		Took: milliseconds(p.opt.Now().Sub(p.now)), ReportedCached: -1}
	l.Steps = p.steps
	if d.Order != nil {
		l.Delay = d.Order.Delay
	}
	if b == nil {
		return l
	}
	l.Worker, l.Rank = c.Chosen.Worker.Name, c.Chosen.Rank
	l.Considered, l.Ties = len(c.Candidates), ties(c.Candidates)
	for _, one := range considered(c, p.list.slots) {
		l.Ranked = append(l.Ranked, one.Candidate)
	}
	if len(l.Ranked) > 1 {
		l.Margin = l.Ranked[1].Cost - l.Ranked[0].Cost
	}
	if d.PromptTokens > 0 {
		own := p.lookup()
		l.HashIDs = decisionlog.Spans(own.chain, own.form.Size, d.PromptTokens)
		media := own.read.prompt.Media
		for i := range media[:min(len(media), maxMedia)] {
			if media[i].Length > 0 { // else it is not in the prompt that was read
				l.Images = append(l.Images, decisionlog.Image{ID: media[i].Key, Offset: media[i].Offset, Tokens: media[i].Length})
			}
		}
	}
	return l
}

// logUnbooked writes the line of a decision that is not booked, which ends here.
func (s *state) logUnbooked(p *plan) {
	if p.booked || s.opt.Decisions == nil {
		return
	}
	l := p.newLogLine(nil)
	l.Outcome = decisionlog.NoPlace
	if p.out.Refuse != nil {
		l.Outcome, l.Status = decisionlog.Refused, p.out.Refuse.Status
	}
	s.opt.Decisions.Add(l)
}

// logEnd writes the line of a request that has ended.
func (r *follower) logEnd(e *end) {
	l := e.line
	if l == nil {
		return
	}
	l.Outcome, l.End = decisionlog.Expired, milliseconds(e.took)
	if !e.expired {
		l.Outcome, l.Status, l.Used, l.Would = decisionlog.Ended, e.o.Code, e.worker, e.would
		l.OutputLength, l.ReportedCached, l.ReportedPrompt = e.o.OutputTokens, e.o.CachedTokens, max(0, e.o.PromptTokens)
		l.FirstByte, l.Waited = milliseconds(e.o.FirstByte), milliseconds(e.at.Waited)
		if e.account != nil {
			l.Uncached, l.Changed, l.Kept, l.Rate = e.account.Uncached, e.account.Change(), e.account.Kept, e.rate(r.opt.Now())
		}
	}
	r.opt.Decisions.Add(l)
}

func milliseconds(d time.Duration) float64 { return math.Round(d.Seconds()*1e6) / 1e3 }
