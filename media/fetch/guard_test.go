package fetch

import (
	"context"
	"encoding/binary"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// dns answers A queries on loopback as the test says; all others with "no such name".
type dns struct {
	mu    sync.Mutex
	addrs map[string][]netip.Addr // one answer per query; the last one repeats
}

func (d *dns) resolver(t *testing.T) *net.Resolver {
	t.Helper()
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pc.Close() })
	go func() {
		buf := make([]byte, 512)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			pc.WriteTo(d.answer(buf[:n]), from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp4", pc.LocalAddr().String())
	}}
}

func (d *dns) answer(q []byte) []byte {
	var name strings.Builder
	i := 12
	for i < len(q) && q[i] != 0 {
		name.Write(q[i+1 : i+1+int(q[i])])
		name.WriteByte('.')
		i += 1 + int(q[i])
	}
	end := i + 5
	a := append([]byte(nil), q[:end]...)
	a[2], a[3] = 0x81, 0x80
	binary.BigEndian.PutUint16(a[6:], 0)
	binary.BigEndian.PutUint16(a[8:], 0)
	binary.BigEndian.PutUint16(a[10:], 0)
	d.mu.Lock()
	defer d.mu.Unlock()
	key := strings.TrimSuffix(name.String(), ".")
	list := d.addrs[key]
	if len(list) == 0 {
		a[3] |= 3
		return a
	}
	if binary.BigEndian.Uint16(q[i+1:]) != 1 {
		return a
	}
	if len(list) > 1 {
		d.addrs[key] = list[1:]
	}
	binary.BigEndian.PutUint16(a[6:], 1)
	a = append(a, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
	ip := list[0].As4()
	return append(a, ip[:]...)
}

func deadResolver(t *testing.T) *net.Resolver { return (&dns{}).resolver(t) }

// trap is a listener that counts connections; there must be none.
func trap(t *testing.T, addr string) (port string, hits *atomic.Int32) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Skipf("no listener on %s here: %v", addr, err)
	}
	t.Cleanup(func() { l.Close() })
	hits = new(atomic.Int32)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			hits.Add(1)
			c.Close()
		}
	}()
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port, hits
}

// TestNoPacketOut: private addresses in every notation are refused by the dialler; nothing is sent.
func TestNoPacketOut(t *testing.T) {
	port, hits := trap(t, "127.0.0.1:0")
	d := &dns{addrs: map[string][]netip.Addr{"inside.example": {netip.MustParseAddr("127.0.0.1")},
		"ten.example": {netip.MustParseAddr("10.1.2.3")}}}
	f := open(t, Config{resolver: d.resolver(t), Ports: []uint16{80, 443, mustPort(port)}})
	for _, host := range []string{
		"127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0.0.0.0", "0", "localhost", "LOCALHOST.", "[::1]",
		"[::]", "[::ffff:127.0.0.1]",
		"[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[fe80::1%25lo]", "127.0.0.1.", "user@127.0.0.1",
		"inside.example", "ten.example",
		"10.0.0.1", "172.16.0.1", "192.168.0.1", "169.254.169.254", "168.63.129.16", "100.64.0.1", "224.0.0.1",
		"255.255.255.255", "[fc00::1]", "[ff02::1]",
	} {
		_, err := f.Get(t.Context(), 0, "http://"+host+":"+port+"/secret")
		if k, _ := kindOf(err); k != Refused && k != Unreachable {
			t.Errorf("%s: %v", host, err)
		}
	}
	if n := hits.Load(); n != 0 {
		t.Errorf("%d connections arrived, want 0", n)
	}
	if f.Stats().Failed[Refused] < 20 {
		t.Errorf("counts %v", f.Stats())
	}
}

func mustPort(s string) uint16 {
	n, _ := net.LookupPort("tcp", s)
	return uint16(n)
}

