package admin

import (
	"bytes"
	"encoding/binary"
	"flag"
	"hash/crc32"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the page's words into docs/page.png, after it was drawn")

const picture = "../../docs/page.png"

// TestPicture: the picture of the page in README was drawn from the page of now: it holds the words that the page had then.
func TestPicture(t *testing.T) {
	file, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	want := words(t)
	if *update {
		file = withWords(file, want)
		if err := os.WriteFile(picture, file, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got := ""
	for _, c := range chunks(file) {
		if text, is := bytes.CutPrefix(c.data, wordsOf); is && c.kind == "iTXt" {
			got = string(text)
		}
	}
	if got != want {
		t.Errorf("docs/page.png was drawn when the page said other words (make page UPDATE=1 draws it again): got\n%s\nwant\n%s", got, want)
	}
}

var (
	actions = regexp.MustCompile(`\{\{[^}]*\}\}`)
	tags    = regexp.MustCompile(`<[^>]*>`)
)

// words returns those of the page's parts that the picture shows, without what is filled in.
func words(t *testing.T) string {
	t.Helper()
	text, err := files.ReadFile("page.html")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, part := range [][2]string{{"page", "forecast"}, {"rows", "fleet"}, {"decisions", "checks"}} {
		_, after, begins := strings.Cut(string(text), `{{define "`+part[0]+`"}}`)
		within, _, ends := strings.Cut(after, `{{define "`+part[1]+`"}}`)
		if !begins || !ends {
			t.Fatalf("page.html: got no part from %s to %s, want one", part[0], part[1])
		}
		all.WriteString(tags.ReplaceAllString(actions.ReplaceAllString(within, " "), " ") + " ")
	}
	for _, p := range plots(nil, 1, nil, time.Now()) {
		all.WriteString(p.Title + " ")
	}
	return strings.Join(strings.Fields(all.String()), " ")
}

// wordsOf begins the chunk of a PNG file that holds them: its keyword, uncompressed, in no language.
var wordsOf = []byte("Words\x00\x00\x00\x00\x00")

type chunk struct {
	kind string
	data []byte
}

const pngHead = "\x89PNG\r\n\x1a\n"

// chunks returns those of a PNG file.
func chunks(file []byte) (list []chunk) {
	for at := len(pngHead); at+12 <= len(file); {
		n := int(binary.BigEndian.Uint32(file[at:]))
		if n > len(file)-at-12 {
			break
		}
		list = append(list, chunk{string(file[at+4 : at+8]), file[at+8 : at+8+n]})
		at += 12 + n
	}
	return list
}

// withWords returns the file with a chunk of words in place of the one that it has.
func withWords(file []byte, words string) []byte {
	out := bytes.NewBufferString(pngHead)
	put := func(c chunk) {
		body := append([]byte(c.kind), c.data...)
		_ = binary.Write(out, binary.BigEndian, uint32(len(c.data)))
		out.Write(body)
		_ = binary.Write(out, binary.BigEndian, crc32.ChecksumIEEE(body))
	}
	for _, c := range chunks(file) {
		if c.kind == "IEND" {
			put(chunk{"iTXt", append(bytes.Clone(wordsOf), words...)})
		}
		if c.kind != "iTXt" {
			put(c)
		}
	}
	return out.Bytes()
}
