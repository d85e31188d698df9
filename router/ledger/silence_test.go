package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/sightline-router/sightline/workers/fleet"
)

// hears checks the reported silence, one second later.
func hears(t *testing.T, f *Ledger, want Silence) {
	t.Helper()
	f.Expire()
	if what, _ := f.Silent(); what != want {
		t.Errorf("silence %d, want %d", what, want)
	}
}

// TestSilence checks that missing reports are noticed soon, and that one report ends that.
func TestSilence(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	f, a, _ := twoWorkers(c)
	hears(t, f, NotSilent)
	c.t = c.t.Add(time.Hour)
	f.Book("1", Booking{Slot: a.Slots[0]})
	f.Book("2", Booking{Slot: a.Slots[0]})
	c.t = c.t.Add(reportTimeout - 1)
	hears(t, f, NotSilent)
	f.Confirm("1", a.Addr, 1)
	c.t = c.t.Add(time.Minute)
	hears(t, f, NotSilent) // one is not reported on, but others are
	f.End("1", 1)
	f.Book("3", Booking{Slot: a.Slots[0]})
	c.t = c.t.Add(reportTimeout)
	hears(t, f, NoReports)
	c.t = c.t.Add(time.Hour)
	hears(t, f, NoReports)
	f.End("3", 0) // its own stream says that the client left
	hears(t, f, NoReports)
	f.Book("4", Booking{Slot: a.Slots[0]})
	f.End("4", 1)
	hears(t, f, NotSilent)
	for i := range 2 * fewGone { // requests whose streams end at once, as short ones do; one or two may be clients that left
		f.Book(fmt.Sprint("gone", i), Booking{Slot: a.Slots[0]})
		f.Gone(fmt.Sprint("gone", i))
		c.t = c.t.Add(2 * reportTimeout)
		want := NotSilent
		if i >= fewGone-1 {
			want = NoReports
		}
		hears(t, f, want)
	}
	f.Book("5", Booking{Slot: a.Slots[0]})
	f.Confirm("5", a.Addr, 1)
	hears(t, f, NotSilent)
}

// TestEndsMissing checks that a log that never reports ends is noticed by what the workers report or, if they report nothing, by
// how many should have ended.
func TestEndsMissing(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	f, a, b := twoWorkers(c)
	start := func(w *fleet.Worker, n int, source uint64) {
		for i := range n {
			id := fmt.Sprint(w.Name, i, source, c.t)
			f.Book(id, Booking{Slot: w.Slots[0]})
			f.Confirm(id, w.Addr, source)
		}
	}
	tells := func(w *fleet.Worker, running int) {
		w.Slots[0].SetReport(fleet.LoadReport{Running: running, Usage: -1, ValidFor: time.Hour}, c.t)
	}
	after := func(d time.Duration, want Silence) {
		t.Helper()
		c.t = c.t.Add(d)
		hears(t, f, want)
	}
	all := func() {
		f.each(stageRunning, func(b *booking) { f.close(b, c.t) })
	}

	tells(a, 0)
	start(a, fewEnds-1, 1)
	after(endsAfter, NotSilent) // they may be slow readers
	start(a, 1, 1)
	after(endsAfter-1, NotSilent)
	after(1, NoEnds)
	if what, since := f.Silent(); what != NoEnds || c.t.Sub(since) != 2*endsAfter {
		t.Errorf("got %v since %v, want %v for %v", what, since, NoEnds, 2*endsAfter)
	}
	f.Book("own", Booking{Slot: a.Slots[0]})
	f.End("own", 0) // its own stream says that the client left
	hears(t, f, NoEnds)
	f.Book("other", Booking{Slot: a.Slots[0]})
	f.End("other", 1)
	after(0, NotSilent)
	after(time.Minute, NotSilent) // an end has come since the oldest began
	all()

	start(a, 10, 2) // they are long, and the worker reports them
	tells(a, 10)
	after(20*time.Minute, NotSilent)
	all()

	start(a, 100, 0) // with the endpoint-picker protocol their own streams report them
	tells(a, 0)
	after(20*time.Minute, NotSilent)
	all()

	start(b, manyEnds-1, 3) // b reports nothing
	after(longAfter, NotSilent)
	start(b, 1, 3)
	after(longAfter, NoEnds)
	all()

	done := func(n int) {
		for i := range n {
			id := fmt.Sprint("done", i, c.t)
			f.Book(id, Booking{Slot: a.Slots[0]})
			f.Confirm(id, a.Addr, 3)
			f.Done(id)
		}
	}
	f.Book("an end", Booking{Slot: a.Slots[0]})
	f.End("an end", 3)
	c.t = c.t.Add(time.Second)
	done(fewEnds - 1) // clients that read slowly
	after(endsAfter, NotSilent)
	done(1)
	after(endsAfter-1, NotSilent)
	after(1, NoEnds)
	f.Book("another end", Booking{Slot: a.Slots[0]})
	f.End("another end", 3)
	after(time.Minute, NotSilent) // an end has come since the oldest was answered
	f.each(stageDone, func(b *booking) { f.close(b, c.t) })

	f.End("", 3)
	f.Book("last", Booking{Slot: b.Slots[0]})
	f.End("last", 3)
	// TensorRT-LLM's message, which does not report running requests
	b.Slots[0].SetReport(fleet.LoadReport{Running: -1, Usage: -1, ValidFor: time.Hour}, c.t)
	c.t = c.t.Add(time.Second)
	start(b, manyEnds-1, 3)
	after(longAfter, NotSilent)
}
