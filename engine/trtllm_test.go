package engine

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"image"
	"image/jpeg"
	"testing"
	"time"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine/trtllm"
	"github.com/sightline-router/sightline/media/pixels"
)

// TestTRTLLMNames: an image has no TensorRT-LLM name when it is first seen, and the exact one soon after; tools get it at once.
func TestTRTLLMNames(t *testing.T) {
	img := image.NewGray(image.Rect(0, 0, 320, 200))
	for i := range img.Pix {
		img.Pix[i] = byte(i * i >> 7)
	}
	var file bytes.Buffer
	if err := jpeg.Encode(&file, img, nil); err != nil {
		t.Fatal(err)
	}
	rgb, err := pixels.Decode(file.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		version, more string
		names         trtllm.Names
	}{
		{"1.2.0", "", trtllm.Names{}}, {"1.3.0rc27", "", trtllm.Names{Tagged: true}},
		{"1.3.0", `,"media_io_kwargs":{"image":{"format":"pil"}}`, trtllm.Names{Tagged: true, PIL: true}},
	} {
		for _, inline := range []bool{true, false} {
			media, err := NewMedia(nil)
			if err != nil {
				t.Fatal(err)
			}
			media.DecodeInline = inline
			s := DefaultServer()
			s.Engine, s.EngineVersion, s.BlockSize = "trtllm", c.version, 32
			m, err := Load("m", "../examples/models/qwen2.5-vl", s, media)
			if err != nil {
				t.Fatal(err)
			}
			skeleton := fmt.Sprintf(`{"model":"m"%s,"messages":[{"role":"user","content":[{"type":"text","text":"What is this?"},{"type":"image_url","image_url":{"url":"data:image/jpeg;base64,%s"}}]}]}`,
				c.more, base64.StdEncoding.EncodeToString(file.Bytes()))
			read := func() Prompt {
				var sk body.Skeleton
				var req body.Request
				if err := body.Read([][]byte{[]byte(skeleton)}, &sk, &req); err != nil {
					t.Fatal(err)
				}
				ps, err := m.Read(context.Background(), "/v1/chat/completions", "", &req)
				if err != nil || len(ps.List) != 1 || len(ps.List[0].Media) != 1 {
					t.Fatalf("got %+v %v, want no error, len(ps.List) == 1, len(ps.List[0].Media) == 1", ps, err)
				}
				return ps.List[0]
			}
			p := read()
			if !inline {
				if p.Exact || p.Why != inexactLater || p.HashableIDs != p.Media[0].Offset {
					t.Fatalf("first sight: exact %v, %q, %d of %d tokens, want !p.Exact, p.Why == inexactLater, p.HashableIDs == p.Media[0].Offset",
						p.Exact, p.Why, p.HashableIDs, len(p.IDs))
				}
				for end := time.Now().Add(2 * time.Minute); !p.Exact && time.Now().Before(end); time.Sleep(time.Millisecond) {
					p = read()
				}
			}
			if want := c.names.Of(rgb); !p.Exact || p.Media[0].Name != want {
				t.Errorf("%s, inline %v: exact %v (%s), name %s, want %s", c.version, inline, p.Exact, p.Why, p.Media[0].Name, want)
			}
			if id := p.IDs[p.Media[0].Offset]; id != 152065 && id != 151937 { // vocab_size + 1
				t.Errorf("token id %d at the image's place", id)
			}
			media.Close()
		}
	}
}
