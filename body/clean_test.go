package body

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/sightline-router/sightline/internal/denied"
	"github.com/sightline-router/sightline/lab/smuggle"
)

// places are the marks where a pair can be inserted into a body: ‹x at the front of an object, x› at its end.
var places = map[string]denied.Scope{"B": denied.InBody, "A": denied.InArgs, "P": denied.InPart,
	"M": denied.InMedia, "N": denied.InExtra}

var longURL = "data:image/png;base64," + strings.Repeat("QUJD", 700)

// shapes are request bodies of the engines' APIs.
var shapes = map[string]string{
	"chat": `{‹B"model":"m","vllm_xargs":{‹A"top":1A›},"nvext":{‹N"greed_sampling":trueN›},"lora_request":{‹N"lora_name":"a"N›},"messages":[{"role":"system","content":"be kind"},{"role":"user","content":` +
		`[{‹P"type":"image_url","image_url":{‹M"url":"` + longURL + `"M›}P›},{"type":"text","text":"what?"}]}]B›}`,
	"one part": `{"model":"m","messages":[{"role":"user","content":{‹P"type":"image_url","image_url":{‹M"url":"` + longURL + `"M›}P›}}]}`,
	"tools": `{"model":"m","tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"uuid":{"type":"string"},"kv_transfer_params":{}}}}}],` +
		`"messages":[{"role":"assistant","content":null,"uuid":"of the client","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":{"uuid":"x","mm_hashes":1}}}]},` +
		`{"role":"tool","content":[{‹P"type":"image_url","image_url":{‹M"url":"` + longURL + `"M›}P›}]}]B›}`,
	"reasoning": `{"model":"m","messages":[{"role":"assistant","content":"x","reasoning":{‹P"type":"prompt_embeds","image_url":{‹M"url":"` +
		longURL + `"M›}P›}},` +
		`{"role":"user","content":"x","reasoning_content":{‹P"type":"prompt_embeds","image_url":"` + longURL +
		`"P›}},{"role":"assistant","reasoning":"uuid"}]}`,
	"completions": `{‹B"model":"m","prompt":["` + strings.Repeat("long ", 400) +
		`",[1,2,3]],"nvext":{‹N"a":1N›},"extra_args":{‹A"top":1A›}B›}`,
	"responses": `{‹B"model":"m","input":[{"type":"message","role":"user","content":[{‹P"type":"input_image","detail":"auto","image_url":"` +
		longURL + `"P›}]},` +
		`{"type":"function_call_output","call_id":"1","output":[{‹P"type":"input_image","detail":"auto","image_url":"` + longURL + `"P›}]}]B›}`,
	"messages": `{‹B"model":"m","max_tokens":1,"system":[{‹P"type":"text","text":"be kind"P›}],"messages":[{"role":"user","content":[{‹P"type":"image","source":` +
		`{‹M"type":"base64","media_type":"image/png","data":"` + longURL[22:] +
		`"M›}P›},{"type":"tool_result","tool_use_id":"1","content":[{‹P"type":"image","source":{‹M"type":"url","url":"http://x/y"M›}P›}]}]}]B›}`,
	"batch": `{‹B"model":"m","messages":[[{"role":"user","content":[{‹P"type":"image_url","image_url":{‹M"url":"` + longURL + `"M›}P›}]}],` +
		`[{"role":"user","content":[{‹P"image_url":"` + longURL + `"P›},"text"]}]]B›}`,
}

// fill inserts pair at the marks of a place, and removes the other marks.
func fill(shape, place, pair string) string {
	for p := range places {
		front, back := "", ""
		if strings.TrimSuffix(place, "›") == p && strings.HasSuffix(place, "›") && pair != "" {
			back = "," + pair
		} else if strings.TrimPrefix(place, "‹") == p && strings.HasPrefix(place, "‹") && pair != "" {
			front = pair + ","
		}
		shape = strings.ReplaceAll(strings.ReplaceAll(shape, "‹"+p, front), p+"›", back)
	}
	return shape
}

func clean(t testing.TB, text string) (string, error) {
	t.Helper()
	var s Skeleton
	half := len(text) / 2
	if err := s.Scan([][]byte{[]byte(text[:half]), []byte(text[half:])}); err != nil {
		t.Fatal(err)
	}
	list, err := Clean(nil, &s, nil, nil, false, nil)
	return apply(t, text, list), err
}

