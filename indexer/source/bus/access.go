package bus

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/internal/secure"
)

// Access says where a NATS server is and how we authenticate. Its fields are keys of the configuration and flags of the agent.
// Secrets are in files; all but the nkey's public part are read again with each connection, so that changes need no restart.
type Access struct {
	URL string `yaml:"url" name:"nats" required:"" placeholder:"URL" help:"nats://HOST:4222, or several with commas."`
	// Auth is a file with a user's JWT and seed (.creds), an nkey's seed, "user:password" or a token.
	Auth    string `yaml:"auth" name:"nats-auth" placeholder:"FILE" help:"A .creds file, nkey, user:password, or token."`
	TLSCA   string `yaml:"tls_ca" name:"nats-tls-ca" placeholder:"FILE" help:"PEM file of NATS' authority; TLS is then a must."`
	TLSCert string `yaml:"tls_cert" name:"nats-tls-cert" placeholder:"FILE" help:"PEM file of the agent's own certificate."`
	TLSKey  string `yaml:"tls_key" name:"nats-tls-key" placeholder:"FILE" help:"PEM file of its key."`
}

// Given reports whether there is anything but a URL.
func (a Access) Given() bool { a.URL = ""; return a != Access{} }

// Check reports invalid settings to bad, by key; it reads no file (Options does). inProcess: for a server in this process,
// without URL.
func (a *Access) Check(inProcess bool, bad func(key, format string, args ...any)) {
	if (a.TLSCert == "") != (a.TLSKey == "") {
		bad("tls_cert", "tls_cert and tls_key must both be given, or neither")
	}
	switch {
	case inProcess && a.TLSCA+a.TLSCert != "":
		bad("tls_ca", "tls_ca and tls_cert are for url; the embedded server is in this very process (its own certificate stands in nats.config)")
	case !inProcess && a.URL == "" && a.Given():
		bad("url", "missing, but credentials are given (want a URL such as nats://10.0.0.4:4222)")
	case a.URL != "":
		a.checkURL(bad)
	}
}

// checkURL checks a list of servers, with or without a scheme, as the NATS client accepts it.
func (a *Access) checkURL(bad func(key, format string, args ...any)) {
	for text := range strings.SplitSeq(a.URL, ",") {
		text = strings.TrimSpace(text)
		if !strings.Contains(text, "://") {
			text = "nats://" + text
		}
		u, err := url.Parse(text)
		switch {
		case err != nil || u.Hostname() == "" || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme):
			bad("url", "this is not a server's URL (want one such as nats://10.0.0.4:4222, or several with commas)") // it may hold a password
		case u.User != nil:
			bad("url", "it holds a user or a secret (want auth, a file with it: files are not printed and not logged)")
		}
	}
}

// Options returns the NATS client's options. An error names the key whose file is missing or invalid, and no secret.
func (a *Access) Options() (out []nats.Option, err error) {
	fail := func(key string, err error) ([]nats.Option, error) { return nil, fmt.Errorf("%s: %w", key, err) }
	for key, file := range map[string]string{"auth": a.Auth, "tls_ca": a.TLSCA, "tls_cert": a.TLSCert, "tls_key": a.TLSKey} {
		if _, err := os.Stat(file); err == nil { // the client reads these itself, to their end
			if _, err := secure.ReadFile(file); err != nil {
				return fail(key, err)
			}
		}
	}
	if a.Auth != "" {
		o, err := authenticate(a.Auth)
		if err != nil {
			return fail("auth", err)
		}
		out = append(out, o)
	}
	var test nats.Options // for the client's own checks of the files
	if a.TLSCA != "" {
		o := nats.RootCAs(a.TLSCA)
		if err := o(&test); err != nil {
			return fail("tls_ca", err)
		}
		out = append(out, o)
	}
	if a.TLSCert != "" {
		o := nats.ClientCert(a.TLSCert, a.TLSKey)
		if err := o(&test); err != nil {
			return fail("tls_cert", err)
		}
		out = append(out, o)
	}
	return out, nil
}

// authenticate returns the client's option for a file of credentials, an nkey's seed, a user with a password, or a token.
func authenticate(file string) (nats.Option, error) {
	text, err := secure.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if bytes.Contains(text, []byte("-----BEGIN")) {
		_, noToken := nkeys.ParseDecoratedJWT(text)
		if _, noSeed := nkeys.ParseDecoratedUserNKey(text); noToken != nil || noSeed != nil {
			return nil, fmt.Errorf("%s holds no user's JWT and seed (want a .creds file, such as nsc writes)", file)
		}
		return nats.UserCredentials(file), nil
	}
	if _, err := nkeys.FromSeed(bytes.TrimSpace(text)); err == nil {
		return nats.NkeyOptionFromSeed(file)
	}
	word, err := secret(file)
	if err != nil {
		return nil, err
	}
	if !strings.Contains(word, ":") {
		return nats.TokenHandler(func() string { word, _ := secret(file); return word }), nil
	}
	return nats.UserInfoHandler(func() (user, password string) {
		word, _ := secret(file)
		user, password, _ = strings.Cut(word, ":")
		return user, password
	}), nil
}

