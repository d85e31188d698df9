package tokenizer

import (
	"math/rand/v2"
	"sort"
	"testing"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Marks are put in order by the classes that they were given when they were written.
func TestSortMarks(t *testing.T) {
	table := markClasses()
	var marks []rune
	for r := rune(0); r <= maxRune; r++ {
		if c := table.at(r); c != 0 && c != decomposes {
			marks = append(marks, r)
		}
	}
	for _, full := range []norm.Form{norm.NFD, norm.NFKD} {
		for r := rune(0xC0); r <= maxRune; r++ {
			if classes().at(r)&clOldNorm == 0 || 0xD800 <= r && r < 0xE000 {
				continue
			}
			for _, c := range string(full.PropertiesString(string(r)).Decomposition()) {
				class := table.at(c)
				if class == decomposes {
					class = full.PropertiesString(string(c)).CCC()
				}
				if want := full.PropertiesString(string(c)).CCC(); class != want {
					t.Errorf("%U in %U: class %d, want %d", c, r, class, want)
				}
			}
		}
	}
	r := rand.New(rand.NewPCG(5, 6))
	var scratch []byte
	for range 500 {
		run := make([]rune, r.IntN(100))
		for i := range run {
			run[i] = marks[r.IntN(len(marks))]
		}
		got := []byte(string(run))
		scratch = sortMarks(got, scratch, norm.NFD)
		sort.SliceStable(run, func(i, j int) bool { return table.at(run[i]) < table.at(run[j]) })
		if string(got) != string(run) || !utf8.Valid(got) {
			t.Fatalf("%U, want %U", []rune(string(got)), run)
		}
	}
}
