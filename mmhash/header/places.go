package header

import "slices"

// Some formats refer to parts of the header by file offset: after the pixels, or before the reference. The Reader keeps a list of
// the spans that it needs and skips to the nearest one ahead; spans already passed wait for another pass (Reader.Again).

const (
	maxPasses = 3
	maxOffset = 1 << 48 // larger than any file
)

// span is a part of the file that the Reader needs: n bytes at off, then do.
type span struct {
	off int64
	n   int
	do  step
}

// places holds the spans that a Reader still needs.
type places struct {
	want   []span
	passes int
	all    func(*Reader) // called once nothing more is needed; nil: the last step decides what comes next
}

// wantAt adds a span; goOn skips to it.
func (r *Reader) wantAt(off uint64, n int, do step) {
	if off > maxOffset {
		r.fail(Malformed, "offset beyond any file")
		return
	}
	r.places.want = append(r.places.want, span{int64(off), n, do})
}

// goOn skips to the nearest needed span ahead. If there is none ahead, the pass ends.
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

// Again reports whether the file must be written once more from its start. At most three passes are needed. Call it after the last
// byte of a pass.
func (r *Reader) Again() bool {
	if r.err == nil && r.info.Format == "TIFF" {
		r.tiffCut()
	}
	p := &r.places
	if r.err != nil || len(p.want) == 0 {
		return false
	}
	p.passes++
	if p.passes >= maxPasses {
		r.fail(Truncated, "a part of the header lies outside the file")
		return false
	}
	r.done, r.skip, r.seek, r.off, r.buf = false, 0, false, 0, r.buf[:0]
	r.goOn()
	return !r.done
}
