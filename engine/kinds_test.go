package engine

import (
	"encoding/base64"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sightline-router/sightline/media/relay"
)

func one(part string) string {
	return `{"model":"m","messages":[{"role":"user","content":[` + part + `,{"type":"text","text":"What is it?"}]}]}`
}

// TestOneMediumManyWays: an image has the same tokens and name by data URL, http and file. A video, or sound, is not read: the prompt
// ends before it, and no host is asked.
func TestOneMediumManyWays(t *testing.T) {
	dir := t.TempDir()
	file, _ := pngFile(t)
	if err := os.WriteFile(filepath.Join(dir, "x"), file, 0o600); err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	files := http.FileServer(http.Dir(dir))
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { asked.Add(1); files.ServeHTTP(w, r) }))
	defer host.Close()
	m := loadShipped(t, func(s *Server, _ *Media) { s.AllowedLocalMediaPath = dir })
	ways := func(kind string) (parts []string) {
		for _, url := range []string{"data:x/x;base64," + base64.StdEncoding.EncodeToString(file), host.URL + "/x", "file://" + dir + "/x"} {
			parts = append(parts, one(`{"type":"`+kind+`_url","`+kind+`_url":{"url":"`+url+`"}}`))
		}
		return parts
	}
	var first Prompt
	for i, part := range ways("image") {
		p, _ := read(t, m, chatPath, part)
		if !p.Exact || p.HashableIDs != len(p.IDs) || len(p.Media) != 1 || p.Media[0].Length != 10 || p.Media[0].Name == "" {
			t.Errorf("way %d: exact %v (%s), %d of %d ids sure, media %+v", i, p.Exact, p.Why, p.HashableIDs, len(p.IDs), p.Media)
			continue
		}
		if i == 0 {
			first = p
		} else if p.Media[0].Name != first.Media[0].Name || len(p.IDs) != len(first.IDs) {
			t.Errorf("way %d is another: %+v, %+v", i, p.Media, first.Media)
		}
	}
	before := asked.Load()
	for i, part := range append(ways("video"), one(`{"type":"video_url","video_url":{"url":"data:video/jpeg;base64,AAAA,AAAA"}}`)) {
		if p, _ := read(t, m, chatPath, part); p.Exact || p.HashableIDs == 0 || p.HashableIDs != len(p.IDs) || p.Why == "" {
			t.Errorf("video, way %d: exact %v, %d of %d ids sure, %q, want false, some, %d, some",
				i, p.Exact, p.HashableIDs, len(p.IDs), p.Why, len(p.IDs))
		}
	}
	if n := asked.Load(); n != before {
		t.Errorf("%d downloads of videos: got %d, want %d", n-before, n, before)
	}
	m.Server.AllowedMediaDomains = []string{"images.example"}
	for _, kind := range []string{"image", "video", "audio"} {
		if _, err := readAll(t, m, chatPath, ways(kind)[1]); !errors.As(err, new(*Refused)) {
			t.Errorf("%s from a host that is not allowed: %v", kind, err)
		}
	}
}

// TestLastIdentity: when the budget is spent, a URL stands for what it showed last, with any signature.
func TestLastIdentity(t *testing.T) {
	file, _ := pngFile(t)
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
		t.Fatalf("the first time: got %+v, want Exact true, Media[0].Alias some", first)
	}
	m.Media.budget.Store(int64(time.Millisecond))
	again, _ := read(t, m, chatPath, ask(host.URL+"/a?sig=2", ""))
	if again.Exact || again.Why != inexactBudget || len(again.Media) != 1 || again.Media[0].Key != first.Media[0].Key ||
		again.Media[0].Alias != first.Media[0].Alias {
		t.Errorf("late: %q, %+v, want key %x", again.Why, again.Media, first.Media[0].Key)
	}
	if other, _ := read(t, m, chatPath, ask(host.URL+"/b?sig=2", "")); other.Media[0].Key == first.Media[0].Key || other.Media[0].Key == 0 {
		t.Errorf("another URL stands for the same: got %+v, want other.Media[0].Key != first.Media[0].Key, other.Media[0].Key != 0", other.Media)
	}
	// The bytes are not cached: a name that only this request needs cannot be computed.
	m.Media.budget.Store(0)
	if p, _ := read(t, m, chatPath, ask(host.URL+"/a?sig=1", `,"mm_processor_kwargs":{"max_pixels":1003520}`)); p.Exact &&
		p.Media[0].Name == "" {
		t.Errorf("%+v", p.Media)
	}
}

