// Package bench measures a running Envoy from its clients' side: it sends conversations of a shape, or a trace, and reports how
// long answers took and how much of the prompts the engines found cached. With a second address, such as a listener without
// Sightline, it alternates between the two and compares them.
//
//	fleetsim.Shape, ReadTrace ─▶ content.go: bodies ─▶ send.go: an Envoy, or extproc.go: Sightline alone ─▶ report.go
//
// Each round uses its own words and images, so that it finds nothing of other rounds in the workers' caches.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sightline-router/sightline/lab/fleetsim"
)

// Options are the flags of `sightline-lab bench`.
type Options struct {
	URL     string   `name:"url" xor:"side" placeholder:"URL" help:"The Envoy to measure, such as http://127.0.0.1:10000."`
	Without string   `placeholder:"URL" help:"URL of the same workers without Sightline, for comparison."`
	ExtProc string   `xor:"side" placeholder:"ADDR" help:"Ask Sightline itself for decisions, as Envoy would: host:port or unix:/path. No worker gets a request."`
	Model   string   `help:"The model in requests; default: the first of /v1/models."`
	Header  []string `sep:"none" placeholder:"NAME: VALUE" help:"A header of every request, such as 'Authorization: Bearer …'. Repeatable."`

	Shape   string  `enum:"chats,images,agents" default:"images" help:"chats: turns of text; images: questions about images; agents: long instructions, many short steps."`
	Reuse   float64 `default:"0.5" help:"Share of conversations that begin like another one: with the same image or the same instructions."`
	Rate    float64 `default:"2" help:"Conversations started per second."`
	Seconds float64 `default:"30" help:"Seconds per round in which conversations are started; the round ends with the last of them, up to a minute later at human pace."`
	Trace   string  `type:"existingfile" help:"Replay a trace in Mooncake's format instead, gzipped or not; a decision log is such a trace."`
	Speed   float64 `default:"1" help:"Speed-up of a trace's recorded times, or of the pauses between turns."`
	Most    int     `default:"10000" help:"Maximum number of requests per round."`
	Answer  int     `default:"64" help:"Maximum number of tokens per answer; 0: as the traffic says."`
	Clients int     `default:"64" help:"Maximum number of requests in flight."`
	Rounds  int     `default:"1" help:"Rounds per side (with and without Sightline), alternating; each uses its own words and images."`
	Seed    uint64  `help:"Seed of the traffic; default: random, so that no run hits what another left in the caches."`
	JSON    bool    `name:"json" help:"Print one JSON object per side."`
}

// Run measures and prints the results to out. It shows its progress on progress, if that is a terminal.
func Run(ctx context.Context, o Options, out io.Writer, progress *os.File) error {
	sides, err := o.sides(ctx)
	if err != nil {
		return err
	}
	if _, err := o.traffic(1); err != nil {
		return err
	}
	seed := cmp.Or(o.Seed, rand.Uint64())
	for n := range max(1, o.Rounds) * len(sides) {
		round, side := seed+uint64(n/len(sides)), sides[n%len(sides)]
		list, err := o.traffic(round)
		if err != nil {
			return err
		}
		side.play(ctx, &o, list, round*2+uint64(n%len(sides)),
			newBar(progress, fmt.Sprintf("%s, round %d", side.Name, 1+n/len(sides)), len(list)))
		if ctx.Err() != nil {
			break // print what is known so far
		}
	}
	err = report(out, &o, sides)
	for _, s := range sides {
		if s.Requests == s.Failed {
			err = errors.Join(err, fmt.Errorf("%s: every request failed: %s", s.Name, s.lastError))
		}
	}
	return err
}

