package changes

import "github.com/sightline-router/sightline/internal/fair"

// Form is how an image was sent, as far as that is known: of it the next one in its place may be another form.
type Form struct {
	URL    uint64 // hash of the URL it came by, whatever signs that; 0: none
	Signed bool   // the URL has a query, which is part of what names the image
	Pixels int64  // 0: not known
	Width  int    // 0: not known
}

// image is what was sent last behind some tokens.
type image struct {
	url           uint64
	pixels, width uint32
	fair.Kept
}

// formOf returns the kind of a change from the image that stood last in the place of one; "": it is not known. An image is not decoded:
// the same picture in other bytes and another picture of that size are one kind.
func (m *Memory) formOf(p *Input, i int) string {
	now := &p.Media[i].Form
	was := m.images.Find(p.imageAt(i))
	if was == nil {
		return ""
	}
	width, pixels := uint64(was.width), uint64(was.pixels)
	switch {
	case was.url != 0 && was.url == now.URL && now.Signed:
		return "its URL signed anew"
	case was.url != 0 && was.url == now.URL:
		return "another image under its URL"
	case pixels != 0 && pixels == uint64(now.Pixels):
		return "other bytes of the same size"
	case width > 0 && now.Width > 0 && pixels > 0: // shapes are width² ÷ pixels
		a, b := float64(width*width)/float64(pixels), float64(now.Width)*float64(now.Width)/float64(max(1, now.Pixels))
		if a < b*1.02 && b < a*1.02 {
			return "another size of the same shape"
		}
	}
	return ""
}

// imageAt returns the hash of all that stands before an image.
func (p *Input) imageAt(i int) uint64 {
	hash, _ := p.stretch(p.Media[i].Offset)
	return hash ^ 0x9AE16A3B2F90404F
}

// rememberImages remembers the images behind a token.
func (m *Memory) rememberImages(p *Input, from int) {
	for i := range p.Media {
		if f := &p.Media[i].Form; *f != (Form{}) && p.Media[i].Offset >= from && p.Media[i].Offset < len(p.IDs) {
			one := image{url: f.URL, pixels: uint32(min(f.Pixels, 1<<32-1)), width: uint32(f.Width)}
			if was := m.images.Find(p.imageAt(i)); was != nil {
				was.url, was.pixels, was.width = one.url, one.pixels, one.width
				was.Use()
			} else {
				m.images.Put(p.Client, p.imageAt(i), one)
			}
		}
	}
	m.images.Fit()
}
