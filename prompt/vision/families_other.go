package vision

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Families whose prompt needs more than a placeholder and a layout: numbered placeholders, two token grids.

var otherFamilies = []family{
	{
		name: "phi4mm", title: "Phi-4-multimodal (original repository)",
		archs: []string{"Phi4MMForCausalLM"}, types: []string{"phi4mm"}, processors: []string{"Phi4MMProcessor"},
		names: map[string]tokenName{
			"image": {text: "<|endoftext10|>"},
			"audio": {text: "<|endoftext11|>"},
		},
		image: &entry{target: "<|image_{k}|>", id: "{image}",
			count: phi4{size: setting{"=448"}, patch: setting{"=14"}, crops: setting{"image.dynamic_hd", "=36"}}},
		audio: &entry{target: "<|audio_{k}|>", id: "{audio}"},
		facts: Facts{NamedFormat: true},
	},
	{
		name: "phi4_multimodal", title: "Phi-4-multimodal (transformers)",
		archs: []string{"Phi4MultimodalForCausalLM"}, types: []string{"phi4_multimodal"},
		processors: []string{"Phi4MultimodalProcessor", "Phi4MultimodalImageProcessor"},
		names:      map[string]tokenName{"image": {attr: "image_token", text: "<|image|>", id: "vision_config.image_token_id image_token_id"}},
		image: &entry{target: "{image}", id: "{image}",
			count: phi4{size: setting{"image.size.height", "=448"}, patch: setting{"image.patch_size", "=14"},
				crops: setting{"image.dynamic_hd", "=36"}}},
		audio: &entry{target: "<|audio|>"},
	},
	{
		name: "deepseek_vl_v2", title: "DeepSeek-VL2",
		archs: []string{"DeepseekVLV2ForCausalLM"}, types: []string{"deepseek_vl_v2"}, processors: []string{"DeepseekVLV2Processor"},
		names: map[string]tokenName{"image": {attr: "image_token", text: "<image>"}},
		when:  func(s *settings) bool { return !deepseekOCRArch(s) },
		image: &entry{target: "{image}", id: "{image}",
			count: deepseekVL2{candidates: setting{"processor.candidate_resolutions", "image.candidate_resolutions", "config.candidate_resolutions"},
				size:  setting{"config.vision_config.image_size", "=384"},
				patch: setting{"processor.patch_size", "image.patch_size", "config.vision_config.patch_size", "=14"},
				ratio: setting{"processor.downsample_ratio", "image.downsample_ratio", "=2"}}},
		facts: Facts{NamedFormat: true},
	},
	{
		name: "deepseek_ocr", title: "DeepSeek-OCR",
		archs: []string{"DeepseekOCRForCausalLM"}, types: []string{"deepseek_ocr", "DeepseekOCR", "deepseek_vl_v2"},
		processors: []string{"DeepseekOCRProcessor"},
		when:       func(s *settings) bool { return s.config["model_type"] != "deepseek_vl_v2" || deepseekOCRArch(s) },
		names:      map[string]tokenName{"image": {attr: "image_token", text: "<image>"}},
		image: &entry{target: "{image}", id: "{image}",
			count: deepseekOCR{size: setting{"=640"}, base: setting{"=1024"}, patch: setting{"=16"}, ratio: setting{"=4"},
				min: setting{"=2"}, max: setting{"=6"}, newlines: true}},
		factsOf: map[string]Facts{"deepseek_vl_v2": {NamedFormat: true}},
		note:    "fixed to the engine's Gundam mode, as in vLLM",
	},
	{
		name: "deepseek_ocr2", title: "DeepSeek-OCR 2",
		archs: []string{"DeepseekOCR2ForCausalLM", "DeepseekOcr2ForConditionalGeneration"}, types: []string{"deepseek_ocr2", "deepseek_ocr_2"},
		processors: []string{"DeepseekOcr2Processor", "DeepseekOcr2ImageProcessor"},
		names:      map[string]tokenName{"image": {attr: "image_token", text: "<image>", id: "image_token_id"}},
		image: &entry{target: "{image}", id: "{image}",
			count: deepseekOCR{size: setting{"processor.tile_size", "image.tile_size", "=768"},
				base:  setting{"processor.size.height", "image.size.height", "=1024"},
				patch: setting{"processor.patch_size", "=16"}, ratio: setting{"processor.downsample_ratio", "=4"},
				min: setting{"processor.min_patches", "=2"}, max: setting{"processor.max_patches", "=6"},
				crop: setting{"processor.crop_to_patches", "=true"}}},
	},
	{
		name: "perception_lm", title: "Perception LM",
		archs: []string{"PerceptionLMForConditionalGeneration"}, types: []string{"perception_lm"},
		processors: []string{"PerceptionLMProcessor", "PerceptionLMImageProcessor"},
		names:      map[string]tokenName{"image": {attr: "image_token", text: "<|image|>", id: "image_token_id"}},
		image: &entry{target: "{image}", id: "{image}",
			count: perceptionLM{tile: setting{"image.tile_size", "=448"}, max: setting{"image.max_num_tiles", "=36"},
				patch: setting{"processor.patch_size", "config.vision_config.patch_size"}, pool: setting{"processor.pooling_ratio", "=2"},
				mode: setting{"image.vision_input_type", "=thumb+tile"}}},
		video: &entry{target: "<|video|>"},
	},
	{
		name: "molmo2", title: "Molmo 2",
		archs: []string{"Molmo2ForConditionalGeneration"}, types: []string{"molmo2"}, processors: []string{"Molmo2Processor",
			"Molmo2ImageProcessor"},
		names: map[string]tokenName{"image": {attr: "image_token", text: "<|image|>"}, "patch": {text: "<im_patch>", id: "image_patch_id"}},
		image: &entry{target: "{image}", id: "{patch}",
			count: molmo{base: setting{"image.size.height", "=378"}, patch: setting{"image.patch_size", "=14"},
				pool:    setting{"image.pooling_size", "=2"},
				margins: setting{"image.overlap_margins"}, max: setting{"image.max_crops", "=8"}},
			layout:  layout{need: []string{"<im_start>", "<im_end>", "<im_col>", "<low_res_im_start>"}},
			arrange: molmo2Rows},
		video: &entry{target: "<|video|>"},
		prepareIDs: func(m *Expander, ids []uint32) []uint32 {
			bos, ok := m.bos()
			if !ok || len(ids) > 0 && ids[0] == bos {
				return ids
			}
			return append([]uint32{bos}, ids...)
		},
		prepareText: func(m *Expander, text string) string {
			if bos := m.bosText(); !strings.HasPrefix(text, bos) {
				return bos + text
			}
			return text
		},
	},
}

