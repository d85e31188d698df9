package vision

// Families that resize to a grid of units, with one run of tokens per picture.

// The names of the Qwen line's tokens.
var qwenNames = map[string]name{
	"image": {attr: "image_token", text: "<|image_pad|>", id: "image_token_id"},
	"video": {attr: "video_token", text: "<|video_pad|>", id: "video_token_id"},
}

// omniNames are those of its models with audio.
func omniNames(image, video, audio string) map[string]name {
	return map[string]name{
		"image": {attr: "image_token", text: image, id: "image_token_id image_token_index"},
		"video": {attr: "video_token", text: video, id: "video_token_id video_token_index"},
		"audio": {attr: "audio_token", text: audio, id: "audio_token_id audio_token_index"},
	}
}

// qwenResize is the rule with the defaults of Qwen2VLImageProcessor.
var qwenResize = smartResize{
	patch: value{"image.patch_size", "=14"}, merge: value{"image.merge_size", "=2"},
	min: value{"=3136"}, max: value{"=1003520"},
}

var qwenFamilies = []family{
	{
		name: "qwen2_vl", title: "Qwen2-VL, Qwen2.5-VL and fine-tunes",
		archs:      []string{"Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration", "JinaVLForRanking"},
		types:      []string{"qwen2_vl", "qwen2_5_vl"},
		processors: []string{"Qwen2VLProcessor", "Qwen2_5_VLProcessor", "Qwen2VLImageProcessor"},
		names:      qwenNames,
		image: &entry{target: "{image}", id: "{image}", count: qwenResize,
			put: "<|vision_start|>{image}<|vision_end|>"},
		video: &entry{target: "{video}", id: "{video}", put: "<|vision_start|>{video}<|vision_end|>"},
	},
	{
		name: "qwen3_vl", title: "Qwen3-VL, Qwen3.5, Qwen3.6 and later",
		archs: []string{"Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration",
			"Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"},
		types:      []string{"qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"},
		processors: []string{"Qwen3VLProcessor"},
		names:      qwenNames,
		image: &entry{target: "{image}", id: "{image}", count: qwenResize,
			put: "<|vision_start|>{image}<|vision_end|>"},
		video: &entry{target: "{video}", id: "{video}", put: "<|vision_start|>{video}<|vision_end|>"},
		facts: Facts{ProcessorClass: "sglang.srt.multimodal.processors.qwen_vl.QwenVLImageProcessor",
			WrapperClass: "transformers.models.qwen3_vl.processing_qwen3_vl.Qwen3VLProcessor"},
		factsOf: map[string]Facts{"qwen3_5": {}, "qwen3_5_moe": {}},
	},
	{
		name: "qwen2_5_omni", title: "Qwen2.5-Omni",
		archs:      []string{"Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration", "Qwen2_5OmniThinkerForConditionalGeneration"},
		types:      []string{"qwen2_5_omni", "qwen2_5_omni_thinker"},
		processors: []string{"Qwen2_5OmniProcessor"},
		names:      omniNames("<|IMAGE|>", "<|VIDEO|>", "<|AUDIO|>"),
		image:      &entry{target: "{image}", id: "{image}", count: qwenResize, put: "<|vision_start|>{image}<|vision_end|>"},
		video:      &entry{target: "{video}", id: "{video}", put: "<|vision_start|>{video}<|vision_end|>"},
		audio:      &entry{target: "{audio}", id: "{audio}", put: "Audio {k}: <|audio_bos|>{audio}<|audio_eos|>"},
	},
	{
		name: "qwen3_omni", title: "Qwen3-Omni",
		archs:      []string{"Qwen3OmniMoeForConditionalGeneration", "Qwen3OmniMoeThinkerForConditionalGeneration"},
		types:      []string{"qwen3_omni_moe", "qwen3_omni_moe_thinker"},
		processors: []string{"Qwen3OmniMoeProcessor"},
		names:      omniNames("<|image_pad|>", "<|video_pad|>", "<|audio_pad|>"),
		image:      &entry{target: "{image}", id: "{image}", count: qwenResize, put: "<|vision_start|>{image}<|vision_end|>"},
		video:      &entry{target: "{video}", id: "{video}", put: "<|vision_start|>{video}<|vision_end|>"},
		audio:      &entry{target: "{audio}", id: "{audio}", put: "<|audio_start|>{audio}<|audio_end|>"},
	},
}

