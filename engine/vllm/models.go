package vllm

import (
	"slices"
	"strings"

	"github.com/sightline-router/sightline/media/pixels"
	"github.com/sightline-router/sightline/mmhash/enginehash"
	"github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/prompt/tokenizer"
)

// Some rules of vLLM hold for single architectures (config.json's first one). TestContract compares them with every release's own.

// encoders are the tokenizer modes that vLLM selects by architecture (0.30 to 0.33, config/model.py). It renders none of these by a
// Jinja template, except those of HfRenderer.
var encoders = map[string]string{
	"DeepseekV32ForCausalLM": "deepseek_v32", "DeepseekV4ForCausalLM": "deepseek_v4", "DeepseekV4ForConditionalGeneration": "deepseek_v4",
	"DeepseekV41ForCausalLM": "deepseek_v41", "InklingForCausalLM": "inkling", "InklingForConditionalGeneration": "inkling",
	"KimiK3ForConditionalGeneration": "kimi_k3", "MoonshotKimiaForCausalLM": "kimi_audio", "Alpamayo2Super": "alpamayo2_super",
}

// conversation reports chats that no template renders: by the architecture, or by the --tokenizer-mode that was given. Modes with a
// tokenizer of their own are not known either.
func conversation(_ string, m prompt.Directory) (prompt.Conversation, error) {
	switch mode := m.TokenizerMode; {
	case mode == "" || mode == "auto":
		if encoders[m.Architecture()] != "" {
			return nil, prompt.ErrEncoder
		}
	case mode != "hf" && mode != "slow" && mode != "mistral":
		return nil, prompt.ErrEncoder
	}
	return nil, nil
}

// twice returns what an architecture's names are hashed with once more since 0.33 (its _get_mm_hashes): the names of DeepSeek-VL2 and
// H2OVL say whether images are cropped, which depends on their number.
func (v *Names) twice(r enginehash.Recipe, it enginehash.Item) (enginehash.Recipe, error) {
	w, key, value := writer{framed: true}, "", false
	switch v.twiceBy {
	case "cropping":
		key, value = v.twiceBy, it.Images <= 2
	case "use_msac":
		if it.Images <= 1 { // then the processor's own setting decides
			return enginehash.Recipe{}, notComputable("vLLM hashes a setting of the model's processor")
		}
		key = v.twiceBy
	default:
		return r, nil
	}
	hashed := 2 * r.Algorithm.New().Size()
	if r.Ready {
		hashed = len(r.Known)
	}
	if key < "mm_hash" {
		w.field(key, enginehash.BoolOf(value))
	}
	w.frame("mm_hash")
	w.b = append(w.b, tagLeaf)
	w.length(hashed)
	before := w.b
	w.b = nil
	if key > "mm_hash" {
		w.field(key, enginehash.BoolOf(value))
	}
	if r.Ready {
		r.Known = enginehash.Recipe{Algorithm: v.Algorithm, Before: before, After: w.b}.Of([]byte(r.Known))
		return r, nil
	}
	r.Again = &[2][]byte{before, w.b}
	return r, nil
}

// chunk returns how an image is named in a model that takes only vision chunks (Kimi-K2.5): by its decoded pixels. ok is false for an
// image that vLLM converts or rotates first, and for requests with options.
func (v *Names) chunk(it enginehash.Item) (f pixels.Form, ok bool) {
	if !v.chunks || v.Generation < H6 || it.HasUUID || it.Mode != "RGB" || it.Transparent || it.Rotated ||
		len(it.ProcessorKwargs) > 0 || len(it.MediaIO) > 0 || len(v.MediaIO) > 0 {
		return f, false
	}
	h := v.Algorithm.New()
	h.Write([]byte(v.Model))
	h.Sum(f.Key[:0:32])
	copy(f.Key[:], "vLLM chunk")
	f.Of = v.chunkOf
	return f, true
}

// chunkOf hashes {"type": "image", "image": pixels, "uuid": None} (multimodal/hasher.py).
func (v *Names) chunkOf(p *pixels.RGB) string {
	w := writer{framed: true}
	object := func(key string, fields int) {
		w.frame(key)
		w.b = append(w.b, tagObject)
		w.length(fields)
	}
	w.field("model_id", enginehash.TextOf(v.Model))
	object("vision_chunk", 3)
	w.field("type", enginehash.TextOf("image"))
	w.frame("image")
	w.b = append(w.b, tagLeaf)
	object("image", 2)
	w.field("mode", enginehash.TextOf("RGB"))
	w.frame("data")
	w.b = append(w.b, tagLeaf)
	object("ndarray", 3)
	w.field("dtype", enginehash.TextOf("|u1"))
	w.field("shape", enginehash.IntsOf([]int{p.H, p.W, 3}))
	w.frame("data")
	w.file(int64(3 * p.W * p.H))
	r := enginehash.Recipe{Algorithm: v.Algorithm, Before: w.b}
	w.b = nil
	w.field("uuid", enginehash.Value{Kind: enginehash.Null})
	r.After = w.b
	d := r.Start()
	d.Write(p.Pix)
	return d.Name()
}

// fileTypes are the model types for which transformers (5.17 to 5.20, models/auto/tokenization_auto.py) uses a tokenizer.json as it is,
// whatever tokenizer_class says.
var fileTypes = strings.Fields(`aria deepseek_ocr deepseek_ocr2 deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 deepseek_vl
	deepseek_vl_hybrid deepseek_vl_v2 glm4 glm4_moe glm4v glm4v_moe granite granitemoe h2ovl_chat internlm2 janus kimi_k25 llava
	llava_next minicpmv minicpmv4_6 mistral mistral3 mixtral molmo molmo2 nemotron olmo2 paddleocr_vl phi3
	phi3_v pixtral smolvlm step3_vl vipllava`)

// tokenizerClass returns what a tokenizer_class makes of a tokenizer.json in vLLM 0.30 to 0.33, which require transformers 5.
func tokenizerClass(modelType, class string) tokenizer.Class {
	if slices.Contains(fileTypes, modelType) {
		return tokenizer.AsFile
	}
	class = strings.TrimSuffix(class, "Fast")
	if modelType == "qwen2" { // its own class, whatever the file says
		class = "Qwen2Tokenizer"
	}
	switch class {
	case "GPT2Tokenizer":
		return tokenizer.GPT2Class
	case "Qwen2Tokenizer":
		return tokenizer.Qwen2Class
	case "LlamaTokenizer":
		return tokenizer.LlamaClass
	}
	return tokenizer.AsFile
}
