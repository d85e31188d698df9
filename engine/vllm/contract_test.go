package vllm

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/internal/denied"
	"github.com/sightline-router/sightline/lab/golden"
	"github.com/sightline-router/sightline/media"
	"github.com/sightline-router/sightline/media/header"
	"github.com/sightline-router/sightline/media/pixels"
	"github.com/sightline-router/sightline/mmhash"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/mmhash/enginehash"
	"github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/prompt/template"
	"github.com/sightline-router/sightline/prompt/tokenizer"
	"github.com/sightline-router/sightline/prompt/vision"
)

// facts are what contract.py asked of one release.
type facts struct {
	VLLM, Transformers, Pillow string

	Images []imageFact `json:"pictures"`
	Models map[string]struct {
		Unread     string
		Modalities []string
		Names      []string // of one, two and three images: with H2OVL's use_msac, then without
	}
	Encoders   struct{ Modes, Renderers map[string]string }
	Formats    []struct{ Template, Format string }
	Fallbacks  map[string][]string
	Flags      map[string][]string
	Tokenizers struct {
		JSON   string `json:"tokenizer.json"`
		Sample string
		Own    []uint32
		Cases  [][3]json.RawMessage // model type, class, its tokens (0: those of the file)
	}
	Chats struct {
		Templates []string
		Requests  []struct {
			Endpoint, Request string
			Texts             []*string // by template; nil: refused
			Odd               bool      // a key has a value that it should not have: it may be unpredicted
		}
		Keys map[string][]string // of what a field holds, by endpoint and field
	}
	Events []struct {
		Tokens        []uint32
		Media         [][3]any
		Salt, Adapter string
		Ahead         int
		Payload       string
	}
}

// imageFact is what a release names one image.
type imageFact struct {
	Label                      string `json:"picture"`
	File, Kept, SHA256, SHA512 string
	Names                      []string // by mediaSettings
}

// mediaSettings are contract.py's SETTINGS.
var mediaSettings = []string{"", `{"image_mode":null}`, `{"image_mode":"RGBA"}`, `{"image_mode":"L"}`,
	`{"rgba_background_color":[0,128,255]}`}

const contractModel = "org/model"

// contracts reads the facts of each release: those in testdata, or the ones that make contract has made anew.
func contracts(t *testing.T, each func(t *testing.T, f *facts, v rules.Version)) {
	files, err := filepath.Glob("testdata/contract/*.json.gz")
	if made := os.Getenv("SIGHTLINE_CONTRACT"); made != "" {
		files = []string{made}
	}
	if err != nil || len(files) == 0 {
		t.Fatalf("no facts of any release %v: got %d, want no error, some", err, len(files))
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			f := new(facts)
			golden.JSON(t, f, file)
			v, err := rules.ParseVersion(f.VLLM)
			if err != nil {
				t.Fatal(err)
			}
			each(t, f, v)
		})
	}
}

// itemOf reads an image as a request's reader does.
func itemOf(t *testing.T, file []byte) enginehash.Item {
	t.Helper()
	rest := header.File(file)
	i, err := new(header.Reader).Read(&rest)
	if err != nil {
		t.Fatal(err)
	}
	return enginehash.Item{Mode: i.Mode, Bytes: int64(len(file)), Transparent: i.Transparent,
		Rotated: i.Orientation > 1, Images: 1}
}

