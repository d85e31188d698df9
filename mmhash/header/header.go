// Package header reads from an image file what an engine decides on before it decodes a pixel: format, size, Pillow's mode, EXIF
// orientation.
//
// The bytes come as a stream (Reader is an io.Writer) and nothing is decoded. A Reader keeps only the window that its next step
// needs, so it costs a few hundred nanoseconds per file in addition to the digest that reads the same bytes. Engines open images
// with Pillow, so Pillow's Image.open is the reference, both in what it tolerates and in what it refuses (checked against Pillow
// 13.0.0; see header_test.go).
//
// Width and Height are Image.size after open. Orientation is what ImageOps.exif_transpose would apply: EXIF first, XMP if EXIF has
// none. PNG, JPEG, GIF and WebP are read; the other formats of Pillow are recognized and have no facts.
package header

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
)

// MaxPixels is the size of the largest image that Pillow opens (Image.MAX_IMAGE_PIXELS × 2), which is also vLLM's own limit
// (VLLM_MAX_IMAGE_PIXELS).
const MaxPixels = 178956970

const (
	maxSteps = 1 << 18  // windows of one file; a file of more segments is given up
	maxMeta  = 1 << 20  // bytes of one EXIF or XMP block that are read
	keep     = 64 << 10 // larger buffers of a Reader are not kept for the next file
)

// Info holds the facts in the header of an image file.
type Info struct {
	Format        string // Pillow's name: PNG, JPEG, GIF, WEBP
	Mode          string // Pillow's mode of the opened file: RGB, RGBA, P, L, LA, 1, CMYK, I;16
	Width, Height int    // pixels, before any EXIF rotation
	Orientation   uint8  // EXIF 1 to 8; 1 if the file has none or an invalid one
	Transparent   bool   // Pillow names a transparent colour of an RGB image (a PNG's tRNS)
}

// Turned returns width and height as seen by an engine that applies the EXIF orientation (vLLM does, SGLang's Qwen-VL path and
// TensorRT-LLM do not).
func (i Info) Turned() (w, h int) {
	if i.Orientation >= 5 {
		return i.Height, i.Width
	}
	return i.Width, i.Height
}

// Kind says why a header could not be read.
type Kind uint8

const (
	NotAnImage    Kind = iota + 1 // no format that Pillow knows
	Unsupported                   // a format that Pillow may open but this package does not read
	Truncated                     // ends before the size and mode are known, or inside a part that Pillow requires
	Malformed                     // Pillow refuses it
	TooManyPixels                 // more than MaxPixels
)

var kindNames = [...]string{"", "not an image", "format not read", "truncated", "malformed", "too many pixels"}

func (k Kind) String() string { return kindNames[k] }

// Error is a refusal. Engines answer such an image with an error, except Unsupported, which they may open.
type Error struct {
	Kind   Kind
	Format string // "" if unknown
	Detail string
}

