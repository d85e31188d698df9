package sglang

import (
	"slices"
	"strings"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/prompt/template"
	"github.com/sightline-router/sightline/prompt/vision"
)

// Dialect returns how SGLang reads requests (read in 0.5.23, and compared with its server).
func Dialect() prompt.Dialect {
	return prompt.Dialect{
		IDsField: "input_ids", AdapterField: "lora_path",
		Unread: []string{"reasoning", "thinking", "task", "max_dynamic_patch", "min_dynamic_patch", "use_audio_in_video",
			"images_config", "video_config", "mm_processor_kwargs", "suffix"},
		TokenizersTemplate: true, BareTools: true, ContinuesBehind: true, DecodesIDs: true,
		Reading: vision.Reading{Processor: true},
		Format:  (*template.Template).SGLangFormat, FileText: fileText, Named: isFormatName, Unrendered: unrendered,
		Part: part, Messages: messages, Effort: effortSets, Tools: tools, Reuse: reuse,
	}
}

// fileText returns the template in a --chat-template file (template_manager.py).
func fileText(text string) string { return strings.ReplaceAll(strings.Trim(text, "\n"), `\n`, "\n") }

// efforts are OpenAI's words, DeepSeek's ultra and SGLang's max. What a template prints of a number depends on how pydantic converts it.
var efforts = []string{"none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"}

// effortSets returns what a reasoning_effort sets (0.5.23, normalize_reasoning_inputs in entrypoints/openai/protocol.py): both names by
// which templates ask for thinking, and what Nemotron 3 Super's asks for (parser/template_detection.py).
func effortSets(t *template.Template, effort template.Value) (sets template.Vars, ok bool) {
	thinks := template.Bool(effort.Text() != "none")
	sets.Set("thinking", thinks)
	sets.Set("enable_thinking", thinks)
	if effort.Text() == "low" && t.Mentions("low_effort") && t.Mentions("truncate_history_thinking") {
		sets.Set("low_effort", template.Bool(true))
	}
	return sets, slices.Contains(efforts, effort.Text())
}

// reuse returns whether SGLang (0.5.23) looks a prompt up in its cache: for /v1/completions with echo and logprobs it
// computes log probabilities from token 0, and matches the cache only up to there. In a chat they begin after the prompt.
func reuse(endpoint string, req *body.Request) prompt.Reuse {
	if endpoint == prompt.CompletionsEndpoint && prompt.BoolField(req, "echo", false) && req.Fields["logprobs"].Int() != 0 {
		return prompt.Recomputed
	}
	return prompt.Reused
}
