package explain

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/internal/denied"
	"github.com/sightline-router/sightline/workers/probe"
)

// against compares requests, as read here, with what a worker makes of them. It asks, in this order:
//
//	/v1/…/render   tokens and names of media (vLLM with --enable-scale-out)
//	/tokenize      tokens; for an engine that takes only text there, of the text that our template made
//	the request    for one token of answer, with return_token_ids: tokens, or at least their number
//
// Before that, it compares how the worker was started with what is configured.
type against struct {
	*model
	addr   string
	named  bool // engine_model is configured
	client *http.Client
	out    io.Writer
}

// theirs is what the worker makes of a request.
type theirs struct {
	asked  string // the path that told it
	tokens []uint32
	count  int      // of tokens, if that is all that is known
	names  []string // of media; nil: not told
	text   bool     // it was given the text that our template made
}

const maxTheirs = 64 << 20

// against returns a function that compares one request.
func (o *Options) against(out io.Writer) (func(ctx context.Context, request []byte) error, error) {
	u, err := url.Parse(o.Against)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("--against %q: want a worker's own address, such as http://10.0.0.5:8000", o.Against)
	}
	m, err := o.model()
	if err != nil {
		return nil, err
	}
	as, err := m.cfg.WorkerAccess.Open(zap.NewNop())
	if err != nil {
		return nil, fmt.Errorf("worker_access: %w", err)
	}
	a := &against{model: m, addr: u.Host, named: m.Server.EngineModel != m.Name || o.Config != "",
		client: rules.NewClient(patience, as), out: out}
	return a.compare, nil
}

func (a *against) compare(ctx context.Context, line []byte) error {
	_, endpoint, request := unwrap(line)
	ours := a.explain(ctx, line)
	fmt.Fprintf(a.out, "── %s against %s\n", cmp.Or(ours.ID, "request"), a.addr)
	if ours.Error != "" {
		a.say("error", "%s", ours.Error)
		return errDiffers
	}
	if !ours.Exact {
		a.say("ours", "ends after %d tokens: %s", len(ours.TokenIDs), ours.Why)
	}
	t, err := a.ask(ctx, endpoint, request, &ours)
	if err != nil {
		return fmt.Errorf("--against: %w", err)
	}
	a.say("asked", "%s", t.asked)
	settings := a.judgeSettings(ctx, len(ours.MM) > 0)
	fix, compared := a.judge(ctx, &ours, t)
	defer fmt.Fprintln(a.out)
	switch {
	case fix != "" || settings != "":
		a.say("look at", "%s", cmp.Or(fix, settings))
		return errDiffers
	case !ours.Exact:
		a.say("result", "not equal and not other: %d of the worker's %d tokens were compared, and those are equal",
			compared, max(t.count, len(t.tokens)))
		return errPartly
	}
	a.say("result", "equal, as far as it was told")
	return nil
}

// judgeSettings prints how the worker was started otherwise than configured, and returns which keys to look at; "": none. Of the name of
// images it speaks if they have one here.
func (a *against) judgeSettings(ctx context.Context, media bool) string {
	var keys []string
	found, _ := probe.Settings(ctx, a.client, &probe.Worker{Addr: a.addr}, a.Model)
	for _, f := range found {
		switch {
		case f.Verdict != probe.Configuration:
			a.say("settings", "not compared: %s", f.Detail)
		case slices.Contains(probe.Identity, f.What) && (f.What != "engine_model" || media || a.named):
			a.say("differ", "%s: %s", f.What, f.Detail)
			keys = append(keys, f.What)
		}
	}
	return strings.Join(keys, ", ")
}

func (a *against) say(key, format string, args ...any) {
	fmt.Fprintf(a.out, "%-9s %s\n", key, fmt.Sprintf(format, args...))
}

var (
	errDiffers = errors.New("the worker reads the request otherwise, as printed")
	errPartly  = errors.New("the request was compared in part, as printed")
)

