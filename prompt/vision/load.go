package vision

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"strings"

	"github.com/sightline-router/sightline/body/jsonread"
)

// Load reads the model directory dir (secure.Dir of it) and builds the placeholder rules for one Reading. A text model yields an Expander
// whose Family is "". A *MissingError means that the model's prompts cannot be predicted; an *UnknownModelError comes with an Expander
// that is valid for prompts without media. Other errors are read errors.
func Load(dir fs.FS, tok Tokens, opts Options) (*Expander, error) {
	return families().load(dir, tok, opts)
}

func (t table) load(dir fs.FS, tok Tokens, opts Options) (*Expander, error) {
	named, err := t.named(opts.Family)
	if err != nil {
		return nil, fmt.Errorf("vision_family: %w", err)
	}
	s, err := readSettings(dir, opts)
	if err != nil {
		return nil, err
	}
	m := &Expander{most: MaxTokens, loaded: loaded{settings: s}, tok: tok, literals: &literals{tok: tok, ids: map[string][]uint32{}}}
	f := t.match(s)
	if named != nil {
		if f != nil && f != named {
			m.warn("vision_family %s is taken; the directory's files say %s", named.name, f.name)
		}
		f = named
	}
	if f == nil {
		return m, unknownModel(s)
	}
	m.fam = f
	if err := m.resolveNames(); err != nil {
		return nil, err
	}
	for _, e := range []struct {
		modality string
		entry    *entry
	}{{"image", f.image}, {"video", f.video}, {"audio", f.audio}} {
		if e.entry == nil {
			continue
		}
		r, err := m.compile(e.modality, e.entry)
		if err != nil {
			return nil, err
		}
		m.placeholders = append(m.placeholders, r)
	}
	if err := m.bindIDs(); err != nil {
		return nil, err
	}
	return m, nil
}

// unknownModel returns the error for a directory that no family matches, nil for a text model.
func unknownModel(s *settings) error {
	if !looksMultimodal(s) {
		return nil
	}
	e := &UnknownModelError{}
	e.ModelType, _ = s.config["model_type"].(string)
	if arch := list(s.config["architectures"]); len(arch) > 0 {
		e.Architecture = arch[0]
	}
	return e
}

// bindIDs finds the ids that a family needs besides those of its names.
func (m *Expander) bindIDs() error {
	if m.fam.newlineMerge && !m.ReadsText() {
		for i := range m.newlines {
			id, ok := m.tok.ID(strings.Repeat("\n", i+1))
			if !ok {
				return m.lacks("a token for %d newlines, which are merged behind images", i+1)
			}
			m.newlines[i] = id
		}
	}
	if m.fam.outOfVocab && m.settings.reading.OutOfVocab {
		vocab := m.settings.int(setting{"config.vocab_size", "config.text_config.vocab_size"})
		if m.settings.err != nil {
			return m.lacks("%v", m.settings.err)
		}
		m.outOfVocab = uint32(vocab + 1)
	}
	return nil
}

func (m *loaded) warn(format string, a ...any) {
	m.warnings = append(m.warnings, fmt.Sprintf(format, a...))
}

func (m *loaded) lacks(format string, a ...any) error {
	return &MissingError{Family: m.fam.name, What: fmt.Sprintf(format, a...)}
}

func readSettings(dir fs.FS, opts Options) (*settings, error) {
	s := &settings{reading: opts.Reading}
	var pre, proc map[string]any
	for _, f := range []struct {
		name string
		into *map[string]any
	}{
		{"config.json", &s.config}, {"preprocessor_config.json", &pre},
		{"processor_config.json", &proc}, {"tokenizer_config.json", &s.tokenizer},
	} {
		if err := jsonread.File(dir, f.name, f.into); err != nil {
			return nil, err
		}
	}
	if s.config == nil || opts.MistralFormat {
		var params map[string]any
		if err := jsonread.File(dir, "params.json", &params); err != nil {
			return nil, err
		}
		if params != nil {
			s.config = mistralConfig(params)
			pre, proc = nil, nil
		}
	}
	if thinker, ok := s.config["thinker_config"].(map[string]any); ok {
		// Omni models keep the settings of the part that reads the prompt one level down.
		merged := maps.Clone(thinker)
		merged["architectures"], merged["model_type"] = s.config["architectures"], s.config["model_type"]
		s.config = merged
	}
	s.processor, s.image = proc, pre
	if nested, ok := proc["image_processor"].(map[string]any); ok {
		// transformers 5: this replaces preprocessor_config.json entirely; missing keys take class defaults.
		s.image = nested
	}
	s.hasFile = s.image != nil
	s.kw = map[string]any{}
	return s.with(opts.ProcessorKwargs), nil
}

