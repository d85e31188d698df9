package name

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/zeebo/blake3"

	"github.com/sightline-router/sightline/mmhash/header"
	"github.com/sightline-router/sightline/mmhash/pixels"
)

// four is the picture 2×2 of red, green, blue and (10, 20, 30). Its names come from the leaf functions of TensorRT-LLM,
// run with Pillow 13.0.0, torch 2.15.0 and blake3 1.0.11.
var four = &pixels.RGB{W: 2, H: 2, Pix: []byte{255, 0, 0, 0, 255, 0, 0, 0, 255, 10, 20, 30}}

func TestTRTLLM(t *testing.T) {
	for _, c := range []struct {
		t    TRTLLM
		uuid string
		want string
	}{
		{TRTLLM{0, false}, "", "a588f76b13a544f529979d0a9922dc0ae191bf28a4596985c2bb69174a688ccf"},
		{TRTLLM{0, false}, "img-1", "a588f76b13a544f529979d0a9922dc0ae191bf28a4596985c2bb69174a688ccf"},
		{TRTLLM{1, false}, "", "a588f76b13a544f529979d0a9922dc0ae191bf28a4596985c2bb69174a688ccf"},
		{TRTLLM{2, false}, "", "6427120f102ae457d875303efbe987c53f965d6daa623f3f5079f4e5140c1e50"},
		{TRTLLM{1, true}, "", "a0dc9c5c1540bb6702219d60b25dbf595a9c0f4fa57a9f6efce3848d79861c2b"},
		{TRTLLM{2, true}, "", "32b06af37b8de0d5e5aee8ac799fbf9a8648886026f3b2b9feb9385575e746cc"},
		{TRTLLM{1, false}, "img-1", "a5cc072cee1ae95bddf46a76d258cad014fa34e85fab406de4550dd953c1ca85"},
		{TRTLLM{2, false}, "img-1", "9d403cd45b9c84896cff6b61e8c086bb53f7432ae3c620e342b6440dc2fe3941"},
	} {
		if got := c.t.Name(four, c.uuid); got != c.want {
			t.Errorf("%+v uuid %q: %s, want %s", c.t, c.uuid, got, c.want)
		}
	}
}

// TestTRTLLMPieces: a picture of more than one piece, plane by plane, is the same digest as the tensor in one.
func TestTRTLLMPieces(t *testing.T) {
	p := &pixels.RGB{W: 250, H: 199, Pix: make([]byte, 3*250*199)}
	var tensor []byte
	for c := range 3 {
		for i := range 250 * 199 {
			p.Pix[3*i+c] = byte(i*7 + c*31 + i>>8)
			tensor = append(tensor, byte(unit[p.Pix[3*i+c]]), byte(unit[p.Pix[3*i+c]]>>8), byte(unit[p.Pix[3*i+c]]>>16), byte(unit[p.Pix[3*i+c]]>>24))
		}
	}
	if s := blake3.Sum256(tensor); (TRTLLM{}).Name(p, "") != hex.EncodeToString(s[:]) {
		t.Error("the streamed tensor differs")
	}
}

func TestTRTLLMWords(t *testing.T) {
	for hex, want := range map[string][8]int32{
		"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f": {66051, 67438087, 134810123, 202182159, 269554195, 336926231, 404298267, 471670303},
		"ffffffff800000007fffffff00000001deadbeef000000000000000000000000": {-1, -2147483648, 2147483647, 1, -559038737, 0, 0, 0},
	} {
		if got, err := trtllmWords(hex); err != nil || got != want {
			t.Errorf("%s: %v %v, want %v", hex, got, err, want)
		}
	}
	for _, s := range []string{"", "00", "zz0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"} {
		if _, err := trtllmWords(s); err == nil {
			t.Errorf("%q taken", s)
		}
	}
}