func apply(t testing.TB, text string, list []Edit) string {
	t.Helper()
	var out strings.Builder
	at := 0
	for _, e := range list {
		if e.From < at || e.To < e.From || e.To > len(text) {
			t.Fatalf("edit [%d, %d) after %d in %d bytes, want at least %d, at least %d, at most %d",
				e.From, e.To, at, len(text), at, e.From, len(text))
		}
		out.WriteString(text[at:e.From])
		out.Write(e.Text)
		at = e.To
	}
	return out.String() + text[at:]
}

// TestCleanSalt: the operator's salt replaces a client's, wherever in the body and however often it occurs.
func TestCleanSalt(t *testing.T) {
	salt, none := "abc", ""
	for _, c := range []struct{ body, with, without string }{
		{`{}`, `{"cache_salt":"abc"}`, `{}`},
		{` { "a": 1}`, ` {"cache_salt":"abc", "a": 1}`, ` { "a": 1}`},
		{`{"cache_salt": "x"}`, `{"cache_salt":"abc"}`, `{}`},
		{`{"cache_salt": "x", "a": {"cache_salt": 1}, "cache\u005fsalt": null}`, `{"cache_salt":"abc","a": {"cache_salt": 1}}`,
			`{"a": {"cache_salt": 1}}`},
		{`{"a": 1, "uuid": 2, "rid": "r", "cache_salt": ["x"]}`, `{"cache_salt":"abc","a": 1, "uuid": 2}`, `{"a": 1, "uuid": 2}`},
	} {
		for want, salt := range map[string]*string{c.with: &salt, c.without: &none} {
			var s Skeleton
			if err := s.Scan([][]byte{[]byte(c.body)}); err != nil {
				t.Fatal(err)
			}
			list, err := Clean(nil, &s, nil, salt, false, nil)
			if got := apply(t, c.body, list); err != nil || got != want {
				t.Errorf("%s with %q: %s, %v; want %s", c.body, *salt, got, err, want)
			}
		}
	}
	var refused *Refused
	if _, err := Clean([][]byte{[]byte(`{"x":[1]}`)}, new(Skeleton), ErrLarge, &salt, false, nil); !errors.As(err, &refused) || refused.Status != 413 {
		t.Errorf("a body that is not read: got %v, want errors.As(err, &refused), refused.Status == 413", err)
	}
}

// TestCleanHints: what clients say about caches is removed, or left to those who are trusted.
func TestCleanHints(t *testing.T) {
	const hint = `"kv_hints":{"actions":[]},"retention_scope":"s","agent_hint":1,"agent_context":{"kv_hints":{"evict_session":true}}`
	const bare = `{"nvext":{"agent_hints":{},"a":1},"retention_directives":[],"vllm_xargs":{"kv_hints":1},`
	large := `"x":[` + strings.Repeat("1,", 5<<20) + `1],`
	for _, c := range []struct {
		body, without, with string // with hints; "": refused
	}{
		{bare + hint + `}`, `{"nvext":{"a":1},"vllm_xargs":{},"agent_context":{}}`, bare + hint + `}`},
		{`{` + large + hint + `}`, "", `{` + large + hint + `}`},
	} {
		for hints, want := range map[bool]string{false: c.without, true: c.with} {
			var s Skeleton
			pieces := [][]byte{[]byte(c.body)}
			list, err := Clean(pieces, &s, s.Scan(pieces), nil, hints, nil)
			if (err != nil) != (want == "") || err == nil && apply(t, c.body, list) != want {
				t.Errorf("%.200s with hints %t: got %.200s, %v, want %.200s", c.body, hints, apply(t, c.body, list), err, want)
			}
		}
	}
}

