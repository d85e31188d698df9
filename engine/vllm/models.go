package vllm

import (
	"slices"
	"strings"

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
