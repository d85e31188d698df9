package engine

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/prompt/vision"
)

// Server says how a model's engine servers were started, as far as prompts, image names and blocks depend on it. Keys
// carry the engine's own flag names (vLLM 0.32, SGLang 0.5.23), so that a command line can be copied key by key.
type Server struct {
	Engine        string `yaml:"engine"`         // vllm, sglang or trtllm
	EngineVersion string `yaml:"engine_version"` // such as 0.32.0: prompt rules and image names change by release
	EngineModel   string `yaml:"engine_model"`   // the engine's --model argument, part of vLLM's image names; default: the model's name
	Revision      string `yaml:"revision"`       // of a Hugging Face cache: a branch, a tag or a commit; default: main
	BlockSize     int    `yaml:"block_size"`     // tokens a KV block

	ChatTemplate        string   `yaml:"chat_template"`                // a file, the template itself, or a form of SGLang's by its name; default: the directory's
	ContentFormat       string   `yaml:"chat_template_content_format"` // auto, string or openai
	InterleaveMM        bool     `yaml:"interleave_mm_strings"`
	VisionFamily        string   `yaml:"vision_family"` // of docs/families.md, for a fine-tune whose files name none; default: found out
	ProcessorKwargs     Kwargs   `yaml:"mm_processor_kwargs"`
	MediaIOKwargs       Kwargs   `yaml:"media_io_kwargs"`
	TemplateKwargs      Kwargs   `yaml:"default_chat_template_kwargs"`
	MMHasher            string   `yaml:"mm_hasher_algorithm"` // blake3, sha256 or sha512
	TrustMMKwargs       bool     `yaml:"trust_request_mm_kwargs"`
	TrustChatTemplate   bool     `yaml:"trust_request_chat_template"`
	AutoToolChoice      bool     `yaml:"enable_auto_tool_choice"`
	ExcludeToolsOnNone  bool     `yaml:"exclude_tools_when_tool_choice_none"`
	EnableMMEmbeds      bool     `yaml:"enable_mm_embeds"` // requests may carry embeddings in the place of pictures
	TowerLoRA           bool     `yaml:"enable_tower_connector_lora"`
	MMProcessorCacheGB  float64  `yaml:"mm_processor_cache_gb"` // 0: the engine keeps no processed media
	MaxModelLen         int      `yaml:"max_model_len"`         // 0: not checked
	AllowedMediaDomains []string `yaml:"allowed_media_domains"`

	// AllowedLocalMediaPath is the directory whose files a request may name by file:// URLs, "" for none, and MaxFileSizeMB
	// how large one may be that is read here (MiB).
	AllowedLocalMediaPath string `yaml:"allowed_local_media_path"`
	MaxFileSizeMB         int    `yaml:"max_file_size_mb"`

	TokenizerMode string `yaml:"tokenizer_mode"` // auto or mistral

	// Fingerprint names an SGLang worker's image processor ("sha256:" and 64 hex digits); "": found out from events.
	Fingerprint string `yaml:"processor_fingerprint"`
	Speculative string `yaml:"speculative_algorithm"` // SGLang: EAGLE or EAGLE3, whose blocks are keyed by pairs of tokens

	// TimeZone is the workers' zone, for templates that print a date.
	TimeZone string `yaml:"time_zone"`
	// TrustUUID reads a uuid that a client gives an image as vLLM does: it names the image. Set in code, by what explains
	// requests and by the simulated workers. A router leaves it false: Clean takes every uuid out of the body.
	TrustUUID bool `yaml:"-"`
	// SessionIDs has requests to vLLM 0.30 and later carry the decision's id as X-Session-ID, unless they have one, so that
	// KV events name their request.
	SessionIDs bool `yaml:"session_ids"`

	// MediaNames says by which name vLLM's caches call a picture: computed, the name that the engine finds by itself, so
	// that bodies stay untouched; or injected, our content id, put into the request as the part's uuid. Injected names
	// spare the engine its own hash and need no knowledge of its rules. They cost that every such body is sent back to
	// Envoy whole, and that traffic which passes without us has other names, so nothing of it is shared. Only a picture
	// whose very bytes the worker gets from us is named (a data URL, or one that the relay serves): behind any other URL
	// the worker may find something else than we did, and would store it under the name.
	MediaNames string `yaml:"media_names"`

	// BlockHash is the rule of the workers' blocks: sightline, ours, for events that carry tokens; or, for workers whose
	// events come through NVIDIA Dynamo and carry its hashes ready, dynamo, or dynamo_suffix where its publisher was not
	// told the picture's token id (TensorRT-LLM's in 1.6). Pictures then have the names that Dynamo knows.
	BlockHash   string `yaml:"block_hash"`
	EnableEagle bool   `yaml:"enable_eagle"` // with Dynamo's hashes: the workers draft with EAGLE

	// OwnRules, if set in code, are those of an engine that RulesOf does not know.
	OwnRules func(release string) rules.Rules `yaml:"-"`

	// Clock is what templates that print a date see; nil: time.Now.
	Clock func() time.Time `yaml:"-"`
}

