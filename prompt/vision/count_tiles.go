package vision

import (
	"math"
	"slices"
)

// Rules that cut an image into equal tiles. The grid is chosen from a list by how well its shape fits (InternVL and many
// relatives).

// maxTiles bounds tile settings, so that the lists of candidate grids stay short.
const maxTiles = 4096

// grids lists columns and rows with lo <= columns*rows <= hi, by product, then columns. Upstream leaves the order of equal products
// open; no image size was found for which it matters.
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

// closestRatio returns the grid with the nearest aspect ratio. Among equals a later (larger) one wins if the image covers half of
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

// closeAndFull weighs closeness against how much of the grid the image fills (Llama Nemotron Nano VL v1, Eagle).
func closeAndFull(candidates [][2]int, w, h, size int) (cols, rows int) {
	ratio, area, tileArea := float64(w)/float64(h), float64(w)*float64(h), float64(size)*float64(size)
	best, top := [2]int{1, 1}, math.Inf(-1)
	for _, c := range candidates {
		r := float64(c[0]) / float64(c[1])
		full := min(float64(c[0])*float64(c[1])*tileArea/area, 0.6)
		if f := full * min(r/ratio, ratio/r); f > top {
			best, top = c, f
		}
	}
	return best[0], best[1]
}

// tiles counts tiles, plus a thumbnail if there is more than one.
type tiles struct {
	size     setting // side of a tile in pixels
	min, max setting
	dynamic  setting // switch; off means one tile. nil = always on
	thumb    setting // switch for the thumbnail. nil = always
	perTile  perTile
	choose   func(candidates [][2]int, w, h, size int) (cols, rows int) // nil = closestRatio
	// grid: the layout has one run per tile; otherwise there is a single run.
	grid bool
}

// perTile is the number of tokens of a tile: a setting, or computed from the encoder's patches and how many are merged.
type perTile struct {
	n     setting
	size  setting // pixels of a side, nil = the tile's
	patch setting // pixels of a patch
	times setting // patches merged on each side, nil = 1
	ratio setting // downsample_ratio, a fraction of a side; nil = 1
}

func (p perTile) read(s *settings, size int) int {
	if p.n != nil {
		return s.small(p.n, 1, 1<<20)
	}
	if p.size != nil {
		size = s.small(p.size, 1, 1<<16)
	}
	patch := s.small(p.patch, 1, 1<<16)
	if p.times != nil {
		patch *= s.small(p.times, 1, 64)
	}
	side := size / patch
	r := 1.0
	if p.ratio != nil {
		r = s.float(p.ratio)
	}
	n := float64(side*side) * float64(r*r)
	if !(n >= 0 && n <= MaxTokens) {
		s.fail("%s: a tile would have %v tokens", p.ratio, n)
		return 1
	}
	return int(n)
}

// read returns the side of a tile, the bounds of their number and the tokens of one.
func (k tiles) read(s *settings) (size, lo, hi, per int) {
	size, lo, hi = s.small(k.size, 1, 1<<16), s.small(k.min, 1, maxTiles), s.small(k.max, 1, maxTiles)
	if k.dynamic != nil && !s.bool(k.dynamic) {
		lo, hi = 1, 1
	}
	return size, lo, hi, k.perTile.read(s, size)
}

func (k tiles) bind(s *settings) counter {
	size, lo, hi, per := k.read(s)
	thumb := k.thumb == nil || s.bool(k.thumb)
	candidates := grids(lo, hi)
	choose := k.choose
	if choose == nil {
		choose = closestRatio
	}
	return func(w, h, _ int) (grid, error) {
		cols, rows := choose(candidates, w, h, size)
		if k.grid {
			g := grid{main: per, rows: rows, cols: cols, tile: per}
			if cols*rows == 1 {
				g.rows, g.cols = 0, 0
			} else if !thumb {
				g.main = 0
			}
			return g, nil
		}
		n := cols * rows
		if thumb && n > 1 {
			n++
		}
		return grid{main: n * per}, nil
	}
}

