package vision

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/lab/golden"
)

// TestOneEntryMakesAFamily: one entry defines a family: recognition by files, count and layout of images, placeholder, and the
// engines' facts.
func TestOneEntryMakesAFamily(t *testing.T) {
	with := append(families(), &family{
		name: "unicorn_vl", title: "Unicorn-VL", archs: []string{"UnicornForConditionalGeneration"}, types: []string{"unicorn_vl"},
		names: map[string]tokenName{"image": {text: "<unicorn>", id: "image_token_id"}},
		image: &entry{target: "{image}", id: "{image}", count: square{size: setting{"image.size"}, patch: setting{"image.patch_size"}},
			layout: layout{begin: "<horn>", end: "</horn>"}, put: "{image}\n"},
		facts: Facts{PlaceholdersFirst: true, NamedFormat: true},
	})
	files := dir(obj{"config.json": obj{"model_type": "unicorn_vl"}, "preprocessor_config.json": obj{"size": 28, "patch_size": 14}})
	tok := newStub("<unicorn>", "<horn>", "</horn>")
	unicorn, horn, end := tok.ids["<unicorn>"], tok.ids["<horn>"], tok.ids["</horn>"]
	for _, reading := range []Reading{vllm, sglang} {
		m, err := with.load(files, tok, Options{Reading: reading})
		if err != nil {
			t.Fatal(err)
		}
		ids, spans, err := m.ExpandText(nil, "a<unicorn>b", []Media{{Width: 640, Height: 480}}, nil)
		want := []uint32{'a', horn, unicorn, unicorn, unicorn, unicorn, end, 'b'}
		if err != nil || !slices.Equal(ids, want) || !slices.Equal(spans, []Span{{0, 1, 6}}) {
			t.Errorf("%+v: %v %v %v, want %v", reading, ids, spans, err, want)
		}
		if text, ok := m.Placeholder("image", 1); !ok || text != "<unicorn>\n" || m.Family() != "unicorn_vl" {
			t.Errorf("placeholder %q of %s: got %v, want true, %q, %q", text, m.Family(), ok, "<unicorn>\n", "unicorn_vl")
		}
	}
	if f := with.facts("unicorn_vl", ""); !f.PlaceholdersFirst || !f.NamedFormat {
		t.Errorf("facts %+v, want PlaceholdersFirst true, NamedFormat true", f)
	}
	var unknown *UnknownModelError
	if _, err := Load(files, tok, Options{}); !errors.As(err, &unknown) {
		t.Errorf("the table itself knows it: %v", err)
	}
}

// TestFamilyByName: a directory whose files name no family, or another one, is read as the family that the option names.
func TestFamilyByName(t *testing.T) {
	files := dir(obj{"config.json": obj{"model_type": "acme_vl", "image_token_id": 1002, "video_token_id": 1003},
		"preprocessor_config.json": obj{}})
	tok := newStub(qwenSpecials...)
	m, err := Load(files, tok, Options{Family: "qwen2_vl"})
	if err != nil || m.Family() != "qwen2_vl" || len(m.Warnings()) != 0 {
		t.Fatalf(`got %v %v, want no error, m.Family() == "qwen2_vl", len(m.Warnings()) == 0`, m, err)
	}
	if n, _, err := m.Count(Media{Width: 56, Height: 56}, nil); n != 4 || err != nil {
		t.Errorf("%d tokens, %v, want 4, no error", n, err)
	}
	if m, _ := qwen(t, Options{Family: "qwen3_vl"}); m.Family() != "qwen3_vl" || len(m.Warnings()) != 1 {
		t.Errorf("%s, warnings %q, want one about the other family", m.Family(), m.Warnings())
	}
	if _, err := Load(files, tok, Options{Family: "qwen2vl"}); err == nil || !strings.Contains(err.Error(), "qwen2_vl, qwen3_vl, ") {
		t.Errorf("%v, want the list of families", err)
	}
	if FactsOf("acme_vl", "qwen3_vl").ProcessorClass == "" || FactsOf("acme_vl", "") != (Facts{}) ||
		FactsOf("qwen3_5", "qwen3_vl").ProcessorClass != "" {
		t.Error("facts of a type that is not known are those of the family that is named")
	}
}

// TestEveryFamilyHasACase: what testdata holds of each family's images, by a directory that selects the family. One without a case says
// so in docs/families.md.
func TestEveryFamilyHasACase(t *testing.T) {
	cases := map[string]int{}
	var counts []struct{ Rule, Reject string }
	golden.JSON(t, &counts, "testdata/image_tokens.json.gz")
	for _, r := range counts {
		if _, ok := ruleDirs[r.Rule]; ok && r.Reject == "" {
			m, _ := loadRule(t, r.Rule, vllm)
			cases[m.Family()]++
		}
	}
	for _, file := range []string{"processor_counts.json.gz", "processor_prompts.json.gz"} {
		eachProcessor(t, file, func(_ processorFamily, rows []processorRow, _ map[string]bool, m *Expander, _ *stubTokens) {
			cases[m.Family()] += len(rows)
		})
	}
	random := readRandom(t)
	seen := map[string]bool{}
	for i, r := range random.Rows {
		if r.Error != "" || seen[r.Fam] {
			continue
		}
		m, _, err := random.load(i)
		if err != nil {
			t.Fatalf("%s: got %v, want no error", r.Fam, err)
		}
		seen[r.Fam] = true
		cases[m.Family()]++
	}
	for _, f := range families() {
		if counted := f.image.count != nil; counted && (cases[f.name] == 0) != f.unbacked || !counted && f.unbacked {
			t.Errorf("%s: %d recorded cases, unbacked: %v; CONTRIBUTING.md says how to add one", f.name, cases[f.name], f.unbacked)
		}
	}
}
