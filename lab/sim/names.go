package sim

// What SGLang and TensorRT-LLM call an image, written down a second time, so that a mistake in the product's own names
// shows (package vllmid is the same for vLLM).

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	stdimage "image"
	"image/color"
	_ "image/png" // read below
	"math"
	"strconv"

	"github.com/zeebo/blake3"
)

// sglangItem is SGLang's item hash (0.5.23, Qwen3-VL) of an image without options, in hex: canonical JSON of what the
// processed image depends on, its digest, and a hash of that with a label.
func sglangItem(file []byte, fingerprint string) string {
	str := func(s string) string { return `{"type":"str","value":"` + s + `"}` }
	pair := func(key, value string) string { return "[" + str(key) + "," + value + "]" }
	content := sha256.Sum256(file)
	artifact := sha256.Sum256([]byte(`{"items":[` + pair("content_digest", str("sha256:"+hex.EncodeToString(content[:]))) + "," +
		pair("modality", str("image")) + "," + pair("preprocess_kwargs", `{"items":[],"type":"mapping"}`) + "," +
		pair("processor_fingerprint", str(fingerprint)) + `],"type":"mapping"}`))
	h := sha256.New()
	for _, part := range []string{"multimodal-feature-v1", string(artifact[:]), "\x00"} {
		_ = binary.Write(h, binary.BigEndian, uint64(len(part)))
		h.Write([]byte(part))
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// sglangPads are the four ids that stand in turn for an image's tokens.
func sglangPads(item string) (pads [4]uint64) {
	digest := sha256.Sum256(binary.BigEndian.AppendUint64([]byte("sglang-mm-wide-pad-v1"), hex64(item)))
	for i := range pads {
		pads[i] = 1_000_000 + binary.BigEndian.Uint64(digest[8*i:])&(1<<62-1)
	}
	return pads
}

// trtllmName is TensorRT-LLM's name (1.3) of a PNG: a digest of its pixels as a float tensor, colour by colour.
func trtllmName(file []byte) (string, error) {
	img, _, err := stdimage.Decode(bytes.NewReader(file))
	if err != nil {
		return "", &Refusal{Message: "the simulated TensorRT-LLM reads PNG alone"}
	}
	size := img.Bounds().Size()
	h := blake3.New()
	_, _ = h.WriteString("trtllm.mm.hash.v1\x11")
	be := func(vs ...uint64) {
		for _, v := range vs {
			_ = binary.Write(h, binary.BigEndian, v)
		}
	}
	be(3)
	_, _ = h.WriteString("<f4\x03")
	be(3, uint64(size.Y), uint64(size.X), uint64(12*size.X*size.Y))
	row := make([]byte, 0, 4*size.X)
	for channel := range 3 {
		for y := range size.Y {
			row = row[:0]
			for x := range size.X {
				at := img.At(img.Bounds().Min.X+x, img.Bounds().Min.Y+y)
				c := color.NRGBAModel.Convert(at).(color.NRGBA) // Pillow drops the alpha channel and keeps the colours
				v := [3]uint8{c.R, c.G, c.B}[channel]
				row = binary.LittleEndian.AppendUint32(row, math.Float32bits(float32(v)/255))
			}
			_, _ = h.Write(row)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// hex64 is the number of a name's first 16 digits.
func hex64(name string) uint64 {
	v, _ := strconv.ParseUint(name[:16], 16, 64)
	return v
}
