package name

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// SGLang names pictures by numbers: a 64-bit item hash, and from it the pads that stand in place of the picture's token
// ids. For families that vision.Facts gives classes (Qwen3-VL; release 0.5.23) the item hash follows from the file's bytes, the options of
// the request, and one fingerprint of the worker's processor. Other families hash pixel features: not computable.
type SGLang struct {
	Fingerprint string // "sha256:" and 64 hex digits, see SGLangProcessor
}

// Recipe gives the way to the item hash (16 hex digits; ParseItem reads it). detail is image_url.detail: anything but ""
// and "auto" is an option of its own. kwargs is the request's mm_processor_kwargs or nil.
func (s SGLang) Recipe(detail string, kwargs Fields) Recipe {
	options := slices.Clone(kwargs)
	if detail != "" && detail != "auto" {
		options = options.set(Field{"detail", text(detail)})
	}
	k := canonical(object(options).any())
	tail := `"}],[{"type":"str","value":"modality"},{"type":"str","value":"image"}],[{"type":"str","value":"preprocess_kwargs"},` +
		string(k) + `],[{"type":"str","value":"processor_fingerprint"},` + quoted(s.Fingerprint) + `]],"type":"mapping"}`
	return Recipe{alg: SHA256, artifact: []byte(tail)}
}

// FileDigest is the recipe of SGLang's content digest: SHA-256 of the file, in hex. It is the only pass over the bytes that
// item hashes need, whatever the fingerprint.
func FileDigest() Recipe { return Recipe{alg: SHA256} }

// Item gives the item hash of a picture by its content digest. About 1 µs.
func (s SGLang) Item(content []byte, detail string) uint64 {
	h, _ := ParseItem(sglangItem(content, s.Recipe(detail, nil).artifact)) // 16 digits of our own
	return h
}

// sglangItem turns a content digest into the item hash: canonical JSON → artifact key → feature hash.
func sglangItem(content, tail []byte) string {
	doc := append([]byte(`{"items":[[{"type":"str","value":"content_digest"},{"type":"str","value":"sha256:`), hex.EncodeToString(content)...)
	key := sha256.Sum256(append(doc, tail...))
	var m []byte
	for _, part := range [...][]byte{[]byte("multimodal-feature-v1"), key[:], {0}} {
		m = append(binary.BigEndian.AppendUint64(m, uint64(len(part))), part...)
	}
	sum := sha256.Sum256(m)
	return hex.EncodeToString(sum[:8])
}

// ParseItem reads an item hash back.
func ParseItem(name string) (uint64, error) {
	if len(name) != 16 {
		return 0, fmt.Errorf("item hash %q: want 16 hex digits", name)
	}
	return strconv.ParseUint(name, 16, 64)
}

// PadRule is how a release makes pads of an item hash.
type PadRule uint8

const (
	PadLow  PadRule = iota // up to 0.5.8: one value, hash mod 2^30
	PadMil                 // 0.5.9 to 0.5.22: one value, 1 000 000 + hash mod 2^30
	PadWide                // 0.5.23 and later: four 62-bit values in turn, from the start of each run
)

// Pads gives the four pads of an item: position k of a run of placeholder tokens carries pad k mod 4. Wide pads exceed 32
// bits; any id from 1 000 000 up is a pad.
func Pads(item uint64, rule PadRule) [4]uint64 {
	if rule == PadWide {
		return WidePads(binary.BigEndian.AppendUint64(nil, item))
	}
	p := item & (1<<30 - 1)
	if rule == PadMil {
		p += 1_000_000
	}
	return [4]uint64{p, p, p, p}
}

// WidePads gives the pads of an identity: 8 bytes of item hash, or the 32 bytes that Kimi K2.5 and K3 use.
func WidePads(identity []byte) (pads [4]uint64) {
	d := sha256.Sum256(append([]byte("sglang-mm-wide-pad-v1"), identity...))
	for k := range pads {
		pads[k] = 1_000_000 + binary.BigEndian.Uint64(d[8*k:])&(1<<62-1)
	}
	return pads
}

