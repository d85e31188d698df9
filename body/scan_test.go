package body

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

func scan(t testing.TB, body [][]byte) *Skeleton {
	t.Helper()
	s := new(Skeleton)
	if err := s.Scan(body); err != nil {
		t.Fatal(err)
	}
	return s
}

// cut splits a body into random pieces, empty ones included.
func cut(r *rand.Rand, body []byte) (pieces [][]byte) {
	for len(body) > 0 {
		n := min(r.Intn(700), len(body))
		if r.Intn(3) == 0 {
			n = min(r.Intn(4), len(body))
		}
		pieces = append(pieces, body[:n])
		body = body[n:]
	}
	return pieces
}

// TestScanAnyPieces: however a body is split into pieces, every string decodes as in encoding/json, and its position in the body is
// right.
func TestScanAnyPieces(t *testing.T) {
	long := strings.Repeat("A", 5000)
	texts := []string{"", "short", `quo"te`, `back\slash\\`, long, long + `"\` + long, strings.Repeat(`\`, 3001), strings.Repeat("é\n\t", 900),
		strings.Repeat(`"`, 2222), "data:image/png;base64," + long, strings.Repeat("\U0001F600", 700)}
	var obj []string
	for i, s := range texts {
		j, _ := json.Marshal(s)
		obj = append(obj, fmt.Sprintf(`"k%d": %s`, i, j))
	}
	body := []byte(`{"model":"m", ` + strings.Join(obj, ",\n") + `, "n":[1,{"x":null}]}`)
	r := rand.New(rand.NewSource(1))
	for range 300 {
		s := scan(t, cut(r, body))
		var req Request
		if err := Parse(s, &req); err != nil {
			t.Fatal(err)
		}
		for i, want := range texts {
			v := req.Fields[fmt.Sprintf("k%d", i)]
			got, ok := s.String(v)
			if !ok || got != want {
				t.Fatalf("text %d: %d bytes, ok %v, want %d bytes", i, len(got), ok, len(want))
			}
			from, to := s.BodyRange(v)
			var back string
			if err := json.Unmarshal(body[from:to], &back); err != nil || back != want {
				t.Fatalf("text %d: body[%d:%d] is another value, want no error, back == want", i, from, to)
			}
			if full := s.Full(v); full != string(body[from:to]) {
				t.Fatalf("text %d: Full differs", i)
			}
			if raw := bytes.Join(s.Raw(v), nil); string(raw) != string(body[from+1:to-1]) {
				t.Fatalf("text %d: Raw differs", i)
			}
		}
		if full := s.Full(gjson.Parse(s.JSON())); full != string(body) {
			t.Fatal("Full of the root differs from the body")
		}
	}
}

func TestLongLiteralsAreNotCopied(t *testing.T) {
	url := "data:image/png;base64," + strings.Repeat("QUJD", 100000)
	body := []byte(`{"messages":[{"content":[{"image_url":{"url":"` + url + `"}}]}]}`)
	s := scan(t, [][]byte{body})
	if len(s.JSON()) > 100 {
		t.Errorf("skeleton has %d bytes, want at most 100", len(s.JSON()))
	}
	v := gjson.Get(s.JSON(), "messages.0.content.0.image_url.url")
	pieces := s.Raw(v)
	if len(pieces) != 1 || &pieces[0][0] != &body[bytes.Index(body, []byte("data:"))] {
		t.Error("the literal is not a view of the body")
	}
	s2 := new(Skeleton)
	n := testing.AllocsPerRun(10, func() { _ = s2.Scan([][]byte{body}) })
	if n > 1 {
		t.Errorf("%v allocations a scan, want at most 1", n)
	}
}

func TestBadBodies(t *testing.T) {
	deep := strings.Repeat("[", 10000) + strings.Repeat("]", 10000)
	for _, c := range []struct {
		name, body string
		want       error
	}{
		{"empty", "", ErrJSON},
		{"cut", `{"model":"x`, ErrJSON},
		{"trailing", `{} {}`, ErrJSON},
		{"deep", deep, ErrDepth},
		{"deep, cut", strings.Repeat(`{"a":`, 10000), ErrDepth},
		{"not UTF-8", "{\"a\":\"\xff\"}", ErrJSON},
		{"control character", "{\"a\":\"\n\"}", ErrJSON},
		{"list", `[1]`, ErrObject},
		{"messages no list", `{"messages":3}`, ErrMessages},
		{"message no object", `{"messages":[3]}`, ErrMessages},
		{"many parts", `{"messages":[{"role":"user","content":[` + strings.Repeat(`{},`, 9999) + `{}]}]}`, ErrTooMany},
		{"many messages", `{"messages":[` + strings.Repeat(`{},`, 9999) + `{}]}`, ErrTooMany},
	} {
		s := new(Skeleton)
		err := s.Scan([][]byte{[]byte(c.body)})
		if err == nil {
			err = Parse(s, new(Request))
		}
		if err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

func TestBadLongText(t *testing.T) {
	pad := strings.Repeat("x", 2000)
	for name, text := range map[string]string{
		"control": pad + "\n", "UTF-8": pad + "\xff", "escape": pad + `\q`, "surrogate": pad + `\ud800`, "low surrogate": pad + `\udc00 `,
	} {
		s := scan(t, [][]byte{[]byte(`{"a":"` + text + `"}`)})
		if _, ok := s.String(gjson.Get(s.JSON(), "a")); ok {
			t.Errorf("%s: taken as text", name)
		}
	}
}

// TestLastKeyCounts: the last of two equal keys counts, as in Python's json: a check that reads the first could be fooled.
func TestLastKeyCounts(t *testing.T) {
	s := scan(t,
		[][]byte{[]byte(`{"model":"a","messages":[{"role":"x","content":"1","role":"user","content":[{"type":"text","type":"image_url","uuid":1,"uuid":2}]}],"mod\u0065l":"b"}`)})
	var req Request
	if err := Parse(s, &req); err != nil {
		t.Fatal(err)
	}
	m := req.Messages[0]
	if req.Model != "b" || m.Role != "user" || m.Kind != List || m.Parts[0].Type != "image_url" || m.Parts[0].Fields["uuid"].Int() != 2 {
		t.Errorf("%+v", req)
	}
}

func FuzzScan(f *testing.F) {
	f.Add([]byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]}`), 3)
	f.Add([]byte(`{"a":"`+strings.Repeat("A", 2000)+`\\\""}`), 7)
	f.Fuzz(func(t *testing.T, body []byte, step int) {
		step = max(1, step&0xffff)
		var pieces [][]byte
		for rest := body; len(rest) > 0; rest = rest[min(step, len(rest)):] {
			pieces = append(pieces, rest[:min(step, len(rest))])
		}
		s := new(Skeleton)
		if s.Scan(pieces) != nil {
			return
		}
		if full := s.Full(gjson.Parse(s.JSON())); gjson.Valid(full) && !json.Valid([]byte(full)) {
			t.Fatal("accepted what is no JSON")
		}
		_ = Parse(s, new(Request))
	})
}

func BenchmarkScan3700KB(b *testing.B) {
	url := "data:image/png;base64," + strings.Repeat("QUJD", 925000)
	body := []byte(`{"model":"m","messages":[{"role":"system","content":"` + strings.Repeat("word ", 4000) +
		`"},{"role":"user","content":[{"type":"image_url","image_url":{"url":"` + url + `"}}]}]}`)
	var pieces [][]byte
	for rest := body; len(rest) > 0; rest = rest[min(16384, len(rest)):] {
		pieces = append(pieces, rest[:min(16384, len(rest))])
	}
	s := new(Skeleton)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Scan(pieces); err != nil {
			b.Fatal(err)
		}
	}
}

// TestForeignValue: a value that is not from the body is read as it is.
func TestForeignValue(t *testing.T) {
	s := scan(t, [][]byte{[]byte(`{"a":"b"}`)})
	if raw := s.Raw(gjson.Parse(`"not of the body"`)); string(raw[0]) != "not of the body" {
		t.Errorf("a foreign value: %q; got %q, want %q", raw, string(raw[0]), "not of the body")
	}
}

func TestBatch(t *testing.T) {
	s := scan(t, [][]byte{[]byte(`{"messages":[[{"role":"a"},{"role":"b"}],[{"role":"c"}]]}`)})
	var req Request
	if err := Parse(s, &req); err != nil {
		t.Fatal(err)
	}
	if len(req.Batch) != 2 || len(req.Batch[0]) != 2 || req.Batch[1][0].Role != "c" || len(req.Messages) != 3 {
		t.Errorf(`got %+v, want len(req.Batch) == 2, len(req.Batch[0]) == 2, req.Batch[1][0].Role == "c", len(req.Messages) == 3`, req)
	}
	s = scan(t, [][]byte{[]byte(`{"messages":[[{"role":"a"}],3]}`)})
	if err := Parse(s, &req); err != ErrMessages {
		t.Errorf("a conversation that is not a list: got %v, want %v", err, ErrMessages)
	}
}

func TestHasControl(t *testing.T) {
	for c := range 256 {
		for at := range 20 {
			b := bytes.Repeat([]byte{0xC3, 0x7F, ' '}, 7)
			b[at] = byte(c)
			if hasControl(b) != (c < ' ') {
				t.Fatalf("byte %#x at %d", c, at)
			}
		}
	}
}
