package learned

import (
	"context"
	"time"
)

const (
	grace    = time.Second      // from a request's end until its events count as complete: they are sent once a scheduler step
	patience = 10 * time.Minute // for a request whose end is never reported
)

// Outcome says what became of a watched request.
type Outcome string

// What can become of a request. Each is counted.
const (
	Learned       Outcome = "learned"
	Guessed       Outcome = "guessed"      // like Learned, but some events could be another request's
	NoEvents      Outcome = "no_events"    // all of its blocks were held before, or the worker's events do not come
	Unattributed  Outcome = "unattributed" // events could be those of several requests
	LengthDiffers Outcome = "doubtful"     // the blocks do not have the length that the engine reported
	NoRoom        Outcome = "no_room"
)

// Report is what an engine said at a request's end; -1 for what it did not say.
type Report struct {
	Prompt, Output int // tokens
}

// End says that a request was served. If all of its blocks have come, it teaches at once: agents send the next turn within milliseconds.
func (l *Learner) End(id string, r Report) {
	if l == nil {
		return
	}
	if x := l.end(id, r); x != nil {
		l.teach(x)
	}
}

// end notes the end of a request, and removes and returns it if it is complete.
func (l *Learner) end(id string, r Report) *watched {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.byID[id]
	if x == nil || !x.ended.IsZero() {
		return nil
	}
	x.ended, x.report = l.o.Now(), r
	if x.complete() {
		l.remove(x)
		return x
	}
	l.ended = append(l.ended, x)
	return nil
}

// Drop ends a request that teaches nothing: it failed, or went to a slot of another class.
func (l *Learner) Drop(id string) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if x := l.byID[id]; x != nil {
		l.remove(x)
	}
}

// Run teaches what requests became until ctx ends.
func (l *Learner) Run(ctx context.Context) {
	for range l.begun.Every(ctx, grace/4) {
		l.Settle(l.o.Now())
		if l.watching.Load() > 0 {
			l.begun.Ring()
		}
	}
}

// Settle teaches what those requests became whose grace is over.
func (l *Learner) Settle(now time.Time) {
	for _, x := range l.due(now) {
		l.teach(x)
	}
}

// due removes and returns the requests whose events are complete, and removes those whose end was not reported.
func (l *Learner) due(now time.Time) (list []*watched) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.ended) > 0 && now.Sub(l.ended[0].ended) >= grace {
		if x := l.ended[0]; l.byID[x.ID] == x {
			l.remove(x)
			list = append(list, x)
		}
		l.ended = l.ended[1:]
	}
	for slot := range l.slots {
		for len(l.slots[slot]) > 0 && now.Sub(l.slots[slot][0].began) > patience {
			l.remove(l.slots[slot][0])
		}
	}
	return list
}

// teach takes over what a request became: the memory keeps the blocks of its prompt, or drops all.
func (l *Learner) teach(x *watched) {
	outcome := x.outcome()
	if tokens := x.tokens(); tokens > 0 {
		l.o.Sizes.Learn(x.Class, &x.Path, tokens)
		l.o.Sizes.Fill(x.Class, &x.Path)
	}
	if outcome == Learned || outcome == Guessed {
		lesson := Lesson{x.Class, x.Path, x.taught(outcome == Guessed)}
		if l.o.Memory.Teach(&lesson) && l.o.Share != nil {
			l.o.Share(&lesson)
		}
	}
	l.o.Outcome(outcome)
}

func (x *watched) outcome() Outcome {
	switch known := x.report.Prompt >= 0; {
	case x.lost || x.unsure():
		return Unattributed
	case len(x.chain) == 0:
		return NoEvents
	case known && (len(x.chain) < x.report.Prompt/x.Size ||
		x.report.Output >= 0 && len(x.chain) > (x.report.Prompt+x.report.Output)/x.Size):
		return LengthDiffers
	case x.guess, !known && !x.named:
		return Guessed
	}
	return Learned
}

// unsure reports whether neither a session nor a count tells a request's blocks from those of requests that are not watched.
func (x *watched) unsure() bool { return x.Unwatched && !x.named && x.report.Prompt < 0 }

// tokens returns how many tokens the prompt has, as the engine counted or as its blocks tell; 0: not known.
func (x *watched) tokens() int {
	switch {
	case x.report.Prompt >= 0:
		return x.report.Prompt
	case x.lost || x.unsure() || !x.decodes && x.events < 2:
		return 0
	}
	return x.prefill*x.Size + x.Size/2
}

// taught returns what the request teaches.
func (x *watched) taught(guess bool) Taught {
	t := Taught{Chain: x.chain, Prompt: x.prefill, Guess: guess, Worker: x.Worker, Size: x.Size, Lookahead: x.lookahead}
	if x.report.Prompt >= 0 {
		t.Prompt, t.Tokens = x.report.Prompt/x.Size, x.report.Prompt
	}
	prompt := min(t.Prompt, len(t.Chain))
	t.Said = x.Said.Sum()
	if t.Said != 0 && !guess {
		t.Answer = t.Chain[prompt:]
	}
	t.Chain = t.Chain[:prompt]
	return t
}
