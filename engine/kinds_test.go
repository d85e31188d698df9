package engine

import (
	"archive/zip"
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func clipFile(t *testing.T, name string) []byte {
	t.Helper()
	z, err := zip.OpenReader("../mmhash/clip/testdata/clips.zip")
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	f, err := z.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	file, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func one(part string) string {
	return `{"model":"m","messages":[{"role":"user","content":[` + part + `,{"type":"text","text":"What is it?"}]}]}`
}

// TestOneMediumManyWays: a picture and a video have the same tokens and name by data URL, http and file.
func TestOneMediumManyWays(t *testing.T) {
	dir := t.TempDir()
	png, _ := picture(t)
	for kind, file := range map[string][]byte{"image": png, "video": clipFile(t, "mpeg4.mp4")} {
		if err := os.WriteFile(filepath.Join(dir, kind), file, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	host := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer host.Close()
	m := loadShipped(t, func(s *Server, _ *Media) { s.AllowedLocalMediaPath = dir })
	for kind, tokens := range map[string]int{"image": 10, "video": 24} {
		file, _ := os.ReadFile(filepath.Join(dir, kind))
		var first Prompt
		for i, url := range []string{"data:" + kind + "/x;base64," + base64.StdEncoding.EncodeToString(file),
			host.URL + "/" + kind, "file://" + dir + "/" + kind} {
			p, _ := read(t, m, "/v1/chat/completions", one(`{"type":"`+kind+`_url","`+kind+`_url":{"url":"`+url+`"}}`))
			if !p.Exact || p.HashableIDs != len(p.IDs) || len(p.Media) != 1 || p.Media[0].Length != tokens || p.Media[0].Name == "" {
				t.Errorf("%s, way %d: exact %v (%s), %d of %d ids sure, media %+v", kind, i, p.Exact, p.Why, p.HashableIDs, len(p.IDs), p.Media)
				continue
			}
			if i == 0 {
				first = p
			} else if p.Media[0].Name != first.Media[0].Name || len(p.IDs) != len(first.IDs) {
				t.Errorf("%s, way %d is another: %+v, %+v", kind, i, p.Media, first.Media)
			}
		}
	}
	if p, _ := read(t, m, "/v1/chat/completions", one(`{"type":"video_url","video_url":{"url":"file://`+dir+`/image"}}`)); p.Exact ||
		p.HashableIDs == 0 || p.Why == "" {
		t.Errorf("a picture as a video: exact %v, %d ids sure, %q", p.Exact, p.HashableIDs, p.Why)
	}
}

// TestLastIdentity: when the budget is spent, a URL stands for what it showed last, with any signature.
func TestLastIdentity(t *testing.T) {
	file, _ := picture(t)
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("sig") != "1" {
			<-r.Context().Done() // until the client disconnects
		}
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write(file)
	}))
	defer host.Close()
	defer host.CloseClientConnections()
	m := loadShipped(t, func(*Server, *Media) {})
	first, _ := read(t, m, chatPath, ask(host.URL+"/a?sig=1", ""))
	if !first.Exact || first.Media[0].Alias == 0 {
		t.Fatalf("the first time: %+v", first)
	}
	m.Media.budget.Store(int64(time.Millisecond))
	again, _ := read(t, m, chatPath, ask(host.URL+"/a?sig=2", ""))
	if again.Exact || again.Why != inexactBudget || len(again.Media) != 1 || again.Media[0].Key != first.Media[0].Key ||
		again.Media[0].Alias != first.Media[0].Alias {
		t.Errorf("late: %q, %+v, want key %x", again.Why, again.Media, first.Media[0].Key)
	}
	if other, _ := read(t, m, chatPath, ask(host.URL+"/b?sig=2", "")); other.Media[0].Key == first.Media[0].Key || other.Media[0].Key == 0 {
		t.Errorf("another URL stands for the same: %+v", other.Media)
	}
	// The bytes are not cached: a name that only this request needs cannot be computed.
	m.Media.budget.Store(0)
	if p, _ := read(t, m, chatPath, ask(host.URL+"/a?sig=1", `,"mm_processor_kwargs":{"max_pixels":1003520}`)); p.Exact &&
		p.Media[0].Name == "" {
		t.Errorf("%+v", p.Media)
	}
}

// TestVideoNames: server options that change the sampled frames change the name.
func TestVideoNames(t *testing.T) {
	part := one(`{"type":"video_url","video_url":{"url":"data:video/mp4;base64,` +
		base64.StdEncoding.EncodeToString(clipFile(t, "reordered.mp4")) + `"}}`)
	names, lengths := map[string]bool{}, map[int]bool{}
	for _, options := range []Kwargs{"", `{"video":{"fps":1}}`, `{"video":{"fps":4}}`, `{"video":{"fps":4,"max_frames":6}}`} {
		m := loadShipped(t, func(s *Server, _ *Media) { s.MediaIOKwargs = options })
		p, _ := read(t, m, "/v1/chat/completions", part)
		if options != "" && p.HashableIDs == 0 || len(p.Media) != 1 || !p.Exact {
			t.Fatalf("%s: %+v", options, p)
		}
		names[p.Media[0].Name], lengths[p.Media[0].Length] = true, true
	}
	if len(names) != 4 || len(lengths) != 3 { // fps 1 is raised to four frames, the same as fps 2 for two seconds
		t.Errorf("%d names, %d lengths", len(names), len(lengths))
	}
	for _, c := range []struct{ version, options string }{{"0.30.0", ""}, {"0.32.0", `{"video":{"backend":"torchcodec"}}`}} {
		m := loadShipped(t, func(s *Server, _ *Media) { s.EngineVersion, s.MediaIOKwargs = c.version, Kwargs(c.options) })
		if p, _ := read(t, m, "/v1/chat/completions", part); p.Exact || p.Why == "" || p.HashableIDs == 0 {
			t.Errorf("%+v: exact %v, %q", c, p.Exact, p.Why)
		}
	}
}

// TestEmbeddings: their length is their number; the prompt matches up to them, and they have one identity.
func TestEmbeddings(t *testing.T) {
	var npy bytes.Buffer
	npy.WriteString("\x93NUMPY\x01\x00\x3b\x00{'descr': '<f4', 'fortran_order': False, 'shape': (21, 2), }\n")
	npy.Write(make([]byte, 21*2*4))
	text := base64.StdEncoding.EncodeToString(npy.Bytes())
	m := loadShipped(t, func(s *Server, _ *Media) { s.EnableMMEmbeds = true })
	var key uint64
	for i, value := range []string{`"` + text + `"`, `{"image_grid_thw":"AA==","image_embeds":"` + text + `"}`} {
		p, _ := read(t, m, "/v1/chat/completions", one(`{"type":"image_embeds","image_embeds":`+value+`}`))
		if len(p.Media) != 1 || p.Media[0].Length != 21 || p.Exact || p.HashableIDs != p.Media[0].Offset ||
			p.Media[0].Key == 0 || i > 0 && p.Media[0].Key != key {
			t.Fatalf("%d: exact %v (%s), sure %d, %+v", i, p.Exact, p.Why, p.HashableIDs, p.Media)
		}
		key = p.Media[0].Key
	}
	if p, _ := read(t, m, "/v1/chat/completions", one(`{"type":"image_embeds","image_embeds":"AAAA"}`)); p.Exact ||
		p.Why != inexactEmbeds || len(p.Media) != 1 {
		t.Errorf("no tensor: %+v", p)
	}
	// TensorRT-LLM behind Dynamo: a file of embeddings in place of a picture, by URL, file URL or path.
	dir := t.TempDir()
	file := filepath.Join(dir, "x.pt")
	if err := os.WriteFile(file, npy.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	host := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer host.Close()
	m = loadShipped(t, func(s *Server, _ *Media) {
		s.Engine, s.EngineVersion, s.BlockSize, s.AllowedLocalMediaPath = "trtllm", "1.2.0", 32, dir
	})
	for _, url := range []string{host.URL + "/x.pt", "file://" + file, file} {
		p, _ := read(t, m, "/v1/chat/completions", one(`{"type":"image_url","image_url":{"url":"`+url+`"}}`))
		if len(p.Media) != 1 || p.Media[0].Length != 21 || p.Exact || p.HashableIDs != p.Media[0].Offset || p.Media[0].Key != key {
			t.Errorf("%s: exact %v (%s), sure %d, %+v, want key %x", url, p.Exact, p.Why, p.HashableIDs, p.Media, key)
		}
	}
}

// TestUnreadFormats: a picture that the engine may open and we do not support, or whose mode depends on the Pillow release, has the
// same identity by data URL and by http, and causes no error.
func TestUnreadFormats(t *testing.T) {
	tga := append([]byte("\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x20\x00\x20\x00\x18\x20"), make([]byte, 32*32*3)...)
	ycc := append([]byte("II*\x00\x08\x00\x00\x00\x09\x00"), tiffTags(256, 32, 257, 32, 258, 8, 259, 1, 262, 6, 273, 200,
		277, 3, 278, 32, 279, 32*32*3)...)
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(map[string][]byte{"/tga": tga, "/ycc": ycc, "/wav": []byte("RIFF\x24\x00\x00\x00WAVEfmt ")}[r.URL.Path])
	}))
	defer host.Close()
	m := loadShipped(t, func(*Server, *Media) {})
	for path, c := range map[string]struct {
		file  []byte
		why   string
		known bool
	}{"/tga": {tga, inexactFormat, false}, "/ycc": {ycc, "", true}} {
		var keys [2]uint64
		for i, url := range []string{"data:;base64," + base64.StdEncoding.EncodeToString(c.file), host.URL + path} {
			p, _ := read(t, m, chatPath, ask(url, ""))
			if p.Exact || len(p.Media) != 1 || p.HashableIDs != p.Media[0].Offset || p.HashableIDs == 0 ||
				p.Media[0].HasFacts != c.known || p.Media[0].HasName || c.why != "" && p.Why != c.why {
				t.Fatalf("%s, way %d: exact %v (%s), %d sure, %+v", path, i, p.Exact, p.Why, p.HashableIDs, p.Media)
			}
			keys[i] = p.Media[0].Key
		}
		if keys[0] == 0 || keys[0] != keys[1] {
			t.Errorf("%s: keys %x", path, keys)
		}
	}
	sound := Medium{Modality: "audio"}
	if _, why, err := m.fetch(t.Context(), 0, host.URL+"/wav", &sound); why != "" || err != nil || sound.Facts.Bytes != 16 {
		t.Errorf("sound: %q %v %+v", why, err, sound.Facts)
	}
	if _, _, err := m.fetch(t.Context(), 0, host.URL+"/wav", &Medium{Modality: "image"}); !errors.As(err, new(*Refused)) {
		t.Errorf("sound as a picture: %v", err)
	}
}

// tiffTags returns a directory's entries (tags and values, of type LONG) and the end of the list.
func tiffTags(pairs ...uint32) (out []byte) {
	le := binary.LittleEndian
	for i := 0; i < len(pairs); i += 2 {
		out = le.AppendUint16(out, uint16(pairs[i]))
		typ := uint16(4)
		if pairs[i] > 257 {
			typ = 3
		}
		out = le.AppendUint32(le.AppendUint32(le.AppendUint16(out, typ), 1), pairs[i+1])
	}
	return append(out, 0, 0, 0, 0)
}
