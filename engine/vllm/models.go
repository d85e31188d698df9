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

// unrendered reports chats that no template renders: by the architecture, or by the --tokenizer-mode that was given. Modes with a
// tokenizer of their own are not known either.
func unrendered(_ string, m prompt.Directory) error {
	switch mode := m.TokenizerMode; {
	case mode == "" || mode == "auto":
		if encoders[m.Architecture()] != "" {
			return prompt.ErrEncoder
		}
	case mode != "hf" && mode != "slow" && mode != "mistral":
		return prompt.ErrEncoder
	}
	return nil
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
	if !v.chunks || v.Generation < H4 || it.HasUUID || it.Mode != "RGB" || it.Transparent || it.Rotated ||
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
var fileTypes = strings.Fields(`arctic aria chameleon chatlm deepseek_ocr deepseek_ocr2 deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4
	deepseek_vl deepseek_vl_hybrid deepseek_vl_v2 ernie4_5 ernie4_5_moe flex_olmo fuyu glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe
	glm_image got_ocr2 gpt_bigcode granite granitemoe granitemoehybrid granitemoeshared h2ovl_chat hyperclovax hyperclovax_vlm internlm2
	jamba janus kimi_k25 kimi_linear llava llava_next mimo_v2_flash minicpm3 minicpmv minicpmv4_6 minicpmv4_7 minimax_m2 ministral
	ministral3 mistral mistral3 mixtral molmo molmo2 nemotron olmo2 olmo3 olmo_hybrid opencua openvla paddleocr_vl persimmon phi3 phi3_v
	phimoe pixtral smolvlm stablelm step3_vl step3p5 vipllava voxtral voxtral_realtime`)

// typeClasses are the classes of model types whose directory names none; forcedClasses replace the one that it names.
var (
	typeClasses = byType(map[tokenizer.Class]string{
		"Qwen2Tokenizer": `audioflamingo3 colqwen2 cosmos3_omni fun_asr_nano hunyuan_vl internvl lighton_ocr ovis2 qianfan_ocr qwen2_5_omni
			qwen2_5_vl qwen2_audio qwen2_moe qwen2_vl qwen3 qwen3_asr qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe vibevoice`,
		"Qwen3_5Tokenizer": "qwen3_5_text",
		"GPT2Tokenizer":    "blip-2 codegen dbrx emu3 gpt2 gpt_neo gptj instructblip instructblipvideo jais2 opt phi starcoder2",
		"GPTNeoXTokenizer": "falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv xlstm",
		"CohereTokenizer":  "aya_vision cohere cohere2",
		"GemmaTokenizer": `diffusion_gemma gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma shieldgemma2 t5gemma
			zaya`,
		"LlamaTokenizer": "idefics idefics2", "CodeLlamaTokenizer": "code_llama"})
	forcedClasses = byType(map[tokenizer.Class]string{"Qwen2Tokenizer": "qwen2",
		"Qwen3_5Tokenizer": "qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen4_exp", "GPT2Tokenizer": "hyperclovax_vision_v2"})
)

// otherClasses are classes with constructors that are not read here, and those that do not read a tokenizer.json.
var otherClasses = strings.Fields(`BartTokenizer BarthezTokenizer BlenderbotTokenizer BlenderbotSmallTokenizer CamembertTokenizer
	CLIPTokenizer CodeLlamaTokenizer CpmTokenizer CpmAntTokenizer CTRLTokenizer DebertaTokenizer EsmTokenizer EsmcTokenizer GPTSw3Tokenizer
	GPTNeoXJapaneseTokenizer HerbertTokenizer LayoutLMv3Tokenizer LEDTokenizer LongformerTokenizer LukeTokenizer MarkupLMTokenizer
	MLukeTokenizer MvpTokenizer NllbTokenizer NougatTokenizer OpenAIGPTTokenizer PhobertTokenizer PLBartTokenizer ReformerTokenizer
	RobertaTokenizer SeamlessM4TTokenizer Siglip2Tokenizer SiglipTokenizer SpeechT5Tokenizer Tipsv2Tokenizer WhisperTokenizer
	BertTokenizer XLMTokenizer ByT5Tokenizer`)

func byType(classes map[tokenizer.Class]string) map[string]tokenizer.Class {
	table := map[string]tokenizer.Class{}
	for class, types := range classes {
		for t := range strings.FieldsSeq(types) {
			table[t] = class
		}
	}
	return table
}

// tokenizerClass returns what a tokenizer_class makes of a tokenizer.json in vLLM 0.30 to 0.33, which require transformers 5.
func tokenizerClass(modelType, named string) tokenizer.Class {
	class := tokenizer.Class(strings.TrimSuffix(named, "Fast"))
	switch {
	case forcedClasses[modelType] != "":
		class = forcedClasses[modelType]
	case slices.Contains(fileTypes, modelType):
		return tokenizer.AsFile
	case class == "":
		class = typeClasses[modelType]
	}
	switch {
	case slices.Contains(otherClasses, string(class)):
		return tokenizer.Unlisted
	case tokenizer.Listed(class):
		return class
	}
	return tokenizer.AsFile
}
