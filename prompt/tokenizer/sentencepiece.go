package tokenizer

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// A SentencePiece model file is a protocol buffer: pieces with scores and types, and how texts are normalized. The rules are those
// of sentencepiece 0.2.3. BPE merges any two neighbours whose joined text is a piece, greatest score first. A Unigram file is
// refused, and so is one that changes texts beyond writing their spaces as ▁ and adding one in front.

// Piece types of sentencepiece_model.proto.
const (
	pieceNormal  = 1
	pieceUnknown = 2
	pieceControl = 3
	pieceUser    = 4
	pieceUnused  = 5
	pieceByte    = 6
)

type sentencePiece struct {
	text  []byte
	score float32
	kind  uint64
}

type sentencePieceModel struct {
	pieces       []sentencePiece
	kind         uint64 // 1 unigram, 2 BPE, 3 word, 4 characters
	byteFallback bool
	dummyPrefix  bool
	trim         bool   // remove_extra_whitespaces
	unsupported  string // a setting that is not supported
}

// LoadSentencePiece reads a tokenizer.model alone. Control symbols' strings in a text stay text, as in
// SentencePieceProcessor.encode; AddSpecial puts <s> in front.
func LoadSentencePiece(b []byte) (*Tokenizer, error) {
	t, err := readSentencePiece(b)
	if err != nil {
		return nil, err
	}
	return t, t.finish()
}

// loadTokenizerModel reads a directory's tokenizer.model. The directory's added tokens are matched in the text.
func loadTokenizerModel(d *directory, b []byte) (*Tokenizer, error) {
	if len(b) > 0 && b[0] != 0x0A {
		return loadTiktoken(d, b)
	}
	t, err := readSentencePiece(b)
	if err != nil {
		return nil, err
	}
	d.checkNamed()
	tokens := slices.Clone(d.added)
	for i := range tokens {
		a := &tokens[i]
		a.Normalized = false
		if old := t.vocab.id([]byte(a.Content)); old != noID {
			a.ID = old
		}
		t.byID[a.ID], t.byText[a.Content] = a, a.ID
		if a.Special {
			t.special[a.Content] = true
		}
		t.added = append(t.added, a)
	}
	if d.config.BOS != "" {
		t.post = template{}
		if d.config.AddBOS == nil {
			yes := true
			d.config.AddBOS = &yes
		}
		t.addEnds(d)
	}
	return t, t.finish()
}

func readSentencePiece(b []byte) (*Tokenizer, error) {
	p, err := parseSentencePiece(b)
	if err != nil {
		return nil, err
	}
	t := newTokenizer()
	t.vocab = newVocab(len(p.pieces))
	unk, err := p.add(t)
	if err != nil {
		return nil, err
	}
	strip, bar := 0, lowerBar
	if p.dummyPrefix {
		t.normalize, strip = append(t.normalize, prepend(lowerBar)), 1
	}
	t.normalize, t.words = append(t.normalize, replace{literalPattern(" "), []byte(lowerBar)}), stages{}
	decoder := decoderSpec{Type: "Sequence", Decoders: []*decoderSpec{
		{Type: "Replace", Pattern: patternSpec{String: &bar}, Content: " "},
		{Type: "ByteFallback"}, {Type: "Fuse"}, {Type: "Strip", Content: " ", Start: strip},
	}}
	t.decoders, err = decoder.build()
	if err != nil {
		return nil, err
	}
	t.model, err = p.bpe(t.vocab, unk)
	return t, err
}

// add adds the pieces to the tokenizer and returns the unknown one.
func (p *sentencePieceModel) add(t *Tokenizer) (unk uint32, err error) {
	unk = noID
	var users []*AddedToken // they never merge
	for i := range p.pieces {
		piece, id := &p.pieces[i], uint32(i)
		if p.byteFallback && string(piece.text) == "\x00" { // never matched in a text: the piece of the byte is used
			piece.kind = pieceByte
			continue
		}
		if t.vocab.id(piece.text) != noID {
			return 0, fmt.Errorf("piece %d: %q is there twice", i, piece.text)
		}
		if err := t.vocab.add(string(piece.text), id); err != nil {
			return 0, err
		}
		switch piece.kind {
		case pieceUnknown:
			unk = id
		case pieceControl:
			t.setSpecial(id, string(piece.text))
			if string(piece.text) == "<s>" {
				t.post.before = []uint32{id}
			}
		case pieceUser:
			users = append(users, &AddedToken{ID: id, Content: string(piece.text)})
		case pieceUnused:
			return 0, fmt.Errorf("piece %d %q: unused pieces are not supported", id, piece.text)
		}
	}
	if unk == noID {
		return 0, errors.New("no piece of type unknown")
	}
	t.normed = newMatcher(users, func(a *AddedToken) string { return a.Content })
	return unk, nil
}

