package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/section"
)

// Faults of every part under a steady mixed load through a real Envoy, one after another: two Sightlines, four workers of which two
// are heard over NATS. What is counted of each fault:
//
//	requests        sent from a second before the fault until all is normal again: every replica found by Envoy and hearing every
//	                worker, and forty answers in a row good and decided
//	failed          no first byte came, or an error, of what the killed worker had not been sent; refused: nobody listened at Envoy's port
//	cut             an answer broke off after its first byte, which nobody may send again
//	undecided       answered, by a worker that no Sightline chose
//	index           what each replica knows of each worker, against what the worker holds, in blocks
//
// make test tries a few of them; make chaos all, at 200 requests a second, and writes docs/reliability.md.

// fault is one thing that goes wrong.
type fault struct {
	name  string
	short bool                // part of make test
	may   string              // what may happen: "cut", "held" (failed, where Envoy held them)
	do    func(*chaos) string // returns when it is over, with what is to be said of it
}

var faults = []fault{
	{"Sightline killed", true, "", func(c *chaos) string { return c.restart(c.replicas[0].process) }},
	{"Sightline stopped", false, "", func(c *chaos) string { return c.freeze(c.replicas[0].signal) }},
	{"worker killed", true, "cut", func(c *chaos) string { return c.restart(c.fleet[0].process) }},
	{"worker with an agent killed", false, "cut", func(c *chaos) string { return c.restart(c.fleet[3].process) }},
	{"worker stopped", false, "cut", func(c *chaos) string { return c.freeze(c.fleet[1].signal) }},
	{"NATS killed", true, "", func(c *chaos) string { return c.restart(c.nats) }},
	{"NATS stopped", false, "", func(c *chaos) string { return c.freeze(c.nats.signal) }},
	{"Envoy killed", true, "held", (*chaos).killEnvoy},
	{"Envoy stopped", false, "held", func(c *chaos) string {
		return c.freeze(c.envoy.Signal) +
			"those without a connection within connect_timeout fail"
	}},
	{"Envoy restarted hot", false, "held", (*chaos).hotRestart},
	{"an image host that drips", false, "", (*chaos).drip},
	{"image hosts that hang", false, "", (*chaos).hang},
	{"replicas cut off", false, "", (*chaos).cutOff},
	{"clocks 5 s apart", false, "", (*chaos).clocks},
	{"the decision log's disk full", false, "", (*chaos).fullLog},
	{"an event storm", false, "", (*chaos).storm},
	{"1,000 workers join and leave", false, "", (*chaos).crowd},
	{"JetStream's disk full", false, "", (*chaos).fullDisk},
}

const faultLasts = 10 * time.Second

type chaos struct {
	*stand
	rate    int
	pids    int          // of Envoy's hot restarts
	numbers atomic.Int64 // of requests

	mu      sync.Mutex
	sent    int
	all     []attempt
	good    int       // answers in a row that were good and decided
	since   time.Time // the first of them
	request func(i int) (string, bool)
	also    func(i int) string // another body for the i-th request; "": none
	vain    bool               // what also asks for cannot be had: its answers are kept in lost
	lost    []attempt
	between []*line // from each replica to the other
	quit    chan struct{}
	running sync.WaitGroup
}