// mistralConfig converts Mistral's params.json to the keys of a config.json.
func mistralConfig(params map[string]any) map[string]any {
	c := map[string]any{"model_type": "mistral_native_text", "vocab_size": params["vocab_size"]}
	encoder, ok := params["vision_encoder"].(map[string]any)
	if !ok {
		// Newer files use multimodal.whisper_model_args and so on; only a vision encoder brings image placeholders.
		multi, _ := params["multimodal"].(map[string]any)
		if multi != nil {
			c["model_type"], c["vision_config"] = "mistral_native_audio", multi
		}
		return c
	}
	c["model_type"], c["vision_config"] = "pixtral_native", encoder
	for _, k := range []string{"image_token_id", "image_break_token_id", "image_end_token_id"} {
		c[k] = encoder[k]
	}
	return c
}

// looksMultimodal reports whether a directory that matches no family takes anything but text.
func looksMultimodal(s *settings) bool {
	for _, k := range []string{"vision_config", "audio_config", "image_token_id", "image_token_index",
		"mm_vision_tower", "visual", "vision_tower", "img_processor", "vision_model", "audio_token_id", "vit_config"} {
		if s.config[k] != nil {
			return true
		}
	}
	return s.hasFile || s.processor["processor_class"] != nil && s.config == nil
}

// resolveNames finds the strings of the family's tokens.
func (m *Expander) resolveNames() error {
	m.names = make(map[string]string, len(m.fam.names))
	for key, n := range m.fam.names {
		text := ""
		if n.attr != "" {
			for _, file := range []map[string]any{m.settings.processor, m.settings.tokenizer} {
				text = tokenText(file[n.attr])
				if text != "" {
					break
				}
				if extra, ok := file["extra_special_tokens"].(map[string]any); ok {
					text = tokenText(extra[n.attr])
					if text != "" {
						break
					}
				}
			}
		}
		text = cmp.Or(text, n.text)
		cfgID, hasCfg := m.configID(n.id)
		id, ok := m.tok.ID(text)
		switch {
		case !m.fam.requires(key):
			// The token belongs to a modality that cannot be counted anyway.
		case !ok && hasCfg:
			// A derived vocabulary may use another name for the token.
			text = m.tok.DecodeText([]uint32{cfgID})
			if again, known := m.tok.ID(text); !known || again != cfgID {
				return m.lacks("token %s: the tokenizer has neither it nor a token of id %d (config.json %s)",
					n.text, cfgID, n.id)
			}
		case !ok:
			return m.lacks("token %s: not in the tokenizer, and config.json has no %s", text, n.id)
		case hasCfg && cfgID != id && !n.loose:
			return m.lacks("token %s: the tokenizer says %d, config.json (%s) says %d", text, id, n.id, cfgID)
		case hasCfg && cfgID != id:
			m.warn("token %s: the tokenizer says %d, config.json (%s) says %d; the engine takes the tokenizer's", text, id, n.id, cfgID)
		}
		m.names[key] = text
	}
	return nil
}

// requires reports whether a modality that can be counted uses a name.
func (f *family) requires(key string) bool {
	for _, e := range []*entry{f.image, f.audio} {
		if e == nil || e.count == nil {
			continue
		}
		texts := e.target + e.targetHF + e.prefix + e.id + e.layout.all()
		if e.arrange != nil || strings.Contains(texts, "{"+key+"}") {
			return true
		}
	}
	return f.finishText != nil
}

