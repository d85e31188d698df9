package vision

// The LLaVA line and the families with a fixed number of tokens.

var llavaNames = map[string]name{"image": {attr: "image_token", text: "<image>", id: "image_token_index image_token_id"}}

// llavaSquare is one square crop for a CLIP-like encoder.
var llavaSquare = square{
	size:  value{"image.crop_size.height", "image.crop_size", "image.size.height", "config.vision_config.image_size", "=224"},
	patch: value{"processor.patch_size", "config.vision_config.patch_size"},
	// Encoders with a class token say so in num_additional_image_tokens; for older checkpoints, whose files lack it, it follows
	// from the encoder's type.
	strategy: value{"processor.vision_feature_select_strategy", "config.vision_feature_select_strategy", "=default"},
	extra:    value{"processor.num_additional_image_tokens"},
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
		name: "gemma3", title: "Gemma 3, MedGemma",
		archs: []string{"Gemma3ForConditionalGeneration"}, types: []string{"gemma3"},
		processors: []string{"Gemma3Processor", "Gemma3ImageProcessor"},
		names: map[string]name{
			"image": {attr: "image_token", text: "<image_soft_token>", id: "image_token_index image_token_id"},
			"boi":   {attr: "boi_token", text: "<start_of_image>", id: "boi_token_index boi_token_id"},
			"eoi":   {attr: "eoi_token", text: "<end_of_image>", id: "eoi_token_index eoi_token_id"},
		},
		image: &entry{target: "{boi}", id: "{image}",
			count: panScan{tokens: value{"processor.image_seq_length", "image.image_seq_length", "config.mm_tokens_per_image", "=256"},
				// The default in the processor's call overrides the image processor's file.
				on: value{"kw.do_pan_and_scan"}, minCrop: value{"kw.pan_and_scan_min_crop_size", "=256"},
				maxCrops: value{"kw.pan_and_scan_max_num_crops", "=4"}, minRatio: value{"kw.pan_and_scan_min_ratio_to_activate", "=1.2"}},
			layout: layout{tiledBegin: "Here is the original image ", mainFirst: true, mainBegin: "\n\n{boi}", mainEnd: "{eoi}\n\n",
				between:   " and here are some crops to help you see better ",
				tileBegin: "\n\n{boi}", tileEnd: "{eoi}\n\n", tileSep: " "}},
		newlineMerge: true,
	},
}
