package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/lab"
)

// An overload of real engines that serve by priority: two workers that serve one sequence at a time, behind two Sightlines with an Envoy
// each, of which one says when requests are due and the other (engine_order: off) does not. They get the same in turn: chats whose
// beginnings are cached, and among them new documents.
const (
	orderTalks     = 24 // conversations, each of which goes on once in a round
	orderDocuments = 5
	orderRounds    = 4   // in turn with and without an order
	orderLoad      = 1.8 // times what the workers can serve
	orderMean      = 0.75
	orderEnd       = 1.0
)

// orderRun sends what the rounds are made of.
type orderRun struct {
	t     *testing.T
	rng   *rand.Rand
	talks []*talk
}

// ask sends a streamed request and returns when its first token and its end came.
func (o *orderRun) ask(g *gateway, body map[string]any) (first, end time.Duration) {
	body["model"], body["stream"], body["max_tokens"], body["temperature"], body["ignore_eos"] = tinyName, true, 4, 0, true
	raw, err := json.Marshal(body)
	if err != nil {
		o.t.Error(err)
		return 0, 0
	}
	began := time.Now()
	resp, err := http.Post(g.url+"/v1/chat/completions", "application/json", bytes.NewReader(raw))
	if err != nil {
		o.t.Error(err)
		return 0, 0
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	line, err := lines.ReadString('\n')
	first = time.Since(began)
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(line, "data: {") || strings.HasPrefix(line, `data: {"error"`) {
		o.t.Errorf("status %d, %.300s, %v; want a stream", resp.StatusCode, line, err)
	}
	if _, err := io.Copy(io.Discard, lines); err != nil {
		o.t.Error(err)
	}
	return first, time.Since(began)
}

// document is a request for a new document of some 6,500 tokens.
func (o *orderRun) document() map[string]any {
	return map[string]any{"messages": []any{map[string]any{"role": "user", "content": words(o.rng, 4000)}}}
}

// turn is a conversation's next request.
func (o *orderRun) turn(i int) map[string]any {
	body := o.talks[i].turn(20)
	return map[string]any{"messages": append([]any(nil), body["messages"].([]any)...)}
}

// round sends all within a time and returns the mean time to the first token and to the end, of chats and documents.
func (o *orderRun) round(g *gateway, within time.Duration) (first, end time.Duration) {
	var all sync.WaitGroup
	var mu sync.Mutex
	n := orderTalks + orderDocuments
	bodies := make([]map[string]any, 0, n)
	for i := range o.talks {
		bodies = append(bodies, o.turn(i))
	}
	o.rng.Shuffle(len(bodies), func(i, j int) { bodies[i], bodies[j] = bodies[j], bodies[i] })
	for i := range orderDocuments { // spread among the chats
		at := i * n / orderDocuments
		bodies = append(bodies[:at], append([]map[string]any{o.document()}, bodies[at:]...)...)
	}
	begin := time.Now()
	for i, body := range bodies {
		all.Go(func() {
			time.Sleep(time.Until(begin.Add(within * time.Duration(i) / time.Duration(n))))
			f, e := o.ask(g, body)
			mu.Lock()
			defer mu.Unlock()
			first, end = first+f, end+e
		})
	}
	all.Wait()
	return first / time.Duration(n), end / time.Duration(n)
}

// TestRealVLLMOrder: under an overload, requests wait a quarter less on average where real engines are told when they are due, and whole
// answers take no longer.
func TestRealVLLMOrder(t *testing.T) {
	installed := os.Getenv("SIGHTLINE_VLLM")
	if installed == "" {
		t.Skip("needs a real vLLM: make e2e-vllm")
	}
	dir := t.TempDir()
	model := tinyModel(t, dir)
	t.Setenv("VLLM_SERVER_DEV_MODE", "1") // a server then says in which order it serves
	go func() { _, _ = product() }()      // meanwhile
	forks, version := startForks(t, installed), versionOf(t, installed)
	var addrs []string
	var workers []any
	var servers []*forked
	for i := range 2 {
		s := forks.start(t, dir, "serve", tinyName, "--load-format", "dummy", "--enforce-eager", "--dtype", "bfloat16", "--skip-mm-profiling",
			"--block-size", "16", "--max-model-len", "8192", "--max-num-batched-tokens", "8192", "--max-num-seqs", "1",
			"--enable-prompt-tokens-details", "--scheduling-policy", "priority")
		servers, addrs = append(servers, s), append(addrs, s.addr)
		workers = append(workers, map[string]any{"name": fmt.Sprint("worker-", i+1), "addr": s.addr, "events": map[string]any{"auto": true}})
	}
	for _, s := range servers {
		if err := s.healthy(); err != nil {
			t.Fatal(err)
		}
		if _, err := lab.Get("http://" + s.addr + "/server_info?config_format=json"); err != nil { // the first answer takes it long
			t.Log(err)
		}
	}
	var gateways [2]*gateway
	for i, order := range []string{"off", "auto"} {
		gateways[i] = startGateway(t, map[string]any{"log_level": "warn", "workers": workers, "models": []any{map[string]any{"name": tinyName,
			"dir": model, "engine_version": version, "engine_model": tinyName, "block_size": 16, "max_model_len": 8192,
			"engine_order": order}}}, func(o *envoy.Options) { o.Workers = addrs })
		gateways[i].ready(len(servers))
	}
	eventually(t, "both workers say that they serve by priority", func() bool {
		return strings.Count(gateways[1].page("/workers"), `"lowest first"`) == len(servers)
	})
	o := &orderRun{t: t, rng: rand.New(rand.NewPCG(48, 1))}
	for i := range orderTalks {
		o.talks = append(o.talks, newTalk(uint64(i)))
		o.talks[i].turn(300)
		o.ask(gateways[i%2], o.turn(i))
	}
	_, document := o.ask(gateways[0], o.document())
	_, chat := o.ask(gateways[0], o.turn(0))
	for range 2 { // the shortest of three: what one takes alone
		_, again := o.ask(gateways[0], o.document())
		document = min(document, again)
		_, again = o.ask(gateways[0], o.turn(0))
		chat = min(chat, again)
	}
	within := time.Duration(float64(orderDocuments*document+orderTalks*chat) / orderLoad / float64(len(servers)))
	t.Logf("a document takes %v, a chat %v; a round comes within %v", document, chat, within)
	var first, end [2]time.Duration
	for round := range orderRounds {
		at := round % 2
		f, e := o.round(gateways[at], within)
		first[at], end[at] = first[at]+f, end[at]+e
		t.Logf("round %d, engine_order %s: first token after %v, end after %v", round, []string{"off", "auto"}[at], f, e)
	}
	mean, whole := float64(first[1])/float64(first[0]), float64(end[1])/float64(end[0])
	fmt.Printf("e2e-vllm: %d chats and %d documents at %.0f %% of what two vLLM %s can serve, by priority over as they come: "+
		"first token %.2f, whole answers %.2f\n", orderTalks, orderDocuments, 100*orderLoad, version, mean, whole)
	if mean > orderMean || whole > orderEnd {
		t.Errorf("got first tokens after %.2f of the time as they come, whole answers %.2f; want at most %.2f and %.2f", mean, whole,
			orderMean, orderEnd)
	}
}
