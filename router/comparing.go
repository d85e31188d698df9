package router

import (
	"sync/atomic"

	"github.com/sightline-router/sightline/internal/guard"
	"github.com/sightline-router/sightline/router/account"
	"github.com/sightline-router/sightline/router/changes"
)

// A prompt of which no worker had the end is compared with earlier ones, which may have had it behind another beginning (package changes).
// That is done once the request is on its way, by the report that says so, or else by that of its end; without a report it is not done.

// comparison is a prompt that is to be compared, of which nothing is remembered from one token to another.
type comparison struct {
	prompt   changes.Prompt
	from, to int
	all      bool // all of it is to be remembered
	bytes    int64
}

// comparisons are those that are to come.
type comparisons struct {
	prompts atomic.Uint64 // that were decided
	bytes   atomic.Int64  // that those to come keep
}

const (
	comparisonBytes = 32 << 20 // of prompts that wait, 4 MiB of one; of others it is not told where they have changed
	partBytes       = 48
	leastUnseen     = 32 // tokens, for a comparison
	refreshEvery    = 32 // prompts, of which one is compared although its workers have it: it may have been remembered long ago
)

// findParts finds what a comparison needs of the request's body, before that goes.
func (a *lookedUp) findParts(r *reading, l *lookup) {
	if a.unread || a.multiplePrompts {
		return
	}
	key := a.prompt.BlockKey()
	a.parts = r.partsOf(a.prompt.Rendered)
	a.kind = key.Bytes([]byte(r.model.Name+" "+l.class.Name), uint64(l.form.Size))
	a.space = a.kind
	for _, text := range []string{r.adapter, a.prompt.Salt, r.tenant} { // what has blocks of its own
		a.space = key.Bytes([]byte(text), a.space)
	}
}

// comparable returns the tokens of a prompt of which nothing is remembered; ok: it is to be compared.
func (r *booker) comparable(b *bookingRecord, a *lookedUp) (from, to int, ok bool) {
	from, to = b.account.Unseen()
	refresh := r.comparisons.prompts.Add(1)%refreshEvery == 0
	return from, to, (to-from >= leastUnseen || refresh) && !a.unread && !a.multiplePrompts && a.form.Size > 0 && a.prompt.HashableIDs > 0
}

// prepareComparison keeps what a comparison needs.
func (r *booker) prepareComparison(b *bookingRecord, a *lookedUp, from, to int) {
	p := a.prompt
	c := &comparison{from: from, to: to, all: to-from < leastUnseen, bytes: int64(4*len(p.IDs) + len(p.Rendered) + partBytes*len(a.parts))}
	if r.comparisons.bytes.Add(c.bytes) > comparisonBytes || c.bytes > comparisonBytes/8 {
		r.comparisons.bytes.Add(-c.bytes)
		r.opt.NoRoom("comparisons")
		return
	}
	c.prompt = changes.Prompt{Key: p.BlockKey(), Class: a.kind, Space: a.space, Client: b.client,
		IDs: p.IDs[:p.HashableIDs], Text: p.Rendered, Parts: a.parts,
		Chain: a.chain[:min(a.own, len(a.chain))], Size: a.form.Size, Decode: a.model.Decode}
	for i := range p.Media {
		if md := &p.Media[i]; md.Length > 0 {
			c.prompt.Media = append(c.prompt.Media, changes.Medium{Offset: md.Offset, Length: md.Length, Key: md.Key})
		}
	}
	b.comparison = c
}

// compare compares a booking's prompt, if that is to come.
func (r *booker) compare(b *bookingRecord) {
	c := b.comparison
	if c == nil {
		return
	}
	defer r.dropComparison(b)
	err := guard.Call(func() error {
		runs, change := r.changes.Compare(&c.prompt, c.from, c.to, c.all)
		for _, run := range runs {
			switch {
			case run.Had == changes.Behind:
				b.account.Explain(run.From, run.To, account.Changed, "", change)
			case run.Had == changes.Salted:
				b.account.Explain(run.From, run.To, account.Salt, "", nil)
			case r.past.Full():
				b.account.Explain(run.From, run.To, account.Unknown, "longer ago than is remembered of workers", nil)
			}
		}
		return nil
	})
	if err != nil {
		r.opt.Log.Error("where a prompt has changed: " + err.Error())
	}
}

// dropComparison ends a booking's comparison, if there is one.
func (r *booker) dropComparison(b *bookingRecord) {
	if c := b.comparison; c != nil {
		b.comparison = nil
		r.comparisons.bytes.Add(-c.bytes)
	}
}
