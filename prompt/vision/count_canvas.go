package vision

import (
	"math"
	"slices"
)

// Rules that choose a canvas of tiles by the scale at which the image fits it. Scales are compared in upstream's precision.

// llama4 takes the least upscaling, or else the least downscaling, in float32.
type llama4 struct {
	tile, max         setting
	patch, downsample setting
	largest           setting // resize_to_max_canvas
}

func (k llama4) bind(s *settings) counter {
	tile, limit := s.small(k.tile, 1, 1<<16), s.small(k.max, 1, maxTiles)
	patch := s.small(k.patch, 1, 1<<16)
	ratio := s.float(k.downsample)
	down := round(1 / float64(ratio*ratio))
	if down < 1 {
		s.fail("%s: want a fraction from 0 to 1, have %v", k.downsample, ratio)
		down = 1
	}
	per := (tile / patch) * (tile / patch) / down
	largest := s.bool(k.largest)
	if !s.bool(doResize) {
		s.fail("do_resize: Llama 4's processor refuses false")
	}
	canvases := factorGrids(limit)
	return func(w, h, _ int) (grid, error) {
		best := bestScale[float32](canvases, h, w, tile, largest)
		g := grid{main: per, tile: per}
		if best[0]*best[1] > 1 {
			g.rows, g.cols = best[0], best[1]
		}
		return g, nil
	}
}

// bestScale selects among canvases of (a, b) tiles by the scale at which they hold an image with these sides: the least scale of 1
// or more (with largest: the greatest), or else the greatest below 1. Among equals the smaller canvas wins, then the first.
func bestScale[F float32 | float64](canvases [][2]int, sideA, sideB, tile int, largest bool) (best [2]int) {
	var scale F
	for i, c := range canvases {
		sc := min(F(c[0]*tile)/F(sideA), F(c[1]*tile)/F(sideB))
		up, better := scale >= 1, false
		switch {
		case i == 0, (sc >= 1) != up:
			better = i == 0 || sc >= 1
		case sc == scale:
			better = c[0]*c[1] < best[0]*best[1]
		case up && !largest:
			better = sc < scale
		default:
			better = sc > scale
		}
		if better {
			best, scale = c, sc
		}
	}
	return best
}

// factorGrids lists (rows, columns) for n = most..1, grouped by the first appearance of their ratio, as Llama 4 and Perception
// LM do.
func factorGrids(most int) (out [][2]int) {
	ratio := func(c [2]int) float64 { return float64(c[0]) / float64(c[1]) }
	order := map[float64]int{}
	for n := most; n > 0; n-- {
		for rows := 1; rows <= n; rows++ {
			if n%rows != 0 {
				continue
			}
			c := [2]int{rows, n / rows}
			if _, ok := order[ratio(c)]; !ok {
				order[ratio(c)] = len(order)
			}
			out = append(out, c)
		}
	}
	slices.SortStableFunc(out, func(a, b [2]int) int { return order[ratio(a)] - order[ratio(b)] })
	return out
}

// leastUpscaled makes the same choice in float64, from grids of (columns, rows) (Command A Vision).
func leastUpscaled(candidates [][2]int, w, h, size int) (cols, rows int) {
	best := bestScale[float64](candidates, w, h, size, false)
	return best[0], best[1]
}

// molmo (Molmo 2) tiles with overlapping crops. The margins are subtracted from the image before the canvas is chosen, in float32.
// Overview and tiles are both laid out row by row.
type molmo struct {
	base, patch, pool, margins, max setting
}

func (k molmo) bind(s *settings) counter {
	base, patch := s.small(k.base, 1, 1<<14), s.small(k.patch, 1, 1<<14)
	limit := s.small(k.max, 1, maxTiles)
	pool := s.small(k.pool, 1, 64)
	left, right := 4, 4
	if found, _ := s.find(k.margins); found != nil {
		l, ok := found.([]any)
		if !ok || len(l) != 2 {
			s.fail("%s: want two integers, have %v", k.margins, found)
		} else {
			a, _ := number(l[0])
			b, _ := number(l[1])
			left, right = int(a), int(b)
		}
	}
	crop := base / patch
	window := crop - left - right
	if left < 0 || right < 0 || window < 1 {
		s.fail("%s: margins %d and %d leave nothing of %d patches", k.margins, left, right, crop)
		window = 1
	}
	candidates := grids(1, limit) // (rows, columns) here
	up := func(n int) int { return (n + pool - 1) / pool }
	axis := func(n int) int {
		return up(n*window + left + right)
	}
	margin := (left + right) * patch
	return func(w, h, _ int) (grid, error) {
		// Images smaller than the margins give negative or infinite scales; upstream does not check for that.
		c := bestScale[float32](candidates, h-margin, w-margin, window*patch, false)
		side := up(crop)
		return grid{main: side * side, mainCols: side,
			rows: axis(c[0]), cols: 1, tile: axis(c[1])}, nil
	}
}

// perceptionLM picks the canvas that covers the image with the least waste, or else the closest ratio (Perception LM).
type perceptionLM struct{ tile, max, patch, pool, mode setting }

func (k perceptionLM) bind(s *settings) counter {
	tile, limit := s.small(k.tile, 1, 1<<16), s.small(k.max, 1, maxTiles)
	side := tile / s.small(k.patch, 1, 1<<16) / s.small(k.pool, 1, 64)
	tiled := s.text(k.mode) == "thumb+tile"
	canvases := factorGrids(limit) // (columns, rows) here
	return func(w, h, _ int) (grid, error) {
		n := 1
		if tiled {
			c, ok := coveringCanvas(canvases, w, h, tile)
			if !ok {
				c = nearestRatio(canvases, w, h)
			}
			n = c[0]*c[1] + 1
		}
		return grid{main: n * side * side}, nil
	}
}

func coveringCanvas(canvases [][2]int, w, h, tile int) (best [2]int, ok bool) {
	scale := float64(w) / float64(h)
	var bw, bh float64
	for _, c := range canvases {
		cw, ch := c[0]*tile, c[1]*tile
		if cw < w || ch < h {
			continue
		}
		f := min(float64(cw)/float64(w), float64(ch)/float64(h))
		var nw, nh float64
		if scale > 1 {
			nw = f * float64(w)
			nh = math.Floor(nw / scale)
		} else {
			nh = f * float64(h)
			nw = math.Floor(nh * scale)
		}
		if !ok || scale < 1 && nw >= bw || scale >= 1 && nh >= bh {
			best, bw, bh, ok = c, nw, nh, true
		}
	}
	return best, ok
}

func nearestRatio(canvases [][2]int, w, h int) [2]int {
	target := float64(w) / float64(h)
	best, diff, ratio := [2]int{1, 1}, math.Inf(1), 0.0
	for _, c := range canvases {
		r := float64(c[0]) / float64(c[1])
		if target >= 1 != (r <= target) {
			continue
		}
		d := math.Abs(r - target)
		if target < 1 {
			d = math.Abs(1/r - 1/target)
		}
		// The first ratio at the least distance, and of that ratio the most columns (or rows).
		larger := target >= 1 && c[0] > best[0] || target < 1 && c[1] > best[1]
		if d < diff || r == ratio && larger {
			best, diff, ratio = c, d, r
		}
	}
	return best
}
