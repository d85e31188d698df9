package router

import (
	"net/http"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/router/account"
	"github.com/sightline-router/sightline/workers/fleet"
)

// Each finished request has an account: of its prompt's tokens some were cached, and each other one has one cause (package account). The
// account is opened with the booking, since only the decision knows what all workers hold, and settled at the end by the engine's counts.

// notSteered is why an unsteered request's worker is not the one that held most.
const notSteered = "not steered"

// elsewhere returns the most tokens that slots besides one hold.
func (o *overlap) elsewhere(s *selection, but *fleet.Slot) (held int) {
	for i := range o.slots {
		if one := &o.slots[i]; s.slots[one.Slot] != but {
			held = max(held, one.Exact)
		}
	}
	for i := range o.excluded {
		held = max(held, o.excluded[i].Exact)
	}
	return held
}

// elsewhere returns the most tokens that slots besides one held at the decision.
func (u *unsteeredRequest) elsewhere(but *fleet.Slot) (held int) {
	for i := range u.estimates {
		if one := &u.estimates[i]; one.slot != but {
			held = max(held, one.exact)
		}
	}
	return held
}

// openAccount opens the account of a request at the slot that gets it, before its blocks are predicted there. elsewhere are the tokens that
// another slot holds; why that did not get the request.
func (r *booker) openAccount(b *bookingRecord, st *slotEstimate, a *lookedUp, elsewhere int, why string) {
	size := a.form.Size
	k := account.Known{Tokens: a.known, Usable: max(0, a.known-1) / size * size, Cached: st.predicted, Exact: st.exact,
		Held: st.predicted + st.unkept, Elsewhere: elsewhere, Why: why, Read: len(a.chain) * size,
		Rest: account.Unknown, RestWhy: a.prompt.Why, NoRead: a.recomputed, MayRead: a.mayBypassCache}
	switch {
	case a.multiplePrompts:
		k = account.Known{Rest: account.Unknown, RestWhy: "the request has several prompts"}
	case a.remembered:
		k.Rest, k.RestWhy = account.New, ""
	case a.prompt.Exact: // with a lookahead, the last block may have no hash
		k.Usable, k.RestWhy = min(k.Usable, k.Read), "the engine counts more tokens than were read"
	}
	if r.opt.Index.Withholds(st.slot.ID) {
		k.Withheld = size
	}
	now := r.opt.Now()
	b.account = account.Predict(k, func(spans []account.Span, from, to int) []account.Span {
		if n := r.predicted.Computed(a.chain[:to/size], from/size, now); n > 0 {
			spans = append(spans, account.Span{From: from, To: from + n*size, Cause: account.Computing})
			from += n * size
		}
		return r.appendFates(spans, a.chain[:to/size], from/size, size, now)
	})
}

const maxFates = 8 // runs of blocks, the last of which may be longer than it is known to be

// appendFates appends what became of a prompt's blocks from one on, as long as somebody had them.
func (r *booker) appendFates(spans []account.Span, chain []uint64, from, size int, now time.Time) []account.Span {
	for range maxFates {
		n, fate := r.past.Fate(chain[from:], now)
		if n == 0 {
			break
		}
		s := account.Span{From: from * size, To: (from + n) * size, Cause: account.Evicted, Worker: fate.Worker, Ago: fate.Ago}
		slot := r.opt.Fleet.Find(fate.Worker, fate.Rank)
		switch {
		case fate.Lost:
			s.Cause = account.Lost
			if slot == nil {
				s.Why = "it left"
			}
		case fate.Unclear:
			s.Cause, s.Why = account.Unknown, "the worker's events do not tell all that it holds"
		case slot != nil && !sendsEvents(slot, now):
			s.Cause, s.Why = account.Unknown, eventsLate
		}
		spans = append(spans, s)
		from += n
	}
	return spans
}

// settleAccount settles the account of a request that was answered, and remembers that its worker has its prompt and its answer.
func (r *follower) settleAccount(e *end) {
	if e.expired { // the ledger's lock is held: who compares its prompt now is not waited for
		e.abandoned.Store(true)
		r.dropAbandoned(e.bookingRecord)
		return
	}
	e.moves.Lock() // an unsteered request's account is opened when it is placed
	defer e.moves.Unlock()
	defer r.dropComparison(e.bookingRecord)
	r.compare(e.bookingRecord)
	if !e.ok() {
		return
	}
	slot := e.at.Slot
	r.predicted.Keep(e.promise, e.chain)
	e.account = e.bookingRecord.account
	if e.account == nil {
		e.account = account.Predict(account.Known{Rest: account.Unknown, RestWhy: "the request was not read"}, nil)
	}
	e.account.Settle(account.Found{Tokens: max(0, e.o.PromptTokens), Cached: e.counted, Moved: !e.known || slot != e.slot,
		Restored: func(from, to int) bool {
			return r.opt.Index.StoredSince(e.slot.ID, e.locals, from/e.blockSize, to/e.blockSize, e.storesAtDecision)
		}})
	r.compareWords(e.bookingRecord)
	r.forecasting.enlarge(e.bookingRecord)
	r.recent.settled(e.o.ID, e.account)
	if e.known && slot != nil && e.slot != nil && slot.Worker.Class == e.slot.Worker.Class && e.o.Code == http.StatusOK && !e.o.Cut {
		r.had(e.client, slot, e.chain, r.opt.Now())
		if n := len(e.chain); n > 0 && slot == e.slot {
			key, chained, answer := r.opt.Secret.Key(), e.chain[n-1], r.opt.Index.Behind(nil, slot.ID, e.locals, e.storesAtDecision)
			for i := range answer {
				chained = key.ChainAfter(chained, answer[i])
				answer[i] = chained
			}
			r.had(e.client, slot, answer, r.opt.Now())
		}
	}
}

// had remembers that a slot has some blocks now.
func (s *state) had(c fair.Client, slot *fleet.Slot, chain []uint64, now time.Time) {
	all := s.opt.Index.Stores(slot.ID) > 0 && !s.opt.Index.Partial(slot.ID)
	s.past.Had(c, uint32(slot.ID), account.Cache{Worker: slot.Worker.StableName, Rank: slot.Rank}, chain, all, now)
}

// noteLost notes what a slot loses with all that it holds.
func (r *Router) noteLost(slot indexer.SlotID, held []indexer.Block) {
	key, chain, lost := r.opt.Secret.Key(), make([]uint64, len(held)), make([]uint64, 0, len(held))
	for i := range held {
		before := uint64(0)
		if at := held[i].Parent; at >= 0 {
			before = chain[at]
		}
		chain[i] = key.ChainAfter(before, held[i].Local)
		if held[i].Copies != [indexer.Tiers]uint8{} {
			lost = append(lost, chain[i])
		}
	}
	r.past.Lost(uint32(slot), lost)
}
