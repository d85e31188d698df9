package sim

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sightline-router/sightline/engine/vllm"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/lab/vllmcache"
	"github.com/sightline-router/sightline/lab/vllmid"
)

// A thousand workers' event sockets, in a process of their own with one core, before feeds and a router in one process with
// one core. Each message removes a batch of 64 blocks that its worker holds and stores it again, so all frames can be encoded
// beforehand and the last ones, which the replay socket has, say all that is held.
const (
	crowdWorkers = 1000
	crowdRate    = 1_000_000 // blocks stored a second, in all, and as many removed
	crowdBatch   = 64
	crowdWindow  = 100 // events
	crowdPrompt  = 8   // batches of a prompt
	crowdTime    = 10 * time.Second
	crowdGoal    = 10 * time.Millisecond
	stormGoal    = time.Minute
	crowdEnv     = "SIGHTLINE_CROWD" // in the publishers' process: blocks live at each worker
)

func TestMain(m *testing.M) {
	if live, _ := strconv.Atoi(os.Getenv(crowdEnv)); live > 0 {
		publishCrowd(live / crowdBatch)
		return
	}
	os.Exit(m.Run())
}

// publishCrowd prints two addresses for each worker and obeys standard input: a number is blocks a second, "again" ends all
// connections and has all workers begin anew, holding what they held.
func publishCrowd(frames int) {
	rules, err := vllmid.RulesOf("0.32.0")
	if err != nil {
		panic(err)
	}
	form := &wire{rules: rules, groups: []vllmcache.Group{{Kind: vllmcache.Full, BlockSize: 16}}}
	payloads := make([][][]byte, crowdWorkers)
	crowd := make([]*publisher, crowdWorkers)
	for w := range crowd {
		pubs, backs, err := listenRanks("127.0.0.1:0", "127.0.0.1:0", 1)
		if err != nil {
			panic(err)
		}
		var last vllmid.Digest
		for k := range frames {
			e := event{kind: stored, keys: make([][]vllmid.Key, crowdBatch)}
			if k%crowdPrompt > 0 {
				e.parent = last
			}
			for i := range crowdBatch {
				id := uint64(w)<<40 | uint64(k*crowdBatch+i)
				last = vllmid.Digest(binary.BigEndian.AppendUint64(make([]byte, 24), id+1))
				e.hashes = append(e.hashes, last)
				for t := range uint64(16) {
					e.tokens = append(e.tokens, uint32((id>>40*7919+id%(1<<40)*31+t*t)%150_000))
				}
			}
			payloads[w] = append(payloads[w], batchOf(form, []event{{kind: removed, hashes: e.hashes}, e}, 0, time.Now()))
		}
		crowd[w] = &publisher{form: form, topics: true, steps: frames, pub: pubs[0], back: backs[0]}
	}
	begin := func() {
		for w, p := range crowd {
			p.mu.Lock()
			p.recent = p.recent[:0]
			for k, payload := range payloads[w] {
				p.recent = append(p.recent, batch{uint64(k), payload})
			}
			p.next = uint64(frames)
			p.mu.Unlock()
		}
	}
	begin()
	debug.SetGCPercent(-1)
	for _, p := range crowd {
		p.start()
		fmt.Println(p.pub.Addr(), p.back.Addr())
	}
	orders := make(chan string)
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			orders <- in.Text()
		}
		os.Exit(0)
	}()
	send := func(w int) {
		p := crowd[w]
		p.mu.Lock()
		payload := payloads[w][p.next%uint64(frames)]
		p.recent = append(p.recent[1:], batch{p.next, payload})
		p.send(zmtpMessage(nil, binary.BigEndian.AppendUint64(nil, p.next), payload))
		p.next++
		p.mu.Unlock()
	}
	rate, turn, sent, start := 0, 0, 0, time.Now()
	for {
		wait := time.Hour
		if rate > 0 {
			wait = time.Duration(sent)*crowdBatch*time.Second/time.Duration(rate) - time.Since(start)
		}
		if wait <= 0 {
			if wait < -5*time.Millisecond { // its core was taken away: what was not sent then is not sent at once now
				start = start.Add(-wait)
			}
			send(turn % crowdWorkers)
			turn, sent = turn+1, sent+1
			continue
		}
		select {
		case <-time.After(wait):
		case order := <-orders:
			if order == "again" {
				begin()
				for _, p := range crowd {
					for _, l := range []*listener{p.pub, p.back} {
						l.mu.Lock()
						for s := range l.peers {
							_ = s.conn.Close()
						}
						l.mu.Unlock()
					}
				}
				continue
			}
			rate, _ = strconv.Atoi(order)
			sent, start = 0, time.Now()
		}
	}
}

