package pixels

import (
	"bytes"
	"image"
	"image/gif"

	"github.com/sightline-router/sightline/media/header"
)

// GIF: the first frame on the canvas. The library decodes the indices, but drops the colour of the transparent one, which Pillow
// keeps; so the palette comes from the header reader. Pixels outside the frame have the transparent index, or index 0.

func decodeGIF(file []byte, info header.Info, colours header.Colours, lim limits) (*RGB, error) {
	if need := 5 * int64(info.Width) * int64(info.Height); need > lim.memory {
		return nil, tooMuch("GIF", need, lim)
	}
	img, err := gif.Decode(bytes.NewReader(file))
	if err != nil { // the library refuses more than Pillow does
		return nil, &header.Error{Kind: header.Unsupported, Format: "GIF", Detail: err.Error()}
	}
	m, ok := img.(*image.Paletted)
	if !ok || !m.Rect.In(image.Rect(0, 0, info.Width, info.Height)) {
		return nil, &header.Error{Kind: header.Unsupported, Format: "GIF", Detail: "frame beyond the canvas"}
	}
	var pal [256][3]byte
	for i := range pal {
		if info.Mode == "L" { // Pillow drops a palette that is a grey ramp
			pal[i] = [3]byte{byte(i), byte(i), byte(i)}
		} else if 3*i+3 <= len(colours.Palette) {
			pal[i] = [3]byte(colours.Palette[3*i:])
		}
	}
	p, rest := newRGB(info.Width, info.Height), byte(0)
	if len(colours.Alpha) > 0 {
		rest = colours.Alpha[0]
		key := pal[rest]
		p.Key = &key
	}
	out := p.Pix
	for y := range p.H {
		for x := range p.W {
			i := rest
			if (image.Point{X: x, Y: y}).In(m.Rect) {
				i = m.Pix[(y-m.Rect.Min.Y)*m.Stride+x-m.Rect.Min.X]
			}
			out[0], out[1], out[2] = pal[i][0], pal[i][1], pal[i][2]
			out = out[3:]
		}
	}
	return p, nil
}
