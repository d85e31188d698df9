package main

import (
	"context"
	"net/http"
	"os"
	"strings"

	"github.com/sightline-router/sightline/internal/bench"
)

type benchCmd struct {
	URL     string   `name:"url" xor:"side" placeholder:"URL" help:"The Envoy to measure, such as http://127.0.0.1:10000."`
	Without string   `placeholder:"URL" help:"A way to the same workers without Sightline, to be asked in turns and shown beside."`
	ExtProc string   `xor:"side" placeholder:"ADDR" help:"Ask Sightline itself for decisions, in an Envoy's place: host:port or unix:/path. No worker gets a request."`
	Model   string   `help:"The model that requests name; default: the first of /v1/models."`
	Header  []string `sep:"none" placeholder:"NAME: VALUE" help:"A header of every request, such as 'Authorization: Bearer …'. Repeatable."`

	Shape   string  `enum:"chats,images,agents" default:"images" help:"chats: turns of text; images: questions about pictures; agents: long instructions, many short steps."`
	Reuse   float64 `default:"0.5" help:"Share of the conversations that begin as another: with the same picture, or the same instructions."`
	Rate    float64 `default:"2" help:"Conversations that begin a second."`
	Seconds float64 `default:"30" help:"For how long they begin, a round; it ends when the last one has, up to a minute later at the pace of people."`
	Trace   string  `type:"existingfile" help:"Play a trace in Mooncake's form instead, gzipped or not; a decision log is one."`
	Speed   float64 `default:"1" help:"How many times faster than recorded, or than people think between turns."`
	Most    int     `default:"10000" help:"Requests a round, at most."`
	Answer  int     `default:"64" help:"Tokens an answer, at most; 0: as the traffic has them."`
	Clients int     `default:"64" help:"Requests open at a time, at most."`
	Rounds  int     `default:"1" help:"Rounds of each side, in turns, each with words and pictures of its own."`
	Seed    uint64  `help:"Of the traffic; default: a random one, so that no run finds what another has left in the caches."`
	JSON    bool    `name:"json" help:"One JSON object a side."`
}

func (c *benchCmd) Run(ctx context.Context) error {
	header := make(http.Header)
	for _, h := range c.Header {
		name, value, _ := strings.Cut(h, ":")
		header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	return bench.Run(ctx, bench.Options{URL: c.URL, Without: c.Without, ExtProc: c.ExtProc, Model: c.Model, Header: header, Shape: c.Shape, Reuse: c.Reuse,
		Rate: c.Rate, Seconds: c.Seconds, Trace: c.Trace, Speed: c.Speed, Most: c.Most, Answer: c.Answer, Clients: c.Clients, Rounds: c.Rounds,
		Seed: c.Seed, JSON: c.JSON}, os.Stdout, os.Stderr)
}
