package vision

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/families.md from the table")

const familiesDoc = "../../docs/families.md"

// docs/families.md is written from the table: go test ./prompt/vision -run Doc -update
func TestFamiliesDoc(t *testing.T) {
	want := renderFamilies()
	if *update {
		if err := os.WriteFile(familiesDoc, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(familiesDoc)
	if err != nil || string(have) != want {
		t.Errorf("docs/families.md is not what the table says; run: go test ./prompt/vision -run FamiliesDoc -update (%v)", err)
	}
}

func renderFamilies() string {
	var b strings.Builder
	b.WriteString(`# Vision-language families

A family is recognized by ` + "`architectures` or `model_type`" + ` of config.json (` + "`prompt/vision/families_*.go`" +
		`). For a fine-tune with others set ` + "`vision_family`" + ` to the family's name.

Each setting of an image's token count comes from the first of these that has it: the request's ` + "`mm_processor_kwargs`" +
		`, the server's (repeat them in the configuration), ` + "`preprocessor_config.json`, `processor_config.json`, `config.json`" +
		`, the processor's default.

`)
	for _, f := range families() {
		fmt.Fprintf(&b, "- **%s**: %s", f.name, f.title)
		notes := []string{f.note, ""}
		if f.unbacked {
			notes[1] = "no recorded case"
		}
		notes = slices.DeleteFunc(notes, func(note string) bool { return note == "" })
		if len(notes) > 0 {
			fmt.Fprintf(&b, ". *%s.*", strings.Join(notes, "; "))
		}
		if f.image.count == nil {
			b.WriteString(". *not counted.*")
		}
		b.WriteString("\n")
	}
	b.WriteString(`
*Not counted* images, video and audio are [learned](fidelity.md#learned).

vLLM rotates an image by its EXIF orientation before counting; SGLang and TensorRT-LLM do not. [Comparisons](fidelity.md#comparisons) back these rules, except where there is *no recorded case*.
`)
	return b.String()
}

// TestTable: every entry can be matched, and describes itself.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range families() {
		if seen[f.name] || f.title == "" || f.image == nil || len(f.archs)+len(f.types) == 0 {
			t.Errorf("%s: twice in the table, without a title, an image rule or a match", f.name)
		}
		seen[f.name] = true
		if f.image.count != nil && (f.image.id == "" || f.image.target == "" && f.image.prefix == "" && f.name != "blip2") {
			t.Errorf("%s: image entry without a count, an id or a target", f.name)
		}
		for _, e := range []*entry{f.image, f.video, f.audio} {
			if e == nil {
				continue
			}
			for _, s := range append([]string{e.target, e.targetHF, e.prefix, e.id, e.put}, texts(e.layout)...) {
				for _, ref := range nameRef.FindAllString(s, -1) {
					if _, ok := f.names[ref[1:len(ref)-1]]; !ok {
						t.Errorf("%s: %q names no token of the family", f.name, ref)
					}
				}
			}
		}
	}
}

func texts(l layout) (out []string) {
	l.each(func(s string) string { out = append(out, s); return s })
	return out
}
