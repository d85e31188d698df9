package discover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/internal/retry"
)

// DeletionCosts has a pool's pods annotated with what their removal costs, by which a ReplicaSet chooses the pods that it removes: of those
// that are ready the cheapest ones first, and one without the annotation counts as 0 (Kubernetes 1.22,
// pkg/controller/controller_utils.go, ActivePodsWithRanks). It needs the verb patch on pods.
type DeletionCosts struct {
	// Of returns a function that tells what the removal of the worker at an address costs. -Inf: the worker is out of service; false: it is
	// not known.
	Of func() func(at netip.AddrPort) (cost float64, known bool)
	// Told is told after each attempt to write why it failed; "": it did not, or there is nothing to write any more.
	Told func(why string)
	// Writer names this process. Of several that follow a pool one writes, and another one if that has changed nothing for writerLasts.
	Writer string
	Every  time.Duration // the shortest time between two changes of a pod; 0: 30 s
}

const (
	costKey   = "controller.kubernetes.io/pod-deletion-cost"
	writerKey = "sightline/deletion-cost" // writer, and when, in Unix milliseconds
	// lowestCost is that of a pod whose workers are all out of service.
	lowestCost = math.MinInt32
	// sameCost is the share of a cost by which it may change and is not written; nor is a change by fewTokens, which an engine computes in a
	// fraction of a second: fleets with little to do would have their pods changed all the time.
	sameCost    = 0.1
	fewTokens   = 500
	costsEvery  = 30 * time.Second
	writerLasts = 2 * time.Minute
	patchTime   = 5 * time.Second
)

// writeCosts keeps the pods' annotations, until ctx ends.
func (f *poolFollower) writeCosts(ctx context.Context) {
	c := *f.Costs
	if c.Every <= 0 {
		c.Every = costsEvery
	}
	due, said := time.Now().Add(c.Every/6), ""
	for range retry.Every(ctx, c.Every/30) {
		if time.Now().Before(due) {
			continue
		}
		list := f.changedCosts(c.Of(), c.Writer, time.Now())
		if len(list) == 0 {
			if said != "" { // another process writes them now, or they are right again
				said = ""
				c.Told("")
			}
			continue
		}
		why := ""
		if err := f.server.patchPods(ctx, f.Namespace, list); err != nil && ctx.Err() == nil {
			why = err.Error()
		}
		due = time.Now().Add(c.Every)
		c.Told(why)
		if why != "" && why != said {
			f.server.log.Warn("cannot write the pods' deletion costs", zap.String("error", why))
		}
		said = why
	}
}

// podPatch is a change of one pod.
type podPatch struct {
	name string
	body []byte
}

// changedCosts returns the changes of pods whose annotation is no longer right; none while another process writes them.
func (f *poolFollower) changedCosts(of func(netip.AddrPort) (float64, bool), writer string, now time.Time) (list []podPatch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	last, by := time.Time{}, writer
	for _, p := range f.pods {
		name, text, _ := strings.Cut(p.Metadata.Annotations[writerKey], " ")
		ms, err := strconv.ParseInt(text, 10, 64)
		at := time.UnixMilli(ms)
		if err != nil || at.Sub(now) > writerLasts { // of a clock that is wrong: it would last until then
			continue
		}
		if at.After(last) || at.Equal(last) && name < by {
			last, by = at, name
		}
	}
	if by != writer && now.Sub(last) < writerLasts {
		return nil
	}
	for name, p := range f.pods {
		m := &p.Metadata
		ip, err := netip.ParseAddr(p.Status.PodIP)
		if err != nil || m.DeletionTimestamp != "" || p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" {
			continue
		}
		text, given := m.Annotations[costKey]
		old, err := strconv.ParseInt(text, 10, 32)
		wrong := given && err != nil
		cost := costOfPod(ip.Unmap(), f.ports, of, old)
		if most := max(fewTokens, sameCost*max(math.Abs(float64(old)), math.Abs(float64(cost)))); !wrong && math.Abs(float64(cost-old)) <= most {
			continue
		}
		mark := fmt.Sprint(writer, " ", now.UnixMilli())
		body, _ := json.Marshal(map[string]any{"metadata": map[string]any{"uid": m.UID, // the patch of another pod of that name fails
			"annotations": map[string]string{costKey: strconv.FormatInt(cost, 10), writerKey: mark}}})
		list = append(list, podPatch{name, body})
	}
	return list
}

// costOfPod returns what the removal of a pod costs, of which each port is a worker: old, if that is not known.
func costOfPod(ip netip.Addr, ports []int, of func(netip.AddrPort) (float64, bool), old int64) int64 {
	sum, some, out := 0.0, false, false
	for _, port := range ports {
		cost, known := of(netip.AddrPortFrom(ip, uint16(port)))
		switch {
		case known && math.IsInf(cost, -1):
			out = true
		case known:
			sum, some = sum+cost, true
		}
	}
	switch {
	case some:
		return int64(math.Round(min(math.MaxInt32, max(0, sum))))
	case out:
		return lowestCost
	case old == lowestCost: // it is in service again
		return 0
	}
	return old
}

var errPatch = errors.New("want a Role with patch on pods, bound to this ServiceAccount")

// patchPods changes pods, up to the first failure. That a pod is gone, or another one has its name now, is none.
func (s *server) patchPods(ctx context.Context, namespace string, list []podPatch) error {
	client, err := s.client()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	for _, p := range list {
		if err := s.patchPod(ctx, client, resource{version: "v1", namespace: namespace, kind: "pods", name: p.name}, p.body); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) patchPod(ctx context.Context, c *http.Client, r resource, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, patchTime)
	defer cancel()
	resp, err := s.do(ctx, c, http.MethodPatch, r, "", body)
	if err != nil {
		return fmt.Errorf("patch: %w", err)
	}
	defer resp.Body.Close()
	switch told := readStatus(resp); told.Code {
	case http.StatusOK, http.StatusNotFound, http.StatusConflict, http.StatusUnprocessableEntity:
		return nil
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("status %d: %.300s (%w)", told.Code, told.Message, errPatch)
	default:
		return fmt.Errorf("patch: status %d: %.300s", told.Code, told.Message)
	}
}