// TestContractImages: the names of images of all modes, under all ways of loading them, are those of each release.
func TestContractImages(t *testing.T) {
	contracts(t, func(t *testing.T, f *facts, v rules.Version) {
		check := func(label, algorithm, mediaIO string, archs []string, file []byte, want string) {
			n, err := NewNames(v, contractModel, algorithm, mediaIO)
			if err != nil {
				t.Fatal(err)
			}
			n.of(v, archs)
			r, err := n.Recipe(itemOf(t, file))
			if got := r.Of(file); err != nil || got != want {
				t.Errorf("%s, %s %s %v: %s %v, want %s", label, algorithm, mediaIO, archs, got, err, want)
			}
		}
		if len(f.Images) < 30 {
			t.Errorf("%d images, want at least 30", len(f.Images))
		}
		for _, p := range f.Images {
			if strings.HasPrefix(p.Label, "bmp ") || strings.HasPrefix(p.Label, "tiff ") {
				continue // not read here, and learned
			}
			file, err := base64.StdEncoding.DecodeString(p.File)
			if err != nil {
				t.Fatal(err)
			}
			for i, setting := range mediaSettings {
				mediaIO := ""
				if setting != "" {
					mediaIO = `{"image":` + setting + `}`
				}
				check(p.Label, "", mediaIO, nil, file, p.Names[i])
			}
			check(p.Label, "sha256", "", nil, file, p.SHA256)
			check(p.Label, "sha512", "", nil, file, p.SHA512)
			check(p.Label, "", "", []string{"KimiK3ForConditionalGeneration"}, file, p.Kept)
		}
	})
}

// TestContractModels: each family's own item modality, and the names of its images. A name that is not computed here may be any.
func TestContractModels(t *testing.T) {
	// it chooses its processor by the configuration: LLaVA's or Pixtral's, both the common one
	notAsked := []string{"LlavaForConditionalGeneration"}
	contracts(t, func(t *testing.T, f *facts, v rules.Version) {
		i := slices.IndexFunc(f.Images, func(p imageFact) bool { return p.Label == "png RGB" })
		file, err := base64.StdEncoding.DecodeString(f.Images[i].File)
		if err != nil {
			t.Fatal(err)
		}
		store, err := mmhash.NewStore(1<<10, func() {})
		if err != nil {
			t.Fatal(err)
		}
		px := pixels.NewNames(store, func(err error) { t.Error(err) }, func() {})
		defer px.Close()
		asked, open := 0, 0
		for arch, m := range f.Models {
			if !hasFamily(arch) || slices.Contains(notAsked, arch) {
				continue
			}
			if m.Unread != "" {
				t.Errorf("%s: its rules were not read: got %s, want %q", arch, m.Unread, "")
				continue
			}
			asked++
			keys, err := newKeys(v, rules.KeysOptions{Model: contractModel, Architectures: []string{arch}, Store: store, Pixels: px})
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range m.Names {
				it := itemOf(t, file)
				it.Images = i%3 + 1
				medium := rules.Naming{Item: it, ID: mmhash.ContentID{1}, Source: media.File(file), Inline: true}
				keys.Name(&medium)
				if !medium.Named {
					open++
				} else if medium.Name != want {
					t.Errorf("%s, %d images: %s, want %s (it takes %v)", arch, it.Images, medium.Name, want, m.Modalities)
				}
			}
		}
		if asked < 50 || open > 6 {
			t.Errorf("%d architectures asked, %d names not computed, want at least 50, at most 6", asked, open)
		}
		t.Logf("%d architectures, %d names not computed", asked, open)
	})
}

// noTokens is a vocabulary without any token.
type noTokens struct{ vision.Tokens }

func (noTokens) ID(string) (uint32, bool) { return 0, false }

// hasFamily reports whether a family of prompt/vision is recognized by an architecture: by the name alone (it then lacks its tokens or
// its settings here), or with the files of such a model.
func hasFamily(arch string) bool {
	if arch == "Mistral3ForConditionalGeneration" || arch == "NemotronH_Nano_Omni_Reasoning_V3" {
		return true
	}
	config := fstest.MapFS{"config.json": {Data: fmt.Appendf(nil, `{"architectures": [%q]}`, arch)}}
	m, err := vision.Load(config, noTokens{}, vision.Options{})
	_, unknown := errors.AsType[*vision.UnknownModelError](err)
	return !unknown && (err != nil || m.Family() != "")
}