func deepseekOCRArch(s *settings) bool {
	return slices.Contains(list(s.config["architectures"]), "DeepseekOCRForCausalLM")
}

// molmo2Rows writes Molmo 2's overview and its crops: two grids, row by row.
func molmo2Rows(b *builder, g grid) {
	s := *b.m.settings // a copy, because reading may record an error
	use := func(key string, def bool) bool {
		if v, _ := s.find(setting{"processor." + key}); v == nil {
			return def
		}
		return s.bool(setting{"processor." + key})
	}
	col, overviewCol, start := "", "", "<im_start>"
	if use("image_use_col_tokens", true) {
		col = "<im_col>"
	}
	if use("use_single_crop_col_tokens", col != "") {
		overviewCol = "<im_col>"
	}
	if use("use_single_crop_start_token", true) {
		start = "<low_res_im_start>"
	}
	part := func(begin, end string, rows, cols int) {
		b.text(begin)
		for range rows {
			b.run(cols)
			b.text(end)
		}
		b.text("<im_end>")
	}
	part(start, overviewCol, g.main/g.mainCols, g.mainCols)
	part("<im_start>", col, g.rows, g.tile)
}

// bosText is the tokenizer's BOS token, or its EOS token where it has none.
func (m *loaded) bosText() string {
	for _, key := range []string{"bos_token", "eos_token"} {
		if t := tokenText(m.settings.tokenizer[key]); t != "" {
			return t
		}
	}
	return "<|endoftext|>"
}

func (m *Expander) bos() (uint32, bool) { return m.tok.ID(m.bosText()) }

// leadingBOS puts the BOS token in front of a text that has none, after images at its start (Llama 3.2 Vision).
func leadingBOS(m *Expander, text, image string) string {
	bos := cmp.Or(tokenText(m.settings.tokenizer["bos_token"]), "<|begin_of_text|>")
	if strings.Contains(text, bos) {
		return text
	}
	rest := text
	for strings.HasPrefix(rest, image) {
		rest = rest[len(image):]
	}
	return text[:len(text)-len(rest)] + bos + rest
}

// numbered replaces {k}.
func numbered(target string, k int) string {
	if !strings.Contains(target, "{k}") {
		return target
	}
	return strings.ReplaceAll(target, "{k}", strconv.Itoa(k))
}

// idefics2 is one run, or five with splitting enabled.
type idefics2 struct{ seqLen, split setting }

func (k idefics2) bind(s *settings) counter {
	n := s.small(k.seqLen, 1, 1<<16)
	split := s.bool(k.split)
	return func(_, _, _ int) (grid, error) {
		g := grid{main: n}
		if split {
			g = grid{main: n, rows: 1, cols: 4, tile: n}
		}
		return g, nil
	}
}

// idefics2Text merges the fake tokens of neighbours and puts a space between a closing one and text.
func idefics2Text(m *Expander, text string) string {
	fake := m.names["fake"]
	text = strings.ReplaceAll(text, fake+fake, fake)
	var b strings.Builder
	for {
		i := strings.Index(text, fake)
		if i < 0 {
			b.WriteString(text)
			return b.String()
		}
		i += len(fake)
		b.WriteString(text[:i])
		text = text[i:]
		if text != "" && text[0] != '<' && !strings.ContainsAny(text[:1], " \t\n\r\f\v") {
			b.WriteByte(' ')
		}
	}
}

// largestQuery takes the largest entry of a table (Aria).
type largestQuery struct{ table setting }

func (k largestQuery) bind(s *settings) counter {
	found, place := s.find(k.table)
	n := 0
	if t, ok := found.(map[string]any); ok {
		for _, v := range t {
			if f, ok := number(v); ok && f > float64(n) && f <= MaxTokens {
				n = int(f)
			}
		}
	}
	if n == 0 {
		s.fail("%s%s: want a table of numbers", k.table, strings.TrimPrefix(place, k.table.String()))
	}
	return func(_, _, _ int) (grid, error) { return grid{main: n}, nil }
}
