package pixels

import (
	"bytes"
	"image"

	"golang.org/x/image/webp"

	"github.com/sightline-router/sightline/media/header"
)

// WebP still images: the planes of golang.org/x/image, with libwebp's upsampling and colour conversion for lossy files.
// Animations are not supported.

func decodeWebP(file []byte, info header.Info, lim limits) (p *RGB, err error) {
	defer func() { // a panic in the third-party parser must not end the process
		if r := recover(); r != nil {
			p, err = nil, &header.Error{Kind: header.Malformed, Format: "WEBP", Detail: "the decoder gave up"}
		}
	}()
	if need := 12 * int64(info.Width) * int64(info.Height); need > lim.memory {
		return nil, tooMuch("WEBP", need, lim)
	}
	img, err := webp.Decode(bytes.NewReader(file))
	if err != nil {
		return nil, &header.Error{Kind: header.Unsupported, Format: "WEBP", Detail: err.Error()}
	}
	b := img.Bounds()
	p = newRGB(b.Dx(), b.Dy())
	white := info.Mode == "RGBA"
	switch m := img.(type) {
	case *image.NRGBA:
		samples(p, m, info.Mode)
		if white {
			onWhite(p, m)
		}
	case *image.YCbCr:
		webpRows(p, m)
	case *image.NYCbCrA:
		webpRows(p, &m.YCbCr)
		for i := 0; i < len(p.Pix) && white; i += 3 {
			a := m.A[i/3/p.W*m.AStride+i/3%p.W]
			for k := i; k < i+3; k++ {
				p.Pix[k] = blend(p.Pix[k], a)
			}
		}
	}
	return p, nil
}

// webpRows is libwebp's "fancy" upsampling, weights 9, 3, 3 and 1, and its conversion with 14 fractional bits.
func webpRows(p *RGB, m *image.YCbCr) {
	cw, ch := (p.W+1)/2, (p.H+1)/2
	out := p.Pix
	for y := range p.H {
		near := y / 2
		far := min(max(near-1+y&1*2, 0), ch-1)
		at := func(plane []byte, x int) int32 {
			return 3*int32(plane[near*m.CStride+x]) + int32(plane[far*m.CStride+x])
		}
		for x := range p.W {
			c := x / 2
			side := min(max(c-1+x&1*2, 0), cw-1)
			u := (3*at(m.Cb, c) + at(m.Cb, side) + 8) >> 4
			v := (3*at(m.Cr, c) + at(m.Cr, side) + 8) >> 4
			luma := int32(m.Y[y*m.YStride+x]) * 19077 >> 8
			out[0] = clamp((luma + v*26149>>8 - 14234) >> 6)
			out[1] = clamp((luma - u*6419>>8 - v*13320>>8 + 8708) >> 6)
			out[2] = clamp((luma + u*33050>>8 - 17685) >> 6)
			out = out[3:]
		}
	}
}
