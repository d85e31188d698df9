package engine

import (
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/internal/steering"
	"github.com/sightline-router/sightline/mmhash"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/mmhash/name"
	"github.com/sightline-router/sightline/prompt"
)

// What a request to SGLang is keyed by: its token ids with each picture's pads in place of the placeholders (package
// block, Wides). A picture's pads follow from its bytes and the worker's processor fingerprint (Qwen3-VL; package name).
// The fingerprint is found out: events carry pads, and of all fingerprints that a worker may have only its own turns a
// picture that was routed lately into the pads that an event shows. Until then, and for families that hash pixels, a
// prompt is exact up to its first picture.

// pads finds out how the workers of one model name pictures. Safe for concurrent use.
type pads struct {
	rule       name.PadRule
	candidates []string // fingerprints, likeliest first
	pinned     func(fingerprint string)

	mu     sync.Mutex
	now    string         // the fingerprint that counts; "": not known yet
	recent []routed       // routed lately, oldest first
	by     map[uint64]int // first pad → candidate, of the recent pictures that were tried
	agreed [2]uint64      // narrow pads that spoke for one candidate
	tried  time.Time
}

// routed is what the item hash of a picture depends on besides the fingerprint.
type routed struct {
	content [32]byte // SHA-256 of the file
	detail  string
	tried   bool
}

const (
	recentPictures = 64
	// retryPad is how often a pad that the pinned fingerprint does not explain is looked into: it may be a picture that
	// was not routed by us, or workers that were upgraded. One look costs about a millisecond a picture.
	retryPad = time.Second
)

// transformersReleases lists the releases of Hugging Face transformers that a worker may run, the likely ones first.
func transformersReleases() (out []string) {
	out = []string{"5.19.0"} // of SGLang 0.5.23's image
	for patch := range 4 {
		for minor := 30; minor >= 0; minor-- {
			out = append(out, fmt.Sprintf("5.%d.%d", minor, patch))
		}
	}
	for patch := range 7 {
		out = append(out, fmt.Sprintf("4.57.%d", patch))
	}
	return out
}

// processor is what is known of the workers' image processor.
func processor(p *prompt.Model, s Server) name.SGLangProcessor {
	typ, architectures := p.Config()
	facts := p.Facts()
	return name.SGLangProcessor{ModelType: typ, Architectures: architectures, Revision: s.Revision, Class: facts.ProcessorClass, Wrapper: facts.WrapperClass}
}

// newPads says how to name a model's pictures; nil where their names do not follow from their bytes.
func newPads(proc name.SGLangProcessor, s Server, v rules.Version, pinned func(string)) *pads {
	if proc.Class == "" {
		return nil
	}
	p := &pads{rule: padRule(v), pinned: pinned, by: map[uint64]int{}}
	if s.Fingerprint != "" {
		p.now, p.candidates = s.Fingerprint, []string{s.Fingerprint}
		return p
	}
	p.candidates = proc.Candidates(transformersReleases())
	return p
}

func padRule(v rules.Version) name.PadRule {
	switch {
	case v.AtLeast(0, 5, 23):
		return name.PadWide
	case v.AtLeast(0, 5, 9):
		return name.PadMil
	}
	return name.PadLow
}

// name gives a picture's item hash in hex, if the fingerprint is known, and remembers the picture.
func (p *pads) name(pic routed) (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := false
	for i := range p.recent {
		known = known || p.recent[i].content == pic.content && p.recent[i].detail == pic.detail
	}
	if !known && len(p.candidates) > 1 {
		if len(p.recent) == recentPictures {
			p.recent = p.recent[:copy(p.recent, p.recent[1:])]
		}
		pic.detail = strings.Clone(pic.detail) // it lies in the request
		p.recent = append(p.recent, pic)
	}
	if p.now == "" {
		return "", false
	}
	return fmt.Sprintf("%016x", name.SGLang{Fingerprint: p.now}.Item(pic.content[:], pic.detail)), true
}

