// Package pixels decodes an image to exactly the RGB bytes that Pillow gives an engine, for names that are digests of pixels. It
// takes milliseconds per image and must not run on the request path. One wrong bit gives another name, so an image that cannot
// be decoded exactly is refused with a *header.Error that says why; its name can still be learned from the engine's events.
//
// The reference is Pillow 13.0.0 with libjpeg-turbo 3.2.0 and libwebp 1.6.0. The inverse DCT, the upsampling and the colour
// conversion use integer arithmetic, and tests compare files byte for byte.
package pixels

import (
	"fmt"

	"github.com/sightline-router/sightline/media/header"
)

// RGB is a decoded image: three bytes per pixel, rows from the top, without padding.
type RGB struct {
	W, H int
	Pix  []byte

	// Key is the colour that Pillow makes transparent when this RGB image is converted to RGBA, nil for none: tRNS survives
	// convert("RGB"). It matters for engines that hash RGBA bytes.
	Key *[3]byte
}

// RGBA appends n pixels, beginning at pixel i, as converted by Pillow's convert("RGBA").
func (p *RGB) RGBA(dst []byte, i, n int) []byte {
	for in := p.Pix[3*i : 3*(i+n)]; len(in) >= 3; in = in[3:] {
		alpha := byte(255)
		if p.Key != nil && [3]byte(in) == *p.Key {
			alpha = 0
		}
		dst = append(dst, in[0], in[1], in[2], alpha)
	}
	return dst
}

func newRGB(w, h int) *RGB { return &RGB{W: w, H: h, Pix: make([]byte, 3*w*h)} }

// limits bound one decoding. Both are checked against the header before anything is allocated; a header that promises more than its
// file can contain is refused as truncated.
type limits struct {
	pixels int
	memory int64 // bytes that the decoder may allocate at once, including the result
}

// defaultLimits is enough for a 32-megapixel progressive photograph with halved chroma.
var defaultLimits = limits{pixels: 32 << 20, memory: 256 << 20}

// Decode decodes the file's first image. RGBAn images are pasted on opaque white, all others are converted as by Pillow's
// convert("RGB"), which drops transparency (TensorRT-LLM's rule, and vLLM's); EXIF orientation is not obeyed. Errors are
// *header.Error: Unsupported for what Pillow may open but this package does not decode exactly.
//
// Cost on one core: a 1080p JPEG of 0.5 MB 23 ms, progressive 43 ms (Pillow 15 and 27 in the same run), a 1080p PNG of
// 4 MB about 100 ms; memory three bytes a pixel with sequential JPEG, up to nine with progressive, up to 15 with PNG.
func Decode(file []byte) (*RGB, error) { return decode(file, defaultLimits) }

func decode(file []byte, lim limits) (*RGB, error) {
	var r header.Reader
	rest := header.File(file)
	info, err := r.Read(&rest)
	if err != nil {
		return nil, err
	}
	if info.Width > lim.pixels/info.Height {
		return nil, &header.Error{Kind: header.TooManyPixels, Format: info.Format,
			Detail: fmt.Sprintf("%d×%d, at most %d pixels", info.Width, info.Height, lim.pixels)}
	}
	var p *RGB
	switch info.Format {
	case "JPEG":
		p, err = decodeJPEG(file, lim)
	case "PNG":
		p, err = decodePNG(file, info, r.Colours(), lim)
	case "GIF":
		p, err = decodeGIF(file, info, r.Colours(), lim)
	case "WEBP":
		p, err = decodeWebP(file, info, lim)
	default:
		err = &header.Error{Kind: header.Unsupported, Format: info.Format, Detail: "no exact decoder"}
	}
	if err != nil {
		return nil, err
	}
	if p.W != info.Width || p.H != info.Height {
		return nil, &header.Error{Kind: header.Malformed, Format: info.Format,
			Detail: fmt.Sprintf("%d×%d pixels, the header says %d×%d", p.W, p.H, info.Width, info.Height)}
	}
	return p, nil
}

func tooMuch(format string, need int64, lim limits) error {
	return &header.Error{Kind: header.TooManyPixels, Format: format,
		Detail: fmt.Sprintf("decoding takes %d MiB, at most %d", need>>20, lim.memory>>20)}
}
