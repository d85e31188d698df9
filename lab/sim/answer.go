package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab/vllmid"
)

var errNoPrompt = errors.New("the request holds no prompt")

// job is one HTTP request in work: its sequences, and what its answer needs.
type job struct {
	path      string
	chat      bool
	tool      string // the function that it must call
	id, model string
	created   int64
	returnIDs bool
	usage     bool // stream_options.include_usage
	prompts   []Prompt
	seqs      []*sequence // the engine's once submitted: of theirs, only what never changes is read here
	out       chan output
}

// generate serves /v1/chat/completions, /v1/completions, /v1/responses and /v1/messages.
func (w *Worker) generate(rw http.ResponseWriter, r *http.Request) {
	raw, body, adapter, err := w.readBody(rw, r)
	if err != nil {
		refuse(rw, err)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel() // whatever ends the answer early ends the work
	rank := r.Header.Get("X-Data-Parallel-Rank")
	if w.cfg.Engine != VLLM {
		rank = body.Get("routed_dp_rank").Raw // SGLang's
	}
	e, err := w.pick(rank)
	if err != nil {
		refuse(rw, err)
		return
	}
	j, err := w.job(ctx, r, raw, body, adapter)
	if err != nil {
		refuse(rw, err)
		return
	}
	e.submit(j.seqs...)
	if j.path == responsesPath || j.path == messagesPath {
		w.answerOther(ctx, rw, j, body.Get("stream").Bool())
		return
	}
	write := w.writeWhole
	if body.Get("stream").Bool() {
		write = w.writeStream
	}
	write(ctx, rw, j)
}

// job reads the request's options and makes its sequences.
func (w *Worker) job(ctx context.Context, r *http.Request, raw []byte, body gjson.Result, adapter int) (*job, error) {
	j := &job{
		path: r.URL.Path, tool: toolDemanded(body),
		chat: strings.HasSuffix(r.URL.Path, "/chat/completions"), model: w.cfg.ServedName, created: time.Now().Unix(),
		returnIDs: body.Get("return_token_ids").Bool(),
		usage:     body.Get("stream_options.include_usage").Bool(),
	}
	kind := "cmpl-"
	if j.chat {
		kind = "chatcmpl-"
	}
	j.id = kind + r.Header.Get("X-Request-Id")
	if j.id == kind {
		j.id = fmt.Sprintf("%s%d", kind, w.ids.Add(1))
	}
	prompts, err := w.cfg.Prompt(ctx, r.URL.Path, raw)
	if err != nil {
		return nil, err
	}
	if len(prompts) == 0 {
		return nil, errNoPrompt
	}
	j.prompts = prompts
	priority, err := w.priorityOf(r, body)
	if err != nil {
		return nil, err
	}
	if err := w.nameMedia(ctx, body, prompts); err != nil {
		return nil, err
	}
	limit := w.cfg.MaxTokens
	for _, key := range []string{"max_tokens", "max_completion_tokens", "max_output_tokens"} {
		if v := body.Get(key); v.Type == gjson.Number {
			limit = int(v.Int())
		}
	}
	if limit < 1 || limit > w.cfg.MaxModelLen {
		return nil, &Refusal{Message: fmt.Sprintf("max_tokens must be at least 1 and at most %d, got %d.", w.cfg.MaxModelLen, limit)}
	}
	scope := vllmid.Scope{Salt: body.Get("cache_salt").Str}
	if adapter > 0 {
		a := w.cfg.Adapters[adapter-1]
		j.model, scope.LoRA, scope.LoRAPath = a.Name, a.Name, a.Path
	}
	j.out = make(chan output, limit*len(prompts))
	for i, p := range prompts {
		if len(p.Tokens) == 0 {
			return nil, errNoPrompt
		}
		if len(p.Tokens)+limit > w.cfg.MaxModelLen {
			return nil, &Refusal{Message: fmt.Sprintf("Input length (%d) exceeds model's maximum context length (%d).",
				len(p.Tokens), w.cfg.MaxModelLen)}
		}
		s := &sequence{
			priority: priority,
			ctx:      ctx, index: i, size: w.engines[0].pool.Unit(), scope: scope, adapter: adapter,
			session: r.Header.Get("X-Session-Id"), max: limit, arrived: time.Now(), out: j.out,
			tokens: append(make([]uint32, 0, len(p.Tokens)+limit), p.Tokens...), request: request{Prompt: len(p.Tokens)},
			answer: w.answer(p), report: body.Get("vllm_xargs.kv_cache_report_mode").Str == "full",
		}
		s.noRead = w.cfg.NoPrefixCache || asksPromptLogprobs(body) // every prompt token must be computed
		for _, m := range p.Media {
			s.items = append(s.items, vllmid.Item{Identifier: m.Identifier, Offset: m.Offset, Length: m.Length})
		}
		j.seqs = append(j.seqs, s)
	}
	return j, nil
}

// asksPromptLogprobs tells whether a request wants log probabilities of its prompt, as vLLM 0.32 reads it: echo stands for
// them too, with the number of top_logprobs (a chat's default is 0, which counts) or of logprobs.
func asksPromptLogprobs(body gjson.Result) bool {
	given := func(key string) bool { return body.Get(key).Exists() && body.Get(key).Type != gjson.Null }
	switch {
	case given("prompt_logprobs"):
		return true
	case !body.Get("echo").Bool():
		return false
	case body.Get("prompt").Exists():
		return given("logprobs")
	}
	return given("top_logprobs") || !body.Get("top_logprobs").Exists()
}

// answer gives the tokens to generate: those that the prompt asks for, else words that depend on the prompt only.
func (w *Worker) answer(p Prompt) func(i int) uint32 {
	if len(p.Answer) > 0 {
		return func(i int) uint32 { return p.Answer[i%len(p.Answer)] }
	}
	seed := uint32(len(p.Tokens))
	for _, t := range p.Tokens {
		seed = seed*31 + t
	}
	return func(i int) uint32 {
		h := (seed + uint32(i)) * 2654435761
		return w.cfg.Words[(h>>16)%uint32(len(w.cfg.Words))].ID
	}
}

func defaultWords() []Word {
	var words []Word
	for i, text := range strings.Fields("the lighthouse keeper walks along quiet dunes and counts seven small red boats at dawn today") {
		words = append(words, Word{uint32(100 + i), " " + text})
	}
	return words
}

func (w *Worker) text(token uint32) string {
	if t, ok := w.words[token]; ok {
		return t
	}
	return w.cfg.Words[int(token)%len(w.cfg.Words)].Text
}

// The answer's JSON. Choice and message parts that a form lacks are left out.
type (
	completion struct {
		ID             string   `json:"id"`
		Object         string   `json:"object"`
		Created        int64    `json:"created"`
		Model          string   `json:"model"`
		Choices        []choice `json:"choices"`
		Usage          *usage   `json:"usage,omitempty"`
		PromptTokenIDs []uint32 `json:"prompt_token_ids,omitempty"` // chat; completions have them in the choice
	}
	choice struct {
		Index          int      `json:"index"`
		Message        *message `json:"message,omitempty"`
		Delta          *message `json:"delta,omitempty"`
		Text           *string  `json:"text,omitempty"`
		Logprobs       any      `json:"logprobs"`
		FinishReason   *string  `json:"finish_reason"`
		PromptTokenIDs []uint32 `json:"prompt_token_ids,omitempty"`
		TokenIDs       []uint32 `json:"token_ids,omitempty"`
	}
	message struct {
		Role      string     `json:"role,omitempty"`
		Content   string     `json:"content"`
		ToolCalls []toolCall `json:"tool_calls,omitempty"`
	}
	toolCall struct {
		Index    int    `json:"index"`
		ID       string `json:"id"`
		Type     string `json:"type"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	}
	usage struct {
		PromptTokens     int           `json:"prompt_tokens"`
		TotalTokens      int           `json:"total_tokens"`
		CompletionTokens int           `json:"completion_tokens"`
		Details          *usageDetails `json:"prompt_tokens_details"`
	}
	usageDetails struct {
		CachedTokens       int            `json:"cached_tokens"`
		CreatedCacheTokens *int           `json:"created_cache_tokens"` // chat only, as in vLLM
		MultimodalTokens   map[string]int `json:"multimodal_tokens"`
	}
)

// usageOf sums up what the sequences used; cached and generated are by sequence.
func (w *Worker) usageOf(j *job, cached, generated []int) *usage {
	u, created := &usage{Details: new(usageDetails)}, 0
	if j.chat {
		u.Details.CreatedCacheTokens = &created
	}
	for i, s := range j.seqs {
		u.PromptTokens += s.Prompt
		u.CompletionTokens += generated[i]
		u.Details.CachedTokens += cached[i]
		created += w.engines[0].pool.Kept(s.Prompt) - cached[i]
		for _, m := range j.prompts[i].Media {
			if u.Details.MultimodalTokens == nil {
				u.Details.MultimodalTokens = map[string]int{}
			}
			u.Details.MultimodalTokens[m.Modality] += m.Length
		}
	}
	if w.cfg.Bare || w.cfg.Engine == SGLang && u.Details.CachedTokens == 0 { // --enable-cache-report says nothing of nothing
		u.Details = nil
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return u
}

// collect hands each output to each until all sequences are done; false if ctx ended first.
func (j *job) collect(ctx context.Context, each func(output) error) (cached, generated []int, ok bool) {
	cached, generated = make([]int, len(j.seqs)), make([]int, len(j.seqs))
	for left := len(j.seqs); left > 0; {
		select {
		case <-ctx.Done():
			return cached, generated, false
		case o := <-j.out:
			cached[o.index], generated[o.index] = o.cached, o.n
			if each(o) != nil {
				return cached, generated, false
			}
			if o.last {
				left--
			}
		}
	}
	return cached, generated, true
}

// A text always ends by its length: filler never ends by itself.
var finishReason, calls = "length", "tool_calls"

// call returns the message of a call of the tool that was demanded.
func (j *job) call(text string) *message {
	c := toolCall{ID: "call_" + j.id, Type: "function"}
	c.Function.Name, c.Function.Arguments = j.tool, arguments(text)
	return &message{Role: "assistant", ToolCalls: []toolCall{c}}
}

func (w *Worker) writeWhole(ctx context.Context, rw http.ResponseWriter, j *job) {
	texts, ids := make([]strings.Builder, len(j.seqs)), make([][]uint32, len(j.seqs))
	cached, generated, ok := j.collect(ctx, func(o output) error {
		texts[o.index].WriteString(w.text(o.token))
		ids[o.index] = append(ids[o.index], o.token)
		return nil
	})
	if !ok {
		return
	}
	c := completion{ID: j.id, Object: "text_completion", Created: j.created, Model: j.model, Usage: w.usageOf(j, cached, generated)}
	for i := range j.seqs {
		text := texts[i].String()
		ch := choice{Index: i, FinishReason: &finishReason}
		if j.chat {
			c.Object, ch.Message = "chat.completion", &message{Role: "assistant", Content: text}
			if j.tool != "" {
				ch.Message, ch.FinishReason = j.call(text), &calls
			}
		} else {
			ch.Text = &text
		}
		if j.returnIDs {
			ch.TokenIDs = ids[i]
			if j.chat {
				c.PromptTokenIDs = j.prompts[i].Tokens
			} else {
				ch.PromptTokenIDs = j.prompts[i].Tokens
			}
		}
		c.Choices = append(c.Choices, ch)
	}
	b, _ := json.Marshal(c)
	w.writeBody(rw, b)
}

// writeBody writes a whole answer.
func (w *Worker) writeBody(rw http.ResponseWriter, b []byte) {
	rw.Header().Set("Content-Type", "application/json")
	if Fault(w.fault.Load()) == DieAfterFirstByte {
		_, _ = rw.Write(b[:len(b)/2])
		_ = http.NewResponseController(rw).Flush()
		panic(http.ErrAbortHandler) // net/http's way to break the connection
	}
	_, _ = rw.Write(b)
}

func (w *Worker) writeStream(ctx context.Context, rw http.ResponseWriter, j *job) {
	flush := http.NewResponseController(rw).Flush
	object := "text_completion"
	if j.chat {
		object = "chat.completion.chunk"
	}
	rw.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	if flush() != nil { // the headers, before anything is computed, as uvicorn sends them for all three engines
		return
	}
	send := func(u *usage, promptIDs []uint32, choices ...choice) error {
		c := completion{ID: j.id, Object: object, Created: j.created, Model: j.model, Choices: choices, Usage: u, PromptTokenIDs: promptIDs}
		if c.Choices == nil {
			c.Choices = []choice{}
		}
		b, _ := json.Marshal(c)
		if _, err := fmt.Fprintf(rw, "data: %s\n\n", b); err != nil {
			return err
		}
		if err := flush(); err != nil {
			return err
		}
		if Fault(w.fault.Load()) == DieAfterFirstByte {
			panic(http.ErrAbortHandler)
		}
		return nil
	}
	texts := make([]strings.Builder, len(j.seqs)) // of a call, which is sent as a whole
	cached, generated, ok := j.collect(ctx, func(o output) error {
		ch := choice{Index: o.index}
		if j.chat && j.tool != "" {
			texts[o.index].WriteString(w.text(o.token))
			if !o.last {
				return nil
			}
			ch.Delta, ch.FinishReason = j.call(texts[o.index].String()), &calls
			return send(nil, nil, ch)
		}
		var promptIDs []uint32
		if j.returnIDs && o.n == 1 {
			promptIDs = j.prompts[o.index].Tokens
		}
		if j.chat {
			if o.n == 1 { // the role comes alone, with the first token
				first := ch
				first.Delta = &message{Role: "assistant"}
				if err := send(nil, promptIDs, first); err != nil {
					return err
				}
			}
			ch.Delta = &message{Content: w.text(o.token)}
		} else {
			text := w.text(o.token)
			ch.Text, ch.PromptTokenIDs = &text, promptIDs
		}
		if j.returnIDs {
			ch.TokenIDs = []uint32{o.token}
		}
		if o.last {
			ch.FinishReason = &finishReason
		}
		return send(nil, nil, ch)
	})
	if !ok {
		return
	}
	if j.usage && send(w.usageOf(j, cached, generated), nil) != nil {
		return
	}
	_, _ = rw.Write([]byte("data: [DONE]\n\n"))
	_ = flush()
}