// TestClean: each field of the table, in each shape and place, once and twice, first and last, plain and escaped: the result is the
// body without it, byte for byte.
func TestClean(t *testing.T) {
	fields := map[string]denied.Scope{}
	for _, f := range denied.Fields {
		if !f.Prefix {
			fields[f.Name] = f.In
		}
	}
	for _, k := range []string{"bootstrap_host", "bootstrap_port", "bootstrap_room", "bootstrap_pair_key"} {
		fields[k] = denied.InBody | denied.InArgs
	}
	for field, in := range fields {
		t.Run(field, func(t *testing.T) {
			ran := 0
			for name, shape := range shapes {
				want := fill(shape, "", "")
				if got, err := clean(t, want); err != nil || got != want {
					t.Fatalf("%s: a body without such fields is changed: %v, want no error, got == want", name, err)
				}
				for place, at := range places {
					if at&in == 0 || !strings.Contains(shape, "‹"+place) && !strings.Contains(shape, place+"›") {
						continue
					}
					var escaped strings.Builder
					for _, c := range field {
						fmt.Fprintf(&escaped, `\u%04X`, c)
					}
					for _, pair := range []string{
						`"` + field + `":"x"`, `"` + field + `":{"` + field + `":[1,{"a":"}\\\""}]}`, `"` + field + `":null`,
						`"` + escaped.String() + `":""`, `"` + field[:1] + fmt.Sprintf(`\u%04x`, field[1]) + field[2:] + `":1`,
						`"` + field + `":"first","` + field + `":"` + longURL + `"`,
					} {
						for _, end := range []string{"‹" + place, place + "›"} {
							body := fill(shape, end, pair)
							if body == want {
								continue
							}
							got, err := clean(t, body)
							if err != nil || got != want {
								t.Errorf("%s, %s at %s: %v\n%.300s", name, pair[:min(len(pair), 60)], end, err, got)
							}
							ran++
						}
					}
				}
			}
			if ran < 20 {
				t.Errorf("only %d bodies, want at least 20", ran)
			}
		})
	}
}

// TestCleanForms: neither white space around a pair nor the other members of the object matter.
func TestCleanForms(t *testing.T) {
	part := func(inside string) string {
		return `{"model":"m","messages":[{"role":"user","content":[` + inside + `]}]}`
	}
	const img = `"type":"image_url","image_url":{"url":"http://x/y"}`
	for _, c := range []struct{ name, body, want string }{
		{"spaces", "{ \"a\" : 1 ,\n \"kv_transfer_params\" : { } , \"b\" : 2 }", "{ \"a\" : 1 , \"b\" : 2 }"},
		{"first, spaces", "{ \"kv_transfer_params\" : { } , \"b\" : 2 }", "{ \"b\" : 2 }"},
		{"alone", `{"kv_transfer_params":1}`, `{}`},
		{"alone, spaces", `{ "kv_transfer_params" : 1 }`, `{  }`},
		{"nothing else", `{"bootstrap_host":1,"bootstrap_room":[2],"mm_hashes":"a"}`, `{}`},
		{"two, then one", `{"bootstrap_host":1,"mm_hashes":"a","x":1}`, `{"x":1}`},
		{"around one", `{"bootstrap_host":1,"x":1,"mm_hashes":"a"}`, `{"x":1}`},
		{"arguments emptied", `{"vllm_xargs":{"kv_cache_report_mode":"full"}}`, `{"vllm_xargs":{}}`},
		{"transfer in arguments", `{"vllm_xargs":{"kv_transfer_params":["x"],"n":1}}`, `{"vllm_xargs":{"n":1}}`},
		{"messages twice", `{"messages":[{"content":[{` + img + `,"uuid":"a"}]}],"messages":[{"content":[{` + img + `,"uuid":"b"}]}]}`,
			`{"messages":[{"content":[{` + img + `}]}],"messages":[{"content":[{` + img + `}]}]}`},
		{"content twice", `{"messages":[{"content":[{` + img + `,"uuid":"a"}],"content":[{"uuid":0,` + img + `}]}]}`,
			`{"messages":[{"content":[{` + img + `}],"content":[{` + img + `}]}]}`},
		{"no uuid of a medium", part(`{"type":"text","text":"x","uuid":"y"}`), part(`{"type":"text","text":"x"}`)},
		{"mode elsewhere", `{"kv_cache_report_mode":"full"}`, `{"kv_cache_report_mode":"full"}`},
		{"in metadata", `{"metadata":{"uuid":"x","mm_hashes":"y"},"messages":[]}`, `{"metadata":{"uuid":"x","mm_hashes":"y"},"messages":[]}`},
		{"in a schema", `{"response_format":{"json_schema":{"properties":{"uuid":{}}}}}`,
			`{"response_format":{"json_schema":{"properties":{"uuid":{}}}}}`},
		{"a text that names them", part(`{"type":"text","text":"\"uuid\":\"x\""}`), part(`{"type":"text","text":"\"uuid\":\"x\""}`)},
	} {
		got, err := clean(t, c.body)
		if err != nil || got != c.want {
			t.Errorf("%s: %v\ngot  %s\nwant %s", c.name, err, got, c.want)
		}
	}
	for _, text := range []string{`[{"uuid":"x"}]`, ` 12 `, `"{\"rid\":1}"`, `["cache_salt"]`, "null"} {
		var refused *Refused
		if _, err := clean(t, text); !errors.As(err, &refused) || refused.Status != 400 {
			t.Errorf("%s: got %v, want status 400, since it is no object", text, err)
		}
	}
}

