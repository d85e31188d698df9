package vision

// Families that cut a picture into tiles.

// internTiles is InternVL's rule as its config.json gives it.
func internTiles(perTile perTile) tiles {
	return tiles{
		size:    value{"config.force_image_size", "config.vision_config.image_size"},
		min:     value{"kw.min_dynamic_patch", "config.min_dynamic_patch", "=1"},
		max:     value{"kw.max_dynamic_patch", "config.max_dynamic_patch", "=12"},
		dynamic: value{"kw.dynamic_image_size", "config.dynamic_image_size", "=true"},
		thumb:   value{"kw.use_thumbnail", "config.use_thumbnail"},
		perTile: perTile,
	}
}

var internPerTile = perTile{patch: value{"config.vision_config.patch_size", "=14"}, ratio: value{"config.downsample_ratio", "=0.5"}}

// gotTiles is the same rule in Hugging Face's GotOcr2ImageProcessor. The processor's call enables cropping whatever the file says;
// only a request can disable it.
var gotTiles = tiles{
	size: value{"image.size.height", "=384"}, min: value{"image.min_patches", "=1"}, max: value{"image.max_patches", "=12"},
	dynamic: value{"kw.crop_to_patches", "=true"},
	perTile: perTile{n: value{"processor.image_seq_length", "=256"}},
}

var imgContext = map[string]name{"image": {attr: "context_image_token", text: "<IMG_CONTEXT>", id: "image_token_id"}}

var tileFamilies = []family{
	{
		name: "internvl_chat", title: "InternVL 2 to 3.5 (original repositories), SkyworkR1V",
		archs: []string{"InternVLChatModel", "SkyworkR1VChatModel"},
		types: []string{"internvl_chat", "skywork_chat"},
		names: map[string]name{"image": {text: "<IMG_CONTEXT>"}},
		image: &entry{target: "<image>", id: "{image}", count: internTiles(internPerTile),
			layout: layout{begin: "<img>", end: "</img>", need: []string{"<img>", "</img>"}}},
		video:   &entry{target: "<video>"},
		accepts: internAccepts,
		facts:   Facts{Conversation: "internvl-2-5"},
		factsOf: map[string]Facts{"skywork_chat": {}},
	},
	{
		name: "internvl", title: "InternVL 3 (…-hf), InternS1",
		archs:      []string{"InternVLForConditionalGeneration", "InternS1ForConditionalGeneration"},
		types:      []string{"internvl", "interns1"},
		processors: []string{"InternVLProcessor", "InternS1Processor"},
		names: map[string]name{
			"image": imgContext["image"],
			"start": {attr: "start_image_token", text: "<img>"},
			"end":   {attr: "end_image_token", text: "</img>"},
		},
		image: &entry{target: "{image}", id: "{image}", count: gotTiles,
			layout: layout{begin: "{start}", end: "{end}"}},
		video: &entry{target: "<video>"},
	},
	{
		name: "llama4", title: "Llama 4",
		archs: []string{"Llama4ForConditionalGeneration"}, types: []string{"llama4"},
		processors: []string{"Llama4Processor", "Llama4ImageProcessor"},
		names: map[string]name{
			"patch": {text: "<|patch|>", id: "image_token_index image_token_id"},
			"start": {text: "<|image_start|>", id: "boi_token_index"},
			"end":   {text: "<|image_end|>", id: "eoi_token_index"},
		},
		image: &entry{target: "<|image|>", id: "{patch}",
			count: llama4{tile: value{"image.size.height", "=336"}, max: value{"image.max_patches", "=16"},
				patch:      value{"processor.patch_size", "config.vision_config.patch_size", "=14"},
				downsample: value{"processor.pixel_shuffle_ratio", "config.vision_config.pixel_shuffle_ratio", "=0.5"},
				largest:    value{"image.resize_to_max_canvas"}},
			layout: layout{begin: "{start}", tileSep: "<|tile_x_separator|>", rowEnd: "<|tile_y_separator|>",
				mainBegin: "<|image|>", end: "{end}",
				need: []string{"<|image|>", "<|tile_x_separator|>", "<|tile_y_separator|>"}}},
	},
}

// internAccepts: vLLM 0.32 passes a request's settings to both the picture's and the video's processor, which accept few names.
func internAccepts(m *Model, kw Kwargs) error {
	llm, _ := dig(m.settings.config, "llm_config.model_type").(string)
	video := map[string]string{"qwen2": "<|video_pad|>", "qwen3": "<|video_pad|>", "qwen3_moe": "<|video_pad|>",
		"gpt_oss": "<|reserved_200000|>"}[llm]
	_, hasVideo := m.tok.ID(video)
	for k := range kw {
		switch k {
		case "image_size":
			continue
		case "min_dynamic_patch", "max_dynamic_patch", "dynamic_image_size", "use_thumbnail":
			if !hasVideo {
				continue
			}
		}
		return refused(400, "mm_processor_kwargs: the processor does not know %q", k)
	}
	return nil
}
