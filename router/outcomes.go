package router

import (
	"math"
	"net/http"
	"strconv"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/internal/meter"
	"github.com/sightline-router/sightline/router/account"
	"github.com/sightline-router/sightline/router/decisionlog"
	"github.com/sightline-router/sightline/router/learned"
	"github.com/sightline-router/sightline/router/ledger"
	"github.com/sightline-router/sightline/router/speculative"
	"github.com/sightline-router/sightline/workers/fleet"
)

// follower follows a request after its decision.
type follower struct {
	*booker
	metrics    *metrics
	recent     *recent
	suspects   suspects
	withheld   withheld
	lastServed *lru.Cache[clientOf, *fleet.Worker] // who gave the last good answer, see refusesAlone
}

// Observe processes a report from Envoy about a decided request: the worker really used, the end, the status.
func (r *Router) Observe(o Outcome) { r.follower.observe(o) }

func (r *follower) observe(o Outcome) {
	o.dropImpossible()
	switch o.Phase {
	case Failed:
		r.countFailure(r.opt.Ledger.FailedAt(o.ID, o.Addr), o.Fault, o.Fault)
	case Lost:
		r.opt.Ledger.Lost(o.Source)
	case Gone:
		r.opt.Ledger.Gone(o.ID)
	case Started:
		r.recent.observe(o)
		if !r.confirm(o) {
			r.metrics.unmatchedReports.Inc()
		} else if o.Answer != "" {
			if r.answers.Add(o.Answer, o.Addr) {
				r.opt.NoRoom("answers")
			}
			r.metrics.storedAnswers.WithLabelValues("learned").Inc()
		}
	case Done:
		r.done(o)
	case Ended:
		r.recent.observe(o)
		r.ended(o)
	}
}

// dropImpossible drops counts of tokens that no request has, and codes that are no status: what a worker or a replica says is believed
// by counters and estimates of all.
func (o *Outcome) dropImpossible() {
	if o.PromptTokens < 1 || o.PromptTokens > learned.MaxTokens {
		o.PromptTokens = -1
	}
	if o.CachedTokens < 0 || o.CachedTokens > learned.MaxTokens {
		o.CachedTokens = -1
	}
	if o.OutputTokens < 0 || o.OutputTokens > learned.MaxTokens {
		o.OutputTokens = 0
	}
	if o.Code < 0 || o.Code > 999 {
		o.Code = 0
	}
}

// done frees the place of a request whose worker has answered it, whether or not its client has read the answer.
func (r *follower) done(o Outcome) {
	if !r.confirm(o) { // the report of the start may have been lost
		r.metrics.unmatchedReports.Inc()
	} else if b := r.opt.Ledger.Done(o.ID); b != nil {
		r.replicas.unshare(b.Note.(*bookingRecord), o.Code >= 400)
	}
}

// confirm records which slot has a request, and moves the expectations if it is not the chosen one. It returns false if the
// request or the worker is not known.
func (r *follower) confirm(o Outcome) bool {
	now, moved, ok := r.opt.Ledger.Confirm(o.ID, o.Addr, o.Source)
	if !ok {
		return false
	}
	b := now.Note.(*bookingRecord)
	defer r.dropAbandoned(b)
	b.moves.Lock()
	defer b.moves.Unlock()
	defer r.compare(b) // the request is on its way now
	if moved == nil {
		return true
	}
	if moved.Slot == nil { // it was not steered, and now has a worker
		r.recordUnsteered(b, o.ID, r.opt.Now())
		r.replicas.share(b, now, false)
		return true
	}
	r.metrics.movedRequests.Inc()
	if moved.Slot == now.Slot { // only the decode worker differs
		r.replicas.share(b, now, true)
		return true
	}
	at, ttl := r.opt.Now(), r.serving.Load().predictedTTL
	var made *speculative.Promise
	if now.Slot.Worker.Class == moved.Slot.Worker.Class {
		made = r.predict(now.Slot, b.chain, 0, ttl, at)
		r.opt.Audit.Move(o.ID, now.Slot.ID, now.Slot.Worker.Name)
		r.learning.receiver().Move(o.ID, now.Slot.ID, numberOf(now.Slot.Worker.Name), b.dueAt(now.Slot))
	} else { // its blocks have other hashes: nothing to predict or compare
		r.opt.Audit.End(o.ID, false)
		r.learning.receiver().Drop(o.ID)
	}
	r.predicted.Withdraw(b.promise, b.chain)
	r.learning.withdraw(b.sent, b.path)
	b.promise, b.sent = made, r.learning.predict(now.Slot, b.path, ttl, at)
	r.adapters.Withdraw(moved.Slot, b.newAdapter)
	r.sightings.unsee(moved.Slot, b.newMedia)
	for _, m := range b.newMedia {
		r.sightings.saw(now.Slot, m)
	}
	r.replicas.share(b, now, true)
	return true
}

