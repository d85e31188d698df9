package router

import (
	"sync"

	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/router/fleet"
)

// Replicas that decide for one fleet tell each other what they book, so that each sees all work and all predictions, as a single
// router would. A booking carries its prompt's blocks: each replica receives the workers' events itself, and uses them to follow
// the others' bookings like its own. Package peers is the transport.
//
//	booked, or moved ─▶ Given ──▶ Follow: charged to the slot, predicted there, its pictures seen
//	ended ─▶ Over, Broken ──────▶ Follow: released; a broken one stored nothing
//	all open ones, periodically ▶ Reconcile: corrects what was lost on the way
//	a replica is gone ──────────▶ Leave: releases all its bookings

// SharedKind says what happened to a booking.
type SharedKind uint8

// Given is sent again if a request moved to another worker. Over: it has ended. Broken: it has ended with an error.
const (
	Given SharedKind = iota
	Over
	Broken
)

// Shared is one booking as told to other replicas. Over and Broken have only the number.
type Shared struct {
	Kind            SharedKind
	Number          uint64 // unique within its replica, not 0
	Worker          string // fleet.Worker.Known
	Rank            int    // -1: the worker has no ranks
	Decoder         string // worker that decodes, if another
	DecoderRank     int
	Tokens, Context int    // as in fleet.Booking
	Answers         int    // more than 1, or 0
	Fetch, Pull     int    // as in fleet.Booking
	Model, Tenant   string // for fair shares; Model is "" if they do not count it
	From            int
	Told            bool     // events will tell of its prefill
	Proven          int      // blocks that events proved
	Locals          []uint64 // the prompt's blocks
	Media           []SharedMedium
}

// SharedMedium is a picture that a worker has seen.
type SharedMedium struct {
	Key, Alias uint64
	Tokens     int
}

// MostSharedBlocks is the longest prompt that is shared with its blocks. A longer one is shared without, and its progress is then
// estimated by the worker's rate.
const MostSharedBlocks = 1 << 14

// share tells other replicas of a booking that has a slot.
func (r *Router) share(b *booked, at *fleet.Booking) {
	if b.number == 0 || at.Slot == nil {
		return
	}
	s := &Shared{Number: b.number, Worker: at.Slot.Worker.Known, Rank: at.Slot.Rank, Tokens: at.Tokens, Fetch: at.Fetch, Pull: at.Pull, Context: at.Context, Media: b.media}
	s.decoded(at)
	if at.Counted {
		s.Model, s.Tenant = at.Model, at.Tenant
	}
	if len(b.locals) <= MostSharedBlocks && at.Slot.Worker.Class == b.slot.Worker.Class { // the hashes of another class differ
		s.Locals, s.From, s.Told, s.Proven = b.locals, at.From, at.Locals != nil, b.proven
	}
	if at.Slot != b.slot {
		s.Proven = 0
	}
	r.opt.Share(s)
}

// decoded fills in who decodes a booking, and how many answers.
func (s *Shared) decoded(b *fleet.Booking) {
	if b.Answers > 1 {
		s.Answers = b.Answers
	}
	if b.Decode != nil {
		s.Decoder, s.DecoderRank = b.Decode.Worker.Known, b.Decode.Rank
	}
}

// unshare tells other replicas that a booking has ended.
func (r *Router) unshare(b *booked, broken bool) {
	if b.number == 0 {
		return
	}
	s := &Shared{Kind: Over, Number: b.number}
	if broken {
		s.Kind = Broken
	}
	r.opt.Share(s)
}

// Open lists what other replicas must know: all bookings that have a slot, with the tokens left to prefill, without blocks. ok is
// false if there are more than most.
func (r *Router) Open(most int) (list []Shared, ok bool) {
	ok = true
	r.opt.Fleet.Each(func(b *fleet.Booking, left int) bool {
		if note := b.Note.(*booked); note.number != 0 {
			if ok = len(list) < most; ok {
				s := Shared{Number: note.number, Worker: b.Slot.Worker.Known, Rank: b.Slot.Rank, Tokens: left, Context: b.Context}
				s.decoded(b)
				list = append(list, s)
			}
		}
		return ok
	})
	return list, ok
}

// theirs are other replicas' bookings.
type theirs struct {
	mu     sync.Mutex
	of     map[string]map[uint64]*followed
	count  int
	blocks int // of all their prompts
}

