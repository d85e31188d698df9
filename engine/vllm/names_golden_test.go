package vllm

import (
	"bytes"
	"cmp"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/lab/golden"
	"github.com/sightline-router/sightline/media/header"
	"github.com/sightline-router/sightline/mmhash/enginehash"
)

// namesOf reads how a recorded worker was started.
func namesOf(t *testing.T, w gjson.Result) (v *Names, towerLoRA bool) {
	t.Helper()
	mediaIO, flags := "", w.Get("flags").Array()
	for i, f := range flags {
		switch f.String() {
		case "--media-io-kwargs":
			mediaIO = flags[i+1].String()
		case "--enable-tower-connector-lora":
			towerLoRA = true
		}
	}
	release, err := rules.ParseVersion(strings.TrimPrefix(w.Get("engine").String(), "vllm "))
	if err != nil {
		t.Fatal(err)
	}
	v, err = NewNames(release, w.Get("model_id").String(), w.Get("mm_hash_algo").String(), mediaIO)
	if err != nil {
		t.Fatal(err)
	}
	return v, towerLoRA
}

// fileOf returns a part's image: base64 marker or URL of the recording's server; "" for a null part.
func fileOf(p gjson.Result) string {
	s := p.Get("image_url.url").String()
	if s == "" {
		s = p.Get("image_url").String()
	}
	if s == "" {
		s = p.Get("source.data").String()
	}
	if i := strings.Index(s, "@@"); i >= 0 {
		s, _, _ = strings.Cut(s[i+2:], "@@")
		return s
	}
	if strings.HasPrefix(s, "http") {
		return filepath.Base(s)
	}
	return ""
}

// TestConformanceNames: every image name of every recorded request that a real vLLM answered (0.32.0 in all its
// configurations, 0.30.0, 0.23.0), and the adapter prefix in the events of the tower-LoRA worker.
func TestConformanceNames(t *testing.T) {
	root := golden.Dir(t, "vllm")
	workers := gjson.ParseBytes(golden.Read(t, root, "workers.json"))
	total, learned, perWorker := 0, 0, map[string]int{}
	var lines [][]byte
	for _, f := range append(golden.Files(t, root, "cases", "*.jsonl"), golden.Files(t, root, "sequences", "*.jsonl")...) {
		for line := range bytes.Lines(golden.Read(t, f)) {
			c := gjson.ParseBytes(line)
			if steps := c.Get("steps"); steps.Exists() {
				for i, s := range steps.Array() {
					inner := s.Get("requests")
					if !inner.Exists() {
						inner = gjson.Parse("[" + s.Raw + "]")
					}
					for _, q := range inner.Array() {
						if q.Get("request").Exists() {
							lines = append(lines, fmt.Appendf(nil, `{"id":%q,"worker":%q,"status":%d,"request":%s,"mm":%s}`,
								fmt.Sprintf("%s#%d", c.Get("id").String(), i), c.Get("worker").String(), q.Get("status").Int(),
								q.Get("request").Raw, cmp.Or(q.Get("mm").Raw, "null")))
						}
					}
				}
				continue
			}
			lines = append(lines, line)
		}
	}
	for _, line := range lines {
		c := gjson.ParseBytes(line)
		if c.Get("status").Int() != 200 {
			continue
		}
		w := workers.Get(strings.ReplaceAll(c.Get("worker").String(), ".", `\.`))
		v, towerLoRA := namesOf(t, w)
		var want []string
		for _, m := range c.Get("mm").Array() {
			if m.Get("modality").String() == "image" {
				want = append(want, m.Get("hash").String())
			}
		}
		if len(want) == 0 {
			continue
		}
		req := c.Get("request")
		parts := golden.Images(req)
		if len(parts) != len(want) {
			t.Errorf("%s: got %d parts, %d names, want %d", c.Get("id"), len(parts), len(want), len(want))
			continue
		}
		for i, p := range parts {
			var it enginehash.Item
			var file []byte
			if f := fileOf(p); f != "" {
				file = golden.Read(t, root, "images", f)
				rest := header.File(file)
				info, err := new(header.Reader).Read(&rest)
				if header.KindOf(err) == header.Unsupported {
					learned++
					continue
				}
				if err != nil {
					t.Fatalf("%q: got %v, want no error", f, err)
				}
				it.Mode, it.Bytes = info.Mode, int64(len(file))
			}
			if uuid := p.Get("uuid"); uuid.Type != gjson.Null {
				it.UUID, it.HasUUID = uuid.String(), true
			}
			it.ProcessorKwargs, _ = enginehash.ParseFields([]byte(req.Get("mm_processor_kwargs").Raw))
			it.MediaIO, _ = enginehash.ParseFields([]byte(req.Get("media_io_kwargs").Raw))
			r, err := v.Recipe(it)
			if err != nil {
				t.Errorf("%s: got %v, want no error", c.Get("id"), err)
				continue
			}
			if got := r.Of(file); got != want[i] {
				t.Errorf("%s: image %d %s: got %s, vLLM has %s, want %q", c.Get("id"), i, fileOf(p), got, want[i], want[i])
			}
			if m := req.Get("model").String(); towerLoRA && m != v.Model {
				if name := m + ":" + r.Of(file); c.Get("blocks").Exists() && !strings.Contains(c.Get("blocks").Raw, `"`+name+`"`) {
					t.Errorf("%s: no %q in the events", c.Get("id"), name)
				}
			}
			total++
			perWorker[c.Get("worker").String()]++
		}
	}
	t.Logf("conformance: %d names: %v; %d learned", total, perWorker, learned)
	if total < 400 {
		t.Errorf("only %d names compared, want at least 400", total)
	}
}
