package router

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/mmhash/block"
)

// pathsWorld serves the same requests with a model's files and without them, each at one worker. What a worker finds is told by an engine
// of one cache: the leading blocks that it holds of a prompt, without the one that has the prompt's last token.
type pathsWorld struct {
	t       *testing.T
	truth   *engine.Model
	worlds  [2]*world // with files, and without
	held    map[uint64]bool
	answers uint64
}

func newPathsWorld(t *testing.T, name, version string) *pathsWorld {
	p := &pathsWorld{t: t, held: map[uint64]bool{}}
	for i, dir := range []string{shippedModel, ""} {
		media, err := engine.NewMedia(nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(media.Close)
		s := engine.DefaultServer()
		s.Engine, s.EngineVersion, s.BlockSize, s.TrustMMKwargs, s.TrustChatTemplate, s.MaxModelLen = name, version, 16, true, true, 4096
		live, err := engine.LoadLive("m", dir, s, media)
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, 1)
		o := w.opt
		o.Models, o.LearnedBytes, o.Metrics = []Model{{Name: "m", Adapters: []string{"lora"}, Prompts: live}}, 1<<20, nil
		w.Router = New(o)
		p.worlds[i] = w
		if i == 0 {
			p.truth = live.Model()
		}
	}
	return p
}

const answerTokens = 40

// serve sends a request to both routers and has the engine serve it. skips: the engine does not read its cache for it. counted: its answer
// tells how many tokens the prompt has. What no rule reads is not served.
func (p *pathsWorld) serve(path, text string, skips, counted bool) (d [2]Decision, found int) {
	p.t.Helper()
	var skeleton body.Skeleton
	var req body.Request
	if err := body.Read([][]byte{[]byte(text)}, &skeleton, &req); err != nil {
		p.t.Fatal(err)
	}
	adapter, _ := p.truth.Adapter(strings.TrimPrefix(req.Model, "m"), &req)
	ps, err := p.truth.Read(p.t.Context(), path, adapter, &req)
	for i, w := range p.worlds {
		w.ids++
		d[i] = w.Decide(p.t.Context(), &Request{ID: fmt.Sprint("d", w.ids), Path: path, Body: [][]byte{[]byte(text)}})
	}
	if err != nil || !ps.List[0].Exact {
		return d, -1
	}
	tokens, longest := 0, 0
	for i := range ps.List {
		one := &ps.List[i]
		tokens += len(one.IDs)
		locals := one.Locals(nil, block.Form{Size: 16}, adapter)
		hashes := block.Fixed().Chain(nil, locals)
		n := 0
		for n < len(hashes) && p.held[hashes[n]] {
			n++
		}
		if !skips && len(one.IDs) >= longest {
			found, longest = min(n, (len(one.IDs)-1)/16)*16, len(one.IDs)
		}
		prefill := len(locals)
		for range (len(one.IDs)+answerTokens)/16 - prefill { // the first of them may have the prompt's last tokens
			p.answers++
			locals = append(locals, p.answers)
		}
		hashes = block.Fixed().Chain(nil, locals)
		for from, to := n, prefill; from < len(locals); from, to = to, to+1 { // the prompt's in one event, an answer's one by one
			if from == to {
				continue
			}
			e := kvevent.Event{Kind: kvevent.Stored, Tier: kvevent.GPU, BlockSize: 16, Locals: locals[from:to],
				EngineHashes: hashes[from:to]}
			if from > 0 {
				e.Parent, e.HasParent = hashes[from-1], true
			}
			for k, w := range p.worlds {
				e.Session = d[k].Session
				w.Learner().Stored(w.slots[0].ID, &e)
				if err := w.index.Store(w.slots[0].ID, e.Tier, e.Parent, e.HasParent, e.EngineHashes, e.Locals); err != nil {
					p.t.Fatal(err)
				}
			}
		}
		for _, h := range hashes {
			p.held[h] = true
		}
	}
	if !counted {
		tokens = -1
	}
	for i, w := range p.worlds {
		w.Observe(Outcome{ID: d[i].ID, Phase: Ended, Addr: w.slots[0].Worker.Addr, Code: 200, CachedTokens: -1, PromptTokens: tokens,
			OutputTokens: max(0, min(tokens, answerTokens))})
		w.now = w.now.Add(3 * time.Minute) // what was on its way is forgotten
		w.Learner().Settle(w.now)
	}
	return d, found
}

