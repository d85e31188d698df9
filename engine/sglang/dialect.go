package sglang

import (
	"strings"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/prompt/template"
	"github.com/sightline-router/sightline/prompt/vision"
)

// Dialect is how SGLang reads requests (read in 0.5.23, compared with a server of 0.5.9).
func Dialect() prompt.Dialect {
	return prompt.Dialect{
		IDsField:           "input_ids",
		TokenizersTemplate: true, BareTools: true, ContinuesBehind: true, DecodesIDs: true,
		Reading: vision.Reading{Processor: true},
		Format:  (*template.Template).SGLangFormat, FileText: fileText, Named: isForm, Conversation: conversation,
		Part: part, Messages: messages, Tools: tools, Reuse: reuse,
	}
}

// fileText is the template in a --chat-template file (template_manager.py).
func fileText(text string) string { return strings.ReplaceAll(strings.Trim(text, "\n"), `\n`, "\n") }

// reuse reads the rule of SGLang (0.5.9 and 0.5.23): echo with logprobs of /v1/completions has log probabilities begin at
// token 0, and the cache is matched up to there. A chat begins them behind its prompt.
func reuse(endpoint string, req *body.Request) prompt.Reuse {
	if endpoint == prompt.CompletionsEndpoint && prompt.BoolField(req, "echo", false) && req.Fields["logprobs"].Int() != 0 {
		return prompt.Recomputed
	}
	return prompt.Reused
}