func TestChaos(t *testing.T) {
	began, long := time.Now(), os.Getenv("SIGHTLINE_CHAOS") != ""
	c := &chaos{rate: 40, request: mixed(lab.ModelName)}
	if long {
		c.rate = 200
	}
	if r, err := strconv.Atoi(os.Getenv("SIGHTLINE_CHAOS_RATE")); err == nil {
		c.rate = r
	}
	args := []string{"--restart-epoch", "0", "--base-id", fmt.Sprint(os.Getpid() % 32000)}
	c.stand = startStandWith(t, "", func(s *stand) {
		for i, r := range s.replicas {
			w := startLine(t, s.replicas[1-i].listen)
			c.between = append(c.between, w)
			r.keys = map[string]any{"replicas": map[string]any{"addresses": []string{r.listen, w.addr}}}
		}
	}, 4, 2, 2, 4, map[string]any{"drain": "0s", "fixed": unprobed(), "media": map[string]any{"allow": []string{"127.0.0.0/8"}}}, args...)
	c.begin()
	c.more(3 * c.rate)
	c.end()
	c.settle()
	before := c.held()
	only := os.Getenv("SIGHTLINE_CHAOS_ONLY")
	var rows []string
	for _, f := range faults {
		if !long && !f.short || !strings.Contains(f.name, only) {
			continue
		}
		c.begin()
		c.more(c.rate)
		said := f.do(c)
		over := time.Now()
		took := c.normal(f.name, over).Seconds()
		c.mu.Lock()
		c.also, c.vain = nil, false
		c.mu.Unlock()
		all := c.end()
		index := c.settle()
		after := c.held()
		tried := len(all)
		all = slices.DeleteFunc(all, func(r attempt) bool {
			var dial *net.OpError
			return r.failed() && errors.As(r.err, &dial) && dial.Op == "dial"
		})
		refused := tried - len(all)
		if f.may == "cut" {
			sent := len(all)
			all = slices.DeleteFunc(all, func(r attempt) bool { return hadBeenSent(r.reply) })
			lost := sent - len(all)
			if lost > 0 {
				said += fmt.Sprintf("%d more failed with it", lost)
			}
			if lost > max(4, c.rate/20) {
				t.Errorf("%s: got %d requests failed with the worker, more than it can have had, want at most %d", f.name, lost, max(4, c.rate/20))
			}
		}
		failed, cut, undecided, example := tally(all)
		if refused > 0 {
			said += fmt.Sprintf("; %d could not connect", refused)
		}
		harm := "none"
		if failed+cut+undecided > 0 {
			harm = fmt.Sprintf("%d, %d, %d", failed, cut, undecided)
		}
		row := strings.TrimSuffix(fmt.Sprintf("- %s: %d; %s; %.1f s; %s", f.name, tried, harm, took, said), "; ")
		t.Logf("%s index %s; goroutines, descriptors, MB, MB live (before): %s", row, index, after.beside(before))
		rows = append(rows, row)
		if failed > 0 && f.may != "held" || cut > 0 && f.may == "" || refused > 0 && f.may != "held" {
			t.Errorf("%s: %d failed (%s), %d cut, %d refused", f.name, failed, example, cut, refused)
		}
		if index != "equal" {
			t.Errorf("%s: the index is not what the workers hold: got %s, want %q", f.name, index, "equal")
		}
		if what := after.above(before); what != "" {
			t.Errorf("%s: left behind: got %s, want %q", f.name, what, "")
		}
	}
	if file := os.Getenv("SIGHTLINE_CHAOS"); file != "" && only == "" && !t.Failed() {
		load, _ := os.ReadFile("/proc/loadavg") // of the last minute, at first
		head := fmt.Sprintf("%d requests a second, two Sightlines, four simulated workers, a real Envoy, in %v on %d cores at load %.4s "+
			"(`make chaos`). What is killed is started again; other faults last 10 s. Fault: requests; failed, cut, undecided; normal after.\n\n",
			c.rate, time.Since(began).Round(time.Second), runtime.NumCPU(), load)
		section.Write(t, file, "chaos", head+strings.Join(rows, "\n"))
	}
}

// tally counts the requests that failed before their first byte, that broke off after it, and that were answered undecided; example
// is one of the failed.
func tally(all []attempt) (failed, cut, undecided int, example string) {
	for _, r := range all {
		switch {
		case r.failed() && r.began && r.status == http.StatusOK:
			cut++
		case r.failed():
			failed++
			example = fmt.Sprintf("status %d, %v, %.120s", r.status, r.err, r.body)
		case !r.decided:
			undecided++
		}
	}
	return failed, cut, undecided, example
}