// reuseFacts are the fields that decide what an engine finds of a request, each in two requests that differ in it.
var reuseFacts = []struct {
	name, path, a, b string // fields of both requests; one of the prompt's replaces it
	engine, version  string // "": vLLM 0.32.0
	skips            bool   // the engine does not read its cache for b
	unread           bool   // no rule reads b, and nothing is learned of it
	perhaps          bool   // it is not known whether the engine reads its cache for b: what is predicted is an upper bound
	pathB            string // the endpoint of b; "": path
}{
	{name: "prompt_logprobs", b: `"prompt_logprobs":1`, skips: true},
	{name: "echo of a chat", b: `"echo":true`, skips: true},
	{name: "echo of a completion", path: "/v1/completions", b: `"echo":true,"logprobs":1`, skips: true},
	{name: "use_beam_search", b: `"use_beam_search":true`, skips: true, perhaps: true},
	{name: "prompt_logprobs on TensorRT-LLM", engine: "trtllm", version: "1.3.0rc27", b: `"prompt_logprobs":1`, skips: true, perhaps: true},
	{name: "an endpoint that is converted", pathB: "/v1/messages", b: `"max_tokens":16`},
	{name: "another endpoint", pathB: "/v1/responses"},
	{name: "a text and the same as a part", b: `"messages":[{"role":"user","content":[{"type":"text","text":"` + text(100, 3) + `"}]}]`},
	{name: "a message that is named", b: `"messages":[{"role":"user","name":"n","content":"` + text(100, 3) + `"}]`},
	{name: "an image's detail", a: `"image":1`, b: `"messages":[{"role":"user","content":` +
		strings.Replace(testImage(5, 640, 480), `"url":`, `"detail":"low","url":`, 1) + `}]`},
	{name: "reasoning_effort on vLLM", b: `"reasoning_effort":"low"`},
	{name: "documents", b: `"documents":[{"title":"t","text":"x"}]`},
	{name: "truncate_prompt_tokens of all", b: `"truncate_prompt_tokens":-1`},
	{name: "cache_salt", a: `"cache_salt":"a"`, b: `"cache_salt":"b"`},
	{name: "adapter", b: `"model":"lora"`},
	{name: "truncate_prompt_tokens", a: `"truncate_prompt_tokens":200`, b: `"truncate_prompt_tokens":230`},
	{name: "truncation_side", a: `"truncate_prompt_tokens":200`, b: `"truncate_prompt_tokens":200,"truncation_side":"right"`},
	{name: "truncation", path: "/v1/responses", b: `"truncation":"auto"`},
	{name: "add_generation_prompt", b: `"add_generation_prompt":false`},
	{name: "continue_final_message", a: `"add_generation_prompt":false`, b: `"add_generation_prompt":false,"continue_final_message":true`},
	{name: "add_special_tokens", b: `"add_special_tokens":true`},
	{name: "chat_template", b: `"chat_template":"{% for m in messages %}{{ m.content }}{% endfor %}"`},
	{name: "chat_template_kwargs", b: `"chat_template_kwargs":{"add_vision_id":true}`},
	{name: "tools", b: `"tools":[{"type":"function","function":{"name":"f"}}]`},
	{name: "tool_choice", a: `"tools":[{"type":"function","function":{"name":"f"}}]`,
		b: `"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none"`},
	{name: "instructions", path: "/v1/responses", b: `"instructions":"Be brief."`},
	{name: "system", path: "/v1/messages", b: `"system":"Be brief."`},
	{name: "mm_processor_kwargs", a: `"image":1`, b: `"image":1,"mm_processor_kwargs":{"max_pixels":50176}`},
	{name: "several prompts", path: "/v1/completions",
		b: `"prompt":["` + strings.Repeat("one ", 60) + `","` + strings.Repeat("two ", 40) + `"]`},
	{name: "token ids", path: "/v1/completions",
		b: `"prompt":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33]`},
	{name: "fields that change nothing", a: `"temperature":0.5`, b: `"temperature":1,"max_tokens":7,"n":1,"user":"u","stream":false`},
	{name: "extra_key", engine: "sglang", version: "0.5.23", b: `"extra_key":"k"`, unread: true},
	{name: "lora_path", engine: "sglang", version: "0.5.23", b: `"lora_path":"lora"`},
	{name: "reasoning_effort", engine: "sglang", version: "0.5.23", b: `"reasoning_effort":"none"`},
	{name: "echo of a completion on SGLang", engine: "sglang", version: "0.5.23", path: "/v1/completions",
		b: `"echo":true,"logprobs":1`, skips: true},
	{name: "input_ids", engine: "sglang", version: "0.5.23",
		b: `"input_ids":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33]`},
}