// TestVLLMPixels: the pixel part is that of the later generations' hash of a Pillow object, of which a digest by vLLM is
// known; field by field it is written out here in the older order.
func TestVLLMPixels(t *testing.T) {
	file, _ := base64.StdEncoding.DecodeString("iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAEklEQVR42mP4z8DAAMIM/4EAAB/uBfvxq7p3AAAAAElFTkSuQmCC")
	p, err := pixels.Decode(file, pixels.White, pixels.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	const m = "Qwen/Qwen2.5-VL-7B-Instruct"
	two, three, four, five := "\x02\x00\x00\x00\x00\x00\x00\x00", "\x03\x00\x00\x00\x00\x00\x00\x00", "\x04\x00\x00\x00\x00\x00\x00\x00", "\x05\x00\x00\x00\x00\x00\x00\x00"
	shape := "ndarray.dtype|u1ndarray.shape.0" + two + "ndarray.shape.1" + two + "ndarray.shape.2"
	rgb := "image" + "image.modeRGB" + "image.data" + shape + three + "ndarray.data" + string(p.Pix)
	sum := func(s string) string { d := blake3.Sum256([]byte(s)); return hex.EncodeToString(d[:]) }
	if got := sum(rgb + "model_id" + m); got != "afd328600df535caf8f42df7fb5bee799aa85dd626d004d8aff03e47a221d73d" {
		t.Fatalf("the pixel part is not vLLM's: %s", got)
	}
	var rgba []byte
	for i := 0; i < len(p.Pix); i += 3 {
		rgba = append(append(rgba, p.Pix[i:i+3]...), 255)
	}
	kwargs, _ := ParseFields([]byte(`{"z":5,"a":5}`))
	for _, c := range []struct {
		gen  Generation
		kw   Fields
		want string
	}{
		{H1, nil, sum("model_id" + m + rgb)},
		{H1, kwargs, sum("model_id" + m + rgb + "z" + five + "a" + five)},
		{H0, nil, sum("model_id" + m + "imageimage" + shape + four + "ndarray.data" + string(rgba))},
	} {
		v := &VLLM{Generation: c.gen, Model: m}
		if got, err := v.PixelName(p, Item{ProcessorKwargs: c.kw}); err != nil || got != c.want {
			t.Errorf("%v: %s %v, want %s", c.gen, got, err, c.want)
		}
	}
	if _, err := (&VLLM{Generation: H2}).PixelName(p, Item{}); !errors.Is(err, ErrNotComputable) {
		t.Errorf("H2: %v", err)
	}
}

// TestConformanceTRTLLM: every name of every generation, from the file on.
func TestConformanceTRTLLM(t *testing.T) {
	var rows []map[string]any
	if err := json.Unmarshal(golden(t, "trtllm", "image_hashes.json"), &rows); err != nil {
		t.Fatal(err)
	}
	n, unread := 0, 0
	for _, r := range rows {
		f, uuid := r["file"].(string), r["uuid"].(string)
		p, err := pixels.Decode(golden(t, "images", f), pixels.White, pixels.Limits{})
		if header.KindOf(err) == header.Unsupported {
			unread++
			t.Logf("%s: %v", f, err)
			continue
		} else if err != nil {
			t.Errorf("%s: %v", f, err)
			continue
		}
		for field, got := range map[string]string{
			"gen0_pt": TRTLLM{0, false}.Name(p, ""), "gen0_pil": TRTLLM{0, true}.Name(p, ""),
			"gen0_pt_frames1": TRTLLM{0, false}.Frames([]*pixels.RGB{p}, ""),
			"gen1_pt_uuid":    TRTLLM{1, false}.Name(p, uuid), "gen1_pil_uuid": TRTLLM{1, true}.Name(p, uuid),
			"gen2_pt": TRTLLM{2, false}.Name(p, ""), "gen2_pil": TRTLLM{2, true}.Name(p, ""),
			"gen2_pt_uuid": TRTLLM{2, false}.Name(p, uuid), "gen2_pil_uuid": TRTLLM{2, true}.Name(p, uuid),
		} {
			if want, ok := r[field]; !ok || got != want {
				t.Errorf("%s: %s %s, want %s", f, field, got, want)
			}
			n++
		}
		words, err := trtllmWords(TRTLLM{2, false}.Name(p, ""))
		for i, want := range r["gen2_pt_int32"].([]any) {
			if err != nil || words[i] != int32(want.(float64)) {
				t.Errorf("%s: words %v, want %v", f, words, r["gen2_pt_int32"])
				break
			}
		}
	}
	t.Logf("%d names of %d pictures, %d not read", n, len(rows)-unread, unread)

	var words []struct {
		Hex   string
		Int32 []int32
	}
	if err := json.Unmarshal(golden(t, "trtllm", "hexdigest_int32.json"), &words); err != nil {
		t.Fatal(err)
	}
	for _, w := range words {
		if got, err := trtllmWords(w.Hex); err != nil || !slices.Equal(got[:], w.Int32) {
			t.Errorf("%s: %v %v, want %v", w.Hex, got, err, w.Int32)
		}
	}
	t.Logf("%d digests as words", len(words))
}

// BenchmarkTRTLLM names a decoded 1080p picture: 25 MB of float tensor go through the digest.
func BenchmarkTRTLLM(b *testing.B) {
	p := &pixels.RGB{W: 1920, H: 1080, Pix: make([]byte, 3*1920*1080)}
	for i := range p.Pix {
		p.Pix[i] = byte(i * 7)
	}
	for _, c := range []struct {
		name string
		t    TRTLLM
	}{{"pt", TRTLLM{2, false}}, {"pil", TRTLLM{2, true}}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.t.Name(p, "")
			}
			b.ReportMetric(1920*1080*float64(b.N)/1e6/b.Elapsed().Seconds(), "Mpixel/s")
		})
	}
}

// trtllmWords gives a name as the engine carries it beside the tokens: eight numbers of 32 bits, big-endian.
func trtllmWords(name string) (w [8]int32, err error) {
	b, err := hex.DecodeString(name)
	if err != nil || len(b) != 32 {
		return w, fmt.Errorf("TensorRT-LLM hash %q: want 64 hex digits", name)
	}
	for i := range w {
		w[i] = int32(binary.BigEndian.Uint32(b[4*i:]))
	}
	return w, nil
}
