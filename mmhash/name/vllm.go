package name

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
)

// VLLM is what names pictures in one class of vLLM workers. Everything here comes from the server's command line.
type VLLM struct {
	Generation Generation
	Algorithm  Algorithm
	Model      string // --model verbatim ("root" in GET /v1/models), not the served name
	MediaIO    Fields // --media-io-kwargs; in the hash since 0.30, in the non-RGB form since 0.27
	TowerLoRA  bool   // --enable-tower-connector-lora: the adapter's name stands before the hash
	Rust       bool   // VLLM_USE_RUST_FRONTEND=1: the digest of the bytes alone
}

// Item is one picture, or video, of one request.
type Item struct {
	Modality string // "image" if empty; audio only with a uuid (and vision_chunk, of Kimi-K2.5, is pixels too)
	Mode     string // Pillow's mode; "RGB" gives the plain form; needed since 0.27
	Bytes    int64  // size of the file

	Video *Video // of a video whose frames are known

	UUID    string // as vLLM reads it: str() of the part's uuid
	HasUUID bool

	ProcessorKwargs Fields // the request's mm_processor_kwargs
	MediaIO         Fields // the request's media_io_kwargs
	LoRA            string // the adapter's name, "" for the base model
}

// Recipe gives the way to the identifier that vLLM puts into its events. The server's --mm-processor-kwargs never count.
// Since 0.31 a request with kwargs is refused unless the server runs --trust-request-mm-kwargs: that is not decided here.
func (v *VLLM) Recipe(it Item) (Recipe, error) {
	if it.Modality == "" {
		it.Modality = "image"
	}
	r := Recipe{alg: v.Algorithm}
	if v.TowerLoRA && !v.Rust && it.LoRA != "" {
		r.prefix = it.LoRA + ":"
	}
	media := v.mediaIO(it)
	kwargs := it.ProcessorKwargs
	if v.Generation >= H5 {
		kwargs = scoped(kwargs, it.Modality)
	}
	hashed := len(kwargs) > 0 || v.Generation >= H5 && len(media) > 0
	switch {
	case it.HasUUID && (!hashed || v.Rust):
		r.Known, r.ready = r.prefix+it.UUID, true
		return r, nil
	case v.Rust:
		r.alg = BLAKE3
		return r, nil
	case it.Modality == "video" && !it.HasUUID && !v.readsVideo(&it):
		return Recipe{}, fmt.Errorf("%w: vLLM hashes decoded frames", ErrNotComputable)
	case it.Modality != "image" && it.Modality != "video":
		return Recipe{}, fmt.Errorf("%w: vLLM hashes decoded %s", ErrNotComputable, it.Modality)
	case v.Generation >= H4 && it.Modality == "image" && it.Mode == "" && !it.HasUUID:
		return Recipe{}, fmt.Errorf("%w: Pillow's mode of the file is not known", ErrNotComputable)
	case v.Generation < H2:
		return Recipe{}, fmt.Errorf("%w: vLLM before 0.13 hashes pixels", ErrNotComputable)
	case v.Generation == H2 && kwargs.hasNull():
		return Recipe{}, fmt.Errorf("%w: null in mm_processor_kwargs before 0.16", ErrNotComputable)
	}
	w := writer{framed: v.Generation >= H6}
	for _, f := range v.order(it.Modality, media, kwargs) {
		switch {
		case f.Value.kind != kindItem:
			w.field(f.Key, f.Value)
		case it.HasUUID:
			w.field(f.Key, text(it.UUID))
		case it.Modality == "video":
			w.video(f.Key, it)
		default:
			w.item(f.Key, it, v.ioConfig(it, media))
		}
	}
	r.before, r.after = w.b, nil
	if w.cut > 0 {
		r.before, r.after = w.b[:w.cut:w.cut], w.b[w.cut:]
	}
	if it.HasUUID {
		r.Known, r.ready = r.Of(nil), true
	}
	return r, w.err
}

// order lists the hash's fields as the release does.
func (v *VLLM) order(modality string, media, kwargs Fields) Fields {
	item, model := Field{modality, Value{kind: kindItem}}, Field{"model_id", text(v.Model)}
	var all Fields
	switch {
	case v.Generation == H2:
		return append(Fields{model, item}, kwargs...)
	case v.Generation <= H4:
		all = append(Fields{item, model}, kwargs...)
	default:
		all = Fields{item, model}
		if len(media) > 0 {
			all = append(all, Field{"media_io_kwargs", object(Fields{{modality, object(media)}})})
		}
		if len(kwargs) > 0 {
			all = append(all, Field{"mm_processor_kwargs", object(kwargs)})
		}
	}
	slices.SortStableFunc(all, func(a, b Field) int { return bytes.Compare([]byte(a.Key), []byte(b.Key)) })
	return all
}

