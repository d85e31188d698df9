package header

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/lab/golden"
)

// row is one file of testdata/corpus.json.gz with Pillow 13.0.0's answer (see testdata/make_corpus.py).
type row struct {
	Name        string
	B64         []byte
	Refused     string // by Image.open
	Mode        string
	Size        [2]int
	Format      string
	Orientation uint8
	Loads       bool // the pixels can be decoded
}

func corpus(t testing.TB) []row {
	t.Helper()
	var rows []row
	golden.JSON(t, &rows, "testdata/corpus.json.gz")
	return rows
}

// pieces is a file in pieces of at most n bytes.
type pieces struct {
	rest []byte
	n    int
}

func (p *pieces) Next() (b []byte, err error) {
	if len(p.rest) == 0 {
		return nil, io.EOF
	}
	k := min(p.n, len(p.rest))
	b, p.rest = p.rest[:k], p.rest[k:]
	return b, nil
}

func read(r *Reader, b []byte, n int) (Info, error) { return r.Read(&pieces{b, n}) }

// TestPillow: a file that Pillow opens and loads gives the same facts; one that Pillow refuses to open is an error here too, and no
// file that it loads is refused.
func TestPillow(t *testing.T) {
	r := new(Reader)
	counts := map[string]int{}
	for _, c := range corpus(t) {
		got, err := read(r, c.B64, 1<<20)
		_, damaged, _ := strings.Cut(c.Name, "~")
		if damaged != "" && strings.HasPrefix(c.Name, "webp_anim") {
			counts["damaged animated WebP, not compared"]++ // we do not see the damage
			continue
		}
		switch {
		case KindOf(err) == Unsupported:
			counts["unsupported"]++
		case strings.HasPrefix(c.Name, "edge"): // they have no such pixels: only the result of opening is compared
			counts["edges"]++
			if (err == nil) != (c.Refused == "") || err == nil && [2]int{got.Width, got.Height} != c.Size {
				t.Errorf("%s: %+v %v, Pillow: %v %s", c.Name, got, err, c.Size, c.Refused)
			}
		case c.Refused != "":
			counts["refused"]++
			// Pillow reads beyond the facts
			deeper := strings.HasPrefix(c.Name, "j") || strings.HasPrefix(c.Name, "webp_exif_anim")
			if err == nil && !(damaged != "" && deeper) {
				t.Errorf("%s: read as %+v, Pillow refuses: %s", c.Name, got, c.Refused)
			}
		case err != nil:
			if c.Loads {
				t.Errorf("%s: %v, Pillow: %s %s %v", c.Name, err, c.Format, c.Mode, c.Size)
			}
			counts["does not load"]++
		case !c.Loads:
			counts["does not load"]++
		default:
			counts["equal"]++
			want := Info{c.Format, c.Mode, c.Size[0], c.Size[1], c.Orientation, got.Transparent} // engine/vllm TestContractImages has the last
			if want.Format == "MPO" {
				want.Format = "JPEG"
			}
			if got != want {
				t.Errorf("%s: got %+v, Pillow: %+v, want %+v", c.Name, got, want, want)
			}
		}
		for range 3 {
			n := 1 + rand.IntN(40)
			if g, e := read(r, c.B64, n); g != got || KindOf(e) != KindOf(err) {
				t.Fatalf("%s in pieces of %d: got %+v %v, want %+v %v as of the whole", c.Name, n, g, e, got, err)
			}
		}
	}
	t.Log(counts)
}

