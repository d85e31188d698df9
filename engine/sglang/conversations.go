package sglang

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/prompt/vision"
)

// Prompts that SGLang (0.5.23, parser/conversation.py) writes without the chat template: by a name that the server was started with
// (--chat-template), or for models that it recognizes by type or path.

// conversationFormat is one of SGLang's named conversation formats.
type conversationFormat struct {
	name          string
	system        string    // the system text, with %s; "" for none
	defaultSystem string    // what replaces %s if the conversation has no system text
	bare          bool      // an empty system text is left out
	after         string    // after the system text
	roles         [2]string // names of the user's and the assistant's role
	mid           string    // between a role and its message
	open          string    // after the role that is to answer
	seps          [2]string // after messages, alternating
	trims         bool      // messages are trimmed
	image         string    // "" if SGLang's handling of an image is not known (MiniCPM and POINTS: code of the model's repository)
	counted       string    // placeholder that parts may not hold more often than there are images
	ends          []string  // suffixes cut off in this order when the last message is continued
	style         func(w *conversationFormat, system string, said []formatTurn) string
}

// formatTurn is one turn of such a conversation. If text is empty, only the role is written.
type formatTurn struct {
	role int
	text string
}

const (
	chatmlSystem = "<|im_start|>system\n%s"
	janusSystem  = "You are a helpful language and vision assistant. You are able to understand the visual content that " +
		"the user provides, and assist the user with a variety of tasks using natural language"
	qwenImage = "<|vision_start|><|image_pad|><|vision_end|>"
)

func chatmlRoles() [2]string { return [2]string{"<|im_start|>user", "<|im_start|>assistant"} }
func headed(open, end string) [2]string {
	return [2]string{open + "user" + end, open + "assistant" + end}
}
func both(sep string) [2]string { return [2]string{sep, sep} }

