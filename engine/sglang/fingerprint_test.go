package sglang

import (
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/sightline-router/sightline/engine/rules"
)

func qwen3(t *testing.T, version string, found func(string)) *FingerprintFinder {
	t.Helper()
	v, err := rules.ParseVersion(version)
	if err != nil {
		t.Fatal(err)
	}
	return NewFingerprintFinder(Processor{ModelType: "qwen3_vl", Class: qwenClass}, "", v, found)
}

// TestFingerprintIsFound: after the first pad that only one fingerprint explains, images have names (for narrow pads, after the
// second). A fleet that changes its fingerprint is noticed, and pads of images that were not routed have no effect.
func TestFingerprintIsFound(t *testing.T) {
	for version, need := range map[string]int{"0.5.23": 1, "0.5.22": 2} {
		var told []string
		p := qwen3(t, version, func(f string) { told = append(told, f) })
		pic := func(i int) Image { return Image{Content: sha256.Sum256([]byte(fmt.Sprint(i))), Detail: "low"} }
		item := func(f string, i int) uint64 {
			return Item(f, pic(i).Content, "low")
		}
		worker, upgraded := p.candidates[len(p.candidates)/2], p.candidates[3]
		for i := range need {
			if _, ok := p.Name(pic(i)); ok {
				t.Errorf("%s: named before any event", version)
			}
			p.Saw("w", 1<<40) // of an image that was routed by others
			p.Saw("w", Pads(item(worker, i), p.rule)[0])
		}
		got, ok := p.Name(pic(9))
		if want := ItemName(item(worker, 9)); !ok || got != want || len(told) != 1 || told[0] != worker {
			t.Fatalf("%s: %q (%v), want %q; told %q", version, got, ok, want, told)
		}
		for i := range need {
			p.Name(pic(20 + i))
			p.tried = time.Time{} // a second has passed
			p.Saw("w", Pads(item(upgraded, 20+i), p.rule)[0])
		}
		if len(told) != 2 || told[1] != upgraded {
			t.Errorf("%s: after the upgrade: told %d times, want len(told) == 2, told[1] == upgraded", version, len(told))
		}
	}
}

// TestPadsAreBounded: only remembered images are searched, whatever the number of images.
func TestPadsAreBounded(t *testing.T) {
	p := qwen3(t, "0.5.23", nil)
	for i := range 3 * recentImages {
		p.Name(Image{Content: sha256.Sum256([]byte(fmt.Sprint(i)))})
	}
	p.Saw("w", 1<<50)
	if len(p.recent) != recentImages || len(p.by) > recentImages*len(p.candidates) {
		t.Errorf("%d images, %d pads, want %d, at most %d", len(p.recent), len(p.by), recentImages, recentImages*len(p.candidates))
	}
}

// TestOddWorkerChangesNoNames: a worker whose processor is another than the others' changes nothing for them, whichever is heard first and
// how often; a fleet that is replaced worker by worker is followed, and so is the only worker there is.
func TestOddWorkerChangesNoNames(t *testing.T) {
	for _, version := range []string{"0.5.23", "0.5.22"} {
		p := qwen3(t, version, nil)
		images := 0
		sees := func(worker string, candidate int) { // two images, as 30-bit pads need
			for range 2 {
				images++
				pic := Image{Content: sha256.Sum256([]byte(fmt.Sprint(images)))}
				p.Name(pic)
				p.tried = time.Time{} // a second has passed
				p.Saw(worker, Pads(Item(p.candidates[candidate], pic.Content, ""), p.rule)[0])
			}
		}
		want := func(candidate int, when string) {
			t.Helper()
			if p.now != p.candidates[candidate] {
				t.Errorf("%s, %s: got the fingerprint %q, want %q", version, when, p.now, p.candidates[candidate])
			}
		}
		sees("odd", 7)
		want(7, "the odd one alone")
		for _, w := range []string{"a", "b", "c"} {
			sees(w, 2)
		}
		want(2, "three others heard")
		for range 20 {
			sees("odd", 7)
		}
		want(2, "the odd one heard often")
		for _, w := range []string{"d", "e", "f"} {
			sees(w, 4)
		}
		want(4, "new workers replaced the old")
		for range 2 {
			sees("odd", 4)
		}
		want(4, "the odd one as they are")
		p = qwen3(t, version, nil)
		sees("only", 1)
		sees("only", 3)
		want(3, "the only worker upgraded")
	}
}
