package changes

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sightline-router/sightline/internal/fair"
)

// Kind is what a part of a prompt is.
type Kind uint8

// The kinds. A Whole is a prompt that has no messages.
const (
	Template Kind = iota
	System
	Tools
	Message
	Whole
)

// Part is a part of a prompt's text, with the template's own text before it.
type Part struct {
	Kind   Kind
	Number int    // of a message, from 1
	Role   string // of a message, as Role returns it
	At     int    // where it begins, in bytes
	Len    int
}

var roles = []string{"system", "developer", "user", "assistant", "tool"}

// Role returns the name of a message's role, never the client's own bytes: a request's memory is used again. Engines take any role.
func Role(role string) string {
	if at := slices.Index(roles, role); at >= 0 {
		return roles[at]
	}
	return "other"
}

func (p *Part) name() string {
	switch p.Kind {
	case System:
		return "the system text"
	case Tools:
		return "the tools"
	case Message:
		return fmt.Sprintf("message %d (%s)", p.Number, p.Role)
	case Whole:
		return "the prompt"
	}
	return "the template's text"
}

// segment is a part with its place among the others.
type segment struct {
	Part
	text   string
	before uint64 // hash of all text before it
	hash   uint64 // of that and its own
	alone  uint64 // of its own text; 0: too short to be told from others
	read   *node  // see node
}

// node returns what its text tells of it.
func (s *segment) node() *node {
	if s.read == nil {
		s.read = &node{parent: s.before, token: -1}
		s.read.words(s.text)
	}
	return s.read
}

const leastAlone = 24 // bytes

// segments returns the parts that are in the prompt's text, the template's beginning first.
func (p *Input) segments() []segment {
	list, hash := make([]segment, 0, len(p.Parts)+1), p.Space^1
	end := 0
	add := func(part Part) {
		part.Len = min(part.Len, len(p.Text)-part.At)
		s := segment{Part: part, text: p.Text[end : part.At+part.Len], before: hash}
		hash, end = p.Key.Bytes(bytesOfText(s.text), hash), part.At+part.Len
		s.hash = hash
		if s.Kind != Template && s.Len >= leastAlone {
			s.alone = p.Key.Bytes(bytesOfText(p.Text[part.At:end]), p.Space^2)
		}
		list = append(list, s)
	}
	if p.Text == "" {
		return nil
	}
	first := len(p.Text)
	if len(p.Parts) > 0 {
		first = p.Parts[0].At
	}
	add(Part{Len: first})
	for _, part := range p.Parts {
		if part.At >= end {
			add(part)
		}
	}
	return list
}

// node is a segment behind all that stands before it, under its hash. Two more entries refer to it by their parent: under follower(before)
// the one seen last there, and under alone the one seen last with that text.
type node struct {
	parent uint64 // hash of all before it
	order  uint32 // hash of its words; those with a digit count as equal
	bag    uint32 // hash of its words in any order
	bare   uint32 // hash of its words without reasoning
	token  int32  // the first one that differed from another segment there; -1: not known
	at     uint16 // index among the segments
	kind   uint8  // of kinds, how it differed
	thinks bool   // it has reasoning
	fair.Kept
}

func follower(before uint64) uint64 { return before ^ 0x5BD1E9955BD1E995 }

// rememberNodes remembers segments, and where and how one of them differs from others.
func (m *Memory) rememberNodes(p *Input, list []segment) {
	for i := range list {
		s := &list[i]
		if s.read == nil && m.nodes.Find(s.hash) == nil {
			m.outside(func() { s.node() })
		}
		if one := m.nodes.Find(s.hash); one != nil { // maybe of an equal prompt, meanwhile
			one.Use()
		} else {
			n := *s.node()
			n.at = uint16(min(i, 1<<16-1))
			m.nodes.Put(p.Client, s.hash, n)
		}
		for _, hash := range []uint64{follower(s.before), s.alone} {
			if one := m.nodes.Find(hash); one != nil {
				one.parent, one.at = s.hash, uint16(min(i, 1<<16-1))
				one.Use()
			} else {
				m.nodes.Put(p.Client, hash, node{parent: s.hash, at: uint16(min(i, 1<<16-1))})
			}
		}
	}
	m.nodes.Fit()
}

const mostWords = 64 << 10 // bytes of a segment whose words are hashed

// words fills in the hashes of a segment's words: 32 bits each, begun with the hash of all that stands before, as they are compared only
// where that is equal.
func (n *node) words(text string) {
	text = text[:min(len(text), mostWords)]
	n.order, n.bag = words(text, uint32(n.parent))
	n.bare, n.thinks = n.order, false
	if bare := withoutReasoning(text); len(bare) != len(text) {
		n.bare, _ = words(bare, uint32(n.parent))
		n.thinks = true
	}
}

// words returns a hash of a text's words, and one of them in any order.
func words(text string, begin uint32) (ordered, bag uint32) {
	const prime = 16777619
	word, digits := begin, uint8(0)
	for i := 0; i <= len(text); i++ {
		if i < len(text) {
			if class := letters[text[i]]; class != 0 {
				word, digits = (word^uint32(text[i]))*prime, digits|class
				continue
			}
		}
		if digits != 0 {
			bag += word * (word>>15 | 1)
			if digits&digit != 0 {
				word = 1
			}
			ordered = (ordered ^ word) * prime
			ordered ^= ordered >> 15
			word, digits = begin, 0
		}
	}
	return ordered, bag
}

const letter, digit = 1, 2

// letters are the bytes that words consist of.
var letters = func() (is [256]uint8) {
	for c := range is {
		switch {
		case c >= '0' && c <= '9':
			is[c] = digit
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= 0x80, c == '_':
			is[c] = letter
		}
	}
	return is
}()

// reasoning are the marks around reasoning, as templates write it: of most, of Mistral, and of gpt-oss.
var reasoning = [][2]string{{"<think>", "</think>"}, {"[THINK]", "[/THINK]"}, {"<|channel|>analysis<|message|>", "<|end|>"}}

// withoutReasoning returns a text without the reasoning in it.
func withoutReasoning(text string) string {
	for _, mark := range reasoning {
		var kept strings.Builder
		for {
			before, rest, begins := strings.Cut(text, mark[0])
			_, after, ends := strings.Cut(rest, mark[1])
			if !begins || !ends {
				break
			}
			kept.WriteString(before)
			text = after
		}
		if kept.Len() > 0 {
			text = kept.String() + text
		}
	}
	return text
}