// begin starts the load, end stops it and gives what came of it.
func (c *chaos) begin() {
	c.quit, c.all, c.lost, c.good, c.sent = make(chan struct{}), nil, nil, 0, 0
	c.running.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(c.rate))
		defer tick.Stop()
		for {
			select {
			case <-c.quit:
				return
			case <-tick.C:
			}
			i := int(c.numbers.Add(1))
			body, stream := c.request(i)
			vain := false
			c.mu.Lock()
			if c.also != nil {
				if other := c.also(i); other != "" {
					body, stream, vain = other, false, c.vain
				}
			}
			c.sent++
			c.mu.Unlock()
			c.running.Go(func() {
				r := c.send(body, stream, 30*time.Second)
				c.mu.Lock()
				defer c.mu.Unlock()
				if vain {
					c.lost = append(c.lost, r)
					return
				}
				c.all = append(c.all, r)
				if r.failed() || !r.decided {
					c.good = 0
				} else {
					c.good++
					if c.good == 1 {
						c.since = time.Now()
					}
				}
			})
		}
	})
}

func (c *chaos) more(n int) {
	c.t.Helper()
	sent := func() int { c.mu.Lock(); defer c.mu.Unlock(); return c.sent }
	begin := sent()
	eventually(c.t, fmt.Sprintf("%d more requests", n), func() bool { return sent() >= begin+n })
}

