package serve

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image"
	"image/png"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
)

// TestKeyFile: all that a running Sightline hashes has the secret of index.key_file: what each decoder reads of events, and what is read
// of requests, images and salts included. Three workers hold one prompt, each beside a Sightline of its own, which finds its blocks: with
// one file their hashes are the same, with another file all are others.
func TestKeyFile(t *testing.T) {
	t.Parallel()
	var file bytes.Buffer
	if err := png.Encode(&file, image.NewGray(image.Rect(0, 0, 320, 240))); err != nil {
		t.Fatal(err)
	}
	part := `{"type":"image_url","image_url":{"url":"data:image/png;base64,` + base64.StdEncoding.EncodeToString(file.Bytes()) + `"}},`
	const salt, zmq, trtllm = `"cache_salt":"s",`, "zmq: EVENTS, replay: REPLAY", "engine: trtllm, engine_version: 1.3.0"
	for _, c := range []struct {
		engine        sim.Engine
		size          int
		model, events string
		salt, image   string
	}{
		{sim.VLLM, 16, "engine: vllm", zmq, salt, part},
		{sim.SGLang, 16, "engine: sglang, engine_version: 0.5.23", zmq, salt, ""}, // knows an image's name only after its events
		{sim.TRTLLM, 32, trtllm, "http: 'http://WORKER'", salt, part},
		{sim.TRTLLMZMQ, 32, trtllm, zmq, "", part}, // tells no salt
	} {
		t.Run(string(c.engine), func(t *testing.T) {
			t.Parallel()
			read, err := lab.NewPrompts("../../examples/models/qwen2.5-vl", c.engine, "m", c.size)
			if err != nil {
				t.Fatal(err)
			}
			body := fmt.Sprintf(`{"model":"m","max_tokens":1,%s"messages":[{"role":"user","content":[%s{"type":"text","text":%q}]}]}`,
				c.salt, c.image, strings.Repeat("A long story about a picture. ", 40))
			hashes := func(keyFile string) (list []string) {
				w, err := sim.New(sim.Config{Engine: c.engine, Model: "m", BlockSize: c.size, Prompt: read})
				if err != nil {
					t.Fatal(err)
				}
				w.Start()
				t.Cleanup(w.Close)
				text := strings.NewReplacer("EVENTS", w.EventsAddr(), "REPLAY", w.ReplayAddr(), "WORKER", w.Addr()).Replace(fmt.Sprintf(`
listen: unix:DIR/s
admin: ADMIN
index: {key_file: DIR/%s}
models: [{name: m, dir: DIR/model, block_size: %d, %s}]
workers: [{name: w, addr: 'WORKER', events: {%s}}]`, keyFile, c.size, c.model, c.events))
				r := startReloading(t, text, func(f *config.Fixed) { f.Probe = false })
				r.wait("no events", func() bool { return r.workers()["w"].Events == "live" })
				resp, err := http.Post("http://"+w.Addr()+"/v1/chat/completions", "application/json", strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					t.Fatalf("the worker: status %d, want %d", resp.StatusCode, http.StatusOK)
				}
				r.wait("not found", func() bool { // an image of TensorRT-LLM has its name after the first request
					_, said := r.ask("POST", "/v1/route", body)
					return gjson.Get(said, "reason").Str != "affinity" && int(gjson.Get(said, "cached_tokens").Int()) == w.Stats().Blocks*c.size
				})
				_, page := r.ask("GET", "/index?worker=w&rank=0")
				for line := range strings.Lines(page) {
					list = append(list, gjson.Get(line, "local_hash").Str)
				}
				return list
			}
			one, same, other := hashes("secret"), hashes("secret"), hashes("ours-key.pem")
			if len(one) < 9 || !slices.Equal(one, same) {
				t.Errorf("with one secret: got %v and %v, want at least 9 of them, %q", one, same, same)
			}
			if len(other) != len(one) || slices.ContainsFunc(other, func(h string) bool { return slices.Contains(one, h) }) {
				t.Errorf("with two secrets: %v and %v, want len(other) == len(one), !slices.ContainsFunc(other, func(h string) "+
					"bool { return slices.Contains(one, h) })", one, other)
			}
		})
	}
}