// TestContractEncoders: the architectures whose chats no template renders.
func TestContractEncoders(t *testing.T) {
	contracts(t, func(t *testing.T, f *facts, v rules.Version) {
		d := Dialect(v)
		for arch, mode := range f.Encoders.Modes {
			if err := d.Unrendered("", prompt.Directory{Architectures: []string{arch}}); err == nil {
				t.Errorf("%s: rendered by its template here, in mode %s by %s there; got %v, want an error",
					arch, mode, f.Encoders.Renderers[mode], err)
			}
		}
		for arch := range f.Models {
			_, own := f.Encoders.Modes[arch]
			err := d.Unrendered("", prompt.Directory{Architectures: []string{arch}})
			if own != (err != nil) && encoders[arch] == "" {
				t.Errorf("%s: encoded by the engine: %v, here %v", arch, own, err)
			}
			if err := d.Unrendered("", prompt.Directory{Architectures: []string{arch}, TokenizerMode: "hf"}); err != nil {
				t.Errorf("%s in mode hf: got %v, want no error", arch, err)
			}
		}
		for mode, class := range f.Encoders.Renderers {
			err := d.Unrendered("", prompt.Directory{TokenizerMode: mode})
			if err == nil && class != "HfRenderer" && class != "MistralRenderer" {
				t.Errorf("mode %s is %s, and exact here", mode, class)
			}
		}
	})
}

// TestContractFormats: the content format that each release detects.
func TestContractFormats(t *testing.T) {
	contracts(t, func(t *testing.T, f *facts, v rules.Version) {
		d := Dialect(v)
		for _, c := range f.Formats {
			if c.Format == "fails" {
				continue // vLLM does not start with it
			}
			tpl, err := template.Compile(c.Template, template.Options{})
			if err != nil {
				t.Errorf("%s: got %v, want no error", c.Template, err)
				continue
			}
			if got := d.Format(tpl); got.String() != c.Format {
				t.Errorf("%s: %s, want %s", c.Template, got, c.Format)
			}
		}
	})
}

// TestContractReleases: exact are the releases whose facts are in testdata, and no others.
func TestContractReleases(t *testing.T) {
	for minor := range 50 {
		v := rules.Version{0, minor, 0}
		_, err := os.Stat(fmt.Sprintf("testdata/contract/0.%d.0.json.gz", minor))
		if got, want := Rules(v).Uncompared, err != nil; got != want {
			t.Errorf("vLLM 0.%d: got uncompared %v, want %v", minor, got, want)
		}
	}
}

// TestContractChats: what each release's request types and renderer make of chats and responses. One that it refuses may be read here.
func TestContractChats(t *testing.T) {
	contracts(t, func(t *testing.T, f *facts, v rules.Version) {
		read := 0
		for i, tpl := range f.Chats.Templates {
			m, err := prompt.Load("../../examples/models/qwen2.5-vl", prompt.Options{Dialect: Dialect(v), TemplateFile: tpl, AutoToolChoice: true})
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range f.Chats.Requests {
				var s body.Skeleton
				var req body.Request
				if err := body.Read([][]byte{[]byte(c.Request)}, &s, &req); err != nil {
					t.Fatal(err)
				}
				d, err := m.Read(t.Context(), c.Endpoint, &req)
				if c.Texts[i] == nil {
					continue
				}
				read++
				if _, unread := errors.AsType[*prompt.Unpredicted](err); unread && c.Odd {
					continue
				}
				if err != nil {
					t.Errorf("%s %s: got %v, want %q", c.Endpoint, c.Request, err, *c.Texts[i])
				} else if got := d.Prompts[0].Text; got != *c.Texts[i] {
					t.Errorf("%s %s, %s:\n got %q\nwant %q", c.Endpoint, c.Request, tpl, got, *c.Texts[i])
				}
			}
		}
		if read < 200 {
			t.Errorf("got %d requests that the release renders, want at least 200", read)
		}
	})
}