// normal waits until all is as before, and tells how long after a time that was.
func (c *chaos) normal(after string, over time.Time) time.Duration {
	c.t.Helper()
	c.mu.Lock()
	c.good = 0
	c.mu.Unlock()
	var whole time.Time
	eventually(c.t, "all is normal after: "+after, func() bool {
		if !c.whole() || c.between != nil && !c.together(1) {
			whole = time.Time{}
		} else if whole.IsZero() {
			whole = time.Now()
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.good >= 40 && !whole.IsZero()
	})
	return max(0, whole.Sub(over), c.since.Sub(over))
}

func (c *chaos) end() []attempt {
	close(c.quit)
	c.running.Wait()
	return c.all
}

// settle waits until nothing is booked and the index is what workers hold, and says how it stands.
func (c *chaos) settle() (index string) {
	for end := time.Now().Add(40 * time.Second); ; time.Sleep(300 * time.Millisecond) {
		index = ""
		open := 0
		for _, r := range c.replicas {
			rows, _ := lab.Get("http://" + r.admin + "/workers")
			for _, e := range c.fleet {
				row := gjson.GetBytes(rows, fmt.Sprintf("#(name==%q)", e.name))
				open += int(row.Get("in_flight").Int())
				unsure := row.Get("doubtful_blocks").Int() + row.Get("orphan_blocks").Int()
				if n, of := differing(r, e); n > 0 || unsure > 0 {
					index += fmt.Sprintf("%s and %s differ in %d of %d blocks, %d in doubt. ", r.name, e.name, n, of, unsure)
				}
			}
		}
		if index == "" && open == 0 {
			return "equal"
		}
		if time.Now().After(end) {
			return fmt.Sprintf("%s%d requests booked", index, open)
		}
	}
}

// differing counts the blocks that only one of them has, by the engine's hash, of those that the worker holds.
func differing(r *standing, e *engineProcess) (n, of int) {
	listed, err := lab.Get("http://" + r.admin + "/index?worker=" + e.name)
	held, problem := lab.Get("http://" + e.addr + "/sim/blocks")
	if err != nil || problem != nil {
		return 1, 0
	}
	only := map[uint64]bool{}
	for _, b := range gjson.ParseBytes(held).Array() {
		only[b.Get("hash").Uint()] = true
	}
	of = len(only)
	for line := range bytes.Lines(listed) {
		if hash, _ := strconv.ParseUint(gjson.GetBytes(line, "engine_hash").Str, 16, 64); len(gjson.GetBytes(line, "tiers").Array()) == 0 {
			continue // held no more
		} else if only[hash] {
			delete(only, hash)
		} else {
			n++
		}
	}
	return n + len(only), of
}

// resources are the most that a replica has of each. live is what is in use of its memory's heap, all pools emptied.
type resources struct{ goroutines, descriptors, megabytes, live int }

// held is what replicas have once they are quiet.
func (c *chaos) held() (most resources) {
	for _, r := range c.replicas {
		for range 2 { // what a pool holds outlives one collection
			page(c.t, r.admin, "/debug/pprof/heap?gc=1")
		}
		number := func(name string) int { return int(metricOf(c.t, r.admin, name+" ", "")) }
		most.goroutines = max(most.goroutines, number("go_goroutines"))
		most.descriptors = max(most.descriptors, number("process_open_fds"))
		most.megabytes = max(most.megabytes, number("process_resident_memory_bytes")>>20)
		most.live = max(most.live, number("go_memstats_heap_alloc_bytes")>>20)
	}
	return most
}

func (r resources) beside(before resources) string {
	return fmt.Sprintf("%d, %d, %d, %d (%d, %d, %d, %d)", r.goroutines, r.descriptors, r.megabytes, r.live,
		before.goroutines, before.descriptors, before.megabytes, before.live)
}

// above says what is more than before, beyond what connections that idle account for.
func (r resources) above(before resources) (what string) {
	for name, n := range map[string][3]int{"goroutines": {r.goroutines, before.goroutines, 40},
		"descriptors": {r.descriptors, before.descriptors, 20},
		"MB":          {r.megabytes, before.megabytes, 200}, "MB live": {r.live, before.live, 64}} {
		if n[0] > n[1]+n[2] {
			what += fmt.Sprintf(" %d %s, %d before", n[0], name, n[1])
		}
	}
	return what
}

func (c *chaos) restart(p *process) string {
	p.stop()
	c.more(c.rate)
	p.start(c.t)
	return ""
}

func (c *chaos) freeze(signal func(syscall.Signal)) string {
	signal(syscall.SIGSTOP)
	time.Sleep(faultLasts)
	signal(syscall.SIGCONT)
	return ""
}

// killEnvoy: what it held fails, and is booked no more five seconds later.
func (c *chaos) killEnvoy() string {
	c.envoy.Kill()
	began := time.Now()
	eventually(c.t, "nothing is booked any more", func() bool { return c.booked() == 0 })
	took := time.Since(began)
	if took > 5*time.Second {
		c.t.Errorf("requests of a killed Envoy stayed booked for %v, want 5 s", took)
	}
	c.pids++
	c.startEnvoy("--restart-epoch", "0", "--base-id", fmt.Sprint((os.Getpid()+c.pids)%32000))
	return fmt.Sprintf("none booked %.1f s later", took.Seconds())
}

func (c *chaos) booked() (n int) {
	for _, r := range c.replicas {
		n += inFlight(c.t, r.admin)
	}
	return n
}

// hotRestart: another Envoy takes over the listeners, and the first ends once its requests have.
func (c *chaos) hotRestart() string {
	old := c.envoy
	c.startEnvoy("--restart-epoch", "1", "--base-id", fmt.Sprint((os.Getpid()+c.pids)%32000), "--drain-strategy", "immediate",
		"--drain-time-s", "3", "--parent-shutdown-time-s", "6")
	time.Sleep(faultLasts)
	old.Stop()
	return "on connections that it closed"
}

// drip: one request in twenty names an image whose first bytes take three seconds to come.
func (c *chaos) drip() string {
	file := photo(900)
	host := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("content-type", "image/jpeg")
		for i := range 30 {
			_, _ = rw.Write(file[i : i+1])
			rw.(http.Flusher).Flush()
			time.Sleep(100 * time.Millisecond)
		}
		_, _ = rw.Write(file[30:])
	}))
	c.t.Cleanup(host.Close)
	c.mu.Lock()
	c.also = func(i int) string {
		if i%20 != 0 {
			return ""
		}
		body, _ := json.Marshal(map[string]any{"model": lab.ModelName, "max_tokens": 2,
			"messages": []any{user("What is it?", fmt.Sprint(host.URL, "/", i, ".jpg"))}})
		return string(body)
	}
	c.mu.Unlock()
	time.Sleep(faultLasts)
	return "in one request of twenty; each answered after 3 s"
}

