package vision

import (
	"math"
	"slices"
)

// Rules that cut a picture into equal tiles. The grid is chosen from a list by how well its shape fits (InternVL).

// maxTiles bounds tile settings, so that the lists of candidate grids stay short.
const maxTiles = 4096

// grids lists columns and rows with lo <= columns*rows <= hi, by product, then columns. Upstream leaves the order of equal products
// open; no picture size was found for which it matters.
func grids(lo, hi int) [][2]int {
	var out [][2]int
	for cols := 1; cols <= hi; cols++ {
		for rows := 1; cols*rows <= hi; rows++ {
			if cols*rows >= lo {
				out = append(out, [2]int{cols, rows})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b [2]int) int { return a[0]*a[1] - b[0]*b[1] })
	return out
}

// closestRatio returns the grid with the nearest aspect ratio. Among equals a later (larger) one wins if the picture covers half of
// it.
func closestRatio(candidates [][2]int, w, h, size int) (cols, rows int) {
	ratio, area, tileArea := float64(w)/float64(h), float64(w)*float64(h), float64(size)*float64(size)
	best, diff := [2]int{1, 1}, math.Inf(1)
	for _, c := range candidates {
		d := math.Abs(ratio - float64(c[0])/float64(c[1]))
		if d < diff || d == diff && area > 0.5*tileArea*float64(c[0])*float64(c[1]) {
			best, diff = c, min(d, diff)
		}
	}
	return best[0], best[1]
}

// tiles counts tiles, plus a thumbnail if there is more than one.
type tiles struct {
	size     value // side of a tile in pixels
	min, max value
	dynamic  value // switch; off means one tile
	thumb    value // switch for the thumbnail. nil = always
	perTile  perTile
}

// perTile is the number of tokens of a tile: a setting, or computed from the encoder's patches and how many are merged.
type perTile struct {
	n     value
	patch value // pixels of a patch
	ratio value // downsample_ratio, a fraction of a side
}

func (p perTile) read(s *settings, size int) int {
	if p.n != nil {
		return s.small(p.n, 1, 1<<20)
	}
	side := size / s.small(p.patch, 1, 1<<16)
	r := s.float(p.ratio)
	n := float64(side*side) * float64(r*r)
	if !(n >= 0 && n <= MaxTokens) {
		s.fail("%s: a tile would have %v tokens", p.ratio, n)
		return 1
	}
	return int(n)
}

func (k tiles) bind(s *settings) counter {
	size, lo, hi := s.small(k.size, 1, 1<<16), s.small(k.min, 1, maxTiles), s.small(k.max, 1, maxTiles)
	if !s.bool(k.dynamic) {
		lo, hi = 1, 1
	}
	per := k.perTile.read(s, size)
	thumb := k.thumb == nil || s.bool(k.thumb)
	candidates := grids(lo, hi)
	return func(w, h int) (grid, error) {
		cols, rows := closestRatio(candidates, w, h, size)
		n := cols * rows
		if thumb && n > 1 {
			n++
		}
		return grid{main: n * per}, nil
	}
}
