package media

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
	"github.com/zeebo/blake3"

	"github.com/sightline-router/sightline/lab/golden"
	"github.com/sightline-router/sightline/media/header"
)

const tinyPNG = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAEklEQVR42mP4z8DAAMIM/4EAAB/uBfvxq7p3AAAAAElFTkSuQmCC"

// cut splits b in pieces of random size, empty ones too.
func cut(b []byte, rng *rand.Rand) (pieces [][]byte) {
	for len(b) > 0 {
		n := min(rng.IntN(1+rng.IntN(1+len(b))), len(b))
		pieces = append(pieces, b[:n])
		b = b[n:]
	}
	return pieces
}

// bytesOf reads a source through.
func bytesOf(s Source) (all []byte, err error) {
	err = s.each(func(p []byte) { all = append(all, p...) })
	return all, err
}

func TestIdentify(t *testing.T) {
	file, _ := base64.StdEncoding.DecodeString(tinyPNG)
	want := Facts{ID: blake3.Sum256(file), Bytes: 75, Width: 2, Height: 2, Mode: "RGB", Orientation: 1}
	escaped := strings.NewReplacer("/", `\/`, "=", `\u003d`, "k", `\u006B`).Replace(tinyPNG)
	rng := rand.New(rand.NewPCG(1, 2))
	for name, src := range map[string]Source{
		"file":      File(file[:10], file[10:]),
		"data URL":  DataURL([][]byte{[]byte("data:image/png;base64," + tinyPNG)}),
		"no type":   DataURL([][]byte{[]byte("data:;base64," + tinyPNG)}),
		"charset":   DataURL([][]byte{[]byte("DaTa:image/png;charset=utf-8;base64," + tinyPNG)}),
		"escaped":   DataURL([][]byte{[]byte(`data:image\/png;base64\u002c` + escaped)}),
		"in pieces": DataURL(cut([]byte(`data:image\/png;base64,`+escaped), rng)),
	} {
		if got, err := Identify(src); err != nil || got != want {
			t.Errorf("%s: got %+v, %v, want no error, %+v", name, got, err, want)
		}
	}
}

