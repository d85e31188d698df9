package vision

import (
	"slices"
)

// llama4 chooses a canvas of tiles by the scale at which the picture fits it: the least upscaling, or else the least downscaling, in
// float32 as upstream.
type llama4 struct {
	tile, max         value
	patch, downsample value
	largest           value // resize_to_max_canvas
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
	return func(w, h int) (grid, error) {
		best := bestScale(canvases, h, w, tile, largest)
		g := grid{main: per, tile: per}
		if best[0]*best[1] > 1 {
			g.rows, g.cols = best[0], best[1]
		}
		return g, nil
	}
}

// bestScale selects among canvases of (a, b) tiles by the scale at which they hold a picture with these sides: the least scale of 1
// or more (with largest: the greatest), or else the greatest below 1. Among equals the smaller canvas wins, then the first.
func bestScale(canvases [][2]int, sideA, sideB, tile int, largest bool) (best [2]int) {
	var scale float32
	for i, c := range canvases {
		sc := min(float32(c[0]*tile)/float32(sideA), float32(c[1]*tile)/float32(sideB))
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

// factorGrids lists (rows, columns) for n = most..1, grouped by the first appearance of their ratio, as Llama 4 does.
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
