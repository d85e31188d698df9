package vision

import (
	"math"
	"strings"
)

// Rules that resize an image to a multiple of a unit and make one token of each unit (Qwen-VL and its many descendants, Kimi,
// Pixtral, Gemma 4).

// round is Python's round: half to even.
func round(x float64) int { return int(math.RoundToEven(x)) }

// smartResize roughly keeps the aspect ratio and keeps the area between min and max pixels. The order of the divisions is
// upstream's and affects the result.
type smartResize struct {
	patch, merge setting
	// min and max pixels: from a bare setting or from size.shortest_edge and longest_edge, see bounds.
	min, max setting
	frames   int // an image counts as this many video frames (GLM: 2), 0 = 1
	grow     growRule
	sizeOnly string  // image processors with this prefix ignore min_pixels and max_pixels and read only size; "" = none
	extra    int     // HunYuan: one token per row and this many at the end; 0 = none
	longSide setting // MiniMax M3: a limit of the long side instead of the area
}

// growRule says how sides shorter than one unit are enlarged.
type growRule int

const (
	growNone growRule = iota
	growBoth          // GLM: scale both up, truncating
	growEach          // PaddleOCR: one after the other, rounding
)

const maxRatio = 200

func (k smartResize) bind(s *settings) counter {
	f := s.small(k.patch, 1, 1<<16) * s.small(k.merge, 1, 1<<10)
	class, _ := s.image["image_processor_type"].(string)
	sizeOnly := k.sizeOnly != "" && (class == "" && s.image["auto_map"] == nil || strings.HasPrefix(class, k.sizeOnly))
	lo, hi := bounds(s, "shortest_edge", "min_pixels", sizeOnly, k.min), bounds(s, "longest_edge", "max_pixels", sizeOnly, k.max)
	resizes := s.bool(doResize)
	long := 0
	if k.longSide != nil {
		if v, _ := s.find(k.longSide); v != nil {
			long = s.small(k.longSide, 1, 1<<20)
		}
	}
	return func(w, h, _ int) (grid, error) {
		var cols, rows int
		var err error
		if !resizes {
			cols, rows, err = asIs(w, h, f)
		} else if long > 0 {
			cols, rows, err = fitLongSide(w, h, f, long)
		} else {
			cols, rows, err = k.resize(w, h, f, lo, hi)
		}
		if err != nil {
			return grid{}, err
		}
		n := float64(cols) * float64(rows)
		if n > MaxTokens {
			return grid{}, undecidable("image", "%d x %d pixels give %.0f tokens", w, h, n)
		}
		if k.extra > 0 {
			return grid{main: rows*(cols+1) + k.extra}, nil
		}
		if rows*cols == 0 {
			return grid{}, refused(400, "image of %d x %d pixels shrinks to nothing", w, h)
		}
		return grid{main: rows * cols}, nil
	}
}

// bounds returns a pixel bound. A request's min_pixels or max_pixels wins, then its size (which must hold the key), then the file's
// min_pixels or max_pixels, then the file's size, then the class default. With sizeOnly, min_pixels and max_pixels are ignored. A
// null is not a value, and fails.
func bounds(s *settings, edge, pixels string, sizeOnly bool, fallback setting) int {
	from := setting{"image.size." + edge, "image.size." + pixels}
	if !sizeOnly {
		from = append(setting{"image." + pixels}, from...)
	}
	for _, key := range []string{pixels, "size"} {
		if v, given := s.kw[key]; given && v == nil && !(sizeOnly && key == pixels) {
			s.fail("%s: want a value, have null", key)
			return 1
		}
	}
	if sizeOnly || s.kw[pixels] == nil {
		if size, ok := s.kw["size"].(map[string]any); ok {
			if size[edge] == nil {
				s.fail("size: want shortest_edge and longest_edge, %s is missing", edge)
				return 1
			}
			return s.int(setting{"kw.size." + edge})
		}
	}
	return s.int(append(from, fallback...))
}

var doResize = setting{"image.do_resize", "=true"}

// asIs counts an image that the processor is told not to resize. It fails if the sides are not multiples of a unit.
func asIs(w, h, f int) (cols, rows int, err error) {
	if w%f != 0 || h%f != 0 {
		return 0, 0, refused(400, "%d x %d pixels, not to be resized, are no multiple of %d", w, h, f)
	}
	return w / f, h / f, nil
}

func (k smartResize) resize(w, h, f, lo, hi int) (cols, rows int, err error) {
	W, H, F := float64(w), float64(h), float64(f)
	switch k.grow {
	case growBoth:
		if h < f || w < f {
			s := max(F/H, F/W)
			H, W = math.Trunc(H*s), math.Trunc(W*s)
		}
	case growEach:
		if H < F {
			W, H = math.RoundToEven(W*F/H), F
		}
		if W < F {
			H, W = math.RoundToEven(H*F/W), F
		}
	}
	if max(H, W)/min(H, W) > maxRatio {
		return 0, 0, refused(400, "aspect ratio of %d x %d pixels is above %d", w, h, maxRatio)
	}
	T := float64(max(k.frames, 1))
	hb, wb := math.RoundToEven(H/F)*F, math.RoundToEven(W/F)*F
	switch area := T * hb * wb; {
	case area > float64(hi):
		beta := math.Sqrt(T * H * W / float64(hi))
		hb, wb = math.Floor(H/beta/F)*F, math.Floor(W/beta/F)*F
		hb, wb = max(F, hb), max(F, wb)
	case area < float64(lo):
		beta := math.Sqrt(float64(lo) / (T * H * W))
		hb, wb = math.Ceil(H*beta/F)*F, math.Ceil(W*beta/F)*F
	}
	return int(wb) / f, int(hb) / f, nil
}