// conversationFormats returns the table of formats, without those for audio alone.
func conversationFormats() []conversationFormat {
	im, line := "<|im_end|>", "<|im_end|>\n"
	chatml := conversationFormat{system: chatmlSystem, defaultSystem: "You are a helpful assistant.", after: line,
		roles: chatmlRoles(), mid: "\n", open: "\n", seps: both(line), ends: []string{"<|endoftext|>", im}}
	lines := conversationFormat{system: chatmlSystem, bare: true, after: line, roles: chatmlRoles(), mid: "\n", open: "\n",
		seps: both(line), ends: []string{im, line}}
	llama3 := conversationFormat{system: "<|start_header_id|>system<|end_header_id|>\n\n%s<|eot_id|>", bare: true,
		defaultSystem: janusSystem + ".", trims: true,
		roles: headed("<|start_header_id|>", "<|end_header_id|>\n\n"), seps: both("<|eot_id|>"), ends: []string{"<|end_of_text|>", "<|eot_id|>"}}
	named := func(name string, w conversationFormat, change func(*conversationFormat)) conversationFormat {
		w.name = name
		if change != nil {
			change(&w)
		}
		return w
	}
	return []conversationFormat{
		named("chatml", chatml, nil),
		named("chatml-llava", chatml, nil),
		named("qwen2-vl", lines, func(w *conversationFormat) { w.defaultSystem, w.image = "You are a helpful assistant.", qwenImage }),
		named("gme-qwen2-vl", lines, func(w *conversationFormat) {
			w.defaultSystem, w.image, w.bare, w.style, w.ends = "You are a helpful assistant.", qwenImage+"\n", false,
				embedding, []string{"<|endoftext|>", line}
		}),
		named("minicpmv", lines, func(w *conversationFormat) {
			w.system, w.defaultSystem, w.ends = chatmlSystem+".", "You are a helpful assistant", []string{line}
		}),
		named("minicpmo", lines, func(w *conversationFormat) {
			w.defaultSystem, w.ends = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.", []string{line}
		}),
		named("moss-vl", lines, nil),
		named("points-v15-chat", lines, func(w *conversationFormat) { w.system = "" }),
		{name: "internvl-2-5", system: chatmlSystem, defaultSystem: "你是书生·万象，英文名是InternVL，是由上海人工智能实验室、清华大学及多家合作单位联合开发的多模态大语言模型。", after: line,
			roles: headed("<|im_start|>", "\n"), seps: both(line), ends: []string{im, "<|action_end|>", line}},
		{name: "internlm2-chat", system: chatmlSystem, after: "\n", roles: chatmlRoles(), mid: ": ", open: ":",
			seps: both("\n"), ends: []string{im, "<|action_end|>", "\n"}},
		named("llama_3_vision", llama3, func(w *conversationFormat) { w.image = "<|image|>\n" }),
		named("llava_llama_3", llama3, nil),
		{name: "llama-4", system: "<|header_start|>system<|header_end|>\n\n%s<|eot|>", bare: true, trims: true,
			roles: headed("<|header_start|>", "<|header_end|>\n\n"), seps: both("<|eot|>"),
			image: "<|image|>\n", ends: []string{"<|end_of_text|>", "<|eot|>", "<|eom|>"}},
		{name: "llama-2", system: "[INST] <<SYS>>\n%s\n<</SYS>>\n\n", roles: [2]string{"[INST]", "[/INST]"},
			seps: [2]string{" ", " </s><s>"}, ends: []string{"[INST]", "[/INST]", "<<SYS>>", "<</SYS>>", " ", " </s><s>"},
			bare: true, style: llama2},
		{name: "mistral", system: "[SYSTEM_PROMPT]\n%s\n[/SYSTEM_PROMPT]\n\n", roles: [2]string{"[INST]", "[/INST]"},
			seps: [2]string{" ", " </s><s>"}, image: "[IMG]\n",
			ends: []string{"[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", " ", " </s><s>"}, bare: true, style: llama2},
		{name: "vicuna_v1.1", system: "%s",
			defaultSystem: "A chat between a curious user and an artificial intelligence assistant. The assistant gives " +
				"helpful, detailed, and polite answers to the user's questions.",
			after: " ", roles: [2]string{"USER", "ASSISTANT"}, mid: ": ", open: ":", seps: [2]string{" ", "</s>"}, ends: []string{" ", "</s>"}},
		{name: "janus-pro", system: "%s.", defaultSystem: janusSystem, after: "\n\n", roles: [2]string{"User", "Assistant"},
			mid: ": ", open: ":", seps: [2]string{"\n\n", "<｜end▁of▁sentence｜>"},
			ends: []string{"<|User|>", "<｜end▁of▁sentence｜>", "\n\n", "<｜end▁of▁sentence｜>"}},
		{name: "deepseek-vl2", counted: "<image>", system: "%s", bare: true, after: "\n\n",
			roles: [2]string{"<|User|>", "<|Assistant|>"}, mid: ": ", open: ":", seps: [2]string{"\n\n", "<｜end▁of▁sentence｜>"},
			ends: []string{"User:", "<｜end▁of▁sentence｜>", "\n\n", "<｜end▁of▁sentence｜>"}},
		{name: "deepseek-ocr", ends: []string{"<｜end▁of▁sentence｜>"}},
		{name: "unlimited-ocr", system: "%s"},
		{name: "phi-4-mm", system: "%s", roles: [2]string{"<|user|>", "<|assistant|>"}, seps: both("<|end|>"),
			ends: []string{"<|end|>", "<|end|>"}},
		{name: "kimi-vl", system: "<|im_system|>system<|im_middle|>%s", defaultSystem: "You are a helpful assistant",
			roles: [2]string{"<|im_user|>user<|im_middle|>", "<|im_assistant|>assistant<|im_middle|>"},
			seps:  both(im), image: "<|media_start|>image<|media_content|><|media_pad|><|media_end|>\n", ends: []string{im, im}},
		{name: "gemma-it", system: "<start_of_turn>user\n%s\n\n", defaultSystem: "You are a helpful assistant.",
			roles: [2]string{"<start_of_turn>user\n", "<start_of_turn>model\n"}, seps: both("<end_of_turn>\n"),
			image: "<start_of_image>\n", ends: []string{"<end_of_turn>", "<end_of_turn>\n"}, style: gemma},
		{name: "paddle-ocr", system: "<|begin_of_sentence|>%s", roles: [2]string{"User", "Assistant"}, mid: ": ", open: ": ",
			seps: both("<|end_of_sentence|>"), ends: []string{"<|end_of_sentence|>", "<|end_of_sentence|>"},
			image: "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>\n", style: paddle},
	}
}

// unsupportedFormats lists the formats that are not implemented here (parser/conversation.py and python_chat_template.py).
var unsupportedFormats = []string{"devstral", "qwen2-audio", "whisper", "glm-5.3", "glm-5.3-flash"}