// bpe builds the model of a BPE file. Pieces of equal score have equal rank, so the leftmost pair merges first.
func (p *sentencePieceModel) bpe(v *vocab, unk uint32) (*bpe, error) {
	m := &bpe{vocab: v, unk: unk, fuseUnk: true, byteFallback: p.byteFallback}
	merging := func(id uint32) bool {
		return id < uint32(len(p.pieces)) && (p.pieces[id].kind == pieceNormal || p.pieces[id].kind == pieceUser)
	}
	order := make([]uint32, 0, len(p.pieces))
	for id, piece := range p.pieces {
		if piece.kind != pieceNormal {
			continue
		}
		order = append(order, uint32(id))
		for i := 0; i < len(piece.text); {
			_, size := utf8.DecodeRune(piece.text[i:])
			if c := v.id(piece.text[i : i+size]); c == noID || !merging(c) {
				return nil, fmt.Errorf("piece %d %q: %w", id, piece.text, unsupported("a piece with a character that is none"))
			}
			i += size
		}
	}
	sort.SliceStable(order, func(i, j int) bool { return p.pieces[order[i]].score > p.pieces[order[j]].score })
	ranks := make([]uint32, len(p.pieces))
	for i, id := range order {
		ranks[id] = uint32(i)
		if i > 0 && p.pieces[order[i-1]].score == p.pieces[id].score {
			ranks[id] = ranks[order[i-1]]
		}
	}
	m.allSplits(func(id uint32) uint32 { return ranks[id] },
		func(id uint32) bool { return merging(id) && p.pieces[id].kind == pieceNormal })
	return m, nil
}

// protoFields calls fn for each field of a protocol buffer message: varint and fixed32 values in v, byte fields in b.
func protoFields(msg []byte, fn func(field int, v uint64, b []byte) error) error {
	for len(msg) > 0 {
		field, kind, n := protowire.ConsumeTag(msg)
		if n < 0 {
			return protowire.ParseError(n)
		}
		var v uint64
		var b []byte
		switch msg = msg[n:]; kind {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(msg)
		case protowire.Fixed32Type:
			var bits uint32
			bits, n = protowire.ConsumeFixed32(msg)
			v = uint64(bits)
		case protowire.BytesType:
			b, n = protowire.ConsumeBytes(msg)
		default:
			n = protowire.ConsumeFieldValue(field, kind, msg)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		if err := fn(int(field), v, b); err != nil {
			return err
		}
		msg = msg[n:]
	}
	return nil
}

func parseSentencePiece(b []byte) (*sentencePieceModel, error) {
	p := &sentencePieceModel{kind: 1, dummyPrefix: true, trim: true}
	err := protoFields(b, func(part int, _ uint64, msg []byte) error {
		if part < 1 || part > 3 { // pieces, trainer_spec, normalizer_spec
			return nil
		}
		if part == 1 {
			p.pieces = append(p.pieces, sentencePiece{kind: pieceNormal})
		}
		err := protoFields(msg, func(field int, v uint64, b []byte) error {
			p.set([2]int{part, field}, v, b)
			return nil
		})
		switch n := len(p.pieces); {
		case err != nil || part > 1:
		case n > maxID:
			err = fmt.Errorf("more than %d pieces", maxID)
		case len(p.pieces[n-1].text) == 0 || !utf8.Valid(p.pieces[n-1].text):
			err = fmt.Errorf("piece %d: its text %q is empty or not UTF-8", n-1, p.pieces[n-1].text)
		}
		return err
	})
	switch {
	case err != nil:
	case len(p.pieces) == 0:
		err = errors.New("no pieces: not a SentencePiece model")
	case p.kind != 2:
		err = fmt.Errorf("model_type: %w", unsupported(map[uint64]string{1: "Unigram", 3: "word", 4: "char"}[p.kind]))
	case p.unsupported != "":
		err = unsupported(p.unsupported)
	case p.trim:
		err = unsupported("remove_extra_whitespaces")
	}
	return p, err
}

// set stores a field of the last piece or of the settings.
func (p *sentencePieceModel) set(field [2]int, v uint64, b []byte) {
	last := len(p.pieces) - 1
	switch field {
	case [2]int{1, 1}:
		p.pieces[last].text = b
	case [2]int{1, 2}:
		p.pieces[last].score = math.Float32frombits(uint32(v))
	case [2]int{1, 3}:
		p.pieces[last].kind = v
	case [2]int{2, 3}:
		p.kind = v
	case [2]int{2, 24}:
		if v != 0 {
			p.unsupported = "treat_whitespace_as_suffix"
		}
	case [2]int{2, 35}:
		p.byteFallback = v != 0
	case [2]int{3, 2}:
		if len(b) > 0 {
			p.unsupported = "precompiled_charsmap"
		}
	case [2]int{3, 3}:
		p.dummyPrefix = v != 0
	case [2]int{3, 4}:
		p.trim = v != 0
	case [2]int{3, 5}:
		if v == 0 {
			p.unsupported = "escape_whitespaces: false"
		}
	}
}
