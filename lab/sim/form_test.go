package sim

import (
	"bytes"
	"crypto/sha256"
	stdimage "image"
	"image/color"
	"image/png"
	"testing"

	"github.com/sightline-router/sightline/engine/sglang"
)

// The two ways in which an image's name is written down come to the same; so do facts published of the engines.
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
		t.Errorf("TensorRT-LLM: got %s, %v, want no error, %q", got, err, "6427120f102ae457d875303efbe987c53f965d6daa623f3f5079f4e5140c1e50")
	}
	clear := stdimage.NewNRGBA(img.Rect) // the same colours behind any transparency: Image.convert("RGB") drops it
	for i := range clear.Pix {
		clear.Pix[i] = img.Pix[i]
		if i%4 == 3 {
			clear.Pix[i] = uint8(10 * i)
		}
	}
	var through bytes.Buffer
	if err := png.Encode(&through, clear); err != nil {
		t.Fatal(err)
	}
	if got, err := trtllmName(through.Bytes()); err != nil || got != "6427120f102ae457d875303efbe987c53f965d6daa623f3f5079f4e5140c1e50" {
		t.Errorf("TensorRT-LLM, transparent: got %s, %v, want no error, %q",
			got, err, "6427120f102ae457d875303efbe987c53f965d6daa623f3f5079f4e5140c1e50")
	}
	const fingerprint = "sha256:5aef96240bca5582e6fd0468879a26863d81d1c1fb602def55926ef33ec8bb1f"
	item := sglangItem(file.Bytes(), fingerprint)
	if want := sglang.ItemName(sglang.Item(fingerprint, sha256.Sum256(file.Bytes()), "")); item != want {
		t.Errorf("SGLang: got %s, the product's %s, want %q", item, want, want)
	}
	if got := sglangPads("0000000000000000"); got[0] != 3397727234245131147 || got[3] != 3623825934275559232 {
		t.Errorf("pads of 0: got %d, want [0] 3397727234245131147, [3] 3623825934275559232", got)
	}
}

// SGLang 0.5.20: replays without topics, and no part on events in what the server tells.
func TestOldSGLang(t *testing.T) {
	w := start(t, Config{Engine: SGLang, Version: "0.5.20", BlockSize: 4, Blocks: 64, Topic: "kv"})
	call(t, w, "POST", "/v1/chat/completions", chat(words(13, "a"), `,"max_tokens":1`))
	got := replay(t, w.ReplayAddr(), 0)
	if len(got) != 3 || len(got[1]) != 3 { // cleared, stored, the end
		t.Fatalf("%d replies: %v, want len(got) == 3, len(got[1]) == 3", len(got), got)
	}
	if status, _ := call(t, w, "GET", "/server_info", ""); status != 404 {
		t.Errorf("/server_info answers %d, want 404", status)
	}
}
