package engine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/prompt/template"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/workers/fleet"
)

// fifth is a complete engine: everything that a package below engine must define. It appends a bar to texts, names an image by the
// size of its file, and publishes {"ids": [...], "images": [{"at":, "tokens":, "name":}]} for each prompt that it stores.
func fifth(string) rules.Rules {
	return rules.Rules{
		Release: "1.0", BlockSize: 4, EventsIncludeMedia: true, EventsIncludeAdapter: true, CountsCopies: true,
		Dialect: prompt.Dialect{
			Format: (*template.Template).ContentFormat,
			Part: func(r *prompt.Reader, p *body.Part) (it prompt.Item, ok bool, err error) {
				if p.Type == "text" {
					it.Text, err = r.String(p.Fields["text"], "text part without valid text")
				} else {
					it.Medium, err = prompt.OpenAIMediaPart(p)
				}
				return it, true, err
			},
			Messages: func(r *prompt.Reader, turns []prompt.Turn, _ bool) (list []template.Value, tail string, err error) {
				for _, t := range turns {
					content := ""
					for _, it := range t.Items {
						content += it.Text + "|"
						if it.Medium != nil {
							image, _ := r.Placeholder(it.Medium.Modality, r.Take(it.Medium))
							content += image
						}
					}
					list = append(list, template.NewDict(2).Set("role", template.String(t.Role)).Set("content", template.String(content)).Value())
				}
				return list, "", nil
			},
			Tools: func(template.Value, gjson.Result) (template.Value, error) { return template.None, nil },
		},
		NewKeys: func(rules.KeysOptions) (rules.Keys, error) {
			return rules.Keys{Name: func(m *rules.Naming) { m.Name, m.Named = fmt.Sprint(m.Bytes), true }}, nil
		},
		Decoder: func(rules.Decoding) kvevent.Decoder { return fifthDecoder{} },
		FindEvents: func(ctx context.Context, client *http.Client, addr, host string, _ int) ([]rules.EventSource, error) {
			list := make([]rules.EventSource, 1)
			err := rules.GetJSON(ctx, client, addr, "/events", "fifth 1.0", &list[0])
			return list, err
		},
	}
}

type fifthDecoder struct{}

type fifthEvent struct {
	IDs    []uint32
	Images []struct {
		At, Tokens int
		Name       string
	}
}

func (fifthDecoder) Decode(payload []byte) (b kvevent.Batch, err error) {
	var e fifthEvent
	if err := json.Unmarshal(payload, &e); err != nil {
		return b, err
	}
	var spans []block.Span
	for _, i := range e.Images {
		spans = append(spans, block.Span{Offset: i.At, Length: i.Tokens, Name: block.Fixed().Name(i.Name)})
	}
	locals := block.Fixed().Locals(nil, e.IDs, block.Form{Size: 4}, spans, block.Root{})
	return kvevent.Batch{Events: []kvevent.Event{{Kind: kvevent.Stored, Locals: locals,
		EngineHashes: block.Fixed().Chain(nil, locals), BlockSize: 4}}}, nil
}

// TestFifthEngine: a fifth engine is routed by its own prompts, names and events, and no other package knows it.
func TestFifthEngine(t *testing.T) {
	media, err := engine.NewMedia(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer media.Close()
	s := engine.DefaultServer()
	s.Engine, s.EngineVersion, s.BlockSize, s.OwnRules = "fifth", "1.0", 4, fifth
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	live, err := engine.LoadLive("m", "../examples/models/qwen2.5-vl", s, media)
	if err != nil {
		t.Fatal(err)
	}
	ix, fl := indexer.New(indexer.Options{}), fleet.New(nil)
	var workers []*fleet.Worker
	var sinks []*stream.IndexSink
	for i := range 3 {
		workers = append(workers, fleet.NewWorker(fmt.Sprint("w", i), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80),
			"m", 0, func(int) indexer.SlotID {
				sinks = append(sinks, stream.Join(ix, indexer.SlotOptions{CountCopies: s.OwnRules("").CountsCopies}))
				return sinks[i].Slot()
			}))
	}
	fl.Set(workers)
	r := router.New(router.Options{Models: []router.Model{{Name: "m", Prompts: live}}, Fleet: fl, Index: ix, PredictedTTL: time.Nanosecond})

	const gif = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
	long := strings.Repeat("a ", 200) // a saving of only a few tokens would not decide the choice
	text := `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"` + long +
		`a"},{"type":"image_url","image_url":{"url":"data:image/gif;base64,` + gif +
		`"}},{"type":"text","text":"b"}]}]}`
	var skeleton body.Skeleton
	var req body.Request
	if err := body.Read([][]byte{[]byte(text)}, &skeleton, &req); err != nil {
		t.Fatal(err)
	}
	read, err := live.Model().Read(t.Context(), prompt.ChatEndpoint, "", &req)
	if err != nil {
		t.Fatal(err)
	}
	p := &read.List[0]
	if !p.Exact || len(p.Media) != 1 || p.Media[0].Name != "42" || !strings.Contains(p.Rendered, "a|") {
		t.Fatalf("exact %v (%s), %+v\n%s", p.Exact, p.Why, p.Media, p.Rendered)
	}
	event, err := json.Marshal(map[string]any{"ids": p.IDs,
		"images": []any{map[string]any{"at": p.Media[0].Offset, "tokens": p.Media[0].Length, "name": "42"}}})
	if err != nil {
		t.Fatal(err)
	}
	batch, err := s.OwnRules("").Decoder(rules.Decoding{}).Decode(event)
	if err != nil {
		t.Fatal(err)
	}
	if err := sinks[1].Store(&batch.Events[0]); err != nil {
		t.Fatal(err)
	}
	d := r.Decide(t.Context(), &router.Request{ID: "a", Path: prompt.ChatEndpoint, Body: [][]byte{[]byte(text)}})
	if want := (len(p.IDs) - 1) / 4 * 4; d.Reason != router.Exact || d.Targets[0].Worker != "w1" || d.CachedTokens != want {
		t.Errorf("%+v, want w1 with %d tokens", d, want)
	}

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"Pub":"tcp://10.0.0.1:5557"}`)
	}))
	defer server.Close()
	e, err := s.OwnRules("").FindEvents(t.Context(), server.Client(), strings.TrimPrefix(server.URL, "http://"), "10.0.0.1", 1)
	if err != nil || e[0].Pub != "tcp://10.0.0.1:5557" {
		t.Errorf(`got %+v, %v, want no error, e[0].Pub == "tcp://10.0.0.1:5557"`, e, err)
	}
}
