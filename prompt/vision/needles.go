package vision

import "unsafe"

// needles are texts, or rows of token ids, that are looked for in one pass: numbered placeholders are as many as a request has
// pictures. A place of the text costs at most the length of the longest needle.
type needles[E byte | uint32] struct {
	next  map[needleEdge[E]]uint32 // to the next node; the root is 0
	ends  map[uint32][]int         // node to the numbers of the needles that end there
	first [256]bool                // by the lowest byte of an element: a needle may begin with it
}

type needleEdge[E byte | uint32] struct {
	node uint32
	on   E
}

// newNeedles numbers the needles from 0; an empty one is nowhere.
func newNeedles[E byte | uint32](list [][]E) *needles[E] {
	n := &needles[E]{next: map[needleEdge[E]]uint32{}, ends: map[uint32][]int{}}
	for number, needle := range list {
		if len(needle) == 0 {
			continue
		}
		n.first[byte(needle[0])] = true
		node := uint32(0)
		for _, e := range needle {
			edge := needleEdge[E]{node, e}
			if n.next[edge] == 0 {
				n.next[edge] = uint32(len(n.next) + 1)
			}
			node = n.next[edge]
		}
		n.ends[node] = append(n.ends[node], number)
	}
	return n
}

// at calls found for each needle that stands at text[i], with its end. Where first says no there is none.
func (n *needles[E]) at(text []E, i int, found func(number, end int)) {
	node := uint32(0)
	for ; i < len(text); i++ {
		if node = n.next[needleEdge[E]{node, text[i]}]; node == 0 {
			return
		}
		for _, number := range n.ends[node] {
			found(number, i+1)
		}
	}
}

// CountEach counts the occurrences of each placeholder in a text, each for itself, in one pass however many they are.
func CountEach(text string, placeholders []string) map[string]int {
	counts := make(map[string]int, len(placeholders))
	var list [][]byte
	for _, p := range placeholders {
		if _, ok := counts[p]; !ok {
			counts[p], list = 0, append(list, []byte(p))
		}
	}
	n, until, b := newNeedles(list), make([]int, len(list)), bytesOf(text)
	for i, c := range b {
		if !n.first[c] {
			continue
		}
		n.at(b, i, func(number, end int) {
			if i >= until[number] { // not in the one before
				counts[string(list[number])]++
				until[number] = end
			}
		})
	}
	return counts
}

// bytesOf views a text.
func bytesOf(text string) []byte { return unsafe.Slice(unsafe.StringData(text), len(text)) }
