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
	Revision      string `yaml:"revision"`       // of a Hugging Face cache or a hub: a branch, a tag or a commit; default: main
	BlockSize     int    `yaml:"block_size"`     // tokens per KV block, until events show it

	// a file, the template itself, or the name of one of SGLang's; default: the directory's
	ChatTemplate      string `yaml:"chat_template"`
	ContentFormat     string `yaml:"chat_template_content_format"` // auto, string or openai
	VisionFamily      string `yaml:"vision_family"`                // of docs/families.md, for a fine-tune whose files name none; default: detected
	ProcessorKwargs   Kwargs `yaml:"mm_processor_kwargs"`
	MediaIOKwargs     Kwargs `yaml:"media_io_kwargs"`
	TemplateKwargs    Kwargs `yaml:"default_chat_template_kwargs"`
	MMHasher          string `yaml:"mm_hasher_algorithm"` // blake3, sha256 or sha512
	TrustMMKwargs     bool   `yaml:"trust_request_mm_kwargs"`
	TrustChatTemplate bool   `yaml:"trust_request_chat_template"`
	MaxModelLen       int    `yaml:"max_model_len"` // 0: not checked

	// AllowedLocalMediaPath is the directory whose files a request may name by file:// URLs, "" for none.
	AllowedLocalMediaPath string `yaml:"allowed_local_media_path"`

	TokenizerMode string `yaml:"tokenizer_mode"` // one of tokenizerModes

	// Fingerprint names an SGLang worker's image processor ("sha256:" and 64 hex digits); "": inferred from events.
	Fingerprint string `yaml:"processor_fingerprint"`
	// Speculative is EAGLE or EAGLE3, by which SGLang and Dynamo's hashes key blocks by pairs of tokens.
	Speculative string `yaml:"speculative_algorithm"`

	// Flags of vLLM's that no key sets: what workers with other values read otherwise is learned. Only code sets them: recordings,
	// explain and the simulated workers.
	InterleaveMM        bool     `yaml:"-"`
	AutoToolChoice      bool     `yaml:"-"`
	TowerLoRA           bool     `yaml:"-"`
	MMProcessorCacheGB  float64  `yaml:"-"` // 0: the engine keeps no processed media
	AllowedMediaDomains []string `yaml:"-"`

	// TrustUUID makes a client's uuid the image's name, as vLLM does. Only code sets it: explain and the simulated workers. A
	// router leaves it false, and Clean removes every uuid from the body.
	TrustUUID bool `yaml:"-"`

	// NoSessionIDs leaves out the session ids of vLLM 0.30 and later. Only tests set it.
	NoSessionIDs bool `yaml:"-"`

	// MediaNames selects the name under which vLLM caches an image. "computed" is the name that the engine derives itself; bodies
	// stay untouched. "injected" is our content id, put into the request as the part's uuid. It spares the engine its own hash and
	// needs no knowledge of its rules, but every such body is sent back to Envoy whole, and images in traffic that bypasses us
	// have other names, so nothing of them is shared. Only an image whose very bytes the worker gets from us is named (a data URL,
	// or one that the relay serves): behind any other URL the worker may read other bytes than we did, and would store them under
	// the name.
	MediaNames string `yaml:"media_names"`

	// BlockHash selects how the workers' blocks are hashed. "sightline" is our own hash, for events that carry tokens. "dynamo" is
	// for workers whose events come through NVIDIA Dynamo with its hashes in them; "dynamo_suffix" likewise, if its publisher was
	// not told the image's token id (TensorRT-LLM's in 1.6). With both, images have the names that Dynamo gives them.
	BlockHash string `yaml:"block_hash"`

	// BlockSizeGiven: BlockSize was configured. Only code sets it.
	BlockSizeGiven bool `yaml:"-"`

	// OwnRules, which only code sets, gives the rules of an engine that RulesOf does not know.
	OwnRules func(release string) rules.Rules `yaml:"-"`

	// Clock is the time that templates see; nil: time.Now. Only tests set it.
	Clock func() time.Time `yaml:"-"`
}

// DefaultServer returns the settings of a vLLM with its defaults.
func DefaultServer() Server {
	return Server{Engine: "vllm", EngineVersion: "0.32.0", BlockSize: 16, ContentFormat: "auto", MMHasher: "blake3",
		TokenizerMode: "auto", MMProcessorCacheGB: 4,
		MediaNames: "computed", BlockHash: "sightline", AutoToolChoice: true}
}

// DefaultsOf sets the engine's default release and block size where they were not given.
func (s *Server) DefaultsOf(given func(key string) bool) {
	r := RulesOf(s.Engine, "")
	if !given("engine_version") {
		s.EngineVersion = cmp.Or(r.Release, s.EngineVersion)
	}
	s.BlockSizeGiven = given("block_size")
	if !s.BlockSizeGiven {
		s.BlockSize = cmp.Or(r.BlockSize, s.BlockSize)
	}
}

// ConfiguredBlockSize returns the block size that the configuration gives; 0: none.
func (s *Server) ConfiguredBlockSize() int {
	if s.BlockSizeGiven {
		return s.BlockSize
	}
	return 0
}

