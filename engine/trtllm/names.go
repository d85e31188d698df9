package trtllm

import (
	"encoding/binary"
	"encoding/hex"
	"hash"
	"math"

	"github.com/zeebo/blake3"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/mmhash"
	"github.com/sightline-router/sightline/mmhash/name"
	"github.com/sightline-router/sightline/mmhash/pixels"
)

// Names is what names pictures in one class of workers (trtllm-serve). A name is a digest of the decoded pixels: the file is
// decoded by package pixels, and EXIF is not obeyed. The pixels go to the digest in pieces of 64 KiB: the float tensor of a
// 1080p picture, 25 MB, never stands in memory.
type Names struct {
	// Tagged: the content is framed with its type and shape (2026, late 1.3). Which form a worker has shows in the first
	// mm_keys hash seen for a picture.
	Tagged bool
	// PIL: the picture is hashed as RGBA bytes, not as a float32 tensor (channel, row, column): media_io_kwargs
	// {"image": {"format": "pil"}}, and some models' own preference.
	PIL bool
}

// With takes the media_io_kwargs of a server or a request; false if they ask for what is not modelled.
func (n Names) With(mediaIO name.Fields) (Names, bool) {
	v, ok := mediaIO.Object("image").Get("format")
	if !ok {
		return n, true
	}
	n.PIL = string(v.Raw) == "pil"
	return n, v.Kind == name.String && (n.PIL || string(v.Raw) == "pt")
}

// newKeys is how workers of a release name media: by decoded pixels, so a picture has no name at its first sight, and the
// request goes by affinity; the next one finds it.
func newKeys(v rules.Version, o rules.KeysOptions) (k rules.Keys, err error) {
	io, err := name.ParseFields([]byte(o.MediaIO))
	if err != nil {
		return k, err
	}
	server, _ := NamesOf(v).With(io)
	k.Learns = rules.LearnsAll
	k.Ahead = func(f mmhash.Facts, file []byte) []name.Recipe {
		o.Pixels.Want(mmhash.File(file), f.ID, f.Bytes, server.form())
		return nil
	}
	k.Name = func(m *rules.Medium) {
		n, ok := server.With(m.MediaIO)
		if !ok || m.Modality != "image" {
			return
		}
		known := false
		m.Name, known = o.Pixels.Get(m.ID, n.form())
		switch {
		case known:
		case m.Inline:
			o.Pixels.Now(m.Source, m.ID, m.Bytes, n.form())
			m.Name, _ = o.Pixels.Get(m.ID, n.form())
		default:
			o.Pixels.Want(m.Source, m.ID, m.Bytes, n.form())
			m.Later = true
		}
		m.Named = m.Name != ""
	}
	return k, nil
}

func (n Names) form() pixels.Form { return pixels.Form{Key: n.key(), Of: n.Of} }

// key tells forms apart, and from every Recipe's key.
func (n Names) key() (key [32]byte) {
	copy(key[:], "TensorRT-LLM")
	if n.Tagged {
		key[30] = 1
	}
	if n.PIL {
		key[31] = 1
	}
	return key
}

// Of gives the hash in KV events' mm_keys, 64 hex digits; with multi_modal_uuids, which no HTTP field reaches, it would be
// another. It takes milliseconds.
func (n Names) Of(p *pixels.RGB) string {
	h := blake3.New()
	if n.Tagged {
		h.Write([]byte("trtllm.mm.hash.v1"))
		h.Write(n.frame(p))
	}
	if n.PIL {
		writeRGBA(h, p)
	} else {
		writePlanes(h, p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// frame is what stands before the pixels: type and shape, all integers big-endian.
func (n Names) frame(p *pixels.RGB) []byte {
	u64 := binary.BigEndian.AppendUint64
	w, rows := uint64(p.W), uint64(p.H)
	if !n.PIL {
		b := append(u64([]byte{0x11}, 3), "<f4\x03"...)
		return u64(u64(u64(u64(b, 3), rows), w), 12*w*rows)
	}
	b := append(u64([]byte{0x10}, 3), "RGB"...)
	b = binary.BigEndian.AppendUint32(b, uint32(p.W))
	b = binary.BigEndian.AppendUint32(b, uint32(p.H))
	return u64(b, 4*w*rows)
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
