package discover

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
)

// PoolGroup is the API group of Gateway API's Inference Extension.
const PoolGroup = "inference.networking.k8s.io"

// Pool follows an InferencePool of Gateway API's Inference Extension (v1) and the pods that it selects. It needs the verbs list and
// watch on inferencepools of inference.networking.k8s.io and on pods; and for Objectives on inferenceobjectives and inferencemodelrewrites
// of objectiveGroups; for Costs the verb patch on pods.
//
// Each of the pool's targetPorts is an endpoint of each pod, unless the pod's annotation active-ports leaves it out. A pod that is
// not ready, or is terminating, is reported as an endpoint that is not ready.
type Pool struct {
	Cluster
	Name       string
	Log        *zap.Logger
	Retry      time.Duration     // as in Kubernetes
	Objectives func(*Objectives) // is told what the pool's objects say of its requests, after each change; nil: not followed
	Costs      *DeletionCosts    // nil: pods are not annotated
}

// inferencePool is the part of an InferencePool that is used.
type inferencePool struct {
	described
	Spec struct {
		Selector    struct{ MatchLabels map[string]string }
		TargetPorts []struct{ Number int }
	}
}

// pod is the part of a Pod that is used.
type pod struct {
	described
	Status struct {
		Phase      string
		PodIP      string // of the cluster's first family
		Conditions []condition
	}
}

type condition struct{ Type, Status string }

// poolImport is the part of an imported pool (kind inferencepoolimports) that is used. It names no pods: those are in the clusters
// that export the pool.
type poolImport struct {
	described
	Status struct {
		Controllers []struct {
			ExportingClusters []struct{ Name string }
		}
	}
}

// poolFollower joins the watch of a pool with the watch of its pods. A changed selector begins another watch of pods; the workers
// found by the one before stay until that has listed.
type poolFollower struct {
	*Pool
	server  *server
	running sync.WaitGroup

	mu       sync.Mutex
	told     reporter
	selector string
	ports    []int
	pods     map[string]*pod // nil: not listed yet
	stop     context.CancelFunc
	epoch    int // number of the watch of pods
}

// Follow calls found with the whole set after each change, until ctx ends. A pool that is deleted has no endpoints; one that has
// not been created is waited for.
func (p *Pool) Follow(ctx context.Context, found func([]Endpoint)) {
	log := p.Log.With(zap.String("pool", p.Name))
	f := &poolFollower{Pool: p, server: &server{p.Cluster, log, p.Retry}, told: reporter{found: found, log: log}}
	defer f.running.Wait()
	defer f.watchPods(ctx, "")
	if f.Objectives != nil {
		f.followObjectives(ctx)
	}
	if f.Costs != nil {
		f.running.Go(func() { f.writeCosts(ctx) })
	}
	r := resource{group: PoolGroup, version: "v1", namespace: p.Namespace, kind: "inferencepools",
		query: url.Values{"fieldSelector": {"metadata.name=" + p.Name}}}
	follow(ctx, f.server, r, func(list map[string]*inferencePool) { f.changed(ctx, list[p.Name]) })
}

// changed follows a changed pool; nil: it is not there.
func (f *poolFollower) changed(ctx context.Context, pool *inferencePool) {
	if pool == nil {
		f.watchPods(ctx, "")
		f.explainAbsence(ctx)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.told.report([]Endpoint{}, nil)
		return
	}
	f.mu.Lock()
	f.ports = nil
	for _, p := range pool.Spec.TargetPorts {
		if p.Number > 0 && p.Number < 65536 && !slices.Contains(f.ports, p.Number) {
			f.ports = append(f.ports, p.Number)
		}
	}
	f.report()
	f.mu.Unlock()
	var selector []string
	for _, key := range slices.Sorted(maps.Keys(pool.Spec.Selector.MatchLabels)) {
		selector = append(selector, key+"="+pool.Spec.Selector.MatchLabels[key])
	}
	f.watchPods(ctx, strings.Join(selector, ","))
}