// TestRedirectAndRebinding: an allowed host leads to a forbidden one, by redirect and by DNS.
func TestRedirectAndRebinding(t *testing.T) {
	port, hits := trap(t, "127.0.0.1:0")
	l, err := net.Listen("tcp4", "127.0.0.2:"+port)
	if err != nil {
		t.Skipf("no second loopback address here: %v", err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/redirect" {
			http.Redirect(w, r, "http://127.0.0.1:"+port+"/", 302)
			return
		}
		w.Header().Set("Connection", "close") // so that the next request dials again
		image(red, "Cache-Control", "no-cache")(w, r)
	}))
	s.Listener.Close()
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	d := &dns{addrs: map[string][]netip.Addr{"rebind.example": {netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.1")}}}
	f := open(t, Config{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}, resolver: d.resolver(t)})
	want(t, f, "http://127.0.0.2:"+port+"/a", red)
	wantKind(t, f, "http://127.0.0.2:"+port+"/redirect", Refused)
	want(t, f, "http://rebind.example:"+port+"/a", red)
	wantKind(t, f, "http://rebind.example:"+port+"/b", Refused)
	if hits.Load() != 0 {
		t.Errorf("%d connections arrived, want 0", hits.Load())
	}
}

// TestGuard: the rules on addresses and ports, without network access.
func TestGuard(t *testing.T) {
	closed := newGuard(&Config{Ports: []uint16{80, 443}})
	wide := newGuard(&Config{Ports: []uint16{80, 443}, Allow: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"),
		netip.MustParsePrefix("::/0")}})
	private := newGuard(&Config{Ports: []uint16{80, 443}, Allow: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	for _, c := range []struct {
		g    *addressGuard
		net  string
		addr string
		ok   bool
	}{
		{closed, "tcp4", "93.184.216.34:443", true}, {closed, "tcp6", "[2606:2800:220:1::1]:80", true},
		{closed, "tcp4", "93.184.216.34:22", false},
		{closed, "udp4", "93.184.216.34:443", false}, {closed, "tcp4", "10.1.2.3:80", false},
		{closed, "tcp4", "168.63.129.16:80", false}, {closed, "tcp4", "192.0.2.1:80", false},
		{closed, "tcp6", "[::ffff:10.1.2.3]:80", false}, {closed, "tcp6", "[::ffff:93.184.216.34]:80", true},
		{closed, "tcp6", "[fe80::1%eth0]:80", false}, {closed, "tcp4", "nonsense", false},
		{private, "tcp4", "10.1.2.3:9000", true}, {private, "tcp6", "[::ffff:10.1.2.3]:9000", true}, {private, "tcp4", "192.168.1.1:80", false},
		{wide, "tcp4", "127.0.0.1:1", true}, {wide, "tcp4", "169.254.169.254:80", false},
		{wide, "tcp6", "[::ffff:169.254.169.254]:80", false}, {wide, "tcp4", "168.63.129.16:32526", false},
		{wide, "tcp6", "[fd00:ec2::254]:80", false}, {wide, "tcp4", "100.100.100.200:80", false},
	} {
		if err := c.g.control(c.net, c.addr, nil); (err == nil) != c.ok {
			t.Errorf("%s %s: got %v, want it allowed: %v", c.net, c.addr, err, c.ok)
		}
	}
}

// TestProxyNotDialled: with a proxy, non-public addresses are refused in every notation, and so are ports other than the configured
// ones, before the proxy is dialled; also after a redirect.
func TestProxyNotDialled(t *testing.T) {
	port, hits := trap(t, "127.0.0.1:0")
	p, _ := url.Parse("http://127.0.0.1:" + port)
	f := open(t, Config{Proxy: func(*url.URL) (*url.URL, error) { return p, nil }, resolver: deadResolver(t)})
	for _, host := range []string{
		"127.0.0.1", "127.0.0.1.", "2130706433", "0x7f000001", "0X7F000001", "017700000001", "0x7f.1", "0X7f.1", "127.1",
		"127.0.1", "0177.0.0.1", "0177.1", "00.0x0.0", "0",
		"127.0x0.0.1", "127.0.0.01", "010.0.0.1", "4294967295", "4294967297", "18446744071562067969", "256.1", "1.2.3.4.5",
		"2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518",
		"127.0.0.0x", "x.0x", "example.1", "%EF%BC%91%EF%BC%92%EF%BC%97.1", "１２７.0.0.1", "127。0。0。1", "127．1", "②130706433",
		"[::1]", "[::ffff:7f00:1]", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]",
		"[fe80::1%25eth0]", "[fd00:ec2::254]", "user:secret@127.1", "localhost", "LOCALHOST.", "api.localhost",
		"localhost.localdomain", "ip6-localhost",
	} {
		for _, scheme := range []string{"http", "https"} {
			wantKind(t, f, scheme+"://"+host+"/x.png", Refused)
		}
	}
	for _, port := range []string{"0", "22", "6379", "8080", "65535"} {
		wantKind(t, f, "http://images.example:"+port+"/x.png", Refused)
		wantKind(t, f, "http://93.184.216.34:"+port+"/x.png", Refused)
	}
	if n := hits.Load(); n != 0 {
		t.Fatalf("the proxy was dialled %d times, want 0", n)
	}

	proxy, n := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".png") {
			image(red)(w, r)
			return
		}
		http.Redirect(w, r, "http://"+strings.TrimPrefix(r.URL.Path, "/")+"/x", http.StatusFound)
	})
	p, _ = url.Parse(proxy)
	f = open(t, Config{Proxy: func(*url.URL) (*url.URL, error) {
		return p, nil
	}, resolver: deadResolver(t), Allow: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	for i, host := range []string{"2130706433", "0x7f.1", "127.1", "images.example:22", "[::1]"} {
		wantKind(t, f, "http://images.example/"+host, Refused)
		if got := n.Load(); got != int32(i+1) {
			t.Fatalf("%s: %d requests reached the proxy, want %d", host, got, i+1)
		}
	}
	for _, ok := range []string{"93.184.216.34", "[2606:2800:220:1::1]:443", "1e100.example", "0x7f.example",
		"10.1.2.3:9000", "xn--bcher-kva.example", "bücher.example"} {
		want(t, f, "http://"+ok+"/x.png", red)
	}
}

// TestProxy: requests go through the proxy, which may have a private address; private targets are still refused.
func TestProxy(t *testing.T) {
	var saw atomic.Pointer[string]
	proxy, n := serve(t, func(w http.ResponseWriter, r *http.Request) {
		u := r.URL.String()
		saw.Store(&u)
		image(red)(w, r)
	})
	p, _ := url.Parse(proxy)
	f := open(t, Config{Proxy: func(*url.URL) (*url.URL, error) { return p, nil }, resolver: deadResolver(t)})
	want(t, f, "http://images.example/a.png", red)
	if *saw.Load() != "http://images.example/a.png" {
		t.Errorf("the proxy saw %s", *saw.Load())
	}
	for _, u := range []string{"http://10.0.0.1/", "http://[::1]/", "http://localhost/", "http://169.254.169.254/latest",
		"http://93.184.216.34:22/"} {
		wantKind(t, f, u, Refused)
	}
	if n.Load() != 1 {
		t.Errorf("%d requests reached the proxy, want 1", n.Load())
	}
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy", "REQUEST_METHOD"} {
		t.Setenv(name, "")
	}
	t.Setenv("HTTP_PROXY", proxy) // the default
	t.Setenv("NO_PROXY", "direct.example")
	f, err := New(Config{Budget: 10 * time.Second, resolver: deadResolver(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	want(t, f, "http://images.example/b.png", red)
	wantKind(t, f, "http://direct.example/b.png", Unreachable)
	if n.Load() != 2 {
		t.Errorf("%d requests reached the proxy, want 2", n.Load())
	}
}
