package changes

import (
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/router/account"
)

// stretch is what followed some tokens in earlier prompts: a number of 8 bits for each of the next 32 tokens, under a hash of those before.
// For a second way to go on, there is one more under the hash's complement.
type stretch struct {
	tokens [groupSize]uint8
	count  uint8
	fair.Kept
}

const groupSize = 32

// rememberGroups remembers what follows where, from a token on.
func (m *Memory) rememberGroups(p *Input, from int) {
	for at := from / groupSize * groupSize; at < len(p.IDs); {
		hash, end := p.stretch(at)
		one := p.read(at, end)
		other := false
		for range 2 {
			found := m.stretches.Find(hash)
			if found == nil {
				m.stretches.Put(p.Client, hash, one)
				break
			}
			if n := found.common(&one); n == int(min(one.count, found.count)) {
				if one.count > found.count {
					found.tokens, found.count = one.tokens, one.count
				}
				found.Use()
				break
			}
			if other { // the newest takes the second place
				found.tokens, found.count = one.tokens, one.count
			}
			hash, other = ^hash, true
		}
		at = end
	}
	m.stretches.Fit()
}

// firstDifferent returns the first token from one on that no earlier prompt had there; -1: not known.
func (m *Memory) firstDifferent(p *Input, from int) int {
	for at := from / groupSize * groupSize; at < len(p.IDs); {
		hash, end := p.stretch(at)
		one := p.read(at, end)
		most := -1
		for _, hash := range []uint64{hash, ^hash} {
			if found := m.stretches.Find(hash); found != nil {
				most = max(most, found.common(&one))
			}
		}
		if most < 0 {
			return -1
		}
		if most < end-at {
			return at + most
		}
		at = end
	}
	return -1
}

// stretch returns the hash of all tokens before a stretch that begins at one, and where it ends.
func (p *Input) stretch(at int) (hash uint64, end int) {
	blocks, hash := p.blocksBefore(at)
	mixed := hash ^ p.Space*0xC2B2AE3D27D4EB4F // tenants may have the same blocks
	if at > blocks*p.Size {
		mixed = p.Key.Bytes(bytesOf(p.IDs[blocks*p.Size:at]), mixed)
	}
	return mixed, min(at+groupSize, len(p.IDs))
}

// read returns a stretch.
func (p *Input) read(from, to int) (g stretch) {
	g.count = uint8(to - from)
	for i := from; i < to; i++ {
		h := (p.IDs[i] ^ uint32(p.Key.ID)) * 0x9E3779B1
		g.tokens[i-from] = uint8((h ^ h>>15) * 0x85EBCA77 >> 24)
	}
	first := sort.Search(len(p.Media), func(i int) bool { return p.Media[i].Offset+p.Media[i].Length > from })
	for _, md := range p.Media[first:] { // whose tokens are the same for all
		if md.Offset >= to {
			break
		}
		for i := max(from, md.Offset); i < min(to, md.Offset+md.Length); i++ {
			g.tokens[i-from] = uint8(md.Key>>(8*(i&3))) ^ uint8(md.Key>>40)
		}
	}
	return g
}

// common returns how many first tokens of another stretch are the same; all of them if it has more.
func (g *stretch) common(o *stretch) (n int) {
	for n < int(min(g.count, o.count)) && g.tokens[n] == o.tokens[n] {
		n++
	}
	return n
}

// locate returns where a prompt departs from the earlier one whose tokens, from seen on, it has: at a token behind from, or before it, if
// other prompts have departed there already. at is the index of the segment; -1: it is in none.
func (m *Memory) locate(p *Input, list []segment, from, seen int) (c *account.Change, at int) {
	token := m.firstDifferent(p, from)
	c = &account.Change{Part: "the prompt", Token: token}
	image := slices.IndexFunc(p.Media, func(md Span) bool { return token >= md.Offset && token < md.Offset+md.Length })
	if len(list) == 0 {
		return c, -1
	}
	beside := max(token, from)
	if image >= 0 {
		beside = p.Media[image].Offset
	}
	offset, located := 0, false
	m.outside(func() { offset, located = p.textOffset(beside) })
	at = segmentAt(list, offset)
	before, was := m.departure(list, at)
	if was != nil && before < at { // not here for the first time
		at, c.Token, offset = before, -1, -1
		if one := m.nodes.Find(list[at].hash); one != nil && one.token >= 0 {
			c.Part, c.Token, c.Kind = list[at].name(), int(one.token), kinds[one.kind]
			return c, at
		}
	} else if was == nil || before != at {
		was = nil
		if one := m.nodes.Find(follower(list[at].before)); one != nil && one.parent != list[at].hash {
			was = m.nodes.Find(one.parent)
		}
	}
	if !located || image >= 0 {
		offset = -1
	}
	c.Part = list[at].name()
	width := 0
	if token >= 0 && offset >= 0 {
		width = p.width(token)
	}
	c.Kind = m.kindOf(p, list, at, was, offset, width, token >= 0 && seen-token <= mostGap)
	if image >= 0 && (c.Kind == "" || c.Kind == "edited") {
		c.Part, c.Kind = "image "+strconv.Itoa(image+1), m.formOf(p, image)
	}
	return c, at
}

// segmentAt returns the index of the segment that has a byte of the text.
func segmentAt(list []segment, offset int) (at int) {
	for i := range list {
		if list[i].At <= offset {
			at = i
		}
	}
	if s := &list[at]; s.Kind != Template && offset > s.At+s.Len && at+1 < len(list) { // in the template's text before the next
		at++
	}
	return at
}

