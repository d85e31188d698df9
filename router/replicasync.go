package router

import (
	"cmp"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/router/learned"
	"github.com/sightline-router/sightline/router/ledger"
	"github.com/sightline-router/sightline/router/speculative"
	"github.com/sightline-router/sightline/workers/fleet"
)

// Replicas that decide for one fleet tell each other what they book, so that each sees all work and all predictions, as a single
// router would. A booking carries its prompt's blocks: each replica receives the workers' events itself, and uses them to follow
// the others' bookings like its own. Package peers is the transport.
//
//	booked, or moved ─▶ BookingOpened ──▶ Apply: charged to the slot, predicted there, its images seen
//	ended ─▶ BookingEnded, BookingBroken ──────▶ Apply: released; a broken one stored nothing
//	all open ones, periodically ▶ Reconcile: corrects what was lost on the way
//	a replica is gone ──────────▶ Left: releases all its bookings

// SharedKind says what happened to a booking.
type SharedKind uint8

// BookingOpened is sent again if a request moved to another worker. BookingEnded: it has ended. BookingBroken: it has ended with an error.
const (
	BookingOpened SharedKind = iota
	BookingEnded
	BookingBroken
)

// SharedBooking is one booking as told to other replicas. BookingEnded and BookingBroken have only the number.
type SharedBooking struct {
	Kind            SharedKind
	Number          uint64 // unique within its replica, not 0
	Worker          string // fleet.Worker.StableName
	Rank            int    // -1: the worker has no ranks
	Decoder         string // worker that decodes, if another
	DecoderRank     int
	Tokens, Context int    // as in ledger.Booking
	Answers         int    // more than 1, or 0
	Fetch, Pull     int    // as in ledger.Booking
	Model, Tenant   string // for fair shares; Model is "" if they do not count it
	From            int
	EventsExpected  bool     // events will tell of its prefill
	Fetches         bool     // the engine downloads an image first: as Work.Media
	Moved           bool     // it was told before, at another worker: what it asks for is counted already
	Proven          int      // blocks that events proved
	Locals          []uint64 // the prompt's blocks
	Path            []uint64 // of a request that is remembered: the numbers of its path's steps
	Media           []SharedMedium
}

// SharedMedium is an image that a worker has seen.
type SharedMedium struct {
	Key, Alias uint64
	Tokens     int
}

// MaxSharedBlocks is the longest prompt that is shared with its blocks. A longer one is shared without, and its progress is then
// estimated by the worker's rate.
const MaxSharedBlocks = 1 << 14

// Replicas is what a router tells other replicas, and hears from them. It is safe for concurrent use.
type Replicas struct {
	*state
	forecasting *forecasting
	last        atomic.Uint64 // number of the last booking that they were told of
	applying    sync.Mutex    // held while a message of one is applied
}

// Replicas returns the router's side of sharing: it tells other replicas of bookings, and applies theirs.
func (r *Router) Replicas() *Replicas { return r.replicas }

// number returns the number under which replicas hear of the next booking; 0: nothing is shared.
func (r *Replicas) number() uint64 {
	if r.opt.Share == nil {
		return 0
	}
	return r.last.Add(1)
}

// share tells other replicas of a booking that has a slot. moved: they were told of it before.
func (r *Replicas) share(b *bookingRecord, at *ledger.Booking, moved bool) {
	if b.shareNumber == 0 || at.Slot == nil {
		return
	}
	s := &SharedBooking{Number: b.shareNumber, Worker: at.Slot.Worker.StableName, Rank: at.Slot.Rank, Tokens: at.Tokens, Fetch: at.Fetch,
		Pull: at.Pull, Context: at.Context, Path: b.path, Media: b.media, Fetches: at.Media, Moved: moved}
	s.setDecoder(at)
	if at.Counted {
		s.Model, s.Tenant = at.Model, at.Tenant
	}
	if len(b.locals) <= MaxSharedBlocks && at.Slot.Worker.Class == b.slot.Worker.Class { // the hashes of another class differ
		s.Locals, s.From, s.EventsExpected, s.Proven = b.locals, at.From, at.Locals != nil, b.provenBlocks
	}
	if at.Slot != b.slot {
		s.Proven = 0
	}
	r.opt.Share(s)
}

