package vision

import (
	"encoding/json"
	"io/fs"
	"sort"
	"strings"
	"testing/fstest"
)

// stubTokens has one token per byte (its value) plus special tokens (from 1000 on), like the goldens' stand-in tokenizers.
type stubTokens struct {
	names  []string
	ids    map[string]uint32
	sorted []string // longest first
}

func newStub(specials ...string) *stubTokens {
	t := &stubTokens{ids: map[string]uint32{}}
	for _, s := range specials {
		if _, ok := t.ids[s]; !ok && s != "" {
			t.ids[s] = uint32(1000 + len(t.names))
			t.names = append(t.names, s)
		}
	}
	t.sorted = append(t.sorted, t.names...)
	sort.SliceStable(t.sorted, func(i, j int) bool { return len(t.sorted[i]) > len(t.sorted[j]) })
	return t
}

// special returns its special tokens.
func (t *stubTokens) special() map[string]bool {
	set := map[string]bool{}
	for _, name := range t.names {
		set[name] = true
	}
	return set
}

func (t *stubTokens) ID(token string) (uint32, bool) {
	id, ok := t.ids[token]
	return id, ok
}

func (t *stubTokens) EncodeText(dst []uint32, text string) []uint32 {
next:
	for text != "" {
		for _, s := range t.sorted {
			if s[0] == text[0] && strings.HasPrefix(text, s) {
				dst = append(dst, t.ids[s])
				text = text[len(s):]
				continue next
			}
		}
		dst = append(dst, uint32(text[0]))
		text = text[1:]
	}
	return dst
}

func (t *stubTokens) DecodeText(ids []uint32) string {
	var b strings.Builder
	for _, id := range ids {
		switch {
		case id < 256:
			b.WriteByte(byte(id))
		case int(id) >= 1000 && int(id) < 1000+len(t.names):
			b.WriteString(t.names[id-1000])
		}
	}
	return b.String()
}

// dir returns a model directory in memory, made from JSON values.
func dir(files map[string]any) fs.FS {
	out := fstest.MapFS{}
	for name, v := range files {
		if v == nil {
			continue
		}
		data, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		out[name] = &fstest.MapFile{Data: data}
	}
	return out
}

type obj = map[string]any

// The engines' Readings.
var (
	vllm         = Reading{}
	sglang       = Reading{Processor: true}
	trtllm       = Reading{Processor: true, OutOfVocab: true}
	transformers = Reading{Processor: true, Always: true}
)

// specialsOf lists the tokens that a family's entry may ask for.
func specialsOf(f *family) []string {
	var out []string
	for _, n := range f.names {
		out = append(out, n.text)
	}
	for _, e := range []*entry{f.image, f.video, f.audio} {
		if e != nil {
			out = append(out, e.layout.need...)
			out = append(out, e.layout.tileEnd, e.layout.rowSep, e.layout.mainBegin, e.layout.mainEnd, e.layout.end)
		}
	}
	keep := out[:0]
	for _, s := range out {
		if len(s) > 2 && !strings.Contains(s, "{") && !strings.Contains(s, "><") && !strings.Contains(s, "\n") {
			keep = append(keep, s)
		}
	}
	return keep
}

func marshal(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}
