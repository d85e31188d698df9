package vision

// The LLaVA line and the families with a fixed number of tokens.

var llavaNames = map[string]tokenName{"image": {attr: "image_token", text: "<image>", id: "image_token_index image_token_id"}}

// llavaSquare is one square crop for a CLIP-like encoder.
var llavaSquare = square{
	size:  setting{"image.crop_size.height", "image.crop_size", "image.size.height", "config.vision_config.image_size", "=224"},
	patch: setting{"processor.patch_size", "config.vision_config.patch_size"},
	// Encoders with a class token say so in num_additional_image_tokens; for older checkpoints, whose files lack it, it follows
	// from the encoder's type.
	strategy: setting{"processor.vision_feature_select_strategy", "config.vision_feature_select_strategy", "=default"},
	extra:    setting{"processor.num_additional_image_tokens"},
}

var llavaFamilies = []family{
	{
		name: "llava", title: "LLaVA-1.5, BakLLaVA, ViP-LLaVA",
		archs: []string{"LlavaForConditionalGeneration", "VipLlavaForConditionalGeneration"},
		types: []string{"llava", "vipllava"}, processors: []string{"LlavaProcessor", "CLIPImageProcessor"},
		names: llavaNames,
		image: &entry{target: "{image}", id: "{image}", count: llavaSquare},
	},
	{
		name: "llava_next", title: "LLaVA-NeXT (1.6)",
		archs: []string{"LlavaNextForConditionalGeneration"}, types: []string{"llava_next"},
		processors: []string{"LlavaNextProcessor", "LlavaNextImageProcessor"},
		names:      llavaNames,
		image: &entry{target: "{image}", id: "{image}",
			count: anyres{square: llavaSquare, pinpoints: setting{"config.image_grid_pinpoints", "image.image_grid_pinpoints"}}},
		facts: Facts{PlaceholdersFirst: true},
	},
	{
		name: "llava_onevision", title: "LLaVA-OneVision",
		archs: []string{"LlavaOnevisionForConditionalGeneration"}, types: []string{"llava_onevision"},
		processors: []string{"LlavaOnevisionProcessor", "LlavaOnevisionImageProcessor"},
		names: map[string]tokenName{"image": llavaNames["image"],
			"video": {attr: "video_token", text: "<video>", id: "video_token_index video_token_id"}},
		image: &entry{target: "{image}", id: "{image}",
			count: anyres{square: square{
				size:     setting{"image.size.height", "config.vision_config.image_size", "=384"},
				patch:    setting{"config.vision_config.patch_size", "=14"},
				strategy: setting{"processor.vision_feature_select_strategy", "config.vision_feature_select_strategy", "=full"},
				extra:    setting{"=0"}},
				pinpoints: setting{"image.image_grid_pinpoints", "config.image_grid_pinpoints"},
				aspect:    setting{"processor.vision_aspect_ratio", "config.vision_aspect_ratio", "=anyres_max_9"}}},
		video: &entry{target: "{video}", id: "{video}", put: "<video>"},
	},
	{
		name: "granite4_vision", title: "Granite 4 Vision",
		archs: []string{"Granite4VisionForConditionalGeneration"}, types: []string{"granite4_vision"},
		names: llavaNames,
		image: &entry{target: "{image}", id: "{image}",
			count: anyres{square: square{size: setting{"config.vision_config.image_size"}, patch: setting{"config.vision_config.patch_size"},
				rate: setting{"config.downsample_rate"}},
				pinpoints: setting{"config.image_grid_pinpoints", "image.image_grid_pinpoints"}}},
		note: "rule read in vLLM, not run",
	},
	{
		name: "gemma3", title: "Gemma 3, MedGemma",
		archs: []string{"Gemma3ForConditionalGeneration"}, types: []string{"gemma3"},
		processors: []string{"Gemma3Processor", "Gemma3ImageProcessor"},
		names: map[string]tokenName{
			"image": {attr: "image_token", text: "<image_soft_token>", id: "image_token_index image_token_id"},
			"boi":   {attr: "boi_token", text: "<start_of_image>", id: "boi_token_index boi_token_id"},
			"eoi":   {attr: "eoi_token", text: "<end_of_image>", id: "eoi_token_index eoi_token_id"},
		},
		image: &entry{target: "{boi}", id: "{image}",
			count: panScan{tokens: setting{"processor.image_seq_length", "image.image_seq_length", "config.mm_tokens_per_image", "=256"},
				// The default in the processor's call overrides the image processor's file.
				on: setting{"kw.do_pan_and_scan"}, minCrop: setting{"kw.pan_and_scan_min_crop_size", "=256"},
				maxCrops: setting{"kw.pan_and_scan_max_num_crops", "=4"}, minRatio: setting{"kw.pan_and_scan_min_ratio_to_activate", "=1.2"}},
			layout: layout{tiledBegin: "Here is the original image ", mainFirst: true, mainBegin: "\n\n{boi}", mainEnd: "{eoi}\n\n",
				between:   " and here are some crops to help you see better ",
				tileBegin: "\n\n{boi}", tileEnd: "{eoi}\n\n", tileSep: " "}},
		newlineMerge: true,
	},
	{
		name: "gemma3n", title: "Gemma 3n",
		archs: []string{"Gemma3nForConditionalGeneration"}, types: []string{"gemma3n"}, processors: []string{"Gemma3nProcessor"},
		names: map[string]tokenName{
			"image": {attr: "image_token", text: "<image_soft_token>", id: "image_token_id"},
			"boi":   {attr: "boi_token", text: "<start_of_image>", id: "boi_token_id"},
			"eoi":   {attr: "eoi_token", text: "<end_of_image>", id: "eoi_token_id"},
			"audio": {attr: "audio_token", text: "<audio_soft_token>", id: "audio_token_id"},
			"boa":   {attr: "boa_token", text: "<start_of_audio>", id: "boa_token_id"},
			"eoa":   {attr: "eoa_token", text: "<end_of_audio>", id: "eoa_token_id"},
		},
		image: &entry{target: "{image}", id: "{image}", count: fixed{setting{"processor.image_seq_length", "=256"}},
			layout: layout{begin: "\n\n{boi}", end: "{eoi}\n\n"}},
		audio: &entry{target: "{audio}", id: "{audio}", count: fixed{setting{"processor.audio_seq_length", "=188"}},
			layout: layout{begin: "\n\n{boa}", end: "{eoa}\n\n"}},
		newlineMerge: true,
	},
	{
		name: "paligemma", title: "PaliGemma, PaliGemma 2",
		archs: []string{"PaliGemmaForConditionalGeneration"}, types: []string{"paligemma"}, processors: []string{"PaliGemmaProcessor"},
		names: map[string]tokenName{
			"image": {attr: "image_token", text: "<image>", id: "image_token_index image_token_id"},
			"bos":   {attr: "bos_token", text: "<bos>"},
		},
		image: &entry{prefix: "{bos}", id: "{image}",
			count: square{size: setting{"image.size.height", "config.vision_config.image_size"},
				patch: setting{"config.vision_config.patch_size", "=14"}},
			layout: layout{end: "{bos}"}, put: "-"},
		finishText: func(_ *Expander, text string) string { return text + "\n" },
	},
	{
		name: "deepseek_vl", title: "DeepSeek-VL",
		archs:      []string{"DeepseekVLForConditionalGeneration", "DeepseekVLHybridForConditionalGeneration"},
		types:      []string{"deepseek_vl", "deepseek_vl_hybrid"},
		processors: []string{"DeepseekVLProcessor", "DeepseekVLHybridProcessor", "DeepseekVLImageProcessor"},
		names:      map[string]tokenName{"image": {attr: "image_token", text: "<image_placeholder>", id: "image_token_id"}},
		image:      &entry{target: "{image}", id: "{image}", count: fixed{setting{"processor.num_image_tokens", "=576"}}},
	},
	{
		name: "janus", title: "Janus, Janus-Pro",
		archs: []string{"JanusForConditionalGeneration"}, types: []string{"janus"},
		processors: []string{"JanusProcessor", "JanusImageProcessor"},
		names: map[string]tokenName{
			"image": {attr: "image_token", text: "<image_placeholder>", id: "image_token_id"},
			"boi":   {attr: "boi_token", text: "<begin_of_image>"},
			"eoi":   {attr: "eoi_token", text: "<end_of_image>"},
		},
		image: &entry{target: "{image}", id: "{image}", count: fixed{setting{"processor.num_image_tokens", "=576"}},
			layout: layout{begin: "{boi}", end: "{eoi}"}},
	},
	{
		name: "aria", title: "Aria",
		archs: []string{"AriaForConditionalGeneration"}, types: []string{"aria"},
		names: map[string]tokenName{"image": {attr: "image_token", text: "<|img|>", id: "image_token_index"}},
		image: &entry{target: "{image}", id: "{image}", count: largestQuery{setting{"config.projector_patch_to_query_dict"}},
			put: "<|fim_prefix|>{image}<|fim_suffix|>"},
		note:     "vLLM only: the Hugging Face processor splits large images",
		unbacked: true,
	},
	{
		name: "blip2", title: "BLIP-2",
		archs: []string{"Blip2ForConditionalGeneration"}, types: []string{"blip-2"},
		names:    map[string]tokenName{"image": {text: "<image>", id: "image_token_index"}},
		image:    &entry{id: "{image}", count: fixed{setting{"config.num_query_tokens"}}, put: "-"},
		note:     "vLLM only",
		unbacked: true,
	},
}