// end is the end of a request: reported, or not (expired), and then only its booking is known.
type end struct {
	*bookingRecord
	at      *ledger.Booking
	expired bool
	took    time.Duration // since the decision
	o       Outcome       // CachedTokens is -1 if the engine's count is about something else than the request's prompt
	known   bool          // it ended at the slot where it is booked
	worker  string        // the slot's worker; "other" if it ended elsewhere
	would   *decisionlog.Hypothetical
	found   int // o.CachedTokens if they are of the worker that the prediction is for; else -1
	counted int // cached tokens of the prompt as the engine counted, whichever worker; -1: not known
	// account is the booking's, settled; nil: it has none. A late report of the start may still open another one in the booking.
	account *account.Account
}

// ok reports whether the worker answered it.
func (e *end) ok() bool { return e.o.Code >= 200 && e.o.Code < 400 }

// rate returns how many tokens a second the worker prefills that had it; 0: it is not known.
func (e *end) rate(now time.Time) float64 {
	if e.at.Slot == nil {
		return 0
	}
	return math.Round(e.at.Slot.Load(now).Rate)
}

// publish is the one place that says that a request has ended.
func (r *follower) publish(e *end) {
	r.replicas.unshare(e.bookingRecord, !e.expired && !e.ok())
	r.settleAccount(e)
	r.logEnd(e)
	if e.expired {
		return
	}
	r.settlePredictions(e)
	r.noteHealth(e)
	r.metrics.ended(e)
	r.reportEnd(e)
	r.learnMisses(e)
	r.learnWithheld(e)
	r.learning.taught(&e.o)
	r.forecasting.ended(e)
	more := 0
	if e.known && e.at.Slot == e.slot && e.engineTokens > 0 && e.o.PromptTokens > 0 {
		more = e.o.PromptTokens - e.engineTokens
	}
	r.opt.Audit.Found(e.o.ID, e.found, more)
	r.opt.Audit.End(e.o.ID, e.o.Code == http.StatusOK && !e.o.Cut)
}

// ended ends a request as Envoy reports it.
func (r *follower) ended(o Outcome) {
	known := o.Addr == "" || r.confirm(o) // the report of the start may have been lost
	at, ok := r.opt.Ledger.End(o.ID, o.Source)
	if !ok {
		r.metrics.unmatchedReports.Inc()
		return
	}
	e := &end{bookingRecord: at.Note.(*bookingRecord), at: at, took: r.opt.Now().Sub(at.At), o: o, known: known, worker: "other"}
	e.counted = o.CachedTokens
	if e.zeroMeansUnknown && o.CachedTokens == 0 || e.severalPrompts || at.Decode != nil {
		e.counted = -1
	}
	if e.counted < 0 || e.cachedTokens < 0 {
		e.o.CachedTokens = -1
	}
	if known {
		e.would = e.hypothetical(at.Slot)
	}
	if known && at.Slot != nil {
		e.worker = at.Slot.Worker.Name
	}
	e.found = -1
	if known && at.Slot == e.slot {
		e.found = e.o.CachedTokens
	}
	r.publish(e)
}