// followed is one booking of another replica.
type followed struct {
	over   func(lost bool)
	made   *promise
	chain  []uint64
	decode *fleet.Slot // slot that decodes, if another
}

// Limits of what other replicas may store here: 128 MiB of hashes.
const (
	mostTheirs       = 1 << 17
	mostTheirsBlocks = 1 << 23
)

// Follow applies another replica's message about one of its bookings. A booking at a worker that is not known here (yet) is left
// to Reconcile.
func (r *Router) Follow(replica string, s *Shared) {
	t := &r.theirs
	t.mu.Lock()
	defer t.mu.Unlock()
	r.end(replica, s.Number, s.Kind != Over, false)
	if s.Kind == Given {
		r.take(replica, s)
	}
}

// end releases a booking of another replica, and its prediction too if void. lost: the replica is gone.
func (r *Router) end(replica string, number uint64, void, lost bool) {
	t := &r.theirs
	f := t.of[replica][number]
	if f == nil {
		return
	}
	delete(t.of[replica], number)
	t.count, t.blocks = t.count-1, t.blocks-len(f.chain)
	if f.over(lost); void {
		r.predicted.drop(f.made, f.chain)
	} else if f.decode != nil {
		r.fetched(f.decode, f.chain)
	}
}

// take charges a booking of another replica.
func (r *Router) take(replica string, s *Shared) {
	t, now, slot := &r.theirs, r.opt.Now(), r.opt.Fleet.Find(s.Worker, s.Rank)
	if slot == nil {
		return
	}
	if t.count >= mostTheirs {
		r.opt.NoRoom("replicas' requests")
		return
	}
	if t.blocks+len(s.Locals) > mostTheirsBlocks {
		r.opt.NoRoom("replicas' blocks")
		s.Locals = nil
	}
	b := fleet.Booking{Slot: slot, Tokens: s.Tokens, Fetch: s.Fetch, Pull: s.Pull, Context: s.Context, Answers: min(s.Answers, mostChoices), Model: s.Model, Tenant: s.Tenant, Counted: s.Model != ""}
	if s.Told && s.From < len(s.Locals) {
		b.Locals, b.From = s.Locals, s.From
	}
	if s.Decoder != "" {
		b.Decode = r.opt.Fleet.Find(s.Decoder, s.DecoderRank)
	}
	f := &followed{chain: block.Chain(nil, s.Locals), decode: b.Decode}
	if len(s.Locals) > 0 {
		f.made = r.predicted.add(uint32(slot.ID), f.chain, min(s.Proven, len(s.Locals)), r.lasts(slot, s.Locals, now), now)
	}
	for _, m := range s.Media {
		r.sawPicture(slot, m)
	}
	f.over = r.opt.Fleet.Charge(b)
	if t.of == nil {
		t.of = make(map[string]map[uint64]*followed)
	}
	if t.of[replica] == nil {
		t.of[replica] = make(map[uint64]*followed)
	}
	t.of[replica][s.Number] = f
	t.count, t.blocks = t.count+1, t.blocks+len(f.chain)
}

// Reconcile takes the list of all open bookings of another replica: bookings missing from it have ended, unknown ones are
// charged.
func (r *Router) Reconcile(replica string, open []Shared) {
	t := &r.theirs
	t.mu.Lock()
	defer t.mu.Unlock()
	r.reconcile(replica, open, false)
}

func (r *Router) reconcile(replica string, open []Shared, lost bool) {
	t := &r.theirs
	there := make(map[uint64]bool, len(open))
	for i := range open {
		if there[open[i].Number] = true; t.of[replica][open[i].Number] == nil {
			r.take(replica, &open[i])
		}
	}
	for number := range t.of[replica] {
		if !there[number] {
			r.end(replica, number, false, lost)
		}
	}
}

// Leave ends all bookings of a replica that is gone. Its workers still have those requests: its predictions stay, and the requests
// count as other senders' until the workers report their load.
func (r *Router) Leave(replica string) {
	r.theirs.mu.Lock()
	defer r.theirs.mu.Unlock()
	r.reconcile(replica, nil, true)
	delete(r.theirs.of, replica)
}

// Theirs returns the number of other replicas' bookings.
func (r *Router) Theirs() int {
	r.theirs.mu.Lock()
	defer r.theirs.mu.Unlock()
	return r.theirs.count
}
