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

// What a template asks for and this package does not have is an error of Compile, with its line.
func ExampleCompile() {
	_, err := template.Compile("{% if tools %}\n{{ tools | urlize }}\n{% endif %}", template.Options{})
	fmt.Println(err)
	// Output:
	// template: line 2: the filter urlize is not supported in chat templates
}
