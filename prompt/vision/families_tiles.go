package vision

// Families that cut an image into tiles.

// internTiles is InternVL's rule as its config.json gives it.
func internTiles(perTile perTile) tiles {
	return tiles{
		size:    setting{"config.force_image_size", "config.vision_config.image_size"},
		min:     setting{"kw.min_dynamic_patch", "config.min_dynamic_patch", "=1"},
		max:     setting{"kw.max_dynamic_patch", "config.max_dynamic_patch", "=12"},
		dynamic: setting{"kw.dynamic_image_size", "config.dynamic_image_size", "=true"},
		thumb:   setting{"kw.use_thumbnail", "config.use_thumbnail"},
		perTile: perTile,
	}
}

var internPerTile = perTile{patch: setting{"config.vision_config.patch_size", "=14"}, ratio: setting{"config.downsample_ratio", "=0.5"}}

// gotTiles is the same rule in Hugging Face's GotOcr2ImageProcessor. The processor's call enables cropping whatever the file says;
// only a request can disable it.
var gotTiles = tiles{
	size: setting{"image.size.height", "=384"}, min: setting{"image.min_patches", "=1"}, max: setting{"image.max_patches", "=12"},
	dynamic: setting{"kw.crop_to_patches", "=true"},
	perTile: perTile{n: setting{"processor.image_seq_length", "=256"}},
}

var imgContext = map[string]tokenName{"image": {attr: "context_image_token", text: "<IMG_CONTEXT>", id: "image_token_id"}}

// idefics3Layout precedes each tile by its row and column and puts the overview last.
var idefics3Layout = layout{
	tileBegin: "<fake_token_around_image><row_{r}_col_{c}>", rowEnd: "\n", between: "\n",
	mainBegin: "<fake_token_around_image><global-img>", mainEnd: "<fake_token_around_image>",
	need: []string{"<fake_token_around_image>", "<global-img>"},
}