// hang: one request in twenty names an image whose host takes the connection and never answers, another one a host that never takes it.
// Their workers refuse them ("not exact: " and why) once they give up; until then each must be decided, and nobody else may notice.
func (c *chaos) hang() string {
	silent, full := listen(c.t), listen(c.t)
	c.t.Cleanup(func() { _ = errors.Join(silent.Close(), full.Close()) })
	raw, err := full.(*net.TCPListener).SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { _ = syscall.Listen(int(fd), 0) }) // it holds one connection that nobody accepts
	}
	if err != nil {
		c.t.Fatal(err)
	}
	for err == nil {
		var conn net.Conn
		conn, err = net.DialTimeout("tcp", full.Addr().String(), time.Second)
		if err == nil {
			defer conn.Close()
		}
	}
	var asked atomic.Int64
	c.mu.Lock()
	c.vain = true
	c.also = func(i int) string {
		host := silent.Addr()
		if i%20 == 10 {
			host = full.Addr()
		} else if i%20 != 0 {
			return ""
		}
		asked.Add(1)
		body, _ := json.Marshal(map[string]any{"model": lab.ModelName, "max_tokens": 2,
			"messages": []any{user("What is it?", fmt.Sprint("http://", host, "/", i, ".jpg"))}})
		return string(body)
	}
	c.mu.Unlock()
	time.Sleep(faultLasts)
	c.mu.Lock()
	c.also = nil
	c.mu.Unlock()
	var lost []attempt
	eventually(c.t, "the requests for images that cannot be had are answered", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		lost = c.lost
		return len(lost) == int(asked.Load())
	})
	var longest time.Duration
	for _, r := range lost {
		longest = max(longest, r.took)
		if r.status != http.StatusBadRequest || !r.decided || !bytes.Contains(r.body, []byte("not exact: ")) {
			c.t.Errorf("an image that cannot be had: got status %d, %v, decided %t, %.200s, want 400, no error, true, %q in it", r.status, r.err,
				r.decided, r.body, "not exact: ")
			break
		}
	}
	return fmt.Sprintf("%d more requests name them; refused within %.0f s",
		len(lost), longest.Seconds())
}

// cutOff: what replicas tell each other is on its way for ten seconds. Each takes the other for gone, decides alone, and finds it again.
func (c *chaos) cutOff() string {
	for _, w := range c.between {
		w.cut.Lock()
	}
	began := time.Now()
	eventually(c.t, "each replica takes the other for gone", func() bool { return c.together(0) })
	alone := time.Since(began)
	time.Sleep(faultLasts - alone)
	for _, w := range c.between {
		w.cut.Unlock()
	}
	return fmt.Sprintf("each alone after %.1f s", alone.Seconds())
}

// fill writes a file into a folder until its disk is full.
func (c *chaos) fill(dir string) {
	c.t.Helper()
	filler, err := os.Create(dir + "filler")
	for err == nil {
		_, err = filler.Write(make([]byte, 1<<16))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		c.t.Fatalf("the disk is not full: %v", err)
	}
	_ = filler.Close()
}

// together tells whether each replica shares with that many others.
func (c *chaos) together(others float64) bool {
	return !slices.ContainsFunc(c.replicas, func(r *standing) bool {
		_, err := lab.Get("http://" + r.admin + "/workers")
		return err != nil || metricOf(c.t, r.admin, "sightline_peers ", "") != others
	})
}

// line carries connections to an address; while cut is locked nothing arrives at either end.
type line struct {
	addr string
	cut  sync.RWMutex
}

func startLine(t *testing.T, to string) *line {
	lis := listen(t)
	w := &line{addr: lis.Addr().String()}
	carry := func(to, from net.Conn) {
		defer to.Close()
		b := make([]byte, 32<<10)
		for {
			n, err := from.Read(b)
			w.cut.RLock()
			if n > 0 {
				_, _ = to.Write(b[:n])
			}
			w.cut.RUnlock()
			if err != nil {
				return
			}
		}
	}
	go func() {
		for {
			near, err := lis.Accept()
			if err != nil {
				return
			}
			go func() {
				far, err := net.Dial("tcp", to)
				if err != nil {
					_ = near.Close()
					return
				}
				go carry(far, near)
				carry(near, far)
			}()
		}
	}()
	return w
}

