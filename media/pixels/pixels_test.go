package pixels

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"hash/crc32"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/sightline-router/sightline/lab/golden"
	"github.com/sightline-router/sightline/media/header"
)

// sample is one row of testdata/images.json.gz (made by make_images.py with Pillow 13.0.0): a file and the SHA-256 of Pillow's
// result.
type sample struct {
	Name        string
	Size        [2]int
	White, RGBA string
	File        []byte
}

func images(t testing.TB) (ps []sample) {
	t.Helper()
	golden.JSON(t, &ps, "testdata/images.json.gz")
	return ps
}

func sum(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }

// check compares an image as RGB, RGBA pasted on white, and that as RGBA; false if the image is not supported.
func (w sample) check(t *testing.T) bool {
	p, err := Decode(w.File)
	switch {
	case header.KindOf(err) == header.Unsupported:
		t.Logf("%s: %v", w.Name, err)
		return false
	case err != nil:
		t.Errorf("%s: %v", w.Name, err)
	case p.W != w.Size[0] || p.H != w.Size[1]:
		t.Errorf("%s: %d×%d, Pillow has %v", w.Name, p.W, p.H, w.Size)
	case sum(p.Pix) != w.White:
		t.Errorf("%s: %s, Pillow has %s", w.Name, sum(p.Pix), w.White)
	case w.RGBA != "" && sum(p.RGBA(nil, 0, p.W*p.H)) != w.RGBA:
		t.Errorf("%s: as RGBA otherwise than in Pillow", w.Name)
	}
	return true
}

func TestImages(t *testing.T) {
	unread := 0
	ps := images(t)
	for _, w := range ps {
		if !w.check(t) {
			unread++
		}
	}
	if unread != 1 { // the one with arithmetic coding
		t.Errorf("%d of %d images not read, want 1", unread, len(ps))
	}
}

// TestConformanceImages compares every recorded image with Pillow 13.0.0.
func TestConformanceImages(t *testing.T) {
	for _, dir := range []string{"jpg", "png", "gif", "webp"} {
		var plain map[string]struct {
			RGB string `json:"rgb_sha256"`
		}
		var more map[string]struct {
			Size [2]int
			One  string `json:"white_rgb_sha256"`
		}
		for f, v := range map[string]any{"expected.json": &plain, "variants.json": &more} {
			golden.JSON(t, v, golden.Dir(t, "images", dir, f))
		}
		good := 0
		for f, w := range plain {
			m := more[f]
			p := sample{Name: f, Size: m.Size, White: cmp.Or(m.One, w.RGB), File: golden.Read(t, golden.Dir(t, "images", dir, f))}
			if p.check(t) {
				good++
			}
		}
		t.Logf("%s: %d of %d read and compared", dir, good, len(plain))
	}
}

// TestDifferentialPillow decodes random images of every kind here and by Pillow in the same run.
func TestDifferentialPillow(t *testing.T) {
	python := os.Getenv("SIGHTLINE_PYTHON")
	if python == "" {
		t.Skip("SIGHTLINE_PYTHON is not set: it names a Python that has Pillow 13.0.0")
	}
	seed := strconv.FormatInt(time.Now().UnixNano(), 10)
	text, err := exec.Command(python, "-B", "testdata/random_images.py", seed, cmp.Or(os.Getenv("SIGHTLINE_COUNT"), "600")).Output()
	if err != nil {
		t.Fatal(err)
	}
	var ps []sample
	if err := json.Unmarshal(text, &ps); err != nil {
		t.Fatal(err)
	}
	for _, w := range ps {
		if !w.check(t) {
			t.Errorf("%s of seed %s is not read", w.Name, seed)
		}
	}
	t.Logf("%d images of seed %s", len(ps), seed)
}

