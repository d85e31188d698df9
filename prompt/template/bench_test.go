package template

import (
	"testing"

	"github.com/sightline-router/sightline/lab/golden"
)

// benchTemplate has the shape of a vision model's chat template: text or parts, image markers, tools, tool calls.
const benchTemplate = `{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- for tool in tools %}
        {{- "\n" }}{{- tool | tojson }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- elif messages[0].role != 'system' %}
    {{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}
{%- endif %}
{%- set images = namespace(value=0) %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for content in message.content %}
            {%- if content.type == 'image' or 'image' in content or 'image_url' in content %}
                {%- set images.value = images.value + 1 %}
                {%- if add_vision_id %}Picture {{ images.value }}: {% endif -%}
                <|vision_start|><|image_pad|><|vision_end|>
            {%- elif 'text' in content %}
                {{- content.text }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {%- for call in message.tool_calls or [] %}
        {%- if not loop.first %}{{- '\n' }}{%- endif %}
        {{- call.function.name ~ ' ' ~ (call.function.arguments | tojson) }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}`

// benchChat is six turns with three images.
const benchChat = `[{"role":"system","content":"You are a careful assistant who looks at pictures."},
{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://example.com/1.jpg"}},{"type":"text","text":"What is in this picture? Answer in one line."}]},
{"role":"assistant","content":"A red bridge over a wide river, in fog."},
{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://example.com/2.jpg"}},{"type":"image_url","image_url":{"url":"https://example.com/3.jpg"}},{"type":"text","text":"And how do these two differ from it?"}]},
{"role":"assistant","content":"The second shows the bridge at night; the third shows another bridge, of stone."},
{"role":"user","content":"Which one is the oldest?"}]`

func benchRender(b *testing.B, src string) {
	tmpl, err := Compile(src, Options{})
	if err != nil {
		b.Fatal(err)
	}
	chat := Chat{Messages: mustJSON(b, []byte(benchChat)), AddGenerationPrompt: true}
	dst, err := tmpl.Apply(nil, &chat)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(dst)))
	b.ReportAllocs()
	for b.Loop() {
		dst, err = tmpl.Apply(dst[:0], &chat)
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRender renders six turns with three images.
func BenchmarkRender(b *testing.B) { benchRender(b, benchTemplate) }

// BenchmarkRenderQwen3VL renders them with Qwen3-VL's own template, from SIGHTLINE_MODELS.
func BenchmarkRenderQwen3VL(b *testing.B) {
	benchRender(b, string(golden.Read(b, golden.Models(b, "qwen3-vl", "chat_template.jinja"))))
}

// BenchmarkFromJSON reads the messages of the same conversation.
func BenchmarkFromJSON(b *testing.B) {
	b.SetBytes(int64(len(benchChat)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := FromJSON(benchChat); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCompile compiles once, as at the start of a worker class.
func BenchmarkCompile(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Compile(benchTemplate, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
