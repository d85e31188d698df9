package e2e

import (
	"bufio"
	endian "encoding/binary"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/lab/smuggle"
)

// Whatever form a request has, an engine behind Envoy finds nothing in it that clients must not say, or does not get it.
// The stub worker reads as leniently as engines' servers do (steered). In each variant that needs nothing further.
func TestNoFormBypassesTheCleaning(t *testing.T) {
	t.Parallel()
	for _, name := range append(envoy.VariantNames(), "1.36") {
		t.Run(name, func(t *testing.T) {
			switch name {
			case "tls", "ipv6":
				t.Skip("differs in addresses and certificates alone")
			case "token_usage":
				needs140(t)
			}
			w := start(t, 1, func(o *envoy.Options) { applyVariant(t, o, name) })
			prefix := ""
			models := []any{map[string]any{"name": "m", "dir": absolute(t, modelDir)}}
			if name == "models" {
				prefix = "/m"
				models = append(models, map[string]any{"name": "n", "dir": absolute(t, modelDir)})
			}
			unread := "route"
			if name == "fail_closed" {
				unread = "refuse"
			}
			w.runProduct(map[string]any{"on_unread": unread, "models": models,
				"workers": []any{map[string]any{"addr": w.workers[0].addr, "model": "m"}}})
			clean := `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
			eventually(t, "a clean request is served", func() bool {
				r := w.send(w.client, "POST", prefix+chatPath, clean, nil)
				return r.status == http.StatusOK && r.id() != "" && w.send(w.client, "GET", prefix+"/v1/models", "", nil).status == http.StatusOK
			})
			for form, c := range bypasses(name == "composite") {
				t.Run(form, func(t *testing.T) {
					path := chatPath
					if c.path != "" {
						path = c.path
					}
					served := w.workers[0].served.Load()
					if name == "fail_closed" && form == "zstd, larger than what is scanned" { // it is refused for its size, whatever it is
						c.want = http.StatusRequestEntityTooLarge
					}
					r := w.sendRaw(prefix+path, c)
					if r.err != nil {
						t.Fatalf("got %v, want no error", r.err)
					}
					if reached := w.workers[0].served.Load() > served; len(r.Steered) > 0 || c.want != 0 && r.status != c.want ||
						reached != (r.status == http.StatusOK) {
						t.Errorf("status %d (want %d), the worker saw %v at %s: %.300s", r.status, c.want, r.Steered, r.Path, r.body)
					}
					if r.status >= 400 && !strings.Contains(string(r.body), `"message"`) && form != "too large, and not announced" { // Envoy's own words
						t.Errorf("refused with %q", r.body)
					}
				})
			}
		})
	}
}

const chatPath = "/v1/chat/completions"

// bypass is a form in which a request once kept what clients must not say.
type bypass struct {
	path   string   // "": the chat endpoint
	lines  []string // headers; none: content-type: application/json
	body   string   // "": one with fields
	length int      // announced; 0: the body's, -1: none
	want   int      // status; 0: any, so long as nothing steers
}

func bypasses(slow bool) map[string]bypass {
	fields := `"kv_transfer_params":{"remote_host":"10.9.9.9"},"bootstrap_host":"10.9.9.9","session_params":{"id":"theirs"},"rid":"theirs","request_id":"theirs",` +
		`"conversation_params":{"conversation_id":"theirs"},"lora_request":{"lora_name":"a","lora_int_id":1,"lora_path":"/etc"},` +
		`"kv_hints":{"actions":[]},"retention_directives":[{"priority":100}],"agent_context":{"kv_hints":{"evict_session":true}},` +
		`"nvext":{"agent_hints":{"speculative_prefill":true},"extra_fields":["worker_id"],"annotations":["query_instance_id:"],"metadata_upload":{"url":"http://10.9.9.9"}}`
	body := `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"hi","uuid":"theirs"}]}],` + fields + `}`
	list := map[string]bypass{}
	for _, p := range []string{"/v1/chat%2Fcompletions", "/v1/chat%2fcompletions", "/v1%2Fchat%2Fcompletions",
		"/v1/ch%61t/completion%73", "/v1/%63%68%61%74/completions", "//v1/chat/completions",
		"/v1//chat/completions", "/v1/chat//completions", "/v1/chat/completions/", "/v1/chat/completions//",
		"/v1/./chat/completions", "/v1/x/../chat/completions", "/v1/x/%2e%2e/chat/completions",
		`/v1\chat\completions`, "/v1/chat%5Ccompletions", "/v1/chat%5ccompletions/", "/v1/chat/completions%2F",
		"/v1/chat/completions%3Fx", "/v1/chat/completions?x=1", "/v1/chat%2Fcompletions?a=b",
		"/v1/chat/completions;x", "/v1/chat%2Fcompletions%2Fbatch", "/v1%2Fcompletions", "/v1%2Fresponses", "/v1/responses/",
		"/v1%2Fmessages", "/v1/chat/completions%0a", "/v1%2Fmessages%0A"} {
		list["path "+p] = bypass{path: p}
	}
	for _, v := range []string{"application/json", "application/json;x", "application/json;a=1;a=2", "application/json;;;",
		"application/json;/", "application/json; charset", `application/json;="`, "application/json ;",
		"APPLICATION/JSON; charset=utf-16", "application/json;charset=x;charset=y", "application/json;\ta", "application/vnd.api+json;/"} {
		list["type "+v] = bypass{lines: []string{"content-type: " + v}, want: 200}
	}
	for _, v := range []string{"text/plain", ";;;", "application/x-www-form-urlencoded", "application/json, text/plain",
		"json", "application//json", "multipart/form-data; boundary=x"} {
		list["type "+v] = bypass{lines: []string{"content-type: " + v}, want: 415}
	}
	list["two types"] = bypass{lines: []string{"content-type: application/json;x", "content-type: text/plain"}} // Envoy makes one of them
	list["two types, the other first"] = bypass{lines: []string{"content-type: text/plain", "content-type: application/json"}, want: 415}
	for _, v := range []string{"gzip", "x", "GZIP", "br", "identity, gzip", "gzip;q=0", "identity;x", "deflate, identity"} {
		list["encoding "+v] = bypass{lines: []string{"content-type: application/json", "content-encoding: " + v}, want: 415}
	}
	list["two encodings"] = bypass{lines: []string{"content-type: application/json", "Content-Encoding: gzip",
		"content-encoding: identity"}, want: 415}
	list["identity"] = bypass{lines: []string{"content-type: application/json", "content-encoding: Identity"}, want: 200}

	deep := strings.Repeat("[", 210) + strings.Repeat("]", 210)
	blanks := strings.Repeat(" ", 9<<20)
	utf16 := func(order endian.AppendByteOrder, mark bool, text string) string {
		out := make([]byte, 0, 2*len(text)+2)
		if mark {
			out = order.AppendUint16(out, 0xfeff)
		}
		for _, c := range []byte(text) {
			out = order.AppendUint16(out, uint16(c))
		}
		return string(out)
	}
	utf32 := func(order endian.AppendByteOrder, mark bool, text string) string {
		out := make([]byte, 0, 4*len(text)+4)
		if mark {
			out = order.AppendUint32(out, 0xfeff)
		}
		for _, c := range []byte(text) {
			out = order.AppendUint32(out, uint32(c))
		}
		return string(out)
	}
	with := func(more string) string { return body[:len(body)-1] + "," + more + "}" }
	for form, text := range map[string]string{"": body, ", deep": with(`"x":` + deep), ", behind blanks": blanks + body} {
		if form == ", behind blanks" && !slow {
			continue
		}
		want, utf8 := 400, 400
		if form == ", behind blanks" {
			utf8 = 413
		}
		for name, order := range map[string]endian.AppendByteOrder{"little": endian.LittleEndian, "big": endian.BigEndian} {
			for _, mark := range []bool{false, true} {
				list[fmt.Sprintf("UTF-16 %s, mark %t%s", name, mark, form)] = bypass{body: utf16(order, mark, text), want: want}
				list[fmt.Sprintf("UTF-32 %s, mark %t%s", name, mark, form)] = bypass{body: utf32(order, mark, text), want: want}
			}
		}
		if form != "" {
			list["UTF-8"+form] = bypass{body: text, want: utf8}
			list["UTF-8 with a mark"+form] = bypass{body: "\xef\xbb\xbf" + text, want: want}
		}
	}
	compressed := []string{"content-type: application/json", "X-Body-Compressed: zstd"}
	list["zstd"] = bypass{lines: compressed, body: string(smuggle.Frame([]byte(body))), want: 400}
	list["zstd, larger than what is scanned"] = bypass{lines: compressed, body: string(smuggle.Frame([]byte(blanks + body))), want: 400}
	list["zstd, said of JSON"] = bypass{lines: compressed, want: 200}
	list["a list"] = bypass{body: "[" + body + "]", want: 400}
	for name, c := range map[string]bypass{
		"byte order mark":        {body: "\xef\xbb\xbf" + body, want: 400},
		"NaN":                    {body: with(`"temperature":NaN`), want: 400},
		"infinity":               {body: with(`"temperature":-Infinity`), want: 400},
		"a number beyond floats": {body: with(`"seed":1e999`), want: 200},
		"a long number":          {body: with(`"seed":` + strings.Repeat("9", 5000)), want: 200},
		"half a surrogate pair":  {body: with(`"user":"\ud800"`), want: 200},
		"encoded surrogate":      {body: with("\"user\":\"\xed\xa0\x80\""), want: 400},
		"each field twice":       {body: with(fields), want: 200},
		"escaped": {body: strings.NewReplacer("uuid", `u\u0075id`, "rid", `\u0072id`, "kv_t", `kv\u005ft`,
			"bootstrap_", `\u0062ootstrap_`).Replace(body), want: 200},
		"cut":                  {body: body[:len(body)-1], want: 400},
		"more behind it":       {body: body + body, want: 400},
		"control characters":   {body: with("\"user\":\"\x01\""), want: 400},
		"NUL behind it":        {body: body + "\x00", want: 400},
		"no length":            {length: -1, want: 200},
		"too large, announced": {length: 64<<20 + 1, want: 413},
	} {
		list[name] = c
	}
	if slow {
		pad := strings.Repeat("x", 64<<20)
		list["too large, and not announced"] = bypass{body: with(`"user":"` + pad + `"`), length: -1, want: 413}
		list["too large, at an odd path"] = bypass{path: "/v1/chat%2Fcompletions", body: with(`"user":"` + pad + `"`), want: 413}
		list["many numbers"] = bypass{body: with(`"x":[` + strings.Repeat("1,", 5<<20) + `1]`), want: 413}
	}
	for name, c := range list {
		if c.body == "" {
			c.body = body
			list[name] = c
		}
	}
	return list
}

// sendRaw posts a form byte by byte over a new HTTP/1 connection.
func (w *world) sendRaw(path string, c bypass) reply {
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		return reply{err: err}
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	lines := c.lines
	if lines == nil {
		lines = []string{"content-type: application/json"}
	}
	length, body := fmt.Sprintf("content-length: %d", len(c.body)), c.body
	if c.length > 0 {
		length = fmt.Sprintf("content-length: %d", c.length)
	} else if c.length < 0 {
		length, body = "transfer-encoding: chunked", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(c.body), c.body)
	}
	var writing sync.WaitGroup
	defer writing.Wait()
	writing.Go(func() { // an answer may come before the body is through
		_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nhost: x\r\n%s\r\n%s\r\n\r\n%s", path, strings.Join(lines, "\r\n"), length, body)
	})
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return reply{err: err}
	}
	out := read(res)
	_ = conn.Close()
	return out
}
