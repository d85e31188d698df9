package vision

import (
	"cmp"
	"math"
	"strconv"
	"strings"
)

// Rules of the LLaVA line: one square image, or a square overview plus an unpadded canvas chosen from a list (anyres).

func always(n int) counter {
	return func(_, _, _ int) (grid, error) { return grid{main: n}, nil }
}

// fixed is the same number of tokens for every image.
type fixed struct{ n setting }

func (k fixed) bind(s *settings) counter {
	n := s.small(k.n, 0, MaxTokens)
	return always(n)
}

// square is (size/patch)² for every image, after a square resize or crop, plus the tokens that the encoder's strategy keeps.
type square struct {
	size, patch setting
	rate        setting // nil = 1; a fraction such as "4/8"
	// strategy and extra: "default" drops one token, the class token if the encoder has one; "full" keeps all. nil: neither.
	strategy, extra setting
}

func (k square) bind(s *settings) counter {
	n := k.side(s)
	n = n*n + k.class(s)
	return always(n)
}

func (k square) side(s *settings) int {
	side := s.small(k.size, 1, 1<<16) / s.small(k.patch, 1, 1<<16)
	if k.rate != nil {
		text := s.text(k.rate)
		over, under, _ := strings.Cut(text, "/")
		a, err := strconv.ParseFloat(over, 64)
		b, err2 := strconv.ParseFloat(cmp.Or(under, "1"), 64)
		if err != nil || err2 != nil || !(a > 0 && a <= b && b <= 1<<20) {
			s.fail("%s: want a fraction up to 1, have %q", k.rate, text)
			return side
		}
		side = int(float64(side) * a / b)
	}
	return side
}

// class returns the tokens that the encoder adds to the patches after selection.
func (k square) class(s *settings) int {
	if k.strategy == nil {
		return 0
	}
	extra := 1
	if v, _ := s.find(k.extra); v != nil {
		extra = s.small(k.extra, 0, 16)
	} else if t, _ := dig(s.config, "vision_config.model_type").(string); strings.HasPrefix(t, "siglip") {
		extra = 0
	}
	if s.text(k.strategy) == "default" {
		extra--
	}
	return extra
}

// anyres adds the unpadded canvas, with one newline token per row.
type anyres struct {
	square
	pinpoints setting
	// aspect caps the canvas ("anyres_max_9": 9 times the overview). nil = no cap (LLaVA-NeXT).
	aspect setting
}

func (k anyres) bind(s *settings) counter {
	points := s.pairs(k.pinpoints)
	size := s.small(k.size, 1, 1<<16)
	side := k.side(s)
	base := side*side + k.class(s)
	limit := 0
	if k.aspect != nil {
		text := s.text(k.aspect)
		n, err := strconv.Atoi(strings.TrimPrefix(text, "anyres_max_"))
		if err != nil || n < 1 || n > maxTiles {
			s.fail("%s: want anyres_max_N, have %q", k.aspect, text)
		}
		limit = n
	}
	// The processor's canvas list is (height, width).
	canvases := make([][2]int, len(points))
	for i, p := range points {
		canvases[i] = [2]int{p[1], p[0]}
	}
	alone := 0
	if s.reading.Processor && k.aspect != nil {
		alone = base + 1 // OneVision: several images are not tiled
	}
	return func(w, h, items int) (grid, error) {
		if alone > 0 && items > 1 {
			return grid{main: alone}, nil
		}
		c := bestCanvas(canvases, w, h)
		W, H := float64(w), float64(h)
		ch, cw := side*(c[1]/size), side*(c[0]/size)
		if ch == 0 || cw == 0 {
			return grid{}, undecidable("image", "canvas %v is smaller than a tile of %d", c, size)
		}
		if W/H > float64(cw)/float64(ch) {
			nh := int(round7(H * (float64(cw) / W)))
			ch -= (ch - nh) / 2 * 2
		} else {
			nw := int(round7(W * (float64(ch) / H)))
			cw -= (cw - nw) / 2 * 2
		}
		if limit > 0 {
			if r := math.Sqrt(float64(ch*cw) / float64(limit*side*side)); r > 1.1 {
				ch, cw = floorDiv(float64(ch), r), floorDiv(float64(cw), r)
			}
		}
		return grid{main: ch*cw + ch + base}, nil
	}
}

// round7 is Python's round(x, 7), which rounds the exact decimal value.
func round7(x float64) float64 {
	f, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'f', 7, 64), 64)
	return f
}

// floorDiv is Python's // for floats.
func floorDiv(a, b float64) int {
	mod := math.Mod(a, b)
	div := (a - mod) / b
	q := math.Floor(div)
	if div-q > 0.5 {
		q++
	}
	return int(q)
}

// panScan is Gemma 3's rule: 256 tokens, and on request as many again for each crop of a long image.
type panScan struct {
	tokens                          setting
	on, minCrop, maxCrops, minRatio setting
}

func (k panScan) bind(s *settings) counter {
	n := s.small(k.tokens, 1, 1<<16)
	if !s.bool(k.on) {
		return always(n)
	}
	minCrop, maxCrops, minRatio := s.int(k.minCrop), s.small(k.maxCrops, 1, maxTiles), s.float(k.minRatio)
	return func(w, h, _ int) (grid, error) {
		long, short := max(w, h), min(w, h)
		g := grid{main: n}
		if float64(long)/float64(short) < minRatio {
			return g, nil
		}
		crops := min(long/minCrop, int(math.Floor(float64(long)/float64(short)+0.5)))
		crops = min(maxCrops, max(2, crops))
		if min((long+crops-1)/crops, short) >= minCrop {
			g.rows, g.cols, g.tile = 1, crops, n
		}
		return g, nil
	}
}