// nestedUnread are keys of messages, parts, items, blocks, calls and tools, by endpoint and field, that change no prompt. make contract
// tries each of them, with odd values, at each place.
var nestedUnread = map[string]string{
	"/v1/chat/completions messages": "author channel content_type filename recipient ttl",
	"/v1/chat/completions tools":    "",
	"/v1/responses input": `acknowledged_safety_checks action actions allowed_callers allowed_domains allowed_tools always annotations
		approval_request_id approve async async_ attributes authorization background button caller caller_id categories city code
		command commands complexity connector_id container container_id country created_by definition diff display_height
		display_width domain domain_secrets embedding_weight end_index env environment error execution exit_code external_web_access
		file_ids filename filters fingerprint frame_count frame_duration_ms headers hybrid_search index input_fidelity
		input_image_mask input_tokens key keys logprob logs max_num_results max_output_length memory_limit moderation
		moderation_details moderation_stage network_policy never operation outcome output_compression output_format output_schema
		output_tokens outputs param partial_images path pattern pending_safety_checks phase quality queries query ranker
		ranking_options read_only reason reasoning_tokens region require_approval result results revised_prompt schema score
		score_threshold scroll_x scroll_y search_content_types search_context_size server_description server_label server_url size
		skill_id skills sources start_index stderr stdout svg svg_usage syntax text_weight timeout_ms timezone title token tool_names
		total_tokens ttl tunnel_id user_location value vector_store_ids version working_directory x`,
	"/v1/responses tools": `action allowed_callers allowed_domains allowed_tools always async_ authorization background city complexity connector_id
		container container_id country definition display_height display_width domain domain_secrets embedding_weight environment
		execution external_web_access file_ids filters frame_count frame_duration_ms headers hybrid_search input_fidelity
		input_image_mask key max_num_results memory_limit moderation network_policy never output_compression output_format
		output_schema partial_images path quality ranker ranking_options read_only region require_approval score_threshold
		search_content_types search_context_size server_description server_label server_url size skill_id skills svg syntax
		text_weight timezone tool_names tunnel_id user_location value vector_store_ids version`,
	"/v1/messages messages": "is_error signature",
	"/v1/messages system":   "is_error signature",
	"/v1/messages tools":    "",
	"vllm_xargs":            "max_num_tokens ngram_size num_dispatchers session_id window_size",
}

// TestContractKeys: each key that a release's types have below the fields of messages and tools is read, removed,
// or known to change no prompt; so is each key of vllm_xargs that its code asks for.
func TestContractKeys(t *testing.T) {
	code := golden.Source(t, ".", "../../prompt", "../../body")
	known := map[string]bool{}
	contracts(t, func(t *testing.T, f *facts, _ rules.Version) {
		if len(f.Chats.Keys) != len(nestedUnread) {
			t.Errorf("got keys of %d fields, want %d", len(f.Chats.Keys), len(nestedUnread))
		}
		for place, keys := range f.Chats.Keys {
			unread := strings.Fields(nestedUnread[place])
			for _, key := range keys {
				read := strings.Contains(code, strconv.Quote(key)) ||
					place == "vllm_xargs" && (denied.InBody.Field(key) != nil || denied.InExtra.Field(key) != nil)
				known[place+" "+key] = !read
				if read == slices.Contains(unread, key) {
					t.Errorf("%s: %s is read (%v) or in nestedUnread, want one of both", place, key, read)
				}
			}
		}
	})
	if os.Getenv("SIGHTLINE_CONTRACT") != "" {
		return
	}
	for place, list := range nestedUnread {
		for _, key := range strings.Fields(list) {
			if !known[place+" "+key] {
				t.Errorf("%s: no release has the key %s, want it out of nestedUnread", place, key)
			}
		}
	}
}

// TestContractFallbacks: the templates for directories that have none.
func TestContractFallbacks(t *testing.T) {
	var talk []template.Value
	for i, text := range []string{"hi", "yo", "bye"} {
		role := []string{"user", "assistant"}[i%2]
		talk = append(talk, template.NewDict(2).Set("role", template.String(role)).Set("content", template.String(text)).Value())
	}
	contracts(t, func(t *testing.T, f *facts, v rules.Version) {
		for kind, want := range f.Fallbacks {
			source := fallbackTemplate(kind, "org/name")
			if source == "" {
				t.Errorf("%s: vLLM has a template for it; got %q, want some", kind, source)
				continue
			}
			tpl, err := template.Compile(source, template.Options{})
			if err != nil {
				t.Fatal(err)
			}
			for i, text := range want {
				var vars template.Vars
				vars.Set("messages", template.NewList(talk[:i+1]...))
				vars.Set("bos_token", template.String("<s>"))
				vars.Set("eos_token", template.String("</s>"))
				vars.Set("add_generation_prompt", template.Bool(i != 1))
				if got, err := tpl.Render(nil, vars); err != nil || string(got) != text {
					t.Errorf("%s: %q %v, want %q", kind, got, err, text)
				}
			}
		}
	})
}

