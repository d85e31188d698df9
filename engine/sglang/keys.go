package sglang

import (
	"encoding/hex"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/internal/denied"
	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/media"
	"github.com/sightline-router/sightline/mmhash"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/mmhash/enginehash"
)

// A request to SGLang is keyed by its token ids, with each image's pads in place of the placeholders (package block, Locals64). An
// image's pads follow from its bytes and the worker's processor fingerprint (Qwen3-VL; FingerprintFinder). Until events have revealed the
// fingerprint, and for families that hash pixels, a prompt is exact up to its first image.

// newKeys returns how workers of a release key blocks.
func newKeys(v rules.Version, o rules.KeysOptions) (k rules.Keys) {
	rule := PadRuleOf(v)
	k.Locals = func(dst []uint64, p *rules.Hashable) []uint64 { return locals(dst, p, rule) }
	proc := Processor{ModelType: o.ModelType, Architectures: o.Architectures, Revision: o.Revision, Class: o.Class, Wrapper: o.Wrapper}
	f := NewFingerprintFinder(proc, o.Fingerprint, v, o.Found)
	if f == nil {
		return k
	}
	k.SawPad = f.Saw
	k.Ahead = func(fair.Client, media.Facts, []byte) []enginehash.Recipe { return []enginehash.Recipe{FileDigest()} }
	k.Name = func(m *rules.Naming) {
		if pic, ok := imageOf(m, o.Store); ok {
			m.Name, m.Named = f.Name(pic)
		}
	}
	return k
}

// imageOf reads a content part. ok is false if it has options whose effect on the name is not known.
func imageOf(m *rules.Naming, store *mmhash.Store) (pic Image, ok bool) {
	url := m.In.Part.Get("image_url")
	if !m.In.Part.IsObject() || !url.Exists() {
		return pic, false
	}
	ok = true
	url.ForEach(func(k, v gjson.Result) bool {
		switch {
		case v.Type == gjson.Null || k.Str == "url" || denied.InMedia.Field(k.Str) != nil: // the steering fields never reach a worker
		case k.Str == "detail" && v.Type == gjson.String:
			pic.Detail, ok = m.Body.String(v)
		default:
			ok = false
		}
		return ok
	})
	if !ok {
		return pic, false
	}
	names, err := media.Names(store, m.Source, m.ID, m.Bytes, FileDigest())
	if err != nil {
		return pic, false
	}
	n, err := hex.Decode(pic.Content[:], []byte(names[0]))
	return pic, err == nil && n == len(pic.Content)
}

// locals appends a prompt's local hashes. An adapter is named model:adapter in requests and adapter in events.
func locals(dst []uint64, p *rules.Hashable, rule PadRule) []uint64 {
	runs := make([]block.Run, 0, len(p.Media))
	for _, md := range p.Media {
		if md.Offset >= len(p.IDs) {
			break
		}
		item, err := ParseItem(md.Name)
		if err != nil {
			return dst
		}
		runs = append(runs, block.Run{Offset: md.Offset, Length: md.Length, Pads: Pads(item, rule)})
	}
	adapter := p.Adapter
	if _, name, ok := strings.Cut(adapter, ":"); ok {
		adapter = name
	}
	return p.Key.Locals64(dst, p.IDs, p.BlockSize, runs, p.Key.Root(adapter, p.Salt), p.Pairs)
}