var tileFamilies = []family{
	{
		name: "internvl_chat", title: "InternVL 2 to 3.5 (original repositories), SkyworkR1V",
		archs: []string{"InternVLChatModel", "SkyworkR1VChatModel"},
		types: []string{"internvl_chat", "skywork_chat"},
		names: map[string]tokenName{"image": {text: "<IMG_CONTEXT>"}},
		image: &entry{target: "<image>", id: "{image}", count: internTiles(internPerTile),
			layout: layout{begin: "<img>", end: "</img>", need: []string{"<img>", "</img>"}}},
		video:   &entry{target: "<video>"},
		accepts: internAccepts,
		facts:   Facts{NamedFormat: true},
		factsOf: map[string]Facts{"skywork_chat": {}},
	},
	{
		name: "internvl", title: "InternVL 3 (…-hf), InternS1",
		archs:      []string{"InternVLForConditionalGeneration", "InternS1ForConditionalGeneration"},
		types:      []string{"internvl", "interns1"},
		processors: []string{"InternVLProcessor", "InternS1Processor"},
		names: map[string]tokenName{
			"image": imgContext["image"],
			"start": {attr: "start_image_token", text: "<img>"},
			"end":   {attr: "end_image_token", text: "</img>"},
		},
		image: &entry{target: "{image}", id: "{image}", count: gotTiles,
			layout: layout{begin: "{start}", end: "{end}"}},
		video: &entry{target: "<video>"},
	},
	{
		name: "h2ovl", title: "H2OVL-Mississippi",
		archs: []string{"H2OVLChatModel"}, types: []string{"h2ovl_chat"},
		names: map[string]tokenName{"image": {text: "<IMG_CONTEXT>"}},
		image: &entry{target: "<image>", id: "{image}",
			count:  msac{internTiles(internPerTile), setting{"kw.use_msac", "config.use_msac"}},
			layout: layout{begin: "<img>", end: "</img>", need: []string{"<img>", "</img>"}}},
		unbacked: true,
	},
	{
		name: "nvlm_d", title: "NVLM-D",
		archs: []string{"NVLM_D", "NVLM_D_Model"}, types: []string{"NVLM_D"},
		names: map[string]tokenName{"image": {text: "<|vision_pad|>"}},
		image: &entry{target: "<image>", id: "{image}",
			count: func() tiles { t := internTiles(internPerTile); t.grid = true; return t }(),
			layout: layout{begin: "<Image>", tileBegin: "<tile_{i}>",
				mainBegin: "<tile_global_thumbnail>", end: "</Image>"}},
		unbacked: true,
	},
	{
		name: "nemotron_nano_vl_v2", title: "Nemotron Nano VL v2",
		archs: []string{"NemotronH_Nano_VL_V2"}, types: []string{"NemotronH_Nano_VL_V2"},
		names: map[string]tokenName{"image": {text: "<image>", id: "img_context_token_id"}},
		when:  func(s *settings) bool { return dig(s.config, "vision_config.args.min_num_patches") == nil },
		image: &entry{target: "<image>", id: "{image}",
			count: tiles{size: setting{"config.force_image_size"}, min: setting{"=1"},
				max:   setting{"kw.max_num_tiles", "image.max_num_tiles", "config.max_num_tiles", "=12"},
				thumb: setting{"image.use_thumbnail", "config.use_thumbnail", "=true"},
				perTile: perTile{patch: setting{"config.patch_size", "config.vision_config.patch_size", "=16"},
					ratio: setting{"config.downsample_ratio", "=0.5"}}},
			layout: layout{begin: "<img>", end: "</img>", need: []string{"<img>", "</img>"}}},
		video: &entry{target: "<video>"},
	},
	{
		name: "nemotron_dynamic", title: "Nemotron Nano Omni (dynamic resolution)",
		archs: []string{"NemotronH_Nano_VL_V2", "NemotronH_Nano_Omni_Reasoning_V3"}, types: []string{"NemotronH_Nano_VL_V2"},
		when:  func(s *settings) bool { return dig(s.config, "vision_config.args.min_num_patches") != nil },
		image: &entry{target: "<image>"},
		video: &entry{target: "<video>"},
	},
	{
		name: "nemotron_vl_v1", title: "Llama Nemotron Nano VL v1, Eagle 2.5",
		archs: []string{"Llama_Nemotron_Nano_VL"}, types: []string{"Llama_Nemotron_Nano_VL"},
		names: map[string]tokenName{"image": {text: "<image>"}},
		image: &entry{target: "<image>", id: "{image}",
			count: func() tiles {
				t := internTiles(perTile{patch: setting{"config.patch_size", "config.vision_config.patch_size", "=16"},
					ratio: setting{"config.downsample_ratio", "=0.5"}})
				t.choose = closeAndFull
				return t
			}(),
			layout: layout{begin: "<img>", end: "</img>", need: []string{"<img>", "</img>"}}},
		unbacked: true,
	},
	{
		name: "aya_vision", title: "Aya Vision",
		archs: []string{"AyaVisionForConditionalGeneration"}, types: []string{"aya_vision"}, processors: []string{"AyaVisionProcessor"},
		names: map[string]tokenName{
			"image": {attr: "image_token", text: "<image>"},
			"patch": {attr: "img_patch_token", text: "<|IMG_PATCH|>", id: "image_token_index image_token_id"},
			"start": {attr: "start_of_img_token", text: "<|START_OF_IMG|>"},
			"end":   {attr: "end_of_img_token", text: "<|END_OF_IMG|>"},
		},
		image: &entry{target: "{image}", id: "{patch}",
			count: tiles{size: setting{"image.size.height", "=384"}, min: setting{"image.min_patches", "=1"},
				max:     setting{"image.max_patches", "=12"},
				dynamic: setting{"kw.crop_to_patches", "=true"}, grid: true,
				perTile: perTile{size: setting{"processor.img_size", "=364"}, patch: setting{"processor.patch_size", "=28"},
					times: setting{"processor.downsample_factor", "=1"}}},
			layout: layout{begin: "{start}", tileBegin: "TILE_{i}", mainBegin: "TILE_GLOBAL", end: "{end}"}},
		note: "vLLM up to 0.24",
	},
	{
		name: "cohere2_vision", title: "Command A Vision",
		archs: []string{"Cohere2VisionForConditionalGeneration"}, types: []string{"cohere2_vision"},
		processors: []string{"Cohere2VisionProcessor", "Cohere2VisionImageProcessor"},
		names: map[string]tokenName{
			"image": {attr: "image_token", text: "<|IMG_PATCH|>", id: "image_token_id"},
			"start": {attr: "boi_token", text: "<|START_OF_IMG|>", id: "boi_token_id"},
			"end":   {attr: "eoi_token", text: "<|END_OF_IMG|>", id: "eoi_token_id"},
			"line":  {attr: "img_line_break_token", text: "<|IMG_LINE_BREAK|>"},
		},
		image: &entry{target: "{image}", id: "{image}",
			count: tiles{size: setting{"image.size.height", "=512"}, min: setting{"=1"}, max: setting{"image.max_patches", "=12"},
				dynamic: setting{"image.crop_to_patches", "=true"}, grid: true, choose: leastUpscaled,
				perTile: perTile{size: setting{"image.patch_size", "=16"}, patch: setting{"=1"}}},
			layout: layout{begin: "{start}", tileEnd: "{line}", mainEnd: "{line}", end: "{end}"}, put: "-"},
	},
	{
		name: "llama4", title: "Llama 4",
		archs: []string{"Llama4ForConditionalGeneration"}, types: []string{"llama4"},
		processors: []string{"Llama4Processor", "Llama4ImageProcessor"},
		names: map[string]tokenName{
			"patch": {text: "<|patch|>", id: "image_token_index image_token_id"},
			"start": {text: "<|image_start|>", id: "boi_token_index"},
			"end":   {text: "<|image_end|>", id: "eoi_token_index"},
		},
		image: &entry{target: "<|image|>", id: "{patch}",
			count: llama4{tile: setting{"image.size.height", "=336"}, max: setting{"image.max_patches", "=16"},
				patch:      setting{"processor.patch_size", "config.vision_config.patch_size", "=14"},
				downsample: setting{"processor.pixel_shuffle_ratio", "config.vision_config.pixel_shuffle_ratio", "=0.5"},
				largest:    setting{"image.resize_to_max_canvas"}},
			layout: layout{begin: "{start}", tileSep: "<|tile_x_separator|>", rowEnd: "<|tile_y_separator|>",
				mainBegin: "<|image|>", end: "{end}",
				need: []string{"<|image|>", "<|tile_x_separator|>", "<|tile_y_separator|>"}}},
	},
	{
		name: "mllama", title: "Llama 3.2 Vision",
		archs: []string{"MllamaForConditionalGeneration"}, types: []string{"mllama"},
		processors: []string{"MllamaProcessor", "MllamaImageProcessor"},
		names:      map[string]tokenName{"image": {attr: "image_token", text: "<|image|>", id: "image_token_index"}},
		image:      &entry{target: "{image}", id: "{image}", count: fixed{setting{"=1"}}, put: "{image}"},
		prepareText: func(m *Expander, text string) string {
			return leadingBOS(m, text, m.names["image"])
		},
		note: "cross attention: one token whatever the size; SGLang and TensorRT-LLM only",
	},
	{
		name: "idefics3", title: "Idefics 3, SmolVLM, SmolVLM2, Granite-Docling (first)",
		archs:      []string{"Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"},
		types:      []string{"idefics3", "smolvlm"},
		processors: []string{"Idefics3Processor", "SmolVLMProcessor", "Idefics3ImageProcessor", "SmolVLMImageProcessor"},
		names:      map[string]tokenName{"image": {attr: "image_token", text: "<image>", id: "image_token_id"}},
		image: &entry{target: "{image}", id: "{image}",
			count: splitLongest{edge: setting{"image.size.longest_edge", "=1456"}, tile: setting{"image.max_image_size.longest_edge", "=364"},
				seqLen: setting{"processor.image_seq_len", "=169"}, split: setting{"image.do_image_splitting", "=true"}},
			layout: idefics3Layout},
		video: &entry{target: "<video>"},
	},
	{
		name: "granite_docling", title: "Granite-Docling (own class)",
		archs: []string{"GraniteDoclingForConditionalGeneration"}, types: []string{"granite_docling"},
		processors: []string{"GraniteDoclingProcessor", "GraniteDoclingImageProcessor"},
		names:      map[string]tokenName{"image": {attr: "image_token", text: "<image>", id: "image_token_id"}},
		image: &entry{target: "{image}", id: "{image}",
			count: graniteDocling{size: setting{"image.size.height", "=512"}, min: setting{"image.min_patches", "=1"},
				max:  setting{"image.max_patches", "=32"},
				crop: setting{"image.crop_to_patches", "=true"}, seqLen: setting{"processor.image_seq_len", "=64"}, fine: setting{"image.fine_route"},
				dense: [4]setting{{"image.dense_max_patches", "=0"}, {"image.dense_max_scale", "=0"}, {"image.dense_min_aspect", "=0"},
					{"image.dense_max_aspect", "=0"}}},
			layout: idefics3Layout},
	},
	{
		name: "idefics2", title: "Idefics 2",
		archs: []string{"Idefics2ForConditionalGeneration"}, types: []string{"idefics2"},
		processors: []string{"Idefics2Processor", "Idefics2ImageProcessor"},
		names: map[string]tokenName{
			"image": {attr: "image_token", text: "<image>", id: "image_token_id"},
			"fake":  {attr: "image_boundary_token", text: "<fake_token_around_image>"},
		},
		image: &entry{target: "{image}", id: "{image}",
			count:  idefics2{seqLen: setting{"processor.image_seq_len", "=64"}, split: setting{"image.do_image_splitting"}},
			layout: layout{begin: "{fake}", end: "{fake}", tileEnd: "{fake}"}},
		finishText: idefics2Text,
	},
	{
		name: "lfm2_vl", title: "LFM2-VL",
		archs: []string{"Lfm2VlForConditionalGeneration"}, types: []string{"lfm2-vl", "lfm2_vl"},
		processors: []string{"Lfm2VlProcessor", "Lfm2VlImageProcessor"},
		names: map[string]tokenName{
			"image": {attr: "image_token", text: "<image>", id: "image_token_id"},
			"start": {attr: "image_start_token", text: "<|image_start|>"},
			"end":   {attr: "image_end_token", text: "<|image_end|>"},
			"thumb": {attr: "image_thumbnail_token", text: "<|img_thumbnail|>"},
		},
		image: &entry{target: "{image}", id: "{image}",
			count: lfm2{factor: setting{"image.downsample_factor", "=2"}, patch: setting{"image.encoder_patch_size", "=16"},
				minTokens: setting{"image.min_image_tokens", "=64"}, maxTokens: setting{"image.max_image_tokens", "=256"},
				tile: setting{"image.tile_size", "=512"}, minTiles: setting{"image.min_tiles", "=2"}, maxTiles: setting{"image.max_tiles", "=10"},
				split: setting{"image.do_image_splitting", "=true"}, thumb: setting{"image.use_thumbnail", "=true"},
				tolerance: setting{"image.max_pixels_tolerance", "=2"}},
			layout: layout{begin: "{start}", tileBegin: "<|img_row_{r}_col_{c}|>", between: "{thumb}", end: "{end}"}},
	},
	{
		name: "minicpmv4_6", title: "MiniCPM-V 4.6",
		archs: []string{"MiniCPMV4_6ForConditionalGeneration"}, types: []string{"minicpmv4_6"},
		processors: []string{"MiniCPMV4_6Processor", "MiniCPMV4_6ImageProcessor"},
		names: map[string]tokenName{
			"image":    {attr: "image_token", text: "<|image_pad|>", id: "image_token_id"},
			"begin":    {attr: "image_start_token", text: "<image>"},
			"end":      {attr: "image_end_token", text: "</image>"},
			"slice":    {attr: "slice_start_token", text: "<slice>"},
			"slice_no": {attr: "slice_end_token", text: "</slice>"},
			"id_on":    {attr: "image_id_start_token", text: "<image_id>"},
			"id_off":   {attr: "image_id_end_token", text: "</image_id>"},
		},
		image: &entry{target: "{image}", id: "{image}",
			count: minicpm46{res: setting{"image.scale_resolution", "=448"}, max: setting{"image.max_slice_nums", "=9"},
				patch: setting{"image.patch_size", "=14"}, sliced: setting{"image.slice_mode", "=true"},
				mode: setting{"image.downsample_mode", "=16x"}, ids: setting{"image.use_image_id", "=true"}},
			layout: layout{begin: "{id_on}{k}{id_off}", mainFirst: true, mainBegin: "{begin}", mainEnd: "{end}",
				tileBegin: "{slice}", tileEnd: "{slice_no}", rowSep: "\n"}},
		video:     &entry{target: "<|video_pad|>"},
		viaPieces: true, outOfVocab: true,
		facts: Facts{PlaceholdersFirst: true},
	},
	{
		name: "step3", title: "Step3",
		archs: []string{"Step3VLForConditionalGeneration", "StepVLForConditionalGeneration"}, types: []string{"step3_vl", "step_vl"},
		names: map[string]tokenName{"image": {text: "<im_patch>", id: "image_token_id"}},
		image: &entry{target: "{image}", id: "{image}",
			count: step3{overview: setting{"image.num_image_feature_size", "=169"}, tile: setting{"image.num_patch_feature_size", "=81"},
				patches: setting{"image.enable_patch", "=true"}},
			layout: layout{tileBegin: "<patch_start>", tileEnd: "<patch_end>", rowSep: "<patch_newline>", mainBegin: "<im_start>", end: "<im_end>",
				need: []string{"<patch_start>", "<patch_end>", "<patch_newline>", "<im_start>", "<im_end>"}}},
		note: "an image whose long side is 728 px is whole in SGLang, cut in vLLM 0.32",
	},
}

// internAccepts: vLLM 0.32 passes a request's settings to both the image's and the video's processor, which accept few names.
func internAccepts(m *Expander, kw Kwargs) error {
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