// TestContractEvents: the blocks of each release's events, with and without lookahead, are those of the request.
func TestContractEvents(t *testing.T) {
	contracts(t, func(t *testing.T, f *facts, v rules.Version) {
		ahead := 0
		for i, c := range f.Events {
			payload, err := hex.DecodeString(c.Payload)
			if err != nil {
				t.Fatal(err)
			}
			var spans []block.Span
			for _, m := range c.Media {
				spans = append(spans, block.Span{Offset: int(m[0].(float64)), Length: int(m[1].(float64)), Name: block.Fixed().Name(m[2].(string))})
			}
			var d Decoder
			b, err := d.Decode(payload)
			if err != nil || len(b.Events) != 1 {
				t.Errorf("event %d: got %d events, %v, want no error, 1", i, len(b.Events), err)
				continue
			}
			want := block.Fixed().Locals(nil, c.Tokens, block.Form{Size: 4, Lookahead: c.Ahead}, spans, block.Fixed().Root(c.Adapter, c.Salt))
			if got := b.Events[0].Locals; len(got) < 3 || !slices.Equal(got, want) || b.Events[0].Lookahead != c.Ahead || b.UpperBound {
				t.Errorf("event %d, %d tokens ahead: local hashes %x, want %x", i, c.Ahead, got, want)
			}
			if b.UnknownKeys != 0 {
				t.Errorf("event %d: got %d keys that are not known, want 0", i, b.UnknownKeys)
			}
			ahead = max(ahead, c.Ahead)
		}
		if len(f.Events) < 7 || (ahead > 0) != v.AtLeast(0, 33, 0) {
			t.Errorf("%d events, %d tokens ahead, want len(f.Events) >= 7, (ahead > 0) == v.AtLeast(0, 33, 0)", len(f.Events), ahead)
		}
	})
}

// TestContractTokenizers: the tokens of a text by model type and tokenizer class.
func TestContractTokenizers(t *testing.T) {
	contracts(t, func(t *testing.T, f *facts, v rules.Version) {
		for _, c := range f.Tokenizers.Cases {
			var kind, class string
			want := slices.Clone(f.Tokenizers.Own)
			if json.Unmarshal(c[0], &kind) != nil || json.Unmarshal(c[1], &class) != nil || string(c[2]) != "0" &&
				json.Unmarshal(c[2], &want) != nil {
				continue // transformers does not load it
			}
			dir := t.TempDir()
			for file, text := range map[string]string{"tokenizer.json": f.Tokenizers.JSON, "config.json": `{"model_type":"` + kind + `"}`,
				"tokenizer_config.json": `{"tokenizer_class":"` + class + `"}`} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			m, err := prompt.Load(dir, prompt.Options{Dialect: Dialect(v)})
			if err != nil {
				t.Fatal(err)
			}
			if why := m.Tokenizer().Unlike(); why != "" {
				t.Errorf("%s, %s: got %q, want an exact tokenizer", kind, class, why)
			} else if got := m.Tokenizer().Encode(nil, f.Tokenizers.Sample, tokenizer.Options{}); !slices.Equal(got, want) {
				t.Errorf("%s, %s: %v, want %v", kind, class, got, want)
			}
		}
		if len(f.Tokenizers.Cases) < 100 {
			t.Errorf("got %d cases, want 100", len(f.Tokenizers.Cases))
		}
	})
}

