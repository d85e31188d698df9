package vllm

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/media"
	"github.com/sightline-router/sightline/media/pixels"
	"github.com/sightline-router/sightline/mmhash/enginehash"
	"github.com/sightline-router/sightline/prompt/template"
)

// How an image's mm_hash is computed, the name by which vLLM's events call it:
//
//	Keys.Name     newKeys makes it from the server's flags and release; engine/resolve.go calls it for each image (callByName)
//	Names.Recipe  the fields that are hashed, in the release's order: what is written before and after the file's bytes
//	media.Names   the bytes through that hash, once: mmhash.Store has the name from then on
//
// A client's uuid is the name itself or, with options of the request, hashed in place of the bytes.

// Generation is one form of vLLM's image hash (mm_hash). Which release has which form was checked against the wheels 0.23.0 to
// 0.33.0.
type Generation uint8

// The generations; see generationOf for their releases.
const (
	H1 Generation = iota // over the file's bytes, fields sorted by name
	H2                   // files that are not RGB include how they were converted
	H3                   // request options in fields of their own, media options too
	H4                   // every field framed with its length
)

// Names computes the names of media in one class of workers. All fields come from the server's command line.
type Names struct {
	Generation Generation
	Algorithm  enginehash.Algorithm
	Model      string            // --model verbatim ("root" in GET /v1/models), not the served name
	MediaIO    enginehash.Fields // --media-io-kwargs; in the hash since 0.30, in the non-RGB form since 0.27

	composes  bool   // RGB files with a transparent colour are converted too (0.33)
	chunks    bool   // the model takes images only as vision chunks
	keepsMode bool   // files keep their mode, which the hash does not say
	twiceBy   string // see twice in models.go
}

// of sets what differs by architecture.
func (v *Names) of(release rules.Version, archs []string) {
	if len(archs) == 0 {
		return
	}
	switch archs[0] {
	case "KimiK25ForConditionalGeneration":
		v.chunks = true
	case "KimiK3ForConditionalGeneration":
		v.keepsMode = true
	case "DeepseekVLV2ForCausalLM":
		v.twiceBy = "cropping"
	case "H2OVLChatModel":
		v.twiceBy = "use_msac"
	}
	if !release.AtLeast(0, 33, 0) {
		v.twiceBy = ""
	}
}

// newKeys returns how workers of a release name media.
func newKeys(v rules.Version, o rules.KeysOptions) (k rules.Keys, err error) {
	n, err := NewNames(v, o.Model, o.Hasher, o.MediaIO)
	if err != nil {
		return k, err
	}
	n.of(v, o.Architectures)
	k.Name = func(m *rules.Naming) {
		if f, ok := n.chunk(m.Item); ok {
			pic := pixels.Image{Client: m.Client, Source: m.Source, ID: m.ID, Bytes: m.Bytes, Pixels: m.Pixels}
			m.Name, m.Later = o.Pixels.Name(pic, f, m.Inline)
			m.Named = m.Name != ""
			return
		}
		r, err := n.Recipe(m.Item)
		if err != nil {
			return
		}
		if names, err := media.Names(o.Store, m.Source, m.ID, m.Bytes, r); err == nil {
			m.Name, m.Named = names[0], true
		}
	}
	k.Ahead = func(client fair.Client, f media.Facts, file []byte) (list []enginehash.Recipe) {
		it := enginehash.Item{Mode: f.Mode, Bytes: f.Bytes, Transparent: f.Transparent, Rotated: f.Orientation > 1}
		if form, ok := n.chunk(it); ok {
			o.Pixels.Want(pixels.Image{Client: client, Source: media.File(file), ID: f.ID, Bytes: f.Bytes, Pixels: f.Pixels()}, form)
			return nil
		}
		counts := []int{1}
		if n.twiceBy != "" { // the name depends on how many images the request will have, which is not known
			counts = []int{1, 3}
		}
		for _, it.Images = range counts {
			if r, err := n.Recipe(it); err == nil {
				list = append(list, r)
			}
		}
		return list
	}
	return k, nil
}

// NewNames takes the server's release, its --model, its digest (--mm-hasher-algorithm, 0.27 and later, or VLLM_MM_HASHER_ALGORITHM; ""
// is blake3) and its --media-io-kwargs as JSON.
func NewNames(v rules.Version, model, hasher, mediaIO string) (_ *Names, err error) {
	n := &Names{Generation: generationOf(v), Model: model, composes: v.AtLeast(0, 33, 0)}
	switch hasher {
	case "", "blake3":
	case "sha256":
		n.Algorithm = enginehash.SHA256
	case "sha512":
		n.Algorithm = enginehash.SHA512
	default:
		return nil, fmt.Errorf("mm hasher algorithm %q: want blake3, sha256 or sha512", hasher)
	}
	n.MediaIO, err = enginehash.ParseFields([]byte(mediaIO))
	return n, err
}

