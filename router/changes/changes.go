// Package changes finds where a prompt departs from an earlier one that goes on like it, such as behind another time of day:
//
//	Input ─ tokens as an engine reads it or, where no rule does, its words (words.go)
//	       ─ chunks, by their content (chunks.go) ─▶ runs of tokens that were seen behind another beginning
//	       ─ parts and the first token that differs (locate.go) ─▶ an account.Change: where, and what
//
// It keeps no text: fingerprints under the deployment's secret and, of each token, 8 bits. What is of another class of workers, adapter,
// salt or tenant has other fingerprints, but for whole beginnings of prompts: they tell what another salt's or tenant's prompt had.
package changes

import (
	"slices"
	"sync"

	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/router/account"
)

// Input is a prompt as a decision knew it.
type Input struct {
	Key    *block.Key
	Class  uint64 // of the workers that read it so
	Space  uint64 // of the prompts that it is compared with: their class, adapter, salt and tenant
	Client fair.Client
	IDs    []uint32
	Media  []Span   // by offset
	Text   string   // that became IDs, without media's tokens; "": the client sent ids
	Parts  []Part   // of Text, by At
	Chain  []uint64 // hashes of its blocks of Size tokens
	Size   int
	Decode func(ids []uint32) string

	offsets []int32 // where its words begin in Text; nil: IDs are tokens
}

// Span is an image or another medium: Length tokens from Offset on.
type Span struct {
	Offset, Length int
	Key            uint64
	Form           Form
}

// Run is a run of tokens that an earlier prompt had.
type Run struct {
	From, To int
	Had      Had

	seen int // the first token that was seen: those before it are between two runs
}

// Had says how an earlier prompt had tokens.
type Had uint8

const (
	Behind Had = iota // behind another beginning
	Same              // behind the same beginning
	Salted            // at the same place of the same prompt, under another salt or adapter, or for another tenant
)

const (
	longest  = 1 << 17 // tokens of a prompt that are compared and remembered
	lead     = 256     // tokens before the ones to compare, in which chunks come to begin as in earlier prompts
	leastRun = 64      // tokens that have to be seen: two prompts may share less by chance, or by their template
	mostRuns = 64      // of a prompt: what is behind them counts as new, as accounts are kept
	mostGap  = 128     // tokens between those that are seen which count as they do: chunks have up to so many
)

// Room for entries in a Memory: 32 MiB in all.
const (
	Chunks    = 280_000 // of 48 tokens on average
	stretches = 210_000 // of 32 tokens
	nodes     = 80_000
	begins    = 40_000 // of 256 tokens
	images    = 12_000
)

// Memory remembers prompts. Safe for concurrent use.
type Memory struct {
	mu        sync.Mutex
	key       uint64 // its ID: with another one nothing is found any more
	chunks    *fair.Memory[seen, *seen]
	stretches *fair.Memory[stretch, *stretch]
	nodes     *fair.Memory[node, *node]
	begins    *fair.Memory[seen, *seen] // beginnings of prompts, whatever their salt
	images    *fair.Memory[image, *image]
}

// seen is a chunk's content.
type seen struct {
	before uint32 // hash of what it stood behind last; of a beginning its space
	fair.Kept
}

// NewMemory returns an empty memory.
func NewMemory() *Memory {
	return &Memory{chunks: fair.NewMemory[seen](Chunks), stretches: fair.NewMemory[stretch](stretches), nodes: fair.NewMemory[node](nodes),
		begins: fair.NewMemory[seen](begins), images: fair.NewMemory[image](images)}
}

// Compare returns which of a prompt's tokens from one to another, of which no worker knows, earlier prompts had, and where the prompt
// departs from them; nil: none had any behind another beginning. Then it remembers the prompt from there on, or all of it. The cost is
// linear in the tokens and bytes.
func (m *Memory) Compare(p *Input, from, to int, all bool) (runs []Run, change *account.Change) {
	p.IDs = p.IDs[:min(len(p.IDs), from+longest)]
	to = min(to, len(p.IDs))
	if from >= to && !all {
		return nil, nil
	}
	begin := from
	if all {
		begin = 0
	}
	list := p.chunks(begin)
	segments := p.segments()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.key != p.Key.ID {
		m.chunks.Clear()
		m.stretches.Clear()
		m.nodes.Clear()
		m.begins.Clear()
		m.images.Clear()
		m.key = p.Key.ID
	}
	for i := range list {
		if one := m.chunks.Find(list[i].hash); one != nil {
			list[i].known, list[i].same = true, one.before == list[i].before
		}
	}
	at := -1
	runs = findRuns(list, from, to)
	if first := slices.IndexFunc(runs, func(r Run) bool { return r.Had == Behind }); first >= 0 {
		change, at = m.locate(p, segments, from, runs[first].seen)
	}
	for _, c := range list {
		if one := m.chunks.Find(c.hash); one != nil {
			one.before = c.before
			one.Use()
		} else {
			m.chunks.Put(p.Client, c.hash, seen{before: c.before})
		}
	}
	m.chunks.Fit()
	m.outside(nil)
	if end := m.salted(p); end > from {
		runs = append([]Run{{From: from, To: min(end, to), Had: Salted}}, runs...)
	}
	m.outside(nil)
	m.rememberGroups(p, begin)
	m.outside(nil)
	m.rememberImages(p, begin)
	m.rememberNodes(p, segments)
	if at >= 0 {
		if one := m.nodes.Find(segments[at].hash); one != nil && one.token < 0 {
			one.token, one.kind = int32(change.Token), uint8(slices.Index(kinds[:], change.Kind))
		}
	}
	if change != nil && p.offsets != nil { // it is a word's number
		change.Token = -1
	}
	return runs, change
}

// outside lets others have the lock while it does something that may take long and needs no memory, or nothing. What was found before may
// be gone after it. A prompt as long as is compared so holds the lock for some 2 ms at once.
func (m *Memory) outside(do func()) {
	m.mu.Unlock()
	defer m.mu.Lock()
	if do != nil {
		do()
	}
}