func isFormatName(name string) bool {
	return slices.Contains(unsupportedFormats, name) || formatNamed(name) != nil
}

// ErrConversation means that a chat uses a format that is not implemented here, or holds media for which its format has no place.
var ErrConversation = &prompt.Unpredicted{Reason: "SGLang writes this model's prompts without its chat template, and " +
	"where it puts media then is not known here"}

// conversation returns the format of a model's chats: the one given, or the one that SGLang selects by itself; nil if SGLang
// renders the chat template. A --chat-template that is neither a known format nor a .jinja file is a custom format.
func conversation(given string, m prompt.Directory) (prompt.Conversation, error) {
	if encodes(m) {
		return nil, prompt.ErrEncoder
	}
	name := given
	if name == "" {
		name = formatOf(m.ModelType, m.VisionFamily, m.Path)
	}
	if w := formatNamed(name); w != nil {
		return w.write, nil
	}
	if name != "" && !strings.HasSuffix(name, ".jinja") {
		return nil, ErrConversation
	}
	return nil, nil
}

// encodes reports whether SGLang encodes a model's chats by code of its own (0.5.23, parser/chat_encoding.py). It also does so for a
// DeepSeek-V3 without a template, and by --tool-call-parser deepseekv32, deepseekv4, deepseekv41 or kimi_k3, which is not known here.
func encodes(m prompt.Directory) bool {
	arch := m.Architecture()
	return m.ModelType == "deepseek_v41" || strings.Contains(arch, "DeepseekV4") || strings.Contains(arch, "KimiK3") ||
		strings.Contains(arch, "InklingForConditionalGeneration")
}

func formatNamed(name string) *conversationFormat {
	for _, w := range conversationFormats() {
		if w.name == name {
			return &w
		}
	}
	return nil
}

// formatOf returns the name of the format that SGLang selects for a model, "" if it renders the chat template. In a Hugging Face
// cache the model's name is two levels above its files.
func formatOf(modelType, family, dir string) string {
	parts := strings.Split(filepath.ToSlash(filepath.Clean(dir)), "/")
	path := strings.ToLower(strings.Join(parts[max(0, len(parts)-3):], "/"))
	for _, rule := range []struct{ path, name string }{
		{`\bpoints\b`, "points-v15-chat"}, {`moss.*vl`, "moss-vl"}, {"", ""}, {`internvl`, "internvl-2-5"}, {`janus`, "janus-pro"},
		{`vicuna|llava-v1\.5|llava-next-video-7b`, "vicuna_v1.1"}, {`deepseek.*vl2`, "deepseek-vl2"},
		{`llava-v1\.6-34b|llava-v1\.6-yi-34b|llava-next-video-34b|llava-onevision-qwen2`, "chatml-llava"},
		{`minicpm-v`, "minicpmv"}, {`minicpm-o`, "minicpmo"}, {`phi-4-multimodal`, "phi-4-mm"}, {`deepseek-ocr`, "deepseek-ocr"},
		{`unlimited`, "unlimited-ocr"}, {`paddleocr`, "paddle-ocr"}, {`whisper`, "whisper"},
	} {
		if rule.path == "" {
			if name := formatOfType(modelType, family); name != "" {
				return name
			}
			continue
		}
		newer := strings.HasPrefix(rule.name, "minicpm") && (modelType == "minicpmv4_6" || modelType == "minicpmv4_7" ||
			regexp.MustCompile(`minicpm-(v|o)-4[._][67]`).MatchString(path))
		if !newer && regexp.MustCompile(rule.path).MatchString(path) {
			return rule.name
		}
	}
	return ""
}

// formatOfType returns the format of a model type, by its vision family if it has one.
func formatOfType(modelType, family string) string {
	switch modelType {
	case "multi_modality":
		return "janus-pro"
	case "deepseek-ocr", "unlimited-ocr", "whisper", "minicpmv", "minicpmo":
		return modelType
	case "moss_vl":
		return "moss-vl"
	}
	return vision.FactsOf(modelType, family).Conversation
}

