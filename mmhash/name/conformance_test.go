package name

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/mmhash/header"
)

func golden(t *testing.T, path ...string) []byte {
	t.Helper()
	root := os.Getenv("SIGHTLINE_GOLDEN")
	if root == "" {
		t.Skip("SIGHTLINE_GOLDEN is not set: recordings are outside the repository")
	}
	b, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(path[len(path)-1], ".gz") {
		z, err := gzip.NewReader(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if _, err := out.ReadFrom(z); err != nil {
			t.Fatal(err)
		}
		b = out.Bytes()
	}
	return b
}

func vllmOf(t *testing.T, w gjson.Result) *VLLM {
	t.Helper()
	g, err := GenerationOf(strings.TrimPrefix(w.Get("engine").String(), "vllm "))
	if err != nil {
		t.Fatal(err)
	}
	v := &VLLM{Generation: g, Model: w.Get("model_id").String()}
	if v.Algorithm, err = ParseAlgorithm(w.Get("mm_hash_algo").String()); err != nil {
		t.Fatal(err)
	}
	flags := w.Get("flags").Array()
	for i, f := range flags {
		switch f.String() {
		case "--media-io-kwargs":
			if v.MediaIO, err = ParseFields([]byte(flags[i+1].String())); err != nil {
				t.Fatal(err)
			}
		case "--enable-tower-connector-lora":
			v.TowerLoRA = true
		}
	}
	return v
}

// pictures lists the picture parts of a request, in order: {url or file marker, uuid}.
func pictures(r gjson.Result) (parts []gjson.Result) {
	var walk func(v gjson.Result)
	walk = func(v gjson.Result) {
		if v.IsObject() && (v.Get("image_url").Exists() || v.Get("type").String() == "image") {
			parts = append(parts, v)
			return
		}
		if v.IsObject() || v.IsArray() {
			v.ForEach(func(_, e gjson.Result) bool { walk(e); return true })
		}
	}
	for _, k := range []string{"messages", "input"} {
		walk(r.Get(k))
	}
	return parts
}

// fileOf finds the picture of a part: base64 marker or URL of the recording's server; "" for a null part.
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

// TestConformanceVLLM: every image name of every recorded request that a real vLLM answered (0.32.0 in all its
// configurations, 0.30.0, 0.23.0), and the adapter prefix in the events of the tower-LoRA worker.
func TestConformanceVLLM(t *testing.T) {
	workers := gjson.ParseBytes(golden(t, "vllm", "workers.json"))
	root := os.Getenv("SIGHTLINE_GOLDEN")
	total, perWorker := 0, map[string]int{}
	var lines [][]byte
	files, _ := filepath.Glob(filepath.Join(root, "vllm", "cases", "*.jsonl"))
	more, _ := filepath.Glob(filepath.Join(root, "vllm", "sequences", "*.jsonl"))
	for _, f := range append(files, more...) {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		sc := bufio.NewScanner(bytes.NewReader(b))
		sc.Buffer(nil, 64<<20)
		for sc.Scan() {
			c := gjson.ParseBytes(sc.Bytes())
			if steps := c.Get("steps"); steps.Exists() {
				for i, s := range steps.Array() {
					inner := s.Get("requests")
					if !inner.Exists() {
						inner = gjson.Parse("[" + s.Raw + "]")
					}
					for _, q := range inner.Array() {
						if q.Get("request").Exists() {
							lines = append(lines, fmt.Appendf(nil, `{"id":%q,"worker":%q,"status":%d,"request":%s,"mm":%s}`,
								fmt.Sprintf("%s#%d", c.Get("id").String(), i), c.Get("worker").String(), q.Get("status").Int(), q.Get("request").Raw, orNull(q.Get("mm").Raw)))
						}
					}
				}
				continue
			}
			lines = append(lines, slices.Clone(sc.Bytes()))
		}
	}
	for _, line := range lines {
		c := gjson.ParseBytes(line)
		if c.Get("status").Int() != 200 {
			continue
		}
		w := workers.Get(strings.ReplaceAll(c.Get("worker").String(), ".", `\.`))
		v := vllmOf(t, w)
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
		parts := pictures(req)
		if len(parts) != len(want) {
			t.Errorf("%s: %d parts, %d names", c.Get("id"), len(parts), len(want))
			continue
		}
		for i, p := range parts {
			var it Item
			var file []byte
			var err error
			if f := fileOf(p); f != "" {
				if file, err = os.ReadFile(filepath.Join(root, "vllm", "images", f)); err != nil {
					t.Fatal(err)
				}
				r := header.New()
				r.Write(file)
				for r.Again() {
					r.Write(file)
				}
				info, err := r.Finish()
				if err != nil {
					t.Fatal(f, err)
				}
				it.Mode, it.Bytes = info.Mode, int64(len(file))
			}
			if it.UUID, it.HasUUID, err = UUID([]byte(p.Get("uuid").Raw)); err != nil {
				t.Fatal(err)
			}
			it.ProcessorKwargs, _ = ParseFields([]byte(req.Get("mm_processor_kwargs").Raw))
			it.MediaIO, _ = ParseFields([]byte(req.Get("media_io_kwargs").Raw))
			r, err := v.Recipe(it)
			if err != nil {
				t.Errorf("%s: %v", c.Get("id"), err)
				continue
			}
			if got := r.Of(file); got != want[i] {
				t.Errorf("%s: picture %d %s: %s, vLLM has %s", c.Get("id"), i, fileOf(p), got, want[i])
			}
			if m := req.Get("model").String(); v.TowerLoRA && m != v.Model {
				it.LoRA = m
				r, _ := v.Recipe(it)
				if name := r.Of(file); c.Get("blocks").Exists() && !strings.Contains(c.Get("blocks").Raw, `"`+name+`"`) {
					t.Errorf("%s: no %q in the events", c.Get("id"), name)
				}
			}
			total++
			perWorker[c.Get("worker").String()]++
		}
	}
	t.Logf("%d names: %v", total, perWorker)
	if total < 400 {
		t.Errorf("only %d names compared", total)
	}
}

func orNull(s string) string {
	if s == "" {
		return "null"
	}
	return s
}

// TestConformanceSGLang: pads, artifact keys, and the items of a real Qwen3-VL processor (SGLang 0.5.23).
func TestConformanceSGLang(t *testing.T) {
	var vec struct {
		Pads []struct {
			Hash   string
			Raw    []string `json:"pad_values"`
			Mil    uint64   `json:"legacy_0_5_9_to_0_5_22"`
			Before uint64   `json:"legacy_before_0_5_9"`
		}
		Identity []struct {
			Identity string
			Raw      []string `json:"pad_values"`
		}
		Artifact []struct {
			Content     string          `json:"content_digest"`
			Fingerprint string          `json:"processor_fingerprint"`
			Kwargs      json.RawMessage `json:"preprocess_kwargs"`
			Item        string          `json:"item_hash"`
		}
	}
	if err := json.Unmarshal(golden(t, "sglang", "hash_vectors.json"), &vec); err != nil {
		t.Fatal(err)
	}
	for _, p := range vec.Pads {
		h, err := ParseItem(p.Hash)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(Pads(h, PadWide)); got != fmt.Sprint(p.Raw) {
			t.Errorf("pads of %s: %s, want %v", p.Hash, got, p.Raw)
		}
		if a, b := Pads(h, PadMil)[0], Pads(h, PadLow)[0]; a != p.Mil || b != p.Before {
			t.Errorf("old pads of %s: %d %d, want %d %d", p.Hash, a, b, p.Mil, p.Before)
		}
	}
	for _, p := range vec.Identity {
		id, err := hex.DecodeString(p.Identity)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(WidePads(id)); got != fmt.Sprint(p.Raw) {
			t.Errorf("pads of identity %s: %s, want %v", p.Identity, got, p.Raw)
		}
	}
	for _, a := range vec.Artifact {
		k, err := ParseFields(a.Kwargs)
		if err != nil {
			t.Fatal(err)
		}
		digest, err := hex.DecodeString(strings.TrimPrefix(a.Content, "sha256:"))
		if err != nil {
			t.Fatal(err)
		}
		if got := sglangItem(digest, SGLang{a.Fingerprint}.Recipe("", k).artifact); got != a.Item {
			t.Errorf("item of %s %s: %s, want %s", a.Content, a.Kwargs, got, a.Item)
		}
	}

	items := gjson.ParseBytes(golden(t, "sglang", "image_items_qwen3-vl.json"))
	proc := SGLangProcessor{ModelType: "qwen3_vl", Architectures: []string{"Qwen3VLForConditionalGeneration"}, Class: qwenClass, Wrapper: qwenWrapper, Transformers: "5.19.0", Transport: "cpu"}
	if got, want := proc.Fingerprint(), items.Get("processor.fingerprint").String(); got != want {
		t.Errorf("fingerprint %s, want %s", got, want)
	}
	if c := proc.Candidates([]string{"5.23.0", "5.19.0"}); !slices.Contains(c, proc.Fingerprint()) {
		t.Errorf("the fingerprint is not among its candidates")
	}
	n := 0
	for _, row := range items.Get("rows").Array() {
		for i, it := range row.Get("items").Array() {
			file := golden(t, "images", row.Get(fmt.Sprintf("images.%d", i)).String())
			got := SGLang{proc.Fingerprint()}.Recipe("", nil).Of(file)
			if got != it.Get("hash").String() {
				t.Errorf("%s item %d: %s, want %s", row.Get("case"), i, got, it.Get("hash"))
			}
			h, _ := ParseItem(got)
			if p, want := fmt.Sprint(Pads(h, PadWide)), fmt.Sprint(it.Get("pad_values").Array()); p != want {
				t.Errorf("%s item %d: pads %s, want %s", row.Get("case"), i, p, want)
			}
			n++
		}
	}
	t.Logf("%d pads, %d items", len(vec.Pads), n)
}

// TestConformanceSGLangServer: the pads in the events of a real Qwen3-VL server pin one fingerprint, which holds for every
// picture whose pages were stored, detail and all.
func TestConformanceSGLangServer(t *testing.T) {
	srv := gjson.ParseBytes(golden(t, "sglang", "server_qwen3vl.json.gz"))
	proc := SGLangProcessor{ModelType: "qwen3_vl", Architectures: []string{"Qwen3VLForConditionalGeneration"}, Class: qwenClass, Wrapper: qwenWrapper}
	pinned, n := map[string]bool{}, 0
	for _, step := range srv.Get("steps").Array() {
		ids, pads := map[uint64]bool{}, false
		for _, id := range step.Get("events.#.batch.1.#.token_ids|@flatten|@flatten").Array() {
			ids[id.Uint()] = true
			pads = pads || id.Uint() >= 1_000_000
		}
		if !pads { // text only: the picture's pages were there already
			continue
		}
		for _, p := range pictures(step) {
			f := p.Get("image_url.file").String()
			file, found := golden(t, "images", f), false
			for _, c := range proc.Candidates([]string{"5.23.0", "5.19.0"}) {
				h, _ := ParseItem(SGLang{c}.Recipe(p.Get("image_url.detail").String(), nil).Of(file))
				if ids[Pads(h, PadWide)[0]] {
					found, pinned[c] = true, true
				}
			}
			if !found {
				t.Errorf("%s: no pads of %s (detail %q) in the events", step.Get("step"), f, p.Get("image_url.detail"))
			}
			n++
		}
	}
	if len(pinned) != 1 {
		t.Errorf("%d fingerprints fit, want 1", len(pinned))
	}
	t.Logf("%d pictures", n)
}
