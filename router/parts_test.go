package router

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/router/changes"
)

// TestPartsOfEscapedTexts: a part is as long as its text, whatever escapes the client writes, also where the template cuts white space.
func TestPartsOfEscapedTexts(t *testing.T) {
	long := strings.Repeat("some words of a text, ", 9)
	for _, text := range []string{long, long + "\n\"quoted\"\n" + long, long + `\u0041\\` + long, "  \n" + long + "é 😀\t\\", "é\n" + long,
		long + "\n\n ", long + "tail\\", "short", "\n\"", strings.Repeat("\\n", 40) + long, long + "\x00\x01" + long} {
		for _, ascii := range []bool{false, true} {
			quoted, err := json.Marshal(text)
			if err != nil {
				t.Fatal(err)
			}
			if ascii {
				quoted = []byte(strings.NewReplacer("é", `\u00e9`, "😀", `\ud83d\ude00`, "some", `s\u006fme`).Replace(string(quoted)))
			}
			r := &reading{}
			if err := body.Read([][]byte{[]byte(chatBody("m", string(quoted)))}, &r.body, &r.req); err != nil {
				t.Fatal(err)
			}
			head := strings.TrimSpace(text)
			for _, rendered := range []string{"<user>" + text + "<end>" + long + long, "<user>" + head + "<end>" + long + long} {
				list := r.partsOf(rendered)
				at := strings.Index(rendered, head)
				want := changes.Part{Kind: changes.Message, Number: 1, Role: "user", At: at, Len: len(strings.TrimLeft(text, " \t\r\n"))}
				if len(list) != 1 || list[0] != want {
					t.Errorf("%q in %q: got %+v, want %+v", quoted, rendered, list, want)
				}
			}
		}
	}
}

// TestPartsOfTornTexts: a part is as long as its text, wherever the body's pieces end.
func TestPartsOfTornTexts(t *testing.T) {
	text := "é\n" + strings.Repeat("some words of a text, ", 900) + "the end in n"
	whole := chatBody("m", strings.ReplaceAll(fmt.Sprintf("%q", text), "é", `\u00e9`))
	rendered := "<user>" + text + "<end>" + text
	for from := strings.Index(whole, " in n"); from < strings.Index(whole, " in n")+8; from++ {
		r := &reading{}
		if err := body.Read([][]byte{[]byte(whole[:from]), []byte(whole[from:])}, &r.body, &r.req); err != nil {
			t.Fatal(err)
		}
		if list := r.partsOf(rendered); len(list) != 1 || list[0].Len != len(text) {
			t.Errorf("in pieces …%q: got %+v, want one of %d bytes", whole[from:], list, len(text))
		}
	}
}
