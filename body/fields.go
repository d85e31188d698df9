package body

import "strings"

// noEffect are the fields of requests that change what an engine generates, how it answers or when, and no prompt, in none of the
// engines and releases whose fields were listed (engine/testdata/requests).
var noEffect = func() map[string]bool {
	set := map[string]bool{}
	for _, key := range strings.Fields(`
agent_hierarchy allowed_token_ids background bad_words best_of betas custom_labels custom_logit_processor custom_params detokenize
early_stopping ebnf enable_response_messages frequency_penalty guided_decoding_backend ignore_eos include include_reasoning
include_stop_str_in_output injected_chat_template_kwargs json_schema length_penalty logit_bias logprob_token_ids logprobs
max_completion_tokens max_output_tokens max_tokens max_tool_calls metadata min_p min_tokens mm_payload n no_stop_trim
parallel_tool_calls presence_penalty priority prompt_cache_key prompt_cache_options prompt_cache_retention prompt_ignore_length regex
repetition_detection repetition_penalty request_id return_assistant_tokens_mask return_cached_tokens_details return_context_logits
return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs_b64 return_hidden_states return_input_ids_in_sglext return_meta_info
return_mm_kwargs return_output_ids_in_sglext return_prompt_text return_prompt_token_ids return_routed_experts return_sampling_mask
return_spec_tokens_details return_token_ids return_token_offsets return_tokens_as_token_ids return_weight_versions
routed_experts_prompt_start routed_experts_start_len safety_identifier sampling_logprobs_mode seed separate_reasoning service_tier
session_id skip_special_tokens spaces_between_special_tokens stop stop_regex stop_sequences stop_token_ids store stream
stream_interval stream_options stream_reasoning temperature thinking_token_budget top_k top_logprobs top_p top_p_min use_beam_search
user watermark watermarking`) {
		set[key] = true
	}
	return set
}()

// NoEffect reports whether a field of a request is known to change no prompt, whatever the engine.
func NoEffect(key string) bool { return noEffect[key] }
