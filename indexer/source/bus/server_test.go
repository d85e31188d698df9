package bus

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
)

// TestServerRefuses checks that a server that would admit strangers, or whose files others could write, does not start, and that
// the error says what to do.
func TestServerRefuses(t *testing.T) {
	dir := t.TempDir()
	conf := func(text string) string {
		file := filepath.Join(dir, fmt.Sprint(len(text), ".conf"))
		writeFile(t, file, text)
		return file
	}
	open := filepath.Join(dir, "open")
	foreign := filepath.Join(dir, "foreign")
	for _, d := range []string{open, foreign, filepath.Join(foreign, "jetstream")} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(foreign, "jetstream"), 0o777); err != nil {
		t.Fatal(err)
	}
	users := "authorization {users: [{user: u, password: p}]}"
	for name, c := range map[string]struct {
		server Server
		want   string
	}{
		"open to all":          {Server{Listen: "0.0.0.0:0"}, "open to the network"},
		"no address":           {Server{Listen: ":0"}, "`sightline credentials DIR -c FILE`"},
		"a name":               {Server{Listen: "example.com:0"}, "open to the network"},
		"IPv6":                 {Server{Listen: "[::]:0"}, "open to the network"},
		"a file without users": {Server{Listen: "0.0.0.0:0", Config: conf("max_payload: 1MB")}, "open to the network"},
		"who comes is a user": {Server{Listen: "127.0.0.1:0", Config: conf(users + "\nno_auth_user: u")},
			"allows clients without credentials"},
		"no configuration": {Server{Listen: "127.0.0.1:0", Config: conf("users = [")}, "nats.config: "},
		"not there":        {Server{Listen: "127.0.0.1:0", Config: filepath.Join(dir, "none")}, "nats.config: "},
		"a folder open to all": {*storedIn(t, "127.0.0.1:0", open), "nats.config: store_dir: " + open +
			" belongs to another user, or all may write to it"},
		"an open folder in it":    {*storedIn(t, "127.0.0.1:0", foreign), "nats.config: store_dir: " + foreign + "/jetstream belongs"},
		"a file where one is due": {*storedIn(t, "127.0.0.1:0", conf(users)), "is a file (want a folder)"},
	} {
		e, err := c.server.start(zap.NewNop())
		if err == nil {
			e.close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v\nwant %s", name, err, c.want)
		}
	}
}

// storedIn returns a server whose configuration says no more than where its streams are; "": nothing.
func storedIn(t testing.TB, listen, dir string) *Server {
	s := &Server{Listen: listen}
	if dir != "" {
		s.Config = filepath.Join(t.TempDir(), "nats.conf")
		writeFile(t, s.Config, fmt.Sprintf("jetstream {store_dir: %q}", dir))
	}
	return s
}

// TestServersFolder checks that without a folder the streams are in a new one that only we can read, removed at the end, and that
// a configured folder stays.
func TestServersFolder(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	mine := filepath.Join(t.TempDir(), "streams")
	for _, dir := range []string{"", mine} {
		e, err := storedIn(t, "127.0.0.1:0", dir).start(zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		at := strings.TrimSuffix(e.StoreDir(), "/jetstream")
		if info, err := os.Stat(at); err != nil || info.Mode().Perm() != 0o700 || dir != "" && at != dir {
			t.Errorf("%s: %v, %v", at, info, err)
		}
		e.close()
		if _, err := os.Stat(at); os.IsNotExist(err) != (dir == "") {
			t.Errorf("%s afterwards: %v", at, err)
		}
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left behind: got %v, %v, want no error, 0 of them", left, err)
	}
}

// TestServersTLS checks that with TLS the router in the same process needs none, but an agent does.
func TestServersTLS(t *testing.T) {
	payloads, prompts := recording(t)
	dir := t.TempDir()
	selfSigned(t, dir)
	cert, token := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "token")
	writeFile(t, token, "word")
	writeFile(t, filepath.Join(dir, "nats.conf"), fmt.Sprintf("authorization {token: word}\ntls {cert_file: %q, key_file: %q}",
		cert, filepath.Join(dir, "key.pem")))
	l, err := StartLink(LinkOptions{Access: Access{Auth: token}, Log: zap.NewNop(),
		Server: Server{Listen: "127.0.0.1:0", Config: filepath.Join(dir, "nats.conf")}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := Access{URL: "nats://" + l.server.Addr().String(), TLSCA: cert, Auth: token}.Connect(ConnectOptions{Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.TLSConnectionState(); err != nil {
		t.Error(err)
	}
	h, _ := agent(t, c, "w")
	h.give(payloads...)
	g := guarded{Link: l}
	g.follows(t, "w").same("w", payloads, prompts)
}
