package pixels

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"

	"github.com/sightline-router/sightline/media/header"
)

// PNG by the standard library, which returns the right samples. Their conversion to RGB follows Pillow: 16-bit colour keeps the
// high byte, 16-bit grey saturates at 255 (mode I;16), and the transparent colour of tRNS is compared with 8-bit samples, whatever
// the file's depth.

func decodePNG(file []byte, info header.Info, colours header.Colours, lim limits) (*RGB, error) {
	if err := checkPNG(file, lim); err != nil {
		return nil, err
	}
	img, err := png.Decode(bytes.NewReader(file))
	if err != nil {
		kind := header.Malformed
		var no png.UnsupportedError
		switch {
		case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
			kind = header.Truncated
		case errors.As(err, &no):
			kind = header.Unsupported
		}
		return nil, &header.Error{Kind: kind, Format: "PNG", Detail: err.Error()}
	}
	b := img.Bounds()
	p := newRGB(b.Dx(), b.Dy())
	if !samples(p, img, info.Mode) {
		return nil, &header.Error{Kind: header.Unsupported, Format: "PNG", Detail: fmt.Sprintf("pixels of type %T", img)}
	}
	t, keyed := colours.Alpha, len(colours.Alpha) > 0
	switch m, palette := img.(*image.Paletted); {
	case info.Mode == "RGBA":
		onWhite(p, img)
	case info.Mode == "LA" || !keyed:
	case palette:
		if i := single(t); i >= 0 {
			c := colours256(m)[i]
			p.Key = (*[3]byte)(c[:3])
		}
	default:
		p.Key = key(t, info.Mode)
	}
	return p, nil
}

// checkPNG bounds the cost by IHDR, before anything is decompressed.
func checkPNG(file []byte, lim limits) error {
	w, h := int64(binary.BigEndian.Uint32(file[16:])), int64(binary.BigEndian.Uint32(file[20:]))
	depth, channels := int64(file[24]), int64(1)
	switch file[25] {
	case 2:
		channels = 3
	case 4:
		channels = 2
	case 6:
		channels = 4
	}
	packed := h * (1 + (w*depth*channels+7)/8)
	if packed > 1032*int64(len(file)) { // deflate's maximum ratio
		return &header.Error{Kind: header.Truncated, Format: "PNG", Detail: fmt.Sprintf("%d×%d pixels in %d bytes", w, h, len(file))}
	}
	each := int64(4) // most bytes per pixel of the library's image
	if depth == 16 {
		each = 8
	}
	if file[28] != 0 { // interlaced: one pass in addition to the whole image
		each += each / 2
	}
	if need := (each + 3) * w * h; need > lim.memory {
		return tooMuch("PNG", need, lim)
	}
	return nil
}

// samples converts the colours as convert("RGB") would; alpha is dropped, not applied.
func samples(p *RGB, img image.Image, mode string) bool {
	out := p.Pix
	rows := func(pix []byte, stride, each int, one func(dst, src []byte)) bool {
		for y := range p.H {
			src := pix[y*stride:]
			for range p.W {
				one(out, src)
				out, src = out[3:], src[each:]
			}
		}
		return true
	}
	colour8 := func(dst, src []byte) { dst[0], dst[1], dst[2] = src[0], src[1], src[2] }
	colour16 := func(dst, src []byte) { dst[0], dst[1], dst[2] = src[0], src[2], src[4] }
	switch m := img.(type) {
	case *image.Gray:
		return rows(m.Pix, m.Stride, 1, func(dst, src []byte) { dst[0], dst[1], dst[2] = src[0], src[0], src[0] })
	case *image.Gray16:
		return rows(m.Pix, m.Stride, 2, grey16)
	case *image.RGBA: // from files without alpha, so nothing is premultiplied
		return rows(m.Pix, m.Stride, 4, colour8)
	case *image.NRGBA:
		return rows(m.Pix, m.Stride, 4, colour8)
	case *image.RGBA64:
		return rows(m.Pix, m.Stride, 8, colour16)
	case *image.NRGBA64:
		if mode == "I;16" {
			return rows(m.Pix, m.Stride, 8, grey16)
		}
		return rows(m.Pix, m.Stride, 8, colour16)
	case *image.Paletted:
		pal := colours256(m)
		return rows(m.Pix, m.Stride, 1, func(dst, src []byte) { copy(dst, pal[src[0]][:3]) })
	}
	return false
}

func grey16(dst, src []byte) {
	v := src[1]
	if src[0] != 0 {
		v = 255
	}
	dst[0], dst[1], dst[2] = v, v, v
}

// colours256 returns the palette, not premultiplied. Entries beyond its end are opaque black, in Pillow as in the library.
func colours256(m *image.Paletted) (pal [256][4]byte) {
	for i := range pal {
		pal[i][3] = 255
	}
	for i, c := range m.Palette {
		switch c := c.(type) {
		case color.RGBA: // opaque
			pal[i] = [4]byte{c.R, c.G, c.B, 255}
		case color.NRGBA:
			pal[i] = [4]byte{c.R, c.G, c.B, c.A}
		}
	}
	return pal
}

// blend pastes one sample on white (Pillow's BLEND).
func blend(v, alpha byte) byte { return div255(255*uint32(255-alpha) + uint32(v)*uint32(alpha)) }

// onWhite pastes an image with an alpha channel.
func onWhite(p *RGB, img image.Image) {
	alpha := func(int, int) byte { return 255 } // the library returns RGBA(64) if no pixel has alpha
	switch m := img.(type) {
	case *image.NRGBA:
		alpha = func(x, y int) byte { return m.Pix[y*m.Stride+4*x+3] }
	case *image.NRGBA64:
		alpha = func(x, y int) byte { return m.Pix[y*m.Stride+8*x+6] }
	}
	for i := 0; i < len(p.Pix); i += 3 {
		a := alpha(i/3%p.W, i/3/p.W)
		for k := i; k < i+3; k++ {
			p.Pix[k] = blend(p.Pix[k], a)
		}
	}
}

// single returns the index of the only 0 among 255s, or -1. Pillow then uses a palette's tRNS as that index. Its test allows one
// byte 10 at the end.
func single(alphas []byte) int {
	alphas = bytes.TrimSuffix(alphas, []byte{'\n'})
	if bytes.Count(alphas, []byte{0}) != 1 || bytes.Count(alphas, []byte{255}) != len(alphas)-1 {
		return -1
	}
	return bytes.IndexByte(alphas, 0)
}

// key returns the transparent colour of an image without palette, as in Pillow when the image becomes RGBA after RGB: grey keys
// are saturated, and those of modes 1 and I;16 apply to red only.
func key(t []byte, mode string) *[3]byte {
	if len(t) < 2 || mode == "RGB" && len(t) < 6 {
		return nil
	}
	low := t[1]
	if mode == "1" && t[0]|t[1] != 0 || mode == "L" && t[0] != 0 {
		low = 255
	}
	switch mode {
	case "RGB":
		return &[3]byte{t[1], t[3], t[5]}
	case "L":
		return &[3]byte{low, low, low}
	}
	return &[3]byte{low, 0, 0}
}
