package body

import (
	"errors"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/internal/fair"
)

// Bounds of a request.
const (
	maxMessages = 4096
	maxParts    = 4096    // content parts in all messages
	maxKeys     = 1 << 16 // of the body, of all messages and of all content parts, because templates get copies of them
)

// Errors of a body that is JSON but not a request. They never quote the body.
var (
	ErrObject   = errors.New("body is not a JSON object")
	ErrMessages = errors.New("messages is missing or not a list")
	ErrTooMany  = errors.New("more than 4096 messages or content parts, or more than 65536 keys in them")
)

// Request is the part of a body that the prompt depends on. The last of duplicate keys counts, as in Python's json. Its values
// refer to the skeleton.
type Request struct {
	Body     *Skeleton
	Client   fair.Client // who sent it; not from the body
	Model    string
	Messages []Message
	Batch    [][]Message             // if messages is a list of conversations: windows of Messages; else nil
	Fields   map[string]gjson.Result // all other top-level keys
}

// Message is one chat message. Content is a string (Text set, Parts nil), null, or a list of parts.
type Message struct {
	Role    string
	Kind    ContentKind
	Content gjson.Result
	Parts   []Part
	Fields  map[string]gjson.Result // keys other than role and content; nil if none
}

// ContentKind is the kind of a message's content.
type ContentKind uint8

// Kinds of content. Other is anything that no engine accepts.
const (
	None ContentKind = iota
	Text
	List
	Other
)

// Part is one element of a content list.
type Part struct {
	Raw    gjson.Result
	Type   string                  // the "type" key; empty if it is missing
	Fields map[string]gjson.Result // the part's other keys
}

// Read scans a body and parses it. This is all that is done with its bytes before a model reads the request. After an error of
// Scan, s has no JSON; after one of Parse it has, and req holds what was read until then. Both can be reused.
func Read(pieces [][]byte, s *Skeleton, req *Request) error {
	*req = Request{Body: s}
	if err := s.Scan(pieces); err != nil {
		return err
	}
	return Parse(s, req)
}

// Parse reads a scanned body. Unknown keys are kept in Fields. Errors name what is wrong, without the body's text.
func Parse(s *Skeleton, req *Request) error {
	*req = Request{Body: s, Fields: make(map[string]gjson.Result, 8)}
	root := gjson.Parse(s.JSON())
	if !root.IsObject() {
		return ErrObject
	}
	var messages gjson.Result
	root.ForEach(func(k, v gjson.Result) bool {
		switch key := k.String(); key {
		case "model":
			req.Model, _ = s.String(v)
		case "messages":
			messages = v
		default:
			req.Fields[key] = v
		}
		return len(req.Fields) <= maxKeys
	})
	if len(req.Fields) > maxKeys {
		return ErrTooMany
	}
	if !messages.Exists() {
		return nil
	}
	if !messages.IsArray() {
		return ErrMessages
	}
	if messages.Get("0").IsArray() {
		return req.batch(messages)
	}
	var err error
	req.Messages, err = s.Messages(messages)
	return err
}

// SetSalt sets the request's cache_salt as if it had been in the body; "": none. It is for callers that change the body so (Clean).
func (req *Request) SetSalt(salt string) {
	delete(req.Fields, saltKey)
	if salt != "" && req.Fields != nil {
		req.Fields[saltKey] = gjson.Result{Type: gjson.String, Raw: `"` + salt + `"`, Str: salt}
	}
}

// batch reads a list of conversations (vLLM's /v1/chat/completions/batch).
func (req *Request) batch(list gjson.Result) (err error) {
	r := messageReader{s: req.Body}
	var ends []int
	list.ForEach(func(_, v gjson.Result) bool {
		err = r.list(v)
		if len(ends) == maxMessages {
			err = ErrTooMany
		}
		ends = append(ends, len(r.out))
		return err == nil
	})
	if err != nil {
		return err
	}
	from := 0
	for _, end := range ends {
		req.Batch = append(req.Batch, r.out[from:end:end])
		from = end
	}
	req.Messages = r.out
	return nil
}

