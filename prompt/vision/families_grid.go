package vision

// Families that resize to a grid of units, with one run of tokens per image.

// The names of the Qwen line's tokens.
var qwenNames = map[string]tokenName{
	"image": {attr: "image_token", text: "<|image_pad|>", id: "image_token_id"},
	"video": {attr: "video_token", text: "<|video_pad|>", id: "video_token_id"},
}

// omniNames are those of its models with audio.
func omniNames(image, video, audio string) map[string]tokenName {
	return map[string]tokenName{
		"image": {attr: "image_token", text: image, id: "image_token_id image_token_index"},
		"video": {attr: "video_token", text: video, id: "video_token_id video_token_index"},
		"audio": {attr: "audio_token", text: audio, id: "audio_token_id audio_token_index"},
	}
}

// qwenResize is the rule with the defaults of Qwen2VLImageProcessor. Limits in a model's files win over them.
var qwenResize = smartResize{
	patch: setting{"image.patch_size", "=14"}, merge: setting{"image.merge_size", "=2"},
	min: setting{"=3136"}, max: setting{"=1003520"},
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
		video:      &entry{target: "{video}", id: "{video}", put: "<|vision_start|>{video}<|vision_end|>"},
		outOfVocab: true,
		facts:      Facts{PlaceholdersFirst: true},
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
		video:      &entry{target: "{video}", id: "{video}", put: "<|vision_start|>{video}<|vision_end|>"},
		outOfVocab: true,
		facts: Facts{PlaceholdersFirst: true, ProcessorClass: "sglang.srt.multimodal.processors.qwen_vl.QwenVLImageProcessor",
			WrapperClass: "transformers.models.qwen3_vl.processing_qwen3_vl.Qwen3VLProcessor"},
		factsOf: map[string]Facts{"qwen3_5": {PlaceholdersTouch: true}, "qwen3_5_moe": {}},
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
	patch: setting{"image.patch_size", "=14"}, merge: setting{"image.merge_size", "=2"},
	min: setting{"=12544"}, max: setting{"=11760000"}, frames: 2, grow: growBoth, sizeOnly: "Glm",
}