// saw takes a pad of an event. The first that only one candidate explains decides; of narrow pads, which are 30 bits,
// two that agree.
func (p *pads) saw(pad uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, ok := p.by[pad]
	if !ok && (p.now == "" || time.Since(p.tried) > retryPad) {
		p.tried = time.Now()
		c, ok = p.explain(pad)
	}
	if !ok || p.candidates[c] == p.now {
		return
	}
	if p.rule != name.PadWide && (p.agreed[0] != uint64(c)+1 || p.agreed[1] == pad) {
		p.agreed = [2]uint64{uint64(c) + 1, pad}
		return
	}
	p.now = p.candidates[c]
	if p.pinned != nil {
		p.pinned(p.now)
	}
}

// explain looks for the candidate that gives a pad to a recent picture, the youngest first.
func (p *pads) explain(pad uint64) (candidate int, ok bool) {
	if len(p.by) > recentPictures*len(p.candidates) {
		clear(p.by)
	}
	for i := len(p.recent) - 1; i >= 0; i-- {
		pic := &p.recent[i]
		if pic.tried {
			continue
		}
		pic.tried = true
		for k, f := range p.candidates {
			first := name.Pads(name.SGLang{Fingerprint: f}.Item(pic.content[:], pic.detail), p.rule)[0]
			if _, taken := p.by[first]; !taken {
				p.by[first] = k
			}
		}
		if c, ok := p.by[pad]; ok {
			return c, true
		}
	}
	return 0, false
}

// SawPad takes a pad from an event of one of this model's workers.
func (l *Live) SawPad(pad uint64) {
	if p := l.Model().names.sglang; p != nil {
		p.saw(pad)
	}
}

// Fingerprint is the one by which SGLang workers name pictures; "" if it is not known, or not needed.
func (m *Model) Fingerprint() string {
	p := m.names.sglang
	if p == nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

// sglang gives the pads of a model, the same for every reading of its directory that comes to the same candidates.
func (x *Media) sglang(model string, proc name.SGLangProcessor, s Server, v rules.Version) *pads {
	p := newPads(proc, s, v, func(fingerprint string) {
		if x.Pinned != nil {
			x.Pinned(model, fingerprint)
		}
	})
	if p == nil {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	key := fmt.Sprint(model, p.rule, p.candidates[0])
	if old := x.pads[key]; old != nil {
		return old
	}
	if x.pads == nil {
		x.pads = make(map[string]*pads)
	}
	x.pads[key] = p
	return p
}

// nameSGLang is the item hash of a picture. A part with options whose effect on the name is not known has none.
func (m *Model) nameSGLang(md *Medium, src mmhash.Source, body *body.Skeleton, in *prompt.Medium) (string, bool) {
	var pic routed
	if m.names.sglang == nil || md.Modality != "image" || !in.Part.IsObject() {
		return "", false
	}
	known := true
	in.Part.Get("image_url").ForEach(func(k, v gjson.Result) bool {
		switch {
		case v.Type == gjson.Null || k.Str == "url" || steering.InMedia.Field(k.Str) != nil: // the last never reach a worker
		case k.Str == "detail" && v.Type == gjson.String:
			pic.detail, known = body.String(v)
		default:
			known = false
		}
		return known
	})
	if !known || !in.Part.Get("image_url").Exists() {
		return "", false
	}
	names, err := m.Media.store.Names(src, md.Facts.ID, md.Facts.Bytes, name.FileDigest())
	if err != nil || hex.DecodedLen(len(names[0])) != len(pic.content) {
		return "", false
	}
	if _, err := hex.Decode(pic.content[:], []byte(names[0])); err != nil {
		return "", false
	}
	return m.names.sglang.name(pic)
}

// wideRule is how a prompt's ids become SGLang's.
type wideRule struct {
	pads  name.PadRule
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
		item, err := name.ParseItem(md.Name)
		if err != nil {
			return dst
		}
		runs = append(runs, block.Run{Offset: md.Offset, Length: md.Length, Pads: name.Pads(item, p.wide.pads)})
	}
	if _, adapter, ok := strings.Cut(lora, ":"); ok {
		lora = adapter
	}
	return block.Wides(dst, p.IDs[:p.Sure], blockSize, runs, block.SeedFor(lora), block.SaltHash(p.Salt), p.wide.pairs)
}