// TestStrict: vLLM 0.32.0's answers to data URLs (golden/vllm e- cases), and what pybase64 accepts.
func TestStrict(t *testing.T) {
	for _, c := range []struct {
		url    string
		status int // 0 = decoded
	}{
		{"data:;base64,QUJD", 0}, {"data:;base64,QQ==", 0}, {"data:;base64,QR==", 0}, {"data:;base64,QUI=", 0}, {"data:;base64,", 0},
		{"DATA:IMAGE/PNG;BASE64,QUJD", 501}, {"data:image/png,QUJD", 501}, {"data:base64,QUJD", 501}, {"data:;base64 ,QUJD", 501},
		{"data:;base64", 400}, {"http://x/,QUJD", 400}, {"data:" + strings.Repeat("x", 1100) + ";base64,QUJD", 400},
		{`data:;base64,QUJD\n`, 400}, {"data:;base64,QUJD\n", 400}, {`data:;base64,QU\nJD`, 400}, {"data:;base64,QU JD", 400},
		{"data:;base64, QUJD", 400},
		{"data:;base64,QQ", 400}, {"data:;base64,Q", 400}, {"data:;base64,QQ=", 400}, {"data:;base64,====", 400},
		{"data:;base64,Q=Q=", 400}, {"data:;base64,QQ=Q", 400},
		{"data:;base64,QQ==QQ==", 400}, {"data:;base64,QUJDRA==X", 400}, {"data:;base64,QU-_", 400}, {"data:;base64,QUJ\u00e9", 400},
		{`data:;base64,QUJD\q`, 400}, {`data:;base64,QUJD\`, 400}, {`data:;base64,QUJD\u00`, 400}, {`data:;base64,QUJD\u00zz`, 400},
		{`data:;base64,\u1234UJD`, 400},
	} {
		for _, n := range []int{1, 3, 7, len(c.url)} {
			var pieces [][]byte
			for p := []byte(c.url); len(p) > 0; p = p[min(n, len(p)):] {
				pieces = append(pieces, p[:min(n, len(p))])
			}
			_, err := bytesOf(DataURL(pieces))
			if Status(err) != c.status || (err == nil) != (c.status == 0) {
				t.Errorf("%.60q in pieces of %d: %v (status %d), want %d", c.url, n, err, Status(err), c.status)
			}
		}
	}
}

// TestLong: images larger than the decoder's window, with escapes and splits anywhere, and errors late in the text.
func TestLong(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, size := range []int{outSize - 1, outSize, outSize + 1, 3*outSize + 2, 1 << 20} {
		file := make([]byte, size)
		for i := range file {
			file[i] = byte(rng.Uint32())
		}
		text := base64.StdEncoding.EncodeToString(file)
		for _, lit := range []string{text, strings.ReplaceAll(text, "/", `\/`), strings.ReplaceAll(text, "+", `\u002B`)} {
			for range 4 {
				got, err := bytesOf(DataURL(cut([]byte("data:;base64,"+lit), rng)))
				if err != nil || !bytes.Equal(got, file) {
					t.Fatalf("%d bytes: %v, want no error, bytes.Equal(got, file)", size, err)
				}
			}
			f, err := Identify(DataURL(cut([]byte("data:;base64,"+lit), rng)))
			if f.ID != blake3.Sum256(file) || f.Bytes != int64(size) || header.KindOf(err) != header.NotAnImage {
				t.Fatalf("%d bytes: got %+v %v, want their id and number, and that they are no image", size, f, err)
			}
		}
		for _, bad := range []string{"\n", " ", "-", "é", "="} {
			at := len(text) - 100
			if _, err := bytesOf(DataURL(cut([]byte("data:;base64,"+text[:at]+bad+text[at+1:]), rng))); Status(err) != 400 {
				t.Fatalf("%q late in the text: %v", bad, err)
			}
		}
	}
}

// TestConformanceIdentify: every golden image has the same identity as file, as data URL and as escaped data URL in pieces.
func TestConformanceIdentify(t *testing.T) {
	root := golden.Dir(t)
	rng := rand.New(rand.NewPCG(7, 8))
	n, learned := 0, 0
	for _, dir := range []string{"images/png", "images/jpg", "images/gif", "images/webp", "vllm/images"} {
		files, _ := filepath.Glob(filepath.Join(root, dir, "*"))
		for _, path := range files {
			if ext := filepath.Ext(path); ext == ".json" || ext == ".mp4" {
				continue
			}
			file, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			want, err := Identify(File(file))
			if header.KindOf(err) == header.Unsupported && want.ID == blake3.Sum256(file) {
				learned++
				continue
			}
			if err != nil || want.ID != blake3.Sum256(file) {
				t.Fatalf("%s: got %v, want the id of its bytes", path, err)
			}
			lit, _ := json.Marshal("data:image/x;base64," + base64.StdEncoding.EncodeToString(file))
			lit = bytes.ReplaceAll(lit[1:len(lit)-1], []byte("/"), []byte(`\/`))
			if got, err := Identify(DataURL(cut(lit, rng))); err != nil || got != want {
				t.Errorf("%s: got %+v %v, as a file %+v, want no error, %+v", path, got, err, want, want)
			}
			n++
		}
	}
	t.Logf("conformance: %d files, %d learned", n, learned)
}

// TestUnescape: the URL's text, however it is split and escaped.
func TestUnescape(t *testing.T) {
	url := "data:image/png;base64," + tinyPNG
	rng := rand.New(rand.NewPCG(9, 9))
	for range 20 {
		var got bytes.Buffer
		lit := []byte(strings.NewReplacer("/", `\/`, "=", `\u003D`).Replace(url))
		if err := Unescape(cut(lit, rng), got.Write); err != nil || got.String() != url {
			t.Fatalf("%s %v, want %s", &got, err, url)
		}
	}
	for _, bad := range []string{`a\`, `\u00`, `\q`} {
		if err := Unescape([][]byte{[]byte(bad)}, new(bytes.Buffer).Write); err == nil {
			t.Errorf("%q is taken: got %v, want an error", bad, err)
		}
	}
}

// TestConformanceDataURLs: every data URL of the recorded vLLM requests, as in the JSON: it is read if vLLM answered, and refused
// with the same status if vLLM refused it because of the URL.
func TestConformanceDataURLs(t *testing.T) {
	root := golden.Dir(t)
	marker := regexp.MustCompile(`@@([^@]+)@@`)
	literal := regexp.MustCompile(`(?i)"(data:[^"]*)"`)
	good, bad, learned := 0, 0, 0
	files, _ := filepath.Glob(filepath.Join(root, "vllm", "cases", "*.jsonl"))
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(b) {
			c := gjson.ParseBytes(line)
			id, status := c.Get("id").String(), int(c.Get("status").Int())
			for _, m := range literal.FindAllStringSubmatch(c.Get("request").Raw, -1) {
				if strings.Contains(m[1], "video") {
					continue
				}
				lit := marker.ReplaceAllStringFunc(m[1], func(s string) string {
					f, err := os.ReadFile(filepath.Join(root, "vllm", "images", strings.Trim(s, "@")))
					if err != nil {
						t.Fatal(err)
					}
					return base64.StdEncoding.EncodeToString(f)
				})
				f, err := Identify(DataURL([][]byte{[]byte(lit)}))
				switch {
				case header.KindOf(err) == header.Unsupported:
					learned++
				case status == 200:
					good++
					if err != nil || f.Width == 0 {
						t.Errorf("%s: %v; got %d, want no error, some", id, err, f.Width)
					}
				case strings.HasSuffix(id, "/e-upper"), strings.HasSuffix(id, "/e-newline"), strings.HasSuffix(id, "/e-bad64"):
					bad++
					if Status(err) != status {
						t.Errorf("%s: %v (status %d), vLLM %d, want %d", id, err, Status(err), status, status)
					}
				}
			}
		}
	}
	t.Logf("conformance: %d read, %d refused, %d learned", good, bad, learned)
}

