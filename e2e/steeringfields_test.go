package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"image"
	"image/png"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/sightline-router/sightline/internal/denied"
)

// Every field of the table of what clients must not say, in every API that has a place for it, through a real Envoy: the
// worker gets the body as it would have been without, byte for byte, and the field is counted.
func TestEverySteeringField(t *testing.T) {
	t.Parallel()
	w := start(t, 1, nil)
	admin := freeAddr(t)
	w.runProduct(map[string]any{"admin": admin, "models": []any{map[string]any{"name": "known", "dir": absolute(t, modelDir)}},
		"workers": []any{map[string]any{"addr": w.workers[0].addr, "model": "known"}}})
	var file bytes.Buffer
	if err := png.Encode(&file, image.NewNRGBA(image.Rect(0, 0, 56, 56))); err != nil {
		t.Fatal(err)
	}
	url := dataURL(file.Bytes())
	part := `{@inPart@"type":"image_url","image_url":{@inMedia@"url":"` + url + `"}}`
	shapes := []struct{ path, body string }{
		{"/v1/chat/completions",
			`{@inBody@"model":"MODEL","vllm_xargs":{@inArgs@"n":1},"extra_args":{@inArgs@"n":1},"lora_request":{@inExtra@"lora_name":"a"},"nvext":{@inExtra@"greed_sampling":true},"messages":[{"role":"user","content":[` + part + `,{"type":"text","text":"?"}]}]}`},
		{"/v1/chat/completions",
			`{"model":"MODEL","messages":[{"role":"user","content":[{@inPart@"type":"video_url","video_url":{@inMedia@"url":"data:video/mp4;base64,AAAA"}},` +
				`{@inPart@"type":"audio_url","audio_url":{@inMedia@"url":"data:audio/wav;base64,AAAA"}},{@inPart@"type":"input_audio","input_audio":{@inMedia@"data":"AAAA","format":"wav"}},` +
				`{@inPart@"type":"image_embeds","image_embeds":{@inMedia@"data":"AAAA"}},{@inPart@"type":"file","file":{@inMedia@"file_data":"AAAA"}}]},{"role":"tool","content":` + part + `}]}`},
		{"/v1/chat/completions",
			`{"model":"MODEL","messages":[{"role":"assistant","content":"x","reasoning":{@inPart@"type":"prompt_embeds","image_url":"` +
				url + `"}},` +
				`{"role":"user","content":"x","reasoning_content":{@inPart@"type":"prompt_embeds","image_url":{@inMedia@"url":"` + url + `"}}}]}`},
		{"/v1/completions",
			`{@inBody@"model":"MODEL","prompt":["one","two"],"vllm_xargs":{@inArgs@"n":1},"nvext":{@inExtra@"greed_sampling":true}}`},
		{"/v1/responses",
			`{@inBody@"model":"MODEL","input":[{"type":"message","role":"user","content":[{@inPart@"type":"input_image","detail":"auto","image_url":"` + url + `"}]},` +
				`{"type":"function_call_output","call_id":"1","output":[{@inPart@"type":"input_image","detail":"auto","image_url":{@inMedia@"url":"` +
				url + `"}}]}]}`},
		{"/v1/messages",
			`{@inBody@"model":"MODEL","max_tokens":1,"system":[{@inPart@"type":"text","text":"be kind"}],"messages":[{"role":"user","content":[{@inPart@"type":"image","source":` +
				`{@inMedia@"type":"base64","media_type":"image/png","data":"` + url[22:] +
				`"}},{"type":"tool_result","tool_use_id":"1","content":[{@inPart@"type":"text","text":"x"}]}]}]}`},
		{"/v1/chat/completions/batch", `{@inBody@"model":"MODEL","vllm_xargs":{@inArgs@"n":1},"messages":[[{"role":"user","content":[` +
			part + `]}],[{"role":"user","content":"x"},{"role":"user","content":[` + part + `]}]]}`},
	}
	places := map[string]denied.Scope{"inBody": denied.InBody, "inArgs": denied.InArgs, "inExtra": denied.InExtra,
		"inPart": denied.InPart, "inMedia": denied.InMedia}
	plain := func(shape string) string {
		for place := range places {
			shape = strings.ReplaceAll(shape, "@"+place+"@", "")
		}
		return shape
	}
	counted := map[string]float64{}
	var all sync.WaitGroup
	room := make(chan struct{}, 8)
	sent := 0
	for _, entry := range denied.Fields {
		field := entry.Name
		if entry.Prefix {
			field += "host"
		}
		escaped := field[:1] + fmt.Sprintf(`\u%04x`, field[1]) + field[2:]
		pairs := []struct {
			text  string
			times float64
		}{
			{`"` + field + `":"10.0.0.1",`, 1},
			{`"` + field + `":{"` + field + `":[{"remote_host":"}\""}]},`, 1},
			{`"` + field + `":null,"` + escaped + `":"twice",`, 2},
		}
		tried := 0
		for _, shape := range shapes {
			for i, pair := range pairs {
				with, n := shape.body, 0
				for place, in := range places {
					if entry.In&in == 0 {
						continue
					}
					n += strings.Count(with, "@"+place+"@")
					with = strings.ReplaceAll(with, "@"+place+"@", pair.text)
				}
				if n == 0 {
					continue
				}
				tried++
				model := [...]string{"known", "unknown"}[i%2]
				body, want := strings.Replace(plain(with), "MODEL", model, 1), strings.Replace(plain(shape.body), "MODEL", model, 1)
				counted[entry.Label()] += pair.times * float64(n)
				sent++
				room <- struct{}{}
				all.Go(func() {
					defer func() { <-room }()
					sum := sha256.Sum256([]byte(want))
					r := decided(func() reply { return w.send(w.client, "POST", shape.path, body, nil) })
					if r.id() == "" || r.err != nil || r.status != http.StatusOK || r.SHA256 != hex.EncodeToString(sum[:]) {
						t.Errorf("%s of %s: %v, status %d, the worker got %d bytes, want %d: %.300s", shape.path, pair.text, r.err,
							r.status, r.Length, len(want), r.Body)
					}
				})
			}
		}
		if tried < 3 {
			t.Errorf("%s: no request has a place for it; got %d, want at least 3", field, tried)
		}
	}
	all.Wait()
	page, err := http.Get("http://" + admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer page.Body.Close()
	text, err := io.ReadAll(page.Body)
	if err != nil {
		t.Fatal(err)
	}
	for field, n := range counted {
		var got float64
		_, line, _ := strings.Cut(string(text), fmt.Sprintf("sightline_removed_fields_total{field=%q} ", field))
		if _, err := fmt.Sscan(line, &got); err != nil || got < n { // more, where Envoy did not wait for the decision
			t.Errorf("%s: %v counted, want %v", field, got, n)
		}
	}
	t.Logf("%d requests, %d fields", sent, len(counted))

	// A uuid and nothing else asks for another client's image; JSON that only Python reads could carry any field.
	for path, body := range map[string]string{
		"/v1/chat/completions":       `{"model":"known","messages":[{"role":"user","content":[{"type":"image_url","image_url":null,"uuid":"theirs"}]}]}`,
		"/v1/chat/completions/batch": `{"model":"unknown","messages":[[{"role":"user","content":[{"type":"image_url","uu\u0069d":"theirs"}]}]]}`,
		"/v1/responses":              `{"model":"known","input":[{"role":"user","content":[{"type":"input_image","image_url":null,"uuid":""}]}]}`,
		"/v1/completions":            `{"model":"known","prompt":"x","temperature":NaN,"kv_transfer_params":{}}`,
	} {
		if r := decided(func() reply {
			return w.send(w.client, "POST", path, body, nil)
		}); r.err != nil || r.status != http.StatusBadRequest || r.Worker != "" {
			t.Errorf("%s: %v, status %d, worker %q; want 400", body, r.err, r.status, r.Worker)
		}
	}
}