// request returns a request to an endpoint with some text and fields.
func (p *pathsWorld) request(path, words, fields string) string {
	content := fmt.Sprintf("%q", words)
	if rest, image := strings.CutPrefix(fields, `"image":1`); image {
		content, fields = testImage(5, 640, 480), strings.TrimPrefix(rest, ",")
	}
	all := []string{`"model":"m"`}
	switch prompt := map[string]string{"/v1/completions": "prompt", "/v1/responses": "input"}[path]; prompt {
	case "":
		all = append(all, `"messages":[{"role":"user","content":`+content+`}]`)
	default:
		all = append(all, fmt.Sprintf(`%q:%s`, prompt, content))
	}
	if path == "/v1/messages" {
		all = append(all, `"max_tokens":16`)
	}
	for i, one := range all {
		if key, _, _ := strings.Cut(one, ":"); strings.Contains(","+fields, ","+key+":") {
			all[i] = "" // replaced
		}
	}
	return strings.ReplaceAll(strings.ReplaceAll("{"+strings.Trim(strings.Join(append(all, fields), ","), ",")+"}", ",,", ","), "{,", "{")
}

// TestBothPathsAskEveryFact: each fact that decides what an engine finds is asked whether or not the model's files are there. What is
// called exact is what the engine finds; what is called learned is no more than that, and within a block of it when it was seen before.
func TestBothPathsAskEveryFact(t *testing.T) {
	for _, f := range reuseFacts {
		t.Run(f.name, func(t *testing.T) {
			p := newPathsWorld(t, cmp.Or(f.engine, "vllm"), cmp.Or(f.version, "0.32.0"))
			path := cmp.Or(f.path, "/v1/chat/completions")
			learned := 0
			for i, fields := range []string{f.a, f.a, f.b, f.b, f.b, f.a, f.b} {
				second := i >= 2 && i != 5
				skips, path := f.skips && second, path
				if second {
					path = cmp.Or(f.pathB, path)
				}
				d, found := p.serve(path, p.request(path, text(100, 3), fields), skips, true)
				with, without := d[0], d[1]
				if found < 0 {
					if !f.unread || with.CachedTokens > 0 || without.CachedTokens > 0 {
						t.Errorf("request %d: got %d tokens (%s) with files and %d without, want 0", i, with.CachedTokens, with.Why,
							without.CachedTokens)
					}
					continue
				}
				if f.perhaps && second {
					for k, one := range d {
						if one.CachedTokens > 0 && !one.UpperBound {
							t.Errorf("request %d, router %d: got %d tokens as no upper bound, want one", i, k, one.CachedTokens)
						}
					}
					continue
				}
				if with.Reason == Exact && with.CachedTokens != found {
					t.Errorf("request %d with files: got %d tokens as exact, want %d", i, with.CachedTokens, found)
				}
				if without.Reason == Exact || without.Reason == Learned && without.CachedTokens > min(found, with.CachedTokens) {
					t.Errorf("request %d without files: got %d tokens as %s, want at most %d", i, without.CachedTokens,
						without.Reason, found)
				}
				if skips && (with.CachedTokens > 0 || without.CachedTokens > 0) {
					t.Errorf("request %d: got %d tokens with files and %d without, want 0: the engine reads no cache", i, with.CachedTokens,
						without.CachedTokens)
				}
				if without.Reason == Learned && without.CachedTokens >= found-16 {
					learned++
				}
			}
			if learned < 2 {
				t.Errorf("got %d requests that are learned within a block, want at least 2", learned)
			}
		})
	}
}

// TestBothPathsKnowTheLastBlock: an engine computes a prompt's last token, so a prompt that fills its last block is found without it,
// whichever API it comes by, and whether or not the answer tells how many tokens the prompt has.
func TestBothPathsKnowTheLastBlock(t *testing.T) {
	p := newPathsWorld(t, "vllm", "0.32.0")
	for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"} {
		for _, counted := range []bool{true, false} {
			full := 0
			for n := range 60 { // some of which fill a block
				words := text(30, uint64(n)) + strings.Repeat(" one", n)
				request := p.request(path, words, "")
				p.serve(path, request, false, counted)
				for range 2 {
					d, found := p.serve(path, request, false, counted)
					if d[0].Reason != Exact || d[0].CachedTokens != found {
						t.Errorf("%s with files: got %d tokens (%s), want %d", path, d[0].CachedTokens, d[0].Reason, found)
					}
					if d[0].PromptTokens%16 == 0 {
						full++
					}
					if d[1].CachedTokens > found || counted && (d[1].Reason != Learned || d[1].CachedTokens != found) {
						t.Errorf("%s, counted %v, without files: got %d of %d tokens (%s), want %d", path, counted, d[1].CachedTokens,
							d[0].PromptTokens, d[1].Reason, found)
					}
				}
			}
			if full == 0 {
				t.Errorf("%s: got no prompt that fills its last block, want some", path)
			}
		}
	}
}

