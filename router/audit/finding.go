package audit

import (
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
)

// Verdict is the result of comparing a request's prediction with events, in one word.
type Verdict string

// The verdicts. All but Equal and Unattributed have a Finding with details.
const (
	Equal        Verdict = "equal"        // the worker stored what was predicted
	BlockSize    Verdict = "block_size"   // its blocks have another size than its others
	Token        Verdict = "token"        // a token differs
	Span         Verdict = "span"         // a medium has another number of tokens
	MediaName    Verdict = "media_name"   // tokens are equal, a medium's name differs
	Keys         Verdict = "keys"         // tokens and names are equal, salt or adapter differ
	Block        Verdict = "block"        // a block differs; the source reports no tokens
	Nothing      Verdict = "nothing"      // the worker reported no block at all: are its KV events enabled?
	Elsewhere    Verdict = "elsewhere"    // another worker's events report its blocks, and its own do not
	Unattributed Verdict = "unattributed" // not all blocks came, and no event can be attributed to the request
)

// Differs reports whether the worker stored another prompt than was computed.
func (v Verdict) Differs() bool {
	return v == Token || v == Span || v == MediaName || v == Keys || v == Block
}

// Finding is a request that was not stored as predicted. It holds numbers: no image, no image's name, and no text.
type Finding struct {
	At       time.Time `json:"at"`
	ID       string    `json:"id"` // of the decision
	Model    string    `json:"model"`
	Worker   string    `json:"worker"`
	Verdict  Verdict   `json:"verdict"`
	Position int       `json:"position"` // in the prompt, in tokens
	Ours     int       `json:"ours"`     // token id, or number of tokens of a medium or block
	Theirs   int       `json:"theirs"`
	Says     string    `json:"says"`
	InMedium bool      `json:"in_medium,omitempty"` // of Block: a medium has a part in it

	agreed int // requests of its kind that the worker has stored as predicted since
	media  int // how many media Ours and Theirs count together; 0: one
}

const maxFindings = 64

// verdict counts a request's verdict and keeps a Finding if something is wrong. If nothing was predicted, it only completes the finding.
func (a *Auditor) verdict(x *request, v Verdict) {
	a.count(x, v)
	if v == Equal {
		a.agree(x)
	}
	if v == Equal || v == Unattributed {
		return
	}
	f := x.finding
	if f == nil || f.Verdict != v {
		f = &Finding{Verdict: v}
	}
	f.At, f.ID, f.Model, f.Worker = a.o.Now(), x.ID, x.Model, x.Worker
	f.Says = f.text()
	if x.Shadow {
		return
	}
	if v == Nothing && a.o.Why != nil {
		if why := a.o.Why(x.Slot); why != "" {
			f.Says = noBlock + why
		}
	}
	a.mu.Lock()
	if len(a.recent) == maxFindings {
		a.recent = slices.Delete(a.recent, 0, 1)
	}
	a.recent = append(a.recent, *f)
	a.mu.Unlock()
	if v == Nothing { // it may come late, or wait for a stream that is away: the table of findings says which
		return
	}
	a.o.Log.Warn("a worker stored something else than predicted: "+string(v), zap.String("model", f.Model), zap.String("worker", f.Worker),
		zap.String("id", f.ID), zap.String("what", f.Says))
}

// agree notes that a worker has stored a request as predicted. Enough of them, with media if a finding is about media, end it: its cause
// was mended.
func (a *Auditor) agree(x *request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.recent {
		f := &a.recent[i]
		ofMedia := f.InMedium || f.Verdict == Span || f.Verdict == MediaName
		if f.Worker == x.Worker && f.Model == x.Model && (!ofMedia || len(x.Prompt.Media) > 0) {
			f.agreed++
		}
	}
	a.recent = slices.DeleteFunc(a.recent, func(f Finding) bool { return f.agreed >= f.ends() })
}

// ends returns how many requests that agree end it: a stream that is connected again has all, another reading may be one of few requests.
func (f *Finding) ends() int {
	if f.Verdict == Nothing || f.Verdict == Elsewhere {
		return fewPlaced
	}
	return streamWindow
}

func (a *Auditor) count(x *request, v Verdict) {
	if x.Shadow {
		return
	}
	a.verdicts.WithLabelValues(x.Model, x.Worker, string(v)).Inc()
	if a.o.Verdict != nil {
		a.o.Verdict(x.ID, v)
	}
}

const noBlock = "the worker has reported no block since the request came: "

func (f *Finding) text() string {
	switch f.Verdict {
	case BlockSize:
		return fmt.Sprintf("blocks have %d tokens, the others of this worker %d: they are not kept", f.Theirs, f.Ours)
	case Token:
		return fmt.Sprintf("first difference at token %d: ours %d, the worker's %d: is the model directory the worker's own?",
			f.Position, f.Ours, f.Theirs)
	case Span:
		if f.media > 1 {
			return fmt.Sprintf("%d media from token %d on have %d tokens here and, by the engine's count, %d there: check mm_processor_kwargs "+
				"and engine_version", f.media, f.Position, f.Ours, f.Theirs)
		}
		return fmt.Sprintf("the medium at token %d has %d tokens here and %d there: check mm_processor_kwargs and engine_version",
			f.Position, f.Ours, f.Theirs)
	case MediaName:
		return fmt.Sprintf("the medium at token %d has another hash there: check engine_version, mm_hasher_algorithm and engine_model",
			f.Position)
	case Keys:
		return fmt.Sprintf("tokens and media are equal from token %d on, the rest of the block's key differs: salt or adapter", f.Position)
	case Block:
		where := ""
		if f.InMedium {
			where = ", which has tokens of an image"
		}
		return fmt.Sprintf("first difference in the block at token %d%s; its tokens at the worker are not known, only their hash "+
			"(agents send them with --publish tokens)", f.Position, where)
	case Elsewhere:
		return "the worker's events do not report it, and another worker's do: are their event sockets swapped (SL0308)?"
	case Nothing:
		return noBlock + "are its KV events on, and is this its socket?"
	}
	return ""
}

// Mended drops the findings about a model, since it is read anew, or about a worker, since its process is another one. What the worker's
// requests said of rules counts no longer, and those that are not judged yet are not judged.
func (a *Auditor) Mended(model, worker string) {
	if a == nil {
		return
	}
	a.judgeMu.Lock() // else one could be judged in between
	defer a.judgeMu.Unlock()
	for _, c := range a.judged() {
		c.forget(worker)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, x := range a.byID {
		if x.Worker == worker {
			a.remove(x)
		}
	}
	a.recent = slices.DeleteFunc(a.recent, func(f Finding) bool { return f.Model == model || f.Worker == worker })
}

// Findings returns the last requests that were not stored as predicted, newest first.
func (a *Auditor) Findings() []Finding {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	out := slices.Clone(a.recent)
	slices.Reverse(out)
	return out
}