// clocks: one Sightline's clock, and a worker's of each kind, is five seconds ahead. All is decided, and nothing is said of it.
func (c *chaos) clocks() string {
	r := c.replicas[1]
	plain, keys := r.command, r.keys
	r.keys = maps.Clone(keys)
	r.keys["fixed"] = nil // known only to binaries that are built for tests of the product
	c.configure(r, c.workers)
	r.command = func() *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), clockVar+"=5s "+r.file)
		return cmd
	}
	c.restart(r.process)
	for i, by := range map[int]string{0: "5s", 3: "-5s"} {
		c.fleet[i].told(c.t, "clock?by="+by)
		defer c.fleet[i].told(c.t, "clock?by=0s")
	}
	eventually(c.t, "all is up with clocks apart", func() bool { return c.whole() && c.together(1) })
	if apart := clockOf(c.t, r.admin) - clockOf(c.t, c.replicas[0].admin); apart < 4 || apart > 6 {
		c.t.Errorf("the replicas' clocks are %.1f s apart, want 5", apart)
	}
	c.more(c.rate)
	c.mu.Lock()
	before := len(c.all)
	c.mu.Unlock()
	time.Sleep(faultLasts)
	c.mu.Lock()
	during := slices.Clone(c.all[before:])
	c.mu.Unlock()
	if failed, cut, undecided, example := tally(during); failed+cut > 0 || undecided > len(during)/100 {
		c.t.Errorf("clocks apart: %d failed (%s), %d cut, %d of %d undecided", failed, example, cut, undecided, len(during))
	}
	for _, r := range c.replicas {
		c.unsaid(r, "SL0303", "SL06", "SL07")
	}
	r.command, r.keys = plain, keys
	c.configure(r, c.workers)
	c.restart(r.process)
	return "two workers', one Sightline's, started twice"
}

// clockOf gives a process's time in seconds, by the date of its answer.
func clockOf(t *testing.T, admin string) float64 {
	t.Helper()
	res, err := http.Get("http://" + admin + "/workers")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	at, err := http.ParseTime(res.Header.Get("date"))
	if err != nil {
		t.Fatal(err)
	}
	return float64(at.Unix())
}

// unsaid fails if a page has one of these findings.
func (c *chaos) unsaid(r *standing, codes ...string) {
	c.t.Helper()
	list, err := lab.Get("http://" + r.admin + "/problems")
	if err != nil {
		c.t.Fatal(err)
	}
	for _, one := range gjson.ParseBytes(list).Array() {
		if slices.ContainsFunc(codes, func(code string) bool { return strings.HasPrefix(one.Get("code").Str, code) }) {
			c.t.Errorf("%s: got %s %s, want nothing of %q said", r.name, one.Get("code"), one.Get("what"), codes)
		}
	}
}

// fullLog: one Sightline logs its decisions on a disk of 4 MB that then has no room: lines are lost and counted, and requests go on. Once
// there is room lines are written again.
func (c *chaos) fullLog() string {
	r, dir := c.replicas[0], c.t.TempDir()
	plain, keys := r.command, r.keys
	r.command = func() *exec.Cmd {
		return exec.Command("unshare", "-Urm", "sh", "-c", `mount -t tmpfs -o size=4m small "$1" && exec "$2" serve -c "$3"`, "sh",
			dir, c.bin, r.file)
	}
	r.keys = maps.Clone(keys)
	r.keys["decision_log"] = map[string]any{"file": filepath.Join(dir, "decisions.jsonl")}
	c.configure(r, c.workers)
	c.restart(r.process)
	disk := fmt.Sprintf("/proc/%d/root%s/", r.cmd.Process.Pid, dir)
	size := func() int64 {
		info, err := os.Stat(disk + "decisions.jsonl")
		if err != nil {
			return 0
		}
		return info.Size()
	}
	eventually(c.t, "decisions are logged", func() bool { return c.whole() && size() > 0 })
	c.fill(disk)
	time.Sleep(faultLasts)
	lost := metricOf(c.t, r.admin, "sightline_decision_log_lines_total", `what="failed"`)
	if lost == 0 {
		c.t.Error("no line is counted as lost, want some")
	}
	list, err := lab.Get("http://" + r.admin + "/problems")
	if err != nil || !strings.Contains(string(list), "no space left") {
		c.t.Errorf("problems: got %v, %s, want %q in it", err, list, "no space left")
	}
	was := size()
	if err := os.Remove(disk + "filler"); err != nil {
		c.t.Fatal(err)
	}
	eventually(c.t, "decisions are logged again", func() bool { return size() > was })
	r.command, r.keys = plain, keys
	c.configure(r, c.workers)
	c.restart(r.process)
	return fmt.Sprintf("%.0f lines lost, all counted; Sightline started twice", lost)
}

