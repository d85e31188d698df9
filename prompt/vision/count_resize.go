package vision

import (
	"math"
	"strings"
)

// Rules that resize a picture to a multiple of a unit and make one token of each unit (Qwen-VL, GLM, Pixtral, Gemma 4).

// round is Python's round: half to even.
func round(x float64) int { return int(math.RoundToEven(x)) }

// smartResize roughly keeps the aspect ratio and keeps the area between min and max pixels. The order of the divisions is
// upstream's and affects the result.
type smartResize struct {
	patch, merge value
	// min and max pixels: from a bare setting or from size.shortest_edge and longest_edge, see bounds.
	min, max value
	frames   int    // an image counts as this many video frames (GLM: 2), 0 = 1
	grows    bool   // sides shorter than one unit are scaled up together, truncating (GLM)
	sizeOnly string // image processors with this prefix ignore min_pixels and max_pixels and read only size; "" = none
}

const maxRatio = 200

func (k smartResize) bind(s *settings) counter {
	f := s.small(k.patch, 1, 1<<16) * s.small(k.merge, 1, 1<<10)
	class, _ := s.image["image_processor_type"].(string)
	sizeOnly := k.sizeOnly != "" && (class == "" && s.image["auto_map"] == nil || strings.HasPrefix(class, k.sizeOnly))
	lo, hi := bounds(s, "shortest_edge", "min_pixels", sizeOnly, k.min), bounds(s, "longest_edge", "max_pixels", sizeOnly, k.max)
	resizes := s.bool(doResize)
	return func(w, h int) (grid, error) {
		var cols, rows int
		var err error
		if !resizes {
			cols, rows, err = asIs(w, h, f)
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
		if rows*cols == 0 {
			return grid{}, refused(400, "picture of %d x %d pixels shrinks to nothing", w, h)
		}
		return grid{main: rows * cols}, nil
	}
}

// bounds returns a pixel bound. A request's min_pixels or max_pixels wins, then its size (which must hold the key), then the file's
// min_pixels or max_pixels, then the file's size, then the class default. With sizeOnly, min_pixels and max_pixels are ignored. A
// null is not a value, and fails.
func bounds(s *settings, edge, pixels string, sizeOnly bool, fallback value) int {
	from := value{"image.size." + edge, "image.size." + pixels}
	if !sizeOnly {
		from = append(value{"image." + pixels}, from...)
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
			return s.int(value{"kw.size." + edge})
		}
	}
	return s.int(append(from, fallback...))
}

var doResize = value{"image.do_resize", "=true"}

// asIs counts a picture that the processor is told not to resize. It fails if the sides are not multiples of a unit.
func asIs(w, h, f int) (cols, rows int, err error) {
	if w%f != 0 || h%f != 0 {
		return 0, 0, refused(400, "%d x %d pixels, not to be resized, are no multiple of %d", w, h, f)
	}
	return w / f, h / f, nil
}

func (k smartResize) resize(w, h, f, lo, hi int) (cols, rows int, err error) {
	W, H, F := float64(w), float64(h), float64(f)
	if k.grows && (h < f || w < f) {
		s := max(F/H, F/W)
		H, W = math.Trunc(H*s), math.Trunc(W*s)
	}
	if max(H, W)/min(H, W) > maxRatio {
		return 0, 0, refused(400, "aspect ratio of %d x %d pixels is above %d", w, h, maxRatio)
	}
	T := float64(max(k.frames, 1))
	hb, wb := math.RoundToEven(H/F)*F, math.RoundToEven(W/F)*F
	switch area := float64(T*hb) * wb; {
	case area > float64(hi):
		beta := math.Sqrt(float64(T*H) * W / float64(hi))
		hb, wb = max(F, math.Floor(H/beta/F)*F), max(F, math.Floor(W/beta/F)*F)
	case area < float64(lo):
		beta := math.Sqrt(float64(lo) / (float64(T*H) * W))
		hb, wb = math.Ceil(H*beta/F)*F, math.Ceil(W*beta/F)*F
	}
	return int(wb) / f, int(hb) / f, nil
}

// fitLongest shrinks to a longest edge and counts patches, the last one of a row and column padded (Pixtral, Mistral 3).
type fitLongest struct {
	edge, patch, merge value
	nearest            bool // mistral-common rounds, the Hugging Face processor truncates
}

func (k fitLongest) bind(s *settings) counter {
	edge, patch := s.int(k.edge), s.int(k.patch)*s.small(k.merge, 1, 1<<10)
	return func(w, h int) (grid, error) {
		W, H := float64(w), float64(h)
		if r := max(W/float64(edge), H/float64(edge)); r > 1 {
			if k.nearest {
				w, h = round(W/r), round(H/r)
			} else {
				w, h = int(math.Floor(W/r)), int(math.Floor(H/r))
			}
		}
		// A side of 0 yields no patch, and the processor fails.
		cols, rows := (w-1)/patch+1, (h-1)/patch+1
		if w < 1 || h < 1 || cols*rows == 0 {
			return grid{}, refused(400, "a side of the picture shrinks to nothing")
		}
		return grid{rows: rows, cols: 1, tile: cols}, nil
	}
}

// softBudget fills a token budget while it keeps the aspect ratio (Gemma 4).
type softBudget struct{ patch, pool, budget value }

func (k softBudget) bind(s *settings) counter {
	patch, pool, budget := s.small(k.patch, 1, 1<<16), s.small(k.pool, 1, 1<<10), s.small(k.budget, 1, MaxTokens)
	switch budget {
	case 70, 140, 280, 560, 1120:
	default:
		s.fail("%s: want 70, 140, 280, 560 or 1120, have %d", k.budget, budget)
	}
	hf := s.reading.Processor
	return func(w, h int) (grid, error) {
		unit := patch * pool
		W, H, U, P := float64(w), float64(h), float64(unit), float64(patch)
		patches := float64(budget * pool * pool)
		if hf {
			factor := math.Sqrt(patches * float64(P*P) / float64(H*W))
			th, tw := int(math.Floor(factor*H/U))*unit, int(math.Floor(factor*W/U))*unit
			longest := budget * unit
			switch {
			case th == 0 && tw == 0:
				return grid{}, refused(400, "picture of %d x %d pixels resizes to nothing", w, h)
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
