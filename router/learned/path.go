package learned

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"unsafe"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/mmhash/block"
)

const mediaBytes = 4 << 10 // of what is no text, hashed at once

// MaxSteps limits the steps of a path: 4 MiB of text. The last step of a longer request is all that follows.
const MaxSteps = 1 << 13

// Path is the beginning of a request, step by step. Two paths have their first n steps in common exactly if the requests begin alike up
// to there: the same model, the same parameters that can change a prompt, and the same text and media in the same messages.
type Path struct {
	Steps []Step
	Media []MediaStep // in the order of the steps
	// Said is the hash of the last answer in the request (Said.Sum), which begins with the step SaidAt; 0: there is none to compare.
	Said   uint64
	SaidAt int
}

// Set makes the path a copy of another one.
func (p *Path) Set(from *Path) {
	p.Steps, p.Media = append(p.Steps[:0], from.Steps...), append(p.Media[:0], from.Media...)
	p.Said, p.SaidAt = from.Said, from.SaidAt
}

// Reset removes all steps.
func (p *Path) Reset() { *p = Path{Steps: p.Steps[:0], Media: p.Media[:0]} }

// MediaStep is a content part that is no text.
type MediaStep struct {
	ID    uint64 // of the part alone: equal wherever it stands
	Step  int    // index in Steps
	Other bool   // audio, video or a file: it may become fewer tokens than any image
}

// Step ends with some bytes of a request. Its number is of everything up to there.
type Step struct {
	Number [2]uint64
	Bytes  int32 // of the request's content since the step before; of a medium its pixels, 0 if they are not known
	Answer bool  // a message of the model begins with the step
	Media  bool  // the step is one of Path.Media
	IDs    int32 // how many token ids the step is of; 0: it is of something else
	// Untold: the request does not tell the medium's size, such as that of a URL's image; Bytes are then what Sizes.Fill knows.
	Untold bool
}

// Head is what a prompt depends on and the body does not say.
type Head struct {
	Endpoint       string // of the API, such as /v1/chat/completions
	Model, Adapter string
	Tenant         string // "": tenants are not told apart
	// Media are those in the body that were identified while it was read: their texts need not be hashed.
	Media engine.MediumTexts
}

// Hasher makes the paths of one deployment: without its secret no client can find two requests with one path. It is safe for
// concurrent use.
type Hasher struct {
	keys [2]*block.Key
	seed maphash.Seed // of answers' texts, which no other replica hears of
}

// NewHasher derives a hasher from the deployment's secret.
func NewHasher(secret []byte) *Hasher {
	h := &Hasher{seed: maphash.MakeSeed()}
	for i, info := range []string{"sightline path 1", "sightline path 2"} {
		own, err := hkdf.Key(sha256.New, secret, nil, info, block.SecretBytes)
		if err != nil {
			panic(err) // only for a length beyond 8160
		}
		h.keys[i] = block.NewKey(own)
	}
	return h
}

// What a step's last bytes are.
const (
	kindText  = 'x' // of a text that goes on
	kindEnd   = 'e' // the end of a text
	kindMedia = 'm'
	kindOther = 'o' // of neither
	kindHead  = 'h'
	kindRole  = 'r'
	kindIDs   = 'i' // of nothing yet: token ids follow
	kindKnown = 'k' // of nothing yet: the identity of a medium follows
)

// contentKeys are the fields that are read part by part, in the order in which engines put them into a prompt.
var contentKeys = []string{"instructions", "system", "prompt", "input", "suffix"}

// Read sets p to the path of a request, whose body s is. Cost: each byte of the body is hashed twice, at several GB/s,
// but for those of head's media.
func (h *Hasher) Read(p *Path, head Head, s *body.Skeleton, req *body.Request) {
	p.Reset()
	head.Media.Sort()
	w := walk{h: h, s: s, p: p, media: head.Media}
	for _, text := range []string{head.Endpoint, head.Model, head.Adapter, head.Tenant} {
		w.put(bytesOf(text))
	}
	// An unknown parameter counts as one that changes the prompt: requests that differ in it share nothing.
	w.fields(req.Fields, func(key string) bool { // with the last two, prompts are computed entirely (prompt.Recomputed), and the same
		return body.NoEffect(key) || slices.Contains(contentKeys, key) || key == "prompt_logprobs" || key == "echo"
	})
	w.step(kindHead)
	for _, key := range contentKeys {
		if v, ok := req.Fields[key]; ok {
			w.put(bytesOf(key))
			w.value(v)
		}
	}
	w.messages(req.Messages)
}