var gridFamilies = []family{
	{
		name: "glm4v", title: "GLM-4.1V, GLM-4.5V, GLM-4.6V, GLM-OCR",
		archs: []string{"Glm4vForConditionalGeneration", "Glm4vMoeForConditionalGeneration", "Glm46VForConditionalGeneration",
			"GlmOcrForConditionalGeneration"},
		types:      []string{"glm4v", "glm4v_moe", "glm46v", "glm_ocr"},
		processors: []string{"Glm4vProcessor", "Glm46VProcessor", "GlmOcrProcessor", "Glm4vImageProcessor", "Glm46VImageProcessor"},
		names:      map[string]tokenName{"image": {attr: "image_token", text: "<|image|>", id: "image_token_id"}},
		image:      &entry{target: "{image}", id: "{image}", count: glmResize, put: "<|begin_of_image|>{image}<|end_of_image|>"},
		video:      &entry{target: "<|begin_of_video|><|video|><|end_of_video|>"},
	},
	{
		name: "ernie4_5_vl", title: "ERNIE-4.5-VL",
		archs:      []string{"Ernie4_5_VLMoeForConditionalGeneration"},
		types:      []string{"ernie4_5_vl_moe", "ernie4_5_vl", "ernie4_5_moe_vl"},
		processors: []string{"Ernie4_5_VLMoeProcessor", "Ernie4_5_VLProcessor", "Ernie4_5_VLMoeImageProcessor"},
		names:      map[string]tokenName{"image": {text: "<|IMAGE_PLACEHOLDER|>", id: "im_patch_id image_token_id"}},
		image: &entry{target: "<|image@placeholder|>", targetHF: "{image}", id: "{image}",
			count: smartResize{patch: setting{"image.patch_size", "=14"}, merge: setting{"image.merge_size", "image.spatial_conv_size", "=2"},
				min: setting{"=3136"}, max: setting{"=4842768"}, sizeOnly: "Ernie4_5_VLMoe"},
			put: "<|IMAGE_START|><|image@placeholder|><|IMAGE_END|>"},
		video: &entry{target: "<|video@placeholder|>", put: "<|VIDEO_START|><|video@placeholder|><|VIDEO_END|>"},
	},
	{
		name: "paddleocr_vl", title: "PaddleOCR-VL",
		archs:      []string{"PaddleOCRVLForConditionalGeneration"},
		types:      []string{"paddleocr_vl"},
		processors: []string{"PaddleOCRVLProcessor", "PaddleOCRVLImageProcessor"},
		names:      map[string]tokenName{"image": {attr: "image_token", text: "<|IMAGE_PLACEHOLDER|>", id: "image_token_id"}},
		image: &entry{target: "{image}", id: "{image}",
			count: smartResize{patch: setting{"image.patch_size", "=14"}, merge: setting{"image.merge_size", "=2"},
				min: setting{"=147456"}, max: setting{"=2359296"}, grow: growEach},
			put: "<|IMAGE_START|>{image}<|IMAGE_END|>"},
		facts: Facts{NamedFormat: true},
	},
	{
		name: "exaone4_5", title: "EXAONE 4.5",
		archs: []string{"Exaone4_5_ForConditionalGeneration"},
		types: []string{"exaone4_5"},
		names: qwenNames,
		image: &entry{target: "{image}", id: "{image}", count: qwenResize, put: "<vision>{image}</vision>"},
		video: &entry{target: "{video}", id: "{video}", put: "<vision>{video}</vision>"},
	},
	{
		name: "dots_ocr", title: "dots.ocr",
		archs:    []string{"DotsOCRForCausalLM"},
		types:    []string{"dots_ocr"},
		names:    map[string]tokenName{"image": {attr: "image_token", text: "<|imgpad|>", id: "image_token_id"}},
		image:    &entry{target: "{image}", id: "{image}", count: qwenResize, put: "<|img|>{image}<|endofimg|>"},
		unbacked: true,
	},
	{
		name: "hunyuan_vl", title: "HunYuan-VL, HunyuanOCR",
		archs:      []string{"HunYuanVLForConditionalGeneration", "HunyuanVLForConditionalGeneration"},
		types:      []string{"hunyuan_vl"},
		processors: []string{"HunYuanVLProcessor", "HunYuanVLImageProcessor"},
		names:      map[string]tokenName{"image": {attr: "image_token", text: "<image>", id: "image_token_id"}},
		image: &entry{target: "{image}", id: "{image}",
			count: smartResize{patch: setting{"image.patch_size", "=16"}, merge: setting{"image.merge_size", "=2"},
				min: setting{"=262144"}, max: setting{"=4194304"}, extra: 2},
			put: "-"},
	},
	{
		name: "minimax_m3_vl", title: "MiniMax-M3-VL",
		archs:      []string{"MiniMaxM3SparseForConditionalGeneration", "MiniMaxM3VLForConditionalGeneration"},
		types:      []string{"minimax_m3_vl", "minimax_m3"},
		processors: []string{"MiniMaxM3VLProcessor", "MiniMaxM3VLImageProcessor"},
		names: map[string]tokenName{
			"image": {text: "]<]image[>[", id: "image_token_id image_token_index"},
			"start": {text: "]<]start of image[>["},
			"end":   {text: "]<]end of image[>["},
		},
		image: &entry{target: "{image}", id: "{image}",
			count: smartResize{patch: setting{"image.patch_size", "=14"}, merge: setting{"image.merge_size", "=2"},
				min: setting{"=3136"}, max: setting{"=451584"}, longSide: setting{"image.max_long_side_pixel"}},
			layout: layout{begin: "{start}", end: "{end}"}},
	},
	{
		name: "kimi_k25", title: "Kimi-K2.5, Kimi-K2.6",
		archs:      []string{"KimiK25ForConditionalGeneration", "Kimi_K25ForConditionalGeneration"},
		types:      []string{"kimi_k25"},
		processors: []string{"Kimi_K25Processor", "Kimi_K25ImageProcessor", "KimiK25Processor"},
		names:      kimiNames,
		image:      kimiEntry("=16384", "=512"),
		video:      &entry{target: "<|kimi_k25_video_placeholder|>"},
	},
	{
		name: "kimi_k3", title: "Kimi-K3",
		archs: []string{"KimiK3ForConditionalGeneration"}, types: []string{"kimi_k3"}, processors: []string{"KimiK3Processor"},
		names:    kimiNames,
		image:    kimiEntry(), // no defaults: the limits must be in the files
		video:    &entry{target: "<|kimi_k25_video_placeholder|>"},
		facts:    Facts{PlaceholdersTouch: true},
		unbacked: true,
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
		names: map[string]tokenName{
			"image": {attr: "image_token", text: "[IMG]", id: "image_token_index image_token_id"},
			"break": {attr: "image_break_token", text: "[IMG_BREAK]"},
			"last":  {attr: "image_end_token", text: "[IMG_END]"},
		},
		image: &entry{target: "{image}", id: "{image}",
			count: fitLongest{edge: setting{"image.size.longest_edge", "config.vision_config.image_size", "=1024"},
				patch: setting{"processor.patch_size", "config.vision_config.patch_size", "=16"},
				merge: setting{"processor.spatial_merge_size", "config.spatial_merge_size", "=1"}},
			layout: layout{rowSep: "{break}", end: "{last}"}, put: "-"},
	},
	{
		name: "lighton_ocr", title: "LightOnOCR",
		archs: []string{"LightOnOCRForConditionalGeneration", "LightOnOcrForConditionalGeneration"},
		types: []string{"lighton_ocr"}, processors: []string{"LightOnOcrProcessor"}, priority: 2,
		names: map[string]tokenName{"image": {attr: "image_token", text: "<|image_pad|>", id: "image_token_id image_token_index"}},
		image: &entry{target: "{image}", id: "{image}",
			count: fitLongest{edge: setting{"image.size.longest_edge", "config.vision_config.image_size"},
				patch: setting{"config.vision_config.patch_size", "processor.patch_size"},
				merge: setting{"config.spatial_merge_size", "processor.spatial_merge_size", "=1"}, drops: true}, put: "-"},
	},
	{
		name: "pixtral_native", title: "Pixtral and Mistral with vision, params.json and tekken.json",
		types: []string{"pixtral_native"},
		names: map[string]tokenName{
			"image": {text: "[IMG]", id: "image_token_id"},
			"break": {text: "[IMG_BREAK]", id: "image_break_token_id"},
			"last":  {text: "[IMG_END]", id: "image_end_token_id"},
		},
		image: &entry{target: "{image}", id: "{image}",
			count: fitLongest{edge: setting{"config.vision_config.max_image_size", "config.vision_config.image_size", "=1024"},
				patch: setting{"config.vision_config.patch_size"},
				merge: setting{"config.vision_config.spatial_merge_size", "=1"}, nearest: true},
			layout: layout{rowSep: "{break}", end: "{last}"}, put: "-"},
		note: "vLLM refuses images that EXIF turns by a quarter (500)",
	},
	{
		name: "gemma4", title: "Gemma 4",
		archs: []string{"Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration"},
		types: []string{"gemma4", "gemma4_unified"}, processors: []string{"Gemma4Processor", "Gemma4UnifiedProcessor", "Gemma4ImageProcessor"},
		names: map[string]tokenName{
			"image": {attr: "image_token", text: "<|image|>", id: "image_token_id"},
			"boi":   {attr: "boi_token", text: "<|image>", id: "boi_token_id"},
			"eoi":   {attr: "eoi_token", text: "<image|>", id: "eoi_token_id"},
		},
		image: &entry{target: "{image}", id: "{image}",
			count: softBudget{patch: setting{"image.patch_size", "config.vision_config.patch_size", "=16"},
				pool:   setting{"image.pooling_kernel_size", "config.vision_config.pooling_kernel_size", "=3"},
				budget: setting{"kw.max_soft_tokens", "image.max_soft_tokens", "config.vision_config.default_output_length", "=280"}},
			layout: layout{begin: "{boi}", end: "{eoi}"}, put: "<image_soft_token>"},
		video: &entry{target: "<|video|>"},
		audio: &entry{target: "<|audio|>", put: "<audio_soft_token>"},
	},
}

var kimiNames = map[string]tokenName{"image": {text: "<|media_pad|>", id: "media_placeholder_token_id image_token_id", loose: true}}

// kimiEntry uses the class defaults for the patch limits.
func kimiEntry(defaults ...string) *entry {
	k := kimiK25{patch: setting{"image.patch_size", "image.media_proc_cfg.patch_size", "=14"},
		merge: setting{"image.merge_size", "image.merge_kernel_size", "image.media_proc_cfg.merge_kernel_size", "=2"},
		limit: setting{"image.max_patches", "image.media_proc_cfg.in_patch_limit"},
		side:  setting{"image.size.max_height", "image.media_proc_cfg.patch_limit_on_one_side"},
		fixed: setting{"image.media_proc_cfg.fixed_output_tokens"}}
	if len(defaults) == 2 {
		k.limit, k.side = append(k.limit, defaults[0]), append(k.side, defaults[1])
	}
	return &entry{target: "{image}", id: "{image}", count: k,
		put: "<|media_begin|>image<|media_content|>{image}<|media_end|>"}
}
