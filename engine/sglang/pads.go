package sglang

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/sightline-router/sightline/engine/rules"
)

// Finder finds out how the workers of one model name pictures: events carry pads, and of all fingerprints that a worker may
// have only its own turns a picture that was routed lately into the pads that an event shows. Safe for concurrent use.
type Finder struct {
	rule       PadRule
	candidates []string // fingerprints, likeliest first
	found      func(fingerprint string)

	mu     sync.Mutex
	now    string         // the fingerprint that counts; "": not known yet
	recent []Picture      // routed lately, oldest first
	by     map[uint64]int // first pad → candidate, of the recent pictures that were tried
	agreed [2]uint64      // candidate + 1, and the pad of 30 bits that spoke for it
	tried  time.Time
}

// Picture is what the item hash of a picture depends on besides the fingerprint.
type Picture struct {
	Content [32]byte // SHA-256 of the file
	Detail  string   // image_url.detail
	tried   bool
}

const (
	recentPictures = 64
	// retryPad is how often a pad that the fingerprint does not explain is looked into: it may be a picture that was not
	// routed by us, or workers that were upgraded. One look costs about a millisecond a picture.
	retryPad = time.Second
)

// transformersReleases lists the releases of Hugging Face transformers that a worker may run, the likely ones first.
func transformersReleases() (out []string) {
	out = []string{"5.19.0"} // of SGLang 0.5.23's image
	for patch := range 4 {
		for minor := 30; minor >= 0; minor-- {
			out = append(out, fmt.Sprintf("5.%d.%d", minor, patch))
		}
	}
	for patch := range 7 {
		out = append(out, fmt.Sprintf("4.57.%d", patch))
	}
	return out
}

// NewFinder begins with a fingerprint that is known, or with "" and all that a processor may have. found is told what events
// show. Without a class of processor it is nil: such names do not follow from the bytes.
func NewFinder(proc Processor, fingerprint string, v rules.Version, found func(fingerprint string)) *Finder {
	if proc.Class == "" {
		return nil
	}
	f := &Finder{rule: PadRuleOf(v), now: fingerprint, candidates: []string{fingerprint}, found: found, by: map[uint64]int{}}
	if fingerprint == "" {
		f.candidates = proc.Candidates(transformersReleases())
	}
	return f
}

// Name gives a picture's name, if the fingerprint is known, and remembers the picture.
func (f *Finder) Name(pic Picture) (string, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := false
	for i := range f.recent {
		known = known || f.recent[i].Content == pic.Content && f.recent[i].Detail == pic.Detail
	}
	if !known && len(f.candidates) > 1 {
		if len(f.recent) == recentPictures {
			f.recent = f.recent[:copy(f.recent, f.recent[1:])]
		}
		pic.Detail = strings.Clone(pic.Detail) // it lies in the request
		f.recent = append(f.recent, pic)
	}
	if f.now == "" {
		return "", false
	}
	return ItemName(Item(f.now, pic.Content, pic.Detail)), true
}

// Saw takes a pad of an event. The first that only one candidate explains decides; of pads of 30 bits, two that agree.
func (f *Finder) Saw(pad uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, ok := f.by[pad]
	if !ok && (f.now == "" || time.Since(f.tried) > retryPad) {
		f.tried = time.Now()
		c, ok = f.explain(pad)
	}
	if !ok || f.candidates[c] == f.now {
		return
	}
	if f.rule != PadFour && (f.agreed[0] != uint64(c)+1 || f.agreed[1] == pad) {
		f.agreed = [2]uint64{uint64(c) + 1, pad}
		return
	}
	f.now = f.candidates[c]
	if f.found != nil {
		f.found(f.now)
	}
}

// explain looks for the candidate that gives a pad to a recent picture, the youngest first.
func (f *Finder) explain(pad uint64) (candidate int, ok bool) {
	if len(f.by) > recentPictures*len(f.candidates) {
		clear(f.by)
	}
	for i := len(f.recent) - 1; i >= 0; i-- {
		pic := &f.recent[i]
		if pic.tried {
			continue
		}
		pic.tried = true
		for k, fingerprint := range f.candidates {
			first := Pads(Item(fingerprint, pic.Content, pic.Detail), f.rule)[0]
			if _, taken := f.by[first]; !taken {
				f.by[first] = k
			}
		}
		if c, ok := f.by[pad]; ok {
			return c, true
		}
	}
	return 0, false
}
