package trtllm

import (
	"encoding/binary"
	"encoding/hex"
	"hash"
	"math"

	"github.com/zeebo/blake3"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/media"
	"github.com/sightline-router/sightline/media/pixels"
	"github.com/sightline-router/sightline/mmhash/enginehash"
)

// Names computes the names of images in one class of workers (trtllm-serve). A name is a digest of the decoded pixels: package
// pixels decodes the file, and EXIF orientation is ignored. Pixels are fed to the digest in pieces of 64 KiB, so the float tensor
// of a 1080p image, 25 MB, is never held in memory.
type Names struct {
	// Tagged: the content is framed with its type and shape (2026, late 1.3). The first mm_keys hash seen for an image shows which
	// form a worker uses.
	Tagged bool
	// PIL: the image is hashed as RGBA bytes, not as a float32 tensor (channel, row, column): media_io_kwargs {"image":
	// {"format": "pil"}}, or the preference of some models.
	PIL bool
}

// With applies the media_io_kwargs of a server or a request. ok is false if they ask for something that is not modelled.
func (n Names) With(mediaIO enginehash.Fields) (Names, bool) {
	v, ok := mediaIO.Object("image").Get("format")
	if !ok {
		return n, true
	}
	n.PIL = string(v.Raw) == "pil"
	return n, v.Kind == enginehash.String && (n.PIL || string(v.Raw) == "pt")
}

// newKeys returns how workers of a release name media. Names come from decoded pixels, so an image has no name when it is first
// seen: that request is routed by affinity, and the next one finds the name.
func newKeys(v rules.Version, o rules.KeysOptions) (k rules.Keys, err error) {
	io, err := enginehash.ParseFields([]byte(o.MediaIO))
	if err != nil {
		return k, err
	}
	// The tagged form appeared in some release candidate of 1.3; which one is not known: for an earlier one the configuration must say 1.2.
	server, _ := Names{Tagged: v.AtLeast(1, 3, 0)}.With(io)
	k.InEvents = inEvents
	k.Ahead = func(c fair.Client, f media.Facts, file []byte) []enginehash.Recipe {
		o.Pixels.Want(pixels.Image{Client: c, Source: media.File(file), ID: f.ID, Bytes: f.Bytes, Pixels: f.Pixels()}, server.form())
		return nil
	}
	k.Name = func(m *rules.Naming) {
		n, ok := server.With(m.MediaIO)
		if !ok {
			return
		}
		pic := pixels.Image{Client: m.Client, Source: m.Source, ID: m.ID, Bytes: m.Bytes, Pixels: m.Pixels}
		m.Name, m.Later = o.Pixels.Name(pic, n.form(), m.Inline)
		m.Named = m.Name != ""
	}
	return k, nil
}

func (n Names) form() pixels.Form { return pixels.Form{Key: n.key(), Of: n.Of} }

// key distinguishes the forms from each other and from the key of every Recipe.
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

// Of returns the hash in KV events' mm_keys, 64 hex digits. (With multi_modal_uuids it would differ, but no HTTP field sets them.)
// It takes milliseconds.
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

// frame returns the header hashed before the pixels: type and shape, all integers big-endian.
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

// unit is v/255 in float32, rounded correctly (multiplying by the reciprocal gives another result for half of the values).
var unit = func() (t [256]uint32) {
	for v := range t {
		t[v] = math.Float32bits(float32(v) / 255)
	}
	return t
}()

// writePlanes writes the image in the layout of torchvision's ToTensor: float32, little-endian, one plane per channel.
func writePlanes(h hash.Hash, p *pixels.RGB) {
	buf := make([]byte, 4*piece)
	for c := range 3 {
		n := 0
		for i := c; i < len(p.Pix); i += 3 {
			binary.LittleEndian.PutUint32(buf[n:], unit[p.Pix[i]])
			n += 4
			if n == len(buf) {
				h.Write(buf)
				n = 0
			}
		}
		h.Write(buf[:n])
	}
}

// writeRGBA writes the image as RGBA.
func writeRGBA(h hash.Hash, p *pixels.RGB) {
	buf := make([]byte, 0, 4*piece)
	for i, n := 0, p.W*p.H; i < n; i += piece {
		h.Write(p.RGBA(buf, i, min(piece, n-i)))
	}
}

// inEvents returns the first 64 bits of a digest: the workers of NVIDIA's standalone example send no more (block_mm_infos, an integer
// mm_hash), and one reading serves all forms of events. Another image with the same 64 bits as a given one takes 2^64 digests.
func inEvents(name string) string {
	if len(name) == 64 {
		return name[:16]
	}
	return name
}