// setDecoder fills in who decodes a booking, and how many answers.
func (s *SharedBooking) setDecoder(b *ledger.Booking) {
	if b.Answers > 1 {
		s.Answers = b.Answers
	}
	if b.Decode != nil {
		s.Decoder, s.DecoderRank = b.Decode.Worker.StableName, b.Decode.Rank
	}
}

// unshare tells other replicas that a booking has ended.
func (r *Replicas) unshare(b *bookingRecord, broken bool) {
	if b.shareNumber == 0 {
		return
	}
	s := &SharedBooking{Kind: BookingEnded, Number: b.shareNumber}
	if broken {
		s.Kind = BookingBroken
	}
	r.opt.Share(s)
}

// Open lists what other replicas must know: all bookings that have a slot, with the tokens left to prefill, without blocks. ok is
// false if there are more than most.
func (r *Replicas) Open(most int) (list []SharedBooking, ok bool) {
	ok = true
	r.opt.Ledger.EachOpen(func(b *ledger.Booking, left int) bool {
		if note := b.Note.(*bookingRecord); note.shareNumber != 0 {
			ok = len(list) < most
			if ok {
				s := SharedBooking{Number: note.shareNumber, Worker: b.Slot.Worker.StableName, Rank: b.Slot.Rank, Tokens: left, Context: b.Context}
				s.setDecoder(b)
				list = append(list, s)
			}
		}
		return ok
	})
	return list, ok
}

// replicaBooking is what is kept about a booking of another replica.
type replicaBooking struct {
	promise *speculative.Promise
	chain   []uint64
	sent    *speculative.Promise // of path
	path    []uint64
	media   []SharedMedium // images that its slot had not seen before
}

// Limits of what other replicas may store here: 128 MiB of hashes.
const (
	maxReplicaBookings = 1 << 17
	maxReplicaBlocks   = 1 << 23
	blockBytes         = 16 // of a block: its local and its chain hash
)

// Apply applies another replica's message about one of its bookings. A booking at a worker that is not known here (yet) is left
// to Reconcile.
func (r *Replicas) Apply(replica string, s *SharedBooking) {
	r.applying.Lock()
	defer r.applying.Unlock()
	r.endShared(replica, s.Number, s.Kind != BookingEnded, false)
	if s.Kind == BookingOpened {
		r.takeShared(replica, s)
	}
}

// theirID is the ID under which a request of another replica is watched; no request of ours has it.
func theirID(replica string, number uint64) string { return fmt.Sprint("\x00", replica, number) }

// endShared releases a booking of another replica, and its prediction too if void. lost: the replica is gone.
func (r *Replicas) endShared(replica string, number uint64, void, lost bool) {
	b := r.opt.Ledger.EndTaken(replica, number, lost)
	if b == nil {
		return
	}
	r.learning.receiver().Drop(theirID(replica, number))
	if note := b.Note.(*replicaBooking); void {
		r.predicted.Withdraw(note.promise, note.chain)
		r.learning.withdraw(note.sent, note.path)
		r.sightings.unsee(b.Slot, note.media)
	} else {
		now := r.opt.Now()
		r.predicted.Keep(note.promise, note.chain)
		if !lost {
			r.had(fair.ClientOf(b.Tenant), b.Slot, note.chain, now)
			r.forecasting.left(b, note.chain, now)
		}
		if b.Decode != nil {
			r.predict(b.Decode, note.chain, 0, r.serving.Load().predictedTTL, now)
		}
	}
}

