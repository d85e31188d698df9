package look

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
)

var forwarded = regexp.MustCompile(`^Forwarding from (127\.0\.0\.1:\d+) ->`)

// forward has kubectl, which knows every kind of kubeconfig, lead to the admin port of each pod of a Service, and returns where they are
// then. The admin token passes there, which the API server's own proxy would drop. end ends it.
func forward(ctx context.Context, namespace, service string) (at []string, end func(), err error) {
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
	for _, pod := range pods {
		if err != nil {
			break
		}
		c := kubectl("port-forward", "pod/"+pod, ":"+port)
		said, e := c.StdoutPipe()
		if e == nil {
			e = c.Start()
		}
		if e != nil {
			err = e
			break
		}
		lines := bufio.NewScanner(said)
		found := ""
		for found == "" && lines.Scan() {
			if m := forwarded.FindStringSubmatch(lines.Text()); m != nil {
				found = m[1]
			}
		}
		all.Go(func() {
			for lines.Scan() { // it writes a line for each connection
			}
			_ = c.Wait()
		})
		if found == "" {
			err = fmt.Errorf("kubectl port-forward pod/%s :%s ended", pod, port)
		}
		at = append(at, "http://"+found)
	}
	if failed, is := err.(*exec.ExitError); is {
		err = fmt.Errorf("kubectl: %s", strings.TrimSpace(string(failed.Stderr)))
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	return at, end, nil
}
