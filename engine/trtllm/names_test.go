package trtllm

import (
	"encoding/hex"
	"testing"

	"github.com/zeebo/blake3"

	"github.com/sightline-router/sightline/lab/golden"
	"github.com/sightline-router/sightline/media/header"
	"github.com/sightline-router/sightline/media/pixels"
)

// four is the 2×2 image of red, green, blue and (10, 20, 30). Its names were computed by the leaf functions of TensorRT-LLM, with
// Pillow 13.0.0, torch 2.15.0 and blake3 1.0.11.
var four = &pixels.RGB{W: 2, H: 2, Pix: []byte{255, 0, 0, 0, 255, 0, 0, 0, 255, 10, 20, 30}}

func TestImageNames(t *testing.T) {
	for n, want := range map[Names]string{
		{}:                        "a588f76b13a544f529979d0a9922dc0ae191bf28a4596985c2bb69174a688ccf",
		{Tagged: true}:            "6427120f102ae457d875303efbe987c53f965d6daa623f3f5079f4e5140c1e50",
		{PIL: true}:               "a0dc9c5c1540bb6702219d60b25dbf595a9c0f4fa57a9f6efce3848d79861c2b",
		{Tagged: true, PIL: true}: "32b06af37b8de0d5e5aee8ac799fbf9a8648886026f3b2b9feb9385575e746cc",
	} {
		if got := n.Of(four); got != want {
			t.Errorf("%+v: %s, want %s", n, got, want)
		}
	}
}

// TestPieces: an image of more than one piece has the same digest, plane by plane, as the tensor as a whole.
func TestPieces(t *testing.T) {
	p := &pixels.RGB{W: 250, H: 199, Pix: make([]byte, 3*250*199)}
	var tensor []byte
	for c := range 3 {
		for i := range 250 * 199 {
			p.Pix[3*i+c] = byte(i*7 + c*31 + i>>8)
			tensor = append(tensor, byte(unit[p.Pix[3*i+c]]), byte(unit[p.Pix[3*i+c]]>>8), byte(unit[p.Pix[3*i+c]]>>16),
				byte(unit[p.Pix[3*i+c]]>>24))
		}
	}
	if s := blake3.Sum256(tensor); (Names{}).Of(p) != hex.EncodeToString(s[:]) {
		t.Error("the streamed tensor differs")
	}
}

// TestConformanceNames: every name that a request over HTTP can have, computed from the file.
func TestConformanceNames(t *testing.T) {
	var rows []map[string]any
	golden.JSON(t, &rows, golden.Dir(t, "trtllm", "image_hashes.json"))
	n, unread := 0, 0
	for _, r := range rows {
		f := r["file"].(string)
		file := golden.Read(t, golden.Dir(t, "images", f))
		p, err := pixels.Decode(file)
		if header.KindOf(err) == header.Unsupported {
			unread++
			t.Logf("%s: %v", f, err)
			continue
		} else if err != nil {
			t.Errorf("%s: %v", f, err)
			continue
		}
		for field, names := range map[string]Names{"gen0_pt": {}, "gen0_pil": {PIL: true}, "gen2_pt": {Tagged: true},
			"gen2_pil": {Tagged: true, PIL: true}} {
			got, want := names.Of(p), r[field]
			if got != want {
				t.Errorf("%s: %s %s, want %s", f, field, got, want)
			}
			n++
		}
	}
	t.Logf("conformance: %d names of %d images, %d not read", n, len(rows)-unread, unread)
}

// BenchmarkNames names a decoded 1080p image: 25 MB of float tensor are hashed.
func BenchmarkNames(b *testing.B) {
	p := &pixels.RGB{W: 1920, H: 1080, Pix: make([]byte, 3*1920*1080)}
	for i := range p.Pix {
		p.Pix[i] = byte(i * 7)
	}
	for _, c := range []struct {
		name string
		t    Names
	}{{"pt", Names{Tagged: true}}, {"pil", Names{true, true}}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.t.Of(p)
			}
			b.ReportMetric(1920*1080*float64(b.N)/1e6/b.Elapsed().Seconds(), "Mpixel/s")
		})
	}
}