// DefaultServer is a vLLM with its defaults.
func DefaultServer() Server {
	return Server{Engine: "vllm", EngineVersion: "0.32.0", BlockSize: 16, ContentFormat: "auto", MMHasher: "blake3",
		TokenizerMode: "auto", MMProcessorCacheGB: 4, MaxFileSizeMB: 50, TimeZone: "UTC", SessionIDs: true, MediaNames: "computed", BlockHash: "sightline", TrustMMKwargs: false, AutoToolChoice: true}
}

// DefaultsOf sets what differs by engine and was not given: the release, and the tokens a block.
func (s *Server) DefaultsOf(given func(key string) bool) {
	r := RulesOf(s.Engine, "")
	if !given("engine_version") {
		s.EngineVersion = cmp.Or(r.Release, s.EngineVersion)
	}
	if !given("block_size") {
		s.BlockSize = cmp.Or(r.BlockSize, s.BlockSize)
	}
}

// faults collects what is wrong with a Server, each by its key.
type faults []error

func (f *faults) when(wrong bool, key, format string, args ...any) {
	if wrong {
		*f = append(*f, fmt.Errorf(key+": "+format, args...))
	}
}

func (f *faults) unless(key, got string, known ...string) {
	f.when(!slices.Contains(known, got), key, "%q is not known (want %s)", got, strings.Join(known, ", "))
}

// Check names every value that cannot be, by its key.
func (s *Server) Check() error {
	var f faults
	s.checkWords(&f)
	s.checkEngine(&f)
	s.checkValues(&f)
	return errors.Join(f...)
}

func (s *Server) checkWords(f *faults) {
	if s.OwnRules == nil {
		f.unless("engine", s.Engine, names...)
	}
	f.unless("chat_template_content_format", s.ContentFormat, "auto", "string", "openai")
	f.unless("mm_hasher_algorithm", s.MMHasher, "blake3", "sha256", "sha512")
	f.unless("tokenizer_mode", s.TokenizerMode, "auto", "mistral")
	f.unless("media_names", s.MediaNames, "computed", "injected")
	f.unless("block_hash", s.BlockHash, "sightline", "dynamo", "dynamo_suffix")
	f.unless("speculative_algorithm", s.Speculative, "", "EAGLE", "EAGLE3")
}

// checkEngine checks what only some engines and releases have.
func (s *Server) checkEngine(f *faults) {
	r := s.Rules()
	_, err := rules.ParseVersion(s.EngineVersion)
	f.when(err != nil, "engine_version", "%v", err)
	f.when(s.EnableEagle && !s.Dynamo(), "enable_eagle", "true, but only Dynamo's hashes depend on it (want block_hash: dynamo, or leave it out)")
	f.when(s.Fingerprint != "" && !r.HasProcessor, "processor_fingerprint", "only SGLang has one (want engine: sglang)")
	f.when(s.Speculative != "" && !r.HasProcessor, "speculative_algorithm", "only SGLang has one (want engine: sglang)")
	f.when(s.MediaNames == "injected" && err == nil && !r.TakesUUID, "media_names",
		"injected needs vLLM 0.11 or later, which takes a uuid with a content part (want computed for %s %s)", s.Engine, s.EngineVersion)
	f.when(!r.Dialect.TakesTemplate(s.ChatTemplate), "chat_template",
		"SGLang takes one of its named forms, such as qwen2-vl, or a file that ends in .jinja or .json; %.80q is neither", s.ChatTemplate)
}

