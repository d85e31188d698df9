package sglang

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/prompt/vision"
)

// formatNames are the conversation formats that --chat-template names (SGLang 0.5.23, parser/conversation.py and
// python_chat_template.py). What they write is not known here.
var formatNames = strings.Fields(`chatml chatml-llava deepseek-ocr deepseek-vl2 devstral gemma-it glm-5.3 glm-5.3-flash gme-qwen2-vl
	internlm2-chat internvl-2-5 janus-pro kimi-vl llama-2 llama-4 llama_3_vision llava_llama_3 minicpmo minicpmv mistral moss-vl
	paddle-ocr phi-4-mm points-v15-chat qwen2-audio qwen2-vl unlimited-ocr vicuna_v1.1 whisper`)

func isFormatName(name string) bool { return slices.Contains(formatNames, name) }

// ErrConversation means that chats are written in one of these formats, or in one that a file describes.
var ErrConversation = &prompt.Unpredicted{Reason: "model whose chats SGLang writes in a format of its own, without a chat template"}

// unrendered returns why a model's chats are not rendered by its template: SGLang encodes them, or writes them in a format that was
// given, or that it takes for this model. A --chat-template that is no .jinja file is the name of a format or describes one.
func unrendered(given string, m prompt.Directory) error {
	switch {
	case encodes(m):
		return prompt.ErrEncoder
	case given == "" && takesFormat(m.ModelType, m.VisionFamily, m.Path), given != "" && !strings.HasSuffix(given, ".jinja"):
		return ErrConversation
	}
	return nil
}

// encodes reports whether SGLang encodes a model's chats by code of its own (0.5.23, parser/chat_encoding.py). It also does so for a
// DeepSeek-V3 without a template, and by --tool-call-parser deepseekv32, deepseekv4, deepseekv41 or kimi_k3, which is not known here.
func encodes(m prompt.Directory) bool {
	arch := m.Architecture()
	return m.ModelType == "deepseek_v41" || strings.Contains(arch, "DeepseekV4") || strings.Contains(arch, "KimiK3") ||
		strings.Contains(arch, "InklingForConditionalGeneration")
}

// Names of directories by which SGLang takes a format; of MiniCPM those of other releases than 4.6 and 4.7.
var (
	formatPaths = regexp.MustCompile(`\bpoints\b|moss.*vl|internvl|janus|vicuna|llava-v1\.5|llava-next-video-(7b|34b)|deepseek.*vl2|` +
		`llava-v1\.6-(yi-)?34b|llava-onevision-qwen2|phi-4-multimodal|deepseek-ocr|unlimited|paddleocr|whisper`)
	miniCPM      = regexp.MustCompile(`minicpm-(v|o)`)
	newerMiniCPM = regexp.MustCompile(`minicpm-(v|o)-4[._][67]`)
)

// takesFormat reports whether SGLang takes a format for a model by itself: by its type, its vision family or its path. In a Hugging
// Face cache the model's name is two levels above its files.
func takesFormat(modelType, family, dir string) bool {
	switch modelType {
	case "multi_modality", "deepseek-ocr", "unlimited-ocr", "whisper", "minicpmv", "minicpmo", "moss_vl":
		return true
	}
	if vision.FactsOf(modelType, family).NamedFormat {
		return true
	}
	parts := strings.Split(filepath.ToSlash(filepath.Clean(dir)), "/")
	path := strings.ToLower(strings.Join(parts[max(0, len(parts)-3):], "/"))
	newer := modelType == "minicpmv4_6" || modelType == "minicpmv4_7" || newerMiniCPM.MatchString(path)
	return formatPaths.MatchString(path) || miniCPM.MatchString(path) && !newer
}
