package prompt

import (
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt/template"
)

// toolList returns a chat request's tools as templates see them, None if there are none.
func (m *parameters) toolList(req *body.Request) (template.Value, error) {
	raw, choice := req.Fields["tools"], req.Fields["tool_choice"]
	if raw.Type == gjson.Null {
		return template.None, nil
	}
	list, err := List(req.Body, raw, "tools is not a list")
	if err != nil || len(list.Items()) == 0 {
		return template.None, err
	}
	none := choice.String() == "none"
	if _, given := req.Fields["tool_choice"]; !none && (!given || choice.Type != gjson.Null) && m.mistral == nil {
		if err := m.toolParser(); err != nil {
			return template.None, err
		}
	}
	return m.opt.Dialect.Tools(list, choice)
}

// toolParser refuses a request that needs the server's tool parser if the server has none. Another class of workers may have one.
func (m *parameters) toolParser() error {
	if m.opt.Dialect.NeedsToolParser && !m.opt.AutoToolChoice {
		return Refuse("tools without --enable-auto-tool-choice")
	}
	return nil
}

// OpenAITools returns a chat's tools as pydantic dumps OpenAI's types (vLLM 0.32): type and function, and in it name, description,
// parameters in this order, null if absent; strict and defer_loading only if given; nothing else that the client sent.
func OpenAITools(list template.Value, _ gjson.Result) (template.Value, error) {
	return EachOf(list.Items(), func(tool template.Value) (template.Value, error) {
		if kind, ok := tool.Get("type"); ok && kind.Text() != "function" {
			return template.None, Refuse("tool that is not a function")
		}
		return openAITool(tool.Field("function"), tool.Field("defer_loading"))
	})
}

// FunctionType returns the value of type in tools and tool calls.
func FunctionType() template.Value { return template.String("function") }

// openAITool returns a tool of one function.
func openAITool(fn, deferred template.Value) (template.Value, error) {
	name, about, parameters, strict := fn.Field("name"), fn.Field("description"), fn.Field("parameters"), fn.Field("strict")
	if !name.IsString() || !about.IsNone() && !about.IsString() || !parameters.IsNone() && parameters.Dict() == nil ||
		!strict.IsNone() && strict.Kind() != template.KindBool {
		return template.None, Refuse("tool without a function, or whose fields have other types than they must")
	}
	f := template.NewDict(5).Set("name", name).Set("description", about).Set("parameters", parameters)
	if !strict.IsNone() {
		f.Set("strict", strict)
	}
	t := template.NewDict(3).Set("type", FunctionType()).Set("function", f.Value())
	if deferred.Kind() == template.KindBool {
		t.Set("defer_loading", deferred)
	}
	if v := fn.Field("defer_loading"); !v.IsNone() {
		deferred = v
	}
	if deferred.Kind() == template.KindBool {
		f.Set("defer_loading", deferred)
	}
	return t.Value(), nil
}

// bareFunctions returns the functions without their wrapping.
func bareFunctions(tools template.Value) template.Value {
	bare, _ := EachOf(tools.Items(), func(tool template.Value) (template.Value, error) {
		if fn, ok := tool.Get("function"); ok {
			tool = fn
		}
		return tool, nil
	})
	return bare
}
