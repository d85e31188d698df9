package learned

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image"
	"image/png"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine"
)

// TestPathKnownMedia: media that were identified while the body was read are told apart by these identities, each by its own, in whatever
// order and pieces they come, and however their types are written.
func TestPathKnownMedia(t *testing.T) {
	media, err := engine.NewMedia(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(media.Close)
	s := engine.DefaultServer()
	s.EngineModel = "m"
	live, err := engine.LoadLive("m", "../../examples/models/qwen2.5-vl", s, media)
	if err != nil {
		t.Fatal(err)
	}
	h, rng := NewHasher([]byte("a secret")), rand.New(rand.NewPCG(1, 2))
	read := func(parts ...string) (ids []uint64, steps []Step) {
		t.Helper()
		pieces, raw := [][]byte(nil), []byte(chat(parts...))
		for len(raw) > 0 {
			n := min(len(raw), 1+rng.IntN(2000))
			pieces, raw = append(pieces, raw[:n:n]), raw[n:]
		}
		var b body.Skeleton
		var req body.Request
		if err := body.Read(pieces, &b, &req); err != nil {
			t.Fatal(err)
		}
		prompts, err := live.Model().Read(t.Context(), "/v1/chat/completions", "", &req)
		if err != nil || len(prompts.Texts) != len(parts) {
			t.Fatalf("got error %v and %d identified media, want none and %d", err, len(prompts.Texts), len(parts))
		}
		slices.Reverse(prompts.Texts)
		var p Path
		h.Read(&p, Head{Media: prompts.Texts}, &b, &req)
		for _, m := range p.Media {
			ids = append(ids, m.ID)
		}
		return ids, p.Steps
	}
	picture := func(seed byte, kind string) string {
		img := image.NewGray(image.Rect(0, 0, 64, 64))
		noise := rand.New(rand.NewPCG(uint64(seed), 1))
		for i := range img.Pix {
			img.Pix[i] = byte(noise.Uint32())
		}
		var file bytes.Buffer
		if err := png.Encode(&file, img); err != nil {
			t.Fatal(err)
		}
		return imageURL(fmt.Sprintf("data:image/%s;base64,%s", kind, base64.StdEncoding.EncodeToString(file.Bytes())))
	}
	a, b, c := picture(1, "png"), picture(2, "png"), picture(3, "png")
	ids, steps := read(a, b, c)
	if len(ids) != 3 || ids[0] == ids[1] || ids[1] == ids[2] || ids[0] == ids[2] {
		t.Fatalf("got %x, want three identities", ids)
	}
	for range 20 {
		if got, again := read(a, b, c); !slices.Equal(got, ids) || !slices.Equal(again, steps) {
			t.Fatalf("in other pieces: got %x and %v, want %x and %v", got, again, ids, steps)
		}
	}
	if got, _ := read(c, a, b); !slices.Equal(got, []uint64{ids[2], ids[0], ids[1]}) {
		t.Errorf("in another order: got %x, want those of %x", got, ids)
	}
	if got, _ := read(b, b, picture(1, "PNG")); !slices.Equal(got, []uint64{ids[1], ids[1], ids[0]}) {
		t.Errorf("twice, and with its type written in capitals: got %x, want the second twice and the first of %x", got, ids)
	}
}
