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

const familiesDoc = "../../../docs/families.md"

// docs/families.md is written from the table: go test ./mmhash/prompt/vision -run Doc -update
func TestFamiliesDoc(t *testing.T) {
	want := renderFamilies()
	if *update {
		if err := os.WriteFile(familiesDoc, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(familiesDoc)
	if err != nil || string(have) != want {
		t.Errorf("docs/families.md is not what the table says; run: go test ./mmhash/prompt/vision -run FamiliesDoc -update (%v)", err)
	}
}

func renderFamilies() string {
	var b strings.Builder
	b.WriteString(`# Vision-language families

What an image becomes in the prompt is computed from the model's own directory. A new checkpoint of a family below works without a change:
the directory is matched by ` + "`architectures`, then `model_type`" + ` of config.json (without a config.json: by the classes that the processor's files name).

A setting is looked for in this order: the request's ` + "`mm_processor_kwargs`" + `, the server's ` + "`--mm-processor-kwargs`" + ` (mirror it in the configuration),
` + "`preprocessor_config.json`, `processor_config.json`, `config.json`" + `, the processor's class default. An ` + "`image_processor`" + ` inside processor_config.json replaces
preprocessor_config.json whole, as in transformers 5. What a rule needs and the directory lacks is an error at load; nothing is guessed.

**Exact** means: the same token ids and the same ranges as the engine. Where "not predicted" names a modality, the prompt is exact up to the first
such part. vLLM turns a picture by its EXIF orientation before counting, SGLang and TensorRT-LLM do not. TensorRT-LLM writes
vocab_size + 1 at the media positions of the Qwen-VL and MiniCPM-V families; SGLang writes ids derived from the pixels there, so these match only themselves.

| family | models | matched by | placeholder | tokens of a picture | not predicted |
|---|---|---|---|---|---|
`)
	cell := func(s string) string { return strings.ReplaceAll(strings.ReplaceAll(s, "|", "\\|"), "\n", "\\n") }
	for _, f := range Families() {
		matched := append(append([]string{}, f.ModelTypes...), f.Architectures...)
		slices.Sort(matched[len(f.ModelTypes):])
		if len(f.ModelTypes) > 0 && len(f.Architectures) > 0 && f.ModelTypes[0] == f.Architectures[0] {
			matched = matched[1:]
		}
		for i := range matched {
			matched[i] = "`" + matched[i] + "`"
		}
		placeholder := f.Placeholder
		if !strings.HasPrefix(placeholder, "(ins") && placeholder != "" {
			placeholder = "`" + placeholder + "`"
		}
		var open []string
		for _, m := range []string{"image", "video", "audio"} {
			if why := f.Unpredicted[m]; why != "" {
				open = append(open, m+": "+why)
			}
		}
		rule := f.Rule
		if f.Note != "" {
			if rule != "" {
				rule += "; "
			}
			rule += "*" + f.Note + "*"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", f.Name, cell(f.Title), cell(strings.Join(matched, ", ")), cell(placeholder), cell(rule), cell(strings.Join(open, "; ")))
	}
	b.WriteString(`
## What is proven
The counts of 28 rules were compared with the models' own processors, whole prompts of 41 families with the Hugging Face processors of transformers 5.23, and
the ids and ranges of six families with a running vLLM 0.32.0 (see ` + "`mmhash/prompt/vision/testdata`" + `). Families whose processor code lives in the model's repository
(phi3_v, glm4v_9b, minicpmv, minicpmv2_5, kimi_vl, molmo, keye) follow the published rules; no engine run backs them.

## What is not exact, and why
- Video beyond qwen2_vl, qwen3_vl, llava_onevision and internvl_chat, and most audio: the engine samples frames or resamples sound by rules that are
  not followed here. Those four are exact for vLLM from 0.31 on, for files that say how many frames they have (docs/fidelity.md).
- nemotron_dynamic: the budget of a picture depends on the server's max_model_len and the other pictures.
- idefics2, mllama, granite_docling, aya_vision and paligemma's trailing newline follow the Hugging Face processor; vLLM does not serve the first ones or no longer.
- A reused uuid makes vLLM serve the older picture's features: the ids then differ from what the new picture says.
`)
	return b.String()
}

// Every entry can be matched, and describes itself.
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