// expired ends a request whose end was not reported.
func (r *follower) expired(at *ledger.Booking) {
	if b, ours := at.Note.(*bookingRecord); ours {
		r.publish(&end{bookingRecord: b, at: at, expired: true, took: r.opt.Now().Sub(at.At)})
	}
}

// settlePredictions withdraws what was predicted of a request that its worker refused or broke off: it is assumed to have stored
// nothing.
func (r *follower) settlePredictions(e *end) {
	if !e.ok() {
		e.moves.Lock()
		defer e.moves.Unlock()
		r.predicted.Withdraw(e.promise, e.chain)
		r.learning.withdraw(e.sent, e.path)
		if e.at.Slot != nil {
			r.sightings.unsee(e.at.Slot, e.newMedia)
			r.adapters.Withdraw(e.at.Slot, e.newAdapter)
		}
	} else if e.at.Decode != nil {
		r.predict(e.at.Decode, e.chain, 0, r.serving.Load().predictedTTL, r.opt.Now())
	}
}

// learnWithheld counts an answer of an engine that may withhold the last block found, if nothing else can explain the difference.
func (r *follower) learnWithheld(e *end) {
	certain := e.exact && !e.lowerBound && e.offloadedTokens == 0 && e.common >= e.cachedTokens
	if !certain || e.o.Code != http.StatusOK || e.found < 0 || e.cachedTokens <= 0 {
		return
	}
	slot := e.at.Slot
	withholds, one := r.opt.Index.Withholds(slot.ID), e.blockSize
	if e.upperBound && !withholds {
		return
	}
	less := e.cachedTokens - e.found
	if withholds {
		one = -one
	}
	if r.withheld.count(slot, less == one) {
		r.opt.Index.SetWithholds(slot.ID, !withholds)
	}
}

// learnMisses corrects the index by an answer that found less than predicted, and counts those that found all at a slot in doubt.
func (r *follower) learnMisses(e *end) {
	if e.foundLess() {
		r.correct(e.at.Slot, e.bookingRecord, e.found)
	} else if e.stale && e.o.Code == http.StatusOK && e.found >= e.cachedTokens && e.cachedTokens > 0 {
		r.suspects.countHit(e.at.Slot)
	}
}

// foundLess reports whether the engine found less than its events promised (such as after a reset not yet reported). One block
// less is no proof: vLLM withholds the last block found when it drafts with EAGLE or MTP (0.10 to 0.32, and 0.33 with a KV connector;
// without one a block's hash in 0.33 also covers the next tokens, which may differ after the last block found), and a block
// evicted since the decision is reported by an event. Engines include what they fetch from lower tiers (vLLM's num_cached_tokens
// with a connector's, SGLang's device, host and storage), in units of these: less than a unit is no proof either.
// From the first image on that the engine fetched itself it may have read another prompt: otherwise a client with an image host
// could make the index forget blocks.
func (e *end) foundLess() bool {
	comparable := (e.exact || e.stale) && !e.upperBound && e.o.Code == http.StatusOK && e.found >= 0
	return comparable && e.found < min(e.cachedTokens, e.common)-e.tolerance()
}

// tolerance returns how many tokens less than promised an engine may find.
func (b *bookingRecord) tolerance() int {
	if b.offloadedTokens > 0 {
		return max(b.blockSize, b.offloadUnit)
	}
	return b.blockSize
}

// correct removes from the index what a slot did not find, unless it has stored that since. If this repeats, the slot's feed is
// restarted, but not if only lower tiers had less: some report what they store and never what they evict (LMCache).
func (r *follower) correct(slot *fleet.Slot, b *bookingRecord, cached int) {
	if !r.suspects.mayCorrect(b.client, r.opt.Now()) {
		r.metrics.uncorrected.Inc()
		return
	}
	n, _ := r.opt.Index.Drop(slot.ID, b.locals, cached/b.blockSize, b.storesAtDecision)
	r.metrics.correctedBlocks.Add(float64(n))
	if cached < b.cachedTokens-b.offloadedTokens-b.blockSize && r.suspects.countMiss(slot, b.client, r.opt.Now()) && r.opt.Resync != nil {
		r.opt.Resync(slot)
	}
}