// sides returns the sides to measure, the one with Sightline first.
func (o *Options) sides(ctx context.Context) ([]*side, error) {
	if (o.URL == "") == (o.ExtProc == "") {
		return nil,
			errors.New("nothing to measure is given (want one of --url, an Envoy such as http://127.0.0.1:10000, and " +
				"--ext-proc, a Sightline such as 127.0.0.1:9002)")
	}
	if o.ExtProc != "" {
		if o.Without != "" || o.Model == "" {
			return nil, errors.New("--ext-proc needs --model, and goes without --without")
		}
		ask, err := dial(o.ExtProc)
		return []*side{{Name: "Sightline alone", ask: ask}}, err
	}
	for _, at := range []*string{&o.URL, &o.Without} {
		if *at != "" && !strings.Contains(*at, "://") {
			*at = "http://" + *at
		}
	}
	header := make(http.Header)
	for _, h := range o.Header {
		name, value, _ := strings.Cut(h, ":")
		header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	client := &http.Client{Timeout: 10 * time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: o.Clients, DisableCompression: true}}
	if o.Model == "" {
		var err error
		o.Model, err = served(ctx, client, o.URL, header)
		if err != nil {
			return nil, fmt.Errorf("%s lists no model: %w (want an Envoy before the workers; --model NAME does without /v1/models)", o.URL, err)
		}
	}
	through := func(name, url string) *side {
		return &side{Name: name, ask: func(ctx context.Context, body []byte) (Answer, error) {
			return Ask(ctx, client.Do, url, header, body)
		}}
	}
	if o.Without == "" {
		return []*side{through("measured", o.URL)}, nil
	}
	return []*side{through("with", o.URL), through("without", o.Without)}, nil
}

// traffic generates a round's requests.
func (o *Options) traffic(seed uint64) ([]*fleetsim.Request, error) {
	speed := cmp.Or(o.Speed, 1)
	var list []*fleetsim.Request
	if o.Trace == "" {
		var err error
		list, err = fleetsim.Shape(o.Shape, seed, o.Rate, o.Seconds, o.Reuse)
		if err != nil {
			return nil, err
		}
		for _, r := range list {
			if r.Prev != nil {
				r.At = time.Duration(float64(r.At) / speed)
			}
		}
	} else {
		f, err := os.Open(o.Trace)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		list, err = fleetsim.ReadTrace(f, speed, o.Most)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.Trace, err)
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("no request comes in %g s of %g conversations a second", o.Seconds, o.Rate)
	}
	return list[:min(len(list), o.Most)], nil
}

// side is one way to the workers, with its results.
type side struct {
	result
	Name string
	ask  func(ctx context.Context, body []byte) (Answer, error)
}

// play sends a round: a first turn at its time, a later one after the previous answer and a pause. A request that would exceed
// Clients waits, and its time counts from when it is sent.
func (s *side) play(ctx context.Context, o *Options, list []*fleetsim.Request, salt uint64, bar *bar) {
	next := make(map[*fleetsim.Request][]*fleetsim.Request)
	writer := newWriter(o.Model, o.Trace == "", o.Answer, salt)
	open := make(chan struct{}, max(1, o.Clients))
	var all sync.WaitGroup
	var turn func(r *fleetsim.Request, after time.Duration)
	turn = func(r *fleetsim.Request, after time.Duration) {
		select {
		case <-time.After(after):
		case <-ctx.Done():
			return
		}
		open <- struct{}{}
		a, err := s.ask(ctx, writer.body(r))
		<-open
		if ctx.Err() != nil {
			return
		}
		s.add(a, err)
		bar.step(&s.result)
		writer.answered(r, a.Text)
		for _, n := range next[r] {
			all.Go(func() { turn(n, n.At) })
		}
	}
	began := time.Now()
	var first []*fleetsim.Request
	for _, r := range list {
		if r.Prev == nil {
			first = append(first, r)
		} else {
			next[r.Prev] = append(next[r.Prev], r)
		}
	}
	for _, r := range first {
		all.Go(func() { turn(r, r.At) })
	}
	all.Wait()
	bar.end()
	s.Took += time.Since(began)
}
