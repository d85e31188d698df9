package e2e

import (
	"bytes"
	"encoding/base64"
	wire "encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
)

// unfiled is a model that a real vLLM serves with random weights and of which Sightline has no file.
type unfiled struct {
	name, config string
	args         []string
	medium       func(seed uint64) any // a content part of a conversation's first message; nil: none
	behind       bool                  // it stands behind the message's text, and the engine puts it before
	block        int                   // tokens of a block of the layers that see all tokens; 0: 16
}

var unfiledModels = []unfiled{
	{name: "Qwen2-Audio", config: "qwen2_audio", medium: func(seed uint64) any {
		return map[string]any{"type": "input_audio", "input_audio": map[string]any{"data": tone(seed), "format": "wav"}}
	}},
	{name: "Qianfan-OCR, of no known family", config: "qianfan_ocr", medium: photoPart},
	{name: "Qianfan-OCR, its images behind other texts", config: "qianfan_ocr", medium: photoPart, behind: true},
	{name: "prompts that the engine writes (DeepSeek-V3.2's)", config: "qwen2", args: []string{"--tokenizer-mode", "deepseek_v32"}},
}

func photoPart(seed uint64) any {
	return map[string]any{"type": "image_url", "image_url": map[string]any{"url": dataURL(photo(seed))}}
}

