package demo

import (
	"bytes"
	"encoding/xml"
	"flag"
	"fmt"
	"html"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/envoy"
)

var update = flag.Bool("update", false, "run the demonstration of bin/sightline, and write docs/demo.svg")

const picture = "../../docs/demo.svg"

// TestPicture: README's picture of the demonstration has the words that it prints now: the table's head, and each request that it shows.
func TestPicture(t *testing.T) {
	if *update {
		draw(t)
	}
	text, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Text []struct {
			Y    string `xml:"y,attr"`
			Said string `xml:",chardata"`
		} `xml:"text"`
	}
	if err := xml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for i, one := range file.Text {
		if i > 0 && one.Y == file.Text[i-1].Y {
			lines[len(lines)-1] += one.Said
		} else {
			lines = append(lines, one.Said)
		}
	}
	var head bytes.Buffer
	paint(false).head(&head)
	load, shown := mixed(make([][]byte, 9), "http://images"), 0
	for _, line := range lines {
		var n int
		if strings.HasPrefix(line, "  #") && line+"\n" != head.String() {
			t.Errorf("got the head %q, want %q", line, head.String())
		}
		if _, err := fmt.Sscan(line, &n); err != nil || n < 1 || n > len(load) {
			continue
		}
		shown++
		if got, want := line[5:34], fmt.Sprintf("%-29s", load[n-1].what); got != want {
			t.Errorf("request %d: got %q, want %q (make page UPDATE=1 draws it again)", n, got, want)
		}
	}
	if last := lines[len(lines)-1]; shown < 15 || last != repeated {
		t.Errorf("got %d requests and at last %q, want 15 or more and %q", shown, last, repeated)
	}
}

var escapes = regexp.MustCompile("\x1b\\[([0-9]*)m")

// draw runs the demonstration and draws what a terminal shows, but for the middle of the requests.
func draw(t *testing.T) {
	t.Helper()
	bin, err := envoy.Binary(t.Context(), "", t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Run(t.Context(), Options{Sightline: "../../bin/sightline", Envoy: bin, ModelDir: "../../examples/models/qwen2.5-vl", Color: true,
		Out: &out}); err != nil {
		t.Fatal(err)
	}
	lines := []string{"$ make demo"}
	for line := range strings.Lines(out.String()) {
		line = strings.TrimRight(line[strings.LastIndex(line, "\r")+1:], "\n")
		line = strings.TrimPrefix(strings.ReplaceAll(line, bin, "a real Envoy"), "\x1b[K")
		var n int
		_, err := fmt.Sscan(line, &n)
		if err == nil && (n > 18 && n < 26 || n > 31) {
			if last := lines[len(lines)-1]; last != "  …" {
				lines = append(lines, "  …")
			}
			continue
		}
		lines = append(lines, line)
	}
	const wide, high, left = 8, 17, 16
	var b strings.Builder
	width, height := 888, high*(len(lines)+1)+7
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img" aria-label="make demo, as a terminal shows it">
<rect width="%d" height="%d" rx="8" fill="#11151c"/>
<style>text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#d5dae3;white-space:pre}`+
		`.b{font-weight:700;fill:#fff}.g{fill:#5bd18a}.r{fill:#ff7b72}</style>
`, width, height, width, height, width, height)
	for i, line := range lines {
		x, class, at := left, "", 0
		put := func(text string) {
			if n := len([]rune(text)); n > 0 {
				fmt.Fprintf(&b, `<text x="%d" y="%d" textLength="%d" xml:space="preserve"%s>%s</text>`+"\n", x, 12+high*(i+1), wide*n, class,
					html.EscapeString(text))
				x += wide * n
			}
		}
		for _, m := range escapes.FindAllStringSubmatchIndex(line, -1) {
			put(line[at:m[0]])
			class = map[string]string{"1": ` class="b"`, "32": ` class="g"`, "31": ` class="r"`}[line[m[2]:m[3]]]
			at = m[1]
		}
		put(line[at:])
	}
	b.WriteString("</svg>\n")
	if err := os.WriteFile(picture, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
