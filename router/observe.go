package router

import (
	"net/http"
	"strconv"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/router/decisionlog"
	"github.com/sightline-router/sightline/router/fleet"
)

// Observe processes a report from Envoy about a decided request: the worker really used, the end, the status.
func (r *Router) Observe(o Outcome) {
	switch o.Phase {
	case Failed:
		r.countFailure(r.opt.Fleet.FailedAt(o.ID, o.Addr), o.Fault, o.Fault)
	case Lost:
		r.opt.Fleet.Lost(o.Source)
	case Gone:
		r.opt.Fleet.Gone(o.ID)
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

// done frees the place of a request whose worker has answered it, whether or not its client has read the answer.
func (r *Router) done(o Outcome) {
	if !r.confirm(o) { // the report of the start may have been lost
		r.metrics.unmatchedReports.Inc()
	} else if b := r.opt.Fleet.Done(o.ID); b != nil {
		r.unshare(b.Note.(*bookingRecord), o.Code >= 400)
	}
}

// confirm records which slot has a request, and moves the expectations if it is not the chosen one. It returns false if the
// request or the worker is not known.
func (r *Router) confirm(o Outcome) bool {
	now, moved, ok := r.opt.Fleet.Confirm(o.ID, o.Addr, o.Source)
	if moved == nil {
		return ok
	}
	b := now.Note.(*bookingRecord)
	if moved.Slot == nil { // it was left alone, and now has a worker
		r.recordUnsteered(b, o.ID, r.opt.Now())
		r.share(b, now)
		return true
	}
	r.metrics.movedRequests.Inc()
	if moved.Slot == now.Slot { // only the decode worker differs
		r.share(b, now)
		return true
	}
	var made *promise
	if now.Slot.Worker.Class == moved.Slot.Worker.Class {
		at := r.opt.Now()
		made = r.predicted.add(uint32(now.Slot.ID), b.chain, 0, r.predictionTTL(now.Slot, b.locals, at), at)
		r.opt.Audit.Move(o.ID, now.Slot.ID, now.Slot.Worker.Name)
	} else { // its blocks have other hashes: nothing to predict or compare
		r.opt.Audit.End(o.ID, false)
	}
	r.predicted.withdraw(b.promise.Swap(made), b.chain)
	r.adapters.withdraw(moved.Slot, b.newAdapter)
	r.unseePictures(moved.Slot, b.newMedia)
	for _, m := range b.newMedia {
		r.sawPicture(now.Slot, m)
	}
	r.share(b, now)
	return true
}

func (r *Router) ended(o Outcome) {
	known := o.Addr == "" || r.confirm(o) // the report of the start may have been lost
	at, ok := r.opt.Fleet.End(o.ID, o.Source)
	if !ok {
		r.metrics.unmatchedReports.Inc()
		return
	}
	r.updateHealth(o, at)
	b := at.Note.(*bookingRecord)
	broken := o.Code < 200 || o.Code >= 400
	r.unshare(b, broken)
	if broken { // or refused: assume that it stored nothing
		r.predicted.withdraw(b.promise.Load(), b.chain)
		if at.Slot != nil {
			r.unseePictures(at.Slot, b.newMedia)
			r.adapters.withdraw(at.Slot, b.newAdapter)
		}
	} else if at.Decode != nil {
		r.predictDecoded(at.Decode, b.chain)
	}
	if b.zeroMeansUnknown && o.CachedTokens == 0 || b.cachedTokens < 0 {
		o.CachedTokens = -1 // nothing was reported, or for something else
	}
	r.metrics.countEngineTokens(b, o)
	if r.opt.Ended != nil {
		r.opt.Ended(b.model, &o, r.opt.Now().Sub(at.At))
	}
	worker := "other"
	if known && at.Slot != nil {
		worker = at.Slot.Worker.Name
	}
	var would *decisionlog.Hypothetical
	if known {
		would = b.hypothetical(at.Slot)
	}
	r.logEnded(b, at, worker, o, would)
	r.countEnded(b, at, known, o, would)
	if at.Slot != b.slot || !known {
		o.CachedTokens = -1 // reported by another worker than the prediction is for
	}
	if b.foundLess(o) {
		r.correct(at.Slot, b, o.CachedTokens)
	} else if b.stale && o.Code == http.StatusOK && o.CachedTokens >= b.cachedTokens && b.cachedTokens > 0 {
		r.suspects.countHit(at.Slot)
	}
	r.learnWithheld(at.Slot, b, o)
	r.opt.Audit.Found(o.ID, o.CachedTokens)
	r.opt.Audit.End(o.ID, o.Code == http.StatusOK)
	r.metrics.countEnded(b, worker, o)
}

// learnWithheld counts an answer of an engine that may withhold the last block found, if nothing else can explain the difference.
func (r *Router) learnWithheld(slot *fleet.Slot, b *bookingRecord, o Outcome) {
	certain := b.exact && !b.upperBound && !b.lowerBound && b.offloadedTokens == 0 && b.common >= b.cachedTokens
	if !certain || o.Code != http.StatusOK || o.CachedTokens < 0 || b.cachedTokens <= 0 {
		return
	}
	less := b.cachedTokens - o.CachedTokens
	withholds, changed := r.withheld.count(slot, less/b.blockSize, less%b.blockSize == 0, r.opt.Now())
	if changed {
		r.opt.Index.Withholds(slot.ID, withholds)
	}
}

// predictDecoded predicts that a slot which has decoded a prompt holds it, until its events say so.
func (r *Router) predictDecoded(slot *fleet.Slot, chain []uint64) {
	now := r.opt.Now()
	r.predicted.add(uint32(slot.ID), chain, 0, r.predictionTTL(slot, nil, now), now)
}

// foundLess reports whether the engine found less than its events promised (such as after a reset not yet reported). One block
// less is no proof: vLLM withholds the last block found when it drafts with EAGLE or MTP (0.10 to 0.32, and 0.33 with a KV connector;
// without one a block's hash in 0.33 also covers the next tokens, which may differ after the last block found), and a block
// evicted since the decision is reported by an event. Engines include what they fetch from lower tiers (vLLM's num_cached_tokens
// with a connector's, SGLang's device, host and storage), in units of these: less than a unit is no proof either.
// From the first picture on that the engine fetched itself it may have read another prompt: otherwise a client with an image host
// could make the index forget blocks.
func (b *bookingRecord) foundLess(o Outcome) bool {
	return (b.exact || b.stale) && !b.upperBound && o.Code == http.StatusOK && o.CachedTokens >= 0 && o.CachedTokens < min(b.cachedTokens, b.common)-b.tolerance()
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
func (r *Router) correct(slot *fleet.Slot, b *bookingRecord, cached int) {
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

// updateHealth updates the worker's health by the end of a request. If another worker decoded, the status does not tell whose it is.
func (r *Router) updateHealth(o Outcome, b *fleet.Booking) {
	w, note := r.opt.Fleet.ServedBy(b, o.Addr), b.Note.(*bookingRecord)
	switch {
	case w == nil || !o.Answered || b.Decode != nil || o.Code == http.StatusNotImplemented:
	case o.Code >= http.StatusInternalServerError:
		r.countFailure(w, strconv.Itoa(o.Code), strconv.Itoa(o.Code))
	case o.Code >= http.StatusBadRequest:
		if r.refusesAlone(note, w, o.Code) {
			r.countFailure(w, strconv.Itoa(o.Code), refusedAlone(o.Code))
		}
	default:
		r.served(note, w)
		if w.RecordSuccess(b.At, r.opt.Now()) {
			r.opt.Log.Info("worker "+w.Name+" answers again and gets requests", zap.String("addr", w.Addr))
		}
	}
}

// countFailure counts a request that failed at a worker (nil: at an address that is not a worker's own), under a label, and what it
// was in words.
func (r *Router) countFailure(w *fleet.Worker, label, what string) {
	if w == nil {
		return
	}
	r.metrics.failures.WithLabelValues(w.Name, label).Inc()
	if now := r.opt.Now(); w.RecordFailure(what, now) {
		r.opt.Log.Warn("worker "+w.Name+" is failing; it gets only trial requests until one succeeds", zap.String("addr", w.Addr), zap.String("why", w.OutReason(now)))
	}
}
