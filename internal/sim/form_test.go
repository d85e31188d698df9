package sim

import (
	"bytes"
	stdimage "image"
	"image/color"
	"image/png"
	"testing"

	"github.com/sightline-router/sightline/mmhash/media/name"
)

// The two ways in which a picture's name is written down come to the same; so do facts published of the engines.
func TestNames(t *testing.T) {
	img := stdimage.NewRGBA(stdimage.Rect(0, 0, 2, 2))
	for i, c := range []color.RGBA{{255, 0, 0, 255}, {0, 255, 0, 255}, {0, 0, 255, 255}, {10, 20, 30, 255}} {
		img.SetRGBA(i%2, i/2, c)
	}
	var file bytes.Buffer
	if err := png.Encode(&file, img); err != nil {
		t.Fatal(err)
	}
	if got, err := trtllmName(file.Bytes()); err != nil || got != "6427120f102ae457d875303efbe987c53f965d6daa623f3f5079f4e5140c1e50" {
		t.Errorf("TensorRT-LLM: %s, %v", got, err)
	}
	const fingerprint = "sha256:5aef96240bca5582e6fd0468879a26863d81d1c1fb602def55926ef33ec8bb1f"
	item := sglangItem(file.Bytes(), fingerprint)
	if want := (name.SGLang{Fingerprint: fingerprint}).Recipe("", nil).Of(file.Bytes()); item != want {
		t.Errorf("SGLang: %s, the product's %s", item, want)
	}
	if got := sglangPads("0000000000000000"); got[0] != 3397727234245131147 || got[3] != 3623825934275559232 {
		t.Errorf("pads of 0: %d", got)
	}
}
