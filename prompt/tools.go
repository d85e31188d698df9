package prompt

import (
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt/template"
)

// toolList gives a chat request's tools as templates see them, None where there are none.
func (m *Model) toolList(req *body.Request) (template.Value, error) {
	vllm := m.opt.Engine == "vllm"
	choice := req.Fields["tool_choice"]
	raw, ok := req.Fields["tools"]
	if !ok || raw.Type == gjson.Null {
		if vllm && choice.Type != gjson.Null && choice.String() != "none" {
			return template.None, refuse(400, "tool_choice without tools")
		}
		return template.None, nil
	}
	list, err := readList(req.Body, raw, "tools is no list")
	if err != nil {
		return template.None, err
	}
	if len(list.Items()) == 0 {
		if vllm {
			return template.None, refuse(400, "tools is empty")
		}
		return template.None, nil
	}
	if vllm {
		if err := m.toolChoice(req, list); err != nil {
			return template.None, err
		}
		if choice.String() == "none" && m.opt.ExcludeToolsOnNone {
			return template.None, nil
		}
		return toolsVLLM(list)
	}
	if m.opt.Engine == "sglang" {
		return toolsSGLang(list, choice)
	}
	return toolsVLLM(list)
}

// toolChoice is what vLLM 0.32 demands of tool_choice. Without --enable-auto-tool-choice the server has no tool parser.
func (m *Model) toolChoice(req *body.Request, list template.Value) error {
	choice, given := req.Fields["tool_choice"]
	switch {
	case given && (choice.Type == gjson.Null || choice.Type == gjson.String && choice.String() == "none"):
		return nil
	case choice.IsObject():
		name, _ := req.Body.String(body.Last(body.Last(choice, "function"), "name"))
		known := 0
		for _, tool := range list.Items() {
			if name != "" && tool.Field("function").Field("name").Text() == name {
				known++
			}
		}
		if known == 0 || known > 1 && m.opt.AutoToolChoice {
			return refuse(400, "tool_choice names no tool of the request, or two")
		}
	case given && choice.String() != "auto" && choice.String() != "required":
		return refuse(400, "tool_choice of an unknown form")
	}
	if !m.opt.AutoToolChoice && m.mistral == nil {
		return refuse(400, "tools without --enable-auto-tool-choice")
	}
	return nil
}

// toolsVLLM gives tools as vLLM 0.32 dumps them: type and function, and in it name, description, parameters in this order,
// null where absent; strict and defer_loading only if given; nothing else of what the client sent.
func toolsVLLM(list template.Value) (template.Value, error) {
	return eachOf(list.Items(), func(tool template.Value) (template.Value, error) {
		fn := tool.Field("function")
		if fn.Dict() == nil {
			return template.None, refuse(400, "tool without a function")
		}
		if kind, ok := tool.Get("type"); ok && kind.Text() != "function" {
			return template.None, refuse(400, "tool that is no function")
		}
		return toolVLLM(fn, tool.Field("defer_loading"))
	})
}

// functionType is what stands under type in tools and tool calls.
func functionType() template.Value { return template.String("function") }

// toolVLLM is a tool of one function.
func toolVLLM(fn, deferred template.Value) (template.Value, error) {
	name, about, parameters, strict := fn.Field("name"), fn.Field("description"), fn.Field("parameters"), fn.Field("strict")
	switch {
	case !name.IsString():
		return template.None, refuse(400, "tool without a name")
	case !about.IsNone() && !about.IsString():
		return template.None, refuse(400, "tool whose description is no text")
	case !parameters.IsNone() && parameters.Dict() == nil:
		return template.None, refuse(400, "tool whose parameters are no object")
	case !strict.IsNone() && strict.Kind() != template.KindBool:
		return template.None, refuse(400, "tool whose strict is no bool")
	}
	f := template.NewDict(5).Set("name", name).Set("description", about).Set("parameters", parameters)
	if !strict.IsNone() {
		f.Set("strict", strict)
	}
	t := template.NewDict(3).Set("type", functionType()).Set("function", f.Value())
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

// toolsSGLang gives tools as SGLang 0.5.23 dumps them: a function's keys as the client ordered them, what it left out
// behind them as null, and defer_loading beside.
func toolsSGLang(list template.Value, choice gjson.Result) (template.Value, error) {
	if choice.Type == gjson.String && choice.String() == "none" {
		return template.None, nil
	}
	var out []template.Value
	for _, tool := range list.Items() {
		fn := tool.Field("function")
		name := fn.Field("name")
		if !name.IsString() {
			return template.None, refuse(400, "tool without a function that has a name")
		}
		if choice.IsObject() && body.Last(body.Last(choice, "function"), "name").String() != name.Text() {
			continue
		}
		f := template.NewDict(5)
		for _, e := range fn.Dict().Entries() {
			switch e.Key.Text() {
			case "strict", "defer_loading":
				if !e.Value.IsNone() {
					f.Set(e.Key.Text(), e.Value)
				}
			case "description", "name", "parameters":
				f.Set(e.Key.Text(), e.Value)
			}
		}
		for _, key := range []string{"description", "parameters"} {
			if _, ok := f.Get(key); !ok {
				f.Set(key, template.None)
			}
		}
		kind, ok := tool.Get("type")
		if !ok {
			kind = functionType()
		}
		deferred := tool.Field("defer_loading")
		if _, has := f.Get("defer_loading"); !has && !deferred.IsNone() {
			f.Set("defer_loading", deferred)
		}
		out = append(out, template.NewDict(3).Set("type", kind).Set("function", f.Value()).Set("defer_loading", deferred).Value())
	}
	if len(out) == 0 {
		return template.None, nil
	}
	return template.NewList(out...), nil
}

// bareFunctions takes the functions out of their wrapping.
func bareFunctions(tools template.Value) template.Value {
	bare, _ := eachOf(tools.Items(), func(tool template.Value) (template.Value, error) {
		if fn, ok := tool.Get("function"); ok {
			tool = fn
		}
		return tool, nil
	})
	return bare
}