func tokenText(v any) string {
	switch t := v.(type) {
	case string:
		return t
	case map[string]any:
		s, _ := t["content"].(string)
		return s
	}
	return ""
}

func (m *loaded) configID(keys string) (uint32, bool) {
	for _, k := range strings.Fields(keys) {
		if f, ok := number(dig(m.settings.config, k)); ok && f >= 0 && f < 1<<31 {
			return uint32(f), true
		}
	}
	return 0, false
}

// placeholder is an entry with everything resolved.
type placeholder struct {
	modality string
	entry    *entry
	layout   layout
	target   string // text form, {k} still in it
	targets  []uint32
	prefix   []uint32 // inserting families
	hasID    bool
	id       uint32
	idText   string
	bound
}

// bound is an entry with its settings read.
type bound struct {
	count counter // nil: the modality is not counted
	err   error   // from reading the settings
}

func (e *entry) bind(s *settings) (b bound) {
	own := *s
	own.err = nil
	if e.count != nil {
		b.count = e.count.bind(&own)
	}
	b.err = own.err
	return b
}

func (m *Expander) compile(modality string, e *entry) (*placeholder, error) {
	r := &placeholder{modality: modality, entry: e, layout: e.layout, target: e.target}
	if m.ReadsText() && e.targetHF != "" {
		r.target = e.targetHF
	}
	r.layout.each(m.fill)
	r.target = m.fill(r.target)
	if r.target != "" && !strings.Contains(r.target, "{k}") {
		r.targets = m.tok.EncodeText(nil, r.target)
	}
	addsBOS, said := m.settings.tokenizer["add_bos_token"].(bool)
	if e.prefix != "" && (e.prefix != "{bos}" || addsBOS || !said) {
		r.prefix = m.tok.EncodeText(nil, m.fill(e.prefix))
	}
	if e.id != "" {
		r.idText = m.fill(e.id)
		id, ok := m.tok.ID(r.idText)
		if !ok && e.count != nil {
			return nil, m.lacks("token %s of the %s placeholder is not in the tokenizer", r.idText, modality)
		}
		r.id, r.hasID = id, ok
	}
	for _, need := range r.layout.need {
		if _, ok := m.tok.ID(m.fill(need)); !ok {
			return nil, m.lacks("token %s of the %s layout is not in the tokenizer", m.fill(need), modality)
		}
	}
	r.bound = e.bind(m.settings)
	if r.err != nil {
		return nil, m.lacks("%v", r.err)
	}
	return r, nil
}

var nameRef = regexp.MustCompile(`\{[a-z_]{2,}\}`)

// fill replaces the family's names in a layout text by its tokens.
func (m *loaded) fill(s string) string {
	if !strings.Contains(s, "{") {
		return s
	}
	return nameRef.ReplaceAllStringFunc(s, func(ref string) string { return m.names[ref[1:len(ref)-1]] })
}

func (l *layout) each(f func(string) string) {
	for _, p := range []*string{&l.begin, &l.end, &l.mainBegin, &l.mainEnd, &l.tiledBegin, &l.between,
		&l.tileBegin, &l.tileEnd, &l.tileSep, &l.rowEnd, &l.rowSep} {
		*p = f(*p)
	}
}

// all returns the concatenated texts of a layout.
func (l layout) all() (text string) {
	l.each(func(s string) string { text += s; return s })
	return text
}

// Placeholder returns the text that the engine puts into a message whose content is a plain string, for the k-th item (from 1) of a
// modality. ok is false if the engine inserts nothing (the template or the processor does) or does not know the modality.
func (m *Expander) Placeholder(modality string, k int) (text string, ok bool) {
	r := placeholderOf(m.placeholders, modality)
	if r == nil || r.entry.put == "-" {
		return "", false
	}
	text = cmp.Or(r.entry.put, r.entry.target)
	text = strings.ReplaceAll(m.fill(text), "{k}", fmt.Sprint(k))
	return text, text != ""
}