// departure returns where the prompt departs from an earlier one that has one of the segments from one on, and what that has there; nil:
// none has, or too many were followed in vain.
func (m *Memory) departure(list []segment, from int) (at int, was *node) {
	left := len(list) + 1<<12
	ours := make(map[uint64]int, len(list))
	for i := range list {
		ours[list[i].before] = i
	}
	for i := from; i < len(list); i++ {
		ref := m.nodes.Find(list[i].alone)
		if ref == nil || ref.parent == list[i].hash {
			continue
		}
		one := m.nodes.Find(ref.parent)
		for ; one != nil && left > 0; left-- {
			if at, ok := ours[one.parent]; ok {
				return at, one
			}
			one = m.nodes.Find(one.parent)
		}
	}
	return 0, nil
}

// The kinds of a change, for account.Change.
var kinds = [...]string{"", "a date", "a time of day", "a number", "a uuid", "an id", "order", "reasoning dropped", "reasoning added",
	"edited", "earlier messages cut", "earlier messages replaced by fewer", "earlier messages put in",
	"its URL signed anew", "another image under its URL", "other bytes of the same size", "another size of the same shape"}

// kindOf returns how a segment differs from what an earlier prompt had in its place, from a byte of the text on (-1: not known). short:
// soon behind it both are the same again.
func (m *Memory) kindOf(p *Input, list []segment, at int, was *node, offset, width int, short bool) string {
	s := &list[at]
	now := s.node()
	if was != nil && was.parent == s.before {
		switch {
		case was.bag == now.bag && was.order != now.order:
			return "order"
		case was.bare == now.bare && was.thinks && !now.thinks:
			return "reasoning dropped"
		case was.bare == now.bare && now.thinks && !was.thinks:
			return "reasoning added"
		}
	}
	if s.Kind == Message {
		if n := m.moved(list, at); n > 0 {
			return "earlier messages cut"
		} else if n < 0 {
			return "earlier messages put in"
		}
		if at+1 < len(list) {
			if n := m.moved(list, at+1); n > 0 {
				return "earlier messages replaced by fewer"
			} else if n < 0 {
				return "earlier messages put in"
			}
		}
	}
	if short || was != nil && was.order == now.order {
		if kind := written(p.Text, offset, width); kind != "" {
			return kind
		}
	}
	if s.Kind == Message {
		return "edited"
	}
	return ""
}

// moved returns how many segments earlier one stands than in the prompt that had it last; 0: it was not seen, or is too short to be told.
func (m *Memory) moved(list []segment, at int) int {
	if one := m.nodes.Find(list[at].alone); one != nil && one.parent != list[at].hash {
		return int(one.at) - at
	}
	return 0
}

const month = `(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?`

// forms are those of what changes with each request, by kinds; the first that fits counts.
var forms = []struct {
	kind string
	form *regexp.Regexp
}{
	{"a uuid", regexp.MustCompile(`(?i)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)},
	{"a date", regexp.MustCompile(`(?i)\b\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\b\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}\b|\b` + month +
		` \d{1,2}(?:st|nd|rd|th)?(?:,? \d{4})?\b|\b\d{1,2}(?:st|nd|rd|th)? ` + month +
		`(?:,? \d{4})?\b|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b`)},
	{"a time of day", regexp.MustCompile(`(?i)\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?: ?[ap]m\b)?|\b\d{1,2} ?[ap]m\b`)},
	{"an id", regexp.MustCompile(`(?i)\b(?:[0-9]+[a-z]|[a-z]+[0-9])[0-9a-z_-]{6,}`)},
	{"a number", regexp.MustCompile(`\d+`)},
}

// written returns what is written at a byte of a text, and in the token there: a date, a time, a number, an id or "".
func written(text string, offset, width int) string {
	if offset < 0 {
		return ""
	}
	from, to := max(0, offset-40), min(len(text), offset+max(1, width)+40)
	if at := strings.LastIndexByte(text[from:offset], '\n'); at >= 0 {
		from += at
	}
	window, offset := text[from:to], offset-from
	for _, f := range forms {
		for _, at := range f.form.FindAllStringIndex(window, -1) {
			if at[0] < offset+max(1, width) && offset < at[1] {
				return f.kind
			}
		}
	}
	return ""
}

// textOffset returns where a token begins in the prompt's text: behind the text of the tokens before it, wherever that is; of several
// places the one nearest to where the token should be.
func (p *Input) textOffset(token int) (offset int, ok bool) {
	if p.offsets != nil {
		if token < len(p.offsets) {
			return int(p.offsets[token]), true
		}
		return len(p.Text), true
	}
	floor := 0
	for _, md := range p.Media {
		if md.Offset+md.Length <= token {
			floor = md.Offset + md.Length
		}
	}
	about := int(int64(len(p.Text)) * int64(token) / int64(max(1, len(p.IDs))))
	for _, n := range []int{48, 96, 40, 30, 200, 20, 12} {
		first := max(floor, token-n)
		for from := first; from < min(token, first+4); from++ { // the first may be half of a character, or one that the text has not
			if before := p.Decode(p.IDs[from:token]); before != "" && !strings.ContainsRune(before, utf8.RuneError) {
				if at := nearest(p.Text, before, about-len(before)); at >= 0 {
					return at + len(before), true
				}
			}
		}
	}
	return about, token == 0
}

// nearest returns the place of a word in a text that is nearest to one; -1: the text does not have it.
func nearest(text, word string, about int) int {
	about = min(max(0, about), len(text))
	behind := strings.Index(text[about:], word)
	before := strings.LastIndex(text[:min(len(text), about+len(word))], word)
	switch {
	case behind < 0:
		return before
	case before < 0 || behind < about-before:
		return about + behind
	}
	return before
}

func bytesOfText(text string) []byte { return unsafe.Slice(unsafe.StringData(text), len(text)) }