func (s *Server) checkValues(f *faults) {
	digits, hashed := strings.CutPrefix(s.Fingerprint, "sha256:")
	isHash := hashed && len(digits) == 64 && strings.Trim(digits, "0123456789abcdef") == ""
	f.when(s.Fingerprint != "" && !isHash, "processor_fingerprint", "%q is none (want sha256: and 64 hex digits, as Sightline logs it)", s.Fingerprint)
	f.when(s.BlockSize < 1 || s.BlockSize > 1<<16, "block_size", "%d is out of range (want 1 to 65536, such as 16)", s.BlockSize)
	f.when(s.AllowedLocalMediaPath != "" && !strings.HasPrefix(s.AllowedLocalMediaPath, "/"), "allowed_local_media_path",
		"%q is relative (want the engine's --allowed-local-media-path, such as /srv/media)", s.AllowedLocalMediaPath)
	f.when(s.MaxFileSizeMB < 1 || s.MaxFileSizeMB > 4096, "max_file_size_mb", "%d is out of range (want 1 to 4096, such as 50)", s.MaxFileSizeMB)
	f.when(s.MaxModelLen < 0, "max_model_len", "%d is negative (want the engine's limit in tokens, or 0: not checked)", s.MaxModelLen)
	f.when(s.MMProcessorCacheGB < 0, "mm_processor_cache_gb", "%g is negative (want the engine's flag, or 0 for no cache)", s.MMProcessorCacheGB)
	for i, host := range s.AllowedMediaDomains {
		f.when(host == "" || strings.ContainsAny(host, "/@ "), fmt.Sprintf("allowed_media_domains[%d]", i),
			"%q is no host (want a bare name, such as images.example.com)", host)
	}
	f.when(s.Revision != "" && !filepath.IsLocal(s.Revision), "revision", "%q is no name of a branch, a tag or a commit", s.Revision)
	err := vision.CheckFamily(s.VisionFamily)
	f.when(err != nil, "vision_family", "%v", err)
	_, err = time.LoadLocation(s.TimeZone)
	f.when(err != nil, "time_zone", "%q is not known here (want a name such as UTC or Europe/Berlin)", s.TimeZone)
}

// Foreign lists the keys that only vLLM has, for another engine, where they are not as in base (nil: the defaults).
func (s *Server) Foreign(base *Server) (keys []string) {
	if s.Rules().VLLMKeys {
		return nil
	}
	b := DefaultServer()
	if base != nil {
		b = *base
	}
	for _, k := range []struct {
		key string
		own bool
	}{
		{"chat_template_content_format", s.ContentFormat != b.ContentFormat}, {"interleave_mm_strings", s.InterleaveMM != b.InterleaveMM},
		{"mm_hasher_algorithm", s.MMHasher != b.MMHasher}, {"trust_request_mm_kwargs", s.TrustMMKwargs != b.TrustMMKwargs},
		{"exclude_tools_when_tool_choice_none", s.ExcludeToolsOnNone != b.ExcludeToolsOnNone},
		{"enable_tower_connector_lora", s.TowerLoRA != b.TowerLoRA}, {"mm_processor_cache_gb", s.MMProcessorCacheGB != b.MMProcessorCacheGB},
		{"tokenizer_mode", s.TokenizerMode != b.TokenizerMode},
	} {
		if k.own {
			keys = append(keys, k.key)
		}
	}
	return keys
}

// ResolveTemplate takes a relative chat_template from a place, if it names a file.
func (s *Server) ResolveTemplate(place string) {
	if file := s.templateFile(place); file != "" {
		s.ChatTemplate = file
	}
}

// templateFile is the file that chat_template names, relative ones below dir; "" where it names none.
func (s *Server) templateFile(dir string) string {
	r := s.Rules()
	return r.Dialect.TemplateFile(s.ChatTemplate, dir)
}

// Dynamo tells whether blocks and pictures go by NVIDIA Dynamo's rules.
func (s *Server) Dynamo() bool { return s.BlockHash == "dynamo" || s.BlockHash == "dynamo_suffix" }

// Kwargs is a JSON object, "" for none. Its keys keep the order of the file: it counts in vLLM's image names.
type Kwargs string

// UnmarshalYAML reads a YAML (or JSON) object.
func (k *Kwargs) UnmarshalYAML(b []byte) error {
	text, err := yaml.YAMLToJSON(b)
	if err != nil {
		return err
	}
	j := gjson.ParseBytes(bytes.TrimSpace(text))
	switch {
	case j.Type == gjson.Null, j.Type == gjson.String && j.Str == "", j.Raw == "{}":
		*k = ""
	case j.IsObject():
		*k = Kwargs(j.Raw)
	default:
		return errors.New("want an object, such as {max_pixels: 1003520}")
	}
	return nil
}

// MarshalYAML writes the object.
func (k Kwargs) MarshalYAML() ([]byte, error) {
	if k == "" {
		return []byte("{}"), nil
	}
	return []byte(k), nil
}