// walk makes one path.
type walk struct {
	h      *Hasher
	s      *body.Skeleton
	p      *Path
	media  engine.MediumTexts
	at     [2]uint64
	bytes  int
	answer bool
	mark   [1]byte
	pieces [][]byte
	part   [mediaBytes]byte // of a chunk that is in two pieces of the body
	number [8]byte
}

// put adds bytes to the number of the next step.
func (w *walk) put(raw []byte) {
	for i, k := range w.h.keys {
		w.at[i] = k.Bytes(raw, w.at[i])
	}
	w.bytes += len(raw)
}

// step ends a step.
func (w *walk) step(kind byte) {
	w.end(kind)
	if n := len(w.p.Steps); n < MaxSteps {
		medium := kind == kindMedia
		w.p.Steps = append(w.p.Steps, Step{Number: w.at, Bytes: int32(min(w.bytes, 1<<30)), Answer: w.answer, Media: medium,
			Untold: medium && w.bytes == 0})
	} else {
		w.p.Steps[n-1] = Step{Number: w.at, Bytes: int32(min(int(w.p.Steps[n-1].Bytes)+w.bytes, 1<<30))}
	}
	w.bytes, w.answer = 0, false
}

// end marks the end of something, so that what follows is not taken for its continuation, nor a byte of the request for the mark.
func (w *walk) end(kind byte) {
	w.mark[0] = kind
	for i, k := range w.h.keys {
		w.at[i] = k.Bytes(w.mark[:], ^w.at[i])
	}
}

func (w *walk) fields(fields map[string]gjson.Result, skip func(key string) bool) {
	if len(fields) == 0 {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		if !skip(key) {
			w.put(bytesOf(key))
			w.raw(fields[key])
		}
	}
}

// raw adds a value's JSON text.
func (w *walk) raw(v gjson.Result) {
	w.pieces = w.s.AppendPieces(w.pieces[:0], v)
	rest, size := w.pieces, func(bool) int { return mediaBytes }
	for i := 0; i < len(rest); i++ {
		if m, n := w.media.At(rest[i:]); m != nil {
			w.chunks(rest[:i], size)
			w.end(kindKnown)
			w.put(m.ID[:])
			rest, i = rest[i+n:], -1
		}
	}
	w.chunks(rest, size)
}

// text adds the steps of a text. They are short where texts part most often, at the beginning.
func (w *walk) text(v gjson.Result) {
	at := 0
	w.chunks(w.s.Raw(v), func(ended bool) (size int) {
		if ended {
			w.step(kindText)
		}
		switch {
		case at < 64:
			size = 8
		case at < 512:
			size = 32
		case at < 4096:
			size = 128
		default:
			size = 512
		}
		at += size
		return size
	})
	w.step(kindEnd)
}

// ids adds the steps of a list of token ids: 16 each.
func (w *walk) ids(list gjson.Result) {
	w.end(kindIDs)
	n := int32(0)
	end := func(kind byte) {
		w.step(kind)
		w.p.Steps[len(w.p.Steps)-1].IDs, n = n, 0
	}
	list.ForEach(func(_, id gjson.Result) bool {
		w.put(bytesOf(id.Raw))
		n++
		if n == 16 {
			end(kindText)
		}
		return true
	})
	end(kindEnd)
}

// chunks adds bytes in chunks, whatever the pieces that they come in. next returns the size of the next one; ended: one has ended.
func (w *walk) chunks(pieces [][]byte, next func(ended bool) (size int)) {
	have, size := 0, next(false) // of the chunk, in part
	for _, p := range pieces {
		if have > 0 {
			n := copy(w.part[have:size], p)
			have, p = have+n, p[n:]
			if have < size {
				continue
			}
			w.put(w.part[:size])
			size = next(true)
		}
		for len(p) >= size {
			w.put(p[:size])
			p, size = p[size:], next(true)
		}
		have = copy(w.part[:size], p)
	}
	w.put(w.part[:have])
}