// msac is H2OVL's two-scale cropping: a second tiling whose grid shares no factor with the first.
type msac struct {
	tiles
	on setting
}

func (k msac) bind(s *settings) counter {
	plain := k.tiles.bind(s)
	if !s.bool(k.on) {
		return plain
	}
	size, _, hi, per := k.read(s)
	first, second := grids(1, hi), grids(3, hi)
	return func(w, h, _ int) (grid, error) {
		cols, rows := closestRatio(first, w, h, size)
		n := cols * rows
		var rest [][2]int
		for _, c := range second {
			if cols%c[0] != 0 && rows%c[1] != 0 {
				rest = append(rest, c)
			}
		}
		cols2, rows2 := closestRatio(rest, w, h, size)
		n2 := cols2 * rows2
		if n2 != 1 {
			n2++
		}
		return grid{main: (n + n2) * per}, nil
	}
}

// deepseekOCR tiles images larger than one tile, in addition to an overview.
type deepseekOCR struct {
	size, base   setting // tile and overview in pixels
	patch, ratio setting
	min, max     setting
	newlines     bool // one token per row of features (OCR, not OCR 2)
	crop         setting
}

func (k deepseekOCR) bind(s *settings) counter {
	size, base := s.small(k.size, 1, 1<<16), s.small(k.base, 1, 1<<16)
	unit := float64(s.small(k.ratio, 1, 1<<10))
	patch := float64(s.small(k.patch, 1, 1<<16))
	candidates := grids(s.small(k.min, 1, maxTiles), s.small(k.max, 1, maxTiles))
	side := int(math.Ceil(float64(base) / patch / unit))
	tile := int(math.Ceil(float64(size) / patch / unit))
	crop := k.crop == nil || s.bool(k.crop)
	return func(w, h, _ int) (grid, error) {
		n, line := side*side+1, 0
		if k.newlines {
			n, line = side*(side+1)+1, 1
		}
		if crop && (w > size || h > size) {
			cols, rows := closestRatio(candidates, w, h, size)
			n += rows * tile * (cols*tile + line)
		}
		return grid{main: n}, nil
	}
}

// deepseekVL2 picks a canvas from the config's list. More than two images in a request turn tiling off.
type deepseekVL2 struct{ candidates, size, patch, ratio setting }

func (k deepseekVL2) bind(s *settings) counter {
	canvases := s.pairs(k.candidates)
	size, patch := s.small(k.size, 1, 1<<16), s.small(k.patch, 1, 1<<16)
	side := int(math.Ceil(float64(size/patch) / float64(s.small(k.ratio, 1, 1<<10))))
	return func(w, h, items int) (grid, error) {
		cols, rows := 1, 1
		if items <= 2 {
			c := bestCanvas(canvases, w, h)
			cols, rows = c[0]/size, c[1]/size
		}
		return grid{main: side*(side+1) + 1 + rows*side*(cols*side+1)}, nil
	}
}

// bestCanvas is LLaVA-NeXT's choice: most pixels kept, then least waste, then first. Pairs are (width, height).
func bestCanvas(canvases [][2]int, w, h int) [2]int {
	best, kept, waste := [2]int{1, 1}, -1, 0
	for _, c := range canvases {
		s := min(float64(c[0])/float64(w), float64(c[1])/float64(h))
		fit := min(int(float64(w)*s)*int(float64(h)*s), w*h)
		left := c[0]*c[1] - fit
		if fit > kept || fit == kept && left < waste {
			best, kept, waste = c, fit, left
		}
	}
	return best
}

// lfm2 keeps small images whole at their own resolution and tiles large ones, with a thumbnail (LFM2-VL).
type lfm2 struct {
	factor, patch, minTokens, maxTokens setting
	tile, minTiles, maxTiles            setting
	split, thumb, tolerance             setting
}