// secret reads a file with a single line.
func secret(file string) (string, error) {
	text, err := secure.ReadFile(file)
	word := strings.TrimSpace(string(text))
	if err == nil && (word == "" || strings.ContainsAny(word, "\r\n")) {
		err = fmt.Errorf("%s holds %d lines (want a .creds file, or one line: an nkey's seed, user:password or a token)", file,
			strings.Count(word, "\n")+min(len(word), 1))
	}
	return word, err
}

// ConnectOptions are the settings of a connection besides its Access.
type ConnectOptions struct {
	Name string // shown by the server
	// Inbox is the prefix of the subjects for answers, so that permissions can distinguish them; "": the client's own.
	Inbox string
	Log   *zap.Logger
	// Refused, if set, is called each time that the server rejects us or a subject. The log says so once until we are connected
	// again.
	Refused func()
	Failing *Failing // nil: nobody asks

	server nats.InProcessConnProvider // instead of the URL
}

// Failing keeps the last failure to connect, until a connection is there. It is safe for concurrent use.
type Failing struct{ last atomic.Pointer[failure] }

type failure struct {
	text    string
	refused bool
}

// Why returns the last failure since there was a connection, and whether the server refused us; "": none yet.
func (f *Failing) Why() (text string, refused bool) {
	if last := f.last.Load(); last != nil {
		return last.text, last.refused
	}
	return "", false
}

// Connect returns a connection that retries for ever while the server is away or rejects us, with jitter.
func (a Access) Connect(o ConnectOptions) (*nats.Conn, error) {
	list, err := a.Options()
	if err != nil {
		return nil, err
	}
	var told, refusal atomic.Bool // logged in the current row of failures; and whether one was a refusal
	failing := o.Failing
	if failing == nil {
		failing = new(Failing)
	}
	again := func() bool { failing.last.Store(nil); refusal.Store(false); return told.Swap(false) }
	failed := func(err error) {
		refused := isRefusal(err)
		why := &failure{err.Error(), refused}
		if refused {
			why.text = "the server rejects the credentials or a subject (" + err.Error() + "): compare auth with the server's users"
		}
		failing.last.Store(why)
		if refused && o.Refused != nil {
			o.Refused()
		}
		switch {
		case refused && !refusal.Swap(true):
			told.Store(true)
			o.Log.Error("NATS rejects our credentials or a subject; retrying", zap.Error(err))
		case !told.Swap(true):
			o.Log.Warn("cannot connect to NATS; retrying", zap.String("url", a.URL), zap.Error(err))
		}
	}
	list = append(list, nats.Name(o.Name), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(250*time.Millisecond), nats.ReconnectJitter(time.Second, time.Second),
		nats.PingInterval(5*time.Second), nats.MaxPingsOutstanding(2), // a server that was cut off is replaced by another after 15 s
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { o.Log.Warn("disconnected from NATS", zap.Error(err)) }),
		nats.ConnectHandler(func(*nats.Conn) {
			if again() {
				o.Log.Info("connected to NATS")
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) { again(); o.Log.Info("reconnected to NATS") }),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { failed(err) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { failed(err) }))
	if o.Inbox != "" {
		list = append(list, nats.CustomInboxPrefix(o.Inbox))
	}
	if o.server != nil {
		list = append(list, nats.InProcessServer(o.server))
	}
	return nats.Connect(a.URL, list...)
}

// leastServer is the first nats-server that stores the metadata of streams, which hold the secret of the block hashes, and that
// compresses streams.
var leastServer = [3]int{2, 10, 0}

// CheckServer returns an error if the server of a connection is older than the agents' streams need; nil while there is no
// connection, and for a server whose version is not three numbers.
func CheckServer(conn *nats.Conn) error {
	found := conn.ConnectedServerVersion()
	var v [3]int
	if _, err := fmt.Sscanf(found, "%d.%d.%d", &v[0], &v[1], &v[2]); err != nil || slices.Compare(v[:], leastServer[:]) >= 0 {
		return nil
	}
	return fmt.Errorf("nats-server %.40q is too old (want %d.%d.%d or newer)", found, leastServer[0], leastServer[1], leastServer[2])
}

// isRefusal reports whether a server rejected a user, or a user's subject.
func isRefusal(err error) bool {
	return errors.Is(err, nats.ErrPermissionViolation) || errors.Is(err, nats.ErrAuthorization) ||
		errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked) ||
		errors.Is(err, nats.ErrAccountAuthExpired)
}
