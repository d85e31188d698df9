package lab

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tidwall/gjson"
)

// readyWait bounds the wait for anything to come up.
const readyWait = 2 * time.Minute

// WaitReady waits until a Sightline and the Envoy before it, given by their admin addresses, can serve: the events of that many
// slots are read, and Envoy has found Sightline healthy.
func WaitReady(ctx context.Context, sightline, envoy string, slots int) error {
	if err := WaitFor(ctx, "the workers' KV events", func() bool {
		rows, err := Get("http://" + sightline + "/workers")
		return err == nil && len(gjson.GetBytes(rows, `#(events=="live")#`).Array()) == slots
	}); err != nil {
		return err
	}
	return WaitFor(ctx, "Envoy's health check of Sightline", func() bool {
		stats, err := Get("http://" + envoy + "/stats?filter=cluster.sightline.membership_healthy")
		return err == nil && strings.Contains(string(stats), ": 1")
	})
}

// Get reads a page; another status than 200 is an error.
func Get(url string) ([]byte, error) {
	client := http.Client{Timeout: readyWait}
	resp, err := client.Get(url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: status %d", url, resp.StatusCode)
	}
	return body, err
}

// WaitFor asks until a condition holds, for half a minute at most.
func WaitFor(ctx context.Context, what string, cond func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %v", what, readyWait)
		case <-tick.C:
		}
	}
	return nil
}

// nextPort keeps tests that run side by side from getting the same port before either has used it.
var nextPort atomic.Uint32

func init() { nextPort.Store(rand.Uint32N(22000)) }

// FreePorts gives ports of loopback that are free now, for processes that are still to be started. They lie below those that
// systems give to outgoing connections, one of which could have a port before the process that it was meant for.
func FreePorts(n int) (ports []int, err error) {
	for try := 0; len(ports) < n; try++ {
		port := 10000 + int(nextPort.Add(1)%22000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil && try < 1000 {
			continue
		} else if err != nil {
			return nil, err
		}
		defer l.Close() // not before all are chosen
		ports = append(ports, port)
	}
	return ports, nil
}