// TestRefusals: a file that cannot be decoded exactly is refused with its kind, before memory is allocated for it.
func TestRefusals(t *testing.T) {
	files := map[string][]byte{}
	for _, p := range images(t) {
		files[p.Name] = p.File
	}
	jpg, prog, png := files["jpg/020_q30_420_65x63_b.jpg"], files["jpg/055_q50_420_65x63_p.jpg"], files["png/ct2_d16_33x17.png"]
	if jpg == nil || prog == nil || png == nil {
		t.Fatal("images missing")
	}
	edit := func(b []byte, f func(b []byte) []byte) []byte { return f(bytes.Clone(b)) }
	sof := func(b []byte, marker byte) int { return bytes.Index(b, []byte{0xFF, marker}) }
	sized := func(b []byte, marker byte, w, h uint16) []byte {
		return edit(b, func(b []byte) []byte {
			at := sof(b, marker)
			binary.BigEndian.PutUint16(b[at+5:], h)
			binary.BigEndian.PutUint16(b[at+7:], w)
			return b
		})
	}
	scan := func(b []byte) int { return bytes.LastIndex(b, []byte{0xFF, 0xDA}) }
	for _, c := range []struct {
		name string
		file []byte
		lim  limits
		kind header.Kind
	}{
		{"empty", nil, defaultLimits, header.NotAnImage},
		{"text", []byte("<html>no image at all</html>"), defaultLimits, header.NotAnImage},
		{"cut in the data", jpg[:len(jpg)-20], defaultLimits, header.Truncated},
		{"cut before the end marker", jpg[:len(jpg)-2], defaultLimits, header.Truncated},
		{"progressive, cut before the end marker", prog[:len(prog)-2], defaultLimits, header.Truncated},
		{"cut in a table", jpg[:60], defaultLimits, header.Truncated},
		{"last scans missing", append(bytes.Clone(prog[:bytes.Index(prog, []byte{0xFF, 0xDA})+300]), 0xFF, 0xD9),
			defaultLimits, header.Truncated},
		{"claims 65500 × 65500", sized(jpg, 0xC0, 65500, 65500), defaultLimits, header.TooManyPixels},
		{"claims 5000 × 5000", sized(jpg, 0xC0, 5000, 5000), defaultLimits, header.Truncated},
		{"progressive, claims 5000 × 5000", sized(prog, 0xC2, 5000, 5000), defaultLimits, header.Truncated},
		{"pixels over the limit", jpg, limits{65*63 - 1, defaultLimits.memory}, header.TooManyPixels},
		{"pixels at the limit", jpg, limits{65 * 63, defaultLimits.memory}, 0},
		{"memory over the limit", prog, limits{defaultLimits.pixels, 20_000}, header.TooManyPixels},
		{"PNG memory over the limit", png, limits{defaultLimits.pixels, 1000}, header.TooManyPixels},
		{"arithmetic coding", files["jpg/232_c_arith_100x75.jpg"], defaultLimits, header.Unsupported},
		{"12 bits", edit(jpg, func(b []byte) []byte { b[sof(b, 0xC0)+4] = 12; return b }), defaultLimits, header.Malformed},
		{"lossless", edit(jpg, func(b []byte) []byte { b[sof(b, 0xC0)+1] = 0xC3; return b }), defaultLimits, header.Unsupported},
		{"sampling that does not divide", edit(jpg, func(b []byte) []byte {
			b[sof(b, 0xC0)+11] = 0x32
			b[sof(b, 0xC0)+14] = 0x21
			return b
		}), defaultLimits, header.Malformed},
		{"no restart markers where promised", edit(jpg, func(b []byte) []byte {
			at := scan(b)
			return append(append(bytes.Clone(b[:at]), 0xFF, 0xDD, 0, 4, 0, 2), b[at:]...)
		}), defaultLimits, header.Malformed},
		{"coefficients out of range", edit(jpg, func(b []byte) []byte {
			at := bytes.Index(b, []byte{0xFF, 0xDB}) // 16-bit factors of 65535
			n := int(binary.BigEndian.Uint16(b[at+2:]))
			table := append([]byte{0xFF, 0xDB, 0, 131, 0x10}, bytes.Repeat([]byte{255}, 128)...)
			return append(append(bytes.Clone(b[:at]), table...), b[at+2+n:]...)
		}), defaultLimits, header.Malformed},
		{"DC scan alone", func() []byte { // libjpeg smooths these
			second := bytes.Index(prog, []byte{0xFF, 0xDA})
			next := second + 2 + bytes.Index(prog[second+2:], []byte{0xFF, 0xC4})
			return append(bytes.Clone(prog[:next]), 0xFF, 0xD9)
		}(), defaultLimits, header.Unsupported},
		{"PNG that claims 20000 × 1500", edit(png, func(b []byte) []byte {
			binary.BigEndian.PutUint32(b[16:], 20000)
			binary.BigEndian.PutUint32(b[20:], 1500)
			return sealed(b)
		}), defaultLimits, header.Truncated},
		{"PNG cut", png[:len(png)-30], defaultLimits, header.Malformed},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := decode(c.file, c.lim)
		runtime.ReadMemStats(&after)
		if header.KindOf(err) != c.kind {
			t.Errorf("%s: %v, want %v", c.name, err, c.kind)
		}
		if spent := after.TotalAlloc - before.TotalAlloc; spent > 2<<20 {
			t.Errorf("%s: %d KiB allocated; got %d, want at most %d", c.name, spent>>10, spent, 2<<20)
		}
	}
}

// sealed updates the checksum of a PNG's IHDR.
func sealed(b []byte) []byte {
	binary.BigEndian.PutUint32(b[29:], crc32.ChecksumIEEE(b[12:29]))
	return b
}

// FuzzDecode: no file makes it panic, exceed its limits, or return an image of another size than the header's.
func FuzzDecode(f *testing.F) {
	for _, p := range images(f) {
		if len(p.File) < 4000 {
			f.Add(p.File)
		}
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		lim := limits{1 << 18, 8 << 20}
		p, err := decode(file, lim)
		if err != nil {
			if header.KindOf(err) == 0 {
				t.Fatalf("error without a kind: %v", err)
			}
			return
		}
		if p.W*p.H > lim.pixels || len(p.Pix) != 3*p.W*p.H {
			t.Fatalf("%d×%d with %d bytes: got %d, want at most %d, %d", p.W, p.H, len(p.Pix), p.W*p.H, lim.pixels, 3*p.W*p.H)
		}
	})
}
