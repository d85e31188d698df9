package vllm

import (
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/prompt/template"
)

// uuidText reads a part's uuid as vLLM does: Python's str() of the JSON value. ok is false for lists and objects, of which vLLM
// takes Python's repr.
func uuidText(raw string) (text string, ok bool) {
	r := gjson.Parse(raw)
	switch {
	case r.Type == gjson.String:
		return r.String(), true
	case r.Type == gjson.True:
		return "True", true
	case r.Type == gjson.False:
		return "False", true
	case r.Type != gjson.Number:
		return "", false
	case strings.ContainsAny(r.Raw, ".eE"):
		return string(template.AppendFloat(nil, r.Num)), true
	case r.Raw == "-0":
		return "0", true
	}
	return r.Raw, true
}