// storm: one worker stores and evicts as fast as it can, by prompts that pass everybody else by.
func (c *chaos) storm() string {
	e := c.fleet[1]
	batches := func() int {
		text, _ := lab.Get("http://" + e.addr + "/sim/stats")
		return int(gjson.GetBytes(text, "prefilled_tokens").Int())
	}
	e.told(c.t, "slow?by=0.001")
	defer e.told(c.t, "slow?by=1")
	before, end := batches(), time.Now().Add(faultLasts)
	ctx, cancel := context.WithDeadline(context.Background(), end.Add(20*time.Second))
	defer cancel()
	var flood sync.WaitGroup
	for k := range 2 {
		flood.Go(func() {
			for i := 0; time.Now().Before(end); i++ {
				ids := make([]int, 16384)
				for j := range ids {
					ids[j] = (k*7919 + i*31 + j*j) % 1000
				}
				body, _ := json.Marshal(map[string]any{"model": lab.ModelName, "max_tokens": 1, "prompt": ids})
				req, _ := http.NewRequestWithContext(ctx, "POST", "http://"+e.addr+"/v1/completions", bytes.NewReader(body))
				req.Header.Set("content-type", "application/json")
				if resp, err := c.client.Do(req); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}
		})
	}
	flood.Wait()
	return fmt.Sprintf("%d blocks a second at one worker", (batches()-before)/16/int(faultLasts.Seconds()))
}

// crowd: a thousand workers more, at as many addresses of loopback, that one server answers for.
func (c *chaos) crowd() string {
	lis, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		c.t.Fatal(err)
	}
	startWorkerOn(c.t, lis, lis.Addr().String())
	many := slices.Clone(c.workers)
	for i := range 1000 {
		many = append(many, map[string]any{"name": fmt.Sprint("crowd-", i), "addr": fmt.Sprintf("127.1.%d.%d:%d", i/250,
			1+i%250, portOf(c.t, lis.Addr().String()))})
	}
	be := func(workers []any) (took time.Duration) {
		began := time.Now()
		for _, r := range c.replicas {
			c.configure(r, workers)
			r.signal(syscall.SIGHUP)
		}
		eventually(c.t, fmt.Sprintf("%d workers", len(workers)), func() bool {
			return !slices.ContainsFunc(c.replicas, func(r *standing) bool {
				rows, _ := lab.Get("http://" + r.admin + "/workers")
				return int(gjson.GetBytes(rows, "#").Int()) != len(workers)
			})
		})
		return time.Since(began)
	}
	joined := be(many)
	c.more(4 * c.rate)
	left := be(c.workers)
	return fmt.Sprintf("known after %.1f s, gone after %.1f s", joined.Seconds(), left.Seconds())
}

// fullDisk: NATS begins anew on a disk of 16 MB, which then has no room left. A nats-server (2.15, filestore.go) takes nothing more into
// a stream that it once could not write, so its operator makes room and starts it again: here on the disk that it had before.
func (c *chaos) fullDisk() string {
	c.small = true
	c.nats.stop()
	c.nats.start(c.t)
	streams := fmt.Sprintf("/proc/%d/root%s/", c.nats.cmd.Process.Pid, filepath.Join(c.disk, "streams"))
	eventually(c.t, "the agents' stream is made again", func() bool {
		var fs syscall.Statfs_t
		found, _ := filepath.Glob(streams + "jetstream/*/streams/SIGHTLINE_KV/meta.inf")
		return len(found) > 0 && syscall.Statfs(streams, &fs) == nil && int64(fs.Blocks)*fs.Bsize == 16<<20
	})
	c.more(c.rate)
	c.fill(streams)
	time.Sleep(faultLasts)
	c.small = false
	c.restart(c.nats)
	return "NATS started again"
}
