package e2e

import (
	"net"
	"net/http"
	"net/netip"
	"testing"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/extproc"
)

// Workers by a name with an IPv4 and an IPv6 address, which localhost has for Envoy's resolver: Envoy uses the family that
// Sightline uses. Workers that listen on IPv4 alone serve all paths, also without Sightline; of those that listen on both,
// choices are followed, which name an IPv4 address.
func TestNamesOfTwoFamilies(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"composite", "override_host", "1.36"} {
		for _, listens := range []string{"127.0.0.1:0", "[::]:0"} {
			t.Run(name+" "+listens, func(t *testing.T) {
				t.Parallel()
				var workers []*worker
				w := start(t, 0, func(o *envoy.Options) {
					for range 2 {
						lis, err := net.Listen("tcp", listens)
						if err != nil {
							t.Skip(err) // a machine without IPv6
						}
						_, port, _ := net.SplitHostPort(lis.Addr().String())
						workers = append(workers, startWorkerOn(t, lis, "127.0.0.1:"+port))
						o.Workers = append(o.Workers, "localhost:"+port)
					}
					o.Allow = []envoy.Range{{Prefix: netip.MustParsePrefix("127.0.0.0/8"), FirstPort: 1, LastPort: 65535}}
					if name == "1.36" {
						o.Version = name
					} else if err := o.Apply(name); err != nil {
						t.Fatal(err)
					}
				})
				w.workers = workers
				s := w.runSightline(extproc.Options{})
				for i := range 8 {
					addr := workers[i%2].addr
					r := decided(func() reply { return w.post(chat(script{Targets: []string{addr}}), nil) })
					if r.err != nil || r.status != http.StatusOK || r.Worker != addr {
						t.Errorf("%v, status %d from %s, chosen was %s, want no error, %d, %q", r.err, r.status, r.Worker, addr, http.StatusOK, addr)
					}
				}
				for range 2 {
					for method, path := range map[string]string{"GET": "/v1/models", "POST": "/tokenize"} {
						if r := w.send(w.client, method, path, "{}", nil); r.err != nil || r.status != http.StatusOK {
							t.Errorf("%s: got %v, status %d, want no error, %d", path, r.err, r.status, http.StatusOK)
						}
					}
					s.stop()
				}
				if r := w.post(chat(script{}), nil); r.err != nil || r.status != http.StatusOK {
					t.Errorf("without Sightline: got %v, status %d, want no error, %d", r.err, r.status, http.StatusOK)
				}
			})
		}
	}
}
