package engine

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/sightline-router/sightline/engine/rules"
)

// TestLearn: a name is used after two sightings that agree and dropped when one disagrees; a computed one is never replaced.
func TestLearn(t *testing.T) {
	full := 0
	m := &Model{Name: "m", Media: &Media{learned: newLearnedNames(), NoRoom: func(string) {
		full++
	}}, keys: &rules.Keys{Learns: rules.LearnsMissing}}
	md := &Medium{Modality: "image", nameKey: 7}
	l := m.Media.learned
	for i, step := range []struct {
		name  string
		known bool
	}{{"a", false}, {"a", true}, {"a", true}, {"b", false}, {"a", false}, {"a", true}} {
		if !m.Learn(md, step.name) {
			t.Fatalf("sighting %d is not taken", i)
		}
		if got, known := l.name(7); known != step.known || known && got != step.name {
			t.Fatalf("after sighting %d: %q, %v; want %q, %v", i, got, known, step.name, step.known)
		}
	}
	if m.Learn(&Medium{nameKey: 8, HasName: true}, "x") || m.Learn(&Medium{}, "x") {
		t.Error("a name was learned for a medium that has one, or whose content is not known")
	}
	trt := &Model{Name: "m", Media: m.Media, keys: &rules.Keys{Learns: rules.LearnsAll}}
	if !trt.Learn(&Medium{nameKey: 9, HasName: true, Name: "ours"}, "x") ||
		trt.Learn(&Medium{nameKey: 9, HasName: true, Name: "ours"}, "ours") {
		t.Error("TensorRT-LLM: another name is not taken, or one that is known is")
	}
	if !m.Learn(&Medium{nameKey: 7, HasName: true, learned: true}, "c") {
		t.Error("what was learned cannot be unlearned")
	}
	for i := range maxLearnedNames + 10 {
		m.Learn(&Medium{nameKey: uint64(i + 100)}, "n")
	}
	if n := l.names.Len(); n != maxLearnedNames || full != 10+2 {
		t.Errorf("%d names are kept, %d went", n, full)
	}
}

// TestIdentIsApart: an ident depends on the model, the content, the modality and the settings.
func TestIdentIsApart(t *testing.T) {
	media := &Media{learned: newLearnedNames()}
	a, b := &Model{Name: "a", Media: media}, &Model{Name: "b", Media: media}
	md, other := &Medium{Modality: "image"}, &Medium{Modality: "image"}
	other.Facts.ID[0] = 1
	seen := map[uint64]bool{}
	for _, id := range []uint64{a.nameKey(md), b.nameKey(md), a.nameKey(other), a.nameKey(md, "{}"), a.nameKey(md, "", "{}"),
		a.nameKey(&Medium{Modality: "video"})} {
		if seen[id] {
			t.Error("two identities are one")
		}
		seen[id] = true
	}
}

// If a host gives us and the engine different pictures, the engine's name is learned for that URL only.
func TestImageHostNamesOnlyItsURL(t *testing.T) {
	file, _ := picture(t)
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(file) }))
	t.Cleanup(host.Close)
	m := loadShipped(t, func(s *Server, _ *Media) { s.Engine, s.EngineVersion = "trtllm", "1.3.0" })
	name := func(link string) (*Medium, string) {
		p, _ := read(t, m, "/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"`+
			link+`"}}]}]}`)
		if len(p.Media) != 1 || !p.Media[0].HasFacts {
			t.Fatalf("%+v", p)
		}
		return &p.Media[0], p.Media[0].Name
	}
	inBody := "data:image/png;base64," + base64.StdEncoding.EncodeToString(file)
	for range 2 {
		fetched, _ := name(host.URL + "/a.png")
		if !m.Learn(fetched, "another's") {
			t.Fatal("not learned")
		}
	}
	if _, now := name(inBody); now == "another's" {
		t.Error("an image host has named the picture of a body")
	}
	if _, now := name(host.URL + "/b.png"); now == "another's" {
		t.Error("the name of one URL became that of another")
	}
	if _, now := name(host.URL + "/a.png?sig=2"); now != "another's" {
		t.Errorf("named %q: what was learned of a URL is lost", now)
	}
}