// TestCleanRefuses: a name without an image would ask for somebody else's.
func TestCleanRefuses(t *testing.T) {
	wrap := func(p string) string { return `{"messages":[{"content":[` + p + `]}]}` }
	for _, c := range []struct {
		part string
		want bool
	}{
		{`{"type":"image_url","image_url":null,"uuid":"x"}`, true},
		{`{"uuid":"x","type":"image_url"}`, true},
		{`{"type":"image_url","image_url":null,"uu\u0069d":"x"}`, true},
		{`{"type":"image_url","image_url":null,"audio_url":{"url":"http://x"},"uuid":"x"}`, true}, // vLLM takes image_url
		{`{"type":"image_url","image_url":{"url":"a"},"image_url":null,"uuid":"x"}`, true},        // the last one counts
		{`{"type":"image_url","image_url":null,"uuid":null,"uuid":7}`, true},
		{`{"type":"image_url","image_url":null,"uuid":7,"uuid":null}`, true}, // the first might count for some reader
		{`{"type":"input_image","file_id":null,"uuid":"x"}`, true},
		{`{"type":"image_url","image_url":null,"uuid":null}`, false}, // the engine refuses it
		{`{"type":"image_url","image_url":null}`, false},
		{`{"type":"video_url","video_url":{"url":"http://x"},"uuid":"x"}`, false},
		{`{"type":"video_embeds","video_embeds":"x","uuid":"x"}`, false},
		{`{"type":"video_embeds","video_embeds":"x","image_embeds":null,"uuid":"x"}`, true},
		{`{"text":"x","image_url":null,"uuid":"x"}`, true},
		{`{"image_url":null,"text":"x","uuid":"x"}`, true},
	} {
		_, err := clean(t, wrap(c.part))
		var refused *Refused
		if got := errors.As(err, &refused) && refused.Status == 400; got != c.want {
			t.Errorf("%s: %v; got %v, want %v", c.part, err, got, c.want)
		}
	}
	many := wrap(strings.Repeat(`{"text":"","uuid":1},`, maxSteering+1) + "1")
	if _, err := clean(t, many); err == nil {
		t.Errorf("thousands of fields are taken out: got %v, want an error", err)
	}
}