// write returns a conversation as one text.
func (w *conversationFormat) write(r *prompt.Reader, turns []prompt.Turn, goOn bool) (string, error) {
	system := w.defaultSystem
	var list []formatTurn
	for i := range turns {
		t := &turns[i]
		role := 0
		switch t.Role {
		case "assistant":
			role = 1
		case "system", "user":
		default:
			return "", prompt.Refuse("message of an unknown role")
		}
		if t.Role == "user" {
			text, err := w.userSays(r, t)
			if err != nil {
				return "", err
			}
			list = append(list, formatTurn{0, text})
			continue
		}
		text := ""
		switch {
		case t.Kind == body.None && role == 0:
			continue
		case t.Kind == body.None:
		case len(t.Items) == 1 && t.Items[0].Medium == nil && prompt.OnlyText(t.Items):
			text = t.Items[0].Text
		default:
			return "", prompt.Refuse("message that is not a single string")
		}
		if role == 0 {
			system = text
		} else {
			list = append(list, formatTurn{1, text})
		}
	}
	goOn = goOn && turns[len(turns)-1].Role == "assistant"
	if !goOn {
		list = append(list, formatTurn{role: 1})
	}
	write := w.style
	if write == nil {
		write = plain
	}
	text := strings.ReplaceAll(w.system, "%s", system)
	if w.bare && (system == "" || text == "") {
		own := *w
		own.after, text, w = "", "", &own
	}
	text = write(w, text, list)
	if goOn {
		for _, end := range w.ends {
			text = strings.TrimSuffix(text, end)
		}
	}
	return text, nil
}

// userSays returns a user's message as one text, with placeholders for its images.
func (w *conversationFormat) userSays(r *prompt.Reader, t *prompt.Turn) (string, error) {
	if text, ok := t.SingleText(); ok {
		return text, nil
	}
	if t.Kind != body.List {
		return "", prompt.Refuse("user message without content")
	}
	images := 0
	for _, it := range t.Items {
		if it.Medium != nil && it.Medium.Modality == "image" {
			images++
		}
	}
	var b strings.Builder
	for _, it := range t.Items {
		switch {
		case it.Medium == nil:
			if images > 16 {
				b.WriteByte('\n')
			}
			b.WriteString(it.Text)
		case w.image == "" || it.Medium.Modality != "image":
			return "", ErrConversation
		default:
			r.Take(it.Medium)
			b.WriteString(w.image)
		}
	}
	text := b.String()
	if w.counted != "" && strings.Count(text, w.counted) > images {
		return "", prompt.Refuse("more placeholders typed than media given")
	}
	return text, nil
}

// plain concatenates the system text, roles and messages.
func plain(w *conversationFormat, system string, list []formatTurn) string {
	var b strings.Builder
	b.WriteString(system + w.after)
	for i, s := range list {
		switch {
		case s.text == "":
			b.WriteString(w.roles[s.role] + w.open)
			continue
		case w.trims:
			s.text = strings.TrimSpace(s.text)
		}
		b.WriteString(w.roles[s.role] + w.mid + s.text + w.seps[i%2])
	}
	return b.String()
}

func embedding(w *conversationFormat, system string, list []formatTurn) string {
	return plain(w, system, list) + "<|endoftext|>"
}

// llama2 derives a message's role from its position.
func llama2(w *conversationFormat, system string, list []formatTurn) string {
	if system == "" {
		system = "[INST] "
	}
	var b strings.Builder
	b.WriteString(system)
	for i, s := range list {
		switch tag := w.roles[i%2]; {
		case s.text == "":
			b.WriteString(tag)
		case i == 0:
			b.WriteString(s.text + " ")
		default:
			b.WriteString(tag + " " + s.text + w.seps[i%2])
		}
	}
	return b.String()
}

// gemma puts the system text in front of the first message.
func gemma(w *conversationFormat, system string, list []formatTurn) string {
	if len(list) > 0 && list[0].text != "" {
		first := list[0].text
		return system + first + w.seps[0] + plain(&conversationFormat{roles: w.roles, seps: w.seps}, "", list[1:])
	}
	return plain(w, system, list)
}

func paddle(w *conversationFormat, system string, list []formatTurn) string {
	var b strings.Builder
	b.WriteString(system)
	for _, s := range list {
		b.WriteString(w.roles[s.role] + ": ")
		switch {
		case s.text == "":
		case s.role == 0:
			b.WriteString(strings.ReplaceAll(s.text, w.image, strings.TrimSuffix(w.image, "\n")) + "\n")
		default:
			b.WriteString(s.text + w.seps[0])
		}
	}
	return b.String()
}