// Recipe returns how to compute the identifier that vLLM puts into its events. The server's --mm-processor-kwargs never enter it.
// Since 0.31 a server refuses a request with kwargs unless it runs with --trust-request-mm-kwargs; that is not checked here.
func (v *Names) Recipe(it enginehash.Item) (enginehash.Recipe, error) {
	media, kwargs := v.mediaIO(it), it.ProcessorKwargs
	if v.Generation >= H3 {
		kwargs = v.scoped(kwargs)
	}
	if it.HasUUID && len(kwargs) == 0 && (v.Generation < H3 || len(media) == 0) {
		return v.twice(enginehash.Recipe{Algorithm: v.Algorithm, Ready: true, Known: it.UUID}, it)
	}
	if what := v.unreadable(&it); what != "" {
		return enginehash.Recipe{}, notComputable(what)
	}
	w := writer{framed: v.Generation >= H4}
	for _, f := range v.order(media, kwargs) {
		switch {
		case f.Value.Kind != self:
			w.field(f.Key, f.Value)
		case it.HasUUID:
			w.field(f.Key, enginehash.TextOf(it.UUID))
		default:
			w.item(f.Key, it, v.ioConfig(it, media))
		}
	}
	r := enginehash.Recipe{Algorithm: v.Algorithm, Before: w.b}
	if w.cut > 0 {
		r.Before, r.After = w.b[:w.cut:w.cut], w.b[w.cut:]
	}
	if it.HasUUID {
		r.Known, r.Ready = r.Of(nil), true
	}
	if w.err != nil {
		return r, w.err
	}
	return v.twice(r, it)
}

func notComputable(why string) error { return fmt.Errorf("%w: %s", enginehash.ErrNotComputable, why) }

// unreadable returns why an item's name does not follow from its file's bytes; "" if it does.
func (v *Names) unreadable(it *enginehash.Item) string {
	switch {
	case v.chunks && it.HasUUID: // with options, which are then those of all modalities
		return "options of a model that takes vision chunks"
	case v.chunks: // see chunk in models.go
		return "vLLM hashes the pixels of vision chunks"
	case v.Generation >= H2 && it.Mode == "" && !it.HasUUID:
		return "Pillow's mode of the file is not known"
	}
	return ""
}

// self marks the field that holds the medium itself.
const self = enginehash.Kind(0xFF)

// order returns the hash's fields in the release's order.
func (v *Names) order(media, kwargs enginehash.Fields) enginehash.Fields {
	item, model := enginehash.Field{Key: "image", Value: enginehash.Value{Kind: self}},
		enginehash.Field{Key: "model_id", Value: enginehash.TextOf(v.Model)}
	all := enginehash.Fields{item, model}
	if v.Generation <= H2 {
		all = append(all, kwargs...)
	} else {
		if len(media) > 0 {
			own := enginehash.Fields{{Key: "image", Value: enginehash.ObjectOf(media)}}
			all = append(all, enginehash.Field{Key: "media_io_kwargs", Value: enginehash.ObjectOf(own)})
		}
		if len(kwargs) > 0 {
			all = append(all, enginehash.Field{Key: "mm_processor_kwargs", Value: enginehash.ObjectOf(kwargs)})
		}
	}
	slices.SortStableFunc(all, func(a, b enginehash.Field) int { return strings.Compare(a.Key, b.Key) })
	return all
}

// mediaIO returns the options in force: the server's, overridden by the request's.
func (v *Names) mediaIO(it enginehash.Item) enginehash.Fields {
	modality := "image"
	if v.chunks {
		modality = "vision_chunk"
	}
	out := slices.Clone(v.MediaIO.Object(modality))
	for _, f := range it.MediaIO.Object(modality) {
		out = out.Set(f)
	}
	return out
}

// scoped drops the options of other modalities.
func (v *Names) scoped(kwargs enginehash.Fields) enginehash.Fields {
	if v.chunks {
		return kwargs
	}
	return slices.DeleteFunc(slices.Clone(kwargs), func(f enginehash.Field) bool {
		return f.Key == "videos_kwargs" || f.Key == "audio_kwargs"
	})
}

