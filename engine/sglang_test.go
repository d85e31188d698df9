package engine

import (
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/mmhash/name"
	"github.com/sightline-router/sightline/prompt/vision"
)

func qwen3(t *testing.T, version string, pinned func(string)) *pads {
	t.Helper()
	v, err := rules.ParseVersion(version)
	if err != nil {
		t.Fatal(err)
	}
	return newPads(name.SGLangProcessor{ModelType: "qwen3_vl", Class: vision.FactsOf("qwen3_vl", "").ProcessorClass}, DefaultServer(), v, pinned)
}

// The first pad that one fingerprint explains names pictures from then on (narrow pads: the second); a fleet that changes
// its fingerprint is noticed; pads of pictures that were not routed say nothing.
func TestFingerprintIsFound(t *testing.T) {
	for version, need := range map[string]int{"0.5.23": 1, "0.5.17": 2} {
		var told []string
		p := qwen3(t, version, func(f string) { told = append(told, f) })
		pic := func(i int) routed { return routed{content: sha256.Sum256([]byte(fmt.Sprint(i))), detail: "low"} }
		item := func(f string, i int) uint64 {
			c := pic(i).content
			return name.SGLang{Fingerprint: f}.Item(c[:], "low")
		}
		worker, upgraded := p.candidates[len(p.candidates)/2], p.candidates[3]
		for i := range need {
			if _, ok := p.name(pic(i)); ok {
				t.Errorf("%s: named before any event", version)
			}
			p.saw(1 << 40) // of a picture that others sent
			p.saw(name.Pads(item(worker, i), p.rule)[0])
		}
		got, ok := p.name(pic(9))
		if want := fmt.Sprintf("%016x", item(worker, 9)); !ok || got != want || len(told) != 1 || told[0] != worker {
			t.Fatalf("%s: %q (%v), want %q; told %q", version, got, ok, want, told)
		}
		for i := range need {
			p.name(pic(20 + i))
			p.tried = time.Time{} // a second has passed
			p.saw(name.Pads(item(upgraded, 20+i), p.rule)[0])
		}
		if len(told) != 2 || told[1] != upgraded {
			t.Errorf("%s: after the upgrade: told %d times", version, len(told))
		}
	}
}

// Only what is remembered is looked into, however many pictures come.
func TestPadsAreBounded(t *testing.T) {
	p := qwen3(t, "0.5.23", nil)
	for i := range 3 * recentPictures {
		p.name(routed{content: sha256.Sum256([]byte(fmt.Sprint(i)))})
	}
	p.saw(1 << 50)
	if len(p.recent) != recentPictures || len(p.by) > recentPictures*len(p.candidates) {
		t.Errorf("%d pictures, %d pads", len(p.recent), len(p.by))
	}
}

// Families that are named by pixels have no pads to compute.
func TestOnlyQwen3VL(t *testing.T) {
	for typ, want := range map[string]bool{"qwen3_vl": true, "qwen3_vl_moe": true, "qwen3_5": false, "qwen2_5_vl": false} {
		if got := vision.FactsOf(typ, "").ProcessorClass != ""; got != want {
			t.Errorf("pictures of %s are named by their bytes: %v", typ, got)
		}
	}
	if m := loadShipped(t, func(s *Server, _ *Media) { s.Engine, s.EngineVersion = "sglang", "0.5.23" }); m.names.sglang != nil {
		t.Error("Qwen2.5-VL's pictures would be named by their bytes")
	}
}
