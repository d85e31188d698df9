package pixels

import (
	"bytes"
	"image"
	"image/gif"

	"github.com/sightline-router/sightline/mmhash/header"
)

// GIF: the first frame on the canvas. The library unpacks the indices, but drops the colour behind the transparent one,
// which Pillow keeps; so the palette is read here. What the frame leaves free has the transparent index, or index 0.

func decodeGIF(file []byte, info header.Info, rule Rule, lim Limits) (*RGB, error) {
	if need := 5 * int64(info.Width) * int64(info.Height); need > lim.Memory {
		return nil, tooMuch("GIF", need, lim)
	}
	f, ok := firstFrame(file)
	if !ok {
		return nil, &header.Error{Kind: header.Truncated, Format: "GIF", Detail: "no frame"}
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
		if info.Mode == "L" { // Pillow drops a palette that is a ramp of greys
			pal[i] = [3]byte{byte(i), byte(i), byte(i)}
		} else if 3*i+3 <= len(f.palette) {
			pal[i] = [3]byte(f.palette[3*i:])
		}
	}
	p, rest := newRGB(info.Width, info.Height), 0
	if f.transparent >= 0 {
		rest = f.transparent
		if rule != WhiteAll {
			key := pal[rest]
			p.Key = &key
		} else {
			pal[rest] = [3]byte{255, 255, 255}
		}
	}
	out := p.Pix
	for y := range p.H {
		for x := range p.W {
			i := byte(rest)
			if (image.Point{X: x, Y: y}).In(m.Rect) {
				i = m.Pix[(y-m.Rect.Min.Y)*m.Stride+x-m.Rect.Min.X]
			}
			out[0], out[1], out[2] = pal[i][0], pal[i][1], pal[i][2]
			out = out[3:]
		}
	}
	return p, nil
}

// frame is what stands before the first frame's data.
type frame struct {
	palette     []byte // the frame's own or the file's, three bytes a colour
	transparent int    // -1 = none
}

func firstFrame(b []byte) (frame, bool) {
	f := frame{transparent: -1}
	table := func(flags byte, at int) int { // gives the place behind a colour table
		if flags&0x80 != 0 {
			n := 6 << (flags & 7)
			if at+n <= len(b) {
				f.palette = b[at : at+n]
			}
			at += n
		}
		return at
	}
	if len(b) < 13 {
		return f, false
	}
	at := table(b[10], 13)
	for at+2 <= len(b) {
		switch b[at] {
		case 0x2C:
			if at+10 > len(b) {
				return f, false
			}
			table(b[at+9], at+10)
			return f, true
		case 0x21:
			if b[at+1] == 0xF9 && at+7 <= len(b) && b[at+2] >= 4 && b[at+3]&1 != 0 {
				f.transparent = int(b[at+6])
			}
			for at += 2; at < len(b) && b[at] != 0; {
				at += 1 + int(b[at])
			}
		case 0x3B:
			return f, false
		}
		at++
	}
	return f, false
}
