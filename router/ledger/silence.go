package ledger

import (
	"sync/atomic"
	"time"

	"github.com/sightline-router/sightline/workers/fleet"
)

// Envoy has two access logs: the router filter's reports where a request goes, the connection manager's how it ends. If one is
// missing, the number of requests in flight is unknown, and nothing may be refused because of it. It is missing if
//
//	no reports   a request was decided reportTimeout ago, and none was reported on since
//	no ends      many more requests count as in flight than the workers report, or very old ones at workers that report nothing, or
//	             several were answered by their workers long ago; and none has ended since

// Silence is what Envoy does not report.
type Silence int

const (
	NotSilent Silence = iota
	NoReports         // requests are decided, and none is reported on
	NoEnds            // reports say where requests go, but not how they end
)

const (
	reportTimeout = 5 * time.Second // a report comes up to 100 ms after the fact
	fewGone       = 3               // from this number on, streams that end right after their decisions are not clients that left

	endsAfter = 30 * time.Second // a request that began this long ago is included in what its worker reports
	fewEnds   = 3                // answered, or above twice what the workers report: one client that reads slowly is not a missing log
	longAfter = 5 * time.Minute  // for workers that report nothing: none of manyEnds requests has ended by then
	manyEnds  = 16
)

type silenceState struct {
	what  Silence
	since time.Time // time of the decision, or start, of the first unreported one
}

// reportWatch is what is known about Envoy's reports; bookings.mu guards all fields but now.
type reportWatch struct {
	now     atomic.Pointer[silenceState] // nil: no silence detected
	waiting *booking                     // the first booking decided since the last report; its At alone if it is gone
	gone    int                          // requests whose streams ended right after their decisions, since the last report
	ended   time.Time                    // time of the last reported end
}

// Silent returns what Envoy does not report, and since when.
func (l *Ledger) Silent() (what Silence, since time.Time) {
	if s := l.reports.now.Load(); s != nil {
		return s.what, s.since
	}
	return NotSilent, time.Time{}
}

// gotReport notes a report.
func (h *reportWatch) gotReport() {
	h.waiting, h.gone = nil, 0
	if h.now.Load() != nil && h.now.Load().what == NoReports {
		h.now.Store(nil)
	}
}

// gotEnd notes a reported end.
func (h *reportWatch) gotEnd(now time.Time) {
	h.ended = now
	h.now.Store(nil)
}

// detectNoReports detects that no reports come.
func (h *reportWatch) detectNoReports(now time.Time) {
	if w := h.waiting; w != nil && now.Sub(w.At) >= reportTimeout && (h.now.Load() == nil || h.now.Load().what != NoReports) {
		h.now.Store(&silenceState{NoReports, w.At})
	}
}

// detectNoEnds detects that no ends come. It takes time linear in the bookings that run, or are answered, and only if none has ended
// since the oldest of them.
func (l *stages) detectNoEnds(now time.Time) {
	if l.reports.now.Load() != nil {
		return
	}
	if oldest := l.oldWithoutEnd(stageDone, now); oldest != nil {
		answered := 0
		l.each(stageDone, func(b *booking) {
			if b.Source != 0 && now.Sub(b.stageSince) >= endsAfter {
				answered++
			}
		})
		if answered >= fewEnds {
			l.reports.now.Store(&silenceState{NoEnds, oldest.stageSince})
			return
		}
	}
	oldest := l.oldWithoutEnd(stageRunning, now)
	if oldest == nil {
		return
	}
	at, long := make(map[*fleet.Slot]int), make(map[*fleet.Slot]int)
	l.each(stageRunning, func(b *booking) {
		if b.Source == 0 || now.Sub(b.stageSince) < endsAfter { // 0: reported by its own stream, not by a log
			return
		}
		slot := b.Slot
		if b.Decode != nil {
			slot = b.Decode
		}
		at[slot]++
		if now.Sub(b.stageSince) >= longAfter {
			long[slot]++
		}
	})
	over, untold := 0, 0
	for slot, n := range at {
		if told, ok := slot.LastReport(now); ok && told.Running >= 0 {
			over += max(0, n-2*(told.Running+told.Waiting))
		} else {
			untold += long[slot]
		}
	}
	if over >= fewEnds || untold >= manyEnds {
		l.reports.now.Store(&silenceState{NoEnds, oldest.stageSince})
	}
}

// oldWithoutEnd returns a stage's oldest booking if it has been there for endsAfter and no end was reported since; else nil.
func (l *stages) oldWithoutEnd(s stage, now time.Time) *booking {
	if b := l.first(s); b != nil && now.Sub(b.stageSince) >= endsAfter && l.reports.ended.Before(b.stageSince) {
		return b
	}
	return nil
}