// tokenizerModes are vLLM's (0.30 to 0.33). With one beyond auto, hf, slow and mistral, vLLM encodes chats by code of its own, and they
// are not exact.
var tokenizerModes = []string{"auto", "hf", "slow", "mistral", "deepseek_v32", "deepseek_v4", "deepseek_v41", "inkling",
	"kimi_k3", "kimi_audio", "cohere", "alpamayo2_super", "terratorch"}

// faults collects what is wrong with a Server, with the key of each.
type faults []error

func (f *faults) when(wrong bool, key, format string, args ...any) {
	if wrong {
		*f = append(*f, fmt.Errorf(key+": "+format, args...))
	}
}

func (f *faults) unless(key, got string, known ...string) {
	f.when(!slices.Contains(known, got), key, "%q is not known (want %s)", got, strings.Join(known, ", "))
}

// Check returns an error that names every invalid value by its key.
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
	f.unless("tokenizer_mode", s.TokenizerMode, tokenizerModes...)
	f.unless("media_names", s.MediaNames, "computed", "injected")
	f.unless("block_hash", s.BlockHash, "sightline", "dynamo", "dynamo_suffix")
	f.unless("speculative_algorithm", s.Speculative, "", "EAGLE", "EAGLE3")
}

// checkEngine checks the keys that only some engines and releases have.
func (s *Server) checkEngine(f *faults) {
	r := s.Rules()
	release, err := rules.ParseVersion(s.EngineVersion)
	f.when(err != nil, "engine_version", "%v", err)
	known, none := rules.ParseVersion(r.Release)
	f.when(none == nil && !release.Plausible(known), "engine_version", "%q is no release of %s (want one such as %s)", s.EngineVersion,
		s.Engine, r.Release)
	f.when(s.Fingerprint != "" && !r.HasProcessor, "processor_fingerprint", "only SGLang has one (want engine: sglang)")
	f.when(s.Speculative != "" && !r.HasProcessor && !s.Dynamo(), "speculative_algorithm",
		"only SGLang's and Dynamo's hashes depend on it (want engine: sglang or block_hash: dynamo, or leave it out)")
	f.when(s.MediaNames == "injected" && err == nil && !r.TakesUUID, "media_names",
		"injected needs vLLM, which takes a uuid with a content part (want computed for %s %s)", s.Engine, s.EngineVersion)
	f.when(!r.Dialect.TakesTemplate(s.ChatTemplate), "chat_template",
		"SGLang takes one of its named forms, such as qwen2-vl, or a file that ends in .jinja or .json; %.80q is neither", s.ChatTemplate)
}

func (s *Server) checkValues(f *faults) {
	digits, hashed := strings.CutPrefix(s.Fingerprint, "sha256:")
	isHash := hashed && len(digits) == 64 && strings.Trim(digits, "0123456789abcdef") == ""
	f.when(s.Fingerprint != "" && !isHash, "processor_fingerprint", "%q is none (want sha256: and 64 hex digits, as Sightline logs it)",
		s.Fingerprint)
	f.when(s.BlockSize < 1 || s.BlockSize > 1<<16, "block_size", "%d is out of range (want 1 to 65536, such as 16)", s.BlockSize)
	f.when(s.AllowedLocalMediaPath != "" && !strings.HasPrefix(s.AllowedLocalMediaPath, "/"), "allowed_local_media_path",
		"%q is relative (want the engine's --allowed-local-media-path, such as /srv/media)", s.AllowedLocalMediaPath)
	f.when(s.MaxModelLen < 0, "max_model_len", "%d is negative (want the engine's limit in tokens, or 0: not checked)", s.MaxModelLen)
	f.when(s.Revision != "" && !filepath.IsLocal(s.Revision), "revision", "%q is not the name of a branch, a tag or a commit", s.Revision)
	err := vision.CheckFamily(s.VisionFamily)
	f.when(err != nil, "vision_family", "%v", err)
}

// VLLMOnlyKeys lists the keys that only vLLM has and that differ from base (nil: the defaults), if the engine is another one.
func (s *Server) VLLMOnlyKeys(base *Server) (keys []string) {
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
		{"chat_template_content_format", s.ContentFormat != b.ContentFormat},
		{"mm_hasher_algorithm", s.MMHasher != b.MMHasher}, {"trust_request_mm_kwargs", s.TrustMMKwargs != b.TrustMMKwargs},
		{"tokenizer_mode", s.TokenizerMode != b.TokenizerMode},
	} {
		if k.own {
			keys = append(keys, k.key)
		}
	}
	return keys
}

// ResolveTemplate makes a relative chat_template relative to place, if it names a file.
func (s *Server) ResolveTemplate(place string) {
	if file := s.templateFile(place); file != "" {
		s.ChatTemplate = file
	}
}

// templateFile returns the file that chat_template names, relative ones below dir; "" if it names none.
func (s *Server) templateFile(dir string) string {
	r := s.Rules()
	return r.Dialect.TemplateFile(s.ChatTemplate, dir)
}

// Dynamo reports whether blocks and images follow NVIDIA Dynamo's rules.
func (s *Server) Dynamo() bool { return s.BlockHash == "dynamo" || s.BlockHash == "dynamo_suffix" }

// Kwargs is a JSON object as text, "" for none. Its keys keep their order, which is part of vLLM's image names.
type Kwargs string

// UnmarshalYAML reads a YAML (or JSON) object and keeps its keys in order.
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
