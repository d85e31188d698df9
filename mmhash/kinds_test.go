package mmhash

import (
	"archive/zip"
	"bytes"
	"encoding/base64"
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
	z, err := zip.OpenReader("media/clip/testdata/clips.zip")
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

// TestOneMediumManyWays: a picture and a video are the same by data URL, http and file, to the token and by name.
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
		for i, url := range []string{"data:" + kind + "/x;base64," + base64.StdEncoding.EncodeToString(file), host.URL + "/" + kind, "file://" + dir + "/" + kind} {
			p, _ := read(t, m, "/v1/chat/completions", one(`{"type":"`+kind+`_url","`+kind+`_url":{"url":"`+url+`"}}`))
			if !p.Exact || p.Sure != len(p.IDs) || len(p.Media) != 1 || p.Media[0].Length != tokens || p.Media[0].Name == "" {
				t.Errorf("%s, way %d: exact %v (%s), %d of %d ids sure, media %+v", kind, i, p.Exact, p.Why, p.Sure, len(p.IDs), p.Media)
				continue
			}
			if i == 0 {
				first = p
			} else if p.Media[0].Name != first.Media[0].Name || len(p.IDs) != len(first.IDs) {
				t.Errorf("%s, way %d is another: %+v, %+v", kind, i, p.Media, first.Media)
			}
		}
	}
	if p, _ := read(t, m, "/v1/chat/completions", one(`{"type":"video_url","video_url":{"url":"file://`+dir+`/image"}}`)); p.Exact || p.Sure == 0 || p.Why == "" {
		t.Errorf("a picture as a video: exact %v, %d ids sure, %q", p.Exact, p.Sure, p.Why)
	}
}

// TestLastIdentity: when the budget is spent, a URL stands for what it showed last, whatever its signature.
func TestLastIdentity(t *testing.T) {
	file, _ := picture(t)
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("sig") != "1" {
			<-r.Context().Done() // until nobody waits any more
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
	m.Media.budget = time.Millisecond
	again, _ := read(t, m, chatPath, ask(host.URL+"/a?sig=2", ""))
	if again.Exact || again.Why != whyBudget || len(again.Media) != 1 || again.Media[0].Key != first.Media[0].Key || again.Media[0].Alias != first.Media[0].Alias {
		t.Errorf("late: %q, %+v, want key %x", again.Why, again.Media, first.Media[0].Key)
	}
	if other, _ := read(t, m, chatPath, ask(host.URL+"/b?sig=2", "")); other.Media[0].Key == first.Media[0].Key || other.Media[0].Key == 0 {
		t.Errorf("another URL stands for the same: %+v", other.Media)
	}
	// The bytes were not kept: a name that only this request needs is not computed from nothing.
	m.Media.budget = 0
	if p, _ := read(t, m, chatPath, ask(host.URL+"/a?sig=1", `,"mm_processor_kwargs":{"max_pixels":1003520}`)); p.Exact && p.Media[0].Name == "" {
		t.Errorf("%+v", p.Media)
	}
}

// TestVideoNames: what a server's options change of the frames, they change of the name.
func TestVideoNames(t *testing.T) {
	part := one(`{"type":"video_url","video_url":{"url":"data:video/mp4;base64,` + base64.StdEncoding.EncodeToString(clipFile(t, "reordered.mp4")) + `"}}`)
	names, lengths := map[string]bool{}, map[int]bool{}
	for _, options := range []Kwargs{"", `{"video":{"fps":1}}`, `{"video":{"fps":4}}`, `{"video":{"fps":4,"max_frames":6}}`} {
		m := loadShipped(t, func(s *Server, _ *Media) { s.MediaIOKwargs = options })
		p, _ := read(t, m, "/v1/chat/completions", part)
		if options != "" && p.Sure == 0 || len(p.Media) != 1 || !p.Exact {
			t.Fatalf("%s: %+v", options, p)
		}
		names[p.Media[0].Name], lengths[p.Media[0].Length] = true, true
	}
	if len(names) != 4 || len(lengths) != 3 { // fps 1 is raised to four frames, as fps 2 of two seconds is
		t.Errorf("%d names, %d lengths", len(names), len(lengths))
	}
	for _, c := range []struct{ version, options string }{{"0.30.0", ""}, {"0.32.0", `{"video":{"backend":"torchcodec"}}`}} {
		m := loadShipped(t, func(s *Server, _ *Media) { s.EngineVersion, s.MediaIOKwargs = c.version, Kwargs(c.options) })
		if p, _ := read(t, m, "/v1/chat/completions", part); p.Exact || p.Why == "" || p.Sure == 0 {
			t.Errorf("%+v: exact %v, %q", c, p.Exact, p.Why)
		}
	}
}

// TestEmbeddings: their number is their length; the prompt is matched up to them, and they are one identity.
func TestEmbeddings(t *testing.T) {
	var npy bytes.Buffer
	npy.WriteString("\x93NUMPY\x01\x00\x3b\x00{'descr': '<f4', 'fortran_order': False, 'shape': (21, 2), }\n")
	npy.Write(make([]byte, 21*2*4))
	text := base64.StdEncoding.EncodeToString(npy.Bytes())
	m := loadShipped(t, func(s *Server, _ *Media) { s.EnableMMEmbeds = true })
	var key uint64
	for i, value := range []string{`"` + text + `"`, `{"image_grid_thw":"AA==","image_embeds":"` + text + `"}`} {
		p, _ := read(t, m, "/v1/chat/completions", one(`{"type":"image_embeds","image_embeds":`+value+`}`))
		if len(p.Media) != 1 || p.Media[0].Length != 21 || p.Exact || p.Sure != p.Media[0].Offset || p.Media[0].Key == 0 || i > 0 && p.Media[0].Key != key {
			t.Fatalf("%d: exact %v (%s), sure %d, %+v", i, p.Exact, p.Why, p.Sure, p.Media)
		}
		key = p.Media[0].Key
	}
	if p, _ := read(t, m, "/v1/chat/completions", one(`{"type":"image_embeds","image_embeds":"AAAA"}`)); p.Exact || p.Why != whyEmbeds || len(p.Media) != 1 {
		t.Errorf("no tensor: %+v", p)
	}
}