// judge prints where the two sides differ, and returns which part to look at, "" if they do not, and how many tokens were compared.
func (a *against) judge(ctx context.Context, ours *explained, t *theirs) (fix string, compared int) {
	if t.tokens == nil {
		a.say("tokens", "ours %d, the worker's %d; it does not say which", len(ours.TokenIDs), t.count)
		if t.count == len(ours.TokenIDs) || !ours.Exact && t.count > len(ours.TokenIDs) {
			return "", 0
		}
		return "chat_template and dir: as the worker's; with an image, mm_processor_kwargs and engine_version", 0
	}
	at := 0
	for at < min(len(ours.TokenIDs), len(t.tokens)) && ours.TokenIDs[at] == t.tokens[at] {
		at++
	}
	a.say("tokens", "ours %d, the worker's %d", len(ours.TokenIDs), len(t.tokens))
	if at == len(ours.TokenIDs) && (at == len(t.tokens) || !ours.Exact) {
		return a.judgeNames(ours, t), at
	}
	return a.judgeTokens(ctx, ours, t, at), at
}

// judgeTokens prints the first token that differs.
func (a *against) judgeTokens(ctx context.Context, ours *explained, t *theirs, at int) string {
	from := max(0, at-4)
	a.say("differ", "first at token %d", at)
	a.say("ours", "%s", a.text(ours.TokenIDs, from, at))
	a.say("worker's", "%s", a.text(t.tokens, from, at))
	for _, md := range ours.MM {
		if at < md.Offset || at > md.Offset+md.Length || md.Length == 0 {
			continue
		}
		return fmt.Sprintf("the %s at token %d has %d tokens here and another number there: mm_processor_kwargs, engine_version, and the "+
			"preprocessor's file in dir", md.Modality, md.Offset, md.Length)
	}
	const tokenizer = "the tokenizer: dir must have the worker's own files, of the same revision"
	switch {
	case t.text:
		return tokenizer
	case a.sameText(ctx, ours, at):
		return "the template: chat_template, chat_template_content_format and default_chat_template_kwargs, as the worker was started; " +
			"the worker reads our text as we do"
	}
	return tokenizer + "; it reads our template's text otherwise"
}

// judgeNames compares the names of media.
func (a *against) judgeNames(ours *explained, t *theirs) string {
	for i, md := range ours.MM {
		switch {
		case t.names == nil:
			a.say("names", "the worker does not report the names of media; /audit of a running Sightline does")
			return ""
		case i >= len(t.names):
			return fmt.Sprintf("the images: %d here, %d there", len(ours.MM), len(t.names))
		case md.Name != t.names[i]:
			a.say("differ", "the name of the %s at token %d: ours %s, the worker's %s", md.Modality, md.Offset, md.Name, t.names[i])
			return "the name: mm_hasher_algorithm, engine_model, media_io_kwargs and engine_version, as the worker was started"
		}
	}
	return ""
}

// sameText reports whether the worker makes our tokens of our template's text, from the last medium before the place where the two
// sides differ up to past it. A medium is no text.
func (a *against) sameText(ctx context.Context, ours *explained, at int) bool {
	var answer struct {
		Tokens []uint32 `json:"tokens"`
	}
	if a.post(ctx, "/tokenize", asText(ours), &answer) != nil {
		return false
	}
	from := 0
	for _, md := range ours.MM {
		if end := md.Offset + md.Length; end <= at {
			from = end
		}
	}
	want := ours.TokenIDs[from:min(at+1, len(ours.TokenIDs))]
	if from == 0 {
		answer.Tokens = answer.Tokens[:min(len(want), len(answer.Tokens))]
	}
	for begin := range len(answer.Tokens) - len(want) + 1 {
		if slices.Equal(answer.Tokens[begin:begin+len(want)], want) {
			return true
		}
	}
	return false
}

// asText returns the request to /tokenize for the text that our template made.
func asText(ours *explained) []byte {
	ask, _ := json.Marshal(map[string]any{"prompt": ours.Rendered, "add_special_tokens": false}) // a string always marshals
	return ask
}