// mediaIO is the options in force for the item's modality: the server's, overwritten by the request's.
func (v *VLLM) mediaIO(it Item) Fields {
	out := slices.Clone(v.MediaIO.object(it.Modality))
	own := it.MediaIO.object(it.Modality)
	for _, f := range own {
		out = out.set(f)
	}
	if it.Modality == "video" {
		out = videoIO(out, own)
	}
	return out
}

// scoped drops the options of other modalities.
func scoped(kwargs Fields, modality string) Fields {
	other := map[string]string{"image": "images_kwargs", "video": "videos_kwargs", "audio": "audio_kwargs"}
	own, known := other[modality]
	if !known {
		return kwargs
	}
	var out Fields
	for _, f := range kwargs {
		if f.Key != own && (f.Key == "images_kwargs" || f.Key == "videos_kwargs" || f.Key == "audio_kwargs") {
			continue
		}
		out = append(out, f)
	}
	return out
}

// ioConfig says how a file that is not in the wanted mode was converted; nil where nothing was.
func (v *VLLM) ioConfig(it Item, media Fields) Fields {
	if v.Generation < H4 || it.Modality != "image" {
		return nil
	}
	mode := text("RGB")
	if m, ok := media.get("image_mode"); ok {
		mode = m
	}
	if mode.kind != kindString || string(mode.raw) == it.Mode {
		return nil
	}
	white := Value{kind: kindList, list: []Value{integer(255), integer(255), integer(255)}}
	if c, ok := media.get("rgba_background_color"); ok {
		white = c
	}
	return Fields{{"image_mode", mode}, {"rgba_background_color", white}}
}

// writer makes the pre-image. Up to H5 a field is its dotted path followed by its value's bytes; since H6 paths are
// nested, and every string has its length before it (u64, little-endian).
type writer struct {
	b      []byte
	framed bool
	cut    int // where the file's bytes go
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

// file marks the place of the file's bytes.
func (w *writer) file(n int64) {
	if w.framed {
		w.b = append(w.b, tagLeaf)
		w.length(int(n))
	}
	w.cut = len(w.b)
}

// item writes the picture itself: plain, or with the way it was converted.
func (w *writer) item(key string, it Item, config Fields) {
	switch {
	case !w.framed && config == nil:
		w.b = append(append(w.b, key...), "image"...)
		w.file(it.Bytes)
	case !w.framed:
		w.b = append(w.b, key...)
		w.field(key+".io_config", object(config))
		w.b = append(append(w.b, key...), ".data"...)
		w.file(it.Bytes)
	case config == nil:
		w.frame(key)
		w.b = append(w.b, tagLeaf)
		w.frame("image")
		w.file(it.Bytes)
	default:
		w.frame(key)
		w.b = append(w.b, tagLeaf)
		w.frame("image")
		w.b = append(w.b, tagObject)
		w.length(2)
		w.field("io_config", object(config))
		w.frame("data")
		w.file(it.Bytes)
	}
}

func (w *writer) field(key string, v Value) {
	if w.framed {
		w.frame(key)
		w.value(v)
		return
	}
	switch v.kind {
	case kindList:
		for i, e := range v.list {
			w.field(fmt.Sprintf("%s.%d", key, i), e)
		}
	case kindObject:
		for _, f := range v.fields {
			w.field(key+"."+f.Key, f.Value)
		}
	default:
		w.b = append(append(w.b, key...), w.leaf(v)...)
	}
}

func (w *writer) value(v Value) {
	switch v.kind {
	case kindNull:
		w.b = append(w.b, tagNull)
	case kindList:
		w.b = append(w.b, tagList)
		w.length(len(v.list))
		for _, e := range v.list {
			w.value(e)
		}
	case kindObject:
		w.b = append(w.b, tagObject)
		w.length(len(v.fields))
		for _, f := range v.fields {
			w.field(f.Key, f.Value)
		}
	default:
		w.b = append(w.b, tagLeaf)
		w.frame(string(w.leaf(v)))
	}
}

// leaf gives a scalar's bytes: strings as UTF-8, numbers as NumPy scalars (int64, float64, bool).
func (w *writer) leaf(v Value) []byte {
	if v.kind == kindHuge {
		w.err = fmt.Errorf("%w: integer %s beyond 64 bits", ErrNotComputable, v.raw)
	}
	return v.raw
}