// TestBothPathsAskTheIndex: what events say of a worker's cache beside its blocks bounds both predictions alike.
func TestBothPathsAskTheIndex(t *testing.T) {
	group := func(spec kvevent.Spec, last int) func(*testing.T, *world) {
		return func(t *testing.T, w *world) {
			id := w.slots[0].ID
			list, err := w.index.Blocks(id)
			if err != nil || len(list) < 8 {
				t.Fatalf("got %d %v, want no error, at least 8", len(list), err)
			}
			e := kvevent.Event{Kind: kvevent.GroupStored, Group: 1, Spec: spec}
			for _, b := range list[:last] {
				e.EngineHashes = append(e.EngineHashes, b.EngineHash)
			}
			if _, err := w.index.StoreGroup(id, 16, &e); err != nil {
				t.Fatal(err)
			}
		}
	}
	window := kvevent.Spec{Need: kvevent.NeedWindow, Window: 33, BlockSize: 16}
	for _, c := range []struct {
		name string
		says func(*testing.T, *world)
		want func(before, with Decision) bool
	}{
		{"a window that nothing is held of", group(window, 0), func(_, with Decision) bool { return with.CachedTokens == 0 }},
		{"a window over the first half", group(window, 12), func(before, with Decision) bool {
			return with.CachedTokens > 0 && with.CachedTokens < before.CachedTokens
		}},
		{"a state of the first half", group(kvevent.Spec{Need: kvevent.NeedLast, BlockSize: 16}, 12), func(before, with Decision) bool {
			return with.CachedTokens > 0 && with.CachedTokens < before.CachedTokens
		}},
		{"a block that is withheld for drafting", func(_ *testing.T, w *world) { w.index.SetWithholds(w.slots[0].ID, true) },
			func(before, with Decision) bool { return with.CachedTokens == before.CachedTokens-16 }},
		{"units of a lower tier", func(t *testing.T, w *world) {
			models := w.opt.Models
			models[0].Unit = 128
			w.Serve(models, 0, w.opt.PredictedTTL)
			list, err := w.index.Blocks(w.slots[0].ID)
			if err != nil {
				t.Fatal(err)
			}
			var hashes, locals []uint64
			for _, b := range list {
				hashes, locals = append(hashes, b.EngineHash), append(locals, b.Local)
			}
			if err := w.index.Store(w.slots[0].ID, kvevent.CPU, 0, false, hashes, locals); err != nil {
				t.Fatal(err)
			}
			if _, err := w.index.Remove(w.slots[0].ID, kvevent.GPU, hashes); err != nil {
				t.Fatal(err)
			}
		}, func(before, with Decision) bool {
			return with.CachedTokens == before.CachedTokens/128*128 && with.OffloadedTokens == with.CachedTokens
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPathsWorld(t, "vllm", "0.32.0")
			request := p.request("/v1/chat/completions", text(100, 3), "")
			p.serve("/v1/chat/completions", request, false, true)
			before, _ := p.serve("/v1/chat/completions", request, false, true)
			var d [2]Decision
			for i, w := range p.worlds {
				c.says(t, w)
				d[i] = w.decide(request)
			}
			if !c.want(before[0], d[0]) {
				t.Errorf("with files: got %d tokens after %d: %+v", d[0].CachedTokens, before[0].CachedTokens, d[0])
			}
			if d[1].CachedTokens != d[0].CachedTokens || d[1].UpperBound != d[0].UpperBound || d[1].Partial != d[0].Partial ||
				d[1].OffloadedTokens != d[0].OffloadedTokens || d[1].CachedTokens > 0 && d[1].Reason != Learned {
				t.Errorf("without files: got %d tokens (%s, upper %v, partial %v), want %d (upper %v, partial %v)", d[1].CachedTokens,
					d[1].Reason, d[1].UpperBound, d[1].Partial, d[0].CachedTokens, d[0].UpperBound, d[0].Partial)
			}
		})
	}
}
