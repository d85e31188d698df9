package sglang

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab/golden"
)

// The classes that enter SGLang's names of Qwen3-VL's images.
const (
	qwenClass   = "sglang.srt.multimodal.processors.qwen_vl.QwenVLImageProcessor"
	qwenWrapper = "transformers.models.qwen3_vl.processing_qwen3_vl.Qwen3VLProcessor"
)

func TestNames(t *testing.T) {
	// SGLang 0.5.23: recorded pads and items.
	if got := Pads(0x0123456789abcdef, PadFour); got != [4]uint64{23533869762612420, 1115227388442326932, 406705440234023321,
		2100304651902599146} {
		t.Errorf("got %v, want %v", got, [4]uint64{23533869762612420, 1115227388442326932, 406705440234023321, 2100304651902599146})
	}
	if got := Pads(0x0123456789abcdef, PadOne)[3]; got != 163254319 {
		t.Errorf("got pad %d, want 163254319", got)
	}
	p := Processor{ModelType: "qwen3_vl", Architectures: []string{"Qwen3VLForConditionalGeneration"}, Class: qwenClass,
		Wrapper: qwenWrapper, transformers: "5.19.0", transport: "cpu"}
	if got := p.fingerprint(); got != "sha256:c06a200bd416f5b145437549ad48ebc0a687af060701346dd624b34bd5dec8d5" {
		t.Errorf("got %q, want %q", got, "sha256:c06a200bd416f5b145437549ad48ebc0a687af060701346dd624b34bd5dec8d5")
	}
	if got := string(asciiJSON("é\"\\\n\x01😀")); got != `"\u00e9\"\\\n\u0001\ud83d\ude00"` {
		t.Errorf("got %q, want %q", got, `"\u00e9\"\\\n\u0001\ud83d\ude00"`)
	}
}

// TestConformanceItems: pads, artifact keys, and the items of a real Qwen3-VL processor (SGLang 0.5.23).
func TestConformanceItems(t *testing.T) {
	var vec struct {
		Pads []struct {
			Hash string
			Raw  []string `json:"pad_values"`
			One  uint64   `json:"legacy_0_5_9_to_0_5_22"`
		}
		Identity []struct {
			Identity string
			Raw      []string `json:"pad_values"`
		}
		Artifact []struct {
			Content     string          `json:"content_digest"`
			Fingerprint string          `json:"processor_fingerprint"`
			Kwargs      json.RawMessage `json:"preprocess_kwargs"`
			Item        string          `json:"item_hash"`
		}
	}
	golden.JSON(t, &vec, golden.Dir(t, "sglang", "hash_vectors.json"))
	for _, p := range vec.Pads {
		h, err := ParseItem(p.Hash)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(Pads(h, PadFour)); got != fmt.Sprint(p.Raw) {
			t.Errorf("pads of %s: %s, want %v", p.Hash, got, p.Raw)
		}
		if got := Pads(h, PadOne)[0]; got != p.One {
			t.Errorf("pad of %s before 0.5.23: got %d, want %d", p.Hash, got, p.One)
		}
	}
	for _, p := range vec.Identity {
		id, err := hex.DecodeString(p.Identity)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(fourPads(id)); got != fmt.Sprint(p.Raw) {
			t.Errorf("pads of identity %s: %s, want %v", p.Identity, got, p.Raw)
		}
	}
	artifacts := 0
	for _, a := range vec.Artifact {
		if string(a.Kwargs) != "{}" { // only Python callers can pass others
			continue
		}
		digest, err := hex.DecodeString(strings.TrimPrefix(a.Content, "sha256:"))
		if err != nil {
			t.Fatal(err)
		}
		if got := ItemName(Item(a.Fingerprint, [32]byte(digest), "")); got != a.Item {
			t.Errorf("item of %s: %s, want %s", a.Content, got, a.Item)
		}
		artifacts++
	}

	items := gjson.ParseBytes(golden.Read(t, golden.Dir(t, "sglang", "image_items_qwen3-vl.json")))
	proc := Processor{ModelType: "qwen3_vl", Architectures: []string{"Qwen3VLForConditionalGeneration"}, Class: qwenClass,
		Wrapper: qwenWrapper, transformers: "5.19.0", transport: "cpu"}
	if got, want := proc.fingerprint(), items.Get("processor.fingerprint").String(); got != want {
		t.Errorf("fingerprint %s, want %s", got, want)
	}
	if c := proc.Candidates([]string{"5.23.0", "5.19.0"}); !slices.Contains(c, proc.fingerprint()) {
		t.Errorf("the fingerprint is not among its candidates")
	}
	n := 0
	for _, row := range items.Get("rows").Array() {
		for i, it := range row.Get("items").Array() {
			file := golden.Read(t, golden.Dir(t, "images", row.Get(fmt.Sprintf("images.%d", i)).String()))
			got := ItemName(Item(proc.fingerprint(), sha256.Sum256(file), ""))
			if got != it.Get("hash").String() {
				t.Errorf("%s item %d: %s, want %s", row.Get("case"), i, got, it.Get("hash"))
			}
			h, _ := ParseItem(got)
			if p, want := fmt.Sprint(Pads(h, PadFour)), fmt.Sprint(it.Get("pad_values").Array()); p != want {
				t.Errorf("%s item %d: pads %s, want %s", row.Get("case"), i, p, want)
			}
			n++
		}
	}
	t.Logf("conformance: %d pads, %d artifacts, %d items", len(vec.Pads), artifacts, n)
}

// TestConformanceServerImages: the pads in the events of a real Qwen3-VL server determine one fingerprint, which holds for every
// image whose pages were stored, including the detail.
func TestConformanceServerImages(t *testing.T) {
	srv := gjson.ParseBytes(golden.Read(t, golden.Dir(t, "sglang", "server_qwen3vl.json.gz")))
	proc := Processor{ModelType: "qwen3_vl", Architectures: []string{"Qwen3VLForConditionalGeneration"}, Class: qwenClass,
		Wrapper: qwenWrapper}
	pinned, n := map[string]bool{}, 0
	for _, step := range srv.Get("steps").Array() {
		ids, pads := map[uint64]bool{}, false
		for _, id := range step.Get("events.#.batch.1.#.token_ids|@flatten|@flatten").Array() {
			ids[id.Uint()] = true
			pads = pads || id.Uint() >= 1_000_000
		}
		if !pads { // text only: the image's pages were already stored
			continue
		}
		for _, p := range golden.Images(step) {
			f := p.Get("image_url.file").String()
			file, found := golden.Read(t, golden.Dir(t, "images", f)), false
			for _, c := range proc.Candidates([]string{"5.23.0", "5.19.0"}) {
				h := Item(c, sha256.Sum256(file), p.Get("image_url.detail").String())
				if ids[Pads(h, PadFour)[0]] {
					found, pinned[c] = true, true
				}
			}
			if !found {
				t.Errorf("%s: no pads of %s (detail %q) in the events", step.Get("step"), f, p.Get("image_url.detail"))
			}
			n++
		}
	}
	if len(pinned) != 1 {
		t.Errorf("%d fingerprints fit, want 1", len(pinned))
	}
	t.Logf("conformance: %d images", n)
}
