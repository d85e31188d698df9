package engine

import (
	"maps"
	"slices"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/engine/trtllm"
	"github.com/sightline-router/sightline/mmhash"
	"github.com/sightline-router/sightline/mmhash/name"
)

// TensorRT-LLM names a picture by its decoded pixels. Decoding takes milliseconds, so it is done beside the requests: at
// its first sight a picture has no name, and the request goes by affinity; the next request finds it.

const (
	whyNotYet   = "media name not computed yet: pixels are decoded beside the requests"
	whyUnnamed  = "media name not computable"
	modelsRules = 16 // bounds what one picture is named by at once
)

func (x *Media) namerTRTLLM(s Server) (n namer, err error) {
	v, err := rules.ParseVersion(s.EngineVersion)
	if err != nil {
		return n, err
	}
	io, err := name.ParseFields([]byte(s.MediaIOKwargs))
	if err != nil {
		return n, err
	}
	rule, _ := trtllm.NamesOf(v).With(io)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.pixels == nil {
		if x.pixels, err = trtllm.NewPixelNames(x.store, func(err error) { x.panicked("pixels", err) }); err != nil {
			return n, err
		}
		x.trt = make(map[trtllm.Names]bool)
	}
	if len(x.trt) < modelsRules {
		x.trt[rule] = true
	}
	return namer{trt: &rule}, nil
}

// wantTRTLLM has a downloaded picture named for every model that needs it.
func (x *Media) wantTRTLLM(f mmhash.Facts, file []byte) {
	x.mu.Lock()
	p, rules := x.pixels, slices.Collect(maps.Keys(x.trt))
	x.mu.Unlock()
	if p != nil {
		p.Want(mmhash.File(file), f.ID, f.Bytes, rules...)
	}
}

// nameTRTLLM is the engine's name of a picture if it is known by now.
func (m *Model) nameTRTLLM(md *Medium, src mmhash.Source, item name.Item) (string, bool) {
	rule, ok := m.names.trt.With(item.MediaIO)
	if !ok || md.Modality != "image" {
		return "", false
	}
	p := m.Media.pixels
	n, known := p.Name(md.Facts.ID, rule)
	switch {
	case known:
	case m.Media.Patient:
		p.Now(src, md.Facts.ID, md.Facts.Bytes, rule)
		n, _ = p.Name(md.Facts.ID, rule)
	default:
		p.Want(src, md.Facts.ID, md.Facts.Bytes, rule)
		md.waits = true
	}
	return n, n != ""
}

// unnamed says why a medium has no name.
func (md *Medium) unnamed() string {
	if md.waits {
		return whyNotYet
	}
	return whyUnnamed
}
