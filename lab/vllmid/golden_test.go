package vllmid

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab/golden"
)

// The judge: recordings of real vLLM workers (0.32.0, 0.30.0, 0.23.0), described in testdata/README.md.
// TestConformanceGolden reads the same and newer ones from the directory that SIGHTLINE_GOLDEN names.

type goldenCase struct {
	ID, Worker, Endpoint string
	Request              json.RawMessage
	Status               int
	PromptTokenRLE       json.RawMessage   `json:"prompt_token_rle"`
	PerChoice            []json.RawMessage `json:"prompt_token_rle_per_choice"`
	MM                   []struct {
		Modality, Hash string
		Offset, Length int
	}
	MMSource       string              `json:"mm_source"`
	OutputTokenIDs json.RawMessage     `json:"output_token_ids"`
	Blocks         [][]json.RawMessage `json:"blocks"`
}

type goldenWorker struct {
	Engine, Model           string
	Flags                   []string
	ModelID                 string `json:"model_id"`
	BlockSize               int    `json:"block_size"`
	BlockAlgo               Algo   `json:"block_hash_algo"`
	Seed                    string `json:"none_hash_seed"`
	MMAlgo                  string `json:"mm_hash_algo"`
	namer                   *Namer
	hasher                  *BlockHasher
	rules                   Rules
	towerLoRA               bool
	adapterName, adapterDir string
	// late are blocks that the recording of an earlier case lacks: its events came in after it ended.
	late []Digest
}

// count is what was compared, for the test's last line.
type count struct{ blocks, images, cases, other int }

func (w *goldenWorker) prepare() (err error) {
	w.rules, err = RulesOf(strings.TrimPrefix(w.Engine, "vllm "))
	if err != nil {
		return err
	}
	mediaIO := ""
	for i, f := range w.Flags {
		switch f {
		case "--media-io-kwargs":
			mediaIO = w.Flags[i+1]
		case "--lora-modules":
			w.adapterName, w.adapterDir, _ = strings.Cut(w.Flags[i+1], "=")
		case "--enable-tower-connector-lora":
			w.towerLoRA = true
		}
	}
	w.namer, err = NewNamer(w.rules.Image, w.ModelID, w.MMAlgo, mediaIO)
	if err != nil {
		return err
	}
	w.hasher, err = NewBlockHasher(w.BlockAlgo, w.Seed, w.rules.TaggedKeys)
	return err
}

func TestGolden(t *testing.T) {
	var images map[string][]byte
	golden.JSON(t, &images, "testdata/images.json.gz")
	runGolden(t, "testdata/workers.json.gz", images, "testdata/cases.jsonl.gz")
}

func TestConformanceGolden(t *testing.T) {
	images := map[string][]byte{}
	for _, f := range golden.Files(t, golden.Dir(t, "vllm", "images", "d_*")) {
		images[filepath.Base(f)] = golden.Read(t, f)
	}
	runGolden(t, golden.Dir(t, "vllm", "workers.json"), images, golden.Files(t, golden.Dir(t, "vllm", "cases", "*.jsonl"))...)
}

func runGolden(t *testing.T, workersFile string, images map[string][]byte, cases ...string) {
	var workers map[string]*goldenWorker
	golden.JSON(t, &workers, workersFile)
	for name, w := range workers {
		if err := w.prepare(); err != nil {
			t.Fatalf("worker %s: got %v, want no error", name, err)
		}
	}
	var total count
	for _, file := range cases {
		for _, c := range golden.Lines[goldenCase](t, file) {
			if err := checkCase(&c, workers[c.Worker], images, &total); err != nil {
				t.Errorf("%s: got %v, want no error", c.ID, err)
			}
		}
	}
	t.Logf("%d cases: %d blocks and %d image identifiers equal; %d media not recomputed (video)", total.cases, total.blocks,
		total.images, total.other)
	if total.blocks == 0 || total.images == 0 {
		t.Errorf("nothing was compared: got %d, %d, want some, some", total.blocks, total.images)
	}
}

