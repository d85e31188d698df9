package tokenizer

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

// scripts is the UnicodeScripts pre-tokenizer: a word ends where the script changes. Hiragana and Katakana count as Han;
// a space and what the reference's table leaves out belong to any script, and at the start of a word they are dropped.
type scripts struct{}

const anyScript = 0

var scriptTable = sync.OnceValue(func() *runeTable[uint8] {
	numbers := map[string]uint8{"Hiragana": 1, "Katakana": 1, "Han": 1}
	byRune := make([]uint8, maxRune+1)
	for name, table := range unicode.Scripts {
		n, ok := numbers[name]
		if !ok {
			n = uint8(len(numbers) + 2)
			numbers[name] = n
		}
		for _, r := range tableSet(table).ranges {
			for c := r.lo; c <= r.hi; c++ {
				byRune[c] = n
			}
		}
	}
	byRune[0x30FC] = 1
	cl := classes()
	return newRuneTable(func(r rune) uint8 {
		if r == ' ' || cl.at(r)&clOldNoScript != 0 {
			return anyScript
		}
		return byRune[r]
	})
})

func (scripts) cut(_ *scratch, in, out *words) {
	out.b = in.b
	table := scriptTable()
	for _, w := range in.list {
		start, last := -1, uint8(anyScript)
		for i := int(w.start); i < int(w.end); {
			r, n := utf8.DecodeRune(in.b[i:])
			if sc := table.at(r); sc != anyScript {
				if sc != last {
					if start >= 0 {
						out.add(start, i, w.first && start == int(w.start))
					}
					start = i
				}
				last = sc
			}
			i += n
		}
		if start >= 0 {
			out.add(start, int(w.end), w.first && start == int(w.start))
		}
	}
}
