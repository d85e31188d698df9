package body

// MediaKeys are the keys under which a content part may hold a medium, in the order in which vLLM 0.32 checks them if the part has
// a uuid or no type: the first that exists counts, null or not (entrypoints/chat_utils.py).
var MediaKeys = [...]string{"image_url", "image_pil", "image_embeds", "audio_embeds", "video_embeds", "prompt_embeds",
	"audio_url", "input_audio", "video_url"}
