// Package calibrate measures one idle worker: how fast it prefills, and what an image costs besides its tokens.
//
//	the same long text twice  ─▶ the second hits the prefix cache: tokens saved over time saved is the rate
//	the same image twice      ─▶ likewise; time that the rate does not explain is the encoder's, in tokens of prefill
//
// Texts and images are random, so that no cache holds them. Each request asks for one token.
package calibrate

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/inspect"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/internal/secure"
)

const (
	words      = 8000 // of the long text; about as many tokens
	shortWords = 2000 // if the model's context length is unknown
	imageSide  = 896  // pixels of the image
	patience   = 5 * time.Minute
	askTime    = 5 * time.Second
)

// Options control a measurement.
type Options struct {
	Force bool             // measure even a worker that is busy, or does not report it
	Now   func() time.Time // nil: time.Now
	As    *secure.Client   // TLS settings and key for workers, or nil
}

// Result is the result of a measurement.
type Result struct {
	Rate        float64 // tokens prefilled per second
	ImageTokens int     // of a request with an image of 896 by 896 pixels, including its few words; 0: it accepts no images
	Encode      float64 // cost of that image besides its tokens, in tokens of prefill
}

// Measure measures the worker that f describes, and announces on say what it sends.
func Measure(ctx context.Context, f *rules.Facts, o Options, say io.Writer) (r Result, err error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	switch {
	case len(f.Served) == 0:
		return r, errors.New("it serves no model")
	case f.Requests == nil && !o.Force:
		return r, errors.New("it does not report whether it is idle (--force measures anyway)")
	case f.Requests != nil && *f.Requests > 0 && !o.Force:
		return r, fmt.Errorf("%d requests run or wait there and would distort the measurement (--force measures anyway)", *f.Requests)
	case f.PrefixCaching != nil && !*f.PrefixCaching:
		return r, errors.New("its prefix caching is off: nothing comes from a cache")
	}
	n := shortWords
	if f.MaxModelLen > 0 {
		n = min(words, f.MaxModelLen/4)
	}
	fmt.Fprintf(say, "measuring %s: a short text, twice one of %d words, twice an image of %d by %d pixels, a token each\n",
		f.Addr, n, imageSide, imageSide)
	m := &meter{ctx, rules.NewClient(patience, o.As), f, o.Now}
	if _, err := m.ask(text(8)); err != nil {
		return r, err
	}
	long := text(n)
	spared, took, err := m.twice(long)
	if err != nil {
		return r, err
	}
	r.Rate = float64(spared.tokens) / took.Seconds()
	withImage := []any{map[string]any{"type": "image_url", "image_url": map[string]any{"url": noise()}},
		map[string]any{"type": "text", "text": "?"}}
	spared, took, err = m.twice(withImage)
	if err != nil {
		fmt.Fprintf(say, "%s: nothing measured of images: %v\n", f.Addr, err)
		return r, nil
	}
	r.ImageTokens, r.Encode = spared.prompt, max(0, took.Seconds()*r.Rate-float64(spared.tokens))
	return r, nil
}

// String formats the result for people.
func (r Result) String() string {
	s := fmt.Sprintf("prefills %.0f tokens a second", r.Rate)
	if r.ImageTokens > 0 {
		s += fmt.Sprintf("; an image of %d by %d pixels is %d tokens, and encoding it costs as much as prefilling %.0f more",
			imageSide, imageSide, r.ImageTokens, r.Encode)
	}
	return s
}

// Fleet measures the first worker of each class of a configuration and prints what to write into it.
func Fleet(ctx context.Context, cfg *config.Config, o Options, say io.Writer) error {
	as, err := cfg.WorkerAccess.Open(zap.NewNop())
	if err != nil {
		return fmt.Errorf("worker_access: %w", err)
	}
	o.As = as
	client, done := rules.NewClient(askTime, as), map[string]bool{}
	for i := range cfg.Workers {
		w := &cfg.Workers[i]
		of := fmt.Sprintf("models[%q]", w.Model)
		if w.Class != "" {
			of += fmt.Sprintf(".classes[%q]", w.Class)
		}
		if done[of] {
			continue
		}
		done[of] = true
		f, err := inspect.Ask(ctx, client, w.Addr)
		if err != nil {
			return fmt.Errorf("worker %s: %w", w.Addr, err)
		}
		r, err := Measure(ctx, &f, o, say)
		if err != nil {
			return fmt.Errorf("worker %s: %w", w.Addr, err)
		}
		fmt.Fprintf(say, "%s: %v\n%s.prefill_rate: %d\n", w.Addr, r, of, r.Key())
	}
	if len(done) == 0 {
		return errors.New("the configuration names no worker by its address")
	}
	return nil
}

// Key returns the rate for the key prefill_rate, rounded to two significant digits.
func (r Result) Key() int {
	step := math.Pow(10, math.Floor(math.Log10(max(1, r.Rate)))-1)
	return int(math.Round(r.Rate/step) * step)
}

// meter times requests to one worker.
type meter struct {
	ctx    context.Context //nolint:containedctx // of one measurement
	client *http.Client
	facts  *rules.Facts
	now    func() time.Time
}

// counts holds a request's tokens, and those that the second of two requests was spared.
type counts struct{ prompt, tokens int }

// twice sends the same content twice and returns what the second request was spared. If responses do not count cached tokens, it
// assumes that all tokens were spared.
func (m *meter) twice(content any) (c counts, took time.Duration, err error) {
	var u [2]inspect.Usage
	var took2 [2]time.Duration
	for i := range u {
		began := m.now()
		u[i], err = m.ask(content)
		if err != nil {
			return c, 0, err
		}
		took2[i] = m.now().Sub(began)
	}
	c = counts{u[0].Prompt, u[0].Prompt}
	if u[1].Details != nil {
		c.tokens = u[1].Details.Cached
		if u[0].Details != nil {
			c.tokens -= u[0].Details.Cached
		}
	}
	took = took2[0] - took2[1]
	if took <= took2[0]/10 || c.tokens < 1 {
		return c, took,
			fmt.Errorf("the second of two identical requests took as long as the first (%v and %v): nothing was cached, or "+
				"something else runs there",
				took2[0].Round(time.Millisecond), took2[1].Round(time.Millisecond))
	}
	return c, took, nil
}

func (m *meter) ask(content any) (inspect.Usage, error) {
	body, err := json.Marshal(map[string]any{"model": m.facts.Served[0].ID, "max_tokens": 1,
		"messages": []any{map[string]any{"role": "user", "content": content}}})
	if err != nil {
		return inspect.Usage{}, err
	}
	return inspect.Post(m.ctx, m.client, m.facts.Addr, "/v1/chat/completions", body)
}

// text returns n random words.
func text(n int) string {
	list := strings.Fields("one two three four five red green blue sea wind rain stone tree house door road time day night hand")
	out := make([]string, n)
	for i := range out {
		out[i] = list[rand.IntN(len(list))]
	}
	return strings.Join(out, " ")
}

// noise returns a PNG of random squares as a data URL.
func noise() string {
	img := image.NewGray(image.Rect(0, 0, imageSide, imageSide))
	for y := 0; y < imageSide; y += 8 {
		for x := 0; x < imageSide; x += 8 {
			c := color.Gray{Y: uint8(rand.IntN(256))}
			for i := range 64 {
				img.SetGray(x+i%8, y+i/8, c)
			}
		}
	}
	var b bytes.Buffer
	_ = png.Encode(&b, img) // cannot fail into memory
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(b.Bytes())
}
