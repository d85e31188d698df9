package vision

import (
	"fmt"
	"strconv"
	"strings"
)

// layout says how the runs of embedding tokens are wrapped. In order:
//
//	begin
//	main, if mainFirst
//	tiles: for each row, for each tile: tileBegin run tileEnd,
//	       tileSep between the tiles of a row, rowEnd after each row,
//	       rowSep between rows
//	between, if there were tiles and a main run follows
//	main, if not mainFirst
//	end
//
// where main is mainBegin run mainEnd. The usual case has only begin, a main run and end. {r}, {c} and {i} are the tile's row,
// column and number from 1, {k} the image's number from 0, other {names} the family's. Adjacent texts are tokenized as one.
type layout struct {
	begin, end                  string
	mainFirst                   bool
	mainBegin, mainEnd          string
	tiledBegin                  string // before everything but begin, if there are tiles
	between                     string
	tileBegin, tileEnd, tileSep string
	rowEnd, rowSep              string
	need                        []string // tokens that must exist in the vocabulary
}

// arrange writes one replacement.
func (l *layout) arrange(b *builder, g grid) {
	if !g.bare {
		b.text(l.begin)
	}
	tiled := g.rows > 0 && g.cols > 0
	if tiled {
		b.text(l.tiledBegin)
	}
	main := func() {
		if g.main > 0 {
			b.text(l.mainBegin)
			b.run(g.main)
			b.text(l.mainEnd)
		}
	}
	if l.mainFirst {
		main()
		if tiled {
			b.text(l.between)
		}
	}
	for r := 1; r <= g.rows && tiled; r++ {
		if r > 1 {
			b.text(l.rowSep)
		}
		for c := 1; c <= g.cols; c++ {
			if c > 1 {
				b.text(l.tileSep)
			}
			b.row, b.col, b.tileNo = r, c, (r-1)*g.cols+c
			b.text(l.tileBegin)
			b.run(g.tile)
			b.text(l.tileEnd)
		}
		b.text(l.rowEnd)
		if b.err != nil {
			return
		}
	}
	if !l.mainFirst {
		if tiled && g.main > 0 {
			b.text(l.between)
		}
		main()
	}
	b.text(l.end)
}

// builder writes replacements, as ids or as text with one token for each run.
type builder struct {
	m            *Expander
	placeholders []*placeholder // the model's, with the settings of the request
	items        int            // media in the request

	written int // embedding tokens of the request so far

	out       []uint32 // everything written so far, or
	condensed bool
	str       []byte // the text, and
	runs      []int  // the length of each run in it

	placeholder *placeholder // of the item being written

	pending             []byte // text not yet tokenized
	afterRun            bool   // pending follows a run
	k, row, col, tileNo int
	err                 error
}

// builder returns the builder for one request, with the counts for its kwargs.
func (m *Expander) builder(kw Kwargs, items int) (*builder, error) {
	b := &builder{m: m, items: items, placeholders: m.placeholders}
	if len(kw) == 0 {
		return b, nil
	}
	if m.fam != nil && m.fam.accepts != nil && !m.ReadsText() {
		if err := m.fam.accepts(m, kw); err != nil {
			return nil, err
		}
	}
	s := m.settings.with(kw)
	b.placeholders = make([]*placeholder, len(m.placeholders))
	for i, r := range m.placeholders {
		own := *r
		own.bound = r.entry.bind(s)
		if own.err != nil { // the server's own settings were read at load, so the request is at fault
			own.err = refused(400, "mm_processor_kwargs: %v", own.err)
		}
		b.placeholders[i] = &own
	}
	return b, nil
}

// item writes the replacement of one medium; k is its number from 0 within its modality.
func (b *builder) item(media Media, k int) error {
	modality, r := orImage(media.Modality), placeholderOf(b.placeholders, media.Modality)
	switch {
	case r == nil:
		return refused(400, "the model takes no %s", modality)
	case r.entry.count == nil:
		return undecidable(modality, notCounted)
	case r.err != nil:
		return r.err
	}
	g, err := b.measure(media, r)
	if err != nil {
		return err
	}
	b.written += g.main + g.rows*g.cols*g.tile
	if b.written > b.m.most {
		return &UndecidableError{Modality: modality, Reason: fmt.Sprintf("the media of one prompt give more than %d tokens",
			b.m.most), TooMany: true}
	}
	b.placeholder, b.k, b.err, b.afterRun = r, k, nil, false
	b.pending = b.pending[:0]
	if r.entry.arrange != nil {
		r.entry.arrange(b, g)
	} else {
		r.layout.arrange(b, g)
	}
	b.flush()
	return b.err
}