// BenchmarkCrowd starts the feeds of a thousand workers at once, takes the time from an event of one more worker to the first
// decision that follows it while all of them store, and then has all of them begin anew at once. SIGHTLINE_CROWD_LIVE is how
// many blocks each holds: of 10,000 the publishers' frames take 1.5 GB, of 50,000 eight; 100,000 do not fit 24 GB.
func BenchmarkCrowd(b *testing.B) {
	live, _ := strconv.Atoi(os.Getenv("SIGHTLINE_CROWD_LIVE"))
	if live == 0 {
		live = 10_000
	}
	frames := live / crowdBatch
	debug.FreeOSMemory()
	d := startDeciding(b, startTwo(b), indexer.Options{}, false)
	d.pause = time.Millisecond // a decision among those takes as long as a hundred events
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer debug.SetGCPercent(debug.SetGCPercent(20)) // as serve has it beside an index: garbage as much as what else lives
	self := exec.Command(os.Args[0])
	self.Env = append(os.Environ(), crowdEnv+"="+strconv.Itoa(live), "GOMAXPROCS=1", "GOGC=10")
	self.Stderr = os.Stderr
	orders, err := self.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := self.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := self.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = orders.Close(); _ = self.Process.Kill(); _ = self.Wait() })
	in := bufio.NewReader(out)
	var sources []stream.ZMQ
	for range crowdWorkers {
		line, err := in.ReadString('\n')
		if err != nil {
			b.Fatal(err)
		}
		f := strings.Fields(line)
		sources = append(sources, stream.ZMQ{Endpoint: "tcp://" + f[0], ReplayEndpoint: "tcp://" + f[1]})
	}
	before, peak := rss(b), int64(0)
	var feeds []*stream.Feed
	var sinks []*stream.IndexSink
	start := time.Now()
	for _, s := range sources {
		sink := stream.Join(d.index, indexer.SlotOptions{CountCopies: true})
		sinks = append(sinks, sink)
		feeds = append(feeds, stream.Start(stream.Options{Source: s, Decoder: &vllm.Decoder{Keep: true}, Sink: sink}))
	}
	b.Cleanup(func() {
		for _, f := range feeds {
			f.Close()
		}
	})
	caughtUp := func() bool {
		peak = max(peak, rss(b)-before)
		for i, f := range feeds {
			if st := f.Stats(); !st.CaughtUp || d.index.HeldBlocks(sinks[i].Slot()) != frames*crowdBatch {
				return false
			}
		}
		return true
	}
	each := func(what string, ok func() bool) time.Duration {
		for !ok() {
			if time.Since(start) > 10*stormGoal {
				held := 0
				for _, s := range sinks {
					held += d.index.HeldBlocks(s.Slot())
				}
				b.Fatalf("%s: %d of %d blocks; %+v", what, held, crowdWorkers*frames*crowdBatch, feeds[0].Stats())
			}
			time.Sleep(50 * time.Millisecond)
		}
		return time.Since(start)
	}
	joined := each("join", caughtUp)
	for b.Loop() {
		begun, cpu := time.Now(), processTime(b)
		blocks := feeds[0].Stats().Blocks
		fmt.Fprintln(orders, crowdRate)
		time.Sleep(time.Second)
		var took, p99 []time.Duration
		for i := 0; time.Since(begun) < crowdTime; {
			var part []time.Duration
			for range crowdWindow {
				part = append(part, d.follow(b, i))
				i++
			}
			slices.Sort(part)
			took, p99 = append(took, part...), append(p99, part[len(part)*99/100])
		}
		slices.Sort(p99)
		wall := time.Since(begun)
		b.ReportMetric((processTime(b)-cpu).Seconds()/wall.Seconds(), "cores")
		b.ReportMetric(float64(feeds[0].Stats().Blocks-blocks)*crowdWorkers/wall.Seconds()/1e6, "Mblocks/s")
		fmt.Fprintln(orders, 0)
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
		b.ReportMetric(float64(p99[len(p99)/2].Microseconds()), "p99-µs") // of windows, in the middle
		drops := uint64(0)
		for _, f := range feeds {
			drops += f.Stats().Drops
		}
		b.ReportMetric(float64(drops), "dropped")
		time.Sleep(time.Second)
		start, peak = time.Now(), 0
		restarts := feeds[0].Stats().Restarts
		fmt.Fprintln(orders, "again")
		again := each("storm", func() bool {
			for _, f := range feeds {
				if f.Stats().Restarts == restarts {
					return false
				}
			}
			return caughtUp()
		})
		b.ReportMetric(joined.Seconds(), "join-s")
		b.ReportMetric(again.Seconds(), "storm-s")
		b.Logf("%.0f MiB at most in the storm, %.0f of them the index; %d windows, p99 %v to %v", float64(peak)/(1<<20),
			float64(d.index.Stats().Resident)/(1<<20), len(p99), p99[0], p99[len(p99)-1])
		if got := p99[len(p99)/2]; got > crowdGoal || again > stormGoal || drops > 0 {
			b.Errorf("p99 %v, which is to be %v at most; the storm took %v, which is to be %v; %d dropped, want at most %v, at most %v, 0",
				got, crowdGoal, again, stormGoal, drops, crowdGoal, stormGoal)
		}
	}
}

// rss is the process's resident memory in bytes.
func rss(b *testing.B) int64 {
	b.Helper()
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		b.Fatal(err)
	}
	pages, _ := strconv.ParseInt(strings.Fields(string(data))[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// processTime is the CPU time that the process has used.
func processTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