// TestEmbeddings: the prompt ends before them, whatever they are.
func TestEmbeddings(t *testing.T) {
	m := loadShipped(t, func(*Server, *Media) {})
	for _, value := range []string{`"AAAA"`, `{"image_grid_thw":"AA==","image_embeds":"AAAA"}`} {
		p, _ := read(t, m, chatPath, one(`{"type":"image_embeds","image_embeds":`+value+`}`))
		if p.Exact || len(p.Media) != 1 || p.HashableIDs == 0 || p.HashableIDs != p.Media[0].Offset || p.Why != inexactOther {
			t.Errorf("exact %v (%s), sure %d, %+v", p.Exact, p.Why, p.HashableIDs, p.Media)
		}
	}
	// TensorRT-LLM: a file of embeddings in place of an image, by URL, file URL or path.
	dir := t.TempDir()
	file := filepath.Join(dir, "x.pt")
	if err := os.WriteFile(file, []byte("PK\x03\x04 a file of torch.save"), 0o600); err != nil {
		t.Fatal(err)
	}
	host := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer host.Close()
	m = loadShipped(t, func(s *Server, _ *Media) {
		s.Engine, s.EngineVersion, s.BlockSize, s.AllowedLocalMediaPath = "trtllm", "1.2.0", 32, dir
	})
	for _, url := range []string{host.URL + "/x.pt", "file://" + file, file} {
		p, _ := read(t, m, chatPath, ask(url, ""))
		if p.Exact || len(p.Media) != 1 || p.HashableIDs == 0 || p.HashableIDs != p.Media[0].Offset || p.Why != inexactEmbeds {
			t.Errorf("%s: exact %v (%s), sure %d, %+v", url, p.Exact, p.Why, p.HashableIDs, p.Media)
		}
	}
}

// TestUnreadFormats: an image that the engine may open and no header reader knows has the same identity by data URL and by http, causes
// no error, and is handed over like others.
func TestUnreadFormats(t *testing.T) {
	files := map[string][]byte{
		"/tga":  append([]byte("\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x20\x00\x20\x00\x18\x20"), make([]byte, 3072)...),
		"/tiff": []byte("II*\x00\x08\x00\x00\x00\x00\x00 and its directory"),
		"/bmp":  []byte("BM and its header"),
		"/avif": []byte("\x00\x00\x00\x20ftypavif and its boxes"),
	}
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wav" {
			_, _ = w.Write([]byte("RIFF\x24\x00\x00\x00WAVEfmt "))
		}
		_, _ = w.Write(files[r.URL.Path])
	}))
	defer host.Close()
	m := loadShipped(t, func(s *Server, x *Media) {
		s.MediaNames, x.RelayDataURLs = "injected", true
		x.Relay, _ = relay.New(relay.Config{URL: "http://10.0.0.2:9904"})
	})
	for path, file := range files {
		var keys [2]uint64
		for i, url := range []string{"data:;base64," + base64.StdEncoding.EncodeToString(file), host.URL + path} {
			p, sent := read(t, m, chatPath, ask(url, ""))
			if p.Exact || len(p.Media) != 1 || p.HashableIDs != p.Media[0].Offset || p.HashableIDs == 0 || p.Media[0].HasFacts ||
				p.Why != inexactFormat {
				t.Fatalf("%s, way %d: exact %v (%s), %d sure, %+v", path, i, p.Exact, p.Why, p.HashableIDs, p.Media)
			}
			if !strings.Contains(sent, "http://10.0.0.2:9904/") || !strings.Contains(sent, `"uuid":"`+p.Media[0].Facts.ID.String()) {
				t.Errorf("%s, way %d: the worker gets %s", path, i, sent)
			}
			keys[i] = p.Media[0].Key
		}
		if keys[0] == 0 || keys[0] != keys[1] {
			t.Errorf("%s: keys %x, want keys[0] != 0, keys[0] == keys[1]", path, keys)
		}
	}
	if _, err := readAll(t, m, chatPath, ask(host.URL+"/wav", "")); !errors.As(err, new(*Refused)) {
		t.Errorf("sound as an image: %v", err)
	}
}