// ioConfig describes how a file that is not in the wanted mode was converted; nil if it was not converted.
func (v *Names) ioConfig(it enginehash.Item, media enginehash.Fields) enginehash.Fields {
	if v.Generation < H2 || v.chunks {
		return nil
	}
	mode := enginehash.TextOf("RGB")
	if v.keepsMode {
		mode = enginehash.Value{Kind: enginehash.Null}
	}
	if m, ok := media.Get("image_mode"); ok {
		mode = m
	}
	wanted := string(mode.Raw)
	if mode.Kind != enginehash.String || wanted == it.Mode && !(v.composes && it.Transparent && wanted == "RGB") {
		return nil
	}
	white := enginehash.IntsOf([]int{255, 255, 255})
	if c, ok := media.Get("rgba_background_color"); ok {
		white = c
	}
	return enginehash.Fields{{Key: "image_mode", Value: mode}, {Key: "rgba_background_color", Value: white}}
}

// writer builds the input of the hash. Up to H3 a field is its dotted path followed by its value's bytes; since H4 paths are
// nested, and each string is preceded by its length (u64, little-endian).
type writer struct {
	b      []byte
	framed bool
	cut    int // where the file's bytes are inserted
	err    error
}

const (
	tagNull = iota
	tagList
	tagObject
	tagLeaf
)

func (w *writer) length(n int) { w.b = binary.LittleEndian.AppendUint64(w.b, uint64(n)) }

func (w *writer) frame(s string) { w.length(len(s)); w.b = append(w.b, s...) }

// file marks where the file's bytes are inserted.
func (w *writer) file(n int64) {
	if w.framed {
		w.b = append(w.b, tagLeaf)
		w.length(int(n))
	}
	w.cut = len(w.b)
}

// item writes the image itself, plain or with its conversion.
func (w *writer) item(key string, it enginehash.Item, config enginehash.Fields) {
	switch {
	case w.framed:
		w.frame(key)
		w.b = append(w.b, tagLeaf)
		w.frame("image")
		if config != nil {
			w.b = append(w.b, tagObject)
			w.length(2)
			w.field("io_config", enginehash.ObjectOf(config))
			w.frame("data")
		}
	case config == nil:
		w.b = append(append(w.b, key...), "image"...)
	default:
		w.b = append(w.b, key...)
		w.field(key+".io_config", enginehash.ObjectOf(config))
		w.b = append(append(w.b, key...), ".data"...)
	}
	w.file(it.Bytes)
}

func (w *writer) field(key string, v enginehash.Value) {
	if w.framed {
		w.frame(key)
		w.value(v)
		return
	}
	switch v.Kind {
	case enginehash.List:
		for i, e := range v.List {
			w.field(fmt.Sprintf("%s.%d", key, i), e)
		}
	case enginehash.Object:
		for _, f := range v.Fields {
			w.field(key+"."+f.Key, f.Value)
		}
	default:
		w.b = append(append(w.b, key...), w.leaf(v)...)
	}
}

func (w *writer) value(v enginehash.Value) {
	switch v.Kind {
	case enginehash.Null:
		w.b = append(w.b, tagNull)
	case enginehash.List:
		w.b = append(w.b, tagList)
		w.length(len(v.List))
		for _, e := range v.List {
			w.value(e)
		}
	case enginehash.Object:
		w.b = append(w.b, tagObject)
		w.length(len(v.Fields))
		for _, f := range v.Fields {
			w.field(f.Key, f.Value)
		}
	default:
		w.b = append(w.b, tagLeaf)
		w.frame(string(w.leaf(v)))
	}
}

// leaf returns a scalar's bytes: strings as UTF-8, numbers as NumPy scalars (int64, float64, bool).
func (w *writer) leaf(v enginehash.Value) []byte {
	if v.Kind == enginehash.Huge {
		w.err = fmt.Errorf("%w: integer %s beyond 64 bits", enginehash.ErrNotComputable, v.Raw)
	}
	return v.Raw
}

// uuidText reads a part's uuid as vLLM does: Python's str() of the JSON value. ok is false for lists and objects, of which vLLM
// takes Python's repr.
func uuidText(raw string) (text string, ok bool) {
	r := gjson.Parse(raw)
	switch {
	case r.Type == gjson.String:
		return r.String(), true
	case r.Type == gjson.True:
		return "True", true
	case r.Type == gjson.False:
		return "False", true
	case r.Type != gjson.Number:
		return "", false
	case strings.ContainsAny(r.Raw, ".eE"):
		return string(template.AppendFloat(nil, r.Num)), true
	case r.Raw == "-0":
		return "0", true
	}
	return r.Raw, true
}
