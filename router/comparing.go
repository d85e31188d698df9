package router

import (
	"cmp"
	"sync/atomic"

	"github.com/sightline-router/sightline/internal/guard"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/router/account"
	"github.com/sightline-router/sightline/router/changes"
)

// A prompt of which no worker had the end is compared with earlier ones, which may have had it behind another beginning (package changes).
// That is done once the request is on its way, by the report that says so, or else by that of its end; without a report it is not done.
// Where no rule reads a prompt to its end, what its client wrote is compared too, once the engine has counted its tokens.

// comparison is a prompt that is to be compared, of which nothing is remembered from one token to another.
type comparison struct {
	prompt   *changes.Input // nil: it is compared, or not to be
	from, to int
	all      bool           // all of it is to be remembered
	words    *changes.Input // as its client wrote it, compared once its tokens are known; nil: rules read it to its end
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
func (a *lookedUp) findParts(r *reading, l *lookup, secret *block.Secret) {
	if a.multiplePrompts || a.unread && !a.remembered {
		return
	}
	key := secret.Key()
	a.kind = key.Bytes([]byte(r.model.Name+" "+l.class.Name), uint64(l.form.Size))
	a.space = a.kind
	for _, text := range []string{r.adapter, cmp.Or(a.prompt.Salt, r.req.Fields["cache_salt"].Str), r.tenant} { // what has blocks of its own
		a.space = key.Bytes([]byte(text), a.space)
	}
	if a.remembered {
		a.words = r.clientText(l, key.Link, comparisonBytes/8)
	}
	if !a.unread && a.comparedBytes() <= comparisonBytes/8 {
		a.parts = r.partsOf(a.prompt.Rendered)
	}
}

// comparedBytes returns how much a comparison keeps of the prompt as it is read.
func (a *lookedUp) comparedBytes() int64 {
	return int64(4*len(a.prompt.IDs) + len(a.prompt.Rendered) + partBytes*len(a.parts))
}

// comparable returns the tokens of a prompt of which nothing is remembered; ok: it is to be compared.
func (r *booker) comparable(b *bookingRecord, a *lookedUp) (from, to int, ok bool) {
	from, to = b.account.Unseen()
	refresh := r.comparisons.prompts.Add(1)%refreshEvery == 0
	return from, to, (to-from >= leastUnseen || a.remembered && a.known < a.tokens || refresh) && !a.multiplePrompts && a.form.Size > 0 &&
		(a.remembered || !a.unread && a.prompt.HashableIDs > 0)
}

// prepareComparison keeps what a comparison needs.
func (r *booker) prepareComparison(b *bookingRecord, a *lookedUp, from, to int) {
	p := a.prompt
	c := &comparison{from: from, to: to, all: to-from < leastUnseen, words: a.words}
	read := !a.unread && p.HashableIDs > 0
	if read {
		c.bytes = a.comparedBytes()
	}
	if a.words != nil {
		c.bytes += int64(3*len(a.words.Text) + partBytes*(len(a.words.Parts)+len(a.words.Media))) // with its words
	}
	if r.comparisons.bytes.Add(c.bytes) > comparisonBytes || c.bytes > comparisonBytes/8 || a.remembered && a.words == nil {
		r.comparisons.bytes.Add(-c.bytes)
		r.opt.NoRoom("comparisons")
		return
	}
	with := changes.Input{Key: p.BlockKey(), Class: a.kind, Space: a.space, Client: b.client}
	if w := a.words; w != nil {
		w.Key, w.Class, w.Space, w.Client = r.opt.Secret.Key(), ^with.Class, ^with.Space, with.Client
	}
	if read {
		with.IDs, with.Text, with.Parts, with.Decode = p.IDs[:p.HashableIDs], p.Rendered, a.parts, a.model.Decode
		with.Chain, with.Size = a.chain[:min(a.own, len(a.chain))], a.form.Size
		for i := range p.Media {
			if md := &p.Media[i]; md.Length > 0 {
				form := changes.Form{Pixels: md.Facts.Pixels(), Width: md.Facts.Width}
				if md.Fetched {
					form.URL = md.Alias
				}
				with.Media = append(with.Media, changes.Span{Offset: md.Offset, Length: md.Length, Key: md.Key, Form: form})
			}
		}
		c.prompt = &with
	}
	b.comparison = c
}

// compare compares a booking's prompt as it is read, if that is to come.
func (r *booker) compare(b *bookingRecord) {
	c := b.comparison
	if c == nil || c.prompt == nil {
		return
	}
	p := c.prompt
	c.prompt = nil
	r.guarded(func() {
		runs, change := r.changes.Compare(p, c.from, c.to, c.all)
		r.explain(b.account, runs, change)
	})
	if c.words == nil {
		r.dropComparison(b)
	}
}

// compareWords compares a request as its client wrote it, if that is to come. Its account is settled: how many tokens its words are, all
// in all, is known, and no token's place.
func (r *booker) compareWords(b *bookingRecord) {
	c, a := b.comparison, b.account
	if c == nil || c.words == nil {
		return
	}
	r.guarded(func() {
		c.words.ReadWords()
		n := len(c.words.IDs)
		runs, change := r.changes.Compare(c.words, 0, n, true)
		if known := a.Change(); known != nil {
			change = known
		}
		for i := range runs {
			runs[i].From, runs[i].To = c.words.Tokens(a.Tokens, n, runs[i].From), c.words.Tokens(a.Tokens, n, runs[i].To)
		}
		r.explain(a, runs, change)
	})
}

// explain puts runs of tokens that earlier prompts had under their causes.
func (r *booker) explain(a *account.Account, runs []changes.Run, change *account.Change) {
	for _, run := range runs {
		switch from, to := run.From, run.To; {
		case run.Had == changes.Behind:
			a.Explain(from, to, account.Changed, "", change)
		case run.Had == changes.Salted:
			a.Explain(from, to, account.Salt, "", nil)
		case r.past.Full():
			a.Explain(from, to, account.Unknown, "longer ago than is remembered of workers", nil)
		}
	}
}

func (r *booker) guarded(compare func()) {
	if err := guard.Call(func() error { compare(); return nil }); err != nil {
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

// dropAbandoned ends the comparison of a booking that has expired, unless another report of it is observed now, which then does so.
func (r *booker) dropAbandoned(b *bookingRecord) {
	if b.abandoned.Load() && b.moves.TryLock() {
		defer b.moves.Unlock()
		r.dropComparison(b)
	}
}
