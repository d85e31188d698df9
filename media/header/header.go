// Package header reads from an image file what an engine decides on before it decodes a pixel: format, size, Pillow's mode, EXIF
// orientation.
//
// The bytes come piece by piece and nothing is decoded. A Reader keeps only the window that it reads at a time, so it costs a few
// hundred nanoseconds per file in addition to the digest that reads the same bytes. Engines open images with Pillow, so Pillow's
// Image.open is the reference, both in what it tolerates and in what it refuses (checked against Pillow 13.0.0; see header_test.go).
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
	"io"
	"math"
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

// UprightSize returns width and height as seen by an engine that applies the EXIF orientation (vLLM does, SGLang's Qwen-VL path and
// TensorRT-LLM do not).
func (i Info) UprightSize() (w, h int) {
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

// Pieces is a file's content, in order.
type Pieces interface {
	// Next returns the next bytes, which are valid until the next call. Any error ends the file, such as io.EOF.
	Next() ([]byte, error)
}

// File is a whole file as Pieces.
type File []byte

// Next returns all of it, once.
func (f *File) Next() ([]byte, error) {
	b := *f
	*f = nil
	if len(b) == 0 {
		return nil, io.EOF
	}
	return b, nil
}

// Reader reads the header of one file after another. The zero value is ready. Not safe for concurrent use.
type Reader struct {
	info Info

	src      Pieces
	piece    []byte   // the rest of the current piece
	behind   []byte   // what follows it, while piece is a part of magic
	magic    [16]byte // the first bytes
	short    bool     // the file has fewer
	opened   bool     // Pillow needs no more of the file, but reads on
	buf      []byte   // a window that does not lie in one piece; the memory is kept between files
	steps    int      // windows read
	sizeOnly bool     // end with the size
	most     int      // bytes that may still be read for it

	summing bool // what is read counts for sum
	sum     uint32

	palette, alpha []byte // see Colours

	exif, xmp []byte // raw metadata blocks
	exifSeen  bool   // also when the block was too large to keep
}

// Read returns the facts in a file's header, or an *Error. It asks for no more of the file than it needs.
func (r *Reader) Read(src Pieces) (Info, error) {
	r.reset(src)
	if err := r.parse(); err != nil {
		return Info{}, &Error{err.Kind, r.info.Format, err.Detail}
	}
	i := &r.info
	if i.Mode == "" || i.Width <= 0 || i.Height <= 0 {
		return Info{}, &Error{Malformed, i.Format, fmt.Sprintf("size %d×%d, mode %q", i.Width, i.Height, i.Mode)}
	}
	if !i.fits() {
		return Info{}, &Error{TooManyPixels, i.Format, fmt.Sprintf("%d×%d, at most %d pixels", i.Width, i.Height, MaxPixels)}
	}
	i.Orientation = r.orientation()
	if i.Orientation == 0 {
		return Info{}, &Error{Unsupported, i.Format, "an EXIF orientation that is no SHORT"}
	}
	return *i, nil
}

// Pixels returns how many pixels an image has, 0 if that is not in its first bytes. It reads up to most of them, and none behind the size.
func (r *Reader) Pixels(src Pieces, most int) int {
	r.reset(src)
	r.sizeOnly, r.most = true, most
	_ = r.parse()
	if i := &r.info; i.Width > 0 && i.Height > 0 && i.fits() {
		return i.Width * i.Height
	}
	return 0
}

func (i *Info) fits() bool {
	return i.Width <= MaxPixels && i.Height <= MaxPixels && i.Width*i.Height <= MaxPixels
}

// reset prepares the Reader for another file. Small buffers are kept.
func (r *Reader) reset(src Pieces) {
	kept := func(b []byte) []byte {
		if cap(b) > keep {
			return nil
		}
		return b[:0]
	}
	*r = Reader{src: src, most: math.MaxInt, buf: kept(r.buf), exif: kept(r.exif), xmp: kept(r.xmp), palette: r.palette[:0],
		alpha: r.alpha[:0]}
}

// Whatever ends the reading early is a panic that parse recovers.
var (
	errEnd  = &Error{Kind: Truncated, Detail: "ends in its header"}
	errMany = &Error{Kind: Malformed, Detail: "too many segments"}
	enough  = &Error{} // what was asked for is known
)

func fail(k Kind, detail string) { panic(&Error{Kind: k, Detail: detail}) }

// parse reads until Pillow would answer.
func (r *Reader) parse() (err *Error) {
	defer func() {
		if p := recover(); p != nil {
			e, ok := p.(*Error)
			if !ok {
				panic(p)
			}
			err = e
		}
		switch {
		case err == enough, r.opened && (err == errEnd || err == errMany):
			err = nil
		case r.short && (err == nil || err.Kind == Malformed):
			err = errEnd
		}
	}()
	r.sniff()
	return nil
}

// more makes the next piece the current one. It returns false at the end of the file.
func (r *Reader) more() bool {
	for len(r.piece) == 0 {
		if len(r.behind) > 0 {
			r.piece, r.behind = r.behind, nil
			break
		}
		p, err := r.src.Next()
		if err != nil || r.most <= 0 {
			return false
		}
		r.most -= len(p)
		r.piece = p
	}
	return true
}

// upTo reads n bytes, fewer at the end of the file. They are valid until the next call.
func (r *Reader) upTo(n int) (window []byte) {
	r.steps++
	if r.steps > maxSteps {
		panic(errMany)
	}
	if len(r.piece) >= n {
		window, r.piece = r.piece[:n], r.piece[n:]
	} else {
		r.buf = r.buf[:0]
		for len(r.buf) < n && r.more() {
			k := min(n-len(r.buf), len(r.piece))
			r.buf = append(r.buf, r.piece[:k]...)
			r.piece = r.piece[k:]
		}
		window = r.buf
	}
	if r.summing {
		r.sum = crc32.Update(r.sum, crc32.IEEETable, window)
	}
	return window
}

// take reads n bytes, which are valid until the next call.
func (r *Reader) take(n int) []byte {
	window := r.upTo(n)
	if len(window) < n {
		panic(errEnd)
	}
	return window
}

// byte reads one byte.
func (r *Reader) byte() byte { return r.take(1)[0] }

// skip reads n bytes that do not matter.
func (r *Reader) skip(n int64) {
	for n > 0 {
		if !r.more() {
			panic(errEnd)
		}
		k := min(n, int64(len(r.piece)))
		if r.summing {
			r.sum = crc32.Update(r.sum, crc32.IEEETable, r.piece[:k])
		}
		r.piece, n = r.piece[k:], n-k
	}
}

// size records the size of the image.
func (r *Reader) size(width, height int) {
	r.info.Width, r.info.Height = width, height
	if r.sizeOnly && width > 0 && height > 0 {
		panic(enough)
	}
}

// Colours is what a file declares about its colours before its first pixels.
type Colours struct {
	Palette []byte // of a GIF's first image: three bytes a colour
	Alpha   []byte // PNG: the first tRNS, at most 256 bytes; GIF: the transparent index, if there is one
}

// Colours returns what decoding a PNG or a GIF needs besides its pixels. It is valid until Reset.
func (r *Reader) Colours() Colours { return Colours{r.palette, r.alpha} }

// sniff determines the format from the first 16 bytes, as Pillow's plugins do, and reads the rest by its rules.
func (r *Reader) sniff() {
	b := r.magic[:]
	if r.more() && len(r.piece) >= len(b) {
		copy(b, r.piece)
	} else {
		n := copy(b, r.upTo(len(b)))
		r.short, r.piece, r.behind = n < len(b), b[:n], r.piece
	}
	has := func(s string) bool { return string(b[:len(s)]) == s }
	switch {
	case has("\x89PNG\r\n\x1a\n"):
		r.info.Format = "PNG"
		r.png()
	case has("\xff\xd8\xff"):
		r.info.Format = "JPEG"
		r.jpeg()
	case has("GIF87a"), has("GIF89a"):
		r.info.Format = "GIF"
		r.gif()
	case has("RIFF") && string(b[8:12]) == "WEBP" &&
		(string(b[12:16]) == "VP8 " || string(b[12:16]) == "VP8L" || string(b[12:16]) == "VP8X"):
		r.info.Format = "WEBP"
		r.webp()
	default:
		r.info.Format = otherFormat(b)
		if r.info.Format != "" {
			fail(Unsupported, "no header reader for it")
		}
		fail(NotAnImage, fmt.Sprintf("first bytes % x", b[:8]))
	}
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
