package engine

import (
	"encoding/hex"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/engine/sglang"
	"github.com/sightline-router/sightline/internal/steering"
	"github.com/sightline-router/sightline/mmhash"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/prompt"
)

// What a request to SGLang is keyed by: its token ids with each picture's pads in place of the placeholders (package
// block, Wides). A picture's pads follow from its bytes and the worker's processor fingerprint (Qwen3-VL; sglang.Finder).
// Until events have shown it, and for families that hash pixels, a prompt is exact up to its first picture.

// SawPad takes a pad from an event of one of this model's workers.
func (l *Live) SawPad(pad uint64) {
	if f := l.Model().names.sglang; f != nil {
		f.Saw(pad)
	}
}

// Fingerprint is the one by which SGLang workers name pictures; "" if it is not known, or not needed.
func (m *Model) Fingerprint() string {
	if m.names.sglang == nil {
		return ""
	}
	return m.names.sglang.Fingerprint()
}

// finder finds out how a model's workers name pictures, the same for every reading of its directory that comes to the same
// candidates; nil where names do not follow from the bytes.
func (x *Media) finder(model string, p *prompt.Model, s Server, v rules.Version) *sglang.Finder {
	typ, architectures := p.Config()
	facts := p.Facts()
	proc := sglang.Processor{ModelType: typ, Architectures: architectures, Revision: s.Revision, Class: facts.ProcessorClass, Wrapper: facts.WrapperClass}
	f := sglang.NewFinder(proc, s.Fingerprint, v, func(fingerprint string) {
		if x.Pinned != nil {
			x.Pinned(model, fingerprint)
		}
	})
	if f == nil {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	key := model + f.Key()
	if old := x.sglang[key]; old != nil {
		return old
	}
	if x.sglang == nil {
		x.sglang = make(map[string]*sglang.Finder)
	}
	x.sglang[key] = f
	return f
}

// nameSGLang is the item hash of a picture. A part with options whose effect on the name is not known has none.
func (m *Model) nameSGLang(md *Medium, src mmhash.Source, body *body.Skeleton, in *prompt.Medium) (string, bool) {
	var pic sglang.Picture
	if m.names.sglang == nil || md.Modality != "image" || !in.Part.IsObject() {
		return "", false
	}
	known := true
	in.Part.Get("image_url").ForEach(func(k, v gjson.Result) bool {
		switch {
		case v.Type == gjson.Null || k.Str == "url" || steering.InMedia.Field(k.Str) != nil: // the last never reach a worker
		case k.Str == "detail" && v.Type == gjson.String:
			pic.Detail, known = body.String(v)
		default:
			known = false
		}
		return known
	})
	if !known || !in.Part.Get("image_url").Exists() {
		return "", false
	}
	names, err := m.Media.store.Names(src, md.Facts.ID, md.Facts.Bytes, sglang.FileDigest())
	if err != nil || hex.DecodedLen(len(names[0])) != len(pic.Content) {
		return "", false
	}
	if _, err := hex.Decode(pic.Content[:], []byte(names[0])); err != nil {
		return "", false
	}
	return m.names.sglang.Name(pic)
}

// wideRule is how a prompt's ids become SGLang's.
type wideRule struct {
	pads  sglang.PadRule
	pairs bool // EAGLE
}

// wides are the local hashes of a prompt for SGLang. An adapter is named model:adapter in requests and adapter in events.
func (p *Prompt) wides(dst []uint64, blockSize int, lora string) []uint64 {
	var few [16]block.Run
	runs := few[:0]
	for i := range p.Media {
		md := &p.Media[i]
		if md.Offset >= p.Sure {
			break
		}
		item, err := sglang.ParseItem(md.Name)
		if err != nil {
			return dst
		}
		runs = append(runs, block.Run{Offset: md.Offset, Length: md.Length, Pads: sglang.Pads(item, p.wide.pads)})
	}
	if _, adapter, ok := strings.Cut(lora, ":"); ok {
		lora = adapter
	}
	return block.Wides(dst, p.IDs[:p.Sure], blockSize, runs, block.SeedFor(lora), block.SaltHash(p.Salt), p.wide.pairs)
}
