package learned

import "testing"

func TestSizes(t *testing.T) {
	text := &Path{Steps: []Step{{Bytes: 1000}}}
	image := &Path{Steps: []Step{{Bytes: 100}, {Bytes: 40_000, Media: true}}}
	s := new(Sizes)
	if n := s.Estimate(1, image); n < 900 || n > 1100 {
		t.Errorf("%d tokens of an image of which nothing is known", n)
	}
	for range 100 {
		s.Learn(1, text, 400)
		s.Learn(1, image, 300)
	}
	if n := s.Estimate(1, text); n < 395 || n > 405 {
		t.Errorf("%d tokens of a text, want 400", n)
	}
	if n := s.Estimate(1, image); n < 290 || n > 310 {
		t.Errorf("%d tokens of an image, want 300", n)
	}
	if n := s.Estimate(2, text); n != 250 {
		t.Errorf("%d tokens for another class", n)
	}
	for class := range uint32(2 * maxClasses) {
		s.Learn(class, text, 10)
	}
	if len(s.byClass) != maxClasses {
		t.Errorf("%d classes", len(s.byClass))
	}
}