var glmResize = smartResize{
	patch: value{"image.patch_size", "=14"}, merge: value{"image.merge_size", "=2"},
	min: value{"=12544"}, max: value{"=11760000"}, frames: 2, grows: true, sizeOnly: "Glm",
}

var gridFamilies = []family{
	{
		name: "glm4v", title: "GLM-4.1V, GLM-4.5V, GLM-4.6V, GLM-OCR",
		archs: []string{"Glm4vForConditionalGeneration", "Glm4vMoeForConditionalGeneration", "Glm46VForConditionalGeneration",
			"GlmOcrForConditionalGeneration"},
		types:      []string{"glm4v", "glm4v_moe", "glm46v", "glm_ocr"},
		processors: []string{"Glm4vProcessor", "Glm46VProcessor", "GlmOcrProcessor", "Glm4vImageProcessor", "Glm46VImageProcessor"},
		names:      map[string]name{"image": {attr: "image_token", text: "<|image|>", id: "image_token_id"}},
		image:      &entry{target: "{image}", id: "{image}", count: glmResize, put: "<|begin_of_image|>{image}<|end_of_image|>"},
		video:      &entry{target: "<|begin_of_video|><|video|><|end_of_video|>"},
	},
	{
		name: "pixtral", title: "Pixtral and Mistral Small 3.1 on, Hugging Face files",
		archs: []string{"Mistral3ForConditionalGeneration", "LlavaForConditionalGeneration"},
		types: []string{"mistral3", "llava", "pixtral"},
		when: func(s *settings) bool {
			return dig(s.config, "vision_config.model_type") == "pixtral" || s.config["model_type"] == "mistral3"
		},
		priority:   1,
		processors: []string{"PixtralProcessor", "PixtralImageProcessor"},
		names: map[string]name{
			"image": {attr: "image_token", text: "[IMG]", id: "image_token_index image_token_id"},
			"break": {attr: "image_break_token", text: "[IMG_BREAK]"},
			"last":  {attr: "image_end_token", text: "[IMG_END]"},
		},
		image: &entry{target: "{image}", id: "{image}",
			count: fitLongest{edge: value{"image.size.longest_edge", "config.vision_config.image_size", "=1024"},
				patch: value{"processor.patch_size", "config.vision_config.patch_size", "=16"},
				merge: value{"processor.spatial_merge_size", "config.spatial_merge_size", "=1"}},
			layout: layout{rowSep: "{break}", end: "{last}"}, put: "-"},
	},
	{
		name: "pixtral_native", title: "Pixtral and Mistral with vision, params.json and tekken.json",
		types: []string{"pixtral_native"},
		names: map[string]name{
			"image": {text: "[IMG]", id: "image_token_id"},
			"break": {text: "[IMG_BREAK]", id: "image_break_token_id"},
			"last":  {text: "[IMG_END]", id: "image_end_token_id"},
		},
		image: &entry{target: "{image}", id: "{image}",
			count: fitLongest{edge: value{"config.vision_config.max_image_size", "config.vision_config.image_size", "=1024"},
				patch: value{"config.vision_config.patch_size"},
				merge: value{"config.vision_config.spatial_merge_size", "=1"}, nearest: true},
			layout: layout{rowSep: "{break}", end: "{last}"}, put: "-"},
		note: "vLLM refuses images that EXIF turns by a quarter (500)",
	},
	{
		name: "gemma4", title: "Gemma 4",
		archs: []string{"Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration"},
		types: []string{"gemma4", "gemma4_unified"}, processors: []string{"Gemma4Processor", "Gemma4UnifiedProcessor", "Gemma4ImageProcessor"},
		names: map[string]name{
			"image": {attr: "image_token", text: "<|image|>", id: "image_token_id"},
			"boi":   {attr: "boi_token", text: "<|image>", id: "boi_token_id"},
			"eoi":   {attr: "eoi_token", text: "<image|>", id: "eoi_token_id"},
		},
		image: &entry{target: "{image}", id: "{image}",
			count: softBudget{patch: value{"image.patch_size", "config.vision_config.patch_size", "=16"},
				pool:   value{"image.pooling_kernel_size", "config.vision_config.pooling_kernel_size", "=3"},
				budget: value{"kw.max_soft_tokens", "image.max_soft_tokens", "config.vision_config.default_output_length", "=280"}},
			layout: layout{begin: "{boi}", end: "{eoi}"}, put: "<image_soft_token>"},
		video: &entry{target: "<|video|>"},
		audio: &entry{target: "<|audio|>", put: "<audio_soft_token>"},
	},
}