// text writes the tokens around a place, with their text; the one that differs is marked.
func (a *against) text(ids []uint32, from, at int) string {
	var b strings.Builder
	for i := from; i < min(len(ids), at+4); i++ {
		mark := ""
		if i == at {
			mark = "» "
		}
		fmt.Fprintf(&b, "%s%d %q  ", mark, ids[i], a.Text(ids[i]))
	}
	if at >= len(ids) {
		b.WriteString("» the end")
	}
	return strings.TrimSpace(b.String())
}

// ask asks the worker for its tokens, in the first way that it has.
func (a *against) ask(ctx context.Context, endpoint string, request []byte, ours *explained) (*theirs, error) {
	var rendered struct {
		Tokens   []uint32 `json:"token_ids"`
		Features struct {
			Hashes map[string][]string `json:"mm_hashes"`
		} `json:"features"`
	}
	path := endpoint + "/render"
	failed := a.post(ctx, path, request, &rendered)
	if failed == nil && rendered.Tokens != nil {
		t := &theirs{asked: path, tokens: rendered.Tokens, names: []string{}}
		at := map[string]int{}
		for _, md := range ours.MM { // by their order in the prompt
			if list := rendered.Features.Hashes[md.Modality]; at[md.Modality] < len(list) {
				t.names = append(t.names, list[at[md.Modality]])
				at[md.Modality]++
			}
		}
		return t, nil
	}
	var tokens struct {
		Tokens []uint32 `json:"tokens"`
	}
	r := a.Rules()
	ask, text := request, endpoint == denied.Chat && !r.TokenizesChats
	if text {
		ask = asText(ours)
	}
	if r.HasTokenize && (len(ours.MM) == 0 || r.TokenizesImages) && (endpoint == denied.Chat || endpoint == denied.Completions) {
		failed = a.post(ctx, "/tokenize", ask, &tokens)
		if failed == nil && tokens.Tokens != nil {
			return &theirs{asked: "/tokenize", tokens: tokens.Tokens, text: text}, nil
		}
	}
	var whole map[string]any
	if err := json.Unmarshal(request, &whole); err != nil {
		return nil, err
	}
	maps.Copy(whole, map[string]any{"max_tokens": 1, "stream": false, "return_token_ids": true})
	delete(whole, "max_completion_tokens")
	delete(whole, "stream_options")
	ask, err := json.Marshal(whole)
	if err != nil {
		return nil, err
	}
	var answered struct {
		Tokens  []uint32 `json:"prompt_token_ids"`
		Choices []struct {
			Tokens []uint32 `json:"prompt_token_ids"`
		} `json:"choices"`
		Usage struct {
			Prompt int `json:"prompt_tokens"`
		} `json:"usage"`
	}
	if err := a.post(ctx, endpoint, ask, &answered); err != nil {
		return nil, err
	}
	t := &theirs{asked: endpoint + ", for one token of answer", tokens: answered.Tokens, count: answered.Usage.Prompt}
	if t.tokens == nil && len(answered.Choices) > 0 {
		t.tokens = answered.Choices[0].Tokens
	}
	if t.tokens == nil && t.count == 0 {
		return nil, errors.Join(fmt.Errorf("%s answers neither with the prompt's tokens nor with their number: is it a worker?", a.addr), failed)
	}
	return t, nil
}

// post asks the worker. An error quotes the worker's own message, as the request is the user's own.
func (a *against) post(ctx context.Context, path string, request []byte, into any) error {
	err := rules.PostJSON(ctx, a.client, a.addr, path, request, maxTheirs, into)
	status, is := errors.AsType[*rules.StatusError](err)
	switch {
	case is && rules.WantsKey(status.Status):
		return fmt.Errorf("POST %s: status %d: %s", path, status.Status, rules.KeyHint)
	case is && status.Status != http.StatusOK:
		return fmt.Errorf("POST %s: status %d: %s", path, status.Status, status.Text)
	case is || errors.Is(err, rules.Unreadable):
		return fmt.Errorf("%w: is it a worker's own port?", err)
	}
	return err
}