// measure counts one medium and checks the bounds common to all.
func (b *builder) measure(media Media, r *placeholder) (g grid, err error) {
	w, h := media.Width, media.Height
	switch {
	case media.Modality == "audio":
		return r.count(0, 0, b.items)
	case w <= 0 || h <= 0:
		return grid{}, refused(400, "image of %d x %d pixels", w, h)
	case w > maxSide || h > maxSide || float64(w)*float64(h) > maxPixels:
		return grid{}, refused(400, "image of %d x %d pixels is larger than an engine decodes", w, h)
	}
	g, err = r.count(w, h, b.items)
	if err != nil {
		return grid{}, err
	}
	if total := float64(g.main) + float64(g.rows)*float64(g.cols)*float64(g.tile); total > MaxTokens || g.main < 0 || g.tile < 0 {
		return grid{}, undecidable("image", "%d x %d pixels give %.0f tokens, more than %d", w, h, total, MaxTokens)
	}
	return g, nil
}

// size returns about how many ids the media become, without what stands between rows and tiles; at most the bound of a prompt.
func (b *builder) size(media []Media) (n int) {
	for i := range media {
		r := placeholderOf(b.placeholders, media[i].Modality)
		if r == nil || r.err != nil || r.entry.count == nil {
			return n
		}
		g, err := b.measure(media[i], r)
		n += g.main + g.rows*g.cols*g.tile + 2
		if err != nil || n > b.m.most {
			return min(n, b.m.most)
		}
	}
	return n
}

// maxSide and maxPixels bound the images that are counted. Pillow refuses above 1.8e8 pixels; this bound only keeps the
// arithmetic within int64.
const (
	maxSide   = 1 << 31
	maxPixels = 1 << 40
)

// run writes n embedding tokens.
func (b *builder) run(n int) {
	if n <= 0 {
		return
	}
	b.flush()
	b.afterRun = true
	if b.condensed {
		b.str = append(b.str, b.placeholder.idText...)
		b.runs = append(b.runs, n)
		return
	}
	b.out = appendRun(b.out, b.placeholder.id, n)
}

// appendRun appends id n times, growing dst at most once.
func appendRun(dst []uint32, id uint32, n int) []uint32 {
	start := len(dst)
	if cap(dst)-start < n {
		grown := make([]uint32, start, start+n+start/4)
		copy(grown, dst)
		dst = grown
	}
	dst = dst[:start+n]
	run := dst[start:]
	for i := range run {
		run[i] = id
	}
	return dst
}

// text writes a piece of the layout and fills in its {…}.
func (b *builder) text(s string) {
	for {
		i := strings.IndexByte(s, '{')
		if i < 0 || i+2 >= len(s) || s[i+2] != '}' {
			b.pending = append(b.pending, s...)
			return
		}
		b.pending = append(b.pending, s[:i]...)
		n := 0
		switch s[i+1] {
		case 'r':
			n = b.row
		case 'c':
			n = b.col
		case 'i':
			n = b.tileNo
		case 'k':
			n = b.k
		}
		b.pending = strconv.AppendInt(b.pending, int64(n), 10)
		s = s[i+3:]
	}
}

// maxLiterals bounds the cache of the layouts' texts.
const maxLiterals = 8192

// flush tokenizes the pending text. Layouts use few distinct texts, so their ids are cached. Text after a run is tokenized together
// with one token of that run before it: some tokenizers treat the start of a text specially.
func (b *builder) flush() {
	if len(b.pending) == 0 || b.err != nil {
		return
	}
	if b.condensed {
		b.str = append(b.str, b.pending...)
	} else {
		b.out = append(b.out, b.m.literal(b.pending, b.afterRun, b.placeholder)...)
	}
	b.pending = b.pending[:0]
}

func (m *Expander) literal(text []byte, afterRun bool, r *placeholder) []uint32 {
	key := text
	if afterRun {
		key = append(text, 0) // distinguishes it from the same text at the start
		key = append(key, r.modality...)
	}
	l := m.literals
	l.RLock()
	out, ok := l.ids[string(key)]
	l.RUnlock()
	if ok {
		return out
	}
	if afterRun && r.hasID {
		out = l.tok.EncodeText(nil, r.idText+string(text))
	}
	if len(out) > 0 && out[0] == r.id {
		out = out[1:]
	} else {
		out = l.tok.EncodeText(nil, string(text))
	}
	l.Lock()
	if len(l.ids) < maxLiterals {
		l.ids[string(key)] = out
	}
	l.Unlock()
	return out
}