// noteHealth updates the worker's health by the end of a request. If another worker decoded, the status does not tell whose it is.
func (r *follower) noteHealth(e *end) {
	w, code := r.opt.Ledger.ServedBy(e.at, e.o.Addr), e.o.Code
	switch {
	case w != nil && e.o.Denied:
		r.countFailure(w, "denied", "Envoy lets nothing through to its address (print Envoy's configuration again)")
	case w == nil || !e.o.Answered || e.at.Decode != nil || code == http.StatusNotImplemented:
	case code >= http.StatusInternalServerError:
		r.countFailure(w, strconv.Itoa(code), strconv.Itoa(code))
	case code >= http.StatusBadRequest:
		if r.refusesAlone(e.bookingRecord, w, code) {
			r.countFailure(w, strconv.Itoa(code), refusedAlone(code))
		}
	default:
		r.served(e.bookingRecord, w)
		if w.RecordSuccess(e.at.At, r.opt.Now()) {
			r.opt.Log.Info("worker "+w.Name+" answers again and gets requests", zap.String("addr", w.Addr))
		}
	}
}

// countFailure counts a request that failed at a worker (nil: at an address that is not a worker's own), under a label, and what it
// was in words.
func (r *follower) countFailure(w *fleet.Worker, label, what string) {
	if w == nil {
		return
	}
	r.metrics.failures.WithLabelValues(w.Name, label).Inc()
	if now := r.opt.Now(); w.RecordFailure(what, now) {
		r.opt.Log.Warn("worker "+w.Name+" is failing; it gets only trial requests until one succeeds", zap.String("addr", w.Addr),
			zap.Stringer("why", w.OutReason(now)))
	}
}

// A 401, 403 or 404 is usually the client's doing. It is the worker's if that worker alone gives it: behind another API key, or
// without the model or adapter that its configuration promises. Such a worker is idle, answers at once, and would be the best choice
// for every request. So an answer counts as a worker's failure if it goes to a client to whom another worker of the model gave the
// last good answer; three in a row without a good one put the worker out, like those with 5xx.

// clientOf is a client of one model.
type clientOf struct {
	client fair.Client // 0: all that are not known
	model  string
}

const maxServedClients = 4096 // the least recently served are forgotten

// served records that a worker gave a good answer.
func (r *follower) served(b *bookingRecord, w *fleet.Worker) {
	if b.model != "" {
		r.lastServed.Add(clientOf{b.client, b.model}, w)
	}
}

// refusesAlone reports whether a worker refused what other workers answer.
func (r *follower) refusesAlone(b *bookingRecord, w *fleet.Worker, code int) bool {
	if code != http.StatusUnauthorized && code != http.StatusForbidden && code != http.StatusNotFound || b.model == "" {
		return false
	}
	other, ok := r.lastServed.Get(clientOf{b.client, b.model})
	return ok && other != w && other.Present()
}

// refusedAlone is the failure of a worker that refuses alone, in words.
func refusedAlone(code int) string {
	return "status " + strconv.Itoa(code) + " to clients whom another worker answers (compare its API key, models and flags with the others')"
}

// silenceMessages say what Envoy does not report, with the consequence.
var silenceMessages = [...]string{
	ledger.NoReports: "requests are decided and Envoy's access log reports none of them: load is a guess, max_in_flight " +
		"is not enforced, failing workers are not noticed",
	ledger.NoEnds: "Envoy's access log reports where requests go but not their ends: their status and tokens are unknown, " +
		"they may count as in flight for half an hour, max_in_flight refuses no request",
}

// Silent returns what Envoy does not report about requests, with the consequence, and since when; "": nothing is missing.
func (r *Router) Silent() (what string, since time.Time) {
	silence, since := r.opt.Ledger.Silent()
	return silenceMessages[silence], since
}

// silenceGauge returns a gauge function: 1 while Envoy does not report this.
func silenceGauge(l *ledger.Ledger, what ledger.Silence) func() float64 {
	return func() float64 {
		silence, _ := l.Silent()
		return meter.Flag(silence == what)
	}
}