// TestUnread: bodies that we cannot read but an engine might.
func TestUnread(t *testing.T) {
	utf16 := func(s string) (out []byte) {
		for _, c := range []byte(s) {
			out = append(out, c, 0)
		}
		return out
	}
	blanks := strings.Repeat(" ", 9<<20)
	deep := strings.Repeat("[", 210) + strings.Repeat("]", 210)
	many := `{"x":[` + strings.Repeat("1,", 5<<20) + `1]`
	frame := smuggle.Frame([]byte(many + `,"bootstrap_host":"a"}`))
	for _, c := range []struct {
		name   string
		body   []byte
		status int // 0: it passes
	}{
		{"cut", []byte(`{"messages":[{"uuid":`), 400},
		{"empty", nil, 400},
		{"NaN", []byte(`{"x":NaN,"kv_transfer_params":1}`), 400},
		{"Infinity", []byte(`{"x":-Infinity}`), 400},
		{"byte order mark", []byte("\xef\xbb\xbf{}"), 400},
		{"UTF-16", utf16(`{"mm_hashes":1}`), 400},
		{"UTF-16 with mark", append([]byte{0xff, 0xfe}, utf16(`{}`)...), 400},
		{"UTF-16 behind blanks", utf16(blanks + `{"mm_hashes":1}`), 400},
		{"UTF-16 with mark behind blanks", append([]byte{0xff, 0xfe}, utf16(blanks+`{"mm_hashes":1}`)...), 400},
		{"UTF-16, big end first, behind blanks", append([]byte{0}, utf16(blanks + `{"mm_hashes":1}`)[:2*len(blanks)+29]...), 400},
		{"UTF-16, deep", utf16(`{"mm_hashes":1,"x":` + deep + `}`), 400},
		{"mark behind blanks", append([]byte("\xef\xbb\xbf"+blanks), []byte(`{"mm_hash\u0065s":1}`)...), 400},
		{"encoded surrogate", []byte("{\"x\":\"\xed\xa0\x80\",\"mm_hashes\":1}"), 400},
		{"not closed, with é", []byte(`{"x":"é`), 400},
		{"deep", []byte(deep), 400},
		{"large", []byte(many + `}`), 0},
		{"large, a field as a text", []byte(many + `,"y":"mm_hashes","z":["bootstrap_host","\u0061",":"]}`), 0},
		{"large, the name in a text", []byte(many + `,"y":"\"mm_hashes\":1"}`), 0},
		{"large, a list", []byte("[" + many + "}]"), 400},
		{"large, not closed", []byte(many), 400},
		{"large, closed by another bracket", []byte(many + "]"), 400},
		{"large, more behind it", []byte(many + "}{}"), 400},
		{"large, a control character", []byte(many + ",\"y\":\"\x01\"}"), 400},
		{"large, deep", []byte(many + `,"y":` + deep + "}"), 400},
		{"large, no JSON", []byte(many + `,"y":b}`), 400},
		{"a frame of zstd", frame, 400},
		{"a frame of zstd that begins as an object", append([]byte("{"), frame...), 400},
		{"a small frame of zstd", frame[:100], 400},
		{"large, with a field", []byte(many + `,"bootstrap_host":"a"}`), 413},
		{"large, with a field and blanks", []byte(many + ",\"mm_hashes\" \r\n\t:\"a\"}"), 413},
		{"large, escaped", []byte(many + `,"mm_hash\u0065s":"a"}`), 413},
		{"large, a field behind a quote that is escaped", []byte(many + `,"\\\"":1,"uuid":"a"}`), 413},
	} {
		for _, step := range []int{1, 3, 16384} {
			if len(c.body) > 1<<20 && step < 16384 {
				continue
			}
			var pieces [][]byte
			for rest := c.body; len(rest) > 0; rest = rest[min(step, len(rest)):] {
				pieces = append(pieces, rest[:min(step, len(rest))])
			}
			var s Skeleton
			err := s.Scan(pieces)
			if err == nil {
				t.Fatalf("%s: is read; got %v, want an error", c.name, err)
			}
			var refused *Refused
			if _, bad := Clean(pieces, &s, err, nil, false, nil); errors.As(bad, &refused) != (c.status != 0) || refused != nil &&
				refused.Status != c.status {
				t.Errorf("%s in steps of %d: %+v, want status %d", c.name, step, refused, c.status)
			}
		}
	}
}

// FuzzClean: for any body, either it is refused, or an engine finds none of the table's fields in the result, which is JSON.
func FuzzClean(f *testing.F) {
	for _, shape := range shapes {
		f.Add([]byte(strings.ReplaceAll(fill(shape, "‹P", `"uuid":"x"`), longURL, "data:,")))
		f.Add([]byte(strings.ReplaceAll(fill(shape, "B›", `"bootstrap_port":[1],"mm_hashes":{}`), longURL, "data:,")))
	}
	for _, skeleton := range []string{
		`{"x":NaN,"kv_transfer_params":1}`, "\xef\xbb\xbf" + `{"rid":1}`, "{\x00\"\x00r\x00i\x00d\x00\"\x00:\x001\x00}\x00",
		"\x00{\x00\"\x00r\x00i\x00d\x00\"\x00:\x001\x00}",
		"\xff\xfe{\x00}\x00", "\x00\x00\x00{\x00\x00\x00}", `{"r\u0069d":1}`, `{"x":"\ud800","r\u0069d":1}`, "{\"x\":\"\xed\xa0\x80\",\"rid\":1}",
		`{"x":` + strings.Repeat("[", 201) + strings.Repeat("]", 201) + `,"rid":1}`, `{"x":"\\","rid" :[{"a":"}"}]}`,
	} {
		f.Add([]byte(skeleton))
	}
	f.Fuzz(func(t *testing.T, skeleton []byte) {
		at := len(skeleton) / 3
		pieces := [][]byte{skeleton[:at], skeleton[at:]}
		// As if it were too large to be scanned: a body that passes has no field anywhere.
		if judgeUnread(pieces, ErrLarge, false) == nil {
			if tree, ok := asPython(skeleton); ok {
				look(t, tree, -1)
			}
		}
		var s Skeleton
		if err := s.Scan(pieces); err != nil {
			if tree, ok := asPython(skeleton); ok && judgeUnread(pieces, err, false) == nil {
				look(t, tree, int(denied.InBody))
			}
			return
		}
		list, err := Clean(nil, &s, nil, nil, false, nil)
		if err != nil {
			return
		}
		out := apply(t, string(skeleton), list)
		if !json.Valid([]byte(out)) && json.Valid(skeleton) {
			t.Fatalf("%q became %q", skeleton, out)
		}
		var again Skeleton
		if err := again.Scan([][]byte{[]byte(out)}); err != nil {
			t.Fatal(err)
		}
		if more, err := Clean(nil, &again, nil, nil, false, nil); err != nil || len(more) > 0 {
			t.Fatalf("%q still has %v (%v), want no error, 0 of them", out, more, err)
		}
		if tree, ok := asPython([]byte(out)); ok {
			look(t, tree, int(denied.InBody))
		}
	})
}