func (k lfm2) bind(s *settings) counter {
	factor, patch := s.small(k.factor, 1, 1<<10), s.small(k.patch, 1, 1<<16)
	lo, hi := s.small(k.minTokens, 1, MaxTokens), s.small(k.maxTokens, 1, MaxTokens)
	tile, tolerance := s.small(k.tile, 1, 1<<16), s.float(k.tolerance)
	minTiles, maxT := s.small(k.minTiles, 1, maxTiles), s.small(k.maxTiles, 1, maxTiles)
	split := s.bool(k.split) && !(minTiles == 1 && maxT == 1)
	if split && minTiles > maxT {
		s.fail("min_tiles %d is above max_tiles %d", minTiles, maxT)
	}
	thumb := s.bool(k.thumb)
	candidates := grids(minTiles, maxT)
	unit := patch * factor
	side := (tile/patch + factor - 1) / factor
	return func(w, h, _ int) (grid, error) {
		W, H, U := float64(w), float64(h), float64(unit)
		px := float64(patch) * float64(patch) * float64(factor) * float64(factor)
		hb, wb := math.RoundToEven(H/U)*U, math.RoundToEven(W/U)*U
		P := float64(patch)
		large := max(P, hb)*max(P, wb) > float64(hi)*px*tolerance
		hb, wb = max(U, hb), max(U, wb)
		most, least := float64(hi)*px, float64(lo)*px
		if hb*wb > most {
			beta := math.Sqrt(H * W / most)
			hb, wb = max(U, math.Floor(H/beta/U)*U), max(U, math.Floor(W/beta/U)*U)
		} else if hb*wb < least {
			beta := math.Sqrt(least / (H * W))
			hb, wb = math.Ceil(H*beta/U)*U, math.Ceil(W*beta/U)*U
		}
		whole := (int(hb) / patch / factor) * (int(wb) / patch / factor)
		if !large || !split {
			return grid{main: whole}, nil
		}
		cols, rows := closestRatio(candidates, w, h, tile)
		if cols*rows == 1 {
			return grid{main: whole}, nil
		}
		g := grid{main: whole, rows: rows, cols: cols, tile: side * side}
		if !thumb {
			g.main = 0
		}
		return g, nil
	}
}

// graniteDocling always makes tiles, at least one.
type graniteDocling struct {
	size, min, max, crop, seqLen, fine setting
	dense                              [4]setting // max_patches, max_scale, min_aspect, max_aspect
}

func (k graniteDocling) bind(s *settings) counter {
	size, lo, hi := s.small(k.size, 1, 1<<16), s.small(k.min, 1, maxTiles), s.small(k.max, 1, maxTiles)
	n := s.small(k.seqLen, 1, 1<<16)
	if s.bool(k.fine) {
		n *= 4
	}
	crop := s.bool(k.crop)
	densePatches := s.small(k.dense[0], 0, maxTiles)
	scale, minAspect, maxAspect := s.float(k.dense[1]), s.float(k.dense[2]), s.float(k.dense[3])
	usual, dense := narrow(grids(lo, hi)), narrow(grids(lo, densePatches))
	return func(w, h, _ int) (grid, error) {
		if !crop {
			return grid{rows: 1, cols: 1, tile: n}, nil
		}
		from, most := usual, hi
		if densePatches > 0 && (scale > 0 || minAspect > 0) {
			ratio := float64(w) / float64(h)
			use := !(minAspect > 0 && ratio <= minAspect) && !(maxAspect > 0 && ratio > maxAspect)
			if use && scale > 0 {
				cols, _ := closestRatio(usual, w, h, size)
				use = float64(cols*size)/float64(w) < scale
			}
			if use {
				from, most = dense, densePatches
			}
		}
		if most <= 1 {
			return grid{rows: 1, cols: 1, tile: n}, nil
		}
		cols, rows := closestRatio(from, w, h, size)
		g := grid{rows: rows, cols: cols, tile: n}
		if rows*cols > 1 {
			g.main = n
		}
		return g, nil
	}
}

// narrow drops grids with more than 16 tiles on a side, for which the tokenizer has no markers.
func narrow(all [][2]int) [][2]int {
	keep := all[:0]
	for _, g := range all {
		if max(g[0], g[1]) <= 16 {
			keep = append(keep, g)
		}
	}
	return keep
}
