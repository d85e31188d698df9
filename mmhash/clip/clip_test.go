package clip

import (
	"archive/zip"
	"encoding/json"
	"io"
	"math/rand/v2"
	"testing"
)

// corpus returns the videos of testdata/make_clips.py with OpenCV's facts about them.
func corpus(t testing.TB) (files map[string][]byte, want map[string]struct {
	Frames, Width, Height int
	FPS                   float64
}) {
	z, err := zip.OpenReader("testdata/clips.zip")
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	files = map[string][]byte{}
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[f.Name] = data
	}
	if err := json.Unmarshal(files["facts.json"], &want); err != nil {
		t.Fatal(err)
	}
	delete(files, "facts.json")
	return files, want
}

// open reads a file in pieces of random size.
func open(file []byte, rng *rand.Rand) (Info, error) {
	var r Reader
	for len(file) > 0 {
		n := min(1+rng.IntN(1+rng.IntN(5000)), len(file))
		r.Write(file[:n])
		file = file[n:]
	}
	return r.Finish()
}

// TestOpenCV: accepted files give OpenCV's facts, and the refused ones are listed.
func TestOpenCV(t *testing.T) {
	files, want := corpus(t)
	unread := map[string]error{
		"fragments.mp4": ErrFragments, "varying.mp4": ErrRate, "plain.avi": ErrFormat, "cut_front.mp4": ErrEdited, "cut_end.mp4": ErrEdited,
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for name, file := range files {
		for range 20 {
			info, err := open(file, rng)
			if e, ok := unread[name]; ok {
				if err != e {
					t.Fatalf("%s: %v, want %v", name, err, e)
				}
				continue
			}
			w := want[name]
			if err != nil || info.Frames != w.Frames || info.FPS != w.FPS || info.Width != w.Width || info.Height != w.Height {
				t.Fatalf("%s: %+v %v, OpenCV says %+v", name, info, err, w)
			}
		}
	}
}

// TestTruncated: a truncated file is refused or gives the same facts, never others.
func TestTruncated(t *testing.T) {
	files, _ := corpus(t)
	rng := rand.New(rand.NewPCG(3, 4))
	for name, file := range files {
		whole, _ := open(file, rng)
		for cut := 0; cut < len(file); cut += 1 + len(file)/300 {
			if info, err := open(file[:cut], rng); err == nil && info != whole {
				t.Fatalf("%s cut at %d: %+v, whole %+v", name, cut, info, whole)
			}
		}
	}
}

func FuzzReader(f *testing.F) {
	files, _ := corpus(f)
	for _, file := range files {
		f.Add(file)
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		var r Reader
		r.Write(file)
		info, err := r.Finish()
		if err == nil && (info.Frames < 1 || info.Width < 1 || info.Height < 1 || !(info.FPS > 0)) {
			t.Fatalf("read without an error as %+v", info)
		}
		if again, err2 := open(file, rand.New(rand.NewPCG(5, uint64(len(file))))); again != info || err != err2 {
			t.Fatalf("in one piece %+v %v, in many %+v %v", info, err, again, err2)
		}
	})
}
