package engine

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestVisionFamily: a fine-tune with a model_type of its own is read as the family in vision_family.
func TestVisionFamily(t *testing.T) {
	const shipped = "../examples/models/qwen2.5-vl"
	dir := t.TempDir()
	files, err := os.ReadDir(shipped)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(shipped, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if f.Name() == "config.json" {
			text := strings.ReplaceAll(string(data), "Qwen2_5_VLForConditionalGeneration", "AcmeForConditionalGeneration")
			data = []byte(strings.ReplaceAll(text, `"qwen2_5_vl"`, `"acme_vl"`))
		}
		if err := os.WriteFile(filepath.Join(dir, f.Name()), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	known := loadShipped(t, func(*Server, *Media) {})
	load := func(family string) *Model {
		s := known.Server
		s.VisionFamily = family
		m, err := Load("m", dir, s, known.Media)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	file, _ := pngFile(t)
	request := ask("data:image/png;base64,"+base64.StdEncoding.EncodeToString(file), "")
	want, _ := read(t, known, chatPath, request)
	if got, _ := read(t, load("qwen2_vl"), chatPath, request); !got.Exact || !slices.Equal(got.IDs, want.IDs) ||
		len(got.Media) != 1 || got.Media[0].Name != want.Media[0].Name {
		t.Errorf("with the key: exact %v (%s), %d ids, want %d", got.Exact, got.Why, len(got.IDs), len(want.IDs))
	}
	m := load("")
	if got, _ := read(t, m, chatPath, request); got.Exact || !strings.Contains(strings.Join(m.Warnings(), "\n"), "vision_family") {
		t.Errorf(`without it: exact %v, warnings %q, want !got.Exact, strings.Contains(strings.Join(m.Warnings(), "\n"), "vision_family")`,
			got.Exact, m.Warnings())
	}
	s := known.Server
	s.VisionFamily = "qwen"
	if err := s.Check(); err == nil || !strings.Contains(err.Error(), `vision_family: "qwen" is not known (want one of qwen2_vl, `) {
		t.Errorf("%v, want the list of families", err)
	}
	if _, err := Load("m", dir, s, known.Media); err == nil || !strings.Contains(err.Error(), "vision_family") {
		t.Errorf("loaded: got %v, want an error, %q in it", err, "vision_family")
	}
}