// Messages reads a list of message-like objects. Errors: ErrMessages, ErrTooMany.
func (s *Skeleton) Messages(list gjson.Result) ([]Message, error) {
	r := messageReader{s: s}
	err := r.list(list)
	return r.out, err
}

// messageReader reads lists of messages, with common bounds of messages, parts and keys.
type messageReader struct {
	s     *Skeleton
	out   []Message
	parts PartCounter
}

// PartCounter counts content parts and keys of a request, which may be spread over several lists.
type PartCounter struct{ parts, keys int }

// Add counts parts. The error is ErrTooMany.
func (t *PartCounter) Add(parts []Part) error {
	t.parts += len(parts)
	for i := range parts {
		t.keys += len(parts[i].Fields)
	}
	if t.parts > maxParts || t.keys > maxKeys {
		return ErrTooMany
	}
	return nil
}

func (r *messageReader) list(v gjson.Result) (err error) {
	if !v.IsArray() {
		return ErrMessages
	}
	v.ForEach(func(_, v gjson.Result) bool {
		if len(r.out) == maxMessages {
			err = ErrTooMany
			return false
		}
		var m Message
		m, err = r.s.message(v)
		if err != nil {
			return false
		}
		r.parts.keys += len(m.Fields)
		err = r.parts.Add(m.Parts)
		if err != nil {
			return false
		}
		r.out = append(r.out, m)
		return true
	})
	return err
}

func (s *Skeleton) message(v gjson.Result) (m Message, err error) {
	if !v.IsObject() {
		return m, ErrMessages
	}
	v.ForEach(func(k, v gjson.Result) bool {
		switch key := k.String(); key {
		case "role":
			m.Role, _ = s.String(v)
		case "content":
			m.Content = v
		default:
			if m.Fields == nil {
				m.Fields = make(map[string]gjson.Result, 4)
			}
			m.Fields[key] = v
		}
		return len(m.Fields) <= maxKeys // with more the caller's count fails
	})
	switch {
	case m.Content.Type == gjson.Null:
		m.Kind = None
	case m.Content.Type == gjson.String:
		m.Kind = Text
	case m.Content.IsArray():
		m.Kind = List
		m.Parts, err = s.Parts(m.Content)
	default:
		m.Kind = Other
	}
	return m, err
}

// Parts reads a list of content parts. The error is ErrTooMany.
func (s *Skeleton) Parts(list gjson.Result) (parts []Part, err error) {
	keys := 0
	list.ForEach(func(_, v gjson.Result) bool {
		if len(parts) > maxParts || keys > maxKeys {
			err = ErrTooMany
			return false
		}
		p := s.part(v)
		parts, keys = append(parts, p), keys+len(p.Fields)
		return true
	})
	return parts, err
}

func (s *Skeleton) part(v gjson.Result) Part {
	p := Part{Raw: v}
	if !v.IsObject() {
		return p
	}
	p.Fields = make(map[string]gjson.Result, 3)
	v.ForEach(func(k, v gjson.Result) bool {
		if key := k.String(); key == "type" {
			p.Type, _ = s.String(v)
		} else {
			p.Fields[key] = v
		}
		return len(p.Fields) <= maxKeys // with more the caller's count fails
	})
	return p
}

// Last returns the value of an object's key, the last one of duplicates.
func Last(object gjson.Result, key string) (found gjson.Result) {
	if !object.IsObject() {
		return
	}
	object.ForEach(func(k, v gjson.Result) bool {
		if k.String() == key {
			found = v
		}
		return true
	})
	return found
}

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

// MediaKeys are the keys under which a content part may hold a medium, in the order in which vLLM 0.32 checks them if the part has
// a uuid or no type: the first that exists counts, null or not (entrypoints/chat_utils.py).
var MediaKeys = [...]string{"image_url", "image_pil", "image_embeds", "audio_embeds", "video_embeds", "prompt_embeds",
	"audio_url", "input_audio", "video_url"}
