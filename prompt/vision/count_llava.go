package vision

import (
	"math"
	"strings"
)

// Rules of a square picture (LLaVA 1.5, Gemma 3).

func always(n int) counter {
	return func(_, _ int) (grid, error) { return grid{main: n}, nil }
}

// square is (size/patch)² for every picture, after a square resize or crop, plus the tokens that the encoder's strategy keeps:
// "default" drops one token, the class token if the encoder has one; "full" keeps all.
type square struct{ size, patch, strategy, extra value }

func (k square) bind(s *settings) counter {
	side := s.small(k.size, 1, 1<<16) / s.small(k.patch, 1, 1<<16)
	n := side*side + k.class(s)
	return always(n)
}

// class returns the tokens that the encoder adds to the patches after selection.
func (k square) class(s *settings) int {
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

// panScan is Gemma 3's rule: 256 tokens, and on request as many again for each crop of a long picture.
type panScan struct {
	tokens                          value
	on, minCrop, maxCrops, minRatio value
}

func (k panScan) bind(s *settings) counter {
	n := s.small(k.tokens, 1, 1<<16)
	if !s.bool(k.on) {
		return always(n)
	}
	minCrop, maxCrops, minRatio := s.int(k.minCrop), s.small(k.maxCrops, 1, maxTiles), s.float(k.minRatio)
	return func(w, h int) (grid, error) {
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
