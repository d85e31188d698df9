package vision

import "math"

// Rules that only one line of models uses.

// phi4 pads to a grid of 448 px crops and omits the padding (Phi-4 multimodal).
type phi4 struct{ size, patch, crops setting }

func (k phi4) bind(s *settings) counter {
	size, patch, crops := s.small(k.size, 1, 1<<14), s.small(k.patch, 1, 1<<14), s.small(k.crops, 1, maxTiles)
	candidates := grids(1, crops)
	const side = 16 // of the overview, for any crop size
	return func(w, h, _ int) (grid, error) {
		cols, rows := (w+size-1)/size, (h+size-1)/size
		if float64(cols)*float64(rows) > float64(crops) {
			cols, rows = closestRatio(candidates, w, h, size)
		}
		tw, th := size*cols, size*rows
		rw, rh := float64(tw)/float64(w), float64(th)/float64(h)
		nw, nh := tw, th
		if rw < rh {
			nh = int(float64(h) * rw)
		} else {
			nw = int(float64(w) * rh)
		}
		if min(nh, th) < 10 || min(nw, tw) < 10 {
			return grid{}, refused(400, "aspect ratio of %d x %d pixels is very extreme", w, h)
		}
		fw, fh := tw/patch-(tw-nw)/patch, th/patch-(th-nh)/patch
		fw, fh = (fw+1)/2, (fh+1)/2
		return grid{main: side*side + 1 + fw*fh + fh + side}, nil
	}
}

// splitLongest scales the longer side and cuts tiles (Idefics 3, SmolVLM).
type splitLongest struct{ edge, tile, seqLen, split setting }

func (k splitLongest) bind(s *settings) counter {
	const most = 4096 // upstream MAX_IMAGE_SIZE
	edge, tile, n := s.small(k.edge, 1, 1<<20), s.small(k.tile, 1, 1<<20), s.small(k.seqLen, 1, 1<<16)
	split, hf := s.bool(k.split), s.reading.Processor
	return func(w, h, _ int) (grid, error) {
		g := grid{main: n, tile: n}
		if !split {
			return g, nil
		}
		ratio := float64(w) / float64(h)
		if w >= h {
			w, h = edge, even(int(float64(edge)/ratio))
		} else {
			w, h = even(int(float64(edge)*ratio)), edge
		}
		w, h = max(w, 1), max(h, 1)
		ratio = float64(w) / float64(h)
		if w >= h && w > most {
			w, h = most, int(float64(most)/ratio)
		} else if h > w && h > most {
			w, h = int(float64(most)*ratio), most
		}
		w, h = max(w, 1), max(h, 1)
		if hf { // the image is cut; vLLM uses the processor's own estimate, which differs if tiles do not fill the long side
			ratio = float64(w) / float64(h)
			if w >= h {
				w = (w + tile - 1) / tile * tile
				h = int(float64(w) / ratio)
			} else {
				h = (h + tile - 1) / tile * tile
				w = int(float64(h) * ratio)
			}
		}
		rows, cols := (h+tile-1)/tile, (w+tile-1)/tile
		if rows > 1 || cols > 1 {
			g.rows, g.cols = rows, cols
		}
		return g, nil
	}
}

func even(n int) int { return n + n%2 }

// slice returns the grid, or 0, 0 for none. Among equal errors the most rows win.
func slice(w, h, res, most int) (rows, cols int) {
	ratio := log(float64(w) / float64(h))
	n := int(min(math.Ceil(float64(w)*float64(h)/float64(res*res)), float64(most)))
	if n <= 1 {
		return 0, 0
	}
	least := math.Inf(1)
	rows, cols = 1, 1
	for m := n - 1; m <= n+1; m++ {
		if m == 1 || m > most {
			continue
		}
		for r := 1; r <= m; r++ {
			if m%r != 0 {
				continue
			}
			c := m / r
			e := math.Abs(ratio - log(float64(c)/float64(r)))
			if e < least || e == least && r > rows {
				rows, cols, least = r, c, e
			}
		}
	}
	return rows, cols
}

// minicpm46 derives the sizes of overview and slices from the image's (MiniCPM-V 4.6).
type minicpm46 struct{ res, max, patch, sliced, mode, ids setting }

func (k minicpm46) bind(s *settings) counter {
	res, most, patch := s.small(k.res, 1, 1<<16), s.small(k.max, 1, maxTiles), s.small(k.patch, 1, 1<<14)
	sliced := s.bool(k.sliced)
	merge, divisor := 4, 16
	if s.text(k.mode) == "4x" {
		merge, divisor = 2, 4
	}
	bare := !s.bool(k.ids)
	unit := patch * merge
	divide := func(x float64, by int) int { return max(round(x/float64(by))*by, by) }
	fit := func(w, h float64, up bool) (int, int) {
		if h*w > float64(res*res) || up {
			ratio := w / h
			h = math.Trunc(float64(res) / math.Sqrt(ratio))
			w = math.Trunc(h * ratio)
		}
		return divide(w, unit), divide(h, unit)
	}
	return func(w, h, _ int) (grid, error) {
		g := grid{bare: bare}
		if sliced {
			g.rows, g.cols = slice(w, h, res, most)
		}
		bw, bh := fit(float64(w), float64(h), g.rows == 0)
		g.main = (bw / patch) * (bh / patch) / divisor
		if g.rows > 0 {
			rw, rh := divide(float64(w), g.cols), divide(float64(h), g.rows)
			bw, bh = fit(float64(rw)/float64(g.cols), float64(rh)/float64(g.rows), true)
			g.tile = (bw / patch) * (bh / patch) / divisor
		}
		return g, nil
	}
}

// step3 slides a window over large images (Step 3).
type step3 struct{ overview, tile, patches setting }

func (k step3) bind(s *settings) counter {
	const most = 3024
	n, tile := s.small(k.overview, 1, 1<<16), s.small(k.tile, 1, 1<<16)
	on := s.bool(k.patches)
	// vLLM keeps images below 728 px whole, SGLang those up to 728.
	whole := 727
	if s.reading.Processor {
		whole = 728
	}
	return func(w, h, _ int) (grid, error) {
		if ratio := float64(w) / float64(h); min(w, h) < 32 && (ratio > 4 || ratio < 0.25) {
			w = max(w, h)
			h = w
		}
		if long := max(w, h); long > most {
			f := most / float64(long)
			w, h = int(float64(w)*f), int(float64(h)*f)
		}
		g := grid{main: n, tile: tile}
		long, short := max(w, h), min(w, h)
		if short < 1 {
			return g, refused(400, "a side of the image shrinks to nothing")
		}
		ratio := float64(long) / float64(short)
		window := 504
		if long <= whole {
			window = 0
			if ratio > 1.5 {
				window = short
			}
		} else if ratio > 4 {
			window = min(short, 504)
		}
		if window == 0 || !on {
			return g, nil
		}
		g.cols, g.rows = windows(w, window), windows(h, window)
		return g, nil
	}
}

// windows counts the steps along one side. A remainder of up to a fifth is removed by stretching.
func windows(side, window int) int {
	r := float64(side) / float64(window)
	if r < 1 {
		return 1
	}
	n := int(r)
	if r-float64(side/window) > 0.2 {
		n++
	}
	return n
}
