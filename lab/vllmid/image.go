package vllmid

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"math"
	"sort"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
	"github.com/zeebo/blake3"
)

// Namer gives the identifiers of one worker's media. It is immutable; use it from any goroutine.
type Namer struct {
	model   string
	form    ImageForm
	newHash func() hash.Hash
	mediaIO gjson.Result // the server's --media-io-kwargs
}

// NewNamer makes the namer of a worker: model is its --model argument verbatim, algo its --mm-hasher-algorithm
// (blake3, sha256 or sha512; empty is blake3), mediaIO the JSON of --media-io-kwargs or empty.
func NewNamer(form ImageForm, model, algo, mediaIO string) (*Namer, error) {
	n := &Namer{model: model, form: form}
	switch algo {
	case "", "blake3":
		n.newHash = func() hash.Hash { return blake3.New() }
	case "sha256":
		n.newHash = sha256.New
	case "sha512":
		n.newHash = sha512.New
	default:
		return nil, fmt.Errorf("media hash algorithm %q: want blake3, sha256 or sha512", algo)
	}
	if mediaIO != "" {
		if !gjson.Valid(mediaIO) {
			return nil, fmt.Errorf("media io kwargs: want a JSON object, such as {\"image\":{}}")
		}
		n.mediaIO = gjson.Parse(mediaIO)
	}
	return n, nil
}

// Kwargs are the request's own processing options, as they stand in its body. Both may be missing.
type Kwargs struct {
	Processor gjson.Result // mm_processor_kwargs
	MediaIO   gjson.Result // media_io_kwargs
}

// Image names an image by its encoded file. The form for files that vLLM must convert to RGB depends on Pillow's mode of
// the file (IsRGB), from 0.27 on.
func (n *Namer) Image(raw []byte, kw Kwargs) string {
	mediaIO := n.effectiveMediaIO("image", kw)
	file := encodedFile{raw: raw}
	if n.form >= FormIOConfig && !IsRGB(raw) {
		file.ioConfig = conversion(mediaIO)
	}
	return n.digest(n.fields("image", file, mediaIO, kw))
}

// UUID names an item that carries the client's uuid: the uuid itself, unless the request (or, from 0.30 on, the server)
// has processing options for that modality; then it is hashed in place of the file.
func (n *Namer) UUID(modality, uuid string, kw Kwargs) string {
	fields := n.fields(modality, uuid, n.effectiveMediaIO(modality, kw), kw)
	if len(fields) == 2 { // the item and model_id
		return uuid
	}
	return n.digest(fields)
}

// Opaque names a medium of another kind, such as a video, by its encoded file. vLLM hashes decoded frames there, so
// this name is stable and distinct, but not vLLM's.
func (n *Namer) Opaque(modality string, raw []byte) string {
	return n.digest(object{{modality, raw}, {"model_id", n.model}})
}

// fields is the top level of what is hashed, keys sorted. item is what stands under the modality's own key.
func (n *Namer) fields(modality string, item any, mediaIO object, kw Kwargs) object {
	f := object{{modality, item}, {"model_id", n.model}}
	if n.form < FormNested {
		kw.Processor.ForEach(func(k, v gjson.Result) bool {
			f = append(f, field{k.String(), v})
			return true
		})
	} else {
		var proc object
		kw.Processor.ForEach(func(k, v gjson.Result) bool {
			if !otherModality(k.String(), modality) {
				proc = append(proc, field{k.String(), v})
			}
			return true
		})
		if len(proc) > 0 {
			f = append(f, field{"mm_processor_kwargs", proc})
		}
		if len(mediaIO) > 0 {
			f = append(f, field{"media_io_kwargs", object{{modality, mediaIO}}})
		}
	}
	sort.SliceStable(f, func(i, j int) bool { return f[i].key < f[j].key })
	return f
}

// otherModality reports kwargs that are meant for another modality's processor.
func otherModality(key, modality string) bool {
	switch key {
	case "images_kwargs", "videos_kwargs", "audio_kwargs":
		return strings.TrimSuffix(strings.TrimSuffix(key, "_kwargs"), "s") != modality
	}
	return false
}

// effectiveMediaIO merges the server's and the request's options for one modality; the request wins.
func (n *Namer) effectiveMediaIO(modality string, kw Kwargs) object {
	var merged object
	for _, from := range []gjson.Result{n.mediaIO, kw.MediaIO} {
		from.Get(modality).ForEach(func(k, v gjson.Result) bool {
			for i := range merged {
				if merged[i].key == k.String() {
					merged[i].value = v
					return true
				}
			}
			merged = append(merged, field{k.String(), v})
			return true
		})
	}
	return merged
}

