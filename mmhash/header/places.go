package header

import "slices"

// Some formats say where in the file a part of the header lies: behind the pixels, or before what names it. The Reader
// keeps a list of the places that it wants and goes to the nearest one ahead; what lies behind waits for another pass
// (Reader.Again).

const (
	maxPasses = 3
	maxOffset = 1 << 48 // beyond any file
)

// span is a place that the Reader waits for: n bytes at off, then do.
type span struct {
	off int64
	n   int
	do  step
}

// places is what a Reader still wants.
type places struct {
	want   []span
	passes int
	all    func(*Reader) // once nothing is wanted any more; nil: the last step says how it goes on
}

// wantAt adds a place; goOn goes there.
func (r *Reader) wantAt(off uint64, n int, do step) {
	if off > maxOffset {
		r.fail(Malformed, "offset beyond any file")
		return
	}
	r.places.want = append(r.places.want, span{int64(off), n, do})
}

// goOn sets the stream on the nearest wanted place ahead; none ahead ends the pass.
func (r *Reader) goOn() {
	if r.err != nil {
		return
	}
	best, want := -1, r.places.want
	for i, s := range want {
		if s.off >= r.off && (best < 0 || s.off < want[best].off) {
			best = i
		}
	}
	if best < 0 {
		r.done = true
		return
	}
	s := want[best]
	r.skipTo(s.off-r.off, s.n, func(r *Reader, b []byte) {
		p := &r.places
		p.want = slices.Delete(p.want, best, best+1)
		s.do(r, b)
		switch {
		case r.err != nil || len(p.want) == 0 && p.all == nil:
		case len(p.want) == 0:
			p.all(r)
		default:
			r.goOn()
		}
	})
}

// Again reports that the file must be written a second time from its start. At most three passes are asked for. Call it
// after the last byte of a pass.
func (r *Reader) Again() bool {
	if r.err == nil && r.info.Format == "TIFF" {
		r.tiffCut()
	}
	p := &r.places
	if r.err != nil || len(p.want) == 0 {
		return false
	}
	if p.passes++; p.passes >= maxPasses {
		r.fail(Truncated, "a part of the header lies outside the file")
		return false
	}
	r.done, r.skip, r.seek, r.off, r.buf = false, 0, false, 0, r.buf[:0]
	r.goOn()
	return !r.done
}
