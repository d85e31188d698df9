package template_test

import (
	"fmt"

	"github.com/sightline-router/sightline/prompt/template"
)

// A template is compiled once and rendered for each conversation.
func Example() {
	t, err := template.Compile(`{%- for m in messages -%}
<|{{ m.role }}|>{{ m.content | trim }}
{% endfor -%}
{%- if add_generation_prompt %}<|assistant|>{% endif %}`, template.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	messages, err := template.FromJSON(`[{"role": "system", "content": "Be brief."}, {"role": "user", "content": " How far is the moon? "}]`)
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err := t.Apply(nil, &template.Chat{Messages: messages, AddGenerationPrompt: true})
	fmt.Println(string(text), err)
	// Output:
	// <|system|>Be brief.
	// <|user|>How far is the moon?
	// <|assistant|> <nil>
}

// What a template asks for and this package does not have is an error of the rendering that comes to it, with its line.
func ExampleTemplate_Render() {
	t, _ := template.Compile("{% if tools %}\n{{ tools | urlize }}\n{% endif %}Hi", template.Options{})
	text, err := t.Render(nil, nil)
	fmt.Println(string(text), err)
	_, err = t.Render(nil, template.Vars{{Name: "tools", Value: template.String("t")}})
	fmt.Println(err)
	// Output:
	// Hi <nil>
	// template: line 2: the filter urlize is not supported in chat templates
}
