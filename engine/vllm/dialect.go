package vllm

import (
	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/prompt/template"
)

// Dialect returns how vLLM 0.23 to 0.33 reads requests.
func Dialect(v rules.Version) prompt.Dialect {
	since := func(minor int) bool { return v.AtLeast(0, minor, 0) }
	d := prompt.Dialect{
		OtherAPIs: true, PromptFlags: true, Documents: true, ClientTemplates: true, KwargsAreFields: true, EffortWins: true,
		MMKwargs: true, MediaIOKwargs: true, RefusesMMKwargs: since(31),
		Cut: prompt.CutUnknown, AnswerCounts: !since(32), BoundsAnswer: true, NeedsToolParser: true,
		Harmony: true, Mistral: true, RotatesEXIF: true,
		DisablesThinking: since(31), CustomTools: since(32),
		Unread: []string{"prompt_embeds", "suffix"},
		Format: (*template.Template).ContentFormat, Fallback: fallbackTemplate, Unrendered: unrendered,
		Part: part, Messages: messages, Tools: prompt.OpenAITools, Reuse: reuse,
		Effort: func(_ *template.Template, effort template.Value) (template.Vars, bool) {
			return template.Vars{{Name: "enable_thinking", Value: template.Bool(effort.Text() != "none")}}, true
		},
	}
	if since(30) {
		d.Class = tokenizerClass
	}
	if since(32) {
		d.Messages = messagesWithoutBilling
	}
	if since(33) {
		d.Format = (*template.Template).AliasedContentFormat
	}
	switch {
	case since(31):
		d.Cut = prompt.CutTokens
	case since(30):
		d.Cut = prompt.CutMarkers
	}
	return d
}

// reuse returns whether vLLM looks a request's prompt up in its cache (0.23.0, 0.30.0, 0.32.0 and 0.33.0, all alike): a request for
// log probabilities of its prompt skips the cache. No field of these endpoints sets skip_reading_prefix_cache itself; pooling, where
// token_embed and token_classify set it, is not read here. A beam search runs as several requests, and which of them usage reports is
// not known.
func reuse(endpoint string, req *body.Request) prompt.Reuse {
	switch {
	case endpoint == prompt.ResponsesEndpoint || endpoint == prompt.MessagesEndpoint: // they have none of these fields
	case prompt.BoolField(req, "use_beam_search", false):
		return prompt.Perhaps
	case prompt.AsksPromptLogprobs(endpoint, req):
		return prompt.Recomputed
	}
	return prompt.Reused
}
