package look

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

var forwarded = regexp.MustCompile(`^Forwarding from (127\.0\.0\.1:\d+) ->`)

// leadTime is how long kubectl may take to lead to a pod.
const leadTime = 15 * time.Second

// forward has kubectl, which knows every kind of kubeconfig, lead to the admin port of each pod of a Service, and returns where they are
// then. The admin token passes there, which the API server's own proxy would drop. A pod to which nothing leads stands there by its name;
// away says why. It is an error if that is so of all. end ends it.
func forward(ctx context.Context, namespace, service string) (at []string, away map[string]error, end func(), err error) {
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	end = func() { stop(); all.Wait() }
	kubectl := func(args ...string) *exec.Cmd {
		if namespace != "" {
			args = append([]string{"--namespace=" + namespace}, args...)
		}
		return exec.CommandContext(ctx, "kubectl", args...)
	}
	name, port, _ := strings.Cut(service, ":")
	if port == "" {
		port = "9903"
	}
	out, err := kubectl("get", "endpointslices", "--selector=kubernetes.io/service-name="+name, "-o",
		`jsonpath={range .items[*].endpoints[*]}{.targetRef.name}{"\n"}{end}`).Output()
	pods := strings.Fields(string(out)) // twice where the Service has slices for IPv4 and IPv6
	slices.Sort(pods)
	pods = slices.Compact(pods)
	if err == nil && len(pods) == 0 {
		err = fmt.Errorf("service %q has no pods (want the name of Sightline's Service, and --namespace)", name)
	}
	if failed, is := err.(*exec.ExitError); is {
		err = fmt.Errorf("kubectl: %s", strings.TrimSpace(string(failed.Stderr)))
	}
	if err != nil {
		end()
		return nil, nil, nil, err
	}
	at, failed := make([]string, len(pods)), make([]error, len(pods))
	var led sync.WaitGroup
	for i, pod := range pods {
		led.Go(func() {
			at[i], failed[i] = lead(kubectl("port-forward", "pod/"+pod, ":"+port), &all)
			if failed[i] != nil {
				at[i], failed[i] = "pod/"+pod, fmt.Errorf("kubectl port-forward pod/%s :%s: %w", pod, port, failed[i])
			}
		})
	}
	led.Wait()
	away = make(map[string]error)
	for i, err := range failed {
		if err != nil {
			away[at[i]] = err
		}
	}
	if len(away) == len(pods) {
		end()
		return nil, nil, nil, errors.Join(failed...)
	}
	return at, away, end, nil
}

// lead starts a port-forward, and returns the address from which it leads. all waits for its end.
func lead(c *exec.Cmd, all *sync.WaitGroup) (at string, err error) {
	var complaint bytes.Buffer
	c.Stderr = &complaint
	said, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		return "", err
	}
	patience := time.AfterFunc(leadTime, func() { _ = c.Process.Kill() })
	defer patience.Stop()
	lines := bufio.NewScanner(said)
	for at == "" && lines.Scan() {
		if m := forwarded.FindStringSubmatch(lines.Text()); m != nil {
			at = "http://" + m[1]
		}
	}
	if at == "" {
		return "", fmt.Errorf("%w %s", cmp.Or(c.Wait(), errors.New("it ended")), strings.TrimSpace(complaint.String()))
	}
	all.Go(func() {
		for lines.Scan() { // it writes a line for each connection
		}
		_ = c.Wait()
	})
	return at, nil
}