// takeShared books what another replica has booked.
func (r *Replicas) takeShared(replica string, s *SharedBooking) {
	taken, now, slot := r.opt.Ledger.Taken(), r.opt.Now(), r.opt.Fleet.Find(s.Worker, s.Rank)
	if slot == nil {
		return
	}
	if taken.Bookings >= maxReplicaBookings {
		r.opt.NoRoom("replicas' requests")
		return
	}
	if taken.Bytes/blockBytes+len(s.Locals)+len(s.Path) > maxReplicaBlocks {
		r.opt.NoRoom("replicas' blocks")
		s.Locals, s.Path = nil, nil
	}
	ttl := r.serving.Load().predictedTTL
	note := &replicaBooking{chain: r.opt.Secret.Key().Chain(nil, s.Locals), path: s.Path}
	work := fleet.Work{Tokens: s.Tokens, Fetch: s.Fetch, Pull: s.Pull, Context: s.Context, Answers: min(s.Answers, maxChoices),
		Media: s.Fetches}
	serving, w, due := r.serving.Load(), slot.Worker, int64(0)
	if serving.takesOrder(w).Header != "" {
		work.Due = now.UnixMilli() + int64(milliseconds(time.Duration(s.Tokens)*delayPerToken)) // about as there
		if serves, _ := slot.Serves(); serves > rules.AsTheyCome {
			due = work.Due
		}
	}
	b := ledger.Booking{Slot: slot, Work: work,
		Model: s.Model, Tenant: s.Tenant, Counted: s.Model != "", Note: note, Bytes: (len(s.Locals) + len(s.Path)) * blockBytes}
	if s.EventsExpected && s.From < len(s.Locals) {
		b.Locals, b.From = s.Locals, s.From
	} else if m := serving.names[w.Model].model; m != nil {
		class := &m.classes[m.classOf(w)]
		b.Seen = r.learning.watchTheirs(theirID(replica, s.Number), slot, s, &learned.Request{
			Size: cmp.Or(r.opt.Index.Form(slot.ID).Size, class.BlockSize), AtEnd: class.rules.AnswersAtEnd, Due: due})
		b.From = s.From
	}
	if s.Decoder != "" {
		b.Decode = r.opt.Fleet.Find(s.Decoder, s.DecoderRank)
	}
	if len(s.Locals) > 0 {
		note.promise = r.predict(slot, note.chain, min(s.Proven, len(s.Locals)), ttl, now)
	}
	note.sent = r.learning.predict(slot, note.path, ttl, now)
	for _, m := range s.Media {
		if r.sightings.saw(slot, m) {
			note.media = append(note.media, m)
		}
	}
	if !s.Moved {
		r.forecasting.taken(&b, note.chain, now)
	}
	r.opt.Ledger.Take(replica, s.Number, b, s.Moved)
}

// Reconcile takes the list of all open bookings of another replica: bookings missing from it have ended, unknown ones are
// charged.
func (r *Replicas) Reconcile(replica string, open []SharedBooking) {
	r.applying.Lock()
	defer r.applying.Unlock()
	isOpen := make(map[uint64]bool) // the known ones: by whether they are still open
	for _, number := range r.opt.Ledger.TakenFrom(replica) {
		isOpen[number] = false
	}
	for i := range open {
		number := open[i].Number
		if _, known := isOpen[number]; !known {
			r.takeShared(replica, &open[i])
		}
		isOpen[number] = true
	}
	for number, open := range isOpen {
		if !open {
			r.endShared(replica, number, false, false)
		}
	}
}

// Left ends all bookings of a replica that is gone. Its workers still have those requests: its predictions stay, and the requests
// count as other senders' until the workers report their load.
func (r *Replicas) Left(replica string) {
	r.applying.Lock()
	defer r.applying.Unlock()
	for _, number := range r.opt.Ledger.TakenFrom(replica) {
		r.endShared(replica, number, false, true)
	}
}

// Bookings returns the number of other replicas' bookings.
func (r *Replicas) Bookings() int { return r.opt.Ledger.Taken().Bookings }
