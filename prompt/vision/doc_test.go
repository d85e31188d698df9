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

This page lists the supported vision-language families, and how the tokens of an image are computed for each from the model's own directory. A new checkpoint of a family below works without a change:
the directory is matched by ` + "`architectures`, then `model_type`" + ` of config.json (without a config.json: by the classes that the processor's files name).
For a fine-tune that has neither, because its ` + "`model_type`" + ` is its own, the configuration's key ` + "`vision_family`" + ` names a family of the first column
(docs/configuration.md); without it such a model is exact up to the first image, and a warning at start says so.

A setting is read from the first of these that has it: the request's ` + "`mm_processor_kwargs`" + `, the server's ` + "`--mm-processor-kwargs`" + ` (repeat it in the configuration),
` + "`preprocessor_config.json`, `processor_config.json`, `config.json`" + `, the processor's class default. An ` + "`image_processor`" + ` inside processor_config.json replaces
preprocessor_config.json entirely, as in transformers 5. If the directory lacks something that a rule needs, loading fails; nothing is guessed.

**Exact** means the same token ids and the same ranges as the engine. If "not predicted" names a modality, the prompt is exact up to the first
such part. vLLM rotates an image by its EXIF orientation before counting; SGLang and TensorRT-LLM do not. At the media positions of the Qwen-VL and MiniCPM-V families, TensorRT-LLM writes
vocab_size + 1; SGLang writes ids derived from the pixels, so these match only themselves.

| family | models | matched by | placeholder | tokens of an image | not predicted |
|---|---|---|---|---|---|
`)
	cell := func(s string) string { return strings.ReplaceAll(strings.ReplaceAll(s, "|", "\\|"), "\n", "\\n") }
	for _, f := range families() {
		matched := append(append([]string{}, f.types...), f.archs...)
		slices.Sort(matched[len(f.types):])
		if len(f.types) > 0 && len(f.archs) > 0 && f.types[0] == f.archs[0] {
			matched = matched[1:]
		}
		for i := range matched {
			matched[i] = "`" + matched[i] + "`"
		}
		m := &Model{fam: f, names: map[string]string{}}
		for key, n := range f.names {
			m.names[key] = n.text
		}
		placeholder := m.fill(f.image.target)
		if placeholder != "" {
			placeholder = "`" + placeholder + "`"
		} else if f.image.id != "" {
			placeholder = "(inserted at the start)"
		}
		var open []string
		for i, e := range []*entry{f.image, f.video, f.audio} {
			if e != nil && e.undecidable != "" {
				open = append(open, []string{"image", "video", "audio"}[i]+": "+e.undecidable)
			}
		}
		rule := ruleOf(f.image.count)
		if f.note != "" {
			if rule != "" {
				rule += "; "
			}
			rule += "*" + f.note + "*"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", f.name, cell(f.title), cell(strings.Join(matched, ", ")), cell(placeholder), cell(rule), cell(strings.Join(open, "; ")))
	}
	b.WriteString(`
## What is proven
The counts of 28 rules were compared with the models' own processors, the whole prompts of 41 families with the Hugging Face processors of transformers 5.23, and
the ids and ranges of six families with a running vLLM 0.32.0 (see ` + "`prompt/vision/testdata`" + `). Families whose processor code lives in the model's repository
(phi3_v, glm4v_9b, minicpmv, minicpmv2_5, kimi_vl, molmo, keye) follow the published rules and were not compared with a running engine.

## What is not exact, and why
- Video beyond qwen2_vl, qwen3_vl, llava_onevision and internvl_chat, and most audio: the engine samples frames or resamples sound by rules that are
  not implemented here. Those four are exact for vLLM from 0.31 on, for files that state their number of frames (docs/fidelity.md).
- nemotron_dynamic: the budget of an image depends on the server's max_model_len and the other images.
- idefics2, mllama, granite_docling, aya_vision and paligemma's trailing newline follow the Hugging Face processor; vLLM does not serve the first ones, or no longer does.
- If a client reuses a uuid, vLLM serves the older image's features: the ids then differ from those of the new image.
`)
	return b.String()
}

// ruleOf describes how a family counts a picture, with the names of its settings.
func ruleOf(k kind) string {
	switch k := k.(type) {
	case llama4:
		return "best fitting canvas, up to " + k.max.key() + " tiles"
	case molmo:
		return "overview and up to " + k.max.key() + " overlapping crops"
	case perceptionLM:
		return "covering canvas, up to " + k.max.key() + " tiles"
	case fixed:
		return "always " + k.n.key()
	case square:
		return "square of " + k.size.key()
	case anyres:
		return "overview and unpadded canvas of " + k.pinpoints.key()
	case panScan:
		return "always " + k.tokens.key() + "; pan and scan by " + k.on.key()
	case phi3:
		return "up to " + k.crops.key() + " crops of 336 px"
	case phi4:
		return "up to " + k.crops.key() + " crops, padding left out"
	case splitLongest:
		return "longest edge " + k.edge.key() + " cut by " + k.tile.key()
	case slicesLog:
		return "slices of " + k.res.key() + ", up to " + k.max.key()
	case minicpm46:
		return "slices of " + k.res.key() + ", each at its own size"
	case step3:
		return "windows of 504 px"
	case smartResize:
		return "smart_resize, unit " + k.patch.key() + " x " + k.merge.key()
	case fitLongest:
		return "longest edge " + k.edge.key()
	case kimiVL:
		return "patch limit " + k.limit.key() + ", padded up"
	case kimiK25:
		return "patch limits " + k.limit.key() + " and " + k.side.key()
	case softBudget:
		return "token budget " + k.budget.key()
	case tiles:
		how := "closest"
		if k.choose != nil {
			how = "best"
		}
		return how + " grid of " + k.size.key() + " px tiles, " + k.min.key() + " to " + k.max.key()
	case deepseekOCR:
		return "overview and closest grid of tiles"
	case deepseekVL2:
		return "canvas of " + k.candidates.key()
	case lfm2:
		return "whole up to " + k.maxTokens.key() + " tokens, else closest grid of " + k.tile.key() + " px tiles"
	case graniteDocling:
		return "closest grid of " + k.size.key() + " px tiles"
	case idefics2:
		return "always " + k.seqLen.key() + ", 5 times with splitting"
	case largestQuery:
		return "largest of " + k.table.key()
	case msac:
		return ruleOf(k.tiles)
	case nil:
		return ""
	}
	panic(fmt.Sprintf("%T: no text for docs/families.md", k))
}

// key returns the setting's usual name, for documentation.
func (v value) key() string {
	if len(v) == 0 {
		return ""
	}
	first := v[0]
	if lit, ok := strings.CutPrefix(first, "="); ok {
		return lit
	}
	_, key, _ := strings.Cut(first, ".")
	return "`" + key + "`"
}

// TestTable: every entry can be matched, and describes itself.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range families() {
		if seen[f.name] || f.title == "" || f.image == nil || len(f.archs)+len(f.types) == 0 {
			t.Errorf("%s: twice in the table, without a title, an image rule or a match", f.name)
		}
		seen[f.name] = true
		if f.image.undecidable == "" && (f.image.count == nil || f.image.id == "" || f.image.target == "" && f.image.prefix == "" && f.name != "blip2") {
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