func FuzzDataURL(f *testing.F) {
	f.Add([]byte("data:image/png;base64,"+tinyPNG), uint64(1))
	f.Add([]byte(`data:image\/png;base64,QU\/JDRA\u003d=`), uint64(2))
	f.Add([]byte(`DATA:;base64,Q\u0051==`), uint64(3))
	f.Fuzz(func(t *testing.T, lit []byte, seed uint64) {
		whole, err := bytesOf(DataURL([][]byte{lit}))
		pieces, err2 := bytesOf(DataURL(cut(lit, rand.New(rand.NewPCG(seed, 0)))))
		if (err == nil) != (err2 == nil) || err == nil && !bytes.Equal(whole, pieces) {
			t.Fatalf("whole %q %v, in pieces %q %v", whole, err, pieces, err2)
		}
		// The reference: a JSON string, then the strict library decoder without its tolerance for line breaks.
		var s string
		if json.Unmarshal(append(append([]byte{'"'}, lit...), '"'), &s) != nil {
			return
		}
		spec, data, ok := strings.Cut(s, ",")
		if !ok || len(spec) > 1000 || bytes.IndexByte(lit, 0xFF) >= 0 {
			return
		}
		want, wantErr := base64.StdEncoding.DecodeString(data)
		good := len(spec) >= 5 && strings.EqualFold(spec[:5], "data:") && strings.HasSuffix(spec[5:], ";base64") &&
			wantErr == nil && !strings.ContainsAny(data, "\r\n")
		if good != (err == nil) || good && !bytes.Equal(whole, want) {
			t.Fatalf("%q: got %v %v, judge %v %v", s, whole, err, want, wantErr)
		}
		var r *Refusal
		if err != nil && !errors.As(err, &r) {
			t.Fatalf("untyped error %v", err)
		}
	})
}
