package sglang

import (
	"fmt"
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
	agreed [2]uint64      // candidate + 1 that a 30-bit pad pointed to, and that pad
	tried  time.Time
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

// Saw takes a pad from an event. The first pad that only one candidate explains decides; of 30-bit pads two must agree.
func (f *FingerprintFinder) Saw(pad uint64) {
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