// fitLongSide is MiniMax M3's rule for files with max_long_side_pixel.
func fitLongSide(w, h, f, limit int) (cols, rows int, err error) {
	const minShort, maxArea = 112, 12_845_056
	W, H, F := float64(w), float64(h), float64(f)
	if max(W, H)/min(W, H) > maxRatio {
		return 0, 0, refused(400, "aspect ratio of %d x %d pixels is above %d", w, h, maxRatio)
	}
	long, short := max(W, H), min(W, H)
	if long > float64(limit) {
		beta := float64(limit) / long
		H, W = H*beta, W*beta
	} else if short < minShort {
		beta := minShort / short
		H, W = H*beta, W*beta
	}
	hb := max(F, math.RoundToEven(H/F)*F)
	wb := max(F, math.RoundToEven(W/F)*F)
	if hb*wb > maxArea {
		return 0, 0, refused(400, "image of %d x %d pixels is above %d pixels after resizing", w, h, maxArea)
	}
	return int(wb) / f, int(hb) / f, nil
}

// fitLongest shrinks to a longest edge and counts patches, the last one of a row and column padded (Pixtral, Mistral 3).
type fitLongest struct {
	edge, patch, merge setting
	nearest            bool // mistral-common rounds, the Hugging Face processor truncates
	drops              bool // LightOnOCR's own processor drops a remainder smaller than a merged patch, vLLM counts it
}

func (k fitLongest) bind(s *settings) counter {
	edge, patch, merge, rest := s.int(k.edge), s.int(k.patch), s.small(k.merge, 1, 1<<10), 1
	if k.drops && s.reading.Processor {
		rest = merge
	} else {
		patch *= merge
	}
	return func(w, h, _ int) (grid, error) {
		W, H := float64(w), float64(h)
		if r := max(W/float64(edge), H/float64(edge)); r > 1 {
			if k.nearest {
				w, h = round(W/r), round(H/r)
			} else {
				w, h = int(math.Floor(W/r)), int(math.Floor(H/r))
			}
		}
		// A side of 0 yields no patch, and the processor fails.
		cols, rows := ((w-1)/patch+1)/rest, ((h-1)/patch+1)/rest
		if w < 1 || h < 1 || cols*rows == 0 {
			return grid{}, refused(400, "a side of the image shrinks to nothing")
		}
		return grid{rows: rows, cols: 1, tile: cols}, nil
	}
}

// kimiK25 bounds the patches in total and on each side, then pads up.
type kimiK25 struct{ patch, merge, limit, side, fixed setting }

func (k kimiK25) bind(s *settings) counter {
	patch, merge := s.small(k.patch, 1, 1<<16), s.small(k.merge, 1, 1<<10)
	limit, side := s.int(k.limit), s.small(k.side, 1, 1<<20)
	if v, _ := s.find(k.fixed); v != nil {
		n := s.int(k.fixed)
		return always(n)
	}
	resizes := s.bool(doResize)
	return func(w, h, _ int) (grid, error) {
		if !resizes {
			cols, rows, err := asIs(w, h, patch)
			return grid{main: cols * rows / (merge * merge)}, err
		}
		ph, pw := max(1, float64(h/patch)), max(1, float64(w/patch))
		longest := float64(side * patch)
		scale := min(1, math.Sqrt(float64(limit)/(ph*pw)), longest/float64(h), longest/float64(w))
		nh := min(max(1, int(float64(h)*scale)), side*patch)
		nw := min(max(1, int(float64(w)*scale)), side*patch)
		unit := patch * merge
		return grid{main: ((nw + unit - 1) / unit) * ((nh + unit - 1) / unit)}, nil
	}
}

// softBudget fills a token budget while it keeps the aspect ratio (Gemma 4).
type softBudget struct{ patch, pool, budget setting }

func (k softBudget) bind(s *settings) counter {
	patch, pool, budget := s.small(k.patch, 1, 1<<16), s.small(k.pool, 1, 1<<10), s.small(k.budget, 1, MaxTokens)
	switch budget {
	case 70, 140, 280, 560, 1120:
	default:
		s.fail("%s: want 70, 140, 280, 560 or 1120, have %d", k.budget, budget)
	}
	hf := s.reading.Processor
	return func(w, h, _ int) (grid, error) {
		unit := patch * pool
		W, H, U, P := float64(w), float64(h), float64(unit), float64(patch)
		patches := float64(budget * pool * pool)
		if hf {
			factor := math.Sqrt(patches * float64(P*P) / float64(H*W))
			th, tw := int(math.Floor(factor*H/U))*unit, int(math.Floor(factor*W/U))*unit
			longest := budget * unit
			switch {
			case th == 0 && tw == 0:
				return grid{}, refused(400, "image of %d x %d pixels resizes to nothing", w, h)
			case th == 0:
				th, tw = unit, min(int(math.Floor(W/H))*unit, longest)
			case tw == 0:
				tw, th = unit, min(int(math.Floor(H/W))*unit, longest)
			}
			return grid{main: (th / patch) * (tw / patch) / (pool * pool)}, nil
		}
		scale := math.Sqrt(patches / float64((H/P)*(W/P)))
		th := max(unit, int(math.Floor(H*scale/U))*unit)
		tw := max(unit, int(math.Floor(W*scale/U))*unit)
		return grid{main: min((th/patch)*(tw/patch)/(pool*pool), budget)}, nil
	}
}
