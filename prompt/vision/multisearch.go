package vision

import "unsafe"

// multiSearch finds many terms (texts, or rows of token ids) in one pass, because there are as many numbered placeholders as a
// request has images. Each position of the text costs at most the length of the longest term.
type multiSearch[E byte | uint32] struct {
	next  map[searchEdge[E]]uint32 // to the next node; the root is 0
	ends  map[uint32][]int         // node → the numbers of the terms that end there
	first [256]bool                // by the lowest byte of an element: whether a term may begin with it
}

type searchEdge[E byte | uint32] struct {
	node uint32
	on   E
}

// newMultiSearch numbers the terms from 0. An empty term never matches.
func newMultiSearch[E byte | uint32](list [][]E) *multiSearch[E] {
	n := &multiSearch[E]{next: map[searchEdge[E]]uint32{}, ends: map[uint32][]int{}}
	for number, term := range list {
		if len(term) == 0 {
			continue
		}
		n.first[byte(term[0])] = true
		node := uint32(0)
		for _, e := range term {
			edge := searchEdge[E]{node, e}
			if n.next[edge] == 0 {
				n.next[edge] = uint32(len(n.next) + 1)
			}
			node = n.next[edge]
		}
		n.ends[node] = append(n.ends[node], number)
	}
	return n
}

// at calls found with the number and the end of each term that matches at text[i]. If first excludes text[i], there is none.
func (n *multiSearch[E]) at(text []E, i int, found func(number, end int)) {
	node := uint32(0)
	for ; i < len(text); i++ {
		node = n.next[searchEdge[E]{node, text[i]}]
		if node == 0 {
			return
		}
		for _, number := range n.ends[node] {
			found(number, i+1)
		}
	}
}

// CountEach counts the occurrences of each placeholder in a text independently of the others, in one pass for any number of them.
func CountEach(text string, placeholders []string) map[string]int {
	counts := make(map[string]int, len(placeholders))
	var list [][]byte
	for _, p := range placeholders {
		if _, ok := counts[p]; !ok {
			counts[p], list = 0, append(list, []byte(p))
		}
	}
	n, until, b := newMultiSearch(list), make([]int, len(list)), bytesOf(text)
	for i, c := range b {
		if !n.first[c] {
			continue
		}
		n.at(b, i, func(number, end int) {
			if i >= until[number] { // it does not overlap the previous one
				counts[string(list[number])]++
				until[number] = end
			}
		})
	}
	return counts
}

// bytesOf returns the bytes of a text without copying them.
func bytesOf(text string) []byte { return unsafe.Slice(unsafe.StringData(text), len(text)) }
