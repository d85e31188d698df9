package vllm

import "strings"

// Templates that vLLM (0.32, transformers_utils/chat_templates) uses for model types whose directories have none.
const (
	joinedTemplate = `{%- for m in messages -%}{{- m['content'] -}}{%- endfor -%}`

	questionTemplate = `{%- for m in messages -%}
{%- if m['role'] == 'user' -%}{{- 'Question: ' + m['content'] + ' ' -}}
{%- elif m['role'] == 'assistant' -%}{{- 'Answer: ' + m['content'] + ' ' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'Answer:' -}}{% endif %}`

	chatmlTemplate = `{%- for m in messages -%}
{{- '<|im_start|>' + m['role'] + '\n' + m['content'] -}}
{%- if not loop.last or add_generation_prompt -%}{{- '<|im_end|>\n' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and messages[-1]['role'] != 'assistant' -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}`

	// Common beginning of DeepSeek's templates: the system text after BOS, then alternating turns.
	deepseekHead = `{%- set first = 1 if messages[0]['role'] == 'system' else 0 -%}
{{- bos_token + (messages[0]['content'] if first else '') -}}
{%- for m in messages[first:] -%}
{%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) -%}{{- raise_exception('roles must alternate') -}}{%- endif -%}`

	deepseekOCRTemplate = deepseekHead + `{{- m['content'] -}}{%- endfor -%}`

	deepseekVL2Template = deepseekHead + `
{%- if m['role'] == 'user' -%}{{- '<|User|>: ' + m['content'] + '\n\n' -}}
{%- elif m['role'] == 'assistant' -%}{{- '<|Assistant|>: ' + m['content'] + eos_token + '\n\n' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|Assistant|>: ' -}}{%- endif -%}`
)

// fallbackTemplate returns vLLM's template for a model type, "" for none.
func fallbackTemplate(modelType, dir string) string {
	switch modelType {
	case "clip", "colpali", "paligemma", "siglip", "siglip2":
		return joinedTemplate
	case "blip-2":
		return questionTemplate
	case "deepseek_ocr", "deepseek_ocr2", "unlimited-ocr", "unlimited_ocr":
		return deepseekOCRTemplate
	case "deepseek_vl_v2":
		return deepseekVL2Template
	case "minicpm_ocr", "minicpmv", "minicpmv4_6", "minicpmv4_7":
		if strings.Contains(dir, "4.5") || strings.Contains(dir, "4_5") {
			return "" // vLLM has its own, with thinking; the model directory carries it too
		}
		return chatmlTemplate
	}
	return ""
}