// conversion is the io_config of an image that is not RGB; nil where image_mode null forbids converting.
func conversion(mediaIO object) object {
	mode, background := any("RGB"), any([]any{int64(255), int64(255), int64(255)})
	for _, f := range mediaIO {
		switch f.key {
		case "image_mode":
			if f.value.(gjson.Result).Type == gjson.Null {
				return nil
			}
			mode = f.value
		case "rgba_background_color":
			background = f.value
		}
	}
	return object{{"image_mode", mode}, {"rgba_background_color", background}}
}

// object is an ordered mapping; a value is []byte, string, int64, []any, object, encodedFile or a gjson.Result.
type (
	object []field
	field  struct {
		key   string
		value any
	}
)

// encodedFile is an image's file, with its conversion if it has one. vLLM serialises it as an item of its own, named
// after the modality, inside the item of the same name.
type encodedFile struct {
	raw      []byte
	ioConfig object
}

func (f encodedFile) content() any {
	if f.ioConfig == nil {
		return f.raw
	}
	return object{{"io_config", f.ioConfig}, {"data", f.raw}}
}

func (n *Namer) digest(fields object) string {
	h := n.newHash()
	for _, f := range fields {
		if n.form >= FormFramed {
			framedItem(h, f.key, f.value)
		} else {
			flatItem(h, f.key, f.value)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// plain turns a JSON value into the kinds that object names; nil is None.
func plain(v any) any {
	r, ok := v.(gjson.Result)
	if !ok {
		return v
	}
	switch {
	case r.IsObject():
		var o object
		r.ForEach(func(k, v gjson.Result) bool {
			o = append(o, field{k.String(), v})
			return true
		})
		return o
	case r.IsArray():
		var list []any
		for _, e := range r.Array() {
			list = append(list, e)
		}
		return list
	case r.Type == gjson.String:
		return r.String()
	case r.Type == gjson.Number:
		if i, err := strconv.ParseInt(r.Raw, 10, 64); err == nil {
			return i
		}
		return r.Num
	case r.Type == gjson.True, r.Type == gjson.False:
		return r.Bool()
	}
	return nil
}

// leaf gives a scalar's bytes: numbers as numpy scalars have them.
func leaf(v any) []byte {
	switch v := v.(type) {
	case []byte:
		return v
	case string:
		return []byte(v)
	case int64:
		return binary.LittleEndian.AppendUint64(nil, uint64(v))
	case float64:
		return binary.LittleEndian.AppendUint64(nil, math.Float64bits(v))
	case bool:
		if v {
			return []byte{1}
		}
		return []byte{0}
	}
	return nil
}

// flatItem is the form up to 0.30: dotted keys, each followed by its bytes.
func flatItem(h hash.Hash, key string, value any) {
	switch v := plain(value).(type) {
	case encodedFile:
		h.Write([]byte(key))
		flatItem(h, key, v.content())
	case object:
		for _, f := range v {
			flatItem(h, key+"."+f.key, f.value)
		}
	case []any:
		for i, e := range v {
			flatItem(h, key+"."+strconv.Itoa(i), e)
		}
	default:
		h.Write([]byte(key))
		h.Write(leaf(v))
	}
}

// Tags of the framed form.
const (
	tagNone     = 0
	tagSequence = 1
	tagMapping  = 2
	tagLeaf     = 3
)

// framedItem is the form of 0.31 on: key and bytes framed by their length, every value tagged.
func framedItem(h hash.Hash, key string, value any) {
	frame(h, []byte(key))
	if file, ok := value.(encodedFile); ok {
		h.Write([]byte{tagLeaf})
		value = file.content()
		frame(h, []byte(key))
	}
	framedValue(h, value)
}

func framedValue(h hash.Hash, value any) {
	switch v := plain(value).(type) {
	case object:
		h.Write([]byte{tagMapping})
		length(h, len(v))
		for _, f := range v {
			frame(h, []byte(f.key))
			framedValue(h, f.value)
		}
	case []any:
		h.Write([]byte{tagSequence})
		length(h, len(v))
		for _, e := range v {
			framedValue(h, e)
		}
	case nil:
		h.Write([]byte{tagNone})
	default:
		h.Write([]byte{tagLeaf})
		frame(h, leaf(v))
	}
}

func frame(h hash.Hash, b []byte) {
	length(h, len(b))
	h.Write(b)
}

func length(h hash.Hash, n int) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(n))
	h.Write(b[:])
}
