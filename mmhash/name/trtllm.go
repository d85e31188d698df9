package name

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"math"

	"github.com/zeebo/blake3"

	"github.com/sightline-router/sightline/mmhash/pixels"
)

// Names that are digests of pixels: TensorRT-LLM's in all its generations, vLLM's before 0.13. Both load a file with
// pixels.White and obey no EXIF. They take milliseconds, so they are computed off the request path. The pixels go to the
// digest in pieces of 64 KiB: the float tensor of a 1080p picture, 25 MB, never stands in memory.

// TRTLLM is what names pictures in one class of TensorRT-LLM workers (trtllm-serve).
type TRTLLM struct {
	// Generation: 0 = raw content (1.2.0rc and before), 1 = with a frame around uuid and content, 2 = tagged and typed
	// (2026, late 1.3). Without a uuid, 0 and 1 give the same name. Which one a worker has shows in the first mm_keys
	// hash seen for a picture whose names are all computed.
	Generation uint8
	// PIL: the picture is hashed as RGBA bytes, not as a float32 tensor (channel, row, column): media_io_kwargs
	// {"image": {"format": "pil"}}, and some models' own preference.
	PIL bool
}

// TRTLLMOf is what a release does with a server's media_io_kwargs. Generation 2 came in the candidates of 1.3; in which of
// them is not known, so all of 1.3 counts as such; for an earlier one the configuration says 1.2.
func TRTLLMOf(major, minor int, mediaIO Fields) TRTLLM {
	t := TRTLLM{Generation: 1}
	if major > 1 || major == 1 && minor >= 3 {
		t.Generation = 2
	}
	t, _ = t.With(mediaIO)
	return t
}

// With takes a request's media_io_kwargs; false if they ask for what is not modelled.
func (t TRTLLM) With(mediaIO Fields) (TRTLLM, bool) {
	v, ok := mediaIO.object("image").get("format")
	if !ok {
		return t, true
	}
	t.PIL = string(v.raw) == "pil"
	return t, v.kind == kindString && (t.PIL || string(v.raw) == "pt")
}

// Key tells rules apart, and from every Recipe's Key.
func (t TRTLLM) Key() (key [32]byte) {
	copy(key[:], "TensorRT-LLM")
	key[30] = t.Generation
	if t.PIL {
		key[31] = 1
	}
	return key
}

// Name gives the hash in KV events' mm_keys, 64 hex digits. uuid is multi_modal_uuids' (no HTTP field reaches it), ""
// for none; generation 0 knows none.
func (t TRTLLM) Name(p *pixels.RGB, uuid string) string {
	return t.digest(uuid, func(h hash.Hash) { t.picture(h, p) })
}

// Frames names a list of pictures, which differs from a bare picture even for one.
func (t TRTLLM) Frames(ps []*pixels.RGB, uuid string) string {
	return t.digest(uuid, func(h hash.Hash) {
		if t.Generation >= 2 {
			h.Write(binary.BigEndian.AppendUint64([]byte{0x20}, uint64(len(ps))))
		}
		for _, p := range ps {
			if t.Generation < 2 {
				h.Write([]byte("<frame>"))
			}
			t.picture(h, p)
		}
	})
}

func (t TRTLLM) digest(uuid string, content func(hash.Hash)) string {
	h := blake3.New()
	framed := uuid != "" && t.Generation >= 1
	if framed {
		h.Write([]byte("<uuid>" + uuid + "</uuid><content>"))
	}
	if t.Generation >= 2 {
		h.Write([]byte("trtllm.mm.hash.v1"))
	}
	content(h)
	if framed {
		h.Write([]byte("</content>"))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// picture writes one picture, in generation 2 with its type and shape, all integers big-endian.
func (t TRTLLM) picture(h hash.Hash, p *pixels.RGB) {
	u64 := binary.BigEndian.AppendUint64
	w, rows := uint64(p.W), uint64(p.H)
	switch {
	case t.Generation < 2:
	case t.PIL:
		b := append(u64([]byte{0x10}, 3), "RGB"...)
		b = binary.BigEndian.AppendUint32(b, uint32(p.W))
		b = binary.BigEndian.AppendUint32(b, uint32(p.H))
		h.Write(u64(b, 4*w*rows))
	default:
		b := append(u64([]byte{0x11}, 3), "<f4\x03"...)
		h.Write(u64(u64(u64(u64(b, 3), rows), w), 12*w*rows))
	}
	if t.PIL {
		writeRGBA(h, p)
	} else {
		writePlanes(h, p)
	}
}

const piece = 16 << 10 // pixels converted at a time

// unit is v/255 in float32, rounded correctly (a product with the reciprocal differs for half of the values).
var unit = func() (t [256]uint32) {
	for v := range t {
		t[v] = math.Float32bits(float32(v) / 255)
	}
	return t
}()

// writePlanes streams the picture as torchvision's ToTensor has it: float32, little-endian, a plane per channel.
func writePlanes(h hash.Hash, p *pixels.RGB) {
	buf := make([]byte, 4*piece)
	for c := range 3 {
		n := 0
		for i := c; i < len(p.Pix); i += 3 {
			binary.LittleEndian.PutUint32(buf[n:], unit[p.Pix[i]])
			if n += 4; n == len(buf) {
				h.Write(buf)
				n = 0
			}
		}
		h.Write(buf[:n])
	}
}

// writeRGBA streams the picture as RGBA.
func writeRGBA(h hash.Hash, p *pixels.RGB) {
	buf := make([]byte, 0, 4*piece)
	for i, n := 0, p.W*p.H; i < n; i += piece {
		h.Write(p.RGBA(buf, i, min(piece, n-i)))
	}
}

// PixelName gives the name of a picture in vLLM before 0.13 (H0: NumPy array of RGBA, H1: Pillow's mode and the array of
// RGB), which Recipe cannot. p is decoded with pixels.White, not turned.
func (v *VLLM) PixelName(p *pixels.RGB, it Item) (string, error) {
	switch {
	case v.Generation > H1:
		return "", fmt.Errorf("%w: vLLM since 0.13 hashes the file, not its pixels", ErrNotComputable)
	case it.HasUUID || it.Modality != "" && it.Modality != "image":
		return "", fmt.Errorf("%w: not a plain picture", ErrNotComputable)
	case it.ProcessorKwargs.hasNull():
		return "", fmt.Errorf("%w: null in mm_processor_kwargs before 0.16", ErrNotComputable)
	}
	channels := int64(4)
	var w writer
	w.field("model_id", text(v.Model))
	w.b = append(w.b, "image"...)
	if v.Generation == H1 {
		channels = 3
		w.field("image.mode", text("RGB"))
		w.b = append(w.b, "image.data"...)
	} else {
		w.b = append(w.b, "image"...)
	}
	w.field("ndarray.dtype", text("|u1"))
	w.field("ndarray.shape", Value{kind: kindList, list: []Value{integer(int64(p.H)), integer(int64(p.W)), integer(channels)}})
	w.b = append(w.b, "ndarray.data"...)
	h := v.Algorithm.new()
	h.Write(w.b)
	if v.Generation == H1 {
		h.Write(p.Pix)
	} else {
		writeRGBA(h, p)
	}
	w.b = w.b[:0]
	for _, f := range it.ProcessorKwargs {
		w.field(f.Key, f.Value)
	}
	h.Write(w.b)
	return hex.EncodeToString(h.Sum(nil)), w.err
}
