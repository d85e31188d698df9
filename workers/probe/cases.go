package probe

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"slices"
	"sync"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/rules"
)

// hardText is text on which tokenizers and templates often differ: joined letters, wide and right-to-left scripts, emoji of several
// code points, numbers, white space, code, and what looks like a special token.
const hardText = "Zürich naïve 東京タワー مرحبا 👩‍👩‍👧 1234567.89\t \r\n\n   don't {\"a\": [1, 2]} <b>&amp;</b> ﬁ <|im_end|></s>[INST] "

// probeCase is one conversation to compare: a path that we can read and the body for both sides.
type probeCase struct {
	what string
	path string
	body map[string]any
}

// cases returns the conversations for a model. vLLM's /tokenize takes messages, and expands images since 0.17 (#34560);
// SGLang's takes only text.
func cases(m *engine.Model) []probeCase {
	list := []probeCase{{"text", "/v1/completions", map[string]any{"prompt": hardText}}}
	say := func(role string, content any) map[string]any { return map[string]any{"role": role, "content": content} }
	converse := func(what string, messages ...map[string]any) {
		body := map[string]any{"messages": messages}
		if m.Server.TemplateKwargs != "" { // not every release applies the server's own here
			body["chat_template_kwargs"] = json.RawMessage(m.Server.TemplateKwargs)
		}
		list = append(list, probeCase{what, "/v1/chat/completions", body})
	}
	converse("one turn", say("user", hardText))
	converse("system and user", say("system", "Answer in one word."), say("user", " What is this? "))
	converse("several turns", say("user", "Hello"), say("assistant", "Hi, "+hardText), say("user", "And now?\n"))
	if m.Family() != "" && m.Rules().TokenizesImages {
		show := func(what, url string) {
			converse(what, say("user", []any{map[string]any{"type": "image_url", "image_url": map[string]any{"url": url}},
				map[string]any{"type": "text", "text": "What is this?"}}))
		}
		show(Image, smallURL())
		show(LargeImage, largeURL())
	}
	return list
}

// What the conversations with images are called. The small one shows another min_pixels, the large one another max_pixels.
const (
	Image      = "an image"
	LargeImage = "a large image"
)

// The images as data URLs, encoded once: with a thousand workers that was a quarter of what probing them took.
var (
	smallURL = sync.OnceValue(func() string { return imageURL(320, 200) })
	largeURL = sync.OnceValue(func() string { return imageURL(1280, 1024) })
)

// imageURL returns a PNG of one color as a data URL.
func imageURL(width, height int) string {
	var b bytes.Buffer
	_ = png.Encode(&b, image.NewRGBA(image.Rect(0, 0, width, height)))
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(b.Bytes())
}

// probeWorker probes a worker, and returns its release as Settings does. It stops at the first sign that the worker does not answer.
func (p *Prober) probeWorker(ctx context.Context, w *Worker) (found []Finding, release string) {
	m := w.Ours.Model()
	found, release = Settings(ctx, p.client, w, m)
	if slices.ContainsFunc(found, func(f Finding) bool { return f.Verdict == Unreachable }) {
		return found, release
	}
	if !m.Rules().HasTokenize {
		return append(found, Finding{What: "tokens", Verdict: Absent, Detail: "TensorRT-LLM has no /tokenize"}), release
	}
	for _, c := range cases(m) {
		f := p.compare(ctx, w, m, c)
		found = append(found, f)
		if f.Verdict == Unreachable || f.Verdict == Absent {
			break
		}
	}
	return found, release
}

// compare tokenizes one conversation on both sides.
func (p *Prober) compare(ctx context.Context, w *Worker, m *engine.Model, c probeCase) Finding {
	f := Finding{What: c.what, Verdict: Equal}
	text, ours, err := read(ctx, m, c)
	var refused *engine.Refused
	if err != nil && !errors.As(err, &refused) {
		f.Verdict, f.Detail = Inexact, err.Error()
		if ctx.Err() != nil { // the worker's other answers took all the time: it is probed again
			f.Verdict = Unreachable
		}
		return f
	}
	ask := c.body
	if !m.Rules().TokenizesChats && c.path != "/v1/completions" {
		if refused != nil {
			f.Verdict, f.Detail = Inexact, refused.Error()
			return f
		}
		ask = map[string]any{"prompt": text, "add_special_tokens": false} // the template is not compared
	}
	body, err := json.Marshal(ask)
	if err != nil {
		f.Verdict, f.Detail = Inexact, err.Error()
		return f
	}
	var answer struct {
		Tokens []uint32 `json:"tokens"`
	}
	err = rules.PostJSON(ctx, p.client, w.Addr, "/tokenize", body, maxAnswer, &answer)
	verdict := verdictOf(err)
	switch {
	case err == nil && refused != nil:
		f.Verdict, f.Detail = Refused, "the worker accepts what Sightline expects it to refuse: "+refused.Error()
	case err == nil && answer.Tokens == nil:
		f.Verdict, f.Detail = Unreachable, "/tokenize: "+rules.Unreadable.Error()
	case err == nil:
		f.Difference = firstDifference(ours, answer.Tokens)
		if f.Difference != nil {
			f.Difference.texts(m.Text)
			f.Verdict, f.Detail = Differs, f.Difference.String()
		}
	case verdict == Refused && refused != nil: // both refuse
	default:
		f.Verdict, f.Fault, f.Detail = verdict, rules.FaultOf(err), err.Error()
	}
	return f
}

// read tokenizes a conversation on our side. It returns an error if the result is not exact.
func read(ctx context.Context, m *engine.Model, c probeCase) (text string, ids []uint32, err error) {
	skeleton, err := json.Marshal(c.body)
	if err != nil {
		return "", nil, err
	}
	var s body.Skeleton
	defer s.Release()
	var req body.Request
	if err := body.Read([][]byte{skeleton}, &s, &req); err != nil {
		return "", nil, err
	}
	ps, err := m.Read(ctx, c.path, "", &req)
	if err != nil {
		return "", nil, err
	}
	one := &ps.List[0]
	if !one.Exact {
		return "", nil, errors.New(one.Why)
	}
	return one.Rendered, one.IDs, nil
}

// firstDifference returns the first difference; nil: none.
func firstDifference(ours, theirs []uint32) *Difference {
	n := 0
	for n < len(ours) && n < len(theirs) && ours[n] == theirs[n] {
		n++
	}
	if n == len(ours) && n == len(theirs) {
		return nil
	}
	d := &Difference{Position: n, Ours: -1, Theirs: -1, OurLen: len(ours), TheirsLen: len(theirs)}
	if n < len(ours) {
		d.Ours = int64(ours[n])
	}
	if n < len(theirs) {
		d.Theirs = int64(theirs[n])
	}
	return d
}

// texts fills in the texts of the two tokens.
func (d *Difference) texts(of func(id uint32) string) {
	if d.Ours >= 0 {
		d.OurText = of(uint32(d.Ours))
	}
	if d.Theirs >= 0 {
		d.TheirText = of(uint32(d.Theirs))
	}
}

func (d *Difference) String() string {
	token := func(id int64, text string) string {
		if id < 0 {
			return "the end"
		}
		return fmt.Sprintf("%d %q", id, text)
	}
	return fmt.Sprintf("at token %d: ours %s, the worker's %s; %d and %d tokens", d.Position, token(d.Ours, d.OurText),
		token(d.Theirs, d.TheirText), d.OurLen, d.TheirsLen)
}