// TestConformanceImages compares format, mode and size of every golden image with Pillow 13.0.0.
func TestConformanceImages(t *testing.T) {
	root := golden.Dir(t)
	type variant struct {
		Mode     string
		Size     [2]int
		ExifSize []int  `json:"exif_size"`
		Exif     string `json:"exif_rgb_sha256"`
	}
	n, learned := 0, 0
	check := func(path string, v variant) {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := read(new(Reader), b, 1<<16)
		if KindOf(err) == Unsupported {
			learned++
			return
		}
		if err != nil {
			t.Errorf("%s: got %v, want no error", path, err)
			return
		}
		n++
		if got.Mode != v.Mode || got.Width != v.Size[0] || got.Height != v.Size[1] {
			t.Errorf("%s: %+v, want %+v", path, got, v)
		}
		if w, h := got.UprightSize(); len(v.ExifSize) == 2 && (w != v.ExifSize[0] || h != v.ExifSize[1]) {
			t.Errorf("%s: turned %d×%d, want %v", path, w, h, v.ExifSize)
		}
		if (got.Orientation != 1) != (v.Exif != "") && filepath.Dir(path) != filepath.Join(root, "vllm", "images") {
			t.Errorf("%s: orientation %d, exif_transpose changes it: %v", path, got.Orientation, v.Exif != "")
		}
	}
	load := func(path string) (m map[string]variant) {
		b, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(b, &m)
		}
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, f := range []string{"gif", "jpg", "png", "webp"} {
		dir := filepath.Join(root, "images", f)
		for name, v := range load(filepath.Join(dir, "variants.json")) {
			check(filepath.Join(dir, name), v)
		}
	}
	dir := filepath.Join(root, "vllm", "images")
	for name, v := range load(filepath.Join(dir, "index.json")) {
		check(filepath.Join(dir, name), v)
	}
	t.Logf("conformance: %d files, %d learned", n, learned)
}

// TestBounds: sizes that would be a decompression bomb, and files with endless headers.
func TestBounds(t *testing.T) {
	png := func(w, h uint32) []byte {
		size := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, w), h)
		b := append([]byte("\x89PNG\r\n\x1a\n"), chunk("IHDR", string(size)+"\x08\x02\x00\x00\x00")...)
		return append(b, chunk("IDAT", "")...)
	}
	for _, c := range []struct {
		name string
		b    []byte
		want Kind
	}{
		{"largest", png(MaxPixels/2, 2), 0},
		{"bomb", png(MaxPixels/2, 2+1), TooManyPixels},
		{"product beyond 64 bits", png(1<<32-1, 1<<32-1), TooManyPixels},
		{"no size", png(0, 5), Malformed},
		{"FF without end", append([]byte("\xff\xd8"), bytes.Repeat([]byte{0xFF}, 1<<20)...), Malformed},
		{"junk without end", append([]byte("\xff\xd8\xff\xd0"), make([]byte, 1<<20)...), Truncated},
		{"empty", nil, NotAnImage},
		{"text", []byte("<html><body>not found</body></html>"), NotAnImage},
	} {
		if _, err := read(new(Reader), c.b, 1<<15); KindOf(err) != c.want {
			t.Errorf("%s: %v, want kind %v", c.name, err, c.want)
		}
	}
}

func chunk(id, body string) []byte {
	b := append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), id+body...)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b[4:]))
}

func TestSteadyStateAllocs(t *testing.T) {
	r := new(Reader)
	for _, c := range corpus(t) {
		switch c.Name {
		case "png_RGB", "jpg_RGB", "gif_P", "webp_RGBA", "jpg_exif_o6":
			src := new(File)
			read := func() { *src = c.B64; r.Read(src) }
			read()
			if n := testing.AllocsPerRun(50, read); n > 0 {
				t.Errorf("%s: got %v allocations, want 0", c.Name, n)
			}
		}
	}
}

func FuzzReader(f *testing.F) {
	for _, c := range corpus(f) {
		if len(c.B64) < 4000 {
			f.Add(c.B64, 7)
		}
	}
	r := new(Reader)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		whole, err := read(r, b, max(1, len(b)))
		cut, err2 := read(r, b, max(1, n%997))
		if whole != cut || KindOf(err) != KindOf(err2) {
			t.Fatalf("got %+v %v in pieces, want %+v %v as of the whole", cut, err2, whole, err)
		}
		if err == nil && (whole.Width <= 0 || whole.Height <= 0 || whole.Width*whole.Height > MaxPixels ||
			whole.Mode == "" || whole.Orientation < 1 || whole.Orientation > 8) {
			t.Fatalf("accepted %+v", whole)
		}
		if cap(r.buf) > 2*maxMeta+2*len(b) {
			t.Fatalf("buffer of %d bytes for a file of %d, want at most %d", cap(r.buf), len(b), 2*maxMeta+2*len(b))
		}
	})
}

func BenchmarkReader(b *testing.B) {
	r := new(Reader)
	for _, c := range corpus(b) {
		switch c.Name {
		case "png_RGB", "jpg_RGB", "gif_P", "webp_RGB":
			b.Run(c.Format, func(b *testing.B) {
				b.ReportAllocs()
				src := new(File)
				for b.Loop() {
					*src = c.B64
					r.Read(src)
				}
			})
		}
	}
}
