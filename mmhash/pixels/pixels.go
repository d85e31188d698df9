// Package pixels decodes a picture to exactly the RGB bytes that Pillow gives an engine, for names that are digests of
// pixels: TensorRT-LLM's, and vLLM's before 0.13 (package name). One wrong bit is another name, so what cannot be had
// exactly is refused with an error that says why; such a name can still be learned from the engine's events.
//
// The reference is Pillow 13.0.0 with libjpeg-turbo 3.2.0 and libwebp 1.6.0. Arithmetic, not guesswork: the inverse DCT,
// the upsampling and the colour conversion are integer rules, and files are compared byte for byte in the tests.
//
// This is work of milliseconds per picture. It belongs off the request path: the first request with a picture misses in
// any case.
package pixels

import (
	"fmt"

	"github.com/sightline-router/sightline/mmhash/header"
)

// RGB is a decoded picture: three bytes a pixel, rows from the top, nothing between them.
type RGB struct {
	W, H        int
	Pix         []byte
	Mode        string // Pillow's mode of the opened file, before conversion
	Orientation uint8  // EXIF's, not yet obeyed

	// Key is the colour that Pillow makes transparent when this RGB picture becomes RGBA, nil for none: tRNS outlives
	// convert("RGB"). Engines that hash RGBA bytes see it.
	Key *[3]byte
}

// RGBA appends n pixels from pixel i on as Pillow's convert("RGBA") has them.
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

// Limits bound one decoding. Both are checked against the header before anything is allocated; a header that promises
// more than its file can hold is refused as truncated.
type Limits struct {
	Pixels int   // 0 = DefaultPixels
	Memory int64 // bytes that the decoder may hold at once, the result included; 0 = DefaultMemory
}

// Limits where none are given: enough for a 32-megapixel progressive photograph with halved chroma.
const (
	DefaultPixels = 32 << 20
	DefaultMemory = 256 << 20
)

// Rule is how an engine's loader gets from the opened picture to RGB.
type Rule uint8

const (
	// Convert is Pillow's convert("RGB"): transparency is dropped.
	Convert Rule = iota
	// White pastes RGBA pictures on opaque white and converts all others: TensorRT-LLM, vLLM.
	White
	// WhiteAll makes every picture with transparency RGBA first (palette, LA, tRNS), then pastes it on white.
	WhiteAll
)

// Decode decodes the file's first picture. EXIF orientation is not obeyed (TensorRT-LLM's rule); see RGB.Turn. Errors are
// *header.Error: Unsupported for what Pillow may open but this package does not decode exactly.
//
// Cost on one core: a 1080p JPEG of 0.5 MB 15 ms, progressive 35 ms (Pillow 15 and 26 in the same run), a 1080p PNG of
// 4 MB about 100 ms; memory three bytes a pixel with sequential JPEG, up to nine with progressive, up to 15 with PNG.
func Decode(file []byte, rule Rule, lim Limits) (*RGB, error) {
	info, err := inspect(file)
	if err != nil {
		return nil, err
	}
	if lim.Pixels == 0 {
		lim.Pixels = DefaultPixels
	}
	if lim.Memory == 0 {
		lim.Memory = DefaultMemory
	}
	if info.Width > lim.Pixels/info.Height {
		return nil, &header.Error{Kind: header.TooManyPixels, Format: info.Format,
			Detail: fmt.Sprintf("%d×%d, at most %d pixels", info.Width, info.Height, lim.Pixels)}
	}
	var p *RGB
	switch info.Format {
	case "JPEG":
		p, err = decodeJPEG(file, lim)
	case "PNG":
		p, err = decodePNG(file, info, rule, lim)
	case "GIF":
		p, err = decodeGIF(file, info, rule, lim)
	case "WEBP":
		p, err = decodeWebP(file, info, rule, lim)
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
	p.Mode, p.Orientation = info.Mode, info.Orientation
	return p, nil
}

func inspect(file []byte) (header.Info, error) {
	r := header.New()
	r.Write(file)
	for r.Again() {
		r.Write(file)
	}
	return r.Finish()
}

func tooMuch(format string, need int64, lim Limits) error {
	return &header.Error{Kind: header.TooManyPixels, Format: format,
		Detail: fmt.Sprintf("decoding takes %d MiB, at most %d", need>>20, lim.Memory>>20)}
}
