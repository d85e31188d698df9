package changes

// ReadWords fills in IDs, Chain and Size of a prompt that no rule reads to its end, from its Text and Parts as the client wrote them: words
// and punctuation take the place of tokens, and a medium is Length of them. Media have the byte of the text as Offset before, and the word
// after it. The cost is linear in the text.
func (p *Input) ReadWords() {
	p.IDs, p.offsets = make([]uint32, 0, len(p.Text)/5+8), make([]int32, 0, len(p.Text)/5+8)
	at := 0
	for i := range p.Media {
		md := &p.Media[i]
		p.readWords(at, md.Offset)
		at, md.Offset = md.Offset, len(p.IDs)
		for k := range md.Length {
			p.IDs, p.offsets = append(p.IDs, uint32(md.Key>>(8*(k&3)))), append(p.offsets, int32(at))
		}
	}
	p.readWords(at, len(p.Text))
	p.Size, p.Chain = wordBlock, make([]uint64, 0, len(p.IDs)/wordBlock)
	hash := p.Space
	for end := wordBlock; end <= len(p.IDs); end += wordBlock {
		hash = p.Key.Bytes(bytesOf(p.IDs[end-wordBlock:end]), hash)
		p.Chain = append(p.Chain, hash)
	}
}

const (
	wordBlock  = 16
	mostLetter = 12 // bytes of a word: one of base64 would be long
	mostDigit  = 3
)

// readWords appends the words of a part of the text: a space begins the word behind it, and a character beyond ASCII is one alone.
func (p *Input) readWords(from, to int) {
	const prime, odd = 16777619, 2166136261
	for at := from; at < to; {
		begin, word := at, uint32(odd)
		add := func() { word, at = (word^uint32(p.Text[at]))*prime, at+1 }
		add()
		if p.Text[begin] == ' ' && at < to && letters[p.Text[at]] != 0 && p.Text[at] < 0x80 {
			add()
		}
		class, most := letters[p.Text[at-1]], begin+mostLetter
		if class == digit {
			most = at - 1 + mostDigit
		}
		switch first := p.Text[begin]; {
		case first >= 0x80:
			for at < to && p.Text[at] >= 0x80 && p.Text[at] < 0xC0 { // the rest of the character
				add()
			}
		case class != 0:
			for at < min(to, most) && letters[p.Text[at]] == class && p.Text[at] < 0x80 {
				add()
			}
		default:
			for at < min(to, most) && p.Text[at] == first { // such as line ends, or a ruler
				add()
			}
		}
		p.IDs, p.offsets = append(p.IDs, word^word>>15), append(p.offsets, int32(begin))
	}
}

// Tokens returns about how many tokens of a prompt of so many stand before a word: a medium has its Length, if all fit, and each word
// as many as another.
func (p *Input) Tokens(all, words, word int) int {
	media, before := 0, 0
	for _, md := range p.Media {
		media += md.Length
		before += min(md.Length, max(0, word-md.Offset))
	}
	if media >= all || media >= words {
		return int(int64(all) * int64(word) / int64(max(1, words)))
	}
	return before + int(int64(all-media)*int64(word-before)/int64(words-media))
}

// width returns how many bytes of the text a token is.
func (p *Input) width(token int) int {
	switch {
	case p.offsets == nil:
		return len(p.Decode(p.IDs[token : token+1]))
	case token+1 < len(p.offsets):
		return int(p.offsets[token+1] - p.offsets[token])
	}
	return len(p.Text) - int(p.offsets[token])
}