// SGLangProcessor is what a worker's fingerprint is made of. Most of it is known from the model's config.json and the
// server's flags; the release of transformers and the transport are not told, so they are enumerated (Candidates) and
// pinned by the first event.
type SGLangProcessor struct {
	ModelType         string   // config.json model_type
	Architectures     []string // config.json architectures
	Class, Wrapper    string   // Python classes of the engine's processor and of the model's, see vision.Facts
	Transformers      string   // such as 5.19.0
	Transport         string   // cpu, or cuda_ipc on one CUDA node
	Revision          string   // --revision, "" = none
	ProcessorRevision string
	Backend           string // --image-processor-backend, "" = auto
	SlowImages        bool   // --disable-fast-image-processor
	CPUDecode         bool   // images not decoded on the GPU
	Config            Fields // --mm-process-config; its image, video and audio members
}

// Fingerprint gives "sha256:" and 64 hex digits (SGLang 0.5.23).
func (p SGLangProcessor) Fingerprint() string {
	orNone := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	architectures := make([]any, len(p.Architectures))
	for i, a := range p.Architectures {
		architectures[i] = a
	}
	part := func(key string) any { return object(p.Config.object(key)).any() }
	sum := sha256.Sum256(canonical(map[string]any{
		"architectures":                architectures,
		"disable_fast_image_processor": p.SlowImages,
		"extra":                        map[string]any{},
		"mm_process_config":            object(p.Config).any(),
		"model_revision":               orNone(p.Revision),
		"model_type":                   p.ModelType,
		"processor": map[string]any{
			"audio_config":            part("audio"),
			"feature_transport":       p.Transport,
			"gpu_image_decode":        !p.CPUDecode,
			"image_config":            part("image"),
			"image_processor_backend": cmp.Or(p.Backend, "auto"),
			"video_config":            part("video"),
			"wrapped_processor":       nil,
			"wrapper_class":           p.Wrapper,
		},
		"processor_class":    p.Class,
		"processor_revision": orNone(p.ProcessorRevision),
		"transformers":       p.Transformers,
	}))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Candidates lists the fingerprints that a worker may have, for every release of transformers given and both transports,
// likeliest first. One known picture in one event tells which (the one whose pads it holds).
func (p SGLangProcessor) Candidates(transformers []string) (out []string) {
	for _, t := range transformers {
		for _, transport := range []string{"cuda_ipc", "cpu"} {
			for _, cpu := range []bool{p.CPUDecode, !p.CPUDecode} {
				q := p
				q.Transformers, q.Transport, q.CPUDecode = t, transport, cpu
				out = append(out, q.Fingerprint())
			}
		}
	}
	return out
}

// quoted is a string in canonical JSON: {"type":"str","value":…}.
func quoted(s string) string {
	return `{"type":"str","value":` + string(asciiJSON(s)) + `}`
}

// asciiJSON writes a string as Python's json.dumps does: anything beyond ASCII escaped, nothing else but what JSON asks.
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

// any turns a Value into Go's own types.
func (v Value) any() any {
	switch v.kind {
	case kindBool:
		return v.raw[0] == 1
	case kindInt:
		return int64(binary.LittleEndian.Uint64(v.raw))
	case kindHuge:
		return json.Number(v.raw)
	case kindFloat:
		return math.Float64frombits(binary.LittleEndian.Uint64(v.raw))
	case kindString:
		return string(v.raw)
	case kindList:
		list := make([]any, len(v.list))
		for i, e := range v.list {
			list[i] = e.any()
		}
		return list
	case kindObject:
		m := make(map[string]any, len(v.fields))
		for _, f := range v.fields {
			m[f.Key] = f.Value.any()
		}
		return m
	}
	return nil
}

// canonical writes SGLang's canonical JSON: every value with its type, members sorted by key.
func canonical(v any) []byte {
	switch v := v.(type) {
	case nil:
		return []byte(`{"type":"none"}`)
	case bool:
		return fmt.Appendf(nil, `{"type":"bool","value":%t}`, v)
	case int64:
		return fmt.Appendf(nil, `{"type":"int","value":"%d"}`, v)
	case json.Number:
		return fmt.Appendf(nil, `{"type":"int","value":"%s"}`, v)
	case float64:
		return fmt.Appendf(nil, `{"bits":"%016x","type":"float64"}`, math.Float64bits(v))
	case string:
		return []byte(quoted(v))
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
			out = append(append(append(append(append(out, '['), quoted(k)...), ','), canonical(v[k])...), ']')
		}
		return append(out, `],"type":"mapping"}`...)
	}
	return nil
}
