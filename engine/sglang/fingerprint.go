package sglang

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sightline-router/sightline/engine/rules"
)

// FingerprintFinder determines how the workers of one model name images. Events carry pads, and among all fingerprints that a worker may
// have only its own maps a recently routed image to the pads in an event. Safe for concurrent use.
type FingerprintFinder struct {
	rule       PadRule
	candidates []string // fingerprints, most likely first
	found      func(fingerprint string)

	mu     sync.Mutex
	now    string         // the fingerprint in use; "": not known yet
	recent []Image        // recently routed, oldest first
	by     map[uint64]int // first pad → candidate, for the recent images that were tried
	votes  []vote         // of the workers that were heard last, the newest last
	tried  time.Time
}

// vote is what one worker's last pad pointed to.
type vote struct {
	worker    string
	candidate int
	pad       uint64
	sure      bool // of 30-bit pads, two different ones pointed to it
	at        time.Time
}

// Image holds what an image's item hash depends on besides the fingerprint.
type Image struct {
	Content [32]byte // SHA-256 of the file
	Detail  string   // image_url.detail
	tried   bool
}

const (
	recentImages = 64
	// retryPad is the least time between two searches for a pad that the fingerprint does not explain: the image may have been
	// routed by another router, or the workers may have been upgraded. One search costs about a millisecond per image.
	retryPad = time.Second
	// maxVotes bounds the workers whose votes count: one odd worker changes no name of the others, and those that left are forgotten as new
	// ones are heard.
	maxVotes = 5
	// silence is the time without a vote for the fingerprint in use after which another with as many votes replaces it.
	silence = time.Minute
)

// transformersReleases lists the releases of Hugging Face transformers that a worker may run, the likely ones first.
func transformersReleases() (out []string) {
	out = []string{"5.19.0"} // in SGLang 0.5.23's image
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

// NewFingerprintFinder returns a FingerprintFinder that starts with a known fingerprint, or with "" and all candidates of the
// processor. It calls found with the fingerprint that events reveal. It returns nil if the processor has no class: such names do not
// follow from the bytes.
func NewFingerprintFinder(proc Processor, fingerprint string, v rules.Version, found func(fingerprint string)) *FingerprintFinder {
	if proc.Class == "" {
		return nil
	}
	f := &FingerprintFinder{rule: PadRuleOf(v), now: fingerprint, candidates: []string{fingerprint}, found: found, by: map[uint64]int{}}
	if fingerprint == "" {
		f.candidates = proc.Candidates(transformersReleases())
	}
	return f
}

// Name returns an image's name, if the fingerprint is known, and remembers the image.
func (f *FingerprintFinder) Name(pic Image) (string, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := false
	for i := range f.recent {
		known = known || f.recent[i].Content == pic.Content && f.recent[i].Detail == pic.Detail
	}
	if !known && len(f.candidates) > 1 {
		if len(f.recent) == recentImages {
			f.recent = f.recent[:copy(f.recent, f.recent[1:])]
		}
		pic.Detail = strings.Clone(pic.Detail) // it points into the request
		f.recent = append(f.recent, pic)
	}
	if f.now == "" {
		return "", false
	}
	return ItemName(Item(f.now, pic.Content, pic.Detail)), true
}

// Saw takes a pad from an event of a worker. The fingerprint to which most of the workers that were heard last point is in use: the first
// pad that only one candidate explains is a worker's vote; of 30-bit pads two must agree.
func (f *FingerprintFinder) Saw(worker string, pad uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, ok := f.by[pad]
	if !ok && (f.now == "" || time.Since(f.tried) > retryPad) {
		f.tried = time.Now()
		c, ok = f.explain(pad)
	}
	if ok {
		f.vote(vote{worker, c, pad, f.rule == PadFour, time.Now()})
	}
}

// vote counts one worker's vote, and changes the fingerprint in use if another has more.
func (f *FingerprintFinder) vote(v vote) {
	if i := slices.IndexFunc(f.votes, func(o vote) bool { return o.worker == v.worker }); i >= 0 {
		before := f.votes[i]
		v.sure = v.sure || before.candidate == v.candidate && (before.sure || before.pad != v.pad)
		f.votes = slices.Delete(f.votes, i, i+1)
	}
	f.votes = append(f.votes, v)
	f.votes = f.votes[max(0, len(f.votes)-maxVotes):]
	mine, others, last := 0, 0, time.Time{}
	for _, o := range f.votes {
		switch {
		case !o.sure:
		case o.candidate == v.candidate:
			mine++
		case f.candidates[o.candidate] == f.now:
			others, last = others+1, o.at
		}
	}
	if !v.sure || f.candidates[v.candidate] == f.now || mine < others || mine == others && v.at.Sub(last) < silence {
		return
	}
	f.now = f.candidates[v.candidate]
	if f.found != nil {
		f.found(f.now)
	}
}

// explain returns the candidate that maps a recent image to this pad, trying the newest images first.
func (f *FingerprintFinder) explain(pad uint64) (candidate int, ok bool) {
	if len(f.by) > recentImages*len(f.candidates) {
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