func checkCase(c *goldenCase, w *goldenWorker, images map[string][]byte, n *count) error {
	n.cases++
	body := gjson.ParseBytes(c.Request)
	if err := checkNames(c, w, body, images, n); err != nil {
		return err
	}
	if c.Status != 200 || len(c.PromptTokenRLE) == 0 && len(c.PerChoice) == 0 {
		return nil
	}
	scope := Scope{Salt: body.Get("cache_salt").String()}
	if w.adapterName != "" && body.Get("model").String() == w.adapterName {
		scope.LoRA, scope.LoRAPath = w.adapterName, w.adapterDir
	}
	var items []Item
	for _, m := range c.MM {
		id := m.Hash
		if w.towerLoRA && scope.LoRA != "" {
			id = scope.LoRA + ":" + id
		}
		items = append(items, Item{id, m.Offset, m.Length})
	}
	prompts, outputs := c.PerChoice, gjson.ParseBytes(c.OutputTokenIDs).Array()
	if len(prompts) == 0 {
		prompts = []json.RawMessage{c.PromptTokenRLE}
	}
	var chain []Digest
	var keys []string
	for i, p := range prompts {
		tokens, out := golden.Tokens(gjson.ParseBytes(p)), outputs
		if len(outputs) > i && outputs[i].IsArray() {
			out = outputs[i].Array()
		}
		for j := 0; j+1 < len(out); j++ { // the last generated token never enters a block
			tokens = append(tokens, uint32(out[j].Uint()))
		}
		for j, d := range w.hasher.Chain(tokens, w.BlockSize, items, scope) {
			chain = append(chain, d)
			keys = append(keys, keysText(Keys(j*w.BlockSize, (j+1)*w.BlockSize, items, scope)))
		}
	}
	late := w.late
	w.late = nil
	if len(c.Blocks) == len(chain)+len(late) {
		chain, keys = append(late, chain...), append(make([]string, len(late)), keys...)
	} else if len(c.Blocks) == len(late) && len(chain) > 0 {
		chain, keys, w.late = late, make([]string, len(late)), chain
	} else if len(c.Blocks) != len(chain) {
		return fmt.Errorf("%d blocks, recorded %d", len(chain), len(c.Blocks))
	}
	for j, d := range chain {
		if text := blockText(c.Blocks[j][0]); text != d.on(text) {
			return fmt.Errorf("block %d of %d: hash %s, recorded %s", j, len(chain), d.on(text), text)
		}
		if recorded := compactJSON(c.Blocks[j][1]); keys[j] != recorded && keys[j] != "" {
			return fmt.Errorf("block %d: extra keys %s, recorded %s", j, keys[j], recorded)
		}
	}
	n.blocks += len(chain)
	return nil
}

// on gives the digest as the recording has it: a decimal number, or hex where whole digests were published.
func (d Digest) on(recorded string) string {
	if strings.HasPrefix(recorded, "x") {
		return "x" + hex.EncodeToString([]byte(d))
	}
	return fmt.Sprint(d.Uint64())
}

func blockText(raw json.RawMessage) string {
	if b := gjson.GetBytes(raw, "$bytes"); b.Exists() {
		return "x" + b.String()
	}
	return string(raw)
}

// keysText writes keys as the events have them, in the recording's JSON.
func keysText(keys []Key) string {
	if keys == nil {
		return "null"
	}
	var list []any
	for _, k := range keys {
		if k.Kind == KeyMedia {
			list = append(list, []any{k.Text, k.Rel})
		} else {
			list = append(list, k.Text)
		}
	}
	b, _ := json.Marshal(list)
	return string(b)
}

func compactJSON(raw json.RawMessage) string {
	var b bytes.Buffer
	_ = json.Compact(&b, raw)
	return b.String()
}

// unknownName stands for a medium that vLLM does not name by its file.
const unknownName = "\x00"

// checkNames recomputes the identifier of every medium whose bytes the request tells.
func checkNames(c *goldenCase, w *goldenWorker, body gjson.Result, images map[string][]byte, n *count) error {
	if c.MM == nil || c.Endpoint != "/v1/chat/completions" {
		return nil
	}
	kw := Kwargs{body.Get("mm_processor_kwargs"), body.Get("media_io_kwargs")}
	var names []string
	for _, m := range body.Get("messages").Array() {
		for _, part := range m.Get("content").Array() {
			modality := strings.TrimSuffix(part.Get("type").String(), "_url")
			if modality != "image" && modality != "video" {
				continue
			}
			if uuid := part.Get("uuid"); uuid.Exists() {
				names = append(names, w.namer.UUID(modality, uuid.String(), kw))
				continue
			}
			if modality == "video" {
				names = append(names, unknownName)
				continue
			}
			link := part.Get("image_url.url").String()
			name := link[strings.LastIndexByte(link, '/')+1:]
			var raw []byte
			if _, data, ok := strings.Cut(link, ","); ok && strings.HasPrefix(strings.ToLower(link), "data:") {
				name, ok = strings.CutPrefix(data, "@@")
				if ok {
					name = strings.TrimSuffix(name, "@@")
				} else {
					raw, _ = base64.StdEncoding.DecodeString(data)
				}
			}
			if u, err := url.Parse(name); err == nil {
				name = u.Path
			}
			if raw == nil {
				raw = images[name]
			}
			if raw == nil {
				return fmt.Errorf("no image for %.80q", link)
			}
			names = append(names, w.namer.Image(raw, kw))
		}
	}
	if len(names) < len(c.MM) {
		return fmt.Errorf("%d media in the request, %d recorded", len(names), len(c.MM))
	}
	for i, m := range c.MM {
		if names[i] == unknownName {
			n.other++
			continue
		}
		n.images++
		if names[i] != m.Hash {
			return fmt.Errorf("item %d: identifier %s, recorded %s", i, names[i], m.Hash)
		}
	}
	return nil
}
