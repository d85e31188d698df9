package sglang

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/sightline-router/sightline/mmhash/enginehash"
)

// SGLang names images by numbers: a 64-bit item hash, and derived from it the pads that replace the image's token ids. For
// families to which vision.Facts gives classes (Qwen3-VL; release 0.5.23) the item hash follows from the file's bytes,
// image_url.detail, and one fingerprint of the worker's processor. Other families hash pixel features, which cannot be computed
// here.

// FileDigest returns the recipe of SGLang's content digest: SHA-256 of the file, in hex. Item hashes need no other pass over the
// bytes, whatever the fingerprint.
func FileDigest() enginehash.Recipe { return enginehash.Recipe{Algorithm: enginehash.SHA256} }

// Item returns the item hash of an image from its content digest, for workers with this fingerprint ("sha256:" and 64 hex digits).
// A detail other than "" and "auto" is hashed as an option. Takes a few µs.
func Item(fingerprint string, content [32]byte, detail string) uint64 {
	options := map[string]any{}
	if detail != "" && detail != "auto" {
		options["detail"] = detail
	}
	key := sha256.Sum256(canonical(map[string]any{
		"content_digest":        "sha256:" + hex.EncodeToString(content[:]),
		"modality":              "image",
		"preprocess_kwargs":     options,
		"processor_fingerprint": fingerprint,
	}))
	var m []byte
	for _, part := range [...][]byte{[]byte("multimodal-feature-v1"), key[:], {0}} {
		m = append(binary.BigEndian.AppendUint64(m, uint64(len(part))), part...)
	}
	sum := sha256.Sum256(m)
	return binary.BigEndian.Uint64(sum[:])
}

// ItemName formats an item hash as a name: 16 hex digits.
func ItemName(item uint64) string { return fmt.Sprintf("%016x", item) }

// ParseItem parses a name made by ItemName.
func ParseItem(name string) (uint64, error) {
	if len(name) != 16 {
		return 0, fmt.Errorf("item hash %q: want 16 hex digits", name)
	}
	return strconv.ParseUint(name, 16, 64)
}

// PadRule is how a release derives pads from an item hash.
type PadRule uint8

// The rules; see PadRuleOf for their releases.
const (
	PadOne  PadRule = iota // one value, 1 000 000 + hash mod 2^30
	PadFour                // four 62-bit values in turn, from the start of each run
)

// Pads returns the four pads of an item: position k of a run of placeholder tokens carries pad k mod 4. Those of PadFour exceed 32
// bits. Every id of 1 000 000 or more is a pad.
func Pads(item uint64, rule PadRule) [4]uint64 {
	if rule == PadFour {
		return fourPads(binary.BigEndian.AppendUint64(nil, item))
	}
	p := 1_000_000 + item&(1<<30-1)
	return [4]uint64{p, p, p, p}
}

// fourPads returns the pads of an identity, the 8 bytes of an item hash.
func fourPads(identity []byte) (pads [4]uint64) {
	d := sha256.Sum256(append([]byte("sglang-mm-wide-pad-v1"), identity...))
	for k := range pads {
		pads[k] = 1_000_000 + binary.BigEndian.Uint64(d[8*k:])&(1<<62-1)
	}
	return pads
}

// Processor holds the inputs of a worker's fingerprint. Most are known from the model's config.json and the server's flags. The
// release of transformers, the transport and where images are decoded are not reported, so all combinations are enumerated
// (Candidates) and the first event decides between them.
type Processor struct {
	ModelType      string   // config.json model_type
	Architectures  []string // config.json architectures
	Class, Wrapper string   // Python classes of the engine's processor and of the model's, see vision.Facts
	Revision       string   // --revision, "" = none

	transformers string // release, such as 5.19.0
	transport    string // cpu, or cuda_ipc on one CUDA node
	cpuDecode    bool   // images not decoded on the GPU
}

// fingerprint returns "sha256:" and 64 hex digits (SGLang 0.5.23).
func (p Processor) fingerprint() string {
	architectures := make([]any, len(p.Architectures))
	for i, a := range p.Architectures {
		architectures[i] = a
	}
	var revision any
	if p.Revision != "" {
		revision = p.Revision
	}
	none := map[string]any{} // SGLang's --mm-process-config and its members
	sum := sha256.Sum256(canonical(map[string]any{
		"architectures":                architectures,
		"disable_fast_image_processor": false,
		"extra":                        none,
		"mm_process_config":            none,
		"model_revision":               revision,
		"model_type":                   p.ModelType,
		"processor": map[string]any{
			"audio_config":            none,
			"feature_transport":       p.transport,
			"gpu_image_decode":        !p.cpuDecode,
			"image_config":            none,
			"image_processor_backend": "auto",
			"video_config":            none,
			"wrapped_processor":       nil,
			"wrapper_class":           p.Wrapper,
		},
		"processor_class":    p.Class,
		"processor_revision": nil,
		"transformers":       p.transformers,
	}))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Candidates lists the fingerprints that a worker may have, for each given release of transformers and both transports, most likely
// first. One known image in one event decides: the right one yields the event's pads.
func (p Processor) Candidates(transformers []string) (out []string) {
	for _, p.transformers = range transformers {
		for _, p.transport = range []string{"cuda_ipc", "cpu"} {
			for _, p.cpuDecode = range []bool{false, true} {
				out = append(out, p.fingerprint())
			}
		}
	}
	return out
}

// canonical returns SGLang's canonical JSON: every value with its type, members sorted by key. Values are nil, bool, string, []any
// and map[string]any.
func canonical(v any) []byte {
	switch v := v.(type) {
	case bool:
		return fmt.Appendf(nil, `{"type":"bool","value":%t}`, v)
	case string:
		return append(append([]byte(`{"type":"str","value":`), asciiJSON(v)...), '}')
	case []any:
		out := []byte(`{"items":[`)
		for i, e := range v {
			if i > 0 {
				out = append(out, ',')
			}
			out = append(out, canonical(e)...)
		}
		return append(out, `],"type":"list"}`...)
	case map[string]any:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		out := []byte(`{"items":[`)
		for i, k := range keys {
			if i > 0 {
				out = append(out, ',')
			}
			out = fmt.Appendf(out, "[%s,%s]", canonical(k), canonical(v[k]))
		}
		return append(out, `],"type":"mapping"}`...)
	}
	return []byte(`{"type":"none"}`)
}

// asciiJSON quotes a string as Python's json.dumps does: it escapes non-ASCII characters and otherwise only what JSON requires.
func asciiJSON(s string) []byte {
	out := []byte{'"'}
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			out = append(out, '\\', byte(r))
		case r >= 0x20 && r < 0x7F:
			out = append(out, byte(r))
		case r == '\n', r == '\r', r == '\t', r == '\b', r == '\f':
			q, _ := json.Marshal(string(r))
			out = append(out, q[1:len(q)-1]...)
		case r > 0xFFFF:
			r -= 0x10000
			out = fmt.Appendf(out, `\u%04x\u%04x`, 0xD800+r>>10, 0xDC00+r&0x3FF)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return append(out, '"')
}