// TestContractFlags: each flag of a release that may change prompts or names is a key of the configuration, is learned once events
// contradict the rule, or is known not to matter.
func TestContractFlags(t *testing.T) {
	noMatter := append(strings.Fields(flagsWithoutEffect), strings.Fields(flagsLearned)...)
	keys, err := os.ReadFile("../../app/config/schema.json")
	if err != nil {
		t.Fatal(err)
	}
	contracts(t, func(t *testing.T, f *facts, v rules.Version) {
		for class, flags := range f.Flags {
			for _, flag := range flags {
				if !slices.Contains(noMatter, flag) && !bytes.Contains(keys, []byte(`"`+flag+`":`)) {
					t.Errorf("%s.%s: no key of the configuration, and not known to change no prompt", class, flag)
				}
			}
		}
	})
}

// flagsLearned are rare flags without a key: a server that has one stores other blocks than the rule says, which then steps aside
// for the prompts that the flag changes (router/audit), or it refuses requests.
const flagsLearned = `
allowed_media_domains anthropic_disabled_thinking_effort enable_auto_tool_choice exclude_tools_when_tool_choice_none
interleave_mm_strings mm_processor_cache_gb reasoning_effort_map`

// flagsWithoutEffect are the fields of vLLM 0.30 to 0.33 that change neither prompts nor names, and those that have no key on purpose:
// what the server loads is given as dir (model, tokenizer, hf_overrides, …); videos are not exact with video_pruning_rate
// (docs/fidelity.md); limits of media are not predicted; cohere_format belongs to a tokenizer mode that is not exact; prompts in
// embeddings (enable_prompt_embeds) are not read.
const flagsWithoutEffect = `
allow_credentials allow_deprecated_quantization allow_missing_mm_embeddings allowed_headers allowed_methods allowed_origins api_key
code_revision cohere_format cohere_is_reasoning_model config_format convert data_parallel_supervisor_port
disable_access_log_for_endpoints disable_cascade_attn disable_fastapi_docs disable_sliding_window disable_uvicorn_access_log
dp_supervisor_probe_failure_threshold dp_supervisor_probe_interval_s dp_supervisor_probe_timeout_s dtype enable_cumem_allocator enable_mm_embeds
enable_flash_late_interaction enable_force_include_usage enable_log_deltas enable_log_outputs enable_nccl_comm_suspend
enable_offline_docs enable_per_request_metrics enable_prompt_embeds enable_prompt_tokens_details enable_request_id_headers
enable_return_routed_experts enable_scale_out enable_server_load_tracking enable_sleep_mode enable_ssl_refresh
enable_tokenizer_info_endpoint enable_trace_replay enforce_eager fingerprint_mode fingerprint_value generation_config grpc_port
h11_max_header_count h11_max_incomplete_event_size hf_config hf_config_path hf_overrides hf_text_config hf_token io_processor_plugin
is_submodel_config language_model_only limit_mm_per_prompt limit_per_prompt log_config_file log_error_stack logits_processors
logprobs_mode lora_modules max_log_len max_logprobs middleware mm_device_do_normalize mm_encoder_attn_backend mm_encoder_attn_dtype
mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_margin mm_encoder_fp8_scale_save_path mm_encoder_only mm_encoder_tp_mode
mm_ipc_gpu_memory_gb mm_processor_cache_type mm_processor_device mm_shm_cache_max_object_size_mb mm_tensor_ipc model_class_overrides
model_impl model_weights multimodal_config override_generation_config pooler_config quantization quantization_config
renderer_num_workers response_role return_sampling_mask return_tokens_as_token_ids root_path runner seed served_model_name
skip_mm_profiling skip_tokenizer_init sleep_mode_backend sleep_mode_offload_cudagraph sleep_preserve_parameter_names
spec_target_max_model_len sse_keep_alive_interval ssl_ca_certs ssl_cert_reqs ssl_certfile ssl_ciphers ssl_keyfile tokenizer
tokenizer_revision tokens_only tool_call_parser tool_parser_plugin tool_server tool_strict_level trust_remote_code uds use_fp64_gumbel
uvicorn_log_level video_pruning_method video_pruning_rate word_embeddings_untied_by_checkpoint`
