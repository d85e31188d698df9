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

// A SentencePiece model file is a protocol buffer: pieces with scores and types, and how texts are normalised. The rules are
// those of sentencepiece 0.2.3. BPE merges any two neighbours whose text together is a piece,
// greatest score first. A Unigram file, and one that changes texts further than by writing
// their spaces as ▁ and one in front, is refused.

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
	suffix       bool // treat_whitespace_as_suffix
	charsMap     []byte
	dummyPrefix  bool
	trim         bool // remove_extra_whitespaces
	escape       bool // spaces become ▁
}

// LoadSentencePiece reads a tokenizer.model alone. Control symbols' strings in a text stay text, as
// SentencePieceProcessor.encode leaves them; AddSpecial puts <s> in front.
func LoadSentencePiece(b []byte) (*Tokenizer, error) {
	t, err := readSentencePiece(b)
	if err != nil {
		return nil, err
	}
	return t, t.finish()
}

// loadTokenizerModel reads tokenizer.model of a directory, whose added tokens are matched in the text.
func loadTokenizerModel(d *directory, b []byte) (*Tokenizer, error) {
	if len(b) > 0 && b[0] != 0x0A {
		return loadTiktoken(d, b)
	}
	t, err := readSentencePiece(b)
	if err != nil {
		return nil, err
	}
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
	switch {
	case err != nil:
	case p.kind != 2:
		err = fmt.Errorf("model_type: %w", unsupported(map[uint64]string{1: "Unigram", 3: "word", 4: "char"}[p.kind]))
	case p.suffix:
		err = unsupported("treat_whitespace_as_suffix")
	case len(p.charsMap) > 0:
		err = unsupported("precompiled_charsmap")
	case p.trim:
		err = unsupported("remove_extra_whitespaces")
	case !p.escape:
		err = unsupported("escape_whitespaces: false")
	}
	if err != nil {
		return nil, err
	}
	v := newVocab(len(p.pieces))
	unk := noID
	t := newTokenizer()
	t.vocab = v
	var users []*AddedToken
	for i, piece := range p.pieces {
		id := uint32(i)
		if p.byteFallback && string(piece.text) == "\x00" { // SentencePiece: in no text, its byte's piece stands for it
			p.pieces[i].kind = pieceByte
			continue
		}
		if v.id(piece.text) != noID {
			return nil, fmt.Errorf("piece %d: %q is there twice", i, piece.text)
		}
		if err := v.add(string(piece.text), id); err != nil {
			return nil, err
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
		}
	}
	if unk == noID {
		return nil, errors.New("no piece of type unknown")
	}
	t.normed = newMatcher(users, func(a *AddedToken) string { return a.Content }) // they never merge
	strip := 0
	if p.dummyPrefix {
		t.normalize, strip = append(t.normalize, prepend(lowerBar)), 1
	}
	t.normalize = append(t.normalize, replace{literalPattern(" "), []byte(lowerBar)})
	m, err := p.bpe(v, unk)
	if err != nil {
		return nil, err
	}
	t.model, t.words = m, stages{}
	t.decoders, err = newDecoders(fmt.Appendf(nil, `{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},
		{"type":"Strip","content":" ","start":%d,"stop":0}]}`, strip))
	if err != nil {
		return nil, err
	}
	return t, nil
}

// bpe builds the model of a BPE file. Equal scores are equal ranks: then the leftmost pair merges first.
func (p *sentencePieceModel) bpe(v *vocab, unk uint32) (*bpe, error) {
	m := &bpe{vocab: v, unk: unk, fuseUnk: true, byteFallback: p.byteFallback}
	merging := func(id uint32) bool {
		return id < uint32(len(p.pieces)) && (p.pieces[id].kind == pieceNormal || p.pieces[id].kind == pieceUser)
	}
	order := make([]uint32, 0, len(p.pieces))
	for id, piece := range p.pieces {
		if piece.kind == pieceUnused {
			return nil, fmt.Errorf("piece %d %q: unused pieces are not supported", id, piece.text)
		}
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
	m.allSplits(func(id uint32) uint32 { return ranks[id] }, func(id uint32) bool { return merging(id) && p.pieces[id].kind == pieceNormal })
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
	p := &sentencePieceModel{kind: 1, dummyPrefix: true, trim: true, escape: true}
	err := protoFields(b, func(field int, _ uint64, msg []byte) error {
		switch field {
		case 1:
			piece := sentencePiece{kind: pieceNormal}
			err := protoFields(msg, func(field int, v uint64, b []byte) error {
				switch field {
				case 1:
					piece.text = b
				case 2:
					piece.score = math.Float32frombits(uint32(v))
				case 3:
					piece.kind = v
				}
				return nil
			})
			if err == nil && (len(piece.text) == 0 || !utf8.Valid(piece.text)) {
				err = fmt.Errorf("piece %d: its text %q is empty or not UTF-8", len(p.pieces), piece.text)
			}
			if len(p.pieces) >= maxID {
				err = fmt.Errorf("more than %d pieces", maxID)
			}
			p.pieces = append(p.pieces, piece)
			return err
		case 2:
			return protoFields(msg, func(field int, v uint64, _ []byte) error {
				switch field {
				case 3:
					p.kind = v
				case 24:
					p.suffix = v != 0
				case 35:
					p.byteFallback = v != 0
				}
				return nil
			})
		case 3:
			return protoFields(msg, func(field int, v uint64, b []byte) error {
				switch field {
				case 2:
					p.charsMap = b
				case 3:
					p.dummyPrefix = v != 0
				case 4:
					p.trim = v != 0
				case 5:
					p.escape = v != 0
				}
				return nil
			})
		}
		return nil
	})
	if err == nil && len(p.pieces) == 0 {
		err = errors.New("no pieces: not a SentencePiece model")
	}
	return p, err
}
