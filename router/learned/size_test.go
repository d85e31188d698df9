package learned

import "testing"

func TestSizes(t *testing.T) {
	const url, small, large = 0, 640 * 480, 1920 * 1080
	seen := uint64(0)
	image := func(pixels int32) *Path {
		seen++ // no two URLs are the same
		return &Path{Steps: []Step{{Bytes: 100}, {Bytes: pixels, Media: true, Untold: pixels == url}}, Media: []MediaStep{{ID: seen, Step: 1}}}
	}
	text := &Path{Steps: []Step{{Bytes: 1000}}}
	s := new(Sizes)
	within := func(what string, class uint32, p *Path, low, high int) {
		t.Helper()
		if n := int(s.Of(class).Tokens(p.Steps)); n < low || n > high {
			t.Errorf("%s: %d tokens, want %d to %d", what, n, low, high)
		}
	}
	within("an image of which nothing is known", 1, image(url), 900, 1100)
	within("a small one", 1, image(small), 400, 450)
	for range 300 { // 1: a token for each 32×32 pixels, and 3 tokens for 10 bytes of text; 2: 256 tokens for any image
		s.Learn(1, text, 300)
		s.Learn(1, image(url), 530)
		s.Learn(1, image(small), 30+small/1024)
		s.Learn(1, image(large), 30+large/1024)
		s.Learn(2, image(small), 25+256)
		s.Learn(2, image(large), 25+256)
	}
	within("a text", 1, text, 295, 305)
	within("an image whose size is not known", 1, image(url), 520, 540)
	within("a small image", 1, image(small), 310, 350)
	within("a large one", 1, image(large), 2000, 2100)
	within("two of a size that was not seen", 1, &Path{Steps: append(image(1024*768).Steps, image(1024*768).Steps...)}, 1500, 1700)
	within("a small image where all are alike", 2, image(small), 250, 310)
	within("a large one", 2, image(large), 250, 310)
	within("a text of another class", 3, text, 250, 250)
	for class := range uint32(2 * maxClasses) {
		s.Learn(class, text, 10)
	}
	if len(s.byClass) != maxClasses {
		t.Errorf("%d classes, want %d", len(s.byClass), maxClasses)
	}
}

// A worker that counts nonsense changes little of what is expected of its class.
func TestSizesOfALiar(t *testing.T) {
	s, text := new(Sizes), &Path{Steps: []Step{{Bytes: 20_000}}}
	for range 100 {
		s.Learn(1, text, MaxTokens)
		s.Learn(1, text, 5000)
		s.Learn(1, text, 5000)
	}
	if n := s.Of(1).Tokens(text.Steps); n > 10_000 {
		t.Errorf("%.0f tokens are expected of a text that has 5,000, want n <= 10_000", n)
	}
}

// An image that a URL names has the size that it had in an earlier prompt, at the engines of that class. The number of such is bounded.
func TestSizesOfLinks(t *testing.T) {
	s := new(Sizes)
	path := func(id uint64) *Path {
		return &Path{Steps: []Step{{Bytes: 400}, {Media: true, Untold: true}, {Bytes: 80}}, Media: []MediaStep{{ID: id, Step: 1}}}
	}
	tokens := func(class uint32, id uint64) int {
		p := path(id)
		s.Fill(class, p)
		return int(s.Of(class).Tokens(p.Steps))
	}
	s.Learn(1, path(7), 120+3000)
	if n := tokens(1, 7); n < 3100 || n > 3140 {
		t.Errorf("%d tokens at the second sighting, want 3,120", n)
	}
	for _, other := range []int{tokens(1, 8), tokens(2, 7)} {
		if other > 1500 {
			t.Errorf("%d tokens of an image, or a class, that was not seen, want at most 1500", other)
		}
	}
	pair := func(a, b uint64) *Path {
		p := path(a)
		p.Steps, p.Media = append(p.Steps, Step{Media: true, Untold: true}), append(p.Media, MediaStep{ID: b, Step: 3})
		return p
	}
	s.Learn(1, pair(20, 21), 120+500+1500) // which of them is the larger one is not known
	s.Learn(1, pair(20, 7), 120+500+3000)
	for _, one := range []struct {
		id   uint64
		want int
	}{{20, 120 + 500}, {7, 120 + 3000}} {
		if n := tokens(1, one.id); n < one.want-150 || n > one.want+150 {
			t.Errorf("%d tokens with image %d, want about %d", n, one.id, one.want)
		}
	}
	for id := range uint64(maxSized + 100) {
		s.Learn(1, path(1000+id), 120+500)
	}
	if n := s.media.Len(); n != maxSized {
		t.Errorf("%d media, want %d", n, maxSized)
	}
}