// asPython reads a body like json.loads of Python 3.13, or more leniently: it detects encodings by their first bytes, accepts NaN
// and infinities as numbers, and unpaired surrogates.
func asPython(body []byte) (tree any, ok bool) {
	big, little := func(b []byte) uint16 { return binary.BigEndian.Uint16(b) }, func(b []byte) uint16 { return binary.LittleEndian.Uint16(b) }
	wide := func(b []byte, unit func([]byte) uint16) (out []byte) {
		var units []uint16
		for ; len(b) >= 2; b = b[2:] {
			units = append(units, unit(b))
		}
		return []byte(string(utf16.Decode(units)))
	}
	switch b := body; {
	case len(b) >= 4 && (string(b[:4]) == "\x00\x00\xfe\xff" || string(b[:4]) == "\xff\xfe\x00\x00") || len(b) >= 4 &&
		b[0] == 0 && b[1] == 0 || len(b) >= 4 && b[1] == 0 && b[2] == 0 && b[3] == 0:
		body = bytes.ReplaceAll(b, []byte{0}, nil) // only ASCII matters here
		body = bytes.Trim(body, "\xff\xfe")
	case bytes.HasPrefix(b, []byte("\xff\xfe")):
		body = wide(b[2:], little)
	case bytes.HasPrefix(b, []byte("\xfe\xff")):
		body = wide(b[2:], big)
	case len(b) >= 2 && b[0] == 0:
		body = wide(b, big)
	case len(b) >= 2 && b[1] == 0:
		body = wide(b, little)
	}
	body = bytes.TrimPrefix(body, []byte("\xef\xbb\xbf"))
	for _, word := range []string{"-Infinity", "Infinity", "NaN"} {
		if !json.Valid(body) {
			body = bytes.ReplaceAll(body, []byte(word), []byte("0"))
		}
	}
	return tree, json.Unmarshal(body, &tree) == nil
}

// look applies Clean's rule to a parsed body; in: the scope, or -1 if names count everywhere.
func look(t *testing.T, v any, in int) {
	scope := denied.Scope(max(in, 0))
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			if in < 0 || scope == denied.InList || scope == denied.InContent {
				look(t, e, in)
			}
		}
	case map[string]any:
		if scope == denied.InList {
			scope = denied.InMessage
		} else if scope == denied.InContent {
			scope = denied.InPart
		}
		for k, e := range v {
			if f := denied.FieldOf(k); f != nil && (in < 0 || f.In&scope != 0) {
				t.Fatalf("%q is still there", k)
			}
			below := int(scope.Below(k))
			if in < 0 {
				below = -1
			}
			look(t, e, below)
		}
	}
}

// BenchmarkClean cleans a conversation of 100 KB text, and one with a large image.
func BenchmarkClean(b *testing.B) {
	turn := `{"role":"user","content":[{"type":"text","text":"` + strings.Repeat("some words ", 80) + `"}]},`
	for name, skeleton := range map[string]string{
		"text100KB": `{"model":"m","messages":[` + strings.Repeat(turn, 100) + `{"role":"user","content":"?"}]}`,
		"image3.7MB": `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` +
			strings.Repeat("QUJD", 925000) + `"}},{"type":"text","text":"what?"}]}]}`,
	} {
		b.Run(name, func(b *testing.B) {
			var s Skeleton
			if err := s.Scan([][]byte{[]byte(skeleton)}); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(s.JSON())))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Clean(nil, &s, nil, nil, false, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