// tone is a WAV file of some noise, one to three seconds long, in base64.
func tone(seed uint64) string {
	const rate = 16000
	rng := rand.New(rand.NewPCG(seed, 34))
	samples := make([]int16, rate+rng.IntN(2*rate))
	for i := range samples {
		samples[i] = int16(rng.IntN(2000))
	}
	var b bytes.Buffer
	for _, v := range []any{[]byte("RIFF"), uint32(36 + 2*len(samples)), []byte("WAVEfmt "), uint32(16), uint16(1), uint16(1), uint32(rate),
		uint32(2 * rate), uint16(2), uint16(16), []byte("data"), uint32(2 * len(samples)), samples} {
		_ = wire.Write(&b, wire.LittleEndian, v)
	}
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

// write makes the model's directory, with a template that writes each message's text, and tokens for its media.
func (m *unfiled) write(t *testing.T, dir string) {
	t.Helper()
	(&hybrid{config: m.config}).write(t, dir)
	file := filepath.Join(dir, "tokenizer.json")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	added := all["added_tokens"].([]any)
	for i, token := range []string{"<|audio_bos|>", "<|audio_eos|>", "<|AUDIO|>", "<img>", "</img>", "<IMG_CONTEXT>"} {
		added = append(added, map[string]any{"id": 151665 + i, "content": token, "special": true, "normalized": false, "single_word": false,
			"lstrip": false, "rstrip": false})
	}
	all["added_tokens"] = added
	raw, err = json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"tokenizer.json": string(raw),
		"chat_template.jinja": "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n" +
			"{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}<|im_end|>\n{% endfor %}" +
			"{% if add_generation_prompt %}<|im_start|>assistant\n{% if thinking %}<think>\n{% endif %}{% endif %}",
		"preprocessor_config.json": `{"feature_extractor_type":"WhisperFeatureExtractor","processor_class":"Qwen2AudioProcessor",` +
			`"feature_size":128,"sampling_rate":16000,"hop_length":160,"n_fft":400,"chunk_length":30,"nb_max_frames":3000,` +
			`"n_samples":480000,"padding_side":"right","padding_value":0.0,"return_attention_mask":true}`,
	} {
		if m.config != "qwen2_audio" && name == "preprocessor_config.json" {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// Real engines and no file of their models: `serve --worker` behind Envoy with what `sightline envoy --worker` prints. Conversations begin
// alike and go on. What is predicted from the second turn on, and of a beginning at which two have parted, is what vLLM takes from its
// cache.
func TestRealVLLMWithoutFiles(t *testing.T) {
	installed := os.Getenv("SIGHTLINE_VLLM")
	if installed == "" {
		t.Skip("needs a real vLLM: make e2e-vllm")
	}
	forks, version := startForks(t, installed), versionOf(t, installed)
	for i := range unfiledModels {
		m := &unfiledModels[i]
		t.Run(m.name, func(t *testing.T) { m.run(t, forks, version) })
	}
}

// serve starts the model's server, and Sightline before it without a file.
func (m *unfiled) serve(t *testing.T, forks *vllmForks) *lab.Lab {
	t.Helper()
	bin, err := product()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	m.write(t, filepath.Join(dir, m.config))
	s := forks.start(t, dir, append([]string{"serve", m.config, "--load-format", "dummy", "--enforce-eager", "--dtype", "bfloat16",
		"--block-size", "16", "--max-model-len", "8192", "--max-num-batched-tokens", "8192", "--max-num-seqs", "8", "--skip-mm-profiling",
		"--enable-prompt-tokens-details"}, m.args...)...)
	if err := s.healthy(); err != nil {
		t.Fatal(err)
	}
	l := &lab.Lab{Admin: freeAddr(t)}
	listen, clients, envoyAdmin := freeAddr(t), freeAddr(t), freeAddr(t)
	l.URL = "http://" + clients
	flags := []string{"--listen", listen, "--worker", s.addr}
	printed, err := exec.Command(bin, append([]string{"envoy"}, flags...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	behindPrinted(t, l, string(printed), listen, 1, clients, envoyAdmin, bin, append([]string{"serve", "--admin", l.Admin}, flags...)...)
	return l
}

func (m *unfiled) run(t *testing.T, forks *vllmForks, version string) {
	l := m.serve(t, forks)
	equal, compared, tooHigh, hits, estimates := 0, 0, 0, 0, 0
	reasons := map[string]int{}
	// send sends a request, compares it if its hits must be known, and waits until what it taught is known.
	send := func(what string, messages []any, known bool) (answer any) {
		t.Helper()
		seen := func() float64 { return metric(t, l, "sightline_learned_requests_total", "") }
		before := seen()
		r := post(t, l, map[string]any{"model": m.config, "messages": messages, "max_tokens": 24, "temperature": 0}, nil)
		if r.status != 200 {
			t.Fatalf("%s: status %d: %.300s", what, r.status, r.body)
		}
		d := lastDecision(t, l)
		predicted, cached := int(d.Get("cached_tokens").Int()), r.cached
		if known && d.Get("reason").Str == "predicted" { // it goes on with an answer, or is the second sighting of a beginning
			estimates++
			if predicted < cached-3*16 || predicted > cached { // the answer has 24 tokens
				t.Errorf("%s: predicted %d, vLLM's %d, want at least %d, at most %d", what, predicted, cached, cached-3*16, cached)
			}
		} else if known {
			compared++
			reasons[d.Get("reason").Str]++
			if predicted == cached {
				equal++
			} else {
				t.Logf("%s: predicted %d, vLLM's %d of %d, %s (%s)", what, predicted, cached, gjson.Get(r.body, "usage.prompt_tokens").Int(),
					d.Get("reason").Str, d.Get("why").Str)
			}
			if predicted > cached+16 {
				tooHigh++
			}
			if cached > 0 {
				hits++
			}
		}
		eventually(t, "the request is learned", func() bool { return seen() > before })
		return map[string]any{"role": "assistant", "content": gjson.Get(r.body, "choices.0.message.content").Str}
	}
	rng := rand.New(rand.NewPCG(8, 8))
	system := map[string]any{"role": "system", "content": words(rng, 150)}
	for i := range 6 {
		parts := []any{map[string]any{"type": "text", "text": words(rng, 20)}}
		if m.medium != nil {
			parts = slices.Insert(parts, map[bool]int{true: 1}[m.behind], m.medium(uint64(i/2))) // two conversations have the same
		}
		talk := []any{system, map[string]any{"role": "user", "content": parts}}
		for turn := range 3 {
			what := fmt.Sprintf("conversation %d, turn %d", i, turn)
			answer := send(what, talk, turn > 0 || i > 2 && (m.medium == nil || i%2 == 0))
			talk = append(talk, answer, map[string]any{"role": "user", "content": words(rng, 10+rng.IntN(30))})
		}
		send(fmt.Sprintf("conversation %d, again", i), talk[:len(talk)-2], true)
	}
	fmt.Printf("e2e-vllm: %s without files, vLLM %s: cached tokens equal %d of %d, more than a block above %d, with hits %d; reasons %v\n",
		m.name, version, equal, compared, tooHigh, hits, reasons)
	if equal*100 < compared*95 || tooHigh > 0 || hits < compared*9/10 || compared < 6 || estimates > 15 {
		t.Error("the engine and what was learned do not agree")
	}
	for _, outcome := range []string{"unattributed", "doubtful", "no_room"} {
		if n := metric(t, l, "sightline_learned_requests_total", `"`+outcome+`"`); n > 0 {
			t.Errorf("%v requests are %s, want 0", n, outcome)
		}
	}
}