// explainAbsence logs that there is no such pool, or that it is imported. That this may not be asked, or that the kind is not defined,
// is no failure.
func (f *poolFollower) explainAbsence(ctx context.Context) {
	imports, _ := list[poolImport](ctx, f.server, resource{group: "inference.networking.x-k8s.io", version: "v1alpha1",
		namespace: f.Namespace, kind: "inferencepoolimports", query: url.Values{"fieldSelector": {"metadata.name=" + f.Name}}})
	if imports[f.Name] == nil {
		f.server.log.Warn("there is no such InferencePool; it has no workers until it is created", zap.String("namespace", f.Namespace))
		return
	}
	var clusters []string
	for _, c := range imports[f.Name].Status.Controllers {
		for _, cluster := range c.ExportingClusters {
			clusters = append(clusters, cluster.Name)
		}
	}
	f.server.log.Warn("this InferencePool is imported: its pods are in the clusters that export it, and their own endpoint picker chooses "+
		"there. Run Sightline in those clusters", zap.String("namespace", f.Namespace), zap.Strings("exported_by", clusters))
}

// watchPods follows the pods with these labels instead of others; "": none.
func (f *poolFollower) watchPods(ctx context.Context, selector string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if selector == f.selector {
		return
	}
	if f.stop != nil {
		f.stop()
	}
	f.selector, f.pods, f.stop = selector, nil, nil
	f.epoch++
	if selector == "" {
		return
	}
	epoch := f.epoch
	ctx, f.stop = context.WithCancel(ctx)
	r := resource{version: "v1", namespace: f.Namespace, kind: "pods", query: url.Values{"labelSelector": {selector}}}
	f.running.Go(func() {
		follow(ctx, f.server, r, func(list map[string]*pod) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if epoch == f.epoch {
				f.pods = maps.Clone(list)
				f.report()
			}
		})
	})
}

// report reports the endpoints, once the pods are listed. It is called with the lock held.
func (f *poolFollower) report() {
	if f.pods != nil {
		f.told.report(poolEndpoints(f.pods, f.ports))
	}
}

// poolEndpoints returns the endpoints of pods: one for each port. They have their pod's name, with -rank-N behind it if the pool has
// several ports.
func poolEndpoints(pods map[string]*pod, ports []int) (out []Endpoint, wrong error) {
	out = []Endpoint{}
	if len(ports) == 0 && len(pods) > 0 {
		wrong = fmt.Errorf("the pool has no targetPorts (want 1 to 8)")
	}
	for _, p := range pods {
		if p.Status.PodIP == "" || p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" {
			continue
		}
		m := &p.Metadata
		ip, err := netip.ParseAddr(p.Status.PodIP)
		if err != nil || ip.Zone() != "" {
			wrong = fmt.Errorf("pod %s: %q is not an address", m.Name, p.Status.PodIP)
			continue
		}
		ready := m.DeletionTimestamp == "" && slices.Contains(p.Status.Conditions, condition{"Ready", "True"})
		active := activePorts(m)
		for i, port := range ports {
			if active != nil && !slices.Contains(active, port) {
				continue
			}
			e := Endpoint{Name: m.Name, Addr: netip.AddrPortFrom(ip.Unmap(), uint16(port)), Ready: ready,
				Terminating: m.DeletionTimestamp != "",
				Role:        m.Labels["llm-d.ai/role"], Revision: m.Labels[revisionLabel], Zone: m.Labels["topology.kubernetes.io/zone"],
				Pod: Pod{Port: i, Engine: cmp.Or(m.Labels["llm-d.ai/engine-type"], m.Labels[PoolGroup+"/engine-type"]),
					Model: m.Annotations["sightline/model"], Events: m.Annotations["sightline/events"],
					Replay: m.Annotations["sightline/replay"]}}
			if len(ports) > 1 {
				e.Name += fmt.Sprintf("-rank-%d", i)
			}
			out = append(out, e)
		}
	}
	return sorted(out, wrong)
}

// activePorts returns the ports that a pod's annotation names; nil: all, there is none.
func activePorts(m *metadata) []int {
	text, given := m.Annotations["llm-d.ai/active-ports"]
	if !given {
		text, given = m.Annotations[PoolGroup+"/active-ports"]
	}
	if !given {
		return nil
	}
	active := []int{}
	for word := range strings.SplitSeq(text, ",") {
		if port, err := strconv.Atoi(strings.TrimSpace(word)); err == nil {
			active = append(active, port)
		}
	}
	return active
}