// value adds the steps of a field that holds a text, or a list of texts, token ids, messages or content parts.
func (w *walk) value(v gjson.Result) {
	switch first := v.Get("0"); {
	case v.Type == gjson.String:
		w.text(v)
		return
	case first.Type == gjson.Number:
		w.ids(v)
		return
	case first.Type == gjson.String:
		v.ForEach(func(_, item gjson.Result) bool {
			w.text(item)
			return true
		})
		return
	case first.IsObject() && first.Get("role").Exists():
		if list, err := w.s.Messages(v); err == nil {
			w.messages(list)
			return
		}
		w.raw(v)
	case first.IsObject():
		if list, err := w.s.Parts(v); err == nil {
			w.parts(list)
			return
		}
		w.raw(v)
	default:
		w.raw(v)
	}
	w.step(kindOther)
}

func (w *walk) messages(list []body.Message) {
	last := len(list) - 1
	for last >= 0 && list[last].Role != "assistant" {
		last--
	}
	for i := range list {
		if i == last {
			w.p.Said, w.p.SaidAt = w.said(&list[i]), len(w.p.Steps)
		}
		w.message(&list[i])
	}
}

func (w *walk) parts(list []body.Part) {
	for i := range list {
		w.content(&list[i])
	}
}

func (w *walk) message(m *body.Message) {
	w.answer = m.Role == "assistant"
	w.put(bytesOf(m.Role))
	w.fields(m.Fields, func(string) bool { return false })
	w.end(kindRole)
	switch m.Kind {
	case body.Text:
		w.text(m.Content)
	case body.List:
		w.parts(m.Parts)
	default:
		w.raw(m.Content)
		w.step(kindOther)
	}
}

// content adds a content part: its fields, of which a text ends it like one that stands alone. A client's name for a medium (uuid) does
// not count: it is removed on the way to the engine.
func (w *walk) content(p *body.Part) {
	if !p.Raw.IsObject() {
		w.raw(p.Raw)
		w.step(kindOther)
		return
	}
	if IsMedium(p) {
		w.medium(p)
		return
	}
	text := p.Fields["text"]
	ends := text.Type == gjson.String
	if !ends || len(p.Fields) > 1 {
		w.putNumber(w.alone(p))
		w.end(kindOther)
	}
	if ends {
		w.text(text)
		return
	}
	w.step(kindOther)
}

// medium adds a medium's part.
func (w *walk) medium(p *body.Part) {
	own := w.alone(p)
	w.putNumber(own)
	if len(w.p.Steps) < MaxSteps {
		w.p.Media = append(w.p.Media, MediaStep{own[0], len(w.p.Steps), !isImage(p)})
	}
	w.bytes = w.pixels(p)
	w.step(kindMedia)
}

// alone returns the number of a part by itself, without its text.
func (w *walk) alone(p *body.Part) [2]uint64 {
	before := w.at
	w.at = [2]uint64{}
	w.put(bytesOf(p.Type))
	w.fields(p.Fields, func(key string) bool { return key == "uuid" || key == "text" && p.Fields[key].Type == gjson.String })
	own := w.at
	w.at = before
	return own
}

func (w *walk) putNumber(number [2]uint64) {
	for _, n := range number {
		w.put(binary.LittleEndian.AppendUint64(w.number[:0], n))
	}
}

// pixels returns how many pixels the image has that a part brings with it; 0: it has none.
func (w *walk) pixels(p *body.Part) int {
	if !isImage(p) {
		return 0
	}
	for _, v := range p.Fields {
		for _, v := range []gjson.Result{v, body.Last(v, "url"), body.Last(v, "data")} {
			if v.Type == gjson.String {
				if n := engine.Pixels(w.s.Raw(v)); n > 0 {
					return n
				}
			}
		}
	}
	return 0
}

func isImage(p *body.Part) bool { return strings.Contains(p.Type, "image") }

// IsMedium reports whether a part holds a medium, such as image_url, input_audio and document.
func IsMedium(p *body.Part) bool {
	if !p.Raw.IsObject() || p.Fields["text"].Type == gjson.String {
		return false
	}
	for _, one := range []string{"image", "video", "audio", "file", "document"} {
		if strings.Contains(p.Type, one) {
			return true
		}
	}
	return false
}

func bytesOf(text string) []byte { return unsafe.Slice(unsafe.StringData(text), len(text)) }
