package mmhash

import (
	"archive/zip"
	"encoding/base64"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/zeebo/blake3"
)

// TestIdentifyVideo: a file has the same identity as bytes and as a data URL in pieces.
func TestIdentifyVideo(t *testing.T) {
	z, err := zip.OpenReader("clip/testdata/clips.zip")
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	rng := rand.New(rand.NewPCG(1, 2))
	for _, f := range z.File {
		r, _ := f.Open()
		file, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		want, errWant := IdentifyVideo(File(file))
		if want.ID != blake3.Sum256(file) || want.Bytes != int64(len(file)) || (errWant == nil) != want.IsVideo() {
			t.Fatalf("%s: %+v %v", f.Name, want, errWant)
		}
		url := cut([]byte("data:video/mp4;base64,"+base64.StdEncoding.EncodeToString(file)), rng)
		if got, err := IdentifyVideo(VideoURL(url)); got != want || err != errWant {
			t.Errorf("%s: as a data URL %+v %v, want %+v %v", f.Name, got, err, want, errWant)
		}
	}
}

// TestFrameList: vLLM's form for frames extracted by the client; the identity is the text's.
func TestFrameList(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	text := strings.Repeat(tinyPNG+",", 4) + tinyPNG
	for _, prefix := range []string{"data:video/jpeg;base64,", "DATA:Video/JPEG;x=y;base64,", `data:video\/jpeg;base64,`} {
		for range 20 {
			src := VideoURL(cut([]byte(prefix+strings.ReplaceAll(text, "/", `\/`)), rng))
			f, err := IdentifyVideo(src)
			if err != nil || f.Frames != 5 || f.Width != 2 || f.Height != 2 || f.Format != FrameList || !f.IsVideo() ||
				f.ID != blake3.Sum256([]byte(text)) || f.Bytes != int64(len(text)) {
				t.Fatalf("%s: %+v %v", prefix, f, err)
			}
			if got, err := bytesOf(src); err != nil || string(got) != text {
				t.Fatalf("%s: %q %v", prefix, got, err)
			}
		}
	}
	for _, bad := range []string{"data:video/jpeg;base64,", "data:video/jpeg;base64,!!!!", "data:video/jpeg;base64,AAAA", "data:video/jpeg,"} {
		if f, err := IdentifyVideo(VideoURL([][]byte{[]byte(bad)})); err == nil {
			t.Errorf("%q: %+v", bad, f)
		}
	}
}