func (e *Error) Error() string {
	s := e.Kind.String()
	if e.Format != "" {
		s = e.Format + ": " + s
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// KindOf returns the kind of a header error, 0 for any other.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return 0
}

// step reads one window and calls Reader.next for the one after it.
type step func(r *Reader, window []byte)

// Reader gets the file's bytes through Write in pieces of any size, and then reports with Finish. The zero value is not ready: use
// New or Reset. Not safe for concurrent use.
type Reader struct {
	info Info
	err  *Error
	done bool

	do    step
	need  int    // size of the next window
	skip  int64  // bytes to skip before it
	seek  bool   // skip everything before the next 0xFF (JPEG)
	buf   []byte // an incomplete window; the memory is kept between files
	steps int
	magic [16]byte // the first bytes, written again to the format's own parser

	palette, alpha []byte // see Colours

	exif, xmp []byte // raw metadata blocks, used by Finish
	exifSeen  bool   // also when the block was too large to keep

	jpeg jpegState
	png  pngState
	gif  gifState
	webp webpState
}

// New returns a Reader for one file.
func New() *Reader { r := new(Reader); r.Reset(); return r }

// Reset prepares the Reader for another file. Small buffers are kept.
func (r *Reader) Reset() {
	kept := func(b []byte) []byte {
		if cap(b) > keep {
			return nil
		}
		return b[:0]
	}
	*r = Reader{buf: kept(r.buf), exif: kept(r.exif), xmp: kept(r.xmp), palette: r.palette[:0], alpha: r.alpha[:0]}
	r.next(len(r.magic), sniff)
}

// Write reads the next bytes of the file; it never fails. It ignores those that cannot change the result any more.
func (r *Reader) Write(p []byte) (int, error) {
	n := len(p)
	for !r.done {
		switch {
		case r.skip > 0:
			if len(p) == 0 {
				return n, nil
			}
			k := min(r.skip, int64(len(p)))
			if r.png.summing {
				r.png.sum = crc32.Update(r.png.sum, crc32.IEEETable, p[:k])
			}
			r.skip -= k
			p = p[k:]
			continue
		case r.seek:
			if len(p) == 0 {
				return n, nil
			}
			k := bytes.IndexByte(p, 0xFF)
			if k < 0 {
				return n, nil
			}
			p, r.seek = p[k+1:], false
			continue
		}
		var window []byte
		if len(r.buf) == 0 && len(p) >= r.need {
			window, p = p[:r.need], p[r.need:]
		} else {
			k := min(r.need-len(r.buf), len(p))
			r.buf = append(r.buf, p[:k]...)
			p = p[k:]
			if len(r.buf) < r.need {
				return n, nil
			}
			window, r.buf = r.buf, r.buf[:0]
		}
		r.steps++
		if r.steps > maxSteps {
			r.tooLong()
			break
		}
		r.do(r, window)
	}
	return n, nil
}

// Finish returns the facts, or an *Error. Call it after the last byte.
func (r *Reader) Finish() (Info, error) {
	if r.err == nil && !r.done {
		r.end()
	}
	if r.err != nil {
		r.err.Format = r.info.Format
		return Info{}, r.err
	}
	i := &r.info
	if i.Mode == "" || i.Width <= 0 || i.Height <= 0 {
		return Info{}, &Error{Malformed, i.Format, fmt.Sprintf("size %d×%d, mode %q", i.Width, i.Height, i.Mode)}
	}
	if i.Width > MaxPixels || i.Height > MaxPixels || i.Width*i.Height > MaxPixels {
		return Info{}, &Error{TooManyPixels, i.Format, fmt.Sprintf("%d×%d, at most %d pixels", i.Width, i.Height, MaxPixels)}
	}
	i.Orientation = r.orientation()
	if i.Orientation == 0 {
		return Info{}, &Error{Unsupported, i.Format, "an EXIF orientation that is no SHORT"}
	}
	return *i, nil
}

// Pixels returns how many pixels the image has, as soon as that is known; 0 if it will never be.
func (r *Reader) Pixels() (n int, known bool) {
	w, h := r.info.Width, r.info.Height
	if r.err != nil || w < 0 || h < 0 || w > MaxPixels || h > MaxPixels || w*h > MaxPixels {
		return 0, true
	}
	return w * h, w*h > 0
}

// end decides the result for a file that ended while its parser still waits.
func (r *Reader) end() {
	switch r.info.Format {
	case "":
		// Shorter than the longest magic number: the beginning of an image, or no image.
		head := append(r.buf, make([]byte, len(r.magic)-len(r.buf))...)
		r.buf = r.buf[:0]
		sniff(r, head)
		if r.err == nil || r.err != nil && r.err.Kind == Malformed {
			r.fail(Truncated, "ends in its first bytes")
		}
	case "PNG":
		if !r.png.data {
			r.fail(Truncated, "ends before its pixels")
			return
		}
		r.done = true // only a decoder can tell whether the pixels are complete
	default:
		r.fail(Truncated, "ends in its header")
	}
}

// Colours is what a file declares about its colours before its first pixels.
type Colours struct {
	Palette []byte // of a GIF's first image: three bytes a colour
	Alpha   []byte // PNG: the first tRNS, at most 256 bytes; GIF: the transparent index, if there is one
}

// Colours returns what decoding a PNG or a GIF needs besides its pixels. It is valid until Reset.
func (r *Reader) Colours() Colours { return Colours{r.palette, r.alpha} }

func (r *Reader) next(need int, do step)               { r.need, r.do = need, do }
func (r *Reader) skipTo(skip int64, need int, do step) { r.skip, r.need, r.do = skip, need, do }

func (r *Reader) fail(k Kind, detail string) {
	r.err, r.done = &Error{Kind: k, Detail: detail}, true
}

// tooLong gives up after maxSteps. A PNG whose pixels have begun keeps its result.
func (r *Reader) tooLong() {
	r.done = true
	if !r.png.data {
		r.fail(Malformed, "too many segments")
	}
}

// sniff determines the format from the first 16 bytes, as Pillow's plugins do, and restarts with its parser.
func sniff(r *Reader, b []byte) {
	copy(r.magic[:], b)
	b = r.magic[:]
	has := func(s string) bool { return string(b[:len(s)]) == s }
	switch {
	case has("\x89PNG\r\n\x1a\n"):
		r.info.Format = "PNG"
		r.skipTo(8, 8, pngChunk)
	case has("\xff\xd8\xff"):
		r.info.Format = "JPEG"
		r.skipTo(3, 1, jpegMarker)
	case has("GIF87a"), has("GIF89a"):
		r.info.Format = "GIF"
		r.next(13, gifScreen)
	case has("RIFF") && string(b[8:12]) == "WEBP" &&
		(string(b[12:16]) == "VP8 " || string(b[12:16]) == "VP8L" || string(b[12:16]) == "VP8X"):
		r.info.Format = "WEBP"
		r.next(12, webpRIFF)
	default:
		if f := otherFormat(b); f != "" {
			r.info.Format = f
			r.fail(Unsupported, "no header reader for it")
		} else {
			r.fail(NotAnImage, fmt.Sprintf("first bytes % x", b[:8]))
		}
		return
	}
	r.Write(b)
}

// otherFormat names the format of a file that Pillow may open and this package does not read.
func otherFormat(b []byte) string {
	for _, f := range [...]struct {
		at          int
		magic, name string
	}{
		{0, "\x00\x00\x01\x00", "ICO"}, {0, "\x00\x00\x02\x00", "CUR"}, {0, "\xff\x4f\xff\x51", "JPEG2000"},
		{0, "\x00\x00\x00\x0cjP  \r\n\x87\n", "JPEG2000"}, {0, "qoif", "QOI"}, {0, "Pf", "PPM"}, {0, "P0CMYK", "PPM"},
		{0, "Py", "PPM"}, {0, "8BPS", "PSD"}, {0, "DDS ", "DDS"}, {0, "P7 332", "XVTHUMB"}, {0, "icns", "ICNS"},
		{0, "\x01\xda", "SGI"}, {0, "BLP1", "BLP"}, {0, "BLP2", "BLP"},
		{0, "DanM", "MSP"}, {0, "LinS", "MSP"}, {0, "#define", "XBM"}, {0, "/* XPM", "XPM"}, {0, "Image type:", "IM"},
		{0, "SIMPLE", "FITS"}, {0, "\x59\xa6\x6a\x95", "SUN"}, {0, "\x80\xe8\x00\x00", "PIXAR"}, {0, "FTEX", "FTEX"},
		{0, "BM", "BMP"}, {4, "ftypavif", "AVIF"}, {4, "ftypavis", "AVIF"}, {4, "ftypmif1", "AVIF"}, {4, "ftypmsf1", "AVIF"},
		{0, "MM\x00\x2a", "TIFF"}, {0, "II\x2a\x00", "TIFF"}, {0, "MM\x2a\x00", "TIFF"}, {0, "II\x00\x2a", "TIFF"},
		{0, "MM\x00\x2b", "TIFF"}, {0, "II\x2b\x00", "TIFF"},
		{4, "\x11\xaf", "FLI"}, {4, "\x12\xaf", "FLI"}, {0, "\xb1\x68\xde\x3a", "DCX"},
	} {
		if string(b[f.at:f.at+len(f.magic)]) == f.magic {
			return f.name
		}
	}
	switch {
	case b[0] == 'P' && b[1] >= '1' && b[1] <= '6':
		return "PPM"
	case slices.Contains([]uint32{12, 40, 52, 56, 64, 108, 124}, binary.LittleEndian.Uint32(b)): // the size of its header
		return "DIB"
	case b[0] == 10 && bytes.IndexByte([]byte{0, 2, 3, 5}, b[1]) >= 0:
		return "PCX"
	case b[1] <= 1 && bytes.IndexByte([]byte{1, 2, 3, 9, 10, 11}, b[2]) >= 0 && int(b[12])+int(b[13]) > 0 && int(b[14])+int(b[15]) > 0:
		return "TGA" // it has no magic number: checked by type of colours and of pixels, and its size
	case string(b[:4]) == "\x00\x00\x80\x3f" || string(b[:4]) == "\x3f\x80\x00\x00":
		return "SPIDER"
	}
	return ""
}
