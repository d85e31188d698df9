package sim

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/engine/vllm"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/lab/vllmcache"
	"github.com/sightline-router/sightline/lab/vllmid"
)

// What a fleet's events cost: `make bench-events`.

const (
	fleetWorkers = 256
	fleetBlocks  = 100_000 // a second, of all workers together
	batchBlocks  = 39      // an event: a prompt of 624 tokens
	fleetTime    = 10 * time.Second
)

// publishing is a worker's event sockets without the worker: it stores prompts that nobody sent.
type publishing struct {
	*publisher
	id, block uint64
}

func startPublishing(b testing.TB, id uint64, steps int) *publishing {
	b.Helper()
	rules, err := vllmid.RulesOf("0.32.0")
	if err != nil {
		b.Fatal(err)
	}
	pubs, backs, err := listenRanks("127.0.0.1:0", "127.0.0.1:0", 1)
	if err != nil {
		b.Fatal(err)
	}
	p := &publisher{form: &wire{rules: rules, groups: []vllmcache.Group{{Kind: vllmcache.Full, BlockSize: 16}}},
		topics: true, steps: steps, pub: pubs[0], back: backs[0]}
	p.start()
	b.Cleanup(p.stop)
	return &publishing{publisher: p, id: id}
}

// store publishes one new prompt.
func (p *publishing) store() {
	e := event{kind: stored, keys: make([][]vllmid.Key, batchBlocks)}
	for range batchBlocks {
		p.block++
		digest := binary.BigEndian.AppendUint64(make([]byte, 24), p.id<<40|p.block)
		e.hashes = append(e.hashes, vllmid.Digest(digest))
		for k := range 16 {
			e.tokens = append(e.tokens, uint32(p.id*7919+p.block*31+uint64(k))%150000)
		}
	}
	p.publish([]event{e})
}

// BenchmarkFleetEvents has one Sightline, a process of its own, hear 256 workers that store 100 000 blocks a second in
// all, and reports how many cores that takes.
func BenchmarkFleetEvents(b *testing.B) {
	dir := b.TempDir()
	bin := filepath.Join(dir, "sightline")
	if out, err := exec.Command("go", "build", "-o", bin, "../../cmd/sightline").CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	model, err := filepath.Abs("../../examples/models/qwen2.5-vl")
	if err != nil {
		b.Fatal(err)
	}
	free, err := listen("127.0.0.1:0", "PUB")
	if err != nil {
		b.Fatal(err)
	}
	admin := free.Addr().String()
	_ = free.Close()
	config := fmt.Sprintf("listen: unix:%s/s\nadmin: %s\nlog_level: error\nprobe: false\nmodels: [{name: m, dir: %s}]\nworkers:\n",
		dir, admin, model)
	var workers []*publishing
	for i := range fleetWorkers {
		p := startPublishing(b, uint64(i), 1000)
		workers = append(workers, p)
		config += fmt.Sprintf("- {addr: \"127.0.0.1:%d\", events: {zmq: \"tcp://%s\", replay: \"tcp://%s\"}}\n", 20000+i,
			p.pub.Addr(), p.back.Addr())
	}
	file := filepath.Join(dir, "sightline.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		b.Fatal(err)
	}
	c := exec.Command(bin, "serve", "--config", file)
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	within(b, time.Minute, "all workers heard", func() bool {
		for _, p := range workers {
			if _, heard := p.told(); !heard {
				return false
			}
		}
		return true
	})
	for b.Loop() {
		before, blocks, start := metricSum(b, admin, "process_cpu_seconds_total", ""), 0, time.Now()
		for turn := 0; time.Since(start) < fleetTime; turn++ {
			due := time.Duration(turn*batchBlocks) * time.Second / fleetBlocks
			if wait := due - time.Since(start); wait > 0 {
				time.Sleep(wait)
			}
			workers[turn%fleetWorkers].store()
			blocks += batchBlocks
		}
		took := time.Since(start)
		want := 0.0
		for _, p := range workers {
			want += float64(p.block)
		}
		within(b, time.Minute, "all blocks in the index", func() bool {
			return metricSum(b, admin, "sightline_events_total", `what="blocks"`) >= want
		})
		b.ReportMetric((metricSum(b, admin, "process_cpu_seconds_total", "")-before)/took.Seconds(), "cores")
		b.ReportMetric(float64(blocks)/took.Seconds(), "blocks/s")
		b.ReportMetric(metricSum(b, admin, "sightline_events_total", `what="dropped"`), "dropped")
	}
}

// BenchmarkResync has a worker with 100 000 blocks tell everything anew, over its replay socket.
func BenchmarkResync(b *testing.B) {
	const blocks = 100_000 / batchBlocks * batchBlocks
	p := startPublishing(b, 1, 1<<20)
	for p.block < blocks {
		p.store()
	}
	for b.Loop() {
		x := indexer.New(indexer.Options{})
		sink := stream.Join(x, indexer.SlotOptions{CountCopies: true})
		f := stream.Start(stream.Options{Source: stream.ZMQ{Endpoint: "tcp://" + p.pub.Addr().String(),
			ReplayEndpoint: "tcp://" + p.back.Addr().String()}, Decoder: &vllm.Decoder{Keep: true}, Sink: sink})
		within(b, time.Minute, "all blocks", func() bool { return x.HeldBlocks(sink.Slot()) == blocks })
		f.Close()
	}
}

func within(b testing.TB, d time.Duration, what string, ok func() bool) {
	b.Helper()
	for end := time.Now().Add(d); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			b.Fatalf("not within %v: %s", d, what)
		}
	}
}

// metricSum adds up a counter of Sightline's over the labels that contain part; 0 while it does not answer.
func metricSum(b *testing.B, admin, name, part string) (sum float64) {
	b.Helper()
	res, err := http.Get("http://" + admin + "/metrics")
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	defer io.Copy(io.Discard, res.Body)
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if line := lines.Text(); strings.HasPrefix(line, name) && strings.Contains(line, part) {
			v, _ := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
			sum += v
		}
	}
	return sum
}
